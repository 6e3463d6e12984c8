"""Draws the documents once, orders them by content, and writes them into indexes with pruned fields and into blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from benchmarks.experiment import kept
from benchmarks.grown.field_bytes import Alone, bytes_by_field
from benchmarks.grown.index import Growth, resampler_of
from benchmarks.load.run import RESAMPLED
from benchmarks.load.server import index_facts
from benchmarks.local_cluster import write_in_threads
from ingest.writing.bulk import Action
from ingest.writing.bulk_actions import prepare
from ingest.writing.short_weights import shortest
from opensearch_neural.files import write_json
from opensearch_neural.index.mapping import index_body, rank_features
from opensearch_neural.index.record import IndexMeta, read_record, write_record
from opensearch_neural.index.segments import merge_segments
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.models.vectors import SparseVectors
from trainers.common.config import fingerprint

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from benchmarks.grown.documents import DrawnDocument, DrawnVectors, Resampler


PLAIN, CLUSTERED, BLOCKS = "plain", "clustered", "blocks"
DIMENSIONS = 64
"""Dimensions of the random projection in which documents are compared to order them."""
ROUNDS = 8
"""Rounds of 2-means in each bisection."""
LEAF = 16
"""Groups of up to this many documents are not divided further."""
LEAST_BLOCK, MOST_BLOCKS = 32, 4096
"""The fewest documents of a block, and about the most blocks."""
BATCH = 500
THREADS = 4
"""Threads that send documents."""
FIELD_SAMPLE = 2000
"""Documents that are written field by field to measure the bytes of each field."""
WHOLE = "large_sparse"
"""The key in an index's record that describes its content; only complete indexes have it."""


@dataclass(frozen=True)
class Layout:
    """The indexes of one size, and their files."""

    growth: Growth
    """The documents to draw; the names of the indexes begin with its `index`."""
    prunes: tuple[Pruning, ...]
    """Prunings of the plain index, a field for each."""
    clustered_prunes: tuple[Pruning, ...]
    """Prunings of the clustered index, a field for each."""
    folder: Path
    """Keeps what was counted and measured of this size."""
    by_content: bool = True
    """Whether the clustered index and the blocks exist too."""

    @property
    def names(self) -> tuple[str, ...]:
        return (PLAIN, CLUSTERED, BLOCKS) if self.by_content else (PLAIN,)

    def index(self, name: str) -> str:
        return f"{self.growth.index}-{name}-{self.growth.documents}"

    @property
    def block(self) -> int:
        """Documents of a block."""
        return max(LEAST_BLOCK, self.growth.documents // MOST_BLOCKS)

    @property
    def frequencies(self) -> Path:
        """The file of {token: documents that hold it}."""
        return self.folder / "frequencies.json"

    @property
    def bytes_file(self) -> Path:
        """The file of {field: bytes a document}; its name depends on the pruned fields."""
        rules = [list(map(str, rules)) for rules in (self.prunes, self.clustered_prunes)]
        return self.folder / f"bytes-{fingerprint(*rules)}.json"

    def described(self, name: str) -> dict[str, Any]:
        fields = {
            PLAIN: [str(rule) for rule in self.prunes],
            CLUSTERED: [str(rule) for rule in self.clustered_prunes],
            BLOCKS: [str(self.block)],
        }
        return {"index": name, "with": fields[name], **self.growth.described}


def field_of(rule: Pruning) -> str:
    """The name of the field with tokens pruned by `rule`."""
    return f"sparse_{rule.type}{rule.value:g}".replace(".", "_")


# ------------------------------------------------ order


def order_by_content(vectors: SparseVectors, query_weights: Mapping[str, float], seed: int) -> NDArray[np.int64]:
    """(documents,): the numbers of the documents in an order in which neighbours are alike.

    Vectors, each token times its query weight, are projected at random (Johnson and Lindenstrauss). 2-means then divides
    them again and again, at the median, so that halves have the same size. Neither judgements nor the documents' origins
    are used.
    """
    generator = np.random.default_rng(seed)
    projected = _projected(vectors, query_weights, generator)
    return np.concatenate(list(_halves(np.arange(len(vectors)), projected, generator)))


def _projected(vectors: SparseVectors, query_weights: Mapping[str, float], generator: np.random.Generator) -> Any:
    """(documents, DIMENSIONS): vectors of length 1; 0 for a document without tokens."""
    factors = np.array([query_weights.get(token, 1.0) for token in vectors.vocabulary], np.float32)
    directions = generator.standard_normal((len(factors), DIMENSIONS)).astype(np.float32) * factors[:, None]
    projected = np.zeros((len(vectors), DIMENSIONS), np.float32)
    matrix = vectors.to_scipy()
    for at in range(0, len(vectors), 10_000):
        projected[at : at + 10_000] = matrix[at : at + 10_000] @ directions
    lengths = np.linalg.norm(projected, axis=1, keepdims=True)
    return projected / np.maximum(lengths, 1e-12)


def _halves(rows: NDArray[np.int64], points: Any, generator: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    if len(rows) <= LEAF:
        yield rows
        return
    own = points[rows]
    near, far = own[generator.choice(len(rows), 2, replace=False)]
    for _ in range(ROUNDS):
        nearer = np.argsort(own @ (far - near), kind="stable")
        first, second = nearer[: len(rows) // 2], nearer[len(rows) // 2 :]
        near, far = own[first].mean(axis=0), own[second].mean(axis=0)
    yield from _halves(rows[first], points, generator)
    yield from _halves(rows[second], points, generator)


def block_maxima(vectors: SparseVectors, order: NDArray[np.int64], size: int) -> SparseVectors:
    """A row for each block of `size` neighbours in `order` (documents,): the largest weight of each token in the block."""
    step = size * max(1, 50_000 // size)  # documents at once: a million would need all memory
    parts = [_maxima(vectors.take(order[at : at + step]), size) for at in range(0, len(order), step)]
    return SparseVectors.concat(parts, vectors.vocabulary)


def _maxima(vectors: SparseVectors, size: int) -> SparseVectors:
    blocks = np.repeat(np.arange(len(vectors)) // size, np.diff(vectors.indptr))
    heaviest_first = np.lexsort((-vectors.weights, vectors.token_ids, blocks))  # within each token of each block
    of = blocks[heaviest_first], vectors.token_ids[heaviest_first]
    first = np.ones(len(heaviest_first), bool)
    first[1:] = (of[0][1:] != of[0][:-1]) | (of[1][1:] != of[1][:-1])
    largest = heaviest_first[first]
    counts = np.bincount(blocks[largest], minlength=-(-len(vectors) // size))
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return SparseVectors(indptr, vectors.token_ids[largest], vectors.weights[largest], vectors.vocabulary)


# ------------------------------------------------ indexes


def write_all(client: OpenSearch, layout: Layout, say: Callable[[str], object]) -> None:
    """Write the indexes and files that are not complete yet. Raises ClusterError if the cluster rejects documents."""
    lacking = [name for name in layout.names if not _is_whole(client, layout, name)]
    if not lacking and layout.frequencies.exists() and layout.bytes_file.exists():
        return
    layout.folder.mkdir(parents=True, exist_ok=True)
    say("drawing documents")
    meta, resampler = resampler_of(layout.growth)
    drawn = {**layout.growth.described, "of": len(resampler.documents)}
    meta = replace(meta, forward_index=True).with_extra(**{RESAMPLED: drawn})
    own = resampler.vectorizer()
    kept(layout.bytes_file, partial(_bytes, client, layout, meta, resampler))
    documents = list(resampler.take(layout.growth.documents))
    vectors = own.vectors(documents).sparse
    assert vectors is not None
    place, maxima = np.arange(len(documents)), None
    if layout.by_content:
        say("putting documents in order by content")
        order = order_by_content(vectors, resampler.query_weights, layout.growth.seed)
        place[order] = np.arange(len(order))
        maxima = block_maxima(vectors, order, layout.block)
    counts = np.bincount(vectors.token_ids)
    frequencies = {vectors.vocabulary[at]: int(counts[at]) for at in np.flatnonzero(counts)}
    write_json(layout.frequencies, frequencies, indent=None)
    rules = {PLAIN: layout.prunes, CLUSTERED: layout.clustered_prunes, BLOCKS: ()}
    for name in lacking:
        say(f"writing {layout.index(name)}")
        pruned = {field_of(rule): resampler.vectorizer(rule) for rule in rules[name]}
        _create(client, layout, name, meta, pruned)
        if name == BLOCKS:
            assert maxima is not None
            actions: Iterable[Action] = (
                Action(str(at), orjson.dumps({"sparse": _features(maxima, at)})) for at in range(len(maxima))
            )
        else:
            actions = _sources(documents, own, meta, pruned, place, layout.block)
        write_in_threads(client, layout.index(name), actions, batch=BATCH, threads=THREADS)
    for name in lacking:  # after all are written: a merge waits until OpenSearch drops what it keeps for replicas
        say(f"merging {layout.index(name)}")
        merge_segments(client, layout.index(name))
        write_record(client, layout.index(name), meta.with_extra(**{WHOLE: layout.described(name)}))


def remove_all(client: OpenSearch, layout: Layout) -> None:
    for name in (PLAIN, CLUSTERED, BLOCKS):
        client.indices.delete(index=layout.index(name), params={"ignore_unavailable": "true"})


def _is_whole(client: OpenSearch, layout: Layout, name: str) -> bool:
    wrote = read_record(client, layout.index(name))
    return wrote is not None and wrote.extra.get(WHOLE) == layout.described(name)


def _create(client: OpenSearch, layout: Layout, name: str, meta: IndexMeta, fields: Iterable[str]) -> None:
    """Create the index; an incomplete one is deleted first."""
    settings = {"refresh_interval": "-1", **({"sort.field": "place"} if name == CLUSTERED else {})}
    body = index_body(meta, replicas=0, settings=settings)
    mapping = body["mappings"]
    mapping["properties"] |= {field: {"type": "rank_features"} for field in fields}
    mapping["properties"] |= {"place": {"type": "integer"}, "block": {"type": "integer"}}
    mapping["_source"]["excludes"] += [*fields, "place", "block"]
    client.indices.delete(index=layout.index(name), params={"ignore_unavailable": "true"})
    client.indices.create(index=layout.index(name), body=body)


def _sources(
    documents: Sequence[DrawnDocument],
    own: DrawnVectors,
    meta: IndexMeta,
    pruned: Mapping[str, DrawnVectors],
    place: NDArray[np.int64],
    block: int,
) -> Iterator[Action]:
    """pruned: {field: the vectorizer of its vectors}."""
    for at in range(0, len(documents), BATCH):
        drawn = documents[at : at + BATCH]
        fields = {field: made for field, by in pruned.items() if (made := by.vectors(drawn).sparse) is not None}
        batch = []
        for row, document in enumerate(drawn):
            number = int(place[at + row])
            more = {field: _features(vectors, row) for field, vectors in fields.items()}
            more_fields = {**document.fields, **more, "place": number, "block": number // block}
            batch.append(replace(document, fields=more_fields))
        yield from prepare(batch, own, meta).actions


def _features(vectors: SparseVectors, row: int) -> dict[str, float]:
    weights = vectors.row(row)
    short = shortest(np.array(list(weights.values()), np.float32)).tolist()
    return rank_features(dict(zip(weights, short, strict=True)))


# ------------------------------------------------ bytes


def _bytes(client: OpenSearch, layout: Layout, meta: IndexMeta, resampler: Resampler) -> dict[str, float]:
    """{field: bytes a document}."""
    rules = dict.fromkeys([*layout.prunes, *layout.clustered_prunes])
    others = {field_of(rule): Alone("sparse", meta, resampler.vectorizer(rule)) for rule in rules}
    return bytes_by_field(client, meta, list(resampler.take(FIELD_SAMPLE)), resampler.vectorizer(), others)


def bytes_of(client: OpenSearch, layout: Layout) -> dict[str, float]:
    """{field: bytes a document}; for `blocks`, those of the whole index of blocks."""
    fields: dict[str, float] = kept(layout.bytes_file, dict)
    if not layout.by_content:
        return fields
    return {**fields, BLOCKS: index_facts(client, layout.index(BLOCKS)).bytes / layout.growth.documents}
