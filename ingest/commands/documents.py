"""`osn documents`: add, show, update and delete single documents of an index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.headings import HeadedGroup
from opensearch_neural.errors import InputError

if TYPE_CHECKING:
    from ingest.documents import Documents

_index = click.option("--index", required=True, help="The index, or an alias of it.")
_sparse = click.option("--sparse", help="The sparse model of the index, if it is not found.")
_dense = click.option("--dense", help="The dense model of the index, if it is not found.")
_pq = click.option("--pq", help="The quantized model of the index, if it is not found.")
_trust = click.option("--trust-remote-code", is_flag=True, help="Run the sparse model's own code. Read it first.")


@click.group(cls=HeadedGroup)
def documents() -> None:
    """Add, show, update and delete single documents of an index that `osn ingest` wrote.

    \b
    osn documents add --index docs new.jsonl
    osn documents update --index docs some-id --set lang=en --set title="A new title"
    osn documents delete --index docs some-id another-id
    """


def _open(connection: ConnectionSettings, index: str, **how: Any) -> Documents:
    from ingest.documents import Documents

    return Documents(connect(settings=connection), index, **how)


@documents.command()
@click.argument("corpus")
@_index
@_sparse
@_dense
@_pq
@_trust
@click.option("--json", "as_json", is_flag=True, help="Print the result for each document as JSON.")
@connection_options
def add(connection: ConnectionSettings, corpus: str, index: str, as_json: bool, **how: Any) -> None:
    """Add documents, replacing those with the same ids. CORPUS is a file as for `osn ingest`, or - for lines of JSON.

    The exit status is 3 if a document was refused. For a large corpus use `osn ingest`, which can be continued.
    """
    from ingest.corpus import CorpusSource, spooled
    from ingest.dead_letters import EXIT_WITH_LETTERS
    from ingest.documents import Refused
    from opensearch_neural.corpus.documents import Rejected

    rejected: list[Rejected] = []
    with _open(connection, index, **how) as opened, spooled(corpus) as place:
        written = opened.add(CorpusSource(corpus).reader(place, opened.names)(rejected.append))
    refused = [Refused(each.place, each.reason) for each in rejected] + written.refused
    if as_json:
        refusals = [{"id": each.id, "reason": each.reason} for each in refused]
        print(json.dumps({"created": written.created, "replaced": written.replaced, "refused": refusals}))
    else:
        print(f"{written.created} added, {written.replaced} replaced in {index}")
    if refused and not as_json:
        for each in refused:
            click.echo(f"refused: {each.id}: {each.reason}", err=True)
    if refused:
        raise click.exceptions.Exit(EXIT_WITH_LETTERS)


@documents.command()
@click.argument("id")
@_index
@connection_options
def get(connection: ConnectionSettings, id: str, index: str) -> None:
    """Print a document as JSON; passages are joined again."""
    from ingest.documents import read_document

    document = read_document(connect(settings=connection), index, id)
    if document is None:
        raise InputError(f"{index!r} holds no document {id!r}")
    print(json.dumps(document.record(), ensure_ascii=False, indent=2))


@documents.command()
@click.argument("id")
@_index
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Set a field to a string; FIELD:=VALUE sets it to JSON.",
)
@click.option("--remove", multiple=True, metavar="FIELD", help="Remove a field.")
@_sparse
@_dense
@_pq
@_trust
@connection_options
def update(
    connection: ConnectionSettings, id: str, index: str, changes: tuple[str, ...], remove: tuple[str, ...], **how: Any
) -> None:
    """Change fields of a document and encode it again.

    \b
    osn documents update --index docs some-id --set title="A new title" --set year:=2026 --remove url
    """
    new_values = dict(parse_change(change) for change in changes) | dict.fromkeys(remove)
    if not new_values:
        raise InputError("nothing to change", "give --set FIELD=VALUE or --remove FIELD")
    _open(connection, index, **how).update(id, new_values)
    print(f"{id} updated in {index}")


@documents.command()
@click.argument("ids", nargs=-1)
@click.option(
    "--ids", "file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="A file with one id per line."
)
@_index
@connection_options
def delete(connection: ConnectionSettings, ids: tuple[str, ...], file: Path | None, index: str) -> None:
    """Delete documents by their ids, with all their passages."""
    from ingest.documents import delete_documents

    to_delete = [*ids, *(ids_in(file) if file else ())]
    if not to_delete:
        raise InputError("no document is named", "give ids, or --ids FILE")
    deleted = delete_documents(connect(settings=connection), index, to_delete)
    print(f"{deleted} of {len(set(to_delete))} deleted from {index}")


def ids_in(file: Path) -> list[str]:
    """The lines of a file that are not empty. Raises InputError for a file that is not UTF-8."""
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8: {error}", "save it as UTF-8") from None
    return [line for line in lines if line.strip()]


def parse_change(text: str) -> tuple[str, Any]:
    """(field, value) of FIELD=VALUE or FIELD:=JSON. Raises InputError for anything else."""
    field, equals, value = text.partition("=")
    if not equals or not field.rstrip(":"):
        raise InputError(f"--set {text!r}: expected FIELD=VALUE, or FIELD:=JSON")
    if not field.endswith(":"):
        return field, value
    try:
        return field[:-1], json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InputError(f"--set {text[:80]!r}: not JSON ({error})") from None
