"""The end of a benchmark: prints a table and the goals, and writes a result file if a folder is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from opensearch_neural.evaluation.provenance import Machine
from opensearch_neural.evaluation.results import Goal, Row, Summary, data_facts
from opensearch_neural.evaluation.tables import result_table


def record_option(help: str = "Write summary.json there.") -> Callable[[Any], Any]:
    return click.option("--record", type=click.Path(path_type=Path, file_okay=False), default=None, help=help)


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
    """Print the measures `shown` (None: all) and the goals; write summary.json into the folder `record`, if given.

    data: the folders of the data sets behind the rows; machine: its facts, if not the usual ones
    """
    facts = [data_facts(folder) for folder in data]
    summary = Summary.of_this_run(data=facts, seeds=seeds, rows=rows, goals=goals, title=title, machine=machine)
    print(result_table(rows, shown, intervals=True))
    for goal in goals:
        print(goal)
    if record:
        print(f"written: {summary.write(record)}")
