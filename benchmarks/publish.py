"""How a benchmark ends: a table and its goals in the terminal, and all of it in a result file if one is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from opensearch_neural.evaluation.provenance import Machine
from opensearch_neural.evaluation.results import Goal, Row, Summary, data_facts
from opensearch_neural.evaluation.tables import result_table


def publish(
    rows: list[Row],
    goals: list[Goal],
    *,
    title: str,
    data: Iterable[Path],
    seeds: Sequence[int],
    shown: Sequence[str] | None,
    record: Path | None,
    machine: Machine | None = None,
) -> None:
    """Print the measures `shown` (None: all) and the goals; write summary.json into the folder `record` where given.

    data: the folders of the data sets that the rows rest on; machine: its facts, if others than every result has
    """
    facts = [data_facts(folder) for folder in data]
    summary = Summary.of_this_run(data=facts, seeds=seeds, rows=rows, goals=goals, title=title, machine=machine)
    print(result_table(rows, shown, intervals=True))
    for goal in goals:
        print(goal)
    if record:
        print(f"written: {summary.write(record)}")
