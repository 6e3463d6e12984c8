"""Single documents of an index: added, changed and deleted as if the whole corpus had been ingested so."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from corpora import WORDS, job, records, snapshot, write_jsonl
from fault_proxy import Fault, FaultProxy, Request

from ingest.commands.documents import ids_in, parse_change
from ingest.documents import Documents, delete_documents, other_to_write, read_document
from ingest.error_limit import TooManyErrors
from ingest.inspection import lost_ids
from ingest.job import Job, run_job
from ingest.settings import Writing
from ingest.versions.swap import Gate, check_swap
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.corpus.documents import Document
from opensearch_neural.engines import open_engines
from opensearch_neural.errors import ClusterError, InputError, ModelError
from opensearch_neural.index.record import DenseMeta, IndexMeta, PassageMeta, QuantizedMeta, SparseMeta, existing_record
from opensearch_neural.queries import MOST_HITS

HUNDRED = records(100)


@pytest.fixture(params=[None, PassageMeta(5, 3)], ids=["documents", "passages"])
def passages(request: pytest.FixtureRequest) -> PassageMeta | None:
    return request.param


@pytest.fixture
def index(client: Any, index_name: str, tmp_path: Path, passages: PassageMeta | None) -> str:
    corpus = write_jsonl(tmp_path / "d.jsonl", HUNDRED)
    run_job(client, job(corpus, index_name, passages=passages), show_progress=False)
    return index_name


def as_if_ingested(client: Any, index: str, tmp_path: Path, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What an index of the same model would hold, had these documents been ingested."""
    mapping = client.indices.get_mapping(index=index)[index]["mappings"]
    other = f"{index}-expected"
    client.indices.create(index=other, body={"mappings": mapping, "settings": {"index": {"number_of_replicas": 0}}})
    run_job(client, job(write_jsonl(tmp_path / "e.jsonl", lines), other), show_progress=False)
    return snapshot(client, other)


def test_adding_is_ingesting(client: Any, index: str, tmp_path: Path) -> None:
    more = records(30, seed=2)
    changed = [{**record, "text": "prism " * 3} for record in HUNDRED[:5]]
    written = Documents(client, index).add([*more, *changed])
    assert (written.created, written.replaced, written.refused) == (30, 5, [])
    assert snapshot(client, index) == as_if_ingested(client, index, tmp_path, [*changed, *HUNDRED[5:], *more])


def test_what_is_refused_is_returned_and_costs_no_other(client: Any, index: str) -> None:
    before = len(snapshot(client, index))
    documents = Documents(client, index)
    written = documents.add(
        [
            {"_id": "no text"},
            {"_id": "field", "text": "rain", "sparse": {"x": 1}},
            {"_id": "type", "text": "rain", "year": "MCM"},
            Document("y" * 600, "rain"),
            {"text": "no id"},
            None,  # type: ignore[list-item]
            {"_id": "good", "text": "rain"},
        ]
    )
    assert (written.created, written.replaced) == (1, 0)
    assert sorted(each.id[:9] for each in written.refused) == ["", "", "field", "no text", "type", "y" * 9]
    assert all(each.reason for each in written.refused)
    assert len(snapshot(client, index)) == before + 1


def test_of_two_with_one_id_the_later_counts(client: Any, index: str) -> None:
    written = Documents(client, index).add([{"_id": "a", "text": "rain"}, {"_id": "a", "text": "sun"}])
    assert written.created == 1
    assert read_document(client, index, "a") == Document("a", "sun")


def test_an_update_keeps_what_it_does_not_change_and_encodes_anew(client: Any, index: str, tmp_path: Path) -> None:
    id = HUNDRED[7]["_id"]
    documents = Documents(client, index)
    changed = documents.update(id, {"text": "prism " * 20, "year": 2026, "url": None, "tags": ["x", "y"]})
    expected = {**HUNDRED[7], "text": "prism " * 20, "year": 2026, "tags": ["x", "y"]}
    del expected["url"]
    assert changed.record() == {"_id": id, "title": HUNDRED[7]["title"], **expected}
    found = snapshot(client, index)
    assert found == as_if_ingested(client, index, tmp_path, [*HUNDRED[:7], expected, *HUNDRED[8:]])
    body = open_engines(client, index).body("sparse", "prism", size=1)
    assert client.search(index=index, body=body)["hits"]["hits"][0]["_id"].partition("#")[0] == id


def test_an_update_knows_the_text_by_the_names_that_adding_knows_it_by(client: Any, index: str) -> None:
    documents = Documents(client, index)
    documents.add([{"_id": "newt", "title": "Newts", "body": "limbs grow again", "summary": "s"}])
    changed = documents.update("newt", {"body": "hearts heal"})
    assert (changed.text, changed.fields) == ("hearts heal", {"summary": "s"})
    # Beside a text, such a name is a field of the document's own.
    documents.add([{"_id": "newt", "title": "Newts", "text": "limbs", "body": "amphibian"}])
    changed = documents.update("newt", {"body": "long"})
    assert (changed.text, changed.fields) == ("limbs", {"body": "long"})


SHOES = {"_id": "1", "name": "Red shoes", "story": "limbs grow again", "price": 1}
"""A record of a shop, which calls the title `name` and the text `story`."""


@pytest.fixture
def shop(client: Any, index_name: str, tmp_path: Path, passages: PassageMeta | None) -> str:
    """An index whose ingest was told the names of title and text."""
    ingest = job(write_jsonl(tmp_path / "s.jsonl", [SHOES]), index_name, passages=passages)
    named = replace(ingest.corpus, title_field="name", text_field="story")
    run_job(client, replace(ingest, corpus=named), show_progress=False)
    return index_name


def test_names_of_title_and_text_are_those_that_the_first_ingest_was_told(
    client: Any, shop: str, tmp_path: Path
) -> None:
    """The second ingest, `add` and `update` are not told them again."""
    more = [
        {**SHOES, "_id": "2", "story": "hearts heal"},
        {"_id": "3", "title": "Blue shoes", "text": "as in the index"},
    ]
    report = run_job(client, job(write_jsonl(tmp_path / "m.jsonl", more), shop), show_progress=False)
    assert (report.documents, report.letters) == (2, 0)
    documents = Documents(client, shop)
    written = documents.add([{**SHOES, "_id": "4", "title": "a new title", "body": "long"}, {**SHOES, "_id": "5"}])
    assert (written.created, written.refused) == (2, [])
    held = {id: documents.get(id) for id in "12345"}
    assert held == {
        "1": Document("1", "limbs grow again", "Red shoes", fields={"price": 1}),
        "2": Document("2", "hearts heal", "Red shoes", fields={"price": 1}),
        "3": Document("3", "as in the index", "Blue shoes"),
        # The names that an index has itself come first, and `body` is a field like any other in this index.
        "4": Document("4", "limbs grow again", "a new title", fields={"name": "Red shoes", "body": "long", "price": 1}),
        "5": Document("5", "limbs grow again", "Red shoes", fields={"price": 1}),
    }
    changed = documents.update("5", {"story": "hearts heal", "name": "Green shoes", "price": 2})
    assert documents.get("5") == Document("5", "hearts heal", "Green shoes", fields={"price": 2})
    assert changed.record() == {"_id": "5", "title": "Green shoes", "text": "hearts heal", "price": 2}
    assert documents.update("5", {"text": "limbs"}).text == "limbs"
    with pytest.raises(InputError, match="4: no text: expected a field text or story; the record has"):
        documents.update("4", {"text": None, "title": None})  # `body` does not become the text
    assert set(client.indices.get_mapping(index=shop)[shop]["mappings"]["properties"]) >= {"title", "text", "price"}
    assert "story" not in client.indices.get_mapping(index=shop)[shop]["mappings"]["properties"]


def test_an_update_of_a_document_with_only_a_title_takes_no_other_field_for_its_text(client: Any, index: str) -> None:
    documents = Documents(client, index)
    documents.add([{"_id": "own", "title": "hearts heal", "text": "limbs grow", "body": "grow"}])
    assert documents.update("own", {"text": ""}).fields == {"body": "grow"}
    documents.update("own", {"price": 3})
    assert documents.get("own") == Document("own", "", "hearts heal", fields={"body": "grow", "price": 3})


def test_names_that_a_later_run_corrects_are_those_of_the_index(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The index kept the names of a run that was interrupted, or of which no document was accepted."""

    def named(settings: Job, **fields: str) -> Job:
        return replace(settings, corpus=replace(settings.corpus, **fields))

    both = [{"_id": str(number), "content": "short", "story": "limbs grow again"} for number in range(9)]
    torn = write_jsonl(tmp_path / "a.jsonl", [*both, "torn"])
    interrupted = job(torn, f"{index_name}-a", sparse="none", writing={"max_errors": 0})
    with pytest.raises(TooManyErrors):
        run_job(client, interrupted, show_progress=False)
    refused = job(
        write_jsonl(tmp_path / "b.jsonl", [{"_id": "1", "story": "limbs grow"}]), f"{index_name}-b", sparse="none"
    )
    assert run_job(client, refused, show_progress=False).documents == 0
    for settings in (replace(interrupted, writing=Writing()), refused):
        assert run_job(client, named(settings, text_field="story"), show_progress=False).documents > 0
        documents = Documents(client, settings.index)
        assert existing_record(client, settings.index).names == {"text": "story"} and not caplog.messages
        documents.add([{"_id": "new", "story": "hearts heal", "content": "short"}])
        assert documents.get("new") == Document("new", "hearts heal", fields={"content": "short"})
    other = write_jsonl(tmp_path / "c.jsonl", [{"_id": "2", "tale": "hearts heal"}])
    run_job(client, named(job(other, refused.index, sparse="none"), text_field="tale"), show_progress=False)
    assert existing_record(client, refused.index).names == {"text": "story"}
    assert f"read the text of documents of '{refused.index}' as text or story" in caplog.text


def test_a_command_adds_documents_by_the_names_that_the_first_ingest_was_told(
    osn: Callable[..., subprocess.CompletedProcess[str]], client: Any, shop: str
) -> None:
    ran = osn("documents", "add", "--index", shop, "-", input=json.dumps({**SHOES, "_id": "2", "story": "hearts heal"}))
    assert ran.returncode == 0, ran.stderr
    assert read_document(client, shop, "2") == Document("2", "hearts heal", "Red shoes", fields={"price": 1})


@pytest.mark.parametrize("mapping", [None, {"a": {"type": "object"}}], ids=["flat", "object"])
def test_a_field_with_a_dot_in_its_name_is_changed_where_it_lies(
    client: Any, index_name: str, tmp_path: Path, passages: PassageMeta | None, mapping: dict[str, Any] | None
) -> None:
    if mapping is not None:
        (tmp_path / "mapping.json").write_text(json.dumps(mapping))
    lines = [{"_id": "x", "text": "rain", "a.b": 1, "a.c.d": "kept"}, {"_id": "y", "text": "sun", "a": {"b": 1}}]
    settings = job(
        write_jsonl(tmp_path / "d.jsonl", lines),
        index_name,
        sparse="none",
        passages=passages,
        mapping=None if mapping is None else tmp_path / "mapping.json",
    )
    run_job(client, settings, show_progress=False)
    documents = Documents(client, index_name)

    def held(id: str) -> dict[str, Any]:
        found = documents.get(id)
        assert found is not None
        return found.fields

    def ids(value: int) -> list[str]:
        answer = client.search(index=index_name, body={"query": {"term": {"a.b": value}}, "sort": ["_id"]})
        return [hit["_id"].partition("#")[0] for hit in answer["hits"]["hits"]]

    assert ids(1) == ["x", "y"]
    changed = documents.update("x", {"a.b": 2})
    assert changed.fields == held("x") == {"a": {"b": 2, "c": {"d": "kept"}}}
    assert (ids(1), ids(2)) == (["y"], ["x"])
    documents.update("x", {"a.b": None, "a.e": 3})
    assert held("x") == {"a": {"c": {"d": "kept"}, "e": 3}}
    documents.update("y", {"a.b": None})
    assert held("y") == {} and ids(1) == []


def test_a_field_of_a_list_of_objects_is_changed_with_the_list_alone(client: Any, index: str) -> None:
    documents = Documents(client, index)
    documents.add([{"_id": "x", "text": "rain", "a": [{"b": 1}, {"b": 2}]}])
    for changes in ({"a.b": 4}, {"a.b": None}):
        with pytest.raises(InputError, match="'a' is a list of objects, so 'b' of one of them cannot be changed"):
            documents.update("x", changes)
    documents.update("x", {"a": [{"b": 4}], "n": 1})
    assert documents.get("x") == Document("x", "rain", fields={"a": [{"b": 4}], "n": 1})


def test_a_document_that_becomes_shorter_leaves_no_passage_behind(client: Any, index: str, tmp_path: Path) -> None:
    id = HUNDRED[9]["_id"]
    Documents(client, index).update(id, {"text": "rain"})
    left = [key for key in snapshot(client, index) if key.startswith(id)]
    assert len(left) == 1
    # The same holds for a whole corpus that is ingested again.
    shorter = [{**record, "text": "sun drop"} for record in HUNDRED]
    run_job(client, job(write_jsonl(tmp_path / "s.jsonl", shorter), index), show_progress=False)
    assert len(snapshot(client, index)) == 100


@pytest.mark.parametrize("text", ["rain", " ".join(WORDS), "  rain\n\n sun\tdrop   light  \n" * 9])
def test_a_document_is_read_as_it_was_written(client: Any, index: str, text: str) -> None:
    documents = Documents(client, index)
    document = Document("a", text, "a title", "https://x.org", {"n": 1, "tags": ["b"]})
    documents.add([document])
    found = documents.get("a")
    assert found is not None
    assert found.text.split() == text.split()
    assert (found.title, found.url, found.fields) == (document.title, document.url, document.fields)
    assert documents.get("missing") is None


@contextmanager
def without_shard(client: Any, index: str, shard: int) -> Iterator[None]:
    """The primary shard of the index is nowhere meanwhile: OpenSearch answers searches by the other shards alone."""
    recoveries = "cluster.routing.allocation.node_initial_primaries_recoveries"
    shards = client.cat.shards(index=index, params={"format": "json"})
    (node,) = {each["node"] for each in shards if int(each["shard"]) == shard}
    cancel = {"index": index, "shard": shard, "node": node, "allow_primary": True}
    client.cluster.put_settings(body={"transient": {recoveries: 0}})
    try:
        client.cluster.reroute(body={"commands": [{"cancel": cancel}]})
        yield
    finally:
        client.cluster.put_settings(body={"transient": {recoveries: None}})
        client.cluster.reroute()
        client.cluster.health(index=index, params={"wait_for_status": "green"})


def test_a_document_is_not_read_changed_or_deleted_by_a_part_of_its_passages(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path
) -> None:
    """A shard is lost after the refresh, which waits for it."""
    text = " ".join(random.Random(5).choices(WORDS, k=60))
    corpus = write_jsonl(tmp_path / "d.jsonl", [{"_id": "long", "text": text}])
    run_job(client, job(corpus, index_name, passages=PassageMeta(5, 5), shards=2), show_progress=False)
    before = snapshot(client, index_name)
    with FaultProxy(cluster_url, everything=True) as proxy:
        asked = connect(proxy.url)
        documents = Documents(asked, index_name)
        for ask in (
            lambda: read_document(asked, index_name, "long"),
            lambda: documents.update("long", {"title": "x"}),
            lambda: delete_documents(asked, index_name, ["long"]),
        ):
            with ExitStack() as until_answered:

                def lose(request: Request) -> None:
                    if request.path == f"/{index_name}/_search":
                        until_answered.enter_context(without_shard(client, index_name, 1))
                        hits = client.search(index=index_name, body={"size": 100})["hits"]["hits"]
                        assert 0 < len(hits) < len(before)

                proxy.fault = lose
                with pytest.raises(ClusterError, match="no node answers for 1 of 2 shards"):
                    ask()
            assert snapshot(client, index_name) == before
    Documents(client, index_name).update("long", {"title": "x"})
    held = read_document(client, index_name, "long")
    assert held is not None and (held.title, held.text) == ("x", text)


def test_documents_are_not_counted_while_a_shard_is_nowhere(
    osn: Callable[..., subprocess.CompletedProcess[str]],
    client: Any,
    index_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ingest.writing.stored_documents.time", SimpleNamespace(sleep=lambda seconds: None))
    alias = f"{index_name}-a"
    corpus = write_jsonl(tmp_path / "d.jsonl", HUNDRED)
    settings = replace(job(corpus, "", passages=PassageMeta(5, 5), shards=2), alias=alias)
    index = run_job(client, settings, show_progress=False).index
    with without_shard(client, index, 1):
        ran = osn("index", "inspect", alias)
        assert "passages, and 1 shards do not answer" in ran.stdout, ran.stderr
        with pytest.raises(ClusterError, match=r"1 shards of .* do not answer"):
            check_swap(client, alias, index, Gate())


def test_of_a_document_of_very_many_passages_an_update_keeps_all(client: Any, index_name: str, tmp_path: Path) -> None:
    """More than one search returns."""
    text = " ".join(f"word{number}" for number in range(MOST_HITS + 5))
    corpus = write_jsonl(tmp_path / "d.jsonl", [{"_id": "long", "text": text}])
    settings = job(corpus, index_name, sparse=None, tokenizer=None, passages=PassageMeta(1, 1))
    assert run_job(client, settings, show_progress=False).documents == MOST_HITS + 5
    with Documents(client, index_name) as documents:
        documents.update("long", {"title": "x"})
        assert documents.get("long") == Document("long", text, "x")


def test_deleting_needs_no_model(client: Any, index: str, osn_home: Path) -> None:
    import shutil

    shutil.rmtree(osn_home)
    gone = [record["_id"] for record in HUNDRED[:30]]
    assert delete_documents(client, index, [*gone, "never there", gone[0]]) == 30
    left = {key.partition("#")[0] for key in snapshot(client, index)}
    assert left == {record["_id"] for record in HUNDRED[30:]}
    assert delete_documents(client, index, gone) == 0


def test_an_alias_with_a_filter_or_a_routing_hides_no_document_from_a_deletion(
    client: Any, index_name: str, tmp_path: Path, passages: PassageMeta | None
) -> None:
    """Nothing is hidden from `add` and `update`, either."""
    corpus = write_jsonl(tmp_path / "d.jsonl", HUNDRED)
    run_job(client, job(corpus, index_name, passages=passages, shards=4), show_progress=False)
    nothing = {"filter": {"term": {"lang": "none"}}, "routing": "elsewhere"}
    client.indices.put_alias(index=index_name, name=f"{index_name}-few", body=nothing)
    ids = [record["_id"] for record in HUNDRED[:20]]
    for id in ids:
        assert read_document(client, f"{index_name}-few", id) == read_document(client, index_name, id) is not None
    with Documents(client, f"{index_name}-few") as documents:
        assert documents.add(HUNDRED[:20]).replaced == 20 and documents.update(ids[0], {"year": 7}).fields["year"] == 7
        assert documents.delete(ids) == 20
    assert {key.partition("#")[0] for key in snapshot(client, index_name)} == {record["_id"] for record in HUNDRED[20:]}


def test_an_alias_that_moves_within_a_deletion_or_a_reading_leads_to_one_index_only(
    client: Any, cluster_url: str, index_name: str, tmp_path: Path
) -> None:
    """One build holds passages and the other documents: the record of one says nothing of the other."""
    corpus = write_jsonl(tmp_path / "d.jsonl", HUNDRED)
    alias, builds = f"{index_name}-alias", [f"{index_name}-0", f"{index_name}-1"]
    for build, passages in zip(builds, (PassageMeta(5, 5), None), strict=True):
        run_job(client, job(corpus, build, passages=passages), show_progress=False)
    before = snapshot(client, builds[1])
    whole = read_document(client, builds[0], HUNDRED[0]["_id"])

    def name(build: str) -> None:
        to = [{"remove": {"index": f"{index_name}-*", "alias": alias}}, {"add": {"index": build, "alias": alias}}]
        client.indices.update_aliases(body={"actions": to[1:] if not client.indices.exists_alias(name=alias) else to})

    with FaultProxy(cluster_url, everything=True) as proxy:
        asked = connect(proxy.url)
        seen: list[str] = []

        def move(request: Request) -> None:
            seen.append(request.path)
            if len(seen) == 2:  # the first asks for the record
                name(builds[1])

        id = HUNDRED[0]["_id"]
        asks = ((lambda: read_document(asked, alias, id), whole), (lambda: delete_documents(asked, alias, [id]), 1))
        for ask, answer in asks:
            name(builds[0])
            seen.clear()
            proxy.fault = move
            assert ask() == answer
            proxy.fault = lambda request: None
            assert not any("_settings" in path for path in seen), "which needs a right of its own"
            assert seen[0].endswith("/_mapping") and len(seen) > 1
    assert snapshot(client, builds[1]) == before
    assert read_document(client, builds[0], HUNDRED[0]["_id"]) is None


def test_a_refused_document_has_its_id_by_whatever_name(client: Any, index_name: str, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", [{"sku": "a/1", "text": "rain"}])
    settings = job(corpus, index_name)
    run_job(client, replace(settings, corpus=replace(settings.corpus, id_field="sku")), show_progress=False)
    written = Documents(client, index_name).add([{"sku": "a/2"}, {"_id": "a/3"}, {"text": "sun"}])
    assert [refused.id for refused in written.refused] == ["a/2", "a/3", ""]


def test_a_block_of_writes_is_told_as_one_by_a_deletion(client: Any, index_name: str, tmp_path: Path) -> None:
    """The answer holds it among failures of documents; it was told as a lack of credentials."""
    run_job(client, job(write_jsonl(tmp_path / "d.jsonl", HUNDRED), index_name), show_progress=False)
    client.indices.put_settings(index=index_name, body={"index.blocks.write": True})
    with pytest.raises(ClusterError, match=r"is blocked for POST .*_delete_by_query: .*index write \(api\)") as refused:
        Documents(client, index_name, patience=1).delete([HUNDRED[0]["_id"]])
    assert "index.blocks" in str(refused.value.remedy)


def test_one_that_is_not_in_a_list_is_refused_and_changes_nothing(client: Any, index_name: str, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", [{"_id": id, "text": "rain"} for id in ("1", "7", "17")])
    run_job(client, job(corpus, index_name), show_progress=False)
    documents = Documents(client, index_name)
    with pytest.raises(InputError, match="expected a list, found a single one: '17'"):
        documents.delete("17")
    with pytest.raises(InputError, match="expected a list"):
        documents.add({"_id": "2", "text": "sun"})  # type: ignore[arg-type]
    assert sorted(snapshot(client, index_name)) == ["1", "17", "7"]


def test_whole_numbers_are_ids_as_in_a_corpus(client: Any, index_name: str, tmp_path: Path) -> None:
    """`add` took them, and `delete([0])` left the document."""
    run_job(client, job(write_jsonl(tmp_path / "d.jsonl", records(3)), index_name), show_progress=False)
    documents = Documents(client, index_name)
    documents.add([{"_id": number, "text": "rain"} for number in (0, 1)])
    assert documents.update(0, {"_id": 0, "text": "sun"}).id == "0"
    assert documents.get(0) == Document("0", "sun")
    assert documents.delete([0, "1", "0"]) == 2 and len(snapshot(client, index_name)) == 3
    with pytest.raises(InputError, match="expected a list, found a single one: '0'"):
        documents.delete(0)  # type: ignore[arg-type]


def test_an_index_that_is_not_complete_takes_no_changes(client: Any, index_name: str, tmp_path: Path) -> None:
    """They were acknowledged, and undone by the ingest that was continued."""
    settings = job(write_jsonl(tmp_path / "d.jsonl", [*records(60), *["torn"] * 9]), index_name)
    with pytest.raises(TooManyErrors):
        run_job(client, replace(settings, writing=replace(settings.writing, max_errors=5)), show_progress=False)
    documents, id = Documents(client, index_name), records(1)[0]["_id"]
    for change in (
        lambda: documents.add([{"_id": "new", "text": "rain"}]),
        lambda: documents.update(id, {"title": "new"}),
        lambda: documents.delete([id]),
    ):
        with pytest.raises(ClusterError, match=r"is not complete: .*d\.jsonl is being written into it"):
            change()
    assert run_job(client, settings, show_progress=False).documents == 60
    assert documents.add([{"_id": "new", "text": "rain"}]).created == documents.delete([id]) == 1


def test_a_change_that_cannot_be_is_refused_and_changes_nothing(client: Any, index: str) -> None:
    before = snapshot(client, index)
    documents = Documents(client, index)
    id = HUNDRED[3]["_id"]
    for changes, message in [
        ({"year": "MCM"}, "failed to parse field"),
        ({"year": "MCM", "text": "rain"}, "failed to parse field"),
        ({"text": None, "title": None}, "no text"),
        ({"sparse": {}}, "the index uses itself"),
        ({"_id": "other"}, "cannot be changed"),
    ]:
        with pytest.raises(InputError, match=message):
            documents.update(id, changes)
    for unknown in ("missing", "half a pair \ud800", "long" * 2000):
        assert documents.get(unknown) is None
        with pytest.raises(InputError, match="holds no document"):
            documents.update(unknown, {"year": 1})
    assert snapshot(client, index) == before


def test_a_change_that_opensearch_refuses_is_told_with_its_cause(client: Any, index: str) -> None:
    client.indices.put_mapping(index=index, body={"properties": {"story": {"type": "alias", "path": "text"}}})
    with pytest.raises(InputError, match=r"Cannot write to a field alias \[story\]"):
        Documents(client, index).update(HUNDRED[3]["_id"], {"story": "rain"})


def test_of_two_updates_at_once_none_is_lost(client: Any, index_name: str, tmp_path: Path) -> None:
    run_job(client, job(write_jsonl(tmp_path / "d.jsonl", HUNDRED), index_name), show_progress=False)
    id = HUNDRED[0]["_id"]

    def update(name: str) -> None:
        documents = Documents(client, index_name)
        for number in range(5):
            documents.update(id, {f"{name}{number}": number}, refresh=False)

    threads = [threading.Thread(target=update, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    source = snapshot(client, index_name)[id]
    assert all(source[f"{name}{number}"] == number for name in "ab" for number in range(5))


@pytest.mark.parametrize("kind", ["add", "update", "delete"])
def test_each_request_of_a_write_has_the_patience_of_the_documents(
    client: Any, cluster_url: str, index: str, kind: str
) -> None:
    """And not that of the client, which is short here."""
    id = HUNDRED[0]["_id"]
    with FaultProxy(cluster_url, everything=True) as proxy:
        asked = connect(settings=ConnectionSettings((proxy.url,), patience=0.1))
        documents = Documents(asked, index, patience=30)
        writes: dict[str, Callable[[], object]] = {
            "add": lambda: documents.add([{"_id": "new", "text": "rain"}]),
            "update": lambda: documents.update(id, {"lang": "de"}),
            "delete": lambda: documents.delete([id]),
        }
        began = time.monotonic()
        proxy.fault = lambda request: Fault("status") if time.monotonic() - began < 1.5 else None
        writes[kind]()
    assert proxy.faults["status"] > 1
    held = read_document(client, index, id), read_document(client, index, "new")
    assert (held[0] is None, held[1] is None) == (kind == "delete", kind != "add")
    assert kind != "update" or (held[0] is not None and held[0].fields["lang"] == "de")


def test_writes_go_on_after_a_swap_to_the_same_model_of_another_folder(
    client: Any, index_name: str, tmp_path: Path, osn_home: Path
) -> None:
    """Before, a model that was copied or fetched under another name was taken for another one."""
    corpus = write_jsonl(tmp_path / "d.jsonl", HUNDRED)
    run_job(client, job(corpus, "", alias=index_name), show_progress=False)
    wrote = existing_record(client, index_name).sparse
    assert wrote is not None
    copied = shutil.copytree(osn_home / "models" / wrote.hash, tmp_path / "the-same-model")
    with Documents(client, index_name) as documents:
        again = job(corpus, "", alias=index_name, sparse=str(copied), tokenizer=None)
        run_job(client, replace(again, writing=replace(again.writing, restart=True)), show_progress=False)
        now = existing_record(client, index_name).sparse
        assert now is not None and (now.hash, now.name) == (wrote.hash, "the-same-model") != (wrote.hash, wrote.name)
        assert documents.add([{"_id": "more", "text": "rain"}]).created == 1
        other = write_jsonl(tmp_path / "other.jsonl", records(50, seed=3))
        gate = replace(again.gate, allow_shrink=True)
        run_job(client, replace(job(other, "", alias=index_name), gate=gate), show_progress=False)
        with pytest.raises(ModelError, match=r"was written with another sparse model: lexical \(.*\), not lexical \("):
            documents.add([{"_id": "later", "text": "rain"}])


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"sparse": SparseMeta("renamed", "aaaa", "bbbb")}, None),
        ({"sparse": SparseMeta("renamed", "aaaa", "another")}, "another IDF table"),
        ({"sparse": None}, "no sparse model"),
        ({"dense": DenseMeta("renamed", "cccc", 4, "float", True)}, None),
        ({"dense": DenseMeta("dense", "cccc", 4, "byte", True, 42.0)}, "other vectors of the dense model dense"),
        (
            {"dense": DenseMeta("dense", "dddd", 4, "float", True)},
            "another dense model: dense (dddd), not dense (cccc)",
        ),
        ({"quantized": QuantizedMeta("pq", "eeee", 8)}, "a quantized model, pq (eeee)"),
        ({"passages": PassageMeta(5, 3)}, "passages of 5:3 tokens, not whole documents"),
        ({"prune": "top_k:9"}, "sparse vectors that are pruned by top_k:9, not whole"),
    ],
)
def test_what_differs_between_two_builds_is_named(changed: dict[str, Any], told: str | None) -> None:
    meta = IndexMeta(SparseMeta("sparse", "aaaa", "bbbb"), DenseMeta("dense", "cccc", 4, "float", True))
    assert other_to_write(meta, replace(meta, **changed)) == told


@pytest.mark.parametrize("stored", [True, False])
def test_opensearchs_own_update_keeps_the_vectors_where_they_are_stored(
    client: Any, index_name: str, tmp_path: Path, stored: bool
) -> None:
    """As docs/how-to/updates.md says of prices."""
    corpus = write_jsonl(tmp_path / "d.jsonl", HUNDRED)
    run_job(client, job(corpus, index_name, store_vectors=stored), show_progress=False)
    engines = open_engines(client, index_name)
    body = engines.body("sparse", HUNDRED[7]["text"])

    def scores() -> dict[str, float]:
        hits = client.search(index=index_name, body=body)["hits"]["hits"]
        return {hit["_id"]: hit["_score"] for hit in hits}

    before, id = scores(), HUNDRED[7]["_id"]
    client.update(index=index_name, id=id, body={"doc": {"price": 9.9}}, refresh=True)
    assert (scores() == before) == stored and (id in scores()) == stored
    assert client.get(index=index_name, id=id)["_source"]["price"] == 9.9


def test_documents_that_have_lost_their_vectors_are_counted(
    osn: Callable[..., subprocess.CompletedProcess[str]], client: Any, index_name: str, tmp_path: Path
) -> None:
    """Searches would find them by BM25 alone, and nobody would know."""
    corpus = write_jsonl(tmp_path / "d.jsonl", [*HUNDRED, {"_id": "thai", "text": "ฝนตก"}])
    settings = job(corpus, index_name, store_vectors=False)
    assert run_job(client, settings, show_progress=False).without_rows == 0
    ids = [record["_id"] for record in HUNDRED[:2]]
    for id in ids:
        client.update(index=index_name, id=id, body={"doc": {"price": 1}}, params={"refresh": "true"})
    ran = osn("index", "inspect", index_name)
    assert "  lost        2 of them have no vectors: OpenSearch's own _update and _reindex" in ran.stdout, ran.stderr
    assert "or another client leave them out; write them again with osn" in ran.stdout
    assert sorted(osn("index", "inspect", index_name, "--lost").stdout.splitlines()) == sorted(ids)
    documents = Documents(client, index_name)
    lost = documents.get(ids[0])
    assert lost is not None and documents.add([lost]).replaced == 1
    assert json.loads(osn("index", "inspect", index_name, "--lost", "--json").stdout) == [ids[1]]
    inspected = osn("index", "inspect", index_name).stdout
    assert "  lost        1 of them has no vectors: " in inspected and "; write it again with osn" in inspected
    assert json.loads(osn("index", "inspect", index_name, "--json").stdout)["without_rows"] == 1
    assert run_job(client, settings, show_progress=False).without_rows == 0
    assert osn("index", "inspect", index_name, "--lost").stdout == ""


def test_an_index_without_rows_names_no_documents_that_lost_them(client: Any, index_name: str, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", HUNDRED[:5])
    run_job(client, job(corpus, index_name, forward_index=False), show_progress=False)
    with pytest.raises(InputError, match="has no forward index"):
        lost_ids(client, index_name)


def test_an_ingest_pipeline_that_removes_vectors_is_told_of(client: Any, index_name: str, tmp_path: Path) -> None:
    client.ingest.put_pipeline(id=index_name, body={"processors": [{"remove": {"field": "sparse_forward"}}]})
    template = {"settings": {"index.default_pipeline": index_name}}
    client.indices.put_index_template(name=index_name, body={"index_patterns": [index_name], "template": template})
    try:
        report = run_job(client, job(write_jsonl(tmp_path / "d.jsonl", HUNDRED), index_name), show_progress=False)
    finally:
        client.indices.delete_index_template(name=index_name)
    assert report.documents == report.without_rows == 100
    client.indices.delete(index=index_name)
    client.ingest.delete_pipeline(id=index_name)


def test_ids_are_read_as_a_file_has_them(tmp_path: Path) -> None:
    (tmp_path / "ids").write_bytes("\ufeffa\n\nb\u2028c\r\n".encode())
    assert ids_in(tmp_path / "ids") == ["a", "b\u2028c"]
    (tmp_path / "ids").write_bytes("é\n".encode("latin-1"))
    with pytest.raises(InputError, match="is not UTF-8"):
        ids_in(tmp_path / "ids")


def test_what_is_not_there_is_said(client: Any, index_name: str, tmp_path: Path, osn_home: Path) -> None:
    with pytest.raises(ClusterError, match="there is no index"):
        Documents(client, index_name)
    with pytest.raises(ClusterError, match="there is no index"):
        delete_documents(client, index_name, ["a"])
    run_job(client, job(write_jsonl(tmp_path / "d.jsonl", HUNDRED), index_name), show_progress=False)
    other = write_jsonl(tmp_path / "o.jsonl", records(20, seed=8))
    run_job(client, job(other, f"{index_name}-o"), show_progress=False)
    mappings = client.indices.get_mapping(index=f"{index_name}*")
    first, second = (mappings[name]["mappings"]["_meta"]["osn"]["sparse"]["hash"] for name in sorted(mappings))
    with pytest.raises(ModelError, match=f"{first}.*{second}"):
        Documents(client, index_name, sparse=str(osn_home / "models" / second))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a=b", ("a", "b")), ("a=", ("a", "")), ("a=b=c", ("a", "b=c")), ("a:=3", ("a", 3)), ('a:=["x"]', ("a", ["x"]))],
)
def test_changes_on_the_command_line(text: str, expected: tuple[str, Any]) -> None:
    assert parse_change(text) == expected
    for wrong in ("a", "=b", ":=3", "a:=x", "a:=" + "[" * 100_000):
        with pytest.raises(InputError, match="--set"):
            parse_change(wrong)


def test_the_commands(
    osn: Callable[..., subprocess.CompletedProcess[str]], client: Any, index: str, tmp_path: Path
) -> None:
    lines = "".join(json.dumps(record) + "\n" for record in [*records(3, seed=4), {"_id": "bad"}])
    ran = osn("documents", "add", "--index", index, "--json", "-", input=lines)
    assert ran.returncode == 3, ran.stderr
    told = json.loads(ran.stdout)
    assert (told["created"], told["replaced"], len(told["refused"])) == (3, 0, 1)
    ran = osn("documents", "update", "--index", index, "doc-4-000001", "--set", "title=New", "--set", "year:=7")
    assert ran.returncode == 0, ran.stderr
    ran = osn("documents", "get", "--index", index, "doc-4-000001")
    shown = json.loads(ran.stdout)
    assert (shown["title"], shown["year"]) == ("New", 7)
    (tmp_path / "new.jsonl").write_text('{"_id": "bad"}\n')
    ran = osn("documents", "add", "--index", index, "new.jsonl")
    assert "refused: new.jsonl, line 1: no text: expected" in ran.stderr and ran.stderr.count("no text") == 1
    (tmp_path / "ids").write_text("doc-4-000000\n\ndoc-4-000001\n")
    ran = osn("documents", "delete", "--index", index, "--ids", "ids", "missing")
    assert f"2 of 3 deleted from {index}" in ran.stdout, ran.stderr
    assert osn("documents", "get", "--index", index, "doc-4-000001").returncode == 1
    assert osn("documents", "update", "--index", index, "doc-4-000002").returncode == 1
