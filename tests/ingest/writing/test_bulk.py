"""`BulkWriter` before a real cluster, through a proxy that does what networks do."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

import orjson
import pytest
from corpora import snapshot
from fault_proxy import Fault, FaultProxy, Request
from hypothesis import given
from hypothesis import strategies as st

from ingest.writing.bulk import Action, BulkWriter, Failure, Stopped, chunks, deciding
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.patience import RetryPolicy
from opensearch_neural.errors import ClusterError

QUICK = RetryPolicy(patience=30, base=0.02, cap=0.1)


def actions(count: int, *, prefix: str = "d", bytes_: int = 20) -> list[Action]:
    return [Action(f"{prefix}{n}", orjson.dumps({"text": "x" * bytes_, "n": n})) for n in range(count)]


@pytest.fixture
def proxy(cluster_url: str) -> Iterator[FaultProxy]:
    with FaultProxy(cluster_url) as running:
        yield running


@given(st.lists(st.integers(0, 500), max_size=40), st.integers(1, 1000))
def test_chunks_cover_all_actions_in_order_within_the_limit(sizes: list[int], most: int) -> None:
    made = [Action(str(n), b"x" * size) for n, size in enumerate(sizes)]
    bounds = list(chunks(made, most))
    assert [n for start, end in bounds for n in range(start, end)] == list(range(len(made)))
    for start, end in bounds:
        assert end - start == 1 or sum(action.size() for action in made[start:end]) <= most


def test_the_size_of_an_action_is_what_is_sent(client, index_name: str, proxy: FaultProxy) -> None:
    made = [Action("é" * n, orjson.dumps({"text": "x" * n})) for n in range(1, 200)]
    BulkWriter(connect(proxy.url), index_name, chunk_bytes=1 << 30).write(made)
    assert len(proxy.bulks[0]) == sum(action.size() for action in made)


def test_no_document_is_compared_with_those_of_a_shard_that_no_node_has(client, index_name: str) -> None:
    client.indices.create(index=index_name, body={"settings": {"number_of_replicas": 0}})
    writer = BulkWriter(client, index_name)
    writer.write(actions(2))
    assert writer._neighbour("d7") is not None
    client.indices.delete(index=index_name)
    nowhere = {"number_of_replicas": 0, "index.routing.allocation.require._name": "nowhere"}
    client.indices.create(index=index_name, body={"settings": nowhere}, params={"wait_for_active_shards": "0"})
    (shard,) = client.cat.shards(index=index_name, params={"format": "json"})
    assert shard["state"] == "UNASSIGNED"
    assert writer._neighbour("d7") is None


def test_backoff_grows_to_its_cap_and_is_jittered() -> None:
    policy = RetryPolicy(base=0.5, cap=30)
    for attempt, most in [(1, 1.0), (2, 2.0), (6, 30.0), (5000, 30.0)]:
        waits = [policy.wait(attempt) for _ in range(200)]
        assert 0 <= min(waits) < 0.2 * most and 0.8 * most < max(waits) <= most


@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", 429),
        Fault("status", 500),
        Fault("status", 502),
        Fault("status", 503),
        Fault("status", 504),
        Fault("status", 507),
        Fault("status", 520),
        Fault("status_after", 502),
        Fault("drop"),
        Fault("drop_after"),
        Fault("cut"),
        Fault("garbage"),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status}" if fault.kind.startswith("status") else fault.kind,
)
def test_what_may_pass_later_is_tried_again_until_everything_is_there(
    client, index_name: str, proxy: FaultProxy, fault: Fault
) -> None:
    # opensearch-py repeats some of these by itself; without its retries all are ours.
    proxy.fault = lambda request: fault if request.number in (1, 2, 5) else None
    direct = connect(proxy.url)
    direct.transport.max_retries = 0
    outcome = BulkWriter(direct, index_name, policy=QUICK, chunk_bytes=2000).write(actions(100))
    assert outcome.failures == [] and outcome.retries == 3
    assert outcome.created + outcome.updated == 100
    found = snapshot(client, index_name)
    assert len(found) == 100 and all(found[f"d{n}"]["n"] == n for n in range(100))


def test_random_faults_from_many_threads_lose_and_double_nothing(client, index_name: str, proxy: FaultProxy) -> None:
    import random

    random_ = random.Random(11)
    kinds = ["status", "status_after", "drop", "drop_after", "cut", "garbage", "delay"]

    def fault(request: Request) -> Fault | None:
        return Fault(random_.choice(kinds), seconds=0.05) if random_.random() < 0.4 else None  # type: ignore[arg-type]

    proxy.fault = fault
    writer = BulkWriter(connect(proxy.url), index_name, policy=QUICK, chunk_bytes=1500)
    parts = [actions(150, prefix=f"{name}-") for name in "abcd"]
    threads = [threading.Thread(target=writer.write, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(proxy.faults.values()) > 10
    assert snapshot(client, index_name).keys() == {action.id for part in parts for action in part}


def test_a_document_that_is_refused_is_returned_and_costs_no_other(client, index_name: str) -> None:
    client.indices.create(index=index_name, body={"mappings": {"properties": {"n": {"type": "long"}}}})
    made = [*actions(3), Action("bad", b'{"n": "many"}'), *actions(3, prefix="e")]
    outcome = BulkWriter(client, index_name).write(made)
    assert [(failure.position, failure.status) for failure in outcome.failures] == [(3, 400)]
    assert "failed to parse field [n]" in outcome.failures[0].reason
    assert len(snapshot(client, index_name)) == 6


def test_a_new_field_that_two_requests_map_at_once_refuses_no_document(client, index_name: str) -> None:
    """The first of them maps the field by its own value; the other is refused, although its value fits that mapping."""
    date = {"type": "date", "format": "strict_date_optional_time"}
    mappings = {
        "dynamic_date_formats": ["strict_date", "strict_date_time_no_millis"],
        "dynamic_templates": [{"dates": {"match_mapping_type": "date", "mapping": date}}],
    }
    settings = {"number_of_shards": 4, "number_of_replicas": 0, "index.mapping.total_fields.limit": 5000}
    client.indices.create(index=index_name, body={"mappings": mappings, "settings": settings})
    days = ("2026-03-14", "2026-03-14T15:09:26Z")
    for field in map("when{}".format, range(20)):
        made = [Action(f"{field}-{n}", orjson.dumps({field: days[n % 2]})) for n in range(16)]
        outcome = BulkWriter(client, index_name).write(made)
        assert outcome.failures == [] and outcome.created == 16


def test_a_document_that_no_mapping_takes_is_refused_after_a_second_attempt(
    client, index_name: str, proxy: FaultProxy
) -> None:
    client.indices.create(index=index_name)
    made = [*actions(3), Action("bad", b'{"mixed": [1, "a"]}'), *actions(3, prefix="e")]
    outcome = BulkWriter(connect(proxy.url), index_name).write(made)
    assert [(failure.position, outcome.created) for failure in outcome.failures] == [(3, 6)]
    assert "cannot be changed from type" in outcome.failures[0].reason and len(proxy.bulks) == 2


def test_a_document_with_more_fields_than_an_index_may_have_is_sent_once(
    client, index_name: str, proxy: FaultProxy
) -> None:
    client.indices.create(index=index_name, body={"settings": {"index.mapping.total_fields.limit": 5}})
    made = [*actions(3), Action("many", orjson.dumps({f"field{n}": n for n in range(9)}))]
    outcome = BulkWriter(connect(proxy.url), index_name).write(made)
    assert [failure.position for failure in outcome.failures] == [3] and len(proxy.bulks) == 1
    assert "Limit of total fields [5] has been exceeded" in outcome.failures[0].reason


@pytest.mark.parametrize("second", [(0, "connection lost"), (503, "no shard"), (429, "full too")])
def test_a_second_sending_does_not_hide_that_the_cluster_is_too_busy(second: tuple[int, str]) -> None:
    """A request is halved after status 429 alone."""
    assert deciding([second, (429, "full")])[0] == deciding([(429, "full"), second])[0] == 429
    assert deciding([(0, "connection lost"), (500, "broken")]) == (500, "broken") and deciding([second]) == second


def test_a_second_sending_that_is_lost_is_tried_again(client, index_name: str, proxy: FaultProxy) -> None:
    client.indices.create(index=index_name)
    proxy.fault = lambda request: Fault("drop") if request.number == 2 else None
    direct = connect(proxy.url)
    direct.transport.max_retries = 0
    made = [*actions(3), Action("bad", b'{"mixed": [1, "a"]}')]
    outcome = BulkWriter(direct, index_name, policy=QUICK).write(made)
    assert [failure.position for failure in outcome.failures] == [3]
    assert (outcome.created, outcome.retries) == (3, 1)


def test_requests_stay_below_the_limit(client, index_name: str, proxy: FaultProxy) -> None:
    BulkWriter(connect(proxy.url), index_name, chunk_bytes=10_000).write(actions(300, bytes_=100))
    assert len(proxy.bulks) >= 4 and proxy.most_bytes <= 10_000


def test_a_request_too_large_for_the_cluster_is_halved_until_it_passes(
    client, index_name: str, proxy: FaultProxy
) -> None:
    proxy.fault = lambda request: Fault("status", 413) if len(request.body) > 3000 else None
    made = [*actions(60), Action("huge", orjson.dumps({"text": "y" * 5000})), *actions(60, prefix="e")]
    outcome = BulkWriter(connect(proxy.url), index_name).write(made)
    assert outcome.failures == [Failure(60, 413, "the document is larger than the cluster's http.max_content_length")]
    assert len(snapshot(client, index_name)) == 120


def test_patience_ends_with_a_message_that_says_why(client, index_name: str, proxy: FaultProxy) -> None:
    proxy.fault = lambda request: Fault("status", 429)
    writer = BulkWriter(connect(proxy.url), index_name, policy=RetryPolicy(patience=1, base=0.05, cap=0.2))
    began = time.monotonic()
    with pytest.raises(ClusterError, match=r"did not accept 1 documents .* in 1 s: status 429: injected"):
        writer.write(actions(5))
    assert time.monotonic() - began < 5


def test_once_a_half_is_written_the_other_half_has_the_whole_patience_again(
    client, index_name: str, proxy: FaultProxy
) -> None:
    """A cluster that is busy for two seconds before each of two documents is slow; a patience of three is enough for it."""
    began = time.monotonic()
    busy_until = [began + 2]

    def busy(request: Request) -> Fault | None:
        now = time.monotonic()
        if request.body.count(b"\n") > 2 or now < busy_until[-1]:
            return Fault("status", 429)
        if len(busy_until) == 1:  # this is the first document
            busy_until.append(now + 2)
        return None

    proxy.fault = busy
    policy = RetryPolicy(patience=3, base=0.05, cap=0.1)
    assert BulkWriter(connect(proxy.url), index_name, policy=policy).write(actions(2)).created == 2
    assert time.monotonic() - began > policy.patience


def test_a_batch_is_sent_as_often_as_the_policy_says_and_no_more(client, index_name: str, proxy: FaultProxy) -> None:
    """Before, each attempt of the policy was four requests of opensearch-py."""
    proxy.fault = lambda request: Fault("status", 503)
    writer = BulkWriter(connect(proxy.url), index_name, policy=RetryPolicy(patience=1, base=0.05, cap=0.2))
    with pytest.raises(ClusterError, match=r"tried (\d+) times") as caught:
        writer.write(actions(5))
    (attempts,) = re.findall(r"tried (\d+) times", caught.value.message)
    assert proxy.faults["status"] == int(attempts)


@pytest.mark.parametrize("name", ["%61", "ß", "a+b"])
def test_an_index_whose_name_means_something_else_in_an_address_is_the_one_that_is_written(
    client, index_name: str, name: str
) -> None:
    index = f"{index_name}-{name}"
    client.indices.create(index=index)
    assert BulkWriter(client, index).write(actions(3)).created == 3
    assert snapshot(client, index).keys() == {"d0", "d1", "d2"}
    assert list(client.indices.get(index=f"{index_name}-*")) == [index]


def test_stopping_ends_the_waiting(client, index_name: str, proxy: FaultProxy) -> None:
    proxy.fault = lambda request: Fault("drop")
    stop = threading.Event()
    writer = BulkWriter(connect(proxy.url), index_name, policy=RetryPolicy(base=60, cap=60), stop=stop)
    threading.Timer(0.3, stop.set).start()
    began = time.monotonic()
    with pytest.raises(Stopped):
        writer.write(actions(5))
    assert time.monotonic() - began < 5


def test_an_index_that_takes_no_document_at_all_ends_the_run_at_once(client, index_name: str) -> None:
    client.indices.create(index=index_name, body={"settings": {"index.blocks.write": True}})
    with pytest.raises(ClusterError, match=r"refuses to write .* blocked by: \[FORBIDDEN/8/index write"):
        BulkWriter(client, index_name).write(actions(5))


def test_a_closed_index_ends_the_run_and_makes_no_document_a_failure(client, index_name: str) -> None:
    client.indices.create(index=index_name)
    client.indices.close(index=index_name)
    with pytest.raises(ClusterError, match=r"refuses to write to .*closed"):
        BulkWriter(client, index_name).write(actions(5))
