"""An index of the cluster as a corpus: `osn ingest opensearch:INDEX`.

The documents are read at one point in time into a file of JSON lines, sorted by id. So a run that continues an interrupted
one meets the same order, and every pass over the corpus reads the same documents.

A slice of the point in time is one shard of one index: the cluster's routing decides to which slice a document belongs.
Several slices are read at once, each in the order of Lucene's document numbers (`_doc`). This order needs no field data of
`_id`, which a cluster may refuse (`indices.id_field_data.enabled`), and later pages cost no more than the first.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from contextvars import copy_context
from fnmatch import fnmatchcase
from heapq import merge
from typing import IO, TYPE_CHECKING, Any

from opensearch_neural.cluster.errors import allowed, translate_errors
from opensearch_neural.corpus.documents import RESERVED_FIELDS, FieldNames
from opensearch_neural.errors import InputError
from opensearch_neural.index.mapping import PLAIN_MAPPINGS, VECTOR_FIELDS, mapping_of
from opensearch_neural.index.record import record_in
from opensearch_neural.index.result_window import most_hits
from opensearch_neural.queries import partial_answer

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

PREFIX = "opensearch:"
PAGE = 1000
"""Most documents of an answer."""
FIRST_PAGE = 100
"""Documents of the first answer, from which the size of documents is known."""
PAGE_BYTES = 16 << 20
"""Bytes of an answer, about: a node refuses answers that do not fit its memory, and this process holds several."""
AT_ONCE = 4
"""Slices to read at the same time."""
KEEP_ALIVE = "10m"
SORTED_BYTES = 128 << 20
"""Bytes of documents that are sorted in memory; more are sorted in parts, which are kept in files until they are merged."""

ALIKE = frozenset({"object", "flat_object", *PLAIN_MAPPINGS})
"""Types that queries treat alike in an index of `osn` that is made of another one."""

PARTS = ("url", "title", "text")
"""Parts of a document whose field `osn` maps itself."""

IGNORE = "ignore_malformed"
"""Whether a field leaves out values of another type, in place of refusing their documents."""

IGNORING = frozenset(
    {kind for kind, mapping in PLAIN_MAPPINGS.items() if mapping["type"] in ("double", "date")}
    | {"unsigned_long", "date_nanos", "ip", "geo_point", "geo_shape"}
)
"""Types of subfields that leave out such values, unless their mapping says otherwise."""

ANALYZERS = ("analyzer", "search_analyzer", "search_quote_analyzer")
ANALYZED = frozenset({"text", "match_only_text", "search_as_you_type"})
"""Types with the default analyzers of their index, for documents and for queries, if they name none."""

NAMED = 12
"""Most fields that a warning names."""

log = logging.getLogger(__name__)

Lines = list[bytes]
"""Records in JSON, each with BEFORE_INDEX, its index and a line end behind it."""

BEFORE_INDEX = b"\t"
"""Not in JSON as it is written here."""

ITS_ID = re.compile(rb'\A\{"_id": "(?:[^"\\]|\\.)*"(?:, )?')
"""The beginning of a record, with its `_id`."""


def is_index(corpus: str) -> bool:
    """Whether a corpus is named as an index of the cluster."""
    return corpus.startswith(PREFIX)


class CopiedIndex(str):
    """The place of a copy of indexes, with the index of each of its lines."""

    def __init__(self, place: str) -> None:
        self._indexes: dict[str, int] = {}
        self._lines = array("H")

    def note(self, index: str) -> None:
        """Take the index of the next line."""
        self._lines.append(self._indexes.setdefault(index, len(self._indexes)))

    def file_of(self, line: int | None, corpus: str) -> str:
        """The index of a line as a corpus, if there are several; else `corpus`."""
        if line is None or len(self._indexes) < 2:
            return corpus
        return PREFIX + [*self._indexes][self._lines[line - 1]]


def copy_index(
    client: OpenSearch,
    corpus: str,
    file: IO[bytes],
    note: Callable[[str], None] = lambda index: None,
    *,
    ids: bool = True,
    other_id: str | None = None,
) -> int:
    """Write the documents of `opensearch:INDEX` as JSON lines, each with its `_id` and `_source`, in the order of their
    `_id`s; returns their number.

    INDEX may be an alias or a pattern of several indexes. Of an index that `osn` wrote, stored vectors are left out. Raises
    InputError if documents have no `_source` or are split into passages, or if the index cannot be read whole; ClusterError
    if the cluster refuses a request.

    note: called with the index of each line
    ids: whether to write the `_id`; not if a field of `_source` is the id, beside which a record may have no `_id`
    other_id: a field, or the path of one, that is the id of those records that have it; they have no `_id` then
    """
    index = corpus.removeprefix(PREFIX)
    if not index:
        raise InputError(f"{corpus} names no index", f"{PREFIX}INDEX")
    with ExitStack() as parts, translate_errors():
        sorted_parts: list[IO[bytes]] = []
        lines: list[bytes] = []
        size = 0

        def end_part() -> None:
            nonlocal size
            part = parts.enter_context(tempfile.TemporaryFile())
            part.writelines(sorted(lines))  # every line begins with its id
            part.seek(0)
            sorted_parts.append(part)
            lines.clear()
            size = 0

        for page in _pages(client, index):
            lines += page
            size += sum(map(len, page))
            if size > SORTED_BYTES:
                end_part()
        end_part()
        written = 0
        others = None if other_id is None else FieldNames(id=(other_id,))
        for line in merge(*sorted_parts):
            record, _, name = line.rpartition(BEFORE_INDEX)
            has_other = others is not None and others.find(others.lifted(json.loads(record)), "id") is not None
            file.write((ITS_ID.sub(b"{", record, count=1) if has_other or not ids else record) + b"\n")
            note(name[:-1].decode())
            written += 1
    return written


def mappings_of(client: OpenSearch, corpus: str) -> dict[str, Any]:
    """{index: {"mappings": its mapping}} of `opensearch:INDEX`."""
    with translate_errors():
        answer: dict[str, Any] = client.indices.get_mapping(index=corpus.removeprefix(PREFIX))
    return answer


def plain_fields(client: OpenSearch, corpus: str, mappings: Mapping[str, Any], names: FieldNames) -> dict[str, Any]:
    """{field: its mapping in the index that `osn` makes of `opensearch:INDEX`} of numbers, dates, keywords and booleans,
    with their subfields; of title, text and url {"fields": their subfields}, under these names.

    OpenSearch would guess their types from how JSON writes their first values: a price "9.90" would be a keyword, and the
    milliseconds of a date a number. Fields that several indexes map differently are left out, and so are subfields whose
    analysis is defined in the settings of their index.

    mappings: those of `mappings_of`
    names: the possible field names of the parts of a document
    """
    index = corpus.removeprefix(PREFIX)
    with translate_errors():
        settings = allowed(lambda: client.indices.get_settings(index=index, params={"flat_settings": "true"})) or {}
    plain: dict[str, Any] = {}
    subfields: dict[str, dict[str, Any]] = {}
    for name, each in mappings.items():
        properties = each["mappings"].get("properties", {})
        of_index = settings.get(name, {}).get("settings")
        malformed = (of_index or {}).get(f"index.mapping.{IGNORE}") == "true"
        part_of = _parts_in(properties, names)
        for field, mapping in {**properties, **{name: mapping_of(properties, name) or {} for name in part_of}}.items():
            if field in part_of:
                here: dict[str, Any] | None = {}
            elif field in RESERVED_FIELDS or field == _id_field(names):
                continue
            else:
                here = plain_mapping(mapping, ignore_malformed=malformed)
            there = part_of.get(field, field)
            plain[there] = _both(plain[there], here) if there in plain else here
            alike = subfields.setdefault(there, {})
            for sub, how in mapping.get("fields", {}).items():
                if how.get("type") in IGNORING:  # better without a value in a subfield than without the document
                    how = {IGNORE: True, **how}
                alike[sub] = None if _own_analysis(how, of_index) else _both(alike.get(sub, how), how)
    return {
        field: made
        for field, mapping in plain.items()
        if mapping is not None and (made := _with_subfields(mapping, subfields[field]))
    }


def long_fields(mappings: Mapping[str, Any]) -> set[str]:
    """The fields of `opensearch:INDEX` that are longs in each index that maps them.

    mappings: those of `mappings_of`
    """
    kinds: dict[str, set[str | None]] = {}
    for each in mappings.values():
        for field, mapping in each["mappings"].get("properties", {}).items():
            kinds.setdefault(field, set()).add(mapping.get("type"))
    return {field for field, types in kinds.items() if types == {"long"}}


def _with_subfields(mapping: Mapping[str, Any], subfields: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: how for name, how in subfields.items() if how is not None} | mapping.get("fields", {})
    return {**mapping, **({"fields": fields} if fields else {})}


def _own_analysis(mapping: Mapping[str, Any], settings: Mapping[str, str] | None) -> bool:
    """Whether the analysis of a field is defined in the settings of its index, so that another index lacks it.

    settings: flat; None: they are not known, and any analysis with a name may be defined there
    """
    analysis = {name: mapping[name] for name in (*ANALYZERS, "normalizer", "similarity") if name in mapping}
    if settings is None:
        return bool(analysis)
    defined = {"normalizer": "analysis.normalizer", "similarity": "similarity"}
    begins = [f"index.{defined.get(name, 'analysis.analyzer')}.{of}." for name, of in analysis.items()]
    if mapping.get("type") in ANALYZED and "analyzer" not in analysis:
        begins.append("index.analysis.analyzer.default.")
    # Whatever the analyzer of the documents is:
    if mapping.get("type") in ANALYZED and "search_analyzer" not in analysis:
        begins.append("index.analysis.analyzer.default_search.")
    return any(setting.startswith(tuple(begins)) for setting in settings)


def _both(first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any] | None:
    """The mapping that takes the values of both; None if there is none."""
    if first is None or second is None:
        return None
    kinds = [{name: value for name, value in each.items() if name != IGNORE} for each in (first, second)]
    ignoring = {IGNORE: True} if first.get(IGNORE) or second.get(IGNORE) else {}
    return {**first, **second, **ignoring} if kinds[0] == kinds[1] else None


def plain_mapping(mapping: Mapping[str, Any], *, ignore_malformed: bool = False) -> dict[str, Any] | None:
    """The mapping that a field with this one gets in an index of `osn`; None if its type is no plain one.

    ignore_malformed: the setting of the field's index, if the field has none of its own
    """
    kind = mapping.get("type", "object")
    if kind not in PLAIN_MAPPINGS:
        return None
    plain = dict(PLAIN_MAPPINGS[kind])
    if kind == "date":  # which ignores what is not a date anyway
        return plain | {name: mapping[name] for name in ("format", "locale") if name in mapping}
    if plain["type"] == "double" and mapping.get(IGNORE, ignore_malformed):
        plain[IGNORE] = True
    return plain


def check_alike(corpus: str, mappings: Mapping[str, Any], names: FieldNames, mapped: Mapping[str, Any]) -> None:
    """Warn of fields that the indexes of `opensearch:INDEX` map differently.

    mappings: those of `mappings_of`
    names: the possible field names of the parts of a document
    mapped: {field: mapping} of `--mapping`
    Raises InputError for a date that has other formats in another index, because a number may be another time there.
    """
    index = corpus.removeprefix(PREFIX)
    kinds: dict[str, list[dict[str, Any]]] = {}
    for _, each in sorted(mappings.items()):
        properties = each["mappings"].get("properties", {})
        part_of = _parts_in(properties, names)
        own = {name.partition(".")[0] for name in (*mapped, *part_of)} | RESERVED_FIELDS | {_id_field(names)}
        for field, mapping in properties.items():
            if field not in own:
                kinds.setdefault(field, []).append(mapping)
    other: dict[str, str] = {}
    for field, several in kinds.items():
        plain = [plain_mapping(mapping) or {"type": mapping.get("type", "object")} for mapping in several]
        if all(_both(plain[0], each) for each in plain):
            continue
        if all(each["type"] == "date" for each in plain):
            formats = " and ".join(
                dict.fromkeys(" ".join(filter(None, (each["format"], each.get("locale")))) for each in plain)
            )
            raise InputError(
                f"the indexes of {index!r} have different formats of the date {field!r}: {formats}",
                f'say with --mapping which it has in the new index: {{"{field}": {{"type": "date", "format": "…||…"}}}}, '
                "of which the first that fits a value is taken; or ingest the indexes into one each",
            )
        other[field] = ", ".join(dict.fromkeys(mapping.get("type", "object") for mapping in several))
    if other:
        log.warning(
            "the indexes of %r map these fields differently, so that their first value decides how the new index maps them: "
            "%s; --mapping FILE says how",
            index,
            _named(other),
        )


def check_source(mappings: Mapping[str, Any], names: FieldNames) -> None:
    """Warn of fields of `opensearch:INDEX` that its `_source` excludes or does not include, so that they cannot be copied.

    mappings: those of `mappings_of`
    names: the possible field names of the parts of a document
    Raises InputError if the title or the text is among them.
    """
    for index, each in sorted(mappings.items()):
        properties, source = each["mappings"].get("properties", {}), each["mappings"].get("_source", {})
        fields = {*_leaves(properties)} - _copied_to(properties)
        lost = {field for field in fields if not _in_source(field, source)}
        if record_in(each["mappings"], index) is not None:  # vectors are made anew
            lost = {field for field in lost if field.partition(".")[0] not in VECTOR_FIELDS}
        for part in ("title", "text"):
            there = fields.intersection(getattr(names, part))
            if there and there <= lost:
                raise InputError(
                    f"the index {index!r} does not keep the {part} ({', '.join(sorted(there))}) in its _source",
                    "ingest from the original source of the documents",
                )
        if lost:
            log.warning(
                "the index %r does not keep these fields in its _source, so the new index will not have them: %s",
                index,
                ", ".join(sorted(lost)),
            )


def _leaves(properties: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The full names of the fields that documents may have values of."""
    for name, mapping in properties.items():
        if "properties" in mapping:
            yield from _leaves(mapping["properties"], f"{before}{name}.")
        elif mapping.get("type") != "alias":
            yield before + name


def _in_source(field: str, source: Mapping[str, Any]) -> bool:
    """Whether documents keep a field in `_source`. source: `_source` of the mapping, with names and patterns"""
    parts = field.split(".")
    paths = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]

    def named(patterns: list[str]) -> bool:
        return any(fnmatchcase(path, pattern) for path in paths for pattern in patterns)

    includes = source.get("includes", [])
    return (not includes or named(includes)) and not named(source.get("excludes", []))


def warn_of_queries(
    corpus: str, mappings: Mapping[str, Any], names: FieldNames, mapped: Mapping[str, Any], kept: Mapping[str, Any]
) -> None:
    """Warn of fields of `opensearch:INDEX` for which queries find other hits, or none, in the index that `osn` makes of it.

    mappings: those of `mappings_of`
    names: the possible field names of the parts of a document
    mapped: {field: mapping} of `--mapping`
    kept: those of `plain_fields`
    """
    properties: dict[str, Any] = {}
    own: set[str] = set()
    for name, each in mappings.items():
        properties |= each["mappings"].get("properties", {})
        own |= {*VECTOR_FIELDS, "contents"} if record_in(each["mappings"], name) else set()
    told = other_for_queries(properties, names, mapped, kept)
    other = {field: change for field, change in told.items() if field not in own}
    if other:
        log.warning(
            "queries that name these fields of %r find other hits in the new index, or none: %s; --mapping FILE says how "
            "fields are mapped (docs/how-to/production-query.md)",
            corpus.removeprefix(PREFIX),
            _named(other),
        )


def _named(told: Mapping[str, str]) -> str:
    """Fields with what is told of each; of more than NAMED, the number of the others."""
    shown = ", ".join(f"{name} ({what})" for name, what in list(told.items())[:NAMED])
    return shown + (f" and {len(told) - NAMED} more" if len(told) > NAMED else "")


def other_for_queries(
    properties: Mapping[str, Any],
    names: FieldNames,
    mapped: Mapping[str, Any] | None = None,
    kept: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """{field: its change} of the fields that a query treats differently in an index that `osn` makes.

    properties: of the existing index's mapping
    mapped: {field: its mapping in the new index} of the caller's own
    kept: those of `plain_fields`, whose subfields the new index has
    """
    kept, by_path = kept or {}, mapped or {}
    mapped = {name.partition(".")[0]: mapping for name, mapping in by_path.items()}
    part_of = _parts_in(properties, names)
    other: dict[str, str] = {}
    for name, part in part_of.items():
        # The new index calls this field by another name: an own field of the old name would be empty, but not an alias.
        if name != part and (mapping_of(by_path, name) or {}).get("type") != "alias":
            other[name] = f"called {part} there"
        for sub in (mapping_of(properties, name) or {}).get("fields", {}):
            if sub not in kept.get(part, {}).get("fields", {}):
                other[f"{name}.{sub}"] = "not there"
            elif name != part:
                other[f"{name}.{sub}"] = f"called {part}.{sub} there"
    for name, mapping in properties.items():
        if name not in mapped:
            told = _other_below(name, mapping)
            there = {f"{name}.{sub}" for sub in kept.get(name, {}).get("fields", {})}
            there |= {field for field in told for path in part_of if f"{field}.".startswith(f"{path}.")}
            other |= {field: change for field, change in told.items() if field not in there}
    filled = {name for name, each in mapped.items() if each.get("type") == "alias"} | _copied_to(mapped)
    if (id_field := _id_field(names)) is not None and mapping_of(properties, id_field) is not None:
        other[id_field] = "called _id there"
    copies = _copied_to(properties) - filled - {*part_of}
    return other | dict.fromkeys(sorted(copies), "nothing is copied into it")


def _id_field(names: FieldNames) -> str | None:
    """The field of `_source` that was named as that of the ids; None if `_id` is the id."""
    return None if "_id" in names.id else names.id[0]


def _parts_in(properties: Mapping[str, Any], names: FieldNames) -> dict[str, str]:
    """{name of a field, such as `a.b`: the part of a document that it holds}"""
    named = {
        part: (name for name in getattr(names, part) if mapping_of(properties, name) is not None) for part in PARTS
    }
    return {name: part for part, mapped in named.items() if (name := next(mapped, None)) is not None}


def _other_below(name: str, mapping: Mapping[str, Any]) -> dict[str, str]:
    """The same for one of the caller's own fields, and all fields below it."""
    kind = mapping.get("type", "object")
    # The values in an object are strings there: a range over dates would compare their characters.
    alike = kind in ALIKE and not (kind == "date" and "." in name)
    other = {} if alike else {name: "not there" if kind == "alias" else f"no longer {kind}"}
    if kind in ALIKE and (lost := [each for each in ("normalizer", "null_value") if each in mapping]):
        other[name] = f"without its {' and '.join(lost)}"
    other |= {f"{name}.{sub}": "not there" for sub in mapping.get("fields", {}) if (kind, sub) != ("date", "keyword")}
    for sub, below in mapping.get("properties", {}).items():
        other |= _other_below(f"{name}.{sub}", below)
    return other


def _left_out(mapping: Mapping[str, Any], index: str) -> list[str]:
    """The fields of an index that are no part of its documents. Raises InputError for an index of passages."""
    meta = record_in(mapping, index)
    if meta is None:
        return []
    if meta.passages is not None:
        raise InputError(
            f"the index {index!r} holds passages, not whole documents, so it is no corpus",
            "ingest from the original source of the documents",
        )
    return list(VECTOR_FIELDS)


def _copied_to(properties: Mapping[str, Any]) -> set[str]:
    """The fields that only hold copies of others: no `_source` has them."""
    copied: set[str] = set()
    for mapping in properties.values():
        to = mapping.get("copy_to", [])
        copied |= {to} if isinstance(to, str) else {*to}
        copied |= _copied_to(mapping.get("properties", {}))
    return copied


def _line(hit: dict[str, Any], index: str) -> bytes:
    if "_source" not in hit:
        raise InputError(
            f"the document {hit['_id']!r} of {index!r} has no _source, so it cannot be read",
            "ingest from the original source of the documents",
        )
    record = {"_id": hit["_id"], **hit["_source"]}
    end = BEFORE_INDEX + index.encode() + b"\n"
    try:
        return json.dumps(record, ensure_ascii=False).encode() + end
    except UnicodeEncodeError:  # half a surrogate pair, which UTF-8 does not have: the reader rejects the record
        return json.dumps(record).encode() + end


def _pages(client: OpenSearch, index: str) -> Iterator[Lines]:
    """Every document at one point in time as a line, in pages; several slices are read at once."""
    mappings = client.indices.get_mapping(index=index)
    left_out = {name: _left_out(each["mappings"], name) for name, each in mappings.items()}
    point = client.create_pit(index=index, params={"keep_alive": KEEP_ALIVE, "allow_partial_pit_creation": "false"})
    try:
        pit = {"id": point["pit_id"], "keep_alive": KEEP_ALIVE}
        answer = _search(client, index, pit, size=0, track_total_hits=True, aggs=INDEXES)
        names = [bucket["key"] for bucket in answer["aggregations"]["indexes"]["buckets"]]
        # At least as many slices as any index has shards (each index has one or more), so that no slice spans two shards.
        slices = point["_shards"]["total"] - len(names) + 1
        page = most_hits(client, index, PAGE)
        left = [
            _slice(client, name, pit, number, slices, page, left_out.get(name, ()))
            for name in names
            for number in range(slices)
        ]
        read = 0
        with ThreadPoolExecutor(AT_ONCE, "osn-slice") as pool:
            reading: dict[Future[Lines | None], Iterator[Lines]] = {}
            while left or reading:
                while left and len(reading) < AT_ONCE:
                    pages = left.pop()
                    reading[pool.submit(copy_context().run, lambda pages=pages: next(pages, None))] = pages
                for future in wait(reading, return_when=FIRST_COMPLETED).done:
                    pages, lines = reading.pop(future), future.result()
                    if lines is not None:
                        left.append(pages)
                        read += len(lines)
                        yield lines
        if read != (total := answer["hits"]["total"]["value"]):
            raise InputError(f"{index!r} was not read whole: only {read:,} of its {total:,} documents", "try again")
    finally:
        client.delete_pit(body={"pit_id": [point["pit_id"]]})


INDEXES = {"indexes": {"terms": {"field": "_index", "size": 10_000}}}


def _slice(
    client: OpenSearch,
    name: str,
    pit: dict[str, str],
    number: int,
    slices: int,
    page: int,
    left_out: Sequence[str] = (),
) -> Iterator[Lines]:
    """The pages of one slice of one index, of PAGE_BYTES each, about.

    page: most documents of a page. left_out: fields that are not read
    """
    size = min(page, FIRST_PAGE)
    where: dict[str, Any] = {"query": {"term": {"_index": name}}}
    if left_out:
        where["_source"] = {"excludes": list(left_out)}
    if slices > 1:
        where["slice"] = {"id": number, "max": slices}
    while True:
        hits = _search(client, name, pit, size=size, sort=["_doc"], track_total_hits=False, **where)["hits"]["hits"]
        lines = [_line(hit, name) for hit in hits]
        if lines:
            yield lines
        if len(lines) < size:
            return
        where["search_after"] = hits[-1]["sort"]
        size = max(1, min(page, PAGE_BYTES * len(lines) // sum(map(len, lines))))


def _search(client: OpenSearch, index: str, pit: dict[str, str], **body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = client.search(body={"pit": pit, **body})
    if lacking := partial_answer(answer):
        raise InputError(f"{index!r} cannot be read whole: {'; '.join(lacking.values())}", "look at its health")
    return answer
