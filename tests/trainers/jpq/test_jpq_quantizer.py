"""faiss's rotation and codebooks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")
pytest.importorskip("faiss")

from opensearch_neural.errors import InputError  # noqa: E402
from trainers.jpq.preparation import Preparation  # noqa: E402
from trainers.jpq.quantizer import fit_quantizer  # noqa: E402
from trainers.jpq.settings import JpqConfig, QuantizerSettings  # noqa: E402


def test_opq_reconstructs_better_than_pq_and_both_better_than_their_mean() -> None:
    rng = np.random.default_rng(0)
    # Variance lies in few directions that no part of the coordinates holds: what a rotation is for.
    vectors = (rng.normal(size=(600, 16)) * np.geomspace(4, 0.1, 16)) @ np.linalg.qr(rng.normal(size=(16, 16)))[0]
    vectors = vectors.astype(np.float32)
    errors = {}
    for rotate in (True, False):
        quantizer = fit_quantizer(
            vectors, QuantizerSettings(subvectors=4, rotate=rotate, rotation_iterations=5), seed=1
        )
        assert (quantizer.assigning == quantizer.scoring).all()
        assert rotate != np.allclose(quantizer.rotation, np.eye(16))
        errors[rotate] = np.square(vectors - quantizer.reconstruct(quantizer.encode(vectors))).sum(1).mean()
    assert errors[True] < errors[False] < np.square(vectors - vectors.mean(0)).sum(1).mean()


@pytest.mark.parametrize("m", [1, 6], ids=["one part", "a part for each coordinate"])
def test_the_fewest_and_the_most_parts(m: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    quantizer = fit_quantizer(vectors, QuantizerSettings(subvectors=m, rotation_iterations=2), seed=1)
    assert quantizer.scoring.shape == (m, 256, 6 // m)
    codes = quantizer.encode(vectors)
    assert codes.shape == (300, m)
    lost = np.square(vectors - quantizer.reconstruct(codes)).sum(axis=1).mean()
    # 256 centroids for 300 vectors, or for 300 numbers: nearly all have their own.
    assert lost < 0.1 * np.square(vectors).sum(axis=1).mean()
    scores = [quantizer.table(vector)[np.arange(m), codes].sum(axis=1) for vector in vectors[:5]]
    np.testing.assert_allclose(scores, vectors[:5] @ quantizer.reconstruct(codes).T, atol=1e-4)


def test_fewer_vectors_than_dimensions_are_rotated_without_writing_past_faiss_memory() -> None:
    vectors = np.random.default_rng(0).normal(size=(300, 384)).astype(np.float32)
    quantizer = fit_quantizer(vectors, QuantizerSettings(subvectors=48, rotation_iterations=2), seed=1)
    np.testing.assert_allclose(quantizer.rotation @ quantizer.rotation.T, np.eye(384), atol=1e-4)
    lost = np.square(vectors - quantizer.reconstruct(quantizer.encode(vectors))).sum(axis=1).mean()
    assert lost < 0.5 * np.square(vectors).sum(axis=1).mean()


def test_what_cannot_be_quantized_is_named(config: JpqConfig) -> None:
    vectors = np.random.default_rng(0).normal(size=(300, 12)).astype(np.float32)
    with pytest.raises(InputError, match="subvectors 5 does not divide the dimension 12") as caught:
        fit_quantizer(vectors, QuantizerSettings(subvectors=5), seed=1)
    assert caught.value.remedy == "divisors: 1, 2, 3, 4, 6, 12"
    with pytest.raises(InputError, match="255 documents are too few for 256 centroids"):
        fit_quantizer(vectors[:255], QuantizerSettings(subvectors=4), seed=1)
    with pytest.raises(InputError, match="query_length is 1000, but the start reads"):
        Preparation(replace(config, query_length=1000))


def test_the_papers_centroid_learning_rates_are_read_by_the_coordinates_of_a_part() -> None:
    rates = {m: QuantizerSettings(subvectors=m).centroid_learning_rate(768) for m in (16, 24, 32, 48, 64, 96)}
    assert rates == {16: 5e-6, 24: 5e-6, 32: 2e-5, 48: 1e-4, 64: 1e-4, 96: 1e-4}
    assert QuantizerSettings(subvectors=16, learning_rate=3e-3).centroid_learning_rate(768) == 3e-3
