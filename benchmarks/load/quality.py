"""What each engine finds, for the table that shows what it costs.

Where the queries have judgements: nDCG@10 and recall. Where they have none: overlap@10, the share of the exact result's
first ten that the engine returns. The exact result of a fast sparse engine is that of all tokens over all documents; of
an HNSW search, that of every vector compared. BM25 and `sparse` are exact by their own measure and have no overlap.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks.load.variants import Variant, body_builder
from benchmarks.load.workload import Workload
from opensearch_neural import multi_vector
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.engines import Engines
from opensearch_neural.engines.dense import dense_vector
from opensearch_neural.errors import ClusterError
from opensearch_neural.evaluation import comparison, measures, result_rows
from opensearch_neural.evaluation.measures import Qrels
from opensearch_neural.evaluation.results import Row
from opensearch_neural.queries import Body
from opensearch_neural.retrievers import Run

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

PAGE = 10
DEEP = 100
MEASURES = ("nDCG@10", "R@10")
DEEP_MEASURES = ("R@100",)
OVERLAP = "overlap@10"
TIES = 3 * PAGE  # hits of the exact result that are fetched, so that ties with its tenth are seen
THREADS = 4


@dataclass(frozen=True)
class Judged:
    """Queries with judgements; `queries` are those that have any."""

    queries: dict[str, str]
    qrels: Qrels


Advance = Callable[[int], object]


def judged_rows(
    client: OpenSearch,
    workload: Workload,
    judged: Judged,
    set_: str,
    *,
    baseline: str,
    seed: int = 0,
    advance: Advance | None = None,
) -> list[Row]:
    """nDCG@10, recall, and their differences to the baseline, with intervals over queries.

    Raises ClusterError for an incomplete answer.
    """
    measured = {}
    for variant in workload.variants:
        page = retrieve(client, workload, variant, judged.queries, PAGE, advance)
        deep = retrieve(client, workload, variant, judged.queries, DEEP, advance)
        parts = [
            measures.measure(page, judged.qrels, MEASURES),
            measures.measure(deep, judged.qrels, DEEP_MEASURES),
        ]
        measured[variant.name] = replace(
            parts[0],
            per_query={**parts[0].per_query, **parts[1].per_query},
            mean={**parts[0].mean, **parts[1].mean},
        )
    return result_rows.rows(set_, measured, baseline=baseline, seed=seed)


def overlap_rows(
    client: OpenSearch,
    workload: Workload,
    queries: Mapping[str, str],
    set_: str,
    *,
    seed: int = 0,
    advance: Advance | None = None,
) -> list[Row]:
    """overlap@10 of each engine that is not exact itself, with intervals over queries."""
    exact: dict[str, Run] = {}
    rows = []
    for variant in workload.variants:
        engine = variant.exact
        if engine is None:
            continue
        if engine not in exact:
            exact[engine] = exact_run(client, workload, engine, queries, advance)
        run = retrieve(client, workload, variant, queries, PAGE, advance)
        values = [overlap(run[query], hits) for query, hits in exact[engine].items() if hits]
        if values:
            low, high = comparison.interval(values, seed=seed) or (None, None)
            rows.append(Row(set_, variant.name, OVERLAP, sum(values) / len(values), low, high, len(values)))
    return rows


def overlap(hits: Mapping[str, float], exact: Mapping[str, float], depth: int = PAGE) -> float:
    """The share of the first `depth` of `exact` that the first `depth` of `hits` hold.

    Documents that tie with the last of `exact` count as well as it does: which of them is shown is chance.
    """
    best = measures.rank(exact)
    last = best[min(depth, len(best)) - 1][1]
    tied = {document for document, score in best if score >= last - 1e-6 * abs(last)}
    found = {document for document, _ in measures.rank(hits)[:depth]}
    return min(1.0, len(found & tied) / min(depth, len(best)))


def exact_run(
    client: OpenSearch, workload: Workload, engine: str, queries: Mapping[str, str], advance: Advance | None = None
) -> Run:
    """The exact result of `engine` ("bm25", "sparse" or "dense") in the workload's own index, some hits beyond a page."""
    plain = Variant(f"exact {engine}", engine, size=TIES)
    if engine != "dense":
        return retrieve(client, workload, plain, queries, TIES, advance)
    engines = workload.engines_of(plain)
    return _search_all(client, workload.index, lambda text: exact_dense(engines, text, TIES), queries, {}, advance)


def exact_dense(engines: Engines, text: str, size: int) -> Body:
    """Every vector compared, by the k-NN plugin's scoring script; of several a document the best one counts."""
    meta = engines.meta.dense
    assert meta is not None
    space = "cosinesimil" if meta.normalized else "innerproduct"
    parameters = {
        "field": meta.field_name,
        "query_value": dense_vector(engines.models, text).tolist(),
        "space_type": space,
    }
    script = {"source": "knn_score", "lang": "knn", "params": parameters}
    query: Body = {"script_score": {"query": {"exists": {"field": meta.field_name}}, "script": script}}
    return {"size": size, "query": multi_vector.by_the_best(query) if meta.vectors > 1 else query}


def retrieve(
    client: OpenSearch,
    workload: Workload,
    variant: Variant,
    queries: Mapping[str, str],
    size: int,
    advance: Advance | None = None,
) -> Run:
    """What the variant finds for each query, as its requests ask for it but for the number of hits.

    Raises ClusterError for what the cluster refuses, and for an incomplete answer.
    """
    build = body_builder(replace(variant, size=size), workload.engines_of(variant))
    pipeline = workload.pipelines.get(variant.name)
    parameters = {"search_pipeline": pipeline} if pipeline else {}
    return _search_all(client, workload.index_of(variant), build, queries, parameters, advance)


def _search_all(
    client: OpenSearch,
    index: str,
    build: Callable[[str], Body],
    queries: Mapping[str, str],
    parameters: Mapping[str, str],
    advance: Advance | None,
) -> Run:
    def ask(body: Body) -> dict[str, float]:
        with translate_errors():
            answer = client.search(index=index, body={**body, "_source": False}, params=dict(parameters))
        if answer["timed_out"] or answer["_shards"]["failed"]:
            raise ClusterError(f"only a part of the index {index!r} answered", "see the node's log and `osn doctor`")
        return {hit["_id"]: hit["_score"] for hit in answer["hits"]["hits"]}

    run: Run = {}
    with ThreadPoolExecutor(THREADS) as pool:
        # Encoding stays in this thread: an encoder need not be thread-safe.
        for query, hits in zip(queries, pool.map(ask, map(build, queries.values())), strict=True):
            run[query] = hits
            if advance:
                advance(1)
    return run


def some(queries: Mapping[str, str], most: int, seed: int = 0) -> dict[str, str]:
    """At most so many of the queries, drawn at random."""
    if len(queries) <= most:
        return dict(queries)
    return {id_: queries[id_] for id_ in sorted(random.Random(seed).sample(sorted(queries), most))}


def searches(variants: Sequence[Variant], queries: int, judged: bool) -> int:
    """How many searches the measures above take, for a progress bar."""
    if judged:
        return 2 * queries * len(variants)
    inexact = [variant.exact for variant in variants if variant.exact]
    return queries * (len(inexact) + len(set(inexact)))
