"""Rotation, codebooks and codes by faiss (`jpq`, section 4.3)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opensearch_neural.errors import InputError
from opensearch_neural.files import replaced
from opensearch_neural.models.dense.quantized import CENTROIDS, Codes, Quantizer
from trainers.common.config import fingerprint
from trainers.jpq.settings import QuantizerSettings

logger = logging.getLogger(__name__)


def fit_quantizer(vectors: npt.NDArray[Any], settings: QuantizerSettings, *, seed: int) -> Quantizer:
    """faiss's OPQ rotation (the identity if not `rotate`) and codebooks for vectors (n, D); the scoring centroids start
    equal to the assigning ones.

    Raises InputError if M does not divide D, or there are fewer vectors than centroids.
    """
    import faiss

    n, d = vectors.shape
    m = settings.subvectors
    check_fits(n, d, settings)
    if n > settings.sample:
        vectors = vectors[np.sort(np.random.default_rng(seed).choice(n, settings.sample, replace=False))]
    sample = np.ascontiguousarray(vectors, dtype=np.float32)
    pq = faiss.ProductQuantizer(d, m, 8)
    pq.cp.seed = seed
    pq.cp.min_points_per_centroid = 1
    pq.cp.max_points_per_centroid = settings.sample
    rotation = np.eye(d, dtype=np.float32)
    if settings.rotate:
        opq = faiss.OPQMatrix(d, m)
        # faiss writes a (D, D) matrix where it made room for the vectors alone. So fewer than D are repeated, all equally
        # often, which changes no mean.
        repeated = sample if len(sample) >= d else np.tile(sample, (-(-d // len(sample)), 1))
        opq.niter, opq.max_train_points, opq.pq = settings.rotation_iterations, max(settings.sample, len(repeated)), pq
        opq.train(repeated)
        rotation = faiss.vector_to_array(opq.A).reshape(d, d).copy()
        pq.cp.niter = 25
    pq.train(np.ascontiguousarray(sample @ rotation.T))
    centroids = faiss.vector_to_array(pq.centroids).reshape(m, CENTROIDS, d // m).copy()
    return Quantizer(rotation, centroids, centroids)


def check_fits(documents: int, dimension: int, settings: QuantizerSettings) -> None:
    """Raises InputError if M does not divide the dimension, or there are fewer documents than centroids."""
    m = settings.subvectors
    if dimension % m:
        divisors = ", ".join(str(number) for number in range(1, dimension + 1) if dimension % number == 0)
        raise InputError(f"quantizer.subvectors {m} does not divide the dimension {dimension}", f"divisors: {divisors}")
    if documents < CENTROIDS:
        raise InputError(f"{documents} documents are too few for {CENTROIDS} centroids", "quantize a larger corpus")


def codes_of(quantizer: Quantizer, vectors: npt.NDArray[Any]) -> Codes:
    """The codes of vectors, computed in blocks: the vectors may be memory-mapped."""
    blocks = [quantizer.encode(vectors[start : start + 65_536]) for start in range(0, len(vectors), 65_536)]
    return np.concatenate(blocks) if blocks else quantizer.encode(np.zeros((0, quantizer.dimension), np.float32))


def kept_quantizer(
    vectors: npt.NDArray[Any], made_of: str, settings: QuantizerSettings, *, seed: int, folder: Path
) -> Quantizer:
    """`fit_quantizer`, kept in `folder`. made_of: a hash of the vectors' documents and model."""
    own = [settings.subvectors, settings.rotate, settings.rotation_iterations, settings.sample]
    file = folder / f"quantizer-{fingerprint(made_of, own, seed)}.safetensors"
    if not file.exists():
        logger.info("learning %d × %d centroids of %d vectors", settings.subvectors, CENTROIDS, len(vectors))
        quantizer = fit_quantizer(vectors, settings, seed=seed)
        with replaced(file) as beside:
            quantizer.save(beside)
    return Quantizer.load(file)
