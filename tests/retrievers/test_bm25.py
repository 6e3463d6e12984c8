from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from opensearch_neural import queries
from opensearch_neural.errors import InputError
from opensearch_neural.retrievers.bm25 import BM25Retriever
from opensearch_neural.retrievers.opensearch import OpenSearchRetriever

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

IDS = ["a", "b", "c"]
TEXTS = ["cats and dogs", "the cat", "birds, birds; fish"]


def test_scores_are_those_of_lucene_worked_out_by_hand() -> None:
    # Tokens after stop words and stemming: [cat dog], [cat], [bird bird fish]; average length (2 + 1 + 3) / 3 = 2.
    # cat: df 2, idf = ln(1 + (3 - 2 + 0.5) / (2 + 0.5)) = ln 1.6. bird: df 1, idf = ln(1 + 2.5 / 1.5) = ln(8/3).
    run = BM25Retriever(IDS, TEXTS).retrieve({"q": "cat bird"}, k=10)
    by_hand = {
        "a": math.log(1.6) * 1 / (1 + 1.2 * (0.25 + 0.75 * 2 / 2)),
        "b": math.log(1.6) * 1 / (1 + 1.2 * (0.25 + 0.75 * 1 / 2)),
        "c": math.log(8 / 3) * 2 / (2 + 1.2 * (0.25 + 0.75 * 3 / 2)),
    }
    assert run["q"] == pytest.approx(by_hand, rel=1e-5)
    assert list(run["q"]) == ["c", "b", "a"]


def test_a_query_token_that_is_repeated_counts_twice_as_in_lucene() -> None:
    retriever = BM25Retriever(IDS, TEXTS)
    run = retriever.retrieve({"once": "dog", "twice": "dog dogs"}, k=10)
    assert run["twice"]["a"] == pytest.approx(2 * run["once"]["a"])


def test_documents_without_a_token_of_the_query_are_not_returned() -> None:
    run = BM25Retriever(IDS, TEXTS).retrieve(
        {"stop words": "the and", "unknown": "zebra", "empty": "", "dog": "dog"}, 3
    )
    assert run == {"stop words": {}, "unknown": {}, "empty": {}, "dog": {"a": pytest.approx(0.4458, abs=1e-4)}}


def test_more_hits_than_documents_may_be_asked_for_and_ties_go_by_id() -> None:
    run = BM25Retriever(["z", "10", "9"], ["same words", "same words", "same words"]).retrieve({"q": "same"}, k=1000)
    assert list(run["q"]) == ["10", "9", "z"]
    cut = BM25Retriever(["z", "10", "9"], ["same words", "same words", "same words"]).retrieve({"q": "same"}, k=2)
    assert list(cut["q"]) == ["10", "9"]


def test_an_empty_document_is_indexed_and_never_found() -> None:
    run = BM25Retriever(["full", "empty"], ["word", ""]).retrieve({"q": "word"}, k=5)
    assert list(run["q"]) == ["full"]


def test_no_queries_give_an_empty_run() -> None:
    assert BM25Retriever(IDS, TEXTS).retrieve({}, k=5) == {}


@pytest.mark.parametrize(
    ("ids", "texts", "message"),
    [
        (["a"], ["one", "two"], "1 ids for 2 texts"),
        ([], [], "nothing to index"),
        (["a"], ["the of"], "nothing to index"),
        (["a", "a"], ["x y", "y z"], "more than once"),
    ],
)
def test_what_cannot_be_indexed_is_refused(ids: list[str], texts: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        BM25Retriever(ids, texts)


SENTENCES = {
    "english": [
        "The owner's dogs were running through technologies of the city.",
        "A dog possibly owns nothing; it ran, and runs, and is running.",
        "Cities and their technology: owners of houses, houses of owners.",
        "Nothing is as it was.",
    ],
    "german": [
        "Die Häuser der Städte waren größer als die Straßen.",
        "Ein Haus in der Stadt, ein Häuschen auf dem Land, und alle Häuser.",
        "Das Wasser der Flüsse fließt durch Länder und Städte.",
        "Unsere Straße ist das, was sie war.",
    ],
}
QUESTIONS = {
    "english": ["which dog runs", "technologies of a city", "the owners' houses", "house house dog"],
    "german": ["großes Haus in der Stadt", "Strassen und Haeuser", "unsere Flüsse", "Land der Wasser"],
}


@pytest.mark.parametrize(("analyzer", "k1", "b"), [("english", 1.2, 0.75), ("german", 1.2, 0.75), ("german", 0.9, 0.4)])
def test_with_the_analyzer_of_an_index_scores_are_those_of_its_match_queries(
    client: OpenSearch, index_name: str, analyzer: str, k1: float, b: float
) -> None:
    """Exactly up to 40 terms a document; beyond, Lucene rounds the length down, which raises its scores by a few percent.
    OpenSearch 2 multiplies all scores by k1 + 1."""
    short = SENTENCES[analyzer]
    texts = [*short, *(" ".join(short[at:] + short * count + short[:at]) for at in range(4) for count in (2, 5, 9))]
    documents = {f"d{at}": text for at, text in enumerate(texts)}
    client.indices.create(
        index=index_name,
        body={
            "settings": {
                "number_of_shards": 1,
                "number_of_replicas": 0,
                "similarity": {"default": {"type": "BM25", "k1": k1, "b": b}},
            },
            "mappings": {"properties": {"contents": {"type": "text", "analyzer": analyzer}}},
        },
    )
    lines = [line for id, text in documents.items() for line in ({"index": {"_id": id}}, {"contents": text})]
    assert not client.bulk(index=index_name, body=lines, refresh=True)["errors"]
    asked = {text: text for text in QUESTIONS[analyzer]}
    theirs = OpenSearchRetriever(client, index_name, "bm25", lambda text, k: queries.bm25(text, size=k)).retrieve(
        asked, 20
    )
    ours = BM25Retriever(list(documents), texts, analyzer=analyzer, k1=k1, b=b).retrieve(asked, 20)
    factor = k1 + 1 if client.info()["version"]["number"].startswith("2.") else 1.0
    for text in asked:
        assert ours[text].keys() == theirs[text].keys() and ours[text]
        for id, score in ours[text].items():
            score *= factor
            assert theirs[text][id] >= score * (1 - 1e-5)
            assert theirs[text][id] == pytest.approx(score, rel=1e-5 if documents[id] in short else 0.08)
