"""The scale of an index's sparse scores: how large they are relative to BM25's, measured on known items.

Models differ in the size of their weights by a factor of several. A known item is a document with one of its own sentences
as the query. The scale is the ratio of its sparse score to its BM25 score, the median over a sample. Weights in units of the
scale mean the same for every model: with weight 0.5 the model adds half of the BM25 score to a known item.
"""

from __future__ import annotations

import heapq
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any
from zlib import crc32

from opensearch_neural import queries
from opensearch_neural.corpus.documents import BETWEEN, text_of
from opensearch_neural.corpus.sentences import sentences
from opensearch_neural.index.record import existing_record, write_record
from opensearch_neural.index.result_window import most_hits

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from opensearch_neural.models.sparse.table_encoder import TableEncoder

SCALE = "sparse_scale"
"""The key of the scale in the index's record."""
MEASURED_ON = "sparse_scale_documents"
"""The key of the number of documents at that time; older records lack it."""
GROWN = 2
"""An ingest measures again if the index has more than this many times the documents: BM25's IDF grows with the index."""
SAMPLE = 200
LEAST_WORDS = 4
MOST_CHARACTERS = 1000
"""OpenSearch refuses a query of more than 1,024 terms."""
AT_ONCE = 50
"""Searches in one request."""


def drawn_ids(ids: Iterable[str], drawn: Sequence[str] = ()) -> list[str]:
    """A random sample of `ids` and of an earlier sample, in which the same ids always give the same sample, in any order."""
    return heapq.nsmallest(SAMPLE, {*drawn, *ids}, key=lambda id: (crc32(id.encode("utf-8", "surrogatepass")), id))


def keep_sparse_scale(client: OpenSearch, index: str, encoder: TableEncoder, drawn: Sequence[str] = ()) -> None:
    """Measure the scale of an index that was just written, and keep it in the record. Does nothing if the record has a scale
    that was measured on at least half as many documents.

    encoder: the query encoder of the sparse model that wrote the index
    drawn: the sample of `drawn_ids` of all documents, so that a second index of the same corpus gets the same scale. If
        empty, the index draws one.
    """
    meta = existing_record(client, index)
    if meta.sparse is None:
        return
    documents = int(client.count(index=index)["count"])
    if SCALE in meta.extra and documents <= GROWN * meta.extra.get(MEASURED_ON, 0):
        return
    scale = measure_sparse_scale(client, index, encoder, pruned=meta.prune_postings is not None, drawn=drawn)
    if scale is not None:
        # Read the record again: another process may have changed it during the measurement.
        measured = {SCALE: round(scale, 4), MEASURED_ON: documents}
        write_record(client, index, existing_record(client, index).with_extra(**measured))


def measure_sparse_scale(
    client: OpenSearch, index: str, encoder: TableEncoder, *, pruned: bool = False, drawn: Sequence[str] = ()
) -> float | None:
    """The median of sparse score / BM25 score over a sample of known items; None if no document has both.

    It makes two searches for each item, each over one document. pruned: True if the index has pruned postings; then rows
    give the score of the whole vectors. drawn: as in `keep_sparse_scale`. Raises opensearch-py's errors.
    """
    items = list(known_items(client, index, SAMPLE, seed=0, drawn=drawn))
    ratios = []
    for start in range(0, len(items), AT_ONCE):
        lines: list[dict[str, Any]] = []
        for hit, sentence in items[start : start + AT_ONCE]:
            own: dict[str, Any] = {"filter": {"ids": {"values": [hit["_id"]]}}, "size": 1, "source": False}
            tokens = encoder.encode(sentence)
            sparse = (
                queries.pruned_sparse(tokens, window=None, **own)
                if pruned
                else queries.neural_sparse(tokens, plugin=False, **own)
            )
            lines += [{}, queries.bm25(sentence, **own), {}, sparse]
        scores = [_score(answer) for answer in client.msearch(index=index, body=lines)["responses"]]
        ratios += [sparse / bm25 for bm25, sparse in zip(scores[::2], scores[1::2], strict=True) if bm25 and sparse]
    return median(ratios) if ratios else None


def known_items(
    client: OpenSearch, index: str, sample: int, seed: int, drawn: Sequence[str] = ()
) -> Iterator[tuple[dict[str, Any], str]]:
    """(hit, a sentence of its text) for a random sample of documents, or of passages (their document is in `parent`).

    drawn: the ids of the sample. If empty, the index draws it, by `seed` and the order in which documents were written, and
        as many as one request may return.
    """
    random_score = {"seed": seed, "field": "_seq_no"}
    by_order: dict[str, Any] = {"function_score": {"query": {"match_all": {}}, "random_score": random_score}}
    size = most_hits(client, index, len(drawn) or sample)
    parts: list[dict[str, Any]] = [
        {"ids": {"values": list(drawn[start : start + size])}} for start in range(0, len(drawn), size)
    ]
    for query in parts or [by_order]:
        body = {"query": query, "size": size, "_source": ["text", "parent"]}
        for hit in client.search(index=index, body=body)["hits"]["hits"]:
            text = text_of(hit["_source"].get("text"), BETWEEN["text"]) or ""
            if text.strip():
                yield hit, own_sentence(text, random.Random(f"{seed} {hit['_id']}"))


def own_sentence(text: str, chosen: random.Random) -> str:
    """A sentence of `text`, drawn with `chosen`; the whole text if no sentence has LEAST_WORDS words.

    If it has more than MOST_CHARACTERS, such as a list without full stops or a text in Chinese, a part of it is drawn.
    """
    parts = [part for part in re.split(r"(?<=[.!?])\s+|\n+", text) if len(part.split()) >= LEAST_WORDS]
    sentence = chosen.choice(parts) if parts else text
    if len(sentence) <= MOST_CHARACTERS:
        return sentence
    start, end = chosen.choice(sentences(sentence))
    return sentence[start:end]


def _score(answer: dict[str, Any]) -> float:
    hits = answer.get("hits", {}).get("hits", [])
    return float(hits[0]["_score"]) if hits else 0.0
