"""Questions and documents that two sets share."""

from __future__ import annotations

from pathlib import Path

from training_files import pairs

from trainers.data.leaks import find_leaks, without_questions_of
from trainers.data.loading import load_training


def test_leaks_name_questions_and_documents_by_exact_and_normalised_text(tmp_path: Path) -> None:
    train = load_training(
        pairs(tmp_path, "train", [("who?", "the owl"), ("what", "the cat"), ("why", "so")], [["The ANSWER"]])
    )
    test = load_training(
        pairs(tmp_path, "test", [("Who", "the dog"), ("what", "the answer"), ("where", "the owl"), ("when", "now")])
    )
    leaks = find_leaks(train, test)

    described = {(leak.kind, leak.match, leak.role, leak.text) for leak in leaks.leaks}
    assert described == {
        ("query", "normalised", "query", "Who"),
        ("query", "exact", "query", "what"),
        ("document", "exact", "positive", "the owl"),
        ("document", "normalised", "negative", "the answer"),
    }
    assert "2 of 4 test questions of test are in train (1 exactly, 1 by normalised text)" in leaks.report()
    assert repr(test.examples[0].query_id) in leaks.report()

    clean = without_questions_of(train, [test])
    assert [example.query for example in clean.examples] == ["why"]
    assert not find_leaks(clean, test).of("query")


def test_sets_without_leaks_pass(tmp_path: Path) -> None:
    train = load_training(pairs(tmp_path, "train", [("a", "x")]))
    test = load_training(pairs(tmp_path, "test", [("b", "y")]))
    leaks = find_leaks(train, test)
    assert not leaks.leaks and without_questions_of(train, [test]).hash == train.hash
