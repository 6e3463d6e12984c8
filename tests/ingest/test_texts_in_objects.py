"""Title, text, url and id that lie in objects: named by a path, taken out of the object, and kept up to date."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import corpora
import pytest
from corpora import letters, snapshot, write_jsonl

from ingest.corpus import CorpusSource
from ingest.corpus_from_index import mappings_of, other_for_queries, plain_fields
from ingest.dead_letters import letters_of
from ingest.documents import Documents
from ingest.job import Job, run_job
from ingest.settings import NewIndex
from opensearch_neural.corpus.documents import Document, FieldNames
from opensearch_neural.engines import open_engines
from opensearch_neural.errors import InputError
from opensearch_neural.index.record import PassageMeta
from opensearch_neural.search import request as search_request

pytestmark = pytest.mark.cluster

ARTICLES: list[dict[str, Any]] = [
    {"_id": "1", "content": {"body": "light in drops", "headline": "Rainbows", "lang": "en"}, "links": {"self": "u1"}},
    {"_id": "2", "content": {"body": "Licht in Tropfen", "headline": "Regenbogen", "lang": "de"}, "year": 2},
    {"_id": "3", "content.body": "sky after rain", "content.lang": "en"},
    {"_id": "4", "content": {"lang": "en"}},
]
NAMES: dict[str, Any] = {"text_field": "content.body", "title_field": "content.headline", "url_field": "links.self"}
OPTIONS = ["--text-field", "content.body", "--title-field", "content.headline", "--url-field", "links.self"]
HELD = {
    "1": Document("1", "light in drops", "Rainbows", "u1", {"content": {"lang": "en"}}),
    "2": Document("2", "Licht in Tropfen", "Regenbogen", None, {"content": {"lang": "de"}, "year": 2}),
    "3": Document("3", "sky after rain", fields={"content": {"lang": "en"}}),
}


def ids(client: Any, index: str, query: dict[str, Any]) -> list[str]:
    hits = client.search(index=index, body={"query": query})["hits"]["hits"]
    return sorted(hit["_id"].partition("#")[0] for hit in hits)


@pytest.fixture(params=[None, PassageMeta(50, 50)], ids=["documents", "passages"])
def articles(client: Any, index_name: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    settings = corpora.job(write_jsonl(tmp_path / "a.jsonl", ARTICLES), index_name, passages=request.param)
    report = run_job(client, replace(settings, corpus=replace(settings.corpus, **NAMES)), show_progress=False)
    assert (report.documents, report.letters) == (3, 1)
    return index_name


def test_a_text_in_an_object_is_the_text_of_the_index_and_the_rest_of_the_object_filters(
    client: Any, articles: str
) -> None:
    assert {id: Documents(client, articles).get(id) for id in HELD} == HELD
    assert ids(client, articles, {"term": {"content.lang": "en"}}) == ["1", "3"]
    (letter,) = letters(Path(f"{articles}.dead-letters.jsonl"))
    assert letter["reason"] == "no text: expected a field content.body; the record has: _id, content"
    engines = open_engines(client, articles)
    for engine in ("bm25", "sparse"):
        asked = search_request.Request.make(engines, engine, "light", clauses=[{"term": {"content.lang": "en"}}])
        (hit,) = search_request.find(client, asked).hits
        assert (hit["id"], hit["title"], hit["url"]) == ("1", "Rainbows", "u1")
        assert "<em>light</em> in drops" in hit["excerpt"]


def test_later_documents_and_updates_are_read_by_the_paths_of_the_first_ingest(
    client: Any, articles: str, tmp_path: Path
) -> None:
    more = [{"_id": "5", "content": {"body": "prism", "lang": "en"}}, {"_id": "6", "text": "as in the index"}]
    passages = Documents(client, articles).meta.passages
    settings = corpora.job(write_jsonl(tmp_path / "m.jsonl", more), articles, passages=passages)
    assert run_job(client, settings, show_progress=False).documents == 2
    with Documents(client, articles) as documents:
        written = documents.add([{"_id": "7", "content": {"body": "cloud", "lang": "en"}}, {"_id": "8", "content": {}}])
        assert (written.created, [refused.id for refused in written.refused]) == (1, ["8"])
        assert documents.get("5") == Document("5", "prism", fields={"content": {"lang": "en"}})
        documents.update("1", {"content.body": "drops of water"})
        assert documents.get("1") == replace(HELD["1"], text="drops of water")
        documents.update("1", {"content": {"headline": "Bows", "lang": "fr"}, "links": {"self": "u2"}})
        changed = Document("1", "drops of water", "Bows", "u2", {"content": {"lang": "fr"}})
        assert documents.get("1") == changed
        documents.update("1", {"content.lang": "it", "content": {"body": "oil"}})
        assert documents.get("1") == replace(changed, text="oil", fields={"content": {"lang": "it"}})
        documents.update("1", {"content": {"body": "gas"}})  # replaces the object
        assert documents.get("1") == replace(changed, text="gas", fields={})
        documents.update("1", {"content.headline": None})
        assert documents.get("1") == Document("1", "gas", url="u2")
        documents.update("2", {"content": None})
        assert documents.get("2") == replace(HELD["2"], fields={"year": 2})
        with pytest.raises(InputError, match=r"2: content.body must be a string"):
            documents.update("2", {"content": {"body": {"p": "rain"}}, "text": None})
    assert ids(client, articles, {"match": {"contents": "gas"}}) == ["1"], "encoded and indexed anew"


def test_an_own_field_of_that_path_beside_a_text_stays_an_own_field(client: Any, articles: str) -> None:
    documents = Documents(client, articles)
    documents.add([{"_id": "9", "text": "sun", "content": {"body": "own", "lang": "en"}}])
    documents.update("9", {"content": {"body": "other"}})
    documents.update("9", {"content.lang": "de"})
    assert documents.get("9") == Document("9", "sun", fields={"content": {"body": "other", "lang": "de"}})


def test_commands_take_paths_and_a_raw_letter_is_read_by_them(
    osn: Callable[..., subprocess.CompletedProcess[str]], client: Any, index_name: str, tmp_path: Path
) -> None:
    lines = [{"meta": {"key": record["_id"]}} | {k: v for k, v in record.items() if k != "_id"} for record in ARTICLES]
    corpus = write_jsonl(tmp_path / "a.jsonl", lines)
    ran = osn("ingest", str(corpus), "--index", index_name, "--id-field", "meta.key", *OPTIONS, "--replicas", "0")
    assert ran.returncode == 3, ran.stderr
    assert {id: Documents(client, index_name).get(id) for id in HELD} == HELD
    dead = tmp_path / f"{index_name}.dead-letters.jsonl"
    (letter,) = letters_of(dead)
    letter["raw"] = json.dumps(lines[0] | {"meta": {"key": "4"}})
    write_jsonl(dead, [letter])
    ran = osn("ingest", str(dead), "--index", index_name)
    assert ran.returncode == 0, ran.stderr
    assert Documents(client, index_name).get("4") == replace(HELD["1"], id="4")
    added = json.dumps(lines[0] | {"meta": {"key": "5"}})
    ran = osn("documents", "add", "--index", index_name, "-", input=added)
    assert ran.returncode == 0, ran.stderr
    ran = osn(
        "documents", "update", "--index", index_name, "5", "--set", "content.body=prism", "--set", "content.lang=fr"
    )
    assert ran.returncode == 0, ran.stderr
    assert Documents(client, index_name).get("5") == Document(
        "5", "prism", "Rainbows", "u1", {"content": {"lang": "fr"}}
    )


def test_an_index_with_texts_in_objects_is_a_corpus_and_its_subfields_are_kept(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = f"{index_name}-theirs"
    raw = {"raw": {"type": "keyword"}}
    inner = {"body": {"type": "text"}, "headline": {"type": "text", "fields": raw}, "lang": {"type": "keyword"}}
    parts = {"type": "nested", "properties": {"body": {"type": "text"}}}
    mapping = {"properties": {"content": {"properties": inner | {"note": {"type": "text"}}}, "parts": parts}}
    client.indices.create(index=theirs, body={"mappings": mapping, "settings": {"number_of_replicas": 0}})
    for record in ARTICLES:
        stored = {name: value for name, value in record.items() if name != "_id"}
        client.index(
            index=theirs, id=record["_id"], body=stored | {"parts": [{"body": "a"}, {"body": "b"}]}, refresh=True
        )
    source = CorpusSource(f"opensearch:{theirs}", **NAMES)
    fields = tmp_path / "mapping.json"
    fields.write_text(json.dumps({"content": {"properties": {"body": {"type": "alias", "path": "text"}}}}))
    job = Job(source, index_name, new_index=NewIndex(replicas=0, mapping=fields), dead_letters=tmp_path / "dead")
    report = run_job(client, job, show_progress=False)
    assert (report.documents, report.letters) == (3, 1)
    own = {"parts": [{"body": "a"}, {"body": "b"}]}
    for id, held in HELD.items():
        assert Documents(client, index_name).get(id) == replace(held, fields=held.fields | own)
    assert ids(client, index_name, {"match": {"content.body": "light"}}) == ["1"], "by the alias"
    assert ids(client, index_name, {"term": {"title.raw": "Rainbows"}}) == ["1"]
    assert ids(client, index_name, {"term": {"content.lang": "en"}}) == ["1", "3"]
    assert "--mapping maps" not in caplog.text
    assert "content.headline (called title there)" in caplog.text and "content.body (called" not in caplog.text
    corpus = f"opensearch:{theirs}"
    kept = plain_fields(client, corpus, mappings_of(client, corpus), source.names)
    properties = mappings_of(client, corpus)[theirs]["mappings"]["properties"]
    assert other_for_queries(properties, source.names, kept=kept) == {
        "content.body": "called text there",
        "content.headline": "called title there",
        "content.headline.raw": "called title.raw there",
        "links.self": "called url there",
        "links.self.keyword": "called url.keyword there",
        "content.note": "no longer text",
        "parts": "no longer nested",
        "parts.body": "no longer text",
    }
    assert other_for_queries(properties, FieldNames.of(text="parts.body"))["parts.body"] == "called text there"
    joined = replace(
        job, corpus=replace(source, text_field="parts.body"), index=f"{index_name}-2", new_index=NewIndex()
    )
    assert run_job(client, joined, show_progress=False).documents == 4
    assert snapshot(client, f"{index_name}-2")["4"] == {"text": ["a", "b"], "content": {"lang": "en"}}


def test_a_named_part_that_no_object_has_is_told_of_and_so_is_its_mapping(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = corpora.job(write_jsonl(tmp_path / "a.jsonl", ARTICLES), index_name, sparse="none")
    fields = tmp_path / "mapping.json"
    fields.write_text(json.dumps({"content": {"properties": {"body": {"type": "text"}, "lang": {"type": "keyword"}}}}))
    source = replace(settings.corpus, text_field="content.body", title_field="content.title")
    run_job(client, replace(settings, corpus=source, new_index=NewIndex(mapping=fields)), show_progress=False)
    assert "--mapping maps 'content.body', which is called text in the index" in caplog.text
    assert "has a text in the field 'content.title', so these have no title in the index" in caplog.text
