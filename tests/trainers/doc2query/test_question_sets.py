"""Sets whose questions are made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from opensearch_neural.errors import InputError
from trainers.doc2query.question_sets import QuestionSet
from trainers.jpq.settings import JpqSet


@pytest.mark.parametrize("field", ["split", "format", "corpus", "queries", "negatives"])
def test_settings_that_made_questions_leave_without_effect_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"so {field} would have no effect"):
        QuestionSet(Path("docs.jsonl"), questions="title", **{field: Path("x")})  # type: ignore[arg-type]
    assert JpqSet(Path("docs.jsonl"), questions="title", limit=5).split == "train"


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
