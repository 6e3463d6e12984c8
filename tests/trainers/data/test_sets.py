"""The data of a run: what trains, and what measures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from training_files import beir, write_lines

from opensearch_neural.errors import InputError
from trainers.common.sampling import Visit
from trainers.data.candidates import RetrievalData
from trainers.data.leaks import find_leaks
from trainers.data.loading import load_training
from trainers.data.sets import PreparedSets, prepare
from trainers.data.settings import DevSettings, SetSettings
from trainers.data.splits import hold_back, withholding
from trainers.data.texts import normalised


def prepared(train: list[SetSettings], tmp_path: Path, **changes: Any) -> PreparedSets:
    plain: dict[str, Any] = {"dev": [], "unseen": [], "selection": DevSettings(), "seed": 0, "folder": tmp_path}
    return prepare(train, **(plain | changes))


def test_two_sets_of_one_name_are_refused(tmp_path: Path, animals: Path) -> None:
    train, test = SetSettings(animals), SetSettings(animals, split="test")
    with pytest.raises(InputError, match="two train sets have the same name: animals, animals"):
        prepared([train, test], tmp_path)
    with pytest.raises(InputError, match="two dev sets have the same name: animals, animals"):
        prepared([train], tmp_path, dev=[test, train])
    measured = replace(test, name="animals-dev")
    held_back = DevSettings(hold_back=1)
    with pytest.raises(InputError, match="the dev set animals-dev has the name of a part that is held back"):
        prepared([train], tmp_path, dev=[measured], selection=held_back)
    both = prepared([train], tmp_path, dev=[replace(test, name="test")], selection=held_back)
    assert [dev.name for dev in both.dev] == ["test", "animals-dev"]


def test_a_held_back_part_shares_no_document_with_any_train_set(tmp_path: Path) -> None:
    documents = {f"d{n}": f"the document number {n}" for n in range(40)}
    queries = {f"{split}{n}": f"the {split} question {n}" for split in "ab" for n in range(40)}
    judged = {
        split: [(f"{split}{n}", f"d{n * step % 40}", 1) for n in range(40)] for split, step in (("a", 1), ("b", 7))
    }
    one_corpus = beir(tmp_path / "docs", documents, queries, judged)
    # The same texts, written otherwise, and one more as a hard negative.
    others = [
        {
            "query": f"another question {n}",
            "positive": f"The document, number {n}!",
            "negatives": [documents[f"d{39 - n}"]],
        }
        for n in range(20)
    ]
    pairs = write_lines(tmp_path / "pairs.jsonl", others)
    sets = [SetSettings(one_corpus, split="a", name="a"), SetSettings(one_corpus, split="b", name="b")]
    sets.append(SetSettings(pairs))
    data = prepared(sets, tmp_path, selection=DevSettings(hold_back=0.1))
    assert [len(part) for part in data.measured] == [4, 4, 2]
    for train in data.train:
        for part in data.measured:
            assert not find_leaks(train, part).of("document"), (train.name, part.name)
        held_back = {normalised(part.documents.text_at(row)) for part in data.measured for row in part.positives.values}
        withheld = {normalised(train.documents.text_at(row)) for row in train.withheld}
        assert withheld == held_back & {normalised(text) for text in train.documents.values()}
        assert len(withheld) >= len(held_back) - 2
        # Random documents fill up what is missing.
        drawn = RetrievalData([train], negatives=15, depth=1)
        visits = (drawn[Visit(index, epoch, 0, 1)] for epoch in range(4) for index in range(len(train)))
        assert not withheld & {normalised(train.documents.text_at(row)) for one in visits for row in one.negatives}
    assert any("examples left out, whose documents are in b-dev" in note for note in data.train[0].notes)
    assert any("hard negatives left out, which are in " in note for note in data.train[2].notes), data.train[2].notes


def test_sets_without_a_document_in_common_are_held_back_one_by_one(tmp_path: Path) -> None:
    def named(name: str) -> Path:
        asked = [{"query": f"{name} question {n}", "positive": f"{name} document {n}"} for n in range(20)]
        return write_lines(tmp_path / f"{name}.jsonl", asked)

    files = [named("one"), named("two")]
    data = prepared([SetSettings(file) for file in files], tmp_path, selection=DevSettings(hold_back=0.1))
    for train, file in zip(data.train, files, strict=True):
        alone, held = hold_back(load_training(file), 0.1)
        assert train.hash == withholding(alone, [held]).hash


@pytest.mark.parametrize("wrong", [{"queries": 0}, {"queries": -1}, {"documents": -1}])
def test_a_dev_set_of_no_size_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        DevSettings(**wrong)
