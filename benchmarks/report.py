"""All result files as tables for a terminal, and as one HTML page without a reference to anything outside."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from opensearch_neural.evaluation.results import Goal, Row, Summary
from opensearch_neural.evaluation.tables import cell, number, pivot, result_table, table

# Plots that lie beside a summary.json are put into the page.
PLOTS = {".svg": "image/svg+xml", ".png": "image/png"}


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


def page(summaries: Mapping[str, Summary], folder: Path) -> str:
    """The HTML page; `folder` is where the experiments' folders lie, for the plots in them."""
    met = sum(goal.met for summary in summaries.values() for goal in summary.goals)
    goals = sum(len(summary.goals) for summary in summaries.values())
    links = "".join(
        f'<li><a href="#{escape(name)}">{escape(each.title or name)}</a></li>' for name, each in summaries.items()
    )
    sections = "\n".join(_section(name, summary, folder / name) for name, summary in summaries.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Results</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>Results</h1>
<p>{len(summaries)} experiments, {met} of {goals} goals met. Brackets are 95% intervals; n is how many queries or requests a
number rests on, and shows when it is pointed at.</p>
<nav><ul>{links}</ul></nav>
{sections}
</main>
</body>
</html>
"""


def _section(name: str, summary: Summary, folder: Path) -> str:
    parts = [
        f'<section id="{escape(name)}">',
        f"<h2>{escape(summary.title or name)}</h2>",
        f"<pre>{escape(summary.command)}</pre>",
        _rows(summary.rows),
        _goals(summary.goals),
        *(_plot(path) for path in sorted(folder.iterdir()) if path.suffix in PLOTS),
        "<details><summary>Code, machine, data, seeds</summary><dl>",
        _fact("code", summary.code),
        _fact("machine", ", ".join(f"{key} {value}" for key, value in summary.machine.items())),
        *(
            _fact(f"data: {data.name}", "\n".join(f"{digest}  {file}" for file, digest in data.files.items()))
            for data in summary.data
        ),
        _fact("seeds", ", ".join(map(str, summary.seeds)) or "none"),
        "</dl></details>",
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _rows(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    measures, lines = pivot(rows)
    body = (
        [f"<td>{escape(data)}</td><td>{escape(engine)}</td>", *(_value(values.get(name)) for name in measures)]
        for data, engine, values in lines
    )
    return _table(["set", "engine", *measures], ("".join(cells) for cells in body))


def _value(row: Row | None) -> str:
    if row is None:
        return "<td></td>"
    value, _, interval = cell(row).partition(" ")
    spread = f'<span class="interval">{escape(interval)}</span>' if interval else ""
    return f'<td class="number" title="{row.value!r}, n = {row.n:,}">{escape(value)}{spread}</td>'


def _goals(goals: Sequence[Goal]) -> str:
    lines = (
        f'<td>{escape(goal)}</td><td>{escape(target)}</td><td>{escape(value)}</td><td class="{met}">{met}</td>'
        for goal, target, value, met in map(_goal_cells, goals)
    )
    return _table(["goal", "target", "value", "met"], lines) if goals else ""


def _goal_cells(goal: Goal) -> tuple[str, str, str, str]:
    target, value = (
        each if isinstance(each, str) else "" if each is None else number(each) for each in (goal.target, goal.value)
    )
    return goal.goal, target, value, "yes" if goal.met else "no"


def _table(header: Iterable[str], lines: Iterable[str]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _plot(path: Path) -> str:
    content = base64.b64encode(path.read_bytes()).decode()
    return f'<figure><img alt="{escape(path.stem)}" src="data:{PLOTS[path.suffix]};base64,{content}"></figure>'


def _fact(name: str, value: str) -> str:
    return f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>"


_STYLE = """
:root { color-scheme: light dark; --line: #8884; --quiet: #777; --good: #17803d; --bad: #c22f2f; }
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h2 { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); }
pre, dd { font: 13px/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 14px; }
th, td { padding: .35rem .75rem; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; }
th { max-width: 12rem; }
.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
.interval { display: block; color: var(--quiet); font-size: 12px; }
.yes { color: var(--good); }
.no { color: var(--bad); font-weight: 600; }
img { max-width: 100%; background: #fff; }
dt { font-weight: 600; }
dd { margin: 0 0 .5rem; }
"""
