"""`osn ingest`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ingest.commands.run_and_report import run_and_report, without_vectors
from ingest.corpus import CorpusSource, corpus_options
from ingest.settings import (
    Models,
    NewIndex,
    Writing,
    dead_letters_option,
    model_options,
    new_index_options,
    writing_options,
)
from ingest.versions.swap import Gate, gate_options
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.commands.connection_options import connection_options
from opensearch_neural.commands.headings import Headed

if TYPE_CHECKING:
    from ingest.writing.pipeline import Report


@click.command(cls=Headed, first="index alias sparse dense passages text-field title-field limit restart json")
@corpus_options(required=False)
@click.option(
    "--vectors", type=click.Path(path_type=Path), help="A folder of vectors that `osn encode` wrote, instead of models."
)
@click.option("--index", default="", help="The index to write.")
@click.option("--alias", help="Build a new index, and move this alias to it once it is verified.")
@click.option(
    "--no-swap",
    "swap",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Build the new index of --alias and do not move the alias: `osn index serve` does it.",
)
@gate_options
@model_options
@click.option(
    "--dense-from-codes", is_flag=True, help="Reconstruct dense vectors from --pq's codes, without a dense model."
)
@new_index_options
@writing_options
@dead_letters_option("INDEX")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@connection_options
def ingest(
    connection: ConnectionSettings,
    corpus: CorpusSource | None,
    vectors: Path | None,
    index: str,
    alias: str | None,
    swap: bool,
    gate: Gate,
    models: Models,
    dense_from_codes: bool,
    new_index: NewIndex,
    writing: Writing,
    dead_letters: Path | None,
    as_json: bool,
) -> None:
    """Encode a corpus and write it into one index: text for BM25, and the vectors of the models that you name.

    CORPUS is a BEIR folder, jsonl(.gz/.zst), parquet, csv, tsv, hf:NAME, opensearch:INDEX (an index of this cluster, with
    its fields), or - (standard input).

    If it is interrupted or killed, run the same command again to continue. Rejected documents are written to the dead-letter
    file, and the exit status is 3. That file is a corpus itself: correct it and ingest it.

    \b
    osn ingest docs.jsonl.gz --index docs
    osn ingest docs.jsonl.gz --index docs --sparse models/sparse
    osn ingest scifact/ --index scifact --dense sentence-transformers/all-MiniLM-L6-v2
    osn ingest scifact/ --index scifact --pq models/jpq --dense-from-codes --dense-type byte
    """
    from ingest.job import Job, run_job

    job = Job(
        corpus,
        index,
        alias=alias,
        swap=swap,
        models=replace(models, reconstruct=dense_from_codes),
        vectors=vectors,
        new_index=new_index,
        writing=writing,
        gate=gate,
        dead_letters=dead_letters,
    )
    run_and_report(lambda: run_job(connect(settings=connection), job), _show, as_json=as_json)


def _show(report: Report) -> None:
    rate = (report.documents - report.skipped) / max(report.seconds, 1e-9)
    unit = "passages" if report.passages else "documents"
    print(f"{report.documents} {unit} in {report.index}, verified ({report.seconds:.1f} s, {rate:.0f}/s)")
    if report.alias:
        print(f"{report.alias} now names {report.index}" + (f", before {report.replaced}" if report.replaced else ""))
    if report.waits_for:
        print(
            f"{report.waits_for} does not name it yet; `osn index serve {report.waits_for} {report.index}` makes the "
            "checks, and swaps"
        )
    if report.counts and report.counts.before is not None:
        print(f"  {report.counts}")
    if report.replaced:
        print(f"  `osn index rollback {report.alias}` goes back to it")
    if report.skipped:
        print(f"{report.skipped} of them were written by the interrupted run")
    if report.others:
        which = "of rejected records, of other corpora" if report.letters else "of other corpora"
        when = " once no record is rejected" if report.letters else ""
        print(
            f"it holds {report.others} other {unit}, {which} or no longer in this one; --remove-others removes them{when}"
        )
    if report.without_tokens:
        print(
            f"{report.without_tokens} {unit} in it have no word of the sparse model's vocabulary: only BM25 finds them"
        )
    if report.without_rows:
        lost = unit.removesuffix("s") if report.without_rows == 1 else unit
        print(f"{report.without_rows} {lost} in it {without_vectors(report.without_rows)}")
    if report.letters:
        print(f"{report.letters} were rejected: see {report.dead_letters}")
