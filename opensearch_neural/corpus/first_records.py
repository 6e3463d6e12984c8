"""Checks on the first records of a corpus before any is used: is its id an id, and its text a text?

pid, docid   a passage's own id beside its document's, which repeats
segment      a text under a name that is not looked for, so that only titles would be taken
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opensearch_neural.corpus.documents import MAX_ID_BYTES, Document, OnReject, Rejected
from opensearch_neural.errors import InputError

FIRST_RECORDS = 1000
FIRST_CHARACTERS = 1 << 20
"""The most characters of the first records together, because they are held in memory."""

REPEATING = 0.9
"""If fewer than this share of the ids differ, the field is not taken to be an id."""

LONG = 100
"""Characters on average of a column that looks like the text."""


class LookAhead:
    """The first records of a corpus, read and looked at before any is given out; then they come in their order."""

    def __init__(self, on_reject: OnReject) -> None:
        self._on_reject = on_reject
        self._first: list[Document | Rejected] = []
        self._looking = True
        self._characters = 0

    def reject(self, rejected: Rejected) -> None:
        """The function that the reader of the corpus calls in place of `on_reject`."""
        # A file of nothing but bad lines is not held in memory.
        if self._looking and len(self._first) < FIRST_RECORDS and self._characters < FIRST_CHARACTERS:
            self._first.append(rejected)
            self._characters += len(rejected.raw)
        else:
            self._on_reject(rejected)

    def checked(
        self, documents: Iterator[Document], where: str, *, most: int, id_named: bool, text_named: bool
    ) -> Iterator[Document]:
        """The documents.

        most: how many are looked at. id_named, text_named: whether the user said which field it is; then it is believed.
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
        except InputError as error:  # what comes before it is given out first
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
                f"{where}: the first {len(first):,} documents have {different:,} different ids only, "
                f"and as many values of {name!r} as there are documents",
                f"--id-field {name} takes that as the id; --id-field with the present one's name insists on it",
            )


def _is_identifier(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value) and value.split() == [value] and len(value) <= MAX_ID_BYTES
    return isinstance(value, int) and not isinstance(value, bool)


def _check_texts(first: list[Document], where: str) -> None:
    if not first or any(document.text.strip() for document in first):
        return
    lengths: dict[str, int] = {}
    for document in first:
        for name, value in document.fields.items():
            if isinstance(value, str):
                lengths[name] = lengths.get(name, 0) + len(value)
    longest = max(lengths, key=lengths.__getitem__, default=None)
    if longest is None:
        return
    mean = lengths[longest] / len(first)
    if mean >= LONG and lengths[longest] > 2 * sum(len(document.title) for document in first):
        raise InputError(
            f"{where}: none of the first {len(first):,} documents has a text, only a title; {longest!r} holds "
            f"{mean:,.0f} characters on average",
            f"--text-field {longest} takes that as the text; --text-field title says that titles are all there is",
        )
