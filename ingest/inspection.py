"""Inspects an index: its models, its sizes, whether its IDF table still fits, and what a larger index would need."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ingest.writing.stored_documents import count_without_rows, count_without_tokens, ids_without_rows
from ingest.writing.target import aliases_of_users
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.corpus.documents import text_of
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.index.health import index_health
from opensearch_neural.index.mapping import HNSW_M
from opensearch_neural.index.record import (
    DenseMeta,
    IndexMeta,
    QuantizedMeta,
    SparseMeta,
    existing_named_record,
    existing_record,
)
from opensearch_neural.index.result_window import most_hits
from opensearch_neural.models import registry

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

# Contents of Lucene's files by extension. OpenSearch gives no sizes by field; these are the closest that it gives.
PARTS: dict[str, str] = {
    "fdt": "_source", "fdx": "_source", "fdm": "_source",
    "vec": "dense", "vex": "dense", "vem": "dense", "vemf": "dense", "vemq": "dense", "veq": "dense", "veb": "dense",
    "vemb": "dense",
    "pos": "words: positions", "pay": "words: positions",
    "nvd": "words: lengths", "nvm": "words: lengths",
    "doc": "postings",
    "tim": "dictionary", "tip": "dictionary", "tmd": "dictionary", "psm": "dictionary",
    "dvd": "fields", "dvm": "fields", "kdd": "fields", "kdi": "fields", "kdm": "fields",
}  # fmt: skip
NOT_SEARCHED = ("_source", "other")
NOT_TOLD_APART = "not told apart"
"""The part of the postings and the completions of an index that has both."""

# A posting of a word (document number and frequency) takes about this many bytes in Lucene (measured on scifact). The other
# bytes of the postings are the sparse vectors, whose "frequencies" are the upper bits of their weights.
BYTES_OF_A_WORD_POSTING = 1.4

SHARD_BYTES = 50 * 10**9
MOST_SHARD_DOCUMENTS = 2_147_483_519
MERGED_SEGMENT_BYTES = 5 * 2**30
# A graph is on the heap while it is built: 2·M neighbours of each vector, each with number and score of 4 bytes, plus the
# overhead of arrays and objects.
GRAPH_BYTES = 2 * HNSW_M * 8 + 100
# Room for merges, the translog and the 15 % that OpenSearch keeps free.
DISK_FACTOR = 1.5


@dataclass(frozen=True)
class Model:
    """A model that wrote the index."""

    kind: str
    """sparse, dense or quantized"""
    name: str
    """As the record has it: a folder's name or a hub id."""
    hash: str
    """As the record has it."""
    here: bool
    """Whether it is on this machine."""
    details: str = ""
    """Dimensions, bytes per document or the state of its table; may be empty."""


@dataclass(frozen=True)
class Drift:
    """The distance between the IDF of the index's documents and the table in use."""

    documents: int
    """Size of the sample."""
    mean: float
    """|IDF of the sample − table|, averaged over all occurrences of tokens."""
    by_chance: float
    """The mean that chance alone would give in a sample of this size."""
    tokens: list[tuple[str, float, float]] = field(default_factory=list)
    """The tokens that differ most beyond chance: (token, table, IDF of the sample)."""


@dataclass(frozen=True)
class Inspection:
    """The parts of an index."""

    index: str
    """Its name, also if an alias was asked for."""
    alias: list[str]
    """The aliases that name it."""
    documents: int
    """The number of documents, or of passages."""
    parents: int | None
    """The number of documents that were split into passages; None if the index holds whole documents."""
    without_tokens: int | None
    """The number of documents without a word of the model's vocabulary, so without a sparse vector; None without a model."""
    without_rows: int | None
    """The number of documents that have lost their vector; None without a forward index, which shows it."""
    deleted: int
    """Deleted documents whose bytes no merge has freed yet."""
    shards: int
    """Primary shards."""
    replicas: int
    """Copies of each primary shard."""
    segments: int
    """Lucene segments of the primary shards."""
    health: str | None
    """green, yellow or red; None if this user may not ask."""
    bytes: int
    """Bytes of the primary shards."""
    sizes: dict[str, int]
    """{kind of content: its part of these bytes}, the largest first."""
    models: list[Model]
    """One for each kind of vectors."""
    meta: IndexMeta
    """The index's record."""
    drift: Drift | None
    """None if the sparse model is not on this machine, its table is not counted yet, or no sample was requested."""
    lucene_documents: int
    """Documents as Lucene counts them, for a shard's limit: each nested one is one more."""


@translate_errors()
def inspect_index(client: OpenSearch, index: str, *, sample: int = 2000) -> Inspection:
    """Read everything about an index; nothing is written. sample: documents read for the drift, 0 for none.

    Raises ClusterError if there is no such index, ModelError if `osn` did not write it.
    """
    meta = existing_record(client, index)
    ((name, settings),) = client.indices.get_settings(index=index).items()
    stats = client.indices.stats(
        index=name, metric="docs,store,segments,completion", params={"include_segment_file_sizes": "true"}
    )["_all"]["primaries"]  # empty while its shards start
    parents = None
    if meta.passages is not None:
        there = {"there": {"cardinality": {"field": "parent", "precision_threshold": 40_000}}}
        parents = int(client.search(index=name, body={"size": 0, "aggs": there})["aggregations"]["there"]["value"])
    of_lucene = stats.get("docs", {"count": 0, "deleted": 0})
    documents = int(client.count(index=name)["count"]) if of_lucene["count"] else 0
    return Inspection(
        index=name,
        alias=sorted(aliases_of_users(client.indices.get_alias(index=name)[name]["aliases"])),
        documents=documents,
        parents=parents,
        without_tokens=count_without_tokens(client, name) if meta.sparse else None,
        without_rows=count_without_rows(client, name) if meta.forward_index else None,
        deleted=round(of_lucene["deleted"] * documents / max(1, of_lucene["count"])),
        shards=int(settings["settings"]["index"]["number_of_shards"]),
        replicas=int(settings["settings"]["index"]["number_of_replicas"]),
        segments=stats.get("segments", {}).get("count", 0),
        health=(index_health(client, name) or {}).get("status"),
        bytes=stats.get("store", {}).get("size_in_bytes", 0),
        sizes=_sizes(client, name, meta, stats),
        models=_models(meta),
        meta=meta,
        drift=_drift(client, name, meta.sparse, sample) if sample and meta.sparse and not meta.counting else None,
        lucene_documents=of_lucene["count"],
    )


@translate_errors()
def lost_ids(client: OpenSearch, index: str) -> list[str]:
    """The ids of documents that have lost their vectors.

    Raises InputError for an index without a forward index, which shows it, and as `inspect_index` does.
    """
    name, meta = existing_named_record(client, index)
    if not meta.forward_index:
        raise InputError(f"{name!r} has no forward index, which would show that vectors were lost")
    return [*ids_without_rows(client, name)]


def _models(meta: IndexMeta) -> list[Model]:
    models = []
    for kind, model in (("sparse", meta.sparse), ("dense", meta.dense), ("quantized", meta.quantized)):
        if model is not None:
            details = ""
            if isinstance(model, DenseMeta):
                details = f"{model.dimension} dimensions as {model.type}" + ", reconstructed" * model.reconstructed
                details += f", {model.vectors} a document" if model.vectors > 1 else ""
            elif isinstance(model, QuantizedMeta):
                details = f"{model.subvectors} bytes a document"
            elif isinstance(model, SparseMeta) and meta.counting:
                details = "IDF table not counted yet"
            here = registry.link_of(model.hash).is_dir()
            models.append(Model(kind, model.name, model.hash, here, details))
    return models


def _sizes(client: OpenSearch, index: str, meta: IndexMeta, stats: Mapping[str, Any]) -> dict[str, int]:
    """{part: bytes}. stats: of the primaries; empty while shards start"""
    sizes: Counter[str] = Counter()
    for suffix, file in stats.get("segments", {}).get("file_sizes", {}).items():
        sizes[PARTS.get(suffix, "other")] += file["size_in_bytes"]
    postings = sizes.pop("postings", 0)
    if stats.get("completion", {}).get("size_in_bytes"):
        # A field of type completion has its own format of postings, in files with the same extensions. OpenSearch gives the
        # size of one file of a segment for each extension, so only what the other parts leave is known.
        sizes[NOT_TOLD_APART] += max(postings, stats["store"]["size_in_bytes"] - sizes.total())
    elif meta.sparse is None:
        sizes["words"] += postings
    elif postings:
        words = min(postings, int(_word_postings(client, index) * BYTES_OF_A_WORD_POSTING))
        sizes["words (estimated)"] += words
        sizes["sparse (estimated)"] += postings - words
    return dict(sorted(sizes.items(), key=lambda part: -part[1]))


def _word_postings(client: OpenSearch, index: str) -> int:
    """The number of (word, document) pairs in the text fields of all shards, estimated from one shard."""
    count = int(client.count(index=index)["count"])
    if not count:
        return 0
    hits = client.search(index=index, body={"size": 1, "query": {"exists": {"field": "contents"}}, "_source": False})
    if not hits["hits"]["hits"]:
        return 0
    answer = client.termvectors(
        index=index,
        id=hits["hits"]["hits"][0]["_id"],
        body={"fields": ["title", "text"], "field_statistics": True, "positions": False, "offsets": False},
    )
    total = 0.0
    for of_field in answer["term_vectors"].values():
        statistics = of_field["field_statistics"]  # of the document's shard
        total += statistics["sum_doc_freq"] / max(1, statistics["doc_count"]) * count
    # `contents` holds both fields again, but has no statistics here because it is not in `_source`.
    return int(2 * total)


def _drift(client: OpenSearch, index: str, sparse: SparseMeta, sample: int) -> Drift | None:
    from opensearch_neural.models.sparse.idf import DocumentFrequencies, idf
    from opensearch_neural.models.sparse.table_encoder import QUERY_FILES, TableEncoder
    from opensearch_neural.models.tokenizer import special_tokens

    try:
        encoder = TableEncoder.load(registry.find(sparse.hash, sparse.name, "sparse", files=QUERY_FILES))
    except ModelError:
        return None
    texts = _random_texts(client, index, sample)
    if not texts:
        return None
    vocabulary = encoder.vocabulary
    counted = DocumentFrequencies(len(vocabulary))
    for encoding in encoder.tokenizer.encode_batch(texts, add_special_tokens=False):
        counted.add(encoding.ids)
    weights = encoder.weights
    special = special_tokens(encoder.tokenizer)
    now = idf(counted.counts, counted.n)
    occurrences = total = chance = 0.0
    differing: list[tuple[float, str, float, float]] = []
    for number in counted.counts.nonzero()[0].tolist():
        token, frequency = vocabulary[number], int(counted.counts[number])
        if token in special or frequency < 5:
            continue
        share = frequency / counted.n
        # The standard deviation of the logarithm of a binomially distributed count.
        deviation = math.sqrt((1 - share) / frequency)
        difference = abs(float(now[number]) - weights[token])
        occurrences += frequency
        total += frequency * difference
        chance += frequency * deviation * math.sqrt(2 / math.pi)
        if difference > max(4 * deviation, 0.01):
            differing.append((difference * math.sqrt(frequency), token, weights[token], float(now[number])))
    if not occurrences:
        return None
    differing.sort(reverse=True)
    tokens = [(token, round(table, 3), round(value, 3)) for _, token, table, value in differing[:10]]
    return Drift(counted.n, total / occurrences, chance / occurrences, tokens)


def _random_texts(client: OpenSearch, index: str, sample: int) -> list[str]:
    body = {
        "size": most_hits(client, index, min(sample, 10_000)),
        "_source": ["title", "text"],
        "query": {"function_score": {"query": {"match_all": {}}, "random_score": {}}},
    }
    hits = client.search(index=index, body=body, params={"request_timeout": 120})["hits"]["hits"]
    sources = [hit["_source"] for hit in hits]
    return [" ".join(text_of(source.get(part), " ") or "" for part in ("title", "text")).strip() for source in sources]


# ---------------------------------------------------------------- plans


@dataclass(frozen=True)
class SizeEstimate:
    """The needs of an index with this many documents, estimated from a smaller index of the same kind."""

    documents: int
    """Documents of the index that is planned."""
    sampled: int
    """Documents of the smaller index."""
    primaries: dict[str, int]
    """Bytes of one copy, by kind of content."""
    replicas: int
    """Copies of each primary shard."""
    disk: int
    """Bytes for all copies, with room for merges."""
    cache: int
    """Bytes of memory outside the heap (page cache), with which searches do not read the disk."""
    heap: int
    """Bytes of heap that merging a vector graph needs, in addition to a node's usual heap."""
    shards: int
    """Primary shards."""

    @property
    def bytes(self) -> int:
        return sum(self.primaries.values())


def plan(inspection: Inspection, documents: int, *, replicas: int | None = None) -> SizeEstimate:
    """Scale an index's sizes to another number of documents (or of passages, if it holds passages).

    All sizes are scaled in proportion, so the term dictionary, which grows more slowly, is overestimated. A new index
    shrinks when it is merged, so `osn ingest --merge` makes a better sample.
    Raises InputError if the index is empty.
    """
    if inspection.documents < 1 or not inspection.sizes:
        raise InputError(f"{inspection.index!r} holds no documents to scale from", "ingest a sample: `--limit 10000`")
    replicas = inspection.replicas if replicas is None else replicas
    scale = documents / inspection.documents
    primaries = {part: math.ceil(size * scale) for part, size in inspection.sizes.items()}
    total = sum(primaries.values())
    of_lucene = inspection.lucene_documents * scale
    shards = max(1, math.ceil(total / SHARD_BYTES), math.ceil(of_lucene / MOST_SHARD_DOCUMENTS))
    heap = 0
    if inspection.meta.dense is not None:
        in_segment = min(documents / shards, MERGED_SEGMENT_BYTES / max(1.0, total / documents))
        heap = math.ceil(in_segment * inspection.meta.dense.vectors * GRAPH_BYTES)
    searched = sum(size for part, size in primaries.items() if part not in NOT_SEARCHED)
    copies = replicas + 1
    return SizeEstimate(
        documents, inspection.documents, primaries, replicas, math.ceil(total * copies * DISK_FACTOR), searched * copies,
        heap, shards,
    )  # fmt: skip
