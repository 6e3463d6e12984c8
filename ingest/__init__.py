"""Encode a corpus and write it into one OpenSearch index, losing nothing.

target.py        the index being written: create, load settings, finish, verify
encoding.py      documents → the fields that the models add
bulk.py          byte-bounded `_bulk` requests with retries
journal.py       what is already written, so that the same command again continues
dead_letters.py  what could not be taken, to be mended and ingested again
pipeline.py      the above, joined
command.py       `osn ingest`
"""
