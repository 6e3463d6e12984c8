"""Product quantization of dense vectors: M bytes per document, scored by M look-ups (JPQ, section 2.4).

A directory of kind "quantized" is a dense model of two towers, the trained query encoder and the unchanged document
encoder, with `quantizer.safetensors` beside it. Documents are coded with the centroids from before training and scored with
the trained centroids, so that documents added later get the same codes as before training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from opensearch_neural.errors import InputError, ModelError, ZeroVector
from opensearch_neural.models import directory
from opensearch_neural.models.dense.dense_encoder import Backend, DenseEncoder, located
from opensearch_neural.models.dense.torch_encoder import load_dense
from opensearch_neural.models.directory import ModelInfo
from opensearch_neural.models.vectors import DenseVectors

Codes = NDArray[np.uint8]

KIND = "quantized"
CENTROIDS = 256
"""K, the centroids of a part: as many as one byte can number."""
QUANTIZER_FILE = "quantizer.safetensors"
_NUMBERS_AT_ONCE = 1 << 24
"""Most distances or coordinates in memory at a time: 64 MiB."""


@dataclass(frozen=True, eq=False)
class Quantizer:
    """A rotation, then M parts of D/M coordinates, each replaced by one of 256 centroids.

    Raises ModelError for tensors that do not fit together or are not finite.
    """

    rotation: DenseVectors
    """(D, D), orthogonal: x_rotated = rotation · x"""
    assigning: DenseVectors
    """(M, 256, D/M); a vector's code is the number of the nearest of these centroids in each part"""
    scoring: DenseVectors
    """(M, 256, D/M), with the same numbers; scores are computed with these centroids"""

    def __post_init__(self) -> None:
        for name in ("rotation", "assigning", "scoring"):
            tensor = np.ascontiguousarray(getattr(self, name), dtype=np.float32)
            if not np.isfinite(tensor).all():
                raise ModelError(f"the quantizer's {name} holds values that are not finite numbers")
            object.__setattr__(self, name, tensor)
        if self.rotation.ndim != 2 or self.rotation.shape[0] != self.rotation.shape[1] or not len(self.rotation):
            raise ModelError(f"the quantizer's rotation has the shape {self.rotation.shape}; expected (D, D)")
        d = self.dimension
        for name in ("assigning", "scoring"):
            shape = getattr(self, name).shape
            if len(shape) != 3 or shape[1] != CENTROIDS or shape[0] * shape[2] != d:
                raise ModelError(
                    f"the quantizer's {name} centroids have the shape {shape}; expected (M, {CENTROIDS}, {d}/M)"
                )
        if self.assigning.shape != self.scoring.shape:
            raise ModelError(f"assigning {self.assigning.shape} and scoring {self.scoring.shape} centroids differ in M")
        if np.abs(self.rotation @ self.rotation.T - np.eye(d)).max() > 1e-3:
            raise ModelError("the quantizer's rotation is not orthogonal: vectors cannot be rotated back by it")

    @property
    def dimension(self) -> int:
        """D, the dimension of a vector."""
        return int(self.rotation.shape[0])

    @property
    def subvectors(self) -> int:
        """M, the parts of a vector and the bytes of a code."""
        return int(self.assigning.shape[0])

    def encode(self, vectors: DenseVectors) -> Codes:
        """The codes (n, M) of vectors (n, D). Raises InputError for another dimension and for NaN or infinity."""
        rows = self._checked(vectors, "vector")
        m, width = self.subvectors, self.dimension // self.subvectors
        codes = np.empty((len(rows), m), dtype=np.uint8)
        lengths = np.square(self.assigning).sum(axis=2)  # (M, 256)
        for block in _blocks(len(rows), m * CENTROIDS):
            parts = (rows[block] @ self.rotation.T).reshape(-1, m, width)
            # |x − c|² − |x|², since |x|² is the same for every centroid: (M, block, 256)
            distances = lengths[:, None, :] - 2 * (parts.transpose(1, 0, 2) @ self.assigning.transpose(0, 2, 1))
            codes[block] = distances.argmin(axis=2).T
        return codes

    def table(self, query: DenseVectors) -> DenseVectors:
        """⟨q_i, c_ij⟩ for every part i and centroid j of one query (D,): (M, 256) (JPQ, eq. 11).

        Raises InputError for another dimension, for NaN or infinity, ZeroVector for a query of zeros, which ranks nothing.
        """
        row = self._checked(np.asarray(query)[None], "query vector")
        if not row.any():
            raise ZeroVector
        parts = (row @ self.rotation.T).reshape(1, self.subvectors, -1)
        tables: DenseVectors = np.einsum("qmd,mkd->qmk", parts, self.scoring, optimize=True)
        return tables[0]

    def reconstruct(self, codes: Codes) -> DenseVectors:
        """d† (n, D) of codes (n, M): the scoring centroids, rotated back (JPQ, eq. 8)."""
        checked = np.asarray(codes)
        if checked.dtype != np.uint8 or checked.ndim != 2 or checked.shape[1] != self.subvectors:
            raise InputError(
                f"expected codes of {self.subvectors} bytes (uint8), got {checked.dtype} of shape {checked.shape}",
                "the codes belong to another model",
            )
        vectors = np.empty((len(checked), self.dimension), dtype=np.float32)
        for block in _blocks(len(checked), self.dimension):
            chosen = self.scoring[np.arange(self.subvectors), checked[block]]  # (block, M, D/M)
            vectors[block] = chosen.reshape(-1, self.dimension) @ self.rotation
        return vectors

    def save(self, path: Path) -> None:
        """Write the three tensors to the safetensors file `path`."""
        save_file({"rotation": self.rotation, "assigning": self.assigning, "scoring": self.scoring}, path)

    @classmethod
    def load(cls, path: Path) -> Quantizer:
        """The quantizer that `save` wrote. Raises ModelError, naming the file, if it is missing or corrupt."""
        if not path.is_file():
            raise ModelError(f"{path} does not exist", "`osn train jpq` writes a quantized model")
        try:
            tensors = load_file(path)
            return cls(tensors["rotation"], tensors["assigning"], tensors["scoring"])
        except KeyError as error:
            raise ModelError(f"{path}: the tensor {error} is missing") from None
        except (SafetensorError, OSError, ValueError, TypeError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from None
        except ModelError as error:
            raise ModelError(f"{path}: {error.message}") from None

    def _checked(self, vectors: DenseVectors, what: str) -> DenseVectors:
        rows = np.ascontiguousarray(vectors, dtype=np.float32)
        if rows.ndim != 2 or rows.shape[1] != self.dimension:
            raise InputError(
                f"expected {what}s of {self.dimension} dimensions, got an array of shape {rows.shape}",
                "the quantizer and the encoder belong to different models",
            )
        if len(bad := np.flatnonzero(~np.isfinite(rows).all(axis=1))):
            raise InputError(f"{what} {bad[0]} of {len(rows)} holds a value that is not a finite number")
        return rows


def _blocks(rows: int, width: int) -> Iterator[slice]:
    """Slices of `rows` rows of `width` numbers; no slice has more than `_NUMBERS_AT_ONCE` numbers."""
    step = max(1, _NUMBERS_AT_ONCE // width)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


@dataclass(frozen=True)
class QuantizedModel:
    """A dense encoder and the quantizer of its documents' vectors."""

    info: ModelInfo
    """Name and hash of encoder and codebooks together."""
    quantizer: Quantizer
    """Makes the codes of documents, and the look-up table of a query."""
    dense: DenseEncoder
    """Encodes documents before they are quantized, and queries."""

    def encode_documents(self, texts: Sequence[str], *, batch_size: int = 32) -> Codes:
        """(texts, M), in order. Raises ModelError if a vector is not finite."""
        return self.quantizer.encode(self.dense.encode_documents(texts, batch_size=batch_size))

    def encode_queries(self, texts: Sequence[str], *, batch_size: int = 32) -> DenseVectors:
        """(texts, D), in order, not rotated: `Quantizer.table` does that."""
        return self.dense.encode_queries(texts, batch_size=batch_size)


def load_quantized(
    name_or_path: str | Path, *, device: str | None = None, backend: Backend = "torch", threads: int | None = None
) -> QuantizedModel:
    """The quantized model of a directory that `osn train jpq` wrote; the options are those of `load_dense`.

    Raises ModelError if the directory holds another kind of model or a quantizer that does not fit its encoder.
    """
    folder = located(name_or_path, backend)
    content = directory.read_osn_json(folder)
    if content is None or content["kind"] != KIND:
        kind = "no osn.json" if content is None else f"a {content['kind']} model"
        raise ModelError(f"{folder} is no quantized model ({kind})", "`osn train jpq` makes one from a dense model")
    quantizer = Quantizer.load(folder / QUANTIZER_FILE)
    dense = load_dense(name_or_path, device=device, backend=backend, threads=threads)
    if dense.dimension != quantizer.dimension:
        raise ModelError(
            f"{folder}: the encoder's vectors have {dense.dimension} dimensions, the quantizer's {quantizer.dimension}"
        )
    info = ModelInfo(dense.info.name, folder, KIND, dense.info.hash)
    return QuantizedModel(info, quantizer, dense)
