"""`osn ingest` as a process: what it prints, how it ends, and that it goes on where it was stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from corpora import job, letters, records, small_tokenizer, snapshot, write_jsonl
from fault_proxy import Fault, FaultProxy, Request

from ingest.job import run_job
from ingest.writing import pipeline
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.patience import RetryPolicy
from opensearch_neural.models.sparse.published import PUBLISHED

Osn = Callable[..., "subprocess.CompletedProcess[str]"]


def small(corpus: Path | str, index: str, *more: str) -> list[str]:
    model = [] if "--sparse" in more else ["--sparse", "lexical", "--tokenizer", small_tokenizer()]
    return ["ingest", "--corpus", str(corpus), "--index", index, "--batch-docs", "50", "--replicas", "0", *model, *more]


def begin(url: str, home: Path, arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "opensearch_neural.cli", *arguments],
        env=os.environ | {"OSN_URL": url, "OSN_HOME": str(home)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for(proxy: FaultProxy, bulks: int) -> None:
    deadline = time.monotonic() + 60
    while len(proxy.bulks) < bulks:
        assert time.monotonic() < deadline, "the ingest does not write"
        time.sleep(0.01)


def test_the_report_is_for_people_or_for_machines(osn: Osn, client: Any, index_name: str, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", [*records(120), "broken"])
    ran = osn(*small(corpus, index_name))
    assert ran.returncode == 3, ran.stderr
    assert f"120 documents in {index_name}, verified" in ran.stdout
    assert f"1 were rejected: see {index_name}.dead-letters.jsonl" in ran.stdout
    # No terminal: a plain line, no bar that moves.
    assert f"ingest → {index_name}: 121 docs" in ran.stderr and "\r" not in ran.stderr
    ran = osn(*small(corpus, index_name, "--json"))
    report = json.loads(ran.stdout)
    assert (report["documents"], report["letters"], report["index"]) == (120, 1, index_name)
    assert len(letters(tmp_path / f"{index_name}.dead-letters.jsonl")) == 1, "no letter is kept twice"


def test_a_document_that_fails_for_another_reason_has_that_reason_in_its_letter(
    osn: Osn, client: Any, index_name: str, tmp_path: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", [*records(3), {"_id": "odd", "text": "rain", "year": "soon"}])
    mapping, file = tmp_path / "mapping.json", tmp_path / f"{index_name}.dead-letters.jsonl"
    retried = tmp_path / f"{index_name}.dead-letters.2.jsonl"
    for kind in ("long", "date"):
        mapping.write_text(json.dumps({"year": {"type": kind}}))
        for read, written in ((corpus, file), (file, retried)):
            client.indices.delete(index=index_name, params={"ignore_unavailable": "true"})
            osn(*small(read, index_name, "--sparse", "none", "--mapping", str(mapping)))
            (letter,) = letters(written)
            assert f"of type [{kind}]" in letter["reason"]


@pytest.mark.parametrize(
    ("record", "names_help"), [({"_id": "a", "text": ""}, False), ({"sku": "a", "body": "b"}, True)]
)
def test_a_corpus_of_which_nothing_is_taken_fails_with_the_first_reason(
    osn: Osn, client: Any, index_name: str, tmp_path: Path, record: dict[str, str], names_help: bool
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", [record, "broken"])
    ran = osn(*small(corpus, index_name, "--sparse", "none"))
    assert ran.returncode == 1
    assert "no document was accepted; the first of 2: " in ran.stderr
    assert f"{index_name}.dead-letters.jsonl" in ran.stderr
    assert ("give --id-field" in ran.stderr) == names_help, "other names of fields help only if a field is missing"


def test_standard_input_is_a_corpus(osn: Osn, client: Any, index_name: str, tmp_path: Path) -> None:
    lines = "".join(json.dumps(record) + "\n" for record in [*records(30), {"_id": "doc-0-000003", "text": "again"}])
    for _ in range(2):  # the second time it lies in another temporary file
        ran = osn(*small("-", index_name), input=lines + "broken\n")
        assert ran.returncode == 3, ran.stderr
        assert len(snapshot(client, index_name)) == 30
    told = letters(tmp_path / f"{index_name}.dead-letters.jsonl")
    assert sorted((letter["file"], letter["line"]) for letter in told) == [("stdin", 31), ("stdin", 32)]
    ran = osn(*small("-", index_name), input=lines + '{"_id": "cut')
    assert ran.returncode == 1 and "stdin, line 32: the file ends within this record" in ran.stderr, ran.stderr


def test_a_warning_names_the_corpus_and_not_its_copy_and_is_told_once(
    osn: Osn, client: Any, index_name: str, tmp_path: Path
) -> None:
    """The lexical model and the survey of fields read the corpus, too."""
    lines = "".join(json.dumps(record) + "\n" for record in [*records(3), {"_id": "t", "title": "rain"}])
    ran = osn(*small("-", index_name), input=lines)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("stdin, line 4: no text, only a title") == ran.stderr.count("no text") == 1, ran.stderr
    assert tempfile.gettempdir() not in ran.stderr


def test_without_sparse_one_line_says_what_it_would_bring_and_which_models_there_are(
    osn: Osn, client: Any, index_name: str, tmp_path: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(5))

    def told(*arguments: str) -> list[str]:
        ran = osn(*arguments)
        assert ran.returncode == 0, ran.stderr
        return [line for line in (ran.stderr + ran.stdout).splitlines() if "--sparse" in line]

    plain = ["ingest", str(corpus), "--index", index_name, "--replicas", "0"]
    (line,) = told(*plain)
    assert "no sparse vectors are written; with --sparse MODEL, searches rank BM25's hits better" in line
    assert any(model.name in line for model in PUBLISHED) and "`osn model list`" in line
    assert told(*plain) == [], "an index that is there has the models that it has"
    for at, model in enumerate(("none", "lexical")):
        assert told(*small(corpus, f"{index_name}-{at}", "--sparse", model)) == [], "who names one knows of it"


def test_passages_are_called_passages(osn: Osn, client: Any, index_name: str, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", [*records(10), {"_id": "w", "text": "!"}])
    ran = osn("ingest", str(corpus), "--alias", index_name, "--replicas", "0", "--passages", "5:3")
    assert ran.returncode == 0, ran.stderr
    passages = client.count(index=index_name)["count"]
    assert passages > 11
    assert f"{passages} passages in {index_name}-" in ran.stdout and "documents in" not in ran.stdout, ran.stdout
    ran = osn("index", "inspect", index_name)
    assert f"serves now, {passages} passages" in ran.stdout, ran.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_02_a_pipe_is_read_once_and_whole(osn: Osn, client: Any, index_name: str, tmp_path: Path) -> None:
    pipe = tmp_path / "docs.csv"
    os.mkfifo(pipe)
    rows = "id,text\n" + "".join(f"d{n},rain and a bow {n}\n" for n in range(5_000))  # more than a pipe holds
    for further in ([], ["--remove-others"]):
        feeder = threading.Thread(target=pipe.write_text, args=(rows,), daemon=True)
        feeder.start()
        ran = osn(*small(pipe, index_name, "--sparse", "none", *further))
        feeder.join(timeout=10)
        assert ran.returncode == 0, ran.stderr
        assert client.count(index=index_name)["count"] == 5_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--corpus", "missing.jsonl"], "missing.jsonl does not exist"),
        (["s3://bucket/docs.jsonl"], "s3://bucket/docs.jsonl is an address, and only files are read"),
        (["d.jsonl", "--mapping", "join.json"], "the field 'kind' is a join"),
        (["--corpus", "d.jsonl", "--sparse", "./no-model"], "no model directory at"),
        (["--corpus", "empty.jsonl"], "holds no document"),
        (["--corpus", "empty.jsonl", "--sparse", "lexical"], "no lexical model can be built"),
        (["--vectors", "no-vectors"], "no-vectors holds no vectors"),
        (["--corpus", "d.jsonl", "--text-field", "abstract"], "no text: expected a field abstract"),
        (
            ["--corpus", "d.jsonl", "--dead-letters", "folder"],
            "dead letters cannot be written to folder: Is a directory",
        ),
        (["--corpus", "d.jsonl", "--dead-letters", "d.jsonl/x"], "dead letters cannot be written to d.jsonl/x: "),
        (["--corpus", "d.jsonl", "--index", "osn-no-such-*"], "'osn-no-such-*' is a pattern"),
        (["--corpus", "d.jsonl", "--dead-letters", "d.jsonl"], "cannot be the dead-letter file too"),
    ],
)
def test_what_cannot_work_is_said_without_a_traceback(
    osn: Osn, index_name: str, tmp_path: Path, arguments: list[str], message: str
) -> None:
    write_jsonl(tmp_path / "d.jsonl", records(3))
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "join.json").write_text('{"kind": {"type": "join", "relations": {"question": "answer"}}}')
    ran = osn("ingest", "--index", index_name, *arguments)
    assert ran.returncode == 1
    assert message in ran.stderr and "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["documents", "get", "--index", "INDEX", ""], "holds no document ''"),
        (["documents", "update", "--index", "INDEX", "", "--set", "a=b"], "holds no document ''"),
        (["documents", "delete", "--index", "INDEX", ""], ""),
        (["documents", "get", "--index", "", "a"], "the name of the index is empty"),
        (["documents", "delete", "--index", "", "a"], "the name of the index is empty"),
        (["index", "inspect", ""], "the name of the index is empty"),
        (["index", "finish", ""], "the name of the index is empty"),
        (["index", "abort", ""], "the name of the index is empty"),
        (["index", "prune", ""], "the name of the alias is empty"),
        (["index", "rollback", ""], "the name of the alias is empty"),
        (["index", "rollback", "INDEX", "--to", ""], "the name of the index is empty"),
        (["index", "serve", ""], "the name of the alias is empty"),
        (["ingest", "opensearch:", "--index", "NEW"], "opensearch: names no index"),
        (["search", "--index", "", "rain"], "the name of the index is empty"),
        (["lint", "--index", "", "body.json"], "the name of the index is empty"),
    ],
)
def test_an_empty_name_ends_in_a_message(
    osn: Osn, client: Any, index_name: str, tmp_path: Path, arguments: list[str], message: str
) -> None:
    """As a variable of the shell that is not set gives it. To OpenSearch it names all indexes."""
    run_job(client, job(write_jsonl(tmp_path / "d.jsonl", records(3)), index_name), show_progress=False)
    (tmp_path / "body.json").write_text('{"query": {"match_all": {}}}')
    named = {"INDEX": index_name, "NEW": f"{index_name}-new"}
    ran = osn(*[named.get(argument, argument) for argument in arguments])
    assert "Traceback" not in ran.stderr and message in ran.stderr, ran.stderr
    assert ran.returncode == (1 if message else 0)
    assert client.count(index=index_name)["count"] == 3


def test_the_longest_name_that_opensearch_takes_is_written_and_a_longer_one_is_refused(
    osn: Osn, client: Any, index_name: str, tmp_path: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", [*records(3), "broken"])
    name = index_name + "é" * ((255 - len(index_name)) // 2)
    name += "x" * (255 - len(name.encode()))
    ran = osn(*small(corpus, name, "--json"))
    assert ran.returncode == 3, ran.stderr
    report = json.loads(ran.stdout)
    assert report["index"] == name and len(letters(tmp_path / report["dead_letters"])) == 1
    ran = osn(*small(tmp_path / report["dead_letters"], name))
    assert "no document was accepted; the first of 1" in ran.stderr and ".dead-letters.2.jsonl" in ran.stderr, (
        ran.stderr
    )
    ran = osn(*small(corpus, f"{name}x"))
    assert ran.returncode == 1 and "has 256 bytes, and OpenSearch's names have at most 255" in ran.stderr, ran.stderr
    assert sorted(tmp_path.glob("*.dead-letters*")) and len(list(client.indices.get(index=f"{index_name}*"))) == 1


@pytest.mark.parametrize(
    ("option", "number"), [("--batch-mb", "inf"), ("--batch-mb", "nan"), ("--chunk-mb", "nan"), ("--patience", "nan")]
)
def test_a_number_that_is_not_finite_is_refused(osn: Osn, tmp_path: Path, option: str, number: str) -> None:
    ran = osn("ingest", str(write_jsonl(tmp_path / "d.jsonl", records(3))), "--index", "x", option, number)
    assert ran.returncode == 2 and f"'{number}' is not a finite number" in ran.stderr, ran.stderr


def test_an_empty_name_of_a_corpus_is_refused(osn: Osn) -> None:
    for arguments in (
        ["ingest", "", "--index", "x"],
        ["ingest", "", "--vectors", "v", "--index", "x"],
        ["encode", "", "--output", "v"],
    ):
        ran = osn(*arguments)
        assert ran.returncode == 2 and "the name of the corpus is empty" in ran.stderr, ran.stderr


def test_a_folder_that_cannot_be_written_to_is_named(osn: Osn, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "d.jsonl", records(3))
    ran = osn("encode", "--corpus", "d.jsonl", "--out", "d.jsonl/vectors", "--sparse", "lexical")
    assert ran.returncode == 1
    assert "error: d.jsonl/vectors" in ran.stderr and "Traceback" not in ran.stderr


def test_interrupted_it_says_so_exits_with_130_and_goes_on(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path, osn_home: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(2000))
    before = 0
    with FaultProxy(cluster_url) as proxy:
        proxy.fault = lambda request: Fault("delay", seconds=0.05)
        for number in (signal.SIGINT, signal.SIGTERM):
            process = begin(proxy.url, osn_home, small(corpus, index_name))
            wait_for(proxy, len(proxy.bulks) + 5)
            process.send_signal(number)
            _, told = process.communicate(timeout=60)
            assert process.returncode == 130, told
            assert "run the same command again to continue" in told and "Traceback" not in told
            assert before + 250 <= len(proxy.written()) < 2000
            before = len(proxy.written())
        proxy.fault = lambda request: None
        process = begin(proxy.url, osn_home, [*small(corpus, index_name), "--json"])
        out, told = process.communicate(timeout=60)
        assert process.returncode == 0, told
        # An interrupt waits for what is on its way and journals it, so nothing at all is sent twice.
        assert len(proxy.written()) == 2000 and len(set(proxy.written())) == 2000
    assert json.loads(out)["skipped"] == before
    assert len(snapshot(client, index_name)) == 2000


def test_interrupted_while_the_cluster_does_not_answer_it_ends_within_seconds_and_goes_on(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path, osn_home: Path
) -> None:
    """Before, it waited for answers that did not come: two minutes, four times."""
    corpus = write_jsonl(tmp_path / "d.jsonl", records(500))
    with FaultProxy(cluster_url) as proxy:
        proxy.fault = lambda request: Fault("delay", seconds=60) if request.number > 3 else None
        process = begin(proxy.url, osn_home, small(corpus, index_name))
        wait_for(proxy, 3)
        time.sleep(1.0)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
        assert time.monotonic() - began < 20
        assert process.returncode == 130, told
        assert "run the same command again to continue" in told and "Traceback" not in told
    process = begin(cluster_url, osn_home, small(corpus, index_name))
    _, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert len(snapshot(client, index_name)) == 500


def test_an_interrupt_waits_for_no_request_that_was_never_sent(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, every interrupt took as long as requests on their way may take."""
    monkeypatch.setattr(pipeline, "GRACE_SECONDS", 30.0)
    settings = job(write_jsonl(tmp_path / "d.jsonl", records(1000)), index_name, writing={"writers": 1})
    with FaultProxy(cluster_url) as proxy:
        proxy.fault = lambda request: Fault("delay", seconds=0.5)
        began = time.monotonic()
        interrupt = threading.Thread(target=lambda: (wait_for(proxy, 2), os.kill(os.getpid(), signal.SIGINT)))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            run_job(connect(proxy.url), settings, show_progress=False)
        ended = time.monotonic()
        interrupt.join()
    assert 2 <= len(proxy.bulks) < 1000 / 50, "nothing was left to be sent"
    assert ended - began < pipeline.GRACE_SECONDS


def test_a_cluster_that_is_away_for_a_moment_between_two_steps_ends_no_ingest(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests other than `_bulk`, too, are tried again. Before, three times within milliseconds."""
    monkeypatch.setattr("opensearch_neural.cluster.patience.RetryPolicy", partial(RetryPolicy, base=0.05))
    settings = job(write_jsonl(tmp_path / "d.jsonl", records(100)), index_name)
    with FaultProxy(cluster_url, everything=True) as proxy:
        away: dict[tuple[str, str], float] = {}

        def fault(request: Request) -> Fault | None:
            step = (request.method, request.path)
            first = away.setdefault(step, time.monotonic())
            kinds = (Fault("status", 503), Fault("drop"), Fault("drop_after"))
            return kinds[request.number % 3] if time.monotonic() - first < 0.1 else None

        connected = connect(proxy.url)
        proxy.fault = fault
        assert run_job(connected, settings, show_progress=False).documents == 100
    assert len(away) > 5
    assert len(snapshot(client, index_name)) == 100


def test_an_index_whose_creation_was_answered_too_late_is_taken_as_created(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path
) -> None:
    """Before: `resource_already_exists_exception`, of the index that this very run had created."""
    settings = job(write_jsonl(tmp_path / "d.jsonl", records(100)), index_name)
    lost: list[str] = []

    def lose_first_answer(request: Request) -> Fault | None:
        if request.method != "PUT" or lost:
            return None
        lost.append(request.path)
        return Fault("drop_after")

    with FaultProxy(cluster_url, everything=True) as proxy:
        connected = connect(proxy.url)
        proxy.fault = lose_first_answer
        assert run_job(connected, settings, show_progress=False).documents == 100
    assert lost == [f"/{index_name}"]
    assert len(snapshot(client, index_name)) == 100


def test_a_second_ingest_of_the_same_is_refused_while_the_first_runs(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path, osn_home: Path, osn: Osn
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(1000))
    with FaultProxy(cluster_url) as proxy:
        # Slow enough that it still runs when the second has started, on however busy a machine.
        proxy.fault = lambda request: Fault("delay", seconds=3)
        process = begin(proxy.url, osn_home, small(corpus, index_name))
        try:
            wait_for(proxy, 1)
            second = osn(*small(corpus, index_name))
            assert second.returncode == 1 and "is writing" in second.stderr
            proxy.fault = lambda request: None
            _, told = process.communicate(timeout=60)
            assert process.returncode == 0, told
        finally:
            process.kill()
            process.wait()
    assert len(snapshot(client, index_name)) == 1000
