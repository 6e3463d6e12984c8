"""Repeated ids are found however many there are."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ingest.duplicate_ids import FirstRecords


@given(st.lists(st.text(max_size=3), max_size=200))
def test_the_first_record_of_each_id_is_known(ids: list[str]) -> None:
    seen = FirstRecords()
    firsts = [seen.first(id, number) for number, id in enumerate(ids)]
    assert firsts == [ids.index(id) for id in ids]
    assert len(seen) == len(set(ids))


def test_across_merges_too() -> None:
    seen = FirstRecords()
    random_ = random.Random(1)
    expected: dict[str, int] = {}
    for number in range(150_000):
        id = f"doc-{random_.randrange(100_000)}"
        assert seen.first(id, number) == expected.setdefault(id, number)
    assert len(seen) == len(expected)
