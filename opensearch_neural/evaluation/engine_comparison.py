"""Engines of one index measured side by side: quality on judged queries, latency, and what a fast engine loses.

Each measure comes from the request that an application would send: nDCG@10 from a search for 10 hits, R@1000 from a search
for 1,000. This matters for engines that search only as deep as their page (a rescoring window, an HNSW search): a request
for 1,000 hits would improve their nDCG@10.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.corpus.documents import BETWEEN, text_of
from opensearch_neural.corpus.passages import joined
from opensearch_neural.engines import BodyOf, Engines
from opensearch_neural.engines.sparse import Windowed
from opensearch_neural.evaluation.measures import (
    Measured,
    Qrels,
    cutoff,
    label,
    measure,
    parse_measures,
    rank,
)
from opensearch_neural.evaluation.overlap import PAGE
from opensearch_neural.evaluation.result_rows import holm_rows, rows
from opensearch_neural.evaluation.results import Row
from opensearch_neural.evaluation.significance import detectable
from opensearch_neural.index.record import existing_record
from opensearch_neural.index.result_window import most_hits
from opensearch_neural.queries import MOST_HITS, Body
from opensearch_neural.retrievers import Retriever, Run
from opensearch_neural.retrievers.opensearch import Latencies, passages_of, search, time_queries

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

# Hits for a measure without a cut-off, such as AP.
DEEP = 1000

CERTIFIED = "certified"
"""The measure for the share of queries whose page is certainly the page of a search of all documents."""

UNJUDGED = "unjudged@10"
"""The measure for the share of the first ten hits that have no judgement."""

Advance = Callable[[int], object]


@dataclass(frozen=True)
class EngineResult:
    """The result of an engine on the judged queries."""

    engine: str
    """Its name, or the path of a run file."""
    measured: Measured
    """Each measure for each query, and its mean."""
    runs: dict[int, Run]
    """{hits asked for: run}"""
    latency: Latencies | None = None
    """Time of single requests for a page, without encoding."""
    encode_ms: Latencies | None = None
    """Time to make each request body; for dense engines mostly the model's time."""
    certified: Sequence[bool] | None = None
    """For each answered query, whether its page is proved to be that of a full search; None: the engine has no proof."""
    unjudged: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """{query: (unjudged hits, hits)} among the first ten."""

    def unjudged_share(self, queries: Collection[str] | None = None) -> float | None:
        """The share of unjudged hits among the first ten, of all queries or of some; None if there are no hits."""
        pages = [page for query, page in self.unjudged.items() if queries is None or query in queries]
        hits = sum(of_query for _, of_query in pages)
        return sum(unjudged for unjudged, _ in pages) / hits if hits else None


def sizes_of(measures: Iterable[str]) -> dict[int, list[str]]:
    """{hits to ask for: measures to take from that request}: a page for cut-offs up to 10, one deep request for the rest.

    Raises InputError for an unknown measure.
    """
    cutoffs = {name: cutoff(name) for name in parse_measures(measures)}
    shallow = [name for name, at in cutoffs.items() if at is not None and at <= PAGE]
    deep = [name for name in cutoffs if name not in shallow]
    depth = max((cutoffs[name] or DEEP for name in deep), default=0)
    return {size: names for size, names in ((PAGE, shallow), (depth, deep)) if names}


def run_retriever(
    retriever: Retriever,
    queries: Mapping[str, str],
    qrels: Qrels,
    measures: Iterable[str],
    *,
    own_documents: Collection[str],
    most: int = MOST_HITS,
) -> EngineResult:
    """Search every query, and measure.

    own_documents: queries that are documents of the index (see the function `own_documents`); each is removed from its own
    hits, and one more hit is requested.
    most: the most hits that the retriever can find; no more are requested.
    Raises ClusterError for an incomplete answer, and InputError as `measure` does.
    """
    names = list(parse_measures(measures))
    runs: dict[int, Run] = {}
    parts: list[Measured] = []
    for size, of_size in sizes_of(names).items():
        run = retriever.retrieve(queries, size + bool(own_documents) if size < most else size)
        runs[size] = without_own_documents(run, own_documents, size) if own_documents else run
        parts.append(measure(runs[size], qrels, of_size))
    per_query = {name: values for part in parts for name, values in part.per_query.items()}
    mean = {name: value for part in parts for name, value in part.mean.items()}
    measured = replace(
        parts[0], per_query={name: per_query[name] for name in names}, mean={name: mean[name] for name in names}
    )
    return EngineResult(retriever.name, measured, runs, unjudged=unjudged_hits(next(iter(runs.values())), qrels))


def unjudged_hits(run: Run, qrels: Qrels) -> dict[str, tuple[int, int]]:
    """{query with a relevant document: (hits without judgement, hits)} among the first ten hits."""
    measured = [query for query, judged in qrels.items() if any(grade > 0 for grade in judged.values())]
    pages = {query: [document for document, _ in rank(run.get(query, {}))[:PAGE]] for query in measured}
    return {query: (sum(hit not in qrels[query] for hit in hits), len(hits)) for query, hits in pages.items()}


def without_own_documents(run: Run, own_documents: Collection[str], size: int) -> Run:
    """The run without each query's own document, cut to `size` hits for each query."""
    cut: Run = {}
    for query, hits in run.items():
        own = query if query in own_documents else None
        cut[query] = dict(rank({document: score for document, score in hits.items() if document != own})[:size])
    return cut


def time_engines(
    client: OpenSearch,
    index: str | Mapping[str, str],
    bodies_of: Mapping[str, BodyOf],
    texts: Sequence[str],
    *,
    progress: Advance | None = None,
) -> dict[str, tuple[Latencies, Latencies]]:
    """{engine: (latency of its searches, time to make their bodies)}: pages of 10, one request at a time.

    index: the index of all engines, or {engine: its index}.
    First, up to 50 bodies of each engine are sent without timing. Then the engines take turns in blocks of 20 queries, so
    that a slow moment of the machine affects all of them.
    """
    indexes = dict.fromkeys(bodies_of, index) if isinstance(index, str) else index
    bodies: dict[str, list[Body]] = {engine: [] for engine in bodies_of}
    encoding: dict[str, list[float]] = {engine: [] for engine in bodies_of}
    times: dict[str, list[float]] = {engine: [] for engine in bodies_of}
    for engine, body_of in bodies_of.items():
        body_of(texts[0], PAGE)  # a model's first call is slow
        for text in texts:
            start = time.perf_counter()
            bodies[engine].append(body_of(text, PAGE))
            encoding[engine].append((time.perf_counter() - start) * 1000)
        for body in bodies[engine][:50]:
            search(client, indexes[engine], body)
    for block in range(0, len(texts), 20):
        turn = list(bodies)
        at = block // 20 % len(turn)
        for engine in turn[at:] + turn[:at]:
            sent = bodies[engine][block : block + 20]
            times[engine] += time_queries(client, indexes[engine], sent, warmup=0).ms
            if progress:
                progress(len(sent))
    return {engine: (Latencies(times[engine]), Latencies(encoding[engine])) for engine in bodies}


def certified_queries(
    client: OpenSearch, opened: Engines, engine: str, texts: Iterable[str], *, progress: Advance | None = None
) -> list[bool] | None:
    """For each query, whether its page of 10 is proved to equal that of a search over all documents (`queries.certified`).
    None for an engine without such a proof."""
    windowed = opened.engine(engine)
    if not isinstance(windowed, Windowed):
        return None
    largest: dict[str, float] = {}
    certain = []
    for text in texts:
        with translate_errors():
            certain.append(windowed.certified(client, text, opened.page(size=PAGE, source=False), largest))
        if progress:
            progress(1)
    return certain


def own_documents(client: OpenSearch, index: str, queries: Mapping[str, str], qrels: Qrels) -> set[str]:
    """The queries that are documents of the index, with the same id and text, as in ArguAna and Quora.

    Such a query would find itself, or one of its passages, first. Queries judged relevant to themselves are left out.
    """

    def same(text: str, other: str) -> bool:
        return text.split() == other.split()

    own = set()
    candidates = [query for query in queries if qrels.get(query, {}).get(query, 0) <= 0]
    for query, document in _documents(client, index, candidates, source=["title", "text", "passage"]):
        title, text = (text_of(document.get(part), " ") or "" for part in ("title", "text"))
        if "passage" in document and " ".join(text.split()) in " ".join(queries[query].split()):
            text = _text_of_passages(client, index, query)
        if any(same(part, queries[query]) for part in (text, title, f"{title} {text}")):
            own.add(query)
    return own


def titles(client: OpenSearch, index: str, ids: Sequence[str]) -> dict[str, str]:
    """{id: title} of the documents that have one."""
    documents = _documents(client, index, ids, source=["title"])
    return {id: title for id, source in documents if (title := text_of(source.get("title"), BETWEEN["title"]))}


def _documents(client: OpenSearch, index: str, ids: Sequence[str], source: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """(id, source) for each of the documents that the index holds; with passages, the source of the first passage."""
    with translate_errors():
        first = "#0001" if existing_record(client, index).passages else ""
    for start in range(0, len(ids), 1000):
        part = [f"{id}{first}" for id in ids[start : start + 1000]]
        with translate_errors():
            answer = client.mget(index=index, body={"ids": part}, _source=source)
        for document in answer["docs"]:
            if document.get("found"):
                yield document["_id"].removesuffix(first), document.get("_source", {})


def _text_of_passages(client: OpenSearch, index: str, document: str) -> str:
    passages = passages_of(client, index, document, most_hits(client, index, MOST_HITS), ["text", "passage"])
    return joined((source["passage"]["start"], source["text"]) for source in passages)


def engine_rows(
    data: str, results: Iterable[EngineResult], *, baseline: str | None = "bm25", seed: int = 0
) -> list[Row]:
    """The result rows of several engines on one set: measures, differences to `baseline`, latencies in milliseconds."""
    results = list(results)
    measured = {result.engine: result.measured for result in results}
    made = rows(data, measured, baseline=baseline, seed=seed)
    made += holm_rows(made) + detectable_rows(made, measured)
    for result in results:
        if (share := result.unjudged_share()) is not None:
            made.append(Row(data, result.engine, UNJUDGED, share, None, None, result.measured.queries))
        for what, times in (("", result.latency), ("encode ", result.encode_ms)):
            if times is not None:
                for name, value in (("P50 ms", times.p50), ("P99 ms", times.p99)):
                    made.append(Row(data, result.engine, what + name, value, None, None, len(times.ms)))
        if result.certified is not None:
            share = sum(result.certified) / max(1, len(result.certified))
            made.append(Row(data, result.engine, CERTIFIED, share, None, None, len(result.certified)))
    return made


def detectable_rows(made: Sequence[Row], measured: Mapping[str, Measured]) -> list[Row]:
    """The smallest difference to the baseline that this number of queries can show, for each engine and measure (see
    `detectable`)."""
    result = []
    for row in made:
        if row.kind == "difference":
            values, base = (
                {label(name): of for name, of in measured[engine].per_query.items()}[row.measure]
                for engine in (row.engine, row.baseline)
            )
            smallest = detectable([values[query] - base[query] for query in values])
            if smallest is not None:
                result.append(replace(row, kind="detectable", value=smallest, low=None, high=None))
    return result
