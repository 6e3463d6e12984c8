"""Part "storage" of `osn bench multi-layer`: what several vectors a document cost in faiss and in OpenSearch, and buy.

The models are those of part "variants", of the first seed and the paper's λ, ME-BERT's first token vectors and the vectors
of all tokens (ColBERT-style) among them, and those of part "layers" with more of the last layers. What they find is measured
there, of models that were trained for longer: what is stored and timed here hangs on no weight, and a training of two
updates does. Encoding is timed by itself, one query at a time; searches have their queries encoded beforehand, and faiss
has one thread, of which it takes more only from 10,000 vectors on. OpenSearch, asked for single vectors and those of
layers, has a graph for each layer or nested documents (`opensearch_neural.multi_vector`), of which `osn ingest` writes the
better one.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from benchmarks.beir_parts import evenly
from benchmarks.load.report import with_interval
from benchmarks.papers.jobs import shared
from benchmarks.papers.multi_layer import (
    DEPTH,
    DUAL,
    MEASURES,
    MULTI_VECTOR,
    NODE,
    SELF_CONTRASTIVE,
    SQUAD,
    Arm,
    Ground,
    Outcome,
    cache_of,
    colbert,
    each_trained,
    me_bert,
    mlr,
    of_first_seed,
)
from opensearch_neural import multi_vector
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.evaluation import measures, result_rows
from opensearch_neural.models.multi_layer import KIND, MultiVectors
from opensearch_neural.queries import knn
from trainers.common.precision import computing_in

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from opensearch_neural.evaluation.measures import Qrels
    from opensearch_neural.evaluation.results import Goal, Row
    from opensearch_neural.queries import Body
    from opensearch_neural.retrievers import Retriever, Run

QUERIES = 1000
"""Of squad-mix's test split, evenly taken, that quality is measured with."""
TIMED = 300
"""Of these, evenly taken."""
ROUNDS, ENCODED = 20, 32
"""Of encoding documents: how many, and so many documents in each."""
SLOWER = 1.05
ENCODING, ONE_QUERY, SEARCH, SIZE = "documents encoded/s", "P50 ms to encode a query", "P50 ms", "index MiB"
ENCODING_RATIO = f"{ENCODING} / {DUAL.name}"
SAME = "of the exact top 10"

SINGLE, FIELDS, NESTED = "", "fields", "nested"

T = TypeVar("T")


class Layout(Protocol):
    """How the field `dense` holds several vectors a document: the module `opensearch_neural.multi_vector`, or a rival."""

    def several_vectors(self, knn_vector: Mapping[str, Any]) -> dict[str, Any]: ...

    def stored(self, vectors: Any) -> Any: ...

    def nearest(self, vector: Any, **page: Any) -> Body: ...


@dataclass(frozen=True)
class FieldALayer:
    """A field for each of `count` layers, `dense.at_0`, `dense.at_1`, …, each with its graph."""

    count: int

    def several_vectors(self, knn_vector: Mapping[str, Any]) -> dict[str, Any]:
        return {"properties": {f"at_{place}": dict(knn_vector) for place in range(self.count)}}

    def stored(self, vectors: Any) -> dict[str, Any]:
        return {f"at_{place}": row for place, row in enumerate(vectors)}

    def nearest(self, vector: Any, **page: Any) -> Body:
        """Of each field `k` candidates, so that no document that belongs on the page is lost to the union."""
        bodies = [knn(vector, field=f"dense.at_{place}", **page) for place in range(self.count)]
        return {**bodies[0], "query": {"dis_max": {"queries": [body["query"] for body in bodies]}}}


class SingleVector:
    """One vector a document, as `osn ingest` writes it: no layout for several."""

    def several_vectors(self, knn_vector: Mapping[str, Any]) -> dict[str, Any]:
        return dict(knn_vector)

    def stored(self, vectors: Any) -> Any:
        (vector,) = vectors
        return vector

    def nearest(self, vector: Any, **page: Any) -> Body:
        return knn(vector, **page)


LAYOUTS: dict[str, Callable[[int], Layout]] = {
    SINGLE: lambda count: SingleVector(),
    FIELDS: FieldALayer,
    NESTED: lambda count: multi_vector,
}


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


def layouts_of(arm: Arm, count: int) -> tuple[str, ...]:
    """Names in `LAYOUTS`; of a rival's several vectors the one that `osn ingest` writes."""
    if count == 1:
        return (SINGLE,)
    return (NESTED,) if arm.is_rival else (FIELDS, NESTED)


@dataclass
class Model:
    """A model with the vectors of the test set's documents and queries."""

    arm: Arm
    encode_documents: Callable[[Sequence[str]], Any]
    encode_queries: Callable[[Sequence[str]], Any]
    documents: MultiVectors
    queries: dict[str, Any]
    normalized: bool

    @property
    def name(self) -> str:
        return self.arm.name


def load(outcome: Outcome, ground: Ground, texts: Sequence[str]) -> Model:
    from opensearch_neural.models.dense import load_dense
    from opensearch_neural.models.multi_layer import load_multi_layer
    from trainers.data.embedding_cache import dense_vectors, several_vectors

    test = ground.test(SQUAD)
    cache = cache_of(outcome.spec, test, ground) / "documents"
    encoder: Any
    with computing_in(ground.recipe.computed):
        if outcome.spec.startswith(f"{KIND}:"):
            encoder = load_multi_layer(outcome.folder)
            vectors = several_vectors(encoder, test.documents, cache)
        else:
            encoder = load_dense(outcome.folder)
            rows = dense_vectors(
                encoder.encode_documents,
                test.documents,
                cache,
                model=encoder.info,
                dimension=encoder.dimension,
                precision="float32",
            )
            vectors = MultiVectors.of(np.asarray(rows)[:, None])
        queries = dict(zip(texts, encoder.encode_queries(texts), strict=True))
    return Model(outcome.arm, encoder.encode_documents, encoder.encode_queries, vectors, queries, encoder.normalized)


def storage(ground: Ground, steps: int, connection: ConnectionSettings) -> tuple[list[Row], list[Goal]]:
    """Bytes, latencies and quality of single and several vectors."""
    from benchmarks.local_cluster import cluster_or_node

    test = ground.test(SQUAD)
    texts = test.query_texts()
    asked = {query: texts[query] for query in evenly(list(texts), QUERIES)}
    judged = test.qrels()
    qrels = {query: judged[query] for query in asked}
    arms = ground.wanted(storage_arms(ground.recipe.depth))
    outcomes = each_trained(of_first_seed(arms), ground, steps=steps, search=False)
    models = shared({each.folder: partial(load, each, ground, list(asked.values())) for each in outcomes})
    documents = evenly(list(test.documents.values()), ROUNDS * ENCODED)
    with computing_in(ground.recipe.computed):
        rows = encoding_rows(models, documents, evenly(list(asked.values()), TIMED))
    found, exact = faiss_rows(models, ground, asked, qrels)
    rows += found
    stored = [model for model in models if in_opensearch(model.arm)]
    with cluster_or_node(connection, NODE) as client:
        rows += opensearch_rows(client, stored, ground, asked, qrels, exact)
    value = {(row.line, row.column): row.value for row in rows}
    return rows, [encoding_goal(rows), cost_goal(value), layout_goal(value), alike_goal(value)]


def encoding_goal(rows: Sequence[Row]) -> Goal:
    """The extra work of each variant before anything is searched, beside a single vector without any."""
    said: list[str] = []
    query = {row.line: row.value for row in rows if row.column == ONE_QUERY}
    for row in rows:
        if row.column == ENCODING_RATIO:
            late = query[row.line] / query[DUAL.name]
            said.append(f"{row.line}: {with_interval(row)} times the documents/s, {late:.2f} times the P50 of a query")
    return _measured(
        "documents encoded per second, the same ones in turn, and time to encode a query of each variant, by those of the "
        "dual encoder",
        said,
    )


def cost_goal(value: Mapping[tuple[str, str], float]) -> Goal:
    """What each variant costs beside single vectors in the same engine. What it finds is said by trained models, in other
    parts."""
    said: list[str] = []
    for engine in dict.fromkeys(engine for engine, measure in value if measure == SIZE):
        single = f"{engine.partition(',')[0]}, {DUAL.name}"
        if engine == single or (single, SIZE) not in value:
            continue
        size, time_ = (value[engine, measure] / value[single, measure] for measure in (SIZE, SEARCH))
        said.append(f"{engine}: {size:.1f} times the bytes, {time_:.1f} times the latency")
    return _measured("index size and latency of each variant, by those of the dual encoder", said)


def _measured(goal: str, said: Sequence[str]) -> Goal:
    """A goal that asks for figures, whatever they are."""
    from opensearch_neural.evaluation.results import Goal

    return Goal(goal, "measured", "; ".join(said) or None, bool(said))


def layout_goal(value: Mapping[tuple[str, str], float]) -> Goal:
    """`osn ingest` writes nested vectors: the better of the two layouts, if for no model they find less or are later.

    Both are asked with the same k, which is of each field, and of documents by their best vector where these are nested:
    |S| fields look at up to |S| times as many candidates. P50 has their price in it.
    """
    from opensearch_neural.evaluation.results import Goal

    said: list[str] = []
    met: list[bool] = []
    for engine in [engine for engine, measure in value if measure == SAME and engine.endswith(f", {NESTED}")]:
        name = engine.removesuffix(f", {NESTED}")
        fields = f"{name}, {FIELDS}"
        if (fields, SAME) not in value:
            continue
        recall, late, size = (value[engine, measure] / value[fields, measure] for measure in (SAME, SEARCH, SIZE))
        said.append(
            f"{name.removeprefix('OpenSearch, ')}: recall {recall:.3f} times, P50 {late:.2f} times, bytes {size:.2f} times"
        )
        met.append(recall >= 0.99 and late <= 1)
    return Goal(
        "nested vectors, as `osn ingest` writes, find of the exact top 10 what a field a layer finds, and no later "
        f"(k = {DEPTH} documents, and {DEPTH} of each field)",
        "recall at least 0.99 times, P50 at most 1 times",
        "; ".join(said) or None,
        bool(met) and all(met),
    )


def alike_goal(value: Mapping[tuple[str, str], float]) -> Goal:
    """A self-contrastive model is at inference what the plain dual encoder is, so that its latency is the same: encoding
    documents, encoding a query, and searching, in faiss and in OpenSearch."""
    from opensearch_neural.evaluation.results import Goal

    def ratio(measure: str, prefix: str = "") -> float | None:
        other, single = (value.get((f"{prefix}{arm.name}", measure)) for arm in (SELF_CONTRASTIVE, DUAL))
        return other / single if other and single else None

    rate = value.get((SELF_CONTRASTIVE.name, ENCODING_RATIO))
    times = {"a document": None if rate is None else 1 / rate, "a query": ratio(ONE_QUERY)}
    times |= {f"a search in {engine}": ratio(SEARCH, f"{engine}, ") for engine in ("faiss", "OpenSearch")}
    known = {what: one for what, one in times.items() if one is not None}
    whole = len(known) == len(times)
    return Goal(
        "time of self-contrastive models by that of the plain dual encoder, in turns: to encode documents and queries, and "
        "to search in faiss and in OpenSearch",
        f"at most {SLOWER:g} times each",
        ", ".join(f"{what} {one:.3f} times" for what, one in known.items()) if whole else None,
        whole and max(known.values()) <= SLOWER,
    )


def in_turn(models: Sequence[T], at: int) -> list[T]:
    """The models in an order of their own each time: what comes after the same one every time would be measured by it."""
    return random.Random(at).sample(models, len(models))


def encoding_rows(models: Sequence[Model], documents: Sequence[str], queries: Sequence[str]) -> list[Row]:
    """Documents a second, other ones in each of ROUNDS, and milliseconds for one query, all models in turns."""
    from opensearch_neural.evaluation.results import Row

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
    rows = [result_rows.mean_row(SQUAD, name, ENCODING, of_model) for name, of_model in rates.items()]
    # Of the same documents each, in the same round: what a slower minute does to both is no difference.
    for name, of_model in rates.items():
        if name != DUAL.name and DUAL.name in rates:
            paired = [one / single for one, single in zip(of_model, rates[DUAL.name], strict=True)]
            rows.append(result_rows.mean_row(SQUAD, name, ENCODING, paired, kind="ratio", baseline=DUAL.name))
    rows += [
        Row(SQUAD, name, ONE_QUERY, float(np.percentile(of_model, 50)), None, None, len(of_model))
        for name, of_model in times.items()
    ]
    return rows


def faiss_rows(
    models: Sequence[Model], ground: Ground, asked: Mapping[str, str], qrels: Qrels
) -> tuple[list[Row], dict[str, Run]]:
    """Exact search, timed in turns on one thread: rows, and the runs by model."""
    import faiss

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
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        for at, query in enumerate(evenly(list(asked), TIMED)):
            for name in in_turn(list(engines), at):
                start = time.perf_counter()
                engines[name].retrieve({query: asked[query]}, DEPTH)
                times[name].append((time.perf_counter() - start) * 1000)
    finally:
        faiss.omp_set_num_threads(threads)
    rows: list[Row] = []
    for model in models:
        size = model.documents.values.nbytes
        rows += described(f"faiss, {model.name}", runs[model.name], qrels, ground, size, times[model.name])
    return rows, runs


def _looked_up(model: Model) -> Callable[[Sequence[str]], Any]:
    return lambda texts: np.stack([model.queries[text] for text in texts])


def described(name: str, run: Run, qrels: Qrels, ground: Ground, size: int, times: Sequence[float]) -> list[Row]:
    """Rows of one way to search: quality with intervals, bytes, milliseconds."""
    from opensearch_neural.evaluation.results import Row

    measured = measures.measure(run, qrels, MEASURES)
    found = result_rows.rows(SQUAD, {name: measured}, baseline=None, clusters=ground.clusters(SQUAD))
    found.append(Row(SQUAD, name, SIZE, size / 2**20, None, None, len(ground.test(SQUAD).documents)))
    for p in (50, 99):
        found.append(Row(SQUAD, name, f"P{p} ms", float(np.percentile(times, p)), None, None, len(times)))
    return found


def opensearch_rows(
    client: OpenSearch,
    models: Sequence[Model],
    ground: Ground,
    asked: Mapping[str, str],
    qrels: Qrels,
    exact: Mapping[str, Run],
) -> list[Row]:
    """An index for each model and layout."""
    from contextlib import ExitStack

    from benchmarks.load.server import index_facts
    from opensearch_neural.evaluation.engine_comparison import time_engines
    from opensearch_neural.evaluation.results import Row
    from opensearch_neural.index.segments import merge_segments
    from opensearch_neural.retrievers.opensearch import OpenSearchRetriever

    rows: list[Row] = []
    with ExitStack() as stack:
        indexes: dict[str, str] = {}
        bodies: dict[str, Callable[[str, int], Any]] = {}
        of_model: dict[str, str] = {}
        for model in models:
            count = int(model.documents.counts.max())
            for label in layouts_of(model.arm, count):
                layout = LAYOUTS[label](count)
                name = f"OpenSearch, {model.name}" + (f", {label}" if label else "")
                of_model[name] = model.name
                indexes[name] = stack.enter_context(written(client, model, layout, ground))
                bodies[name] = _body_of(model, layout)
        # All are written first: a merge waits until OpenSearch lets go of what it keeps beside an index for replicas.
        for index in indexes.values():
            merge_segments(client, index, least=0)
        timed = time_engines(client, indexes, bodies, evenly(list(asked.values()), TIMED))
        for name, index in indexes.items():
            run = OpenSearchRetriever(client, index, name, bodies[name]).retrieve(asked, DEPTH)
            size = index_facts(client, index).bytes
            rows += described(name, run, qrels, ground, size, timed[name][0].ms)
            same = [_overlap(run[query], exact[of_model[name]][query]) for query in asked]
            rows.append(Row(SQUAD, name, SAME, float(np.mean(same)), None, None, len(same)))
    return rows


def _overlap(found: Mapping[str, float], exact: Mapping[str, float]) -> float:
    return len(set(list(found)[:10]) & set(list(exact)[:10])) / min(10, len(exact))


def _body_of(model: Model, layout: Layout) -> Callable[[str, int], Any]:
    return lambda text, size: layout.nearest(model.queries[text], size=size, k=DEPTH, source=False)


@contextmanager
def written(client: OpenSearch, model: Model, layout: Layout, ground: Ground) -> Iterator[str]:
    """An index of the model's vectors alone, in two segments at least: one that is alone would not be merged, and would keep
    the documents whole. Deleted when the block ends."""
    from opensearchpy.helpers import bulk

    from opensearch_neural.index.mapping import knn_vector
    from opensearch_neural.index.record import DenseMeta

    index = f"osn-multi-layer-{uuid.uuid4().hex[:8]}"
    dimension = model.documents.values.shape[1]
    mapped = knn_vector(DenseMeta(model.name, "", dimension, "float", model.normalized))
    properties = {multi_vector.PATH: layout.several_vectors(mapped)}
    body = {
        "settings": {"index": {"knn": True, "number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": "-1"}},
        "mappings": {"properties": properties, "_source": {"excludes": [multi_vector.PATH]}},
    }
    client.indices.create(index=index, body=body)
    vectors, ids = model.documents.filled(int(model.documents.counts.max())), ground.test(SQUAD).documents.ids
    half = -(-len(ids) // 2)
    try:
        for rows in (range(half), range(half, len(ids))):
            actions = (
                {
                    "_index": index,
                    "_id": ids[row],
                    multi_vector.PATH: layout.stored(vectors[row].tolist()),
                }
                for row in rows
            )
            bulk(client, actions, chunk_size=200, request_timeout=120)
            client.indices.refresh(index=index, params={"request_timeout": 600})
        yield index
    finally:
        client.indices.delete(index=index)
