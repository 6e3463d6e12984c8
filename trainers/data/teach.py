"""`osn data teach`: a teacher's vectors or scores for training data, computed once.

    osn data teach sentence-transformers/all-MiniLM-L6-v2 squad-mix --negatives negatives.jsonl --output teachers/dense
    osn data teach lexical squad-mix --output teachers/lexical
    osn data teach models/cross-encoder squad-mix --negatives negatives.jsonl --depth 100 --output teachers/cross

For a siamese teacher (dense, sparse), the cache holds the vectors of all queries, and of the documents that they are
compared with, or of all; for a cross-encoder, the scores of pairs. `teacher_scores.open_teacher` reads both.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from opensearch_neural.commands.option_groups import options_of, setting, setting_options
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.files import read_json_object, replaced, write_json
from opensearch_neural.locks import locked
from opensearch_neural.models import directory
from opensearch_neural.models.dense.dense_encoder import DenseEncoder
from opensearch_neural.models.dense.torch_encoder import load_dense
from opensearch_neural.models.directory import ModelInfo
from opensearch_neural.models.sparse.lexical import build_lexical
from trainers.common.config import fingerprint
from trainers.data.embedding_cache import CHUNK, FORMAT, StoredPrecision, check, dense_vectors, sparse_vectors
from trainers.data.examples import TrainingData
from trainers.data.loading import load_training
from trainers.data.resumable_chunks import progress
from trainers.data.teacher_models import ScoresOfPairs, SparseSides, cross_encoder, detect, sparse_sides, table_sides
from trainers.data.teacher_scores import ENCODED, KINDS, LEXICAL, Rows, TeacherKind
from trainers.data.texts import Ragged, TextStore

logger = logging.getLogger(__name__)
DEPTH = 100
QUERIES_A_CHUNK = 64
"""Queries whose pairs a cross-encoder scores between two writes."""


@dataclass(frozen=True)
class Teaching:
    """How a teacher is loaded, and what is kept of it."""

    kind: TeacherKind | None = setting(None, "Kind of MODEL.  [default: by its files]", type=click.Choice(KINDS))
    depth: int | None = setting(
        None,
        "Hard negatives of a query, the hardest first, that a cross-encoder scores, or others encode: candidates.depth of "
        f"the training.  [default: {DEPTH} for a cross-encoder, else all]",
        type=click.IntRange(min=1),
    )
    """All positives are scored too."""
    precision: StoredPrecision = setting(
        "float16", "Number format of stored vectors.", type=click.Choice(["float16", "float32"])
    )
    device: str | None = setting(None, "cpu, cuda, …  [default: a GPU if there is one]")
    batch_size: int = setting(32, "Texts or pairs to encode at once.")
    max_length: int | None = setting(None, "Tokens read of a text.  [default: the model's]", type=int)
    trust_remote_code: bool = setting(False, "Run the code that MODEL brings along. Read it first.")


teaching_options = options_of(Teaching, "teaching", *setting_options(Teaching).values())


def cache_name(model: str | Path, data: TrainingData, *, depth: int = DEPTH) -> str:
    """A folder name for the cache of `model` for `data`; it differs if `teach` would refuse to share a folder."""
    made_by = [str(model), data.queries.hash, data.documents.hash]
    if str(model) != LEXICAL and detect(directory.locate(model)) == "cross-encoder":
        made_by.append(_pairs_hash(_pairs(data, depth)))
    return f"{Path(model).name}-{fingerprint(*made_by)[:8]}"


def teach(
    model: str | Path,
    data: TrainingData,
    teaching: Teaching | None = None,
    *,
    output: Path,
    candidates: Rows | None = None,
) -> Path:
    """Cache the vectors or scores of the teacher `model` for `data` in the folder `output`; `open_teacher` reads it.

    model: a directory or hub id of a dense encoder, a sparse encoder or a cross-encoder with one output; or "lexical", BM25
    over word pieces with the statistics of the data's documents.
    candidates: rows, ascending, of the only documents that a dense or sparse encoder encodes; None: all. If `output` holds a
    cache of all, begun or complete, that one is kept. A cross-encoder scores its own pairs.

    After an interruption, the same call continues; if the cache is complete, it returns at once; while another process does
    the same work, it waits. Raises ModelError if `output` holds a cache of another model, other data, or other settings, or
    if the model has code of its own and that may not run.
    """
    teaching = teaching or Teaching()
    settings: dict[str, Any] = {"max_length": teaching.max_length}
    if str(model) == LEXICAL:
        lexical = build_lexical(data.documents.values())
        info, settings = ModelInfo(LEXICAL, output, "sparse", lexical.info.hash), {}
    else:
        folder = directory.locate(model, code=teaching.trust_remote_code)
        info = directory.model_info(folder, name=model, kind=teaching.kind or detect(folder))
    if info.kind == "dense":
        settings["precision"] = teaching.precision
    elif info.kind == "cross-encoder":
        pairs = _pairs(data, teaching.depth or DEPTH)
        settings["pairs"] = _pairs_hash(pairs)
    if info.kind == "cross-encoder" or _has_begun_all(output):
        candidates = None
    documents = data.documents
    if candidates is not None:
        documents = data.documents.at(candidates.tolist())
        settings["candidates"] = {"hash": documents.hash, "rows": len(documents)}
    record = {
        "format": FORMAT,
        "kind": info.kind,
        "model": {"name": info.name, "hash": info.hash},
        "queries": {"hash": data.queries.hash, "rows": len(data.queries)},
        "documents": {"hash": data.documents.hash, "rows": len(data.documents)},
        **settings,
    }
    device, batch_size, max_length = teaching.device, teaching.batch_size, teaching.max_length
    trust_remote_code = teaching.trust_remote_code
    with locked(output, done=output / "teacher.json"):
        if _is_complete(output, record):
            return output
        if info.kind == "dense":
            dense = load_dense(model, device=device, max_length=max_length, trust_remote_code=trust_remote_code)
            record["dimension"] = _write_dense(dense, info, data.queries, documents, output, teaching)
        elif info.kind == "sparse":
            if str(model) == LEXICAL:
                sides = table_sides(lexical, CHUNK)
            else:
                sides = sparse_sides(model, folder, device, batch_size, max_length, trust_remote_code=trust_remote_code)
            record["dimension"] = _write_sparse(sides, info, data.queries, documents, output)
        else:
            predict = cross_encoder(folder, device, batch_size, max_length, trust_remote_code=trust_remote_code)
            record["count"] = _score_pairs(predict, info.name, data, pairs, output)
        if candidates is not None:
            with replaced(output / ENCODED) as beside:
                np.save(beside, candidates)
        write_json(output / "teacher.json", record)
        (output / "begun.json").unlink(missing_ok=True)
    return output


def _has_begun_all(output: Path) -> bool:
    """Whether `output` holds or has begun a cache without a choice of documents, as earlier versions made them all."""
    noted = [file for file in (output / "teacher.json", output / "begun.json") if file.exists()]
    return any("candidates" not in read_json_object(file) for file in noted)


def _is_complete(output: Path, record: Mapping[str, Any]) -> bool:
    """Whether the cache is complete. If not, notes its settings, so that only the same settings can continue it."""
    file, begun = output / "teacher.json", output / "begun.json"
    for noted in (file, begun):
        if noted.exists():
            check(noted, read_json_object(noted), {"candidates": None, **record})
    if file.exists():
        logger.info("%s is complete already", output)
        return True
    write_json(begun, record)
    return False


def _write_dense(
    dense: DenseEncoder, info: ModelInfo, queries: TextStore, documents: TextStore, output: Path, teaching: Teaching
) -> int:
    """Write the vectors of all queries and documents by a dense encoder; returns their dimension."""
    for what, store, encode in (
        ("queries", queries, partial(dense.encode_queries, batch_size=teaching.batch_size)),
        ("documents", documents, partial(dense.encode_documents, batch_size=teaching.batch_size)),
    ):
        place, precision = output / what, teaching.precision
        dense_vectors(encode, store, place, model=info, dimension=dense.dimension, precision=precision)
    return dense.dimension


def _write_sparse(sides: SparseSides, info: ModelInfo, queries: TextStore, documents: TextStore, output: Path) -> int:
    """Write the weights of all queries and documents by a sparse encoder; returns the size of its vocabulary."""
    vocabulary = sides.vocabulary
    sparse_vectors(sides.queries, queries, output / "queries", model=info, vocabulary=vocabulary)
    sparse_vectors(sides.documents, documents, output / "documents", model=info, vocabulary=vocabulary)
    return len(vocabulary)


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


def _score_pairs(predict: ScoresOfPairs, name: str, data: TrainingData, pairs: Ragged, output: Path) -> int:
    """Write pairs.npz: the scores of each query's documents `pairs`, by the cross-encoder `name`. Returns their number."""
    parts = output / "pairs.parts"
    parts.mkdir(parents=True, exist_ok=True)
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
            raise ModelError(f"{name}: the score of {query[:60]!r} with {document[:60]!r} is not finite")
        with replaced(files[start]) as beside:
            np.save(beside, scores)
    scores = np.concatenate([np.load(files[start], allow_pickle=False) for start in starts])
    with replaced(output / "pairs.npz") as beside:
        np.savez(beside, indptr=pairs.offsets, documents=pairs.values, scores=scores)
    shutil.rmtree(parts)
    return len(scores)


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
    help="Hard negatives by `osn data mine`. A cross-encoder scores them; others leave out documents that are no query's "
    "positive or negative (see --depth).",
)
@click.option(
    "--all-documents",
    is_flag=True,
    help="Encode every document (dense and sparse teachers), for training that draws negatives from all.",
)
@teaching_options
def teach_command(
    model: str,
    data: Path,
    output: Path,
    split: str,
    corpus: Path | None,
    queries: Path | None,
    negatives: Path | None,
    all_documents: bool,
    teaching: Teaching,
) -> None:
    """Cache a teacher's vectors or scores of training data, for distillation.

    MODEL is a dense encoder, a sparse encoder, a cross-encoder, or `lexical` (BM25 over word pieces). If every query has
    hard negatives, documents that are no query's positive or negative are left out. Run the same command again to continue
    an interrupted run.

    \b
    osn data teach sentence-transformers/all-MiniLM-L6-v2 squad-mix --negatives negatives.jsonl --output teachers/dense
    osn data teach lexical squad-mix --output teachers/lexical
    osn data teach models/cross-encoder squad-mix --negatives negatives.jsonl --output teachers/cross
    """
    from trainers.data.candidates import candidate_rows  # torch is slow to import, and help does not need it

    training = load_training(data, split=split, negatives=negatives, corpus=corpus, queries=queries)
    rows = None
    if not all_documents:
        rows = candidate_rows(training, depth=teaching.depth)
        without = int((np.diff(training.negatives.offsets) == 0).sum())
        if 0 < without < len(training):
            logger.warning(
                "%d of %d queries have no hard negative, so dense and sparse teachers encode all documents",
                without,
                len(training),
            )
    teach(model, training, teaching, output=output, candidates=rows)
    click.echo(output)
