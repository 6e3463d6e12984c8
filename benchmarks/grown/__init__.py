"""Indexes of any size, of documents drawn from a real corpus, and what is measured on them.

documents   drawn from real ones, text and vectors together
index       written of them, with the settings that are tried
field_bytes what each field costs on disk
scale       `osn bench grow` and `osn bench scale`: cost by the number of documents
"""
