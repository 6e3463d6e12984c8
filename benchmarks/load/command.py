"""`osn bench load`, and the options that other load commands share with it."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.load import result
from benchmarks.load.blocks import Block
from benchmarks.load.measurement import LoadSettings, Measurement, WarmupSettings
from benchmarks.load.run import measure, measuring_code
from benchmarks.load.statistics import cells
from benchmarks.load.variants import Variant, parse_variants
from benchmarks.load.workload import LoadTarget, ModelChoice, Workload, allowed_target, prepared
from benchmarks.options import NumberList, of_options, setting, setting_options
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.engine_options import MODELS
from opensearch_neural.commands.headings import Headed, taking
from opensearch_neural.commands.option_groups import Command, Renamed, check_report, options_of
from opensearch_neural.corpus.judgements import JudgedQueries, read_queries
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.evaluation.provenance import clean_argument
from opensearch_neural.evaluation.results import Data, Row, read_facts
from opensearch_neural.files import write_text
from opensearch_neural.progress import Progress

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

logger = logging.getLogger(__name__)

FOLDER = click.Path(path_type=Path, file_okay=False)


owned_option = click.option(
    "--i-own-this-cluster", "owned", is_flag=True, help="Put load on a cluster that is not on this machine."
)


def measuring_options(command: Command) -> Command:
    """Add the options of all load commands; `load_settings` takes their values."""
    pair = NumberList(float)
    options = [
        setting_options(LoadSettings),
        click.option("--block-seconds", "windows", type=pair, default="1,60", help="Shortest and longest block."),
        click.option("--warmup", type=pair, default="60,300", help="Shortest and longest warm-up, in seconds."),
        owned_option,
    ]
    return taking(command, options)


models_options = options_of(ModelChoice, "models", *MODELS.values())
"""Adds the options that name the models of an index; the command gets a `ModelChoice`."""


def load_settings(values: dict[str, Any]) -> LoadSettings:
    """The settings from the values of `measuring_options`. Raises InputError for settings that cannot work."""
    windows, warmup = values["windows"], values["warmup"]
    if len(windows) != 2 or len(warmup) != 2:
        raise InputError(
            "--block-seconds and --warmup take two numbers", "for instance --block-seconds 1,60 --warmup 60,300"
        )
    shortest, longest = windows
    how = {"shortest": shortest, "longest": longest, "warmup": WarmupSettings(*warmup)}
    return of_options(LoadSettings, values, **how).validate()


def queries_of(
    queries: Path | None, data: Path | None, split: str, limit: int | None
) -> tuple[JudgedQueries | None, list[str]]:
    """(judgements, texts) from a folder in BEIR layout or a file of queries; at most `limit` queries.

    Raises InputError for neither or both.
    """
    if (queries is None) == (data is None):
        raise InputError(
            "give either --data or --queries",
            "--data: a folder in BEIR layout with judgements; --queries: a file, or such a folder without judgements",
        )
    if data is not None:
        judged = JudgedQueries.of_folder(data, split)
        chosen = dict(islice(judged.queries.items(), limit))
        judged = replace(judged, queries=chosen, qrels={query: judged.qrels[query] for query in chosen})
        return judged, list(chosen.values())
    assert queries is not None
    return None, list(islice(read_queries(queries).values(), limit))


@dataclass(frozen=True)
class LoadOptions:
    """What `osn bench load` measures and where the result goes, besides the options of all load tests."""

    index: str = setting(None, "The index to search.", required=True, type=str)
    engines: str = setting("sum", "Engines with options, or presets; see above.")
    data: Path | None = setting(None, "Judged queries: a folder in BEIR layout.", type=click.Path(path_type=Path))
    split: str = setting("test", "Split of --data's judgements.")
    queries: Path | None = setting(None, "Queries without judgements.", type=click.Path(path_type=Path))
    limit_queries: int | None = setting(None, "Only the first N queries.")
    out: Path | None = setting(
        None, "Folder for results.  [default: load-INDEX]", option="--output --out", cls=Renamed, type=FOLDER
    )
    restart: bool = setting(False, "Measure anew, whatever --output holds.")
    record: Path | None = setting(None, "Write summary.json there too.", type=FOLDER)
    report: Path | None = setting(
        None, "File for an HTML report; needs the extra [ui].", type=click.Path(path_type=Path, dir_okay=False)
    )
    as_json: bool = setting(False, "Print the result file instead of tables.", option="--json")


@click.command(cls=Headed, first="index engines data queries output restart clients rates i-own-this-cluster json")
@setting_options(LoadOptions)
@measuring_options
@models_options
@connection_options
def load(connection: ConnectionSettings, models: ModelChoice, owned: bool, **values: Any) -> None:
    """Latency, throughput and quality of engines under load, against BM25, in random turns within one run.

    \b
    osn bench load --index scifact --data data/scifact
    osn bench load --index docs --queries queries.jsonl --clients 20 --rates 50,100
    osn bench load --index docs --data data/docs --clients 20 --report load.html
    osn bench load --index docs --data data/docs --engines bm25,high-idf-first+window=50,mine=sparse+hits=yes

    Engines: those of `osn search`, and two-phase (neural-search's own processor), each with options after a +:
    hits, rare, window, dense-window, weight, keep, whole, first, rescore, form, source, size, index, prune,
    expansion (docs/load.md explains them). Presets: sum, paper, quantized, rivals, windows, processor.

    If it is interrupted, it writes what it has; run the same command again to continue. A complete run is not measured
    again without --restart. The exit status is 1 if the result is partial, or if a measurement was refused because the
    generator itself was near its limit.
    """
    options = of_options(LoadOptions, values)
    variants = parse_variants(options.engines)
    check_report(options.report, "benchmarks.load.report_page")
    settings = load_settings(values)
    target = allowed_target(connection, owned=owned)
    judged, texts = queries_of(options.queries, options.data, options.split, options.limit_queries)
    folder = options.out or Path(f"load-{options.index}")
    client = connect(settings=connection)
    prepares = prepared(client, target, options.index, variants, texts, models)
    code = measuring_code()
    measurement = run(client, prepares, settings, folder, judged=judged, restart=options.restart, code=code, once=True)
    facts = read_facts(place for place in (options.data, options.queries) if place is not None)
    if not finish(measurement, folder, options.as_json, facts, record=options.record, page=options.report):
        sys.exit(1)


def run(
    client: OpenSearch,
    prepares: AbstractContextManager[Workload],
    settings: LoadSettings,
    folder: Path,
    *,
    judged: JudgedQueries | None = None,
    restart: bool = False,
    code: str | None = None,
    once: bool = False,
) -> Measurement:
    """Prepare and measure, with progress on stderr. prepares: `prepared` with what to measure; others: as for `measure`"""
    from tqdm import tqdm

    def say(line: str) -> None:
        tqdm.write(line, file=sys.stderr)  # above the bar, if there is one

    def on_block(block: Block, done: int) -> None:
        speed = block.completed / block.seconds
        shown.remark(f"round {block.round + 1}, {block.level.label}, {block.variant}: {speed:,.0f}/s")
        shown.raise_total(math.ceil(done / engines) * engines)  # further rounds for levels that lack requests
        shown.update(done - 1 - shown.count, skipped=True)  # those of an interrupted run
        shown.update(1)

    with prepares as workload:
        engines = len(workload.variants)
        total = settings.rounds * len(settings.levels()) * engines
        with Progress(f"load → {workload.index}", total=total, unit="blocks") as shown:
            return measure(
                client,
                workload,
                settings,
                judged=judged,
                out=folder,
                restart=restart,
                code=code,
                once=once,
                say=say,
                on_block=on_block,
            )


def finish(
    measurement: Measurement,
    folder: Path,
    as_json: bool,
    data: list[Data],
    title: str = "",
    record: Path | None = None,
    page: Path | None = None,
) -> bool:
    """Write and print the result; returns whether it is complete: not partial, nothing refused. page: the report's file."""
    levels = cells(measurement)
    made = result.summary(measurement, data=data, title=title, levels=levels)
    for path in result.write(folder, made):
        print(f"wrote {path}", file=sys.stderr)
    if as_json:
        print(json.dumps(made.to_json(), ensure_ascii=False, indent=1))
    else:
        print(result.text(measurement, levels))
    # Other places come last: one that cannot be written to does not cost what was measured.
    if record is not None:
        print(f"wrote {made.write(record)}", file=sys.stderr)
    if page is not None:
        from benchmarks.load import report_page

        write_text(page, report_page.page(measurement, made, levels))
        print(f"wrote {page}", file=sys.stderr)
    refused = any(cell.refused for row in levels.values() for cell in row.values())
    return not measurement.partial and not refused


def rows_under_load(
    client: OpenSearch,
    target: LoadTarget,
    index: str,
    variants: Sequence[Variant],
    data: Path,
    models: ModelChoice,
    settings: LoadSettings,
    folder: Path,
) -> tuple[list[Row], list[str]]:
    """(rows, notes on what happened) of a complete load test with the test queries of `data`; continues an interrupted run
    of the same code and machine in `folder`.

    Raises ClusterError if it stopped, if a measurement is refused or if the index changed, InputError for settings that
    cannot work and for blocks of other code or of another machine.
    """
    _, texts = queries_of(None, data, "test", None)
    prepares = prepared(client, target, index, variants, texts, models)
    measured = run(client, prepares, settings.validate(), folder, code=measuring_code())
    if measured.partial:
        raise ClusterError(
            f"the load test of {index} stopped: {measured.partial}", "run the same command again to continue"
        )
    levels = cells(measured)
    if refused := [cell for row in levels.values() for cell in row.values() if cell.refused]:
        named = "; ".join(f"{cell.variant} at {cell.level.label}: {cell.refused}" for cell in refused)
        raise ClusterError(
            f"the load test of {index} is refused: {named}",
            f"give this machine no other work, or fewer --clients; remove {folder}, and run the command again",
        )
    if measured.changes:
        raise ClusterError(
            f"the load test of {index} does not count: {'; '.join(measured.changes)}",
            f"remove {folder}, and run the command again while nothing writes to the index",
        )
    notes = [f"{index}: {clean_argument(event)}" for event in (*result.remarks(levels), *measured.incidents)]
    for note in notes:
        logger.warning("%s", note)
    return result.rows(measured, levels), notes
