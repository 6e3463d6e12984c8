"""A trained model directory: finding it, loading it, encoding with it in batches on CPU or GPU.

directory.py   finds a model by path or hub id, and reads its osn.json
registry.py    finds a model on this machine by its hash
safety.py      refuses files of others that could run code
tokenizer.py   a fast tokenizer, and what its vocabulary is like
pretrained.py  networks and tokenizers from a directory
vectors.py     what a vector has to be
sparse/        a weight for each token of the vocabulary
dense/         one vector a document, or several
generative/    a model that writes URLs (TOME)
"""
