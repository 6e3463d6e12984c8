"""An index of passages: a document is found once, by its best passage, whatever the engine."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corpora import WORDS, job, letters, records, snapshot, write_jsonl

from ingest.dead_letters import mended
from ingest.documents import Documents
from ingest.job import run_job
from ingest.settings import parse_passages
from ingest.versions.swap import Gate, Requirement, SwapRefused
from opensearch_neural import queries
from opensearch_neural.engines import Engines, open_engines
from opensearch_neural.engines.settings import Bm25SparseSetting
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.index.mapping import index_body, rank_features
from opensearch_neural.index.record import DenseMeta, IndexMeta, PassageMeta, SparseMeta
from opensearch_neural.queries import Rare, best_passages
from opensearch_neural.retrievers.opensearch import OpenSearchRetriever
from opensearch_neural.tune.bm25_sparse import Bm25SparseTuning
from opensearch_neural.tune.trials import Questions, try_all

LONG = [
    {"_id": f"long-{n:02}", "title": f"title {n}", "text": " ".join(random.Random(n).choices(WORDS[:30], k=60)), "n": n}
    for n in range(12)
]


@pytest.fixture
def engines(client: Any, index_name: str, tmp_path: Path) -> Engines:
    corpus = write_jsonl(tmp_path / "long.jsonl", LONG)
    settings = job(corpus, index_name, passages=PassageMeta(10, 5), shards=2, store_vectors=False)
    report = run_job(client, settings, show_progress=False)
    assert report.documents > 5 * len(LONG)
    return open_engines(client, index_name)


def page(client: Any, engines: Engines, engine: str, text: str, **more: Any) -> list[tuple[str, Any]]:
    body = engines.body(engine, text, **more)
    hits = client.search(index=engines.index, body=body)["hits"]["hits"]
    return best_passages(body, hits, **{key: more[key] for key in ("size", "from_") if key in more})


@pytest.mark.parametrize("engine", ["bm25", "bm25-sparse", "sparse", "high-idf-first", "hybrid", "hybrid-rrf"])
def test_each_document_is_found_once_by_its_best_passage(client: Any, engines: Engines, engine: str) -> None:
    # Passage 7 of this document, word for word: behind what an encoder of few tokens reads.
    wanted = LONG[4]["text"].split()[30:40]  # type: ignore[attr-defined]
    hits = page(client, engines, engine, " ".join(wanted), size=12, source=["passage", "parent", "text"])
    assert len(hits) == len({id for id, _ in hits}) == 12
    id, hit = hits[0]
    assert id == "long-04"
    place = hit["_source"]["passage"]
    assert LONG[4]["text"][place["start"] : place["end"]] == hit["_source"]["text"] == " ".join(wanted)  # type: ignore[index]
    assert hit["_source"]["parent"] == id
    scores = [hit["_score"] for _, hit in hits]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("engine", ["bm25", "bm25-sparse", "sparse", "high-idf-first", "hybrid"])
def test_pages_follow_each_other(client: Any, engines: Engines, engine: str) -> None:
    text = "rain sun prism"
    whole = [id for id, _ in page(client, engines, engine, text, size=9)]
    parts = [id for start in (0, 3, 6) for id, _ in page(client, engines, engine, text, size=3, from_=start)]
    # Equal scores may change places between requests of different sizes; the lists hold the same documents.
    assert sorted(parts) == sorted(whole) and len(set(whole)) == len(whole)


def test_a_run_names_documents(client: Any, engines: Engines) -> None:
    for engine in ("bm25", "high-idf-first", "hybrid"):
        retriever = OpenSearchRetriever(client, engines.index, engine, engines.body_of(engine))
        run = retriever.retrieve({"q": "rain sun prism", "none": "zzz"}, 5)
        assert len(run["q"]) == 5 and run["q"].keys() <= {record["_id"] for record in LONG}
        assert run["none"] == {}


@pytest.fixture(scope="module")
def passages_of_numbers(client: Any) -> Iterator[str]:
    """40 documents of 5 passages each with random sparse and dense vectors, in 3 shards."""
    name = f"osn-test-collapse-{random.randrange(1 << 30)}"
    meta = IndexMeta(SparseMeta("m", "h", "q"), DenseMeta("m", "h", 4, "float", False), PassageMeta(9, 9))
    client.indices.create(index=name, body=index_body(meta, shards=3, replicas=0))
    random_ = random.Random(3)
    lines: list[Any] = []
    for parent in range(40):
        for number in range(1, 6):
            row = {token: round(random_.uniform(0.1, 3), 2) for token in random_.sample(["a", "b", "c", "d", "e.f"], 3)}
            lines += [
                {"index": {"_id": f"p{parent}#{number:04}"}},
                {
                    "text": " ".join(row),
                    "parent": f"p{parent}",
                    "sparse": rank_features(row),
                    "dense": [random_.gauss(0, 1) for _ in range(4)],
                },
            ]
    assert not client.bulk(index=name, body=lines, refresh=True)["errors"]
    yield name
    client.indices.delete(index=name)


def best(client: Any, index: str, body: dict[str, Any], **cut: int) -> list[tuple[str, float]]:
    hits = client.search(index=index, body=body)["hits"]["hits"]
    return [(id, hit["_score"]) for id, hit in best_passages(body, hits, **cut)]


def exhaustive(client: Any, index: str, body: dict[str, Any]) -> dict[str, float]:
    """Each document's best score, from all passages."""
    scores: dict[str, float] = {}
    for hit in client.search(index=index, body={**body, "size": 1000})["hits"]["hits"]:
        scores.setdefault(hit["_id"].partition("#")[0], hit["_score"])
    return scores


@pytest.mark.parametrize("plugin", [True, False])
@pytest.mark.parametrize("rare", [Rare("count", 1), Rare("ratio", 0.5), Rare("share", 1.0)])
def test_high_idf_first_over_passages_is_one_phase_and_loses_nothing(
    client: Any, passages_of_numbers: str, rare: Rare, plugin: bool
) -> None:
    tokens = {"a": 5.0, "e.f": 3.0, "c": 1.0}
    body = queries.high_idf_first(tokens, rare=rare, plugin=plugin, size=50, collapse="parent")
    assert "rescore" not in body
    expected = exhaustive(client, passages_of_numbers, queries.neural_sparse(tokens, plugin=plugin))
    scores = best(client, passages_of_numbers, body)
    assert dict(scores) == expected and len(scores) == len(expected)


def test_neighbours_and_hybrids_fill_the_page(client: Any, passages_of_numbers: str) -> None:
    vector = [1.0, 0.5, -0.2, 0.3]
    neighbours = best(client, passages_of_numbers, queries.knn(vector, size=20, collapse="parent"))
    expected = exhaustive(client, passages_of_numbers, queries.knn(vector, k=1000))
    assert [id for id, _ in neighbours] == list(expected)[:20]
    body = queries.hybrid(
        queries.neural_sparse({"a": 2.0}), queries.knn(vector, k=100), size=10, from_=5, depth=200, collapse="parent"
    )
    hits = best(client, passages_of_numbers, body, size=10, from_=5)
    everything = {**body, "size": 1000, "query": body["query"]}
    assert [id for id, _ in hits] == list(exhaustive(client, passages_of_numbers, everything))[5:15]


def test_passages_of_an_index_are_those_of_its_first_ingest(client: Any, engines: Engines, tmp_path: Path) -> None:
    more = write_jsonl(tmp_path / "more.jsonl", records(5, words=40))
    run_job(client, job(more, engines.index, store_vectors=False), show_progress=False)
    passages = snapshot(client, engines.index)
    assert {source["parent"] for id, source in passages.items() if id.startswith("doc")} == {
        r["_id"] for r in records(5)
    }
    assert "doc-0-000000#0004" in passages
    with pytest.raises(ModelError, match="holds passages of 10:5 tokens"):
        run_job(client, job(more, engines.index, passages=PassageMeta(7, 7)), show_progress=False)


def test_a_passage_that_is_refused_comes_back_as_itself(client: Any, index_name: str, tmp_path: Path) -> None:
    lines = [{"_id": "a", "text": " ".join(WORDS[:9]), "n": 1}, {"_id": "b", "text": " ".join(WORDS[:9]), "n": "x"}]
    lines.append({"_id": "c" * 510, "text": "rain", "n": 1})
    corpus = write_jsonl(tmp_path / "d.jsonl", lines)
    report = run_job(client, job(corpus, index_name, passages=PassageMeta(4, 4)), show_progress=False)
    assert (report.documents, report.letters) == (3, 4)
    assert report.dead_letters
    told = letters(report.dead_letters)
    assert any("the id of passage 1" in letter["reason"] for letter in told)
    for letter in told:
        if letter.get("document", {}).get("n") == "x":
            letter["document"]["n"] = 2
    write_jsonl(report.dead_letters, told)
    by_documents = [
        document for document in mended(report.dead_letters, lambda _: None) if document.id.startswith("b#")
    ]
    assert Documents(client, index_name).add(by_documents[1:2]).created == 1
    assert sorted(id for id in snapshot(client, index_name) if id.startswith("b")) == ["b#0002"]
    again = run_job(client, job(report.dead_letters, index_name), show_progress=False)
    assert (again.documents, again.letters) == (3, 1)
    passages = snapshot(client, index_name)
    assert {id: source["passage"]["number"] for id, source in passages.items()} == {
        f"{parent}#000{number}": number for parent in "ab" for number in (1, 2, 3)
    }


@pytest.mark.parametrize("wrong", ["", "x", "0", "10:0", "10:20", "10:", "1.5"])
def test_a_wrong_size_is_named(wrong: str) -> None:
    with pytest.raises(InputError, match="--passages"):
        parse_passages(wrong)
    assert parse_passages("256") == PassageMeta(256, 256)
    assert parse_passages("256:128") == PassageMeta(256, 128)


def test_the_commands(
    osn: Callable[..., subprocess.CompletedProcess[str]], client: Any, index_name: str, tmp_path: Path
) -> None:
    corpus = write_jsonl(tmp_path / "long.jsonl", LONG)
    ran = osn("ingest", "--corpus", str(corpus), "--index", index_name, "--passages", "10:5", "--replicas", "0")
    assert ran.returncode == 0, ran.stderr
    text = " ".join(LONG[4]["text"].split()[30:40])  # type: ignore[attr-defined]
    ran = osn("search", "--index", index_name, "--json", text)
    assert ran.returncode == 0, ran.stderr
    hits = json.loads(ran.stdout)["hits"]
    assert hits[0]["id"] == "long-04" and hits[0]["passage"]["number"] > 3
    assert len({hit["id"] for hit in hits}) == len(hits)
    ran = osn("search", "--index", index_name, text)
    assert f"long-04, passage {hits[0]['passage']['number']}" in ran.stdout


def test_without_a_model_passages_are_measured_in_words(client: Any, index_name: str, tmp_path: Path) -> None:
    """Of documents that are added later too."""
    corpus = write_jsonl(tmp_path / "long.jsonl", LONG)
    settings = job(corpus, index_name, sparse=None, tokenizer=None, passages=PassageMeta(10, 5))
    run_job(client, settings, show_progress=False)
    lengths = [len(source["text"].split()) for source in snapshot(client, index_name).values()]
    assert len(lengths) > len(LONG) and max(lengths) <= 10
    words = [f"word{number}" for number in range(25)]
    Documents(client, index_name).add([{"_id": "new", "text": " ".join(words)}])
    texts = [each["text"].split() for each in snapshot(client, index_name).values() if each["parent"] == "new"]
    assert sorted(texts, key=lambda text: int(text[0][4:])) == [words[at : at + 10] for at in (0, 5, 10, 15)]


def test_a_build_of_passages_is_checked_by_its_documents(client: Any, index_name: str, tmp_path: Path) -> None:
    corpus, text = write_jsonl(tmp_path / "long.jsonl", LONG), str(LONG[4]["text"])
    settings = replace(job(corpus, index_name, passages=PassageMeta(10, 5)), index="", alias=index_name)
    with pytest.raises(SwapRefused, match=r"does not find 'long-99' .* but long-04"):
        run_job(client, replace(settings, gate=Gate(require=(Requirement(text, "long-99", 1),))), show_progress=False)
    run_job(client, replace(settings, gate=Gate(require=(Requirement(text, "long-04", 1),))), show_progress=False)


def test_tuning_counts_passages_as_their_documents(client: Any, engines: Engines) -> None:
    judged = {str(line["_id"]): str(line["text"]) for line in LONG}
    tuning = Bm25SparseTuning(client, engines)
    blank = {"_id": "blank", "title": "no text", "text": "  "}
    assert Documents(client, engines.index).add([blank]).created == 1
    known = tuning.own_questions(200, 0)
    for questions in (Questions(judged, {id: {id: 1.0} for id in judged}), known):
        tried = try_all(tuning.ask, engines, questions, [Bm25SparseSetting()], full="bm25", passes=1)
        assert all(each.quality > 0.5 for each in tried)
