"""The vectors of `osn bench bm25-sparse`: sparse ones, and dense ones with their codes, which `hybrid` and the cascades
search. Files in --work:

vectors/SET-MODEL          sparse vectors
vectors/SET-DENSE          dense vectors, encoded once
models/DENSE-opq           OPQ, which codes them: learned from the vectors of all sets, not trained on questions;
                           with --quality-of from those of the set of the load tests, in DENSE-opq-of-SET
vectors/SET-MODEL-DENSE    sparse and dense vectors in one encoding
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.bm25_sparse.models import Experiment
from benchmarks.cluster_bm25 import corpus_of
from benchmarks.experiment import slug
from ingest.corpus import CorpusSource, ignore
from ingest.settings import Models
from ingest.vectors.encode_corpus import EncodeJob, run_encode
from ingest.vectors.shards import LoadedShard
from ingest.vectors.stored_vectors import Manifest, StoredVectors
from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.evaluation.results import MeasuredEngine
from opensearch_neural.files import replaced
from opensearch_neural.models import directory
from opensearch_neural.models.dense.onnx_encoder import INT8_FILE, export_onnx
from opensearch_neural.models.dense.quantized import KIND
from opensearch_neural.models.dense.torch_encoder import TorchDenseEncoder, load_dense, stages_of
from opensearch_neural.models.vectors import SparseVectors

logger = logging.getLogger(__name__)

MOST_SUBVECTORS = 48
"""Most bytes of a code: as many as `osn train jpq` uses for 384 dimensions."""
SEED = 42


def encoded(
    experiment: Experiment, name: str, place: Path, *, sparse: str | None = None, dense: str | None = None
) -> Path:
    """Encode the vectors of the set by these models that `place` lacks, and return their manifest."""
    source = CorpusSource(str(corpus_of(experiment.sets[name])))
    return run_encode(EncodeJob(source, place, Models(sparse=sparse, dense=dense)), show_progress=False).manifest


def sparse_vectors(experiment: Experiment, model: MeasuredEngine, name: str) -> Path:
    """The manifest of the set's sparse vectors by the model with the IDF of the set."""
    place = experiment.work / "vectors" / f"{name}-{slug(str(model))}"
    return encoded(experiment, name, place, sparse=experiment.on_corpus(model, name))


def stored_sparse(experiment: Experiment, model: MeasuredEngine, name: str) -> tuple[list[str], SparseVectors]:
    """(ids, vectors) of the set's documents by the model with the IDF of the set."""
    manifest = sparse_vectors(experiment, model, name)
    stored = StoredVectors(manifest.parent, Manifest.read(manifest))
    records = read_corpus(str(corpus_of(experiment.sets[name])), on_reject=ignore)
    documents = [document for document in records if not stored.unfit(document)]
    vectors = stored.vectors(documents).sparse
    assert vectors is not None
    return [document.id for document in documents], vectors


def dense_name(experiment: Experiment) -> str:
    assert experiment.dense is not None
    return slug(directory.display_name(experiment.dense).rpartition("/")[2])


def dense_variant(experiment: Experiment, arm: str) -> str:
    """The models' name in rows of engines that need a dense model: the arm of the sparse model, and the model of --pq."""
    if experiment.quantized is None:
        return arm
    return f"{arm}, {directory.display_name(experiment.quantized).rpartition('/')[2]}"


def kept_variant(experiment: Experiment, sparse: str, with_dense: bool) -> str:
    """A file name for what was measured with the sparse model and, with_dense, with the dense model and its codes. If a
    model of --pq makes the codes, the name holds the hash of its content.

    sparse: the sparse model's arm and seed; for costs, which are only of the first seed, its arm
    """
    if not with_dense:
        return slug(sparse)
    codes = (
        f"-{directory.hash_files(directory.locate(experiment.quantized))[:8]}"
        if experiment.quantized is not None
        else ""
    )
    return f"{slug(dense_variant(experiment, sparse))}{codes}-{dense_name(experiment)}"


def shards(manifest: Path) -> Iterator[LoadedShard]:
    """The shards of an encoding, without the names of tokens."""
    for path in sorted((manifest.parent / Manifest.read(manifest).hash).glob("*.safetensors")):
        yield LoadedShard.read(path, [])


def dense_vectors(experiment: Experiment, name: str) -> Path:
    """The manifest of the set's dense vectors."""
    place = experiment.work / "vectors" / f"{name}-{dense_name(experiment)}"
    return encoded(experiment, name, place, dense=experiment.dense)


def all_vectors(experiment: Experiment, model: MeasuredEngine, name: str) -> Path:
    """The manifest of the set's sparse and dense vectors."""
    place = experiment.work / "vectors" / f"{name}-{slug(str(model))}-{dense_name(experiment)}"
    return joined(sparse_vectors(experiment, model, name), dense_vectors(experiment, name), place)


def joined(sparse: Path, dense: Path, place: Path) -> Path:
    """Write an encoding to `place` with the sparse vectors of one and the dense vectors of another; return its manifest.

    Raises AssertionError if the two hold different documents.
    """
    from safetensors.numpy import load_file, save_file

    sparse_manifest, dense_manifest = Manifest.read(sparse), Manifest.read(dense)
    both = replace(sparse_manifest, dense=dense_manifest.dense)
    manifest, folder = place / f"{both.hash}.json", place / both.hash
    if manifest.exists():
        return manifest
    shutil.rmtree(folder, ignore_errors=True)
    with replaced(folder) as beside:
        shutil.copytree(sparse.parent / sparse_manifest.hash, beside)
        for shard in sorted(beside.glob("*.safetensors")):
            tensors, of_dense = load_file(shard), load_file(dense.parent / dense_manifest.hash / shard.name)
            assert (tensors["digests"] == of_dense["digests"]).all(), f"{shard} and {dense} hold different documents"
            save_file({**tensors, "dense": of_dense["dense"]}, shard)
    both.write(place)
    return manifest


def quantized(experiment: Experiment) -> str:
    """The quantized model of `cascade`: that of --pq, else OPQ of the dense vectors, in a folder below `work`."""
    from trainers.jpq.jpq_model import export_quantized
    from trainers.jpq.quantizer import fit_quantizer
    from trainers.jpq.settings import QuantizerSettings

    if experiment.quantized is not None:
        return experiment.quantized
    of_sets = f"-of-{'-'.join(experiment.measured_sets)}" if experiment.quality_of else ""
    folder = experiment.work / "models" / f"{dense_name(experiment)}-opq{of_sets}"
    if not folder.exists():
        parts = (shard.dense for name in experiment.measured_sets for shard in shards(dense_vectors(experiment, name)))
        vectors = np.concatenate([part for part in parts if part is not None])
        start = load_dense(str(experiment.dense), device="cpu")
        assert isinstance(start, TorchDenseEncoder)
        subvectors = max(m for m in range(1, MOST_SUBVECTORS + 1) if start.dimension % m == 0)
        logger.info("learning OPQ of %d dense vectors", len(vectors))
        quantizer = fit_quantizer(vectors, QuantizerSettings(subvectors=subvectors), seed=SEED)
        made_by = {"quantizer": "OPQ", "documents": len(vectors), "seed": SEED}
        with replaced(folder) as beside:
            export_quantized(beside, start, stages_of(start.model, "query"), quantizer)
            directory.write_osn_json(beside, KIND, training=made_by)
    return str(folder)


def query_models(experiment: Experiment) -> dict[str, str]:
    """{"dense": folder, "pq": folder}: the models that encode queries, with ONNX exports."""
    place = experiment.work / "models"
    return {"dense": exported(str(experiment.dense), place), "pq": exported(quantized(experiment), place)}


def exported(model: str, out: Path) -> str:
    """A copy of a model's directory with ONNX exports, below `out`; the directory itself if it has them.

    The copy has the same hash, so an index accepts either.
    """
    folder = directory.locate(model)
    if any(folder.rglob(INT8_FILE)):
        return model
    copy = out / f"onnx-{directory.hash_files(folder)}"
    if not copy.is_dir():
        with replaced(copy) as beside:
            # Hidden files are for training only and no part of the model.
            shutil.copytree(folder, beside, ignore=shutil.ignore_patterns(".*"))
            export_onnx(beside, int8=True)
    return str(copy)
