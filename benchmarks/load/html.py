"""The run as one page that needs nothing else: tables, plots and facts."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from benchmarks.load import histogram as hdr
from benchmarks.load.blocks import Level
from benchmarks.load.cells import THROUGHPUT, Cell, Levels
from benchmarks.load.measurement import Measurement
from benchmarks.load.report import facts_text, level_table, set_name, slo_table, strain_lines
from opensearch_neural.errors import MissingExtra
from opensearch_neural.evaluation.results import Summary

# Okabe and Ito's colours, which people with any colour vision tell apart; markers differ too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKERS = "osD^vPX*"
PLOTTED_ENGINES = 8


def plots(found: Measurement, levels: Levels) -> dict[str, str]:
    """{file name without ending: SVG}. Raises MissingExtra without matplotlib."""
    drawings: list[tuple[str, Callable[[Any], bool]]] = [
        ("latency-by-clients", lambda axes: _by_level(axes, found, levels, "closed")),
        ("throughput-by-clients", lambda axes: _throughput(axes, found, levels)),
        ("latency-by-rate", lambda axes: _by_level(axes, found, levels, "open")),
        ("quality-by-p99", lambda axes: _quality(axes, found, levels)),
        *(
            (
                f"distribution-{level.label.replace(' ', '-').replace('/', '-')}",
                lambda axes, level=level: _distribution(axes, found, level, levels[level]),
            )
            for level in levels
        ),
        ("warm-up", lambda axes: _warmup(axes, found)),
        ("over-time", lambda axes: _over_time(axes, found, levels)),
    ]
    drawn = {name: _svg(draw) for name, draw in drawings}
    return {name: svg for name, svg in drawn.items() if svg is not None}


def page(found: Measurement, summary: Summary, levels: Levels, drawn: Mapping[str, str]) -> str:
    """The HTML page; `drawn` is what `plots` gave."""
    head = f"<h1>{escape(summary.title)}</h1>"
    if found.partial:
        head += f'<p class="bad"><strong>Partial result.</strong> {escape(found.partial)}</p>'
    head += "".join(f'<p class="bad">{escape(incident)}</p>' for incident in found.incidents)
    sections = []
    for level, row in levels.items():
        refused = "".join(
            f'<p class="bad">{escape(name)} is refused: {escape(cell.refused)}</p>'
            for name, cell in row.items()
            if cell.refused
        )
        failed = "".join(
            f"<p>{escape(name)} failed: "
            + escape(", ".join(f"{count} × {what}" for what, count in cell.failures.items()))
            + "</p>"
            for name, cell in row.items()
            if cell.failures
        )
        sections.append(f"<h2>{escape(set_name(found, level))}</h2>{_table(level_table(found, row))}{refused}{failed}")
    if found.slo:
        sections.append(f"<h2>Highest rates that keep P99</h2>{_table(slo_table(found))}")
    figures = "".join(
        f'<figure><img alt="{escape(name)}" src="data:image/svg+xml;base64,'
        f'{base64.b64encode(svg.encode()).decode()}"><figcaption>{escape(CAPTIONS.get(name.split("-")[0], ""))}'
        "</figcaption></figure>"
        for name, svg in drawn.items()
    )
    goals = "".join(
        f'<li class="{"good" if goal.met else "bad"}">{"met" if goal.met else "missed"}: {escape(goal.goal)}: '
        f"{escape(str(goal.value))}</li>"
        for goal in summary.goals
    )
    engines = "".join(
        f"<tr><td>{escape(name)}</td><td><code>{escape(spec)}</code></td></tr>" for name, spec in found.variants.items()
    )
    machine = ", ".join(f"{key} {value}" for key, value in summary.machine.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(summary.title)}</title>
<style>{_STYLE}</style>
</head>
<body><main>
{head}
<pre>{escape(summary.command)}</pre>
<p>Latency counts from the moment a request was sent (closed loop), or was due (open loop), query encoding included, to the
last byte of its answer. Encode, network and took are means of its parts in milliseconds. Failed requests count as slower
than all others. Brackets are 95% intervals over rounds; – stands where fewer than 100 requests lie beyond a percentile.</p>
{f"<h2>Goals</h2><ul>{goals}</ul>" if goals else ""}
{"".join(sections)}
<h2>Plots</h2>
{figures}
<h2>Engines</h2>
<div class="wide"><table><tbody>{engines}</tbody></table></div>
<h2>Facts</h2>
<pre>{escape(chr(10).join([*strain_lines(levels), facts_text(found)]))}</pre>
<p>{escape(machine)}; code {escape(summary.code)}</p>
</main></body>
</html>
"""


CAPTIONS = {
    "latency": "Lines: P99; dashed: P50; bars: 95% intervals.",
    "throughput": "Requests answered a second; bars: 95% intervals.",
    "quality": "Up and to the left is better.",
    "distribution": "The share of requests that took longer, down to where 100 requests are left.",
    "warm": "Requests answered a second, before anything was measured.",
    "over": "Each block's throughput, as a share of the engine's mean: a trend would say that the machine changed.",
}


def _svg(draw: Callable[[Any], bool]) -> str | None:
    """What `draw` draws; None where it says that there is nothing to draw."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtra("the report's plots", "bench") from error
    with matplotlib.rc_context({"svg.hashsalt": "osn", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        axes = figure.add_subplot()
        if not draw(axes):
            return None
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7, frameon=False)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _plain_ticks(axes: Any, *, x: bool, y: bool) -> None:
    """Logarithmic axes with numbers as people write them, at 1, 2 and 5 of each power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis, logarithmic in ((axes.xaxis, x), (axes.yaxis, y)):
        if logarithmic:
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())


def _style(found: Measurement, name: str) -> dict[str, Any]:
    at = list(found.variants).index(name)
    return {"color": COLOURS[at % len(COLOURS)], "marker": MARKERS[at % len(MARKERS)], "markersize": 4}


def _plotted(found: Measurement) -> list[str]:
    """The engines that are drawn as lines: more than a few are unreadable, and the tables have them all."""
    return list(found.variants)[:PLOTTED_ENGINES]


def _by_level(axes: Any, found: Measurement, levels: Levels, mode: str) -> bool:
    chosen = sorted(level for level in levels if level.mode == mode)
    drawn = False
    for name in _plotted(found):
        for percentile, line in (("P99", "-"), ("P50", "--")):
            points = [
                (level.value, value)
                for level in chosen
                if name in levels[level] and (value := levels[level][name].estimate(f"{percentile} ms")) is not None
            ]
            points = [(x, value) for x, value in points if math.isfinite(value.value)]
            if points:
                y = [value.value for _, value in points]
                axes.errorbar(
                    [x for x, _ in points],
                    y,
                    yerr=_bars([value for _, value in points]),
                    linestyle=line,
                    label=f"{name} {percentile}",
                    capsize=2,
                    **_style(found, name),
                )
                drawn = True
    axes.set_xlabel("clients" if mode == "closed" else "requests a second")
    axes.set_xticks([level.value for level in chosen])
    axes.set_ylabel("latency, ms")
    axes.set_yscale("log")
    _plain_ticks(axes, x=False, y=True)
    return drawn


def _throughput(axes: Any, found: Measurement, levels: Levels) -> bool:
    chosen = sorted(level for level in levels if level.mode == "closed")
    drawn = False
    for name in _plotted(found):
        points = [
            (level.value, value)
            for level in chosen
            if name in levels[level] and (value := levels[level][name].estimate(THROUGHPUT)) is not None
        ]
        if points:
            values = [value for _, value in points]
            axes.errorbar(
                [x for x, _ in points],
                [value.value for value in values],
                yerr=_bars(values),
                label=name,
                capsize=2,
                **_style(found, name),
            )
            drawn = True
    axes.set_xlabel("clients")
    axes.set_xticks([level.value for level in chosen])
    axes.set_ylabel("requests a second")
    axes.set_ylim(bottom=0)
    return drawn


def _quality(axes: Any, found: Measurement, levels: Levels) -> bool:
    """Quality over the highest percentile that may be shown, at the highest number of clients."""
    if not levels:
        return False
    level = max((each for each in levels if each.mode == "closed"), default=max(levels))
    quality = [row for row in found.quality if row.kind == "value"]
    names = {row.measure for row in quality}
    measure = "nDCG@10" if "nDCG@10" in names else "overlap@10"
    value = {row.engine: row for row in quality if row.measure == measure}
    fine = {name: cell for name, cell in levels[level].items() if not cell.refused}
    shared = [name for name in ("P99 ms", "P90 ms", "P50 ms") if all(cell.may_show(name) for cell in fine.values())]
    if not value or not shared:
        return False
    drawn = False
    for name, cell in fine.items():
        latency = cell.estimate(shared[0])
        if name in value and latency is not None and math.isfinite(latency.value):
            axes.plot([latency.value], [value[name].value], linestyle="", label=name, **_style(found, name))
            axes.annotate(
                name, (latency.value, value[name].value), textcoords="offset points", xytext=(4, 4), fontsize=6
            )
            drawn = True
    axes.set_xlabel(f"{shared[0].removesuffix(' ms')} at {level.label}, ms")
    axes.set_ylabel(measure)
    return drawn


def _distribution(axes: Any, found: Measurement, level: Level, row: Mapping[str, Cell]) -> bool:
    drawn = False
    for name in _plotted(found):
        cell = row.get(name)
        if cell is None or cell.refused:
            continue
        counted = cell.sample.counted.sum(axis=0)
        failed = float(cell.sample.failed.sum())
        total = counted.sum() + failed
        beyond = total - np.cumsum(counted)
        kept = (counted > 0) & (beyond >= hdr.BEYOND)
        if kept.any():
            style = {key: value for key, value in _style(found, name).items() if key == "color"}
            axes.step(cell.sample.values[kept], beyond[kept] / total, where="post", label=name, **style)
            drawn = True
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain_ticks(axes, x=True, y=True)
    axes.set_xlabel("latency, ms")
    axes.set_ylabel("share that took longer")
    axes.set_title(level.label)
    return drawn


def _warmup(axes: Any, found: Measurement) -> bool:
    for name in _plotted(found):
        windows = found.warmup.throughput.get(name, [])
        axes.plot(range(1, len(windows) + 1), windows, label=name, **_style(found, name))
    axes.set_xlabel("window")
    axes.set_ylabel("requests a second")
    axes.set_ylim(bottom=0)
    return any(found.warmup.throughput.values())


def _over_time(axes: Any, found: Measurement, levels: Levels) -> bool:
    if not levels:
        return False
    level = max(levels)
    drawn = False
    for name in _plotted(found):
        cell = levels[level].get(name)
        if cell is None or len(cell.blocks) < 2:
            continue
        blocks = sorted(cell.blocks, key=lambda block: block.began)
        speed = np.array([block.completed / block.seconds for block in blocks])
        if speed.mean() > 0:
            axes.plot([block.began / 60 for block in blocks], speed / speed.mean(), label=name, **_style(found, name))
            drawn = True
    axes.set_xlabel(f"minutes since the run began, at {level.label}")
    axes.set_ylabel("throughput, of its mean")
    return drawn


def _bars(values: Sequence[Any]) -> list[list[float]]:
    """Distances down and up to the intervals' ends, for error bars."""
    low = [max(0.0, value.value - value.low) if value.low is not None else 0.0 for value in values]
    high = [max(0.0, value.high - value.value) if value.high is not None else 0.0 for value in values]
    return [low, high]


def _table(markdown: str) -> str:
    """The HTML of a Markdown table that `tables.table` made, so that terminal and page cannot differ."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines()]
    head = "".join(f"<th>{escape(cell)}</th>" for cell in lines[0])
    body = "".join(
        "<tr>"
        + "".join(f"<td{'' if at == 0 else ' class=number'}>{escape(cell)}</td>" for at, cell in enumerate(line))
        + "</tr>"
        for line in lines[2:]
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


_STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #17803d; --bad: #c22f2f; }
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 80rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h2 { margin-top: 2.5rem; }
pre { font: 13px/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: .35rem .6rem; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; }
.number { font-variant-numeric: tabular-nums; white-space: nowrap; text-align: right; }
.good { color: var(--good); }
.bad { color: var(--bad); }
figure { display: inline-block; margin: .5rem; max-width: 38rem; width: 100%; }
figcaption { font-size: 13px; }
img { width: 100%; background: #fff; }
"""
