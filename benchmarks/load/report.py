"""A run as tables and files: `load.json` (everything), `summary.json` (result rows), `load.csv`, `report.html`."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from benchmarks.load import server
from benchmarks.load.blocks import Block, Level
from benchmarks.load.ceiling import Ceiling
from benchmarks.load.cells import MEASURES, SERVER_CPU, THROUGHPUT, Cell, Levels, cells
from benchmarks.load.histogram import shown
from benchmarks.load.measurement import LoadSettings, Measurement
from benchmarks.load.postings import Postings
from benchmarks.load.slo import Probe, SloResult
from benchmarks.load.statistics import Estimate
from benchmarks.load.warmup import Warmup, WarmupSettings
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import (
    Data,
    Goal,
    Machine,
    Row,
    Summary,
    code_commit,
    command_line,
    machine_facts,
)
from opensearch_neural.evaluation.tables import number, table
from opensearch_neural.files import write_text

FORMAT = 1
FILE_NAME = "load.json"
CSV_NAME = "load.csv"
HTML_NAME = "report.html"

QUALITY = ("nDCG@10", "R@10", "R@100", "overlap@10")
PARTS = ("encode", "network", "took")


# ---------------------------------------------------------------------------------------------------------- result rows


def set_name(found: Measurement, level: Level) -> str:
    return f"{found.index}, {level.label}"


def rows(found: Measurement, levels: Levels | None = None) -> list[Row]:
    """Every number of the run as result rows: those of a level in the set "INDEX, LEVEL", the others in "INDEX".

    Refused cells have the one row "refused".
    """
    result = [*found.quality, *found.more]
    base = found.settings.baseline
    for level, row in (cells(found) if levels is None else levels).items():
        for name, cell in row.items():
            result += _cell_rows(set_name(found, level), name, cell, base)
    for name, results in found.slo.items():
        for slo in results:
            requests = sum(probe.requests for probe in slo.probes)
            high = None if math.isinf(slo.above) else slo.above
            if slo.refused:
                result.append(Row(found.index, name, f"refused: P99 ≤ {slo.limit_ms:g} ms", 1.0, None, None, requests))
                continue
            measure = f"highest rate with P99 ≤ {slo.limit_ms:g} ms"
            result.append(Row(found.index, name, measure, slo.rate, slo.rate, high, requests))
    for name, ceiling in found.ceilings.items():
        result.append(
            Row(found.index, name, "generator's ceiling, requests/s", ceiling.requests_per_second, None, None, 0)
        )
    for name, of_query in found.postings.items():
        result.append(Row(found.index, name, "tokens searched", of_query.tokens, None, None, of_query.queries))
        result.append(Row(found.index, name, "postings of these", of_query.postings, None, None, of_query.queries))
    return result


def _cell_rows(set_: str, name: str, cell: Cell, base: str) -> list[Row]:
    if cell.refused:
        return [Row(set_, name, "refused", 1.0, None, None, cell.requests)]
    result = [
        Row(set_, name, measure, value.value, value.low, value.high, value.n)
        for measure in MEASURES
        if _is_known(value := cell.estimate(measure))
    ]
    for measure in MEASURES:
        if _is_known(value := cell.ratio(measure)):
            of_base = partial(Row, kind="ratio", baseline=base)
            unitless = measure.removesuffix(" ms")
            result.append(of_base(set_, name, unitless, value.value, value.low, value.high, value.n))
    for part in PARTS:
        mean = cell.mean_of(part)
        if mean is not None:
            result.append(Row(set_, name, f"{part} ms, mean", mean, None, None, cell.requests))
    failed = sum(cell.failures.values())
    result.append(Row(set_, name, "failed", failed / max(1, cell.requests), None, None, cell.requests))
    result.append(Row(set_, name, "generator, share of a core", cell.core_share, None, None, cell.requests))
    return result


def _is_known(value: Estimate | None) -> TypeGuard[Estimate]:
    return value is not None and math.isfinite(value.value)


def goals(found: Measurement, engine: str, levels: Levels | None = None, *, reference: str = "sparse") -> list[Goal]:
    """The goals of high-IDF-first against BM25, for the engine called `engine`; quality against `reference`."""
    base, result = found.settings.baseline, []
    measured = cells(found) if levels is None else levels
    for level in found.settings.levels():
        if level.mode != "closed":
            continue
        row = measured.get(level, {})
        cell = row.get(engine)
        at = f"at {level.label} on {found.index}"
        ratio = cell.ratio("P99 ms") if cell else None
        high = ratio.high if ratio else None
        result.append(
            Goal(
                f"{engine}: P99 ratio to {base} with its upper interval at or below 1.0, {at}",
                1.0,
                None if high is None else round(high, 3),
                high is not None and high <= 1.0,
            )
        )
        speed = cell.ratio(THROUGHPUT) if cell else None
        result.append(
            Goal(
                f"{engine}: throughput ratio to {base} at or above 1.0, {at}",
                1.0,
                None if speed is None else round(speed.value, 3),
                speed is not None and speed.value >= 1.0,
            )
        )
        requests = min((each.requests for each in row.values()), default=0)
        result.append(Goal(f"at least 10,000 measured requests a cell, {at}", 10_000, requests, requests >= 10_000))
    ndcg = {row.engine: row.value for row in found.quality if (row.kind, row.measure) == ("value", "nDCG@10")}
    if engine in ndcg and reference in ndcg:
        points = 100 * (ndcg[reference] - ndcg[engine])
        words = f"{engine}: nDCG@10 within 0.5 points of all tokens on {found.index}"
        result.append(Goal(words, 0.5, round(points, 2), points <= 0.5))
    return result


def summary(
    found: Measurement,
    data: Sequence[Data] = (),
    goal_engine: str | None = None,
    title: str = "",
    levels: Levels | None = None,
) -> Summary:
    """The result file."""
    levels = cells(found) if levels is None else levels
    return Summary(
        command=command_line(),
        code=code_commit(),
        machine=environment(found),
        data=list(data),
        seeds=[found.settings.seed],
        rows=rows(found, levels),
        goals=goals(found, goal_engine, levels) if goal_engine else [],
        title=f"{title or f'Load: {found.index}'}{' (partial)' if found.partial else ''}",
    )


def environment(found: Measurement) -> Machine:
    """The machine's facts and the cluster's."""
    facts = machine_facts()
    if found.cluster is not None:
        facts["opensearch"] = found.cluster.version
        facts["nodes"] = found.cluster.nodes
        facts["heap_gib"] = round(found.cluster.heap_max / 2**30, 2)
    return facts


# ------------------------------------------------------------------------------------------------------------ load.json


def to_json(found: Measurement, *, command: str | None = None) -> dict[str, Any]:
    """The content of load.json. Infinite numbers are written as null."""
    content = {item.name: _plain(getattr(found, item.name)) for item in fields(found)}
    content["blocks"] = [block.to_json() for block in found.blocks]
    return {
        "format": FORMAT,
        "command": command_line() if command is None else command,
        "code": code_commit(),
        "machine": environment(found),
        **content,
    }


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read(path: Path) -> tuple[Measurement, dict[str, Any]]:
    """(the run, {command, code, machine}) from load.json, or from the folder that holds it.

    Raises InputError naming the file for anything else.
    """
    path = Path(path)
    if path.is_dir():
        path = path / FILE_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: not valid JSON ({error.msg})") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT or "blocks" not in content:
        raise InputError(f"{path} is not the result of a load run of format {FORMAT}", "`osn bench load` writes it")
    facts = {name: content.pop(name, None) for name in ("command", "code", "machine")}
    del content["format"]
    try:
        return _measurement(content), facts
    except (TypeError, KeyError, ValueError) as error:
        raise InputError(f"{path}: a field is missing or of another kind ({error})") from None


def _measurement(content: dict[str, Any]) -> Measurement:
    settings = dict(content["settings"])
    for name in ("clients", "rates", "slo"):
        settings[name] = tuple(settings[name])
    settings["warmup"] = WarmupSettings(**settings["warmup"])
    content = {
        **content,
        "settings": LoadSettings(**settings),
        "blocks": [Block.from_json(block) for block in content["blocks"]],
        "ceilings": {name: Ceiling(**each) for name, each in content["ceilings"].items()},
        "warmup": Warmup(**content["warmup"]),
        "slo": {name: [_slo(each) for each in results] for name, results in content["slo"].items()},
        "quality": [Row(**row) for row in content["quality"]],
        "more": [Row(**row) for row in content["more"]],
        "postings": {name: Postings(**each) for name, each in content["postings"].items()},
        "cluster": server.ClusterFacts(**content["cluster"]) if content["cluster"] else None,
        "indexes": {name: server.IndexFacts(**each) for name, each in content["indexes"].items()},
        "before": server.Counters(**content["before"]) if content["before"] else None,
        "after": server.Counters(**content["after"]) if content["after"] else None,
    }
    return Measurement(**content)


def _slo(content: dict[str, Any]) -> SloResult:
    probes = [
        Probe(**{**probe, "p99": math.inf if probe["p99"] is None else probe["p99"]}) for probe in content["probes"]
    ]
    above = math.inf if content["above"] is None else content["above"]
    return SloResult(content["limit_ms"], content["rate"], above, probes, content["refused"])


# ------------------------------------------------------------------------------------------------------------- terminal


def text(found: Measurement, levels: Levels | None = None) -> str:
    """The run for a terminal: how it ended, a table for each level with quality beside cost, the facts."""
    parts = []
    if found.partial:
        parts.append(f"PARTIAL RESULT: {found.partial}")
    parts += [f"! {incident}" for incident in found.incidents]
    levels = cells(found) if levels is None else levels
    for level, row in levels.items():
        parts.append(f"{set_name(found, level)}\n\n{level_table(found, row)}")
        parts += [f"refused: {name}: {cell.refused}" for name, cell in row.items() if cell.refused]
        parts += [
            f"failed: {name}: " + ", ".join(f"{count} × {what}" for what, count in cell.failures.items())
            for name, cell in row.items()
            if cell.failures
        ]
    if not levels and found.quality:
        parts.append(quality_table(found))
    broken = [block for block in found.blocks if block.broken]
    parts += [
        f"left out: {block.variant} at {block.level.label}, {block.broken}: "
        + ", ".join(f"{count} × {what}" for what, count in sorted(block.failures.items()))
        for block in broken
    ]
    if found.slo:
        parts.append(slo_table(found))
    parts.append("\n".join([*strain_lines(levels), facts_text(found)]))
    return "\n\n".join(parts)


def strain_lines(levels: Levels) -> list[str]:
    """What the generator needed at most, and what the cluster spent on garbage collection."""
    every = [cell for row in levels.values() for cell in row.values()]
    if not every:
        return []
    core = max(every, key=lambda cell: cell.core_share)
    lines = [
        f"the generator's busiest process needed {core.core_share:.0%} of a core at most "
        f"({core.variant} at {core.level.label})"
    ]
    near = [(cell.strain.ceiling_share, cell) for cell in every if cell.strain.ceiling_share is not None]
    if near:
        share, cell = max(near, key=lambda each: each[0])
        lines.append(f"it came to {share:.0%} of its ceiling at most ({cell.variant} at {cell.level.label})")
    collecting = [(cell.gc_share, cell) for cell in every if cell.gc_share is not None]
    if collecting:
        share, cell = max(collecting, key=lambda each: each[0])
        lines.append(f"garbage collection took {share:.1%} of the time at most ({cell.variant} at {cell.level.label})")
    return lines


def level_table(found: Measurement, row: Mapping[str, Cell]) -> str:
    """One table: a line for each engine, quality beside cost. Brackets are 95% intervals; – is what may not be shown."""
    base = found.settings.baseline
    by_engine: dict[str, dict[str, Row]] = {}
    for each in found.quality:
        by_engine.setdefault(each.engine, {})[each.measure] = each
    measures = [name for name in QUALITY if any(name in values for values in by_engine.values())]
    header = [
        "engine",
        *measures,
        *("P50 ms", "P90 ms", "P99 ms", f"P99 / {base}", "requests/s", f"requests/s / {base}", "server CPU ms"),
        *("encode", "network", "took", "failed", "requests"),
    ]
    lines = []
    for name, cell in row.items():
        own = by_engine.get(name, {})
        quality = [f"{own[measure].value:.3f}" if measure in own else "" for measure in measures]
        if cell.refused:
            lines.append([name, *quality, *["refused"] * 7, "", "", "", "", f"{cell.requests:,}"])
            continue
        lines.append(
            [
                name,
                *quality,
                *(_number(cell.estimate(percentile)) for percentile in ("P50 ms", "P90 ms", "P99 ms")),
                with_interval(cell.ratio("P99 ms")) if name != base else "1",
                _number(cell.estimate(THROUGHPUT)),
                with_interval(cell.ratio(THROUGHPUT)) if name != base else "1",
                _number(cell.estimate(SERVER_CPU)),
                *(shown(cell.mean_of(part)) for part in PARTS),
                f"{sum(cell.failures.values()) / max(1, cell.requests):.2%}" if cell.failures else "0",
                f"{cell.requests:,}",
            ]
        )
    return table(header, lines)


def quality_table(found: Measurement) -> str:
    by_engine: dict[str, dict[str, Row]] = {name: {} for name in found.variants}
    for each in found.quality:
        by_engine.setdefault(each.engine, {})[each.measure] = each
    measures = [name for name in QUALITY if any(name in values for values in by_engine.values())]
    return table(
        ["engine", *measures],
        [
            [name, *(f"{own[measure].value:.3f}" if measure in own else "" for measure in measures)]
            for name, own in by_engine.items()
        ],
    )


def slo_table(found: Measurement) -> str:
    lines = [
        [
            name,
            f"{slo.limit_ms:g} ms",
            f"{slo.rate:.4g}/s",
            "–" if math.isinf(slo.above) else f"{slo.above:.4g}/s",
            str(len(slo.probes)),
            slo.refused or "",
        ]
        for name, results in found.slo.items()
        for slo in results
    ]
    return table(["engine", "P99 ≤", "highest rate that held", "lowest that did not", "trials", "refused"], lines)


def facts_text(found: Measurement) -> str:
    """What was searched, where, and with what care."""
    lines = [
        f"{name}: {facts.documents:,} documents, {facts.bytes / 2**20:.1f} MiB, {facts.segments} segments, "
        f"{facts.shards} shards; on disk: "
        + ", ".join(f"{kind} {size / 2**20:.1f} MiB" for kind, size in facts.bytes_by_kind.items())
        for name, facts in found.indexes.items()
    ]
    if found.more:
        lines.append("; ".join(f"{row.column} {number(row.value)}" for row in found.more))
    for name, each in found.postings.items():
        lines.append(f"{name}: {each.tokens:.1f} tokens a query, {each.postings:,.0f} postings of these")
    if found.cluster:
        lines.append(
            f"{found.cluster.version}, {found.cluster.nodes} node(s), heap {found.cluster.heap_max / 2**30:.1f} GiB, "
            f"concurrent segment search {found.cluster.concurrent_segment_search}, processor time from "
            f"{found.cluster.cpu_from}"
        )
    if found.before and found.after:
        lines.append(
            f"heap used {found.after.heap_used / 2**20:,.0f} MiB at the end; searches rejected by the cluster: "
            f"{found.after.rejected_searches - found.before.rejected_searches}; answers from its request cache: "
            f"{found.after.request_cache_hits - found.before.request_cache_hits}"
        )
    if found.ceilings:
        lines.append(
            "the generator's own ceiling: "
            + ", ".join(f"{name} {ceiling.requests_per_second:,.0f}/s" for name, ceiling in found.ceilings.items())
        )
    steady = "steady" if found.warmup.steady else "not steady"
    lines.append(f"warm-up {found.warmup.seconds:.0f} s ({steady}); {found.queries} different queries")
    return "\n".join([*lines, *found.notes])


def _number(value: Estimate | None) -> str:
    return "–" if value is None else shown(value.value)


def with_interval(value: Estimate | Row | None) -> str:
    """A ratio as tables show it: "0.98 [0.92, 1.06]"."""
    if value is None:
        return "–"
    if value.low is None or value.high is None:
        return f"{value.value:.2f}"
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"


# ---------------------------------------------------------------------------------------------------------------- files


def csv_text(result: Iterable[Row]) -> str:
    """Result rows as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["set", "engine", "measure", "value", "low", "high", "n"])
    for row in result:
        writer.writerow([row.set, row.line, row.column, row.value, row.low, row.high, row.n])
    return out.getvalue()


def write(folder: Path, found: Measurement, made: Summary, levels: Levels | None = None) -> list[Path]:
    """Write all files of the run into `folder`; `made` is its summary.

    Raises MissingExtra without matplotlib, once the others are written.
    """
    folder = Path(folder)
    levels = cells(found) if levels is None else levels
    written = [folder / FILE_NAME, folder / CSV_NAME]
    write_text(written[0], json.dumps(to_json(found), ensure_ascii=False, allow_nan=False) + "\n")
    write_text(written[1], csv_text(made.rows))
    written.append(made.write(folder))
    from benchmarks.load.html import page, plots

    drawn = plots(found, levels)
    for name, svg in drawn.items():
        write_text(folder / f"{name}.svg", svg)
    write_text(folder / HTML_NAME, page(found, made, levels, drawn))
    return [*written, folder / HTML_NAME]
