"""Nothing is lost: kills at random moments, a network that fails, nodes that die, disks that fill up."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import killable
import pytest
from corpora import job, letters, records, snapshot, write_jsonl
from fault_proxy import Fault, FaultProxy, Request

from ingest.job import run_job
from opensearch_neural import node
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.patience import RetryPolicy
from opensearch_neural.errors import ClusterError

KILLS = int(os.environ.get("OSN_KILLS", "8"))
SEED = int(os.environ.get("OSN_SEED", "4"))

pytestmark = pytest.mark.faults


@pytest.fixture(autouse=True)
def seed() -> random.Random:
    print(f"OSN_SEED={SEED}")  # shown where a test fails
    return random.Random(SEED)


def corpus_with_defects(path: Path) -> tuple[Path, int, int]:
    """(corpus, good documents, defects): of each kind of defect some, spread over the corpus."""
    lines: list[Any] = records(1500)
    for place in range(40, 1500, 211):
        lines.insert(place, "torn {")
    for place in range(90, 1500, 307):
        lines.insert(place, {"_id": "doc-0-000003", "text": "same id"})
    for place in range(70, 1500, 401):
        lines.insert(place, {"_id": f"conflict-{place}", "text": "rain", "year": "MCM"})
    defects = len(lines) - 1500
    return write_jsonl(path, lines), 1500, defects


def test_killed_at_random_moments_the_index_ends_as_if_undisturbed(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path, seed: random.Random
) -> None:
    """Of every second run, the network fails too."""
    corpus, good, defects = corpus_with_defects(tmp_path / "corpus.jsonl")
    settings = job(corpus, f"{index_name}-0")
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    seconds = killable.finish(killable.begin(cluster_url, settings, undisturbed / "home", undisturbed))
    expected = snapshot(client, settings.index)
    expected_letters = letters(undisturbed / f"{settings.index}.dead-letters.jsonl")
    assert (len(expected), len(expected_letters)) == (good, defects)

    def fault(request: Request) -> Fault | None:
        if kills % 2 or seed.random() > 0.15:
            return None
        return Fault(seed.choice(["status", "status_after", "drop", "drop_after", "cut", "garbage"]))  # type: ignore[arg-type]

    kills = rounds = 0
    with FaultProxy(cluster_url) as proxy:
        proxy.fault = fault
        while kills < KILLS:
            rounds += 1
            settings = replace(settings, index=f"{index_name}-{rounds}")
            folder = tmp_path / f"round-{rounds}"
            folder.mkdir()
            killed = complete = 0
            while kills < KILLS:
                process = killable.begin(proxy.url, settings, folder / "home", folder)
                if not killable.kill_after(process, seed.uniform(0, seconds)):
                    complete += 1
                    break
                kills, killed = kills + 1, killed + 1
                # Killed after its work was done: the next one has nothing to continue, and writes all of it again.
                complete += killable.encoded(folder) > 0 and not list((folder / "home" / "ingest").glob("*.journal"))
            killable.finish(killable.begin(proxy.url, settings, folder / "home", folder))
            assert snapshot(client, settings.index) == expected
            told = letters(folder / f"{settings.index}.dead-letters.jsonl")
            for letter in told:
                letter["reason"] = letter["reason"].replace(settings.index, f"{index_name}-0")
            assert sorted(map(str, told)) == sorted(map(str, expected_letters))
            # What a kill costs at most: the batches that were on their way.
            options = settings.writing
            most = good + defects + killed * options.in_flight * options.batch_documents
            assert killable.encoded(folder) <= most + complete * good
            meta = client.indices.get_mapping(index=settings.index)[settings.index]["mappings"]["_meta"]["osn"]
            assert "loading" not in meta
            client.indices.delete(index=settings.index)


def test_a_kill_costs_no_more_than_what_was_on_its_way(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path, osn_home: Path, seed: random.Random
) -> None:
    settings = job(write_jsonl(tmp_path / "corpus.jsonl", records(2000)), index_name)
    at_once = settings.writing.in_flight * settings.writing.batch_documents
    with FaultProxy(cluster_url) as proxy:
        proxy.fault = lambda request: Fault("delay", seconds=0.02)
        for bulks in (8, 16, 24):
            process = killable.begin(proxy.url, settings, osn_home, tmp_path)
            while len(proxy.bulks) < bulks:
                assert process.exitcode is None
                time.sleep(0.005)
            assert killable.kill_after(process, seed.uniform(0, 0.02))
        proxy.fault = lambda request: None
        killable.finish(killable.begin(proxy.url, settings, osn_home, tmp_path))
        assert len(set(proxy.written())) == 2000
    assert killable.encoded(tmp_path) <= 2000 + 3 * at_once
    assert len(snapshot(client, index_name)) == 2000


def test_a_red_index_is_said_to_be_red_and_why_and_is_filled_once_it_is_mended(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    template = f"{index_name}-nowhere"
    client.indices.put_index_template(
        name=template,
        body={
            "index_patterns": [index_name],
            "template": {"settings": {"index.routing.allocation.require._name": "nowhere"}},
        },
    )
    settings = job(
        write_jsonl(tmp_path / "corpus.jsonl", records(100)), index_name, writing={"retry": RetryPolicy(patience=2)}
    )
    try:
        with pytest.raises(ClusterError, match=r"is red: .*index setting \[index.routing.allocation.require\]"):
            run_job(client, settings, show_progress=False)
    finally:
        client.indices.delete_index_template(name=template)
    with pytest.raises(ClusterError, match="is red"):
        run_job(client, settings, show_progress=False)
    client.indices.put_settings(index=index_name, body={"index.routing.allocation.require._name": None})
    assert run_job(client, settings, show_progress=False).documents == 100
    assert len(snapshot(client, index_name)) == 100


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes, made larger by `mount -o remount,size=…`."""
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root, to mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_stops_the_ingest_and_more_room_lets_it_go_on(small_disk: Path, tmp_path: Path) -> None:
    random_ = random.Random(4)
    lines = [{"_id": f"d{n}", "text": "rain", "filler": random_.randbytes(3000).hex()} for n in range(2000)]
    corpus = write_jsonl(tmp_path / "corpus.jsonl", lines)
    name = f"osn-tests-disk-{os.getpid()}"
    running = node.start(name=name, data=small_disk, port=0, heap="512m", attached=True)
    try:
        client = connect(running.url)
        settings = job(corpus, "full", writing={"retry": RetryPolicy(patience=5, base=0.2, cap=1)})
        with pytest.raises(ClusterError) as error:
            run_job(client, settings, show_progress=False)
        assert "No space left" in str(error.value) or "the same command again" in str(error.value)
        subprocess.run(["mount", "-o", "remount,size=400m", str(small_disk)], check=True)
        # A shard that failed on a full disk stays closed until it is asked for again.
        client.cluster.reroute(params={"retry_failed": "true"})
        settings = replace(settings, writing=replace(settings.writing, retry=RetryPolicy(patience=120)))
        report = run_job(client, settings, show_progress=False)
        assert report.documents == 2000
        found = snapshot(client, "full")
        assert {id: source["filler"] for id, source in found.items()} == {line["_id"]: line["filler"] for line in lines}
    finally:
        node.stop(name, purge=True)
