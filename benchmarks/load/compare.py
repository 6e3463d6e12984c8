"""Two runs of the load benchmark compared: what changed, and what is noise.

Times of two runs differ because the machine had another day. Where both runs have the baseline engine, its neighbouring
blocks take that out: what is compared is then each engine's ratio to the baseline (`relative`). The plain numbers are
compared as well (`absolute`), for changes that are meant to reach all engines.

A run's rounds say how much its numbers vary by themselves. A difference counts as a change where it is too large for
that, at 5% for all comparisons of its kind together (Holm).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.load import statistics as stats
from benchmarks.load.blocks import Level
from benchmarks.load.measurement import Measurement
from benchmarks.load.statistics import MEASURES, THROUGHPUT, Cell, Change, Floats, cells, shared_rounds
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.tables import table

ALPHA = 0.05
HIGHER_IS_BETTER = (THROUGHPUT,)


@dataclass(frozen=True)
class Difference:
    """One number of both runs."""

    level: str
    engine: str
    measure: str
    relative: bool
    """Whether it is the engine's ratio to the baseline."""
    before: float
    after: float
    change: Change
    p: float
    """Of "there is no change", corrected for all comparisons."""
    detectable: float
    """How large a change, as a share, would have been found half the time, alone."""

    @property
    def verdict(self) -> str:
        if self.p > ALPHA:
            return "no change shown"
        better = (self.change.ratio > 1) == (self.measure in HIGHER_IS_BETTER)
        return "better" if better else "worse"


@dataclass(frozen=True)
class Comparison:
    """What two runs say of each other."""

    differences: list[Difference]
    """Of numbers, and of ratios to the baseline."""
    unlike: list[str]
    """In what the two runs are not the same measurement."""

    @property
    def worse(self) -> list[Difference]:
        """Of the ratios to the baseline, where there are any: plain numbers change with the machine's day."""
        relative = any(each.relative for each in self.differences)
        return [each for each in self.differences if each.verdict == "worse" and each.relative is relative]

    def to_json(self) -> dict[str, Any]:
        return {
            "unlike": self.unlike,
            "differences": [{**asdict(each), "verdict": each.verdict} for each in self.differences],
        }


def compare(
    before: Measurement,
    after: Measurement,
    *,
    facts: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None,
) -> Comparison:
    """Raises InputError if the two have no engine at the same level in common, or too few rounds."""
    found: list[tuple[str, str, str, bool, Floats, Floats, Change]] = []
    for level, name, a, b in _shared(before, after):
        for measure in MEASURES:
            for relative in (False, True):
                one, other = _draws(a, measure, relative), _draws(b, measure, relative)
                if one is not None and other is not None:
                    change = stats.change(one[0], other[0], one[1], other[1])
                    if change is not None:
                        found.append((level.label, name, measure, relative, one[0], other[0], change))
    if not found:
        raise InputError(
            "the two runs have nothing that can be compared",
            f"they need an engine at the same level in both, with {stats.FEWEST_ROUNDS} rounds or more",
        )
    p_values: dict[bool, Iterator[float]] = {
        kind: iter(stats.holm([each[6].p for each in found if each[3] is kind])) for kind in (False, True)
    }
    differences = [
        Difference(
            level,
            name,
            measure,
            relative,
            float(one[0]),
            float(other[0]),
            change,
            next(p_values[relative]),
            float(np.sqrt(change.high / change.low) - 1),
        )
        for level, name, measure, relative, one, other, change in found
    ]
    return Comparison(differences, unlike(before, after, facts))


def _shared(before: Measurement, after: Measurement) -> Iterator[tuple[Level, str, Cell, Cell]]:
    ours, theirs = cells(before), cells(after)
    for level, row in ours.items():
        for name, cell in row.items():
            other = theirs.get(level, {}).get(name)
            if other is not None and not cell.refused and not other.refused:
                yield level, name, cell, other


def _draws(cell: Cell, measure: str, relative: bool) -> tuple[Floats, int] | None:
    """(the value and its bootstrap draws, how many rounds they rest on); None if it may not be shown, or if a ratio
    is asked for and the cell is the baseline."""
    if not cell.may_show(measure):
        return None
    if not relative:
        return cell.drawn(measure), len(cell.sample.rounds)
    base = cell.baseline
    if base is None or base is cell or not base.may_show(measure):
        return None
    both = shared_rounds(cell, base)
    if not both:
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        return cell.drawn(measure, both) / base.drawn(measure, both), len(both)


def unlike(
    before: Measurement, after: Measurement, facts: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
) -> list[str]:
    """In what the two runs differ beyond their times."""
    found = []
    pairs: list[tuple[str, Any, Any]] = [
        ("queries", before.queries_hash, after.queries_hash),
        ("documents", _documents(before), _documents(after)),
        ("segments", _segments(before), _segments(after)),
        ("OpenSearch", before.cluster and before.cluster.version, after.cluster and after.cluster.version),
        ("heap", before.cluster and before.cluster.heap_max, after.cluster and after.cluster.heap_max),
        ("baseline", before.settings.baseline, after.settings.baseline),
        ("generator processes", before.settings.processes, after.settings.processes),
    ]
    if facts is not None:
        machines = [side.get("machine") or {} for side in facts]
        pairs += [(name, machines[0].get(name), machines[1].get(name)) for name in ("cpu", "cores", "memory_gib")]
    for name, one, other in pairs:
        if one != other:
            found.append(f"{name}: {one} → {other}")
    for name, spec in before.variants.items():
        if name in after.variants and after.variants[name] != spec:
            found.append(f"the engine {name}: {spec} → {after.variants[name]}")
    for label, run in (("first", before), ("second", after)):
        if run.partial:
            found.append(f"the {label} run is partial: {run.partial}")
    return found


def _documents(run: Measurement) -> list[int]:
    return [facts.documents for facts in run.indexes.values()]


def _segments(run: Measurement) -> list[int]:
    return [facts.segments for facts in run.indexes.values()]


def text(found: Comparison, baseline: str) -> str:
    """The comparison for a terminal: each engine's ratio to the baseline first, then the plain numbers."""
    parts = [f"! {line}" for line in found.unlike]
    for relative, head in ((True, f"Ratios to {baseline}, before and after"), (False, "Plain numbers")):
        chosen = [each for each in found.differences if each.relative is relative]
        if chosen:
            lines = [
                [
                    each.level,
                    each.engine,
                    each.measure,
                    f"{each.before:.4g}",
                    f"{each.after:.4g}",
                    f"{each.change.ratio - 1:+.1%} [{each.change.low - 1:+.1%}, {each.change.high - 1:+.1%}]",
                    f"{each.p:.3f}",
                    f"±{each.detectable:.1%}",
                    each.verdict,
                ]
                for each in chosen
            ]
            header = ["level", "engine", "measure", "before", "after", "change", "p", "detectable", ""]
            parts.append(f"{head}\n\n{table(header, lines)}")
    return "\n\n".join(parts)
