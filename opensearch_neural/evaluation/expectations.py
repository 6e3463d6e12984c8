"""Goals on the command line: `osn eval --expect ENGINE:MEASURE=LOW..HIGH`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.engine_comparison import EngineResult
from opensearch_neural.evaluation.measures import label, parse_measures
from opensearch_neural.evaluation.results import Goal


@dataclass(frozen=True)
class Expectation:
    """The goal that `engine`'s `measure` is between `low` and `high`."""

    engine: str
    """Its name, or the path of a run file."""
    measure: str
    """A measure by its `ir-measures` name."""
    low: float
    """The least value that meets the goal."""
    high: float
    """The highest value that meets the goal."""

    def goal(self, value: float) -> Goal:
        words = f"{self.engine} {label(self.measure)} between {self.low:g} and {self.high:g}"
        return Goal(words, f"{self.low:g} to {self.high:g}", value, self.low <= value <= self.high)

    def goal_of(self, results: Iterable[EngineResult]) -> Goal:
        """The goal with the measured value of its engine."""
        (value,) = (each.measured.mean[self.measure] for each in results if each.engine == self.engine)
        return self.goal(value)


def parse_expectation(text: str, engines: Sequence[str], measures: Sequence[str]) -> Expectation:
    """`Expectation` from "bm25:nDCG@10=0.66..0.70". Raises InputError that says what is wrong.

    An engine may be the path of a run file.
    """
    match = re.fullmatch(r"(?P<engine>.+):(?P<measure>[^:]+)=(?P<low>[\d.]+?)\.\.(?P<high>[\d.]+)", text)
    try:
        if match is None:
            raise ValueError
        low, high = float(match["low"]), float(match["high"])
    except ValueError:
        raise InputError(
            f"--expect {text!r}", "expected ENGINE:MEASURE=LOW..HIGH, like bm25:nDCG@10=0.66..0.70"
        ) from None
    if low > high:
        raise InputError(f"--expect {text!r}: {low:g} is above {high:g}", "write the lower number first")
    (measure,) = parse_measures([match["measure"]])
    if match["engine"] not in engines or measure not in measures:
        raise InputError(
            f"--expect {text!r}: {match['engine']} {measure} is not measured",
            f"measured are {', '.join(measures)} of {', '.join(engines)}",
        )
    return Expectation(match["engine"], measure, low, high)
