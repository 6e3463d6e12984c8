"""What lies in `examples/`, each run as its own first lines say, on a real node."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from forked_osn import forked_osn
from osn_command import osn_command

from ingest.corpus import CorpusSource
from ingest.job import Job, run_job
from ingest.settings import Models, NewIndex
from opensearch_neural.index.mapping import index_body
from opensearch_neural.index.record import PassageMeta, read_record
from trainers.data.clicks.from_clicks import from_clicks

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

EXAMPLES = Path(__file__).parent.parent / "examples"
DOCUMENTS = {
    "rainbow": ("Rainbows", "What causes a rainbow is light in drops of rain."),
    "trout": ("Trout", "A fish of rivers and lakes."),
    "heart": ("Infarction", "Blood flow to a part of the heart stops. Chest pain is common."),
    "untitled": (None, "The heart is a muscle."),
}
LINES = "".join(
    json.dumps({"_id": id, "text": text, **({"title": title} if title else {})}) + "\n"
    for id, (title, text) in DOCUMENTS.items()
)


@pytest.fixture(scope="module")
def index(client: OpenSearch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("examples")
    (folder / "docs.jsonl").write_text(LINES)
    name = f"osn-test-examples-{os.getpid()}"
    job = Job(
        CorpusSource(str(folder / "docs.jsonl")),
        name,
        models=Models(sparse="lexical"),
        new_index=NewIndex(replicas=0),
        dead_letters=folder / "letters",
    )
    run_job(client, job, show_progress=False)
    yield name
    client.indices.delete(index=name)


@pytest.fixture
def environment(cluster_url: str, index: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name, value in {"OSN_URL": cluster_url, "OSN_INDEX": index, "MPLBACKEND": "Agg"}.items():
        monkeypatch.setenv(name, value)
    return dict(os.environ)


@pytest.fixture
def service(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example of a service, for the index of these tests."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("service")


def run(*arguments: str | Path, environment: dict[str, str], cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_service_searches_explains_and_refuses(service: Any, environment: dict[str, str]) -> None:
    from fastapi.testclient import TestClient

    assert environment["OSN_INDEX"] == service.INDEX
    with TestClient(service.app) as http:
        hits = http.get("/search", params={"q": "what causes a rainbow", "size": 2}).json()
        assert (hits[0]["id"], hits[0]["title"]) == ("rainbow", "Rainbows")
        assert "why" not in hits[0]
        explained = http.get("/search", params={"q": "what causes a rainbow", "explain": True}).json()[0]
        assert {why["from"] for why in explained["why"]} == {"bm25", "sparse"}
        assert sum(why["adds"] for why in explained["why"]) == pytest.approx(explained["score"], rel=1e-4)
        bm25 = http.get("/search", params={"q": "what causes a rainbow", "engine": "bm25", "explain": True}).json()[0]
        assert {why["from"] for why in bm25["why"]} == {"bm25"}
        for wrong in ({"q": ""}, {"q": "x", "size": 0}, {"q": "x", "engine": "dense"}):
            assert http.get("/search", params=wrong).status_code == 422, wrong
        for engine in ("bm25", "bm25-sparse"):
            long = http.get("/search", params={"q": " ".join(f"word{at}" for at in range(1500)), "engine": engine})
            assert (long.status_code, "more words than the cluster" in long.json()["detail"]) == (400, True), long.text


def test_the_service_follows_its_alias_to_a_build_without_a_forward_index(
    client: OpenSearch, service: Any, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every search by a forward index that is no longer there was refused until the service was started again."""
    from fastapi.testclient import TestClient

    (tmp_path / "docs.jsonl").write_text(LINES)
    job = Job(
        CorpusSource(str(tmp_path / "docs.jsonl")),
        alias=index_name,
        models=Models(sparse="lexical"),
        new_index=NewIndex(replicas=0),
        dead_letters=tmp_path / "letters",
    )
    run_job(client, job, show_progress=False)
    monkeypatch.setattr(service, "INDEX", index_name)
    monkeypatch.setattr(service, "INTERVAL", 0.1, raising=False)
    with TestClient(service.app) as http:
        asked = {"q": "what causes a rainbow", "size": 1}
        assert http.get("/search", params=asked).json()[0]["id"] == "rainbow"
        run_job(client, replace(job, new_index=NewIndex(replicas=0, forward_index=False)), show_progress=False)
        deadline = time.monotonic() + 20
        while (answer := http.get("/search", params=asked)).status_code != 200 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert answer.status_code == 200 and answer.json()[0]["id"] == "rainbow", answer.text
        assert not service.app.state.engines.meta.forward_index


def test_the_batch_writes_a_line_a_query(environment: dict[str, str], index: str, tmp_path: Path) -> None:
    queries = [{"_id": f"q{at}", "text": text} for at, text in enumerate(["fish in a river", "chest pain"] * 60)]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    arguments = (EXAMPLES / "batch.py", "queries.jsonl", "--index", index, "--size", "1")
    lines = [json.loads(line) for line in run(*arguments, environment=environment, cwd=tmp_path).splitlines()]
    assert [line["_id"] for line in lines] == [query["_id"] for query in queries]
    assert [[hit["id"] for hit in line["hits"]] for line in lines] == [["trout"], ["heart"]] * 60


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['{"_id": "a", "text": "fish"}', '{"_id": "b"}'], "queries.jsonl, line 2: expected a query with _id and text"),
        (['{"_id": "a", "text": 3}'], "queries.jsonl, line 1"),
        (['{"_id": "a", "text": "fish"'], "queries.jsonl, line 1: not JSON"),
        (['["fish"]'], "queries.jsonl, line 1: expected a JSON object"),
        ([], "queries.jsonl holds no query"),
    ],
)
def test_the_batch_names_the_line_that_is_no_query(
    environment: dict[str, str], index: str, tmp_path: Path, lines: list[str], said: str
) -> None:
    (tmp_path / "queries.jsonl").write_text("".join(line + "\n" for line in lines))
    arguments = [sys.executable, EXAMPLES / "batch.py", "queries.jsonl", "--index", index]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_the_batch_leaves_out_queries_without_text(environment: dict[str, str], index: str, tmp_path: Path) -> None:
    (tmp_path / "queries.jsonl").write_text('{"_id": "a", "text": " "}\n{"_id": "b", "text": "fish"}\n')
    printed = run(EXAMPLES / "batch.py", "queries.jsonl", "--index", index, environment=environment, cwd=tmp_path)
    assert [json.loads(line)["_id"] for line in printed.splitlines()] == ["b"]


def test_service_and_batch_say_that_an_answer_lacks_a_shard(
    client: OpenSearch,
    service: Any,
    environment: dict[str, str],
    index: str,
    index_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fastapi.testclient import TestClient

    with TestClient(service.app) as http:
        assert "X-Partial" not in http.get("/search", params={"q": "a fish"}).headers
    meta = read_record(client, index)
    assert meta is not None
    nodes = int(client.cluster.health()["number_of_data_nodes"])
    body = index_body(replace(meta, forward_index=False), shards=nodes + 1, replicas=0)
    body["settings"]["index"]["routing.allocation.total_shards_per_node"] = 1
    client.indices.create(index=index_name, body=body, params={"wait_for_active_shards": 0})
    client.cluster.health(index=index_name, params={"wait_for_no_initializing_shards": "true"})
    monkeypatch.setattr(service, "INDEX", index_name)
    with TestClient(service.app) as http:
        answer = http.get("/search", params={"q": "a fish"})
    assert (answer.status_code, answer.headers["X-Partial"]) == (200, "shards_failed")
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "a fish"}\n')
    printed = run(EXAMPLES / "batch.py", "queries.jsonl", "--index", index_name, environment=environment, cwd=tmp_path)
    assert "no node answers for 1 of" in json.loads(printed)["shards_failed"]


def test_in_an_index_of_passages_service_and_batch_name_documents(
    client: OpenSearch, service: Any, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastapi.testclient import TestClient

    rows = [{"_id": id, "text": f"{text} {text}"} for id, (_, text) in DOCUMENTS.items()]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "a fish in rain"}\n')
    name = f"osn-test-examples-passages-{os.getpid()}"
    job = Job(
        CorpusSource(str(tmp_path / "docs.jsonl")),
        name,
        models=Models(sparse="lexical", passages=PassageMeta(8, 8)),
        new_index=NewIndex(replicas=0),
        dead_letters=tmp_path / "letters",
    )
    try:
        run_job(client, job, show_progress=False)
        assert client.count(index=name)["count"] > len(rows)
        monkeypatch.setattr(service, "INDEX", name)
        with TestClient(service.app) as http:
            hits = http.get("/search", params={"q": "a fish in rain", "explain": True}).json()
        for engine in ("bm25-sparse", "hybrid"):
            arguments = (EXAMPLES / "batch.py", "queries.jsonl", "--index", name, "--size", "2", "--engine", engine)
            (line,) = run(*arguments, environment=environment, cwd=tmp_path).splitlines()
            assert sorted(hit["id"] for hit in json.loads(line)["hits"]) == ["rainbow", "trout"], engine
    finally:
        client.indices.delete(index=name, params={"ignore_unavailable": "true"})
    assert sorted(hit["id"] for hit in hits[:2]) == ["rainbow", "trout"] and len(hits) == len(
        {hit["id"] for hit in hits}
    )
    assert all(hit["why"] for hit in hits)


def test_the_notebook_runs_from_the_first_cell_to_the_plot(environment: dict[str, str], tmp_path: Path) -> None:
    cells = json.loads((EXAMPLES / "search.ipynb").read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells), "the notebook is kept without its outputs"
    source = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    (tmp_path / "cells.py").write_text(source + "\nfigure.savefig('plot.png')\nprint(made_of)\n")
    printed = run("cells.py", environment=environment | {"OSN_QUERY": "chest pain of the heart"}, cwd=tmp_path)
    assert (tmp_path / "plot.png").stat().st_size > 5000
    before, _, made_of = printed.rpartition("[{")
    assert "Infarction" in before and "untitled" in before
    best = ast.literal_eval("[{" + made_of)[0]
    assert best["BM25"] > 0 and best["model, word in the text"] > 0


def test_the_loss_is_the_hinge_that_it_says_and_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from tiny import tiny_backbone, tiny_beir

    from trainers.common.own_loss import load_loss
    from trainers.data.retrieval_batches import RetrievalTargets

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])  # as PYTHONPATH does
    hinge = load_loss("own_loss:hinge")
    # By hand: negatives of the first query are columns 1 (1 − 2 + 1.5 = 0.5) and 2, which is excluded; of the second
    # columns 0 (1 − 1 + 0 = 0) and 2 (1 − 1 + 3 = 3).
    scores = torch.tensor([[2.0, 1.5, 9.0], [0.0, 1.0, 3.0]])
    excluded = torch.tensor([[False, False, True], [False, False, False]])
    targets = RetrievalTargets(torch.tensor([[0], [1]]), torch.ones(3, dtype=torch.long), excluded)
    assert hinge(scores, targets).item() == pytest.approx(3.5 / 3)

    backbone, beir = tiny_backbone(tmp_path / "tiny"), tiny_beir(tmp_path / "data")
    settings = (f"train=[{{path: {beir}}}]", "training={steps: 2, batch_size: 4}", "candidates.mine=null")
    settings += ("document_length=32", "student={document_length: 32, query_length: 16}")
    done = osn_command(
        *("train", "sparse", "--loss", "own_loss:hinge"),
        *("--backbone", str(backbone), "--output", str(tmp_path / "model")),
        *(part for setting in settings for part in ("--set", setting)),
    )
    assert done.returncode == 0, done.stderr
    osn_json = json.loads((tmp_path / "model" / "osn.json").read_text())
    assert osn_json["training"]["objective"]["loss"] == "own_loss:hinge"


@pytest.mark.skipif(find_spec("cognition") is None, reason="the published model needs Python 3.11")
def test_a_model_from_clicks_is_trained_on_one_part_of_the_queries_and_measured_on_the_other(
    environment: dict[str, str], client: OpenSearch, index_name: str, tmp_path: Path
) -> None:
    from tiny import tiny_beir

    spec = find_spec("cognition")
    assert spec is not None and spec.submodule_search_locations
    model = Path(spec.submodule_search_locations[0]) / "model"
    data = tiny_beir(tmp_path / "data", documents=80)
    documents = [json.loads(line) for line in (data / "corpus.jsonl").read_text().splitlines()]
    for document in documents:  # with titles there are two rankings, and documents change their places
        document["title"], _, document["text"] = document["text"].rpartition(" ")
    (data / "corpus.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    shown = f"{index_name}-shown"
    job = Job(CorpusSource(str(data)), shown, new_index=NewIndex(replicas=0), dead_letters=tmp_path / "letters")
    run_job(client, job, show_progress=False)
    log = tmp_path / "log.csv"
    simulate = (EXAMPLES / "simulate_clicks.py", "--index", shown, "--data", data, "--split", "train", "--output", log)
    run(*simulate, "--searches", "8000", environment=environment, cwd=tmp_path)

    def script(osn: Path) -> subprocess.CompletedProcess[str]:
        path = f"{osn}{os.pathsep}{environment['PATH']}"
        return subprocess.run(
            [EXAMPLES / "model_from_clicks.sh", log, data, model, index_name],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment | {"PATH": path, "STEPS": "2", "OSN_HOME": str(tmp_path / "home")},
            timeout=300,
        )

    with forked_osn() as osn:
        done = script(osn)
    assert done.returncode == 0, done.stderr
    assert "80 documents in" in done.stdout
    table = done.stdout.rpartition("sparse model\n")[2].partition("difference to")[0]
    row = re.compile(r"^\| (bm25|bm25-sparse) +\| +(0\.\d{3}) \|", re.MULTILINE)
    scores = row.findall(table)
    assert [engine for engine, _ in scores] == ["bm25", "bm25-sparse"]

    clicks = tmp_path / "from-clicks" / "clicks"
    queries = map(json.loads, (clicks / "queries.jsonl").read_text().splitlines())
    texts = {query["_id"]: query["text"] for query in queries}
    measured = {texts[line.split()[0]] for line in (clicks / "qrels" / "test.tsv").read_text().splitlines()[1:]}
    trained_on = {json.loads(line)["query"] for line in (clicks / "pairs.jsonl").read_text().splitlines()}
    assert len(measured) >= 5 and len(trained_on) >= 20 and not measured & trained_on
    assert f"{len(measured)} queries" in done.stdout
    osn_json = json.loads((tmp_path / "from-clicks" / "model" / "osn.json").read_text())
    assert osn_json["training"]["train"][0]["path"].endswith("clicks/pairs.jsonl")
    meta = read_record(client, index_name)
    assert meta is not None and meta.sparse is not None and meta.sparse.name == "model-of-corpus"

    # The same command again makes no other table of the corpus; that each of its commands goes on, their own tests show.
    named = tmp_path / "named" / "osn"
    named.parent.mkdir()
    named.write_text('#!/bin/sh\necho "$1 $2"\n')
    named.chmod(0o755)
    again = script(named.parent)
    assert again.returncode == 0, again.stderr
    assert [line.split()[0] for line in again.stdout.splitlines()] == ["data", "train", "ingest", "eval"], again.stderr


def test_simulated_clicks_are_a_log_from_which_their_propensities_come_back(
    environment: dict[str, str], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    (data / "queries.jsonl").write_text('{"_id": "q", "text": "fish rivers rainbows"}\n')
    (data / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\trainbow\t1\nq\ttrout\t1\n")
    asked = ["--index", environment["OSN_INDEX"], "--data", data, "--output", tmp_path / "log.csv"]
    run(EXAMPLES / "simulate_clicks.py", *asked, "--searches", "20000", environment=environment, cwd=tmp_path)
    result = CliRunner().invoke(from_clicks, [str(tmp_path / "log.csv"), "--output", str(tmp_path / "clicks")])
    assert result.exit_code == 0, result.output
    lines = (tmp_path / "clicks" / "propensities.tsv").read_text().splitlines()[1:]
    found = [float(line.split("\t")[1]) for line in lines]
    assert found[:2] == pytest.approx([1, 2**-0.8], rel=0.1)
