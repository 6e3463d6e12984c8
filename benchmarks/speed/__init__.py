"""The speed of encoding and writing documents, compared with sentence-transformers and opensearch-py.

encoding_speed.py      `osn bench encoding`: speed, memory, equality and quality of sparse encoding
ingest_speed.py        `osn bench ingest`: writing speed
"""
