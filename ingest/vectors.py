"""Vectors in files: what `osn encode` writes, and `osn ingest --vectors` reads instead of loading a model.

    DIR/
      0f3a….json                     the manifest: which models, which corpus, how many shards
      0f3a…/model/                   what encodes queries (the whole of a lexical model)
      0f3a…/vocabulary.json          the tokens of the sparse vectors, by id
      0f3a…/000000000000.safetensors records [0, 4096) of the corpus
      0f3a…/000000004096.safetensors …

The hash names everything that decides about the vectors, so one folder can hold several encodings of several corpora. A
shard is a function of its records and the models alone: whoever encodes it, and in whatever order, it is the same file.
Tensors of a shard of n documents:

    digests  (n, 16) uint8    of the documents' contents (`journal.record_digest`): what a vector is found by
    numbers  (n,) int64       of their records in the corpus, from 0
    ids      (bytes,) uint8   UTF-8, document i from id_offsets[i] to id_offsets[i + 1]
    sparse.indptr (n + 1,) int64, sparse.token_ids (nnz,) int32, sparse.weights (nnz,) float32
    dense    (n, vectors · dimension) float32
    pq       (n, M) uint8     codes of a quantized model
    info     (bytes,) uint8   JSON: {"start", "end", "digest" of the records, "unfit": [[digest, reason], …]}
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ingest.encoding import Vectorizer, Vectors
from ingest.journal import digest, record_digest
from ingest.source import CorpusSource
from opensearch_neural.corpus.documents import Document, Rejected
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.files import read_json_object, share, write_json
from opensearch_neural.index.record import PassageMeta, QuantizedMeta, SparseMeta
from opensearch_neural.models.vectors import SparseVectors

if TYPE_CHECKING:
    from opensearch_neural.models.dense_encoder import DenseEncoder

FORMAT = 1
SHARD_RECORDS = 4096


@dataclass(frozen=True)
class DenseInfo:
    """The dense model of an encoding."""

    name: str
    hash: str
    dimension: int
    normalized: bool
    vectors: int = 1

    @classmethod
    def of(cls, encoder: DenseEncoder) -> DenseInfo:
        return cls(encoder.info.name, encoder.info.hash, encoder.dimension, encoder.normalized, encoder.vectors)


@dataclass(frozen=True)
class Manifest:
    """What an encoding was made of. `records`, `documents`, `unfit` are counts, and None until it is complete."""

    corpus: CorpusSource
    sparse: SparseMeta | None
    dense: DenseInfo | None
    passages: PassageMeta | None = None
    dtype: str = "fp32"
    shard_records: int = SHARD_RECORDS
    records: int | None = None
    documents: int | None = None
    unfit: int | None = None
    quantized: QuantizedMeta | None = None

    @property
    def complete(self) -> bool:
        return self.records is not None

    @cached_property
    def hash(self) -> str:
        identity = self._dict()
        for count in ("records", "documents", "unfit"):
            identity.pop(count)
        if self.quantized is None:  # Encodings from before there were codes keep their hash.
            del identity["quantized"]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]

    def _dict(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self), "corpus": {**asdict(self.corpus), "path": self.corpus.name}}

    def write(self, folder: Path) -> None:
        write_json(folder / f"{self.hash}.json", self._dict())

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Raises InputError where the file is not a manifest, or one of a later version."""
        try:
            content = read_json_object(path)
            if content.pop("format", None) != FORMAT:
                raise InputError(f"{path} is not a manifest of this version (format {FORMAT})", "encode again")
            return cls(
                corpus=CorpusSource(**content.pop("corpus")),
                sparse=SparseMeta(**sparse) if (sparse := content.pop("sparse")) else None,
                dense=DenseInfo(**dense) if (dense := content.pop("dense")) else None,
                passages=PassageMeta(**passages) if (passages := content.pop("passages")) else None,
                quantized=QuantizedMeta(**quantized) if (quantized := content.pop("quantized", None)) else None,
                **content,
            )
        except ModelError as error:
            raise InputError(error.message, error.remedy) from None
        except (KeyError, TypeError) as error:
            raise InputError(f"{path} is not a manifest of `osn encode` ({error})") from None


def find_manifest(place: Path) -> tuple[Path, Manifest]:
    """(folder, manifest) of the one complete encoding in a folder, or of the one whose manifest is named.

    Raises InputError when there is none, or a choice.
    """
    if place.is_file():
        return place.parent, Manifest.read(place)
    paths = sorted(path for path in place.glob("*.json") if (place / path.stem).is_dir())
    if not paths:
        raise InputError(f"{place} holds no vectors", "write some with `osn encode --corpus … --out DIR`")
    if len(paths) > 1:
        listed = "; ".join(f"{path} ({_described(Manifest.read(path))})" for path in paths)
        raise InputError(f"{place} holds {len(paths)} encodings: {listed}", "give --vectors one of these files")
    return place, Manifest.read(paths[0])


def _described(manifest: Manifest) -> str:
    models = [model.name for model in (manifest.sparse, manifest.dense, manifest.quantized) if model]
    return f"{' and '.join(models)}, {manifest.corpus.path}"


# ---------------------------------------------------------------- shards


def shard_path(folder: Path, start: int) -> Path:
    return folder / f"{start:012}.safetensors"


def encode_shard(start: int, records: Sequence[Document | Rejected], vectorizer: Vectorizer, batch: int) -> bytes:
    """The content of a shard's file: a function of its arguments alone.

    A document that the model cannot encode is listed in `info`; it costs no other.
    """
    numbered = [(start + n, record) for n, record in enumerate(records) if isinstance(record, Document)]
    parts: list[Vectors] = []
    taken: list[tuple[int, Document]] = []
    unfit: list[tuple[str, str]] = []

    def encode(some: list[tuple[int, Document]]) -> None:
        if not some:
            return
        try:
            parts.append(vectorizer.vectors([document for _, document in some]))
            taken.extend(some)
        except ModelError as error:
            if len(some) == 1:
                unfit.append((record_digest(some[0][1]).hex(), error.message))
                return
            encode(some[: len(some) // 2])
            encode(some[len(some) // 2 :])

    for first in range(0, len(numbered), batch):
        encode(numbered[first : first + batch])
    info = {"start": start, "end": start + len(records), "digest": digest(records), "unfit": unfit}
    ids = [document.id.encode("utf-8", "surrogatepass") for _, document in taken]
    tensors: dict[str, NDArray[Any]] = {
        "digests": _bytes(b"".join(record_digest(document) for _, document in taken)).reshape(-1, 16),
        "numbers": np.array([number for number, _ in taken], np.int64),
        "ids": _bytes(b"".join(ids)),
        "id_offsets": np.cumsum([0, *map(len, ids)]).astype(np.int64),
        "info": _bytes(json.dumps(info).encode()),
    }
    if sparse := [part.sparse for part in parts if part.sparse is not None]:
        joined = SparseVectors.concat(sparse)
        tensors["sparse.indptr"] = joined.indptr
        tensors["sparse.token_ids"] = joined.token_ids
        tensors["sparse.weights"] = joined.weights
    if dense := [part.dense for part in parts if part.dense is not None]:
        tensors["dense"] = np.ascontiguousarray(np.concatenate(dense), dtype=np.float32)
    if codes := [part.pq for part in parts if part.pq is not None]:
        tensors["pq"] = np.ascontiguousarray(np.concatenate(codes))
    from safetensors.numpy import save

    return save(tensors)


def _bytes(content: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(content, np.uint8).copy()


def write_shard(path: Path, content: bytes) -> None:
    """Beside and renamed, and on the disk before it has its name: a shard that is there is whole."""
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        share(Path(beside))
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class LoadedShard:
    """A shard's file, read."""

    start: int
    end: int
    digest: str
    unfit: dict[bytes, str]
    rows: dict[bytes, int]
    sparse: SparseVectors | None
    dense: NDArray[np.float32] | None
    pq: NDArray[np.uint8] | None = None

    @classmethod
    def read(cls, path: Path, vocabulary: list[str]) -> LoadedShard:
        """Raises InputError where the file is damaged."""
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
                f"{path} is damaged ({error})", "delete it and run `osn encode` again: only it is encoded"
            ) from None


class StoredVectors:
    """The vectors of an encoding, for documents of its corpus; a `Vectorizer`.

    Documents are expected in the corpus's order, and then every shard is read once; in any other order it only takes
    longer.
    """

    def __init__(self, folder: Path, manifest: Manifest, *, cached: int = 3) -> None:
        self.folder = folder / manifest.hash
        self.manifest = manifest
        self.starts = sorted(int(path.stem) for path in self.folder.glob("*.safetensors"))
        expected = list(range(0, manifest.records or 0, manifest.shard_records))
        if not manifest.complete or not set(expected) <= set(self.starts):
            raise InputError(
                f"the encoding in {self.folder} is not complete", "the same `osn encode` command again completes it"
            )
        self.starts = expected
        self.vocabulary: list[str] = []
        if manifest.sparse is not None:
            self.vocabulary = json.loads((self.folder / "vocabulary.json").read_text(encoding="utf-8"))
        self._cache: OrderedDict[int, LoadedShard] = OrderedDict()
        self._cached = cached
        self._at = 0

    def _shard(self, position: int) -> LoadedShard:
        if position in self._cache:
            self._cache.move_to_end(position)
            return self._cache[position]
        shard = LoadedShard.read(shard_path(self.folder, self.starts[position]), self.vocabulary)
        self._cache[position] = shard
        if len(self._cache) > self._cached:
            self._cache.popitem(last=False)
        return shard

    def vectors(self, documents: Sequence[Document]) -> Vectors:
        """Raises ModelError for a document that could not be encoded, InputError for one that was not there."""
        found = [self._find(document) for document in documents]
        sparse = dense = pq = None
        if self.manifest.sparse is not None:
            sparse = SparseVectors.concat(
                [shard.sparse.take(np.array([row])) for shard, row in found if shard.sparse is not None],
                self.vocabulary,
            )
        if self.manifest.dense is not None:
            dense = np.stack([shard.dense[row] for shard, row in found if shard.dense is not None])
        if self.manifest.quantized is not None:
            pq = np.stack([shard.pq[row] for shard, row in found if shard.pq is not None])
        return Vectors(sparse, dense, pq)

    def unfit(self, document: Document) -> bool:
        """Whether it could not be encoded."""
        try:
            self._find(document)
        except ModelError:
            return True
        return False

    def _find(self, document: Document) -> tuple[LoadedShard, int]:
        key = record_digest(document)
        for ahead in range(len(self.starts)):
            position = (self._at + ahead) % len(self.starts)
            shard = self._shard(position)
            if (row := shard.rows.get(key)) is not None:
                self._at = position
                return shard, row
            if key in shard.unfit:
                raise ModelError(shard.unfit[key])
        where = f"{document.file}, line {document.line}: " if document.file else ""
        raise InputError(
            f"{where}the document {document.id!r} has no vectors in {self.folder}",
            "the corpus changed since it was encoded: run `osn encode` again",
        )

    def sample(self, count: int = 256) -> NDArray[np.float32] | None:
        """The first dense vectors (count, dimension)."""
        return None if not self.starts or (dense := self._shard(0).dense) is None else dense[:count]

    def codes(self) -> tuple[list[str], NDArray[np.uint8]]:
        """The ids and the codes (documents, M) of all documents, in the corpus's order.

        Raises InputError where there are none.
        """
        if self.manifest.quantized is None:
            raise InputError(f"{self.folder} holds no codes", "write some with `osn encode --pq MODEL`")
        from safetensors.numpy import load_file

        ids: list[str] = []
        parts = [np.zeros((0, self.manifest.quantized.subvectors), np.uint8)]
        for start in self.starts:
            tensors = load_file(shard_path(self.folder, start))
            content, offsets = tensors["ids"].tobytes(), tensors["id_offsets"].tolist()
            ids += [content[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(offsets)]
            if "pq" in tensors:
                parts.append(tensors["pq"])
        return ids, np.concatenate(parts)


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
