"""Indexes of any size, with documents drawn from a real corpus, and measurements on them.

resampler.py    draws documents from real ones, text and vectors together
index.py        writes an index of drawn documents
field_bytes.py  what each field costs on disk
command.py      `osn bench grow` and `osn bench scale`: cost by the number of documents
"""
