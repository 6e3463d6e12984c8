"""Encode a corpus into files, so that indexing it (again, elsewhere, with other settings) needs no model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ingest.chosen_models import ChosenModels, choose, quantized_meta, sparse_meta, splitting_tokenizer
from ingest.corpus import CorpusSource, Records, everything, spooled
from ingest.dead_letters import DeadLetters, letters_path
from ingest.error_limit import ErrorLimit
from ingest.model_request import ModelRequest
from ingest.settings import Models, RayOptions, Writing
from ingest.vectorizers import Encoders
from ingest.vectors.shards import (
    SHARD_RECORDS,
    LoadedShard,
    ShardDone,
    encode_shard,
    shard_path,
    shard_written_before,
    shards_of,
    write_shard,
)
from ingest.vectors.stored_vectors import DenseInfo, Manifest, StoredVectors
from opensearch_neural.errors import InputError
from opensearch_neural.files import replaced, write_json, write_text
from opensearch_neural.progress import Progress

if TYPE_CHECKING:
    from opensearch_neural.models.dense.quantized import Codes, Quantizer

BATCHES = 8
"""Batches of a network between two updates of the progress."""


@dataclass(frozen=True)
class EncodeJob:
    """The settings of one encoding."""

    corpus: CorpusSource
    """Where the corpus is, and how it is read."""
    out: Path
    """The folder for the manifest and the shards."""
    models: Models
    """The models by name, and how they encode."""
    shard_records: int = SHARD_RECORDS
    """Records of the corpus in one shard."""
    ray: RayOptions | None = None
    """A Ray cluster to encode on. None: in this process."""
    faiss: Path | None = None
    """A file for a faiss index of the codes; the ids by position are written to FILE.ids.json."""
    faiss_candidates: int | None = None
    """How many codes that index scores per requested hit. None: all."""
    max_errors: int | float = Writing.max_errors
    """As in `Writing`."""
    dead_letters: Path | None = None
    """The file for records that have no vectors. None: OUT/encode.dead-letters.jsonl."""


@dataclass
class EncodeReport:
    """The result of an encoding, to which each shard is added."""

    manifest: Path
    """The file that `osn ingest --vectors` reads."""
    documents: int = 0
    """Documents that have vectors."""
    rejected: int = 0
    """Records that could not be read."""
    unfit: int = 0
    """Documents that a model could not encode."""
    shards: int = 0
    """Shards in all."""
    reused: int = 0
    """Shards that an earlier run had written."""
    seconds: float = 0.0
    """How long this run took, reused shards included."""
    dead_letters: Path | None = None
    """The file of the records that have no vectors; None if there are none."""
    first_reason: str | None = None
    """Why the first of them has none."""

    @property
    def letters(self) -> int:
        """Records that have no vectors."""
        return self.rejected + self.unfit

    def add(self, done: ShardDone) -> None:
        self.documents += done.documents
        self.rejected += done.rejected
        self.unfit += done.unfit
        self.shards += 1
        self.reused += done.reused


def run_encode(job: EncodeJob, *, show_progress: bool = True) -> EncodeReport:
    """Encode a corpus into `job.out`. After an interruption, run it again: it encodes only the missing shards.

    Raises ModelError if a model is missing, InputError if the corpus cannot be read or differs from that of existing shards,
    TooManyErrors if more than `job.max_errors` records have no vectors.
    """
    started = time.monotonic()
    _check(job)
    limit = ErrorLimit(job.max_errors)
    with spooled(job.corpus.path) as place:
        chosen = choose(ModelRequest(job.models, None, "", job.corpus.reader(place), job.corpus.name))
        encoders, manifest = chosen.encoders, manifest_of(job, chosen)
        folder = job.out / manifest.hash
        prepare_folder(folder, chosen)
        letters = DeadLetters(letters_path(job.dead_letters, str(job.out / "encode"), job.corpus.path))
        report = EncodeReport(job.out / f"{manifest.hash}.json")
        if not report.manifest.exists():  # a complete manifest stays until the next is complete
            manifest.write(job.out)
        records = aside = 0
        with closing(letters), Progress("encode", total=chosen.total, show=show_progress) as progress:
            for done in _shards(job, chosen.records, folder, encoders, limit, progress.ahead):
                report.add(done)
                records += done.records
                aside += len(done.set_aside)
                for record, reason in done.set_aside:
                    letters.add(record, reason)
                letters.sync()
                if aside:
                    progress.remark(f"{aside} set aside")
                progress.update(done.records, skipped=done.reused)
                limit.check(aside, records, letters.path)
            limit.check(aside, records, letters.path, ended=True)
        manifest = replace(manifest, records=records, documents=report.documents, unfit=report.unfit)
        manifest.write(job.out)
        if job.faiss is not None and encoders.quantized is not None:
            ids, codes = StoredVectors(job.out, manifest).codes()
            write_index(job.faiss, ids, codes, encoders.quantized.quantizer, candidates=job.faiss_candidates)
    report.seconds = time.monotonic() - started
    report.dead_letters = letters.path if aside else None
    report.first_reason = letters.first_reason
    return report


def manifest_of(job: EncodeJob, chosen: ChosenModels) -> Manifest:
    """The manifest of the encoding, without its counts. Raises InputError if there is no model."""
    sparse, dense, quantized = chosen.encoders.sparse, chosen.encoders.dense, chosen.encoders.quantized
    if sparse is None and dense is None and quantized is None:
        raise InputError(
            "there is nothing to encode with", "give --sparse, --dense or --pq; --sparse lexical needs no model"
        )
    return Manifest(
        corpus=replace(job.corpus, path=job.corpus.name),
        sparse=sparse_meta(sparse) if sparse else None,
        dense=DenseInfo.of(dense) if dense else None,
        passages=chosen.passages,
        dtype=job.models.dtype,
        shard_records=job.shard_records,
        quantized=quantized_meta(quantized) if quantized else None,
        prune=str(chosen.encoders.prune) if chosen.encoders.prune else None,
    )


def _check(job: EncodeJob) -> None:
    """Raise for options that do not fit together, and for missing packages, before hours of encoding."""
    if job.ray is not None:
        from ingest.vectors import ray_encode

        ray_encode.check(job.ray)
        if job.models.trust_remote_code:
            raise InputError("a Ray cluster does not run a model's own code", "encode without --ray")
    if job.faiss is not None and job.models.pq is None:
        raise InputError("--faiss needs codes of a quantized model", "give --pq MODEL")
    if job.faiss_candidates is not None and job.faiss is None:
        raise InputError("--faiss-candidates has no effect without a faiss index", "give --faiss FILE")
    if job.faiss is not None:
        from opensearch_neural.retrievers.faiss import import_faiss

        import_faiss("a faiss index")
    if job.models.reconstruct:
        raise InputError(
            "reconstructed vectors are not written to files; an ingest computes them from the codes",
            "osn ingest --pq MODEL --dense-from-codes",
        )


def write_index(
    file: Path, ids: list[str], codes: Codes, quantizer: Quantizer, *, candidates: int | None = None
) -> None:
    """Write a faiss index of codes to `file`, and the ids to `file`.ids.json; each file is whole or absent.

    candidates: as in `quantized_index`. Raises InputError if two documents have the same id.
    """
    from opensearch_neural.retrievers.faiss import quantized_index
    from opensearch_neural.retrievers.ranking import Ranking

    Ranking(ids)  # refuses ids that occur twice
    index = quantized_index(quantizer, codes, candidates=candidates)
    import faiss

    with replaced(file) as beside:
        faiss.write_index(index, str(beside))
        # Ids and codes belong together: between the two writes, a missing index is better than another index's ids.
        file.unlink(missing_ok=True)
        write_json(file.with_name(f"{file.name}.ids.json"), ids, indent=None)


def _shards(
    job: EncodeJob,
    records: Records,
    folder: Path,
    encoders: Encoders,
    limit: ErrorLimit,
    encoded: Callable[[int], None],
) -> Iterator[ShardDone]:
    batch = BATCHES * job.models.encode_batch
    if job.ray is None:
        return shards_here(records, folder, job.shard_records, encoders, batch, limit, encoded)
    from ingest.vectors.ray_encode import PackedModels, shards_on_ray

    models = PackedModels.of(encoders, job.models.device, job.models.dtype)
    return shards_on_ray(records, folder, job.shard_records, models, batch, job.ray, limit)


def shards_here(
    records: Records,
    folder: Path,
    shard_records: int,
    encoders: Encoders,
    batch: int,
    limit: ErrorLimit,
    encoded: Callable[[int], object] = lambda documents: None,
) -> Iterator[ShardDone]:
    """Encode the shards that `folder` lacks, in this process and in the corpus's order.

    batch, encoded: as in `encode_shard`. limit: ends reading if too many records cannot be read.
    """
    for start, part in shards_of(everything(records, limit.too_many), shard_records):
        path = shard_path(folder, start)
        before = shard_written_before(path, start, part)
        if before is None:
            write_shard(path, encode_shard(start, part, encoders, batch, encoded))
        yield ShardDone.of(before or LoadedShard.read(path, []), part, reused=before is not None)


def prepare_folder(folder: Path, chosen: ChosenModels) -> None:
    """Write the files that shards need beside them: the vocabulary and the query encoder, or the passages' tokenizer."""
    from opensearch_neural.models.sparse.lexical import LexicalEncoder

    folder.mkdir(parents=True, exist_ok=True)
    sparse = chosen.encoders.sparse
    if sparse is None:
        if chosen.passages is not None:
            tokenizer = splitting_tokenizer(None, chosen.encoders.dense or chosen.encoders.quantized, None)
            write_text(folder / "tokenizer.json", tokenizer.to_str())
        return
    write_json(folder / "vocabulary.json", sparse.vocabulary, indent=None)
    if isinstance(sparse, LexicalEncoder):
        sparse.save(folder / "model")
    else:
        sparse.query.save(folder / "model")
