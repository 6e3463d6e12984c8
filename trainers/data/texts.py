"""Texts by id, in little memory; training examples hold their row numbers.

A Python string costs some 60 bytes beside its characters and is copied page by page into every worker process; here all
texts are in one buffer.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from opensearch_neural.errors import InputError

_NO_WORD = re.compile(r"[\W_]+")


def normalised(text: str) -> str:
    """`text` for comparison: without differences of compatibility forms, case, punctuation and white space.

    A text without a letter or digit is only stripped: otherwise all such texts would be equal.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    marked = not folded.isascii() and any(map(_is_mark, set(folded)))
    words = " ".join(_NO_WORD.sub(_marks if marked else " ", folded).split())
    return words or text.strip()


def _is_mark(char: str) -> bool:
    """Whether a character belongs to the letter before it: `re` takes no vowel sign of Hindi, Thai or Tamil for a letter."""
    is_mark = unicodedata.category(char) in ("Mn", "Mc")
    return is_mark and not unicodedata.name(char, "").startswith("VARIATION SELECTOR")  # as in emoji


def _marks(between: re.Match[str]) -> str:
    """The marks of the letter before, and a blank for what follows. A mark without a letter is none: NFKC makes "´" one."""
    own = "".join(takewhile(_is_mark, between[0])) if between.start() else ""
    return own if own == between[0] else f"{own} "


def in_dev(text: str, share: float) -> bool:
    """Whether a text belongs to the dev part, which has `share` of all texts; always the same for equal texts.

    Vowel signs do not count here, as once in `normalised`, so that the parts of a set stay what they were.
    """
    words = _NO_WORD.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip() or text.strip()
    digest = hashlib.blake2b(words.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") < share * 2**64


def text_id(text: str) -> str:
    """An id for a text that has none: 16 hex digits of its SHA-256, so that equal texts have equal ids."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class TextStore(Mapping[str, str]):
    """{id: text}, in the order of `items`; rows count from 0.

    Raises InputError if an id is repeated with another text; a repetition with the same text is ignored.
    """

    def __init__(self, items: Iterable[tuple[str, str]] = (), *, what: str = "document") -> None:
        self.what = what
        self.ids: list[str] = []
        self._rows: dict[str, int] = {}
        self._buffer = bytearray()
        self._ends = array("q", [0])
        for identifier, text in items:
            self.add(identifier, text)

    def add(self, identifier: str, text: str) -> int:
        """The row of the text, which is added if it is new."""
        row = self._rows.get(identifier)
        if row is None:
            if "hash" in self.__dict__ or "canonical" in self.__dict__:
                raise ValueError("this store was hashed already: it can no longer change")
            row = self._rows[identifier] = len(self.ids)
            self.ids.append(identifier)
            self._buffer += text.encode("utf-8", "surrogatepass")
            self._ends.append(len(self._buffer))
        elif self.text_at(row) != text:
            raise InputError(
                f"the {self.what} id {identifier!r} occurs twice with different texts: "
                f"{self.text_at(row)[:60]!r} and {text[:60]!r}"
            )
        return row

    def at(self, rows: Iterable[int]) -> TextStore:
        """A store of the texts at `rows` alone, in their order."""
        return TextStore(((self.ids[row], self.text_at(row)) for row in rows), what=self.what)

    def text_at(self, row: int) -> str:
        return self._buffer[self._ends[row] : self._ends[row + 1]].decode("utf-8", "surrogatepass")

    def row(self, identifier: str) -> int:
        """The row of an id. Raises InputError for an unknown id."""
        try:
            return self._rows[identifier]
        except KeyError:
            raise InputError(f"there is no {self.what} {identifier!r} in this data") from None

    def __getitem__(self, identifier: str) -> str:
        return self.text_at(self._rows[identifier])

    def __contains__(self, identifier: object) -> bool:
        return identifier in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def sizes(self) -> npt.NDArray[np.int64]:
        """The bytes of each text: (rows,)."""
        ends = np.frombuffer(self._ends, dtype=np.int64)
        return ends[1:] - ends[:-1]

    @cached_property
    def hash(self) -> str:
        """16 hex digits over ids and texts in their order."""
        digest = hashlib.sha256()
        for identifier in self.ids:
            encoded = identifier.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(4, "little") + encoded)
        digest.update(self._ends.tobytes())
        digest.update(self._buffer)
        return digest.hexdigest()[:16]

    @cached_property
    def canonical(self) -> npt.NDArray[np.int32]:
        """For each row, the first row with the same normalised text: (rows,)."""
        first: dict[bytes, int] = {}
        rows = np.empty(len(self), dtype=np.int32)
        for row in range(len(self)):
            key = hashlib.blake2b(normalised(self.text_at(row)).encode("utf-8", "surrogatepass"), digest_size=12)
            rows[row] = first.setdefault(key.digest(), row)
        return rows

    @cached_property
    def _by_text(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """(all rows, grouped by normalised text; `canonical` of each)."""
        order = np.argsort(self.canonical, kind="stable")
        return order, self.canonical[order]

    def copies(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """`rows` and all other rows with the same normalised text, ascending."""
        (order, in_order), keys = self._by_text, np.unique(self.canonical[rows])
        starts, stops = (np.searchsorted(in_order, keys, side) for side in ("left", "right"))
        spans = [order[start:stop] for start, stop in zip(starts, stops, strict=True)]
        return np.sort(np.concatenate([order[:0], *spans]))


class Ragged:
    """Lists of integers of different lengths in two arrays: row i is values[offsets[i]:offsets[i + 1]]."""

    def __init__(self, rows: Iterable[Iterable[int]]) -> None:
        values, offsets = array("i"), array("q", [0])
        for row in rows:
            values.extend(row)
            offsets.append(len(values))
        self.values: npt.NDArray[np.int32] = np.frombuffer(values, dtype=np.int32) if values else np.empty(0, np.int32)
        self.offsets: npt.NDArray[np.int64] = np.frombuffer(offsets, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> npt.NDArray[np.int32]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[npt.NDArray[np.int32]]:
        return (self[row] for row in range(len(self)))
