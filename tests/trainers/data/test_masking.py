"""What is masked in a sequence, for BERT and for T5."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from masked_lm_setup import sentences

from trainers.common.batches import IGNORED
from trainers.data.masking import continuations, corrupt_spans, mask_tokens
from trainers.encoders import backbones
from trainers.encoders.backbones import train_tokenizer

SPECIAL = np.array([True] * 5 + [False] * 45)

CONTINUES = np.array([False] * 30 + [True] * 20)


@given(st.lists(st.integers(0, 49), max_size=40), st.floats(0.01, 0.9), st.booleans(), st.integers(0, 99))
def test_a_masked_special_token_is_impossible_and_labels_are_what_was_hidden(
    ids: list[int], rate: float, whole_word: bool, seed: int
) -> None:
    tokens = np.array(ids, dtype=np.int64)
    inputs, labels = mask_tokens(
        tokens,
        rate=rate,
        mask_id=4,
        special=SPECIAL,
        rng=np.random.default_rng(seed),
        continuation=CONTINUES if whole_word else None,
    )
    chosen = labels != IGNORED
    assert not SPECIAL[tokens[chosen]].any()
    np.testing.assert_array_equal(labels[chosen], tokens[chosen])
    np.testing.assert_array_equal(inputs[~chosen], tokens[~chosen])
    # What stands in a hidden token's place is the mask or a token that is not special.
    assert all(token == 4 or not SPECIAL[token] for token in inputs[chosen])
    maskable = int((~SPECIAL[tokens]).sum())
    wanted = max(1, round(rate * maskable)) if maskable else 0
    assert chosen.sum() >= wanted if whole_word else chosen.sum() == wanted


def test_whole_words_are_masked_together() -> None:
    # [2] one (30 31) word, [3] special, (32) a continuation that starts anew behind it, 10 (33 34 35)
    tokens = np.array([2, 20, 30, 31, 3, 32, 10, 33, 34, 35, 11, 3])
    words = [{1, 2, 3}, {5}, {6, 7, 8, 9}, {10}]
    seen = set()
    for seed in range(200):
        _, labels = mask_tokens(
            tokens, rate=0.1, mask_id=4, special=SPECIAL, rng=np.random.default_rng(seed), continuation=CONTINUES
        )
        chosen = set(np.flatnonzero(labels != IGNORED).tolist())
        assert chosen in words
        seen.add(frozenset(chosen))
    assert seen == {frozenset(word) for word in words}


def test_eighty_percent_become_the_mask_and_ten_each_random_or_unchanged() -> None:
    tokens = np.random.default_rng(0).integers(5, 50, size=40_000)
    inputs, labels = mask_tokens(tokens, rate=0.5, mask_id=4, special=SPECIAL, rng=np.random.default_rng(1))
    chosen = labels != IGNORED
    assert chosen.sum() == 20_000
    masked, same = (inputs[chosen] == 4).mean(), (inputs[chosen] == tokens[chosen]).mean()
    assert masked == pytest.approx(0.8, abs=0.01)
    # One in 45 random tokens is the one that was there.
    assert same == pytest.approx(0.1 + 0.1 / 45, abs=0.01)


def test_continuations_are_known_by_the_tokenizers_own_mark(word_pieces: backbones.PreTrainedTokenizerBase) -> None:
    marks = continuations(word_pieces)
    tokens = word_pieces.convert_ids_to_tokens(list(range(len(word_pieces))))
    assert {token for token, mark in zip(tokens, marks, strict=True) if mark} == {
        t for t in tokens if t.startswith("##")
    }
    assert marks.any()
    byte_level = train_tokenizer(sentences(50), "byte-level", 420)
    marks = continuations(byte_level)
    ids = byte_level("alpha beta", add_special_tokens=False)["input_ids"]
    starts = [byte_level.convert_ids_to_tokens(i) for i in ids if not marks[i]]
    assert all(token.startswith("Ġ") for token in starts)
    assert starts


@given(
    st.lists(st.integers(0, 999), min_size=1, max_size=60), st.floats(0.05, 0.9), st.floats(1, 6), st.integers(0, 99)
)
def test_the_targets_fill_the_gaps_of_the_inputs(ids: list[int], rate: float, span_length: float, seed: int) -> None:
    tokens, sentinels = np.array(ids, dtype=np.int64), np.arange(5000, 5100)
    inputs, targets = corrupt_spans(
        tokens, rate=rate, span_length=span_length, sentinels=sentinels, eos_id=1, rng=np.random.default_rng(seed)
    )
    assert inputs[-1] == targets[-1] == 1
    spans: dict[int, list[int]] = {}
    for token in targets[:-1].tolist():
        if token >= 5000:
            spans[token] = []
        else:
            spans[list(spans)[-1]].append(token)
    assert spans.pop(list(spans)[-1]) == []
    assert list(spans) == list(range(5000, 5000 + len(spans)))
    restored = [one for token in inputs[:-1].tolist() for one in (spans[token] if token >= 5000 else [token])]
    assert restored == ids
    hidden = sum(map(len, spans.values()))
    if len(ids) > 1:
        assert hidden == min(max(round(rate * len(ids)), 1), len(ids) - 1)


def test_spans_have_the_mean_length_asked_for() -> None:
    lengths = []
    for seed in range(30):
        _, targets = corrupt_spans(
            np.zeros(200, np.int64), rate=0.15, span_length=3, sentinels=np.arange(500, 600), eos_id=1,
            rng=np.random.default_rng(seed),
        )  # fmt: skip
        lengths.append(30 / ((targets >= 500).sum() - 1))
    assert np.mean(lengths) == pytest.approx(3)
