"""How `osn ingest` and `osn encode` run and end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

import click

from ingest.dead_letters import EXIT_WITH_LETTERS
from opensearch_neural.errors import InputError

if TYPE_CHECKING:
    from ingest.vectors.encode_corpus import EncodeReport
    from ingest.writing.pipeline import Report


def without_vectors(number: int) -> str:
    """What is to be told of so many documents without rows, after their number."""
    have, them = ("has no vectors", "it") if number == 1 else ("have no vectors", "them")
    return (
        f"{have}: OpenSearch's own _update and _reindex, an ingest pipeline, or another client leave them out; write {them} "
        "again with osn (`osn index inspect --lost` prints the ids)"
    )


R = TypeVar("R", "Report", "EncodeReport")


def run_and_report(run: Callable[[], R], show: Callable[[R], None], *, as_json: bool) -> None:
    """Run, and print the report as JSON or by `show`. With rejected records the exit status is EXIT_WITH_LETTERS.

    Raises InputError if no document was accepted.
    """
    try:
        report = run()
    except KeyboardInterrupt:
        print("\ninterrupted; run the same command again to continue", file=sys.stderr)
        raise
    if as_json:
        print(json.dumps(asdict(report), default=str))
    else:
        show(report)
    if report.dead_letters is not None and not report.documents:
        first = f"; the first of {report.letters}: {report.first_reason}" if report.first_reason else ""
        remedy = f"see {report.dead_letters}"
        if (report.first_reason or "no id").startswith(("no id", "no text")):
            remedy += (
                "; if the fields have other names (`content.body` in an object), give --id-field, --text-field and "
                "--title-field"
            )
        raise InputError(f"no document was accepted{first}", remedy)
    if report.letters:
        raise click.exceptions.Exit(EXIT_WITH_LETTERS)
