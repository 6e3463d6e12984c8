"""Vectors in files: `osn encode` writes them, and `osn ingest --vectors` reads them instead of loading a model.

    DIR/
      0f3a….json                     the manifest: models, corpus, and number of records
      0f3a…/model/                   the query encoder (for a lexical model, the whole model)
      0f3a…/vocabulary.json          the tokens of the sparse vectors, by id
      0f3a…/000000000000.safetensors records [0, 4096) of the corpus, in the format of `shards`
      0f3a…/000000004096.safetensors …

The hash covers everything that determines the vectors, so one folder can hold several encodings of several corpora.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ingest.corpus import CorpusSource
from ingest.record_digests import record_digest
from ingest.vectorizers import Vectors
from ingest.vectors.shards import SHARD_RECORDS, LoadedShard, shard_path
from opensearch_neural.corpus.documents import Document
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.files import read_json_object, write_json
from opensearch_neural.index.record import PassageMeta, QuantizedMeta, SparseMeta
from opensearch_neural.models.vectors import SparseVectors

if TYPE_CHECKING:
    from opensearch_neural.models.dense.dense_encoder import DenseEncoder

Number = TypeVar("Number", np.float32, np.uint8)

FORMAT = 1


@dataclass(frozen=True)
class DenseInfo:
    """The dense model of an encoding."""

    name: str
    """A folder's name or a hub id."""
    hash: str
    """Hash of the model, which an index records."""
    dimension: int
    """Components of one vector."""
    normalized: bool
    """Whether every vector has length 1."""
    vectors: int = 1
    """Vectors of each document."""

    @classmethod
    def of(cls, encoder: DenseEncoder) -> DenseInfo:
        return cls(encoder.info.name, encoder.info.hash, encoder.dimension, encoder.normalized, encoder.vectors)


@dataclass(frozen=True)
class Manifest:
    """The corpus and the models of an encoding."""

    corpus: CorpusSource
    """Its path is `CorpusSource.name`, which is the same on every machine and in every folder."""
    sparse: SparseMeta | None
    """None: the encoding has no sparse vectors."""
    dense: DenseInfo | None
    """None: it has no dense vectors."""
    passages: PassageMeta | None = None
    """How documents were split; None: they are whole."""
    dtype: str = "fp32"
    """The precision of the sparse model's network."""
    shard_records: int = SHARD_RECORDS
    """Records of the corpus in one shard."""
    records: int | None = None
    """Records of the corpus. This and the next two are None until the encoding is complete."""
    documents: int | None = None
    """Documents that have vectors."""
    unfit: int | None = None
    """Documents that a model could not encode."""
    quantized: QuantizedMeta | None = None
    """None: it has no codes."""
    prune: str | None = None
    """Which terms of the sparse vectors were kept; None: all."""

    @cached_property
    def hash(self) -> str:
        identity = self._dict()
        for count in ("records", "documents", "unfit"):
            identity.pop(count)
        for later in ("quantized", "prune"):  # older encodings, which lack these, keep their hash
            if identity[later] is None:
                del identity[later]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]

    def _dict(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    def write(self, folder: Path) -> None:
        write_json(folder / f"{self.hash}.json", self._dict())

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Raises InputError if the file is not a manifest, or a manifest of another version."""
        try:
            content = read_json_object(path, InputError)
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
        except (KeyError, TypeError) as error:
            raise InputError(f"{path} is not a manifest of `osn encode` ({error})") from None


def find_manifest(place: Path) -> tuple[Path, Manifest]:
    """(folder, manifest) of a named manifest, or of the only encoding in a folder.

    Raises InputError if the folder has no encoding, or several.
    """
    if place.is_file():
        return place.parent, Manifest.read(place)
    paths = sorted(path for path in place.glob("*.json") if (place / path.stem).is_dir())
    if not paths:
        raise InputError(f"{place} holds no vectors", "write some with `osn encode … --output DIR`")
    if len(paths) > 1:
        listed = "; ".join(f"{path} ({_described(Manifest.read(path))})" for path in paths)
        raise InputError(f"{place} holds {len(paths)} encodings: {listed}", "give --vectors one of these files")
    return place, Manifest.read(paths[0])


def _described(manifest: Manifest) -> str:
    models = [model.name for model in (manifest.sparse, manifest.dense, manifest.quantized) if model]
    return f"{' and '.join(models)}, {manifest.corpus.path}"


class StoredVectors:
    """The vectors of an encoding, for documents of its corpus; a `Vectorizer`.

    If documents come in the corpus's order, every shard is read once; any other order works too, but takes longer.
    """

    def __init__(self, folder: Path, manifest: Manifest, *, cached: int = 3) -> None:
        self.folder = folder / manifest.hash
        self.manifest = manifest
        self.starts = sorted(int(path.stem) for path in self.folder.glob("*.safetensors"))
        expected = list(range(0, manifest.records or 0, manifest.shard_records))
        if manifest.records is None or not set(expected) <= set(self.starts):
            raise InputError(
                f"the encoding in {self.folder} is not complete",
                "run the same `osn encode` command again to complete it",
            )
        self.starts = expected
        self.vocabulary: list[str] = []
        if manifest.sparse is not None:
            self.vocabulary = json.loads((self.folder / "vocabulary.json").read_text(encoding="utf-8"))
        self._shard = lru_cache(cached)(self._read)
        self._at = 0

    def _read(self, position: int) -> LoadedShard:
        return LoadedShard.read(shard_path(self.folder, self.starts[position]), self.vocabulary)

    def vectors(self, documents: Sequence[Document]) -> Vectors:
        """Raises ModelError for a document that could not be encoded, InputError for a document without vectors here."""
        rows = [self._find(document) for document in documents]
        sparse = dense = codes = None
        if self.manifest.sparse is not None:
            sparse = SparseVectors.concat(
                [shard.sparse.take(np.array([row])) for shard, row in rows if shard.sparse is not None], self.vocabulary
            )
        if self.manifest.dense is not None:
            dense = np.stack([shard.dense[row] for shard, row in rows if shard.dense is not None])
        if self.manifest.quantized is not None:
            codes = np.stack([shard.codes[row] for shard, row in rows if shard.codes is not None])
        return Vectors(sparse, dense, codes)

    def unfit(self, document: Document) -> bool:
        """Whether the document could not be encoded."""
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

    def sample(self, count: int) -> NDArray[np.float32] | None:
        """The first dense vectors (count, dimension); None if there are none."""
        return self._first(count, lambda shard: shard.dense)

    def sample_of_codes(self, count: int) -> NDArray[np.uint8] | None:
        """The first codes (count, M); None if there are none."""
        return self._first(count, lambda shard: shard.codes)

    def _first(self, count: int, part: Callable[[LoadedShard], NDArray[Number] | None]) -> NDArray[Number] | None:
        parts: list[NDArray[Number]] = []
        for position in range(len(self.starts)):
            if sum(map(len, parts)) >= count:
                break
            if (rows := part(self._shard(position))) is not None:
                parts.append(rows[:count])
        return np.concatenate(parts)[:count] if parts else None

    def codes(self) -> tuple[list[str], NDArray[np.uint8]]:
        """The ids and the codes (documents, M) of all documents, in the corpus's order.

        Raises InputError if there are none.
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
