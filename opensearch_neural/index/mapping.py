"""The index's mapping and settings.

One index holds everything about a document, so that one request can combine it:

    title, text   as given                                   (text, for highlighting and custom queries)
    contents      title and text together                    (text: what BM25 searches; not stored)
    url           the document's address                     (keyword)
    sparse        {token: weight} of the sparse encoder      (rank_features)
    sparse_forward  the same as bytes, for rescoring        (binary doc values; `forward_index`)
    dense         the vector of the dense encoder            (knn_vector: float, byte or scalar-quantized;
                                                              several vectors: one in each nested document)
    pq            the M code bytes of a quantized vector     (binary doc values)
    parent        if documents are split into passages: the document's id (keyword)
    passage       likewise: the passage's number, and its place in the document's text

The caller's own fields are mapped as `--mapping` says; plain fields of an index that is the corpus, as they are mapped
there. All others are mapped when first seen: strings as keywords, so that they can be filtered and counted; ISO dates as
dates; every number as a double, because the first price may be 10 and the next 10.99. Whole numbers that a double does not
tell apart, such as ids of 64 bits, are longs if they occur in the first records of an ingest. Objects get the type
flat_object if OpenSearch has it: their values can be searched, and they add no fields to the mapping.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opensearch_neural.corpus.documents import RESERVED_FIELDS, ways_down
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.files import read_json
from opensearch_neural.index.record import DenseMeta, IndexMeta
from opensearch_neural.queries import DOT_ALIAS, forward_index
from opensearch_neural.queries.multi_vector import several_vectors

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger(__name__)

# The usual settings of HNSW, and the defaults of Lucene and OpenSearch; written out so that an upgrade changes nothing.
HNSW_M = 16
HNSW_EF_CONSTRUCTION = 100

NO_TOKEN = "(no token)"
"""The only feature of a document without tokens, so that such documents can be counted. It contains a blank, so it is in no
vocabulary."""

VECTOR_FIELDS = ("sparse", forward_index.FIELD, "dense", "pq")
"""The fields of what models make of a document."""

DATE_FORMATS = (
    "strict_date",
    "strict_date_time",
    "strict_date_time_no_millis",
    "strict_date_hour_minute_second",
    "strict_date_hour_minute_second_fraction",
)
"""The formats of a date field: 2026-03-14, alone or with a time. (A year alone is not a date.)"""

# What Lucene's English analyzer removes.
_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
ENGLISH_STOP_WORDS = frozenset(_STOP_WORDS.split())
_LANGUAGES = (
    "arabic armenian basque bengali brazilian bulgarian catalan czech danish dutch english estonian finnish french galician "
    "german greek hindi hungarian indonesian irish italian latvian lithuanian norwegian persian portuguese romanian russian "
    "sorani spanish swedish turkish"
)
WORD_BY_WORD = frozenset({"simple", "standard", "stop", "whitespace", *_LANGUAGES.split()})
"""Built-in analyzers that make of a word between blanks the same terms alone as within a text. (cjk and thai are not among
them; keyword and fingerprint make one term of a text.)"""

_KEYWORD = {"type": "keyword", "ignore_above": 8191}
# A later value that is not a date must not fail its document: it is left out of the field, and found in `.keyword`.
_DATE = {
    "type": "date",
    "format": "strict_date_optional_time||epoch_millis",
    "ignore_malformed": True,
    "fields": {"keyword": _KEYWORD},
}
DYNAMIC_MAPPINGS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("strings_as_keywords", "string", _KEYWORD),
    ("dates", "date", _DATE),
    ("whole_numbers_as_doubles", "long", {"type": "double"}),
    ("decimals_as_doubles", "double", {"type": "double"}),
)
"""(name, type that OpenSearch detects in a field's first value, mapping of the field)"""
PLAIN_MAPPINGS: dict[str, dict[str, Any]] = {
    "keyword": _KEYWORD,
    "boolean": {"type": "boolean"},
    "date": _DATE,
    **{
        number: {"type": "double"}
        for number in ("double", "float", "half_float", "scaled_float", "byte", "short", "integer", "long")
    },
}
"""{type of a field in an index that exists: mapping of the field in one that `osn` makes of it}"""
EXACT = 2**53
"""The whole numbers up to this one, and down to its negative, are different doubles."""
FLAT_OBJECTS = ("objects_as_flat_ones", "object", {"type": "flat_object"})
FLAT_OBJECT_RELEASE = (2, 18)
"""The first release in which flat_object neither refuses nor misreads nulls and lists within lists."""


def index_body(
    meta: IndexMeta,
    *,
    shards: int | None = None,
    replicas: int | None = None,
    store_vectors: bool = False,
    settings: dict | None = None,
    fields: Mapping[str, Any] | None = None,
    flat_objects: bool = False,
    longs: Sequence[str] = (),
    search_analyzer: str | None = None,
) -> dict[str, Any]:
    """The body that creates the index: settings and mappings.

    `shards`, `replicas`: None: as an index template says, else the cluster's default, 1.
    `store_vectors`: also keep `sparse` and `dense` in `_source`, so that OpenSearch can reindex and partially update
    documents. It takes several times the stored bytes, and every fetch costs more.
    `fields`: mappings of the caller's own fields, {name: {"type": …}}; of title, text and url their subfields,
        {name: {"fields": …}}.
    `flat_objects`: map the caller's objects as flat_object; possible from FLAT_OBJECT_RELEASE on.
    `longs`: fields whose whole numbers are longs, unless an index template maps these fields.
    `search_analyzer`: the analyzer of queries in title, text and contents; None: the one that documents have.
    """
    fields = fields or {}
    text = {"type": "text", "analyzer": meta.analyzer}
    if search_analyzer is not None:
        text["search_analyzer"] = search_analyzer
    properties: dict[str, Any] = {
        "title": {**text, "copy_to": "contents"},
        "text": {**text, "copy_to": "contents"},
        "contents": text,
        "url": {"type": "keyword", "ignore_above": 8191},
        "pq": {"type": "binary", "doc_values": True},
    }
    if meta.sparse is not None:
        properties["sparse"] = {"type": "rank_features"}
    if meta.forward_index:
        properties[forward_index.FIELD] = {"type": "binary", "doc_values": True}
    if meta.dense is not None:
        mapped = knn_vector(meta.dense)
        properties["dense"] = several_vectors(mapped) if meta.dense.vectors > 1 else mapped
    if meta.passages is not None:
        place = {"type": "integer", "index": False}
        properties["parent"] = {"type": "keyword"}
        # When a document becomes shorter, its last passages are found by their number and deleted.
        properties["passage"] = {"properties": {"number": {"type": "integer"}, "start": place, "end": place}}
    counts = {"number_of_shards": shards, "number_of_replicas": replicas}
    index_settings: dict[str, Any] = {name: number for name, number in counts.items() if number is not None}
    if meta.dense is not None:
        index_settings["knn"] = True
    exact = [
        {f"long_{name}": {"path_match": name, "match_mapping_type": "long", "mapping": {"type": "long"}}}
        for name in longs
    ]
    dynamic = (*DYNAMIC_MAPPINGS, *([FLAT_OBJECTS] if flat_objects else []))
    mappings: dict[str, Any] = {
        "_meta": {"osn": meta.to_dict()},
        "dynamic_date_formats": list(DATE_FORMATS),
        "dynamic_templates": exact
        + [{name: {"match_mapping_type": seen, "mapping": mapping}} for name, seen, mapping in dynamic],
        "properties": {**fields, **{name: {**fields.get(name, {}), **own} for name, own in properties.items()}},
    }
    if not store_vectors:
        mappings["_source"] = {"excludes": list(VECTOR_FIELDS)}
    return {"settings": {"index": {**index_settings, **(settings or {})}}, "mappings": mappings}


def mapping_of(properties: Mapping[str, Any], field: str) -> Mapping[str, Any] | None:
    """The mapping of a field, such as `a.b`, in the properties of an index or of `--mapping`; None if there is none."""
    if field in properties:
        mapping: Mapping[str, Any] = properties[field]
        return mapping
    inner = ((properties.get(name, {}).get("properties"), below) for name, below in ways_down(field))
    mappings = (mapping_of(within, below) for within, below in inner if isinstance(within, Mapping))
    return next((mapping for mapping in mappings if mapping is not None), None)


def search_analyzer_of(mappings: Mapping[str, Any], meta: IndexMeta) -> str:
    """The analyzer of queries in the BM25 fields of an index with these mappings and this record."""
    contents = mappings.get("properties", {}).get("contents", {})
    return str(contents.get("search_analyzer", meta.analyzer))


def searched_word_by_word(mappings: Mapping[str, Any], settings: Mapping[str, Any], meta: IndexMeta) -> bool:
    """Whether queries of the BM25 fields have an analyzer of WORD_BY_WORD. False if the index defines any analysis of its
    own, which could replace a built-in analyzer.

    settings: of the index, flat: {"index.number_of_shards": "1", …}
    """
    own = any(name.startswith("index.analysis.") for name in settings)
    return not own and search_analyzer_of(mappings, meta) in WORD_BY_WORD


def knn_vector(dense: DenseMeta) -> dict[str, Any]:
    """The mapping of a field that holds the model's vectors. Raises ClusterError for a dimension that OpenSearch refuses."""
    if not 1 <= dense.dimension <= 16_000:
        raise ClusterError(
            f"OpenSearch takes vectors of 1 to 16,000 dimensions, and {dense.name} has {dense.dimension}"
        )
    method: dict[str, Any] = {
        "name": "hnsw",
        # Lucene needs no native library, so this engine works wherever the k-NN plugin does.
        "engine": "lucene",
        "space_type": "cosinesimil" if dense.normalized else "innerproduct",
        "parameters": {"m": HNSW_M, "ef_construction": HNSW_EF_CONSTRUCTION},
    }
    if dense.type == "sq":
        # `bits` is mandatory from OpenSearch 3.6 on and was 7 by default before.
        method["parameters"]["encoder"] = {"name": "sq", "parameters": {"bits": 7}}
    mapping = {
        "type": "knn_vector",
        "dimension": dense.dimension,
        "method": method,
        # Doc values would store every vector a second time. Queries, filters, the `knn_score` script and `exists` read the
        # vectors themselves, and answer the same without (for several vectors a document, inside a nested query).
        "doc_values": False,
    }
    if dense.type == "byte":
        mapping["data_type"] = "byte"
    return mapping


def rank_features(row: Mapping[str, float]) -> dict[str, float]:
    """A document's {token: weight} for the `sparse` field.

    A token with a dot is written a second time under a name that a `rank_feature` clause can use (see `queries.DOT_ALIAS`),
    so that queries score the same with and without the neural-search plugin.
    """
    features = dict(row)
    for token in row:
        if "." in token:
            features[token.replace(".", DOT_ALIAS)] = row[token]
    return features


def byte_scale(vectors: np.ndarray, *, normalized: bool) -> float:
    """The factor by which vectors (n, dimension) are multiplied before they are rounded to signed bytes.

    For normalized vectors it depends only on the dimension: components have a standard deviation of 1/√dimension, and the
    byte range covers six of them; the rare larger components saturate. Otherwise the largest component sets it.
    """
    if normalized:
        return 127 * math.sqrt(vectors.shape[1]) / 6
    largest = float(abs(vectors).max())
    return 127 / largest if largest > 0 else 1.0


def to_bytes(vectors: np.ndarray, scale: float) -> np.ndarray:
    """Float vectors (…, dimension) as signed bytes, for a `byte` field and for queries of it."""
    import numpy as np

    return np.clip(np.rint(vectors * scale), -128, 127).astype(np.int8)


def read_field_mappings(path: Path) -> dict[str, Any]:
    """{name: mapping} of the caller's own fields, from a file with a JSON object of this form, with a whole mapping, or with
    OpenSearch's answer to GET INDEX/_mapping. A warning names what else is in it, such as `dynamic`.

    Raises InputError for any other content, for a field that osn writes itself, and for a join.
    """
    content = read_json(path, InputError)
    if isinstance(content, dict) and content and all(map(_is_of_index, content.values())):
        if len(content) > 1:
            raise InputError(f"{path} has the mappings of {len(content)} indexes", "leave one in it")
        (content,) = content.values()
    for name in ("mappings", "properties"):
        inner = content.get(name) if isinstance(content, dict) else None
        # With a text as its type, this is itself the mapping of a field; an object there maps a field called "type".
        if isinstance(inner, dict) and not isinstance(inner.get("type"), str):
            if ignored := sorted(content.keys() - {name}):
                log.warning("%s: the mappings of its fields are taken, and not %s", path, ", ".join(ignored))
            content = inner
    if not isinstance(content, dict) or not all(isinstance(mapping, dict) for mapping in content.values()):
        raise InputError(
            f"{path}: expected the mappings of fields", 'for instance {"price": {"type": "scaled_float", …}}'
        )
    if own := sorted(RESERVED_FIELDS & content.keys()):
        raise InputError(f"{path}: the field {own[0]!r} is mapped by osn itself", "leave it out")
    if join := next(_joins(content), None):
        raise InputError(
            f"{path}: the field {join!r} is a join: OpenSearch takes no child without a routing, and osn writes none",
            "write each child into its parent (type nested), or as a document of its own with the parent's id in a keyword "
            "field",
        )
    return content


def _joins(mappings: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The full names of the fields of type join."""
    for name, mapping in mappings.items():
        if isinstance(mapping, dict):
            if mapping.get("type") == "join":
                yield before + name
            inner = mapping.get("properties")
            yield from _joins(inner if isinstance(inner, dict) else {}, f"{before}{name}.")


def _is_of_index(value: Any) -> bool:
    """Whether a value is what GET INDEX/_mapping answers of one index."""
    return isinstance(value, dict) and isinstance(value.get("mappings"), dict) and "type" not in value
