"""Top-k with ties broken by id: what every offline engine's order rests on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensearch_neural.errors import InputError
from opensearch_neural.retrievers.ranking import best, id_order, require_positive


def test_id_order_sorts_as_text_and_not_as_numbers() -> None:
    assert id_order(["9", "10", "1"]).tolist() == [2, 1, 0]


def test_an_id_given_twice_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="'d1'"):
        id_order(["d1", "d2", "d1"])


def test_k_must_be_positive() -> None:
    require_positive(1)
    with pytest.raises(InputError, match="not 0"):
        require_positive(0)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), max_size=30), st.integers(1, 40), st.randoms())
def test_best_is_the_head_of_the_full_sort_whatever_ties_at_the_cut(
    scores: list[float], k: int, random: object
) -> None:
    ids = [str(number) for number in range(len(scores))]
    random.shuffle(ids)  # type: ignore[attr-defined]
    ranked, ranked_scores = best(np.array(scores, np.float32), id_order(ids), k)
    expected = sorted(range(len(scores)), key=lambda at: (-scores[at], ids[at]))[:k]
    assert ranked.tolist() == expected
    assert ranked_scores.tolist() == [scores[at] for at in expected]
