"""A model that writes URLs (TOME).

generative_model.py  loads the model, and writes URLs
settings.py          the settings of a generative model, and its files
trie_decoding.py     beam search limited to a trie
url_trie.py          the URLs of a corpus as a trie
"""
