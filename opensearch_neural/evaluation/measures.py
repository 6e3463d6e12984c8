"""The measures of a run on judged queries.

Measures come from ir-measures, under its names (nDCG@10, RR@10, R@100, AP, P(rel=2)@5, …). A run is ranked by score,
equal scores by document id, before it is measured, so that values do not depend on how a provider breaks ties.
"""

from __future__ import annotations

import math
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from opensearch_neural.errors import InputError, MissingExtra
from opensearch_neural.queries import MOST_HITS
from opensearch_neural.retrievers import Run

if TYPE_CHECKING:
    from ir_measures.measures import Measure

Qrels = Mapping[str, Mapping[str, float]]
"""{query id: {document id: grade}}; above 0 is relevant"""

MEASURES = ("nDCG@10", "RR@10", "R@100", "R@1000")

HIGHEST_GRADE = 4
"""The highest grade for which ERR, and nDCG with exponential gains, are defined in ir-measures (computed by gdeval.pl)."""

# {usual name: name in ir-measures}
_ALIASES = {"MRR": "RR", "recall": "R", "Recall": "R", "NDCG": "nDCG", "ndcg": "nDCG", "MAP": "AP"}


@dataclass(frozen=True)
class Measured:
    """The measures of a run, over the queries with a relevant document: no engine could score on others."""

    per_query: dict[str, dict[str, float]]
    """{measure: {query id: value}}"""
    mean: dict[str, float]
    """{measure: value}"""
    queries: int
    """How many queries have a relevant document."""
    unanswered: int
    """How many of these queries have no hit; they count as 0."""
    unjudged: int
    """How many queries of the run have no judgements; they are left out."""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Measured:
        """The inverse of `asdict`; ignores what earlier versions counted besides."""
        return cls(**{each.name: content[each.name] for each in fields(cls)})


def measure(run: Mapping[str, Mapping[str, float]], qrels: Qrels, measures: Iterable[str] = MEASURES) -> Measured:
    """Mean and per-query values of `measures`.

    A grade may be a fraction, as from clicks. nDCG then uses it as the gain. For a measure of binary relevance (RR, R, AP,
    P, …) any grade above 0 is relevant, and with `rel=2` any grade of 2 or more.
    Raises InputError for a score that is not a number (naming query and document), for qrels without a relevant document,
    for an unknown measure, and for a measure that is not defined for these grades (`require_fitting`).
    """
    parsed = parse_measures(measures)
    answerable = {query: dict(judged) for query, judged in qrels.items() if any(grade > 0 for grade in judged.values())}
    if not answerable:
        raise InputError("the judgements hold no relevant document: there is nothing to measure")
    require_fitting(answerable, parsed)
    ranked: Run = {}
    for query, hits in run.items():
        require_numbers(query, hits)
        if query in answerable and hits:
            # Replace scores by ranks: they are exact in trec_eval's single precision, and have no ties.
            ranked[query] = {document: float(len(hits) - at) for at, (document, _) in enumerate(rank(hits))}
    per_query: dict[str, dict[str, float]] = {name: dict.fromkeys(answerable, 0.0) for name in parsed}
    gains = [name for name, each in parsed.items() if _takes_gains(each)] if has_fractions(answerable) else []
    for name in gains:
        per_query[name].update(
            (query, ndcg(list(hits), answerable[query], parsed[name].params.get("cutoff")))
            for query, hits in ranked.items()
        )
    others = [each for name, each in parsed.items() if name not in gains]
    for name, query, value in _calculated(others, answerable, ranked) if others else ():
        per_query[name][query] = value
    return Measured(
        per_query=per_query,
        mean={name: math.fsum(values.values()) / len(values) for name, values in per_query.items()},
        queries=len(answerable),
        unanswered=len(answerable) - len(ranked),
        unjudged=sum(1 for query in run if not qrels.get(query)),
    )


def _calculated(measures: Sequence[Measure], qrels: Qrels, run: Run) -> Iterator[tuple[str, str, float]]:
    """(measure, query, value), by ir-measures.

    It gets numbers instead of ids, because its provider gdeval.pl cuts off a query id before its last hyphen, and a
    document id after a blank.
    """
    documents: defaultdict[str, str] = defaultdict(map(str, count(1)).__next__)
    queries = {query: str(number) for number, query in enumerate(qrels, start=1)}
    of_number = {number: query for query, number in queries.items()}
    judged = {
        queries[query]: {documents[document]: _whole(grade) for document, grade in of.items()}
        for query, of in qrels.items()
    }
    ranked = {
        queries[query]: {documents[document]: score for document, score in hits.items()} for query, hits in run.items()
    }
    try:
        for result in _ir_measures().iter_calc(list(measures), judged, ranked):
            yield str(result.measure), of_number[result.query_id], float(result.value)
    except subprocess.CalledProcessError as error:
        names = ", ".join(map(str, measures))
        raise InputError(f"ir-measures cannot compute {names}: {error}", "measure nDCG@10, RR@10 or R@100") from None


def require_fitting(qrels: Qrels, measures: Iterable[str]) -> None:
    """Raise InputError for a measure that is not defined for a grade: a fraction, or a grade above HIGHEST_GRADE."""
    parsed = parse_measures(measures)
    if has_fractions(qrels):
        for name, each in parsed.items():
            if not _takes_gains(each) and "rel" not in each.SUPPORTED_PARAMS and each.NAME != "Judged":
                raise InputError(
                    f"the judgements hold fractions, and {name} is defined for whole grades only",
                    "use nDCG, or round them",
                )
    highest = max((grade for judged in qrels.values() for grade in judged.values()), default=0)
    for name, each in parsed.items():
        if highest > HIGHEST_GRADE and (each.NAME == "ERR" or each.params.get("dcg") == "exp-log2"):
            raise InputError(
                f"the judgements hold the grade {highest:g}, and {name} is defined for grades up to {HIGHEST_GRADE}",
                "use nDCG, or grades from 0 to 4",
            )


def relevant_documents(qrels: Qrels) -> list[str]:
    """The ids of the documents that are relevant to any query, sorted, each once."""
    return sorted({document for judged in qrels.values() for document, grade in judged.items() if grade > 0})


def has_fractions(qrels: Qrels) -> bool:
    """Whether any grade is not a whole number."""
    return any(not float(grade).is_integer() for judged in qrels.values() for grade in judged.values())


def ndcg(documents: Sequence[str], grades: Mapping[str, float], cutoff: int | None = None) -> float:
    """nDCG with grades as gains and the discount 1 / log2(rank + 1), as trec_eval computes it for whole grades.

    Järvelin & Kekäläinen, TOIS 2002. documents: best first. A grade below 0, and a document without one, gains nothing.
    """

    def dcg(gains: Iterable[float]) -> float:
        return math.fsum(max(0.0, gain) / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))

    ideal = dcg(sorted(grades.values(), reverse=True)[:cutoff])
    return dcg(grades.get(document, 0.0) for document in documents[:cutoff]) / ideal if ideal else 0.0


def _whole(grade: float) -> int:
    """A whole grade for measures of binary relevance: rounded down, but at least 1 for grades above 0."""
    return max(1, math.floor(grade)) if grade > 0 else math.floor(grade)


def _takes_gains(measure: Measure) -> bool:
    """Whether `ndcg` computes the measure, so that fractions can be gains."""
    return measure.NAME == "nDCG" and set(measure.params) <= {"cutoff"}


def averaged(runs: Sequence[Measured]) -> Measured:
    """The mean of each query over several runs, for instance of models with several seeds.

    Intervals are then over queries and do not show the differences between seeds.
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
    """The name of a measure in tables: RR in ir-measures is MRR in papers."""
    return f"M{measure}" if measure.startswith("RR") else measure


def parse_measures(names: Iterable[str]) -> dict[str, Measure]:
    """{name: ir-measures measure}; other usual spellings (MRR@10, recall@100) are accepted too.

    Raises InputError for a name that ir-measures does not know or cannot compute here, and for a cut-off that is not a
    whole number from 1 to 10,000.
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
        at = measure.params.get("cutoff")
        if at is not None and not (isinstance(at, int) and 1 <= at <= MOST_HITS):
            raise InputError(
                f"the cut-off of {name!r} is not a whole number from 1 to {MOST_HITS:,}",
                "expected names like nDCG@10, RR@10, R@100",
            )
        parsed[str(measure)] = measure
    if not parsed:
        raise InputError("no measure was named", "expected names like nDCG@10, RR@10, R@100")
    return parsed


def cutoff(measure: str) -> int | None:
    """How many hits of a query the measure uses; None for all."""
    (parsed,) = parse_measures([measure]).values()
    value = parsed.params.get("cutoff")
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
