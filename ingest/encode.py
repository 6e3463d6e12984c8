"""Encode a corpus into files, so that indexing it (once more, elsewhere, otherwise) needs no model: `osn encode`."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ingest import options
from ingest.encoding import Encoders
from ingest.journal import changed_corpus, digest
from ingest.models import (
    RECONSTRUCTED,
    Chosen,
    Dtype,
    Wanted,
    choose,
    quantized_meta,
    sparse_meta,
    splitting_tokenizer,
)
from ingest.progress import Progress
from ingest.source import CorpusSource, Records, parse_passages, spooled
from ingest.vectors import (
    SHARD_RECORDS,
    DenseInfo,
    LoadedShard,
    Manifest,
    StoredVectors,
    encode_shard,
    shard_path,
    shards_of,
    write_shard,
)
from opensearch_neural.corpus.documents import Document, Rejected
from opensearch_neural.errors import InputError
from opensearch_neural.files import write_json, write_text
from opensearch_neural.index.record import PassageMeta

if TYPE_CHECKING:
    from ingest.ray_encode import RayOptions
    from opensearch_neural.models.quantized import Codes, Quantizer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EncodeJob:
    """The settings of one encoding; sparse, dense, pq, tokenizer, passages, device, dtype: as in `models.Wanted`.

    ray: encode on a Ray cluster; None: in this process
    faiss: a file for faiss's index of the codes, and beside it FILE.ids.json, the ids by position
    faiss_candidates: how many codes that index scores for each document asked for; None: all
    """

    corpus: CorpusSource
    out: Path
    sparse: str | None = None
    dense: str | None = None
    tokenizer: str | None = None
    passages: PassageMeta | None = None
    encode_batch: int = 32
    device: str | None = None
    dtype: Dtype = "fp32"
    shard_records: int = SHARD_RECORDS
    ray: RayOptions | None = None
    pq: str | None = None
    faiss: Path | None = None
    faiss_candidates: int | None = None


@dataclass(frozen=True)
class ShardDone:
    """A shard that is in its file. rejected: how many of its records could not be read; process: what encoded it."""

    start: int
    records: int
    rejected: int
    reused: bool
    process: int | None = None


@dataclass(frozen=True)
class Encoded:
    """What an encoding came to. `reused`: shards that an earlier run had written."""

    manifest: Path
    documents: int
    rejected: int
    unfit: int
    shards: int
    reused: int
    seconds: float


def run_encode(job: EncodeJob, *, show_progress: bool = True) -> Encoded:
    """Encode a corpus into `job.out`; run again after any interruption, only the shards that are missing are encoded.

    Raises ModelError for a model that is missing, InputError for a corpus that cannot be read, or that is not the one
    of the shards that are there.
    """
    started = time.monotonic()
    if job.ray is not None:
        from ingest import ray_encode

        ray_encode.check(job.ray)
    if job.faiss is not None and job.pq is None:
        raise InputError("faiss's index is made of codes, and there are none", "give --pq MODEL")
    if job.faiss_candidates is not None and job.faiss is None:
        raise InputError("candidates are those of a faiss index, and none is written", "give --faiss FILE")
    if job.faiss is not None:
        from opensearch_neural.retrievers.faiss import import_faiss

        import_faiss("a faiss index")  # missing, it is not found out after hours of encoding
    if job.dense == RECONSTRUCTED:
        raise InputError(
            "vectors that codes stand for are not written to files: they are made of the codes when an index is written",
            "osn ingest --pq MODEL --dense pq",
        )
    with spooled(job.corpus.path) as place:
        wanted = Wanted(job.sparse, job.dense, job.tokenizer, job.passages, job.device, job.dtype, job.pq)
        chosen = choose(wanted, None, "", job.corpus.reader(place), job.corpus.name)
        if chosen.sparse is None and chosen.dense is None and chosen.pq is None:
            raise InputError("there is nothing to encode with", "give --sparse, --dense or --pq")
        manifest = Manifest(
            corpus=job.corpus,
            sparse=sparse_meta(chosen.sparse) if chosen.sparse else None,
            dense=DenseInfo.of(chosen.dense) if chosen.dense else None,
            passages=chosen.passages,
            dtype=job.dtype,
            shard_records=job.shard_records,
            quantized=quantized_meta(chosen.pq) if chosen.pq else None,
        )
        folder = job.out / manifest.hash
        prepare_folder(folder, chosen)
        if not (job.out / f"{manifest.hash}.json").exists():  # a complete one serves until the next is complete
            manifest.write(job.out)
        encoders = Encoders(chosen.sparse, chosen.dense, job.encode_batch, chosen.pq)
        rejected = shards = reused = records = documents = unfit = 0
        with Progress("encode", total=chosen.total, show=show_progress) as progress:
            for done in _shards(job, chosen.records, folder, encoders):
                shard = LoadedShard.read(shard_path(folder, done.start), [])
                shards += 1
                reused += done.reused
                records += done.records
                documents += len(shard.rows)
                unfit += len(shard.unfit)
                rejected += done.rejected
                progress.update(done.records, skipped=done.reused)
        manifest = replace(manifest, records=records, documents=documents, unfit=unfit)
        manifest.write(job.out)
        if job.faiss is not None and chosen.pq is not None:
            ids, codes = StoredVectors(job.out, manifest).codes()
            write_index(job.faiss, ids, codes, chosen.pq.quantizer, candidates=job.faiss_candidates)
    return Encoded(
        job.out / f"{manifest.hash}.json", documents, rejected, unfit, shards, reused, time.monotonic() - started
    )


def write_index(
    file: Path, ids: list[str], codes: Codes, quantizer: Quantizer, *, candidates: int | None = None
) -> None:
    """faiss's index of codes in `file`, and `file`.ids.json, each beside and renamed; candidates as in `quantized_index`.

    Raises InputError for two documents of one id: a position could not be told from the other.
    """
    from opensearch_neural.retrievers.faiss import quantized_index
    from opensearch_neural.retrievers.ranking import id_order

    id_order(ids)
    index = quantized_index(quantizer, codes, candidates=candidates)
    import faiss

    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}")
    faiss.write_index(index, str(beside))
    # Ids and codes go together: between the two there is no index rather than another's ids.
    file.unlink(missing_ok=True)
    write_json(file.with_name(f"{file.name}.ids.json"), ids, indent=None)
    beside.replace(file)


def _shards(job: EncodeJob, records: Records, folder: Path, encoders: Encoders) -> Iterator[ShardDone]:
    # A whole shard is sorted by length at once: its batches then pad 1 %, those of 256 documents 7 to 20.
    batch = job.shard_records
    if job.ray is None:
        return shards_here(records, folder, job.shard_records, encoders, batch)
    from ingest.ray_encode import PackedModels, shards_on_ray

    models = PackedModels.of(encoders, job.device, job.dtype)
    return shards_on_ray(records, folder, job.shard_records, models, batch, job.ray)


def shards_here(
    records: Records, folder: Path, shard_records: int, encoders: Encoders, batch: int
) -> Iterator[ShardDone]:
    """Encode the shards that `folder` lacks, in this process and in the corpus's order."""
    for start, part in shards_of(everything(records), shard_records):
        path = shard_path(folder, start)
        reused = known(path, start, part) is not None
        if not reused:
            write_shard(path, encode_shard(start, part, encoders, batch))
        yield ShardDone(start, len(part), sum(isinstance(record, Rejected) for record in part), reused)


def everything(records: Records) -> Iterator[Document | Rejected]:
    """Documents and rejected records in the corpus's order."""
    rejected: deque[Rejected] = deque()
    for document in records(rejected.append):
        while rejected:
            yield rejected.popleft()
        yield document
    yield from rejected


def known(path: Path, start: int, records: list[Document | Rejected]) -> LoadedShard | None:
    """The shard of these records where an earlier run wrote it. Raises InputError where it is of other records."""
    if not path.exists():
        return None
    shard = LoadedShard.read(path, [])
    if shard.digest == digest(records):
        return shard
    if shard.end - shard.start < len(records):
        return None  # the last shard of a corpus that was shorter then
    error = changed_corpus(start, start + len(records))
    raise InputError(error.message, f"give the corpus as it was, or delete {path.parent}")


def prepare_folder(folder: Path, chosen: Chosen) -> None:
    """What the shards need beside them: the vocabulary, and what encodes queries."""
    from opensearch_neural.models.lexical import LexicalEncoder

    folder.mkdir(parents=True, exist_ok=True)
    if chosen.sparse is None:
        if chosen.passages is not None:
            tokenizer = splitting_tokenizer(None, chosen.dense or chosen.pq, None)
            write_text(folder / "tokenizer.json", tokenizer.to_str())
        return
    write_json(folder / "vocabulary.json", chosen.sparse.vocabulary, indent=None)
    if isinstance(chosen.sparse, LexicalEncoder):
        chosen.sparse.save(folder / "model")
    else:
        chosen.sparse.query.save(folder / "model")


@click.command()
@click.option(
    "--corpus", required=True, help="A BEIR folder, jsonl(.gz/.zst), parquet, csv, tsv, hf:NAME, or - (stdin)."
)
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder for the vectors.")
@click.option("--sparse", default=None, help="Sparse model (directory or hub id), or none.  [default: lexical]")
@click.option("--dense", default=None, help="Dense model (directory or hub id); none by default.")
@click.option("--pq", default=None, help="Quantized model, whose codes are written; none by default.")
@click.option(
    "--faiss",
    default=None,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write faiss's index of --pq's codes there, and the ids by position into FILE.ids.json.",
)
@click.option(
    "--faiss-candidates",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="It scores N codes for each document asked for, found by a scan: not exact, M more bytes.  [default: all]",
)
@click.option("--tokenizer", default=None, help="Tokenizer of the lexical model.  [default: BERT's word pieces]")
@click.option("--passages", default=None, metavar="TOKENS[:STRIDE]", help="Split documents into passages.")
@click.option("--format", "format_", default=None, help="The corpus's format, where its name does not tell.")
@click.option("--id-field", default=None)
@click.option("--title-field", default=None)
@click.option("--text-field", default=None)
@click.option("--url-field", default=None)
@click.option("--limit", type=click.IntRange(min=1), default=None, help="Take the first N documents.")
@click.option("--encode-batch", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--shard-docs", type=click.IntRange(min=1), default=SHARD_RECORDS, show_default=True)
@options.device
@options.dtype
@click.option(
    "--ray",
    "ray_address",
    is_flag=False,
    flag_value="local",
    default=None,
    metavar="[ADDRESS]",
    help="Encode on a Ray cluster (HOST:PORT, or auto); without an address, on one started on this machine.",
)
@click.option("--ray-workers", type=click.IntRange(min=1), default=None, help="[default: all that the cluster takes]")
@click.option("--ray-cpus", type=click.IntRange(min=1), default=1, show_default=True, help="Of each worker.")
@click.option(
    "--ray-gpus", type=click.FloatRange(min=0), default=None, help="Of each worker.  [default: 1 where there are any]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def encode(
    corpus: str,
    out: Path,
    sparse: str | None,
    dense: str | None,
    pq: str | None,
    faiss: Path | None,
    faiss_candidates: int | None,
    tokenizer: str | None,
    passages: str | None,
    format_: str | None,
    id_field: str | None,
    title_field: str | None,
    text_field: str | None,
    url_field: str | None,
    limit: int | None,
    encode_batch: int,
    shard_docs: int,
    device: str | None,
    dtype: Dtype,
    ray_address: str | None,
    ray_workers: int | None,
    ray_cpus: int,
    ray_gpus: float | None,
    as_json: bool,
) -> None:
    """Encode a corpus into files that `osn ingest --vectors` writes without loading a model.

    Interrupted or killed, the same command again encodes only what is missing.

    \b
    osn encode --corpus docs.jsonl.gz --out vectors --dense sentence-transformers/all-MiniLM-L6-v2
    osn ingest --vectors vectors --index docs
    osn encode --corpus docs.jsonl.gz --out vectors --sparse models/mine --dtype bf16 --ray
    osn encode --corpus docs.jsonl.gz --out codes --sparse none --pq models/jpq --faiss jpq.faiss
    """
    ray = None
    if ray_address is not None:
        from ingest.ray_encode import RayOptions

        ray = RayOptions(ray_address, ray_workers, ray_cpus, ray_gpus)
    job = EncodeJob(
        corpus=CorpusSource(corpus, format_, id_field, title_field, text_field, url_field, limit),
        out=out,
        sparse=sparse,
        dense=dense,
        pq=pq,
        faiss=faiss,
        faiss_candidates=faiss_candidates,
        tokenizer=tokenizer,
        passages=parse_passages(passages) if passages else None,
        encode_batch=encode_batch,
        device=device,
        dtype=dtype,
        shard_records=shard_docs,
        ray=ray,
    )
    try:
        encoded = run_encode(job)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command again continues", file=sys.stderr)
        raise
    if as_json:
        print(json.dumps(asdict(encoded), default=str))
        return
    print(f"{encoded.documents} documents in {encoded.manifest} ({encoded.shards} shards, {encoded.seconds:.1f} s)")
    if encoded.reused:
        print(f"{encoded.reused} shards were there already")
    if encoded.rejected or encoded.unfit:
        print(f"{encoded.rejected + encoded.unfit} records have no vectors: `osn ingest` keeps them as dead letters")
