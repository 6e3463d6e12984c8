"""The page as an ASGI application, which `osn ui` serves and any service may mount.

    app.mount("/compare", application(Searcher(client, ("docs",)), token="…"))

It only reads from the cluster, sends nothing anywhere else, and takes every document for hostile: templates escape all
that they show, and the page's policy lets a browser load this application's own script and style sheet alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

from opensearch_neural.errors import ClusterError, MissingExtra, OsnError
from opensearch_neural.ui.columns import Searcher
from opensearch_neural.ui.comparison import compared
from opensearch_neural.ui.pages import compare_page
from opensearch_neural.ui.state import Column, State

try:
    from starlette.applications import Starlette
    from starlette.datastructures import Headers
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
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

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


def application(searcher: Searcher, *, token: str | None = None, hosts: Sequence[str] = ()) -> Starlette:
    """The page of a searcher's indexes; the first is the one that it searches where none is chosen.

    token: what a browser must know, once as ?token=…, or as a bearer; None where the service that mounts it sees to that
    hosts: names by which it may be called, so that no other site's name can be made to lead here; none: any
    """
    routes = [
        Route("/", page, name="page"),
        Route("/snapshot", snapshot),
        Mount("/static", StaticFiles(packages=[("opensearch_neural.ui", "static")])),
    ]
    guard = Middleware(Guard, token=token, hosts=tuple(hosts))
    made = Starlette(routes=routes, middleware=[guard], exception_handlers={OsnError: refused})
    made.state.searcher = searcher
    return made


def default_columns(searcher: Searcher) -> tuple[Column, ...]:
    """BM25, and what the index searches by where no engine is named."""
    index = searcher.indexes[0]
    return tuple(Column(name, index) for name in dict.fromkeys(("bm25", searcher.engines(index).default)))


def asked_for(request: Request) -> tuple[Searcher, State]:
    searcher: Searcher = request.app.state.searcher
    return searcher, State.of(request.query_params, default_columns(searcher), searcher.indexes)


def page(request: Request) -> Response:
    """The page, with the answers to what its address asks."""
    searcher, state = asked_for(request)
    return HTMLResponse(compare_page(searcher, state, compared(searcher, state) if state.query else []))


def snapshot(request: Request) -> Response:
    """The page as one file that needs no server."""
    searcher, state = asked_for(request)
    text = compare_page(searcher, state, compared(searcher, state), alone=True)
    return HTMLResponse(text, headers={"content-disposition": 'attachment; filename="osn-compare.html"'})


def refused(request: Request, error: Exception) -> Response:
    searcher: Searcher = request.app.state.searcher
    status = 502 if isinstance(error, ClusterError) else 400
    return HTMLResponse(compare_page(searcher, State(), [], error=str(error)), status)


class Guard:
    """Lets in who may come in, and puts the policy on every answer."""

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
        """None for a request that may come in."""
        headers = Headers(scope=scope)
        if self.hosts and host_name(headers.get("host", "")) not in self.hosts:
            return PlainTextResponse("This page is not served under that name.", 421)
        if self.token is None:
            return None
        asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        shown = dict(asked).get("token")
        if shown is not None and same(shown, self.token):
            kept = urlencode([pair for pair in asked if pair[0] != "token"])
            answer = RedirectResponse(f"{scope.get('path', '/')}{'?' + kept if kept else ''}", 303)
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict", secure=scope["scheme"] == "https")
            return answer
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if same(bearer, self.token) or (cookie is not None and same(cookie.value, self.token)):
            return None
        return PlainTextResponse("This page needs its token: open the address that `osn ui` printed.", 401)


def same(text: str, token: str) -> bool:
    """Whether they are the same, in a time that tells nothing of where they differ."""
    return secrets.compare_digest(text.encode(), token.encode())


def host_name(host: str) -> str:
    """Of "127.0.0.1:8484" and "[::1]:8484" without the port."""
    return host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0].lower()
