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
