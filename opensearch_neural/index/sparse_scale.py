"""The scale of an index's sparse scores: how large they are beside BM25's, measured on known items.

Models differ several times in the size of their weights. A known item is a document and a sentence of its own as the query:
the scale is what the sparse part of its score is beside BM25's, in the middle of a sample. A weight of the sparse part in
units of it means the same for every model: with weight 0.5 the model adds to a known item half of what BM25 gives it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING, Any

from opensearch_neural import queries
from opensearch_neural.index.record import existing_record, write_record

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from opensearch_neural.models.sparse.table_encoder import TableEncoder

SCALE = "sparse_scale"
"""Where the index's record keeps it."""
MEASURED_ON = "sparse_scale_documents"
"""Where the record keeps how many documents the index had then; an older one does not."""
GROWN = 2
"""An ingest that ends with more than so many times the documents measures again: BM25's IDF grows with the index."""
SAMPLE = 200
LEAST_WORDS = 4
AT_ONCE = 50
"""Searches in one request."""


def keep_sparse_scale(client: OpenSearch, index: str, encoder: TableEncoder) -> None:
    """Measure the scale of an index that was written just now, and keep it in its record, unless that has one which was
    measured on half as many documents or more.

    encoder: of the sparse model that wrote the index
    """
    record = existing_record(client, index)
    if record.sparse is None:
        return
    documents = int(client.count(index=index)["count"])
    if SCALE in record.extra and documents <= GROWN * record.extra.get(MEASURED_ON, 0):
        return
    scale = measure_sparse_scale(client, index, encoder, pruned=record.prune_postings is not None)
    if scale is not None:
        # Read again: what the measuring took, somebody may have written meanwhile.
        measured = {SCALE: round(scale, 4), MEASURED_ON: documents}
        write_record(client, index, existing_record(client, index).with_extra(**measured))


def measure_sparse_scale(
    client: OpenSearch, index: str, encoder: TableEncoder, *, pruned: bool = False
) -> float | None:
    """The median of sparse score / BM25 score over a sample of known items; None if no document has both.

    Two searches an item, each of one document. pruned: whether the index has pruned postings; the score is that of the whole
    vectors. Raises opensearch-py's errors.
    """
    items = list(known_items(client, index, SAMPLE, seed=0))
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


def known_items(client: OpenSearch, index: str, sample: int, seed: int) -> Iterator[tuple[dict[str, Any], str]]:
    """(hit, a sentence of its text) of a random sample of documents, or of passages, whose document is their `parent`."""
    drawn = {"function_score": {"query": {"match_all": {}}, "random_score": {"seed": seed, "field": "_seq_no"}}}
    body = {"query": drawn, "size": sample, "_source": ["text", "parent"]}
    chosen = random.Random(seed)
    for hit in client.search(index=index, body=body)["hits"]["hits"]:
        text = str(hit["_source"].get("text", ""))
        if text.strip():
            yield hit, own_sentence(text, chosen)


def own_sentence(text: str, chosen: random.Random) -> str:
    """A sentence of `text`, drawn with `chosen`; the whole text where no sentence has LEAST_WORDS words."""
    sentences = [part for part in re.split(r"(?<=[.!?])\s+|\n+", text) if len(part.split()) >= LEAST_WORDS]
    return chosen.choice(sentences) if sentences else text


def _score(answer: dict[str, Any]) -> float:
    hits = answer.get("hits", {}).get("hits", [])
    return float(hits[0]["_score"]) if hits else 0.0
