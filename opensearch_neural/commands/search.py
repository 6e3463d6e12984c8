"""`osn search`: one query against one index, with the reason for each hit."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import click

from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.engine_options import (
    MODELS,
    PREFIX,
    engine_options,
    read_templates,
    refuse_options_without_effect,
)
from opensearch_neural.commands.headings import Headed
from opensearch_neural.commands.option_groups import flags_on_command_line, warn
from opensearch_neural.engines import DEFAULT, DEFAULT_WITHOUT_SPARSE, ENGINES, open_engines
from opensearch_neural.queries import Body
from opensearch_neural.search.filters import clauses_of
from opensearch_neural.search.hits import parts_of
from opensearch_neural.search.request import Request, SearchResult, find, find_by_body


def _one_query(context: click.Context, argument: click.Parameter, words: tuple[str, ...]) -> str:
    if len(words) > 1:
        raise click.UsageError(f'several arguments; put a query in quotation marks: "{" ".join(words)}"')
    return words[0]


@click.command(cls=Headed, first="index engine template size filter explain json body")
@click.argument("query", nargs=-1, required=True, metavar="QUERY", callback=_one_query)
@click.option("--index", required=True, help="The index, or alias, to search.")
@click.option("--engine", help=f"One of {', '.join(ENGINES)}.  [default: {DEFAULT}; "
              f"{DEFAULT_WITHOUT_SPARSE} if the index has no sparse vectors]")  # fmt: skip
@click.option(
    "--template",
    metavar="NAME=FILE",
    help="Search with a query of your own instead: a body in JSON with {{query}} in it, for any index.",
)
@click.option("--size", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Hits to show.")
@click.option("--from", "from_", type=click.IntRange(min=0), default=0, show_default=True, help="Hits to skip.")
@click.option(
    "--filter",
    "filters",
    multiple=True,
    help="FIELD=VALUE; FIELD=FROM..TO, FIELD=FROM.. or FIELD=..TO for numbers and dates; or an OpenSearch clause as JSON. "
    "May be repeated.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Show what each token (query weight × document weight), the codes and the vector add to the score.",
)
@click.option("--highlight/--no-highlight", default=True, show_default=True, help="Mark the query's words.")
@click.option("--json", "as_json", is_flag=True, help="Print the hits as JSON.")
@click.option("--body", "body_only", is_flag=True, help="Print the request body instead of sending it.")
@engine_options
@connection_options
def search(
    connection: ConnectionSettings,
    query: str,
    index: str,
    engine: str | None,
    template: str | None,
    size: int,
    from_: int,
    filters: tuple[str, ...],
    how: dict[str, Any],
    explain: bool,
    highlight: bool,
    as_json: bool,
    body_only: bool,
) -> None:
    """Search an index.

    \b
    osn search --index docs "what causes a rainbow"
    osn search --index docs --filter lang=en --explain "what causes a rainbow"
    osn search --index docs --engine hybrid "what causes a rainbow"
    osn search --index docs --engine cascade --backend onnx "what causes a rainbow"
    osn search --index docs --engine tome --urls urls/docs "what causes a rainbow"
    osn search --index articles --template production=production.json "what causes a rainbow"
    """
    if template is not None:
        refuse_options_of_engines()
        ((name, own),) = read_templates([template]).items()
        body = own.body(query, size, from_)
        if body_only:
            print_body(body)
        else:
            show(find_by_body(connect(settings=connection), index, body, explain=explain), name, as_json, from_)
        return
    client = connect(settings=connection)
    engines = open_engines(client, index, **how)
    clauses = clauses_of(client, index, filters)
    name = engines.engine(engine or engines.default).name
    refuse_options_without_effect([name])
    request = Request.make(engines, name, query, clauses=clauses, size=size, from_=from_, highlight=highlight)
    if body_only:
        print_body(request.body)
        return
    show(find(client, request, explain=explain), name, as_json, from_)
    if explain and not as_json and request.engine.fused:
        print(f"(the cluster does not explain scores of {name}, which are computed after the search)")


def refuse_options_of_engines() -> None:
    """Raise UsageError for an option of the engines, which has no effect with --template."""
    of_engines = {"engine", "filters", "highlight", *MODELS}
    for name, flag in flags_on_command_line().items():
        if name in of_engines or name.startswith(PREFIX):
            raise click.UsageError(f"{flag} has no effect with --template: the template file is the whole query")


def print_body(body: Body) -> None:
    print(json.dumps(body, indent=2, ensure_ascii=False))


def show(result: SearchResult, engine: str, as_json: bool, from_: int) -> None:
    """Print the hits, for people or as JSON; warnings to stderr."""
    for message in (*result.findings, *result.warnings):
        warn(str(message))
    if as_json:
        answer = {"engine": engine, "took_ms": result.took, **result.facts, "hits": result.hits}
        print(json.dumps(_of_json(answer), ensure_ascii=False, indent=2))
    else:
        print_hits(result.hits, engine, result.took, from_)


def _of_json(value: Any) -> Any:
    """The value with "Infinity" for an infinite number, which JSON lacks; OpenSearch's answers have the same."""
    if isinstance(value, dict):
        return {name: _of_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return list(map(_of_json, value))
    return "Infinity" if value == math.inf else value


def print_hits(hits: list[dict[str, Any]], engine: str, took: int, from_: int = 0) -> None:
    """Hits for people: rank, score, title; excerpt with the query's words marked; if explained, a line for each token."""
    if not hits:
        print(f"no hits ({engine}, {took} ms)")
        return
    print(f"{engine}, {took} ms")
    for rank, hit in enumerate(hits, from_ + 1):
        score = "no score" if hit["score"] is None else f"{hit['score']:.4f}"  # sorted by something else
        click.echo(f"\n{rank:>3}. {score}  {click.style(_marks(hit['title'] or hit['id']), bold=True)}")
        passage = f", passage {hit['passage']['number']}" if "passage" in hit else ""
        click.echo(f"     {hit['id']}{passage}" + (f"  {hit['url']}" if hit.get("url") else ""))
        if hit["excerpt"]:
            click.echo(f"     {_marks(hit['excerpt'])}")
        if "tokens" in hit:
            print_shares(hit)


def print_shares(hit: Mapping[str, Any]) -> None:
    """A line for each token; if a score has several parts, a group for each part, with its sum."""
    parts = parts_of(hit)
    for part in parts:
        indent = " " * 7
        if len(parts) > 1:
            click.echo(f"{indent}{part.name:<28} {part.score:.3f}")
            indent += "  "
        for each in part.shares:
            product = f" = {each['query_weight']:.3f} × {each['document_weight']:.3f}" if "query_weight" in each else ""
            click.echo(f"{indent}{each['token']:<16} {each['score']:.3f}{product}")
    click.echo(f"       {'sum':<28} {hit['sum']:.3f}")


def _marks(text: str) -> str:
    """<em> as underlining in the terminal; if colours are off (a pipe), click removes it."""
    return text.replace("<em>", click.style("", underline=True, reset=False)).replace(
        "</em>", click.style("", reset=True)
    )
