"""Top-k with ties broken by id: what every offline engine's order rests on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensearch_neural.errors import InputError
from opensearch_neural.retrievers.ranking import Ranking, require_positive


def test_ties_are_broken_by_ids_as_text_and_not_as_numbers() -> None:
    assert list(Ranking(["9", "10", "1"]).best(np.arange(3), np.ones(3), 3)) == ["1", "10", "9"]


def test_an_id_given_twice_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="'d1'"):
        Ranking(["d1", "d2", "d1"])


def test_k_must_be_positive() -> None:
    require_positive(1)
    with pytest.raises(InputError, match="not 0"):
        require_positive(0)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), max_size=30), st.integers(1, 40), st.randoms())
def test_best_is_the_head_of_the_full_sort_whatever_ties_at_the_cut(
    scores: list[float], k: int, random: object
) -> None:
    ids = [str(number) for number in range(2 * len(scores))]
    random.shuffle(ids)  # type: ignore[attr-defined]
    positions = np.arange(len(scores)) * 2  # only every second document is a candidate
    ranked = Ranking(ids).best(positions, np.array(scores, np.float32), k)
    expected = sorted(zip([ids[at] for at in positions], scores, strict=True), key=lambda hit: (-hit[1], hit[0]))[:k]
    assert list(ranked.items()) == expected
