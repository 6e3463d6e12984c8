"""Training data: formats, what is refused, and real files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_files import beir, pairs, write_lines

from opensearch_neural.errors import InputError
from trainers.data import formats
from trainers.data.loading import load_training


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


def test_a_long_id_is_shortened_in_a_message(tmp_path: Path) -> None:
    rows = [("q", "d", 1), ("q", "x" * 5000, 1)]
    data = load_training(beir(tmp_path / "set", {"d": "text"}, {"q": "query"}, {"train": rows}))
    assert f"('{'x' * 59}…')" in data.notes[0]


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


def test_a_split_of_a_file_is_refused(tmp_path: Path) -> None:
    """It was not looked at: a set `{path: pairs.jsonl, split: test}` was the whole file, training questions and all."""
    write_lines(tmp_path / "pairs.jsonl", [{"query": "who barks", "positive": "dogs"}])
    with pytest.raises(InputError, match=r"pairs\.jsonl has no split 'test'"):
        load_training(tmp_path / "pairs.jsonl", split="test")


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


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"positive_ctxs": 5}, "a list in 'positive_ctxs'"),
        ({"positive_ctxs": [{"text": "That.", "title": 5}]}, "a text as 'title' in every object of 'positive_ctxs'"),
        ({"positive_ctxs": [{"text": "That."}], "negative_ctxs": True}, "a list in 'negative_ctxs'"),
    ],
)
def test_an_entry_of_dpr_with_another_kind_of_value_is_named(tmp_path: Path, entry: dict, message: str) -> None:
    (tmp_path / "nq.json").write_text(json.dumps([{"question": "what else", **entry}]))
    with pytest.raises(InputError, match=rf"nq\.json, entry 1: expected {message}"):
        load_training(tmp_path / "nq.json")


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5000])
def test_json_that_python_does_not_read_is_named(tmp_path: Path, value: str) -> None:
    (tmp_path / "deep.jsonl").write_text(f'{{"query": {value}\n')
    with pytest.raises(InputError, match=r"deep\.jsonl, line 1: not valid JSON"):
        load_training(tmp_path / "deep.jsonl")
    (tmp_path / "deep.json").write_text(f'[{{"question": {value}')
    with pytest.raises(InputError, match=r"deep\.json, entry 1: not valid JSON"):
        load_training(tmp_path / "deep.json")


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


def test_triples_by_id_are_not_taken_for_texts(tmp_path: Path) -> None:
    path = tmp_path / "qidpidtriples.tsv"
    path.write_text("10\t0\t1\n11\tMED-1\tMED-2\n")
    with pytest.raises(
        InputError, match=r"(?s)qidpidtriples\.tsv names its passages by id.*give `corpus` and `queries`"
    ):
        load_training(path)
    for texts in ("10\tMED 1\tMED-2\n", "10\tgood\tMED-2\n"):
        path.write_text(texts)
        assert len(load_training(path)) == 1


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
        ({"query": "q", "positive": "p", "scores": [10**400]}, "expected numbers"),
        ({"query": "q", "positive": "p", "scores": [math.nan]}, r"bad\.jsonl, line 2: NaN is not JSON: write a number"),
        ({"query": "q", "positive": "p", "scores": [-math.inf]}, r"bad\.jsonl, line 2: -Infinity is not JSON"),
        ({"query": "q", "positive": "p", "negative_²": "n", "negative_2": 3}, "a list of texts in negative_2"),
    ],
)
def test_a_bad_line_is_named_with_file_line_and_field(tmp_path: Path, value: object, message: str) -> None:
    path = write_lines(tmp_path / "bad.jsonl", [{"query": "fine", "positive": "fine"}, value])
    with pytest.raises(InputError, match=message) as caught:
        load_training(path)
    assert f"{path}, line 2" in str(caught.value)


def test_a_score_beyond_all_numbers_is_none(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"query": "q", "positive": "p", "scores": [1e999]}\n')
    with pytest.raises(InputError, match=r"bad\.jsonl, line 1: expected numbers"):
        load_training(path)


def test_labels_decide_which_documents_are_relevant(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "labelled.jsonl",
        [
            {"query": "cats", "positive": "purr", "label": 1},
            {"query": "cats", "document": "bark", "label": 0},
            {
                "query": "dogs",
                "positive": ["meow", "bark"],
                "negative": "wag",
                "labels": [0, 1, 2],
                "scores": [1, 2, 3],
            },
            {"query": "fish", "positive": "purr", "label": 0},
        ],
    )
    data = load_training(path)
    texts = {
        example.query: tuple(
            [data.documents[document] for document in of] for of in (example.positives, example.negatives)
        )
        for example in data.examples
    }
    assert texts == {"cats": (["purr"], ["bark"]), "dogs": (["bark", "wag"], ["meow"])}
    scores = {data.documents[document]: score for document, score in data.example(1).scores.items()}
    assert scores == {"meow": 1.0, "bark": 2.0, "wag": 3.0}
    assert data.notes == ["labelled: 1 queries without a relevant document left out"]


@pytest.mark.parametrize("label", [0.7, -1, "1", True, [1, 0]])
def test_a_label_that_is_no_integer_is_refused(tmp_path: Path, label: object) -> None:
    path = write_lines(tmp_path / "bad.jsonl", [{"query": "cats", "positive": "purr", "label": label}])
    with pytest.raises(InputError, match=r"bad\.jsonl, line 1: "):
        load_training(path)


def test_invalid_json_and_unknown_kinds_of_files_are_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('["q", "p"]\n{"query": \n')
    with pytest.raises(InputError, match=r"bad\.jsonl, line 2: not valid JSON"):
        load_training(bad)
    with pytest.raises(InputError, match="does not exist"):
        load_training(tmp_path / "nothing.jsonl")
    with pytest.raises(InputError, match=r"gs://bucket/pairs\.jsonl is an address"):
        load_training("gs://bucket/pairs.jsonl")
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


@pytest.mark.parametrize("field", ["corpus", "queries"])
def test_a_corpus_beside_data_that_holds_its_own_texts_is_refused(animals: Path, tmp_path: Path, field: str) -> None:
    """It was not read: `osn data mine pairs.jsonl --corpus …` took negatives from the pairs' own documents."""
    write_lines(tmp_path / "pairs.jsonl", [{"query": "who barks", "positive": "dogs"}])
    (tmp_path / "dpr.json").write_text('[{"question": "who barks", "positive_ctxs": [{"text": "dogs"}]}]')
    for path in (tmp_path / "pairs.jsonl", tmp_path / "dpr.json", animals):
        with pytest.raises(InputError, match=rf"{path.name} holds its own texts"):
            load_training(path, **{field: animals})  # type: ignore[arg-type]


def test_queries_beside_generated_ones_are_refused(animals: Path, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "g.jsonl", [{"_id": "d1", "queries": [{"text": "purring"}]}])
    assert len(load_training(path, corpus=animals)) == 1
    with pytest.raises(InputError, match="holds its own queries"):
        load_training(path, corpus=animals, queries=animals)


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
