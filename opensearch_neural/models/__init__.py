"""A trained model directory: finding it, loading it, encoding with it in batches on CPU or GPU.

directory.py            finds a model by path or hub id, and reads its osn.json
registry.py             finds a model on this machine by its hash
safety.py               refuses files of others that could run code
tokenizer.py            a fast tokenizer, and what its vocabulary is like
table_encoder.py        a query's text as tokens with weights
pretrained.py           networks and tokenizers from a directory
sparse.py               encodes documents as sparse vectors
sparse_head.py          the layer that gives each token of the vocabulary its weight
pruning.py              keeps the heavy terms of a sparse vector
inference_free.py       writes a sparse model as sentence-transformers has it
averaging.py            one sparse model of several
lexical.py              BM25 weights over word pieces, as a sparse model
word_pieces.py          a tokenizer of a corpus's own
corpus_statistics.py    the IDF of a corpus
published.py            sparse models that others published
on_this_machine.py      sparse models on this machine
ml_commons.py           a sparse model in the format of ml-commons
dense_encoder.py        what every dense encoder can do
dense.py                a dense encoder by torch
dense_onnx.py           a dense encoder by ONNX Runtime
pooling.py              from token vectors to one
vectors.py              what a vector has to be
quantized.py            dense vectors and their PQ codes
multi_layer.py          several vectors a document, from several layers
generative.py           a model that writes URLs (TOME)
generative_settings.py  what a generative model reads and writes, and its files
trie_decoding.py        beam search held to a trie
url_trie.py             the URLs of a corpus as a trie
"""
