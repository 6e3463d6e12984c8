"""Digests of records, which show a continued run that the corpus changed, and of ids, which show that an id repeats."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from opensearch_neural.corpus.documents import Document, Rejected
from opensearch_neural.errors import InputError


def text_digest(text: str, size: int) -> bytes:
    """`size` bytes. The text may hold half a surrogate pair."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest()


def record_digest(record: Document | Rejected) -> bytes:
    """16 bytes that change with everything of a record that is written to the index."""
    if isinstance(record, Rejected):
        parts: tuple[str, ...] = ("\0rejected", str(record.line), record.raw)
    else:
        fields = json.dumps(record.fields, default=str) if record.fields else ""
        lists = [json.dumps(record.lists)] if record.lists else []
        parts = (record.id, record.title, record.text, record.url or "", fields, *lists)
    return text_digest("\0".join(f"{len(part)}:{part}" for part in parts), 16)


def digest(records: Iterable[Document | Rejected]) -> str:
    return hashlib.blake2b(b"".join(map(record_digest, records)), digest_size=8).hexdigest()


def changed_corpus(start: int, end: int) -> InputError:
    return InputError(
        f"the corpus changed since the earlier run: records {start + 1} to {end} differ",
        "give the corpus as it was, or start over with --restart",
    )


class FirstRecords:
    """For each id, the number of the first record that has it.

    Ids are compared by 64 bits of their hash. Among a hundred million ids, the probability that two different ids have the
    same hash is 0.03 %. A dict of so many strings would need some 15 GB; this takes 1.6, 16 bytes an id.
    """

    def __init__(self) -> None:
        self._keys: NDArray[np.uint64] = np.zeros(0, np.uint64)  # sorted
        self._numbers: NDArray[np.int64] = np.zeros(0, np.int64)
        self._recent: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._keys) + len(self._recent)

    def __contains__(self, id: str) -> bool:
        key = _key(id)
        return self._merged(key) is not None or key in self._recent

    def first(self, id: str, number: int) -> int:
        """The number of the first record with this id; `number` if no earlier record has it."""
        key = _key(id)
        if (merged := self._merged(key)) is not None:
            return merged
        first = self._recent.setdefault(key, number)
        if len(self._recent) >= max(1 << 15, len(self._keys) // 4):
            self._merge()
        return first

    def _merged(self, key: int) -> int | None:
        at = int(np.searchsorted(self._keys, np.uint64(key)))
        return int(self._numbers[at]) if at < len(self._keys) and int(self._keys[at]) == key else None

    def _merge(self) -> None:
        keys = np.concatenate([self._keys, np.fromiter(self._recent.keys(), np.uint64, len(self._recent))])
        numbers = np.concatenate([self._numbers, np.fromiter(self._recent.values(), np.int64, len(self._recent))])
        order = np.argsort(keys, kind="stable")
        self._keys, self._numbers = keys[order], numbers[order]
        self._recent = {}


def _key(id: str) -> int:
    return int.from_bytes(text_digest(id, 8), "little")
