"""How many clauses Lucene makes of a query."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opensearch_neural.lint.clause_count import words_of


@given(st.text())
def test_at_least_as_many_words_as_at_most_is_never_claimed(text: str) -> None:
    low, high = words_of(text, "english")
    assert 0 <= low <= high
