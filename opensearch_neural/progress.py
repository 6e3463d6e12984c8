"""Progress of long work on stderr: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterable
from types import TracebackType
from typing import Any, TypeVar

SECONDS_BETWEEN_LINES = 10.0

T = TypeVar("T")


def counted(rows: Iterable[T], title: str, *, total: int | None = None, unit: str) -> Generator[T, None, None]:
    """Yield `rows`, and show how many were taken."""
    with Progress(title, total=total, unit=unit) as progress:
        for row in rows:
            yield row
            progress.update(1)


class Progress:
    """Shows a count, of `total` if that is known. unit: what is counted, in the plural. show: if False, shows nothing."""

    def __init__(self, title: str, *, total: int | None = None, unit: str = "docs", show: bool = True) -> None:
        self.title = title
        self.total = total
        self.unit = unit
        self.count = 0
        self.note = ""
        self._started = self._told = time.monotonic()
        terminal = sys.stderr.isatty()
        self._bar: Any = None
        if show and terminal:
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit=f" {unit}", desc=title, dynamic_ncols=True)
        self._lines = show and not terminal
        self._skipped = 0
        self._ahead = 0
        self._last_told: tuple[int, str] | None = None

    def ahead(self, count: int) -> None:
        """Show `count` as done already; the count of the next `update` includes it."""
        self._ahead += count
        self._count(count)

    def raise_total(self, total: int) -> None:
        """There is more to do than was known: `total` from now on, unless it is less."""
        if self.total is not None and total > self.total:
            self.total = total
            if self._bar is not None:
                self._bar.total = total

    def update(self, count: int, *, skipped: bool = False) -> None:
        """skipped: an earlier run did this, so it does not count for the rate."""
        count, self._ahead = count - self._ahead, 0
        self._count(count, skipped=skipped)

    def _count(self, count: int, *, skipped: bool = False) -> None:
        self.count += count
        if skipped:
            self._skipped += count
        if self._bar is not None:
            # tqdm does not count `initial` in its rate.
            self._bar.initial = self._skipped
            self._bar.update(count)
        if self._lines and time.monotonic() - self._told >= SECONDS_BETWEEN_LINES:
            self._tell()

    def remark(self, note: str) -> None:
        if note != self.note:
            self.note = note
            if self._bar is not None:
                self._bar.set_postfix_str(note, refresh=False)

    def _tell(self) -> None:
        self._told, self._last_told = time.monotonic(), (self.count, self.note)
        rate = (self.count - self._skipped) / max(self._told - self._started, 1e-9)
        # Unreadable records are counted here, but may be missing from the total.
        of_total = f" of {self.total:,}" if self.total and self.total >= self.count else ""
        parts = [f"{self.title}: {self.count:,}{of_total} {self.unit}"]
        if rate:
            parts.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s")
            if self.total and self.total > self.count:
                parts.append(f"{_duration((self.total - self.count) / rate)} left")
        if self.note:
            parts.append(self.note)
        print(", ".join(parts), file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._lines and self._last_told != (self.count, self.note):
            self._tell()


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
