"""Texts by id, and what counts as the same text."""

from __future__ import annotations

import numpy as np
import pytest

from opensearch_neural.errors import InputError
from trainers.data.texts import TextStore, normalised


def test_a_text_store_keeps_every_text_and_refuses_a_second_one_under_an_id() -> None:
    texts = {"a": "", "b": "naïve ☂", "c": "x" * 1000, "d": "lone \ud800 surrogate"}
    store = TextStore(texts.items())
    assert dict(store) == texts
    assert store.row("c") == 2
    assert store.add("b", "naïve ☂") == 1
    with pytest.raises(InputError, match="'b' occurs twice"):
        store.add("b", "other")
    with pytest.raises(InputError, match="no document 'z'"):
        store.row("z")


def test_normalised_text_ignores_case_punctuation_and_width_but_not_words() -> None:
    assert normalised("  What’s NEW?\t") == normalised("what's new")
    assert normalised("ﬁle") == normalised("File")
    assert normalised("list files") != normalised("list file")
    assert normalised("??") != normalised("!!")
    assert normalised("I \u2764\ufe0f rain") == normalised("I \u2764 rain") == "i rain"
    assert normalised("5´ of rain") == normalised("5 of rain")


@pytest.mark.parametrize(("one", "other"), [("पानी", "पाना"), ("ไม่", "ไม้"), ("வாழை", "வாழி")])
def test_words_that_differ_in_a_vowel_sign_are_not_the_same_text(one: str, other: str) -> None:
    """Hindi's "water" and "to get": one was a copy of the other, a leak of it, and left out of training."""
    assert normalised(one) != normalised(other)
    assert normalised(f"{one}!") == normalised(f" {one}") == one


def test_copies_of_a_text_are_all_rows_whose_words_are_the_same() -> None:
    store = TextStore([("a", "Cats purr"), ("b", "dogs bark"), ("c", "cats  purr!"), ("d", "birds sing")])
    assert store.copies(np.array([2, 3])).tolist() == [0, 2, 3]
    assert store.copies(np.array([], dtype=np.int32)).tolist() == []
