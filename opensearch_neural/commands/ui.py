"""`osn ui`: compares several engines on one query, side by side in a browser."""

from __future__ import annotations

import json
import secrets
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.engine_options import engine_options, read_templates
from opensearch_neural.commands.headings import Headed
from opensearch_neural.commands.option_groups import warn
from opensearch_neural.errors import InputError, MissingExtra
from opensearch_neural.files import write_text

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@click.command(cls=Headed, first="query engines template queries grades snapshot port host")
@click.argument("indexes", metavar="INDEX...", nargs=-1, required=True)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. If other machines can reach it, a token is printed and required.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8484,
    show_default=True,
    help="Port to listen on; 0: any free port.",
)
@click.option("--query", default="", help="The first query.")
@click.option("--engines", help="The first engines, up to 4.  [default: bm25 and the index's own]")
@click.option(
    "--template",
    "template_files",
    multiple=True,
    metavar="NAME=FILE",
    help="A query of your own as a column before the engines: a JSON body with {{query}} in it. Repeatable.",
)
@click.option("--template-index", help="The index that templates search.  [default: the first INDEX]")
@click.option("--queries", type=click.Path(path_type=Path), help="Queries to step through, as for `osn eval`.")
@click.option("--grades", type=click.Path(path_type=Path), help="The file for grades that people give.")
@click.option(
    "--snapshot", type=click.Path(path_type=Path), help="Write the page of --query to this file and start no server."
)
@engine_options
@connection_options
def ui(
    connection: ConnectionSettings,
    indexes: tuple[str, ...],
    host: str,
    port: int,
    query: str,
    engines: str | None,
    template_files: tuple[str, ...],
    template_index: str | None,
    queries: Path | None,
    grades: Path | None,
    snapshot: Path | None,
    how: dict[str, Any],
) -> None:
    """Compare engines in a browser: one query, two to four columns, and the reason for each hit's rank.

    The page only reads, and only the indexes named here. Without --host, only this machine can reach it; with --host, other
    machines need a token, which is part of the printed address.

    \b
    osn ui docs
    osn ui docs products --query "what causes a rainbow" --engines bm25,bm25-sparse,high-idf-first
    osn ui docs --queries queries.jsonl --grades grades.jsonl
    osn ui docs --template production=query.json --engines bm25-sparse --queries queries.jsonl --grades grades.jsonl
    osn ui docs --query "what causes a rainbow" --snapshot page.html
    """
    from opensearch_neural.corpus.judgements import read_queries
    from opensearch_neural.ui.application import application, default_columns
    from opensearch_neural.ui.columns import SECONDS, Searcher
    from opensearch_neural.ui.comparison import compared
    from opensearch_neural.ui.grades import Grades
    from opensearch_neural.ui.pages import compare_page
    from opensearch_neural.ui.state import OWN_BODY, Column, State, checked

    if grades and not queries:
        raise InputError("--grades needs a file of queries", "name it with --queries")
    if template_index and not template_files:
        raise click.UsageError("--template-index has no effect without --template")
    templates = read_templates(template_files)
    texts = read_queries(queries) if queries else {}
    kept = Grades.read(grades) if grades else None
    if kept is not None and (changed := kept.regraded(texts)):
        warn(
            f"{len(changed):,} graded queries, such as {changed[0]!r}, have another text in {queries} than when they were "
            f"graded ({grades}): their grades count all the same; give other queries other ids, or name a new file"
        )
    client = connect(settings=replace(connection, timeout=min(connection.timeout, 2 * SECONDS)))
    indexes = tuple(dict.fromkeys([*indexes, *([template_index] if template_index else [])]))
    searcher = Searcher(client, indexes, how)
    names = [name.strip() for name in (engines or "").split(",") if name.strip()]
    own = [
        Column(OWN_BODY, template_index or "", json.dumps(template.content, indent=1, ensure_ascii=False), name)
        for name, template in templates.items()
    ]
    usual = default_columns(searcher) if own and not names else ()
    # The example of a body, which an index without engines is shown with, is no rival of production's query.
    engine_columns = [Column(name) for name in names] or [each for each in usual if each.engine != OWN_BODY]
    chosen = checked([*own, *engine_columns], indexes)
    state = State(query=query, columns=chosen or default_columns(searcher))
    if snapshot is not None:
        if not query:
            raise InputError("--snapshot needs a query", "give one with --query")
        write_text(snapshot, compare_page(searcher, state, compared(searcher, state), alone=True))
        click.echo(f"wrote {snapshot}", err=True)
        return
    token = None if host in LOOPBACK else secrets.token_urlsafe(18)
    hosts = LOOPBACK if token is None else ()
    app = application(searcher, token=token, hosts=hosts, queries=texts, grades=kept, columns=chosen)
    serve(app, host, port, token, state)


def serve(app: Any, host: str, port: int, token: str | None, state: Any) -> None:
    """Serve until Ctrl-C; print the address once the page answers."""
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise MissingExtra("the compare page", "ui") from error
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # Python adds the address
        raise InputError(
            f"the page cannot listen on {host}, port {port}: {reason}",
            "give another --port (0 takes any that is free), or an address of this machine as --host",
        ) from None

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if not self.started:
                return
            bound_port = self.servers[0].sockets[0].getsockname()[1]
            shown = f"[{host}]" if ":" in host else host
            parameters = "&".join(
                filter(None, [f"token={token}" if token else "", state.address() if state.query else ""])
            )
            click.echo(f"http://{shown}:{bound_port}/{'?' + parameters if parameters else ''}")

    config = uvicorn.Config(app, host=host, port=port, log_level="warning", server_header=False, limit_concurrency=64)
    Server(config).run()
