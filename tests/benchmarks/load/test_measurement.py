"""Whole runs on a real cluster: what is reported, and what is left when something dies in the middle of one."""

from __future__ import annotations

import math
import os
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from loaded_index import write
from osn_command import osn_command
from osn_node import kill_node
from page_elements import Elements

from benchmarks.load import result, server
from benchmarks.load import run as measuring
from benchmarks.load.measurement import LoadSettings, Measurement, WarmupSettings
from benchmarks.load.run import measure
from benchmarks.load.variants import parse_variants
from benchmarks.load.workload import allowed_target, prepared
from opensearch_neural import node
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.corpus.judgements import BeirData, JudgedQueries
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.evaluation.results import read

QUICK = LoadSettings(
    clients=(3,),
    requests=40,
    rounds=3,
    settle=0.1,
    shortest=0.2,
    longest=0.4,
    warmup=WarmupSettings(least=0.0, most=2.0, window=0.2),
    processes=2,
    ceiling=0.3,
    quality_queries=20,
)


def run(
    client,
    url: str,
    index: str,
    corpus: Path,
    engines: str = "bm25,high-idf-first",
    settings: LoadSettings = QUICK,
    **more,
) -> Measurement:
    data = BeirData.load(corpus)
    target = allowed_target(ConnectionSettings.from_env(urls=(url,), timeout=3.0), owned=False)
    variants = parse_variants(engines)
    with prepared(client, target, index, variants, list(data.queries.values())) as workload:
        return measure(client, workload, settings, **more)


def answers_from_cache(client, index: str) -> int:
    stats = client.indices.stats(index=index, metric="request_cache")
    return stats["_all"]["total"]["request_cache"]["hit_count"]


@pytest.fixture(scope="module")
def measured(client, cluster_url: str, loaded: str, corpus: Path, tmp_path_factory) -> tuple[Measurement, Path]:
    """A whole run, and the folder of its journal."""
    folder = tmp_path_factory.mktemp("measured")
    data = BeirData.load(corpus)
    settings = replace(QUICK, rates=(20.0,))
    cached: list[int] = []
    measurement = run(
        client, cluster_url, loaded, corpus, "rivals", settings, judged=data, out=folder,
        on_block=lambda *_: cached.append(answers_from_cache(client, loaded)),
    )  # fmt: skip
    assert len(cached) > 1 and len(set(cached)) == 1, "what is measured is the request cache"
    return measurement, folder


@pytest.mark.cluster
def test_a_whole_run_shows_quality_beside_cost(measured: tuple[Measurement, Path], loaded: str) -> None:
    measurement, _ = measured
    assert measurement.partial is None
    shown = result.text(measurement)
    for level in ("3 clients", "20/s"):
        assert f"{loaded}, {level}" in shown
    rows = {(row.where, row.line, row.column): row for row in result.rows(measurement)}
    for engine in ("bm25", "sparse", "high-idf-first", "two-phase"):
        assert rows[loaded, engine, "nDCG@10"].n == 60
        of_level = {
            measure: row
            for (set_, name, measure), row in rows.items()
            if (set_, name) == (f"{loaded}, 3 clients", engine)
        }
        if "refused" not in of_level:  # on a machine that is busy with other tests, the generator may be the bottleneck
            assert of_level["requests/s"].value > 0 and of_level["encode ms, mean"].value > 0
            assert of_level["failed"].value == 0
    assert measurement.indexes[loaded].documents == 500 and measurement.indexes[loaded].segments == 1
    assert measurement.cluster is not None and "request_cache=false" in shown
    if measurement.cluster.cpu_from == "/proc":
        assert all(block.others is not None and 0 <= block.others <= 1 for block in measurement.blocks)


@pytest.mark.cluster
def test_a_query_of_too_many_words_gets_no_hits_and_the_load_test_goes_on(
    client, cluster_url: str, loaded: str, corpus: Path, tmp_path: Path
) -> None:
    """It ended the run, also if it was the first."""
    data = BeirData.load(corpus)
    texts = {"whole": " ".join(f"word{at}" for at in range(1100)), **dict(list(data.queries.items())[:5])}
    qrels = {"whole": {"any": 1.0}, **{query: data.qrels[query] for query in texts if query in data.qrels}}
    judged = JudgedQueries("docstrings", "test", texts, qrels, ())
    target = allowed_target(ConnectionSettings.from_env(urls=(cluster_url,)), owned=False)
    with prepared(client, target, loaded, parse_variants("bm25,bm25-sparse"), list(texts.values())) as workload:
        measurement = measure(client, workload, replace(QUICK, requests=3, rounds=1), out=tmp_path, judged=judged)
    assert measurement.partial is None and measurement.blocks
    why = "because they make more clauses, a word each as a rule, than OpenSearch searches at once"
    unanswered, left_out = (line for line in measurement.incidents if why in line)
    assert unanswered.startswith("1 of 6 queries get no hits from bm25, bm25-sparse, ")
    assert left_out.startswith("1 of 6 queries are left out of overlap@10 and the score kept of bm25-sparse, ")
    assert unanswered.endswith(": whole") and left_out.endswith(": whole")
    counts = {(row.engine, row.measure): row.n for row in measurement.quality if row.kind == "value"}
    assert counts["bm25-sparse", "nDCG@10"] == 6 and counts["bm25-sparse", "score kept"] == 5


@pytest.mark.cluster
def test_every_engine_was_measured_in_every_round(measured: tuple[Measurement, Path]) -> None:
    measurement, folder = measured
    turns = [(block.round, block.level, block.variant) for block in measurement.blocks]
    assert len(turns) == len(set(turns)) >= 3 * 2 * 4
    assert all(block.requests > 0 and block.broken is None for block in measurement.blocks)
    # Processor time of a local node comes from /proc, and searching costs some.
    if measurement.cluster is not None and measurement.cluster.cpu_from == "/proc":
        assert sum(block.server_cpu or 0 for block in measurement.blocks) > 0
    assert len((folder / "blocks.jsonl").read_text().splitlines()) == len(measurement.blocks) + 1


@pytest.mark.cluster
def test_the_same_run_again_measures_nothing_twice(
    measured: tuple[Measurement, Path], client, cluster_url: str, loaded: str, corpus: Path
) -> None:
    measurement, folder = measured
    settings = replace(QUICK, rates=(20.0,), quality=False)
    again = run(client, cluster_url, loaded, corpus, "rivals", settings, out=folder)
    assert again.blocks == measurement.blocks and "continued after" in again.incidents[0]


@pytest.mark.cluster
def test_a_complete_run_is_not_shown_as_a_new_one(
    measured: tuple[Measurement, Path], client, cluster_url: str, loaded: str, corpus: Path, tmp_path: Path
) -> None:
    """`osn bench load` again printed the first run's figures, with the code and the machine of today."""
    shutil.copy(measured[1] / "blocks.jsonl", tmp_path)
    settings = replace(QUICK, rates=(20.0,), quality=False)
    with pytest.raises(InputError, match="holds this run, and it is complete"):
        run(client, cluster_url, loaded, corpus, "rivals", settings, out=tmp_path, once=True)
    with pytest.raises(InputError, match=r"another run \(differs in code, machine\)"):
        run(client, cluster_url, loaded, corpus, "rivals", settings, out=tmp_path, code="c0ffee", once=True)
    more = replace(settings, rounds=2 + max(block.round for block in measured[0].blocks))
    longer = run(client, cluster_url, loaded, corpus, "rivals", more, out=tmp_path, once=True)
    assert len(longer.blocks) > len(measured[0].blocks)


@pytest.mark.cluster
@pytest.mark.parametrize("other", [{"uuid": "another"}, {"heap_max": 7}, {"version": "opensearch 9.9.9"}])
def test_blocks_of_another_cluster_are_not_mixed_in(
    other: dict[str, object], measured: tuple[Measurement, Path], client, cluster_url: str, loaded: str, corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Before, the same command with another --url showed the first cluster's numbers as those of the second."""
    facts = server.cluster_facts
    monkeypatch.setattr(server, "cluster_facts", lambda probe: replace(facts(probe), **other))
    settings = replace(QUICK, rates=(20.0,), quality=False)
    with pytest.raises(InputError, match=r"another run \(differs in cluster\)"):
        run(client, cluster_url, loaded, corpus, "rivals", settings, out=measured[1])


@pytest.mark.cluster
def test_blocks_of_another_build_behind_an_alias_are_not_mixed_in(
    client, cluster_url: str, loaded: str, corpus: Path, index_name: str, tmp_path: Path
) -> None:
    """Before, another build with as many documents and segments showed the numbers of the first one."""
    meta = client.indices.get_mapping(index=loaded)[loaded]["mappings"]
    builds = [f"{index_name}-{number}" for number in (1, 2)]
    settings = replace(QUICK, quality=False)
    for build in builds:
        client.indices.create(index=build, body={"mappings": meta, "settings": {"number_of_replicas": 0}})
    client.indices.put_alias(index=builds[0], name=index_name)
    assert run(client, cluster_url, index_name, corpus, "bm25", settings, out=tmp_path).blocks
    client.indices.put_alias(index=builds[1], name=index_name)
    client.indices.delete_alias(index=builds[0], name=index_name)
    with pytest.raises(InputError, match=r"another run \(differs in index\)"):
        run(client, cluster_url, index_name, corpus, "bm25", settings, out=tmp_path)


@pytest.mark.cluster
def test_an_index_of_resampled_documents_may_be_made_again_on_another_node(
    client, cluster_url: str, loaded: str, corpus: Path, measured: tuple[Measurement, Path]
) -> None:
    measurement, _ = measured
    assert measurement.cluster is not None
    target = allowed_target(ConnectionSettings.from_env(urls=(cluster_url,)), owned=False)
    with prepared(client, target, loaded, parse_variants("bm25"), ["rain"]) as workload:
        facts = workload.indexes[loaded]
        drawn = replace(facts, meta=facts.meta.with_extra(**{measuring.RESAMPLED: {"documents": 3}}))
        grown = replace(workload, indexes={loaded: drawn})
        anew = {name: replace(each, uuid="another") for name, each in measurement.indexes.items()}
        again = replace(measurement, cluster=replace(measurement.cluster, uuid="another"), indexes=anew)
        assert measuring.identity(again, grown) == measuring.identity(measurement, grown)
        assert measuring.identity(again, workload) != measuring.identity(measurement, workload)


def during_the_blocks(act: Callable[[], object]) -> Callable[..., None]:
    """An `on_block` that acts once, when the third block is done."""
    seen = []

    def on_block(block, done: int) -> None:
        seen.append(block)
        if len(seen) == 3:
            act()

    return on_block


@pytest.mark.cluster
def test_a_killed_worker_ends_the_run_with_what_was_measured(
    client, cluster_url: str, loaded: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []

    class Watched(measuring.Generators):
        def __enter__(self) -> measuring.Generators:
            entered = super().__enter__()
            pids[:] = self.pids
            return entered

    monkeypatch.setattr(measuring, "Generators", Watched)
    settings = replace(QUICK, requests=100_000, longest=2.0, quality=False)
    began = time.monotonic()
    kill = during_the_blocks(lambda: threading.Timer(0.2, os.kill, (pids[0], signal.SIGKILL)).start())
    measurement = run(client, cluster_url, loaded, corpus, settings=settings, out=tmp_path, on_block=kill)
    assert time.monotonic() - began < 60
    assert measurement.partial == "generator process 1 of 2 was ended by signal 9"
    assert 3 <= len(measurement.blocks) <= 6
    assert result.text(measurement).startswith("PARTIAL RESULT: generator process 1 of 2")


@pytest.mark.cluster
def test_documents_that_change_meanwhile_are_told(client, cluster_url: str, corpus: Path, tmp_path: Path) -> None:
    index = f"osn-test-load-{uuid.uuid4().hex[:8]}"
    write(client, corpus, index)
    act = during_the_blocks(lambda: client.delete(index=index, id=first_id(client, index), refresh=True))
    try:
        settings = replace(QUICK, quality=False)
        measurement = run(client, cluster_url, index, corpus, settings=settings, out=tmp_path, on_block=act)
    finally:
        client.indices.delete(index=index)
    told = f"{index!r} changed while it was measured (500 documents before, 499 after)"
    assert f"! {told}" in result.text(measurement) and told in result.summary(measurement).title


@pytest.mark.cluster
def test_documents_that_change_before_a_run_goes_on_are_told(
    client, cluster_url: str, corpus: Path, index_name: str, tmp_path: Path
) -> None:
    """The blocks before were of other documents, and nothing told of it."""
    write(client, corpus, index_name)
    settings = replace(QUICK, quality=False)
    assert run(client, cluster_url, index_name, corpus, "bm25", settings, out=tmp_path).changes == []
    changed = first_id(client, index_name)
    source = client.get(index=index_name, id=changed)["_source"]
    client.index(index=index_name, id=changed, body=source, refresh=True)
    client.indices.forcemerge(index=index_name, params={"max_num_segments": 1})
    client.indices.refresh(index=index_name)
    (told,) = run(client, cluster_url, index_name, corpus, "bm25", settings, out=tmp_path).changes
    assert told.startswith(
        f"{index_name!r} changed while it was measured (some of its 500 documents were written again)"
    )


def first_id(client, index: str) -> str:
    return client.search(index=index, body={"size": 1})["hits"]["hits"][0]["_id"]


@pytest.fixture
def own_node() -> Iterator[node.ClusterState]:
    """A node that a test may kill."""
    name = f"osn-load-tests-{uuid.uuid4().hex[:8]}"
    try:
        yield node.start(name=name, port=0, heap="512m", attached=True)
    finally:
        node.stop(name, purge=True)


@pytest.mark.cluster
def test_a_dying_node_ends_the_run_with_what_was_measured(
    own_node: node.ClusterState, corpus: Path, tmp_path: Path
) -> None:
    client = connect(settings=ConnectionSettings(urls=(own_node.url,), patience=0.5))
    index = f"osn-test-load-{uuid.uuid4().hex[:8]}"
    write(client, corpus, index)
    settings = replace(QUICK, requests=100_000, longest=0.8, quality=False)
    began = time.monotonic()
    kill = during_the_blocks(lambda: threading.Timer(0.3, kill_node, (1, own_node.name)).start())
    measurement = run(client, own_node.url, index, corpus, settings=settings, out=tmp_path, on_block=kill)
    assert time.monotonic() - began < 90
    assert measurement.partial is not None and "the cluster stopped answering" in measurement.partial
    counted = [block for block in measurement.blocks if block.broken is None]
    (broken,) = [block for block in measurement.blocks if block.broken]
    assert len(counted) >= 3 and broken.failures["connection"] > 0
    result.write(tmp_path, result.summary(measurement))
    assert "(partial)" in read(tmp_path).title


@pytest.mark.cluster
def test_what_cannot_begin_is_an_error_with_the_reason(
    client, cluster_url: str, loaded: str, corpus: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="the baseline 'bm25' is not among the engines"):
        run(client, cluster_url, loaded, corpus, "sparse,high-idf-first", out=tmp_path)
    with pytest.raises(ClusterError, match="no index 'osn-test-nowhere'"):
        run(client, cluster_url, "osn-test-nowhere", corpus, out=tmp_path)
    with pytest.raises(ClusterError, match="no index 'osn-test-other'"):
        run(client, cluster_url, loaded, corpus, "bm25,bm25+index=osn-test-other", out=tmp_path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (LoadSettings(clients=()), "no load is given"),
        (LoadSettings(clients=(0,)), "above 0"),
        (LoadSettings(clients=(5, 5)), "given twice"),
        (LoadSettings(shortest=2.0, longest=1.0), "shortest window"),
        (LoadSettings(rounds=0), "rounds must be above 0"),
        (LoadSettings(minutes=-1.0), "minutes must be above 0"),
        (LoadSettings(minutes=math.nan), "minutes must be above 0"),
        (LoadSettings(rates=(math.nan,)), "above 0"),
        (LoadSettings(rates=(math.inf,)), "above 0"),
        (LoadSettings(settle=-1.0), "settle must be 0 or more"),
        (LoadSettings(settle=math.nan), "settle must be 0 or more"),
        (LoadSettings(warmup=WarmupSettings(-5.0, 5.0)), "warm-up must be 0 or more"),
        (LoadSettings(warmup=WarmupSettings(0.0, math.nan)), "warm-up must be 0 or more"),
        (LoadSettings(shortest=math.inf, longest=math.inf), "shortest window"),
    ],
)
def test_settings_that_cannot_work_are_named(settings: LoadSettings, words: str) -> None:
    with pytest.raises(InputError, match=words):
        settings.validate()


@pytest.mark.cluster
def test_the_command_measures_prints_and_writes(
    cluster_url: str, loaded: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [
        *("bench", "load", "--url", cluster_url, "--index", loaded),
        *("--data", str(corpus), "--engines", "bm25,high-idf-first"),
        *("--clients", "2", "--requests", "20", "--rounds", "3", "--report", str(tmp_path / "report.html")),
        *("--warmup", "0,1", "--block-seconds", "0.3,1", "--out", "result"),
    ]
    monkeypatch.chdir(tmp_path)
    done = osn_command(*command)
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1) and f"{loaded}, 2 clients" in done.stdout, done.stderr
    assert {"load.csv", "summary.json", "blocks.jsonl"} <= {path.name for path in (tmp_path / "result").iterdir()}
    assert str(tmp_path) not in (tmp_path / "result" / "summary.json").read_text()
    page = Elements((tmp_path / "report.html").read_text())
    assert "SHA-256" in page.text and f"{loaded}, 2 clients" in page.text
    again = osn_command(*command)
    assert again.returncode == 1 and "give --restart" in again.stderr and not again.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--url", "http://203.0.113.1:9200", "--queries", "q.jsonl"], "--i-own-this-cluster"),
        (["--engines", "splade", "--queries", "q.jsonl"], "there is no engine 'splade'"),
        (["--data", "a", "--queries", "b"], "give either --data or --queries"),
        (["--warmup", "3,1", "--queries", "q.jsonl"], "the shortest warm-up must be 0 or more seconds, and not longer"),
        (["--clients", "five", "--queries", "q.jsonl"], "is not a list of numbers"),
        (["--report", ".", "--queries", "q.jsonl"], "'--report': File '.' is a directory"),
        (["--record", "q.jsonl", "--queries", "q.jsonl"], "'--record': Directory 'q.jsonl' is a file"),
        (
            ["--warmup", "nan,nan", "--queries", "q.jsonl"],
            "the shortest warm-up must be 0 or more seconds, and not longer",
        ),
    ],
)
def test_mistakes_on_the_command_line_are_named(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "q.jsonl").write_text('{"_id": "1", "text": "one"}\n')
    monkeypatch.chdir(tmp_path)
    done = osn_command("bench", "load", "--index", "docs", *arguments)
    assert done.returncode != 0 and words in done.stderr and "Traceback" not in done.stderr, done.stderr
