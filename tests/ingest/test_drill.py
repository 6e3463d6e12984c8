"""The drill: bad input that looks whole, writers who do not know of each other, clusters of other people.

Each test is one item, numbered as in docs/ingest.md, on a real cluster.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import killable
import pytest
from corpora import job, letters, records, small_tokenizer, snapshot, write_jsonl
from fault_proxy import Fault, FaultProxy, Request

from ingest import documents
from ingest.corpus import CorpusSource
from ingest.documents import Documents
from ingest.error_limit import TooManyErrors
from ingest.job import Job, run_job
from ingest.settings import Models
from ingest.versions import builds as versions
from ingest.versions.swap import Gate, Requirement, SwapRefused, parse_requirement
from ingest.writing import lease, pipeline, target
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.patience import RetryPolicy
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.errors import ClusterError, InputError, ModelError
from opensearch_neural.index.hidden_index import LARGEST, read_largest
from opensearch_neural.index.record import PassageMeta, existing_record, write_record

pytestmark = pytest.mark.faults

Osn = Callable[..., "subprocess.CompletedProcess[str]"]


class Killed(BaseException):
    """Ends a run at a chosen moment as a kill would: nothing of ours catches it."""


def build(corpus: Path, alias: str, **settings: Any) -> Job:
    return replace(job(corpus, "", **settings), alias=alias)


def run(client: Any, settings: Job) -> pipeline.Report:
    return run_job(client, settings, show_progress=False)


def killed(*arguments: Any, **more: Any) -> None:
    raise Killed


# ---------------------------------------------------------------- 1: a gate before every swap


@pytest.mark.parametrize(
    "lines", [[], ["{", "broken"], records(170)], ids=["empty", "broken lines", "fewer than 90 percent"]
)
def test_01_a_corpus_that_holds_too_little_does_not_serve(
    client: Any, index_name: str, tmp_path: Path, lines: list[Any]
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(200))
    first = run(client, build(corpus, index_name, sparse="none"))
    write_jsonl(corpus, lines)
    with pytest.raises((SwapRefused, InputError), match=r"holds no document|holds 170 documents"):
        run(client, build(corpus, index_name, sparse="none"))
    assert versions.serving_index(client, index_name) == first.index
    if lines and isinstance(lines[0], dict):
        allowed = replace(build(corpus, index_name, sparse="none"), gate=Gate(allow_shrink=True))
        report = run(client, allowed)
        assert (report.replaced, report.skipped) == (first.index, 170), "nothing is written again"


def test_01_a_query_that_must_find_its_document_keeps_the_alias_back(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", [*records(20), {"_id": "sky", "text": "the rain bow over the engine"}])
    gate = Gate(require=(Requirement("rain bow", "cake", 3),))
    with pytest.raises(SwapRefused, match="'rain bow' does not find 'cake' among the first 3 hits"):
        run(client, replace(build(corpus, index_name), gate=gate))
    assert versions.serving_index(client, index_name) is None
    gate = Gate(require=(Requirement("rain bow over engine", "sky", 20),))
    assert run(client, replace(build(corpus, index_name), gate=gate)).skipped == 21


def test_01_an_alias_of_somebody_elses_index_is_swapped_too(client: Any, index_name: str, tmp_path: Path) -> None:
    client.indices.create(index=f"{index_name}-theirs", body={"aliases": {index_name: {}}})
    for number in range(4):
        client.index(index=f"{index_name}-theirs", id=str(number), body={"text": "rain"}, params={"refresh": "true"})
    corpus = write_jsonl(tmp_path / "d.jsonl", records(3))
    with pytest.raises(SwapRefused, match="holds 3 documents"):
        run(client, build(corpus, index_name, sparse="none"))
    write_jsonl(corpus, records(4))
    settings = build(corpus, index_name, sparse="none", writing={"restart": True})
    assert run(client, settings).replaced == f"{index_name}-theirs"


def test_01_a_requirement_is_read_as_it_is_written() -> None:
    assert parse_requirement("what is it? => doc 1") == Requirement("what is it?", "doc 1", 10)
    assert parse_requirement("a => b => c @3") == Requirement("a => b", "c", 3)
    for wrong in ("no arrow", "=> id", "query =>", "query => id @0", "query => id @²", f"query => id @{'9' * 5000}"):
        with pytest.raises(InputError, match="expected 'QUERY => ID'"):
            parse_requirement(wrong)


# ---------------------------------------------------------------- 2: loss is not a success


def gzipped(lines: bytes) -> bytes:
    return gzip.compress(lines)


def zstandard(lines: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(lines)


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzipped), ("zst", zstandard)])
def test_02_half_a_file_ends_before_the_swap_and_the_whole_one_goes_on(
    osn: Osn, client: Any, index_name: str, tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    lines = b"".join(json.dumps(record).encode() + b"\n" for record in records(3000))
    corpus = tmp_path / f"d.jsonl.{suffix}"
    corpus.write_bytes(compress(lines))
    command = ["ingest", "--corpus", str(corpus), "--alias", index_name, "--sparse", "none", "--replicas", "0"]
    assert osn(*command).returncode == 0
    serving = versions.serving_index(client, index_name)
    whole = corpus.read_bytes()
    corpus.write_bytes(whole[: len(whole) * 9 // 10])
    ran = osn(*command)
    assert ran.returncode == 1 and "Traceback" not in ran.stderr, ran.stderr
    assert "the file ends inside the" in ran.stderr, "and is not merely read to its end"
    assert versions.serving_index(client, index_name) == serving
    corpus.write_bytes(whole)
    ran = osn(*command, "--json")
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["documents"] == 3000 and report["replaced"] == serving
    if suffix == "gz":  # of half a zstd frame nothing may have been read
        assert report["skipped"] > 0


def as_json_lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    lines = ["_id,text,year", *(f"{row['_id']},{row['text']},{row['year']}" for row in rows)]
    return "\n".join([*lines, ""]).encode()


def text_last(separator: str) -> Callable[[list[dict[str, Any]]], bytes]:
    def as_rows(rows: list[dict[str, Any]]) -> bytes:
        lines = [separator.join(("_id", "text")), *(f"{row['_id']}{separator}{row['text']}" for row in rows)]
        return "\n".join([*lines, ""]).encode()

    return as_rows


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table({name: [row[name] for row in rows] for name in ("_id", "text", "year")})
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink, row_group_size=500)
    return bytes(sink.getvalue())


def cut_before_it_was_compressed(data: bytes) -> bytes:
    lines = gzip.decompress(data)
    return gzip.compress(lines[: lines.rindex(b" ")])


@pytest.mark.parametrize(
    ("name", "written", "damage"),
    [
        ("d.jsonl", as_json_lines, lambda data: data[: data.rindex(b" rain ")]),
        ("d.csv", as_csv, lambda data: data[: data.index(b",", len(data) * 19 // 20)]),
        ("d.csv", as_csv, lambda data: data.replace(b"doc-0-001500,", b'doc-0-001500,"')),
        ("d.tsv", lambda rows: as_csv(rows).replace(b",", b"\t"), lambda data: data[: data.rindex(b"\t")]),
        ("d.csv", text_last(","), lambda data: data[: data.rindex(b" ")]),
        ("d.csv.gz", lambda rows: gzip.compress(text_last(",")(rows)), cut_before_it_was_compressed),
        ("d.tsv", text_last("\t"), lambda data: data[: data.rindex(b" ")]),
        ("d.jsonl", as_json_lines, lambda data: data[:50_000] + bytes(4096) + data[54_096:]),
        ("d.parquet", as_parquet, lambda data: data[: len(data) * 9 // 10]),
        ("d.parquet", as_parquet, lambda data: data[:4000] + bytes(4000) + data[8000:]),
    ],
    ids=[
        *(
            "lines of JSON",
            "csv",
            "an unclosed cell",
            "tsv",
            "the last text of a csv",
            "one in gzip",
            "the last text of a tsv",
        ),
        *("a hole in lines of JSON", "parquet", "a row group of parquet"),
    ],
)
def test_02_what_breaks_off_or_is_damaged_in_any_format_is_not_served(
    client: Any,
    index_name: str,
    tmp_path: Path,
    name: str,
    written: Callable[[list[dict[str, Any]]], bytes],
    damage: Callable[[bytes], bytes],
) -> None:
    whole = written(records(3000))
    corpus = tmp_path / name
    corpus.write_bytes(whole)
    settings = build(corpus, index_name, sparse="none")
    settings = replace(settings, writing=replace(settings.writing, batch_documents=1000))
    first = run(client, settings)
    corpus.write_bytes(damage(whole))
    with pytest.raises(InputError):
        run(client, settings)
    assert versions.serving_index(client, index_name) == first.index
    corpus.write_bytes(whole)
    assert run(client, settings).replaced == first.index


def test_02_letters_have_an_exit_status_of_their_own(osn: Osn, client: Any, index_name: str, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", [*records(20), "broken"])
    for command in (
        ["ingest", "--corpus", str(corpus), "--index", index_name, "--sparse", "none", "--replicas", "0"],
        ["documents", "add", "--index", index_name, str(corpus)],
    ):
        ran = osn(*command)
        assert ran.returncode == 3, ran.stderr
    ran = osn("ingest", "--corpus", str(corpus), "--index", index_name, "--sparse", "none", "--max-errors", "4%")
    assert ran.returncode == 1 and "more than --max-errors 0.04 of 21 records" in ran.stderr
    assert osn("ingest", "--corpus", "x", "--index", "y", "--max-errors", "200%").returncode == 1


def test_02_a_share_of_errors_is_judged_by_the_records_read(client: Any, index_name: str, tmp_path: Path) -> None:
    lines: list[Any] = records(1500)
    lines[0:40] = ["broken"] * 40  # much at first, 2.7 % in all
    corpus = write_jsonl(tmp_path / "d.jsonl", lines)
    report = run(client, job(corpus, index_name, sparse="none", writing={"max_errors": 0.05}))
    assert (report.documents, report.letters) == (1460, 40)
    with pytest.raises(TooManyErrors, match=r"0\.02 of 1[05]00 records"):
        run(client, job(corpus, f"{index_name}-b", sparse="none", writing={"max_errors": 0.02}))


# ---------------------------------------------------------------- 3: what was removed is gone


def test_03_what_a_smaller_corpus_no_longer_holds_is_removed(
    client: Any, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[Any] = records(200)
    corpus = write_jsonl(tmp_path / "d.jsonl", lines)
    settings = job(corpus, index_name, sparse="none")
    with monkeypatch.context() as patch:
        patch.setattr("ingest.writing.target.finish", killed)
        with pytest.raises(Killed):
            run(client, settings)
    # Fewer, and one is refused now that was taken before: its old text must go, too.
    lines = lines[:120]
    lines[7] = {**lines[7], "year": "MCM"}
    write_jsonl(corpus, lines)
    again = replace(settings, writing=replace(settings.writing, restart=True))
    report = run(client, again)
    assert (report.documents, report.letters) == (119, 1)
    assert snapshot(client, index_name).keys() == {line["_id"] for line in lines} - {"doc-0-000007"}


def test_03_a_document_redacted_to_one_passage_keeps_no_other(
    client: Any, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " ".join(["secret rain bow light"] * 20)
    corpus = write_jsonl(tmp_path / "d.jsonl", [{"_id": "a", "text": text}, {"_id": "b", "text": text}])
    settings = job(corpus, index_name, passages=PassageMeta(10, 10))
    with monkeypatch.context() as patch:
        patch.setattr("ingest.writing.target.finish", killed)
        with pytest.raises(Killed):
            run(client, settings)
    assert len(snapshot(client, index_name)) == 16
    write_jsonl(corpus, [{"_id": "a", "text": "sun"}, {"_id": "b", "text": text}])
    run(client, replace(settings, writing=replace(settings.writing, restart=True)))
    found = snapshot(client, index_name)
    assert [id for id in found if id.startswith("a#")] == ["a#0001"] and len(found) == 9
    # In an index that serves, the same.
    write_jsonl(corpus, [{"_id": "a", "text": "sun"}, {"_id": "b", "text": "sun"}])
    run(client, settings)
    client.indices.refresh(index=index_name)
    assert sorted(snapshot(client, index_name)) == ["a#0001", "b#0001"]


def test_03_what_a_complete_index_holds_beyond_the_corpus_is_said_and_removed_when_told_so(
    osn: Osn, client: Any, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an index of several corpora nobody knows whose a document is, so nothing is removed unasked."""
    one, two = (
        write_jsonl(tmp_path / "one.jsonl", records(30)),
        write_jsonl(tmp_path / "two.jsonl", records(10, seed=1)),
    )
    settings = job(one, index_name, sparse="none")
    assert run(client, settings).others == 0 and run(client, job(two, index_name, sparse="none")).others == 30
    write_jsonl(one, records(20))
    command = ["ingest", "--corpus", str(one), "--index", index_name, "--sparse", "none"]
    for options in ([], ["--restart"]):
        ran = osn(*command, *options)
        assert ran.returncode == 0 and "it holds 20 other documents" in ran.stdout, ran.stderr
    assert len(snapshot(client, index_name)) == 40
    for part in (["--limit", "5"], ["--corpus", f"{index_name}.dead-letters.jsonl"]):
        Path(f"{index_name}.dead-letters.jsonl").write_text(
            '{"dead_letter": 1, "document": {"_id": "a", "text": "b"}}\n'
        )
        ran = osn(*command, *part, "--remove-others")
        assert ran.returncode == 1 and "would remove the documents of the other parts" in ran.stderr
    # Where only the vectors, or what comes through a pipe, tells that it is a part.
    encoded = tmp_path / "vectors"
    assert osn("encode", str(one), "--sparse", "lexical", "--limit", "5", "--output", str(encoded)).returncode == 0
    part_of_two = job(two, index_name, sparse="none")
    for whole in (
        replace(part_of_two, corpus=None, vectors=encoded, models=Models()),
        replace(part_of_two, corpus=CorpusSource("-")),
    ):
        with Path(f"{index_name}.dead-letters.jsonl").open("rb") as letters, monkeypatch.context() as patched:
            patched.setattr("sys.stdin", TextIOWrapper(letters))
            with pytest.raises(InputError, match="would remove the documents of the other parts"):
                run(client, replace(whole, writing=replace(whole.writing, remove_others=True)))
    assert len(snapshot(client, index_name)) == 40
    ran = osn(*command, "--remove-others", "--json")
    assert json.loads(ran.stdout)["others"] == 0, ran.stderr
    assert snapshot(client, index_name).keys() == {line["_id"] for line in records(20)}
    # Passages, too.
    passages = job(one, f"{index_name}-p", passages=PassageMeta(5, 5))
    assert run(client, passages).documents > 40
    write_jsonl(one, records(10))
    kept = run(client, passages)
    assert kept.others > 0
    less = run(client, replace(passages, writing=replace(passages.writing, remove_others=True)))
    assert less.documents == kept.documents == len(snapshot(client, f"{index_name}-p"))


def test_03_no_rejected_record_takes_its_document_for_another(
    osn: Osn, client: Any, index_name: str, tmp_path: Path
) -> None:
    """A corpus whose fields had new names emptied the index that served."""
    corpus = write_jsonl(tmp_path / "d.jsonl", records(20))
    run(client, job(corpus, index_name, sparse="none"))
    run(client, job(write_jsonl(tmp_path / "two.jsonl", records(5, seed=1)), index_name, sparse="none"))
    command = ["ingest", str(corpus), "--index", index_name, "--remove-others"]
    for renamed, returned in ((20, 1), (10, 3)):
        lines = [{"_id": line["_id"], "story": line["text"]} for line in records(20)[:renamed]]
        write_jsonl(corpus, [*lines, *records(20)[renamed:]])
        ran = osn(*command)
        assert ran.returncode == returned
        assert f"{renamed} records of the corpus were rejected, so which documents they are is not known" in ran.stderr
        assert len(snapshot(client, index_name)) == 25
    assert "--remove-others removes them once no record is rejected" in ran.stdout
    # Of a document that OpenSearch refuses, or that occurs twice, the id is known.
    lines = records(19)
    write_jsonl(corpus, [{**lines[0], "year": "unknown"}, *lines[1:], lines[1]])
    ran = osn(*command)
    assert ran.returncode == 3 and "it holds 1 other documents" in ran.stdout, ran.stderr
    assert snapshot(client, index_name).keys() == {line["_id"] for line in records(19)}


# ---------------------------------------------------------------- 4, 5: versions


def red_build(client: Any, alias: str) -> str:
    """An old build of the alias whose primary shard is nowhere."""
    name = f"{alias}-20200101-000000"
    record = {"format": 1, "build": {"alias": alias, "corpus": "c", "swapped": True}}
    client.indices.create(
        index=name,
        body={
            "settings": {"index.routing.allocation.require._name": "nowhere"},
            "mappings": {"_meta": {"osn": record}},
        },
        params={"wait_for_active_shards": "0"},
    )
    return name


def test_04_a_red_build_beside_does_not_hinder_a_rollback(
    osn: Osn, client: Any, index_name: str, tmp_path: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(20))
    settings = build(corpus, index_name, sparse="none", replicas=0)
    first, second = run(client, settings), run(client, build(corpus, index_name, sparse="none", replicas=2))
    red = red_build(client, index_name)
    began = time.monotonic()
    assert versions.rollback(client, index_name) == (first.index, second.index)
    assert time.monotonic() - began < 10
    with pytest.raises(ClusterError, match="is red"):
        versions.rollback(client, index_name, to=red)
    assert versions.serving_index(client, index_name) == first.index
    assert run(client, replace(settings, writing=replace(settings.writing, restart=True))).replaced == first.index
    ran = osn("index", "inspect", index_name)
    assert ran.returncode == 0 and red in ran.stdout, ran.stderr


def test_05_a_prune_during_a_build_keeps_it_and_the_one_to_roll_back_to(
    client: Any, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(20))
    settings = build(corpus, index_name, sparse="none")
    first, second = run(client, settings), run(client, settings)
    pruned = []
    write_all = pipeline._Run.write_all

    def prune(self: Any, *arguments: Any) -> None:
        pruned.extend(versions.prune(client, index_name, keep=1))
        write_all(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(pipeline._Run, "write_all", prune)
        third = run(client, settings)
    assert pruned == []
    assert versions.rollback(client, index_name) == (second.index, third.index)
    assert versions.prune(client, index_name, keep=0) == [third.index, first.index]


# ---------------------------------------------------------------- 6: two writers


def test_06_a_second_ingest_with_another_home_is_refused(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path
) -> None:
    settings = job(write_jsonl(tmp_path / "d.jsonl", records(1500)), index_name)
    with FaultProxy(cluster_url) as proxy:
        proxy.fault = lambda request: Fault("delay", seconds=0.1)
        process = killable.begin(proxy.url, settings, tmp_path / "other-home", tmp_path)
        while len(proxy.bulks) < 3:
            assert process.exitcode is None
            time.sleep(0.01)
        with pytest.raises(ClusterError, match=rf"process {process.pid} on .* is writing '{index_name}' now"):
            run(client, settings)
        # The lease of a process that was killed is seen to be nobody's at once.
        assert killable.kill_after(process, 0)
    began = time.monotonic()
    assert run(client, settings).documents == 1500
    assert time.monotonic() - began < lease.SECONDS / 2


def test_06_a_lease_on_another_machine_ends_by_itself_and_its_owner_stops(
    client: Any, index_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lease.Lease(client, index_name, seconds=2)
    first._holder["machine"] = "another/pid"
    with first:
        with pytest.raises(ClusterError, match="is writing"), lease.Lease(client, index_name, seconds=2):
            pass
        first.check()
        # It is held up for longer than its lease lasts.
        with monkeypatch.context() as patch:
            patch.setattr(first, "_take", lambda **more: True)
            with lease.Lease(client, index_name, seconds=2) as second:
                second.check()
                patch.undo()
                time.sleep(1.5)
                with pytest.raises(ClusterError, match="has taken over"):
                    first.check()
    assert not lease.held(client, index_name)


def holder_of(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What a lease says of a process that holds it."""
    return {
        "owner": "another",
        "machine": lease._machine(),
        "pid": process.pid,
        "process_start": lease._process_start(process.pid),
    }


@pytest.mark.skipif(not lease._machine(), reason="processes are looked up in /proc")
def test_06_a_killed_process_that_nobody_reaped_is_gone() -> None:
    """A container whose first process does not reap, or a supervisor that waits for another child, leaves such ones."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = holder_of(process)
    assert not lease._is_gone(holder)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{process.pid}").exists()
    assert lease._is_gone(holder)
    process.communicate()


@pytest.mark.skipif(not lease._machine(), reason="processes are looked up in /proc")
def test_06_a_process_whose_first_thread_has_ended_lives_on() -> None:
    script = "import ctypes, sys, threading; threading.Thread(target=sys.stdin.read).start()"
    script += "; ctypes.CDLL(None).pthread_exit(None)"
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
    holder = holder_of(process)
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    assert not lease._is_gone(holder)
    process.kill()
    process.communicate()
    assert lease._is_gone(holder)


def test_06_where_processes_cannot_be_looked_up_a_lease_ends_by_itself(
    client: Any, index_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_machine", lambda: "")
    first = lease.Lease(client, index_name, seconds=2)
    with first:
        with pytest.raises(ClusterError, match="is writing"), lease.Lease(client, index_name, seconds=2):
            pass
        first._ended.set()  # it renews no more, as one that was killed
        with lease.Lease(client, index_name, seconds=2) as second:
            second.check()


# ---------------------------------------------------------------- 7: the index is deleted under way


def test_07_an_index_deleted_under_way_is_not_made_anew(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(1000))

    def delete(request: Request) -> None:
        if request.number == 5:
            client.indices.delete(index=index_name)

    with FaultProxy(cluster_url) as proxy:
        proxy.fault = delete  # type: ignore[assignment]
        with pytest.raises(ClusterError, match="was deleted or replaced while it was being written"):
            run(connect(proxy.url), job(corpus, index_name))
    assert not client.indices.exists(index=index_name)
    assert letters(Path(f"{index_name}.dead-letters.jsonl")) == []
    assert run(client, job(corpus, index_name)).documents == 1000
    assert not client.indices.get_alias(index=index_name)[index_name]["aliases"]


def test_07_documents_do_not_make_a_deleted_index_anew(
    client: Any, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do they write into another one that has its name since."""
    first, second = (write_jsonl(tmp_path / f"{seed}.jsonl", records(20, seed=seed)) for seed in (0, 1))
    prepare = documents.prepare
    for ask in ("add", "update"):
        for replaced in (False, True):
            run(client, job(first, index_name))
            service = Documents(client, index_name)

            def delete(*arguments: Any, replaced: bool = replaced) -> Any:
                client.indices.delete(index=index_name)
                if replaced:
                    run(client, job(second, index_name))
                return prepare(*arguments)

            with monkeypatch.context() as patch:
                patch.setattr(documents, "prepare", delete)
                with pytest.raises(ClusterError, match="was deleted or replaced while it was being written"):
                    if ask == "add":
                        service.add(records(2, seed=2))
                    else:
                        service.update("doc-0-000001", {"title": "x"})
            assert client.indices.exists(index=index_name) == replaced
            if replaced:
                assert snapshot(client, index_name).keys() == {record["_id"] for record in records(20, seed=1)}
                client.indices.delete(index=index_name)


# ---------------------------------------------------------------- 13: the swap


def test_13_a_lost_answer_to_the_swap_is_no_failure(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path
) -> None:
    settings = build(write_jsonl(tmp_path / "d.jsonl", records(20)), index_name, sparse="none")
    first = run(client, settings)
    swaps = []

    def lose(request: Request) -> Fault | None:
        if request.path.endswith("/_aliases"):
            swaps.append(request)
            return Fault("drop_after") if len(swaps) == 1 else None
        return None

    with FaultProxy(cluster_url, everything=True) as proxy:
        proxy.fault = lose
        second = run(connect(proxy.url), settings)
    assert len(swaps) == 2 and second.replaced == first.index
    assert versions.serving_index(client, index_name) == second.index


@pytest.mark.parametrize("moment", ["before the swap", "after the swap"])
def test_13_a_kill_at_the_swap_costs_no_encoding(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path, osn_home: Path, moment: str, monkeypatch: Any
) -> None:
    settings = build(write_jsonl(tmp_path / "d.jsonl", records(100)), index_name)
    with monkeypatch.context() as patch:
        if moment == "before the swap":
            patch.setattr(versions, "_name", killed)
        else:
            patch.setattr(versions, "_note_swapped", killed)
        with pytest.raises(Killed):
            run(client, settings)
    (built,) = versions.versions(client, index_name)
    assert built.serving == (moment == "after the swap")
    if moment == "before the swap":
        killable.finish(killable.begin(cluster_url, settings, osn_home, tmp_path))
        assert killable.encoded(tmp_path) == 0, "nothing is encoded again"
        assert versions.serving_index(client, index_name) == built.index
    second = run(client, settings)
    assert second.replaced == built.index and second.index != built.index
    third = run(client, settings)
    assert third.index not in (built.index, second.index), "a build that has served is not continued"
    assert versions.rollback(client, index_name) == (second.index, third.index)


@pytest.mark.parametrize("alias", [True, False], ids=["a build", "an index"])
def test_13_a_kill_once_the_index_is_complete_costs_no_encoding(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path, osn_home: Path, alias: bool, monkeypatch: Any
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(100))
    settings = build(corpus, index_name) if alias else job(corpus, index_name)
    with monkeypatch.context() as patch:
        patch.setattr("ingest.job.keep_measures", killed)
        with pytest.raises(Killed):
            run(client, settings)
    (index,) = client.indices.get(index=f"{index_name}*")
    if alias:
        assert versions.serving_index(client, index_name) is None, "a build serves with what searches need"
    killable.finish(killable.begin(cluster_url, settings, osn_home, tmp_path))
    assert killable.encoded(tmp_path) == 0, "nothing is encoded again"
    assert list(client.indices.get(index=f"{index_name}*")) == [index]
    assert read_largest(client, existing_record(client, index_name).extra[LARGEST]) is not None


# ---------------------------------------------------------------- 9: documents at fault


@pytest.mark.parametrize("shards", [1, 3])
def test_09_documents_that_no_attempt_takes_become_letters(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path, shards: int
) -> None:
    lines = records(300)
    for number in (20, 140, 141):
        lines[number]["text"] = "poison"
    policy = RetryPolicy(patience=60, base=0.05, cap=0.2, item_patience=0.5)
    settings = job(write_jsonl(tmp_path / "d.jsonl", lines), index_name, shards=shards, writing={"retry": policy})
    with FaultProxy(cluster_url) as proxy:
        proxy.fault = lambda request: Fault("status", status=500) if b"poison" in request.body else None
        report = run(connect(proxy.url), settings)
    assert (report.documents, report.letters) == (297, 3)
    assert report.dead_letters is not None
    assert {letter["line"] for letter in letters(report.dead_letters)} == {21, 141, 142}
    assert all(letter["status"] == 500 for letter in letters(report.dead_letters))


def test_09_documents_that_an_ingest_pipeline_fails_on_become_letters(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    """A real pipeline: OpenSearch answers the request with 200 and each of these documents with 500, at every attempt."""
    run(client, job(write_jsonl(tmp_path / "first.jsonl", records(5, seed=1)), index_name))
    poison = {"fail": {"if": "ctx.text.contains('poison')", "message": "not today"}}
    client.ingest.put_pipeline(id=index_name, body={"processors": [poison]})
    client.indices.put_settings(index=index_name, body={"index.default_pipeline": index_name})
    lines = records(200)
    for number in (20, 140, 141):
        lines[number]["text"] = "poison"
    policy = RetryPolicy(patience=60, base=0.05, cap=0.2, item_patience=0.5)
    try:
        report = run(client, job(write_jsonl(tmp_path / "d.jsonl", lines), index_name, writing={"retry": policy}))
    finally:
        client.indices.put_settings(index=index_name, body={"index.default_pipeline": None})
        client.ingest.delete_pipeline(id=index_name)
    assert (report.documents, report.letters) == (197, 3) and report.dead_letters is not None
    told = letters(report.dead_letters)
    assert {letter["line"] for letter in told} == {21, 141, 142}
    assert all(letter["status"] == 500 and "not today" in letter["reason"] for letter in told)


def test_09_documents_that_an_ingest_pipeline_drops_become_letters(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    """OpenSearch answers each of them with status 200."""
    run(client, job(write_jsonl(tmp_path / "first.jsonl", records(5, seed=1)), index_name))
    poison = {"drop": {"if": "ctx.text.contains('poison')"}}
    client.ingest.put_pipeline(id=index_name, body={"processors": [poison]})
    client.indices.put_settings(index=index_name, body={"index.default_pipeline": index_name})
    lines = records(200)
    for number in (20, 140, 141):
        lines[number]["text"] = "poison"
    lines[141]["filler"] = "x" * 100_000  # larger than what is remembered of accepted documents
    service = Documents(client, index_name)
    try:
        report = run(client, job(write_jsonl(tmp_path / "d.jsonl", lines), index_name))
        assert [each.id for each in service.add([{"_id": "a", "text": "poison"}]).refused] == ["a"]
        with pytest.raises(InputError, match="drops it"):
            service.update("doc-0-000001", {"text": "poison"})
    finally:
        client.indices.put_settings(index=index_name, body={"index.default_pipeline": None})
        client.ingest.delete_pipeline(id=index_name)
    assert (report.documents, report.letters, report.others) == (197, 3, 5) and report.dead_letters is not None
    told = letters(report.dead_letters)
    assert {letter["line"] for letter in told} == {21, 141, 142}
    assert all("pipeline of the cluster drops it" in letter["reason"] for letter in told)


@pytest.mark.parametrize("remove_others", [False, True])
def test_09_what_an_interrupted_run_could_not_write_and_is_taken_now_is_counted(
    client: Any,
    index_name: str,
    tmp_path: Path,
    remove_others: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run(client, job(write_jsonl(tmp_path / "first.jsonl", records(20, seed=1)), index_name))
    poison = {"convert": {"if": "ctx.text.contains('poison')", "field": "text", "type": "integer"}}
    lines = records(60)
    for number in (3, 40):
        lines[number]["text"] = "poison"
    settings = job(write_jsonl(tmp_path / "d.jsonl", lines), index_name, writing={"remove_others": remove_others})
    refusing_one = replace(settings, writing=replace(settings.writing, max_errors=0))
    client.ingest.put_pipeline(id=index_name, body={"processors": [poison]})
    try:
        client.indices.put_settings(index=index_name, body={"index.default_pipeline": index_name})
        with pytest.raises(TooManyErrors):
            run(client, refusing_one)
    finally:
        client.indices.put_settings(index=index_name, body={"index.default_pipeline": None})
        client.ingest.delete_pipeline(id=index_name)
    report = run(client, settings)
    assert (report.documents, report.letters, report.dead_letters) == (60, 0, None)
    assert not letters(Path(f"{index_name}.dead-letters.jsonl")), "which would be ingested once more"
    assert report.others == (0 if remove_others else 20)
    assert len(snapshot(client, index_name)) == 60 + report.others
    assert "had acknowledged" not in caplog.text


def test_09_what_an_interrupted_run_could_not_write_is_not_its_older_version(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    run(client, job(write_jsonl(tmp_path / "first.jsonl", records(60)), index_name))
    lines = [{**each, "text": f"{each['text']} again"} for each in records(60)]
    for number in (3, 40):
        lines[number]["text"] = "poison"
    settings = job(write_jsonl(tmp_path / "d.jsonl", lines), index_name)
    poison = {"convert": {"if": "ctx.text.contains('poison')", "field": "text", "type": "integer"}}
    client.ingest.put_pipeline(id=index_name, body={"processors": [poison]})
    try:
        client.indices.put_settings(index=index_name, body={"index.default_pipeline": index_name})
        with pytest.raises(TooManyErrors):
            run(client, replace(settings, writing=replace(settings.writing, max_errors=0)))
        report = run(client, settings)
    finally:
        client.indices.put_settings(index=index_name, body={"index.default_pipeline": None})
        client.ingest.delete_pipeline(id=index_name)
    assert (report.documents, report.letters) == (58, 2) and report.dead_letters is not None


def test_09_what_was_lost_and_is_no_longer_taken_is_no_success(
    client: Any, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(client, job(write_jsonl(tmp_path / "first.jsonl", records(20, seed=1)), index_name))
    settings = job(write_jsonl(tmp_path / "d.jsonl", records(60)), index_name)
    with monkeypatch.context() as patch:
        patch.setattr("ingest.writing.target.finish", killed)
        with pytest.raises(Killed):
            run(client, settings)
    client.delete(index=index_name, id="doc-0-000003")
    client.ingest.put_pipeline(id=index_name, body={"processors": [{"convert": {"field": "text", "type": "integer"}}]})
    try:
        client.indices.put_settings(index=index_name, body={"index.default_pipeline": index_name})
        with pytest.raises(ClusterError, match=r"lacks 1 documents .* does not take them again"):
            run(client, settings)
    finally:
        client.indices.put_settings(index=index_name, body={"index.default_pipeline": None})
        client.ingest.delete_pipeline(id=index_name)
    assert run(client, settings).documents == 60


def test_09_healthy_documents_are_no_letters_when_the_cluster_takes_none(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path
) -> None:
    policy = RetryPolicy(patience=4, base=0.05, cap=0.5, item_patience=0.5)
    corpus = write_jsonl(tmp_path / "d.jsonl", records(60))
    settings = job(corpus, index_name, writing={"retry": policy, "writers": 1})
    with FaultProxy(cluster_url) as proxy:
        proxy.fault = lambda request: Fault("status", status=500) if request.number > 1 else None
        with pytest.raises(ClusterError, match="did not accept"):
            run(connect(proxy.url), settings)
    assert letters(Path(f"{index_name}.dead-letters.jsonl")) == []


def test_09_a_cluster_that_takes_little_at_once_gets_halves(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path
) -> None:
    def overloaded(request: Request) -> Fault | None:
        return Fault("status", status=429) if request.body.count(b"\n") > 2 * 8 else None

    with FaultProxy(cluster_url) as proxy:
        proxy.fault = overloaded
        corpus = write_jsonl(tmp_path / "d.jsonl", records(200))
        assert run(connect(proxy.url), job(corpus, index_name)).documents == 200
    assert len(snapshot(client, index_name)) == 200


# ---------------------------------------------------------------- 8: a merge takes hours


def test_08_a_merge_is_asked_after_and_not_repeated(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def watched(request: Request) -> Fault | None:
        if request.path.endswith("/_bulk"):  # what was written before becomes a segment of its own
            client.indices.refresh(index=index_name)
        if request.path.endswith("/_forcemerge"):
            settings = client.indices.get_settings(index=index_name)[index_name]["settings"]["index"]
            asked.append(settings["number_of_replicas"])
        return None

    corpus = write_jsonl(tmp_path / "d.jsonl", records(600))
    settings = job(corpus, index_name, replicas=1, writing={"merge": True})
    with FaultProxy(cluster_url, everything=True) as proxy:
        proxy.fault = watched
        with monkeypatch.context() as patch:
            patch.setattr("ingest.writing.target.write_record", killed)  # after the merge
            with pytest.raises(Killed):
                run(connect(proxy.url), settings)
        assert asked == ["1"], "the settings are restored before the merge"
        run(connect(proxy.url), settings)
    assert asked == ["1"], "what is merged is not merged again"
    parts = client.indices.segments(index=index_name)["indices"][index_name]["shards"]["0"][0]["segments"]
    assert len(parts) == 1


def test_08_what_others_store_in_the_record_meanwhile_stays(
    client: Any, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While segments are merged, and while a new build's replicas are waited for."""
    corpus = write_jsonl(tmp_path / "d.jsonl", records(60))

    def storing(module: Any, name: str, **entries: Any) -> None:
        original = getattr(module, name)

        def store_first(client: Any, index: str, *arguments: Any) -> None:
            write_record(client, index, existing_record(client, index).with_extra(**entries))
            original(client, index, *arguments)

        monkeypatch.setattr(module, name, store_first)

    storing(target, "merge_segments", merging={"window": 1})
    storing(versions, "_wait_for_replicas", waiting={"window": 2})
    run(client, build(corpus, index_name, writing={"merge": True}))
    meta = existing_record(client, index_name)
    assert (meta.unfinished, meta.extra["build"]["swapped"]) == (None, True)
    assert (meta.extra.get("merging"), meta.extra.get("waiting")) == ({"window": 1}, {"window": 2})


# ---------------------------------------------------------------- 10: a service that holds Documents


def test_10_documents_held_over_a_swap_to_another_model_are_refused(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    run(client, build(write_jsonl(tmp_path / "d.jsonl", records(20)), index_name))
    service = Documents(client, index_name)
    assert service.add(records(2, seed=1)).created == 2
    run(client, build(write_jsonl(tmp_path / "e.jsonl", records(40, seed=3)), index_name))
    for write in (lambda: service.add(records(2, seed=2)), lambda: service.update("doc-3-000001", {"title": "x"})):
        with pytest.raises(ModelError, match="was written with another sparse model"):
            write()
    assert len(snapshot(client, index_name)) == 40
    again = Documents(client, index_name)
    assert again.add(records(2, seed=2)).created == 2
    client.indices.put_alias(index=f"{index_name}-*", name=index_name)
    with pytest.raises(ClusterError, match="names 2 indexes"):
        again.add(records(2, seed=2))


# ---------------------------------------------------------------- 11: memory


def test_11_a_batch_ends_by_all_its_bytes(client: Any, index_name: str, tmp_path: Path) -> None:
    lines = [{"_id": str(n), "text": "rain", "filler": "x" * 100_000} for n in range(60)]
    corpus = write_jsonl(tmp_path / "d.jsonl", lines)
    sizes: list[int] = []
    take = pipeline._Run._take

    def measured(self: Any, start: int, items: list[Any]) -> Any:
        sizes.append(sum(map(pipeline.size_of, items)))
        return take(self, start, items)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline._Run, "_take", measured)
        settings = job(corpus, index_name, sparse="none", writing={"batch_bytes": 1_000_000, "batch_documents": 256})
        assert run(client, settings).documents == 60
    assert max(sizes) <= 1_100_000 and len(sizes) == 6


# ---------------------------------------------------------------- 12: patience


def test_12_control_requests_have_the_patience_of_all_others(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path
) -> None:
    failing: dict[str, int] = {}

    def once_each(request: Request) -> Fault | None:
        if "osn-leases" in request.path or request.path == "/":
            return None
        times = failing[request.path] = failing.get(request.path, 0) + 1
        return Fault("status", status=503) if times == 1 else None

    with FaultProxy(cluster_url, everything=True) as proxy:
        proxy.fault = once_each
        settings = build(write_jsonl(tmp_path / "d.jsonl", records(60)), index_name, sparse="none")
        assert run(connect(proxy.url), settings).documents == 60
    assert len(failing) > 5


@pytest.mark.parametrize("status", [429, 503])
def test_12_a_cluster_that_refuses_everything_for_a_while_is_waited_for(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path, status: int
) -> None:
    """Which shard a document belongs to cannot be asked either."""
    began = 0.0

    def refuse(request: Request) -> Fault | None:
        nonlocal began
        if not proxy.bulks or "osn-leases" in request.path:
            return None
        began = began or time.monotonic()
        return Fault("status", status=status) if time.monotonic() - began < 3 else None

    policy = RetryPolicy(patience=60, base=0.05, cap=0.2, item_patience=0.5)
    corpus = write_jsonl(tmp_path / "d.jsonl", records(100))
    settings = job(corpus, index_name, writing={"retry": policy, "batch_documents": 10})
    with FaultProxy(cluster_url, everything=True) as proxy:
        proxy.fault = refuse
        impatient = connect(settings=ConnectionSettings((proxy.url,), patience=0.3))
        assert run(impatient, settings).documents == 100
    assert proxy.faults["status"] > 8


def test_12_opensearch_pys_own_retries_do_not_multiply_ours(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(10))
    policy = RetryPolicy(patience=2, base=0.2, cap=0.5)
    with FaultProxy(cluster_url) as proxy:
        proxy.fault = lambda request: Fault("status", status=503)
        with pytest.raises(ClusterError, match=r"tried (\d+) times") as caught:
            run(connect(proxy.url), job(corpus, index_name, writing={"retry": policy}))
        (tried,) = re.findall(r"tried (\d+) times", caught.value.message)
        assert proxy.faults["status"] == int(tried)


# ---------------------------------------------------------------- 14: letters and unfinished indexes


def test_14_a_run_that_continues_elsewhere_goes_on_with_its_letters(
    client: Any, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[Any] = records(400)
    lines[30] = lines[330] = "broken"
    settings = job(write_jsonl(tmp_path / "d.jsonl", lines), index_name, sparse="none", writing={"max_errors": 1})
    with pytest.raises(TooManyErrors):
        run(client, settings)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    report = run(client, replace(settings, writing=replace(settings.writing, max_errors=5)))
    assert report.dead_letters == tmp_path / f"{index_name}.dead-letters.jsonl"
    assert {letter["line"] for letter in letters(report.dead_letters)} == {31, 331}
    assert not list(Path().glob("*.jsonl"))
    assert report.dead_letters.stat().st_mode & 0o077 == 0, "letters are the user's alone"


def test_14_letters_of_documents_that_a_later_run_accepts_are_dropped(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    """Mended and ingested, they brought back the texts that the corpus had before."""
    first, *others = records(60)
    refused, unread = {**others[0], "year": "unknown"}, {**others[1], "sparse": "x"}
    corpus = tmp_path / "d.jsonl"
    settings = job(corpus, index_name, sparse="none")
    of_other = job(write_jsonl(tmp_path / "other.jsonl", [first, unread]), index_name, sparse="none")
    write_jsonl(corpus, [first, refused, unread, "torn"])
    for each in (settings, of_other):
        run(client, each)
    file = Path(f"{index_name}.dead-letters.jsonl")
    assert len(letters(file)) == 4
    again = replace(settings, writing=replace(settings.writing, max_errors=1))
    write_jsonl(corpus, [first, *others[:40], first, *others[40:], "cut", "cut"])
    with pytest.raises(TooManyErrors):
        run(client, again)
    assert len(letters(file)) >= 4, "not before the end"
    report = run(client, settings)
    assert report.skipped and report.letters == 3
    told = {
        (Path(letter["file"]).name, letter.get("document", {}).get("_id"), letter.get("raw"))
        for letter in letters(file)
    }
    assert told == {
        ("d.jsonl", first["_id"], None),  # of a batch that was not written again
        ("d.jsonl", None, "cut"),
        ("d.jsonl", None, "torn"),  # whose id nobody knows
        ("other.jsonl", None, json.dumps(unread)),
    }
    write_jsonl(corpus, [unread, first, *others[:3]])
    part = replace(settings, corpus=replace(settings.corpus, limit=2))
    for each, left in ((part, 6), (settings, 5)):  # there are two of `cut`
        run(client, each)
        assert len(letters(file)) == left


def test_14_a_line_that_was_mended_wrongly_is_kept(client: Any, index_name: str, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", [{"_id": "a", "text": "rain"}, '{"_id": "b"'])
    first = run(client, job(corpus, index_name, sparse="none"))
    assert first.dead_letters
    wrong = '{"dead_letter": 1, "raw": "{\\"_id\\": \\"b\\", \\"text\\": \\"sun\\"}'
    write_jsonl(first.dead_letters, [wrong, {"_id": "c", "text": "a document alone"}])
    second = run(client, job(first.dead_letters, index_name, sparse="none"))
    assert second.dead_letters and second.dead_letters != first.dead_letters
    assert letters(second.dead_letters)[0]["raw"] == wrong
    assert len(letters(second.dead_letters)) == 2


def test_14_settings_that_an_existing_index_has_for_good_are_refused(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = job(write_jsonl(tmp_path / "d.jsonl", records(20)), index_name, sparse="none", store_vectors=False)
    run(client, settings)
    for different, told in (
        ({"shards": 3}, r"--shards 3 \(it has 1\)"),
        ({"analyzer": "standard"}, r"--analyzer standard \(it has english\)"),
        ({"replicas": 2}, r"--replicas 2 \(it has 0\)"),
        ({"store_vectors": True}, "--store-vectors"),
    ):
        with pytest.raises(InputError, match=told):
            run(client, replace(settings, new_index=replace(settings.new_index, **different)))
    same = replace(settings.new_index, shards=1, analyzer="english")
    assert run(client, replace(settings, new_index=same)).documents == 20
    assert "replicas" not in caplog.text
    client.indices.put_settings(index=index_name, body={"number_of_replicas": 2})
    assert run(client, replace(settings, new_index=replace(same, replicas=1))).documents == 20
    assert f"{index_name!r} has 2 replicas and keeps them: --replicas 1 is for a new index" in caplog.text
    with pytest.raises(InputError, match="--dense-type byte needs dense vectors"):
        run(client, replace(settings, new_index=replace(settings.new_index, dense_type="byte")))
    lexical = job(write_jsonl(tmp_path / "l.jsonl", records(20)), f"{index_name}-l")
    run(client, lexical)
    other = tmp_path / "tokenizer.json"
    other.write_text(Path(small_tokenizer()).read_text().replace('"piston"', '"pistons"'))
    with pytest.raises(InputError, match="has another tokenizer than --tokenizer"):
        run(client, replace(lexical, models=Models(sparse="lexical", tokenizer=str(other))))
    assert run(client, lexical).documents == 20


def test_14_an_interrupted_index_says_so_until_it_is_finished_or_deleted(
    osn: Osn, client: Any, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(60))
    for settings in (job(corpus, f"{index_name}-a"), build(corpus, f"{index_name}-b")):
        with monkeypatch.context() as patch:
            patch.setattr("ingest.writing.target.finish", killed)
            with pytest.raises(Killed):
                run(client, settings)
    ran = osn("index", "inspect", f"{index_name}-a")
    assert "NOT COMPLETE" in ran.stdout and str(corpus) in ran.stdout, ran.stderr
    ran = osn("search", "--index", f"{index_name}-a", "--engine", "bm25", "rain")
    assert "not complete" in ran.stderr, ran.stderr
    assert osn("index", "finish", f"{index_name}-a").returncode == 0
    assert "NOT COMPLETE" not in osn("index", "inspect", f"{index_name}-a").stdout
    for command in ("abort", "finish"):
        ran = osn("index", command, f"{index_name}-a")
        assert ran.returncode == 1 and "is complete" in ran.stderr
        assert "nothing to finish or to abort" in ran.stderr
    (unfinished,) = client.indices.get(index=f"{index_name}-b-*")
    ran = osn("index", "abort", f"{index_name}-b")
    assert f"{unfinished} deleted" in ran.stdout, ran.stderr
    assert not client.indices.exists(index=unfinished)


@pytest.mark.parametrize("made", [build, job], ids=["a build", "an index"])
def test_14_a_corpus_without_a_record_leaves_no_index_behind(
    client: Any, index_name: str, tmp_path: Path, made: Callable[..., Job]
) -> None:
    """Another corpus would otherwise complete an index that is not complete without the first."""
    with pytest.raises(InputError, match=r"none.jsonl holds no document"):
        run(client, made(write_jsonl(tmp_path / "none.jsonl", []), index_name, sparse="none"))
    assert not client.indices.get(index=f"{index_name}*", params={"allow_no_indices": "true"})


def test_14_an_interrupted_load_into_a_serving_index_says_so(
    osn: Osn, client: Any, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(client, job(write_jsonl(tmp_path / "a.jsonl", records(20)), index_name))
    with pytest.raises(InputError, match="holds no document"):
        run(client, job(write_jsonl(tmp_path / "none.jsonl", []), index_name))
    second = job(write_jsonl(tmp_path / "b.jsonl", records(200, seed=1)), index_name)
    third = job(write_jsonl(tmp_path / "c.jsonl", records(10, seed=2)), index_name)

    def told() -> str:
        ran = osn("search", "--index", index_name, "--engine", "bm25", "rain")
        assert ran.returncode == 0
        return ran.stderr

    assert told() == ""
    for settings in (second, third):
        with monkeypatch.context() as patch:
            patch.setattr("ingest.writing.target.finish", killed)
            with pytest.raises(Killed):
                run(client, settings)
    assert "is not complete" in told() and "b.jsonl" in told() and "c.jsonl" in told()
    assert "NOT COMPLETE" in osn("index", "inspect", index_name).stdout
    run(client, second)
    assert "b.jsonl" not in told() and "c.jsonl" in told()
    ran = osn("index", "abort", index_name)
    assert ran.returncode == 1 and "was complete before" in ran.stderr
    assert osn("index", "finish", index_name).returncode == 0
    assert told() == "" and len(snapshot(client, index_name)) == 230
    assert osn("index", "finish", index_name).returncode == 1


def test_14_an_interrupted_corpus_is_remembered_when_another_one_is_whole(
    client: Any, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (write_jsonl(tmp_path / f"{at}.jsonl", records(30, seed=at)) for at in (1, 2))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("ingest.writing.target.finish", killed)
        run(client, job(one, index_name))
    run(client, job(two, index_name))
    meta = existing_record(client, index_name)
    assert (meta.loading, meta.adding) == (None, [str(one.resolve())])
    run(client, job(one, index_name))
    assert existing_record(client, index_name).unfinished is None


# ---------------------------------------------------------------- 15: an index that serves


def test_15_stale_passages_are_removed_without_a_refresh_for_each_batch(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    text = " ".join(["rain bow light drop"] * 10)
    corpus = write_jsonl(tmp_path / "d.jsonl", [{"_id": f"d{n}", "text": text} for n in range(1200)])
    settings = job(corpus, index_name, sparse="lexical", passages=PassageMeta(20, 20))
    run(client, settings)
    assert client.count(index=index_name)["count"] == 2400
    write_jsonl(corpus, [{"_id": f"d{n}", "text": "rain"} for n in range(1200)])
    before = client.indices.stats(index=index_name, metric="refresh")["_all"]["primaries"]["refresh"]["external_total"]
    report = run(client, settings)
    assert (report.documents, report.others) == (1200, 0)
    after = client.indices.stats(index=index_name, metric="refresh")["_all"]["primaries"]["refresh"]["external_total"]
    assert after - before <= 4
    client.indices.refresh(index=index_name)
    assert client.count(index=index_name)["count"] == 1200
