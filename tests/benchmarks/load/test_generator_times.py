"""The times that the generator measures are the true ones. These tests have the machine to themselves (see the Makefile):
beside another program they would measure how long it kept them waiting.
"""

from __future__ import annotations

import ast
import asyncio
import time
from pathlib import Path

import numpy as np
import pytest
from programmed_endpoint import programmed
from runs import measured, workload_at

from benchmarks.load import histogram as hdr
from benchmarks.load.blocks import Block, Level, Turn, block_of
from benchmarks.load.connection import Pool
from benchmarks.load.generator import Order, WorkerMeasurement, _WorkerBlock
from benchmarks.load.workload import request_heads


def quantile(block: Block, q: float) -> float:
    return float(hdr.quantile(hdr.counts(hdr.decode(block.latency)), float(block.failed), q))


def slower_than(block: Block, ms: float) -> float:
    counted = hdr.counts(hdr.decode(block.latency))
    return float(counted[hdr.values() > ms].sum())


def test_a_stall_costs_every_request_that_was_due_during_it() -> None:
    """Two stalls of a second: the requests due in their first seven tenths waited longer than three tenths."""
    with programmed(service_ms=(2.0,), stalls=((1.5, 1.0), (4.5, 1.0))) as url:
        block = measured(workload_at(url), Level("open", 350.0), 7.0)
    assert block.failed == 0 and block.requests == pytest.approx(350 * 7, rel=0.1)
    assert quantile(block, 0.99) > 750
    assert slower_than(block, 300) > 0.9 * 2 * 0.7 * 350
    assert quantile(block, 0.5) < 300


def test_a_closed_loop_hides_the_same_stall_in_a_few_requests() -> None:
    """Why the open loop exists: four clients meet a stall with one request each."""
    with programmed(service_ms=(5.0,), stalls=((2.0, 1.0),)) as url:
        block = measured(workload_at(url), Level("closed", 4), 4.0)
    assert 1 <= slower_than(block, 500) <= 4
    assert quantile(block, 0.5) < 100


def test_a_known_distribution_of_service_times_is_recovered_within_two_percent() -> None:
    """Once in three trials: where other programs have the processors, it is their delay that is measured truly."""
    times = (600.0, 800.0, 1000.0, 1200.0, 2000.0)
    for _ in range(3):
        with programmed(service_ms=times) as url:
            block = measured(workload_at(url), Level("closed", 200), 5.0, settle=2.0)
        assert block.failed == 0 and block.requests > 400
        found = {q: quantile(block, q) for q in (0.1, 0.3, 0.5, 0.7, 0.9)}
        counted = hdr.counts(hdr.decode(block.latency))
        found["mean"] = float(counted @ hdr.values() / counted.sum())
        # Little's law: as many requests a second as clients, over the time that each takes.
        found["clients / throughput"] = 200_000 / (block.completed / block.seconds)
        expected = {**dict(zip((0.1, 0.3, 0.5, 0.7, 0.9), times, strict=True)), "mean": np.mean(times)}
        expected["clients / throughput"] = np.mean(times)
        if found == pytest.approx(expected, rel=0.02):
            return
    assert found == pytest.approx(expected, rel=0.02)


def test_a_closed_loop_measures_the_wait_for_the_encoding_of_other_clients() -> None:
    """Queries take 20 ms to encode, one after another: ten clients wait ten times as long, as their throughput says."""
    body = b'{"query": {}}'

    def encode(_position: int) -> bytes:
        time.sleep(0.02)
        return body

    async def answered(url: str) -> WorkerMeasurement:
        workload = workload_at(url)
        pool = Pool(workload.target, 100)
        heads = request_heads(workload, workload.variants[0])
        order = Order("bm25", "closed", 10, 0.0, time.monotonic_ns(), int(0.5e9), int(3e9), seed=1)
        try:
            return await _WorkerBlock(order, pool, encode, heads, len(workload.texts), timeout=30.0).run()
        finally:
            await pool.close()

    with programmed(service_ms=(2.0,)) as url:
        part = asyncio.run(answered(url))
    mean_ms = np.mean(part.latency) / 1000
    assert not part.failures and part.completed > 50
    assert mean_ms == pytest.approx(10 * 3000 / part.completed, rel=0.05)
    assert mean_ms > 150 and np.mean(part.encode) / 1000 < 40
    block = block_of(Turn(0, Level("closed", 10), "bm25"), 3.0, [part])
    assert block.wait is not None and block.encode is not None
    assert block.network is not None and block.took is not None
    # An answer that arrives meanwhile waits to be read, or its client waits to encode: which, differs from run to run.
    assert block.wait + block.network > 100
    assert block.wait + block.encode + block.network + block.took == pytest.approx(mean_ms, rel=0.05)


def test_an_open_loop_keeps_its_rate_whatever_the_server_does() -> None:
    with programmed(service_ms=(900.0,)) as url:
        block = measured(workload_at(url), Level("open", 100.0), 3.0)
    assert block.requests == pytest.approx(300, abs=5 * 17)  # five standard deviations of a Poisson count
    assert quantile(block, 0.5) == pytest.approx(900, rel=0.1)  # nobody waited for anybody


def test_requests_without_an_answer_time_out_and_count() -> None:
    began = time.monotonic()
    with programmed(silent=True) as url:
        block = measured(workload_at(url, timeout=0.5), Level("closed", 5), 1.0)
    assert block.failures["timeout"] == block.requests >= 5
    assert quantile(block, 0.01) == float("inf")
    assert time.monotonic() - began < 20


def test_every_test_of_measured_times_is_in_this_file() -> None:
    here = Path(__file__)
    for path in here.parent.glob("test_*.py"):
        names = {
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.Name, ast.Attribute))
        }
        reads_times = "latency" in names and bool({"quantile", "values"} & names)
        assert (reads_times and bool({"measured", "Generators"} & names)) == (path == here), path.name
