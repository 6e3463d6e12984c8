"""`osn data teach`: a teacher's vectors or scores for training data, computed once.

    osn data teach sentence-transformers/all-MiniLM-L6-v2 squad-mix --output teachers/dense
    osn data teach lexical squad-mix --output teachers/lexical
    osn data teach models/cross-encoder squad-mix --negatives negatives.jsonl --depth 100 --output teachers/cross

For a siamese teacher (dense, sparse), the cache holds the vectors of all queries and documents; for a cross-encoder, the
scores of pairs. `teachers.open_teacher` reads both.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.files import read_json_object, replaced, write_json
from opensearch_neural.locks import locked
from opensearch_neural.models import directory
from opensearch_neural.models.dense.torch_encoder import load_dense
from opensearch_neural.models.directory import ModelInfo
from opensearch_neural.models.sparse.lexical import build_lexical
from opensearch_neural.models.vectors import SparseVectors
from trainers.common.config import fingerprint
from trainers.data.embedding_cache import FORMAT, StoredPrecision, check, dense_vectors, sparse_vectors
from trainers.data.examples import TrainingData
from trainers.data.loading import load_training
from trainers.data.resumable_chunks import progress
from trainers.data.teacher_models import SparseSides, cross_encoder, detect, sparse_sides
from trainers.data.teachers import KINDS, LEXICAL, TeacherKind
from trainers.data.texts import Ragged

logger = logging.getLogger(__name__)
DEPTH = 100
QUERIES_A_CHUNK = 64
"""Queries whose pairs a cross-encoder scores between two writes."""


def cache_name(model: str | Path, data: TrainingData, *, depth: int = DEPTH) -> str:
    """A folder name for the cache of `model` for `data`; it differs if `teach` would refuse to share a folder."""
    made_by = [str(model), data.queries.hash, data.documents.hash]
    if str(model) != LEXICAL and detect(directory.locate(model)) == "cross-encoder":
        made_by.append(_pairs_hash(_pairs(data, depth)))
    return f"{Path(model).name}-{fingerprint(*made_by)[:8]}"


def teach(
    model: str | Path,
    data: TrainingData,
    *,
    output: Path,
    kind: TeacherKind | None = None,
    depth: int = DEPTH,
    precision: StoredPrecision = "float16",
    device: str | None = None,
    batch_size: int = 32,
    max_length: int | None = None,
) -> Path:
    """Cache the vectors or scores of the teacher `model` for `data` in the folder `output`; `open_teacher` reads it.

    model: a directory or hub id of a dense encoder, a sparse encoder or a cross-encoder with one output (detected by its
    files unless `kind` is given); or "lexical", BM25 over word pieces with the statistics of the data's documents.
    depth: hard negatives of a query that a cross-encoder scores, beside all positives. precision: of dense vectors.

    After an interruption, the same call continues; if the cache is complete, it returns at once; while another process does
    the same work, it waits. Raises ModelError if `output` holds a cache of another model, other data, or other settings.
    """
    if str(model) == LEXICAL:
        with locked(output, done=output / "teacher.json"):
            return _teach_lexical(data, output)
    folder = directory.locate(model)
    kind = kind or detect(folder)
    info = directory.model_info(folder, name=model, kind=kind)
    settings: dict[str, Any] = {"max_length": max_length}
    if kind == "dense":
        settings["precision"] = precision
    elif kind == "cross-encoder":
        pairs = _pairs(data, depth)
        settings["pairs"] = _pairs_hash(pairs)
    with locked(output, done=output / "teacher.json"):
        if _is_complete(output, info, data, settings):
            return output
        if kind == "dense":
            more = _teach_dense(model, info, data, output, precision, device, batch_size, max_length)
        elif kind == "sparse":
            more = _teach_sparse(sparse_sides(model, folder, device, batch_size, max_length), info, data, output)
        else:
            more = _teach_pairs(folder, info, data, pairs, output, device, batch_size, max_length)
        return _complete(output, info, data, {**settings, **more})


def _record(info: ModelInfo, data: TrainingData, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "kind": info.kind,
        "model": {"name": info.name, "hash": info.hash},
        "queries": {"hash": data.queries.hash, "rows": len(data.queries)},
        "documents": {"hash": data.documents.hash, "rows": len(data.documents)},
        **settings,
    }


def _is_complete(output: Path, info: ModelInfo, data: TrainingData, settings: Mapping[str, Any]) -> bool:
    """Whether the cache is complete. If not, notes its settings, so that only the same settings can continue it."""
    record, file, begun = _record(info, data, settings), output / "teacher.json", output / "begun.json"
    for noted in (file, begun):
        if noted.exists():
            check(noted, read_json_object(noted), record)
    if file.exists():
        logger.info("%s is complete already", output)
        return True
    write_json(begun, record)
    return False


def _complete(output: Path, info: ModelInfo, data: TrainingData, settings: Mapping[str, Any]) -> Path:
    write_json(output / "teacher.json", _record(info, data, settings))
    (output / "begun.json").unlink(missing_ok=True)
    return output


def _teach_dense(
    model: str | Path,
    info: ModelInfo,
    data: TrainingData,
    output: Path,
    precision: StoredPrecision,
    device: str | None,
    batch_size: int,
    max_length: int | None,
) -> dict[str, Any]:
    encoder = load_dense(model, device=device, max_length=max_length)
    for what, store, encode in (
        ("queries", data.queries, partial(encoder.encode_queries, batch_size=batch_size)),
        ("documents", data.documents, partial(encoder.encode_documents, batch_size=batch_size)),
    ):
        dense_vectors(encode, store, output / what, model=info, dimension=encoder.dimension, precision=precision)
    return {"dimension": encoder.dimension}


def _teach_sparse(sides: SparseSides, info: ModelInfo, data: TrainingData, output: Path) -> dict[str, Any]:
    for what, store, encode in (
        ("queries", data.queries, sides.queries),
        ("documents", data.documents, sides.documents),
    ):
        sparse_vectors(encode, store, output / what, model=info, vocabulary=sides.vocabulary)
    return {"dimension": len(sides.vocabulary)}


def _teach_lexical(data: TrainingData, output: Path) -> Path:
    encoder = build_lexical(data.documents.values())
    info = ModelInfo(LEXICAL, output, "sparse", encoder.info.hash)
    if _is_complete(output, info, data, {}):
        return output
    sides = SparseSides(
        encoder.encode_documents,
        lambda texts: SparseVectors.of_rows(map(encoder.query.encode, texts), encoder.vocabulary),
        encoder.vocabulary,
    )
    return _complete(output, info, data, _teach_sparse(sides, info, data, output))


def _pairs(data: TrainingData, depth: int) -> Ragged:
    """The documents that a cross-encoder scores, for each query row: ascending document rows."""
    rows: list[list[int]] = [[] for _ in range(len(data.queries))]
    for index, query in enumerate(data.query_rows.tolist()):
        rows[query] = sorted({*data.positives[index].tolist(), *data.negatives[index][:depth].tolist()})
    if not len(data.negatives.values):
        raise InputError(
            f"{data.name} has no hard negatives: a cross-encoder needs them to compare with positives",
            "mine them (osn data mine) and give the file as --negatives",
        )
    return Ragged(rows)


def _pairs_hash(pairs: Ragged) -> str:
    return hashlib.sha256(pairs.offsets.tobytes() + pairs.values.tobytes()).hexdigest()[:16]


def _teach_pairs(
    folder: Path,
    info: ModelInfo,
    data: TrainingData,
    pairs: Ragged,
    output: Path,
    device: str | None,
    batch_size: int,
    max_length: int | None,
) -> dict[str, Any]:
    parts = output / "pairs.parts"
    parts.mkdir(parents=True, exist_ok=True)
    predict = cross_encoder(folder, device, batch_size, max_length)
    starts = list(range(0, len(data.queries), QUERIES_A_CHUNK))
    files = {start: parts / f"{start:010d}.npy" for start in starts}
    done = {start for start, file in files.items() if file.exists()}
    for start in progress(starts, unit=f"× {QUERIES_A_CHUNK} queries", skip=done):
        stop = min(start + QUERIES_A_CHUNK, len(data.queries))
        texts = [
            (data.queries.text_at(query), data.documents.text_at(int(document)))
            for query in range(start, stop)
            for document in pairs[query]
        ]
        scores = predict(texts) if texts else np.empty(0, dtype=np.float32)
        if not np.isfinite(scores).all():
            query, document = texts[int(np.flatnonzero(~np.isfinite(scores))[0])]
            raise ModelError(f"{info.name}: the score of {query[:60]!r} with {document[:60]!r} is not finite")
        with replaced(files[start]) as beside:
            np.save(beside, scores)
    scores = np.concatenate([np.load(files[start], allow_pickle=False) for start in starts])
    with replaced(output / "pairs.npz") as beside:
        np.savez(beside, indptr=pairs.offsets, documents=pairs.values, scores=scores)
    shutil.rmtree(parts)
    return {"count": len(scores)}


@click.command("teach")
@click.argument("model")
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--output", required=True, type=click.Path(path_type=Path), help="The folder of the cache.")
@click.option("--split", default="train", show_default=True, help="Split of a BEIR folder's judgements.")
@click.option("--corpus", type=click.Path(path_type=Path), help="The documents of triples by id, or generated queries.")
@click.option("--queries", type=click.Path(path_type=Path), help="The queries of triples by id.")
@click.option(
    "--negatives",
    type=click.Path(path_type=Path),
    help="Hard negatives by `osn data mine`, for a cross-encoder to score.",
)
@click.option("--kind", type=click.Choice(KINDS), help="Kind of MODEL.  [default: by its files]")
@click.option(
    "--depth", default=DEPTH, show_default=True, help="Hard negatives of a query that a cross-encoder scores."
)
@click.option(
    "--precision",
    type=click.Choice(["float16", "float32"]),
    default="float16",
    show_default=True,
    help="Number format of stored vectors.",
)
@click.option("--device", help="cpu, cuda, …  [default: a GPU if there is one]")
@click.option("--batch-size", default=32, show_default=True, help="Texts or pairs to encode at once.")
@click.option("--max-length", type=int, help="Tokens read of a text.  [default: the model's]")
def teach_command(
    model: str,
    data: Path,
    output: Path,
    split: str,
    corpus: Path | None,
    queries: Path | None,
    negatives: Path | None,
    kind: TeacherKind | None,
    depth: int,
    precision: StoredPrecision,
    device: str | None,
    batch_size: int,
    max_length: int | None,
) -> None:
    """Cache a teacher's vectors or scores of training data, for distillation.

    MODEL is a dense encoder, a sparse encoder, a cross-encoder, or `lexical` (BM25 over word pieces). Run the same
    command again to continue an interrupted run.

    \b
    osn data teach sentence-transformers/all-MiniLM-L6-v2 squad-mix --output teachers/dense
    osn data teach lexical squad-mix --output teachers/lexical
    osn data teach models/cross-encoder squad-mix --negatives negatives.jsonl --output teachers/cross
    """
    training = load_training(data, split=split, negatives=negatives, corpus=corpus, queries=queries)
    teach(
        model,
        training,
        output=output,
        kind=kind,
        depth=depth,
        precision=precision,
        device=device,
        batch_size=batch_size,
        max_length=max_length,
    )
    click.echo(output)
