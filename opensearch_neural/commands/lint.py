"""`osn lint`: finds mistakes in a search body before it is sent."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import IO, Any

import click

from opensearch_neural.body_template import BodyTemplate, placeholders, quoted_placeholders
from opensearch_neural.cluster.capabilities import quick_capabilities
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.headings import Headed
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.lint import lint
from opensearch_neural.lint.findings import Finding
from opensearch_neural.lint.index_description import IndexDescription

EXAMPLE = "what causes a rainbow"
"""The query with which a template is checked."""


@click.command("lint", cls=Headed)
@click.argument("file", type=click.File(encoding="utf-8"), default="-")
@click.option("--index", help="Ask the cluster for its limits and for this index's fields.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@connection_options
def lint_command(connection: ConnectionSettings, file: IO[str], index: str | None, as_json: bool) -> None:
    """Find what OpenSearch would reject in a search body, or accept but understand differently.

    FILE holds the body as JSON, or a template with {{query}} in it; without it, standard input is read. No cluster is asked
    unless you give --index: then its version, limits, fields and pipelines are read. The exit status is 1 if OpenSearch
    would reject or misread something.

    \b
    osn lint body.json
    osn lint production.json --index articles
    osn search --index docs --body "what causes a rainbow" | osn lint --index docs
    """
    try:
        body = read_body(file)
        findings = of_cluster(body, index, connection) if index is not None else lint(body)
    except RecursionError:
        raise InputError("the body is nested deeper than any search body", 'expected {"query": {…}}') from None
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], ensure_ascii=False, indent=2))
    else:
        for finding in findings:
            print(finding)
        if not findings:
            print("nothing found")
    sys.exit(1 if any(finding.outcome != "doubtful" for finding in findings) else 0)


def read_body(file: IO[str]) -> Any:
    """The JSON value in a file. If it has {{query}} in it, it is a template, and its placeholders are filled.

    Raises InputError, with the line, if it is not JSON, for a placeholder that is not known, and for what Python reads and
    OpenSearch rejects: a member that occurs twice, NaN and Infinity. Raises RecursionError if nested too deeply.
    """
    name = "standard input" if file.name in ("-", "<stdin>") else file.name
    try:
        text = file.read()
        quoted = quoted_placeholders(text)  # a placeholder without quotation marks is no JSON
        body = json.loads(quoted, object_pairs_hook=_members, parse_constant=_no_constant)
        is_template = isinstance(body, dict) and (quoted != text or "query" in placeholders(body))
        return BodyTemplate.of(body, where=name).filled(EXAMPLE) if is_template else body
    except _NotForOpenSearch as error:
        raise InputError(f"{name}: {error}", "OpenSearch rejects such a body") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        what = f"{name}, line {error.lineno}, column {error.colno}: not valid JSON ({error.msg})"
        raise InputError(what, 'expected one search body: {"query": {…}}') from None
    except ValueError as error:  # an integer of thousands of digits
        raise InputError(f"{name}: not valid JSON ({error})") from None


class _NotForOpenSearch(Exception):
    """What Python's parser takes and OpenSearch's does not."""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise _NotForOpenSearch(f"the member {name!r} occurs twice in an object")
        members[name] = value
    return members


def _no_constant(name: str) -> Any:
    raise _NotForOpenSearch(f"{name} is not JSON")


def of_cluster(body: Any, index: str, connection: ConnectionSettings) -> list[Finding]:
    """The findings for one index of a cluster. Raises ClusterError if there is no such index."""
    from opensearchpy.exceptions import NotFoundError

    client = connect(settings=connection)
    try:
        facts = IndexDescription.of(client, index)
    except NotFoundError:
        raise ClusterError(
            f"there is no index {index!r} on this cluster", "without --index, no cluster is asked"
        ) from None
    return lint(body, quick_capabilities(client), index=facts)
