"""Questions for a corpus that has none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from opensearch_neural.errors import InputError
from trainers.data.unlabelled_questions import unlabelled


@pytest.fixture
def titled(tmp_path: Path) -> Path:
    path = tmp_path / "titled.jsonl"
    rest = "and then " * 10  # A first sentence is a question where enough is left.
    records = [
        {"_id": "a", "title": "How apples grow", "text": f"Apples grow on trees of some size. {rest}"},
        {"_id": "b", "title": "", "text": f"Short. {rest}"},
        {"_id": "c", "title": "Wine", "text": f"Wine is made of grapes in most places. {rest}"},
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_title_asks_for_its_text_and_a_first_sentence_for_the_rest(tmp_path: Path, titled: Path) -> None:
    titles = unlabelled(titled, "title", name="titles")
    assert [example.query for example in titles.examples] == ["How apples grow", "Wine"]
    assert titles.documents["a"].startswith("Apples grow")
    assert len(titles.documents) == 3  # the others are searched, too
    sentences = unlabelled(titled, "first-sentence", name="sentences")
    assert [example.query for example in sentences.examples] == [
        "Apples grow on trees of some size.",
        "Wine is made of grapes in most places.",
    ]
    assert "Apples grow" not in sentences.documents["a"]
    assert sentences.examples[0].positives == ("a",)


def test_a_corpus_that_gives_no_question_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.jsonl"
    path.write_text(json.dumps({"_id": "a", "text": "too short"}) + "\n")
    with pytest.raises(InputError, match="none of 1 documents gives a question: a first sentence needs 4 to 40 words"):
        unlabelled(path, "first-sentence", name="short")


def test_documents_without_a_question_are_counted(titled: Path) -> None:
    assert unlabelled(titled, "title", name="titles").notes == [
        "1 of 3 documents give no question: they need a title and a text"
    ]
