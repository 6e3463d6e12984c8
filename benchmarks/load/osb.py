"""The same workload for OpenSearch Benchmark (`opensearch-benchmark`, 2.x), so that anybody can check our numbers.

    osn bench export-osb --index docs --queries queries.jsonl --engines bm25,sparse --out osb
    opensearch-benchmark run --pipeline benchmark-only --target-hosts 127.0.0.1:9200 --workload-path osb

Requests are written out as they are sent here: OpenSearch Benchmark does not encode queries. Its `latency` counts from the
moment a request was due, as ours does; its `service_time` is our latency of a closed loop without encoding.

Two differences remain. It keeps the time of a request's answer by the moment the headers have arrived and the body is
read by its client library; and it needs more processor time for each request than this generator, which on a machine
shared with the cluster is taken from the cluster.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load.variants import Variant, parameters, pipeline_body
from benchmarks.load.workload import Workload, encoders
from opensearch_neural.errors import InputError, OsnError
from opensearch_neural.files import write_text

PROGRAM = "opensearch-benchmark"

PARAM_SOURCE = '''"""Reads request bodies from bodies/NAME.jsonl, in random order, all of them before any comes again."""

import random
from pathlib import Path


class Bodies:
    def __init__(self, workload, params, **kwargs):
        self._params = params
        path = Path(__file__).parent / "bodies" / params["bodies"]
        self._bodies = path.read_text(encoding="utf-8").splitlines()
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
    """Write workload.json, workload.py, the bodies and a README into `folder`. Returns the files.

    Raises what building the requests raises.
    """
    folder = Path(folder)
    written = []
    for variant in workload.variants:
        path = folder / "bodies" / f"{file_name(variant)}.jsonl"
        encode = encoders(workload)[variant.name]
        write_text(path, "".join(encode(at).decode() + "\n" for at in range(len(workload.texts))))
        written.append(path)
    pipelines = {
        workload.pipelines[variant.name]: body
        for variant in workload.variants
        if (body := pipeline_body(variant)) is not None
    }
    commands = "".join(
        f"\nThe pipeline must be there first:\n\n    curl -X PUT HOST:PORT/_search/pipeline/{name} "
        f"-H 'content-type: application/json' -d '{json.dumps(body)}'\n"
        for name, body in pipelines.items()
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


def file_name(variant: Variant) -> str:
    return "".join(character if character.isalnum() or character in "-._" else "-" for character in variant.name)


def workload_json(workload: Workload, title: str) -> str:
    """The workload's description; OpenSearch Benchmark fills in what stands in double braces."""
    operations, closed, opened = [], [], []
    for variant in workload.variants:
        asked = parameters(variant, workload.pipelines.get(variant.name))
        cache = asked.pop("request_cache") == "true"
        operations.append(
            {
                "name": variant.name,
                "operation-type": "search",
                "param-source": "osn-bodies",
                "bodies": f"{file_name(variant)}.jsonl",
                "index": workload.index_of(variant),
                "cache": cache,
                "request-params": asked,
            }
        )
        times = {"warmup-time-period": "@warmup | default(30)@", "time-period": "@seconds | default(60)@"}
        closed.append({"operation": variant.name, "clients": "@clients | default(8)@", **times})
        opened.append(
            {
                "operation": variant.name,
                "clients": "@clients | default(50)@",
                **times,
                "target-throughput": "@rate | default(20)@",
                "schedule": "poisson",
            }
        )
    content = {
        "version": 2,
        "description": f"{title}: {len(workload.texts)} queries on {workload.index}",
        "operations": operations,
        "test_procedures": [
            {
                "name": "closed-loop",
                "description": "Clients that ask again once answered.",
                "default": True,
                "schedule": closed,
            },
            {"name": "open-loop", "description": "Requests at random moments, at a given rate.", "schedule": opened},
        ],
    }
    return json.dumps(content, indent=2).replace('"@', "{{ ").replace('@"', " }}") + "\n"


# ------------------------------------------------------------------------------------------------------------- running


@dataclass(frozen=True)
class OsbResult:
    """Of one operation: requests a second (mean), latency and service time in ms, share of errors in percent."""

    throughput: float
    p50: float | None
    p99: float | None
    error_percent: float


def program(named: str | None = None) -> str:
    """The `opensearch-benchmark` program. Raises OsnError with how to install it."""
    found = named or shutil.which(PROGRAM)
    if not found or not Path(found).exists():
        raise OsnError(
            f"{PROGRAM} is not installed here",
            f"give it an environment of its own, since it needs much: pipx install {PROGRAM}; or name it with --osb",
        )
    return found


def run_osb(
    osb: str,
    folder: Path,
    host: str,
    operation: str,
    procedure: str,
    values: Mapping[str, float],
    *,
    timeout: float = 3600.0,
) -> OsbResult:
    """Run one operation of an exported workload. Raises OsnError where OpenSearch Benchmark fails, with its last lines."""
    with tempfile.TemporaryDirectory(prefix="osn-osb-") as place:
        results = Path(place) / "results.csv"
        command = [
            *(osb, "run", "--pipeline", "benchmark-only", "--target-hosts", host),
            *("--workload-path", str(folder.resolve()), "--test-procedure", procedure),
            *("--workload-params", ",".join(f"{name}:{value:g}" for name, value in values.items())),
            *("--include-tasks", operation, "--results-format", "csv", "--results-file", str(results)),
            *("--test-run-id", str(uuid.uuid4()), "--latency-percentiles", "50,99"),
        ]
        # Its configuration, logs and results go below the home folder unless it is told otherwise.
        environment = {**os.environ, "BENCHMARK_HOME": place}
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, check=False)
        if done.returncode != 0 or not results.exists():
            lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise OsnError(f"{PROGRAM} failed ({done.returncode}): " + " / ".join(lines[-4:]))
        return read_results(results.read_text(encoding="utf-8"), operation)


def read_results(text: str, operation: str) -> OsbResult:
    """From the CSV that OpenSearch Benchmark writes. Raises InputError where the operation is not in it."""
    values: dict[str, Any] = {
        row["Metric"]: row["Value"] for row in csv.DictReader(text.splitlines()) if row.get("Task") == operation
    }
    if "Mean Throughput" not in values:
        raise InputError(f"the results of {PROGRAM} hold no operation {operation!r}")

    def number(name: str) -> float | None:
        value = values.get(name)
        return float(value) if value not in (None, "") else None

    return OsbResult(
        throughput=number("Mean Throughput") or 0.0,
        p50=number("50th percentile latency"),
        p99=number("99th percentile latency"),
        error_percent=number("error rate") or 0.0,
    )
