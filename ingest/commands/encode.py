"""`osn encode`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ingest.commands.run_and_report import run_and_report
from ingest.corpus import CorpusSource, corpus_options
from ingest.settings import Models, RayOptions, dead_letters_option, encoding_options, max_errors_option
from ingest.vectors.shards import SHARD_RECORDS
from opensearch_neural.commands.headings import Headed
from opensearch_neural.commands.option_groups import FiniteRange, output_option
from opensearch_neural.errors import InputError

if TYPE_CHECKING:
    from ingest.vectors.encode_corpus import EncodeReport


@click.command(cls=Headed, first="output sparse dense passages text-field title-field limit dtype json")
@corpus_options(required=True)
@output_option("Folder for the vectors.", required=True, file_okay=False)
@encoding_options
@click.option(
    "--faiss",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a faiss index of --pq's codes to FILE, and the ids by position to FILE.ids.json.",
)
@click.option(
    "--faiss-candidates",
    type=click.IntRange(min=1),
    metavar="N",
    help="Score only N codes per hit, chosen by a fast scan: approximate, M more bytes per document.  [default: all]",
)
@click.option(
    "--shard-docs",
    type=click.IntRange(min=1),
    default=SHARD_RECORDS,
    show_default=True,
    help="Documents in each file of vectors.",
)
@click.option(
    "--ray",
    "ray_address",
    is_flag=False,
    flag_value="local",
    default=None,
    metavar="[ADDRESS]",
    help="Encode on a Ray cluster (HOST:PORT, or auto); without an address, start one on this machine.",
)
@click.option(
    "--ray-workers", type=click.IntRange(min=1), help="Number of workers.  [default: as many as fit on the cluster]"
)
@click.option(
    "--ray-cpus", type=click.IntRange(min=1), default=RayOptions.cpus, show_default=True, help="CPUs of each worker."
)
@click.option("--ray-gpus", type=FiniteRange(min=0), help="GPUs of each worker.  [default: 1 if there are any]")
@max_errors_option
@dead_letters_option("OUTPUT/encode")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def encode(
    corpus: CorpusSource,
    out: Path,
    models: Models,
    max_errors: int | float,
    dead_letters: Path | None,
    faiss: Path | None,
    faiss_candidates: int | None,
    shard_docs: int,
    ray_address: str | None,
    ray_workers: int | None,
    ray_cpus: int,
    ray_gpus: float | None,
    as_json: bool,
) -> None:
    """Encode a corpus into files, which `osn ingest --vectors` indexes without loading a model.

    CORPUS is a BEIR folder, jsonl(.gz/.zst), parquet, csv, tsv, hf:NAME, or - (standard input).

    If it is interrupted or killed, run the same command again to encode only what is missing. Records that cannot be read or
    encoded are written to the dead-letter file, and the exit status is 3; `osn ingest` rejects them too.

    \b
    osn encode docs.jsonl.gz --output vectors --dense sentence-transformers/all-MiniLM-L6-v2
    osn ingest --vectors vectors --index docs
    osn encode docs.jsonl.gz --output vectors --sparse models/mine --dtype bf16 --ray
    osn encode docs.jsonl.gz --output codes --sparse none --pq models/jpq --faiss jpq.faiss
    """
    from ingest.vectors.encode_corpus import EncodeJob, run_encode

    ray = None
    if ray_address is None and (ray_workers, ray_cpus, ray_gpus) != (None, RayOptions.cpus, None):
        raise InputError(
            "--ray-workers, --ray-cpus and --ray-gpus describe the workers of a Ray cluster, and none is asked for",
            "give --ray too, or leave them out",
        )
    if ray_address is not None:
        ray = RayOptions(ray_address, ray_workers, ray_cpus, ray_gpus)
    job = EncodeJob(
        corpus,
        out,
        models,
        shard_records=shard_docs,
        ray=ray,
        faiss=faiss,
        faiss_candidates=faiss_candidates,
        max_errors=max_errors,
        dead_letters=dead_letters,
    )
    run_and_report(lambda: run_encode(job), _show, as_json=as_json)


def _show(encoded: EncodeReport) -> None:
    print(f"{encoded.documents} documents in {encoded.manifest} ({encoded.shards} shards, {encoded.seconds:.1f} s)")
    if encoded.reused:
        print(f"{encoded.reused} shards existed already")
    if encoded.letters:
        print(f"{encoded.letters} records have no vectors: see {encoded.dead_letters}")
