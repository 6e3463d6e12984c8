"""Sparse models: documents by a network, queries by a table of weights.

encoder.py            encodes documents as sparse vectors
head.py               the layer that gives each token of the vocabulary its weight
pruning.py            keeps the heavy terms of a sparse vector
table_encoder.py      a query's text as tokens with weights
corpus_statistics.py  the IDF of a corpus
lexical.py            BM25 weights over word pieces, as a sparse model
word_pieces.py        a tokenizer of a corpus's own
inference_free.py     writes a sparse model as sentence-transformers has it
averaging.py          one sparse model of several
ml_commons.py         a sparse model in the format of ml-commons
published.py          sparse models that others published
on_this_machine.py    sparse models on this machine
"""
