"""Indexes of any size, of documents drawn from a real corpus, and what is measured on them.

documents.py    drawn from real ones, text and vectors together
index.py        writes an index of them
field_bytes.py  what each field costs on disk
scale.py        `osn bench grow` and `osn bench scale`: cost by the number of documents
"""
