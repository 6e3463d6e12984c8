"""`osn bench export-osb`, and `osn bench check-osb`: do this harness and OpenSearch Benchmark measure the same?

Both send the same requests to the same index at the same rate, in turns. Each turn gives both a throughput and a P99; the
95% intervals over the turns should overlap.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from benchmarks.load.command import load_models, queries_of
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.cluster.options import connection_options
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.engine_options import models_options
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.evaluation.results import Goal, Row

QUERIES = 1000  # at most, since each is written out for each engine


@click.command("export-osb")
@click.option("--index", required=True, help="The index to search.")
@click.option("--engines", default="paper", show_default=True, help="As for `osn bench load`.")
@click.option("--data", type=click.Path(path_type=Path), default=None, help="A folder in BEIR layout.")
@click.option("--split", default="test", show_default=True)
@click.option("--queries", type=click.Path(path_type=Path), default=None, help="A file of queries.")
@click.option("--limit-queries", type=click.IntRange(min=1), default=QUERIES, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The folder to write.")
@models_options
@connection_options
def export_osb(
    connection: ConnectionSettings,
    index: str,
    engines: str,
    data: Path | None,
    split: str,
    queries: Path | None,
    limit_queries: int,
    out: Path,
    **options: Any,
) -> None:
    """Write the workload of `osn bench load` for OpenSearch Benchmark (opensearch-benchmark 2.x).

    Nothing is asked of the cluster but what the index is, and nothing is put under load.

    \b
    osn bench export-osb --index docs --data data/docs --out osb
    opensearch-benchmark run --pipeline benchmark-only --target-hosts 127.0.0.1:9200 --workload-path osb
    """
    from benchmarks.load import osb
    from benchmarks.load.measurement import pipeline_names, prepare
    from benchmarks.load.target import Target
    from benchmarks.load.variants import parse_variants

    variants = parse_variants(engines)
    _, texts = queries_of(queries, data, split, limit_queries)
    client = connect(settings=connection)
    with translate_errors():
        workload = prepare(
            client, Target(connection), index, variants, texts, load_models(options), pipeline_names(variants)
        )
        for path in osb.export(workload, out, title=index):
            print(path)


@click.command("check-osb")
@click.option("--index", required=True, help="The index to search.")
@click.option("--engine", default="bm25", show_default=True)
@click.option("--data", type=click.Path(path_type=Path), default=None, help="A folder in BEIR layout.")
@click.option("--split", default="test", show_default=True)
@click.option("--queries", type=click.Path(path_type=Path), default=None, help="A file of queries.")
@click.option("--rate", type=float, default=100.0, show_default=True, help="Requests a second.")
@click.option("--seconds", type=float, default=120.0, show_default=True, help="Of one turn.")
@click.option("--warmup", type=float, default=30.0, show_default=True, help="Seconds before each turn.")
@click.option("--turns", type=click.IntRange(min=3), default=5, show_default=True)
@click.option("--clients", type=click.IntRange(min=1), default=50, show_default=True, help="OpenSearch Benchmark's.")
@click.option("--osb", "named", default=None, help="The opensearch-benchmark program.")
@click.option("--record", type=click.Path(path_type=Path), default=None, help="Write summary.json there.")
@models_options
@connection_options
def check_osb(
    connection: ConnectionSettings,
    index: str,
    engine: str,
    data: Path | None,
    split: str,
    queries: Path | None,
    rate: float,
    seconds: float,
    warmup: float,
    turns: int,
    clients: int,
    named: str | None,
    record: Path | None,
    **options: Any,
) -> None:
    """Run this harness and OpenSearch Benchmark in turns: their throughput and P99 should agree.

    \b
    pipx install opensearch-benchmark
    osn bench check-osb --index scifact --data data/scifact --rate 100
    """
    from benchmarks.load import histogram as hdr
    from benchmarks.load import osb
    from benchmarks.load.blocks import Level, Turn, run_block
    from benchmarks.load.generator import Generators, default_processes
    from benchmarks.load.measurement import prepare, stored_pipelines
    from benchmarks.load.server import ServerProbe
    from benchmarks.load.target import allowed_target
    from benchmarks.load.variants import parse_variants
    from benchmarks.load.workload import encoders
    from benchmarks.publish import publish

    program = osb.program(named)
    (variant,) = parse_variants(engine)
    _, texts = queries_of(queries, data, split, QUERIES)
    client = connect(settings=connection)
    target = allowed_target(connection, owned=False)
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    with (
        translate_errors(),
        stored_pipelines(client, [variant]) as pipelines,
        tempfile.TemporaryDirectory(prefix="osn-osb-") as folder,
    ):
        workload = prepare(client, target, index, [variant], texts, load_models(options), pipelines)
        osb.export(workload, Path(folder))
        encode = encoders(workload)[variant.name]
        # Made beforehand, as OpenSearch Benchmark has them.
        fixed = replace(workload, fixed_bodies={variant.name: tuple(encode(at) for at in range(len(texts)))})
        probe = ServerProbe(client, connection.urls)
        values = {"clients": clients, "rate": rate, "seconds": seconds, "warmup": warmup}
        with Generators(fixed, default_processes()) as generators:
            for turn in range(turns):
                print(f"turn {turn + 1} of {turns}: this harness", file=sys.stderr, flush=True)
                block = run_block(
                    generators,
                    probe,
                    Turn(turn, Level("open", rate), variant.name),
                    settle=warmup,
                    length=seconds,
                    seed=turn,
                )
                if block.broken or block.failed:
                    raise ClusterError(f"requests of this harness failed: {block.broken or block.failures}")
                if not hdr.may_show(0.99, block.requests):
                    raise InputError(f"{block.requests:,} requests are too few for a P99", "give more --seconds")
                counted = hdr.counts(hdr.decode(block.latency))
                p99 = float(hdr.quantile(counted, float(block.failed), 0.99))
                ours.append((block.completed / block.seconds, p99))
                print(f"turn {turn + 1} of {turns}: OpenSearch Benchmark", file=sys.stderr, flush=True)
                parts = urlsplit(connection.urls[0])
                result = osb.run_osb(program, Path(folder), parts.netloc, variant.name, "open-loop", values)
                if result.p99 is None:
                    raise InputError("OpenSearch Benchmark shows no P99 of so few requests", "give more --seconds")
                if result.error_percent:
                    raise ClusterError(f"{result.error_percent:g}% of OpenSearch Benchmark's requests failed")
                theirs.append((result.throughput, result.p99))
    rows, goals = compared(index, variant.name, rate, ours, theirs, int(rate * seconds))
    place = data or queries
    publish(
        rows,
        goals,
        title="This harness and OpenSearch Benchmark",
        data=[place] if place else [],
        seeds=list(range(turns)),
        shown=None,
        record=record,
    )


def compared(
    index: str,
    engine: str,
    rate: float,
    ours: Sequence[tuple[float, float]],
    theirs: Sequence[tuple[float, float]],
    requests: int,
) -> tuple[list[Row], list[Goal]]:
    """Rows of both, and whether their intervals overlap. ours, theirs: (requests a second, P99 in ms) of each turn."""
    rows, goals = [], []
    set_ = f"{index}, {engine}, {rate:g}/s"
    names = ("osn", "OpenSearch Benchmark")
    for at, measure in enumerate(("requests/s", "P99 ms")):
        sides = [[turn[at] for turn in turns] for turns in (ours, theirs)]
        bounds = []
        for name, values in zip(names, sides, strict=True):
            mean, low, high = t_interval(values)
            bounds.append((low, high))
            rows.append(Row(set_, name, measure, mean, low, high, requests * len(values)))
        overlap = bounds[0][0] <= bounds[1][1] and bounds[1][0] <= bounds[0][1]
        words = f"the 95% intervals of {measure} of this harness and of OpenSearch Benchmark overlap"
        text = " and ".join(f"[{low:.1f}, {high:.1f}]" for low, high in bounds)
        goals.append(Goal(words, "they overlap", text, overlap))
        # Intervals that are wide enough always overlap; how far apart the two are is told too.
        ratio, low, high = t_interval([one / other for one, other in zip(*sides, strict=True)])
        rows.append(
            Row(set_, "osn", measure, ratio, low, high, len(ours), kind="ratio", baseline="OpenSearch Benchmark")
        )
    return rows, goals


def t_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(geometric mean, low, high): Student's 95% interval of the mean logarithm; times and rates are never negative."""
    import scipy.stats

    logs = [math.log(value) for value in values]
    mean = statistics.fmean(logs)
    reach = float(scipy.stats.t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)
