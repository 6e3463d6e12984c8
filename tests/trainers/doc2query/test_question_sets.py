"""Sets whose questions are made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from opensearch_neural.errors import InputError
from trainers.doc2query.question_sets import QuestionSet


def test_questions_that_are_no_kind_and_no_model_are_named(tmp_path: Path) -> None:
    corpus = tmp_path / "titled.jsonl"
    corpus.write_text(
        json.dumps({"_id": "c", "title": "Wine", "text": "Wine is made of grapes in most places."}) + "\n"
    )
    with pytest.raises(InputError, match="'titel' is not title, first-sentence or a query generator"):
        QuestionSet(corpus, questions="titel").load(tmp_path)
    with pytest.raises(InputError, match="found a document, expected a question and its answer") as failure:
        QuestionSet(corpus).load()
    assert "questions: title" in str(failure.value)
