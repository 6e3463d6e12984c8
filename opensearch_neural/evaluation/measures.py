"""What a run scores on judged queries.

Measures come from ir-measures, under its names (nDCG@10, RR@10, R@100, AP, P(rel=2)@5, …). A run is ranked by score,
equal scores by document id, before any measure sees it, so that the number does not depend on how a provider breaks
ties.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from opensearch_neural.errors import InputError, MissingExtra
from opensearch_neural.retrievers import Run

if TYPE_CHECKING:
    from ir_measures.measures import Measure

Qrels = Mapping[str, Mapping[str, float]]
"""{query id: {document id: grade}}; above 0 is relevant"""

MEASURES = ("nDCG@10", "RR@10", "R@100", "R@1000")

# What the literature calls them, where ir-measures says it otherwise.
_ALIASES = {"MRR": "RR", "recall": "R", "Recall": "R", "NDCG": "nDCG", "ndcg": "nDCG", "MAP": "AP"}


@dataclass(frozen=True)
class Measured:
    """The measures of a run, over the queries with a relevant document."""

    per_query: dict[str, dict[str, float]]
    """{measure: {query id: value}}"""
    mean: dict[str, float]
    """{measure: value}"""
    queries: int
    unanswered: int
    """How many of these queries have no hit; they count as 0."""
    unjudged: int
    """How many queries of the run have no judgements; they are left out."""
    without_relevant: int
    """How many judged queries have no grade above 0; they are left out, because no engine could score on them."""


def measure(run: Mapping[str, Mapping[str, float]], qrels: Qrels, measures: Iterable[str] = MEASURES) -> Measured:
    """Mean and per-query values of `measures`.

    A grade may be a fraction, as clicks give. nDCG then takes it as the gain that it is. A measure of relevant or not
    (RR, R, AP, P, …) takes any grade above 0 as relevant, and with `rel=2` one of 2 or more.
    Raises InputError for a score that is not a number (query and document named), for qrels without a relevant
    document, for an unknown measure, and for one that knows no fractions where there are some.
    """
    parsed = parse_measures(measures)
    answerable = {query: dict(judged) for query, judged in qrels.items() if any(grade > 0 for grade in judged.values())}
    if not answerable:
        raise InputError("the judgements hold no relevant document: there is nothing to measure")
    ranked: Run = {}
    for query, hits in run.items():
        require_numbers(query, hits)
        if query in answerable and hits:
            # Scores become ranks: exact in the single precision that trec_eval compares, and free of ties.
            ranked[query] = {document: float(len(hits) - at) for at, (document, _) in enumerate(rank(hits))}
    per_query: dict[str, dict[str, float]] = {name: dict.fromkeys(answerable, 0.0) for name in parsed}
    gains = _gain_measures(parsed) if has_fractions(answerable) else []
    for name in gains:
        per_query[name].update(
            (query, ndcg(list(hits), answerable[query], parsed[name].params.get("cutoff")))
            for query, hits in ranked.items()
        )
    others = [each for name, each in parsed.items() if name not in gains]
    whole = {query: {document: _whole(grade) for document, grade in of.items()} for query, of in answerable.items()}
    for result in _ir_measures().iter_calc(others, whole, ranked) if others else ():
        per_query[str(result.measure)][result.query_id] = float(result.value)
    return Measured(
        per_query=per_query,
        mean={name: math.fsum(values.values()) / len(values) for name, values in per_query.items()},
        queries=len(answerable),
        unanswered=len(answerable) - len(ranked),
        unjudged=sum(1 for query in run if not qrels.get(query)),
        without_relevant=sum(1 for query, judged in qrels.items() if judged and query not in answerable),
    )


def has_fractions(qrels: Qrels) -> bool:
    """Whether any grade is not a whole number."""
    return any(not float(grade).is_integer() for judged in qrels.values() for grade in judged.values())


def ndcg(documents: Sequence[str], grades: Mapping[str, float], cutoff: int | None = None) -> float:
    """nDCG with the grades themselves as gains and the discount 1 / log2(rank + 1), as trec_eval has it for whole grades.

    Järvelin & Kekäläinen, TOIS 2002. documents: best first. A grade below 0, and a document without one, gains nothing.
    """

    def dcg(gains: Iterable[float]) -> float:
        return math.fsum(max(0.0, gain) / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))

    ideal = dcg(sorted(grades.values(), reverse=True)[:cutoff])
    return dcg(grades.get(document, 0.0) for document in documents[:cutoff]) / ideal if ideal else 0.0


def _whole(grade: float) -> int:
    """A grade for measures of relevant or not: what is above 0 stays so, and a fraction reaches no `rel` above it."""
    return max(1, math.floor(grade)) if grade > 0 else math.floor(grade)


def _gain_measures(parsed: Mapping[str, Measure]) -> list[str]:
    """The measures to take by `ndcg`. Raises InputError for one that has gains of other kinds, which need whole grades."""
    gains = [name for name, each in parsed.items() if each.NAME == "nDCG" and set(each.params) <= {"cutoff"}]
    for name, each in parsed.items():
        if name not in gains and "rel" not in each.SUPPORTED_PARAMS and each.NAME != "Judged":
            raise InputError(
                f"the judgements hold fractions, and {name} is defined for whole grades only",
                "take nDCG, or round them",
            )
    return gains


def averaged(runs: Sequence[Measured]) -> Measured:
    """The mean of each query over several runs, for instance of models of several seeds.

    Intervals are then over queries: they do not show how far seeds lie apart.
    """
    per_query = {
        name: {query: math.fsum(run.per_query[name][query] for run in runs) / len(runs) for query in values}
        for name, values in runs[0].per_query.items()
    }
    mean = {name: math.fsum(values.values()) / len(values) for name, values in per_query.items()}
    return replace(runs[0], per_query=per_query, mean=mean)


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
    for name in names:
        head = name.strip().partition("@")[0].partition("(")[0]
        try:
            measure = ir_measures.parse_measure(_ALIASES.get(head, head) + name.strip()[len(head) :])
            supported = ir_measures.DefaultPipeline.supports(measure)
        except (NameError, ValueError, KeyError, AttributeError, TypeError, AssertionError) as error:
            raise InputError(
                f"{name!r} is not a measure of ir-measures ({error})", "expected names like nDCG@10, RR@10, R@100, AP"
            ) from None
        if not supported:
            raise InputError(
                f"no installed provider of ir-measures computes {name!r}", "expected names like nDCG@10, RR@10, R@100"
            )
        parsed[str(measure)] = measure
    if not parsed:
        raise InputError("no measure was named", "expected names like nDCG@10, RR@10, R@100")
    return parsed


def cutoff(measure: str) -> int | None:
    """How many hits of a query the measure looks at; None for all of them."""
    value = parse_measures([measure])[measure].params.get("cutoff")
    return None if value is None else int(value)


def require_numbers(query: str, hits: Mapping[str, float]) -> None:
    for document, score in hits.items():
        if math.isnan(score):
            raise InputError(f"query {query}: the score of document {document} is not a number (NaN)")


def _ir_measures() -> Any:
    try:
        import ir_measures
    except ModuleNotFoundError as error:
        raise MissingExtra("measuring runs", "eval") from error
    return ir_measures
