"""Which sentence carries the most of a score: what its words add, worked out by hand."""

from __future__ import annotations

import pytest

from opensearch_neural.corpus.sentences import sentences
from opensearch_neural.search.excerpt import (
    around,
    heaviest_sentence,
    marked_words,
    term_of,
    with_marks,
)
from opensearch_neural.search.explanation import Share
from opensearch_neural.search.hits import sentence_of

TEXT = "Fish live in rivers. Light is split by drops of rain. A rainbow has colours. It rains."


def carried(highlighted: str, *shares: Share) -> str | None:
    """The sentence, where the sparse model's tokens are the words in small letters."""
    text = highlighted.replace("<em>", "").replace("</em>", "")
    words = marked_words([highlighted], text)
    assert words is not None
    span = heaviest_sentence(text, words, shares, lambda part: part.lower().rstrip(".").split())
    return None if span is None else text[slice(*span)]


def bm25(token: str, score: float) -> Share:
    return Share("bm25", token, score)


def sparse(token: str, score: float, literal: bool = True) -> Share:
    return Share("sparse", token, score, literal=literal)


def test_the_terms_of_a_sentence_count_once_each_with_what_they_add() -> None:
    text = "Fish, <em>fish</em>, <em>fish</em>. A <em>trout</em>. <em>Fish</em> and <em>trouts</em> swim."
    assert carried(text, bm25("fish", 1.0), bm25("trout", 1.5)) == "Fish and trouts swim."
    once = "Fish, <em>fish</em>, <em>fish</em>. A <em>trout</em>."
    assert carried(once, bm25("fish", 1.0), bm25("trout", 1.5)) == "A trout."
    assert carried(once, bm25("fish", 1.6), bm25("trout", 1.5)) == "Fish, fish, fish."


def test_tokens_in_the_text_count_and_those_that_the_model_added_do_not() -> None:
    assert carried(TEXT, sparse("rivers", 1.0), sparse("rainbow", 2.0)) == "A rainbow has colours."
    assert carried(TEXT, sparse("rivers", 1.0), sparse("rainbow", 2.0, literal=False)) == "Fish live in rivers."
    assert carried(TEXT, sparse("weather", 3.0, literal=False), Share("codes", "[codes]", 2.0)) is None


def test_bm25_and_tokens_add_up() -> None:
    text = TEXT.replace("rivers", "<em>rivers</em>")
    parts = sparse("light", 1.0), sparse("drops", 0.9)
    assert carried(text, bm25("river", 1.8), *parts) == "Light is split by drops of rain."
    assert carried(text, bm25("river", 2.0), *parts) == "Fish live in rivers."


def test_of_equal_sentences_the_first_is_marked() -> None:
    assert carried("One <em>fish</em>. Two <em>fish</em>.", bm25("fish", 1.0)) == "One fish."


@pytest.mark.parametrize(
    ("word", "terms", "expected"),
    [
        ("Causes", ["light", "caus"], "caus"),
        ("rainbows", ["rain", "rainbow"], "rainbow"),
        ("raining", ["rainbow", "rain"], "rain"),
        ("happy", ["happi", "hat"], "happi"),
        ("Café", ["cafe"], "cafe"),
        ("shower", ["sun", "rain / shower"], "rain / shower"),
        ("bow", ['"rain bow"'], '"rain bow"'),
        ("en", ["energy"], None),
        ("東", ["京", "東"], "東"),
        ("x", [], None),
    ],
)
def test_a_marked_word_stands_for_the_term_that_it_begins_with(
    word: str, terms: list[str], expected: str | None
) -> None:
    assert term_of(word, terms) == expected


def test_a_text_may_hold_the_tags_of_the_highlighter() -> None:
    text = "<em>no mark</em> a word </em>"
    highlighted = "<em>no mark</em> a <em>word</em> </em>"
    words = marked_words([highlighted], text)
    assert words is not None and [text[slice(*span)] for span in words] == ["word"]
    assert with_marks(text, words, (0, len(text))) == highlighted


def test_the_highlighter_cuts_a_text_at_nul_and_trims_it() -> None:
    text = "\n a word\0no mark \0\7another word\0end "
    words = marked_words(["a <em>word</em>", "another <em>word</em>"], text)
    assert words is not None and [(start, text[start:end]) for start, end in words] == [(4, "word"), (27, "word")]
    assert marked_words([], text) == []


def test_fragments_of_a_text_tell_nothing_of_the_whole() -> None:
    assert marked_words(["a <em>word</em>"], "a word and more") is None
    assert marked_words(["another <em>text</em>"], "a text") is None


def test_an_excerpt_is_the_beginning_or_whole_sentences_around_the_one() -> None:
    text = " ".join(f"Sentence number {number} of this text is here." for number in range(100))
    spans = sentences(text)
    assert around(text, spans[2])[0] == 0
    start, end = around(text, spans[50])
    assert start == spans[49][0] and 200 < end - start <= 300
    words = [(spans[50][0], spans[50][0] + 8)]
    shown = sentence_of(text, words, [bm25("sentenc", 1.0)], None)
    assert shown["sentence"] == "<em>Sentence</em> number 50 of this text is here."
    assert shown["excerpt"].startswith("… Sentence number 49") and shown["excerpt"].endswith(" …")
    assert shown["sentence"] in shown["excerpt"]


def test_without_a_score_of_the_text_the_excerpt_shows_the_marked_word() -> None:
    text = " ".join(f"Sentence number {number} of this text is here." for number in range(100))
    at = text.index("50")
    shown = sentence_of(text, [(at, at + 2)], [Share("codes", "[codes]", 1.0)], None)
    assert "<em>50</em>" in shown["excerpt"] and "sentence" not in shown
