"""The index's record: `_meta.osn` in its mapping, which names the models and settings that wrote it.

    meta = existing_record(client, "docs")        # IndexMeta
    write_record(client, "docs", meta.with_extra(cascade={"window": 100}))

Writing or searching with another model is refused, with a message that names both models.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_type_hints

from opensearch_neural.errors import ClusterError, InputError, ModelError
from opensearch_neural.queries.multi_vector import FIELD

if TYPE_CHECKING:
    from opensearchpy import AsyncOpenSearch, OpenSearch

META_FORMAT = 2
"""Format 1 had no forward index; its `osn` would add documents without rows.

The only release, 0.1.0, reads format 1 and refuses format 2. So changes before the next release keep the number, even
`prune_postings`, which an `osn` that does not know it would ignore. After the next release, a change of meaning raises it.
"""
LONGEST_NAME = 255
"""The most bytes of the name of an index or an alias in OpenSearch."""
NAMES = "names"
"""Key in the record: the field names that the ingest which created the index was given."""
RESAMPLED = "resampled"
"""The entry of an index that `osn bench grow` drew from a smaller corpus: {"of": documents of the corpus, …}. The share of
documents that hold a word is that of the corpus."""
DenseType = Literal["float", "byte", "sq"]


@dataclass(frozen=True)
class SparseMeta:
    """Which sparse model wrote the index."""

    name: str
    """A folder's name or a hub id; "lexical" if it was built from the corpus."""
    hash: str
    """Hash of the model; while its IDF table is being counted, hash of the SPLADE that it is built from."""
    query_hash: str
    """Hash of the tokenizer and the IDF table, all that a query needs; empty while the table is being counted."""


@dataclass(frozen=True)
class DenseMeta:
    """Which dense model wrote the index, and how its vectors are stored."""

    name: str
    """A folder's name or a hub id."""
    hash: str
    """Hash of the dense model. If the vectors are reconstructed from codes, name and hash are the quantized model's."""
    dimension: int
    """Components of one vector."""
    type: DenseType
    """How a component is stored."""
    normalized: bool
    """Whether every vector has length 1."""
    scale: float = 1.0
    """The factor that multiplied a vector's components before they were rounded to bytes; 1.0 for other types."""
    reconstructed: bool = False
    """Whether the vectors are reconstructed from the codes of a quantized model."""
    vectors: int = 1
    """How many vectors each document has; if several, each is in a nested document (`multi_vector`)."""

    @property
    def field_name(self) -> str:
        """The full name of the field that the vectors are in."""
        return FIELD if self.vectors > 1 else "dense"


@dataclass(frozen=True)
class QuantizedMeta:
    """Which quantized model made the codes in `pq`."""

    name: str
    """A folder's name or a hub id."""
    hash: str
    """Hash of the quantized model."""
    subvectors: int
    """Bytes of a code, the model's M."""


@dataclass(frozen=True)
class PassageMeta:
    """How documents were split into passages."""

    tokens: int
    """The most tokens of a passage."""
    stride: int
    """Tokens from the start of a passage to the start of the next."""


@dataclass(frozen=True)
class IndexMeta:
    """The record of an index: the content of `_meta.osn` in its mapping. Variables that hold one are called `meta`."""

    sparse: SparseMeta | None = None
    """None: the index has no sparse vectors."""
    dense: DenseMeta | None = None
    """None: the index has no dense vectors."""
    passages: PassageMeta | None = None
    """How documents were split; None: the index holds whole documents."""
    quantized: QuantizedMeta | None = None
    """None: the index has no codes."""
    forward_index: bool = False
    """Whether each document also has its sparse weights as a row (`forward_index`)."""
    prune: str | None = None
    """Rule by which each document's sparse vector was pruned, beyond the model's own: "max_ratio:0.1"; None: not pruned."""
    prune_postings: str | None = None
    """Rule by which the postings, but not the rows, were pruned: "alpha_mass:0.6"; None: both hold the same tokens."""
    analyzer: str = "english"
    """The analyzer of title, text and contents."""
    version: str = ""
    """The version of `osn` that wrote the index."""
    format: int = META_FORMAT
    """The version of the record's format."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Entries of other modules: tuned settings, the state of a build, the scale of sparse scores."""

    @property
    def reconstructed(self) -> DenseMeta | None:
        """`dense`, if its vectors are reconstructed from codes; else None."""
        return self.dense if self.dense is not None and self.dense.reconstructed else None

    @property
    def loading(self) -> str | None:
        """The corpus that is being written, or whose writing was interrupted; None once the index is complete."""
        loading: dict[str, Any] | None = self.extra.get("loading")
        return None if loading is None else str(loading.get("corpus", "a corpus"))

    @property
    def adding(self) -> list[str]:
        """The corpora that are being added to an index that was complete before, or whose adding was interrupted."""
        return list(self.extra.get("adding", []))

    @property
    def unfinished(self) -> str | None:
        """The corpora that are being written, or whose writing was interrupted; None if the index is complete."""
        return ", ".join([self.loading, *self.adding] if self.loading else self.adding) or None

    @property
    def build(self) -> dict[str, Any]:
        """What `ingest.versions.builds` notes of a build of an alias; empty for any other index."""
        return dict(self.extra.get("build", {}))

    @property
    def names(self) -> dict[str, str]:
        """{part of a document ("id", "title", "text", "url"): the name that it has in documents}, for the parts whose name
        was given (`--text-field`) when the index was created."""
        names = self.extra.get(NAMES, {})
        return {part: names[part] for part in _INSIDE[NAMES] if names.get(part) is not None}

    @property
    def counting(self) -> bool:
        """Whether the IDF table of the sparse model is incomplete: still being counted, or interrupted."""
        return self.sparse is not None and not self.sparse.query_hash

    def with_extra(self, **entries: Any) -> IndexMeta:
        """The record with these entries in `extra`; None removes an entry."""
        return replace(self, extra={k: v for k, v in {**self.extra, **entries}.items() if v is not None})

    def to_dict(self) -> dict[str, Any]:
        record = {key: value for key, value in asdict(self).items() if value is not None and key != "extra"}
        return record | self.extra

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], index: str) -> IndexMeta:
        """The record of an index, from its mapping (`{"_meta": …, "properties": …}`).

        Raises ModelError if `osn` did not write the index, if its format is later than this version's, or if the record is
        damaged.
        """
        record = mapping.get("_meta", {}).get("osn")
        if not isinstance(record, dict):
            raise ModelError(
                f"the index {index!r} was not written by osn: its mapping has no _meta.osn",
                "write it with `osn ingest … --index …`",
            )
        _check_types(index, record, _ENTRIES)
        if record.get("format", 0) > META_FORMAT:
            raise ModelError(
                f"the index {index!r} was written by a later version of osn (format {record['format']})",
                "upgrade this installation",
            )
        dense, field_ = _part(index, record, "dense", DenseMeta), mapping.get("properties", {}).get("dense")
        if dense is not None and dense.vectors > 1 and field_ is not None and field_.get("type") != "nested":
            raise ModelError(
                f"the index {index!r} was written by an older version of osn, with a field for each of several vectors",
                "ingest again, into another --index",
            )
        if record.get("prune_postings") is not None and not record.get("forward_index", False):
            raise _damaged(index, "prune_postings without forward_index")
        if not 0 <= (scale := record.get("sparse_scale") or 0) < math.inf:
            raise _damaged(index, f"sparse_scale is {scale}")
        known = {each.name for each in fields(cls)} - {"extra"}
        entries: dict[str, Any] = {key: record[key] for key in known & record.keys()}
        entries |= {
            "sparse": _part(index, record, "sparse", SparseMeta),
            "dense": dense,
            "passages": _part(index, record, "passages", PassageMeta),
            "quantized": _part(index, record, "quantized", QuantizedMeta),
        }
        return cls(**entries, extra={key: value for key, value in record.items() if key not in known})


_ENTRIES: dict[str, type] = {
    **dict.fromkeys(("sparse", "dense", "passages", "quantized", "loading", "build", NAMES, RESAMPLED), dict),
    **{"analyzer": str, "version": str, "format": int, "adding": list, "sparse_scale": float, "largest_weights": str},
    **{"forward_index": bool, "prune": str, "prune_postings": str},
    **{"sparse_scale_documents": int, "shard_documents": int},
}
_INSIDE: dict[str, dict[str, type]] = {
    "loading": {"restore": dict, "corpus": str},
    NAMES: dict.fromkeys(("id", "title", "text", "url"), str),
    "build": {
        **{"index": str, "alias": str, "corpus": str, "replaced": str, "swapped": bool, "waits": bool},
        **{"alias_says": dict, "template_aliases": dict},
    },
}
MetaPart = TypeVar("MetaPart")


def _check_types(index: str, record: Mapping[str, Any], types: Mapping[str, type], within: str = "") -> None:
    """Raise ModelError for an entry of a wrong type: users who can write the mapping can write anything into it."""
    for name, kind in types.items():
        value = record.get(name)
        if value is not None and not isinstance(value, (float, int) if kind is float else kind):
            raise _damaged(index, f"{within}{name} is {str(value)[:80]!r}")
        if name in _INSIDE and not within and isinstance(value, dict):
            _check_types(index, value, _INSIDE[name], f"{name}.")
    if any(not isinstance(name, str) for name in record.get("adding") or ()):
        raise _damaged(index, "adding holds something other than names")
    if isinstance(record.get("loading"), dict) and not isinstance(record["loading"].get("restore"), dict):
        raise _damaged(index, "loading has no settings to restore")


def _part(index: str, record: Mapping[str, Any], name: str, kind: type[MetaPart]) -> MetaPart | None:
    if not record.get(name):
        return None
    try:
        part = kind(**record[name])
    except TypeError as error:
        raise _damaged(index, f"{name}: {error}") from None
    hints = {key: hint if isinstance(hint, type) else str for key, hint in get_type_hints(kind).items()}
    _check_types(index, vars(part), hints, f"{name}.")
    for key, value in vars(part).items():
        if value is None or (hints[key] is int and value < 1):
            raise _damaged(index, f"{name}.{key} is {value}")
    if isinstance(part, PassageMeta) and part.stride > part.tokens:
        raise _damaged(index, f"passages.stride is {part.stride}, of {part.tokens} tokens")
    return part


def _damaged(index: str, what: str) -> ModelError:
    return ModelError(f"the record of the index {index!r} is damaged: {what}", "ingest again, into another --index")


def record_in(mapping: Mapping[str, Any], index: str) -> IndexMeta | None:
    """The record in the mapping of an index; None if `osn` did not write the index, or if the record is damaged."""
    try:
        return IndexMeta.from_mapping(mapping, index)
    except ModelError:
        return None


def read_record(client: OpenSearch, index: str) -> IndexMeta | None:
    """The record of an index, or of the index behind an alias; None if there is no such index.

    Raises ClusterError for a pattern, even if it matches one index: it might match another tomorrow. Raises ModelError if
    `osn` did not write the index, InputError for an asynchronous client.
    """
    named = read_named_record(client, index)
    return None if named is None else named[1]


def read_named_record(client: OpenSearch, index: str) -> tuple[str, IndexMeta] | None:
    """(own name of the index, its record), both of one answer: an alias may move between two. Else as `read_record`."""
    from opensearchpy.exceptions import NotFoundError

    refuse_pattern(index)
    try:
        mappings: Any = client.indices.get_mapping(index=index)
    except NotFoundError:
        return None
    if inspect.iscoroutine(mappings):
        mappings.close()
        raise InputError(
            "this reads from the cluster at once, and the client is an asynchronous one",
            "give it a client of `connect()`, or OpenSearch(…); an asynchronous client can send what it makes",
        )
    return _only_record(mappings, index)


def existing_named_record(client: OpenSearch, index: str) -> tuple[str, IndexMeta]:
    """`read_named_record` for an index that must exist. Raises as `existing_record`."""
    named = read_named_record(client, index)
    if named is None:
        raise _no_index(index)
    return named


async def existing_record_async(client: AsyncOpenSearch, index: str) -> IndexMeta:
    """As `existing_record`. Raises InputError for a client that is not asynchronous."""
    from opensearchpy.exceptions import NotFoundError

    refuse_pattern(index)
    try:
        asked: Any = client.indices.get_mapping(index=index)
        if not inspect.isawaitable(asked):
            raise InputError("the client is not an asynchronous one", "give it a client of `await connect_async()`")
        mappings = await asked
    except NotFoundError:
        raise _no_index(index) from None
    return _only_record(mappings, index)[1]


def refuse_pattern(index: str) -> None:
    """Raise ClusterError for what may name several indexes, for an empty name, and for one that no index can have."""
    if not index:  # to OpenSearch: all indexes
        raise ClusterError("the name of the index is empty", "name one index, or an alias")
    if index == "_all" or index.startswith("<") or any(sign in index for sign in "*,"):
        raise ClusterError(f"{index!r} is a pattern, not the name of an index", "name one index, or an alias")
    if (size := len(index.encode("utf-8", "surrogatepass"))) > LONGEST_NAME:
        raise ClusterError(
            f"the name '{index[:80]}…' has {size} bytes, and OpenSearch's names have at most {LONGEST_NAME}",
            "give the index another name",
        )


def _only_record(mappings: Mapping[str, Any], index: str) -> tuple[str, IndexMeta]:
    """(name of the only index, its record)."""
    if len(mappings) != 1:
        raise ClusterError(
            f"{index!r} names {len(mappings)} indexes: {', '.join(sorted(mappings))}", "name one of them"
        )
    ((name, mapping),) = mappings.items()
    return name, IndexMeta.from_mapping(mapping["mappings"], index)


def _no_index(index: str) -> ClusterError:
    return ClusterError(
        f"there is no index {index!r} on this cluster",
        "check the spelling (GET _cat/indices lists all), or write one with `osn ingest … --index …`",
    )


def existing_record(client: OpenSearch, index: str) -> IndexMeta:
    """`read_record` for an index that must exist. Raises ClusterError if it does not, and as `read_record` does."""
    return existing_named_record(client, index)[1]


def write_record(client: OpenSearch, index: str, meta: IndexMeta) -> None:
    """Replace the record of an index, or of the index behind an alias. What others keep in `_meta` stays."""
    # OpenSearch replaces `_meta` as a whole.
    (mapping,) = client.indices.get_mapping(index=index).values()
    whole = {**mapping["mappings"].get("_meta", {}), "osn": meta.to_dict()}
    client.indices.put_mapping(index=index, body={"_meta": whole})


TO_SEARCH = "search with the model that wrote the index, or ingest again with this one"


def check_same_model(index: str, kind: str, wrote: tuple[str, str], this: tuple[str, str], remedy: str) -> None:
    """Raise ModelError unless both models are the same.

    wrote: (name, hash) of the model that wrote the index. this: (name, hash) of the model that is to be used.
    """
    if wrote[1] != this[1]:
        why = "; under one name, their files differ: weights, tokenizer, IDF table or own code"
        raise ModelError(
            f"the index {index!r} was written with the {kind} model {wrote[0]} ({wrote[1]}), "
            f"and this is {this[0]} ({this[1]}){why if wrote[0] == this[0] else ''}",
            remedy,
        )


def check_counted(index: str, meta: IndexMeta) -> None:
    """Raise ModelError while the IDF table of an index is incomplete: until then query tokens have no weights."""
    if meta.counting:
        raise ModelError(
            f"the index {index!r} has no IDF table yet: {meta.unfinished} is being written, or that was interrupted",
            "run the same `osn ingest` again if it was interrupted; until it is complete only BM25 searches "
            "(--engine bm25)",
        )


def documents_of(meta: IndexMeta) -> str:
    """What an index holds, in words: whole documents, or passages of some length."""
    passages = meta.passages
    return "whole documents" if passages is None else f"passages of {passages.tokens}:{passages.stride} tokens"


def another_index(meta: IndexMeta) -> str:
    """The options that write another index. An ingest under an alias continues a build that has not served yet."""
    begun = meta.build and not meta.build.get("swapped")
    return "--restart to begin another build" if begun else "another --index"


def check_unchanged_models(index: str, meta: IndexMeta, new_meta: IndexMeta) -> None:
    """Raise ModelError if documents split and encoded as `new_meta` says do not fit the index."""
    another = another_index(meta)
    for kind in ("sparse", "quantized", "dense"):  # codes before dense, which may be reconstructed from them
        old, new = getattr(meta, kind), getattr(new_meta, kind)
        if (old is None) != (new is None):
            has, lacks = ("holds", "brings none") if new is None else ("does not hold", "brings them")
            raise ModelError(
                f"the index {index!r} {has} {kind} vectors, and this ingest {lacks}",
                f"use the same models as before, or {another}",
            )
        if old is not None and new is not None:
            remedy = f"use the same model as before, or {another}"
            check_same_model(index, kind, (old.name, old.hash), (new.name, new.hash), remedy)
    if meta.passages != new_meta.passages:
        raise ModelError(
            f"the index {index!r} holds {documents_of(meta)}, and this ingest brings {documents_of(new_meta)}",
            f"encode them with the same --passages, or give {another}",
        )
    if meta.prune != new_meta.prune:
        has, brings = (f"pruned by {each.prune}" if each.prune else "whole" for each in (meta, new_meta))
        raise ModelError(
            f"the sparse vectors of the index {index!r} are {has}, and this ingest brings {brings} ones",
            f"{f'give --prune {meta.prune}' if meta.prune else 'leave out --prune'}, or give {another}",
        )
    if meta.dense and new_meta.dense and meta.dense.reconstructed != new_meta.dense.reconstructed:
        if meta.dense.reconstructed:
            before, now, option = "reconstructed from codes", "encodes texts", "--dense"
        else:
            before, now, option = "encoded from texts", "reconstructs them from codes", "--dense-from-codes"
        raise ModelError(
            f"the dense vectors of the index {index!r} are {before}; this ingest {now}",
            f"leave out {option} to make them as before, or give {another}",
        )
    if meta.dense and new_meta.dense and meta.dense.type != new_meta.dense.type:
        raise ModelError(
            f"the index {index!r} stores its dense vectors as {meta.dense.type}, not as {new_meta.dense.type}",
            f"give --dense-type {meta.dense.type}, or {another}",
        )
