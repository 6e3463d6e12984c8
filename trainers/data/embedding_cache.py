"""Vectors of a text store, cached on disk, for siamese teachers and for mining.

    DIR/documents.json           the model, the texts, the shape
    DIR/documents.npy            dense: (texts, dimension), float16 or float32, memory-mapped
    DIR/documents.indptr.npy …   sparse: compressed rows, memory-mapped (indptr, token_ids, weights)
    DIR/documents.vocabulary.json

Written in chunks, so that an interrupted run can continue. A cache of another model or other texts is refused.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from opensearch_neural.errors import ModelError, NotFinite
from opensearch_neural.files import read_json_object, replaced, write_json
from opensearch_neural.locks import locked
from opensearch_neural.models.dense.multi_layer import MultiLayerEncoder, MultiVectors
from opensearch_neural.models.directory import ModelInfo
from opensearch_neural.models.vectors import SparseVectors
from trainers.data.resumable_chunks import progress
from trainers.data.texts import TextStore

FORMAT = 1
CHUNK = 1024
"""Number of texts encoded between two writes; an encoder sorts them by length."""

StoredPrecision = Literal["float16", "float32"]


def describe(model: ModelInfo, texts: TextStore, **more: Any) -> dict[str, Any]:
    """The record of a cache: its format, and the hashes of model and texts."""
    return {
        "format": FORMAT,
        "model": {"name": model.name, "hash": model.hash},
        "texts": {"hash": texts.hash, "rows": len(texts)},
        **more,
    }


def check(file: Path, written: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raises ModelError, which names the differences, if a cache is for another model, other texts or another format."""
    other = []
    for field, value in expected.items():
        there = written.get(field)
        if field in ("model", "texts", "queries", "documents"):
            if not isinstance(there, Mapping) or there.get("hash") != value["hash"]:
                other.append(f"{field}: {there} there, {value} now")
        elif there != value:
            other.append(f"{field}: {there!r} there, {value!r} now")
    if other:
        raise ModelError(
            f"{file} is for another model or other data ({'; '.join(other)})", "remove the folder, or name another"
        )


def _beside(path: Path, ending: str) -> Path:
    """A file of the cache at `path`; `path` may itself contain dots."""
    return path.with_name(path.name + ending)


def dense_vectors(
    encode: Callable[[Sequence[str]], npt.NDArray[np.float32]],
    texts: TextStore,
    path: Path | None,
    *,
    model: ModelInfo,
    dimension: int,
    precision: StoredPrecision = "float16",
) -> npt.NDArray[Any]:
    """The vectors of all `texts`, (texts, dimension), from the cache at `path` (without suffix), encoded if missing.

    Not cached if `path` is None. Raises ModelError if the cache is for another model or other texts, or a value does not fit
    its precision.
    """
    if path is None:
        return encode(list(texts.values())).astype(precision, copy=False)
    expected = describe(model, texts, kind="dense", dimension=dimension, precision=precision)
    _cached(path, expected, lambda: _encode_dense(encode, texts, path, model, expected))
    return read_vectors(_beside(path, ".npy"), len(texts))


def _cached(path: Path, expected: Mapping[str, Any], encode: Callable[[], None]) -> None:
    """Calls `encode`, which writes the vectors at `path`, unless the record `expected` says that they are there."""
    record = _beside(path, ".json")
    with locked(path, done=record):
        if not record.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            encode()
            write_json(record, expected)
            # What an interrupted run would have needed.
            _beside(path, ".partial.json").unlink(missing_ok=True)
            shutil.rmtree(_beside(path, ".parts"), ignore_errors=True)
    check(record, read_json_object(record), expected)


def _encode_dense(
    encode: Callable[[Sequence[str]], npt.NDArray[np.float32]],
    texts: TextStore,
    path: Path,
    model: ModelInfo,
    expected: Mapping[str, Any],
) -> None:
    """Write the file that `dense_vectors` reads; expected: the cache's record."""
    dimension, precision = expected["dimension"], expected["precision"]
    begun, partial = _beside(path, ".partial.json"), _beside(path, ".partial.npy")
    done = 0
    if begun.exists() and partial.exists():
        state = read_json_object(begun)
        check(begun, state, expected)
        done = int(state["done"])
        vectors = np.lib.format.open_memmap(partial, mode="r+")
    else:
        vectors = _new_array(partial, precision, (len(texts), dimension))
    starts = list(range(0, len(texts), CHUNK))
    for start in progress(starts, unit=f"chunks of {path.name}", skip=range(0, done, CHUNK)):
        stop = min(start + CHUNK, len(texts))
        try:
            encoded = encode([texts.text_at(row) for row in range(start, stop)])
        except NotFinite as error:
            bad = texts.ids[start + error.row]
            what = f"{model.name}: the vector of {texts.what} {bad!r} is not finite"
            raise ModelError(what, error.remedy) from None
        with np.errstate(over="ignore"):
            rows = encoded.astype(precision)
        if not np.isfinite(rows).all():
            at = start + int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
            raise ModelError(
                f"{model.name}: the vector of {texts.what} {texts.ids[at]!r} is not finite in {precision}",
                "use float32" if precision == "float16" else None,
            )
        vectors[start:stop] = rows
        vectors.flush()
        write_json(begun, {**expected, "done": stop})
    vectors.flush()
    del vectors
    if len(texts):
        partial.replace(_beside(path, ".npy"))


def _new_array(file: Path, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> np.memmap[Any, Any]:
    """A new array in `file`, memory-mapped. Raises OSError if the disk has no room for it.

    A disk that is full later ends the process at a write, by a signal (SIGBUS) and without a message.
    """
    if shutil.disk_usage(file.parent).free < math.prod(shape) * np.dtype(dtype).itemsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
    return np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=shape)


def several_vectors(
    encoder: MultiLayerEncoder, texts: TextStore, path: Path | None, *, batch_size: int = 32
) -> MultiVectors:
    """The vectors of all `texts`, cached at `path` as in `dense_vectors`; a row holds all vectors of a text.

    Not cached if `path` is None or texts have a vector for each token, which cost more room than time.
    """
    size = 1 if encoder.mix is not None else encoder.selection.size
    if path is None or size is None:
        return encoder.encode_documents(list(texts.values()), batch_size=batch_size)
    width = size * encoder.dimension

    def encode(some: Sequence[str]) -> npt.NDArray[np.float32]:
        return encoder.encode_documents(some, batch_size=batch_size).values.reshape(-1, width)

    rows = dense_vectors(encode, texts, path, model=encoder.info, dimension=width, precision="float32")
    return MultiVectors.of(np.asarray(rows, np.float32).reshape(-1, size, encoder.dimension))


def read_vectors(file: Path, rows: int) -> npt.NDArray[Any]:
    """The (rows, dimension) array in `file`, memory-mapped. Raises ModelError if it is broken or has another size."""
    try:
        vectors = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}", "remove the cache's folder and make it again") from None
    if len(vectors) != rows:
        raise ModelError(f"{file} has {len(vectors)} rows, expected {rows}", "remove the folder and make it again")
    return vectors


def sparse_vectors(
    encode: Callable[[Sequence[str]], SparseVectors],
    texts: TextStore,
    path: Path | None,
    *,
    model: ModelInfo,
    vocabulary: list[str],
) -> SparseVectors:
    """The sparse vectors of all `texts` from the cache at `path` (without suffix), encoded if missing.

    Not cached if `path` is None. Raises ModelError if the cache is for another model or other texts.
    """
    if path is None:
        return encode(list(texts.values()))
    expected = describe(model, texts, kind="sparse", dimension=len(vocabulary))
    _cached(path, expected, lambda: _encode_sparse(encode, texts, path, model, vocabulary, expected))
    return _load_sparse(path, vocabulary)


def _encode_sparse(
    encode: Callable[[Sequence[str]], SparseVectors],
    texts: TextStore,
    path: Path,
    model: ModelInfo,
    vocabulary: list[str],
    expected: Mapping[str, Any],
) -> None:
    """Write the files that `sparse_vectors` reads; expected: the cache's record."""
    parts = _beside(path, ".parts")
    parts.mkdir(exist_ok=True)
    if (parts / "of.json").exists():
        check(parts / "of.json", read_json_object(parts / "of.json"), expected)
    write_json(parts / "of.json", expected)
    starts = list(range(0, len(texts), CHUNK))
    files = {start: parts / f"{start:010d}.npz" for start in starts}
    done = {start for start, file in files.items() if file.exists()}
    for start in progress(starts, unit=f"chunks of {path.name}", skip=done):
        stop = min(start + CHUNK, len(texts))
        rows = encode([texts.text_at(row) for row in range(start, stop)])
        if len(rows) != stop - start or (len(rows.token_ids) and rows.token_ids.max() >= len(vocabulary)):
            # Scipy does not check indices: one out of range would crash the process.
            raise ModelError(f"{model.name} gives {len(rows)} vectors for {stop - start} texts, or tokens out of range")
        with replaced(files[start]) as beside:
            np.savez(beside, indptr=rows.indptr, token_ids=rows.token_ids, weights=rows.weights)
    _join_sparse(path, [files[start] for start in starts])
    write_json(_beside(path, ".vocabulary.json"), vocabulary, indent=None)


def _join_sparse(path: Path, files: list[Path]) -> None:
    """Joins the parts into one array of each kind, reading one part at a time."""
    counts = [0]
    for file in files:
        with np.load(file, allow_pickle=False) as part:
            counts += (counts[-1] + part["indptr"][1:]).tolist()
    np.save(_beside(path, ".indptr.npy"), np.array(counts, dtype=np.int64))
    for name, dtype in (("token_ids", np.int32), ("weights", np.float32)):
        # An empty file cannot be mapped, so the array has at least one number.
        target = _new_array(_beside(path, f".{name}.npy"), dtype, (max(counts[-1], 1),))
        at = 0
        for file in files:
            with np.load(file, allow_pickle=False) as part:
                target[at : at + len(part[name])] = part[name]
                at += len(part[name])
        target.flush()


def read_sparse(path: Path, texts: TextStore) -> SparseVectors:
    """The vectors that `sparse_vectors` cached at `path`. Raises ModelError if they are broken or for other texts."""
    record = _beside(path, ".json")
    expected = {"format": FORMAT, "kind": "sparse", "texts": {"hash": texts.hash, "rows": len(texts)}}
    check(record, read_json_object(record), expected)
    try:
        vocabulary = json.loads(_beside(path, ".vocabulary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}.vocabulary.json cannot be read: {error}", "make the cache again") from None
    return _load_sparse(path, vocabulary)


def _load_sparse(path: Path, vocabulary: list[str]) -> SparseVectors:
    try:
        indptr, token_ids, weights = (
            np.load(_beside(path, f".{name}.npy"), mmap_mode="r", allow_pickle=False)
            for name in ("indptr", "token_ids", "weights")
        )
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}", "remove the cache's folder and make it again") from None
    return SparseVectors(np.asarray(indptr), token_ids[: indptr[-1]], weights[: indptr[-1]], vocabulary)
