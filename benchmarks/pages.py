"""Write the tables of the README and docs/ from the result files they belong to.

    python -m benchmarks.pages

A table stands between `<!-- table: NAME -->` and `<!-- end -->`, and is made from `benchmarks/results/NAME/summary.json`,
with the goals and the command that made it; after `<!-- table: NAME: MEASURE, MEASURE -->` it has these measures alone, and
no goals; after `<!-- goals: NAME -->` the table is left out, after `<!-- gains: NAME -->`
it is one of paired differences in nDCG@10 with a line for each set, after `<!-- arms: NAME -->` one of paired differences
with a line for each arm, after `<!-- ratios: NAME -->` a load test is shown by its ratios to its baseline. After
`<!-- costs: NAME: MEASURE, MEASURE; MEASURE of NAME, NAME -->` what engines cost by the first result stands beside what the
same models found in others, in which they were trained for longer.
Nothing in between is typed by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from benchmarks.load.report import with_interval
from opensearch_neural.evaluation.results import Row, Summary, read
from opensearch_neural.evaluation.tables import cell, pivot, result_table, table
from opensearch_neural.files import write_text

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parent.parent / "README.md"
PAGES = (README, *sorted((README.parent / "docs").glob("*.md")))
RATIOS = ("P99", "requests/s")
"""Each over the baseline's."""

_TABLE = re.compile(
    r"(<!-- (?P<what>table|goals|gains|arms|ratios|costs): (?P<name>[\w/-]+)(?:: (?P<measures>[^\n]+?))? -->\n).*?"
    r"(?P<end><!-- end -->)",
    re.DOTALL,
)


def rendered(what: str, summary: Summary, measures: str | None = None) -> str:
    """A result file as a page shows it: the table unless `what` is "goals", the goals, the command; of `measures`, with
    commas between them, where there are any, the table and the command.

    Of a load test ("ratios"), whose goals are one for each cell, the ratios and the command.
    """
    if what == "ratios":
        return f"{ratios(summary.rows)}\n\n`{summary.command}`\n"
    if measures:
        return f"{result_table(summary.rows, measures.split(', '))}\n\n`{summary.command}`\n"
    parts = []
    if what == "table":
        parts.append(result_table([row for row in summary.rows if row.kind not in ("difference", "p-value")]))
    elif what == "gains":
        parts.append(gains(summary.rows))
    elif what == "arms":
        parts.append(arms(summary.rows))
    if summary.goals:
        parts.append("\n".join(f"- {goal}" for goal in summary.goals))
    parts.append(f"`{summary.command}`")
    return "\n\n".join(parts) + "\n"


def ratios(rows: list[Row]) -> str:
    """A line for each index and level, a column for each engine and ratio, with their intervals."""
    chosen = [row for row in rows if row.kind == "ratio" and row.measure in RATIOS]
    by_cell = {(row.set, row.line, row.column): row for row in chosen}
    engines = list(dict.fromkeys(row.line for row in chosen))
    measures = sorted({row.column: RATIOS.index(row.measure) for row in chosen}.items(), key=lambda item: item[1])
    columns = [(engine, measure) for measure, _ in measures for engine in engines]

    return table(
        ["", *(f"{engine}: {measure}" for engine, measure in columns)],
        [
            [set_, *(with_interval(row) if (row := by_cell.get((set_, *column))) else "" for column in columns)]
            for set_ in dict.fromkeys(row.set for row in chosen)
        ],
    )


def gains(rows: list[Row]) -> str:
    """A line for each set: nDCG@10 of the baseline, and by how many points each engine lies above it."""
    chosen = [row for row in rows if (row.kind, row.measure) == ("difference", "nDCG@10")]
    (baseline,) = {row.against for row in chosen}
    value = {(row.set, row.line): row for row in rows if (row.kind, row.measure) == ("value", "nDCG@10")}
    points = {(row.set, row.line): _in_points(row) for row in chosen}
    engines = list(dict.fromkeys(row.line for row in chosen))
    return table(
        ["", f"{baseline}: nDCG@10", *(f"{engine}: points above" for engine in engines)],
        [
            [name, f"{value[name, baseline].value:.3f}", *(with_interval(points[name, engine]) for engine in engines)]
            for name in dict.fromkeys(row.set for row in chosen)
        ],
    )


def arms(rows: list[Row]) -> str:
    """A line for each arm and what it is compared with; for each set the arm's value of the measure that the first
    difference is of, and by how many points it lies above the other."""
    differences = [row for row in rows if row.kind == "difference"]
    measure = differences[0].measure
    value = {(row.set, row.line): row for row in rows if (row.kind, row.measure) == ("value", measure)}
    above = {(row.line, row.against, row.set): _in_points(row) for row in differences if row.measure == measure}
    sets = list(dict.fromkeys(set_ for set_, _ in value))
    lines = []
    for engine in dict.fromkeys(engine for _, engine in value):
        others = list(dict.fromkeys(other for one, other, _ in above if one == engine))
        for at, other in enumerate(others or [""]):
            cells = [with_interval(above.get((engine, other, one))) if other else "" for one in sets]
            values = [f"{value[one, engine].value:.3f}" if (one, engine) in value and at == 0 else "" for one in sets]
            pairs = [cell for pair in zip(values, cells, strict=True) for cell in pair]
            lines.append([engine if at == 0 else "", other, *pairs])
    heads = [head for one in sets for head in (f"{one}: {measure}", "points above")]
    return table(["", "compared with", *heads], lines)


def costs(rows: list[Row], measures: list[str], found: dict[str, Row]) -> str:
    """A line for each engine: what it costs, and what `found` ({engine: row}) says of it, trained for longer."""
    columns, lines = pivot(rows)
    engine_of = {row.line: row.engine for row in rows}
    (quality,) = {row.measure for row in found.values()}
    shown = [measure for measure in measures if measure in columns]
    return table(
        ["", *shown, f"{quality} (trained)"],
        [
            [
                engine,
                *(cell(values.get(measure), False) for measure in shown),
                cell(found.get(engine_of[engine]), False),
            ]
            for _, engine, values in lines
            if any(measure in values for measure in shown)
        ],
    )


def of_models(name: str, measure: str, summaries: Iterable[Summary]) -> dict[str, Row]:
    """{engine: its row of the measure on the set `name`}, of the first seed that the first of these results has."""
    found: dict[str, Row] = {}
    for summary in summaries:
        for row in summary.rows:
            if (row.set, row.kind, row.measure, row.variant) == (name, "value", measure, "") and row.seed is not None:
                found.setdefault(row.engine, row)
    return found


def _in_points(row: Row) -> Row:
    ends = {end: 100 * at for end in ("low", "high") if (at := getattr(row, end)) is not None}
    return replace(row, value=100 * row.value, **ends)


def with_tables(text: str, results: Path = RESULTS) -> str:
    """A page's text with every table as its result file has it."""

    def block(match: re.Match[str]) -> str:
        summary = read(results / match["name"] / "summary.json")
        if match["what"] == "costs":
            measures, _, beside = match["measures"].partition("; ")
            quality, _, names = beside.partition(" of ")
            others = [read(results / one / "summary.json") for one in names.split(", ")]
            (set_,) = {row.set for row in summary.rows}
            found = of_models(set_, quality, others)
            commands = "\n\n".join(f"`{one.command}`" for one in (summary, *others))
            made = f"{costs(summary.rows, measures.split(', '), found)}\n\n{commands}\n"
            return match[1] + "\n" + made + "\n" + match["end"]
        return match[1] + "\n" + rendered(match["what"], summary, match["measures"]) + "\n" + match["end"]

    return _TABLE.sub(block, text)


if __name__ == "__main__":
    for page in PAGES:
        write_text(page, with_tables(page.read_text(encoding="utf-8")))
