"""The compare page on a real node: what it shows, what it refuses, and what hostile documents do to it, which is nothing."""

from __future__ import annotations

import html
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from click.testing import CliRunner
from extend_page import names_below
from hostile_documents import DOCUMENTS, HOSTILE
from page_elements import Elements
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.routing import Mount
from starlette.testclient import TestClient

from opensearch_neural.cli import osn
from opensearch_neural.commands import ui
from opensearch_neural.engines import ENGINES
from opensearch_neural.errors import InputError
from opensearch_neural.index.mapping import index_body
from opensearch_neural.index.record import IndexMeta
from opensearch_neural.ui import columns
from opensearch_neural.ui.application import COOKIE, application
from opensearch_neural.ui.columns import REPEATS, WARMING, Searcher, measure_times
from opensearch_neural.ui.comparison import shift
from opensearch_neural.ui.state import Column, State, offered, takers

pytestmark = pytest.mark.cluster

OWN = json.dumps(
    {"query": {"match": {"title": "{{query}}"}}, "rescore": {"window_size": 3, "query": {"rescore_query": {}}}}
)


@pytest.fixture(scope="module")
def searcher(client: Any, page_index: str) -> Searcher:
    return Searcher(client, (page_index,))


@pytest.fixture(scope="module")
def page(searcher: Searcher) -> Iterator[TestClient]:
    with TestClient(application(searcher)) as browser:
        yield browser


def test_a_query_shows_its_hits_in_two_columns(page: TestClient) -> None:
    shown = Elements(page.get("/", params={"q": "what causes a rainbow"}).text)
    assert shown.of("section", "column").__len__() == 2
    assert {"rain", "trout"} <= {hit["data-document"] for hit in shown.of("li", "hit")}
    assert "BM25" in (shown.of("svg", "bar")[0]["aria-label"] or "")


def test_the_parts_of_a_bar_add_up_to_the_score(page: TestClient) -> None:
    shown = Elements(page.get("/", params={"q": "rainbow light", "engine": "bm25-sparse"}).text)
    bars = [line.get("aria-label") or "" for line in shown.of("svg", "bar")]
    widths = [float(part["width"] or 0) for part in shown.of("rect")]
    assert bars and 99 < sum(widths[: len(re.findall(r"[0-9.]+(?=,|$)", bars[0]))]) < 101


def test_ranks_shift_against_the_first_column() -> None:
    assert [shift(1, 4), shift(4, 1), shift(2, 2), shift(1, None)] == ["↑3", "↓3", "=", "new"]


def test_the_same_link_shows_the_same_page(page: TestClient) -> None:
    asked = {"q": "rainbow light", "filter": "lang=en", "size": "3", "engine": ["bm25", "bm25-sparse"]}
    asked |= {"index": ["", ""], "weight": ["", "0.7"], "window": ["", "20"]}
    first = Elements(page.get("/", params=asked).text)
    assert "bm25-sparse, window 20, weight 0.7" in first.text
    (link,) = [each["href"] for each in first.of("a") if (each.get("href") or "").startswith("?q")]
    again = page.get("/", params=parse_qs(urlsplit(link or "").query, keep_blank_values=True)).text
    assert Elements(again).of("li", "hit") == first.of("li", "hit")
    assert len(first.of("li", "hit")) == 6


def test_options_of_engines_are_offered_unless_they_load_files_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    options = [option for engine in ENGINES.values() for option in engine.options]
    assert {option.name for option in options} - takers().keys() == {"faiss", "urls", "tome", "beams"}
    assert all(option.loads for option in options if option.parse in (Path, str))
    added = names_below("An engine")["Bm25Title"]
    monkeypatch.setitem(ENGINES, added.name, added)
    column = Column(added.name, options={"title_boost": "3"})
    assert column.settings() == {"title_boost": 3.0} and column.texts["title_boost"] == "3"


def test_parameters_without_a_text_make_no_other_page() -> None:
    addresses = "engine=bm25-sparse&weight=2", urlencode(Column("bm25-sparse", options={"weight": "2"}).texts)
    short, whole = (State.of(QueryParams(address), (), ("docs",)) for address in addresses)
    assert short == whole and hash(short) == hash(whole) and "window" in addresses[1]


def test_every_setting_that_is_offered_is_searched_with(page: TestClient) -> None:
    asked = {"q": "rainbow light", "size": "2", "engine": ["high-idf-first", "bm25-sparse"], "index": ["", ""]}
    asked |= {"rare": ["count:1", ""], "tokens": ["", "share:0.9"], "exact": ["", "yes"], "window": ["1", ""]}
    shown = Elements(page.get("/", params=asked).text)
    assert (
        "high-idf-first, rare count:1, window 1" in shown.text and "bm25-sparse, tokens share:0.9, exact" in shown.text
    )
    assert not shown.of("p", "error") and len(shown.of("li", "hit")) == 4
    certain = [
        text.partition(" the page")[0] for text in shown.text.split(" · ") if " the page of all documents" in text
    ]
    assert certain[-1].strip() == "certainly"
    names = {each["name"] for tag in ("input", "select", "textarea") for each in shown.of(tag)}
    assert {"rare", "dense_window", "tokens", "exact", "weight", "window"} <= names and not {"faiss", "urls"} & names
    hidden = [each for each in shown.of("label", "setting") if "hidden" not in each]
    assert len(hidden) == len(offered("high-idf-first")) + len(offered("bm25-sparse"))


def test_a_body_of_the_users_own_is_a_column_and_is_linted(page: TestClient) -> None:
    asked = {"q": "rainbow", "engine": "own body", "body": OWN.replace("{}", '{"match": {"text": "light"}}')}
    shown = Elements(page.get("/", params=asked).text)
    assert "rain" in {hit["data-document"] for hit in shown.of("li", "hit")}
    assert "rescore.window_size" in shown.text


def test_an_infinite_score_has_no_bar_and_leaves_the_others_theirs(page: TestClient) -> None:
    endless = {"filter": {"ids": {"values": ["rain"]}}, "script_score": {"script": "1e300"}}
    query = {"match": {"text": {"query": "{{query}}", "boost": 1000}}}
    own = json.dumps({"query": {"function_score": {"query": query, "functions": [endless]}}})
    asked = {"q": "rainbow light", "engine": "own body", "body": own, "document": "rain"}
    answer = page.get("/", params=asked)
    shown = Elements(answer.text)
    first, *others = shown.of("li", "hit")
    assert first["data-document"] == "rain" and '<span class="score">inf</span>' in answer.text
    assert others and len(shown.of("svg", "bar")) == len(others)
    assert "It is here, at rank 1 with inf." in shown.text


def test_of_ones_own_index_the_sentence_is_marked_whatever_its_text_holds(client: Any, page_index: str) -> None:
    index = f"{page_index}-own"
    text = {"type": "text", "analyzer": "english"}
    client.indices.create(index=index, body={"mappings": {"properties": {"body": text, "segment": {"type": "long"}}}})
    try:
        texts = ["Rain </mark><em>Rainbows <b>shine. \0\7 </em>", "Fish.\n\U0001f308 Rainbow!"]
        for each in texts:
            client.index(index=index, body={"body": each, "segment": 7})
        client.indices.refresh(index=index)
        own = '{"query": {"bool": {"must": {"match": {"body": "{{query}}"}}, "filter": {"term": {"segment": 7}}}}}'
        browser = TestClient(application(Searcher(client, (index,))))
        assert '<p class="id">' in browser.get("/", params={"q": "rainbow"}).text, "all fields are searched at first"
        shown = browser.get("/", params={"q": "rainbow", "engine": "own body", "body": own}).text
        marked = re.findall('<p class="excerpt">.*<mark class="sentence">(.*)</p>', shown)
        assert sorted(marked) == [
            "Rain &lt;/mark&gt;&lt;em&gt;<mark>Rainbows</mark> &lt;b&gt;shine. \ufffd\ufffd &lt;/em&gt;</mark>",
            "\U0001f308 <mark>Rainbow</mark>!</mark>",
        ]
    finally:
        client.indices.delete(index=index)


def test_a_body_that_rescores_by_rows_is_explained_by_its_tokens(page: TestClient, searcher: Searcher) -> None:
    column = Column("bm25-sparse", searcher.indexes[0])
    body = searcher.body_text(column, State(query="rainbow light", columns=(column,)))
    assert "script_score" in body
    asked = {"q": "rainbow light", "engine": "own body", "body": body.replace("rainbow light", "{{query}}")}
    shown = Elements(page.get("/", params=asked).text)
    assert "sparse" in (shown.of("svg", "bar")[0]["aria-label"] or "")
    assert "[all tokens]" not in shown.text


def test_times_are_those_of_what_an_application_sends(searcher: Searcher, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []
    search = searcher.client.search
    monkeypatch.setattr(searcher.client, "search", lambda **asked: sent.append(asked["body"]) or search(**asked))
    column = Column("bm25-sparse", searcher.indexes[0])
    state = State(query="rainbow light", columns=(column,))
    measure_times(searcher, [column], state)
    assert len(sent) == WARMING + REPEATS
    assert all(body == json.loads(searcher.body_text(column, state)) for body in sent)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"document": "nowhere"}, "has no document nowhere"),
        ({"document": "bogen", "filter": "lang=en"}, "Filtered out by lang=en."),
        ({"document": "sun"}, "Not found"),
        ({"document": "trout"}, "It is here, at rank"),
        ({"document": "rain", "size": "1"}, "gives it rank"),
        ({"document": "rain", "size": "1", "window": "1", "weight": "9"}, "Outside the window"),
    ],
)
def test_why_a_document_is_not_there(page: TestClient, asked: dict[str, str], told: str) -> None:
    answer = page.get("/", params={"q": "rainbow fish", "engine": "bm25-sparse", "size": "20", **asked})
    assert told in Elements(answer.text).text


MATCHES = [{"match": {"title": "{{query}}"}}, {"match": {"text": "{{query}}"}}]
NORMALIZED = {"phase_results_processors": [{"normalization-processor": {}}]}
FUSED = {"query": {"hybrid": {"queries": MATCHES}}, "search_pipeline": NORMALIZED}
SORTED = {"query": MATCHES[1], "sort": [{"lang": "asc"}, {"_seq_no": "asc"}]}


@pytest.mark.parametrize("size", ["1", "20"])
@pytest.mark.parametrize(
    "asked",
    [
        {"engine": "hybrid"},
        {"engine": "hybrid-rrf"},
        {"engine": "own body", "body": json.dumps(FUSED)},
        {"engine": "own body", "body": json.dumps(SORTED)},
    ],
    ids=["hybrid", "hybrid-rrf", "own hybrid", "own sort"],
)
def test_of_fused_and_sorted_hits_only_the_place_is_told(page: TestClient, asked: dict[str, str], size: str) -> None:
    """A search for one document normalized its score to the best, which was then said to be outside the window; a body that
    sorts has no scores; a hybrid body of one's own cannot be wrapped, and its whole column was lost."""
    asked = {"q": "rainbow fish", "size": size, **asked}
    whole = [
        each["data-document"] for each in Elements(page.get("/", params={**asked, "size": "50"}).text).of("li", "hit")
    ]
    for document in ("rain", "sun"):
        shown = Elements(page.get("/", params={**asked, "document": document}).text)
        assert not shown.of("p", "error") and len(shown.of("li", "hit")) == min(int(size), len(whole))
        hits = [each["data-document"] for each in shown.of("li", "hit")]
        on_page = document in hits
        # The page of an own hybrid body fuses no more hits than it shows, and so may order them in another way.
        rank = (hits if on_page else whole).index(document) + 1 if document in whole else 0
        told = f"It is here, at rank {rank}" if on_page else f"A search for 1,000 hits has it at rank {rank}"
        assert (told if rank else f"It is not among the {len(whole)} hits") in shown.text
        with_score = f"at rank {rank} with " in shown.text
        assert with_score == (rank > 0 and "sort" not in asked.get("body", ""))


def test_a_column_stays_if_it_cannot_be_said_why_a_document_is_not_there(
    page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> str:
        raise InputError("not to be said")

    monkeypatch.setattr("opensearch_neural.ui.comparison.why_absent", refused)
    shown = Elements(page.get("/", params={"q": "rainbow", "document": "sun"}).text)
    assert "not to be said" in shown.text and shown.of("li", "hit") and not shown.of("p", "error")


def test_times_are_medians_of_repeats(page: TestClient) -> None:
    shown = Elements(page.get("/", params={"q": "rainbow", "timed": "yes"}).text)
    assert len(shown.of("table", "times")) == 2
    assert "of 9 repeats" in shown.text


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"engine": "nope"}, "there is no engine 'nope'"),
        ({"engine": "bm25", "index": ".kibana"}, "does not search the index '.kibana'"),
        ({"size": "51"}, "the number of hits must be from 1 to 50"),
        ({"size": "x"}, "the number of hits must be from 1 to 50"),
        ({"size": "1" * 5000}, "the number of hits must be from 1 to 50"),
        ({"q": "x" * 2001}, "2,001 characters"),
        ({"filter": "lang"}, "expected FIELD=VALUE"),
        ({"filter": '{"nope": {}}'}, "nope"),
        ({"engine": "bm25-sparse", "weight": "-1"}, "not above 0"),
        ({"engine": "bm25-sparse", "weight": "1e300"}, "weight 1e300: 1e300 is above 1e+30"),
        ({"engine": "bm25-sparse", "exact": "no"}, "exact no: yes, or nothing"),
        ({"engine": "high-idf-first", "rare": "most"}, "'most' is not a threshold"),
        ({"engine": "own body", "body": "{"}, "not valid JSON"),
        ({"engine": "own body", "body": '{"a":' * 3000}, "nested too deeply"),
        ({"engine": "own body", "body": '{"query": {"nope": "{{query}}"}}'}, "nope"),
        ({"engine": "own body", "body": '{"query": null, "_source": "{{query}}"}'}, ""),
        ({"engine": "own body", "body": '{"query": "hybrid {{query}}", "rescore": 1}'}, ""),
        (
            {
                "engine": "own body",
                "body": '{"query": {}, "rescore": [{"query": {"rescore_query": "script_score {{query}}"}}]}',
            },
            "",
        ),
        ({"engine": "dense"}, "holds no dense vectors"),
    ],
)
def test_what_cannot_be_done_is_said_on_the_page(page: TestClient, asked: dict[str, str], message: str) -> None:
    answer = page.get("/", params={"q": "rainbow", **asked})
    assert answer.status_code in (200, 400)
    shown = Elements(answer.text)
    assert any(each.get("role") == "alert" for each in shown.of("p", "error"))
    assert message in shown.text


def test_a_body_without_a_query_says_why_a_document_is_not_there(page: TestClient) -> None:
    own = '{"suggest": {"all": {"text": "{{query}}", "term": {"field": "text"}}}}'
    answer = page.get("/", params={"q": "rainbow", "engine": "own body", "body": own, "document": "nowhere"})
    assert answer.status_code == 200 and "has no document nowhere" in Elements(answer.text).text
    asked = {"q": "rainbow", "engine": "own body", "document": str(DOCUMENTS[0]["_id"])}
    for body, told in ((own, "Not found"), ('{"stats": ["{{query}}"]}', "It is here, at rank")):
        answer = page.get("/", params={**asked, "body": body})
        assert answer.status_code == 200 and told in Elements(answer.text).text


def test_hostile_documents_are_text(page: TestClient, searcher: Searcher) -> None:
    for address in ("/", "/snapshot"):
        text = page.get(address, params={"q": "rainbow", "engine": ["bm25", "sparse"], "size": "20"}).text
        shown = Elements(text)
        assert HOSTILE[0] in shown.text and "window.hacked = 3" in shown.text
        assert not [name for _, attributes in shown.elements for name in attributes if name.startswith("on")]
        assert [
            each for each in shown.of("a") if not (each["href"] or "").startswith(("?", "./", "snapshot", "#"))
        ] == []
        assert {"iframe", "img"}.isdisjoint(name for name, _ in shown.elements)
        assert len(shown.of("script")) == 1
        text.encode()


def test_a_hostile_query_is_text(page: TestClient) -> None:
    for query in [*HOSTILE, "\ud800"]:
        answer = page.get("/", params={"q": query.encode("utf-8", "surrogatepass"), "filter": f"lang={HOSTILE[0]}"})
        assert answer.status_code == 200
        assert len(Elements(answer.text).of("script")) == 1


def test_the_policy_allows_nothing_from_elsewhere(page: TestClient) -> None:
    for path in ("/", "/static/page.js", "/nowhere"):
        policy = page.get(path).headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy and "http" not in policy and "*" not in policy


def test_it_only_answers_to_its_own_names(searcher: Searcher) -> None:
    guarded = TestClient(application(searcher, hosts=("127.0.0.1", "::1")), base_url="http://127.0.0.1:8484")
    assert guarded.get("/").status_code == 200
    assert guarded.get("/", headers={"host": "[::1]:8484"}).status_code == 200
    assert guarded.get("/", headers={"host": "rebound.example.org:8484"}).status_code == 421


def test_a_token_is_asked_for_once(searcher: Searcher) -> None:
    app = application(searcher, token="secret-token")
    assert TestClient(app).get("/").status_code == 401
    assert TestClient(app).get("/static/page.js").status_code == 401
    assert TestClient(app).get("/", params={"token": "wrong"}).status_code == 401
    assert TestClient(app).get("/", headers={"authorization": "Bearer secret-token"}).status_code == 200
    browser = TestClient(app)
    answer = browser.get("/", params={"token": "secret-token", "q": "rainbow"})
    assert answer.status_code == 200 and "token" not in str(answer.url)
    assert browser.get("/").status_code == 200
    cookie = f"name=a,b c; other={{1}}; {COOKIE}=secret-token"
    assert TestClient(app).get("/", headers={"cookie": cookie}).status_code == 200
    assert TestClient(app).get("/", headers={"cookie": f"{COOKIE}=wrong"}).status_code == 401


def test_a_swapped_alias_needs_no_restart(client: Any, page_index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, alias = f"{page_index}-plain", f"{page_index}-alias"
    client.indices.create(index=plain, body=index_body(IndexMeta(), replicas=0))
    try:
        client.indices.put_alias(index=page_index, name=alias)
        browser = TestClient(application(Searcher(client, (alias,))))
        asked = {"q": "rainbow", "engine": ["bm25", "bm25-sparse"]}
        assert not Elements(browser.get("/", params=asked).text).of("p", "error")
        moved = [{"remove": {"index": page_index, "alias": alias}}, {"add": {"index": plain, "alias": alias}}]
        client.indices.update_aliases(body={"actions": moved})
        monkeypatch.setattr(columns, "FRESH", 0.0)
        assert "holds no sparse vectors" in Elements(browser.get("/", params=asked).text).text
        client.indices.delete(index=plain)
        answer = browser.get("/", params=asked)
        assert answer.status_code == 502 and "there is no index" in answer.text
    finally:
        client.indices.delete(index=plain, ignore=[404])
        client.indices.delete_alias(index="_all", name=alias, ignore=[404])


def test_a_service_can_mount_it(searcher: Searcher) -> None:
    browser = TestClient(Starlette(routes=[Mount("/compare", application(searcher, token="t"))]))
    answer = browser.get("/compare/", params={"token": "t", "q": "rainbow"})
    assert answer.status_code == 200 and answer.url.path == "/compare/"
    assert browser.get("/compare/static/page.css").status_code == 200


def test_a_page_is_one_file_that_works_offline(cluster_url: str, page_index: str, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    asked = [
        "ui",
        page_index,
        "--url",
        cluster_url,
        "--query",
        "rainbow",
        "--engines",
        "bm25,sparse",
        "--snapshot",
        str(out),
    ]
    done = CliRunner().invoke(osn, asked)
    assert done.exit_code == 0, done.output
    shown = Elements(out.read_text())
    assert not shown.of("link") and not shown.of("form")
    assert all("src" not in attributes for _, attributes in shown.elements)
    assert len(shown.of("section", "column")) == 2
    done = CliRunner().invoke(osn, [*asked, "--engines", "nope"])
    assert "there is no engine 'nope'" in str(done.exception)
    done = CliRunner().invoke(osn, [*asked, "--engines", "bm25,sparse,bm25,sparse,bm25"])
    assert "at most 4 columns" in str(done.exception)
    done = CliRunner().invoke(osn, [*asked, "--grades", str(tmp_path / "grades.jsonl")])
    assert "name it with --queries" in str(done.exception) and not (tmp_path / "grades.jsonl").exists()


def test_the_engines_that_are_named_at_the_start_are_those_of_the_first_page(
    cluster_url: str, page_index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    apps: list[Any] = []
    monkeypatch.setattr(ui, "serve", lambda app, *_: apps.append(app))
    CliRunner().invoke(osn, ["ui", page_index, "--url", cluster_url, "--engines", "sparse"], catch_exceptions=False)
    browser = TestClient(apps[0], base_url="http://localhost")
    for asked in ({}, {"q": "rainbow"}):
        chosen = [
            each["value"] for each in Elements(browser.get("/", params=asked).text).of("option") if "selected" in each
        ]
        assert [name for name in chosen if name in ENGINES] == ["sparse"]


def test_production_s_own_query_is_a_column_before_the_engines(
    cluster_url: str, page_index: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Hits that only production finds were never judged, and `osn eval` counted them as not relevant."""
    apps: list[Any] = []
    monkeypatch.setattr(ui, "serve", lambda app, *_: apps.append(app))
    (tmp_path / "query.json").write_text('{"size": {{size}}, "query": {"match": {"title": {{query}}}}}')
    (tmp_path / "queries.tsv").write_text("q1\tfish trout\n")
    template = ["--template", f"production={tmp_path / 'query.json'}", "--queries", str(tmp_path / "queries.tsv")]
    asked = ["ui", page_index, "--url", cluster_url, *template]
    for more, engines in (["--engines", "sparse"], ["sparse"]), ([], ["bm25", "bm25-sparse"]):
        CliRunner().invoke(osn, [*asked, *more], catch_exceptions=False)
        browser = TestClient(apps[-1], base_url="http://localhost")
        shown = browser.get("/", params={"q": "trout"}).text
        (link,) = re.findall(r'href="(\?[^"]*)">Permalink', shown)
        for text in (shown, browser.get(f"/{html.unescape(link)}").text):
            assert re.findall(r'<h2 id="column-.">(.*?)</h2>', text) == ["production", *engines]
            assert Elements(text).of("li", "hit")[0]["data-document"] == "trout"
        judged = browser.get("/judge", params={"id": "q1", "who": "ann"}).text
        assert judged.count('<section class="column"') == 1 + len(engines) and "could not be searched" not in judged
    CliRunner().invoke(osn, [*asked, "--template-index", "articles"], catch_exceptions=False)
    own, *others = apps[-1].state.columns
    assert own.index == "articles" and {each.index for each in others} == {page_index}
    done = CliRunner().invoke(osn, [*asked[:4], "--template-index", "articles"])
    assert "--template-index has no effect without --template" in f"{done.output}{done.exception}"


def test_a_port_in_use_ends_in_a_message(cluster_url: str, page_index: str) -> None:
    """uvicorn ended with status 3, which `osn` keeps for rejected documents."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(osn, ["ui", page_index, "--url", cluster_url, "--port", str(port)])
    assert isinstance(done.exception, InputError)
    assert f"port {port}: Address already in use" in str(done.exception) and "--port" in str(done.exception)
    done = CliRunner().invoke(osn, ["ui", page_index, "--url", cluster_url, "--host", "no-host.invalid"])
    assert isinstance(done.exception, InputError) and "no-host.invalid, port 8484: " in str(done.exception)
    assert "Unknown error" not in str(done.exception)


def test_a_name_that_has_an_ipv6_address_alone_can_be_listened_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether the address is free was asked for IPv4, which such a name does not have."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    resolve, listen = socket.getaddrinfo, socket.create_server

    def resolved(host: Any, *rest: Any, **named: Any) -> Any:
        return resolve("::1" if host == "six.invalid" else host, *rest, **named)

    def created(address: tuple[str, int], *, family: int = socket.AF_INET, **named: Any) -> socket.socket:
        host, port = address  # a socket looks names up by itself, for its own family
        return listen((resolved(host, port, family)[0][4][0], port), family=family, **named)

    async def nothing(server: Any) -> None:
        server.should_exit = True

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    monkeypatch.setattr(socket, "create_server", created)
    monkeypatch.setattr("uvicorn.Server.main_loop", nothing)
    ui.serve(lambda *_: None, "six.invalid", 0, None, State())
    assert re.fullmatch(r"http://six\.invalid:\d+/\n", capsys.readouterr().out)
