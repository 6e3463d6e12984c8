"""`osn ingest`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ingest import options
from opensearch_neural.cluster.connect import connect
from opensearch_neural.cluster.options import connection_options
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.errors import InputError
from opensearch_neural.index.record import DenseType

if TYPE_CHECKING:
    from ingest.models import Dtype
    from ingest.pipeline import Report


@click.command()
@click.option(
    "--corpus", default=None, help="A BEIR folder, jsonl(.gz/.zst), parquet, csv, tsv, hf:NAME, or - (stdin)."
)
@click.option(
    "--vectors", type=click.Path(path_type=Path), default=None, help="What `osn encode` wrote, instead of models."
)
@click.option("--index", default=None, help="The index to write.")
@click.option(
    "--alias",
    default=None,
    help="Build a new index beside the one that serves under this alias, and swap when verified.",
)
@click.option("--sparse", default=None, help="Sparse model (directory or hub id), or none.  [default: lexical]")
@click.option(
    "--dense",
    default=None,
    help="Dense model (directory or hub id); pq: the vectors that --pq's codes stand for; none by default.",
)
@click.option(
    "--pq",
    default=None,
    help="Quantized model, whose codes are written too; with --vectors, made of the vectors there, or found there.",
)
@click.option("--dense-type", type=click.Choice(["float", "byte", "sq"]), default="float", show_default=True)
@click.option(
    "--passages",
    default=None,
    metavar="TOKENS[:STRIDE]",
    help="Split documents; searches find the best passage of each.",
)
@click.option("--tokenizer", default=None, help="Tokenizer of the lexical model.  [default: BERT's word pieces]")
@click.option("--analyzer", default="english", show_default=True, help="Analyzer of the BM25 fields.")
@click.option("--format", "format_", default=None, help="The corpus's format, where its name does not tell.")
@click.option("--id-field", default=None)
@click.option("--title-field", default=None)
@click.option("--text-field", default=None)
@click.option("--url-field", default=None)
@click.option("--limit", type=click.IntRange(min=1), default=None, help="Take the first N documents.")
@click.option("--shards", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--replicas", type=click.IntRange(min=0), default=None, help="Of a new index.  [default: 1]")
@click.option("--keep-replicas", is_flag=True, help="Have them while loading too: a lost node then costs nothing.")
@click.option(
    "--store-vectors", is_flag=True, help="Keep vectors in _source too: more bytes, reindexing inside OpenSearch works."
)
@click.option("--merge", is_flag=True, help="Merge to one segment a shard at the end: fastest searches.")
@click.option("--writers", type=click.IntRange(1, 64), default=2, show_default=True, help="Bulk requests at once.")
@click.option("--batch-docs", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--chunk-mb", type=click.FloatRange(0.1, 95), default=8, show_default=True, help="Most MB of a request.")
@click.option("--encode-batch", type=click.IntRange(min=1), default=32, show_default=True)
@options.device
@options.dtype
@click.option(
    "--dead-letters", type=click.Path(path_type=Path), default=None, help="[default: INDEX.dead-letters.jsonl]"
)
@click.option("--max-errors", type=click.IntRange(min=0), default=1000, show_default=True)
@click.option(
    "--patience", type=click.FloatRange(min=0), default=300, show_default=True, help="Seconds to retry one request."
)
@click.option("--restart", is_flag=True, help="Do not continue an interrupted run.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@connection_options
def ingest(
    connection: ConnectionSettings,
    corpus: str | None,
    vectors: Path | None,
    index: str | None,
    alias: str | None,
    sparse: str | None,
    dense: str | None,
    pq: str | None,
    dense_type: DenseType,
    passages: str | None,
    tokenizer: str | None,
    analyzer: str,
    format_: str | None,
    id_field: str | None,
    title_field: str | None,
    text_field: str | None,
    url_field: str | None,
    limit: int | None,
    shards: int,
    replicas: int | None,
    keep_replicas: bool,
    store_vectors: bool,
    merge: bool,
    writers: int,
    batch_docs: int,
    chunk_mb: float,
    encode_batch: int,
    device: str | None,
    dtype: Dtype,
    dead_letters: Path | None,
    max_errors: int,
    patience: float,
    restart: bool,
    as_json: bool,
) -> None:
    """Encode a corpus and write it into one index: BM25 text, sparse, dense and quantized vectors.

    Interrupted or killed, the same command again continues. What could not be taken is kept in the dead-letter file,
    which is a corpus itself: mend it and ingest it.

    \b
    osn ingest --corpus docs.jsonl.gz --index docs
    osn ingest --corpus scifact/ --index scifact --dense sentence-transformers/all-MiniLM-L6-v2
    osn ingest --corpus scifact/ --index scifact --pq models/jpq --dense pq --dense-type byte
    """
    from ingest.bulk import RetryPolicy
    from ingest.job import CorpusSource, Job, run_job
    from ingest.pipeline import Options
    from ingest.source import parse_passages

    job = Job(
        corpus=CorpusSource(corpus, format_, id_field, title_field, text_field, url_field, limit) if corpus else None,
        vectors=vectors,
        index=index or "",
        alias=alias,
        sparse=sparse,
        dense=dense,
        pq=pq,
        dense_type=dense_type,
        passages=parse_passages(passages) if passages else None,
        tokenizer=tokenizer,
        analyzer=analyzer,
        shards=shards,
        replicas=replicas,
        keep_replicas=keep_replicas,
        store_vectors=store_vectors,
        encode_batch=encode_batch,
        device=device,
        dtype=dtype,
        dead_letters=dead_letters,
        options=Options(
            writers=writers,
            batch_documents=batch_docs,
            chunk_bytes=int(chunk_mb * 1e6),
            max_errors=max_errors,
            merge=merge,
            restart=restart,
            retry=RetryPolicy(patience),
        ),
    )
    try:
        report = run_job(connect(settings=connection), job)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command again continues", file=sys.stderr)
        raise
    if as_json:
        print(json.dumps(asdict(report), default=str))
    else:
        _show(report)
    if report.dead_letters is not None and not report.documents:
        from ingest.dead_letters import letters_of

        first = next(letters_of(report.dead_letters))["reason"]
        raise InputError(f"no document was taken; the first of {report.letters}: {first}", f"see {report.dead_letters}")


def _show(report: Report) -> None:
    rate = (report.documents - report.skipped) / max(report.seconds, 1e-9)
    print(f"{report.documents} documents in {report.index}, verified ({report.seconds:.1f} s, {rate:.0f}/s)")
    if report.alias:
        print(f"{report.alias} now names {report.index}" + (f", before {report.replaced}" if report.replaced else ""))
    if report.replaced:
        print(f"  `osn index rollback {report.alias}` goes back to it")
    if report.skipped:
        print(f"{report.skipped} of them were written by the run that this one continued")
    if report.letters:
        print(f"{report.letters} were not taken: see {report.dead_letters}")
