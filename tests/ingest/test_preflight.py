"""Fields of other people's documents: what is refused or named before anything is written, and how the rest is mapped."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corpora import job, letters, records, snapshot, write_jsonl

from ingest.corpus import CorpusSource, ignore
from ingest.job import run_job
from ingest.preflight import check_fields, fields_of_other_kinds, survey_fields
from ingest.settings import Models
from ingest.writing.bulk_actions import nested_by_dots
from opensearch_neural.corpus.documents import Document
from opensearch_neural.errors import InputError


def documents(*values: Any, name: str = "x") -> list[Document]:
    return [Document(str(at), "t", fields={name: value}) for at, value in enumerate(values)]


def clashes(*values: Any, flat: bool = False) -> dict[str, str]:
    return survey_fields(documents(*values), flat_objects=flat).clashes()


def test_html_is_named_if_a_model_reads_it_as_words(caplog: pytest.LogCaptureFixture) -> None:
    plain = [Document(str(at), "if a <b then </ is no tag", "P&amp;O") for at in range(38)]
    marked = [Document("x", "<p>Rain</p>"), Document("y", "rain", "Rain<BR />bows")]
    for texts, read_by_model in ((plain, True), (plain + marked[:1], True), (plain + marked, False)):
        check_fields(texts, mapped=(), limit=1000, flat_objects=True, read_by_model=read_by_model)
    assert caplog.messages == []
    check_fields(plain + marked, mapped=(), limit=1000, flat_objects=True, read_by_model=True)
    assert [line.partition(": a model")[0] for line in caplog.messages] == [
        "2 of the first 40 documents hold HTML (first in 'x')"
    ]


def test_no_object_is_proposed_for_a_field_that_its_index_maps_as_something_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A geo_point mapped as an object is found by no distance; that it is none any more is told by `warn_of_queries`."""
    kinds = {"place": {"type": "geo_point"}, "reviews": {"type": "nested"}, "plain": {"properties": {}}}
    other_kinds = fields_of_other_kinds({"theirs": {"mappings": {"properties": kinds}}, "bare": {"mappings": {}}})
    fields = {name: {"lat": 1.5, "says": "x" * 40_000 if name == "reviews" else ""} for name in kinds}
    documents = [Document("a", "t", fields=fields)]
    check_fields(documents, mapped=(), limit=1000, flat_objects=True, other_kinds=other_kinds)
    told = [line.partition(" in ")[2].split("'")[1] for line in caplog.messages]
    assert told == ["reviews", "plain"]
    assert "give --mapping" in caplog.messages[0] and '{"reviews"' not in caplog.messages[0]
    assert '{"plain": {"type": "object"}}' in caplog.messages[1]


def test_a_named_title_that_no_document_has_is_told(caplog: pytest.LogCaptureFixture) -> None:
    named = {"text": "story", "title": "headline.de", "url": "link"}
    check_fields([Document("a", "t")], mapped=(), limit=1000, flat_objects=True, named=named)
    assert sorted(line.partition(", so these")[0] for line in caplog.messages) == [
        f"none of the first 1 documents has a text in the field {name!r}" for name in ("headline.de", "link")
    ]
    caplog.clear()
    with_both = [Document("a", "t"), Document("b", "t", "title", "url")]
    for texts in (with_both, []):
        check_fields(texts, mapped=(), limit=1000, flat_objects=True, named=named)
    assert caplog.messages == []


def test_numbers_of_a_table_are_named_because_they_are_strings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ranges over a price compared characters, and nothing said so."""
    table = tmp_path / "c.csv"
    table.write_text("id,text,price,stock,zip,day,mixed\n1,a,9.90,,01234,2026-03-14,7\n2,b,100,-3,10115,,soon\n")
    lines = write_jsonl(tmp_path / "c.jsonl", [{"_id": "1", "text": "a", "price": "9.90"}])
    for path in (lines, table):
        corpus = CorpusSource(str(path))
        records = corpus.reader(str(path))(ignore)
        of_table = corpus.is_table(str(path))
        check_fields(records, mapped=["n"], limit=1000, flat_objects=True, of_table=of_table)
    (told,) = caplog.messages
    assert "'price', 'stock' become keywords" in told and 'give --mapping {"price": {"type": "double"}, …}' in told


def test_fields_whose_values_no_mapping_takes_are_named() -> None:
    assert clashes(1, "soon") == {"x": "numbers (first in '0') and strings (first in '1')"}
    assert clashes({"a": 1}, "b").keys() == clashes({"a": 1}, "b", flat=True).keys() == {"x"}
    assert clashes({"a": 1}, {"a": "b"}).keys() == {"x.a"}
    assert clashes([1, None], True).keys() == {"x"}
    for taken in ((1, 2.5, "3", None), ("soon", 1, True), ("1", "soon"), (["a"], "b"), ({"a": 1}, {"b": "c"})):
        assert clashes(*taken) == {}, taken
    assert clashes(True, "false") == {} and clashes({"a": 1}, {"a": "b"}, flat=True) == {}


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (1, "soon"),
        (1, True),
        (True, "maybe"),
        (True, 1),
        ({"a": 1}, "b"),
        ({"a": 1}, 2),
        ("b", {"a": 1}),
        (2, {"a": 1}),
        ({"a": 1}, {"a": "b"}),
        (1, "2"),
        ("soon", 1),
        ("2026-03-14", "soon"),
        ("2026-03-14", 7),
        (True, "false"),
        ([1, 2], "3"),
        ("soon", False),
    ],
)
def test_the_cluster_refuses_what_is_said_to_clash_and_nothing_else(
    client: Any, index_name: str, tmp_path: Path, first: Any, then: Any
) -> None:
    lines = [{"_id": "a", "text": "rain", "x": first}, {"_id": "b", "text": "sun", "x": then}]
    settings = job(write_jsonl(tmp_path / "d.jsonl", lines), index_name, sparse="none", writing={"writers": 1})
    settings = replace(settings, writing=replace(settings.writing, batch_documents=1))
    report = run_job(client, settings, show_progress=False)
    assert report.letters == len(clashes(first, then, flat=True))


def test_names_with_dots_become_objects_where_nothing_is_in_the_way() -> None:
    plain = {"a": 1, "b": {"c": 2}}
    assert nested_by_dots(plain) is plain
    assert nested_by_dots({"a.b": 1, "a.c.d": 2, "e": 3}) == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    held = {"b": {"c": 2}, "b.d": 3, "b.c": 4}
    assert nested_by_dots(held) == {"b": {"c": 2, "d": 3}, "b.c": 4} and held["b"] == {"c": 2}
    assert nested_by_dots({"a.b": 1, "a": 2}) == {"a": 2, "a.b": 1}
    objects = {"a.b.c": 1, "a.b": {"d": 2}, "a": {"e": {}}}
    assert nested_by_dots(objects) == {"a": {"e": {}, "b": {"c": 1, "d": 2}}}, "two objects at one place become one"


def test_unknown_nesting_takes_one_field_and_is_found_by_its_values(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, a lookup by name of more than a thousand names used up the fields of the index."""
    lines = [
        {"_id": str(n), "text": "rain", "scores": {f"user-{n}-{m}": m for m in range(100)}, "by": [{"name": "A"}, None]}
        for n in range(20)
    ]
    lines[3] |= {"by": {"name": "B", "born": [[1920], {"of": None}]}, "meta.lang": "en", "meta.size": 7}
    run_job(client, job(write_jsonl(tmp_path / "d.jsonl", lines), index_name), show_progress=False)
    assert snapshot(client, index_name)["3"]["by"] == lines[3]["by"]
    properties = client.indices.get_mapping(index=index_name)[index_name]["mappings"]["properties"]
    assert {properties[name]["type"] for name in ("scores", "by", "meta")} == {"flat_object"}

    def ids(name: str, value: Any) -> list[str]:
        return [hit["_id"] for hit in client.search(index=index_name, q=f'{name}:"{value}"')["hits"]["hits"]]

    assert ids("by.name", "B") == ids("meta.lang", "en") == ids("by.born", 1920) == ids("scores.user-3-7", 7) == ["3"]
    assert "numbers inside the objects in 'scores'" in caplog.text


def test_strings_that_a_flat_object_does_not_take_are_named(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [*records(3), {"_id": "long", "text": "rain", "page": {"raw": "é" * 20_000}}]
    corpus = write_jsonl(tmp_path / "d.jsonl", lines)
    report = run_job(client, job(corpus, index_name, sparse="none"), show_progress=False)
    assert report.letters == 1 and "the objects in 'page' (first in 'long') hold strings of more than" in caplog.text
    caplog.clear()
    mapping = tmp_path / "mapping.json"
    mapping.write_text('{"page": {"type": "object"}}')
    settings = job(corpus, f"{index_name}-b", sparse="none", mapping=mapping)
    assert run_job(client, settings, show_progress=False).letters == 0 and "page" not in caplog.text


def test_a_limit_on_fields_is_told_at_once_and_can_be_raised(client: Any, index_name: str, tmp_path: Path) -> None:
    lines = [{"_id": "a", "text": "rain", **{f"column{n}": n for n in range(1100)}}]
    settings = job(write_jsonl(tmp_path / "d.jsonl", lines), index_name)
    with pytest.raises(
        InputError, match="1,100 different fields, but the index may have only 980 beside its own"
    ) as raised:
        run_job(client, settings, show_progress=False)
    assert "--field-limit" in str(raised.value.remedy)
    assert not client.indices.exists(index=index_name)
    settings = job(tmp_path / "d.jsonl", index_name, field_limit=1200)
    assert run_job(client, settings, show_progress=False).documents == 1
    # An index that is there takes more when told so.
    write_jsonl(tmp_path / "d.jsonl", [{"_id": "b", "text": "rain", **{f"more{n}": n for n in range(200)}}])
    assert run_job(client, settings, show_progress=False).letters == 1
    assert run_job(client, job(tmp_path / "d.jsonl", index_name, field_limit=1500), show_progress=False).letters == 0


def test_whole_numbers_that_a_double_does_not_tell_apart_are_found_each_by_itself(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ids of 64 bits: as doubles, a filter finds the documents of others."""
    large = 2**60
    lines = [
        {"_id": str(n), "text": "rain", "user": large + n, "users": [1, large + n], "price": n, "unsigned": 2**63 + n}
        | {"word": large if n else "a", "either": large + n if n else 1.5}
        for n in range(3)
    ]
    settings = job(write_jsonl(tmp_path / "d.jsonl", lines), index_name, sparse="none")
    assert run_job(client, settings, show_progress=False).letters == 0
    fields = client.indices.get_mapping(index=index_name)[index_name]["mappings"]["properties"]
    longs, doubles = ("user", "users"), ("price", "unsigned", "either")
    kinds = {name: fields[name]["type"] for name in (*longs, *doubles, "word")}
    assert kinds == {**dict.fromkeys(longs, "long"), **dict.fromkeys(doubles, "double"), "word": "keyword"}
    for field in longs:
        body = {"query": {"term": {field: large + 1}}}
        assert [hit["_id"] for hit in client.search(index=index_name, body=body)["hits"]["hits"]] == ["1"]
    for name in kinds:
        assert (f"the field {name!r} holds whole numbers of more than 53 bits" in caplog.text) == (
            name in ("unsigned", "either")
        )


def test_the_new_fields_of_an_index_that_is_there_are_checked_like_those_of_a_new_one(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ids of 64 bits became doubles there, silently."""
    large = 2**60
    first = write_jsonl(tmp_path / "a.jsonl", [{"_id": "a", "text": "rain", "kept": large / 3, "open": {"x": "y"}}])
    (mapping := tmp_path / "mapping.json").write_text('{"open": {"type": "object"}}')
    run_job(client, job(first, index_name, sparse="none", mapping=mapping), show_progress=False)
    caplog.clear()
    lines = [
        {"_id": str(n), "text": "rain", "user": large + n, "open": {"user": large + n}, "kept": large + n}
        | {"either": large + n if n else 1.5, "mixed": "sun" if n else 1}
        for n in range(3)
    ]
    second = job(write_jsonl(tmp_path / "b.jsonl", lines), index_name, sparse="none")
    assert run_job(client, second, show_progress=False).letters == 2  # of `mixed`
    for field in ("user", "open.user"):
        hits = client.search(index=index_name, body={"query": {"range": {field: {"lt": large + 1}}}})["hits"]["hits"]
        assert [hit["_id"] for hit in hits] == ["0"], field
    fields = client.indices.get_mapping(index=index_name)[index_name]["mappings"]["properties"]
    assert [fields[name]["type"] for name in ("user", "kept", "either")] == ["long", "double", "double"]
    told = {line.split("'")[1] for line in caplog.messages}
    assert told == {"either", "mixed"}


def test_numbers_in_strings_count_for_a_field_of_numbers(client: Any, index_name: str, tmp_path: Path) -> None:
    """A long would cut the decimal, and refuse what is beyond 63 bits."""
    large = 2**60 + 1
    values = {"cut": "10.5", "unsigned": str(2**64 - 1), "ids": str(large)}
    lines = [
        {"_id": "a", "text": "rain", "cut": large, "unsigned": large, "ids": 1},
        {"_id": "b", "text": "sun", **values},
    ]
    settings = job(write_jsonl(tmp_path / "d.jsonl", lines), index_name, sparse="none")
    assert run_job(client, settings, show_progress=False).letters == 0
    fields = client.indices.get_mapping(index=index_name)[index_name]["mappings"]["properties"]
    assert {name: fields[name]["type"] for name in values} == {"cut": "double", "unsigned": "double", "ids": "long"}
    for name, value in values.items():
        hits = client.search(index=index_name, body={"query": {"term": {name: value}}})["hits"]["hits"]
        assert [hit["_id"] for hit in hits] == ["b"], name


def test_a_field_with_an_asterisk_makes_no_longs_of_others(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A dynamic template reads its name as a pattern."""
    lines = [{"_id": "1", "text": "rain", "user*": 2**60 + 1, "user_price": 10}]
    run_job(client, job(write_jsonl(tmp_path / "d.jsonl", lines), index_name, sparse="none"), show_progress=False)
    fields = client.indices.get_mapping(index=index_name)[index_name]["mappings"]["properties"]
    assert fields["user*"]["type"] == fields["user_price"]["type"] == "double"
    assert "the field 'user*' holds whole numbers of more than 53 bits" in caplog.text


def test_long_numbers_inside_mapped_objects_are_found_each_by_itself(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    large = 2**60
    mappings: dict[str, Any] = {
        "open": {"type": "object"},
        "listed": {"properties": {"name": {"type": "keyword"}, "inner": {"type": "object"}}},
        "dotted.name": {"type": "keyword"},
        "shut": {"type": "object", "enabled": False},
        "fixed": {"dynamic": False, "properties": {"name": {"type": "keyword"}}},
    }
    mapping = tmp_path / "mapping.json"
    mapping.write_text(json.dumps(mappings))
    lines = [
        {"_id": str(n), "text": "rain"}
        | {name: {"id": large + n, "sum": large + n if n else 1.5} for name in ("open", "dotted", "shut", "fixed")}
        | {"listed": [{"name": large + n, "inner": {"id": large + n}}, None], "plain": {"id": large + n}}
        for n in range(3)
    ]
    settings = job(write_jsonl(tmp_path / "d.jsonl", lines), index_name, sparse="none", mapping=mapping)
    assert run_job(client, settings, show_progress=False).letters == 0
    fields = client.indices.get_mapping(index=index_name)[index_name]["mappings"]["properties"]
    for name in ("open", "dotted"):
        kinds = {inner: each["type"] for inner, each in fields[name]["properties"].items()}
        assert kinds.items() >= {"id": "long", "sum": "double"}.items()
    for name in ("open.id", "dotted.id", "listed.inner.id"):
        hits = client.search(index=index_name, body={"query": {"term": {name: large + 1}}})["hits"]["hits"]
        assert [hit["_id"] for hit in hits] == ["1"], name
    told = {line.split("'")[1] for line in caplog.messages if "more than 53 bits" in line}
    assert told == {"open.sum", "dotted.sum"}


def test_an_index_template_decides_how_long_numbers_are_mapped(client: Any, index_name: str, tmp_path: Path) -> None:
    template = {"mappings": {"properties": {"user": {"type": "keyword"}}}}
    client.indices.put_index_template(name=index_name, body={"index_patterns": [index_name], "template": template})
    try:
        lines = [{"_id": "1", "text": "rain", "user": 2**60}]
        run_job(client, job(write_jsonl(tmp_path / "d.jsonl", lines), index_name, sparse="none"), show_progress=False)
    finally:
        client.indices.delete_index_template(name=index_name)
    fields = client.indices.get_mapping(index=index_name)[index_name]["mappings"]["properties"]
    assert fields["user"]["type"] == "keyword"


def test_a_mapping_adds_fields_to_an_index_and_is_refused_where_they_are_mapped_otherwise(
    client: Any, index_name: str, tmp_path: Path
) -> None:
    """Before, it was passed over without a word."""
    mapping = tmp_path / "mapping.json"
    corpus = write_jsonl(tmp_path / "d.jsonl", records(3))
    settings = job(corpus, index_name, sparse="none", mapping=mapping)
    mapping.write_text('{"year": {"type": "integer"}}')
    run_job(client, settings, show_progress=False)
    mapping.write_text('{"year": {"type": "integer"}, "price": {"type": "scaled_float", "scaling_factor": 100}}')
    run_job(client, settings, show_progress=False)
    held = client.indices.get_mapping(index=index_name)[index_name]["mappings"]
    assert held["properties"]["price"]["type"] == "scaled_float" and held["_meta"]["osn"]
    before = snapshot(client, index_name)
    write_jsonl(corpus, records(5))
    mapping.write_text('{"year": {"type": "keyword"}, "size": {"type": "long"}}')
    with pytest.raises(InputError, match=rf"does not fit the index '{index_name}'.*\[year\] cannot be changed"):
        run_job(client, settings, show_progress=False)
    assert snapshot(client, index_name) == before
    assert "size" not in json.dumps(client.indices.get_mapping(index=index_name))


def test_a_mapped_field_that_no_document_will_have_is_named(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mapping = tmp_path / "mapping.json"
    fields = {name: {"type": "keyword"} for name in ("sku", "story", "price")} | {
        "name": {"type": "alias", "path": "title"}
    }
    mapping.write_text(json.dumps(fields))
    corpus = write_jsonl(tmp_path / "d.jsonl", [{"sku": "1", "story": "rain", "name": "t", "price": "9"}])
    settings = job(corpus, index_name, sparse="none", mapping=mapping)
    named = replace(settings.corpus, id_field="sku", text_field="story", title_field="name")
    run_job(client, replace(settings, corpus=named), show_progress=False)
    told = [line for line in caplog.messages if line.startswith("--mapping maps")]
    assert [line.partition(", so that")[0] for line in told] == [
        "--mapping maps 'sku', which is called _id in the index",
        "--mapping maps 'story', which is called text in the index",
    ]


def test_an_ingest_tells_of_html_and_of_a_title_that_is_not_there(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = write_jsonl(tmp_path / "d.jsonl", [{"_id": "a", "text": "<p>red shoes</p>"}])
    settings = job(corpus, index_name, sparse="lexical")
    settings = replace(settings, corpus=replace(settings.corpus, title_field="name"))
    with caplog.at_level(logging.WARNING):
        run_job(client, settings, show_progress=False)
    assert "1 of the first 1 documents hold HTML (first in 'a')" in caplog.text
    assert "none of the first 1 documents has a text in the field 'name'" in caplog.text


def test_models_that_are_none_encode_nothing() -> None:
    assert not Models().encoding and not Models(sparse="none", dense="none", pq="none").encoding
    assert Models(sparse="lexical").encoding and Models(sparse="none", dense="m").encoding and Models(pq="m").encoding


def test_many_clashes_are_named_before_anything_is_written(
    client: Any, index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [*records(998), {"_id": "n", "text": "t", "size": 1}, {"_id": "s", "text": "t", "size": "large"}]
    settings = job(write_jsonl(tmp_path / "d.jsonl", lines), index_name, sparse="none")
    with caplog.at_level(logging.WARNING):
        report = run_job(client, settings, show_progress=False)
    assert "the field 'size' holds numbers (first in 'n') and strings (first in 's')" in caplog.text
    assert report.dead_letters is not None and [each["line"] for each in letters(report.dead_letters)] == [1000]
    with pytest.raises(InputError):
        check_fields(documents(*range(3)), mapped=(), limit=20, flat_objects=True)
