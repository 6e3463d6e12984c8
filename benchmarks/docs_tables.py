"""Write the tables and figures of docs/ and of the README from result files.

    python -m benchmarks.docs_tables                  write all pages
    python -m benchmarks.docs_tables PAGE RESULTS     print a page with the results of another folder

The text between one of these marks and `<!-- end -->` is made from `benchmarks/results/NAME/summary.json` and shows the
command that made the result. Lists may follow the names; semicolons separate them.

    <!-- table: NAME -->                      all rows but differences, and the goals
    <!-- table: NAME: MEASURE, MEASURE; ENGINE, ENGINE; SET, SET -->
                                              only these measures, engines and sets; the mean over seeds, if there are
                                              several. An empty or missing list: all
    <!-- goals: NAME -->                      the goals
    <!-- goals: NAME: WORDS, WORDS -->        those that have one of these words
    <!-- gains: NAME -->                      paired differences in nDCG@10, a line for each set, and the goals
    <!-- gains: NAME: BASELINE; ENGINE, ENGINE; MEASURE -->
                                              differences from one of several baselines, the mean over seeds likewise; only
                                              these engines; in another measure. Empty or missing: all engines, nDCG@10
    <!-- arms: NAME -->                       paired differences, a line for each arm, and the goals
    <!-- trials: NAME -->                     settings by what they gain on sets that training left out
    <!-- quality-and-cost: NAME -->           engines by their gain over the baseline and their cost under load
    <!-- quality-and-cost: NAME: MEASURE, MEASURE; LEVEL; ENGINE, ENGINE; MEAN, MEAN; MODEL, MODEL -->
                                              only these costs, facts and recall; costs at these levels (such as "20
                                              clients") of engines whose quality was measured too; only these engines;
                                              gains in these means of sets; only these models. An empty or missing list: all
    <!-- quality-and-cost: NAME, NAME: … -->  the same engines and models in several results, each with its own index; the
                                              costs of an engine at a level, and its gains, are from the first that
                                              has any of them
    <!-- kept-and-cost: NAME -->              ways to search by the share of the exact result that they keep and their
                                              cost under load, and the goals
    <!-- kept-and-cost: NAME: MEASURE, MEASURE; ENGINE, ENGINE -->
                                              without these measures, and without these engines; the goals too
    <!-- runs: NAME, NAME: ENGINE; BASELINE; SET -->
                                              the gains of the same models in several results, with the code of each
    <!-- idf-shares: NAME -->                 the gain of IDF at retrieval, the further gain of IDF in training, and
                                              the terms of a document
    <!-- ratios: NAME -->                     a load test by its ratios to its baseline
    <!-- costs: NAME, NAME: MEASURE, MEASURE; MEASURE -->
                                              the engines' costs in the first result, and their quality in the others,
                                              where they were trained for longer
    <!-- figure: NAME: FIGURE -->            a single figure within a line, without the command

A name with a comma stands in double quotes: "bm25-sparse, window 20". Do not edit this text by hand.

A mark that only one experiment needs is in its own file, the module of a command of `osn bench` or `osn paper`:

    TABLES = {mark: rows → table}
    FIGURES = {name of a result: its summary → {figure: text}}
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.render import (
    COSTS,
    FACTS,
    OVERLAP,
    RECALL,
    arms,
    costs,
    gains,
    kept_and_cost,
    of_first,
    plain,
    quality_and_cost,
    ratios,
    runs,
)
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import Row, Summary, read
from opensearch_neural.evaluation.tables import result_table
from opensearch_neural.files import write_text
from trainers.sparse.trials_table import trials_table

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parent.parent / "README.md"
PAGES = (README, *sorted((README.parent / "docs").rglob("*.md")))

FOLDED = 2
"""If a table has more commands than this, they are folded away."""

Lists = Sequence[Sequence[str]]


def of_experiments(name: str) -> dict[str, Any]:
    """The entries of the dictionary called `name` in the modules of all commands of `osn bench` and `osn paper`."""
    commands = [*entry_points(group="osn.bench"), *entry_points(group="osn.paper")]
    modules = [import_module(module) for module in dict.fromkeys(command.module for command in commands)]
    return {key: value for module in modules for key, value in getattr(module, name, {}).items()}


def _table(rows: list[Row], lists: Lists) -> str:
    if not lists:
        return result_table([row for row in rows if row.kind in ("value", "ratio")])
    measures, engines, sets = [*lists, [], []][:3]
    chosen = [row for row in without_single_seeds(rows) if not engines or row.engine in engines]
    return result_table([row for row in chosen if not sets or row.set in sets], measures or None, text=plain)


def _gains(rows: list[Row], lists: Lists) -> str:
    if not lists:
        return gains(rows)
    baseline, engines, measures = [*lists, [], []][:3]
    named = [engine for engine in engines if engine]
    return gains(without_single_seeds(rows), ", ".join(baseline), named, *measures)


def _costs(rows: list[Row], lists: Lists) -> str:
    measures, (quality,) = lists
    return costs(rows, measures, quality)


def _quality_and_cost(rows: list[Row], lists: Lists) -> str:
    selections = [[name for name in part if name] for part in lists]
    measures, levels, engines, means, models = [*selections, [], [], [], [], []][:5]
    if missing := {*means} - {row.set for row in rows if row.sets}:
        raise InputError(f"no result has the {' and the '.join(sorted(missing))}")
    measures = measures or [*COSTS, *FACTS, OVERLAP, RECALL]
    compared = {row.engine for row in rows if row.kind == "difference"}
    baseline = next((row.baseline for row in rows if row.kind == "difference"), "")

    def is_shown(row: Row) -> bool:
        if engines and row.engine not in (baseline, *engines):
            return False
        if means and row.kind == "difference" and row.sets and row.set not in means:
            return False
        if models and row.variant not in ("", *models):
            return False
        if row.kind != "ratio":
            return row.measure not in (*FACTS, OVERLAP, RECALL) or row.measure in measures
        return row.measure in measures and (not levels or (row.level in levels and row.engine in compared))

    return quality_and_cost([row for row in rows if is_shown(row)])


def _kept_and_cost(rows: list[Row], lists: Lists) -> str:
    measures, engines = [*lists, [], []][:2]
    return kept_and_cost([row for row in rows if row.measure not in measures and row.engine not in engines])


def _without_lists(table: Callable[[list[Row]], str]) -> Callable[[list[Row], Lists], str]:
    """The function for a mark that reads no lists."""
    return lambda rows, lists: table(rows)


MARKS: dict[str, Callable[[list[Row], Lists], str]] = {
    "table": _table,
    "goals": lambda rows, lists: "",
    "gains": _gains,
    "arms": _without_lists(arms),
    "trials": _without_lists(trials_table),
    "ratios": _without_lists(ratios),
    "costs": _costs,
    "kept-and-cost": _kept_and_cost,
    "quality-and-cost": _quality_and_cost,
    **{mark: _without_lists(table) for mark, table in of_experiments("TABLES").items()},
}
"""{mark: makes the table of the rows, by the lists behind the names}"""
FIGURES: dict[str, Callable[[Summary], dict[str, str]]] = of_experiments("FIGURES")
"""{name of a result: its summary → {figure: text}}"""
WITHOUT_GOALS = ("ratios", "costs", "quality-and-cost")
"""Marks without the goals; below others they stand, if there are no lists."""

RENDERED = re.compile(
    rf"(?P<mark><!-- (?P<what>{'|'.join(MARKS)}|runs|figure): "
    r"(?P<names>[\w/-]+(?:, [\w/-]+)*)(?:: (?P<lists>[^\n]+?))? -->).*?(?P<end><!-- end -->)",
    re.DOTALL,
)


def rendered(what: str, summaries: Sequence[Summary], lists: Lists = ()) -> str:
    """The text behind a mark: the table of some results, their goals, their commands."""
    results = [summary.rows for summary in summaries]
    rows = of_first(results) if what == "quality-and-cost" else [*chain(*results)]
    parts = [MARKS[what](rows, lists)]
    if what in ("goals", "kept-and-cost") or not (lists or what in WITHOUT_GOALS):
        words = lists[0] if what == "goals" and lists else [""]
        goals = [goal for summary in summaries for goal in summary.goals if any(word in goal.goal for word in words)]
        parts.append("\n".join(f"- {goal}" for goal in goals))
    commands = [f"`{summary.command}`" for summary in summaries]
    if len(commands) > FOLDED:
        commands = [
            "<details>\n<summary>The commands</summary>",
            "\n".join(f"- {command}" for command in commands),
            "</details>",
        ]
    parts += commands
    return "\n\n".join(filter(None, parts))


def listed(text: str) -> list[str]:
    """The names of a list; a name with a comma stands in double quotes."""
    return next(csv.reader([text.strip()], skipinitialspace=True), [])


def figure(result: str, summary: Summary, name: str) -> str:
    """A single figure of a result. Raises InputError for an unknown name."""
    figures = FIGURES[result](summary) if result in FIGURES else {}
    if name not in figures:
        raise InputError(f"no figure is called {name!r}", f"{result} has {', '.join(figures) or 'none'}")
    return figures[name]


def without_single_seeds(rows: Sequence[Row]) -> list[Row]:
    """All rows, without those of a single seed if there is a mean over several seeds."""

    def identity(row: Row) -> tuple[str, ...]:
        return row.where, row.engine, row.variant, row.measure, row.kind, row.baseline

    means = {identity(row) for row in rows if row.seeds}
    return [row for row in rows if row.seed is None or identity(row) not in means]


def with_tables(text: str, results: Path = RESULTS) -> str:
    """A page's text with every table and figure made anew from the result files. Raises InputError for unknown marks and
    figures, and for rows that no result has."""
    for name in re.findall(r"^<!-- ([\w-]+): ", text, re.MULTILINE):
        if name not in (*MARKS, "runs", "figure"):
            raise InputError(f"there is no mark {name!r}", f"marks: {', '.join(MARKS)}, runs, figure")

    def filled(match: re.Match[str]) -> str:
        names = match["names"].split(", ")
        summaries = [read(results / name / "summary.json") for name in names]
        if match["what"] == "figure":
            return match["mark"] + figure(names[0], summaries[0], match["lists"]) + match["end"]
        lists = [listed(part) for part in match["lists"].split(";")] if match["lists"] else []
        if match["what"] == "runs":
            table = runs(dict(zip(names, summaries, strict=True)), *(", ".join(part) for part in lists))
            return f"{match['mark']}\n\n{table}\n\n{match['end']}"
        return f"{match['mark']}\n\n{rendered(match['what'], summaries, lists)}\n\n{match['end']}"

    return RENDERED.sub(filled, text)


if __name__ == "__main__":
    arguments = [Path(argument) for argument in sys.argv[1:]]
    for page in arguments[:1] or PAGES:
        try:
            made = with_tables(page.read_text(encoding="utf-8"), *arguments[1:])
        except InputError as error:
            sys.exit(f"error: {page}: {error}")
        if arguments:
            print(made, end="")
        else:
            write_text(page, made)
