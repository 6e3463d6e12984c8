"""`osn ingest opensearch:INDEX`: an index that is there, read whole by slices, with its fields, in one order each time."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import corpora
import pytest
from corpora import letters, records, snapshot, write_jsonl
from fault_proxy import Fault, FaultProxy, Request
from opensearchpy.exceptions import RequestError

from ingest import corpus_from_index
from ingest.corpus import CorpusSource, spooled
from ingest.corpus_from_index import copy_index, mappings_of, other_for_queries, plain_fields
from ingest.documents import Documents, read_document
from ingest.job import Job, run_job
from ingest.settings import NewIndex
from opensearch_neural.cluster.connect import connect
from opensearch_neural.corpus.documents import FieldNames
from opensearch_neural.engines import open_engines
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.index.record import PassageMeta
from opensearch_neural.search import request as search_request

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

pytestmark = pytest.mark.cluster


def copied(client: OpenSearch, index: str) -> list[bytes]:
    """The lines of a copy of an index."""
    file = io.BytesIO()
    written = copy_index(client, f"opensearch:{index}", file)
    lines = file.getvalue().splitlines()
    assert written == len(lines)
    return lines


def ingest_of(theirs: str, index: str) -> list[str]:
    """The command that makes an index of theirs."""
    fields = ["--title-field", "headline", "--text-field", "story"]
    return ["ingest", f"opensearch:{theirs}", "--index", index, *fields, "--replicas", "0"]


def ids_of(lines: list[bytes]) -> list[str]:
    return [json.loads(line)["_id"] for line in lines]


@pytest.fixture
def theirs(client: OpenSearch, index_name: str) -> Any:
    """An index that `osn` did not write: texts under another name, several pages of hits, two shards."""
    name = f"{index_name}-theirs"
    client.indices.create(index=name, body={"settings": {"number_of_shards": 2, "number_of_replicas": 0}})
    lines: list[dict[str, Any]] = []
    for number in reversed(range(2500)):
        lines += [{"index": {"_id": f"d{number}"}}, {"headline": f"Number {number}", "story": "rain", "price": number}]
    client.bulk(index=name, body=lines, refresh=True)
    yield name
    client.indices.delete(index=name)


def test_every_document_is_read_once_in_the_order_of_ids(client: OpenSearch, theirs: str) -> None:
    lines = copied(client, theirs)
    assert ids_of(lines) == sorted(f"d{number}" for number in range(2500))
    assert json.loads(lines[0]) == {"_id": "d0", "headline": "Number 0", "story": "rain", "price": 0}


def test_the_order_stays_when_documents_change_their_place_in_the_index(
    client: OpenSearch, theirs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = copied(client, theirs)
    again: list[dict[str, Any]] = []
    for line in before[::3]:
        record = json.loads(line)
        again += [{"index": {"_id": record.pop("_id")}}, record]
    client.bulk(index=theirs, body=again, refresh=True)
    client.indices.forcemerge(index=theirs, params={"max_num_segments": 1})
    monkeypatch.setattr(corpus_from_index, "SORTED_BYTES", 10_000)  # in many parts, which are merged
    assert copied(client, theirs) == before


def test_a_slice_is_a_shard_and_several_are_read_at_once(client: OpenSearch, cluster_url: str, theirs: str) -> None:
    """The first pages wait for each other: read in turn, they would wait until the barrier breaks."""
    together = threading.Barrier(2, timeout=20)
    sliced: list[dict[str, int]] = []

    def fault(request: Request) -> None:
        body = json.loads(request.body or b"{}") if request.path.endswith("/_search") else {}
        if "slice" in body:
            sliced.append(body["slice"])
            if "search_after" not in body:
                together.wait()

    with FaultProxy(cluster_url, everything=True) as proxy:
        proxy.fault = fault
        assert len(copied(connect(proxy.url), theirs)) == 2500
    assert {(each["id"], each["max"]) for each in sliced} == {(0, 2), (1, 2)}
    # A slice read again, at another point in time, has the same documents, since their shard does not change.
    halves = []
    for _ in range(2):
        point = client.create_pit(index=theirs, params={"keep_alive": "1m"})["pit_id"]
        pages = list(corpus_from_index._slice(client, theirs, {"id": point, "keep_alive": "1m"}, 0, 2, 1000))
        client.delete_pit(body={"pit_id": [point]})
        halves.append(
            sorted(
                json.loads(line.partition(corpus_from_index.BEFORE_INDEX)[0])["_id"] for page in pages for line in page
            )
        )
    assert halves[0] == halves[1] and 1000 < len(halves[0]) < 1500


def test_large_documents_come_in_small_answers(
    client: OpenSearch, index_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[dict[str, Any]] = []
    for number in range(350):
        lines += [{"index": {"_id": f"d{number:03}"}}, {"text": "rain " * 10_000}]
    client.bulk(index=index_name, body=lines, refresh=True)
    monkeypatch.setattr(corpus_from_index, "PAGE_BYTES", 1 << 20)
    answers: list[int] = []
    search = corpus_from_index._search

    def watched(*asked: Any, **body: Any) -> dict[str, Any]:
        answer = search(*asked, **body)
        answers.append(sum(len(json.dumps(hit)) for hit in answer["hits"]["hits"]))
        return answer

    monkeypatch.setattr(corpus_from_index, "_search", watched)
    assert ids_of(copied(client, index_name)) == [f"d{number:03}" for number in range(350)]
    assert max(answers[2:]) < 1.5 * (1 << 20), "of the first answer the size was not known"


def test_a_cluster_without_field_data_of_ids_is_read_as_any_other(client: OpenSearch, theirs: str) -> None:
    setting = "indices.id_field_data.enabled"
    client.cluster.put_settings(body={"transient": {setting: False}})
    try:
        with pytest.raises(Exception, match="id_field_data"):  # it does refuse
            client.search(index=theirs, body={"sort": ["_id"]})
        assert ids_of(copied(client, theirs)) == sorted(f"d{number}" for number in range(2500))
    finally:
        client.cluster.put_settings(body={"transient": {setting: None}})


def test_an_alias_of_indexes_with_different_shards_is_read_whole_as_it_filters(
    client: OpenSearch, index_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_from_index, "PAGE", 7)
    alias, wanted = f"{index_name}-all", set()
    for shards in (1, 3, 5):
        name = f"{index_name}-{shards}"
        client.indices.create(index=name, body={"settings": {"number_of_shards": shards, "number_of_replicas": 0}})
        lines: list[dict[str, Any]] = []
        for number in range(100):
            # Ids of every kind that OpenSearch stores in a form of its own: numbers, base64, any text.
            id = [str(1000 * shards + number), f"id{shards}{number:02}abc", f'é/"{shards} {number}'][number % 3]
            lines += [{"index": {"_id": id}}, {"text": "rain", "number": number}]
            wanted |= {id} if number < 90 else set()
        client.bulk(index=name, body=lines, refresh=True)
        filtered = {"filter": {"range": {"number": {"lt": 90}}}}
        client.indices.put_alias(index=name, name=alias, body=filtered)
    client.indices.create(index=f"{index_name}-empty", body={"aliases": {alias: {}}})
    lines_read = copied(client, alias)
    assert len(lines_read) == 270 and set(ids_of(lines_read)) == wanted
    assert copied(client, f"{index_name}-empty") == []


@pytest.mark.parametrize("passages", [None, PassageMeta(5, 5)], ids=["documents", "passages"])
def test_a_letter_of_several_indexes_names_the_index_of_its_document(
    client: OpenSearch, index_name: str, tmp_path: Path, passages: PassageMeta | None
) -> None:
    """It named the alias alone, which several documents of one id have."""
    alias, names = f"{index_name}-all", [f"{index_name}-{letter}" for letter in "abc"]
    for name in names:
        client.indices.create(index=name, body={"aliases": {alias: {}}, "settings": {"number_of_replicas": 0}})
        client.index(index=name, id=name[-1], body={"text": "rain"})
        client.index(index=name, id="same", body={"text": f"rain {name[-1]}", "tab": "\t"}, refresh=True)
    client.index(index=names[1], id="empty", body={"text": ""}, refresh=True)
    settings = corpora.job(
        f"opensearch:{alias}", f"{index_name}-new", dead_letters=tmp_path / "dead", passages=passages
    )
    report = run_job(client, settings, show_progress=False)
    assert (report.documents, report.letters) == (4, 3)
    told = {letter["reason"]: letter["file"] for letter in letters(tmp_path / "dead")}
    twice = (
        f"the id 'same' occurs twice{'' if passages else ': first in record 5 of the corpus'}; this is the document of"
    )
    assert told == {
        **{f"{twice} {name!r}": f"opensearch:{name}" for name in names[1:]},
        "text and title are both empty": f"opensearch:{names[1]}",
    }
    alone = replace(settings, corpus=CorpusSource(f"opensearch:{names[1]}"), index=f"{index_name}-one")
    assert run_job(client, alone, show_progress=False).letters == 1
    assert letters(tmp_path / "dead")[-1]["file"] == f"opensearch:{names[1]}"


def test_a_letter_of_an_id_that_one_index_has_twice_speaks_of_no_other_index(
    client: OpenSearch, index_name: str, tmp_path: Path
) -> None:
    """With a routing of its own, each shard may have a document of the same id."""
    theirs = f"{index_name}-theirs"
    client.indices.create(index=theirs, body={"settings": {"number_of_shards": 2, "number_of_replicas": 0}})
    for routing in ("1", "2", "3", "4"):
        client.index(index=theirs, id="same", routing=routing, body={"text": "rain"}, refresh=True)
    settings = corpora.job(f"opensearch:{theirs}", f"{index_name}-new", dead_letters=tmp_path / "dead")
    assert run_job(client, settings, show_progress=False).letters == 1
    (letter,) = letters(tmp_path / "dead")
    where = f"first in record 1 of the corpus; this is the document of {theirs!r}"
    assert letter["reason"] == f"the id 'same' occurs twice: {where}"


def test_an_index_that_was_not_read_whole_is_refused(
    client: OpenSearch, theirs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = corpus_from_index._slice
    monkeypatch.setattr(corpus_from_index, "_slice", lambda *of: (page[1:] for page in whole(*of)))
    with pytest.raises(InputError, match=r"was not read whole: only 2,49\d of its 2,500 documents"):
        copied(client, theirs)


def test_an_ingest_takes_the_documents_with_their_fields(
    client: OpenSearch, theirs: str, index_name: str, tmp_path: Path
) -> None:
    source = CorpusSource(f"opensearch:{theirs}", title_field="headline", text_field="story")
    job = Job(source, index_name, new_index=NewIndex(replicas=0), dead_letters=tmp_path / "dead.jsonl")
    assert run_job(client, job, show_progress=False).documents == 2500
    document = client.get(index=index_name, id="d7")["_source"]
    assert document == {"title": "Number 7", "text": "rain", "price": 7}
    assert client.count(index=index_name)["count"] == 2500


@pytest.mark.parametrize("field", ["sku", "key.sku"])
def test_a_field_of_the_source_may_be_the_id(
    client: OpenSearch, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, field: str
) -> None:
    """Every document was a dead letter: `_id`, which no record may have as a field of its own, stood beside the named id."""
    theirs = f"{index_name}-theirs"
    lines: list[dict[str, Any]] = []
    for number in range(30):
        sku: Any = f"s{29 - number:02}"
        named = {"sku": sku} if field == "sku" else {"key": {"sku": sku}}
        lines += [{"index": {"_id": f'd"{number:02}'}}, {**named, "text": f"rain {number}"}]
    lines += [{"index": {"_id": "without"}}, {"text": "rain"}]
    client.bulk(index=theirs, body=lines, refresh=True)
    source = CorpusSource(f"opensearch:{theirs}", id_field=field)
    settings = replace(corpora.job("", index_name), corpus=source, dead_letters=tmp_path / "dead")
    report = run_job(client, settings, show_progress=False)
    assert (report.documents, report.letters) == (30, 1)
    (letter,) = letters(tmp_path / "dead")
    assert f"no id: expected a field {field}" in letter["reason"]
    found = snapshot(client, index_name)
    assert [found[f"s{29 - number:02}"]["text"] for number in range(30)] == [f"rain {number}" for number in range(30)]
    assert any(f"{field} (called _id there)" in line for line in caplog.messages)
    assert "sku" not in json.dumps(client.indices.get_mapping(index=index_name)[index_name]["mappings"]["properties"])
    # The index knows its id: without the option again, no document is written a second time under its `_id` there.
    # One without the field has its `_id`.
    again = replace(settings, corpus=replace(source, id_field=None))
    run_job(client, again, show_progress=False)
    assert snapshot(client, index_name).keys() == {*found, "without"}
    # The documents are read in the order of `_id` all the same, so that a run that continues finds this order again.
    file = io.BytesIO()
    assert copy_index(client, f"opensearch:{theirs}", file, ids=False) == 31
    assert [json.loads(line)["text"] for line in file.getvalue().splitlines()][:30] == [f"rain {n}" for n in range(30)]


def test_the_own_id_of_an_index_may_be_named_too(client: OpenSearch, index_name: str, tmp_path: Path) -> None:
    theirs = f"{index_name}-theirs"
    client.index(index=theirs, id="a", body={"id": "b", "text": "rain"}, refresh=True)
    source = CorpusSource(f"opensearch:{theirs}", id_field="_id")
    settings = replace(corpora.job("", index_name), corpus=source, dead_letters=tmp_path / "dead")
    assert run_job(client, settings, show_progress=False).documents == 1
    assert client.get(index=index_name, id="a")["_source"]["id"] == "b"
    # Also where the index knows this name, and the option is not given again.
    client.index(index=theirs, id="c", body={"id": "d", "text": "snow"}, refresh=True)
    again = run_job(client, replace(settings, corpus=replace(source, id_field=None)), show_progress=False)
    assert again.letters == 0 and snapshot(client, index_name).keys() == {"a", "c"}


def test_lists_of_strings_are_searched_as_one_text_and_stored_as_they_were(
    client: OpenSearch, index_name: str, tmp_path: Path
) -> None:
    """They were dead letters, although OpenSearch takes a list in any field."""
    theirs = f"{index_name}-theirs"
    lists = {"name": ["Blue mug", "Becher"], "bullets": ["Holds rain", None, "Keeps tea warm"]}
    lines: list[dict[str, Any]] = [{"index": {"_id": "1"}}, lists, {"index": {"_id": "2"}}, {"bullets": "plain rain"}]
    lines += [{"index": {"_id": "3"}}, {"bullets": ["rain", 3]}]
    client.bulk(index=theirs, body=lines, refresh=True)
    source = CorpusSource(f"opensearch:{theirs}", title_field="name", text_field="bullets")
    small = corpora.job("", index_name)
    report = run_job(client, replace(small, corpus=source, dead_letters=tmp_path / "dead"), show_progress=False)
    assert (report.documents, report.letters) == (2, 1)
    (letter,) = letters(tmp_path / "dead")
    assert letter["reason"] == "bullets must be a string or a list of strings, and its list holds 3"
    stored = client.get(index=index_name, id="1")["_source"]
    assert (stored["title"], stored["text"]) == (lists["name"], lists["bullets"])
    assert "rain" in stored["sparse"], "the model read the strings, too"
    asked = search_request.Request.make(open_engines(client, index_name), "bm25", "becher tea")
    (hit,) = search_request.find(client, asked).hits
    assert hit["title"] == "Blue mug <em>Becher</em>" and hit["excerpt"] == "Keeps <em>tea</em> warm"
    (hit,) = search_request.find(client, asked, explain=True).hits
    assert hit["sentence"] == "Keeps <em>tea</em> warm"
    with Documents(client, index_name) as documents:
        held = documents.get("1")
        assert held is not None and (held.title, held.text) == ("Blue mug Becher", "Holds rain\nKeeps tea warm")
        documents.update("1", {"price": 3})
        again = client.get(index=index_name, id="1")["_source"]
        assert again == {**stored, "price": 3}
        documents.update("1", {"text": ["prism"], "title": None})
        assert client.get(index=index_name, id="1")["_source"]["text"] == ["prism"]
    copy = f"{index_name}-copy"
    run_job(client, replace(small, corpus=CorpusSource(f"opensearch:{index_name}"), index=copy), show_progress=False)
    assert snapshot(client, copy)["1"]["text"] == ["prism"]


def test_a_list_of_strings_is_split_into_passages_as_one_text(
    client: OpenSearch, index_name: str, tmp_path: Path
) -> None:
    record = {"_id": "1", "title": ["rain", "bow"], "text": ["light drop sun", "water glass angle"]}
    whole = {"_id": "2", "text": ["prism", "sky"]}
    corpus = write_jsonl(tmp_path / "d.jsonl", [record, whole])
    run_job(client, corpora.job(corpus, index_name, passages=PassageMeta(4, 4)), show_progress=False)
    told = {id: (source.get("title"), source["text"]) for id, source in snapshot(client, index_name).items()}
    title = record["title"]
    assert told == {
        "1#0001": (title, "light drop sun\nwater"),
        "1#0002": (title, "glass angle"),
        "2#0001": (None, "prism\nsky"),
    }
    held = read_document(client, index_name, "1")
    assert held is not None and held.record()["title"] == title and held.text == "light drop sun\nwater glass angle"


def test_an_index_of_osn_itself_is_a_corpus_without_its_vectors_and_none_if_it_holds_passages(
    client: OpenSearch, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", records(20))
    first, again, passages = (f"{index_name}-{name}" for name in ("first", "again", "passages"))
    run_job(client, corpora.job(corpus, first), show_progress=False)
    assert "sparse" in client.get(index=first, id="doc-0-000001")["_source"]
    caplog.clear()
    run_job(client, corpora.job(f"opensearch:{first}", again), show_progress=False)
    assert "queries that name" not in caplog.text
    assert snapshot(client, again) == snapshot(client, first)
    run_job(client, corpora.job(corpus, passages, passages=PassageMeta(5, 5)), show_progress=False)
    with pytest.raises(InputError, match=f"'{passages}' holds passages, not whole documents"):
        copied(client, passages)


def test_a_document_that_cannot_be_taken_costs_no_other(client: OpenSearch, index_name: str, tmp_path: Path) -> None:
    theirs = f"{index_name}-theirs"
    sources = {
        "1": b'{"text":"half \\ud83d"}',
        "2": b"{}",
        "3": b'{"text":"whole \\ud83d\\ude00"}',
        "\U0001f600": b'{"text":"rain"}',
    }
    for id, source in sources.items():
        client.transport.perform_request("PUT", f"/{theirs}/_doc/{quote(id)}", body=source)
    client.indices.refresh(index=theirs)
    lines = [{"_id": "2"}, {"_id": "3", "text": "whole \U0001f600"}, {"_id": "\U0001f600", "text": "rain"}]
    assert copied(client, theirs)[1:] == [json.dumps(line, ensure_ascii=False).encode() for line in lines]
    job = Job(CorpusSource(f"opensearch:{theirs}"), index_name, dead_letters=tmp_path / "dead.jsonl")
    report = run_job(client, job, show_progress=False)
    assert (report.documents, report.letters) == (2, 2)
    reasons = [letter["reason"] for letter in letters(tmp_path / "dead.jsonl")]
    assert "half a surrogate pair" in reasons[0] and "no text" in reasons[1]
    client.indices.create(index=f"{index_name}-blind", body={"mappings": {"_source": {"enabled": False}}})
    client.index(index=f"{index_name}-blind", id="1", body={"text": "rain"}, params={"refresh": "true"})
    with pytest.raises(InputError, match="has no _source"):
        copied(client, f"{index_name}-blind")


def test_fields_that_the_old_index_does_not_keep_in_its_source_are_named_and_the_text_refused(
    client: OpenSearch, index_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They were missing in the new index, without a word; without its text it had titles alone."""
    names = ("title", "text", "secret", "own.a", "own.b", "kept.c")
    body = {"title": "t", "text": "rain", "secret": "s", "own": {"a": "a", "b": "b"}, "kept": {"c": "c"}}
    for at, source in enumerate(
        [{"excludes": ["secret", "o*.b"]}, {"includes": ["t*", "kept"]}, {"excludes": ["te*"]}, {"includes": ["text"]}]
    ):
        theirs = f"{index_name}-theirs-{at}"
        properties = {name: {"type": "text" if name.startswith("t") else "keyword"} for name in names}
        mappings = {"_source": source, "properties": {**properties, "all": {"type": "text"}}}
        mappings["properties"]["title"]["copy_to"] = "all"
        client.indices.create(index=theirs, body={"mappings": mappings, "settings": {"number_of_replicas": 0}})
        client.index(index=theirs, id="1", body=body, params={"refresh": "true"})
        caplog.clear()
        job = Job(CorpusSource(f"opensearch:{theirs}"), f"{index_name}-{at}", new_index=NewIndex(replicas=0))
        if at < 2:
            run_job(client, job, show_progress=False)
            told = [line.partition("have them: ")[2] for line in caplog.messages if "in its _source" in line]
            assert told == [["own.b, secret"], ["own.a, own.b, secret"]][at]
            kept = client.get(index=job.index, id="1")["_source"]
            assert [f"{name}.{sub}" for name in ("own", "kept") for sub in kept.get(name, ())] == (
                ["own.a", "kept.c"] if at == 0 else ["kept.c"]
            )
        else:
            with pytest.raises(InputError, match=f"does not keep the {['text', 'title'][at - 2]} "):
                run_job(client, job, show_progress=False)


def test_fields_that_queries_find_otherwise_are_named() -> None:
    text = {"type": "text", "fields": {"raw": {"type": "keyword"}}}
    properties = {
        "title": text,
        "body": {"type": "text"},
        "brand": text,
        "price": {"type": "scaled_float", "fields": {"keyword": {"type": "keyword"}}},
        "public": {"type": "boolean"},
        "author": {"properties": {"id": {"type": "keyword"}, "name": {"type": "text"}}},
        "reviews": {"type": "nested", "properties": {"stars": {"type": "byte"}}},
    }
    other = other_for_queries(properties, FieldNames())
    assert other == {
        "title.raw": "not there",
        "body": "called text there",
        "brand": "no longer text",
        "brand.raw": "not there",
        "price.keyword": "not there",
        "author.name": "no longer text",
        "reviews": "no longer nested",
    }
    own = {name: properties[name] for name in ("brand", "author", "reviews", "price")}
    mapped = other_for_queries(properties, FieldNames.of(text="summary"), own)
    assert mapped == {"title.raw": "not there", "body": "no longer text"}


def test_a_field_of_copies_is_told_of_until_something_fills_it() -> None:
    """Mapped as before it is empty, because title and text, which were copied to it, have other names there."""
    text = {"type": "text", "copy_to": "all"}
    properties = {"title": {"type": "text"}, "text": text, "note": text, "all": {"type": "text"}}
    own = {"note": {"type": "text"}}
    empty = {"all": "nothing is copied into it"}
    assert other_for_queries(properties, FieldNames(), own) == empty
    assert other_for_queries(properties, FieldNames(), {**own, "all": {"type": "text"}}) == empty
    assert other_for_queries(properties, FieldNames(), {**own, "all": {"type": "alias", "path": "contents"}}) == {}
    assert other_for_queries(properties, FieldNames(), {"note": text, "all": {"type": "text"}}) == {}


def test_fields_of_a_like_type_that_queries_find_otherwise_are_named_too(
    client: OpenSearch, index_name: str, tmp_path: Path
) -> None:
    """Each query finds the document in the old index, and not in the new one."""
    mapping = {
        "body": {"type": "text", "copy_to": "tags"},
        "heading": {"type": "alias", "path": "title"},
        "brand": {"type": "keyword", "normalizer": "lowercase"},
        "colour": {"type": "keyword", "null_value": "none"},
        "day": {"type": "date", "format": "dd.MM.yyyy||epoch_millis"},
        "second": {"type": "date", "format": "epoch_second"},
        "tags": {"type": "keyword"},
        "plain": {"type": "keyword", "copy_to": ["tags"]},
        "iso": {"type": "date", "format": "yyyy-MM-dd||date||strict_date_optional_time_nanos||epoch_millis"},
        "maker": {"properties": {"since": {"type": "date"}, "name": {"type": "keyword"}}},
        "title": {"type": "text"},
    }
    same: list[dict[str, Any]] = [
        {"term": {"plain": "x"}},
        {"range": {"iso": {"gte": "2024-01-01", "lt": "now"}}},
        {"range": {"day": {"gte": "02.02.2024"}}},
        {"range": {"second": {"gte": 1, "lt": "now"}}},
    ]
    others: dict[str, dict[str, Any]] = {
        "heading": {"match": {"heading": "rain"}},
        "brand": {"term": {"brand": "ACME"}},
        "colour": {"term": {"colour": "none"}},
        "maker.since": {"range": {"maker.since": {"gte": "now-1000y"}}},
        "tags": {"term": {"tags": "x"}},
    }
    theirs, new = f"{index_name}-theirs", f"{index_name}-new"
    client.indices.create(index=theirs, body={"mappings": {"properties": mapping}})
    document = {"title": "rain", "body": "rain", "brand": "acme", "colour": None, "day": "01.03.2024"}
    document |= {"second": 1_700_000_000, "plain": "x", "iso": "2024-03-01", "maker": {"since": "2001-01-01"}}
    client.index(index=theirs, id="1", body=document, params={"refresh": "true"})
    run_job(client, Job(CorpusSource(f"opensearch:{theirs}"), new, new_index=NewIndex(replicas=0)), show_progress=False)

    def finds(index: str, query: dict[str, Any]) -> bool:
        try:
            return bool(client.count(index=index, body={"query": query})["count"])
        except RequestError:  # a number is compared with a date
            return False

    assert all(finds(index, query) for query in same for index in (theirs, new))
    assert [finds(theirs, query) for query in others.values()] == [True] * len(others)
    assert [finds(new, query) for query in others.values()] == [False] * len(others)
    told = other_for_queries(mapping, FieldNames())
    assert told.keys() == {"body", *others}
    # Mapped as before, `body` is a field without values, since the text is called `text`; an alias finds the text.
    assert other_for_queries(mapping, FieldNames(), mapping).keys() == {"body"}
    assert other_for_queries(mapping, FieldNames(), {**mapping, "body": {"type": "alias", "path": "text"}}) == {}


def test_a_plain_field_has_its_type_however_json_writes_its_values(
    client: OpenSearch, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenSearch would guess a type from each first value, and every one of these guesses would be wrong."""
    theirs, new = f"{index_name}-theirs", f"{index_name}-new"
    mapping = {
        "price": {"type": "float"},
        "stock": {"type": "integer", "ignore_malformed": True},
        "added": {"type": "date"},
        "day": {"type": "date", "format": "dd.MM.yyyy"},
        "sold": {"type": "boolean"},
        "ean": {"type": "keyword"},
        "text": {"type": "text"},
    }
    client.indices.create(index=theirs, body={"mappings": {"properties": mapping}})
    march, first = 1_709_251_200_000, {"text": "rain", "stock": "many", "sold": "true", "ean": 4_006_381_333_931}
    lines: list[dict[str, Any]] = [
        {"index": {"_id": "1"}},
        {**first, "price": "9.50", "added": march, "day": "01.03.2024"},
    ]
    lines += [{"index": {"_id": "2"}}, {"text": "sun", "price": 100, "stock": 7, "added": "2025-03-01", "sold": False}]
    assert not client.bulk(index=theirs, body=lines, params={"refresh": "true"})["errors"]
    job = Job(CorpusSource(f"opensearch:{theirs}"), new, new_index=NewIndex(replicas=0), dead_letters=tmp_path / "dead")
    assert run_job(client, job, show_progress=False).letters == 0
    assert "find other hits" not in caplog.text and "only one kind" not in caplog.text
    for query, ids in {
        ("range", "price", "lt", 20): ["1"],
        ("range", "stock", "gte", 1): ["2"],
        ("range", "added", "lt", "2024-03-01||+1d"): ["1"],
        ("range", "day", "gte", "29.02.2024"): ["1"],
        ("term", "sold", "value", True): ["1"],
        ("prefix", "ean", "value", "4006"): ["1"],
    }.items():
        kind, field, how, value = query
        body = {"query": {kind: {field: {how: value}}}}
        for index in (theirs, new):
            assert [hit["_id"] for hit in client.search(index=index, body=body)["hits"]["hits"]] == ids, (index, body)
    sums = {"prices": {"sum": {"field": "price"}}, "sold": {"terms": {"field": "sold"}}}
    counted = [client.search(index=index, body={"size": 0, "aggs": sums})["aggregations"] for index in (theirs, new)]
    assert counted[0] == counted[1]


def test_a_mapping_of_the_users_own_comes_before_the_type_that_the_old_index_has(
    client: OpenSearch, theirs: str, index_name: str, tmp_path: Path
) -> None:
    def mapped(**settings: Any) -> dict[str, Any]:
        name = f"{index_name}-{len(settings)}"
        source = CorpusSource(f"opensearch:{theirs}", title_field="headline", text_field="story", limit=20)
        run_job(client, Job(source, name, new_index=NewIndex(replicas=0, **settings)), show_progress=False)
        properties: dict[str, Any] = client.indices.get_mapping(index=name)[name]["mappings"]["properties"]
        return properties["price"]

    (tmp_path / "mapping.json").write_text('{"price": {"type": "integer"}}')
    assert mapped(mapping=tmp_path / "mapping.json") == {"type": "integer"}
    assert mapped() == {"type": "double"}


def test_a_field_of_an_index_stays_a_long_only_where_a_double_would_not_tell_its_values_apart(
    client: OpenSearch, index_name: str, tmp_path: Path
) -> None:
    theirs, new = f"{index_name}-theirs", f"{index_name}-new"
    names = ("user", "written", "price", "either")
    mapping = {name: {"type": "long"} for name in names} | {"text": {"type": "text"}}
    client.indices.create(index=theirs, body={"mappings": {"properties": mapping}})
    lines: list[dict[str, Any]] = []
    for number, price in ((2**53, 10), (2**53 + 1, 10.99)):
        values = {"user": number, "written": str(number), "price": price, "either": number if price == 10 else price}
        lines += [{"index": {"_id": str(price)}}, {"text": "rain", **values}]
    assert not client.bulk(index=theirs, body=lines, params={"refresh": "true"})["errors"]
    run_job(client, Job(CorpusSource(f"opensearch:{theirs}"), new, new_index=NewIndex(replicas=0)), show_progress=False)
    fields = client.indices.get_mapping(index=new)[new]["mappings"]["properties"]
    assert [fields[name]["type"] for name in names] == ["long", "long", "double", "double"]
    body = {"query": {"term": {"written": 2**53 + 1}}}
    assert [hit["_id"] for hit in client.search(index=new, body=body)["hits"]["hits"]] == ["10.99"]


def test_a_field_that_an_index_maps_as_decimals_becomes_no_long(
    client: OpenSearch, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Decimals may come after the first documents, and a long would cut them."""
    new, large = f"{index_name}-new", 2**60 + 1
    kinds = {"user": ("long", "long"), "either": ("long", "double"), "sum": ("float", "float")}
    for at in (0, 1):
        mapping = {name: {"type": types[at]} for name, types in kinds.items()} | {"text": {"type": "text"}}
        client.indices.create(index=f"{index_name}-from{at}", body={"mappings": {"properties": mapping}})
        body = {"text": "rain", **dict.fromkeys(kinds, large)}
        client.index(index=f"{index_name}-from{at}", id=str(at), body=body, params={"refresh": "true"})
    corpus = CorpusSource(f"opensearch:{index_name}-from*")
    run_job(client, Job(corpus, new, new_index=NewIndex(replicas=0)), show_progress=False)
    fields = client.indices.get_mapping(index=new)[new]["mappings"]["properties"]
    assert {name: fields[name]["type"] for name in kinds} == {"user": "long", "either": "double", "sum": "double"}
    for name in kinds:
        assert (f"the field {name!r} holds whole numbers of more than 53 bits" in caplog.text) == (name != "user")


def test_fields_of_several_indexes_have_a_type_if_all_agree(client: OpenSearch, index_name: str) -> None:
    number, malformed = {"type": "double"}, {"type": "double", "ignore_malformed": True}
    for name, properties in {
        "a": {"price": {"type": "float"}, "stock": {"type": "long"}, "note": {"type": "text"}},
        "b": {"price": {"type": "keyword"}, "stock": {"type": "integer"}, "dense": {"type": "keyword"}},
        "c": {"price": {"type": "float"}},
    }.items():
        settings = {"index.mapping.ignore_malformed": name == "a", "number_of_replicas": 0}
        body = {"mappings": {"properties": properties}, "settings": settings}
        client.indices.create(index=f"{index_name}-theirs-{name}", body=body)

    def fields(names: str) -> dict[str, Any]:
        corpus = f"opensearch:{index_name}-theirs-{names}"
        return plain_fields(client, corpus, mappings_of(client, corpus), FieldNames())

    two, three = ({"type": "keyword", "ignore_above": above} for above in (2, 3))
    for name, subfields in {"d": {"a": two, "b": two, "c": two}, "e": {"b": two, "c": three}}.items():
        properties = {"title": {"type": "text", "fields": subfields}, "price": {"type": "float", "fields": subfields}}
        client.indices.create(index=f"{index_name}-theirs-{name}", body={"mappings": {"properties": properties}})
    kept = fields(f"d,{index_name}-theirs-e")
    assert kept == {"title": {"fields": {"a": two, "b": two}}, "price": {**number, "fields": {"a": two, "b": two}}}
    client.indices.delete(index=f"{index_name}-theirs-d,{index_name}-theirs-e")
    assert fields("a") == {"price": malformed, "stock": malformed}
    assert fields("b").keys() == {"price", "stock"} and fields("b")["stock"] == number
    assert fields("c") == {"price": number}
    assert fields("*") == {"stock": malformed}


def test_fields_that_several_indexes_map_differently_are_named_and_dates_refused(
    client: OpenSearch, index_name: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Dates of one of them were of 1970 in the new index, and ranges over prices compared characters, without a word."""
    kinds: dict[str, list[dict[str, Any]]] = {
        "price": [{"type": "keyword"}, {"type": "long"}],
        "stock": [{"type": "long"}, {"type": "float", "ignore_malformed": True}],
        "note": [{"type": "text"}, {"type": "keyword"}],
        "when": [{"type": "date"}, {"type": "date", "format": "epoch_second"}],
        "day": [{"type": "date"}, {"type": "date", "format": "strict_date_optional_time||epoch_millis"}],
        "text": [{"type": "text"}, {"type": "match_only_text"}],
    }
    values = [{"price": "9", "when": "2025-03-14T00:00:00Z"}, {"price": 10, "when": 1_770_000_000}]
    for at in (0, 1):
        mappings = {"properties": {name: several[at] for name, several in kinds.items()}}
        body = {"mappings": mappings, "settings": {"number_of_replicas": 0}}
        client.indices.create(index=f"{index_name}-theirs-{at}", body=body)
        client.index(index=f"{index_name}-theirs-{at}", id=str(at), body={"text": "rain", **values[at]}, refresh=True)
    job = Job(CorpusSource(f"opensearch:{index_name}-theirs-*"), f"{index_name}-new", new_index=NewIndex(replicas=0))
    with pytest.raises(InputError, match=r"formats of the date 'when': strict_.*_millis and epoch_second"):
        run_job(client, job, show_progress=False)
    dates = {at: {"type": "date", "locale": at} for at in ("de", "en")}
    answer = {at: {"mappings": {"properties": {"when": date}}} for at, date in dates.items()}
    with pytest.raises(InputError, match=r"'when': strict_.*_millis de and strict_.*_millis en"):
        corpus_from_index.check_alike("opensearch:theirs", answer, FieldNames(), {})
    mapping = tmp_path / "mapping.json"
    mapping.write_text('{"when": {"type": "date", "format": "strict_date_optional_time||epoch_second"}}')
    run_job(client, replace(job, new_index=NewIndex(replicas=0, mapping=mapping)), show_progress=False)
    (told,) = [line for line in caplog.messages if "map these fields differently" in line]
    assert "note (text, keyword), price (keyword, long);" in told and "stock" not in told and "day" not in told
    query = {"range": {"when": {"gte": "2026-01-01"}}}
    assert client.count(index=job.index, body={"query": query})["count"] == 1


def test_title_text_and_plain_fields_keep_their_subfields(
    client: OpenSearch, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A sort by `title.raw` was refused in the new index, and no mapping of one's own could say otherwise."""
    theirs, new = f"{index_name}-theirs", f"{index_name}-new"
    raw = {"type": "keyword", "ignore_above": 256}
    german, own = {"type": "text", "analyzer": "german"}, {"type": "text", "analyzer": "ours"}
    settings = {"analysis": {"analyzer": {"ours": {"tokenizer": "standard"}}}, "number_of_replicas": 0}
    mapping = {
        "title": {"type": "text", "fields": {"raw": raw, "de": german, "own": own}},
        "body": {"type": "text", "fields": {"keyword": raw}},
        "price": {"type": "float", "fields": {"keyword": raw}},
        "day": {"type": "date", "fields": {"keyword": {"type": "keyword"}, "raw": raw}},
    }
    client.indices.create(index=theirs, body={"mappings": {"properties": mapping}, "settings": settings})
    lines: list[dict[str, Any]] = []
    for id, title in {"1": "Tasse", "2": ["Becher", "Zuber"], "3": "Häuser"}.items():
        lines += [
            {"index": {"_id": id}},
            {"title": title, "body": f"Nr. {id}", "price": f"{id}.50", "day": "2024-03-01"},
        ]
    assert not client.bulk(index=theirs, body=lines, params={"refresh": "true"})["errors"]
    run_job(client, Job(CorpusSource(f"opensearch:{theirs}"), new, new_index=NewIndex(replicas=0)), show_progress=False)

    def ids(index: str, **body: Any) -> list[str]:
        return [hit["_id"] for hit in client.search(index=index, body=body)["hits"]["hits"]]

    for index in (theirs, new):
        assert ids(index, sort=[{"title.raw": "asc"}]) == ["2", "3", "1"]
        assert ids(index, query={"term": {"title.raw": "Zuber"}}) == ["2"]
        assert ids(index, query={"match": {"title.de": "Haus"}}) == ["3"]
        assert ids(index, query={"term": {"price.keyword": "2.50"}}) == ["2"]
    assert ids(new, query={"term": {"text.keyword": "Nr. 1"}}) == ["1"]
    (held,) = client.indices.get_mapping(index=new).values()
    assert held["mappings"]["properties"]["day"]["fields"].keys() == {"keyword", "raw"}
    (warned,) = [each.getMessage() for each in caplog.records if "queries that name" in each.getMessage()]
    told = {"title.own (not there)", "body (called text there)", "body.keyword (called text.keyword there)"}
    assert set(warned.partition("or none: ")[2].partition(";")[0].split(", ")) == told
    # Its own index is a corpus again, with the same subfields.
    again = mappings_of(client, f"opensearch:{new}")
    kept = plain_fields(client, f"opensearch:{new}", again, FieldNames())
    assert kept["title"] == {"fields": {"raw": raw, "de": german}} and kept["text"] == {"fields": {"keyword": raw}}


def test_subfields_leave_out_what_the_setting_of_their_index_says(
    client: OpenSearch, index_name: str, tmp_path: Path
) -> None:
    """Before, every document with words in the title was a dead letter."""
    theirs, new = f"{index_name}-theirs", f"{index_name}-new"
    kinds = ("long", "unsigned_long", "scaled_float", "date", "date_nanos", "ip", "geo_point", "geo_shape")
    fields = {kind: {"type": kind} | ({"scaling_factor": 10} if kind == "scaled_float" else {}) for kind in kinds}
    fields |= {"raw": {"type": "keyword"}}
    body = {"mappings": {"properties": {"title": {"type": "text", "fields": fields}}}}
    settings = {"index.mapping.ignore_malformed": True, "number_of_replicas": 0}
    client.indices.create(index=theirs, body={**body, "settings": settings})
    client.index(index=theirs, id="1", body={"title": "Tasse mit Henkel"}, refresh=True)
    made = Job(CorpusSource(f"opensearch:{theirs}"), new, new_index=NewIndex(replicas=0))
    report = run_job(client, replace(made, dead_letters=tmp_path / "dead"), show_progress=False)
    assert (report.documents, report.letters) == (1, 0)
    # Of two indexes, one may leave out and the other refuse: the new one takes the documents of both.
    fields["date"] = {"type": "date", "ignore_malformed": False}
    client.indices.create(
        index=f"{theirs}-0", body={"mappings": {"properties": {"title": {"fields": fields, "type": "text"}}}}
    )
    corpus = f"opensearch:{theirs}*"
    kept = plain_fields(client, corpus, mappings_of(client, corpus), FieldNames())["title"]["fields"]
    assert {name for name, how in kept.items() if how.get("ignore_malformed")} == {*kinds}
    assert kept["raw"] == {"type": "keyword"}


def test_subfields_count_among_the_fields_that_an_index_may_have(
    client: OpenSearch, index_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    theirs, new = f"{index_name}-theirs", f"{index_name}-new"
    properties = {f"f{n}": {"type": "keyword", "fields": {"raw": {"type": "keyword"}}} for n in range(600)}
    properties["title"] = {"type": "text"}
    settings = {"index.mapping.total_fields.limit": 2000, "number_of_replicas": 0}
    client.indices.create(index=theirs, body={"mappings": {"properties": properties}, "settings": settings})
    client.index(index=theirs, id="1", body={"title": "rain", "f0": "a"}, refresh=True)
    made = Job(CorpusSource(f"opensearch:{theirs}"), new, new_index=NewIndex(replicas=0))
    with caplog.at_level(logging.WARNING), pytest.raises(ClusterError, match="total fields"):
        run_job(client, made, show_progress=False)  # an index template might allow more
    assert "1,200 fields and subfields have a mapping" in caplog.text and "--field-limit" in caplog.text
    made = replace(made, new_index=NewIndex(replicas=0, field_limit=1000))
    with pytest.raises(InputError, match=r"1,200 fields and subfields have a mapping, and .* only 980 beside") as error:
        run_job(client, made, show_progress=False)
    assert error.value.remedy and "--field-limit" in error.value.remedy
    assert not client.indices.exists(index=new)
    made = replace(made, new_index=NewIndex(replicas=0, field_limit=1220))
    assert run_job(client, made, show_progress=False).documents == 1


@pytest.mark.parametrize("kind", ["text", "match_only_text", "search_as_you_type"])
def test_a_subfield_with_the_default_analyzer_of_queries_is_left_out(
    client: OpenSearch, index_name: str, kind: str
) -> None:
    """OpenSearch prefers it to the analyzer of the documents, even to one that the field names."""
    theirs = f"{index_name}-theirs"
    named = {"type": kind, "analyzer": "german"}
    fields = {"plain": {"type": kind}, "named": named, "both": {**named, "search_analyzer": "german"}}
    settings = {"analysis": {"analyzer": {"default_search": {"tokenizer": "keyword"}}}, "number_of_replicas": 0}
    body = {"mappings": {"properties": {"title": {"type": "text", "fields": fields}}}, "settings": settings}
    client.indices.create(index=theirs, body=body)
    client.index(index=theirs, id="1", body={"title": "Haus Baum"}, refresh=True)
    found = {}
    for field in fields:
        query = {"match": {f"title.{field}": "baum haus"}}
        found[field] = client.search(index=theirs, body={"query": query})["hits"]["total"]["value"]
    assert found == {"plain": 0, "named": 0, "both": 1}
    corpus = f"opensearch:{theirs}"
    kept = plain_fields(client, corpus, mappings_of(client, corpus), FieldNames())
    assert kept["title"]["fields"].keys() == {"both"}


def test_a_query_that_names_a_field_of_the_old_index_is_warned_of_until_an_alias_stands_for_it(
    client: OpenSearch, theirs: str, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = CorpusSource(f"opensearch:{theirs}", title_field="headline", text_field="story", limit=20)
    query = {"query": {"multi_match": {"query": "rain", "fields": ["headline^3", "story"]}}}
    mapping = tmp_path / "mapping.json"
    mapping.write_text(json.dumps({"story": {"type": "alias", "path": "text"}}))
    gone = {"headline (called title there)", "headline.keyword (called title.keyword there)"}
    gone |= {"story.keyword (called text.keyword there)"}
    for job, warned, hits in (
        (Job(source, f"{index_name}-0", new_index=NewIndex(replicas=0)), gone | {"story (called text there)"}, 0),
        (Job(source, f"{index_name}-1", new_index=NewIndex(replicas=0, mapping=mapping)), gone, 20),
    ):
        caplog.clear()
        run_job(client, job, show_progress=False)
        said = next(record.getMessage() for record in caplog.records if "queries that name" in record.getMessage())
        assert set(said.partition("or none: ")[2].partition(";")[0].split(", ")) == warned
        assert client.search(index=job.index, body=query)["hits"]["total"]["value"] == hits
        client.indices.delete(index=job.index)


@pytest.mark.skipif(not Path("/proc").exists(), reason="elsewhere the second run waits for a minute")
def test_a_killed_ingest_of_an_index_continues_and_takes_every_document_once(
    client: OpenSearch,
    cluster_url: str,
    theirs: str,
    index_name: str,
    osn: Callable[..., subprocess.CompletedProcess[str]],
    osn_home: Path,
) -> None:
    """SIGKILL, and the same command at once: the killed process is not waited for, although nobody has reaped it."""
    ingest = [*ingest_of(theirs, index_name), "--batch-docs", "50"]
    with FaultProxy(cluster_url) as proxy:
        proxy.fault = lambda request: Fault("delay", seconds=0.1)
        killed = subprocess.Popen(
            [sys.executable, "-m", "opensearch_neural.cli", *ingest],
            env=os.environ | {"OSN_URL": proxy.url, "OSN_HOME": str(osn_home)},
        )
        deadline = time.monotonic() + 60
        while len(proxy.bulks) < 20:
            assert killed.poll() is None and time.monotonic() < deadline, "the ingest does not write"
            time.sleep(0.01)
        killed.kill()
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
    began = time.monotonic()
    again = osn(*ingest, "--json")
    assert again.returncode == 0, again.stderr
    assert time.monotonic() - began < 30
    killed.wait()
    report = json.loads(again.stdout)
    assert report["documents"] == 2500
    # Of at least twenty batches of fifty, 2 · writers + 1 were under way.
    assert report["skipped"] >= 500
    client.indices.refresh(index=index_name)
    hits = client.search(index=index_name, body={"size": 5000, "_source": ["price"]})["hits"]["hits"]
    assert sorted(hit["_id"] for hit in hits) == sorted(f"d{number}" for number in range(2500))
    assert all(hit["_id"] == f"d{hit['_source']['price']}" for hit in hits)


def test_an_ingest_that_is_killed_within_a_slice_begins_again_and_takes_every_document(
    client: OpenSearch,
    cluster_url: str,
    theirs: str,
    index_name: str,
    osn: Callable[..., subprocess.CompletedProcess[str]],
    osn_home: Path,
) -> None:
    ingest = ingest_of(theirs, index_name)
    within = threading.Event()

    def fault(request: Request) -> Fault | None:
        """The second page of a slice is waited for when the kill comes."""
        if b'"search_after"' not in request.body:
            return None
        within.set()
        return Fault("delay", seconds=30)

    with FaultProxy(cluster_url, everything=True) as proxy:
        proxy.fault = fault
        killed = subprocess.Popen(
            [sys.executable, "-m", "opensearch_neural.cli", *ingest],
            env=os.environ | {"OSN_URL": proxy.url, "OSN_HOME": str(osn_home)},
        )
        assert within.wait(60)
        killed.kill()
        killed.wait()
        assert not client.indices.exists(index=index_name)
        again = osn(*ingest, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["documents"] == 2500
    hits = client.search(index=index_name, body={"size": 5000, "_source": False})["hits"]["hits"]
    assert sorted(hit["_id"] for hit in hits) == sorted(f"d{number}" for number in range(2500))


def test_an_index_is_read_by_an_ingest_alone() -> None:
    with pytest.raises(InputError, match="only `osn ingest` reads an index"), spooled("opensearch:articles"):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a file that is always full")
def test_a_full_temporary_folder_is_named(client: OpenSearch, index_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: `No space left on device`, without saying where."""
    client.index(index=index_name, body={"text": "rain"}, refresh=True)
    monkeypatch.setattr(corpus_from_index.tempfile, "TemporaryFile", lambda: Path("/dev/full").open("wb"))  # noqa: SIM115
    named = f"folder {tempfile.gettempdir()} is full; opensearch:{index_name} "
    with pytest.raises(InputError, match=named) as error, spooled(f"opensearch:{index_name}", client):
        pass
    assert "TMPDIR" in str(error.value.remedy)
