from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opensearch_neural.errors import InputError
from trainers.data.examples import (
    SetRange,
    TrainingData,
    draw_batches,
    fewer_documents,
    formats,
    hold_back,
    known_positive_mask,
    load_training,
    merge,
    sample_candidates,
)
from trainers.data.leaks import find_leaks, without_leaks
from trainers.data.texts import TextStore, normalised

SHARED = Path(os.environ.get("OSN_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))


def write_lines(path: Path, values: list[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(value) + "\n" for value in values)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def beir(folder: Path, documents: dict[str, str], queries: dict[str, str], qrels: dict[str, list[tuple]]) -> Path:
    write_lines(
        folder / "corpus.jsonl.gz", [{"_id": key, "title": "", "text": text} for key, text in documents.items()]
    )
    write_lines(folder / "queries.jsonl.gz", [{"_id": key, "text": text} for key, text in queries.items()])
    (folder / "qrels").mkdir()
    for split, rows in qrels.items():
        text = "query-id\tcorpus-id\tscore\n" + "".join("\t".join(map(str, row)) + "\n" for row in rows)
        (folder / "qrels" / f"{split}.tsv").write_text(text)
    return folder


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    documents = {"d1": "cats purr", "d2": "dogs bark", "d3": "birds sing", "d4": "Cats purr!", "d5": "fish swim"}
    queries = {"q1": "what purrs", "q2": "what barks", "q3": "what sings", "q4": "what swims"}
    qrels = {
        "train": [("q1", "d1", 1), ("q2", "d2", 2), ("q2", "d3", 0), ("q3", "d3", 1)],
        "test": [("q4", "d5", 1), ("q3", "d3", 1)],
    }
    return beir(tmp_path / "animals", documents, queries, qrels)


def pairs(tmp_path: Path, name: str, rows: list[tuple[str, str]], negatives: list[list[str]] | None = None) -> Path:
    values = [{"query": q, "positive": p} for q, p in rows]
    for value, texts in zip(values, negatives or [], strict=False):
        value["negatives"] = texts
    return write_lines(tmp_path / f"{name}.jsonl", values)


# ------------------------------------------------------------------------------------------------ reading


def test_a_beir_folder_gives_one_example_a_query_with_its_judged_irrelevant_documents_as_negatives(
    animals: Path,
) -> None:
    data = load_training(animals)

    assert [example.query_id for example in data.examples] == ["q1", "q2", "q3"]
    assert data.examples[1].query == "what barks"
    assert data.examples[1].positives == ("d2",)
    assert data.examples[1].negatives == ("d3",)
    assert data.documents["d1"] == "cats purr"
    assert data.qrels() == {"q1": {"d1": 1}, "q2": {"d2": 1}, "q3": {"d3": 1}}
    assert data.query_texts()["q3"] == "what sings"
    assert data.notes == ["animals: 1 documents judged not relevant are taken as hard negatives"]


def test_known_positives_include_documents_of_the_same_text(animals: Path) -> None:
    assert load_training(animals).known_positives("q1") == {"d1", "d4"}
    assert load_training(animals).known_positives("q2") == {"d2"}


def test_judgements_of_unknown_documents_are_counted_and_named(tmp_path: Path) -> None:
    documents = {f"d{i}": f"text {i}" for i in range(10)}
    queries = {f"q{i}": f"query {i}" for i in range(10)}
    rows = [(f"q{i}", f"d{i}", 1) for i in range(9)] + [("q9", "gone", 1)]
    data = load_training(beir(tmp_path / "set", documents, queries, {"train": rows}))

    assert len(data) == 9
    assert len(data.notes) == 1
    assert "train.tsv: 1 references name 1 documents that the data does not hold ('gone')" in data.notes[0]


def test_judgements_of_another_corpus_are_refused(tmp_path: Path) -> None:
    rows = [(f"q{i}", f"x{i}", 1) for i in range(9)]
    folder = beir(tmp_path / "set", {"d": "text"}, {f"q{i}": f"query {i}" for i in range(9)}, {"train": rows})
    with pytest.raises(InputError, match=r"train\.tsv: 9 references name 9 documents.*first: 'x0', 'x1', 'x2'"):
        load_training(folder)


def test_judgements_most_of_whose_documents_are_unknown_are_refused_though_some_are_known(tmp_path: Path) -> None:
    rows = [(f"q{i}", "d" if i < 3 else f"x{i}", 1) for i in range(9)]
    folder = beir(tmp_path / "set", {"d": "text"}, {f"q{i}": f"query {i}" for i in range(9)}, {"train": rows})
    with pytest.raises(InputError, match="6 references name 6 documents"):
        load_training(folder)


def test_a_split_that_is_not_there_is_refused_with_those_that_are(animals: Path) -> None:
    with pytest.raises(InputError, match="dev") as caught:
        load_training(animals, split="dev")
    assert "test" in str(caught.value)
    assert "train" in str(caught.value)


def test_dpr_json_is_read_with_titles_ids_and_hard_negatives_only(tmp_path: Path) -> None:
    entries = [
        {
            "question": "who wrote it",
            "answers": ["her"],
            "positive_ctxs": [{"title": "Book", "text": "She wrote it.", "passage_id": "7"}],
            "negative_ctxs": [{"title": "Easy", "text": "easy", "passage_id": "8"}],
            "hard_negative_ctxs": [{"title": "Film", "text": "He filmed it.", "psg_id": 9}],
        },
        {
            "question": "what else",
            "positive_ctxs": [{"title": "", "text": "That."}],
            "negative_ctxs": [{"text": "easy"}],
            "hard_negative_ctxs": [],
        },
    ]
    path = tmp_path / "nq.json"
    path.write_text(json.dumps(entries, indent=1))
    data = load_training(path)

    assert data.examples[0].positives == ("7",)
    assert data.examples[0].negatives == ("9",)
    assert data.documents["7"] == "Book She wrote it."
    assert [data.documents[one] for one in data.examples[1].positives + data.examples[1].negatives] == ["That.", "easy"]


@given(
    st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=9) | st.integers(), max_size=3), max_size=8),
    st.none() | st.just(1),
)
@settings(deadline=None)
def test_a_json_array_is_streamed_whatever_the_size_of_the_pieces(entries: list[dict], indent: int | None) -> None:
    text = json.dumps(entries, indent=indent)
    for size in (1, 7, 1000):
        pieces = (text[start : start + size] for start in range(0, len(text), size))
        assert [value for _, value in formats.parse_json_array(pieces, "array")] == entries


def test_a_json_array_that_is_cut_off_says_after_which_entry(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text('[{"question": "a", "positive_ctxs": []}, {"question": "b", "pos')
    with pytest.raises(InputError, match=r"cut\.json, after entry 1"):
        load_training(path)


def test_text_triples_of_one_query_become_one_example(tmp_path: Path) -> None:
    path = tmp_path / "triples.tsv"
    path.write_text("q\tgood\tbad\nq\tgood\tworse\nother\tbad\tgood\nq\tbest\tbad\n")
    data = load_training(path)

    assert len(data) == 2
    texts = [[data.documents[one] for one in ids] for ids in (data.examples[0].positives, data.examples[0].negatives)]
    assert texts == [["good", "best"], ["bad", "worse"]]
    assert len(data.documents) == 4


def test_triples_by_id_take_their_texts_from_collection_and_queries(tmp_path: Path) -> None:
    (tmp_path / "collection.tsv").write_text("0\tzero\n1\tone\n2\ttwo\n")
    (tmp_path / "queries.train.tsv").write_text("10\tten\n11\televen\n")
    path = tmp_path / "qidpidtriples.tsv"
    path.write_text("10\t0\t1\n11\t2\t0\n10\t0\t2\n11\t99\t1\n")
    data = load_training(path, corpus=tmp_path / "collection.tsv", queries=tmp_path / "queries.train.tsv")

    assert data.examples[0].query == "ten"
    assert data.examples[0].negatives == ("1", "2")
    assert "'99'" in data.notes[0]
    with pytest.raises(InputError, match="both the corpus and the queries"):
        load_training(path, corpus=tmp_path / "collection.tsv")


def test_a_triple_with_a_missing_column_is_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "triples.tsv"
    path.write_text("q\tgood\tbad\nq\tgood\n")
    with pytest.raises(InputError, match=r"triples\.tsv, line 2: expected 3 columns.*found 2"):
        load_training(path)


def test_every_shape_of_sentence_transformers_lines_is_read(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "mixed.jsonl.gz",
        [
            {"anchor": "a", "positive": "p1", "negative": "n1"},
            {"query": "b", "pos": ["p2", "p3"], "neg": ["n2", "n3"], "scores": [4, 3.5, 1, 0]},
            {"question": "c", "positive": "p4", "negative_2": "n5", "negative_1": "n4", "negative_10": "n6"},
            ["d", "p5", "n7"],
        ],
    )
    data = load_training(path)

    def texts(ids: tuple[str, ...]) -> list[str]:
        return [data.documents[one] for one in ids]

    assert [(e.query, texts(e.positives), texts(e.negatives)) for e in data.examples] == [
        ("a", ["p1"], ["n1"]),
        ("b", ["p2", "p3"], ["n2", "n3"]),
        ("c", ["p4"], ["n4", "n5", "n6"]),
        ("d", ["p5"], ["n7"]),
    ]
    assert {data.documents[one]: score for one, score in data.examples[1].scores.items()} == {
        "p2": 4,
        "p3": 3.5,
        "n2": 1,
        "n3": 0,
    }


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"positive": "p"}, "a text in one of query, anchor"),
        ({"query": "q", "positive": 3}, "a list of texts in one of positive"),
        ({"query": "q", "positive": "p", "negative": "n", "scores": [1.0]}, "1 scores for 2 documents"),
        ({"query": "q", "positive": "p", "scores": ["high"]}, "expected numbers"),
        ({"query": " ", "positive": "p"}, "the query is empty"),
        ({"query": "q", "positive": " "}, "a document is empty"),
        (["q"], "a list of texts"),
        ("q", "an object or a list"),
    ],
)
def test_a_bad_line_is_named_with_file_line_and_field(tmp_path: Path, value: object, message: str) -> None:
    path = write_lines(tmp_path / "bad.jsonl", [{"query": "fine", "positive": "fine"}, value])
    with pytest.raises(InputError, match=message) as caught:
        load_training(path)
    assert f"{path}, line 2" in str(caught.value)


def test_invalid_json_and_unknown_kinds_of_files_are_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('["q", "p"]\n{"query": \n')
    with pytest.raises(InputError, match=r"bad\.jsonl, line 2: not valid JSON"):
        load_training(bad)
    with pytest.raises(InputError, match="does not exist"):
        load_training(tmp_path / "nothing.jsonl")
    (tmp_path / "data.bin").write_bytes(b"x")
    with pytest.raises(InputError, match="does not say what kind"):
        load_training(tmp_path / "data.bin")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError, match="no training example"):
        load_training(tmp_path / "empty.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'["caf\xe9", "p"]\n')
    with pytest.raises(InputError, match=r"latin\.jsonl, line 1: not UTF-8"):
        load_training(tmp_path / "latin.jsonl")


def test_generated_queries_become_pairs_with_the_passage_they_came_from(animals: Path, tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "generated.jsonl",
        [
            {"osn": "generated-queries", "format": 1},
            {"_id": "d1", "queries": [{"text": "purring pets", "logprob": -1.0}, {"text": "cat sounds"}]},
            {"_id": "d2", "queries": [{"text": "barking"}]},
        ],
    )
    data = load_training(path, corpus=animals)
    assert [(e.query_id, e.query, e.positives) for e in data.examples] == [
        ("d1#0", "purring pets", ("d1",)),
        ("d1#1", "cat sounds", ("d1",)),
        ("d2#0", "barking", ("d2",)),
    ]
    with pytest.raises(InputError, match="give the corpus"):
        load_training(path)


# ------------------------------------------------------------------------------------------------ identity


def test_the_hash_follows_the_content_and_nothing_else(tmp_path: Path) -> None:
    first = pairs(tmp_path, "one", [("a", "x"), ("b", "y")])
    same = pairs(tmp_path, "two", [("a", "x"), ("b", "y")])
    other = pairs(tmp_path, "three", [("a", "x"), ("b", "z")])
    swapped = pairs(tmp_path, "four", [("a", "y"), ("b", "x")])
    assert load_training(first).hash == load_training(same).hash
    assert len({load_training(path).hash for path in (first, other, swapped)}) == 3
    assert load_training(first, limit=1).hash != load_training(first).hash
    # A part keeps the stores of the whole, so what was cached for these stays valid.
    assert load_training(first, limit=1).documents.hash == load_training(first).documents.hash


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


# ------------------------------------------------------------------------------------------------ splits


def shares_nothing(train: TrainingData, dev: TrainingData) -> None:
    def texts(data: TrainingData) -> tuple[set[str], set[str]]:
        queries = {normalised(example.query) for example in data.examples}
        ids = [one for example in data.examples for one in (*example.positives, *example.negatives)]
        return queries, {normalised(data.documents[one]) for one in ids}

    for one, other in zip(texts(train), texts(dev), strict=True):
        assert not one & other


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
        asked = [{part.queries.canonical()[row] for row in part.query_rows} for part in (train, dev)]
        assert not asked[0] & asked[1], "questions of one text stay together"
        assert sum(len(part.negatives.values) for part in (train, dev)) == 4, "a document may be in both"


# ------------------------------------------------------------------------------------------------ leaks


def test_leaks_name_questions_and_documents_by_exact_and_normalised_text(tmp_path: Path) -> None:
    train = load_training(
        pairs(tmp_path, "train", [("who?", "the owl"), ("what", "the cat"), ("why", "so")], [["The ANSWER"]])
    )
    test = load_training(
        pairs(tmp_path, "test", [("Who", "the dog"), ("what", "the answer"), ("where", "the owl"), ("when", "now")])
    )
    leaks = find_leaks(train, test)

    found = {(leak.kind, leak.match, leak.role, leak.text) for leak in leaks.found}
    assert found == {
        ("query", "normalised", "query", "Who"),
        ("query", "exact", "query", "what"),
        ("document", "exact", "positive", "the owl"),
        ("document", "normalised", "negative", "the answer"),
    }
    assert "2 of 4 test questions of test are in train (1 exactly, 1 by normalised text)" in leaks.report()
    assert repr(test.examples[0].query_id) in leaks.report()
    with pytest.raises(InputError, match="2 of 4 test questions"):
        leaks.refuse()

    clean = without_leaks(train, leaks)
    assert [example.query for example in clean.examples] == ["why"]
    find_leaks(clean, test).refuse()


def test_sets_without_leaks_pass(tmp_path: Path) -> None:
    train = load_training(pairs(tmp_path, "train", [("a", "x")]))
    test = load_training(pairs(tmp_path, "test", [("b", "y")]))
    find_leaks(train, test).refuse(documents=True)
    assert without_leaks(train, find_leaks(train, test)).hash == train.hash


# ------------------------------------------------------------------------------------------------ merging and drawing


def test_fewer_documents_are_those_that_examples_name_and_the_first_of_the_corpus(animals: Path) -> None:
    data = load_training(animals)
    few = fewer_documents(data, 1)
    named = {id for one in data.examples for id in (*one.positives, *one.negatives, *one.scores)}
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
        assert [(one.name, one.stop - one.start) for one in dev.sets] == [("many", 4), ("few", 4)]
        assert [(one.name, one.stop - one.start) for one in train.sets] == [("many", 86), ("few", 6)]
    assert len(hold_back(both, 0.1)[1]) == 10
    with pytest.raises(InputError, match="few: cannot hold back 10 of 10 examples"):
        hold_back(both, 10)


def ranges(*sizes: int) -> list[SetRange]:
    stops = np.cumsum(sizes).tolist()
    return [SetRange(str(i), stop - size, stop, 0, 1) for i, (stop, size) in enumerate(zip(stops, sizes, strict=True))]


@given(st.lists(st.integers(0, 25), min_size=1, max_size=4), st.integers(1, 8), st.integers(0, 5))
def test_every_batch_comes_from_one_set_and_no_example_twice(sizes: list[int], batch_size: int, epoch: int) -> None:
    sets = ranges(*sizes)
    if not sum(sizes):
        return
    batches = list(draw_batches(sets, batch_size, seed=3, epoch=epoch))
    assert batches == list(draw_batches(sets, batch_size, seed=3, epoch=epoch))
    for batch in batches:
        assert len({next(s.name for s in sets if s.start <= index < s.stop) for index in batch}) == 1
    counts = Counter(index for batch in batches for index in batch)
    assert max(counts.values()) == 1
    for one in sets:
        size = one.stop - one.start
        drawn = sum(counts[index] for index in range(one.start, one.stop))
        assert drawn == (size if size < batch_size else size - size % batch_size)


def test_batches_differ_by_epoch_and_follow_the_weights() -> None:
    sets = ranges(4000, 400)
    assert list(draw_batches(sets, 4, seed=0, epoch=0)) != list(draw_batches(sets, 4, seed=0, epoch=1))

    def share_of_small(weights: object) -> float:
        drawn = list(draw_batches(sets, 4, seed=0, epoch=0, weights=weights))  # type: ignore[arg-type]
        assert len(drawn) == 1100
        return sum(batch[0] >= 4000 for batch in drawn) / len(drawn)

    assert share_of_small(None) == pytest.approx(1 / 11)
    assert share_of_small([1, 1]) == pytest.approx(0.5, abs=0.05)
    assert share_of_small(0.5) == pytest.approx(20 / (20 + 63.2), abs=0.05)
    assert share_of_small([0, 1]) == 1
    with pytest.raises(InputError, match="expected 2 weights"):
        share_of_small([1])


def test_candidates_come_from_the_top_and_are_filled_with_documents_not_known_to_be_relevant(animals: Path) -> None:
    data = load_training(animals)
    for seed in range(30):
        positive, negatives = sample_candidates(data, 0, 3, rng=random.Random(seed))
        assert positive == "d1"
        # d4 has the text of d1, so it is never a negative of q1.
        assert sorted(negatives) == ["d2", "d3", "d5"]
        assert sample_candidates(data, 1, 1, rng=random.Random(seed)) == ("d2", ["d3"])
    with pytest.raises(InputError, match="too few documents for 4 negatives"):
        sample_candidates(data, 0, 4, rng=random.Random(0))


def test_only_the_first_hard_negatives_within_depth_are_drawn(tmp_path: Path) -> None:
    path = pairs(tmp_path, "p", [("q", "good")], [[f"n{i}" for i in range(20)]])
    data = load_training(path)
    drawn = {
        data.documents[one]
        for seed in range(50)
        for one in sample_candidates(data, 0, 2, rng=random.Random(seed), depth=3)[1]
    }
    assert drawn == {"n0", "n1", "n2"}


def test_the_mask_marks_other_queries_positives_that_are_known_to_answer_too(tmp_path: Path) -> None:
    data = load_training(
        write_lines(
            tmp_path / "p.jsonl",
            [
                {"query": "list jobs", "positive": "jobs -l"},
                {"query": "List jobs.", "positive": "queue"},
                {"query": "stop", "positive": ["kill", "halt"], "negative": "JOBS -L"},
            ],
        )
    )
    queries = [example.query_id for example in data.examples]
    documents = [one for example in data.examples for one in (*example.positives, *example.negatives)]
    assert [data.documents[one] for one in documents] == ["jobs -l", "queue", "kill", "halt", "JOBS -L"]
    assert known_positive_mask(data, queries, documents).tolist() == [
        [True, True, False, False, True],
        [True, True, False, False, True],
        [False, False, True, True, False],
    ]


# ------------------------------------------------------------------------------------------------ on real data


@pytest.mark.skipif(not (SHARED / "tldr").is_dir(), reason="the data sets for quality checks are not here")
def test_real_data_loads_splits_and_shows_its_known_leaks() -> None:
    data = load_training(SHARED / "tldr")
    assert (len(data), len(data.documents)) == (7306, 6825)
    train, dev = hold_back(data, 0.1)
    assert len(dev) == 731
    shares_nothing(train, dev)
    leaks = find_leaks(data, load_training(SHARED / "tldr", split="test"))
    assert len(leaks.of("query")) == 131
