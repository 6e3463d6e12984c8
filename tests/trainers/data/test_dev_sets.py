"""What dev and test measures count as a hit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from training_files import beir

from opensearch_neural.retrievers import Run
from trainers.data.dev_sets import corpus_measures, dev_measures, dev_set
from trainers.data.loading import load_training
from trainers.data.splits import merge


@pytest.fixture
def duplicates(tmp_path: Path) -> Path:
    """Questions that are documents, as in Quora: "b" is judged relevant to itself, the id "x" is shared by chance."""
    documents = {
        "a": "how do cats purr",
        "b": "do dogs bark",
        "c": "why cats purr",
        "d": "How do cats purr?",
        "x": "dogs",
    }
    queries = {"a": "How do cats purr", "b": "do dogs bark", "x": "why do cats bark"}
    return beir(tmp_path / "duplicates", documents, queries, {"train": [("a", "c", 1), ("b", "b", 1), ("x", "c", 1)]})


def in_order(queries: Mapping[str, str], documents: Mapping[str, str]) -> Run:
    """Every query finds its own document first, then "c"."""
    return {query: {document: 1.0 / (1 + at) for at, document in enumerate([query, "c"])} for query in queries}


def test_a_query_that_is_a_document_is_no_hit_of_itself_on_dev(duplicates: Path) -> None:
    """`osn eval` leaves it out, too: it would stand first, before what is to be found."""
    data = load_training(duplicates)
    assert {data.queries.ids[query]: data.documents.ids[row] for query, row in data.own_documents.items()} == {"a": "a"}
    dev = dev_set(data, queries=3, documents=5, seed=0)
    # Of three, "x" alone finds another document before the relevant one.
    assert dev_measures([dev], in_order)["RR@10"] == pytest.approx((1 + 1 + 0.5) / 3)


def test_it_is_not_relevant_either_if_it_reads_as_a_relevant_document_does(tmp_path: Path) -> None:
    documents = {"a": "how do cats purr", "d": "How do cats purr?", "e": "fish swim"}
    data = load_training(beir(tmp_path / "copies", documents, {"a": "how do cats purr"}, {"train": [("a", "d", 1)]}))
    assert dev_set(data, queries=1, documents=3, seed=0).qrels == {"a": {"d": 1}}


def test_measures_over_a_whole_corpus_leave_it_out_too(duplicates: Path) -> None:
    # BM25 finds "a" and "d" for the question "a"; without "a", "d" and "c" are left.
    per_query = corpus_measures("bm25", load_training(duplicates)).per_query["RR@10"]
    assert per_query["a"] == 0.5 and per_query["b"] == 1.0


def test_own_documents_are_known_in_merged_sets_of_one_corpus(duplicates: Path) -> None:
    both = merge([load_training(duplicates, name="one"), load_training(duplicates, name="two")])
    own = {both.queries.ids[query]: both.documents.ids[row] for query, row in both.own_documents.items()}
    assert own == {"one/a": "one/a", "two/a": "one/a"}
