"""The page as an ASGI application, which `osn ui` serves and any service may mount.

    app.mount("/compare", application(Searcher(client, ("docs",)), token="…"))

It only reads from the cluster, sends nothing anywhere else, and treats every document as hostile: templates escape all that
they show, and the page's policy lets a browser load only this application's script and style sheet.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from opensearch_neural.errors import ClusterError, InputError, MissingExtra, ModelError, OsnError
from opensearch_neural.evaluation.significance import FEW
from opensearch_neural.ui.columns import Searcher
from opensearch_neural.ui.comparison import compared
from opensearch_neural.ui.grades import WHAT, Grade, Grades, scores
from opensearch_neural.ui.pages import compare_page, render
from opensearch_neural.ui.state import LONGEST_QUERY, OWN_BODY, Column, State
from opensearch_neural.ui.walk import Place, Walk

try:
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.datastructures import Headers
    from starlette.middleware import Middleware
    from starlette.requests import Request, cookie_parser
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles
except ModuleNotFoundError as error:
    raise MissingExtra("the compare page", "ui") from error

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
COOKIE = "osn-token"
FIRST_BODY = '{"query": {"multi_match": {"query": "{{query}}"}}}'
"""The body to start editing from: it searches all fields."""
NO_QUERIES = (
    "the page was started without a file of queries",
    "osn ui … --queries queries.jsonl --grades grades.jsonl",
)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


def application(
    searcher: Searcher,
    *,
    token: str | None = None,
    hosts: Sequence[str] = (),
    queries: Mapping[str, str] | None = None,
    grades: Grades | None = None,
    columns: tuple[Column, ...] = (),
) -> Starlette:
    """The page for a searcher's indexes; the first is the default.

    token: the token that a browser must send, once as ?token=…, or as a bearer token; None if the mounting service
        protects the page
    hosts: host names under which the page answers, so that no other site's name can be pointed to it; empty: any name
    queries: {id: text}, to step through and to judge
    grades: the file of grades
    columns: the columns if the address names none; empty: BM25 and the index's default engine
    """
    routes = [
        Route("/", page, name="page"),
        Route("/snapshot", snapshot),
        Route("/queries", query_list),
        Route("/judge", judge),
        Route("/grade", add_grade, methods=["POST"]),
        Route("/grades/{form}", export),
        Mount("/static", StaticFiles(packages=[("opensearch_neural.ui", "static")])),
    ]
    guard = Middleware(AccessGuard, token=token, hosts=tuple(hosts))
    made = Starlette(routes=routes, middleware=[guard], exception_handlers={OsnError: refused})
    made.state.searcher = searcher
    made.state.walk = Walk(queries or {})
    made.state.grades = grades or Grades()
    made.state.columns = columns
    return made


def default_columns(searcher: Searcher) -> tuple[Column, ...]:
    """BM25 and the index's default engine; for an index that `osn` did not write, a body to edit."""
    index = searcher.indexes[0]
    try:
        names = dict.fromkeys(("bm25", searcher.engines(index).default))
    except ModelError:
        return (Column(OWN_BODY, index, body=FIRST_BODY),)
    return tuple(Column(name, index) for name in names)


def asked_for(request: Request) -> tuple[Searcher, State]:
    """The searcher, and the state of the page. An id counts if the address has no other text beside it than the file's.

    Raises InputError for an unknown id of a query without its text."""
    searcher: Searcher = request.app.state.searcher
    columns = request.app.state.columns or default_columns(searcher)
    state = State.of(request.query_params, columns, searcher.indexes)
    queries: Mapping[str, str] = request.app.state.walk.queries
    if state.id in queries and (not state.query or same_words(state.query, queries[state.id])):
        return searcher, replace(state, query=queries[state.id])
    if state.id and not state.query:
        named = f"the address names the query {state.id[:80]!r}"
        if not queries:
            raise InputError(f"{named}, and {NO_QUERIES[0]}", NO_QUERIES[1])
        raise InputError(f"{named}, which the file of queries lacks", "take one from the list of queries")
    if len(state.query) > LONGEST_QUERY:
        raise InputError(f"the query has {len(state.query):,} characters, and the page allows {LONGEST_QUERY:,}")
    return searcher, replace(state, id="")  # an address of another file, or a text that was changed: it is searched


def same_words(text: str, other: str) -> bool:
    """Whether two texts are the same but for blanks: the field of a form leaves line ends out."""
    return "".join(text.split()) == "".join(other.split())


def page(request: Request) -> Response:
    """The page, with the results for its address."""
    searcher, state = asked_for(request)
    shown = compared(searcher, state) if state.query or state.id else []
    return HTMLResponse(compare_page(searcher, state, shown, place=place_of(request, state)))


def snapshot(request: Request) -> Response:
    """The page as a single file that works without a server."""
    searcher, state = asked_for(request)
    text = compare_page(searcher, state, compared(searcher, state), alone=True)
    return HTMLResponse(text, headers={"content-disposition": 'attachment; filename="osn-compare.html"'})


def place_of(request: Request, state: State) -> Place | None:
    """The position of the page's query in the file of queries; None without a file.

    It is in the order by disagreement if the list was asked for with these columns, else in that of the file: this page
    alone, which a slider asks for many times, searches no other query."""
    walk: Walk = request.app.state.walk
    if not walk.queries:
        return None
    sorting = walk.begun(state)
    if sorting is None:
        return Place.among(list(walk.queries), replace(state, searched=0))
    known = len(sorting.order)
    searched = known if state.searched is None else min(state.searched, known)
    return Place.among(sorting.ranked(searched), replace(state, searched=searched))


def query_list(request: Request) -> Response:
    """The file's queries that were searched so far, by disagreement. ?pause=yes pauses the search."""
    searcher, state = asked_for(request)
    walk, grades = request.app.state.walk, request.app.state.grades
    if not walk.queries:
        raise InputError(*NO_QUERIES)
    sorting = walk.sorting(searcher, state)
    if request.query_params.get("pause") == "yes":
        sorting.pause()
    elif not sorting.error or request.query_params.get("again") == "yes":
        sorting.go_on()
    order = sorting.order
    first = request.query_params.get("from", "0")
    score_list, why = [], ""
    try:
        score_list = scores(grades, sorting.runs, state.size)
    except OsnError as error:
        why = str(error)
    return HTMLResponse(
        render(
            "queries.html",
            state=replace(state, query="", searched=len(order)),
            sorting=sorting,
            order=order,
            first=int(first) if first.isdecimal() and len(first) < 9 else 0,
            queries=walk.queries,
            judged=grades.qrels(),
            scores=list(zip(state.columns[1:], score_list, strict=False)),
            few=FEW,
            why=why,
        )
    )


def judge(request: Request) -> Response:
    """The pages of one query, without engine names and in random order, for grading."""
    searcher, state = asked_for(request)
    place = place_of(request, state)
    if place is None:
        raise InputError(*NO_QUERIES)
    grades: Grades = request.app.state.grades
    # No explanations, and the same marks: a sentence or a mark that other columns lack would identify the engine.
    shown = compared(searcher, state, explain=False) if state.id and state.who else []
    random.Random(f"{state.who} {state.id}").shuffle(shown)
    return HTMLResponse(
        render("judge.html", state=state, place=place, shown=shown, given=grades.of(state.id, state.who), grades=WHAT)
    )


async def add_grade(request: Request) -> Response:
    # A form of another site cannot send this content type without a preflight request.
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        return PlainTextResponse("A grade is sent as JSON.", 415)
    if int(request.headers.get("content-length", "0") or 0) > 10_000:
        return PlainTextResponse("That is not a grade.", 413)
    try:
        value = await request.json()
    except (ValueError, RecursionError):
        value = None
    try:
        await run_in_threadpool(request.app.state.grades.add, Grade.of(value, request.app.state.walk.queries))
    except InputError as error:
        return PlainTextResponse(str(error), 400)
    return Response(status_code=204)


def export(request: Request) -> Response:
    """Grades as qrels of TREC or BEIR, or as the Search Relevance Workbench imports them; an error as plain text."""
    grades: Grades = request.app.state.grades
    name = grades.path.stem if grades.path else "grades"
    form = request.path_params["form"]
    try:
        if form == "trec":
            return PlainTextResponse(
                grades.trec(), headers={"content-disposition": 'attachment; filename="grades.qrels"'}
            )
        if form == "beir":
            return PlainTextResponse(
                grades.beir(), headers={"content-disposition": 'attachment; filename="grades.tsv"'}
            )
        if form == "workbench":
            return JSONResponse(grades.workbench(name))
    except InputError as error:
        return PlainTextResponse(str(error), 400)
    return PlainTextResponse("Grades can be exported as trec, as beir or as workbench.", 404)


def refused(request: Request, error: Exception) -> Response:
    searcher: Searcher = request.app.state.searcher
    status = 502 if isinstance(error, ClusterError) else 400
    return HTMLResponse(compare_page(searcher, State(), [], error=str(error)), status)


class AccessGuard:
    """Refuses requests without access, and adds the security headers to every answer."""

    def __init__(self, app: Callable[..., Awaitable[None]], token: str | None, hosts: tuple[str, ...]) -> None:
        self.app = app
        self.token = token
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message["headers"]}
                message["headers"] += [
                    (name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in own
                ]
            await send(message)

        refusal = self.refusal(scope)
        await (refusal or self.app)(scope, receive, with_headers)

    def refusal(self, scope: Scope) -> Response | None:
        """The answer to a request without access; None if it has access."""
        headers = Headers(scope=scope)
        if self.hosts and host_name(headers.get("host", "")) not in self.hosts:
            return PlainTextResponse("This page is not served under that name.", 421)
        if self.token is None:
            return None
        parameters = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        shown = dict(parameters).get("token")
        if shown is not None and same(shown, self.token):
            rest = urlencode([pair for pair in parameters if pair[0] != "token"])
            answer = RedirectResponse(f"{scope.get('path', '/')}{'?' + rest if rest else ''}", 303)
            # Lax: a link on another site, such as a chat, opens the page. No GET writes; a POST from there has no cookie.
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="lax", secure=scope["scheme"] == "https")
            return answer
        # Other applications under the same name may set cookies that http.cookies cannot parse.
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if same(bearer, self.token) or same(cookie, self.token):
            return None
        return PlainTextResponse("This page needs its token: open the address that `osn ui` printed.", 401)


def same(text: str, token: str) -> bool:
    """Whether both are equal, compared in constant time."""
    return secrets.compare_digest(text.encode(), token.encode())


def host_name(host: str) -> str:
    """The host of "127.0.0.1:8484" or "[::1]:8484", without the port."""
    return host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0].lower()
