"""A digest changes with anything of a record, and with the order of records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingest.record_digests import digest, record_digest
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
