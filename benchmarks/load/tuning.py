"""`osn tune`: the fastest setting of high-IDF-first that keeps a required share of the quality of all tokens, and the
fastest of the cascade that keeps that share of the best that the cascade can do.

Two things decide what high-IDF-first costs and finds: which tokens count as rare, and how many of the hits that these find
are scored again with all tokens. All settings are tried on one half of the queries, each query with all of them in random
order, one request at a time, so that a slow moment of the machine falls on none in particular; of several passes the
fastest counts. Quality is nDCG@10 where there are judgements, else the overlap with the exact result of all tokens. The
fastest setting that keeps the share on these queries must keep it on the other half too, which had no part in choosing it.
A cascade is chosen by judgements only, and stored if it is not worse than all tokens on the other half.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.load import quality
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.cluster.options import connection_options
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.engine_options import models_options
from opensearch_neural.engines import Engines, open_engines
from opensearch_neural.engines.settings import TUNED, TUNED_CASCADE, Cascade, TwoPhases
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.evaluation.tables import table
from opensearch_neural.queries import Body, Rare
from opensearch_neural.retrievers import Run

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from opensearchpy import OpenSearch

    from opensearch_neural.evaluation.measures import Qrels
    from opensearch_neural.models.dense_encoder import Backend, DenseEncoder

RARE = (
    *(Rare("ratio", value) for value in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)),
    *(Rare("share", value) for value in (0.5, 0.6, 0.7, 0.8, 0.9)),
    *(Rare("count", value) for value in (1, 2, 3, 4, 6)),
)
WINDOWS = (10, 20, 50, 100, 200, 400)
TOKENS = (None, Rare("share", 0.98))
WEIGHTS = (0.003, 0.006, 0.012, 0.018, 0.025, 0.035, 0.05, 0.1, 0.2)
CASCADE_WINDOWS = (20, 50, 100, 200)
PAGE = 10
PLOT_WIDTH, PLOT_HEIGHT = 64, 16
SHOWN_BELOW = 0.1  # how far below the required share the plot reaches


@dataclass(frozen=True)
class Tried:
    """A setting on the tuning queries. ms: mean over queries of the fastest pass; quality: mean; kept: of all tokens'."""

    setting: TwoPhases | Cascade | None  # None: all tokens
    ms: float
    quality: float
    kept: float


@dataclass(frozen=True)
class Chosen:
    """The choice, and what it keeps on the queries that had no part in it. low, high: 95% interval of `kept`."""

    setting: TwoPhases | Cascade
    tried: Tried
    kept: float
    low: float | None
    high: float | None
    passed_over: int  # faster settings that kept the share on the tuning queries and not on the others


def settings(
    rare: Iterable[Rare] = RARE, windows: Iterable[int] = WINDOWS, tokens: Iterable[Rare | None] = TOKENS
) -> list[TwoPhases]:
    """All of them add the common tokens in phase two, which is cheaper than all anew and finds the same."""
    return [TwoPhases(*each) for each in itertools.product(rare, windows, [False], tokens)]


def cascades(start: Cascade) -> list[Cascade]:
    """Weights and both windows, the rest as `start` has it; the second stage's is no narrower than the third's."""
    return [
        replace(start, weight=weight, window=window, dense_window=dense_window)
        for weight, window, dense_window in itertools.product(WEIGHTS, CASCADE_WINDOWS, CASCADE_WINDOWS)
        if window >= dense_window
    ]


def pareto(tried: Sequence[Tried]) -> list[Tried]:
    """Those that no other beats in both time and quality, the fastest first."""
    best: list[Tried] = []
    for each in sorted(tried, key=lambda one: (one.ms, -one.quality)):
        if not best or each.quality > best[-1].quality:
            best.append(each)
    return best


@dataclass(frozen=True)
class Questions:
    """Queries of one half, and how their runs are judged. qrels: None compares with the exact result."""

    texts: dict[str, str]
    qrels: Qrels | None = None

    def quality(self, run: Run, exact: Run) -> dict[str, float]:
        """{query: nDCG@10, or overlap@10 with `exact`}, of the queries that can be judged."""
        if self.qrels is not None:
            from opensearch_neural.evaluation import measures

            judged = {query: self.qrels[query] for query in self.texts if query in self.qrels}
            return measures.measure(run, judged, ["nDCG@10"]).per_query["nDCG@10"]
        return {query: quality.overlap(run[query], hits) for query, hits in exact.items() if hits}


def halves(texts: Mapping[str, str], qrels: Qrels | None, most: int, seed: int) -> tuple[Questions, Questions]:
    """(tuning queries, held-back queries), at most `most` each. Raises InputError for fewer than ten in all."""
    if qrels is not None:
        texts = {query: texts[query] for query in texts if any(grade > 0 for grade in qrels.get(query, {}).values())}
    if len(texts) < 10:
        raise InputError(f"{len(texts)} usable queries are too few to tune with", "give ten at least, better hundreds")
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
        with translate_errors():
            answer = client.search(index=index, body=body, params={"request_cache": "false"})
        ms = (time.perf_counter() - began) * 1000
        if answer["timed_out"] or answer["_shards"]["failed"]:
            raise ClusterError(f"only a part of the index {index!r} answered", "see the node's log and `osn doctor`")
        return {hit["_id"]: hit["_score"] for hit in answer["hits"]["hits"]}, ms

    return ask


def try_all(
    ask: Ask,
    engines: Engines,
    questions: Questions,
    tried: Sequence[TwoPhases | Cascade],
    *,
    passes: int = 3,
    seed: int = 0,
    advance: Callable[[int], object] | None = None,
) -> list[Tried]:
    """Every setting, and all tokens, on every query. The result's first element is that of all tokens."""
    random_ = random.Random(seed)
    candidates: list[TwoPhases | Cascade | None] = [None, *tried]
    runs: list[Run] = [{} for _ in candidates]
    exact: Run = {}
    fastest: list[dict[str, float]] = [{} for _ in candidates]
    for number in range(passes):
        for query in random_.sample(sorted(questions.texts), len(questions.texts)):
            text = questions.texts[query]
            if number == 0:
                exact[query], _ = ask(body_of(engines, None, text, quality.TIES))
            for at in random_.sample(range(len(candidates)), len(candidates)):
                hits, ms = ask(body_of(engines, candidates[at], text, PAGE))
                runs[at][query] = hits
                fastest[at][query] = min(ms, fastest[at].get(query, ms))
            if advance:
                advance(len(candidates))
    values = [questions.quality(run, exact) for run in runs]
    means = [sum(of_queries.values()) / max(1, len(of_queries)) for of_queries in values]
    if not means[0] > 0:
        raise InputError("all tokens find nothing for these queries", "are they queries about this index?")
    return [
        Tried(setting, sum(times.values()) / len(times), mean, mean / means[0])
        for setting, times, mean in zip(candidates, fastest, means, strict=True)
    ]


def body_of(engines: Engines, setting: TwoPhases | Cascade | None, text: str, size: int) -> Body:
    if setting is None:
        return engines.body("sparse", text, size=size)
    if isinstance(setting, Cascade):
        given = {name: getattr(setting, name) for name in ("rare", "window", "dense_window", "weight")}
        return engines.with_settings(**given).body("cascade", text, size=size)
    # As if it were stored, so that nothing of what is stored counts beside it.
    meta = replace(engines.meta, extra={**engines.meta.extra, TUNED: setting.record})
    return replace(engines, meta=meta).body("high-idf-first", text, size=size)


def choose(
    ask: Ask,
    engines: Engines,
    tried: Sequence[Tried],
    held_back: Questions,
    keep: float,
    *,
    seed: int = 0,
    advance: Callable[[int], object] | None = None,
) -> Chosen | None:
    """The fastest setting that keeps the share on both halves; None where no setting that is faster than all tokens does.

    Each setting that is looked at on the held-back queries makes chance a little likelier to let one through; how many
    were passed over is told.
    """
    exact = {query: ask(body_of(engines, None, text, quality.TIES))[0] for query, text in held_back.texts.items()}
    full = held_back.quality({query: _first(hits) for query, hits in exact.items()}, exact)
    passed_over = 0
    for each in sorted(tried, key=lambda one: one.ms):
        if each.setting is None or each.ms >= tried[0].ms or each.kept < keep:
            continue
        run = {query: ask(body_of(engines, each.setting, text, PAGE))[0] for query, text in held_back.texts.items()}
        if advance:
            advance(len(run))
        kept, low, high = share(held_back.quality(run, exact), full, seed=seed)
        if kept >= keep:
            return Chosen(each.setting, each, kept, low, high, passed_over)
        passed_over += 1
    return None


def choose_cascade(
    ask: Ask, engines: Engines, tried: Sequence[Tried], held_back: Questions, keep: float, *, seed: int = 0
) -> Chosen | None:
    """The fastest of the cascades that keep the share of the best one's quality; None where it is worse than all tokens on
    the held-back queries. `kept` is of all tokens' quality there."""
    cascades_ = [each for each in tried if each.setting is not None]
    best = max(each.quality for each in cascades_)
    chosen = min((each for each in cascades_ if each.quality >= keep * best), key=lambda each: each.ms)
    runs: list[Run] = [
        {query: ask(body_of(engines, setting, text, PAGE))[0] for query, text in held_back.texts.items()}
        for setting in (None, chosen.setting)
    ]
    full, ours = (held_back.quality(run, {}) for run in runs)
    kept, low, high = share(ours, full, seed=seed)
    assert chosen.setting is not None
    return Chosen(chosen.setting, chosen, kept, low, high, 0) if kept >= 1 else None


def share(
    values: Mapping[str, float], full: Mapping[str, float], *, seed: int = 0, resamples: int = 2000
) -> tuple[float, float | None, float | None]:
    """(Σ values / Σ full, its 95% bootstrap interval over queries); both by query."""
    import numpy as np

    ours, theirs = (np.array([side[query] for query in full]) for side in (values, full))
    if not theirs.sum() > 0:
        raise InputError("all tokens find nothing for the held-back queries", "are they queries about this index?")
    drawn = np.random.default_rng(seed).integers(0, len(ours), size=(resamples, len(ours)))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = ours[drawn].sum(axis=1) / theirs[drawn].sum(axis=1)
    ratios = ratios[np.isfinite(ratios)]
    low, high = np.quantile(ratios, [0.025, 0.975]) if len(ratios) else (None, None)
    return float(ours.sum() / theirs.sum()), None if low is None else float(low), None if high is None else float(high)


def _first(hits: dict[str, float]) -> dict[str, float]:
    from opensearch_neural.evaluation.measures import rank

    return dict(rank(hits)[:PAGE])


def store(client: OpenSearch, index: str, chosen: Chosen, *, keep: float, measure: str, queries: int) -> None:
    """Put the choice into the index's `_meta.osn`, where `Engines` finds it. Raises ClusterError."""
    from opensearch_neural.index.record import existing_record, write_record

    with translate_errors():
        meta = existing_record(client, index)
        record = {
            **chosen.setting.record,
            "keep": keep,
            "kept": round(chosen.kept, 4),
            "measure": measure,
            "queries": queries,
        }
        key = TUNED_CASCADE if isinstance(chosen.setting, Cascade) else TUNED
        write_record(client, index, meta.with_extra(**{key: record}))


# ------------------------------------------------------------------------------------------------------------ output


def plot(tried: Sequence[Tried], chosen: Chosen | None, keep: float) -> str:
    """Share of quality kept (up) over time (right): · a setting, o one of the Pareto set, # the choice, = the required
    share, A all tokens. Settings far below the share lie on the lowest line, so that those around it can be told apart."""
    front = pareto(tried)
    quickest, slowest = min(each.ms for each in tried), max(each.ms for each in tried)
    best = max(each.kept for each in tried)
    worst = max(min(each.kept for each in tried), keep - SHOWN_BELOW)
    span_ms, span_kept = max(slowest - quickest, 1e-9), max(best - worst, 1e-9)
    grid = [[" "] * PLOT_WIDTH for _ in range(PLOT_HEIGHT)]

    def row(kept: float) -> int:
        return min(PLOT_HEIGHT - 1, round((best - kept) / span_kept * (PLOT_HEIGHT - 1)))

    if worst <= keep <= best:
        grid[row(keep)] = ["="] * PLOT_WIDTH
    for each in sorted(tried, key=lambda one: _mark(one, front, chosen) != "·"):  # special marks on top
        column = round((each.ms - quickest) / span_ms * (PLOT_WIDTH - 1))
        grid[row(each.kept)][column] = _mark(each, front, chosen)
    labels = [f"{best:6.1%}", *[""] * (PLOT_HEIGHT - 2), f"{worst:6.1%}"]
    lines = [f"{label:>7} |{''.join(line)}" for label, line in zip(labels, grid, strict=True)]
    ends = f"{quickest:.2f} ms"
    return "\n".join(
        [*lines, f"{'':>7} +{'-' * PLOT_WIDTH}", f"{'':>9}{ends}{slowest:>{PLOT_WIDTH - len(ends) - 3}.2f} ms"]
    )


def _mark(each: Tried, front: Sequence[Tried], chosen: Chosen | None) -> str:
    if each.setting is None:
        return "A"
    if chosen is not None and each.setting == chosen.setting:
        return "#"
    return "o" if each in front else "·"


def front_table(tried: Sequence[Tried], chosen: Chosen | None, measure: str) -> str:
    """The Pareto set, and all tokens."""
    front = [each for each in pareto(tried) if each.setting is not None]
    lines = [
        [
            "all tokens" if each.setting is None else str(each.setting),
            f"{each.ms:.2f}",
            f"{each.quality:.4f}",
            f"{each.kept:.1%}",
            "chosen" if chosen and each.setting == chosen.setting else "",
        ]
        for each in [*front, *([chosen.tried] if chosen and chosen.tried not in front else []), tried[0]]
    ]
    return table(["setting", "ms", measure, "kept", ""], lines)


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
    """All settings of "high-idf-first" or "cascade" on the tuning queries, and what is chosen, with a bar on stderr.

    Raises ModelError where the index lacks what the engine needs.
    """
    from tqdm import tqdm

    engines.body_of(engine)  # the encoders are loaded here, and shared by the copies that are made
    grid: Sequence[TwoPhases | Cascade] = settings()
    if engine == "cascade":
        model = engines.models.quantized
        remembering = engines.models.holding(quantized=replace(model, dense=_Remembering(model.dense)))
        engines = replace(engines, models=remembering)
        grid = cascades(Cascade.of(engines))
    ask = asker(client, engines.index)
    for text in list(tuning.texts.values())[:50]:  # not timed
        for setting in (None, grid[0], grid[-1]):
            ask(body_of(engines, setting, text, PAGE))
    total = (len(grid) + 1) * len(tuning.texts) * passes
    terminal = sys.stderr.isatty()
    with tqdm(total=total, unit="request", desc=f"tune → {engines.index}", mininterval=0.5 if terminal else 10) as bar:
        tried = try_all(ask, engines, tuning, grid, passes=passes, seed=seed, advance=bar.update)
    choosing = choose_cascade if engine == "cascade" else choose
    return tried, choosing(ask, engines, tried, held_back, keep, seed=seed)


class _Remembering:
    """A dense encoder that encodes each query once, however many settings are tried on it."""

    def __init__(self, encoder: DenseEncoder) -> None:
        self._encoder = encoder
        self._vectors: dict[str, NDArray[Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode_queries(self, texts: Sequence[str], *, batch_size: int = 32) -> NDArray[Any]:
        import numpy as np

        if new := [text for text in dict.fromkeys(texts) if text not in self._vectors]:
            self._vectors |= dict(zip(new, self._encoder.encode_queries(new, batch_size=batch_size), strict=True))
        return np.stack([self._vectors[text] for text in texts])


@click.command()
@click.option("--index", required=True, help="The index to tune; it must hold sparse vectors.")
@click.option("--engine", type=click.Choice(["high-idf-first", "cascade"]), default="high-idf-first", show_default=True)
@click.option("--data", type=click.Path(path_type=Path), default=None, help="Judged queries: a folder in BEIR layout.")
@click.option("--split", default="train", show_default=True, help="Which judgements: none that are reported on later.")
@click.option("--queries", type=click.Path(path_type=Path), default=None, help="Queries without judgements.")
@click.option("--keep", type=click.FloatRange(0, 1), default=0.99, show_default=True, help="Share of quality to keep.")
@click.option("--most", type=click.IntRange(min=5), default=150, show_default=True, help="Queries of each half.")
@click.option("--passes", type=click.IntRange(min=1), default=3, show_default=True, help="Of which the fastest counts.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--dry-run", is_flag=True, help="Do not store the choice.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that was tried as JSON.")
@models_options
@connection_options
def tune(
    connection: ConnectionSettings,
    index: str,
    engine: str,
    data: Path | None,
    split: str,
    queries: Path | None,
    keep: float,
    most: int,
    passes: int,
    seed: int,
    sparse: str | None,
    dense: str | None,
    pq: str | None,
    backend: Backend,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Find the fastest setting of high-IDF-first that keeps a share of the quality of all tokens, and store it.

    With --engine cascade: the weight and window of its quantized stage, the fastest that keep a share of the best found.
    The choice is kept in the index, where `osn search`, `osn eval` and `opensearch_neural.engines` find it. Quality is
    nDCG@10 with --data, else the overlap with the exact result. Half of the queries choose, the other half confirms. The
    cluster should be otherwise idle.

    \b
    osn tune --index docs --data data/docs
    osn tune --index docs --queries queries.jsonl --keep 0.98
    osn tune --index docs --engine cascade --data data/docs
    """
    from opensearch_neural.corpus.judgements import BeirData, read_queries

    if (queries is None) == (data is None):
        raise InputError("the queries come from one of two places", "--data: judged queries; --queries: any others")
    if engine == "cascade" and data is None:
        raise InputError("a cascade is chosen by judgements", "give --data, a folder in BEIR layout")
    if data is not None:
        beir = BeirData.load(data, split)
        texts, qrels = beir.queries, beir.qrels
    else:
        assert queries is not None
        texts, qrels = read_queries(queries), None
    measure = "overlap@10" if qrels is None else "nDCG@10"
    tuning, held_back = halves(texts, qrels, most, seed)
    client = connect(settings=connection)
    engines = open_engines(client, index, sparse=sparse, dense=dense, pq=pq, backend=backend)
    tried, chosen = tried_and_chosen(client, engines, engine, tuning, held_back, keep, passes=passes, seed=seed)
    if chosen is not None and not dry_run:
        store(client, index, chosen, keep=keep, measure=measure, queries=len(held_back.texts))
    if as_json:
        print(json.dumps(_json(tried, chosen, measure, keep), indent=1))
        return
    print(f"{len(tried) - 1} settings on {len(tuning.texts)} queries, by {measure}\n")
    print(plot(tried, chosen, keep))
    print("\n" + front_table(tried, chosen, measure) + "\n")
    if chosen is None:
        print(
            f"no setting keeps {keep:.1%} of {measure} and is faster than all tokens; nothing was stored"
            if engine == "high-idf-first"
            else f"the best cascade is worse than all tokens on the held-back queries, by {measure}; nothing was stored"
        )
        return
    interval = f" [{chosen.low:.1%}, {chosen.high:.1%}]" if chosen.low is not None and chosen.high is not None else ""
    print(
        f"chosen: {chosen.setting}: {chosen.kept:.1%}{interval} of all tokens' {measure} on {len(held_back.texts)} held-back"
    )
    print(f"queries at {chosen.tried.ms / tried[0].ms:.0%} of the time of all tokens", end="")
    print(f" ({chosen.passed_over} faster settings did not keep it there)" if chosen.passed_over else "")
    print("not stored (--dry-run)" if dry_run else f"stored in {index}: {engine} uses it from now on")


def _json(tried: Sequence[Tried], chosen: Chosen | None, measure: str, keep: float) -> dict[str, Any]:
    front = pareto(tried)
    return {
        "measure": measure,
        "keep": keep,
        "chosen": None
        if chosen is None
        else {
            **chosen.setting.record,
            **{name: value for name, value in asdict(chosen).items() if name in ("kept", "low", "high", "passed_over")},
        },
        "tried": [
            {
                **({"all": True} if each.setting is None else each.setting.record),
                "ms": each.ms,
                measure: each.quality,
                "kept": each.kept,
                "pareto": each in front,
            }
            for each in tried
        ],
    }
