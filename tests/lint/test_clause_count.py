"""How many clauses Lucene makes of a query."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensearch_neural.lint.clause_count import count, words_of


@given(st.text())
def test_at_least_as_many_words_as_at_most_is_never_claimed(text: str) -> None:
    low, high = words_of(text, "english")
    assert 0 <= low <= high


@pytest.mark.parametrize("expansions", ["many", None, float("inf"), [3], "50"])
def test_expansions_that_are_no_number_are_the_default(expansions: Any) -> None:
    how = {"query": "fox", "fuzziness": "AUTO"}
    assert count({"match": {"text": {**how, "max_expansions": expansions}}}) == count({"match": {"text": how}})
