"""Arms that take turns on the same work: their times, rates and ratios."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from opensearch_neural.evaluation.results import Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

SEED = 0
LEVEL = 0.95

K = TypeVar("K")
B = TypeVar("B")
R = TypeVar("R")


def in_turn(arms: Iterable[K], turn: int) -> list[K]:
    """The arms in their order, beginning with another one each turn, so that a slow moment does not always meet the same."""
    ordered = list(arms)
    first = turn % len(ordered)
    return ordered[first:] + ordered[:first]


def on_blocks(arms: Mapping[K, Callable[[B], R]], blocks: Sequence[B]) -> tuple[dict[K, list[float]], dict[K, list[R]]]:
    """({arm: its seconds on each block}, {arm: its results}). The arms take turns in beginning a block."""
    seconds: dict[K, list[float]] = {arm: [] for arm in arms}
    results: dict[K, list[R]] = {arm: [] for arm in arms}
    for number, block in enumerate(blocks):
        for arm in in_turn(arms, number):
            begun = time.perf_counter()
            result = arms[arm](block)
            seconds[arm].append(time.perf_counter() - begun)
            results[arm].append(result)
        say(f"  block {number + 1} of {len(blocks)}")
    return seconds, results


Search = Callable[[str], Any]
"""A query's text → the answer."""
Seconds = dict[str, list[float]]
"""{way to search: seconds for each query, in the fastest of several passes}"""


def fastest(ways: Mapping[str, Search], texts: Iterable[str], passes: int) -> tuple[dict[str, list[Any]], Seconds]:
    """({way: its last result for each text}, seconds). The ways take turns in beginning a pass."""
    answers: dict[str, list[Any]] = {way: [] for way in ways}
    seconds: Seconds = {way: [] for way in ways}
    for text in texts:
        best: dict[str, float] = {}
        answer: dict[str, Any] = {}
        for turn in range(passes):
            for way in in_turn(ways, turn):
                begun = time.perf_counter()
                answer[way] = ways[way](text)
                taken = time.perf_counter() - begun
                best[way] = min(taken, best.get(way, taken))
        for way in ways:
            answers[way].append(answer[way])
            seconds[way].append(best[way])
    return answers, seconds


RatioInterval = tuple[float, float, float]
"""(value, low, high): with the 95% interval over resampled turns, which are those of one run: another run may differ more"""


def widened_tail(turns: int) -> float:
    """The share of bootstrap values that lie below a 95% interval from 2 or more turns. A plain percentile interval from so
    few is too narrow; its ends are widened as Hesterberg advises ("What Teachers Should Know About the Bootstrap", The
    American Statistician 69, 2015, section 4.3)."""
    from scipy import stats  # of the extras [eval] and [bench], which whoever measures has

    return float(stats.norm.cdf(math.sqrt(turns / (turns - 1)) * stats.t.ppf((1 - LEVEL) / 2, turns - 1)))


def over_turns(statistic: Callable[[NDArray[np.int64]], Any], turns: int, seed: int = SEED) -> RatioInterval:
    """The statistic over all turns, with its interval; a single turn has none, so its ends are the value. statistic: numbers
    of turns → value"""
    drawn = np.random.default_rng(seed).integers(turns, size=(2000, turns))
    tail = widened_tail(turns) if turns > 1 else 0.5
    low, high = np.quantile([statistic(pick) for pick in drawn], [tail, 1 - tail])
    return float(statistic(np.arange(turns))), float(low), float(high)


def rate(seconds: Sequence[float], documents: int) -> RatioInterval:
    """Documents a second. seconds: of each turn; documents: those of one turn"""
    of_turns = np.array(seconds)
    return over_turns(lambda pick: documents / of_turns[pick].mean(), len(of_turns))


def ratio(slow: Sequence[float], fast: Sequence[float], seed: int = SEED) -> RatioInterval:
    """How many times as fast `fast` is as `slow`. slow, fast: seconds of the same turns"""
    numerator, denominator = np.array(slow), np.array(fast)
    return over_turns(lambda pick: numerator[pick].sum() / denominator[pick].sum(), len(numerator), seed)


def ratio_row(set_: str, arm: str, baseline: str, estimate: RatioInterval, turns: int) -> Row:
    row = Row(set_, arm, "documents/s", *estimate, turns, kind="ratio", baseline=baseline)
    return replace(row, measure_label=f"times {baseline}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
