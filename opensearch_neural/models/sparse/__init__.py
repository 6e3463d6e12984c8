"""Sparse models: documents by a network, queries by a table of weights.

encoder.py            encodes documents as sparse vectors
head.py               the layer that gives each token of the vocabulary its weight
pruning.py            keeps the heavy terms of a sparse vector
table_encoder.py      turns a query's text into tokens with weights
idf.py                the IDF formula and its file
corpus_statistics.py  gives a sparse model the IDF of another corpus
lexical.py            BM25 weights over word pieces, as a sparse model
word_pieces.py        trains a tokenizer on a corpus
inference_free.py     writes a sparse model in sentence-transformers' layout
averaging.py          averages sparse models
hub_export.py         a sparse model as a folder for the Hugging Face hub
ml_commons.py         a sparse model in the format of ml-commons
published.py          sparse models that others published, and what reading a document costs them
on_this_machine.py    sparse models on this machine
"""
