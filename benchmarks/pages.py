"""Write the tables of docs/ (and of the README) from the result files they belong to.

    python -m benchmarks.pages

Between one of these lines and `<!-- end -->` stands what `benchmarks/results/NAME/summary.json` says, with the command that
made it:

    <!-- table: NAME -->                      all rows but differences, and the goals
    <!-- table: NAME: MEASURE, MEASURE -->    these measures alone; of several seeds their mean
    <!-- goals: NAME -->                      the goals
    <!-- gains: NAME -->                      paired differences in nDCG@10, a line for each set, and the goals
    <!-- gains: NAME: BASELINE -->            those over one of several baselines, of several seeds their mean
    <!-- arms: NAME -->                       paired differences, a line for each arm, and the goals
    <!-- quality-and-cost: NAME -->           engines by what they gain over the baseline and what they cost under load
    <!-- quality-and-cost: NAME: MEASURE, MEASURE; LEVEL; ENGINE, ENGINE -->
                                              of the costs and facts these measures alone, the costs of levels like
                                              "20 clients" and of engines whose quality was measured too; these engines
    <!-- quality-and-cost: NAME, NAME: … -->  the same engines and models in several results, each with its own index
    <!-- kept-and-cost: NAME -->              ways to search by what they keep of the exact result and what they cost
                                              under load, and the goals
    <!-- idf-shares: NAME -->                 what IDF at retrieval adds, and what IDF in training adds to that
    <!-- ratios: NAME -->                     a load test by its ratios to its baseline
    <!-- costs: NAME: MEASURE, MEASURE; MEASURE of NAME, NAME -->
                                              what engines cost by the first result, beside what the same engines found in
                                              the others, in which they were trained for longer

Nothing in between is typed by hand, nor are the single figures of docs/encoding-at-scale.md (`speed/encoding_page.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.papers.inference_free_sparse_ablations import idf_shares
from benchmarks.render import (
    COSTS,
    FACTS,
    arms,
    costs,
    gains,
    kept_and_cost,
    of_first_seed,
    quality_and_cost,
    ratios,
)
from benchmarks.speed import encoding, encoding_page
from opensearch_neural.evaluation.results import Row, Summary, read
from opensearch_neural.evaluation.tables import result_table
from opensearch_neural.files import write_text

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parent.parent / "README.md"
PAGES = (README, *sorted((README.parent / "docs").rglob("*.md")))

RENDERED = re.compile(
    r"(<!-- (?P<what>table|goals|gains|arms|idf-shares|ratios|costs|kept-and-cost|quality-and-cost): "
    r"(?P<name>[\w/-]+(?:, [\w/-]+)*)(?:: (?P<measures>[^\n]+?))? -->\n).*?"
    r"(?P<end><!-- end -->)",
    re.DOTALL,
)


def rendered(what: str, summary: Summary, measures: str | None = None) -> str:
    """A result file as a page shows it; `what` and `measures` as in the line before it."""
    if what == "ratios":
        return f"{ratios(summary.rows)}\n\n`{summary.command}`\n"
    if what == "gains" and measures:
        return f"{gains(without_single_seeds(summary.rows), measures)}\n\n`{summary.command}`\n"
    if measures:
        return f"{result_table(without_single_seeds(summary.rows), measures.split(', '))}\n\n`{summary.command}`\n"
    parts = []
    if what == "table":
        parts.append(result_table([row for row in summary.rows if row.kind in ("value", "ratio")]))
    elif what == "gains":
        parts.append(gains(summary.rows))
    elif what == "arms":
        parts.append(arms(summary.rows))
    elif what == "idf-shares":
        parts.append(idf_shares(summary.rows))
    elif what == "kept-and-cost":
        parts.append(kept_and_cost(summary.rows))
    if summary.goals:
        parts.append("\n".join(f"- {goal}" for goal in summary.goals))
    parts.append(f"`{summary.command}`")
    return "\n\n".join(parts) + "\n"


def quality_beside_cost(summaries: Sequence[Summary], measures: str | None) -> str:
    """Several results as one table: the quality of the first that has it, the costs of all."""
    listed, level, engines = [*(measures or ", ".join(COSTS + FACTS)).split("; "), "", ""][:3]
    rows = [row for summary in summaries for row in summary.rows]
    compared = {row.engine for row in rows if row.kind == "difference"}
    baseline = next((row.baseline for row in rows if row.kind == "difference"), "")

    def wanted(row: Row) -> bool:
        if engines and row.engine not in (baseline, *engines.split(", ")):
            return False
        if row.kind != "ratio":
            return row.measure not in FACTS or row.measure in listed.split(", ")
        of_level = not level or (row.level == level and row.engine in compared)
        return of_level and row.measure in listed.split(", ")

    commands = "\n\n".join(f"`{summary.command}`" for summary in summaries)
    return f"{quality_and_cost([row for row in rows if wanted(row)])}\n\n{commands}\n"


def without_single_seeds(rows: Sequence[Row]) -> list[Row]:
    """All rows but those of a single seed beside which the mean over several stands."""

    def of(row: Row) -> tuple[str, ...]:
        return row.where, row.engine, row.variant, row.measure, row.kind, row.baseline

    means = {of(row) for row in rows if row.seeds}
    return [row for row in rows if row.seed is None or of(row) not in means]


def with_tables(text: str, results: Path = RESULTS) -> str:
    """A page's text with every table as its result file has it."""

    def block(match: re.Match[str]) -> str:
        summaries = [read(results / name / "summary.json") for name in match["name"].split(", ")]
        summary = summaries[0]
        if match["what"] == "quality-and-cost":
            made = quality_beside_cost(summaries, match["measures"])
            return match[1] + "\n" + made + "\n" + match["end"]
        if match["what"] == "costs":
            measures, _, beside = match["measures"].partition("; ")
            quality, _, names = beside.partition(" of ")
            others = [read(results / other / "summary.json") for other in names.split(", ")]
            (set_,) = {row.set for row in summary.rows}
            trained = of_first_seed(set_, quality, others)
            commands = "\n\n".join(f"`{each.command}`" for each in (summary, *others))
            made = f"{costs(summary.rows, measures.split(', '), trained)}\n\n{commands}\n"
            return match[1] + "\n" + made + "\n" + match["end"]
        return match[1] + "\n" + rendered(match["what"], summary, match["measures"]) + "\n" + match["end"]

    return RENDERED.sub(block, text)


if __name__ == "__main__":
    for page in PAGES:
        text = with_tables(page.read_text(encoding="utf-8"))
        if page.name == encoding_page.PAGE.name:
            text = encoding_page.with_figures(text, read(encoding.RESULTS))
        write_text(page, text)
