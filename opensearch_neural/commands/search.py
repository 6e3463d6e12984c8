"""`osn search`: one query against one index, with the reason for each hit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from opensearch_neural.cluster.capabilities import quick_capabilities
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.options import connection_options
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.engine_options import engine_options
from opensearch_neural.engines import ENGINES, open_engines
from opensearch_neural.errors import InputError
from opensearch_neural.explanation import doubt, shares, told_apart
from opensearch_neural.lint import lint
from opensearch_neural.queries import best_passages

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from opensearch_neural.query_encoder import QueryEncoder


@click.command()
@click.argument("query")
@click.option("--index", required=True, help="The index, or alias, to search.")
@click.option("--engine", default=None, help=f"One of {', '.join(ENGINES)}.  [default: bm25-sparse; "
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
    name = engine or engines.default
    engines.body_of(name)
    chosen = engines.engine(name)
    page = engines.page(
        filter=clauses or None,
        size=size,
        from_=from_,
        highlight=query if highlight else None,
        source=["title", "text", "url", "passage"] if engines.meta.passages else ["title", "text", "url"],
    )
    body = chosen.body(query, page)
    if body_only:
        print(json.dumps(body, indent=2, ensure_ascii=False))
        return
    findings = lint(body, quick_capabilities(client), engines.meta)
    warn(map(str, findings))
    if not query.strip() and not findings:
        warn(["the query is empty, and a model's vector or URLs for it say nothing"])
    if explain and not chosen.fused:
        body["explain"] = True
    searched = chosen.search(client, body if clauses else chosen.counted(body), query, page)
    body, answer = searched.body, searched.answer
    missing = chosen.missing(body, answer, filtered=bool(clauses))
    warn(missing.warnings)
    if engines.meta.unfinished is not None:
        warn([f"{index!r} is not complete: {engines.meta.unfinished} is being written, or that was interrupted"])
    partial = partial_answer(answer)
    warn(partial.values())
    hits = answer["hits"]["hits"]
    if not hits:
        warn(f"{index!r} has no field {field!r} to filter by" for field in unknown_fields(client, index, clauses))
    for hit in hits:
        if "_explanation" in hit and (told := doubt(body, shares(hit["_explanation"]), hit["_score"])):
            warn([f"{hit['_id']}: {told}"])
    encoder = engines.models.query_encoder if explain and "sparse" in chosen.needs() else None
    if engines.meta.passages:
        best = best_passages(body, hits, size=size, from_=from_)
        shown = [hit_of(hit, document=id, encoder=encoder) for id, hit in best]
    else:
        shown = [hit_of(hit, encoder=encoder) for hit in hits]
    if as_json:
        result = {
            "engine": name,
            "took_ms": answer["took"],
            **searched.facts,
            **missing.facts,
            **partial,
            "hits": shown,
        }
        print(json.dumps(result, ensure_ascii=False, indent=2))
        return
    print_hits(shown, name, answer["took"], from_)
    if explain and chosen.fused:
        print(f"(scores of {name} are made after the search and are not explained by the cluster)")


def warn(messages: Iterable[str]) -> None:
    for message in messages:
        click.echo(f"warning: {message}", err=True)


def partial_answer(answer: Mapping[str, Any]) -> dict[str, str]:
    """What an answer lacks because a shard failed or the time was over: {"shards_failed", "timed_out": in words}."""
    lacking = {}
    shards = answer.get("_shards", {})
    if shards.get("failed"):
        reasons = [str(failure.get("reason", {}).get("reason")) for failure in shards.get("failures", [])]
        lacking["shards_failed"] = (
            f"{shards['failed']} of {shards['total']} shards failed, and their hits are missing"
            + (f": {reasons[0]}" if reasons else "")
        )
    if answer.get("timed_out"):
        lacking["timed_out"] = "the search timed out, and hits are missing"
    return lacking


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


def unknown_fields(client: OpenSearch, index: str, clauses: Sequence[Mapping[str, Any]]) -> list[str]:
    """Fields of {"term": {FIELD: VALUE}} clauses that no document of the index has; such a filter leaves no hit."""
    fields = sorted({field for clause in clauses for field in clause.get("term", {})})
    if not fields:
        return []
    mapped = client.indices.get_field_mapping(fields=",".join(fields), index=index)
    known = {field for of_index in mapped.values() for field in of_index["mappings"]}
    return [field for field in fields if field not in known]


def hit_of(
    hit: Mapping[str, Any], *, document: str | None = None, encoder: QueryEncoder | None = None
) -> dict[str, Any]:
    """A hit as `osn search` shows it: id, score, title, url, an excerpt, and what adds to its score when explained.

    document: the id of the document whose passage the hit is; the passage is shown too then
    encoder: tells which tokens of a sparse model stand in the text
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
        explained = shares(hit["_explanation"])
        if encoder is not None:
            text = f"{source.get('title') or ''} {source.get('text') or ''}"
            explained = told_apart(explained, set(encoder.tokenizer.encode(text, add_special_tokens=False).tokens))
        shown["tokens"] = [share.to_json() for share in explained]
        shown["sum"] = sum(share.score for share in explained)
    return shown


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
        if "tokens" in hit:
            print_shares(hit["tokens"], hit["sum"])


GROUPS = {
    ("bm25", None): "BM25",
    ("sparse", None): "sparse",
    ("sparse", True): "sparse, in the text",
    ("sparse", False): "sparse, added by the model",
    ("codes", None): "codes",
    ("other", None): "other",
}
"""{(source of a share, whether its token is in the text): what it is called}"""


def print_shares(tokens: Sequence[Mapping[str, Any]], total: float) -> None:
    """A line a token; where a score has several sources, under the sum of each."""
    groups = {
        name: members
        for key, name in GROUPS.items()
        if (members := [each for each in tokens if (each["source"], each.get("literal")) == key])
    }
    for name, members in groups.items():
        indent = " " * 7
        if len(groups) > 1:
            click.echo(f"{indent}{name:<28} {sum(each['score'] for each in members):.3f}")
            indent += "  "
        for each in members:
            product = f" = {each['query_weight']:.3f} × {each['document_weight']:.3f}" if "query_weight" in each else ""
            click.echo(f"{indent}{each['token']:<16} {each['score']:.3f}{product}")
    click.echo(f"       {'sum':<28} {total:.3f}")


def _marks(text: str) -> str:
    """<em> as the terminal shows it; where colours are off (a pipe), click removes them again."""
    return text.replace("<em>", click.style("", underline=True, reset=False)).replace(
        "</em>", click.style("", reset=True)
    )
