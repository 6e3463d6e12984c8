"""Part "storage" of `osn paper multi-layer`: what several vectors a document cost in faiss and in OpenSearch.

The models are those of part "variants", of the first seed and the paper's λ, ME-BERT's first token vectors and the vectors
of all tokens (ColBERT-style) among them, and those of part "layers" with more of the last layers. What is stored and timed
here hangs on no weight, so that a training of two updates does. Encoding is timed by itself, one query at a time; searches
have their queries encoded beforehand. faiss has one thread, and takes more only from 10,000 vectors on. In OpenSearch
several vectors are nested documents, as `osn ingest` writes them (`opensearch_neural.multi_vector`).
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from benchmarks.beir_parts import evenly
from benchmarks.experiment import JudgedSet, compared, shared
from benchmarks.papers.multi_layer_arms import (
    DUAL,
    MULTI_VECTOR,
    SELF_CONTRASTIVE,
    Arm,
    colbert,
    me_bert,
    mlr,
)
from benchmarks.papers.multi_layer_training import (
    DEPTH,
    MEASURES,
    SEEDS,
    SQUAD,
    Experiment,
    Trained,
)
from opensearch_neural import multi_vector
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.evaluation.result_rows import mean_row
from opensearch_neural.evaluation.results import Engine, Row
from opensearch_neural.models.multi_layer import KIND, MultiVectors
from opensearch_neural.queries import knn
from trainers.common.precision import computing_in

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from opensearch_neural.queries import Body
    from opensearch_neural.retrievers import Retriever, Run

NODE = "osn-bench-multi-layer"
QUERIES = 1000
"""Of squad-mix's test split, evenly taken, that quality is measured with."""
TIMED = 300
"""Of these, evenly taken."""
ROUNDS, ENCODED = 20, 32
"""Of encoding documents: how many, and so many documents in each."""
ENCODING, ONE_QUERY, SEARCH, SIZE = "documents encoded/s", "P50 ms to encode a query", "P50 ms", "index MiB"
SAME = "of the exact top 10"

T = TypeVar("T")


def storage_arms(depth: int) -> list[Arm]:
    """Single vectors, those of 2, 4 and 6 of the last layers as far as the backbone has them, and the rivals'."""
    return [
        DUAL,
        SELF_CONTRASTIVE,
        mlr("last:2", "average"),
        mlr("last:2", "scalar-mix"),
        MULTI_VECTOR,
        *(mlr(f"last:{count}", "multi-vector") for count in (4, 6) if count <= depth),
        me_bert(8, "multi-vector"),
        colbert("multi-vector"),
    ]


def in_opensearch(arm: Arm) -> bool:
    """All but the vectors of all tokens, whose index would be a hundred times as large."""
    return arm != colbert("multi-vector")


@dataclass
class Model:
    """A model with the vectors of the test set's documents and queries."""

    arm: Arm
    encode_documents: Callable[[Sequence[str]], Any]
    encode_queries: Callable[[Sequence[str]], Any]
    documents: MultiVectors
    queries: dict[str, Any]
    """{text: its vector}."""
    normalized: bool

    @property
    def name(self) -> str:
        return self.arm.name

    @property
    def several(self) -> bool:
        """Whether a document has more than one vector."""
        return int(self.documents.counts.max()) > 1

    def look_up(self, texts: Sequence[str]) -> Any:
        return np.stack([self.queries[text] for text in texts])

    def nearest(self, text: str, size: int) -> Body:
        search = multi_vector.nearest if self.several else knn
        return search(self.queries[text], size=size, k=DEPTH, source=False)


def load(experiment: Experiment, trained: Trained, texts: Sequence[str]) -> Model:
    from opensearch_neural.models.dense import load_dense
    from opensearch_neural.models.multi_layer import load_multi_layer
    from trainers.data.embedding_cache import dense_vectors, several_vectors

    documents = experiment.judged(SQUAD).data.documents
    cache = experiment.vectors(trained.spec, SQUAD) / "documents"
    encoder: Any
    with computing_in(experiment.recipe.computed):
        if trained.spec.startswith(f"{KIND}:"):
            encoder = load_multi_layer(trained.folder)
            vectors = several_vectors(encoder, documents, cache)
        else:
            encoder = load_dense(trained.folder)
            size, encode = encoder.dimension, encoder.encode_documents
            rows = dense_vectors(encode, documents, cache, model=encoder.info, dimension=size, precision="float32")
            vectors = MultiVectors.of(np.asarray(rows)[:, None])
        queries = dict(zip(texts, encoder.encode_queries(texts), strict=True))
    return Model(trained.arm, encoder.encode_documents, encoder.encode_queries, vectors, queries, encoder.normalized)


def storage_rows(experiment: Experiment, connection: ConnectionSettings) -> list[Row]:
    """Bytes, latencies and quality of single and several vectors."""
    from benchmarks.local_cluster import cluster_or_node

    whole = experiment.judged(SQUAD)
    some = evenly(range(len(whole.data)), QUERIES)
    data = whole.data.take(some)
    asked = JudgedSet(SQUAD, data, data.qrels(), whole.clusters)
    texts = list(asked.texts.values())
    arms = experiment.wanted(storage_arms(experiment.recipe.depth))
    trained = experiment.each_trained([(arm, SEEDS[0]) for arm in arms], search=False)
    models = shared({model.folder: partial(load, experiment, model, texts) for model in trained})
    documents = evenly(list(data.documents.values()), ROUNDS * ENCODED)
    with computing_in(experiment.recipe.computed):
        rows = encoding_rows(models, documents, evenly(texts, TIMED))
    of_faiss, exact = faiss_rows(models, asked)
    with cluster_or_node(connection, NODE) as client:
        stored = [model for model in models if in_opensearch(model.arm)]
        return rows + of_faiss + opensearch_rows(client, stored, asked, exact)


def in_turn(models: Sequence[T], at: int) -> list[T]:
    """The models in an order of their own each time: what comes after the same one every time would be measured by it."""
    return random.Random(at).sample(models, len(models))


def encoding_rows(models: Sequence[Model], documents: Sequence[str], queries: Sequence[str]) -> list[Row]:
    """Documents a second, other ones in each of ROUNDS, and milliseconds for one query, all models in turns."""
    rates: dict[str, list[float]] = {model.name: [] for model in models}
    times: dict[str, list[float]] = {model.name: [] for model in models}
    for model in models:
        model.encode_documents(documents[:ENCODED])
        model.encode_queries(queries[:1])
    for at in range(min(ROUNDS, len(documents))):
        some = documents[at::ROUNDS]
        for model in in_turn(models, at):
            start = time.perf_counter()
            model.encode_documents(some)
            rates[model.name].append(len(some) / (time.perf_counter() - start))
    for at, query in enumerate(queries):
        for model in in_turn(models, at):
            start = time.perf_counter()
            model.encode_queries([query])
            times[model.name].append((time.perf_counter() - start) * 1000)
    rows = [mean_row(SQUAD, name, ENCODING, of_model) for name, of_model in rates.items()]
    # Of the same documents each, in the same round: what a slower minute does to both is no difference.
    for name, of_model in rates.items():
        if name != DUAL.name and DUAL.name in rates:
            paired = [rate / single for rate, single in zip(of_model, rates[DUAL.name], strict=True)]
            rows.append(mean_row(SQUAD, name, ENCODING, paired, kind="ratio", baseline=DUAL.name))
    return rows + [
        Row(SQUAD, name, ONE_QUERY, float(np.percentile(of_model, 50)), None, None, len(of_model))
        for name, of_model in times.items()
    ]


def faiss_rows(models: Sequence[Model], asked: JudgedSet) -> tuple[list[Row], dict[str, Run]]:
    """Exact search, timed in turns on one thread: rows, and the runs by model."""
    import faiss

    from opensearch_neural.retrievers.faiss import FaissRetriever
    from opensearch_neural.retrievers.multi_vector import MultiVectorRetriever

    ids = asked.data.documents.ids
    engines: dict[str, Retriever] = {}
    for model in models:
        if len(model.documents.values) == len(ids):
            engines[model.name] = FaissRetriever(ids, model.documents.values, model.look_up)
        else:
            engines[model.name] = MultiVectorRetriever(ids, model.documents, model.look_up)
    runs = {name: engine.retrieve(asked.texts, DEPTH) for name, engine in engines.items()}
    times: dict[str, list[float]] = {name: [] for name in engines}
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        for at, text in enumerate(evenly(list(asked.texts.values()), TIMED)):
            for name in in_turn(list(engines), at):
                start = time.perf_counter()
                engines[name].retrieve({"q": text}, DEPTH)
                times[name].append((time.perf_counter() - start) * 1000)
    finally:
        faiss.omp_set_num_threads(threads)
    rows: list[Row] = []
    for model in models:
        size = model.documents.values.nbytes
        rows += search_rows(Engine(model.name, variant="faiss"), runs[model.name], asked, size, times[model.name])
    return rows, runs


def search_rows(engine: Engine, run: Run, asked: JudgedSet, size: int, times: Sequence[float]) -> list[Row]:
    """Rows of one way to search: quality with intervals, bytes, milliseconds."""
    rows = compared(SQUAD, {engine: asked.measure(run, MEASURES)}, clusters=asked.clusters)
    values: dict[str, tuple[float, int]] = {SIZE: (size / 2**20, len(asked.data.documents))}
    values |= {f"P{p} ms": (float(np.percentile(times, p)), len(times)) for p in (50, 99)}
    return rows + [
        Row(SQUAD, engine.name, measure, value, None, None, n, variant=engine.variant)
        for measure, (value, n) in values.items()
    ]


def opensearch_rows(
    client: OpenSearch, models: Sequence[Model], asked: JudgedSet, exact: Mapping[str, Run]
) -> list[Row]:
    """An index for each model; exact: {model: its run in faiss}."""
    from benchmarks.load.server import index_facts
    from opensearch_neural.evaluation.engine_comparison import time_engines
    from opensearch_neural.index.segments import merge_segments
    from opensearch_neural.retrievers.opensearch import OpenSearchRetriever

    rows: list[Row] = []
    with ExitStack() as stack:
        indexes = {
            model.name: stack.enter_context(written(client, model, asked.data.documents.ids)) for model in models
        }
        # All are written first: a merge waits until OpenSearch lets go of what it keeps beside an index for replicas.
        for index in indexes.values():
            merge_segments(client, index, least=0)
        bodies = {model.name: model.nearest for model in models}
        timed = time_engines(client, indexes, bodies, evenly(list(asked.texts.values()), TIMED))
        for name, index in indexes.items():
            run = OpenSearchRetriever(client, index, name, bodies[name]).retrieve(asked.texts, DEPTH)
            engine = Engine(name, variant="OpenSearch")
            rows += search_rows(engine, run, asked, index_facts(client, index).bytes, timed[name][0].ms)
            same = [_overlap(run[query], exact[name][query]) for query in asked.texts]
            rows.append(Row(SQUAD, name, SAME, float(np.mean(same)), None, None, len(same), variant=engine.variant))
    return rows


def _overlap(hits: Mapping[str, float], exact: Mapping[str, float]) -> float:
    return len(set(list(hits)[:10]) & set(list(exact)[:10])) / min(10, len(exact))


@contextmanager
def written(client: OpenSearch, model: Model, ids: Sequence[str]) -> Iterator[str]:
    """An index of the model's vectors alone, in two segments at least: one that is alone would not be merged, and would keep
    the documents whole. Deleted when the block ends."""
    from opensearchpy.helpers import bulk

    from opensearch_neural.index.mapping import knn_vector
    from opensearch_neural.index.record import DenseMeta

    index = f"osn-multi-layer-{uuid.uuid4().hex[:8]}"
    mapped = knn_vector(DenseMeta(model.name, "", model.documents.values.shape[1], "float", model.normalized))
    properties = {multi_vector.PATH: multi_vector.several_vectors(mapped) if model.several else mapped}
    body = {
        "settings": {"index": {"knn": True, "number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": "-1"}},
        "mappings": {"properties": properties, "_source": {"excludes": [multi_vector.PATH]}},
    }
    client.indices.create(index=index, body=body)
    vectors = model.documents.filled(int(model.documents.counts.max()))
    half = -(-len(ids) // 2)
    try:
        for rows in (range(half), range(half, len(ids))):
            actions = (
                {
                    "_index": index,
                    "_id": ids[row],
                    multi_vector.PATH: multi_vector.stored(vectors[row].tolist())
                    if model.several
                    else vectors[row][0].tolist(),
                }
                for row in rows
            )
            bulk(client, actions, chunk_size=200, request_timeout=120)
            client.indices.refresh(index=index, params={"request_timeout": 600})
        yield index
    finally:
        client.indices.delete(index=index)
