"""Several sets as one, and parts of one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_files import pairs, write_lines

from opensearch_neural.errors import InputError
from trainers.data.candidates import RetrievalData
from trainers.data.examples import TrainingData
from trainers.data.leaks import find_leaks
from trainers.data.loading import load_training
from trainers.data.splits import fewer_documents, hold_back, merge, withholding
from trainers.data.texts import normalised

SHARED = Path(os.environ.get("OSN_DATA", Path(__file__).parents[3] / ".." / "shared" / "data"))


def shares_nothing(train: TrainingData, dev: TrainingData) -> None:
    def texts(data: TrainingData) -> tuple[set[str], set[str]]:
        queries = {normalised(example.query) for example in data.examples}
        ids = [document for example in data.examples for document in (*example.positives, *example.negatives)]
        return queries, {normalised(data.documents[document]) for document in ids}

    for of_train, of_dev in zip(texts(train), texts(dev), strict=True):
        assert not of_train & of_dev


words = st.sampled_from([f"w{i}" for i in range(12)] + ["W3", "w4!"])


@given(st.lists(st.tuples(words, words, st.lists(words, max_size=3)), min_size=2, max_size=30), st.integers(0, 3))
@settings(deadline=None, max_examples=60)
def test_held_back_examples_share_no_query_and_no_document_with_train(rows: list, seed: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = pairs(Path(folder), "p", [(q, p) for q, p, _ in rows], [list(n) for *_, n in rows])
        data = load_training(path)
    if len(data) < 2:
        return
    try:
        train, dev = hold_back(data, 0.5, seed=seed)
    except InputError as error:
        assert "smallest part" in str(error)
        return
    assert len(train) + len(dev) == len(data)
    assert 0 < len(dev) <= round(len(data) / 2)
    shares_nothing(train, dev)


def test_held_back_parts_are_of_the_size_asked_for_and_follow_the_seed(tmp_path: Path) -> None:
    data = load_training(pairs(tmp_path, "p", [(f"q{i}", f"d{i}") for i in range(50)]))
    train, dev = hold_back(data, 0.2, seed=1)
    assert (len(train), len(dev)) == (40, 10)
    assert hold_back(data, 10, seed=1)[1].hash == dev.hash
    assert hold_back(data, 10, seed=2)[1].hash != dev.hash
    assert dev.name == "p-dev"
    with pytest.raises(InputError, match="cannot hold back 50 of 50"):
        hold_back(data, 50)
    with pytest.raises(InputError, match="nothing is left to train on"):
        hold_back(data.take([]), 0.2)


def test_a_share_of_few_examples_is_one_of_them(tmp_path: Path) -> None:
    data = load_training(pairs(tmp_path, "p", [(f"q{i}", f"d{i}") for i in range(11)]))
    assert len(hold_back(data, 0.02)[1]) == 1
    for none in (0.0, -0.1):
        with pytest.raises(InputError, match="cannot hold back"):
            hold_back(data, none)


def test_negatives_that_the_other_part_has_are_taken_out_and_counted(tmp_path: Path) -> None:
    data = load_training(pairs(tmp_path, "p", [("a", "x"), ("b", "y")], [["y", "z"], ["X", "z", "u"]]))
    train, dev = hold_back(data, 1, seed=0)
    shares_nothing(train, dev)
    assert any("1 hard negatives left out because dev has them" in note for note in train.notes)
    assert any("2 hard negatives left out because train has them" in note for note in dev.notes)


def test_examples_that_all_hang_together_cannot_be_split(tmp_path: Path) -> None:
    data = load_training(pairs(tmp_path, "p", [("a", "x"), ("b", "x"), ("c", "X!")]))
    with pytest.raises(InputError, match="smallest part that shares no document with the rest has 3"):
        hold_back(data, 1)


def test_new_questions_to_known_documents_are_held_back_where_only_questions_are_to_be_apart(tmp_path: Path) -> None:
    rows = [("a", "x"), ("b", "x"), ("c", "X!"), ("A?", "y")]
    data = load_training(pairs(tmp_path, "p", rows, [["z"]] * len(rows)))
    for seed in range(4):
        train, dev = hold_back(data, 2, seed=seed, apart="questions")
        assert len(train) == len(dev) == 2 and dev.name == "p-dev"
        asked = [{part.queries.canonical[row] for row in part.query_rows} for part in (train, dev)]
        assert not asked[0] & asked[1], "questions of one text stay together"
        assert sum(len(part.negatives.values) for part in (train, dev)) == 4, "a document may be in both"


def test_fewer_documents_are_those_that_examples_name_and_the_first_of_the_corpus(animals: Path) -> None:
    data = load_training(animals)
    few = fewer_documents(data, 1)
    named = {id for example in data.examples for id in (*example.positives, *example.negatives, *example.scores)}
    assert set(few.documents) == named | {data.documents.ids[0]}
    assert len(few.documents) < len(data.documents)
    assert few.examples[:] == data.examples[:]
    for query in few.query_texts():
        assert few.known_positives(query) == data.known_positives(query) & set(few.documents)
    assert fewer_documents(data, 10**6).hash == data.hash


def test_merged_sets_keep_their_examples_apart_by_prefix(tmp_path: Path) -> None:
    one = load_training(pairs(tmp_path, "one", [("a", "x"), ("b", "y")], [["y"]]))
    two = load_training(write_lines(tmp_path / "two.jsonl", [{"query": "a", "positive": "x", "scores": [0.5]}]))
    both = merge([one, two])

    assert [(r.name, r.start, r.stop) for r in both.sets] == [("one", 0, 2), ("two", 2, 3)]
    example = both.examples[2]
    assert example.query_id.startswith("two/")
    assert example.scores == {example.positives[0]: 0.5}
    assert both.documents[example.positives[0]] == "x"
    assert both.examples[0].negatives == (f"one/{one.examples[0].negatives[0]}",)
    assert both.known_positives(example.query_id) == {f"one/{one.examples[0].positives[0]}", example.positives[0]}
    with pytest.raises(InputError, match="same name"):
        merge([one, one])
    train, dev = hold_back(both, 0.34)
    assert len(train) + len(dev) == 3
    assert sum(r.stop - r.start for r in train.sets) == len(train)


def test_a_number_is_held_back_of_each_set(tmp_path: Path) -> None:
    def named(name: str, count: int) -> Path:
        asked = [{"query": f"{name} question {n}", "positive": f"{name} document {n}"} for n in range(count)]
        return write_lines(tmp_path / f"{name}.jsonl", asked)

    both = merge([load_training(named("many", 90)), load_training(named("few", 10))])
    for apart in ("documents", "questions"):
        train, dev = hold_back(both, 4, apart=apart)
        assert [(part.name, part.stop - part.start) for part in dev.sets] == [("many", 4), ("few", 4)]
        assert [(part.name, part.stop - part.start) for part in train.sets] == [("many", 86), ("few", 6)]
    assert len(hold_back(both, 0.1)[1]) == 10
    with pytest.raises(InputError, match="few: cannot hold back 10 of 10 examples"):
        hold_back(both, 10)


def test_what_is_withheld_follows_its_documents_and_counts_as_other_data(animals: Path, tmp_path: Path) -> None:
    data = load_training(animals)
    others = load_training(pairs(tmp_path, "others", [("who purrs", "CATS purr."), ("who barks", "wolves")]))

    def withheld(train: TrainingData) -> list[str]:
        return [train.documents.ids[row] for row in train.withheld]

    assert data.hash == withholding(data, []).hash
    train = withholding(data, [others])
    assert withheld(train) == ["d1", "d4"], "by normalised text"
    assert withheld(withholding(train, [data.take([1])])) == ["d1", "d2", "d4"]
    assert train.hash != data.hash
    assert withheld(fewer_documents(train, 1)) == ["d1"]
    assert withheld(merge([others, train])) == ["animals/d1", "animals/d4"]
    # What is no negative changes no training that draws none.
    hashes = [RetrievalData([each], negatives=0, depth=1).hash for each in (data, train)]
    assert hashes[0] == hashes[1] != RetrievalData([train], negatives=1, depth=1).hash


@pytest.mark.skipif(not (SHARED / "tldr").is_dir(), reason="the data sets for quality checks are not here")
def test_real_data_loads_splits_and_shows_its_known_leaks() -> None:
    data = load_training(SHARED / "tldr")
    assert (len(data), len(data.documents)) == (7306, 6825)
    train, dev = hold_back(data, 0.1)
    assert len(dev) == 731
    shares_nothing(train, dev)
    leaks = find_leaks(data, load_training(SHARED / "tldr", split="test"))
    assert len(leaks.of("query")) == 131
