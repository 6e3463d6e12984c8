"""Shards: the files of vectors that `osn encode` writes, each for a fixed number of records of the corpus.

A shard depends only on its records and the models, so it is the same file whichever process encodes it, in any order.
Tensors of a shard of n documents:

    digests  (n, 16) uint8    of the documents' contents (`record_digest`), by which vectors are found
    numbers  (n,) int64       of their records in the corpus, from 0
    ids      (bytes,) uint8   UTF-8, document i from id_offsets[i] to id_offsets[i + 1]
    sparse.indptr (n + 1,) int64, sparse.token_ids (nnz,) int32, sparse.weights (nnz,) float32
    dense    (n, vectors · dimension) float32
    pq       (n, M) uint8     codes of a quantized model
    info     (bytes,) uint8   JSON: {"start", "end", "digest" of the records, "unfit": [[digest, reason], …]}
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.record_digests import changed_corpus, digest, record_digest
from ingest.vectorizers import Vectorizer, Vectors, encode_in_parts
from opensearch_neural.corpus.documents import Document, Rejected
from opensearch_neural.errors import InputError
from opensearch_neural.files import replaced
from opensearch_neural.models.vectors import SparseVectors

SHARD_RECORDS = 4096
"""Records of the corpus in one shard, by default."""

SetAside = tuple[Document | Rejected, str]
"""A record that has no vectors, and why."""


def shard_written_before(path: Path, start: int, records: list[Document | Rejected]) -> LoadedShard | None:
    """The shard of these records, if an earlier run wrote it. Raises InputError if it holds other records."""
    if not path.exists():
        return None
    shard = LoadedShard.read(path, [])
    if shard.digest == digest(records):
        return shard
    if shard.end - shard.start < len(records):
        return None  # the last shard of a corpus that was shorter before
    error = changed_corpus(start, start + len(records))
    raise InputError(error.message, f"give the corpus as it was, or delete {path.parent}")


def shards_of(records: Iterator[Document | Rejected], size: int) -> Iterator[tuple[int, list[Document | Rejected]]]:
    """(number of the first record, records) of every shard of a corpus."""
    start = 0
    part: list[Document | Rejected] = []
    for record in records:
        part.append(record)
        if len(part) == size:
            yield start, part
            start, part = start + size, []
    if part:
        yield start, part


@dataclass(frozen=True)
class ShardDone:
    """A shard whose file is complete."""

    start: int
    """The number of its first record in the corpus."""
    records: int
    """How many records of the corpus it covers."""
    documents: int
    """How many documents have vectors in it."""
    unfit: int
    """How many documents a model could not encode."""
    set_aside: list[SetAside]
    """Its records that have no vectors: those that could not be read, and those that a model could not encode."""
    reused: bool
    """Whether an earlier run wrote it."""
    process: int | None = None
    """The process that encoded it on a Ray cluster."""

    @classmethod
    def of(
        cls, shard: LoadedShard, records: Sequence[Document | Rejected], *, reused: bool, process: int | None = None
    ) -> ShardDone:
        """records: those of the shard. reused, process: as in the class."""
        aside: list[SetAside] = []
        for record in records:
            if isinstance(record, Rejected):
                aside.append((record, record.reason))
            elif shard.unfit and (reason := shard.unfit.get(record_digest(record))) is not None:
                aside.append((record, f"cannot be encoded: {reason}"))
        return cls(shard.start, len(records), len(shard.rows), len(shard.unfit), aside, reused, process)

    @property
    def rejected(self) -> int:
        """How many of its records could not be read."""
        return sum(isinstance(record, Rejected) for record, _ in self.set_aside)


def shard_path(folder: Path, start: int) -> Path:
    return folder / f"{start:012}.safetensors"


def encode_shard(
    start: int,
    records: Sequence[Document | Rejected],
    vectorizer: Vectorizer,
    batch: int,
    encoded: Callable[[int], object] = lambda documents: None,
) -> bytes:
    """The content of a shard's file, which does not depend on `batch` and `encoded`.

    batch: documents of similar length that the vectorizer gets at once. encoded: called after each batch with its size.
    A document that the model cannot encode is listed in `info`; the others are not affected.
    """
    numbered = [(start + n, record) for n, record in enumerate(records) if isinstance(record, Document)]
    parts: list[Vectors] = []
    vectorized: list[tuple[int, Document]] = []
    refused: list[tuple[int, Document, str]] = []
    for some in _alike(numbered, batch):
        for part in encode_in_parts([document for _, document in some], vectorizer):
            if part.vectors is None:
                refused.append((*some[part.start], part.error))
            else:
                parts.append(part.vectors)
                vectorized.extend(some[part.start : part.start + part.length])
        encoded(len(some))
    order = np.argsort([number for number, _ in vectorized])
    vectorized = [vectorized[row] for row in order]
    unfit = [(record_digest(document).hex(), error) for _, document, error in sorted(refused, key=lambda of: of[0])]
    info = {"start": start, "end": start + len(records), "digest": digest(records), "unfit": unfit}
    ids = [document.id.encode("utf-8", "surrogatepass") for _, document in vectorized]
    tensors: dict[str, NDArray[Any]] = {
        "digests": _bytes(b"".join(record_digest(document) for _, document in vectorized)).reshape(-1, 16),
        "numbers": np.array([number for number, _ in vectorized], np.int64),
        "ids": _bytes(b"".join(ids)),
        "id_offsets": np.cumsum([0, *map(len, ids)]).astype(np.int64),
        "info": _bytes(json.dumps(info).encode()),
    }
    if sparse := [part.sparse for part in parts if part.sparse is not None]:
        joined = SparseVectors.concat(sparse).take(order)
        tensors["sparse.indptr"] = joined.indptr
        tensors["sparse.token_ids"] = joined.token_ids
        tensors["sparse.weights"] = joined.weights
    if dense := [part.dense for part in parts if part.dense is not None]:
        tensors["dense"] = np.ascontiguousarray(np.concatenate(dense)[order], dtype=np.float32)
    if codes := [part.codes for part in parts if part.codes is not None]:
        tensors["pq"] = np.ascontiguousarray(np.concatenate(codes)[order])
    from safetensors.numpy import save

    return save(tensors)


def _alike(numbered: list[tuple[int, Document]], batch: int) -> Iterator[list[tuple[int, Document]]]:
    """Batches of documents of similar length; batches of the longest and the shortest remaining documents alternate.

    The longest come first, so that too little memory shows at once. They alternate, so that the rate of the first batches is
    about the average rate.
    """
    longest_first = sorted(numbered, key=lambda each: -len(each[1].contents))
    batches = deque(longest_first[first : first + batch] for first in range(0, len(longest_first), batch))
    while batches:
        yield batches.popleft()
        if batches:
            yield batches.pop()


def _bytes(content: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(content, np.uint8).copy()


def write_shard(path: Path, content: bytes) -> None:
    """Write a shard to disk before it gets its name, so that an existing shard is always whole."""
    with replaced(path) as beside, beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@dataclass(frozen=True)
class LoadedShard:
    """The content of a shard's file."""

    start: int
    """The number of its first record in the corpus."""
    end: int
    """The number after its last record."""
    digest: str
    """The digest of its records."""
    unfit: dict[bytes, str]
    """{digest of a document that could not be encoded: why}"""
    rows: dict[bytes, int]
    """{digest of a document: its row in the vectors}"""
    sparse: SparseVectors | None
    """A row for each document; None: no sparse model encoded it."""
    dense: NDArray[np.float32] | None
    """(documents, vectors · dimension); None: no dense model encoded it."""
    codes: NDArray[np.uint8] | None = None
    """(documents, M); None: no quantized model encoded it."""

    @classmethod
    def read(cls, path: Path, vocabulary: list[str]) -> LoadedShard:
        """Raises InputError if the file is damaged."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            tensors = load_file(path)
            info = json.loads(tensors["info"].tobytes())
            digests = tensors["digests"]
            sparse = None
            if "sparse.indptr" in tensors:
                sparse = SparseVectors(
                    tensors["sparse.indptr"], tensors["sparse.token_ids"], tensors["sparse.weights"], vocabulary
                )
            return cls(
                info["start"],
                info["end"],
                info["digest"],
                {bytes.fromhex(key): reason for key, reason in info["unfit"]},
                {digests[row].tobytes(): row for row in range(len(digests))},
                sparse,
                tensors.get("dense"),
                tensors.get("pq"),
            )
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise InputError(
                f"{path} is damaged ({error})", "delete it and run `osn encode` again, which encodes only this shard"
            ) from None
