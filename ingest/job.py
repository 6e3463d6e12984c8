"""One ingest from its settings: find the models, open the index, run the pipeline.

`osn ingest`, the demo and the benchmarks all ingest through here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ingest import pipeline
from ingest.dead_letters import is_dead_letter_file, letters_path
from ingest.encoding import Coding, Encoders, Reconstructing, Vectorizer
from ingest.models import (
    RECONSTRUCTED,
    Dtype,
    Wanted,
    choose,
    dense_meta,
    quantized_meta,
    reconstructed_meta,
    sparse_meta,
    stored_dense_meta,
)
from ingest.pipeline import Options, Report
from ingest.source import CorpusSource, Records, as_passages, ignore, spooled
from ingest.target import open_target
from ingest.vectors import Manifest, StoredVectors, find_manifest
from ingest.versions import build_record, open_build, serve
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.errors import InputError
from opensearch_neural.index.record import DenseType, IndexMeta, PassageMeta, QuantizedMeta, read_record
from opensearch_neural.models import registry
from opensearch_neural.models.directory import locate, model_info
from opensearch_neural.models.quantized import QUANTIZER_FILE, Quantizer
from opensearch_neural.query_encoder import load_tokenizer

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from opensearch_neural.models.quantized import QuantizedModel

__all__ = ["CorpusSource", "Job", "run_job"]


@dataclass(frozen=True)
class Job:
    """The settings of one ingest.

    corpus: may be left out with `vectors`: then it is the one that was encoded
    index: with `alias`, left empty
    alias: build an index beside the one that the alias names, and have it name the new one when that is complete
    sparse, dense, pq, tokenizer, passages, device, dtype: as in `models.Wanted`
    vectors: a folder that `osn encode` wrote, instead of models
    """

    corpus: CorpusSource | None
    index: str = ""
    alias: str | None = None
    sparse: str | None = None
    dense: str | None = None
    dense_type: DenseType = "float"
    pq: str | None = None
    tokenizer: str | None = None
    passages: PassageMeta | None = None
    analyzer: str = "english"
    shards: int = 1
    replicas: int | None = None
    keep_replicas: bool = False
    store_vectors: bool = False
    encode_batch: int = 32
    device: str | None = None
    dtype: Dtype = "fp32"
    dead_letters: Path | None = None
    vectors: Path | None = None
    options: Options = field(default_factory=Options)


def run_job(client: OpenSearch, job: Job, *, show_progress: bool = True) -> Report:
    """Ingest a corpus.

    Raises ModelError when the models are not those of the existing index, InputError for a corpus that cannot be read,
    ClusterError for what the cluster refuses, and what `pipeline.ingest` raises.
    """
    if bool(job.index) == bool(job.alias):
        raise InputError("an ingest writes either an index or a new one under an alias", "give --index or --alias")
    stored = None if job.vectors is None else StoredVectors(*find_manifest(job.vectors))
    corpus = corpus_of(job, stored)
    if job.alias is None:
        return _write(client, job, corpus, stored, show_progress)
    index = open_build(client, job.alias, corpus.name, restart=job.options.restart)
    letters = letters_path(job.dead_letters, job.alias, corpus.path)
    return _write(client, replace(job, index=index, dead_letters=letters), corpus, stored, show_progress)


def _write(
    client: OpenSearch, job: Job, corpus: CorpusSource, stored: StoredVectors | None, show_progress: bool
) -> Report:
    with spooled(corpus.path) as place, translate_errors():
        letters = letters_path(job.dead_letters, job.index, corpus.path)
        wrote = read_record(client, job.index)
        plan = (
            with_models(job, wrote, corpus.reader(place), corpus.name)
            if stored is None
            else with_vectors(job, stored, corpus.reader(place))
        )
        target = open_target(
            client,
            job.index,
            plan.meta,
            corpus_name=corpus.name,
            shards=job.shards,
            replicas=job.replicas,
            keep_replicas=job.keep_replicas,
            store_vectors=job.store_vectors,
            extra=build_record(job.alias, corpus.name) if job.alias else {},
            patience=min(60.0, job.options.retry.patience),
        )
        report = pipeline.ingest(
            client,
            target,
            plan.records,
            plan.vectorizer,
            corpus_name=corpus.name,
            dead_letters=letters,
            reader=corpus.reading,
            options=job.options,
            serve=(lambda: serve(client, str(job.alias), job.index)) if job.alias else None,
            whole_documents=not is_dead_letter_file(Path(place)),
            total=plan.total,
            pads=plan.pads,
            show_progress=show_progress,
        )
        return replace(report, alias=job.alias)


@dataclass(frozen=True)
class Plan:
    """What is written, and where its vectors come from. pads: as in `pipeline.ingest`."""

    meta: IndexMeta
    records: Records
    vectorizer: Vectorizer
    total: int | None
    pads: bool = False


def with_models(job: Job, wrote: IndexMeta | None, records: Records, corpus_name: str) -> Plan:
    """Vectors from the models that are named, or that wrote the index."""
    wanted = Wanted(job.sparse, job.dense, job.tokenizer, job.passages, job.device, job.dtype, job.pq)
    chosen = choose(wanted, wrote, job.index, records, corpus_name)
    dense = None
    if chosen.dense is not None or chosen.reconstructed:
        sample = [document.contents for document in islice(chosen.records(ignore), 256)]
        if chosen.dense is not None:
            dense = dense_meta(chosen.dense, job.dense_type, sample)
        elif chosen.pq is not None:
            dense = reconstructed_meta(chosen.pq, job.dense_type, sample)
    sparse = sparse_meta(chosen.sparse) if chosen.sparse else None
    quantized = quantized_meta(chosen.pq) if chosen.pq else None
    meta = IndexMeta(sparse, dense, chosen.passages, quantized, job.analyzer)
    encoders = Encoders(chosen.sparse, chosen.dense, job.encode_batch, chosen.pq, chosen.reconstructed)
    return Plan(meta, chosen.records, encoders, chosen.total, encoders.pads)


def with_vectors(job: Job, stored: StoredVectors, records: Records) -> Plan:
    """Vectors from files. What encodes queries is remembered, for searches on this machine."""
    manifest = stored.manifest
    model = stored.folder / "model"
    if manifest.sparse is not None and not registry.link_of(manifest.sparse.hash).is_dir():
        registry.remember(manifest.sparse.hash, model)
    dense = None
    if manifest.dense is not None:
        info = manifest.dense
        dense = stored_dense_meta(
            info.name, info.hash, info.dimension, job.dense_type, info.normalized, stored.sample()
        )
        dense = replace(dense, vectors=info.vectors)
    if manifest.passages is not None:
        tokenizer = load_tokenizer(model) if manifest.sparse else load_tokenizer(stored.folder / "tokenizer.json")
        records = as_passages(records, tokenizer, manifest.passages)
    vectorizer: Vectorizer = stored
    codes = manifest.quantized
    if job.dense == RECONSTRUCTED and manifest.dense is not None:
        raise InputError(f"{stored.folder} holds dense vectors already", "--dense pq makes dense vectors of codes")
    if job.pq is not None and manifest.dense is not None and not _holds_codes_of(codes, job.pq):
        coding = coding_model(job, manifest, stored, records)
        codes, vectorizer = quantized_meta(coding), Coding(stored, coding.quantizer)
        registry.remember(codes.hash, coding.info.path)
    elif job.dense == RECONSTRUCTED or job.pq is not None:
        if codes is None:
            raise InputError(f"{stored.folder} holds no codes", "`osn encode --pq MODEL` writes them")
        place = registry.find(codes.hash, codes.name, "quantized") if job.pq is None else locate(job.pq)
        if (found := model_info(place, name=codes.name, kind="quantized").hash) != codes.hash:
            raise InputError(
                f"{stored.folder} holds codes of {codes.name} ({codes.hash}), --pq {job.pq} is another model ({found})",
                "name the model that encoded them",
            )
        registry.remember(codes.hash, place)
    if job.dense == RECONSTRUCTED:
        assert codes is not None
        quantizer = Quantizer.load(place / QUANTIZER_FILE)
        sample = quantizer.reconstruct(stored.codes()[1][:256]) if job.dense_type == "byte" else None
        dense = stored_dense_meta(codes.name, codes.hash, quantizer.dimension, job.dense_type, False, sample)
        dense = replace(dense, reconstructed=True)
        vectorizer = Reconstructing(stored, quantizer)
    meta = IndexMeta(manifest.sparse, dense, manifest.passages, codes, job.analyzer)
    return Plan(meta, records, vectorizer, manifest.records)


PROBED = 512
"""Documents among which those are chosen that a model encodes again."""
LARGEST_DIFFERENCE = 0.01
"""Of a vector, in its own length, where it is encoded again by the same weights, perhaps on another device."""


def _holds_codes_of(codes: QuantizedMeta | None, model: str) -> bool:
    return codes is not None and model_info(locate(model), name=codes.name, kind="quantized").hash == codes.hash


def coding_model(job: Job, manifest: Manifest, stored: StoredVectors, records: Records) -> QuantizedModel:
    """The model `job.pq`, which codes the dense vectors that are stored: they are those that it would make of documents.

    Raises InputError where it encodes the longest and the first of the first documents otherwise.
    """
    from opensearch_neural.models.quantized import load_quantized

    dense, codes = manifest.dense, manifest.quantized
    assert job.pq is not None and dense is not None
    model = load_quantized(job.pq, device=job.device)
    alike = dense.vectors == 1 and dense.dimension == model.quantizer.dimension
    if alike:
        first = [one for one in islice(records(ignore), PROBED) if not stored.unfit(one)]
        some = first[:8] + sorted(first[8:], key=lambda one: len(one.contents))[-8:]
        there = stored.vectors(some).dense if some else None
        if there is not None:
            again = model.dense.encode_documents([one.contents for one in some])
            away = np.linalg.norm(again - there, axis=1) / np.maximum(np.linalg.norm(there, axis=1), 1e-12)
            alike = bool((away < LARGEST_DIFFERENCE).all())
    if not alike:
        held = f", and codes of {codes.name} ({codes.hash})" if codes is not None else ""
        raise InputError(
            f"{stored.folder} holds dense vectors of {dense.name} ({dense.hash}){held}; {job.pq} is another model, and "
            "encodes documents otherwise",
            f"name the model that it was trained from, or write its codes: `osn encode --pq {job.pq}`",
        )
    return model


def corpus_of(job: Job, stored: StoredVectors | None) -> CorpusSource:
    """The corpus named, or the one that was encoded; records are read as they were then.

    Raises InputError for options that contradict each other.
    """
    if stored is None:
        if job.corpus is None:
            raise InputError("no corpus is named", "give --corpus, or --vectors")
        return job.corpus
    # The model that made the codes may be named: it encodes queries, and this machine may not know it.
    models = job.sparse or (job.dense and job.dense != RECONSTRUCTED)
    if models or job.tokenizer or job.passages or job.dtype != "fp32":
        raise InputError(
            "--vectors brings the vectors along: --sparse, --dense, --tokenizer, --passages and --dtype have no place "
            "beside it (but --dense pq has, and --pq, which names the model of the codes, or one that makes codes of the "
            "dense vectors)",
            "leave them out, or encode again with `osn encode`",
        )
    encoded = stored.manifest.corpus
    if job.corpus is not None:
        return replace(encoded, path=job.corpus.path)
    if encoded.path == "stdin":
        raise InputError("the corpus was read from standard input when it was encoded", "give --corpus")
    return encoded
