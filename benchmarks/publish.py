"""How a benchmark ends: a table and its goals in the terminal, and all of it in a result file where one is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from opensearch_neural.evaluation.results import (
    Goal,
    Row,
    Summary,
    code_commit,
    command_line,
    data_facts,
    machine_facts,
)


def signed(row: Row, digits: int = 3) -> str:
    """A paired difference as goals show it: "+0.045 [+0.036, +0.055]", without the interval where there is none."""
    interval = "" if row.low is None or row.high is None else f" [{row.low:+.{digits}f}, {row.high:+.{digits}f}]"
    return f"{row.value:+.{digits}f}{interval}"


def publish(
    rows: list[Row],
    goals: list[Goal],
    *,
    title: str,
    data: Iterable[Path],
    seeds: Sequence[int],
    shown: Sequence[str] | None,
    record: Path | None,
) -> None:
    """Print the measures `shown` (None: all) and the goals; write summary.json into the folder `record` where given.

    data: the folders of the data sets that the rows rest on.
    """
    from opensearch_neural.evaluation.tables import result_table

    summary = Summary(
        command=command_line(),
        code=code_commit(),
        machine=machine_facts(),
        data=[data_facts(folder) for folder in data],
        seeds=list(seeds),
        rows=rows,
        goals=goals,
        title=title,
    )
    print(result_table(rows, shown, intervals=True))
    for goal in goals:
        print(goal)
    if record:
        print(f"written: {summary.write(record)}")
