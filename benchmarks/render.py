"""Result rows as tables and pages.

Markdown, for a terminal, the README and docs/: all rows of results (`text`), or one of the tables of pages (`gains`, `arms`,
`ratios`, `costs`, `quality_and_cost`, `kept_and_cost`). HTML: one self-contained page of all results (`page`).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from opensearch_neural.errors import InputError, MissingExtra
from opensearch_neural.evaluation.measures import label
from opensearch_neural.evaluation.results import Goal, Row, Summary
from opensearch_neural.evaluation.tables import WithInterval, bracketed, cell, number, pivot, result_table, table

PLOTS = {".svg": "image/svg+xml", ".png": "image/png"}
"""{suffix: media type} of plots; those beside a summary.json are put into the page."""
RATIOS = ("P99", "requests/s")
"""Measures that `ratios` shows, as ratios to the baseline's."""
COSTS = ("P50", "P99", "requests/s")
"""Measures that `quality_and_cost` and `kept_and_cost` show, as ratios to the baseline's."""
FACTS = ("bytes a document", "documents encoded a second", "active terms")
"""Measures that `quality_and_cost` shows as values, if known."""

RECALL = "R@100"
OVERLAP = "overlap@10"
SCORE_KEPT = "score kept"
KEPT = (SCORE_KEPT, OVERLAP, "nDCG@10", "bytes read, a document")
"""Measures that `kept_and_cost` shows as values."""
LEAST_KEPT, NEAR = 0.99, 0.001
"""The goal for the score kept, and how near to it a value has a fourth decimal."""


def plain(row: Row | None) -> str:
    """A row's value as text, without its interval; "" if there is no row. A score kept that is near its goal has four
    decimals, since three may hide whether the goal is met."""
    if row is not None and row.measure == SCORE_KEPT and abs(row.value - LEAST_KEPT) < NEAR:
        return f"{row.value:.4f}"
    return cell(row, False)


def with_interval(estimate: WithInterval | None) -> str:
    """A ratio or points as tables show them: "0.98 [0.92, 1.06]"; "–" if unknown."""
    return "–" if estimate is None else bracketed(estimate, "{:.2f}".format)


def signed(estimate: WithInterval, digits: int = 3) -> str:
    """A paired difference as goals show it: "+0.045 [+0.036, +0.055]"."""
    return bracketed(estimate, f"{{:+.{digits}f}}".format)


# ------------------------------------------------ Markdown


def text(summaries: Mapping[str, Summary]) -> str:
    """The tables of all experiments, each under its title, with its goals and the command that made it."""
    parts = []
    for name, summary in summaries.items():
        parts += [f"## {summary.title or name}", f"`{summary.command}` ({summary.code[:12]})"]
        if summary.rows:
            parts.append(result_table(summary.rows))
        if summary.goals:
            parts.append(table(["goal", "target", "value", "met"], map(_goal_cells, summary.goals)))
    return "\n\n".join(parts)


def ratios(rows: list[Row]) -> str:
    """A line for each index and level, a column for each engine and ratio, with their intervals."""
    chosen = [row for row in rows if row.kind == "ratio" and row.measure in RATIOS]
    by_cell = {(row.where, row.line, row.column): row for row in chosen}
    engines = list(dict.fromkeys(row.line for row in chosen))
    measures = sorted({row.column: RATIOS.index(row.measure) for row in chosen}.items(), key=lambda item: item[1])
    columns = [(engine, measure) for measure, _ in measures for engine in engines]

    return table(
        ["", *(f"{engine}: {measure}" for engine, measure in columns)],
        [
            [where, *(with_interval(row) if (row := by_cell.get((where, *column))) else "" for column in columns)]
            for where in dict.fromkeys(row.where for row in chosen)
        ],
    )


def gains(rows: list[Row], baseline: str | None = None, engines: Sequence[str] = (), measure: str = "nDCG@10") -> str:
    """A line for each set: the measure of the baseline, and how many points each engine lies above it. Of an engine trained
    with several seeds, the mean is shown.

    baseline: which one, if the rows have several. engines: only these; empty: all. Raises InputError, naming what there is,
    if no row fits, and for several baselines of which none is named.
    """
    measure = label(measure)
    differences = [row for row in rows if row.kind == "difference"]
    chosen = [row for row in differences if row.measure == measure and (not engines or row.engine in engines)]
    averaged = {(row.engine, row.variant) for row in chosen if row.seeds}
    chosen = [row for row in chosen if row.seed is None or (row.engine, row.variant) not in averaged]
    chosen = [row for row in chosen if baseline in (None, row.against)]
    baselines = list(dict.fromkeys(row.against for row in chosen or differences))
    if not chosen:
        measures = dict.fromkeys(row.measure for row in differences)
        raise InputError(
            f"no result has such differences in {measure}",
            f"differences are in {', '.join(measures) or 'no measure'}; from {', '.join(baselines) or 'no baseline'}",
        )
    if len(baselines) > 1:
        raise InputError("there are differences from several baselines", f"name one: {', '.join(baselines)}")
    (baseline,) = baselines
    value = {(row.set, row.line): row for row in rows if (row.kind, row.measure) == ("value", measure)}
    points = {(row.set, row.line): in_points(row) for row in chosen}
    lines = list(dict.fromkeys(row.line for row in chosen))
    return table(
        ["", f"{baseline}: {measure}", *(f"{line}: points above" for line in lines)],
        [
            [name, f"{value[name, baseline].value:.3f}", *(with_interval(points.get((name, line))) for line in lines)]
            for name in dict.fromkeys(row.set for row in chosen)
        ],
    )


def arms(rows: list[Row]) -> str:
    """A line for each arm and each of its baselines. For each set it has the arm's value, and how many points this lies
    above the baseline; both are in the measure of the first difference."""
    differences = [row for row in rows if row.kind == "difference"]
    measure = differences[0].measure
    value = {(row.set, row.line): row for row in rows if (row.kind, row.measure) == ("value", measure)}
    above = {(row.line, row.against, row.set): in_points(row) for row in differences if row.measure == measure}
    sets = list(dict.fromkeys(set_ for set_, _ in value))
    lines = []
    for engine in dict.fromkeys(engine for _, engine in value):
        rivals = list(dict.fromkeys(rival for compared, rival, _ in above if compared == engine))
        for at, rival in enumerate(rivals or [""]):
            cells = [with_interval(above.get((engine, rival, name))) if rival else "" for name in sets]
            values = [
                f"{value[name, engine].value:.3f}" if (name, engine) in value and at == 0 else "" for name in sets
            ]
            pairs = [cell for pair in zip(values, cells, strict=True) for cell in pair]
            lines.append([engine if at == 0 else "", rival, *pairs])
    heads = [head for name in sets for head in (f"{name}: {measure}", "points above")]
    return table(["", "compared with", *heads], lines)


def costs(rows: Sequence[Row], measures: Sequence[str], quality: str) -> str:
    """A line for each engine: its costs, and, if it was trained, its quality with the first seed."""
    columns, lines = pivot(row for row in rows if row.column in measures)
    sets = {set_ for set_, *_ in lines}
    engine_of = {row.line: row.engine for row in rows}
    trained: dict[str, Row] = {}
    for row in rows:
        if row.set in sets and (row.kind, row.measure, row.variant) == ("value", quality, "") and row.seed is not None:
            trained.setdefault(row.engine, row)
    shown = [measure for measure in measures if measure in columns]
    return table(
        ["", *shown, f"{quality} (trained)"],
        [
            [
                engine,
                *(cell(values.get(measure), False) for measure in shown),
                cell(trained.get(engine_of[engine]), False),
            ]
            for _, engine, values in lines
        ],
    )


def of_first(results: Iterable[Iterable[Row]]) -> list[Row]:
    """The rows of several results, each part from the first that has any row of it.

    Parts are the costs of an engine with a model at a level, so that P99 and P50 are of one run; what it keeps of the exact
    score; and its gains over a baseline, so that those of the mean and of each set are of one model.
    """
    rows: list[Row] = []
    known: set[tuple[str, ...]] = set()
    for result in results:
        parts = [(_part(row), row) for row in result]
        rows += [row for part, row in parts if part not in known]
        known |= {part for part, _ in parts if part}
    return rows


def _part(row: Row) -> tuple[str, ...]:
    """The part of a result that a row belongs to; empty for a row that stands for itself."""
    if row.level:
        return (row.engine, row.variant, row.where)
    if row.measure in (SCORE_KEPT, OVERLAP):
        return (row.engine, row.variant, row.set, row.measure)
    return (row.engine, row.variant, row.baseline, row.measure) if row.kind == "difference" else ()


def quality_and_cost(rows: Sequence[Row]) -> str:
    """A line for each engine and model, compared with the first baseline.

    It has the points of nDCG@10 over the baseline in each mean of sets, the numbers of sets on which the interval lies above
    and below, the points of recall, the costs under load as ratios to the baseline's, and the known FACTS. A row's variant
    is the model. Facts of a single judged set are left out.
    """
    differences = [row for row in rows if (row.kind, row.measure) == ("difference", "nDCG@10")]
    recalls = [row for row in rows if (row.kind, row.measure) == ("difference", RECALL) and row.sets]
    ratios_ = [row for row in rows if row.kind == "ratio" and row.measure in COSTS]
    if not differences:
        return ""
    baseline = differences[0].baseline

    def above_baseline(differences: Sequence[Row]) -> dict[tuple[str, str, str], Row]:
        points: dict[tuple[str, str, str], Row] = {}
        for row in sorted(
            differences, key=lambda row: row.seed is not None
        ):  # the mean over seeds, if there are several
            if row.baseline == baseline:
                points.setdefault((row.engine, row.variant, row.set), in_points(row))
        return points

    gain, recall = above_baseline(differences), above_baseline(recalls)
    cost = {(row.engine, row.variant, row.where, row.measure): row for row in ratios_}
    score = {
        (row.engine, row.variant, row.set, row.measure): row for row in rows if row.measure in (SCORE_KEPT, OVERLAP)
    }
    means, of_recall = (list(dict.fromkeys(row.set for row in part if row.sets)) for part in (differences, recalls))
    levels = [(row.where, row.measure) for row in ratios_]
    levels = sorted(dict.fromkeys(levels), key=lambda level: (COSTS.index(level[1]), levels.index(level)))
    scored = sorted(dict.fromkeys((set_, measure) for *_, set_, measure in score), key=lambda pair: KEPT.index(pair[1]))
    judged = {row.set for row in differences} - {*means}
    facts: dict[tuple[str, str, str], Row] = {}
    for row in sorted(rows, key=lambda row: row.seed is not None):
        if row.kind == "value" and row.measure in FACTS and row.set not in judged:
            facts.setdefault((row.engine, row.variant, row.measure), row)
    known_facts = [measure for measure in FACTS if any(measure == known for *_, known in facts)]

    def line(engine: str, model: str) -> list[str]:
        of_sets = [row for (*pair, set_), row in gain.items() if pair == [engine, model] and set_ not in means]
        above = sum(row.low is not None and row.low > 0 for row in of_sets)
        below = sum(row.high is not None and row.high < 0 for row in of_sets)
        return [
            engine,
            model,
            *(with_interval(gain.get((engine, model, set_))) for set_ in means),
            f"{above} / {below} of {len(of_sets)}" if of_sets else "–",
            *(with_interval(recall.get((engine, model, set_))) for set_ in of_recall),
            *(with_interval(cost.get((engine, model, *level))) for level in levels),
            *(plain(score.get((engine, model, *pair))) or "–" for pair in scored),
            *(f"{row.value:,.0f}" if (row := facts.get((engine, model, measure))) else "–" for measure in known_facts),
        ]

    def head(measure: str) -> str:
        of_baseline = facts.get((baseline, "", measure))
        return f"{measure} ({baseline}: {of_baseline.value:,.0f})" if of_baseline else measure

    pairs = list(dict.fromkeys((engine, model) for engine, model, *_ in (*gain, *cost)))
    engines = [engine for engine, _ in pairs]
    lines = sorted(pairs, key=lambda pair: engines.index(pair[0]))  # an engine's models beside each other
    return table(
        [
            "engine",
            "model",
            *(f"points over {baseline}, {set_}" for set_ in means),
            "sets above / below",
            *(f"points of {RECALL}, {set_}" for set_ in of_recall),
            *(f"{measure}, {where}" for where, measure in levels),
            *(f"{measure}, {set_}" for set_, measure in scored),
            *map(head, known_facts),
        ],
        (line(*pair) for pair in lines),
    )


def runs(summaries: Mapping[str, Summary], engine: str, baseline: str, where: str) -> str:
    """A line for each result that measured the engine on a set: the commit that wrote it, its seeds, and for each model the
    points of nDCG@10 over the baseline. Of several seeds it is the mean, and "seed 42" follows a figure of one seed."""
    rows_of: dict[str, dict[str, Row]] = {}
    for name, summary in summaries.items():
        for row in sorted(summary.rows, key=lambda row: bool(row.seeds)):  # a mean over seeds replaces its seeds
            identity = (row.kind, row.measure, row.engine, row.baseline, row.set)
            if identity == ("difference", "nDCG@10", engine, baseline, where):
                rows_of.setdefault(name, {})[row.variant] = row

    def points(row: Row | None) -> str:
        if row is None:
            return "–"
        seeds = f"seeds {row.seeds[0]} to {row.seeds[-1]}" if row.seeds else f"seed {row.seed}" if row.seed else ""
        return ", ".join(filter(None, [f"{100 * row.value:.2f}", seeds]))

    models = list(dict.fromkeys(model for by_model in rows_of.values() for model in by_model))
    lines = [
        [name, summaries[name].code[:8], *(points(by_model.get(model)) for model in models)]
        for name, by_model in rows_of.items()
    ]
    return table(["result", "code", *models], lines)


def kept_and_cost(rows: Sequence[Row]) -> str:
    """For each number of documents, a line for each engine: how much of the exact result it keeps, and its costs."""
    ratios_ = [row for row in rows if row.kind == "ratio" and row.measure in COSTS]
    sizes = list(dict.fromkeys(row.set for row in rows if row.measure in KEPT))
    cost = {(row.set, row.engine, row.level, row.measure): row for row in ratios_}
    value = {(row.set, row.engine, row.measure): row for row in rows if row.kind == "value"}
    measures = [name for name in KEPT if any(row.measure == name for row in rows)]
    parts = []
    for size in sizes:
        levels = dict.fromkeys(row.level for row in ratios_ if row.set == size)
        columns = [(level, measure) for level in levels for measure in COSTS]
        engines = dict.fromkeys(row.engine for row in rows if row.set == size)
        heads = [f"{measure}, {level}" for level, measure in columns]
        lines = [
            [
                engine,
                *(plain(value.get((size, engine, measure))) for measure in measures),
                *(with_interval(cost.get((size, engine, *column))) for column in columns),
            ]
            for engine in engines
        ]
        parts.append(table([size, *measures, *heads], lines))
    return "\n\n".join(parts)


def in_points(row: Row) -> Row:
    """A difference of a measure from 0 to 1 in points, which are hundredths."""
    ends = {end: 100 * at for end in ("low", "high") if (at := getattr(row, end)) is not None}
    return replace(row, value=100 * row.value, **ends)


# ------------------------------------------------ HTML


def page(summaries: Mapping[str, Summary], folder: Path) -> str:
    """The HTML page of all results. folder: holds the experiments' folders with their plots.

    Raises MissingExtra without the extra [bench].
    """
    try:
        from opensearch_neural.ui.pages import render
    except MissingExtra:
        raise MissingExtra("the page of all results", "bench") from None

    sections = []
    for name, summary in summaries.items():
        columns, lines = pivot(summary.rows)
        plots = [
            (path.stem, PLOTS[path.suffix], base64.b64encode(path.read_bytes()).decode())
            for path in sorted((folder / name).iterdir())
            if path.suffix in PLOTS
        ]
        goals = list(map(_goal_cells, summary.goals))
        section = {"name": name, "summary": summary, "columns": columns, "lines": lines, "goals": goals, "plots": plots}
        sections.append(section)
    all_goals = [goal for summary in summaries.values() for goal in summary.goals]
    met = sum(goal.met for goal in all_goals)
    return render("results.html", alone=True, sections=sections, cell=cell, goals=len(all_goals), met=met)


def _goal_cells(goal: Goal) -> tuple[str, str, str, str]:
    def as_text(value: str | float | None) -> str:
        return value if isinstance(value, str) else "" if value is None else number(value)

    return goal.goal, as_text(goal.target), as_text(goal.value), "yes" if goal.met else "no"
