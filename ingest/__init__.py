"""Encode a corpus and write it into one OpenSearch index, losing nothing.

A document on its way to the index, top to bottom:

    commands/ingest.py          `osn ingest`: the options become a Job
    settings.py                 the settings that the commands and jobs share, with their options
    job.py                      one ingest from its settings: corpus, models, index, pipeline
    corpus.py                   where the corpus lies, how its records are read, split into passages
    index_corpus.py             an index of the cluster as a corpus
    preflight.py                what the first records tell of the fields to map
    models.py                   which models encode: those named, or those that wrote the index
    content.py                  what the index is to hold: records, vectorizer and the index's record
    writing/lease.py            a lease on the cluster: one ingest an index
    writing/target.py           the index being written: create or check it, finish it
    writing/stored_documents.py the documents that it holds: counted, listed, deleted
    writing/pipeline.py         read, encode, write: batches of documents, several at once
    writing/duplicate_ids.py    which ids the corpus has had so far
    vectorizers.py              documents → vectors
    writing/bulk_actions.py     documents with their vectors → actions of `_bulk`
    writing/short_weights.py    sparse weights in as few digits as the index can tell apart
    writing/bulk.py             byte-bounded `_bulk` requests with retries
    writing/journal.py          what is written already, so that the same command again continues
    writing/dead_letters.py     what could not be taken, to be mended and ingested again
    writing/verification.py     whether the index holds exactly what the corpus holds
    kept_for_searches.py        what encodes queries, the largest weights and the scale, kept on the cluster
    versions/swap.py            what must hold before an alias names the index
    progress.py                 a bar on a terminal, plain lines elsewhere

Vectors in files instead of models:

    commands/encode.py          `osn encode`
    vectors/encode_corpus.py    a corpus → shards of vectors
    vectors/shards.py           the files of vectors, a function of their records and the models alone
    vectors/ray_encode.py       the same on a Ray cluster
    vectors/stored_vectors.py   the manifest over the shards, and a vectorizer that reads them

An index once it is there:

    commands/index.py           `osn index`
    versions/builds.py          builds under an alias: swap, roll back, prune
    versions/unfinished.py      take an interrupted index as it is, or delete it
    inspection.py               what an index is made of, and what a larger one would need
    commands/documents.py       `osn documents`
    documents.py                add, update and delete single documents
"""
