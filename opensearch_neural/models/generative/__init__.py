"""A model that writes URLs (TOME).

model.py          loads it, and writes URLs
settings.py       what a generative model reads and writes, and its files
trie_decoding.py  beam search held to a trie
url_trie.py       the URLs of a corpus as a trie
"""
