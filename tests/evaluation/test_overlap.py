"""What an approximate search keeps of the exact result, without judgements."""

from __future__ import annotations

import pytest

from opensearch_neural.evaluation.overlap import overlap, score_kept
from opensearch_neural.tune import Questions


def test_the_score_kept_is_a_share_of_the_best_page() -> None:
    exact = {str(at): float(20 - at) for at in range(15)}
    assert score_kept({str(at): float(20 - at) for at in range(10)}, exact) == 1.0
    assert score_kept({"0": 20.0, "11": 9.0}, exact) == pytest.approx(29 / 155)
    assert score_kept({}, {"a": 0.0}) == 1.0


def test_who_finds_other_near_duplicates_keeps_the_score_and_not_the_overlap() -> None:
    exact = {str(at): 10 - at / 1000 for at in range(20)}
    run = {"q": {str(at): 1.0 for at in range(10, 20)}}
    assert overlap(run["q"], exact) == 0.0
    assert Questions({"q": "text"}).quality(run, {"q": exact})["q"] == pytest.approx(0.999, abs=1e-5)


def test_a_hit_that_the_exact_search_does_not_find_scores_nothing() -> None:
    exact = {"q": {"a": 3.0, "b": 1.0}, "nothing": dict[str, float]()}
    run = {"q": {"a": 9.0, "c": 8.0}, "nothing": {"a": 1.0}}
    assert Questions({"q": "text", "nothing": "other"}).quality(run, exact) == {"q": 0.75}
