"""Draws the documents once, and writes them into an index that has a further field for each pruning."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.experiment import kept
from benchmarks.grown.field_bytes import Alone, bytes_by_field
from benchmarks.grown.index import Growth, resampler_of
from benchmarks.local_cluster import write_in_threads
from ingest.writing.bulk import Action
from ingest.writing.bulk_actions import prepare
from ingest.writing.short_weights import shortest
from opensearch_neural.files import write_json
from opensearch_neural.index.mapping import index_body, rank_features
from opensearch_neural.index.record import RESAMPLED, IndexMeta, read_record, write_record
from opensearch_neural.index.segments import merge_segments
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.models.vectors import SparseVectors
from trainers.common.config import fingerprint

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from benchmarks.grown.resampler import DrawnDocument, DrawnVectors, Resampler


BATCH = 500
THREADS = 4
"""Threads that send documents."""
FIELD_SAMPLE = 2000
"""Documents that are written field by field to measure the bytes of each field."""
WHOLE = "large_sparse"
"""The key in an index's record that describes its content; only complete indexes have it."""


@dataclass(frozen=True)
class Layout:
    """The index of one size, and its files."""

    growth: Growth
    """The documents to draw; the name of the index begins with its `index`."""
    prunes: tuple[Pruning, ...]
    """Prunings, a field for each."""
    folder: Path
    """Keeps what was counted and measured of this size."""

    @property
    def index(self) -> str:
        return f"{self.growth.index}-{self.growth.documents}"

    @property
    def frequencies(self) -> Path:
        """The file of {token: documents that hold it}."""
        return self.folder / "frequencies.json"

    @property
    def bytes_file(self) -> Path:
        """The file of {field: bytes a document}; its name depends on the pruned fields."""
        return self.folder / f"bytes-{fingerprint(list(map(str, self.prunes)))}.json"

    @property
    def described(self) -> dict[str, Any]:
        return {"with": [str(rule) for rule in self.prunes], **self.growth.described}


def field_of(rule: Pruning) -> str:
    """The name of the field with tokens pruned by `rule`."""
    return f"sparse_{rule.type}{rule.value:g}".replace(".", "_")


def write_all(client: OpenSearch, layout: Layout, say: Callable[[str], object]) -> None:
    """Write the index and the files that are not complete yet. Raises ClusterError if the cluster rejects documents."""
    present_meta = read_record(client, layout.index)
    is_complete = present_meta is not None and present_meta.extra.get(WHOLE) == layout.described
    if is_complete and layout.frequencies.exists() and layout.bytes_file.exists():
        return
    layout.folder.mkdir(parents=True, exist_ok=True)
    say("drawing documents")
    meta, resampler = resampler_of(layout.growth)
    drawn = {**layout.growth.described, "of": len(resampler.documents)}
    meta = replace(meta, forward_index=True).with_extra(**{RESAMPLED: drawn})
    whole_vectors = resampler.vectorizer()
    kept(layout.bytes_file, partial(_bytes, client, layout, meta, resampler))
    documents = list(resampler.take(layout.growth.documents))
    vectors = whole_vectors.vectors(documents).sparse
    assert vectors is not None
    counts = np.bincount(vectors.token_ids)
    frequencies = {vectors.vocabulary[at]: int(counts[at]) for at in np.flatnonzero(counts)}
    write_json(layout.frequencies, frequencies, indent=None)
    if is_complete:
        return
    say(f"writing {layout.index}")
    pruned = {field_of(rule): resampler.vectorizer(rule) for rule in layout.prunes}
    _create(client, layout.index, meta, pruned)
    actions = _sources(documents, whole_vectors, meta, pruned)
    write_in_threads(client, layout.index, actions, batch=BATCH, threads=THREADS)
    say(f"merging {layout.index}")
    merge_segments(client, layout.index)
    write_record(client, layout.index, meta.with_extra(**{WHOLE: layout.described}))


def _create(client: OpenSearch, index: str, meta: IndexMeta, fields: Collection[str]) -> None:
    """Create the index; an incomplete one is deleted first."""
    body = index_body(meta, replicas=0, settings={"refresh_interval": "-1"})
    mapping = body["mappings"]
    mapping["properties"] |= {field: {"type": "rank_features"} for field in fields}
    mapping["_source"]["excludes"] += fields
    client.indices.delete(index=index, params={"ignore_unavailable": "true"})
    client.indices.create(index=index, body=body)


def _sources(
    documents: Sequence[DrawnDocument], whole: DrawnVectors, meta: IndexMeta, pruned: Mapping[str, DrawnVectors]
) -> Iterator[Action]:
    """The documents to write. whole: the vectorizer of the unpruned vectors; pruned: {field: that of its vectors}"""
    for at in range(0, len(documents), BATCH):
        drawn = documents[at : at + BATCH]
        fields = {
            field: sparse
            for field, vectorizer in pruned.items()
            if (sparse := vectorizer.vectors(drawn).sparse) is not None
        }
        batch = []
        for row, document in enumerate(drawn):
            features = {field: _features(vectors, row) for field, vectors in fields.items()}
            batch.append(replace(document, fields={**document.fields, **features}))
        yield from prepare(batch, whole, meta).actions


def _features(vectors: SparseVectors, row: int) -> dict[str, float]:
    weights = vectors.row(row)
    short = shortest(np.array(list(weights.values()), np.float32)).tolist()
    return rank_features(dict(zip(weights, short, strict=True)))


def _bytes(client: OpenSearch, layout: Layout, meta: IndexMeta, resampler: Resampler) -> dict[str, float]:
    """{field: bytes a document}."""
    others = {field_of(rule): Alone("sparse", meta, resampler.vectorizer(rule)) for rule in layout.prunes}
    return bytes_by_field(client, meta, list(resampler.take(FIELD_SAMPLE)), resampler.vectorizer(), others)
