"""The instrument itself: what it is told to measure, it measures; what happens to it, it tells, and never hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from programmed_endpoint import programmed
from runs import measured, workload_at

from benchmarks.load import generator as generator_module
from benchmarks.load import histogram as hdr
from benchmarks.load.blocks import Level
from benchmarks.load.connection import Connection, Pool
from benchmarks.load.generator import GeneratorLost, Generators, shares
from benchmarks.load.workload import Address, poisson


def test_refusals_and_errors_are_counted_by_kind_and_never_dropped() -> None:
    with programmed(statuses=(200, 429, 500, 200)) as url:
        block = measured(workload_at(url), Level("closed", 3), 1.0)
    assert set(block.failures) == {"rejected (429)", "HTTP 500"}
    assert block.requests == block.failed + hdr.counts(hdr.decode(block.latency)).sum()
    assert block.failed == pytest.approx(block.requests / 2, rel=0.1, abs=8)  # at both edges some are cut off
    assert '"took"' in block.example  # what the server said


@pytest.mark.parametrize("level", [Level("closed", 3), Level("open", 200.0)], ids=str)
def test_queries_that_cannot_be_encoded_are_failures_of_their_own_kind(level: Level) -> None:
    with programmed() as url:
        block = measured(workload_at(url, known=50), level, 1.0)  # the other half of the queries raises IndexError
    assert block.failures["encoding"] > 10 and "IndexError" in block.example
    assert block.completed > 10 and block.requests == block.failed + hdr.counts(hdr.decode(block.latency)).sum()


def test_a_query_that_cannot_be_encoded_does_not_stop_its_client() -> None:
    """It paused for 50 ms, as if a node were dead: two clients could have at most 40 such failures in a second."""
    with programmed() as url:
        block = measured(workload_at(url, known=25), Level("closed", 2), 1.0)
    assert block.failures["encoding"] > 100 and block.completed > 10


@pytest.mark.parametrize("answer", ["{}", "not JSON", '{"took":1,"timed_out":true,"_shards":{"failed":0}}', "[]"])
def test_only_a_complete_search_answer_counts(answer: str) -> None:
    with programmed(answer=answer) as url:
        block = measured(workload_at(url), Level("closed", 1), 0.3)
    assert block.completed == 0 and block.failed == block.requests > 0


def test_an_endpoint_that_nobody_listens_on_ends_the_block_early(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    block = measured(workload_at("http://127.0.0.1:9"), Level("closed", 3), 20.0)
    assert block.broken is not None
    assert block.failures["connection"] > 10
    assert time.monotonic() - began < 15  # long before its twenty seconds are over


@pytest.mark.parametrize("how", [{"chunked": True}, {"close_every": 3}], ids=["chunked", "closing"])
def test_chunked_answers_and_closed_connections_are_no_failures(how: dict[str, object]) -> None:
    with programmed(**how) as url:
        block = measured(workload_at(url), Level("closed", 4), 1.0)
    assert block.requests > 50
    assert block.failures.get("connection", 0) == 0 and block.failed == 0


def test_all_nodes_have_their_share_of_a_light_load() -> None:
    async def nodes_of(pool: Pool) -> list[str]:
        for authority in ("a:1", "b:2"):
            pool._idle.append(Connection(Address("127.0.0.1", 1, False, "", authority)))
        found = []
        for _ in range(6):
            connection = await pool.acquire()
            found.append(connection.address.authority)
            pool.release(connection)
        return found

    assert asyncio.run(nodes_of(Pool(workload_at("http://127.0.0.1:1").target, 4))) == ["a:1", "b:2"] * 3


def test_a_killed_worker_is_told_at_once() -> None:
    with programmed() as url, Generators(workload_at(url), 2) as generators:
        victim = generators.pids[1]
        threading.Timer(1.0, os.kill, (victim, signal.SIGKILL)).start()
        began = time.monotonic()
        with pytest.raises(GeneratorLost, match="generator process 2 of 2 was ended by signal 9"):
            generators.run("bm25", "closed", clients=4, settle=0.1, length=30.0, seed=1)
        assert time.monotonic() - began < 10


def test_a_worker_that_stands_still_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator_module, "GRACE_SECONDS", 1.0)
    with programmed() as url, Generators(workload_at(url, timeout=0.5), 2) as generators:
        os.kill(generators.pids[0], signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(GeneratorLost, match="generator process 1 of 2 does not answer"):
            generators.run("bm25", "closed", clients=4, settle=0.1, length=0.5, seed=1)
        assert time.monotonic() - began < 10


def test_workers_end_with_their_parent() -> None:
    with programmed() as url:
        with Generators(workload_at(url), 2) as generators:
            pids = generators.pids
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_what_a_worker_cannot_load_is_an_error_and_no_hang() -> None:

    from benchmarks.load.workload import ModelChoice, SearchedIndex
    from opensearch_neural.errors import ModelError
    from opensearch_neural.index.record import IndexMeta, SparseMeta

    workload = workload_at("http://127.0.0.1:9")
    meta = IndexMeta(SparseMeta("no-such-model", "0" * 16, "0" * 16))
    needs_model = replace(
        workload,
        variants=(replace(workload.variants[0], engine="sparse"),),
        indexes={"an-index": SearchedIndex(meta, True)},
        models=ModelChoice(sparse="/no/such/model"),
    )
    with pytest.raises(ModelError), Generators(needs_model, 2):
        pass


def test_poisson_arrivals_have_the_rate_and_the_gaps_of_one() -> None:
    import random

    times = np.array(poisson(200.0, 100.0, random.Random(7))) / 1e9
    assert len(times) == pytest.approx(20_000, abs=5 * np.sqrt(20_000))
    gaps = np.diff(times)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)  # of an exponential distribution they are equal
    assert times.max() < 100 and poisson(0.0, 10.0, random.Random(1)) == []


def test_clients_are_shared_out_evenly_and_none_is_lost() -> None:
    for whole in range(12):
        for parts in range(1, 5):
            given = shares(whole, parts)
            assert sum(given) == whole and max(given) - min(given) <= 1
