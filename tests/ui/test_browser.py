"""The compare page as a user has it: a real Chromium, clicking and typing, on a real node."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from hostile_documents import DOCUMENTS
from judged_page import write_report
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route

from opensearch_neural.ui.application import application
from opensearch_neural.ui.columns import Searcher
from opensearch_neural.ui.grades import Grades
from opensearch_neural.ui.pages import readable
from opensearch_neural.ui.state import OWN_BODY
from opensearch_neural.ui.walk import Sorting

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is missing: pip install playwright")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing: apt-get install chromium"),
]


VALUES = "inputs => inputs.map(input => input.value)"
FIRST_POST_LATE = """() => {
  const post = window.fetch;
  let first = true;
  window.fetch = async (...asked) => {
    const late = first;
    first = false;
    if (late) await new Promise((done) => setTimeout(done, 500));
    return post(...asked);
  };
}"""


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The address at which the application answers."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def address(client: Any, page_index: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    queries = {"q1": "what causes a rainbow", "q2": "colours of light"}
    grades = Grades.read(tmp_path_factory.mktemp("grades") / "grades.jsonl")
    with served(application(Searcher(client, (page_index,)), queries=queries, grades=grades)) as where:
        yield where


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def window(browser: Any) -> Any:
    """A window with an empty tab, to which pages are added: a window of its own took each page half a second."""
    opened = browser.new_context(viewport={"width": 1280, "height": 900})
    opened.new_page()
    return opened


@pytest.fixture
def page(window: Any, address: str) -> Iterator[Any]:
    """A page on which anything from elsewhere, any error and any script of a document fails the test."""
    window.clear_cookies()
    opened = window.new_page()
    asked: list[str] = []
    errors: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    try:
        opened.goto(address)
        yield opened
        assert opened.evaluate("window.hacked") is None
        assert errors == []
        assert [url for url in asked if not url.startswith((address, "data:", "file:"))] == []
    finally:
        opened.close()


def follow(page: Any, target: Any) -> None:
    """Clicks on the target and waits until the page behind it is loaded, its style sheet too."""
    with page.expect_navigation():
        target.click()


def search(page: Any, text: str) -> None:
    page.get_by_role("searchbox", name="Query").fill(text)
    follow(page, page.get_by_role("button", name="Search", exact=True))


def test_a_user_types_a_query_and_compares_two_engines(page: Any) -> None:
    search(page, "what causes a rainbow")
    assert page.locator("section.column").count() == 2
    page.locator("fieldset").nth(2).get_by_label("Engine").select_option("high-idf-first")
    follow(page, page.get_by_role("button", name="Search and measure times"))
    assert page.locator("section.column").count() == 3
    assert page.locator("table.times").count() == 3
    page.locator("[data-document=rain]").first.hover()
    assert page.locator("[data-document=rain].lit").count() == page.locator("[data-document=rain]").count() > 1


def test_the_sentence_that_carries_the_most_of_the_score_is_marked(page: Any) -> None:
    search(page, "colours of a prism")
    light = page.locator("[data-document=light]")
    assert light.locator("mark.sentence").all_inner_texts() == ["A prism splits it into colours."] * 2
    excerpts = light.locator(".excerpt").all_inner_texts()
    assert excerpts == ["Light travels in waves. A prism splits it into colours."] * 2
    assert '"Sentence of the most score: A"' in light.locator(".excerpt").first.aria_snapshot()
    page.emulate_media(media="print")
    decoration = "mark => getComputedStyle(mark).textDecorationLine"
    assert light.locator("mark.sentence").first.evaluate(decoration) == "underline"


def test_of_a_long_document_the_part_with_the_sentence_is_shown(page: Any) -> None:
    search(page, "glowing comets")
    marked = page.locator("[data-document=long] mark.sentence")
    assert marked.all_inner_texts() == ["Comets glow when they come near."] * 2
    assert page.locator("[data-document=long] .excerpt").first.inner_text().startswith("… Nothing is written here.")


def test_a_hostile_sentence_is_marked_as_the_text_that_it_is(page: Any) -> None:
    page.get_by_label("Hits").fill("20")
    search(page, "rainbow")
    told = "marks => Object.fromEntries(marks.map(m => [m.closest('.hit').dataset.document, m.textContent]))"
    marked = page.locator(".column").first.locator("mark.sentence").evaluate_all(told)
    texts = {each["_id"]: readable(" ".join(each["text"].split())) for each in DOCUMENTS}
    assert len(marked) > 5 and marked == {id: texts[id] for id in marked}


def test_keys_walk_through_the_hits(page: Any) -> None:
    search(page, "rainbow light")
    page.locator("h1").click()
    page.keyboard.press("j")
    page.keyboard.press("j")
    focused = "document.activeElement.dataset.document"
    assert page.evaluate(focused) == page.locator(".column").first.locator(".hit").nth(1).get_attribute("data-document")
    page.keyboard.press("l")
    assert page.evaluate(focused) == page.locator(".column").nth(1).locator(".hit").nth(1).get_attribute(
        "data-document"
    )
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"


def test_a_slider_searches_again_at_once_and_the_address_keeps_it(page: Any) -> None:
    search(page, "rainbow light")
    scores = page.locator(".column").nth(1).locator(".score").all_inner_texts()
    page.get_by_label("weight, slider").locator("visible=true").press("End")
    page.wait_for_function(
        "(before) => document.querySelectorAll('.column')[1].innerText.indexOf(before) < 0", arg=scores[0]
    )
    assert "weight=2" in page.url
    assert page.locator(".column").nth(1).locator(".certain").count() == 1
    page.reload()
    assert page.locator(".column").nth(1).locator(".score").all_inner_texts() != scores


def test_a_column_shows_the_settings_of_its_engine(page: Any) -> None:
    second = page.locator("fieldset").nth(1)
    second.get_by_label("Engine").select_option("bm25")
    assert second.locator(".setting:visible").count() == 0
    second.get_by_label("Engine").select_option("high-idf-first")
    assert second.get_by_label("Weight").count() == 0 or second.get_by_label("Weight").first.is_hidden()
    second.get_by_label("Rare").fill("count:1")
    second.get_by_label("Exact").select_option("yes")
    search(page, "rainbow light")
    title = page.locator(".column h2").nth(1)
    assert title.inner_text() == "high-idf-first, rare count:1, exact"
    certain = page.locator(".column").nth(1).locator(".certain")
    assert certain.inner_text() == "certainly the page of all documents"
    assert page.locator("fieldset").nth(1).get_by_label("Exact").input_value() == "yes"


def test_a_body_of_ones_own_takes_the_place_of_an_engine(page: Any) -> None:
    first = page.locator("fieldset").first
    first.get_by_label("Engine").select_option(OWN_BODY)
    first.get_by_role("textbox", name="Body, with").fill('{"query": {"match": {"text": "{{query}}"}}}')
    search(page, "rainbow")
    assert page.locator(".column").first.locator(".hit").count() > 1
    rain = page.locator(".column").first.locator("[data-document=rain]")
    assert rain.locator("mark.sentence").inner_text() == "A rainbow is caused by refraction of light in drops."


def test_copies_and_the_missing_document(page: Any) -> None:
    page.get_by_text("Filters, and a document").click()
    page.get_by_label("Why isn").fill("sun")
    search(page, "rainbow")
    assert "Not found" in page.locator(".absence").first.inner_text()
    page.get_by_text("curl", exact=True).first.click()
    page.get_by_role("button", name="Copy").first.click()
    page.get_by_role("button", name="Cop").or_(page.get_by_role("button", name="Selected")).first.wait_for()


def test_filters_leave_out_what_they_do_not_match_and_stay_in_the_form(page: Any) -> None:
    search(page, "rainbow regenbogen")
    every = page.locator(".column").first.locator(".hit").count()
    page.get_by_text("Filters, and a document").click()
    page.get_by_role("textbox", name="Filters, one a line").fill('lang=en\n{"exists": {"field": "title"}}')
    page.get_by_label("Why isn").fill("bogen")
    search(page, "rainbow regenbogen")
    left = page.locator(".column").first.locator(".hit")
    assert 0 < left.count() < every
    assert "bogen" not in left.evaluate_all("hits => hits.map(hit => hit.dataset.document)")
    assert page.locator(".absence").all_inner_texts() == ["Filtered out by lang=en."] * 2
    assert page.get_by_role("textbox", name="Filters, one a line").input_value().startswith("lang=en")
    page.get_by_role("textbox", name="Filters, one a line").fill("language=en")
    search(page, "rainbow")
    assert "no field 'language' to filter by" in page.locator(".column").first.inner_text()


def test_a_page_with_a_token_opens_by_its_address_alone(browser: Any, client: Any, page_index: str) -> None:
    with served(application(Searcher(client, (page_index,)), token="secret-token")) as where:
        stranger = browser.new_context().new_page()
        assert stranger.goto(where).status == 401
        friend = browser.new_context().new_page()
        friend.goto(f"{where}?token=secret-token&q=rainbow")
        assert "token" not in friend.url and friend.locator(".hit").count() > 1
        search(friend, "light")
        friend.locator("[data-document=light]").first.hover()
        assert friend.locator("[data-document=light].lit").count() > 1, "the script came with the token's cookie"
        assert stranger.goto(f"{where}static/page.js").status == 401


def test_a_link_on_another_site_opens_a_page_whose_token_the_browser_has(
    browser: Any, client: Any, page_index: str, tmp_path: Path
) -> None:
    """The page said that it needs its token, which the browser did not send after such a click."""
    grades = Grades.read(tmp_path / "grades.jsonl")
    app = application(Searcher(client, (page_index,)), token="t", queries={"q1": "rainbow"}, grades=grades)
    with served(app) as where:
        form = f'<form method=post action="{where}grade"><button>Send</button></form>'
        chat = HTMLResponse(f'<a href="{where}?q=rainbow">Look</a>{form}')
        with served(Starlette(routes=[Route("/", lambda request: chat)])) as other:
            opened = browser.new_context().new_page()
            opened.goto(f"{where}?token=t")
            opened.goto(other.replace("127.0.0.1", "localhost"))
            follow(opened, opened.get_by_role("link", name="Look"))
            assert opened.locator(".hit").count() > 1
            opened.goto(other.replace("127.0.0.1", "localhost"))
            follow(opened, opened.get_by_role("button", name="Send"))
            assert "needs its token" in opened.inner_text("body")


def test_everything_works_under_a_path(browser: Any, client: Any, page_index: str, tmp_path: Path) -> None:
    grades = Grades.read(tmp_path / "grades.jsonl")
    mounted = application(Searcher(client, (page_index,)), token="t", queries={"q1": "rainbow"}, grades=grades)
    with served(Starlette(routes=[Mount("/tools/compare", mounted)])) as where:
        opened = browser.new_context().new_page()
        failed: list[str] = []
        opened.on("response", lambda answer: failed.append(answer.url) if answer.status >= 400 else None)
        opened.goto(f"{where}tools/compare/?token=t")
        search(opened, "rainbow")
        follow(opened, opened.get_by_role("link", name="Permalink"))
        opened.locator("fieldset").first.get_by_label("Engine").select_option("sparse")
        search(opened, "light")
        assert opened.evaluate("getComputedStyle(document.querySelector('.columns')).display") == "grid"
        opened.goto(f"{where}tools/compare/?id=q1")
        follow(opened, opened.get_by_role("link", name="Judge without names"))
        opened.get_by_label("Who judges?").fill("ann")
        follow(opened, opened.get_by_role("button", name="Begin"))
        opened.locator(".hit").first.locator("input[value='2']").check()
        sync_api.expect(opened.locator("#said")).to_have_text("grade 2 is kept")
        follow(opened, opened.get_by_role("link", name="Wins and losses so far"))
        assert opened.url.startswith(f"{where}tools/compare/queries") and failed == []


def test_on_paper_there_are_hits_and_no_form(page: Any, tmp_path: Path) -> None:
    search(page, "rainbow")
    page.emulate_media(media="print")
    assert page.locator("form").is_hidden() and page.locator(".links").first.is_hidden()
    assert page.locator(".hit").first.is_visible() and page.locator("svg.bar").first.is_visible()
    assert page.locator(".hit").first.evaluate("hit => getComputedStyle(hit).breakInside") == "avoid"
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_the_saved_file_works_offline(page: Any, browser: Any, tmp_path: Path) -> None:
    search(page, "rainbow")
    with page.expect_download() as saved:
        page.get_by_text("Save as a file").click()
    saved.value.save_as(tmp_path / "page.html")
    offline = browser.new_context(offline=True).new_page()
    errors: list[str] = []
    offline.on("console", lambda message: errors.append(message.text))
    offline.goto((tmp_path / "page.html").as_uri())
    offline.locator("[data-document=rain]").first.hover()
    assert offline.locator("[data-document=rain].lit").count() > 1
    assert offline.locator("[data-document=rain] mark.sentence").count() > 1
    assert offline.evaluate("window.hacked") is None and errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_shows_everything_without_scrolling_sideways(page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 360, "height": 800})
    search(page, "rainbow")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_every_field_and_picture_has_a_name(page: Any) -> None:
    search(page, "rainbow")
    for element in page.locator("input:visible, select:visible, textarea:visible, button:visible, svg").all():
        name = element.evaluate("e => e.ariaLabel || e.innerText || [...(e.labels || [])].map(l => l.innerText).join()")
        assert name, element.evaluate("e => e.outerHTML")


def test_a_judge_grades_with_the_keyboard_and_finds_the_grades_again(page: Any) -> None:
    follow(page, page.get_by_role("link", name="All queries by disagreement"))
    page.locator("table.queries a").first.wait_for(timeout=30_000)
    follow(page, page.get_by_role("link", name="Judge without names"))
    page.get_by_label("Who judges?").fill("ann")
    follow(page, page.get_by_role("button", name="Begin"))
    follow(page, page.get_by_role("link", name="Begin with the first query"))
    judged = page.url
    page.locator("h1").click()
    page.keyboard.press("j")
    page.keyboard.press("3")
    sync_api.expect(page.locator("#said")).to_have_text("grade 3 is kept")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.classList.contains('hit')")
    page.keyboard.press("n")
    page.wait_for_url(lambda url: url != judged)
    page.keyboard.press("p")
    page.wait_for_url(judged)
    assert page.locator(".column").first.locator("input:checked").first.get_attribute("value") == "3"
    follow(page, page.get_by_role("link", name="Wins and losses so far"))
    assert "1 judged queries" in page.locator(".score-line").inner_text()


def test_a_judge_sees_that_a_grade_is_not_kept(browser: Any, client: Any, page_index: str, tmp_path: Path) -> None:
    grades = Grades.read(tmp_path / "grades.jsonl")
    with served(application(Searcher(client, (page_index,)), queries={"q1": "rainbow"}, grades=grades)) as where:
        opened = browser.new_page()
        opened.goto(f"{where}judge?id=q1&who=ann")
        said, choice = opened.locator("#said"), opened.locator(".hit").first.locator("input[value='2']")
        opened.keyboard.press("2")
        assert grades.given() == [], "no hit was chosen"
        choice.check()
        sync_api.expect(said).to_have_text("grade 2 is kept")
        opened.evaluate("document.body.dataset.query = 'unknown'")
        opened.locator(".hit").first.locator("input[value='1']").click()
        sync_api.expect(said).to_have_text("there is no query 'unknown' in the file")
        assert opened.locator(".hit.refused").count() > 0
        document = opened.locator(".hit").first.get_attribute("data-document")
        copies = opened.locator(f".hit[data-document='{document}']")
        assert copies.count() == 2 and copies.locator("input:checked").evaluate_all(VALUES) == ["2", "2"]
    opened.locator(".hit").first.locator("input[value='3']").click()
    sync_api.expect(said).to_have_text("grade 3 is not kept: the page's server does not answer")
    assert said.is_visible() and said.bounding_box()["x"] >= 0
    assert choice.is_checked() and copies.locator("input:checked").evaluate_all(VALUES) == ["2", "2"]


def test_of_two_quick_grades_the_last_one_counts(browser: Any, client: Any, page_index: str, tmp_path: Path) -> None:
    """Both were sent at once: the first could arrive last, and its answer marked its own grade."""
    grades = Grades.read(tmp_path / "grades.jsonl")
    queries = {"q1": "rainbow", "q2": "light"}
    with served(application(Searcher(client, (page_index,)), queries=queries, grades=grades)) as where:
        opened = browser.new_page()
        opened.goto(f"{where}judge?id=q1&who=ann")
        opened.evaluate(FIRST_POST_LATE)
        opened.keyboard.press("j")
        document = opened.evaluate("document.activeElement.dataset.document")
        for key in "03":
            opened.keyboard.press(key)
        copies = opened.locator(f".hit[data-document='{document}']")
        assert copies.locator("input:checked").evaluate_all(VALUES) == ["3"] * copies.count()
        with opened.expect_navigation():
            opened.keyboard.press("n")
        sent = [json.loads(line)["grade"] for line in (tmp_path / "grades.jsonl").read_text().splitlines()]
        assert sent == [0, 3], "the next page waits for the grades"
        opened.go_back()
        assert copies.locator("input:checked").evaluate_all(VALUES) == ["3"] * copies.count()
        opened.close()


def test_a_walk_keeps_to_the_order_in_which_it_began_while_more_queries_are_sorted(
    browser: Any, client: Any, page_index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["prism", "regenbogen", "the fish of rivers", "the light of the sun", "the colours", "the rainbow"]
    queries = {f"q{number}": text for number, text in enumerate(texts)}
    allowed, following = threading.Semaphore(1), Sorting._next

    def gated(sorting: Sorting) -> list[str]:
        allowed.acquire()
        return following(sorting)

    monkeypatch.setattr(Sorting, "_next", gated)
    monkeypatch.setattr("opensearch_neural.ui.walk.CHUNK", 2)
    app = application(Searcher(client, (page_index,)), queries=queries)
    with served(app) as where:
        opened = browser.new_page()
        opened.goto(f"{where}queries?size=3&engine=bm25&engine=sparse")
        opened.locator("table.queries a").first.wait_for(timeout=30_000)
        follow(opened, opened.locator("table.queries a").first)
        visited = [opened.locator("[name=q]").input_value()]
        (sorting,) = app.state.walk._sorted.values()
        opened.locator("h1").click()
        for searched in (4, 6, 6, 6, 6):
            allowed.release(2)
            while len(sorting.order) < searched:
                time.sleep(0.01)
            before = opened.url
            opened.reload()
            opened.locator("h2").first.click()
            with opened.expect_navigation():
                opened.keyboard.press("n")
            assert opened.url != before
            visited.append(opened.locator("[name=q]").input_value())
        assert sorting.ranked(6) != sorting.ranked(2), "else the test shows nothing"
        assert sorted(visited) == sorted(texts) and visited[2:] == texts[2:]
        assert opened.locator("a[rel=next]").count() == 0
        for text in visited[-2::-1]:
            opened.locator("h2").first.click()
            with opened.expect_navigation():
                opened.keyboard.press("p")
            assert opened.locator("[name=q]").input_value() == text


def test_a_slider_and_a_search_keep_the_place_in_the_walk(browser: Any, client: Any, page_index: str) -> None:
    """The next page had the slider's old value, and the button lost the place."""
    queries = {"q1": "rainbow", "q2": "light\nof prisms", "q3": "fish"}
    with served(application(Searcher(client, (page_index,)), queries=queries)) as where:
        opened = browser.new_page()
        opened.goto(f"{where}?id=q2")
        search(opened, opened.get_by_role("searchbox", name="Query").input_value())
        assert "Query 2 of 3" in opened.locator("nav.walk").inner_text()
        opened.get_by_label("weight, slider").locator("visible=true").press("End")
        opened.locator(".column h2", has_text="weight 2").wait_for()
        assert "Query 2 of 3" in opened.locator("nav.walk").inner_text()
        follow(opened, opened.locator("a[rel=next]"))
        assert opened.locator("[name=q]").input_value() == "fish"
        assert opened.locator(".column h2").nth(1).inner_text() == "bm25-sparse, weight 2"
        search(opened, "rainbow")
        assert "3 queries" in opened.locator("nav.walk").inner_text()
        assert opened.locator(".column").first.locator("[data-document=rain]").count() == 1
        opened.close()


def test_a_point_of_a_report_opens_the_hits_of_both(
    page: Any, page_index: str, cluster_url: str, tmp_path: Path
) -> None:
    out = write_report(cluster_url, page_index, tmp_path)
    page.goto(out.as_uri())
    page.locator("svg.scatter a").first.focus()
    page.keyboard.press("Enter")
    opened = page.locator("article.opened:visible")
    assert opened.count() == 1 and opened.locator("ol").count() == 2
    assert "grade 2" in opened.inner_text()
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
