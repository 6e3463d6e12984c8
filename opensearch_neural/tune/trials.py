"""Try settings of an engine on queries of an index: how long a search takes, and how good its hits are.

Each query is searched with all settings in random order, one request at a time, so that a slow moment of the machine does
not affect one setting only. The fastest of several passes counts. Quality is nDCG@10 if there are judgements, else score@10:
the score of the ten hits with all tokens, as a share of the exact ten's score (`overlap.score_kept`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from opensearch_neural.engines import Engines
from opensearch_neural.engines.settings import Setting
from opensearch_neural.errors import InputError, Unanswerable
from opensearch_neural.evaluation import measures
from opensearch_neural.evaluation.engine_comparison import without_own_documents
from opensearch_neural.evaluation.overlap import PAGE, TIES, score_kept, scored_among
from opensearch_neural.queries import Body
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.opensearch import scores_of, search

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from opensearch_neural.evaluation.measures import Qrels

T = TypeVar("T")


@dataclass(frozen=True)
class Tried:
    """A setting on the tuning queries."""

    setting: Setting | None
    """None: the reference engine, which has no setting: all tokens, or BM25 for bm25-sparse."""
    ms: float
    """Milliseconds of a query: its fastest pass, averaged over queries."""
    quality: float
    """nDCG@10 or score@10, averaged over queries."""
    kept: float
    """Its quality as a share of the reference engine's quality."""
    values: Mapping[str, float] = field(default_factory=dict, compare=False, repr=False)
    """{query: its quality}"""

    def surely_keeps(self, keep: float, full: Tried, *, seed: int = 0) -> bool:
        """Whether its quality, as a share of the quality of `full`, has an interval whose lower end is at least `keep`."""
        _, low, _ = share(self.values, full.values, seed=seed)
        return low is not None and low >= keep

    def cells(self, full: str) -> list[str]:
        """Its row in a table of settings: setting, milliseconds, quality, share kept. full: the reference engine's name."""
        name = full if self.setting is None else str(self.setting)
        return [name, f"{self.ms:.2f}", f"{self.quality:.4f}", f"{self.kept:.1%}"]


def pareto(tried: Sequence[Tried]) -> list[Tried]:
    """The settings that no other setting beats in both time and quality, the fastest first."""
    best: list[Tried] = []
    for each in sorted(tried, key=lambda each: (each.ms, -each.quality)):
        if not best or each.quality > best[-1].quality:
            best.append(each)
    return best


def share(
    values: Mapping[str, float], full: Mapping[str, float], *, seed: int = 0
) -> tuple[float, float | None, float | None]:
    """(Σ values / Σ full, and the low and high end of its 95% bootstrap interval over queries). values, full: by query."""
    ours, theirs = (np.array([side[query] for query in full]) for side in (values, full))
    if not theirs.sum() > 0:
        raise InputError("nothing relevant is found for the held-back queries", "are they queries about this index?")
    drawn = np.random.default_rng(seed).integers(0, len(ours), size=(2000, len(ours)))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = ours[drawn].sum(axis=1) / theirs[drawn].sum(axis=1)
    ratios = ratios[np.isfinite(ratios)]
    low, high = np.quantile(ratios, [0.025, 0.975]) if len(ratios) else (None, None)
    return float(ours.sum() / theirs.sum()), None if low is None else float(low), None if high is None else float(high)


@dataclass(frozen=True)
class Questions:
    """Queries, and their judgements if there are any."""

    texts: dict[str, str]
    """{query id: text}"""
    qrels: Qrels | None = None
    """None: runs are compared with the exact result instead."""
    own: Collection[str] = ()
    """Queries that are documents of the index: each is left out of its own hits, as in `osn eval`."""
    measure: str = "nDCG@10"
    """The name of the measure of quality."""

    def page(self, query: str) -> int:
        """How many hits to ask for: one more if the query itself may be among them."""
        return PAGE + (query in self.own)

    def without(self, unanswered: Collection[str]) -> Questions:
        """These questions, without some of them."""
        return replace(self, texts={query: text for query, text in self.texts.items() if query not in unanswered})

    def of(self, values: Mapping[str, T]) -> dict[str, T]:
        """The values of these questions, of {query: value}."""
        return {query: value for query, value in values.items() if query in self.texts}

    def quality(self, run: Run, exact: Run) -> dict[str, float]:
        """{query: nDCG@10, or score@10} for the queries that can be judged.

        exact: the exact search's scores for its best hits and for all hits of `run`; used only without qrels
        """
        if self.qrels is not None:
            judged = {query: self.qrels[query] for query in self.texts if query in self.qrels}
            run = without_own_documents(run, self.own, PAGE) if self.own else run
            return measures.measure(run, judged, ["nDCG@10"]).per_query["nDCG@10"]
        return {
            query: score_kept({document: scores.get(document, 0.0) for document in run[query]}, scores)
            for query, scores in exact.items()
            if scores
        }


def halves(questions: Questions, most: int, seed: int) -> tuple[Questions, Questions]:
    """(tuning queries, held-back queries), at most `most` each. Raises InputError for fewer than ten queries in total."""
    texts, qrels = questions.texts, questions.qrels
    if qrels is not None:
        texts = {query: texts[query] for query in texts if any(grade > 0 for grade in qrels.get(query, {}).values())}
    if len(texts) < 10:
        raise InputError(
            f"{len(texts)} usable queries are too few to tune with", "give at least ten, or better hundreds"
        )
    order = random.Random(seed).sample(sorted(texts), len(texts))
    half = len(order) // 2
    parts = (order[:half][:most], order[half:][:most])
    tuning, held_back = ({query: texts[query] for query in part} for part in parts)
    return replace(questions, texts=tuning), replace(questions, texts=held_back)


Ask = Callable[[Body], tuple[dict[str, float], float]]
"""Body → ({document: score}, milliseconds)."""


def asker(client: OpenSearch, index: str) -> Ask:
    """Sends one request at a time. Raises ClusterError for an incomplete answer."""

    def ask(body: Body) -> tuple[dict[str, float], float]:
        began = time.perf_counter()
        answer = search(client, index, body, request_cache="false")
        ms = (time.perf_counter() - began) * 1000
        return scores_of(body, answer, body["size"]), ms

    return ask


def body_of(engines: Engines, setting: Setting | None, text: str, size: int, full: str = "sparse") -> Body:
    """The body of this setting's engine; without a setting, the body of the engine `full`. "sparse" then searches exactly,
    since with pruned postings it would have a window."""
    if setting is None:
        return engines.with_settings(exact=full == "sparse").body(full, text, size=size)
    # The setting replaces the stored choice, so that no part of the stored choice has an effect.
    meta = replace(engines.meta, extra={**engines.meta.extra, setting.key: setting.record})
    return replace(engines, meta=meta).body(setting.engine, text, size=size)


def try_all(
    ask: Ask,
    engines: Engines,
    questions: Questions,
    tried: Sequence[Setting],
    *,
    full: str = "sparse",
    passes: int = 3,
    seed: int = 0,
    advance: Callable[[int], object] | None = None,
    unanswered: dict[str, Unanswerable] | None = None,
) -> list[Tried]:
    """Try every setting, and the engine `full`, on every query. The first element of the result is that of `full`. If `full`
    reads the row of every document, it runs in the first pass only.

    unanswered: gets {query: reason} for queries that one of them cannot answer, which are left out of all
    Raises the reason if no query is left.
    """
    unanswered = {} if unanswered is None else unanswered
    random_ = random.Random(seed)
    candidates: list[Setting | None] = [None, *tried]
    runs: list[Run] = [{} for _ in candidates]
    exact: Run = {}
    fastest: list[dict[str, float]] = [{} for _ in candidates]

    def search_all(query: str, number: int) -> None:
        text = questions.texts[query]
        if number == 0 and questions.qrels is None:
            exact[query], _ = ask(body_of(engines, None, text, TIES, full))
        for at in random_.sample(range(len(candidates)), len(candidates)):
            if at == 0 and number and reads_every_row(engines, full):
                continue
            hits, ms = ask(body_of(engines, candidates[at], text, questions.page(query), full))
            runs[at][query] = hits
            fastest[at][query] = min(ms, fastest[at].get(query, ms))

    def add_scores(query: str) -> None:
        returned = {document for run in runs for document in run[query]}
        body = body_of(engines, None, questions.texts[query], TIES, full)
        exact[query] = with_scores_of(ask, body, exact[query], returned)

    for number in range(passes):
        for query in random_.sample(sorted(questions.texts), len(questions.texts)):
            if query not in unanswered:
                with noted(query, unanswered):
                    search_all(query, number)
            if advance:
                advance(len(candidates))
    for query in [query for query in exact if query not in unanswered]:
        with noted(query, unanswered):
            add_scores(query)
    questions = questions.without(unanswered)
    if not questions.texts:
        query, reason = next(iter(unanswered.items()))
        reason.message = f"no query can be answered; {query!r}: {reason.message}"
        raise reason
    runs, exact = [questions.of(run) for run in runs], questions.of(exact)
    fastest = [questions.of(times) for times in fastest]
    values = [questions.quality(run, exact) for run in runs]
    means = [sum(of_queries.values()) / max(1, len(of_queries)) for of_queries in values]
    if not means[0] > 0:
        raise InputError(
            f"the engine {full} finds nothing relevant for these queries", "are they queries about this index?"
        )
    return [
        Tried(setting, sum(times.values()) / len(times), mean, mean / means[0], of_queries)
        for setting, times, mean, of_queries in zip(candidates, fastest, means, values, strict=True)
    ]


@contextmanager
def noted(query: str, unanswered: dict[str, Unanswerable]) -> Iterator[None]:
    """If the query cannot be answered within the block, it is noted with the reason."""
    try:
        yield
    except Unanswerable as reason:
        unanswered[query] = reason


def with_scores_of(ask: Ask, body: Body, scores: dict[str, float], documents: Collection[str]) -> dict[str, float]:
    """The scores of an exact search's best hits, and of other documents that it finds.

    body: the exact search; it is run again for those `documents` that are not in `scores`.
    """
    others = sorted(set(documents) - scores.keys())
    return {**scores, **ask(scored_among(body, others))[0]} if others else scores


def reads_every_row(engines: Engines, full: str) -> bool:
    """Whether the exact search of the engine `full` takes so long that one pass is enough to time it."""
    return full == "sparse" and engines.has_pruned_postings()
