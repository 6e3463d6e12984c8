"""Checks on the first records of a corpus before any is used: do ids look like ids, and texts like texts? It detects:

pid, docid   a record with two ids, the passage's own and the document's, which repeats
segment      a text in a field of an unusual name, so that only titles would be read
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from opensearch_neural.corpus.documents import BETWEEN, MAX_ID_BYTES, Document, OnReject, Rejected, text_of
from opensearch_neural.errors import InputError

FIRST_RECORDS = 1000
FIRST_CHARACTERS = 1 << 20
"""The most characters of the first records together, because they are kept in memory."""

REPEATING = 0.9
"""If the share of different ids is smaller, the field is probably not the id."""

LONG = 100
"""The least average number of characters of a column that looks like text."""


class LookAhead:
    """Reads and checks the first records of a corpus before it yields them in their order."""

    def __init__(self, on_reject: OnReject) -> None:
        self._on_reject = on_reject
        self._first: list[Document | Rejected] = []
        self._looking = True
        self._characters = 0

    def reject(self, rejected: Rejected) -> None:
        """The function that the reader of the corpus calls in place of `on_reject`."""
        # The limits keep a file with only bad lines out of memory.
        if self._looking and len(self._first) < FIRST_RECORDS and self._characters < FIRST_CHARACTERS:
            self._first.append(rejected)
            self._characters += len(rejected.raw)
        else:
            self._on_reject(rejected)

    def checked(
        self, documents: Iterator[Document], where: str, *, most: int, id_named: bool, text_named: bool
    ) -> Iterator[Document]:
        """The documents, in order.

        most: how many are checked. id_named, text_named: whether the user named the field; then it is not checked.
        Raises InputError, naming the option that helps.
        """
        first: list[Document] = []
        broken: InputError | None = None
        try:
            for document in documents:
                self._first.append(document)
                first.append(document)
                self._characters += len(document.text) + len(document.title) + _characters(document.fields)
                if len(first) >= most or self._characters > FIRST_CHARACTERS:
                    break
        except InputError as error:  # raised after the records before it were yielded
            broken = error
        if not id_named:
            _check_ids(first, where)
        if not text_named:
            _check_texts(first, where)
        self._looking = False
        for each in self._first:
            if isinstance(each, Document):
                yield each
            else:
                self._on_reject(each)
        self._first.clear()
        if broken is not None:
            raise broken
        yield from documents


def _characters(value: Any) -> int:
    """The number of characters of all strings in a value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_characters, value.values()))
    return sum(map(_characters, value)) if isinstance(value, list) else 0


def _check_ids(first: list[Document], where: str) -> None:
    different = len({document.id for document in first})
    if len(first) < 10 or different >= REPEATING * len(first):
        return
    for name in first[0].fields:
        values = {value for document in first if _is_identifier(value := document.fields.get(name))}
        if len(values) == len(first):
            raise InputError(
                f"{where}: the first {len(first):,} documents have only {different:,} different ids, "
                f"and as many values of {name!r} as there are documents",
                f"--id-field {name} uses it as the id; --id-field with the name of the current id field keeps that",
            )


def _is_identifier(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value) and value.split() == [value] and len(value) <= MAX_ID_BYTES
    return isinstance(value, int) and not isinstance(value, bool)


def _texts(fields: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """(name, text) of the fields that hold texts; `a.b` is in the object `a`. before: the path of the object around them"""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _texts(value, f"{before}{name}.")
        elif text := text_of(value, BETWEEN["text"]):
            yield before + name, text


def _check_texts(first: list[Document], where: str) -> None:
    if not first or any(document.text.strip() for document in first):
        return
    lengths: dict[str, int] = {}
    for document in first:
        for name, text in _texts(document.fields):
            lengths[name] = lengths.get(name, 0) + len(text)
    longest = max(lengths, key=lengths.__getitem__, default=None)
    if longest is None:
        return
    mean = lengths[longest] / len(first)
    if mean >= LONG and lengths[longest] > 2 * sum(len(document.title) for document in first):
        raise InputError(
            f"{where}: none of the first {len(first):,} documents has a text, only a title; {longest!r} holds "
            f"{mean:,.0f} characters on average",
            f"--text-field {longest} uses it as the text; --text-field title says that the corpus has only titles",
        )
