"""Encode a corpus and write it into one OpenSearch index, losing nothing.

A document on its way to the index, top to bottom:

    commands/ingest.py          `osn ingest`: the options become a Job
    commands/run_and_report.py  how it and `osn encode` run and end
    settings.py                 the settings that the commands and jobs share, with their options
    job.py                      one ingest from its settings: prepare it, run the pipeline, complete it
    corpus.py                   the corpus: where it is, how it is read and split into passages
    corpus_from_index.py        an index of the cluster as a corpus
    writing/lease.py            a lease on the cluster: one ingest at a time for an index
    preflight.py                checks the fields of the first records
    index_content.py            the content to write: records, vectorizer and the index's record
    model_request.py            which models are named, and what they are chosen for
    chosen_models.py            the models: those that are named, or those of the index
    counted_idf.py              a SPLADE without a query table gets the corpus's IDF table
    writing/target.py           the index being written: create or check it, finish it
    writing/stored_documents.py its documents: counted, listed, deleted
    writing/pipeline.py         read, encode, write: batches of documents, several at once
    vectorizers.py              documents → vectors
    writing/bulk_actions.py     documents with their vectors → actions of `_bulk`
    writing/short_weights.py    sparse weights with as few digits as the index can distinguish
    writing/bulk.py             byte-bounded `_bulk` requests with retries
    record_digests.py           digests of records and ids, which reveal a changed corpus and repeated ids
    writing/journal.py          records the written batches, so that a second run continues the first
    dead_letters.py             rejected documents, to be corrected and ingested again
    error_limit.py              how many may be rejected
    writing/verification.py     checks that the index holds exactly the corpus
    stored_query_data.py        stores the query encoder, the largest weights and the scale on the cluster
    versions/swap.py            the checks before an alias points to the index
    versions/tunings.py         what `osn tune` stored in the serving index, carried over to its next build

Vectors in files instead of models:

    commands/encode.py          `osn encode`
    vectors/encode_corpus.py    a corpus → shards of vectors
    vectors/shards.py           the files of vectors; the same records and models give the same files
    vectors/ray_encode.py       the same on a Ray cluster
    vectors/stored_vectors.py   the manifest over the shards, and a vectorizer that reads them

An existing index:

    commands/index.py           `osn index`
    versions/builds.py          builds under an alias: swap, roll back, prune
    versions/unfinished.py      use an interrupted index as it is, or delete it
    inspection.py               the parts of an index, and what a larger one would need
    commands/documents.py       `osn documents`
    documents.py                add, update and delete single documents
"""
