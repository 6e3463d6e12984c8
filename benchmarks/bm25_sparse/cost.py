"""Costs in `osn bench bm25-sparse`: every engine under load, the bytes of its index, and the speed of encoding documents."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bm25_sparse.engines import (
    BACKEND,
    BM25,
    BM25_BESIDE_DENSE,
    CASCADES,
    DENSE_ENGINES,
    HYBRID,
    SPARSE_ENGINES,
    WAYS,
    dense_engines,
)
from benchmarks.bm25_sparse.models import PUBLISHED, Experiment
from benchmarks.bm25_sparse.vectors import all_vectors, dense_variant, kept_variant, quantized, query_models
from benchmarks.cluster_bm25 import corpus_of
from benchmarks.experiment import RowsAndNotes, facts, kept_costs
from benchmarks.grown.field_bytes import STORED, bytes_by_field
from benchmarks.grown.index import Growth, drawn_vectors, grow, resampler_of, set_of_size
from benchmarks.load.blocks import FORMAT
from benchmarks.load.command import rows_under_load
from benchmarks.load.measurement import LoadSettings, WarmupSettings
from benchmarks.load.variants import Variant
from benchmarks.load.workload import ModelChoice, allowed_target
from benchmarks.turns import on_blocks, rate
from ingest.vectorizers import Encoders, Vectorizer
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.engines.settings import RARE_WORDS, Bm25SparseSetting
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import MeasuredEngine, Row
from opensearch_neural.models.dense.quantized import load_quantized
from opensearch_neural.models.dense.torch_encoder import load_dense
from opensearch_neural.models.sparse.encoder import load_sparse
from opensearch_neural.queries import forward_index
from trainers.common.config import fingerprint

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

logger = logging.getLogger(__name__)

LOAD = LoadSettings(warmup=WarmupSettings(20, 90))
BYTES, RATE = "bytes a document", "documents encoded a second"
FIELD_SAMPLE = 3000
"""How many documents are written to measure the bytes of an index."""
TURNS, TURN = 8, 32
"""Turns of each encoder, and documents in a turn."""


def cost_rows(client: OpenSearch, chosen: ConnectionSettings, experiment: Experiment) -> RowsAndNotes:
    """Load tests of each size with each arm's first model, and the cost of its vectors: bytes a document, and encoding; and
    notes on what happened.

    A row's variant is the arm. Its set is the size; for bytes and encoding, the data that they were measured on.
    """
    parts: list[RowsAndNotes] = []
    first = experiment.of_first_seed
    is_measured = {False: not experiment.beside, True: experiment.dense is not None}
    for with_dense, size, model in product((False, True), experiment.sizes, first):
        if not is_measured[with_dense]:
            continue
        name = f"{size}-{kept_variant(experiment, model.name, with_dense)}-{load_hash(experiment)}"
        load = partial(load_rows, client, chosen, experiment, size, model, with_dense=with_dense)
        parts.append(kept_costs(_file(experiment, name), load))
        index = growth_of(experiment, model, size, with_dense=with_dense).index
        client.indices.delete(index=index, params={"ignore": 404})
    for model in first if experiment.sizes else ():
        vectors = kept_variant(experiment, model.name, experiment.dense is not None)
        parts.append(kept_cost(experiment, f"bytes-{vectors}", partial(stored_bytes, client, experiment, model)))
    if experiment.sizes and first:
        parts.append(
            kept_cost(experiment, encoding_name(experiment, first), partial(encoding_rates, experiment, first))
        )
    shown = (BM25_BESIDE_DENSE, *DENSE_ENGINES)
    rows = [row for of_part, _ in parts for row in of_part if row.engine in shown or not experiment.beside]
    return rows, [note for _, of_part in parts for note in of_part]


def check_load(experiment: Experiment) -> None:
    """Raises InputError if the load tests cannot work, before anything is trained or measured."""
    if not experiment.sizes:
        return
    if experiment.cost_set not in experiment.sets:
        raise InputError(
            f"load tests draw their documents from {experiment.cost_set}, which {experiment.data} lacks",
            "add it, or give --documents '' to measure quality alone",
        )
    _load(experiment).validate()
    allowed_target(experiment.connection, owned=experiment.owned)


def _load(experiment: Experiment) -> LoadSettings:
    return replace(LOAD, clients=experiment.clients, minutes=experiment.minutes)


def load_hash(experiment: Experiment) -> str:
    """A hash of what changes a load test, for file names. The weight changes the score kept, FORMAT what a latency is."""
    default = [Bm25SparseSetting.weight, str(RARE_WORDS), *SPARSE_ENGINES]
    return fingerprint(FORMAT, list(experiment.clients), experiment.minutes, experiment.heap, *default)


def kept_cost(experiment: Experiment, name: str, measure: Callable[[], list[Row]]) -> RowsAndNotes:
    return kept_costs(_file(experiment, name), lambda: (measure(), []))


def _file(experiment: Experiment, name: str) -> Path:
    return experiment.work / "cost" / f"{name}.json"


def encoding_name(experiment: Experiment, models: Sequence[MeasuredEngine]) -> str:
    """The name of the file that keeps the rates of these models, in any order. With another model beside them all are
    measured anew: rates of different hours do not compare."""
    arms = sorted(kept_variant(experiment, model.name, experiment.dense is not None) for model in models)
    return f"encoding-{arms[0] if len(arms) == 1 else fingerprint(arms)}"


def _variant(experiment: Experiment, model: MeasuredEngine, engine: str) -> str:
    """The name of the models in the engine's rows."""
    return dense_variant(experiment, model.name) if engine in DENSE_ENGINES else model.name


def growth_of(experiment: Experiment, model: MeasuredEngine, size: int, *, with_dense: bool = False) -> Growth:
    """The index of `size` documents resampled from the set for costs with the model's vectors."""
    index = f"osn-{kept_variant(experiment, model.name, with_dense)}-{size}"
    corpus = str(corpus_of(experiment.sets[experiment.cost_set]))
    plain = Growth(corpus, index, size, sparse=experiment.on_corpus(model, experiment.cost_set))
    if not with_dense:
        return plain
    return replace(plain, vectors=all_vectors(experiment, model, experiment.cost_set), quantized=quantized(experiment))


# ------------------------------------------------ under load


def load_rows(
    client: OpenSearch,
    chosen: ConnectionSettings,
    experiment: Experiment,
    size: int,
    model: MeasuredEngine,
    *,
    with_dense: bool,
) -> RowsAndNotes:
    """The rows and notes of the load benchmark on `size` documents with the model's vectors.

    with_dense: rows of the engines that need dense vectors and codes, and of BM25 beside them on the same index
    Raises ClusterError if the benchmark stopped.
    """
    growth = growth_of(experiment, model, size, with_dense=with_dense)
    engines, variant, models = SPARSE_ENGINES, model.name, ModelChoice()
    if with_dense:
        engines, variant = dense_engines(experiment, model.name), dense_variant(experiment, model.name)
        models = ModelChoice(**query_models(experiment), backend=BACKEND)
    grow(client, growth, say=logger.info)
    variants = [Variant(name, WAYS[name][0], settings=tuple(WAYS[name][1].items())) for name in (BM25, *engines)]
    rows, notes = rows_under_load(
        client, allowed_target(chosen, owned=experiment.owned), growth.index, variants,
        experiment.sets[experiment.cost_set], models, _load(experiment),
        experiment.work / "load" / f"{growth.index}-{load_hash(experiment)}",
    )  # fmt: skip
    named = [replace(row, set=set_of_size(size), variant=variant) for row in rows]
    if with_dense:
        named = [replace(row, engine=BM25_BESIDE_DENSE) if row.engine == BM25 else row for row in named]
    return named, notes


# ------------------------------------------------ documents


def stored_bytes(client: OpenSearch, experiment: Experiment, model: MeasuredEngine) -> list[Row]:
    """The bytes a document of an index for each engine: the text, BM25's field, and the vectors that the engine needs."""
    growth = growth_of(experiment, model, FIELD_SAMPLE, with_dense=bool(experiment.dense))
    meta, resampler = resampler_of(growth)
    sample = list(resampler.take(growth.documents))
    sizes = bytes_by_field(client, meta, sample, drawn_vectors(growth, resampler))
    text, sparse = ("contents", STORED), ("sparse", forward_index.FIELD)
    fields_of: dict[str, tuple[str, ...]] = dict.fromkeys(SPARSE_ENGINES, (*text, *sparse))
    if experiment.dense:
        with_dense = {HYBRID: (*text, "dense"), **dict.fromkeys(CASCADES, (*text, *sparse, "pq"))}
        fields_of |= {engine: with_dense[engine] for engine in dense_engines(experiment, model.name)}
    rows: list[Row] = []
    for engine, fields in fields_of.items():
        measured = MeasuredEngine(engine, variant=_variant(experiment, model, engine))
        rows += facts(
            f"{experiment.cost_set}, by field", measured, {BYTES: sum(sizes[field] for field in fields)}, len(sample)
        )
    if model.name == PUBLISHED:
        plain = sum(sizes[field] for field in text)
        rows += facts(f"{experiment.cost_set}, by field", MeasuredEngine(BM25), {BYTES: plain}, len(sample))
    return rows


def encoding_rates(experiment: Experiment, models: Sequence[MeasuredEngine]) -> list[Row]:
    """How many documents of the set for costs are encoded a second with the vectors of each engine, for each of `models`.

    All encoders take turns on the same documents, so that their rates compare. Intervals are over turns.
    """
    encoders: dict[tuple[MeasuredEngine, Sequence[str]], Vectorizer] = {}
    quantized_model = load_quantized(quantized(experiment)) if experiment.dense else None
    for model in models:
        sparse = load_sparse(experiment.on_corpus(model, experiment.cost_set))
        encoders[model, SPARSE_ENGINES] = Encoders(sparse)
        if experiment.dense:
            with_dense = dense_engines(experiment, model.name)
            if HYBRID in with_dense:
                encoders[model, (HYBRID,)] = Encoders(dense=load_dense(str(experiment.dense)))
            cascades = tuple(engine for engine in with_dense if engine in CASCADES)
            encoders[model, cascades] = Encoders(sparse, quantized=quantized_model)
    documents = list(islice(read_corpus(str(corpus_of(experiment.sets[experiment.cost_set]))), TURNS * TURN))
    # The last documents, if fewer than a turn, are left out.
    turns = [documents[at : at + TURN] for at in range(0, len(documents) - TURN + 1, TURN)]
    for encoder in encoders.values():
        encoder.vectors(documents[:TURN])
    times, _ = on_blocks({arm: encoder.vectors for arm, encoder in encoders.items()}, turns)
    return [
        Row(
            f"{experiment.cost_set}, encoding",
            engine,
            RATE,
            *rate(seconds, TURN),
            len(documents),
            variant=_variant(experiment, model, engine),
        )
        for (model, engines), seconds in times.items()
        for engine in engines
    ]
