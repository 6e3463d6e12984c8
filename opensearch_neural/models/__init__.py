"""A trained model directory: finding it, loading it, encoding with it in batches on CPU or GPU.

directory.py   finds a model by path or hub id, and reads its osn.json
registry.py    finds a model on this machine by its hash
safety.py      refuses files that could run code
tokenizer.py   loads a fast tokenizer, and tells facts about its vocabulary
pretrained.py  loads networks and tokenizers from a directory
vectors.py     texts in padded batches, and document vectors, dense and sparse
sparse/        a weight for each token of the vocabulary
dense/         one vector per document, or several
generative/    a model that writes URLs (TOME)
"""
