"""What a field costs on disk is what Lucene keeps of it for good."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.grown.field_bytes import bytes_by_field
from ingest.vectorizers import Vectors
from opensearch_neural.corpus.documents import Document
from opensearch_neural.index.record import DenseMeta, IndexMeta

DIMENSION = 64


class Drawn:
    def vectors(self, documents: Sequence[Document]) -> Vectors:
        drawn = np.random.default_rng(len(documents)).normal(size=(len(documents), DIMENSION))
        return Vectors(dense=drawn.astype(np.float32))


@pytest.mark.cluster
def test_a_vector_costs_its_coordinates_and_not_its_json_beside(client) -> None:
    documents = [Document(f"d{n}", f"some text of number {n}") for n in range(200)]
    dense = DenseMeta("drawn", "0" * 16, DIMENSION, "float", False)
    sizes = bytes_by_field(client, IndexMeta(None, dense), documents, Drawn())
    # As JSON it would be another five hundred bytes, which are kept until a merge.
    assert 4 * DIMENSION < sizes["dense"] < 2 * 4 * DIMENSION, sizes
