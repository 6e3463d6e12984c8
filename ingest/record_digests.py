"""Digests of records, by which a continued run notices that the corpus has changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from opensearch_neural.corpus.documents import Document, Rejected
from opensearch_neural.errors import InputError


def record_digest(record: Document | Rejected) -> bytes:
    """16 bytes that change with everything of a record that is written to the index."""
    if isinstance(record, Rejected):
        parts: tuple[str, ...] = ("\0rejected", str(record.line), record.raw)
    else:
        fields = json.dumps(record.fields, default=str) if record.fields else ""
        parts = (record.id, record.title, record.text, record.url or "", fields)
    joined = "\0".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def digest(records: Iterable[Document | Rejected]) -> str:
    return hashlib.blake2b(b"".join(map(record_digest, records)), digest_size=8).hexdigest()


def changed_corpus(start: int, end: int) -> InputError:
    return InputError(
        f"the corpus changed since the earlier run: records {start + 1} to {end} differ",
        "give the corpus as it was, or start over with --restart",
    )
