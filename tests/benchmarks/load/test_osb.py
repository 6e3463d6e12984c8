"""What is exported for OpenSearch Benchmark is the same workload."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.load import osb
from benchmarks.load.variants import parse_variants
from benchmarks.load.workload import LoadTarget, Workload, encoders, prepare
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.corpus.judgements import BeirData


@pytest.fixture
def workload(client, loaded: str, corpus: Path) -> Workload:
    variants = parse_variants("bm25,high-idf-first+window=50,two-phase,a/b=bm25,a-b=sparse")
    texts = list(BeirData.load(corpus).queries.values())
    return prepare(client, LoadTarget(ConnectionSettings()), loaded, variants, texts)


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
def test_an_index_may_be_called_by_any_name(workload: Workload) -> None:
    content = filled_in(osb.workload_json(replace(workload, index="@docs@"), "@docs@"))
    assert {operation["index"] for operation in content["operations"]} == {"@docs@"}
    assert content["description"].startswith("@docs@: ")


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
    assert sorted(bodies) == sorted((tmp_path / "bodies" / "1-bm25.jsonl").read_text().splitlines())
    assert [second.params()["body"] for _ in workload.texts] != bodies
    asked = first.params()
    assert asked["cache"] is False and asked["index"] == workload.index


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
