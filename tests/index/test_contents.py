"""A change of an index's documents while it is measured is seen, whatever the change is."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from opensearch_neural.index.contents import change, contents_of

pytestmark = pytest.mark.cluster


@pytest.fixture
def index(client) -> Iterator[str]:
    name = f"osn-test-contents-{uuid.uuid4().hex[:8]}"
    client.indices.create(index=name, body={"settings": {"number_of_shards": 3, "number_of_replicas": 0}})
    for number in range(9):
        client.index(index=name, id=str(number), body={"text": "a"})
    client.indices.refresh(index=name)
    yield name
    for each in (name, f"{name}-2"):
        client.indices.delete(index=each, params={"ignore_unavailable": "true"})


def told(client, name: str, act) -> str | None:
    before = contents_of(client, name)
    act()
    client.indices.refresh(index=name)
    return change(name, before, contents_of(client, name))


def test_every_kind_of_write_is_a_change_and_searches_are_none(client, index: str) -> None:
    write = lambda id: client.index(index=index, id=id, body={"text": "a"})  # noqa: E731
    assert told(client, index, lambda: client.search(index=index)) is None
    assert "(9 documents before, 10 after)" in (told(client, index, lambda: write("new")) or "")
    assert "(10 documents before, 9 after)" in (told(client, index, lambda: client.delete(index=index, id="new")) or "")
    for number in range(9):  # in whichever shard it lies
        assert "some of its 9 documents were written again" in (told(client, index, lambda: write(str(number))) or "")  # noqa: B023

    def exchange() -> None:
        client.delete(index=index, id="3")
        write("another")

    assert "written again" in (told(client, index, exchange) or "")


def test_an_alias_that_moves_is_a_change(client, index: str) -> None:
    other, alias = f"{index}-2", f"{index}-alias"
    client.indices.create(index=other)
    client.index(index=other, id="1", body={"text": "a"}, refresh=True)
    client.indices.put_alias(index=index, name=alias)
    add, remove = ({what: {"index": of, "alias": alias}} for what, of in (("add", other), ("remove", index)))
    said = told(client, alias, lambda: client.indices.update_aliases(body={"actions": [add, remove]}))
    assert said is not None and f"it was {index} before and {other} after" in said


def test_what_the_cluster_does_not_tell_is_no_change(client, index: str) -> None:
    assert contents_of(client, "no-such-index-anywhere") is None
    assert change(index, None, {index: (1, 1.0)}) is None
