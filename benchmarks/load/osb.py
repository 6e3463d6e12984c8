"""The same workload for OpenSearch Benchmark (`opensearch-benchmark`, 2.x), so that anyone can check our numbers.

    osn bench export-osb --index docs --queries queries.jsonl --engines bm25,sparse --output osb
    opensearch-benchmark run --pipeline benchmark-only --target-hosts 127.0.0.1:9200 --workload-path osb

Request bodies are written to files, since OpenSearch Benchmark does not encode queries. Its `latency` counts from the
moment a request was due, as ours does; its `service_time` is our `service`.

Two differences remain. It takes the time of an answer when the headers have arrived and its client library has read the
body. And it needs more processor time for each request than this generator; on a machine shared with the cluster, it takes
that time from the cluster.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.load.command import models_options, queries_of
from benchmarks.load.variants import parse_variants, pipeline_parameter
from benchmarks.load.workload import LoadTarget, ModelChoice, Workload, encoders, prepare
from benchmarks.options import setting, setting_options
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.option_groups import output_option
from opensearch_neural.files import write_text

PARAM_SOURCE = '''"""Reads request bodies from bodies/NAME.jsonl, in random order, all of them before any comes again."""

import random
from pathlib import Path


class Bodies:
    def __init__(self, workload, params, **kwargs):
        self._params = params
        path = Path(__file__).parent / "bodies" / params["bodies"]
        self._bodies = path.read_text(encoding="utf-8").removesuffix("\\n").split("\\n")
        self._seed = params.get("seed", 0)
        self._order = iter(())
        self._random = random.Random(self._seed)
        self.infinite = True

    def partition(self, partition_index, total_partitions):
        return Bodies(None, {**self._params, "seed": self._seed + 1 + partition_index})

    def size(self):
        return None

    def params(self):
        position = next(self._order, None)
        if position is None:
            order = list(range(len(self._bodies)))
            self._random.shuffle(order)
            self._order = iter(order)
            position = next(self._order)
        return {
            "index": self._params["index"],
            "type": None,
            "cache": self._params["cache"],
            "body": self._bodies[position],
            "detailed-results": False,
            "request-params": self._params["request-params"],
            # Answers are not compressed for our generator either.
            "response-compression-enabled": False,
        }


def register(registry):
    registry.register_param_source("osn-bodies", Bodies)
'''

README = """# {title}

Written by `osn bench export-osb`. {requests} requests for each of: {engines}.

    opensearch-benchmark run --pipeline benchmark-only --target-hosts HOST:PORT --workload-path {folder} \\
        --test-procedure closed-loop --workload-params clients:20,seconds:60,warmup:30

`open-loop` takes `rate:N` (requests a second, Poisson arrivals) as well. The index is not made by this workload.
{pipelines}"""


def export(workload: Workload, folder: Path, *, title: str = "osn") -> list[Path]:
    """Write workload.json, workload.py, the bodies and a README into `folder`. Returns their paths.

    Raises what building the requests raises.
    """
    folder = Path(folder)
    written, encode_of, names = [], encoders(workload), file_names(workload)
    for variant in workload.variants:
        path = folder / "bodies" / names[variant.name]
        encode = encode_of[variant.name]
        write_text(path, "".join(encode(at).decode() + "\n" for at in range(len(workload.texts))))
        written.append(path)
    commands = "".join(
        f"\nThe pipeline must be there first:\n\n    curl -X PUT HOST:PORT/_search/pipeline/{name} "
        f"-H 'content-type: application/json' -d '{json.dumps(body)}'\n"
        for name, body in workload.pipelines.items()
    )
    engines = ", ".join(variant.name for variant in workload.variants)
    texts = {
        "workload.json": workload_json(workload, title),
        "workload.py": PARAM_SOURCE,
        "README.md": README.format(
            title=title, requests=len(workload.texts), engines=engines, folder=folder.name, pipelines=commands
        ),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
        written.append(folder / name)
    return written


def file_names(workload: Workload) -> dict[str, str]:
    """{variant: its file of bodies}. Numbers keep apart names that differ in nothing but characters which no file has."""
    plain = {variant.name: re.sub(r"[^\w.-]", "-", variant.name) for variant in workload.variants}
    return {name: f"{number}-{file}.jsonl" for number, (name, file) in enumerate(plain.items(), start=1)}


def workload_json(workload: Workload, title: str) -> str:
    """The content of workload.json; OpenSearch Benchmark fills in the expressions in double braces."""
    operations, closed, opened = [], [], []
    names = file_names(workload)
    times = {"warmup-time-period": "<<warmup | default(30)>>", "time-period": "<<seconds | default(60)>>"}
    arrivals = {"target-throughput": "<<rate | default(20)>>", "schedule": "poisson"}
    for variant in workload.variants:
        operations.append(
            {
                "name": variant.name,
                "operation-type": "search",
                "param-source": "osn-bodies",
                "bodies": names[variant.name],
                "index": workload.index_of(variant),
                "cache": False,
                "request-params": pipeline_parameter(variant),
            }
        )
        closed.append({"operation": variant.name, "clients": "<<clients | default(8)>>", **times})
        opened.append({"operation": variant.name, "clients": "<<clients | default(50)>>", **times, **arrivals})
    in_a_loop = {"description": "Clients that ask again once answered.", "default": True, "schedule": closed}
    at_random = {"description": "Requests at random moments, at a given rate.", "schedule": opened}
    content = {
        "version": 2,
        "description": f"{title}: {len(workload.texts)} queries on {workload.index}",
        "operations": operations,
        "test_procedures": [{"name": "closed-loop", **in_a_loop}, {"name": "open-loop", **at_random}],
    }
    # No index is called by these brackets.
    return json.dumps(content, indent=2).replace('"<<', "{{ ").replace('>>"', " }}") + "\n"


@dataclass(frozen=True)
class ExportOptions:
    """What `osn bench export-osb` writes."""

    index: str = setting(None, "The index to search.", required=True, type=str)
    engines: str = setting("paper", "Engines, as for `osn bench load`.")
    data: Path | None = setting(None, "A folder in BEIR layout.", type=click.Path(path_type=Path))
    split: str = setting("test", "Split whose queries are searched.")
    queries: Path | None = setting(None, "A file of queries.", type=click.Path(path_type=Path))
    limit_queries: int = setting(1000, "Only the first N queries; each is written for each engine.")


@click.command("export-osb")
@setting_options(ExportOptions)
@output_option("The folder to write.", required=True)
@models_options
@connection_options
def export_osb(connection: ConnectionSettings, models: ModelChoice, out: Path, **values: Any) -> None:
    """Write the workload of `osn bench load` for OpenSearch Benchmark (opensearch-benchmark 2.x).

    It only reads facts of the index, and puts no load on the cluster.

    \b
    osn bench export-osb --index docs --data data/docs --output osb
    opensearch-benchmark run --pipeline benchmark-only --target-hosts 127.0.0.1:9200 --workload-path osb
    """
    options = ExportOptions(**values)
    variants = parse_variants(options.engines)
    _, texts = queries_of(options.queries, options.data, options.split, options.limit_queries)
    client = connect(settings=connection)
    with translate_errors():
        workload = prepare(client, LoadTarget(connection), options.index, variants, texts, models)
        for path in export(workload, out, title=options.index):
            print(path)
