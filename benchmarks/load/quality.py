"""The quality of each engine, beside its cost.

With judgements: nDCG@10 and recall. Always: overlap@10, the share of the exact result's first ten that the engine returns;
and the score kept: the exact scores of the returned hits, as a share of those of the exact first ten. Among near-duplicates
the score kept is still meaningful, while the overlap of ids is not. The exact result of a fast sparse engine is a search
with all tokens over all documents; of `bm25-sparse`, the sum over all documents; of an HNSW search, a comparison with every
vector. BM25 and `sparse` are exact by definition and have neither measure.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from benchmarks.load.variants import EXACT_SPARSE, Variant, body_builder, parameters
from benchmarks.load.workload import Workload
from benchmarks.local_cluster import judged_result
from benchmarks.render import OVERLAP, SCORE_KEPT
from opensearch_neural.corpus.judgements import JudgedQueries
from opensearch_neural.engines import BodyOf, Engines
from opensearch_neural.engines.dense import dense_vector
from opensearch_neural.errors import Unanswerable
from opensearch_neural.evaluation import result_rows, significance
from opensearch_neural.evaluation.overlap import PAGE, TIES, overlap, score_kept, scored_among
from opensearch_neural.evaluation.results import Row
from opensearch_neural.evaluation.unanswered import unanswered_sentences
from opensearch_neural.queries import Body, multi_vector
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.opensearch import OpenSearchRetriever

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

logger = logging.getLogger(__name__)

MEASURES = ("nDCG@10", "R@10", "R@100")


def judged_rows(
    client: OpenSearch,
    workload: Workload,
    judged: JudgedQueries,
    set_: str,
    *,
    baseline: str | None,
    measures: Sequence[str] = MEASURES,
    seed: int = 0,
    tell: Callable[[str], object] = logger.warning,
) -> list[Row]:
    """The measures, and their differences to the baseline, with intervals over queries; see `judged_result`. A query that an
    engine cannot answer counts as one without hits.

    tell: called with a sentence on such queries
    """
    unanswered: dict[str, dict[str, Unanswerable]] = {variant.name: {} for variant in workload.variants}
    measured = {
        variant.name: judged_result(
            client,
            workload.index_of(variant),
            retriever(client, workload, variant, unanswered[variant.name]),
            judged.queries,
            judged.qrels,
            measures,
        ).measured
        for variant in workload.variants
    }
    for line in unanswered_sentences(unanswered, list(judged.queries), "get no hits from {engines}"):
        tell(line)
    return result_rows.rows(set_, measured, baseline=baseline, seed=seed)


def nearness_rows(
    client: OpenSearch,
    workload: Workload,
    queries: Mapping[str, str],
    set_: str,
    *,
    seed: int = 0,
    tell: Callable[[str], object] = logger.warning,
) -> list[Row]:
    """overlap@10 and the score kept of each engine that is not exact itself, with intervals over queries. A query that the
    engine or its exact search cannot answer is left out.

    tell: called with a sentence on such queries
    """
    unanswered: dict[str, dict[str, Unanswerable]] = {}
    exact_runs: dict[Variant, Run] = {}
    lacking: dict[Variant, dict[str, Unanswerable]] = {}
    rows = []
    for variant in workload.variants:
        exact = exact_variant(workload, variant)
        if exact is None:
            continue
        build = exact_builder(workload, exact)
        if exact not in exact_runs:
            lacking[exact] = {}
            exact_retriever = OpenSearchRetriever(
                client, workload.index, exact.name, build, unanswered=lacking[exact].__setitem__
            )
            exact_runs[exact] = exact_retriever.retrieve(queries, TIES)
        without = unanswered[variant.name] = dict(lacking[exact])
        with_hits = {query: queries[query] for query, hits in exact_runs[exact].items() if hits}
        pages = retriever(client, workload, variant, without).retrieve(with_hits, PAGE)
        scores = scores_of(client, workload.index, build, with_hits, pages, without)
        best = {query: hits for query, hits in exact_runs[exact].items() if hits and query not in without}
        for measure, values in (
            (OVERLAP, [overlap(pages[query], hits) for query, hits in best.items()]),
            (SCORE_KEPT, [score_kept(scores[query], hits) for query, hits in best.items()]),
        ):
            if values:
                low, high = significance.interval(values, seed=seed) or (None, None)
                rows.append(Row(set_, variant.name, measure, sum(values) / len(values), low, high, len(values)))
    for line in unanswered_sentences(
        unanswered, list(queries), "are left out of overlap@10 and the score kept of {engines}"
    ):
        tell(line)
    return rows


def exact_variant(workload: Workload, variant: Variant) -> Variant | None:
    """The search whose result the variant approaches; None if the variant is exact itself."""
    if variant.exact is None and variant.engine == EXACT_SPARSE.engine:
        return EXACT_SPARSE if workload.engines_of(variant).has_pruned_postings() else None
    return variant.exact


def scores_of(
    client: OpenSearch,
    index: str,
    build: BodyOf,
    queries: Mapping[str, str],
    pages: Run,
    unanswered: dict[str, Unanswerable],
) -> Run:
    """The scores of each page's hits in the search that `build` makes; hits that it does not find are left out.

    unanswered: gets {query: why it cannot be answered}
    """
    of_text = {text: list(pages[query]) for query, text in queries.items()}
    among = OpenSearchRetriever(
        client, index, "exact", lambda text, k: scored_among(build(text, k), of_text[text]),
        unanswered=unanswered.__setitem__,
    )  # fmt: skip
    return among.retrieve(queries, PAGE)


def exact_builder(workload: Workload, exact: Variant) -> BodyOf:
    """The builder of exact searches in the workload's own index, for TIES hits."""
    engines = workload.engines_of(exact)
    if exact.engine == "dense":
        return lambda text, _: exact_dense(engines, text, TIES)
    build = body_builder(replace(exact, size=TIES), engines)
    return lambda text, _: build(text)


def exact_dense(engines: Engines, text: str, size: int) -> Body:
    """A comparison with every vector, by the k-NN plugin's scoring script; of a document's vectors the best one counts."""
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


def retriever(
    client: OpenSearch, workload: Workload, variant: Variant, unanswered: dict[str, Unanswerable]
) -> OpenSearchRetriever:
    """A retriever that sends the variant's requests, but with its own number of hits.

    unanswered: gets {query: why the engine cannot answer it}
    """

    @cache
    def builder(size: int) -> Callable[[str], Body]:
        return body_builder(replace(variant, size=size), workload.engines_of(variant))

    index, params = workload.index_of(variant), parameters(variant)
    return OpenSearchRetriever(
        client, index, variant.name, lambda text, k: builder(k)(text),
        params=params, unanswered=unanswered.__setitem__,
    )  # fmt: skip


def drawn_queries(queries: Mapping[str, str], most: int, seed: int = 0) -> dict[str, str]:
    """At most `most` of the queries, drawn at random."""
    if len(queries) <= most:
        return dict(queries)
    return {id_: queries[id_] for id_ in sorted(random.Random(seed).sample(sorted(queries), most))}
