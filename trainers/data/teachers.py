"""Teachers of different kinds, computed once and looked up in training.

    osn teach sentence-transformers/all-MiniLM-L6-v2 squad-mix --output teachers/dense
    osn teach lexical squad-mix --output teachers/lexical
    osn teach models/cross-encoder squad-mix --negatives negatives.jsonl --depth 100 --output teachers/cross

A siamese teacher (dense, sparse) is cached as the vectors of all queries and documents, so that every pair of a batch
can be scored, in-batch negatives included; a cross-encoder as the scores of the pairs it was shown. An ensemble
normalizes each teacher's scores per query and adds them (`inference-free-sparse`, section 4.2, eq. 8 and 9): that is
`losses.normalized_ensemble`; here are the raw scores.

A cache names model and data by hash, and is refused where they are not those of the training run.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import click
import numpy as np
import numpy.typing as npt

from opensearch_neural.errors import InputError, MissingExtra, ModelError
from opensearch_neural.files import read_json_object, write_json
from opensearch_neural.models import directory
from opensearch_neural.models.directory import ModelInfo
from opensearch_neural.models.safety import refuse_unsafe
from opensearch_neural.models.vectors import SparseVectors
from trainers.common.config import fingerprint
from trainers.common.resumable_chunks import progress
from trainers.data.embedding_cache import (
    FORMAT,
    Precision,
    check,
    dense_vectors,
    read_sparse,
    read_vectors,
    sparse_vectors,
)
from trainers.data.examples import TrainingData, load_training

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

logger = logging.getLogger(__name__)

Kind = Literal["dense", "sparse", "cross-encoder"]
KINDS: tuple[Kind, ...] = ("dense", "sparse", "cross-encoder")
LEXICAL = "lexical"
DEPTH = 100
QUERIES_A_CHUNK = 64
"""Queries whose pairs a cross-encoder scores between two writes."""

Scores = npt.NDArray[np.float32]
Documents = Sequence[str] | Sequence[Sequence[str]]


class Teacher(Protocol):
    """Scores of pairs, from a cache."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Kind: ...

    def scores(self, query_ids: Sequence[str], document_ids: Documents) -> Scores:
        """The teacher's scores, (queries, candidates), higher is better.

        document_ids: one list for all queries, (candidates,), or each query's own, (queries, candidates).
        Raises InputError for ids that the data does not have, ModelError for pairs that the cache does not have.
        """
        ...


# ---------------------------------------------------------------- looking up


def open_teacher(folder: str | Path, data: TrainingData, *, missing: Literal["refuse", "nan"] = "refuse") -> Teacher:
    """The teacher that `teach` cached in `folder`, for the same queries and documents as `data` has.

    missing: what becomes of pairs that a cross-encoder was not shown. Raises ModelError, with the hashes, where the
    cache is of other texts, is unfinished, or is broken.
    """
    folder = Path(folder)
    file = folder / "teacher.json"
    if not file.exists():
        unfinished = folder.is_dir() and any(folder.iterdir())
        state = "is not finished" if unfinished else "is no teacher's cache"
        raise ModelError(f"{folder} {state} (it has no teacher.json)", "make it, or go on with it: osn teach")
    record = read_json_object(file)
    if record.get("format") != FORMAT or record.get("kind") not in KINDS:
        raise ModelError(f"{file}: expected format {FORMAT} and one of the kinds {', '.join(KINDS)}")
    for what, store in (("queries", data.queries), ("documents", data.documents)):
        found = record.get(what, {})
        if found.get("hash") != store.hash:
            raise ModelError(
                f"{folder} holds scores for other {what} than {data.name} has: {found.get('rows')} of them with hash "
                f"{found.get('hash')}, where the data has {len(store)} with hash {store.hash}",
                f"osn teach {record['model']['name']} DATA --output ANOTHER_FOLDER",
            )
    name, kind = record["model"]["name"], record["kind"]
    if kind == "dense":
        queries = read_vectors(folder / "queries.npy", len(data.queries))
        return DenseTeacher(name, data, queries, read_vectors(folder / "documents.npy", len(data.documents)))
    if kind == "sparse":
        of_queries = read_sparse(folder / "queries", data.queries).to_scipy()
        return SparseTeacher(name, data, of_queries, read_sparse(folder / "documents", data.documents).to_scipy())
    return PairTeacher.read(name, data, folder, missing)


class _Siamese:
    """Any pair can be scored: all pairs of the batch are, and each query's own are taken out of these."""

    data: TrainingData

    def scores(self, query_ids: Sequence[str], document_ids: Documents) -> Scores:
        queries = np.array([self.data.queries.row(one) for one in query_ids], dtype=np.int64)
        own, flat = _candidates(document_ids, len(query_ids))
        documents, at = np.unique(
            np.array([self.data.documents.row(one) for one in flat], np.int64), return_inverse=True
        )
        scores = self._all_pairs(queries, documents)
        if not own:
            return scores[:, at]
        return np.take_along_axis(scores, at.reshape(len(query_ids), -1), axis=1)

    def _all_pairs(self, queries: npt.NDArray[np.int64], documents: npt.NDArray[np.int64]) -> Scores:
        raise NotImplementedError


@dataclass
class DenseTeacher(_Siamese):
    """Inner products of cached vectors: (queries, dimension) and (documents, dimension), memory-mapped."""

    name: str
    data: TrainingData
    queries: npt.NDArray[Any]
    documents: npt.NDArray[Any]
    kind: Kind = "dense"

    def _all_pairs(self, queries: npt.NDArray[np.int64], documents: npt.NDArray[np.int64]) -> Scores:
        return self.queries[queries].astype(np.float32) @ self.documents[documents].astype(np.float32).T


@dataclass
class SparseTeacher(_Siamese):
    """Inner products of cached sparse vectors: (queries, vocabulary) and (documents, vocabulary)."""

    name: str
    data: TrainingData
    queries: csr_matrix
    documents: csr_matrix
    kind: Kind = "sparse"

    def _all_pairs(self, queries: npt.NDArray[np.int64], documents: npt.NDArray[np.int64]) -> Scores:
        product = self.queries[queries] @ self.documents[documents].T
        return np.asarray(product.toarray(), dtype=np.float32)


@dataclass
class PairTeacher:
    """A cross-encoder's scores: for query row i, documents[indptr[i]:indptr[i + 1]] (rows, ascending) and their scores."""

    name: str
    data: TrainingData
    indptr: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    missing: Literal["refuse", "nan"] = "refuse"
    kind: Kind = "cross-encoder"

    @classmethod
    def read(cls, name: str, data: TrainingData, folder: Path, missing: Literal["refuse", "nan"]) -> PairTeacher:
        try:
            with np.load(folder / "pairs.npz", allow_pickle=False) as pairs:
                arrays = (pairs["indptr"], pairs["documents"], pairs["scores"])
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"{folder / 'pairs.npz'} cannot be read: {error}", "make the cache again") from None
        return cls(name, data, *arrays, missing)

    def scores(self, query_ids: Sequence[str], document_ids: Documents) -> Scores:
        own, flat = _candidates(document_ids, len(query_ids))
        rows = np.array([self.data.documents.row(one) for one in flat], dtype=np.int32)
        wanted = rows.reshape(len(query_ids), -1) if own else np.broadcast_to(rows, (len(query_ids), len(rows)))
        scores = np.full(wanted.shape, np.nan, dtype=np.float32)
        for at, query in enumerate(query_ids):
            row = self.data.queries.row(query)
            span = slice(self.indptr[row], self.indptr[row + 1])
            known = self.documents[span]
            if not len(known):
                continue
            place = np.minimum(np.searchsorted(known, wanted[at]), len(known) - 1)
            found = known[place] == wanted[at]
            scores[at, found] = self.values[span][place[found]]
        absent = np.argwhere(np.isnan(scores))
        if len(absent) and self.missing == "refuse":
            query, document = query_ids[absent[0][0]], self.data.documents.ids[wanted[tuple(absent[0])]]
            raise ModelError(
                f"{self.name} was not shown {len(absent)} of these {scores.size} pairs, first: query {query!r} with "
                f"document {document!r}",
                "make the cache with the same --negatives and at least the depth that training draws from; a "
                "cross-encoder cannot score in-batch negatives",
            )
        return scores


def _candidates(document_ids: Documents, queries: int) -> tuple[bool, list[str]]:
    """Whether each query has its own candidates, and all ids in one list."""
    if not len(document_ids) or isinstance(document_ids[0], str):
        return False, list(document_ids)  # type: ignore[arg-type]
    if len(document_ids) != queries or len({len(row) for row in document_ids}) != 1:
        raise ValueError(f"expected one list of candidates for each of {queries} queries, all of one length")
    return True, [document for row in document_ids for document in row]


# ---------------------------------------------------------------- computing


def cache_name(model: str | Path, data: TrainingData, *, depth: int = DEPTH) -> str:
    """A folder's name for what `model` teaches of `data`: another where `teach` would refuse to share it."""
    made_by = [str(model), data.queries.hash, data.documents.hash]
    if str(model) != LEXICAL and detect(directory.locate(model)) == "cross-encoder":
        made_by.append(_pairs(data, depth).hash)
    return f"{Path(model).name}-{fingerprint(*made_by)[:8]}"


def teach(
    model: str | Path,
    data: TrainingData,
    *,
    output: Path,
    kind: Kind | None = None,
    depth: int = DEPTH,
    precision: Precision = "float16",
    device: str | None = None,
    batch_size: int = 32,
    max_length: int | None = None,
) -> Path:
    """Cache what the teacher `model` says of `data` in the folder `output`; `open_teacher` reads it.

    model: a directory or hub id of a dense encoder, a sparse encoder or a cross-encoder with one output, told apart by
    its files unless `kind` says it; or "lexical", BM25 over word pieces with the statistics of the data's documents.
    depth: how many hard negatives of a query a cross-encoder is shown, beside all positives. precision: of dense vectors.

    Interrupted, the same call goes on; complete, it returns at once. Raises ModelError where `output` holds a cache of
    another model, of other data, or of other settings.
    """
    if str(model) == LEXICAL:
        return _teach_lexical(data, output)
    folder = directory.locate(model)
    kind = kind or detect(folder)
    info = directory.model_info(folder, name=model, kind=kind)
    settings: dict[str, Any] = {"max_length": max_length}
    if kind == "dense":
        settings["precision"] = precision
    elif kind == "cross-encoder":
        pairs = _pairs(data, depth)
        settings["pairs"] = pairs.hash
    if _is_complete(output, info, data, settings):
        return output
    if kind == "dense":
        more = _teach_dense(model, info, data, output, precision, device, batch_size, max_length)
    elif kind == "sparse":
        more = _teach_sparse(_sparse_sides(model, folder, device, batch_size, max_length), info, data, output)
    else:
        more = _teach_pairs(folder, info, data, pairs, output, device, batch_size, max_length)
    return _complete(output, info, data, {**settings, **more})


def detect(folder: Path) -> Kind:
    """What kind of teacher the files of a model directory make."""
    config_file = folder / "config.json"
    config = read_json_object(config_file) if config_file.exists() else {}
    if any(str(one).endswith("ForSequenceClassification") for one in config.get("architectures") or []):
        return "cross-encoder"
    written = directory.read_osn_json(folder) or {}
    modules = {module.type for route in directory.routes(folder).values() for module in route}
    sparse = (
        config.get("kind") == LEXICAL
        or written.get("kind") == "sparse"
        or (folder / "idf.json").exists()
        or bool(modules & {"SpladePooling", "SparseStaticEmbedding"})
    )
    return "sparse" if sparse else "dense"


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
    """Whether the cache is there; where it is not, note what is begun, so that it is gone on with the same way only."""
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
    precision: Precision,
    device: str | None,
    batch_size: int,
    max_length: int | None,
) -> dict[str, Any]:
    from opensearch_neural.models.dense import load_dense

    encoder = load_dense(model, device=device, max_length=max_length)
    for what, store, encode in (
        ("queries", data.queries, partial(encoder.encode_queries, batch_size=batch_size)),
        ("documents", data.documents, partial(encoder.encode_documents, batch_size=batch_size)),
    ):
        dense_vectors(encode, store, output / what, model=info, dimension=encoder.dimension, precision=precision)
    return {"dimension": encoder.dimension}


@dataclass
class _SparseSides:
    """A sparse model's two encoders over one vocabulary."""

    documents: Callable[[Sequence[str]], SparseVectors]
    queries: Callable[[Sequence[str]], SparseVectors]
    vocabulary: list[str]


def _teach_sparse(sides: _SparseSides, info: ModelInfo, data: TrainingData, output: Path) -> dict[str, Any]:
    for what, store, encode in (
        ("queries", data.queries, sides.queries),
        ("documents", data.documents, sides.documents),
    ):
        sparse_vectors(encode, store, output / what, model=info, vocabulary=sides.vocabulary)
    return {"dimension": len(sides.vocabulary)}


def _teach_lexical(data: TrainingData, output: Path) -> Path:
    from opensearch_neural.models.lexical import build_lexical

    encoder = build_lexical(data.documents.values())
    info = ModelInfo(LEXICAL, output, "sparse", encoder.info.hash)
    if _is_complete(output, info, data, {}):
        return output
    sides = _SparseSides(
        encoder.encode_documents, lambda texts: query_vectors(encoder.query.encode, texts, encoder.vocabulary),
        encoder.vocabulary,
    )  # fmt: skip
    return _complete(output, info, data, _teach_sparse(sides, info, data, output))


def _sparse_sides(
    model: str | Path, folder: Path, device: str | None, batch_size: int, max_length: int | None
) -> _SparseSides:
    """The encoders of a sparse model: inference-free queries, or the same network on both sides (SPLADE)."""
    modules = directory.routes(folder)
    if set(modules) == {""} and not (folder / "idf.json").exists():
        return _siamese_network(folder, device, batch_size, max_length)
    from opensearch_neural.models.sparse import load_sparse

    encoder = load_sparse(model, device=device, max_length=max_length)
    return _SparseSides(
        lambda texts: encoder.encode_documents(texts, batch_size=batch_size),
        lambda texts: query_vectors(encoder.query.encode, texts, encoder.vocabulary),
        encoder.vocabulary,
    )


def query_vectors(
    encode: Callable[[str], Mapping[str, float]], texts: Sequence[str], vocabulary: Sequence[str]
) -> SparseVectors:
    """{token: weight} queries as rows over `vocabulary`; tokens outside it score nothing and are left out."""
    token_ids = {token: at for at, token in enumerate(vocabulary)}
    rows = [{token_ids[t]: weight for t, weight in encode(text).items() if t in token_ids} for text in texts]
    return SparseVectors(
        np.cumsum([0, *map(len, rows)], dtype=np.int64),
        np.array([token for row in rows for token in row], dtype=np.int32),
        np.array([weight for row in rows for weight in row.values()], dtype=np.float32),
        list(vocabulary),
    )


def _siamese_network(folder: Path, device: str | None, batch_size: int, max_length: int | None) -> _SparseSides:
    try:
        from sentence_transformers import SparseEncoder
    except ModuleNotFoundError:
        raise MissingExtra("a sparse teacher that encodes queries too", "encode") from None
    from opensearch_neural.models.pretrained import quiet_loading

    refuse_unsafe(folder)
    with quiet_loading():
        model = SparseEncoder(
            str(folder), device=device, local_files_only=True, model_kwargs={"use_safetensors": True}
        ).eval()
    if max_length is not None:
        model.max_seq_length = min(max_length, model.max_seq_length or max_length)
    # The vectors' width is asked of a vector: what the model says of itself may be its hidden size.
    width = int(model.encode_query(["text"], show_progress_bar=False).shape[1])
    tokens = model.tokenizer.convert_ids_to_tokens(list(range(min(width, len(model.tokenizer)))))
    vocabulary = [*tokens, *(f"[extra {number}]" for number in range(len(tokens), width))]

    def rows(vectors: Any) -> SparseVectors:
        matrix = vectors.coalesce()
        counts = np.bincount(matrix.indices()[0].cpu().numpy(), minlength=matrix.shape[0])
        return SparseVectors(
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            matrix.indices()[1].cpu().numpy().astype(np.int32),
            matrix.values().float().cpu().numpy(),
            vocabulary,
        )

    options: dict[str, Any] = {"batch_size": batch_size, "show_progress_bar": False, "save_to_cpu": True}
    return _SparseSides(
        lambda texts: rows(model.encode_document(list(texts), **options)),
        lambda texts: rows(model.encode_query(list(texts), **options)),
        vocabulary,
    )


@dataclass
class _Pairs:
    """Which documents a cross-encoder is shown for each query row: ascending document rows."""

    indptr: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int32]

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.indptr.tobytes() + self.documents.tobytes()).hexdigest()[:16]


def _pairs(data: TrainingData, depth: int) -> _Pairs:
    rows: list[list[int]] = [[] for _ in range(len(data.queries))]
    for index, query in enumerate(data.query_rows.tolist()):
        rows[query] = sorted({*data.positives[index].tolist(), *data.negatives[index][:depth].tolist()})
    if not len(data.negatives.values):
        raise InputError(
            f"{data.name} has no hard negatives: a cross-encoder would see nothing to compare positives with",
            "mine first (osn mine), and give the file as --negatives",
        )
    return _Pairs(
        np.cumsum([0, *map(len, rows)], dtype=np.int64), np.array([d for row in rows for d in row], dtype=np.int32)
    )


def _teach_pairs(
    folder: Path,
    info: ModelInfo,
    data: TrainingData,
    pairs: _Pairs,
    output: Path,
    device: str | None,
    batch_size: int,
    max_length: int | None,
) -> dict[str, Any]:
    parts = output / "pairs.parts"
    parts.mkdir(parents=True, exist_ok=True)
    predict = _cross_encoder(folder, device, batch_size, max_length)
    starts = list(range(0, len(data.queries), QUERIES_A_CHUNK))
    files = {start: parts / f"{start:010d}.npy" for start in starts}
    done = {start for start, file in files.items() if file.exists()}
    for start in progress(starts, unit=f"× {QUERIES_A_CHUNK} queries", skip=done):
        stop = min(start + QUERIES_A_CHUNK, len(data.queries))
        texts = [
            (data.queries.text_at(query), data.documents.text_at(int(document)))
            for query in range(start, stop)
            for document in pairs.documents[pairs.indptr[query] : pairs.indptr[query + 1]]
        ]
        scores = predict(texts) if texts else np.empty(0, dtype=np.float32)
        if not np.isfinite(scores).all():
            query, document = texts[int(np.flatnonzero(~np.isfinite(scores))[0])]
            raise ModelError(f"{info.name}: the score of {query[:60]!r} with {document[:60]!r} is not finite")
        beside = files[start].with_suffix(".writing.npy")
        np.save(beside, scores)
        beside.replace(files[start])
    scores = np.concatenate([np.load(files[start], allow_pickle=False) for start in starts])
    beside = output / ".pairs.writing.npz"
    np.savez(beside, indptr=pairs.indptr, documents=pairs.documents, scores=scores)
    beside.replace(output / "pairs.npz")
    shutil.rmtree(parts)
    return {"count": len(scores)}


def _cross_encoder(
    folder: Path, device: str | None, batch_size: int, max_length: int | None
) -> Callable[[list[tuple[str, str]]], Scores]:
    """Pairs of texts to scores, before any activation: (pairs,)."""
    try:
        from sentence_transformers import CrossEncoder
        from torch import nn
    except ModuleNotFoundError:
        raise MissingExtra("a cross-encoder teacher", "encode") from None
    from opensearch_neural.models.pretrained import quiet_loading

    refuse_unsafe(folder)
    labels = read_json_object(folder / "config.json").get("id2label")
    if isinstance(labels, Mapping) and len(labels) != 1:
        raise ModelError(
            f"{folder} is a classifier with {len(labels)} outputs, no cross-encoder with one score",
            "expected a model of one label, such as cross-encoder/ms-marco-MiniLM-L-6-v2",
        )
    with quiet_loading():
        model = CrossEncoder(
            str(folder),
            device=device,
            local_files_only=True,
            max_length=max_length,
            model_kwargs={"use_safetensors": True},
        )
    model.eval()

    def predict(pairs: list[tuple[str, str]]) -> Scores:
        scores = model.predict(pairs, batch_size=batch_size, show_progress_bar=False, activation_fn=nn.Identity())
        return np.asarray(scores, dtype=np.float32).reshape(-1)

    return predict


@click.command("teach")
@click.argument("model")
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--output", required=True, type=click.Path(path_type=Path), help="The folder of the cache.")
@click.option("--split", default="train", show_default=True, help="Which judgements of a BEIR folder.")
@click.option("--corpus", type=click.Path(path_type=Path), help="The documents of triples by id, or generated queries.")
@click.option("--queries", type=click.Path(path_type=Path), help="The queries of triples by id.")
@click.option("--negatives", type=click.Path(path_type=Path), help="What `osn mine` found: a cross-encoder scores it.")
@click.option("--kind", type=click.Choice(KINDS), help="What MODEL is.  [default: as its files say]")
@click.option(
    "--depth", default=DEPTH, show_default=True, help="Hard negatives of a query that a cross-encoder scores."
)
@click.option("--precision", type=click.Choice(["float16", "float32"]), default="float16", show_default=True)
@click.option("--device", help="cpu, cuda, …  [default: a GPU where there is one]")
@click.option("--batch-size", default=32, show_default=True, help="Texts or pairs encoded at once.")
@click.option("--max-length", type=int, help="Tokens read of a text.  [default: the model's]")
def teach_command(
    model: str,
    data: Path,
    output: Path,
    split: str,
    corpus: Path | None,
    queries: Path | None,
    negatives: Path | None,
    kind: Kind | None,
    depth: int,
    precision: Precision,
    device: str | None,
    batch_size: int,
    max_length: int | None,
) -> None:
    """Cache a teacher's vectors or scores of training data, for distillation.

    MODEL is a dense encoder, a sparse encoder, a cross-encoder, or `lexical` (BM25 over word pieces). An interrupted
    run is continued by the same command.

    \b
    osn teach sentence-transformers/all-MiniLM-L6-v2 squad-mix --output teachers/dense
    osn teach lexical squad-mix --output teachers/lexical
    osn teach models/cross-encoder squad-mix --negatives negatives.jsonl --output teachers/cross
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
