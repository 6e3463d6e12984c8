"""What is exported for OpenSearch Benchmark is the same workload."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.load import osb
from benchmarks.load.measurement import pipeline_names, prepare
from benchmarks.load.osb_check import compared, t_interval
from benchmarks.load.target import Target
from benchmarks.load.variants import parse_variants
from benchmarks.load.workload import Workload, encoders
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.errors import InputError, OsnError


@pytest.fixture
def workload(client, loaded: str, corpus: Path) -> Workload:
    variants = parse_variants("bm25,high-idf-first+window=50,two-phase")
    texts = list(BeirData.load(corpus).queries.values())
    return prepare(client, Target(ConnectionSettings()), loaded, variants, texts, pipelines=pipeline_names(variants))


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("exported_workload", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def filled_in(text: str, **values: float) -> dict:
    """What OpenSearch Benchmark makes of the file: a default, or the value given on its command line."""
    return json.loads(
        re.sub(r"{{ (\w+) \| default\((\d+)\) }}", lambda found: str(values.get(found[1], found[2])), text)
    )


@pytest.mark.cluster
def test_the_exported_requests_are_those_that_are_sent_here(workload: Workload, tmp_path: Path) -> None:
    osb.export(workload, tmp_path)
    content = filled_in((tmp_path / "workload.json").read_text(), clients=20)
    for operation, variant in zip(content["operations"], workload.variants, strict=True):
        assert operation["name"] == variant.name and operation["index"] == workload.index
        encode = encoders(workload)[variant.name]
        lines = (tmp_path / "bodies" / operation["bodies"]).read_text().splitlines()
        assert [line.encode() for line in lines] == [encode(at) for at in range(len(workload.texts))]
        asked = {"request_cache": str(operation["cache"]).lower(), **operation["request-params"]}
        assert all(f"{key}={value}" in workload.path_of(variant) for key, value in asked.items())
    closed, opened = content["test_procedures"]
    assert {task["clients"] for task in closed["schedule"]} == {20}
    assert all(task["schedule"] == "poisson" and task["target-throughput"] == 20 for task in opened["schedule"])
    assert "curl -X PUT" in (tmp_path / "README.md").read_text()  # two-phase needs its pipeline


@pytest.mark.cluster
def test_each_client_asks_all_queries_before_any_comes_again(workload: Workload, tmp_path: Path) -> None:
    osb.export(workload, tmp_path)
    operation = filled_in((tmp_path / "workload.json").read_text())["operations"][0]
    registered = {}

    class Registry:
        def register_param_source(self, name: str, source: type) -> None:
            registered[name] = source

    module_of(tmp_path / "workload.py").register(Registry())
    source = registered["osn-bodies"](None, operation)
    first, second = source.partition(0, 2), source.partition(1, 2)
    bodies = [first.params()["body"] for _ in workload.texts]
    assert sorted(bodies) == sorted((tmp_path / "bodies" / "bm25.jsonl").read_text().splitlines())
    assert [second.params()["body"] for _ in workload.texts] != bodies
    asked = first.params()
    assert asked["cache"] is False and asked["index"] == workload.index


def test_results_are_read_from_its_csv() -> None:
    text = (
        "Metric,Task,Value,Unit\nMean Throughput,bm25,98.5,ops/s\n50th percentile latency,bm25,4.5,ms\n"
        "99th percentile latency,bm25,21.5,ms\nerror rate,bm25,0.5,%\nMean Throughput,sparse,1,ops/s\n"
    )
    assert osb.read_results(text, "bm25") == osb.OsbResult(98.5, 4.5, 21.5, 0.5)
    assert osb.read_results(text, "sparse").p99 is None
    with pytest.raises(InputError, match="no operation 'dense'"):
        osb.read_results(text, "dense")


def test_intervals_that_overlap_are_told_from_those_that_do_not() -> None:
    same = compared("docs", "bm25", 100, [(100, 20), (99, 22), (101, 21)], [(100, 21), (98, 23), (101, 20)], 12_000)
    assert [goal.met for goal in same[1]] == [True, True]
    other = compared("docs", "bm25", 100, [(100, 20), (99, 22), (101, 21)], [(100, 61), (98, 63), (101, 60)], 12_000)
    assert [goal.met for goal in other[1]] == [True, False]
    ratio = next(row for row in same[0] if row.column == "P99 ms / OpenSearch Benchmark")
    assert ratio.low is not None and ratio.high is not None and ratio.low < 1 < ratio.high
    # By hand: logarithms 0, 1 and 2, whose mean is 1 and whose standard error is 1/√3; t is 4.303.
    found = t_interval([math.exp(at) for at in range(3)])
    assert [math.log(each) for each in found] == pytest.approx([1.0, 1 - 4.303 / 3**0.5, 1 + 4.303 / 3**0.5], abs=1e-3)


def test_an_absent_program_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OsnError, match="pipx install opensearch-benchmark"):
        osb.program()


@pytest.mark.cluster
def test_the_command_exports(cluster_url: str, loaded: str, corpus: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "opensearch_neural.cli",
        "bench",
        "export-osb",
        "--url",
        cluster_url,
        "--index",
        loaded,
    ]
    done = subprocess.run(
        [*command, "--data", str(corpus), "--engines", "bm25", "--out", "osb"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "osb").iterdir()} == {
        "workload.json",
        "workload.py",
        "README.md",
        "bodies",
    }


@pytest.mark.cluster
@pytest.mark.skipif(not shutil.which(osb.PROGRAM), reason="opensearch-benchmark is not installed (pipx install it)")
def test_opensearch_benchmark_runs_what_was_exported(workload: Workload, cluster_url: str, tmp_path: Path) -> None:
    osb.export(workload, tmp_path)
    host = cluster_url.partition("://")[2]
    values = {"clients": 4, "rate": 20, "seconds": 5, "warmup": 1}
    found = osb.run_osb(osb.program(), tmp_path, host, "bm25", "open-loop", values)
    assert found.error_percent == 0 and found.throughput == pytest.approx(20, rel=0.3)
