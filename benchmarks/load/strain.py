"""How hard a measurement was for the generator, and from when on it is refused: it would be of the generator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.load import histogram as hdr
from benchmarks.load.blocks import Block, Level
from benchmarks.load.ceiling import Ceiling

MOST_OF_CEILING = 0.7  # the most of its ceiling that the generator may need in a measurement
MOST_OF_A_CORE = 0.85  # the most processor time of one worker: beyond it requests wait for the generator
MOST_LATENESS = 0.25  # of an open loop's P99 that may be the generator's own lateness


@dataclass(frozen=True)
class Strain:
    """How hard a measurement was for the generator.

    ceiling_share: requests a second, of what it can do; core_share: of its busiest worker, of one core; late_share: of
    an open loop's P99, the P99 of its own lateness.
    """

    ceiling_share: float | None = None
    core_share: float = 0.0
    late_share: float | None = None

    def refusal(self) -> str | None:
        """Why the measurement says more about the generator than about the cluster; None where it does not."""
        if self.ceiling_share is not None and self.ceiling_share > MOST_OF_CEILING:
            if self.ceiling_share == float("inf"):
                return "the endpoint that does nothing answered nothing: what the generator can do is not known"
            return f"{self.ceiling_share:.0%} of what the generator can do"
        if self.core_share > MOST_OF_A_CORE:
            return f"a generator process needed {self.core_share:.0%} of a core"
        if self.late_share is not None and self.late_share > MOST_LATENESS:
            return f"the generator was late by {self.late_share:.0%} of the P99"
        return None


def strain_of(level: Level, blocks: Sequence[Block], ceiling: Ceiling | None) -> Strain:
    """How hard these blocks were for the generator."""
    if not blocks:
        return Strain()
    seconds = sum(block.seconds for block in blocks)
    speed = sum(block.completed for block in blocks) / seconds
    late = None
    if level.mode == "open" and all(block.late for block in blocks):
        p99_late, p99 = (
            float(hdr.quantile(hdr.counts(hdr.merge(hdr.decode(getattr(block, part)) for block in blocks)), 0.0, 0.99))
            for part in ("late", "latency")
        )
        late = p99_late / p99 if 0 < p99 < float("inf") else None
    share = None
    if ceiling is not None:
        share = speed / ceiling.requests_per_second if ceiling.requests_per_second else float("inf")
    return Strain(
        ceiling_share=share,
        core_share=sum(block.core_share * block.seconds for block in blocks) / seconds,
        late_share=late,
    )
