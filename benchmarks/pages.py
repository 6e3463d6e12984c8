"""Write the tables of the README and docs/ from the result files they belong to.

    python -m benchmarks.pages

A table stands between `<!-- table: NAME -->` and `<!-- end -->`, and is made from `benchmarks/results/NAME/summary.json`,
with the goals and the command that made it; after `<!-- table: NAME: MEASURE, MEASURE -->` it has these measures alone, and
no goals; after `<!-- goals: NAME -->` the table is left out, after `<!-- gains: NAME -->`
it is one of paired differences in nDCG@10 with a line for each set, after `<!-- arms: NAME -->` one of paired differences
with a line for each arm, after `<!-- ratios: NAME -->` a load test is shown by its ratios to its baseline. After
`<!-- costs: NAME: MEASURE, MEASURE; MEASURE of NAME, NAME -->` what engines cost by the first result stands beside what the
same models found in others, in which they were trained for longer.
Nothing in between is typed by hand, nor are the single figures of docs/encoding-at-scale.md (`speed/encoding_page.py`).
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.render import arms, costs, gains, of_models, ratios
from benchmarks.speed import encoding, encoding_page
from opensearch_neural.evaluation.results import Summary, read
from opensearch_neural.evaluation.tables import result_table
from opensearch_neural.files import write_text

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parent.parent / "README.md"
PAGES = (README, *sorted((README.parent / "docs").glob("*.md")))

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


def with_tables(text: str, results: Path = RESULTS) -> str:
    """A page's text with every table as its result file has it."""

    def block(match: re.Match[str]) -> str:
        summary = read(results / match["name"] / "summary.json")
        if match["what"] == "costs":
            measures, _, beside = match["measures"].partition("; ")
            quality, _, names = beside.partition(" of ")
            others = [read(results / other / "summary.json") for other in names.split(", ")]
            (set_,) = {row.set for row in summary.rows}
            trained = of_models(set_, quality, others)
            commands = "\n\n".join(f"`{each.command}`" for each in (summary, *others))
            made = f"{costs(summary.rows, measures.split(', '), trained)}\n\n{commands}\n"
            return match[1] + "\n" + made + "\n" + match["end"]
        return match[1] + "\n" + rendered(match["what"], summary, match["measures"]) + "\n" + match["end"]

    return _TABLE.sub(block, text)


if __name__ == "__main__":
    for page in PAGES:
        text = with_tables(page.read_text(encoding="utf-8"))
        if page.name == encoding_page.PAGE.name:
            text = encoding_page.with_figures(text, read(encoding.RESULTS))
        write_text(page, text)
