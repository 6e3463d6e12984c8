"""Part "storage" of `osn bench multi-layer`: what several vectors a document cost in faiss and in OpenSearch, and buy.

The models are those of part "variants", of its first seed, ME-BERT's first token vectors and the vectors of all tokens
(ColBERT-style) among them. Queries are encoded beforehand: the query's side is the same for all. OpenSearch, asked for
single vectors and those of layers, has a graph for each layer or nested documents (`opensearch_neural.multi_vector`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.multi_layer import (
    DEPTH,
    DUAL,
    MEASURES,
    MULTI_VECTOR,
    SEEDS,
    SELF_CONTRASTIVE,
    SQUAD,
    Arm,
    Ground,
    Outcome,
    cache_of,
    colbert,
    me_bert,
    mlr,
    trained,
    with_best,
)
from opensearch_neural import multi_vector
from opensearch_neural.cluster import ConnectionSettings
from opensearch_neural.models.multi_layer import KIND, MultiVectors
from opensearch_neural.multi_vector import Layout

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from opensearch_neural.results import Goal, Row
    from opensearch_neural.retrievers import Retriever, Run

QUERIES = 1000
"""Of squad-mix's test split, that quality is measured with."""
TIMED = 300
ENCODED = 256
ROUNDS = 3
ARMS = (
    DUAL,
    SELF_CONTRASTIVE,
    mlr("last:2", "average"),
    mlr("last:2", "scalar-mix"),
    MULTI_VECTOR,
    me_bert(8, "multi-vector"),
    colbert("multi-vector"),
)
IN_OPENSEARCH = (DUAL, MULTI_VECTOR)


@dataclass
class Model:
    """A model with the vectors of the test set's documents and queries."""

    name: str
    encode_documents: Callable[[Sequence[str]], Any]
    documents: MultiVectors
    queries: dict[str, Any]
    normalized: bool


def load(outcome: Outcome, ground: Ground, texts: Sequence[str]) -> Model:
    from opensearch_neural.models.dense import load_dense
    from opensearch_neural.models.multi_layer import load_multi_layer
    from trainers.embeddings import dense_vectors, several_vectors

    test = ground.test(SQUAD)
    cache = cache_of(outcome.spec, test, ground) / "documents"
    if outcome.spec.startswith(f"{KIND}:"):
        several = load_multi_layer(outcome.folder)
        vectors = several_vectors(several, test.documents, cache)
        encoded, documents = several.encode_queries(texts), several.encode_documents
        return Model(outcome.arm.name, documents, vectors, dict(zip(texts, encoded, strict=True)), several.normalized)
    dense = load_dense(outcome.folder)
    rows = dense_vectors(
        dense.encode_documents,
        test.documents,
        cache,
        model=dense.info,
        dimension=dense.dimension,
        precision="float32",
    )
    queries = dict(zip(texts, dense.encode_queries(texts), strict=True))
    one_each = MultiVectors.of(np.asarray(rows)[:, None])
    return Model(outcome.arm.name, dense.encode_documents, one_each, queries, dense.normalized)


def storage(ground: Ground, steps: int, connection: ConnectionSettings) -> tuple[list[Row], list[Goal]]:
    """Bytes, latencies and quality of single and several vectors."""
    from benchmarks.local_cluster import cluster_or_node
    from opensearch_neural.results import Goal

    test = ground.test(SQUAD)
    asked = dict(list(test.query_texts().items())[:QUERIES])
    arms, best = with_best(ARMS, ground, steps=steps)
    models = [load(trained(arm, ground, steps=steps, seed=SEEDS[0]), ground, list(asked.values())) for arm in arms]
    rows = encoding_rows(models, list(test.documents.values())[:ENCODED])
    found, exact = faiss_rows(models, ground, asked)
    rows += found
    stored = [model for model in models if model.name in {arm.name for arm in IN_OPENSEARCH}]
    with cluster_or_node(connection, "osn-bench-multi-layer") as client:
        rows += opensearch_rows(client, stored, ground, asked, exact)
    value = {(row.engine, row.measure): row.value for row in rows}
    single, several = f"faiss, {DUAL.name}", f"faiss, {MULTI_VECTOR.name}"
    fields, nested = (f"OpenSearch, {MULTI_VECTOR.name}, {layout}" for layout in ("fields", "nested"))
    return rows, [
        Goal(
            "index size and latency of each variant beside the quality",
            "measured",
            f"{value[several, 'index MiB'] / value[single, 'index MiB']:.1f} times the bytes and "
            f"{value[several, 'P50 ms'] / value[single, 'P50 ms']:.1f} times the latency in faiss; in OpenSearch "
            f"{value[fields, 'index MiB']:.0f} MiB, P50 {value[fields, 'P50 ms']:.1f} ms with a field a layer, "
            f"{value[nested, 'index MiB']:.0f} MiB, {value[nested, 'P50 ms']:.1f} ms nested",
            True,
        ),
        layout_goal(value),
        alike_goal(value, best),
    ]


def layout_goal(value: Mapping[tuple[str, str], float]) -> Goal:
    """`osn ingest` writes a field a layer: the better of the two layouts, if it finds no less and no later."""
    from opensearch_neural.results import Goal

    measures = ("of the exact top 10", "P50 ms", "index MiB")
    fields, nested = (
        [value[f"OpenSearch, {MULTI_VECTOR.name}, {layout}", measure] for measure in measures]
        for layout in ("fields", "nested")
    )
    return Goal(
        "a field a layer, as `osn ingest` writes, finds of the exact top 10 what nested vectors find, and no later",
        "recall at least 0.99 times, P50 at most 1 times",
        f"recall {fields[0] / nested[0]:.3f} times, P50 {fields[1] / nested[1]:.2f} times, "
        f"bytes {fields[2] / nested[2]:.2f} times",
        fields[0] >= 0.99 * nested[0] and fields[1] <= nested[1],
    )


def alike_goal(value: Mapping[tuple[str, str], float], contrastive: Arm) -> Goal:
    """A self-contrastive model is at inference what the plain dual encoder is, so that its latency is the same."""
    from opensearch_neural.results import Goal

    single, other = (value.get((f"faiss, {arm.name}", "P50 ms")) for arm in (DUAL, contrastive))
    ratio = other / single if single and other else None
    return Goal(
        "latency of self-contrastive vectors by that of the plain dual encoder, in turns",
        "at most 1.05",
        None if ratio is None else round(ratio, 3),
        ratio is not None and ratio <= 1.05,
    )


def encoding_rows(models: Sequence[Model], texts: Sequence[str]) -> list[Row]:
    """Documents a second of each model, in turns."""
    from opensearch_neural.results import Row

    rates: dict[str, list[float]] = {model.name: [] for model in models}
    for model in models:
        model.encode_documents(texts[:32])
    for _ in range(ROUNDS):
        for model in models:
            start = time.perf_counter()
            model.encode_documents(texts)
            rates[model.name].append(len(texts) / (time.perf_counter() - start))
    return [
        Row(SQUAD, name, "documents encoded/s", float(np.median(of_model)), min(of_model), max(of_model), ROUNDS)
        for name, of_model in rates.items()
    ]


def faiss_rows(models: Sequence[Model], ground: Ground, asked: Mapping[str, str]) -> tuple[list[Row], dict[str, Run]]:
    """Exact search, timed in turns: rows, and the runs by model."""
    from opensearch_neural.retrievers.faiss import FaissRetriever
    from opensearch_neural.retrievers.multi_vector import MultiVectorRetriever

    ids = ground.test(SQUAD).documents.ids
    engines: dict[str, Retriever] = {}
    for model in models:
        single = len(model.documents.values) == len(ids)
        engines[model.name] = (
            FaissRetriever(ids, model.documents.values, _looked_up(model))
            if single
            else MultiVectorRetriever(ids, model.documents, _looked_up(model))
        )
    runs = {name: engine.retrieve(asked, DEPTH) for name, engine in engines.items()}
    times: dict[str, list[float]] = {name: [] for name in engines}
    for query, text in list(asked.items())[:TIMED]:
        for name, engine in engines.items():
            start = time.perf_counter()
            engine.retrieve({query: text}, DEPTH)
            times[name].append((time.perf_counter() - start) * 1000)
    rows: list[Row] = []
    for model in models:
        size = model.documents.values.nbytes
        rows += described(f"faiss, {model.name}", runs[model.name], ground, size, times[model.name])
    return rows, runs


def _looked_up(model: Model) -> Callable[[Sequence[str]], Any]:
    return lambda texts: np.stack([model.queries[text] for text in texts])


def described(name: str, run: Run, ground: Ground, size: int, times: Sequence[float]) -> list[Row]:
    """Rows of one way to search: quality with intervals, bytes, milliseconds."""
    from opensearch_neural.evaluate import measure, rows
    from opensearch_neural.results import Row

    qrels = {query: ground.test(SQUAD).qrels()[query] for query in run}
    found = rows(SQUAD, {name: measure(run, qrels, MEASURES)}, baseline=None)
    found.append(Row(SQUAD, name, "index MiB", size / 2**20, None, None, len(ground.test(SQUAD).documents)))
    for p in (50, 99):
        found.append(Row(SQUAD, name, f"P{p} ms", float(np.percentile(times, p)), None, None, len(times)))
    return found


def opensearch_rows(
    client: OpenSearch, models: Sequence[Model], ground: Ground, asked: Mapping[str, str], exact: Mapping[str, Run]
) -> list[Row]:
    """An index for each model and layout; a single vector is one field."""
    from contextlib import ExitStack

    from opensearch_neural.experiment import time_engines
    from opensearch_neural.results import Row
    from opensearch_neural.retrievers.opensearch import OpenSearchRetriever

    rows: list[Row] = []
    with ExitStack() as stack:
        indexes: dict[str, str] = {}
        bodies: dict[str, Callable[[str, int], Any]] = {}
        of_model: dict[str, str] = {}
        for model in models:
            count = int(model.documents.counts.max())
            layouts: tuple[Layout, ...] = ("fields", "nested") if count > 1 else ("fields",)
            for layout in layouts:
                name = f"OpenSearch, {model.name}" + (f", {layout}" if count > 1 else "")
                of_model[name] = model.name
                indexes[name] = stack.enter_context(indexed(client, model, layout, ground))
                bodies[name] = _body_of(model, count, layout)
        texts = list(asked.values())[:TIMED]
        timed = time_engines(client, indexes, bodies, texts)
        for name, index in indexes.items():
            run = OpenSearchRetriever(client, index, name, bodies[name]).retrieve(asked, DEPTH)
            store = client.indices.stats(index=index, metric="store")["_all"]["primaries"]["store"]["size_in_bytes"]
            rows += described(name, run, ground, store, timed[name][0].ms)
            same = [_overlap(run[query], exact[of_model[name]][query]) for query in asked]
            rows.append(Row(SQUAD, name, "of the exact top 10", float(np.mean(same)), None, None, len(same)))
    return rows


def _overlap(found: Mapping[str, float], exact: Mapping[str, float]) -> float:
    return len(set(list(found)[:10]) & set(list(exact)[:10])) / min(10, len(exact))


def _body_of(model: Model, count: int, layout: Layout) -> Callable[[str, int], Any]:
    return lambda text, size: multi_vector.nearest(
        model.queries[text], count=count, layout=layout, size=size, k=DEPTH, source=False
    )


@contextmanager
def indexed(client: OpenSearch, model: Model, layout: Layout, ground: Ground) -> Iterator[str]:
    """An index of the model's vectors alone, merged to one segment; deleted when the block ends."""
    from opensearchpy.helpers import bulk

    from opensearch_neural.schema import DenseMeta, knn_vector

    index = f"osn-multi-layer-{uuid.uuid4().hex[:8]}"
    dimension, count = model.documents.values.shape[1], int(model.documents.counts.max())
    mapped = knn_vector(DenseMeta(model.name, "", dimension, "float", model.normalized))
    properties = {multi_vector.FIELD: multi_vector.several_vectors(mapped, count=count, layout=layout)}
    body = {
        "settings": {"index": {"knn": True, "number_of_shards": 1, "number_of_replicas": 0}},
        "mappings": {"properties": properties, "_source": {"excludes": [multi_vector.FIELD]}},
    }
    client.indices.create(index=index, body=body)
    vectors = model.documents.stacked().tolist()
    try:
        bulk(
            client,
            (
                {"_index": index, "_id": id, multi_vector.FIELD: multi_vector.stored(vectors[row], layout=layout)}
                for row, id in enumerate(ground.test(SQUAD).documents.ids)
            ),
            chunk_size=200,
            request_timeout=120,
        )
        client.indices.flush(index=index, params={"request_timeout": 600})
        client.indices.forcemerge(index=index, params={"max_num_segments": 1, "request_timeout": 3600})
        client.indices.refresh(index=index)
        yield index
    finally:
        client.indices.delete(index=index)
