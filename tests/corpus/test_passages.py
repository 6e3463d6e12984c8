"""Passages: windows of whole words that together hold all of the text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from opensearch_neural.corpus.documents import Document
from opensearch_neural.corpus.passages import Passage, split
from opensearch_neural.errors import InputError

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,;"


def tokenizer() -> Tokenizer:
    """Word pieces of single letters, but for a few words that are whole: `rain` one token, `xyz` three."""
    words = [
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "rain",
        "bow",
        "##bow",
        "light",
        *LETTERS,
        *(f"##{letter}" for letter in LETTERS),
    ]
    vocabulary = {word: number for number, word in enumerate(words)}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return made


TOKENIZER = tokenizer()


def size(text: str) -> int:
    return len(TOKENIZER.encode(text, add_special_tokens=False).ids)


def test_windows_without_overlap_follow_each_other() -> None:
    document = Document("doc", "rain light rain light rain", "Title", "https://e.org", {"lang": "en"}, "c.jsonl", 3)
    passages = split(document, TOKENIZER, tokens=2)
    assert [(p.id, p.text, p.start, p.end) for p in passages] == [
        ("doc#0001", "rain light", 0, 10),
        ("doc#0002", "rain light", 11, 21),
        ("doc#0003", "rain", 22, 26),
    ]
    assert {(p.parent, p.title, p.url, p.fields["lang"], p.file, p.line) for p in passages} == {
        ("doc", "Title", "https://e.org", "en", "c.jsonl", 3)
    }
    assert [p.number for p in passages] == [1, 2, 3]


def test_a_stride_makes_windows_overlap() -> None:
    passages = split(Document("d", "a b c d e f g"), TOKENIZER, tokens=4, stride=2)
    assert [p.text for p in passages] == ["a b c d", "c d e f", "e f g"]


def test_no_word_is_cut_unless_it_is_longer_than_a_window() -> None:
    # rainbow is rain + ##bow; the window of three would end inside it.
    assert [p.text for p in split(Document("d", "light a rainbow light"), TOKENIZER, 3)] == ["light a", "rainbow light"]
    assert [p.text for p in split(Document("d", "a uvwxyz b"), TOKENIZER, 4)] == ["a", "uvwx", "yz b"]


def test_a_document_that_fits_is_one_passage_and_one_without_text_too() -> None:
    (passage,) = split(Document("d", "  rain light \n"), TOKENIZER, 100)
    assert (passage.id, passage.text, passage.start, passage.end) == ("d#0001", "rain light", 2, 12)
    (passage,) = split(Document("d", "", "only a title"), TOKENIZER, 100)
    assert (passage.text, passage.title, passage.contents) == ("", "only a title", "only a title")


def test_the_record_of_a_passage_names_its_parent_and_its_place() -> None:
    passage = split(Document("d", "rain light", fields={"lang": "en"}), TOKENIZER, 1)[1]
    assert passage.record() == {
        "_id": "d#0002",
        "title": "",
        "text": "light",
        "lang": "en",
        "parent": "d",
        "passage": {"number": 2, "start": 5, "end": 10},
    }


def test_a_tokenizer_that_truncates_is_not_let_to_and_stays_as_it_was() -> None:
    truncating = tokenizer()
    truncating.enable_truncation(4)
    assert len(split(Document("d", "a " * 20), truncating, 4)) == 5
    assert truncating.truncation["max_length"] == 4


@pytest.mark.parametrize(("tokens", "stride"), [(0, None), (4, 0), (4, 5), (-1, None)])
def test_sizes_that_are_none_are_refused(tokens: int, stride: int | None) -> None:
    with pytest.raises(ValueError, match="expected 1 <= stride <= tokens"):
        split(Document("d", "a b"), TOKENIZER, tokens, stride)


def test_an_id_that_leaves_no_room_for_the_number_is_named() -> None:
    assert split(Document("x" * 507, "a"), TOKENIZER, 1)[0].id.endswith("#0001")
    with pytest.raises(InputError, match=r"c\.jsonl, line 2: the id of passage 1 of xxx"):
        split(Document("x" * 508, "a", file="c.jsonl", line=2), TOKENIZER, 1)


PIECES = [*"abcxyz", " ", " ", "\n", ".", "é", "東", "😀", "\u200b", "rain", "rainbow "]
texts = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)


@settings(max_examples=300, deadline=None)
@given(texts, st.integers(4, 12), st.data())
def test_passages_are_slices_that_fit_and_together_hold_every_character_but_whitespace(
    text: str, tokens: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, tokens))
    passages = split(Document("d", text), TOKENIZER, tokens, stride)
    covered: set[int] = set()
    for passage in passages:
        assert isinstance(passage, Passage)
        assert passage.text == text[passage.start : passage.end] == passage.text.strip()
        assert size(passage.text) <= tokens
        covered.update(range(passage.start, passage.end))
    assert [p.number for p in passages] == list(range(1, len(passages) + 1))
    assert all(text[index].isspace() for index in range(len(text)) if index not in covered)
    starts = [passage.start for passage in passages]
    assert starts == sorted(starts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Rain falls. Light bends. A rainbow stands.", ["Rain falls. Light bends.", "A rainbow stands."]),
        ('He said "rain." Then light.', ['He said "rain."', "Then light."]),
        ("rain falls\nlight bends\na rainbow", ["rain falls\nlight bends", "a rainbow"]),
        # Longer than a passage: cut between words. A point within a word ends nothing.
        ("a b c d e f. G", ["a b c d", "e f. G"]),
        ("version 1.5 of rain. Light", ["version 1.5 of rain.", "Light"]),
    ],
)
def test_passages_of_whole_sentences(text: str, expected: list[str]) -> None:
    by_space = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    by_space.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    passages = split(Document("d", text), by_space, tokens=4, sentences=True)
    assert [passage.text for passage in passages] == expected
    assert all(text[passage.start : passage.end] == passage.text for passage in passages)


def test_a_tokenizer_that_truncates_and_pads_splits_like_one_that_does_not() -> None:
    limited = tokenizer()
    limited.enable_truncation(3)
    limited.enable_padding(length=12)
    document = Document("d", "rain light rain light rain")
    assert split(document, limited, 2) == split(document, TOKENIZER, 2)
    assert limited.truncation is not None
    assert limited.padding is not None
