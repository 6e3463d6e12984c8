"""Checks the fields of the first records, before anything is written.

Too many fields end the ingest. Warnings name fields whose values do not fit one mapping, and objects whose values a flat
object would treat differently.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any

from ingest.writing.bulk_actions import nested_by_dots
from opensearch_neural.corpus.documents import Document
from opensearch_neural.corpus.first_records import FIRST_RECORDS
from opensearch_neural.errors import InputError
from opensearch_neural.index.mapping import EXACT, mapping_of

log = logging.getLogger(__name__)

FIELD_LIMIT = 1000
"""OpenSearch's default of index.mapping.total_fields.limit."""
OWN_FIELDS = 20
"""The most fields that `osn` itself adds to an index."""
LONGEST_TERM = 32_766
"""Most bytes of a string in a flat object."""
HTML = re.compile(
    r"</(?:a|b|code|div|em|h[1-6]|i|li|ol|p|pre|script|span|strong|style|t[dhr]|ul)\s*>|<br\s*/?>|&nbsp;", re.I
)
"""What texts hold that are HTML; an opening tag may be a letter of mathematics or of a program."""
HTML_SHARE = 0.05
"""The least share of the first documents with HTML that is warned of; fewer may quote it."""
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
"""A number in a cell of a table; with zeros before it, it is a code."""


@dataclass
class FieldSurvey:
    """The kinds of values of each field."""

    flat_objects: bool = False
    """Whether objects are mapped as flat objects."""
    mapped: frozenset[str] = frozenset()
    """Fields with a mapping, which are left out."""
    objects: frozenset[str] = frozenset()
    """Mapped objects, of which the fields without a mapping are looked at."""
    kinds: dict[str, dict[str, str]] = field(default_factory=dict)
    """{field: {kind of value: id of the first document with it}}, in the order of occurrence"""
    numbers_inside: dict[str, str] = field(default_factory=dict)
    """{flat object: id of the first document with a number in it}"""
    long_strings_inside: dict[str, str] = field(default_factory=dict)
    """{flat object: id of the first document with a too long string in it}"""
    inexact: dict[str, str] = field(default_factory=dict)
    """{field: id of the first document with a whole number in it that a double does not tell apart from others}"""
    not_long: set[str] = field(default_factory=set)
    """Fields with a number that a long does not take, or cuts."""
    only_numbers: dict[str, bool] = field(default_factory=dict)
    """{field with a string: whether each string in it is a number}"""
    documents: int = 0
    """How many documents were looked at."""
    html: list[str] = field(default_factory=list)
    """The ids of those that hold HTML in title or text."""
    parts: set[str] = field(default_factory=set)
    """Which of title and url some document has."""

    def clashes(self) -> dict[str, str]:
        """{field: its kinds in words} of fields whose later values do not fit the mapping that their first value gets."""
        clashes = {}
        for name, kinds in self.kinds.items():
            # A field whose first value is a string is a keyword, which accepts numbers and booleans too.
            fits = len(kinds) <= 1 or (next(iter(kinds)) == "strings" and "objects" not in kinds)
            if not fits:
                clashes[name] = " and ".join(f"{kind} (first in {id!r})" for kind, id in kinds.items())
        return clashes


def count_fields(mappings: Any) -> int:
    """How many fields of an index these mappings take, {name: mapping}, with subfields and the fields of objects.

    Mappings that are none count as one field, or none: the cluster says what is wrong with them.
    """
    if not isinstance(mappings, Mapping):
        return 0
    inner = [each for each in mappings.values() if isinstance(each, Mapping)]
    below = sum(count_fields(each.get("fields")) + count_fields(each.get("properties")) for each in inner)
    return len(mappings) + below


def fields_of_other_kinds(mappings: Mapping[str, Any]) -> set[str]:
    """The fields that an index maps as no plain objects, though their values may be objects: geo_point, completion, nested.

    mappings: {index: {"mappings": its mapping}}
    """
    fields = [field for each in mappings.values() for field in each["mappings"].get("properties", {}).items()]
    return {name for name, mapping in fields if mapping.get("type", "object") not in ("object", "flat_object")}


def open_objects(mappings: Mapping[str, Any], before: str = "", *, mapped: set[str], objects: set[str]) -> None:
    """Add to `objects` the objects of these mappings, {name: mapping}, whose other fields are mapped when first seen, and to
    `mapped` all other fields that have a mapping; both as paths, such as `a.b`. before: the path of the object around them
    """
    for name, mapping in mappings.items():
        path = before + name
        parts = path.split(".")
        objects |= {".".join(parts[:end]) for end in range(1, len(parts))}
        if not isinstance(mapping, Mapping):
            mapped.add(path)
            continue
        inner = mapping.get("properties", {})
        is_object = mapping.get("type", "object" if "properties" in mapping else None) in ("object", "nested")
        refuses = mapping.get("enabled") in (False, "false") or mapping.get("dynamic") in (False, "false", "strict")
        if is_object and not refuses and isinstance(inner, Mapping):
            objects.add(path)
            open_objects(inner, f"{path}.", mapped=mapped, objects=objects)
        else:
            mapped.add(path)


def warn_of_parts(named: Mapping[str, str], mapped: Mapping[str, Any]) -> None:
    """Warn of mapped fields without values, because the index calls them otherwise.

    named: {part of a document: the field that was named for it}. mapped: {field: mapping} of `--mapping`
    """
    for part, name in named.items():
        there = "_id" if part == "id" else part
        mapping = mapping_of(mapped, name)
        if mapping is not None and name != there and mapping.get("type") != "alias":
            remedy = (
                "give it under a second name, too"
                if part == "id"
                else f'map it as {{"type": "alias", "path": "{part}"}}'
            )
            log.warning(
                "--mapping maps %r, which is called %s in the index, so that no document has the mapped field: %s",
                name,
                there,
                remedy,
            )


def check_fields(
    documents: Iterable[Document],
    *,
    mapped: Collection[str],
    objects: Collection[str] = (),
    mapped_fields: int = 0,
    doubles: Collection[str] = (),
    longs: Collection[str] = (),
    other_kinds: Collection[str] = (),
    limit: int,
    limit_known: bool = True,
    flat_objects: bool,
    named: Mapping[str, str] = MappingProxyType({}),
    read_by_model: bool = False,
    of_table: bool = False,
) -> list[str]:
    """Check the first records of a corpus, and warn of fields with values that the index will refuse, or that searches would
    take for others. Returns the fields whose whole numbers must be longs, because a double does not tell them apart.

    mapped: names of the fields that have a mapping already: from `--mapping`, or from the index that is the corpus
    objects: names of mapped objects whose fields are checked, but for those that are mapped
    mapped_fields: how many fields these mappings take in the index, with their subfields
    doubles: those of the mapped fields that the index that is the corpus had as numbers
    longs: those of the doubles that may be longs as well; of the others, later documents may have decimals
    other_kinds: fields that the index that is the corpus does not map as objects (`fields_of_other_kinds`)
    limit: how many fields the index may have
    flat_objects: whether objects are mapped as flat objects
    limit_known: whether the limit is surely that of the index, and no index template has another
    named: {part of a document: the field that was named for it}
    read_by_model: whether a model reads title and text, and so reads HTML in them as words
    of_table: whether the corpus is a csv or tsv, where numbers are strings
    Raises InputError if there are more fields than the index may have. If only the mapped fields are too many, and the limit
    is not known, it warns: the cluster refuses such an index before anything is written.
    """
    first = islice(documents, FIRST_RECORDS)
    survey = survey_fields(first, mapped=mapped, objects=objects, doubles=doubles, flat_objects=flat_objects)
    _check_count(len(survey.kinds), mapped_fields, limit=limit, limit_known=limit_known)
    _warn_of_texts(survey, named, read_by_model=read_by_model)
    _warn_of_values(survey, other_kinds)
    if of_table and (numbers := sorted(name for name, only in survey.only_numbers.items() if only)):
        log.warning(
            "numbers in a csv or tsv are strings: %s become keywords, which ranges compare by their characters; for numbers "
            'give --mapping {"%s": {"type": "double"}, …}',
            ", ".join(map(repr, numbers)),
            numbers[0],
        )
    return _to_be_longs(survey, doubles, longs)


def _check_count(fields: int, mapped_fields: int, *, limit: int, limit_known: bool) -> None:
    """Raise InputError if there are more fields than the index may have, or warn (`check_fields`).

    fields: how many fields without a mapping the first documents have
    """
    room = limit - OWN_FIELDS
    if fields + mapped_fields <= room:
        return
    counted = f"the first documents have {fields:,} different fields"
    if mapped_fields:
        counted = f"{mapped_fields:,} fields and subfields have a mapping, and {counted} beside them"
    limited = f"the index may have only {room:,} beside its own (index.mapping.total_fields.limit)"
    remedy = "leave fields out, write them as one list of {name, value}, or raise --field-limit"
    if fields > room or limit_known:
        raise InputError(f"{counted}, but {limited}", remedy)
    log.warning("%s, but %s, unless an index template allows more: %s", counted, limited, remedy)


def _warn_of_texts(survey: FieldSurvey, named: Mapping[str, str], *, read_by_model: bool) -> None:
    """Warn of named fields without a text, and of HTML that a model reads."""
    for part in sorted({"title", "url"} & named.keys() - survey.parts) if survey.documents else ():
        name = named[part]
        log.warning(
            "none of the first %s documents has a text in the field %r, so these have no %s in the index",
            f"{survey.documents:,}",
            name,
            part,
        )
    if read_by_model and survey.html and len(survey.html) >= HTML_SHARE * survey.documents:
        log.warning(
            "%s of the first %s documents hold HTML (first in %r): a model reads its tags as words, also where an analyzer "
            "strips them; take them out first (docs/tutorials/existing-index.md)",
            f"{len(survey.html):,}",
            f"{survey.documents:,}",
            survey.html[0],
        )


def _warn_of_values(survey: FieldSurvey, other_kinds: Collection[str]) -> None:
    """Warn of fields with values that the index refuses, or that searches do not find by ranges (`check_fields`)."""
    for name, kinds in survey.clashes().items():
        log.warning(
            "the field %r holds %s: an index accepts only one kind; use the same kind, or give --mapping", name, kinds
        )
    for name, id in survey.long_strings_inside.items():
        log.warning(
            "the objects in %r (first in %r) hold strings of more than %s bytes: OpenSearch refuses these documents; give "
            "--mapping%s",
            name,
            id,
            f"{LONGEST_TERM:,}",
            "" if name in other_kinds else f' {{"{name}": {{"type": "object"}}}}, or "enabled": false beside it',
        )
    for name in [each for each in survey.numbers_inside if each not in other_kinds]:
        log.warning(
            "numbers inside the objects in %r are found by their value, but not by ranges; for ranges give "
            '--mapping {"%s": {"type": "object"}}',
            name,
            name,
        )


def _to_be_longs(survey: FieldSurvey, doubles: Collection[str], longs: Collection[str]) -> list[str]:
    """The fields whose whole numbers must be longs; warns of those that cannot be (`check_fields`)."""
    # A field whose first value is a string is a keyword, which keeps numbers as they are written.
    inexact = {n: id for n, id in survey.inexact.items() if next(iter(survey.kinds.get(n, NUMBERS))) == "numbers"}
    # In `path_match`, `*` stands for any characters: other fields would become longs, too.
    not_long = survey.not_long | {name for name in inexact if "*" in name or (name in doubles and name not in longs)}
    for name, id in inexact.items():
        if name in not_long:
            log.warning(
                "the field %r holds whole numbers of more than 53 bits (first in %r), which the index keeps as doubles, so "
                "that a filter finds neighbouring numbers too: write them as strings, or give --mapping",
                name,
                id,
            )
    return sorted(inexact.keys() - not_long)


def survey_fields(
    documents: Iterable[Document],
    *,
    mapped: Collection[str] = (),
    objects: Collection[str] = (),
    doubles: Collection[str] = (),
    flat_objects: bool = False,
) -> FieldSurvey:
    """The kinds of values of each field, without the fields in `mapped`. mapped, objects, doubles: as in `check_fields`"""
    survey = FieldSurvey(flat_objects, frozenset(mapped), frozenset(objects))
    for document in documents:
        survey.documents += 1
        if HTML.search(document.contents):
            survey.html.append(document.id)
        survey.parts |= {part for part in ("title", "url") if getattr(document, part)}
        fields = nested_by_dots(document.fields)
        _add_kinds(survey, fields, "", document.id)
        for name in doubles:
            value = fields.get(name)
            for each in value if isinstance(value, list) else [value]:
                _note_number(survey, _number_in(each) if isinstance(each, str) else each, name, document.id)
    return survey


def _add_kinds(survey: FieldSurvey, fields: dict[str, Any], before: str, id: str) -> None:
    for key, value in fields.items():
        name = before + key
        values = value if isinstance(value, list) else [value]
        if name in survey.objects:
            for each in values:
                if isinstance(each, dict):
                    _add_kinds(survey, each, f"{name}.", id)
            continue
        if name in survey.mapped:
            continue
        kinds = survey.kinds.setdefault(name, {})
        for each in values:
            if each is None:
                continue
            if isinstance(each, str) and _is_read_from_string(each, first := next(iter(kinds), "")):
                if first == "numbers":
                    _note_number(survey, _number_in(each), name, id)
                continue
            kinds.setdefault(_KINDS.get(type(each), "numbers"), id)
            if isinstance(each, str):
                survey.only_numbers[name] = survey.only_numbers.get(name, True) and bool(NUMBER.fullmatch(each))
            _note_number(survey, each, name, id)
            if not isinstance(each, dict):
                continue
            if survey.flat_objects:
                _look_inside(survey, each, name, id)
            else:
                _add_kinds(survey, each, f"{name}.", id)


def _note_number(survey: FieldSurvey, number: Any, name: str, id: str) -> None:
    if isinstance(number, bool) or not isinstance(number, int | float):
        return
    if isinstance(number, int) and abs(number) > EXACT:
        survey.inexact.setdefault(name, id)
    if isinstance(number, float) or not -(2**63) <= number < 2**63:
        survey.not_long.add(name)


def _look_inside(survey: FieldSurvey, value: Any, name: str, id: str) -> None:
    """Note numbers and long strings, at any depth, in the object of the field `name`."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, str):
            if len(value) > LONGEST_TERM // 4 and len(value.encode("utf-8", "surrogatepass")) > LONGEST_TERM:
                survey.long_strings_inside.setdefault(name, id)
        elif value is not None and not isinstance(value, bool):
            survey.numbers_inside.setdefault(name, id)


NUMBERS = ("numbers",)
_KINDS = {dict: "objects", bool: "true or false", str: "strings"}


def _is_read_from_string(text: str, kind: str) -> bool:
    """Whether OpenSearch accepts a string in a field whose first value is of this kind."""
    if kind == "true or false":
        return text in ("true", "false", "")
    return kind == "numbers" and _number_in(text) is not None


def _number_in(text: str) -> float | None:
    """The number that a string holds; None if it holds none."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None
