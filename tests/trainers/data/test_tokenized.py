"""Padding: nothing is lost, and no other cut would pad less."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.data.tokenized import TokenCache, padded_parts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def texts(lengths: list[int]) -> list[np.ndarray]:
    return [np.full(length, at + 1, dtype=np.int32) for at, length in enumerate(lengths)]


def test_half_a_surrogate_pair_is_read_as_a_character_that_is_unknown(
    word_pieces: PreTrainedTokenizerBase, byte_level: PreTrainedTokenizerBase
) -> None:
    written = ["half \ud83d pair", "half \ufffd\ufffd\ufffd pair"]
    for tokenizer in (word_pieces, byte_level):
        half, replaced = TokenCache(tokenizer, written.__getitem__, max_length=16).rows([0, 1])
        assert half.tolist() == replaced.tolist()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 70), min_size=1, max_size=30),
    st.sampled_from([0, 40, 5000]),
    st.one_of(st.none(), st.integers(1, 9)),
)
def test_every_text_is_in_one_part_as_it_was(lengths: list[int], overhead: int, largest: int | None) -> None:
    parts = padded_parts(texts(lengths), padding=0, overhead=overhead, largest=largest)
    positions = [row for part in parts for row in part.position.tolist()]
    assert sorted(positions) == list(range(len(lengths)))
    for part in parts:
        assert largest is None or len(part.position) <= largest
        assert part.input_ids.shape[1] % 8 == 0
        for ids, mask, row in zip(part.input_ids, part.attention_mask, part.position.tolist(), strict=True):
            assert ids[mask == 1].tolist() == [row + 1] * lengths[row]
            assert (ids[mask == 0] == 0).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.sampled_from([0, 20, 100]))
def test_no_other_cut_costs_less(lengths: list[int], overhead: int) -> None:
    parts = padded_parts(texts(lengths), padding=0, overhead=overhead)
    cost = sum(part.input_ids.numel() + overhead for part in parts)
    rounded = sorted((-(-length // 8) * 8 for length in lengths), reverse=True)
    places = range(1, len(rounded))
    cuts = [cut for count in range(len(rounded)) for cut in combinations(places, count)]
    assert cost == min(
        sum(
            (end - start) * rounded[start] + overhead
            for start, end in zip((0, *cut), (*cut, len(rounded)), strict=True)
        )
        for cut in cuts
    )
