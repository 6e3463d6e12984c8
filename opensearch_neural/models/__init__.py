"""A trained model directory: finding it, loading it, encoding with it in batches on CPU or GPU.

directory.py, registry.py, safety.py  where a model is, which one it is, and what a file of others may not do
pretrained.py                         networks and tokenizers from a directory
dense_encoder.py                      what every dense encoder is: dense.py (torch), dense_onnx.py (ONNX Runtime)
pooling.py, vectors.py                from token vectors to one, and what a vector has to be
multi_layer.py                        several vectors a document, from several layers
quantized.py                          dense vectors and their PQ codes
published.py, on_this_machine.py      the sparse models that one can name
sparse.py, sparse_head.py             sparse vectors of documents, and their vocabulary's logits
ml_commons.py, hub_export.py          sparse models in the format of ml-commons, and as a folder for the hub
lexical.py, word_pieces.py            BM25 weights over word pieces, and a tokenizer of a corpus's own
corpus_statistics.py                  the IDF of a corpus
generative.py, url_trie.py            models that write URLs, and the URLs that they may write
"""
