"""`osn search`: one query against one index, with the reason for each hit."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from opensearch_neural import queries
from opensearch_neural.cluster.capabilities import quick_capabilities
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.options import connection_options
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.engine_options import engine_options
from opensearch_neural.engines import ENGINES, open_engines
from opensearch_neural.errors import InputError
from opensearch_neural.lint import lint
from opensearch_neural.queries import DOT_ALIAS, best_passages

if TYPE_CHECKING:
    from opensearchpy import OpenSearch


@click.command()
@click.argument("query")
@click.option("--index", required=True, help="The index, or alias, to search.")
@click.option("--engine", default=None, help=f"One of {', '.join(ENGINES)}.  [default: high-idf-first; "
              "bm25 where the index has no sparse vectors]")  # fmt: skip
@click.option("--size", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Hits to show.")
@click.option("--from", "from_", type=click.IntRange(min=0), default=0, show_default=True, help="Hits to pass over.")
@click.option(
    "--filter", "filters", multiple=True, help="FIELD=VALUE, or an OpenSearch clause as JSON; may be repeated."
)
@click.option("--explain", is_flag=True, help="Show what each token adds: query weight × document weight; and codes.")
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
    osn search --index docs --engine hybrid --filter lang=en --explain "what causes a rainbow"
    osn search --index docs --engine cascade --backend onnx "what causes a rainbow"
    osn search --index docs --engine tome --urls urls/docs "what causes a rainbow"
    """
    clauses = [parse_filter(text) for text in filters]
    client = connect(settings=connection)
    engines = open_engines(client, index, **how)
    if engine is None:
        engine = "high-idf-first" if engines.meta.sparse else "bm25"
    engines.body_of(engine)
    fused = engine.startswith("hybrid") or engine == "tome-rrf"
    body = engines.body(
        engine,
        query,
        filter=clauses or None,
        size=size,
        from_=from_,
        highlight=query if highlight else None,
        source=["title", "text", "url", "passage"] if engines.meta.passages else ["title", "text", "url"],
    )
    if body_only:
        print(json.dumps(body, indent=2, ensure_ascii=False))
        return
    findings = lint(body, quick_capabilities(client), engines.meta)
    for finding in findings:
        click.echo(f"warning: {finding}", err=True)
    if not query.strip() and not findings:
        click.echo("warning: the query is empty, and a model's vector or URLs for it say nothing", err=True)
    if explain and not fused:
        body["explain"] = True
    asked = queries.listed_urls(body) if not clauses else []
    if asked and fused:
        # Which of them there are does not show in the hits, where those of another engine are, too.
        body["aggs"] = {HELD: {"terms": {"field": "url", "include": asked, "size": len(asked)}}}
    answer = client.search(index=index, body=body)
    found = answer["hits"]["hits"]
    by_id = engine == "faiss" or (engine == "tome" and engines.url_retriever.urls.numbered)
    gone = queries.listed_count(body) - answer["hits"]["total"]["value"] if by_id and not clauses else 0
    if gone > 0:
        found_were = "nearest documents" if engine == "faiss" else "documents whose URLs were written"
        click.echo(f"warning: {gone} of the {found_were} are not in {index!r} any more", err=True)
    if engine == "tome" and from_ + size > (beams := engines.url_retriever.beams):
        click.echo(f"warning: {beams} URLs are written at most (--beams)", err=True)
    unfound: dict[str, list[str]] = {}  # Only where it is looked for.
    if asked and (fused or not from_):
        unfound["unfound_urls"] = missing = unfound_urls(body, answer)
        if missing:
            told = (
                f"{len(missing)} of the URLs that were written are in no document of {index!r} any more: {missing[0]}"
                if len(missing) < len(asked)
                else f"no document of {index!r} has one of the {len(missing)} URLs that were written: {missing[0]}"
            )
            click.echo(f"warning: {told}{', …' * (len(missing) > 1)}", err=True)
    if not found:
        for field in unknown_fields(client, index, clauses):
            click.echo(f"warning: {index!r} has no field {field!r} to filter by", err=True)
    if engines.meta.passages:
        hits = [hit_of(hit, id) for id, hit in best_passages(body, found, size=size, from_=from_)]
    else:
        hits = [hit_of(hit) for hit in found]
    if as_json:
        result = {"engine": engine, "took_ms": answer["took"], **unfound, "hits": hits}
        print(json.dumps(result, ensure_ascii=False, indent=2))
        return
    print_hits(hits, engine, answer["took"], from_)
    if explain and fused:
        print("(scores of hybrid engines are made after the search and are not explained by the cluster)")


def parse_filter(text: str) -> dict[str, Any]:
    """A filter clause from FIELD=VALUE or from JSON. Raises InputError for anything else."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise InputError(f"--filter {text!r} is not valid JSON: {error}") from None
    field, equals, value = text.partition("=")
    if not (field and equals):
        raise InputError(f"--filter {text!r}: expected FIELD=VALUE, or an OpenSearch clause as JSON")
    return {"term": {field: value}}


HELD = "urls"
"""The aggregation that counts which of the written URLs the index holds."""


def unfound_urls(body: queries.Body, answer: Mapping[str, Any]) -> list[str]:
    """Which of the URLs that a body asks for the index does not hold: of what was counted, else as far as hits tell."""
    if HELD not in answer.get("aggregations", {}):
        return queries.unfound_urls(body, [hit["_source"].get("url") for hit in answer["hits"]["hits"]])
    held = {bucket["key"] for bucket in answer["aggregations"][HELD]["buckets"]}
    return [url for url in queries.listed_urls(body) if url not in held]


def unknown_fields(client: OpenSearch, index: str, clauses: Sequence[Mapping[str, Any]]) -> list[str]:
    """Fields of {"term": {FIELD: VALUE}} clauses that no document of the index has; such a filter leaves no hit."""
    fields = sorted({field for clause in clauses for field in clause.get("term", {})})
    if not fields:
        return []
    mapped = client.indices.get_field_mapping(fields=",".join(fields), index=index)
    known = {field for of_index in mapped.values() for field in of_index["mappings"]}
    return [field for field in fields if field not in known]


def hit_of(hit: Mapping[str, Any], document: str | None = None) -> dict[str, Any]:
    """A hit as `osn search` shows it: id, score, title, url, an excerpt, and what each token added when explained.

    `document`: the id of the document whose passage the hit is; the passage is shown too then.
    """
    source = hit.get("_source", {})
    marked = hit.get("highlight", {})
    excerpt = " … ".join(marked.get("text", [])) or " ".join(str(source.get("text", "")).split())[:200]
    shown: dict[str, Any] = {"id": document or hit["_id"], "score": hit["_score"]}
    shown["title"] = "".join(marked.get("title", [])) or source.get("title")
    if document and "passage" in source:
        shown["passage"] = source["passage"]
    if source.get("url"):
        shown["url"] = source["url"]
    shown["excerpt"] = " ".join(excerpt.split())
    if "_explanation" in hit:
        shown["tokens"] = token_contributions(hit["_explanation"])
    return shown


_FEATURE = re.compile(r"^Linear function on the \S+ field for the (?P<token>.+) feature, computed as", re.DOTALL)
_TERM = re.compile(r"^weight\((?P<field>[^:]+):(?P<token>.+) in \d+\)", re.DOTALL)
_STAGES = ("primaryWeight", "secondaryWeight")
CODES = "[codes]"
"""In a hit's contributions, what the quantized vector adds, the query's constant offset included."""


def token_contributions(explanation: dict[str, Any]) -> list[dict[str, Any]]:
    """What each token added to a score, the largest first, read from OpenSearch's explanation of it.

    Sparse engines: {token, query_weight, document_weight, score = their product}; BM25: {token, score}; what codes add is
    CODES. Each counts as much as its stage of the search does.
    """
    found: dict[str, dict[str, Any]] = {}

    def visit(node: dict[str, Any], factor: float) -> None:
        description, details = node["description"], node["details"]
        if details and details[-1]["description"] in _STAGES:
            *details, stage = details
            factor *= stage["value"]
        if factor == 0:
            return
        if match := _FEATURE.match(description):
            weight, value = (detail["value"] for detail in details)
            token = match["token"].replace(DOT_ALIAS, ".")
            shown = {"token": token, "query_weight": factor * weight, "document_weight": value}
            found[token] = {**shown, "score": factor * node["value"]}
        elif match := _TERM.match(description):
            found[match["token"]] = {"token": match["token"], "score": factor * node["value"]}
        elif description.startswith("script score function"):
            found[CODES] = {"token": CODES, "score": factor * node["value"]}
        else:
            for detail in details:
                visit(detail, factor)

    visit(explanation, 1.0)
    return sorted(found.values(), key=lambda each: (-each["score"], each["token"]))


def print_hits(hits: list[dict[str, Any]], engine: str, took: int, from_: int = 0) -> None:
    """Hits for people: rank, score, title; excerpt with the query's words in bold; a line a token where explained."""
    if not hits:
        print(f"no hits ({engine}, {took} ms)")
        return
    print(f"{engine}, {took} ms")
    for rank, hit in enumerate(hits, from_ + 1):
        click.echo(f"\n{rank:>3}. {hit['score']:.4f}  {click.style(_marks(hit['title'] or hit['id']), bold=True)}")
        passage = f", passage {hit['passage']['number']}" if "passage" in hit else ""
        click.echo(f"     {hit['id']}{passage}" + (f"  {hit['url']}" if hit.get("url") else ""))
        if hit["excerpt"]:
            click.echo(f"     {_marks(hit['excerpt'])}")
        for each in hit.get("tokens", []):
            product = f" = {each['query_weight']:.3f} × {each['document_weight']:.3f}" if "query_weight" in each else ""
            click.echo(f"       {each['token']:<16} {each['score']:.3f}{product}")


def _marks(text: str) -> str:
    """<em> as the terminal shows it; where colours are off (a pipe), click removes them again."""
    return text.replace("<em>", click.style("", underline=True, reset=False)).replace(
        "</em>", click.style("", reset=True)
    )
