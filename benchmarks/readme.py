"""Write the README's tables from the result files they belong to.

    python -m benchmarks.readme

A table stands between `<!-- table: NAME -->` and `<!-- end -->`, and is made from `benchmarks/results/NAME/summary.json`,
with the goals and the command that made it; after `<!-- goals: NAME -->` the table is left out. Nothing in between is
typed by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

from opensearch_neural.files import write_text
from opensearch_neural.results import Summary, read
from opensearch_neural.tables import result_table

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parent.parent / "README.md"

_TABLE = re.compile(r"(<!-- (?P<what>table|goals): (?P<name>[\w/-]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def rendered(what: str, summary: Summary) -> str:
    """A result file as the README shows it: the table unless `what` is "goals", the goals, the command."""
    parts = [] if what == "goals" else [result_table([row for row in summary.rows if " - " not in row.measure])]
    if summary.goals:
        parts.append("\n".join(f"- {goal}" for goal in summary.goals))
    parts.append(f"`{summary.command}`")
    return "\n\n".join(parts) + "\n"


def with_tables(text: str, results: Path = RESULTS) -> str:
    """The README's text with every table as its result file has it."""

    def table(match: re.Match[str]) -> str:
        summary = read(results / match["name"] / "summary.json")
        return match[1] + "\n" + rendered(match["what"], summary) + "\n" + match["end"]

    return _TABLE.sub(table, text)


if __name__ == "__main__":
    write_text(README, with_tables(README.read_text(encoding="utf-8")))
