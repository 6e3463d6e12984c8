"""`osn search`: what it prints, and what it says when it cannot search."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import Fault, FaultProxy, Request
from osn_command import osn_command

from ingest.corpus import CorpusSource
from ingest.job import Job, run_job
from ingest.settings import Models, NewIndex
from opensearch_neural.commands import search
from opensearch_neural.engines import ENGINES
from opensearch_neural.errors import InputError
from opensearch_neural.index.mapping import PLAIN_MAPPINGS, index_body
from opensearch_neural.index.record import IndexMeta
from opensearch_neural.search.filters import clauses_of, parse_filter, unmatched_filters

RAINBOWS = [
    {"_id": "r1", "title": "Rainbows", "text": "A rainbow is caused by refraction of light in droplets.", "lang": "en"},
    {"_id": "r2", "title": "Regenbogen", "text": "Ein Regenbogen entsteht durch Brechung.", "lang": "de"},
    {"_id": "r3", "title": "Trout", "text": "The rainbow trout is a fish. It is a fish of rivers.", "lang": "en"},
]


@pytest.fixture(scope="module")
def index(client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("rainbows")
    corpus = folder / "docs.jsonl"
    corpus.write_text("".join(json.dumps(record) + "\n" for record in RAINBOWS))
    name = f"osn-test-search-{folder.name.lower()}"
    job = Job(
        CorpusSource(str(corpus)),
        name,
        models=Models(sparse="lexical"),
        new_index=NewIndex(replicas=0),
        dead_letters=folder / "dead.jsonl",
    )
    run_job(client, job, show_progress=False)
    yield name
    client.indices.delete(index=name)


def osn(cluster_url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return osn_command("search", "--url", cluster_url, *arguments)


@pytest.mark.cluster
@pytest.mark.parametrize("engine", ["bm25", "sparse", "high-idf-first", "hybrid"])
def test_every_engine_finds_the_document(index: str, cluster_url: str, engine: str) -> None:
    done = osn(cluster_url, "--index", index, "--engine", engine, "--json", "refraction of light")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["hits"][0]["id"] == "r1"


@pytest.mark.cluster
def test_explained_tokens_add_up_to_the_score(index: str, cluster_url: str) -> None:
    for engine in ("bm25", "sparse", "high-idf-first"):
        done = osn(cluster_url, "--index", index, "--engine", engine, "--json", "--explain", "the rainbow in droplets")
        hits = json.loads(done.stdout)["hits"]
        assert hits
        for hit in hits:
            assert sum(each["score"] for each in hit["tokens"]) == pytest.approx(hit["score"], rel=1e-5)
            assert hit["sum"] == pytest.approx(hit["score"], rel=1e-5)
            for each in hit["tokens"]:
                if engine != "bm25":
                    assert each["query_weight"] * each["document_weight"] == pytest.approx(each["score"], rel=1e-5)


@pytest.mark.cluster
def test_filters_and_highlights(index: str, cluster_url: str) -> None:
    done = osn(cluster_url, "--index", index, "--json", "--filter", "lang=de", "regenbogen rainbow")
    (hit,) = json.loads(done.stdout)["hits"]
    assert hit["id"] == "r2"
    assert "<em>Regenbogen</em>" in hit["title"] + hit["excerpt"]


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("options", "finding"),
    [
        (["--engine", "bm25", "--from", "100000"], "rejected: size: from + size is 100,010"),
        (["--window", "20000"], "rejected: rescore.window_size: "),
        (["--template", "own={}"], "rejected: rescore.window_size: "),
    ],
)
def test_what_the_linter_finds_is_told_of_a_search_that_is_refused_too(
    index: str, cluster_url: str, tmp_path: Path, options: list[str], finding: str
) -> None:
    own = tmp_path / "own.json"
    rescore = {"window_size": 20_000, "query": {"rescore_query": {"match_all": {}}}}
    own.write_text(json.dumps({"query": {"match": {"text": "{{query}}"}}, "rescore": rescore}))
    done = osn(cluster_url, "--index", index, *(each.format(own) for each in options), "refraction of light")
    assert done.returncode == 1 and "(400)" in done.stderr and finding in done.stderr, done.stderr


@pytest.mark.cluster
def test_a_filter_that_finds_nothing_by_the_type_of_its_field_is_told_of(
    client: Any, cluster_url: str, index_name: str
) -> None:
    fields = {
        "brand": {"type": "text", "fields": {"raw": {"type": "keyword"}}},
        "note": {"type": "text"},
        "variants": {"type": "nested", "properties": {"size": {"type": "keyword"}}},
        "maker": {"properties": {"name": {"type": "keyword"}}},
        "name": {"type": "alias", "path": "title"},
        "flat": {"type": "flat_object"},
    }
    client.indices.create(index=index_name, body=index_body(IndexMeta(), replicas=0, fields=fields))
    document = {"title": "Rain", "text": "rain", "brand": "Light Rain", "note": "Rain", "flat": {"a": "x"}}
    document |= {"variants": [{"size": "S"}], "maker": {"name": "Rain Ltd"}}
    client.index(index=index_name, id="1", body=document, params={"refresh": "true"})

    def told(filter: str, hits: int = 0) -> str:
        done = osn(cluster_url, "--index", index_name, "--json", "--filter", filter, "rain")
        assert len(json.loads(done.stdout)["hits"]) == hits
        return done.stderr

    words = "is a text, in which a filter finds single words, as the analyzer writes them"
    assert f"'brand' {words}; brand.raw has the whole value" in told("brand=Light Rain")
    assert f"'note' {words}\n" in told("note=Rain") and f"'name' {words}" in told("name=Rain")
    clause = '{"nested": {"path": "variants", "query": {"term": {"variants.size": "VALUE"}}}}'
    assert f"'variants.size' is in nested documents: filter by {clause}" in told("variants.size=S")
    assert not told(clause.replace("VALUE", "S"), hits=1)
    assert not told("brand.raw=Light Rain", hits=1)
    # What may match, and what only has no mapping of its own, is not told of.
    assert not told("maker.name=Sun Ltd") and not told("flat.a=y") and not told("flat.b=x")
    assert "has no field 'maker.size' to filter by" in told("maker.size=S")


@pytest.mark.cluster
def test_a_filter_by_a_field_that_is_not_there_is_told_of(index: str, cluster_url: str) -> None:
    done = osn(cluster_url, "--index", index, "--json", "--filter", "language=de", "--filter", "lang=de", "regenbogen")
    assert json.loads(done.stdout)["hits"] == []
    assert done.stderr.strip() == f"warning: {index!r} has no field 'language' to filter by"
    done = osn(cluster_url, "--index", index, "--json", "--filter", "lang=fr", "regenbogen")
    assert json.loads(done.stdout)["hits"] == [] and not done.stderr


@pytest.mark.cluster
def test_people_see_titles_scores_and_products(index: str, cluster_url: str) -> None:
    done = osn(cluster_url, "--index", index, "--explain", "rainbow droplets")
    assert "Rainbows" in done.stdout
    assert " × " in done.stdout
    assert "\x1b" not in done.stdout  # no colours into a pipe
    assert "<em>" not in done.stdout


@pytest.mark.cluster
def test_the_body_can_be_printed_and_sent_by_hand(client, index: str, cluster_url: str) -> None:
    done = osn(cluster_url, "--index", index, "--body", "rainbow droplets")
    hits = client.search(index=index, body=json.loads(done.stdout))["hits"]["hits"]
    assert hits[0]["_id"] == "r1"


@pytest.mark.cluster
def test_a_query_without_known_words_has_no_hits_and_no_error(index: str, cluster_url: str) -> None:
    done = osn(cluster_url, "--index", index, "--engine", "sparse", "")
    assert done.returncode == 0
    assert "no hits" in done.stdout


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--index", "osn-test-absent", "x"], "there is no index 'osn-test-absent'"),
        (["--engine", "nope", "x"], "there is no engine 'nope'"),
        (["--engine", "dense", "x"], "holds no dense vectors"),
        (["--filter", "lang", "x"], "expected FIELD=VALUE"),
        (["--filter", "{nope", "x"], "not valid JSON"),
        (["--rare", "ratio:7", "x"], "between 0 and 1"),
        (["--weight", "inf", "x"], "--weight inf: inf is above 1e+30"),
        (["--weight", "1e300", "x"], "--weight 1e300: 1e300 is above 1e+30"),
        (
            ["--engine", "sparse", "--rare", "count:3", "x"],
            "--rare has no effect with sparse: it is an option of bm25-sparse, high-idf-first, cascade",
        ),
        (["--engine", "bm25", "--weight", "5", "x"], "--weight has no effect with bm25: it is an option of"),
        (["--engine", "cascade", "--exact", "x"], "--exact has no effect with cascade: it is an option of"),
        (["--sparse", "/nowhere/model", "x"], "/nowhere/model"),
    ],
)
def test_what_cannot_be_done_is_said_without_a_traceback(
    index: str, cluster_url: str, arguments: list[str], message: str
) -> None:
    if "--index" not in arguments:
        arguments = ["--index", index, *arguments]
    done = osn(cluster_url, *arguments)
    assert done.returncode == (2 if "has no effect" in message else 1)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.cluster
def test_searching_with_another_model_is_refused_with_both_names(index: str, cluster_url: str, tmp_path: Path) -> None:
    from opensearch_neural.models.sparse.lexical import build_lexical

    build_lexical(["another corpus altogether", "with other statistics"]).save(tmp_path / "other-model")
    done = osn(cluster_url, "--index", index, "--sparse", str(tmp_path / "other-model"), "rainbow")
    assert done.returncode == 1
    assert "other-model" in done.stderr
    assert "was written with the sparse model lexical (" in done.stderr


def test_filters_from_text() -> None:
    assert parse_filter("lang=en") == {"term": {"lang": "en"}}
    assert parse_filter("a=b=c") == {"term": {"a": "b=c"}}
    assert parse_filter('{"range": {"n": {"gt": 1}}}') == {"range": {"n": {"gt": 1}}}
    with pytest.raises(InputError):
        parse_filter("=x")


@pytest.mark.cluster
def test_a_filter_of_two_values_is_a_range_of_numbers_or_dates_and_a_value_elsewhere(
    client: Any, cluster_url: str, index_name: str
) -> None:
    """A range of numbers was refused as no number, and one of dates as no date."""
    fields: dict[str, Any] = {"rank": {"type": "integer"}, "made": {"type": "alias", "path": "day"}}
    fields["day"] = PLAIN_MAPPINGS["date"]
    fields |= {"sizes": {"type": "nested", "properties": {"cm": {"type": "long"}}}, "flat": {"type": "flat_object"}}
    client.indices.create(index=index_name, body=index_body(IndexMeta(), replicas=0, fields=fields))
    for rank, price, day in (("1", 10, "2025-12-31"), ("2", 15.5, "2026-01-31"), ("3", 20, "2026-02-14T23:00:00Z")):
        own = {
            "rank": int(rank),
            "price": price,
            "day": day,
            "code": f"{rank}..9",
            "flat": {"cm": 5},
            "sizes": [{"cm": 5}],
        }
        client.index(index=index_name, id=rank, body={"text": "rain", **own}, params={"refresh": "true"})

    def told(*filters: str) -> tuple[list[str], str]:
        options = [each for text in filters for each in ("--filter", text)]
        done = osn(cluster_url, "--index", index_name, "--json", *options, "rain")
        assert done.returncode == 0, done.stderr
        return sorted(hit["id"] for hit in json.loads(done.stdout)["hits"]), done.stderr

    for filters, ids in {
        ("price=10..15.5",): "12",
        ("price=15..",): "23",
        ("price=..10",): "1",
        ("rank=2..3", "price=..16"): "2",
        ("day=2026-01-31..2026-02-14",): "23",  # both days, to their end
        ("day=2026-01..2026-02",): "23",
        ("day=..2025",): "1",
        ("made=2026..",): "23",
        ("day.keyword=2026..",): "",
        ("code=2..9",): "2",
    }.items():
        assert told(*filters)[0] == [*ids], filters
    neither = "is mapped as neither numbers nor dates: '4..6' is a value, not a range"
    assert told("flat.cm=4..6") == ([], f"warning: 'flat.cm' {neither}\n")
    assert told("code=4..6") == ([], f"warning: 'code' {neither}\n")
    assert "has no field 'prize' to filter by" in told("prize=4..6")[1]
    assert "'sizes.cm' is in nested documents" in told("sizes.cm=4..6")[1]
    done = osn(cluster_url, "--index", index_name, "--body", "--filter", "price=10..", "rain")
    assert {"range": {"price": {"gte": "10"}}} in json.loads(done.stdout)["query"]["bool"]["filter"]
    done = osn(cluster_url, "--index", index_name, "--filter", "price=cheap..", "rain")
    assert done.returncode == 1 and "cheap" in done.stderr


@pytest.mark.cluster
def test_a_range_is_of_the_field_that_is_named_and_of_the_dates_that_it_reads(client: Any, index_name: str) -> None:
    """Subfields got no ranges, and `2026` became the end of 1970 where a number is read as milliseconds."""
    days: dict[str, Any] = {
        "day": {"type": "date"},
        "iso": {"type": "date", "format": "yyyy/MM/dd||date_optional_time||epoch_millis"},
        "ms": {"type": "date", "format": "epoch_millis||strict_date_optional_time"},
        "own": {"type": "date", "format": "yyyy"},
    }
    number = {"n": {"type": "integer"}, "day": {"type": "date"}}
    code = {"type": "keyword", "fields": number}
    deep = {"properties": {"code": code}}
    for name, mixed in (("1", {"type": "long"}), ("2", {"type": "keyword"})):
        properties = {**days, "code": code, "deep": deep, "also": {"type": "alias", "path": "day"}, "mixed": mixed}
        client.indices.create(index=f"{index_name}-{name}", body={"mappings": {"properties": properties}})
        values: dict[str, Any] = {"day": "2026-06-01", "iso": "2026/06/01", "ms": 2026, "own": "2026"}
        record = {**values, "code": "7", "deep": {"code": "7"}, "mixed": "7"}
        client.index(index=f"{index_name}-{name}", body=record, refresh=True)
    both = f"{index_name}-1,{index_name}-2"

    def asked(text: str) -> tuple[dict[str, Any], int, list[str]]:
        (clause,) = clauses_of(client, both, [text])
        found = client.count(index=both, body={"query": clause})["count"]
        return clause, found, unmatched_filters(client, both, [clause])

    for text, last in {
        "day=..2026": "2026||/y",
        "day=..2026-06": "2026-06||/M",
        "also=..2026": "2026||/y",
        "iso=..2026": "2026||/y",
        "ms=..2026": "2026",
        "own=..2026": "2026",
        "code.n=..7": "7",
        "code.n=..2026": "2026",
        "deep.code.n=..7": "7",
    }.items():
        field = text.partition("=")[0]
        assert asked(text) == ({"range": {field: {"lte": last}}}, 2, []), text
    term: dict[str, Any] = {"term": {"code": "5..9"}}
    neither = "'code' is mapped as neither numbers nor dates: '5..9' is a value, not a range"
    assert asked("code=5..9") == asked(json.dumps(term)) == (term, 0, [neither])
    (mixed,) = clauses_of(client, both, ["mixed=5..9"])
    told = "'mixed' is mapped as keyword in some of these indexes: '5..9' is a value, not a range"
    assert (mixed, unmatched_filters(client, both, [mixed])) == ({"term": {"mixed": "5..9"}}, [told])
    assert clauses_of(client, both, ['{"term": {"day": "..2026"}}', "day=2026.."]) == [
        {"term": {"day": "..2026"}},
        {"range": {"day": {"gte": "2026"}}},
    ]
    assert unmatched_filters(client, both, [{"term": {"day": "..2026"}}]) == []


@pytest.fixture(scope="module")
def long_index(client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two shards; one text of more than a million characters."""
    folder = tmp_path_factory.mktemp("long")
    records = [{"_id": f"d{n}", "text": "a rainbow", "lang": "en"} for n in range(30)]
    records.append({"_id": "long", "text": "a rainbow " + "and many more words " * 60_000, "lang": "de"})
    (folder / "docs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    name = f"osn-test-search-{folder.name.lower()}"
    job = Job(
        CorpusSource(str(folder / "docs.jsonl")),
        name,
        models=Models(sparse="none"),
        new_index=NewIndex(replicas=0, shards=2),
        dead_letters=folder / "dead",
    )
    run_job(client, job, show_progress=False)
    yield name
    client.indices.delete(index=name)


@pytest.mark.cluster
def test_a_text_longer_than_is_highlighted_fails_no_shard(long_index: str, cluster_url: str) -> None:
    done = osn(cluster_url, "--index", long_index, "--json", "--size", "50", "--filter", "lang=de", "rainbow")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    answer = json.loads(done.stdout)
    assert [hit["id"] for hit in answer["hits"]] == ["long"] and "shards_failed" not in answer
    assert "<em>rainbow</em>" in answer["hits"][0]["excerpt"]
    assert (
        len(json.loads(osn(cluster_url, "--index", long_index, "--json", "--size", "50", "rainbow").stdout)["hits"])
        == 31
    )


@pytest.mark.cluster
def test_hits_that_are_missing_with_a_shard_are_told_of(long_index: str, cluster_url: str) -> None:
    source = "if (doc['lang'].value == 'de') { throw new IllegalArgumentException('broken here') } return true"
    filter_ = json.dumps({"script": {"script": {"source": source}}})
    done = osn(cluster_url, "--index", long_index, "--json", "--filter", filter_, "rainbow")
    assert "1 of 2 shards failed, and their hits are missing" in done.stderr
    answer = json.loads(done.stdout)
    assert answer["hits"] and answer["shards_failed"].startswith("1 of 2 shards failed")


@pytest.mark.cluster
def test_a_search_that_times_out_is_told_of(client, long_index: str, cluster_url: str) -> None:
    """The cluster's own limit, and a filter that takes longer for each document. Later documents score higher, a hundred at
    a time, so that none of the hundreds can be passed over."""
    name = f"{long_index}-slow"
    mappings = {"_meta": {"osn": {"format": 1}}, "properties": {"contents": {"type": "text"}}}
    client.indices.create(index=name, body={"settings": {"number_of_replicas": 0}, "mappings": mappings})
    lines = [line for n in range(6000) for line in ({"index": {"_id": str(n)}}, {"contents": "rain " * (1 + n // 100)})]
    client.bulk(index=name, body=lines, refresh=True)
    slow = {
        "script": {"script": {"source": "long x = 0; for (int i = 0; i < 200000; i++) { x += i % 7 } return x >= 0"}}
    }
    limit = "search.default_search_timeout"
    client.cluster.put_settings(body={"transient": {limit: "20ms"}})
    try:
        done = osn(cluster_url, "--index", name, "--engine", "bm25", "--json", "--filter", json.dumps(slow), "rain")
    finally:
        client.cluster.put_settings(body={"transient": {limit: None}})
        client.indices.delete(index=name)
    assert done.returncode == 0, done.stderr
    assert "warning: the search timed out, and hits are missing" in done.stderr
    told = json.loads(done.stdout)
    assert "timed out" in told["timed_out"] and "shards_failed" not in told


@pytest.mark.cluster
def test_a_query_that_is_not_utf_8_is_named(index: str, cluster_url: str) -> None:
    command = [
        str(Path(sys.executable).with_name("osn")),
        "search",
        "--url",
        cluster_url,
        "--index",
        index,
        b"Stra\xdfe",
    ]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert done.returncode == 1
    assert b"is not UTF-8 at character 5" in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["documents", "delete", "--index", "docs", b"d\xff"],
        ["documents", "update", "--index", "docs", "a", "--set", b"title=\xff"],
        ["search", "--index", b"d\xff", "rain"],
        ["index", "inspect", b"d\xff"],
        ["ingest", "--corpus", "c.jsonl", "--alias", "docs", "--require", b"\xff => a"],
    ],
)
def test_an_argument_of_any_command_that_is_not_utf_8_is_named(arguments: list[str | bytes]) -> None:
    """Before, an id was not found, and an index's name ended in a traceback."""
    done = subprocess.run([str(Path(sys.executable).with_name("osn")), *arguments], capture_output=True, timeout=60)
    assert done.returncode == 1
    assert b"is not UTF-8 at character" in done.stderr and b"Traceback" not in done.stderr


@pytest.fixture
def articles(client, index_name: str, tmp_path: Path) -> tuple[str, str]:
    """An index that `osn` did not write, and the query of the application that searches it, as NAME=FILE."""
    lines = []
    for number, body in enumerate(["the rainbow and the rain", "rain", "a rainbow", "a fish"]):
        lines += [{"index": {"_id": f"d{number}"}}, {"title": f"Number {number}", "body": body, "views": number}]
    client.indices.create(index=index_name, body={"settings": {"number_of_replicas": 0}})
    client.bulk(index=index_name, body=lines, refresh=True)
    query = {"match": {"body": "{{query}}"}}
    body = {"query": query, "highlight": {"fields": {"body": {}}}, "aggs": {"v": {"max": {"field": "views"}}}}
    (tmp_path / "production.json").write_text(json.dumps(body))
    (tmp_path / "newest.json").write_text(json.dumps({"query": query, "sort": [{"views": "desc"}]}))
    return index_name, f"production={tmp_path / 'production.json'}"


@pytest.mark.cluster
def test_productions_own_query_is_searched_with_in_an_index_that_osn_did_not_write(
    client, articles: tuple[str, str], cluster_url: str
) -> None:
    index, template = articles
    asked = ["--index", index, "--template", template, "the rainbow"]
    answer = json.loads(osn(cluster_url, *asked, "--json", "--explain").stdout)
    assert answer["engine"] == "production"
    expected = client.search(index=index, body={"query": {"match": {"body": "the rainbow"}}})["hits"]["hits"]
    assert [(hit["id"], hit["score"]) for hit in answer["hits"]] == [(hit["_id"], hit["_score"]) for hit in expected]
    assert answer["hits"][0]["excerpt"] == "<em>the</em> <em>rainbow</em> and <em>the</em> rain"
    for hit in answer["hits"]:
        assert {token["token"] for token in hit["tokens"]} <= {"the", "rainbow"}
        assert hit["sum"] == pytest.approx(hit["score"], rel=1e-5)
    assert [hit["id"] for hit in json.loads(osn(cluster_url, *asked, "--json", "--from", "1").stdout)["hits"]] == ["d2"]
    shown = osn(cluster_url, *asked)
    assert shown.stdout.startswith("production, ") and "Number 0" in shown.stdout and not shown.stderr
    body = json.loads(osn(cluster_url, *asked, "--body", "--size", "3").stdout)
    assert body["query"] == {"match": {"body": "the rainbow"}} and body["size"] == 3


@pytest.mark.cluster
def test_the_settings_of_the_index_are_known_before_a_query_of_ones_own_is_doubted(
    client, articles: tuple[str, str], cluster_url: str, tmp_path: Path
) -> None:
    """Warnings by OpenSearch's defaults said of good hits that they came several times, or that a request was rejected."""
    index, template = articles
    parts = {"queries": [{"match": {"body": "{{query}}"}}, {"match": {"title": "{{query}}"}}]}
    (tmp_path / "production.json").write_text(json.dumps({"query": {"hybrid": parts}}))
    asked = ["--index", index, "--template", template, "rainbow"]
    assert "hybrid-without-pipeline" in osn(cluster_url, *asked).stderr
    failed: list[str] = []

    def no_settings(request: Request) -> Fault | None:
        if request.method != "GET" or request.path.partition("?")[0] != f"/{index}":
            return None
        failed.append(request.path)
        return Fault("status", 500)

    with FaultProxy(cluster_url, everything=True) as proxy:
        proxy.fault = no_settings
        undiagnosed = osn(proxy.url, *asked)
        assert undiagnosed.returncode == 0 and "hybrid-without-pipeline" in undiagnosed.stderr, undiagnosed.stderr
        assert failed
    send, pipeline = client.transport.perform_request, f"/_search/pipeline/{index}"
    send("PUT", pipeline, body={"phase_results_processors": [{"normalization-processor": {}}]})
    try:
        client.indices.put_settings(index=index, body={"index.search.default_pipeline": index})
        fused = osn(cluster_url, *asked)
        assert fused.returncode == 0 and fused.stderr == "" and "Number 2" in fused.stdout, fused.stderr
        assert "does not explain scores of a hybrid query" in osn(cluster_url, *asked, "--explain").stderr
    finally:
        client.indices.put_settings(index=index, body={"index.search.default_pipeline": None})
        send("DELETE", pipeline)
    (tmp_path / "production.json").write_text(json.dumps({"query": {"match": {"body": "{{query}}"}}}))
    deep = [*asked, "--from", "20000"]
    assert "rejected: size: from + size is 20,010" in osn(cluster_url, *deep).stderr
    client.indices.put_settings(index=index, body={"index.max_result_window": 50_000})
    allowed = osn(cluster_url, *deep)
    assert allowed.returncode == 0 and allowed.stderr == "", allowed.stderr


@pytest.mark.cluster
def test_hits_without_ids_are_shown(articles: tuple[str, str], cluster_url: str, tmp_path: Path) -> None:
    index, template = articles
    body = {"query": {"match": {"body": "{{query}}"}}, "stored_fields": "_none_", "docvalue_fields": ["views"]}
    (tmp_path / "production.json").write_text(json.dumps(body))
    for more in (["--explain"], ["--json"]):
        shown = osn(cluster_url, "--index", index, "--template", template, "rainbow", *more)
        assert shown.returncode == 0, shown.stderr


@pytest.mark.cluster
def test_half_a_surrogate_pair_in_a_document_of_others_is_shown_as_an_escape(
    client, articles: tuple[str, str], cluster_url: str
) -> None:
    index, template = articles
    half = r'{"title": "half \ud83d a pair", "body": "sleet \udc00"}'
    client.transport.perform_request("PUT", f"/{index}/_doc/half", params={"refresh": "true"}, body=half)
    asked = ["--index", index, "--template", template, "sleet"]
    shown, explained = osn(cluster_url, *asked), osn(cluster_url, *asked, "--explain")
    assert r"half \ud83d a pair" in shown.stdout and shown.returncode == explained.returncode == 0, shown.stderr
    (hit,) = json.loads(osn(cluster_url, *asked, "--json").stdout)["hits"]
    assert hit["title"] == "half \ud83d a pair"


@pytest.mark.cluster
def test_hits_that_a_query_of_ones_own_sorts_have_no_score(articles: tuple[str, str], cluster_url: str) -> None:
    index, template = articles
    newest = template.replace("production", "newest")
    shown = osn(cluster_url, "--index", index, "--template", newest, "--explain", "rainbow")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.index("1. no score  Number 2") < shown.stdout.index("2. no score  Number 0")
    assert "a rainbow" in shown.stdout  # the text is found by its usual names


def _no_constant(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


@pytest.mark.cluster
def test_an_infinite_score_is_shown_and_one_within_a_score_is_read(
    articles: tuple[str, str], cluster_url: str, tmp_path: Path
) -> None:
    """OpenSearch writes it as a text, which ended in a traceback."""
    index, template = articles
    by_views = {"field": "views", "modifier": "reciprocal"}  # infinite for d0, of at most `max_boost`
    for boost, infinite in ((1000, True), (1e-9, False)):
        query = {"match": {"body": {"query": "{{query}}", "boost": boost}}}
        body = {"query": {"function_score": {"query": query, "field_value_factor": by_views}}}
        (tmp_path / "production.json").write_text(json.dumps(body))
        asked = ["--index", index, "--template", template, "rainbow"]
        for more in ([], ["--explain"]):
            shown = osn(cluster_url, *asked, *more)
            assert shown.returncode == 0 and not shown.stderr, shown.stderr
            assert ("1. inf  Number 0" in shown.stdout) == infinite, shown.stdout
        hits = json.loads(osn(cluster_url, *asked, "--json", "--explain").stdout, parse_constant=_no_constant)["hits"]
        assert [hit["id"] for hit in hits] == ["d0", "d2"]
        assert hits[0]["score"] == hits[0]["sum"] and (hits[0]["score"] == "Infinity") == infinite


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine", "bm25"], "--engine has no effect with --template"),
        (["--filter", "views=1"], "--filter has no effect with --template"),
        (["--rare", "count:3"], "--rare has no effect with --template"),
        (["--template", "bm25=x.json"], "'bm25' is an engine already"),
        (["--template", "production.json"], "expected NAME=FILE"),
        (["--template", "production=absent.json"], "the template absent.json cannot be read"),
    ],
)
def test_what_a_query_of_ones_own_leaves_no_room_for(
    articles: tuple[str, str], cluster_url: str, arguments: list[str], message: str
) -> None:
    index, template = articles
    named = [] if "--template" in arguments else ["--template", template]
    done = osn(cluster_url, "--index", index, *named, *arguments, "rainbow")
    assert done.returncode != 0
    assert message in done.stderr and "Traceback" not in done.stderr


def test_a_query_without_quotation_marks_is_told_of() -> None:
    done = osn("http://127.0.0.1:1", "--index", "docs", "heart", "attack")
    assert done.returncode == 2
    assert 'put a query in quotation marks: "heart attack"' in done.stderr


def test_the_command_knows_no_engine_by_name() -> None:
    """An engine owns its name, its needs and its options; only the help text, a docstring, has engines as examples."""
    tree = ast.parse(Path(search.__file__ or "").read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Module)]
    docstrings = {id(node.body[0].value) for node in functions if isinstance(node.body[0], ast.Expr)}
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]
    assert "sparse" in ENGINES and "bm25" in ENGINES
    assert not ENGINES.keys() & set(texts)
    ordinary_words = {"sparse", "dense"}  # the help may speak of sparse vectors
    words = {word for text in texts for word in re.findall(r"[\w-]+", text)}
    assert not words & (ENGINES.keys() - ordinary_words)
