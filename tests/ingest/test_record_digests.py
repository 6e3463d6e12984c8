"""A digest changes with anything of a record, and with the order of records; every repeated id is found."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ingest.record_digests import FirstRecords, digest, record_digest
from opensearch_neural.corpus.documents import Document, Rejected

texts = st.text(max_size=5)
documents = st.builds(Document, texts, texts, texts, st.none() | texts, st.dictionaries(texts, st.integers() | texts))


@given(documents, documents)
def test_records_that_differ_in_anything_have_different_digests(one: Document, other: Document) -> None:
    same = {**one.record(), "url": one.url or ""} == {**other.record(), "url": other.url or ""}
    assert (record_digest(one) == record_digest(other)) == same


def test_the_order_of_records_counts() -> None:
    one, other = Document("a", "x"), Rejected("f", 1, "why", "raw")
    assert digest([one, other]) != digest([other, one]) != digest([one])


@given(st.lists(st.text(max_size=3), max_size=200))
def test_the_first_record_of_each_id_is_known(ids: list[str]) -> None:
    seen = FirstRecords()
    firsts = [seen.first(id, number) for number, id in enumerate(ids)]
    assert firsts == [ids.index(id) for id in ids]
    assert len(seen) == len(set(ids))


def test_the_first_record_is_known_across_merges_too() -> None:
    seen = FirstRecords()
    random_ = random.Random(1)
    expected: dict[str, int] = {}
    for number in range(150_000):
        id = f"doc-{random_.randrange(100_000)}"
        assert seen.first(id, number) == expected.setdefault(id, number)
    assert len(seen) == len(expected)
