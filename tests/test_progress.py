from __future__ import annotations

import pytest

from opensearch_neural import progress
from opensearch_neural.progress import Progress


def test_the_last_line_is_not_told_twice(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for seconds, lines in ((0.0, 2), (60.0, 1)):
        monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", seconds)
        with Progress("done", total=2) as shown:
            shown.update(1)
            shown.update(1)
        told = capsys.readouterr().err.splitlines()
        assert len(told) == lines and told[-1].startswith("done: 2 of 2 docs")


def test_a_total_grows_with_what_was_not_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    with Progress("done", total=2) as shown:
        for total in (1, 2, 4):
            shown.raise_total(total)
            shown.update(1)
    told = [line.partition(" docs")[0] for line in capsys.readouterr().err.splitlines()]
    assert told == ["done: 1 of 2", "done: 2 of 2", "done: 3 of 4"]


def test_a_bar_has_the_total_that_grew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was passed, and showed no share any more."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress("done", total=2) as shown:
        shown.raise_total(3)
        shown.update(3)
        assert (shown._bar.n, shown._bar.total) == (3, 3)
