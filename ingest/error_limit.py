"""How many records may be rejected before an ingest or an encoding stops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from opensearch_neural.errors import OsnError

SHARE_RECORDS = 1000
"""Records that must be read before a share of errors is checked; at the end it is always checked."""


class TooManyErrors(OsnError):
    """More records were rejected than `--max-errors` allows."""


@dataclass(frozen=True)
class ErrorLimit:
    """The most records that may be rejected: a number, or a share (a float) of the records."""

    most: int | float
    """An int: a number of records; a float: a share of them."""

    def too_many(self, letters: int, records: int) -> bool:
        """Whether reading may end: with this many rejected, `check` stops the run. records: all that were read."""
        return letters > self._allowed(records if records >= SHARE_RECORDS else None)

    def check(self, letters: int, records: int, file: Path, *, ended: bool = False) -> None:
        """Raise TooManyErrors if too many of the records so far were rejected.

        file: the dead-letter file. ended: whether these are all records, so that few of them suffice to judge a share.
        """
        if letters > self._allowed(records if ended or records >= SHARE_RECORDS else None):
            limit = f"{self.most:.4g} of {records} records" if isinstance(self.most, float) else str(self.most)
            raise TooManyErrors(
                f"{letters} documents were rejected, more than --max-errors {limit} allows",
                f"read the reasons in {file}; run the same command again to continue",
            )

    def _allowed(self, records: int | None) -> float:
        """The most of `records` that may be rejected. None: too few records to judge a share."""
        if not isinstance(self.most, float):
            return self.most
        return math.inf if records is None else self.most * records
