"""The fastest setting of high-IDF-first that keeps a required share of the quality of all tokens, and the fastest of the
cascade that keeps that share of the best that the cascade can do: what `osn tune` does.

Two things decide what high-IDF-first costs and finds: which tokens count as rare, and how many of the hits that these find
are scored again with all tokens. All settings are tried on one half of the queries, each query with all of them in random
order, one request at a time, so that a slow moment of the machine falls on none in particular; of several passes the
fastest counts. Quality is nDCG@10 where there are judgements, else score@10: what the ten hits score with all tokens, as a
share of what the exact ten do (`overlap.score_kept`). The
fastest setting that keeps the share on these queries must keep it on the other half too, which had no part in choosing it:
on both the lower end of the interval decides, not the mean. A cascade is chosen by judgements only, and stored if on the
other half it is no worse than all tokens on average, and the lower end of the interval keeps the share.

In an index with pruned postings the window of `sparse` is chosen as a setting of high-IDF-first is.

How bm25-sparse is tuned stands in `tune_weighted_sum`.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.engines import Engines
from opensearch_neural.engines.settings import (
    TUNED,
    TUNED_CASCADE,
    TUNED_PRUNED,
    TUNED_SUM,
    Cascade,
    PrunedSparse,
    TwoPhases,
    WeightedSum,
)
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation import measures
from opensearch_neural.evaluation.overlap import PAGE, TIES, score_kept, scored_among
from opensearch_neural.index.record import existing_record, write_record
from opensearch_neural.index.shard_documents import SHARD_DOCUMENTS, count_shard_documents
from opensearch_neural.progress import Progress
from opensearch_neural.queries import Body, Rare
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.opensearch import search

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from opensearchpy import OpenSearch

    from opensearch_neural.evaluation.measures import Qrels
    from opensearch_neural.models.dense.dense_encoder import DenseEncoder

RARE = (
    *(Rare("ratio", value) for value in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)),
    *(Rare("share", value) for value in (0.5, 0.6, 0.7, 0.8, 0.9)),
    *(Rare("count", value) for value in (1, 2, 3, 4, 6)),
)
WINDOWS = (10, 20, 50, 100, 200, 400)
ROW_WINDOWS = (*WINDOWS, 800, 1600)
TOKENS = (None, Rare("share", 0.98))
WEIGHTS = (0.003, 0.006, 0.012, 0.018, 0.025, 0.035, 0.05, 0.1, 0.2)
CASCADE_WINDOWS = (20, 50, 100, 200)


Setting = TwoPhases | Cascade | WeightedSum | PrunedSparse


@dataclass(frozen=True)
class Tried:
    """A setting on the tuning queries."""

    setting: Setting | None
    """None: what the others are compared with, without any setting: all tokens, of bm25-sparse BM25."""
    ms: float
    """Milliseconds a query: of each query the fastest pass, the mean over queries."""
    quality: float
    """nDCG@10 or score@10, the mean over queries."""
    kept: float
    """Its quality as a share of that of all tokens."""
    values: Mapping[str, float] = field(default_factory=dict, compare=False, repr=False)
    """{query: its quality}"""

    def surely_keeps(self, keep: float, full: Tried, *, seed: int = 0) -> bool:
        """Whether the lower end of the interval of its quality, as a share of that of `full`, is at least `keep`."""
        _, low, _ = share(self.values, full.values, seed=seed)
        return low is not None and low >= keep


@dataclass(frozen=True)
class Chosen:
    """The choice, and what it keeps on the queries that had no part in it."""

    setting: Setting
    tried: Tried
    kept: float
    """The share of the quality of all tokens on the held-back queries."""
    low: float | None
    """Lower end of the 95% interval of `kept`."""
    high: float | None
    """Upper end of that interval."""
    passed_over: int
    """How many faster settings surely kept the share on the tuning queries and not on the others."""


def settings(default: TwoPhases) -> list[TwoPhases]:
    """All of them score with all tokens anew: what common tokens add in phase one finds more than is saved otherwise.

    default: that of the index, which is among them
    """
    windows = sorted({*WINDOWS, default.window})
    return [TwoPhases(*each) for each in itertools.product(RARE, windows, [True], TOKENS)]


def pruned_searches(default: PrunedSparse) -> list[PrunedSparse]:
    """default: that of the index, which is among them"""
    return [PrunedSparse(window) for window in sorted({*ROW_WINDOWS, default.window})]


def cascades(start: Cascade, default: Cascade) -> list[Cascade]:
    """Weights and both windows, the rest as `start` has it; the second stage's is no narrower than the third's.

    default: that of the index, whose window is among them
    """
    windows = sorted({*CASCADE_WINDOWS, default.window})
    return [
        replace(start, weight=weight, window=window, dense_window=dense_window)
        for weight, window, dense_window in itertools.product(WEIGHTS, windows, CASCADE_WINDOWS)
        if window >= dense_window
    ]


def pareto(tried: Sequence[Tried]) -> list[Tried]:
    """Those that no other beats in both time and quality, the fastest first."""
    best: list[Tried] = []
    for each in sorted(tried, key=lambda each: (each.ms, -each.quality)):
        if not best or each.quality > best[-1].quality:
            best.append(each)
    return best


@dataclass(frozen=True)
class Questions:
    """Queries of one half, and how their runs are judged. qrels: None compares with the exact result."""

    texts: dict[str, str]
    qrels: Qrels | None = None

    def quality(self, run: Run, exact: Run) -> dict[str, float]:
        """{query: nDCG@10, or score@10}, of the queries that can be judged.

        exact: what the exact search's best hits score, and all hits of `run`; without qrels only
        """
        if self.qrels is not None:
            judged = {query: self.qrels[query] for query in self.texts if query in self.qrels}
            return measures.measure(run, judged, ["nDCG@10"]).per_query["nDCG@10"]
        return {
            query: score_kept({document: scores.get(document, 0.0) for document in run[query]}, scores)
            for query, scores in exact.items()
            if scores
        }


def halves(texts: Mapping[str, str], qrels: Qrels | None, most: int, seed: int) -> tuple[Questions, Questions]:
    """(tuning queries, held-back queries), at most `most` each. Raises InputError for fewer than ten in all."""
    if qrels is not None:
        texts = {query: texts[query] for query in texts if any(grade > 0 for grade in qrels.get(query, {}).values())}
    if len(texts) < 10:
        raise InputError(f"{len(texts)} usable queries are too few to tune with", "give at least ten, better hundreds")
    order = random.Random(seed).sample(sorted(texts), len(texts))
    half = len(order) // 2
    parts = (order[:half][:most], order[half:][:most])
    tuning, held_back = ({query: texts[query] for query in part} for part in parts)
    return Questions(tuning, qrels), Questions(held_back, qrels)


Ask = Callable[[Body], tuple[dict[str, float], float]]
"""Body → ({document: score}, milliseconds)."""


def asker(client: OpenSearch, index: str) -> Ask:
    """Sends one request at a time. Raises ClusterError for an incomplete answer."""

    def ask(body: Body) -> tuple[dict[str, float], float]:
        began = time.perf_counter()
        answer = search(client, index, body, request_cache="false")
        ms = (time.perf_counter() - began) * 1000
        return {hit["_id"]: hit["_score"] for hit in answer["hits"]["hits"]}, ms

    return ask


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
) -> list[Tried]:
    """Every setting, and the engine `full`, on every query. The result's first element is that of `full`; it is asked in the
    first pass only if it reads the row of every document."""
    random_ = random.Random(seed)
    candidates: list[Setting | None] = [None, *tried]
    runs: list[Run] = [{} for _ in candidates]
    exact: Run = {}
    fastest: list[dict[str, float]] = [{} for _ in candidates]
    for number in range(passes):
        for query in random_.sample(sorted(questions.texts), len(questions.texts)):
            text = questions.texts[query]
            if number == 0 and questions.qrels is None:
                exact[query], _ = ask(body_of(engines, None, text, TIES, full))
            for at in random_.sample(range(len(candidates)), len(candidates)):
                if at == 0 and number and reads_every_row(engines, full):
                    continue
                hits, ms = ask(body_of(engines, candidates[at], text, PAGE, full))
                runs[at][query] = hits
                fastest[at][query] = min(ms, fastest[at].get(query, ms))
            if advance:
                advance(len(candidates))
    for query, scores in exact.items():
        found = {document for run in runs for document in run[query]}
        exact[query] = with_scores_of(ask, body_of(engines, None, questions.texts[query], TIES, full), scores, found)
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


def with_scores_of(ask: Ask, body: Body, scores: dict[str, float], documents: Collection[str]) -> dict[str, float]:
    """The scores of an exact search's best hits, and of other documents that it finds too.

    body: the exact search. It is asked for those of the documents that are none of the hits.
    """
    others = sorted(set(documents) - scores.keys())
    return {**scores, **ask(scored_among(body, others))[0]} if others else scores


def reads_every_row(engines: Engines, full: str) -> bool:
    """Whether the exact result of the engine `full` takes so long that one pass is enough to time it."""
    return full == "sparse" and engines.pruned


def body_of(engines: Engines, setting: Setting | None, text: str, size: int, full: str = "sparse") -> Body:
    """The body of this setting's engine, or without a setting that of the engine `full`; "sparse" then searches exactly,
    since with pruned postings it would have a window."""
    if setting is None:
        return engines.with_settings(exact=full == "sparse").body(full, text, size=size)
    if isinstance(setting, Cascade):
        given = {name: getattr(setting, name) for name in ("rare", "window", "dense_window", "weight", "first")}
        return engines.with_settings(**given).body("cascade", text, size=size)
    # Put in place of the stored choice, so that no part of that counts.
    meta = replace(engines.meta, extra={**engines.meta.extra, KEYS[type(setting)]: setting.record})
    return replace(engines, meta=meta).body(SEARCHED_BY[type(setting)], text, size=size)


def choose(
    ask: Ask, engines: Engines, tried: Sequence[Tried], held_back: Questions, keep: float, *, seed: int = 0
) -> Chosen | None:
    """The fastest setting that keeps the share on both halves with the lower end of its interval. None if no setting that is
    faster than all tokens does.

    Each setting that is looked at on the held-back queries makes chance a little likelier to let one through; how many
    were passed over is told.
    """
    exact = {query: ask(body_of(engines, None, text, TIES))[0] for query, text in held_back.texts.items()}
    full = held_back.quality({query: _first(hits) for query, hits in exact.items()}, exact)
    passed_over = 0
    for each in sorted(tried, key=lambda each: each.ms):
        if each.setting is None or each.ms >= tried[0].ms or not each.surely_keeps(keep, tried[0], seed=seed):
            continue
        run = {query: ask(body_of(engines, each.setting, text, PAGE))[0] for query, text in held_back.texts.items()}
        if held_back.qrels is None:
            for query, text in held_back.texts.items():
                exact[query] = with_scores_of(ask, body_of(engines, None, text, TIES), exact[query], run[query])
        kept, low, high = share(held_back.quality(run, exact), full, seed=seed)
        if low is not None and low >= keep:
            return Chosen(each.setting, each, kept, low, high, passed_over)
        passed_over += 1
    return None


def choose_cascade(
    ask: Ask,
    engines: Engines,
    tried: Sequence[Tried],
    held_back: Questions,
    keep: float,
    *,
    full: str = "sparse",
    seed: int = 0,
) -> Chosen | None:
    """The fastest of the cascades that surely keep the share of the best one's quality. None if on the held-back queries it
    is worse than the engine `full`, or the lower end of the interval does not keep the share.

    `kept` is of the quality of `full` there.
    """
    cascades_ = [each for each in tried if each.setting is not None]
    best = max(cascades_, key=lambda each: each.quality)
    kept_by = [each for each in cascades_ if each is best or each.surely_keeps(keep, best, seed=seed)]
    chosen = min(kept_by, key=lambda each: each.ms)
    runs: list[Run] = [
        {query: ask(body_of(engines, setting, text, PAGE, full))[0] for query, text in held_back.texts.items()}
        for setting in (None, chosen.setting)
    ]
    theirs, ours = (held_back.quality(run, {}) for run in runs)
    kept, low, high = share(ours, theirs, seed=seed)
    assert chosen.setting is not None
    keeps = kept >= 1 and low is not None and low >= keep
    return Chosen(chosen.setting, chosen, kept, low, high, 0) if keeps else None


def share(
    values: Mapping[str, float], full: Mapping[str, float], *, seed: int = 0
) -> tuple[float, float | None, float | None]:
    """(Σ values / Σ full, its 95% bootstrap interval over queries); both by query."""
    ours, theirs = (np.array([side[query] for query in full]) for side in (values, full))
    if not theirs.sum() > 0:
        raise InputError("nothing relevant is found for the held-back queries", "are they queries about this index?")
    drawn = np.random.default_rng(seed).integers(0, len(ours), size=(2000, len(ours)))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = ours[drawn].sum(axis=1) / theirs[drawn].sum(axis=1)
    ratios = ratios[np.isfinite(ratios)]
    low, high = np.quantile(ratios, [0.025, 0.975]) if len(ratios) else (None, None)
    return float(ours.sum() / theirs.sum()), None if low is None else float(low), None if high is None else float(high)


def _first(hits: dict[str, float]) -> dict[str, float]:
    return dict(measures.rank(hits)[:PAGE])


KEYS: dict[type, str] = {
    TwoPhases: TUNED,
    Cascade: TUNED_CASCADE,
    WeightedSum: TUNED_SUM,
    PrunedSparse: TUNED_PRUNED,
}
"""{kind of setting: where the index's record keeps the choice}"""
SEARCHED_BY: dict[type, str] = {TwoPhases: "high-idf-first", WeightedSum: "bm25-sparse", PrunedSparse: "sparse"}
"""{kind of setting: its engine}, of those that the engine takes from the record when it is tried."""


def store(client: OpenSearch, index: str, chosen: Chosen, *, keep: float, measure: str, queries: int) -> None:
    """Put the choice into the index's `_meta.osn`, where `Engines` finds it, with the documents of a shard, beyond which its
    window grows with the index. Raises ClusterError."""
    with translate_errors():
        meta = existing_record(client, index)
        record = {
            **chosen.setting.record,
            "keep": keep,
            "kept": round(chosen.kept, 4),
            "measure": measure,
            "queries": queries,
            SHARD_DOCUMENTS: count_shard_documents(client, index),
        }
        key = KEYS[type(chosen.setting)]
        write_record(client, index, meta.with_extra(**{key: record}))


def tried_and_chosen(
    client: OpenSearch,
    engines: Engines,
    engine: str,
    tuning: Questions,
    held_back: Questions,
    keep: float,
    *,
    passes: int = 3,
    seed: int = 0,
) -> tuple[list[Tried], Chosen | None]:
    """All settings of "high-idf-first", "sparse" or "cascade" on the tuning queries, and what is chosen; a bar on stderr.

    Raises ModelError if the index lacks what the engine needs, InputError for "sparse" without pruned postings.
    """
    if engine == "sparse" and not engines.pruned:
        raise InputError(
            f"{engines.index!r} has no pruned postings: sparse searches all tokens, nothing is to be chosen"
        )
    engines.body_of(engine)  # the encoders are loaded here, and shared by the copies that are made
    grid: Sequence[Setting] = settings(TwoPhases.fitting(engines))
    if engine == "sparse":
        grid = pruned_searches(PrunedSparse.fitting(engines))
    ask = asker(client, engines.index)
    if engine != "cascade":
        tried = try_with_a_bar(ask, engines, tuning, grid, passes=passes, seed=seed)
        return tried, choose(ask, engines, tried, held_back, keep, seed=seed)
    models = engines.models
    if engines.meta.quantized:
        remembering = models.holding(quantized=replace(models.quantized, dense=_Remembering(models.quantized.dense)))
    else:
        remembering = models.holding(dense=_Remembering(models.dense))
    engines = replace(engines, models=remembering)
    full = compared_with(engines)
    start = Cascade.of(engines)
    grid = cascades(start, Cascade.fitting(engines, start.first))
    tried = try_with_a_bar(ask, engines, tuning, grid, full=full, passes=passes, seed=seed)
    return tried, choose_cascade(ask, engines, tried, held_back, keep, full=full, seed=seed)


def compared_with(engines: Engines) -> str:
    """The engine that a cascade must not be worse than: that of its first stages, which of high-idf-first is all tokens."""
    return "bm25-sparse" if Cascade.of(engines).first == "bm25-sparse" else "sparse"


def try_with_a_bar(
    ask: Ask,
    engines: Engines,
    questions: Questions,
    grid: Sequence[Setting],
    *,
    full: str = "sparse",
    passes: int = 3,
    seed: int = 0,
) -> list[Tried]:
    """`try_all` after some requests that are not timed, with a bar on stderr."""
    reference = [] if reads_every_row(engines, full) else [None]
    for text in list(questions.texts.values())[:50]:  # not timed
        for setting in (*reference, grid[0], grid[-1]):
            ask(body_of(engines, setting, text, PAGE, full))
    total = (len(grid) + 1) * len(questions.texts) * passes
    with Progress(f"tune → {engines.index}", total=total, unit="requests") as progress:
        return try_all(ask, engines, questions, grid, full=full, passes=passes, seed=seed, advance=progress.update)


class _Remembering:
    """A dense encoder that encodes each query once, however many settings are tried on it."""

    def __init__(self, encoder: DenseEncoder) -> None:
        self._encoder = encoder
        self._vectors: dict[str, NDArray[Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode_queries(self, texts: Sequence[str], *, batch_size: int = 32) -> NDArray[Any]:
        if new := [text for text in dict.fromkeys(texts) if text not in self._vectors]:
            self._vectors |= dict(zip(new, self._encoder.encode_queries(new, batch_size=batch_size), strict=True))
        return np.stack([self._vectors[text] for text in texts])
