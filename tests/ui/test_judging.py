"""A file of queries on the page: sorted by disagreement, walked through, judged without names."""

from __future__ import annotations

import html
import json
import re
import resource
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from opensearchpy.exceptions import RequestError
from starlette.testclient import TestClient

from opensearch_neural.corpus.judgements import read_qrels
from opensearch_neural.errors import InputError
from opensearch_neural.locks import hold
from opensearch_neural.ui import walk
from opensearch_neural.ui.application import application
from opensearch_neural.ui.columns import Searcher
from opensearch_neural.ui.grades import Grade, Grades, scores
from opensearch_neural.ui.state import OWN_BODY, Column, State
from opensearch_neural.ui.walk import Sorting, disagreement

QUERIES = {"q1": "what causes a rainbow", "q2": "<b>fish</b> of rivers", "q3": "colours of light"}


def grade(query: str, document: str, number: int, who: str = "ann", when: str = "2026-01-01T00:00:00+00:00") -> Grade:
    return Grade(query, QUERIES[query], document, number, who, when)


def test_disagreement_is_the_share_that_only_one_page_has() -> None:
    assert disagreement([{"a": 1, "b": 1}, {"b": 1, "c": 1}]) == pytest.approx(2 / 3)
    assert disagreement([{"a": 1}, {"a": 2}]) == 0
    assert disagreement([{}, {}]) == disagreement([{"a": 1}]) == 0
    assert disagreement([{"a": 1}, {"a": 1}, {"b": 1}]) == pytest.approx(2 / 3)


def test_grades_are_kept_and_judging_goes_on(tmp_path: Path) -> None:
    grades = Grades.read(tmp_path / "grades.jsonl")
    for each in (
        grade("q1", "rain", 1),
        grade("q1", "rain", 3),
        grade("q1", "rain", 2, "bob", "2026-01-02T00:00:00+00:00"),
    ):
        grades.add(each)
    again = Grades.read(tmp_path / "grades.jsonl")
    assert again.of("q1", "ann") == {"rain": 3}
    assert again.qrels() == {"q1": {"rain": 2}}
    (tmp_path / "judged.qrels").write_text(again.trec())
    assert read_qrels(tmp_path / "judged.qrels") == {"q1": {"rain": 2}}
    imported = again.workbench("mine")
    assert imported["type"] == "IMPORT_JUDGMENT"
    rating = {"query": QUERIES["q1"], "ratings": [{"docId": "rain", "rating": "2.0"}]}
    assert imported["judgmentRatings"] == [rating]


def test_a_file_that_holds_something_else_is_named(tmp_path: Path) -> None:
    (tmp_path / "grades.jsonl").write_text('{"query": "q1"}\n')
    with pytest.raises(InputError, match="line 1: not a grade"):
        Grades.read(tmp_path / "grades.jsonl")


def line_of(**changed: Any) -> bytes:
    return json.dumps(asdict(grade("q1", "rain", 1)) | changed).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\n",
        b"[" * 100_000,
        b'{"query": []}',
        *(line_of(grade=value) for value in ("2", 2.0, 4, True, None)),
        *(line_of(**{name: 7}) for name in ("query", "text", "document", "who", "when")),
    ],
)
def test_a_file_of_other_bytes_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "grades.jsonl").write_bytes(content)
    with pytest.raises(InputError, match="line 1: not a grade"):
        Grades.read(tmp_path / "grades.jsonl")


def test_a_file_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"grades cannot be kept in .*grades\.jsonl: No such file or directory"):
        Grades.read(tmp_path / "not-there" / "grades.jsonl")


def test_a_grade_after_a_line_without_an_end_is_a_line_of_its_own(tmp_path: Path) -> None:
    grades = Grades.read(tmp_path / "grades.jsonl")
    grades.add(grade("q1", "rain", 1))
    (tmp_path / "grades.jsonl").write_bytes((tmp_path / "grades.jsonl").read_bytes().removesuffix(b"\n"))
    grades.add(grade("q1", "light", 3))
    assert Grades.read(tmp_path / "grades.jsonl").of("q1", "ann") == {"rain": 1, "light": 3}
    assert len((tmp_path / "grades.jsonl").read_text().splitlines()) == 2


def test_a_grade_that_the_disk_has_no_room_for_is_refused_and_the_file_stays_whole(tmp_path: Path) -> None:
    """Before, half of its line stayed, so that the page could not be started again; and the grade was exported."""
    file = tmp_path / "grades.jsonl"
    grades = Grades.read(file)
    grades.add(grade("q1", "rain", 1))
    before = file.read_bytes()
    for room in (0, 30):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, hard))
        try:
            with pytest.raises(InputError, match="the grade is not kept"):
                grades.add(grade("q1", "light", 3))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert file.read_bytes() == before and grades.of("q1", "ann") == {"rain": 1}
    grades.add(grade("q1", "sun", 2))
    assert Grades.read(file).of("q1", "ann") == {"rain": 1, "sun": 2}


def test_two_pages_with_one_file_know_each_others_grades(tmp_path: Path) -> None:
    file = tmp_path / "grades.jsonl"
    one, other = Grades.read(file), Grades.read(file)
    one.add(grade("q1", "rain", 1))
    other.add(grade("q1", "rain", 3, "bob"))
    other.add(grade("q2", "fish", 2, "bob"))
    assert one.qrels() == other.qrels() == {"q1": {"rain": 3}, "q2": {"fish": 2}}
    one.add(grade("q1", "rain", 0))
    assert other.qrels()["q1"] == {"rain": 0}, "in the same second the last line counts"


def test_a_page_waits_while_another_writes_and_leaves_no_blank_line(tmp_path: Path) -> None:
    """A blank line, which two pages that wrote at once could leave in the file, was said to be no grade."""
    file = tmp_path / "grades.jsonl"
    grades = Grades.read(file)
    writing = threading.Thread(target=grades.add, args=[grade("q1", "light", 3)])
    with file.open("ab", buffering=0) as other:
        hold(other)
        writing.start()
        writing.join(0.3)
        assert writing.is_alive() and not file.read_bytes()
        other.write(line_of() + b"\n")
    writing.join()
    assert [json.loads(line)["document"] for line in file.read_text().splitlines()] == ["rain", "light"]


def test_a_blank_line_among_the_grades_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "grades.jsonl").write_bytes(b"\n" + line_of() + b"\n\n" + line_of(document="light") + b"\r\n \n")
    assert Grades.read(tmp_path / "grades.jsonl").of("q1", "ann") == {"rain": 1, "light": 1}


@pytest.mark.parametrize("id", ["two words", " rain", "rain\u00a0", ""])
def test_an_id_with_a_blank_is_in_no_trec_file(id: str, tmp_path: Path) -> None:
    grades = Grades(tmp_path / "g.jsonl")
    grades.add(grade("q1", id, 1))
    with pytest.raises(InputError, match="an id with a blank"):
        grades.trec()


def test_ids_with_blanks_go_into_qrels_of_beir_and_are_read_again(tmp_path: Path) -> None:
    grades = Grades(tmp_path / "g.jsonl")
    grades.add(Grade("query 1", "x", "two words", 2, "ann", "2026-01-01"))
    grades.add(Grade("query 1", "x", "rain", 0, "ann", "2026-01-01"))
    (tmp_path / "grades.tsv").write_text(grades.beir())
    assert read_qrels(tmp_path / "grades.tsv") == {"query 1": {"two words": 2, "rain": 0}}
    for id in ("", " rain", "a\tb", "a\nb", "a\u2028b"):
        other = Grades(tmp_path / f"{len(id)}.jsonl")
        other.add(Grade("q1", "x", id, 1, "ann", "2026-01-01"))
        with pytest.raises(InputError, match="cannot contain the id"):
            other.beir()
        (tmp_path / f"{len(id)}.jsonl").unlink()


def test_grades_of_another_question_with_the_same_id_are_named(tmp_path: Path) -> None:
    grades = Grades(tmp_path / "g.jsonl")
    for query in ("q1", "q2"):
        grades.add(grade(query, "rain", 1))
    assert grades.regraded(QUERIES) == [] and grades.regraded({"q3": "new"}) == []
    assert grades.regraded({**QUERIES, "q2": "another question"}) == ["q2"]


def test_wins_and_losses_are_against_the_first_column(tmp_path: Path) -> None:
    grades = Grades(tmp_path / "g.jsonl")
    for query in QUERIES:
        grades.add(grade(query, "rain", 3))
    bad, good = {"x": 2.0, "rain": 1.0}, {"rain": 2.0, "x": 1.0}
    (score,) = scores(grades, [dict.fromkeys(QUERIES, bad), {"q1": good, "q2": good, "q3": {}}], 10)
    assert (score.queries, score.wins, score.losses) == (3, 2, 1)
    lost = 1 / 1.584962500721156  # the gain of rank 2, by hand: 1 / log2(3)
    assert score.ndcg.difference == pytest.approx((2 * (1 - lost) - lost) / 3)
    assert score.ndcg.low is not None and score.ndcg.high is not None
    assert score.ndcg.low < score.ndcg.difference < score.ndcg.high


def test_a_judged_query_that_was_not_searched_yet_is_neither_won_nor_lost(tmp_path: Path) -> None:
    grades = Grades(tmp_path / "g.jsonl")
    for query in QUERIES:
        grades.add(grade(query, "rain", 3))
    good, bad = {"rain": 2.0}, {"x": 2.0}
    (score,) = scores(grades, [{"q1": bad, "q2": bad}, {"q1": good}], 10)
    assert (score.queries, score.wins) == (1, 1)
    assert scores(grades, [{}, {}], 10) == []


def test_a_walk_keeps_to_the_order_of_its_beginning() -> None:
    searcher: Any = None
    sorting = Sorting(searcher, QUERIES, State(), order=[("q3", 0.9), ("q2", 0.5), ("q1", 0.1)])
    assert [sorting.ranked(searched) for searched in range(4)] == [
        ["q1", "q2", "q3"],
        ["q1", "q2", "q3"],
        ["q2", "q1", "q3"],
        ["q3", "q2", "q1"],
    ]


@pytest.mark.cluster
def test_a_sorting_that_is_paused_keeps_what_it_has_and_goes_on_from_there(
    client: Any, page_index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "CHUNK", 1)
    searcher = Searcher(client, (page_index,))
    columns = Column("bm25", page_index), Column("bm25-sparse", page_index)
    sorting = Sorting(searcher, QUERIES, State(columns=columns))
    searched: list[Any] = []
    search = client.search

    def counted(**asked: Any) -> Any:
        searched.append(asked["body"])
        sorting.pause()
        return search(**asked)

    monkeypatch.setattr(client, "search", counted)
    sorting.run()
    assert [query for query, _ in sorting.order] == ["q1"] and not sorting.running and not sorting.whole
    assert sorting.ranked(1) == [*QUERIES]
    while not sorting.whole:
        sorting.go_on()
        time.sleep(0.01)
    assert len(searched) == len(QUERIES) * len(columns), "no query is searched twice"
    assert all(run.keys() == QUERIES.keys() for run in sorting.runs)
    assert [apart for _, apart in sorting.order] == sorted((apart for _, apart in sorting.order), reverse=True)


@pytest.mark.cluster
def test_a_body_of_ones_own_is_ranked_by_ids_whatever_else_it_asks_for(client: Any, page_index: str) -> None:
    own = {
        "query": {"multi_match": {"query": "{{query}}", "fields": ["title", "text"]}},
        "docvalue_fields": ["_seq_no"],
    }
    state = State(columns=(Column("bm25", page_index), Column(OWN_BODY, page_index, body=json.dumps(own))), size=5)
    sorting = Sorting(Searcher(client, (page_index,)), QUERIES, state)
    sorting.run()
    assert sorting.error == "" and [{*run} for run in sorting.runs] == [QUERIES.keys()] * 2
    for query in QUERIES:
        assert sorting.runs[0][query] and {*sorting.runs[0][query]} == {*sorting.runs[1][query]}


@pytest.mark.cluster
def test_after_an_error_the_list_shows_what_there_is_and_tries_again(
    client: Any, page_index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "CHUNK", 1)
    search = client.search
    refused = [True]

    def search_or_refuse(**asked: Any) -> Any:
        if refused[0] and "fish" in json.dumps(asked["body"]):
            raise RequestError(400, "refused", {})
        return search(**asked)

    monkeypatch.setattr(client, "search", search_or_refuse)
    with TestClient(application(Searcher(client, (page_index,)), queries=QUERIES)) as browser:
        text = listed(browser, lambda text: "Try again" in text)
        assert "id=q1" in text and "id=q2" not in text
        refused[0] = False
        assert "Try again" in browser.get("/queries").text
        browser.get("/queries", params={"again": "yes"})
        assert "id=q2" in listed(browser, lambda text: "were searched" not in text)


def listed(browser: TestClient, wanted: Callable[[str], bool]) -> str:
    """The list of queries, once it is as wanted."""
    for _ in range(200):
        text = browser.get("/queries").text
        if wanted(text):
            return text
        time.sleep(0.05)
    raise AssertionError(text)


@pytest.fixture
def page(client: Any, page_index: str, tmp_path: Path) -> Iterator[TestClient]:
    grades = Grades.read(tmp_path / "grades.jsonl")
    with TestClient(application(Searcher(client, (page_index,)), queries=QUERIES, grades=grades)) as browser:
        yield browser


@pytest.mark.cluster
def test_the_list_shows_every_query_and_how_far_the_columns_are_apart(page: TestClient) -> None:
    text = listed(page, lambda text: "were searched" not in text)
    assert all(f"id={query}" in text for query in QUERIES)
    assert "&lt;b&gt;fish&lt;/b&gt;" in text
    shares = [int(part.partition("%")[0]) for part in text.split("<tr><td>")[1:]]
    assert shares == sorted(shares, reverse=True)
    assert "Query 2 of 3" in page.get("/", params={"id": text.split("&amp;id=")[2][:2]}).text


@pytest.mark.cluster
def test_a_walk_begins_with_the_first_query_of_its_order(page: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start page led to the file's first query, which was somewhere in the order by disagreement."""
    apart = iter((0.1, 0.2, 0.9))
    monkeypatch.setattr(walk, "disagreement", lambda pages: next(apart))
    asked = {"engine": ["bm25", "sparse"], "size": "1"}
    for path, who in (("/", {}), ("/judge", {"who": "ann"})):
        for sort in (False, True):
            if sort:
                while "were searched" in page.get("/queries", params=asked).text:
                    time.sleep(0.05)
            (first,) = re.findall(r'rel="next" href="[^"?]*(\?[^"]*)"', page.get(path, params={**asked, **who}).text)[
                :1
            ]
            shown = page.get(path + html.unescape(first)).text
            assert "Query 1 of 3" in shown and 'rel="prev"' not in shown


@pytest.mark.cluster
def test_links_and_form_of_a_long_query_work(client: Any, page_index: str) -> None:
    """They had its text, which the page refused."""
    queries = {"q1": "rainbow " * 400}
    with TestClient(application(Searcher(client, (page_index,)), queries=queries)) as browser:
        text = browser.get("/", params={"id": "q1"}).text
        links = [html.unescape(link) for link in re.findall(r'href="([^"]*\?[^"]*)"', text)]
        assert len(links) == 4 and all("id=q1" in link for link in links)
        for link in links:
            assert browser.get(f"/{link.removeprefix('./')}").status_code == 200
        (typed,) = re.findall(r'<input name="q" type="search" value="(.*?)"', text, re.DOTALL)
        shown = browser.get("/", params={"id": "q1", "q": typed})
        assert shown.status_code == 200 and 'data-document="rain"' in shown.text
        assert browser.get("/", params={"id": "q1", "q": typed + "fish"}).status_code == 400


@pytest.mark.cluster
def test_an_interval_is_said_to_be_too_narrow_where_one_is_shown(page: TestClient) -> None:
    """One query has no interval, and was said to have one."""
    said = "an interval is too narrow"
    listed(page, lambda text: "were searched" not in text)
    for number, query in enumerate(("q1", "q3"), start=1):
        sent = {"query": query, "document": "rain", "grade": 3, "who": "ann"}
        assert page.post("/grade", json=sent).status_code == 204
        text = page.get("/queries").text
        assert f"{number} judged queries" in text and (said in text) == (number > 1)


@pytest.mark.cluster
def test_the_judges_page_names_no_engine_and_no_score(page: TestClient) -> None:
    text = page.get("/judge", params={"id": "q1", "who": "ann"}).text
    assert text.count('class="hit"') > 4
    shown = text[text.index("<h2 ") :]
    assert "bm25" not in shown and "score" not in shown


@pytest.mark.cluster
def test_a_document_looks_the_same_to_a_judge_whichever_column_found_it(client: Any, page_index: str) -> None:
    """Columns of engines marked words and showed the part of a text with them; a body of one's own did not."""
    match = {"match": {"text": "{{query}}"}}
    bodies = [
        {"query": match},
        {"query": match, "highlight": {"fields": {"text": {"fragment_size": 20}}}, "_source": ["title"]},
        {"query": {"hybrid": {"queries": [match, {"match": {"title": "{{query}}"}}]}}, "stored_fields": ["title"]},
    ]
    own = [{"engine": "own body", "body": json.dumps(body)} for body in bodies]
    app = application(Searcher(client, (page_index,)), queries={"q": "rainbow when comets glow"})
    with TestClient(app) as browser:
        seen: dict[str, set[str]] = {}
        for asked in (*({"engine": name} for name in ("bm25", "bm25-sparse")), *own):
            text = browser.get("/judge", params={**asked, "id": "q", "who": "ann", "size": "20"}).text
            hits = re.findall(r'data-document="(.*?)">.*?</span>(.*?)<fieldset', text, re.DOTALL)
            assert {"rain", "long"} <= {id for id, _ in hits}, asked
            for id, shown in hits:
                seen.setdefault(id, set()).add(shown)
    assert {id: len(shown) for id, shown in seen.items()} == dict.fromkeys(seen, 1)
    assert "<mark>Comets</mark> <mark>glow</mark>" in seen["long"].pop()


@pytest.mark.cluster
def test_columns_change_places(page: TestClient) -> None:
    asked = {"engine": ["bm25", "own body"], "body": ["", '{"query": {"match": {"lang": "de {{query}}"}}}']}
    pages = [page.get("/judge", params={**asked, "id": "q1", "who": f"judge {at}"}).text for at in range(12)]
    assert {text.index("no hits") < text.index('class="hit"') for text in pages} == {True, False}


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("sent", "type", "status"),
    [
        ({"query": "q1", "document": "rain", "grade": 3, "who": "ann"}, "application/json", 204),
        ({"query": "q1", "document": "rain", "grade": 3, "who": "ann"}, "text/plain", 415),
        ({"query": "q9", "document": "rain", "grade": 3, "who": "ann"}, "application/json", 400),
        ({"query": "q1", "document": "rain", "grade": 4, "who": "ann"}, "application/json", 400),
        ({"query": "q1", "document": "rain", "grade": True, "who": "ann"}, "application/json", 400),
        ({"query": ["q1"], "document": "rain", "grade": 1, "who": "ann"}, "application/json", 400),
        ({"query": "q1", "document": "rain", "grade": 1, "who": " "}, "application/json", 400),
        ([], "application/json", 400),
        ("x" * 20_000, "application/json", 413),
    ],
)
def test_only_a_grade_is_taken(page: TestClient, tmp_path: Path, sent: Any, type: str, status: int) -> None:
    answer = page.post("/grade", content=json.dumps(sent), headers={"content-type": type})
    assert answer.status_code == status
    assert bool((tmp_path / "grades.jsonl").read_text()) == (status == 204)
    assert ("q1 0 rain 3" in page.get("/grades/trec").text) == (status == 204)
    assert ("q1\train\t3" in page.get("/grades/beir").text) == (status == 204)


def test_grades_that_a_format_cannot_hold_are_refused_in_plain_text(tmp_path: Path) -> None:
    """The error was a web page, which `curl` wrote into a file of qrels."""
    grades = Grades(tmp_path / "grades.jsonl")
    grades.add(grade("q1", "two words", 1))
    client: Any = None
    answer = TestClient(application(Searcher(client, ("docs",)), queries=QUERIES, grades=grades)).get("/grades/trec")
    assert answer.status_code == 400 and answer.headers["content-type"].startswith("text/plain")
    assert answer.text.startswith("TREC qrels cannot contain an id with a blank")


@pytest.mark.cluster
def test_without_a_file_nothing_is_judged(client: Any, page_index: str) -> None:
    browser = TestClient(application(Searcher(client, (page_index,))))
    assert browser.get("/judge").status_code == 400
    assert browser.get("/queries").status_code == 400


@pytest.mark.cluster
def test_an_address_with_the_id_of_no_query_says_so(page: TestClient, client: Any, page_index: str) -> None:
    """It was searched for nothing, and showed columns without hits."""
    for path in ("/", "/judge", "/snapshot"):
        answer = page.get(path, params={"id": "<q9>", "who": "ann"})
        assert answer.status_code == 400
        assert "the address names the query &#39;&lt;q9&gt;&#39;, which the file of queries lacks" in answer.text
    shown = page.get("/", params={"id": "q9", "q": "what causes a rainbow"}).text
    assert 'data-document="rain"' in shown, "an address of another file of queries has the text, too"
    browser = TestClient(application(Searcher(client, (page_index,))))
    answer = browser.get("/", params={"id": "q1"})
    assert answer.status_code == 400 and "the page was started without a file of queries" in answer.text


@pytest.mark.parametrize("text", ["what is\u2028love", "a\x85b", "line\x0bfeed"])
def test_a_query_with_a_line_end_of_its_own_is_one_grade(text: str, tmp_path: Path) -> None:
    grades = Grades(tmp_path / "grades.jsonl")
    grades.add(Grade("q", text, "d", 2, "ann", "2026-01-01"))
    grades.add(Grade("q", text, "e", 0, "ann", "2026-01-01"))
    assert Grades.read(tmp_path / "grades.jsonl").of("q", "ann") == {"d": 2, "e": 0}
