"""Runs and judgements in, measures and their comparison out.

Measures come from ir-measures, under its names (nDCG@10, RR@10, R@100, AP, P(rel=2)@5, …). A run is ranked by score,
equal scores by document id, before any measure sees it, so that the number does not depend on how a provider breaks
ties. Comparisons are paired by query: a percentile bootstrap interval of the mean difference (Sakai, SIGIR 2006) and a
randomization test that flips the sign of each query's difference (Smucker, Allan & Carterette, CIKM 2007). Where many
queries ask for the same article they are not independent: given `clusters`, whole clusters are resampled, and flipped.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from opensearch_neural.errors import InputError, MissingExtra
from opensearch_neural.evaluation.results import Engine, Row
from opensearch_neural.files import write_text
from opensearch_neural.retrievers import Run

if TYPE_CHECKING:
    from ir_measures.measures import Measure

Qrels = Mapping[str, Mapping[str, int]]

MEASURES = ("nDCG@10", "RR@10", "R@100", "R@1000")
RESAMPLES = 10_000
MANY = 2_000
"""Queries from which on resampling counts equal values instead of drawing queries one by one."""
# Resampled values held at once: 32 MB of float64.
_BATCH_VALUES = 4_000_000

# What the literature calls them, where ir-measures says it otherwise.
_ALIASES = {"MRR": "RR", "recall": "R", "Recall": "R", "NDCG": "nDCG", "ndcg": "nDCG", "MAP": "AP"}


@dataclass(frozen=True)
class Measured:
    """What a run scored.

    per_query: {measure: {query id: value}}; mean: {measure: value}. Both over the `queries` that have a relevant
    document among their judgements; of those, `unanswered` had no hit at all and count as 0. Left out, and only
    counted: `unjudged` queries of the run without judgements, and `without_relevant` ones of which every judgement is 0
    or less, where no engine could score.
    """

    per_query: dict[str, dict[str, float]]
    mean: dict[str, float]
    queries: int
    unanswered: int
    unjudged: int
    without_relevant: int


@dataclass(frozen=True)
class Comparison:
    """A paired difference of means, with its 95% interval and the two-sided p-value of "there is none".

    low and high are None for a single query, which says nothing about the spread.
    """

    difference: float
    low: float | None
    high: float | None
    p: float
    wins: int
    losses: int
    ties: int


def rank(hits: Mapping[str, float]) -> list[tuple[str, float]]:
    """(document id, score), best first: score descending, then id ascending."""
    return sorted(hits.items(), key=lambda hit: (-hit[1], hit[0]))


def label(measure: str) -> str:
    """How tables call a measure: ir-measures's RR is what papers write as MRR."""
    return f"M{measure}" if measure.startswith("RR") else measure


def parse_measures(names: Iterable[str]) -> dict[str, Measure]:
    """{name: ir-measures measure}; the usual other spellings (MRR@10, recall@100) are taken too.

    Raises InputError for a name that ir-measures does not know, or cannot compute here.
    """
    ir_measures = _ir_measures()
    parsed: dict[str, Measure] = {}
    for given in names:
        head = given.strip().partition("@")[0].partition("(")[0]
        name = _ALIASES.get(head, head) + given.strip()[len(head) :]
        try:
            measure = ir_measures.parse_measure(name)
            supported = ir_measures.DefaultPipeline.supports(measure)
        except (NameError, ValueError, KeyError, AttributeError, TypeError, AssertionError) as error:
            raise InputError(
                f"{given!r} is not a measure of ir-measures ({error})", "expected names like nDCG@10, RR@10, R@100, AP"
            ) from None
        if not supported:
            raise InputError(
                f"no installed provider of ir-measures computes {given!r}", "expected names like nDCG@10, RR@10, R@100"
            )
        parsed[str(measure)] = measure
    if not parsed:
        raise InputError("no measure was named", "expected names like nDCG@10, RR@10, R@100")
    return parsed


def cutoff(measure: str) -> int | None:
    """How many hits of a query the measure looks at; None for all of them."""
    value = parse_measures([measure])[measure].params.get("cutoff")
    return None if value is None else int(value)


def measure(run: Mapping[str, Mapping[str, float]], qrels: Qrels, measures: Iterable[str] = MEASURES) -> Measured:
    """Mean and per-query values of `measures`.

    Raises InputError for a score that is not a number (query and document named), for qrels without a relevant
    document, and for an unknown measure.
    """
    parsed = parse_measures(measures)
    answerable = {query: dict(judged) for query, judged in qrels.items() if any(grade > 0 for grade in judged.values())}
    if not answerable:
        raise InputError("the judgements hold no relevant document: there is nothing to measure")
    ranked: Run = {}
    for query, hits in run.items():
        _require_numbers(query, hits)
        if query in answerable and hits:
            # Scores become ranks: exact in the single precision that trec_eval compares, and free of ties.
            ranked[query] = {document: float(len(hits) - at) for at, (document, _) in enumerate(rank(hits))}
    per_query: dict[str, dict[str, float]] = {name: dict.fromkeys(answerable, 0.0) for name in parsed}
    for result in _ir_measures().iter_calc(list(parsed.values()), answerable, ranked):
        per_query[str(result.measure)][result.query_id] = float(result.value)
    return Measured(
        per_query=per_query,
        mean={name: math.fsum(values.values()) / len(values) for name, values in per_query.items()},
        queries=len(answerable),
        unanswered=len(answerable) - len(ranked),
        unjudged=sum(1 for query in run if not qrels.get(query)),
        without_relevant=sum(1 for query, judged in qrels.items() if judged and query not in answerable),
    )


def averaged(runs: Sequence[Measured]) -> Measured:
    """Of each query the mean over several runs of the same queries, as those of models of several seeds. Intervals are then
    over queries: how far seeds lie apart they do not hold."""
    per_query = {
        name: {query: math.fsum(one.per_query[name][query] for one in runs) / len(runs) for query in values}
        for name, values in runs[0].per_query.items()
    }
    mean = {name: math.fsum(values.values()) / len(values) for name, values in per_query.items()}
    return replace(runs[0], per_query=per_query, mean=mean)


def interval(
    values: Iterable[float],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = 0.95,
    clusters: Iterable[str] | None = None,
) -> tuple[float, float] | None:
    """Percentile bootstrap interval of the mean of `values`, queries resampled; None for fewer than two values.

    clusters: one for each value. Clusters are then resampled as a whole, and there must be two.
    """
    array = np.fromiter(values, dtype=np.float64)
    numbers = None if clusters is None else _numbered(clusters)
    if len(array if numbers is None else np.unique(numbers)) < 2:
        return None
    means: npt.NDArray[np.float64] | None = None
    if numbers is not None:
        means = _clustered_means(array, numbers, resamples, seed)
    elif _repeats(array):
        means = _resampled_means(array, resamples, seed)
    if means is not None:
        tail = 50 * (1 - level)
        low, high = np.percentile(means, [tail, 100 - tail])
        return float(low), float(high)
    found = _scipy_stats().bootstrap(
        (array,),
        np.mean,
        n_resamples=resamples,
        confidence_level=level,
        method="percentile",
        vectorized=True,
        batch=_batch(array),
        rng=np.random.default_rng(seed),
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def compare(
    values: Mapping[str, float],
    baseline: Mapping[str, float],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    clusters: Mapping[str, str] | None = None,
) -> Comparison:
    """How `values` differ from `baseline`, both {query id: value} of one measure over the same queries.

    The p-value comes from `resamples` random assignments of signs, or from all of them where there are fewer. clusters:
    {query id: what it shares with others}, as the article that answers it; whole clusters are resampled, and change signs.
    Raises InputError where the two do not hold the same queries, or hold none.
    """
    if values.keys() != baseline.keys():
        missing = sorted(values.keys() ^ baseline.keys())
        raise InputError(
            f"a paired comparison needs the same queries on both sides; {missing[0]!r} is on one side only"
        )
    if not values:
        raise InputError("a comparison needs at least one query")
    differences = np.array([values[query] - baseline[query] for query in values], dtype=np.float64)
    of_queries = None if clusters is None else [clusters[query] for query in values]
    spread = interval(differences.tolist(), resamples=resamples, seed=seed, clusters=of_queries)
    flipped = differences
    if of_queries is not None:
        flipped = np.bincount(_numbered(of_queries), weights=differences).astype(np.float64)
    return Comparison(
        difference=float(differences.mean()),
        low=spread[0] if spread else None,
        high=spread[1] if spread else None,
        p=_sign_flip_p(flipped, resamples, seed),
        wins=int((differences > 0).sum()),
        losses=int((differences < 0).sum()),
        ties=int((differences == 0).sum()),
    )


def rows(
    data: str,
    measured: Mapping[str, Measured] | Mapping[Engine, Measured],
    *,
    baseline: str | Engine | None = "bm25",
    seed: int = 0,
    clusters: Mapping[str, str] | None = None,
) -> list[Row]:
    """Result rows of several engines on the set `data`: each mean with its interval, and its difference to `baseline`.

    measured: {engine: Measured}. For an engine other than the baseline, and each measure, three rows: the value, the
    difference with the interval of the paired difference, and its p-value. clusters: as in `compare`.
    """
    of_engine = {_engine(name): each for name, each in measured.items()}
    against = None if baseline is None else _engine(baseline)
    result: list[Row] = []
    for engine, each in of_engine.items():
        for name, values in each.per_query.items():
            of_queries = None if clusters is None else [clusters[query] for query in values]
            low, high = interval(values.values(), seed=seed, clusters=of_queries) or (None, None)
            row = Row(
                data,
                engine.name,
                label(name),
                each.mean[name],
                low,
                high,
                len(values),
                seed=engine.seed,
                variant=engine.variant,
            )
            result.append(row)
            if against in of_engine and engine != against:
                found = compare(values, of_engine[against].per_query[name], seed=seed, clusters=clusters)
                result += _compared(row, against, found)
    return result


def _compared(row: Row, baseline: Engine, found: Comparison) -> list[Row]:
    """The rows of a comparison: of the seed of either, if one of the two engines has none."""
    seed = baseline.seed if row.seed is None else row.seed
    compared = replace(
        row,
        value=found.difference,
        low=found.low,
        high=found.high,
        kind="difference",
        baseline=baseline.name,
        baseline_variant=baseline.variant,
        seed=seed,
        engine_label=row.line if seed != row.seed else "",
    )
    return [compared, replace(compared, value=found.p, low=None, high=None, kind="p-value")]


def _engine(name: str | Engine) -> Engine:
    return name if isinstance(name, Engine) else Engine(name)


def mean_row(name: str, engine: str, measure: str, values: Collection[float], **how: Any) -> Row:
    """The mean of measured values with its interval, as a row of the set `name`; how: the row's other fields."""
    low, high = interval(values) or (None, None)
    return Row(name, engine, measure, math.fsum(values) / len(values), low, high, len(values), **how)


def only_differences(rows: Iterable[Row]) -> list[Row]:
    """Of the result of `rows`, what compares with the baseline: for a second comparison of engines that stand there."""
    return [row for row in rows if row.kind != "value"]


def write_run(path: Path, run: Mapping[str, Mapping[str, float]], tag: str) -> None:
    """A TREC run: `query Q0 document rank score tag` a line.

    Queries in the run's order; documents by score descending, then id ascending; ranks from 1; scores with all their
    digits. Raises InputError for an id or a tag with white space, which the format cannot hold, and for a score that is
    not a number.
    """
    lines = []
    _require_word(tag, "the run's tag")
    for query, hits in run.items():
        _require_word(query, "the query id")
        _require_numbers(query, hits)
        for at, (document, score) in enumerate(rank(hits), start=1):
            _require_word(document, f"query {query}: the document id")
            lines.append(f"{query} Q0 {document} {at} {float(score)!r} {tag}\n")
    write_text(Path(path), "".join(lines))


def read_run(path: Path) -> Run:
    """A TREC run file (.gz too) as {query: {document: score}}, best first.

    The order is that of the scores, as for trec_eval, and not of the rank column.
    Raises InputError, with file and line, for a line of other than six fields, a score that is not a number, or a
    document that a query has twice.
    """
    run: Run = {}
    for number, line in enumerate(_lines(Path(path)), start=1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 6:
            raise InputError(
                f"{path}, line {number}: {len(fields)} fields", "expected six: query Q0 document rank score tag"
            )
        query, _, document, _, text, _ = fields
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if math.isnan(score):
            raise InputError(f"{path}, line {number}: the score {text!r} is not a number", "expected one like 12.5")
        hits = run.setdefault(query, {})
        if document in hits:
            raise InputError(f"{path}, line {number}: query {query} has the document {document} twice")
        hits[document] = score
    return {query: dict(rank(hits)) for query, hits in run.items()}


def _lines(path: Path) -> Iterator[str]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            yield from file
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"the run file {path} cannot be read: {error}") from None


def _repeats(values: npt.NDArray[np.float64]) -> bool:
    """Whether there are many values and few different ones: a success is 0 or 1, and its rank decides a query's nDCG@10."""
    return len(values) >= MANY and len(np.unique(values)) * 8 <= len(values)


def _numbered(clusters: Iterable[str]) -> npt.NDArray[np.int64]:
    """A number from 0 for each cluster."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(one, len(numbers)) for one in clusters], dtype=np.int64)


def _clustered_means(
    values: npt.NDArray[np.float64], numbers: npt.NDArray[np.int64], resamples: int, seed: int
) -> npt.NDArray[np.float64]:
    """The mean of each bootstrap sample of whole clusters, (resamples,): samples may hold different numbers of values."""
    sums, sizes = np.bincount(numbers, weights=values), np.bincount(numbers)
    generator = np.random.default_rng(seed)
    at_once = max(1, _BATCH_VALUES // len(sums))
    means: list[npt.NDArray[np.float64]] = []
    for start in range(0, resamples, at_once):
        drawn = generator.multinomial(
            len(sums), np.full(len(sums), 1 / len(sums)), size=min(at_once, resamples - start)
        )
        means.append((drawn @ sums) / (drawn @ sizes))
    return np.concatenate(means)


def _resampled_means(values: npt.NDArray[np.float64], resamples: int, seed: int) -> npt.NDArray[np.float64]:
    """The mean of each bootstrap sample, (resamples,). How often each value occurs in a sample is drawn, which comes to the
    same as drawing queries, and takes time by the different values instead of the queries."""
    distinct, counts = np.unique(values, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(values), counts / len(values), size=resamples)
    means: npt.NDArray[np.float64] = drawn @ distinct / len(values)
    return means


def _sign_flip_p_of_many(differences: npt.NDArray[np.float64], resamples: int, seed: int) -> float:
    """As the permutation test has it, by how many of each size are positive."""
    sizes, counts = np.unique(np.abs(differences), return_counts=True)
    positive = np.random.default_rng(seed).binomial(counts, 0.5, size=(resamples, len(sizes)))
    sums, observed = (2 * positive - counts) @ sizes, differences.sum()
    near = 1e-9 * max(1.0, abs(observed))  # sums in another order differ in their last digits
    beyond = min(np.count_nonzero(sums >= observed - near), np.count_nonzero(sums <= observed + near))
    return float(min(1.0, 2 * (beyond + 1) / (resamples + 1)))


def _sign_flip_p(differences: npt.NDArray[np.float64], resamples: int, seed: int) -> float:
    if len(differences) < 2 or not differences.any():
        return 1.0  # of one difference, the other sign is as extreme
    if _repeats(differences):
        return _sign_flip_p_of_many(differences, resamples, seed)
    test = _scipy_stats().permutation_test(
        (differences,),
        np.mean,
        # Of one sample, "samples" means: flip the sign of each value.
        permutation_type="samples",
        n_resamples=resamples,
        vectorized=True,
        batch=_batch(differences),
        rng=np.random.default_rng(seed),
    )
    return float(test.pvalue)


def _batch(values: npt.NDArray[np.float64]) -> int:
    return max(1, _BATCH_VALUES // len(values))


def _require_numbers(query: str, hits: Mapping[str, float]) -> None:
    for document, score in hits.items():
        if math.isnan(score):
            raise InputError(f"query {query}: the score of document {document} is not a number (NaN)")


def _require_word(text: str, what: str) -> None:
    if text.split() != [text]:
        raise InputError(f"{what} {text!r} is empty or holds white space, which a TREC run file cannot hold")


def _ir_measures() -> Any:
    try:
        import ir_measures
    except ModuleNotFoundError as error:
        raise MissingExtra("measuring runs", "eval") from error
    return ir_measures


def _scipy_stats() -> Any:
    try:
        import scipy.stats
    except ModuleNotFoundError as error:
        raise MissingExtra("comparing runs", "eval") from error
    return scipy.stats
