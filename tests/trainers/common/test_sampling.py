"""Which examples meet in a batch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensearch_neural.errors import InputError
from trainers.common.sampling import draw_batches
from trainers.common.set_range import SetRange


def ranges(*sizes: int) -> list[SetRange]:
    stops = np.cumsum(sizes).tolist()
    return [SetRange(str(i), stop - size, stop, 0, 1) for i, (stop, size) in enumerate(zip(stops, sizes, strict=True))]


@given(st.lists(st.integers(0, 25), min_size=1, max_size=4), st.integers(1, 8), st.integers(0, 5))
def test_every_batch_comes_from_one_set_and_no_example_twice(sizes: list[int], batch_size: int, epoch: int) -> None:
    sets = ranges(*sizes)
    if not sum(sizes):
        return
    batches = list(draw_batches(sets, batch_size, seed=3, epoch=epoch))
    assert batches == list(draw_batches(sets, batch_size, seed=3, epoch=epoch))
    for batch in batches:
        assert len({next(s.name for s in sets if s.start <= index < s.stop) for index in batch}) == 1
    counts = Counter(index for batch in batches for index in batch)
    assert max(counts.values()) == 1
    for one in sets:
        size = one.stop - one.start
        drawn = sum(counts[index] for index in range(one.start, one.stop))
        assert drawn == (size if size < batch_size else size - size % batch_size)


def test_batches_differ_by_epoch_and_follow_the_weights() -> None:
    sets = ranges(4000, 400)
    assert list(draw_batches(sets, 4, seed=0, epoch=0)) != list(draw_batches(sets, 4, seed=0, epoch=1))

    def share_of_small(weights: object) -> float:
        drawn = list(draw_batches(sets, 4, seed=0, epoch=0, weights=weights))  # type: ignore[arg-type]
        assert len(drawn) == 1100
        return sum(batch[0] >= 4000 for batch in drawn) / len(drawn)

    assert share_of_small(None) == pytest.approx(1 / 11)
    assert share_of_small([1, 1]) == pytest.approx(0.5, abs=0.05)
    assert share_of_small(0.5) == pytest.approx(20 / (20 + 63.2), abs=0.05)
    assert share_of_small([0, 1]) == 1
    with pytest.raises(InputError, match="expected 2 weights"):
        share_of_small([1])
    with pytest.raises(InputError, match=r"set_weights \[1, 0\] leave nothing to train on"):
        list(draw_batches(ranges(0, 400), 4, seed=0, epoch=0, weights=[1, 0]))
