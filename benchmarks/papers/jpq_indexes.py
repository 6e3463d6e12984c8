"""The faiss indexes that JPQ is compared with, and their sizes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from opensearch_neural.models.dense.quantized import Quantizer
from opensearch_neural.retrievers.faiss import faiss_rotation

if TYPE_CHECKING:
    from numpy.typing import NDArray

HNSW_LINKS = 16
HNSW_SEARCH = 128
"""efSearch; it must be at least the number of hits."""


def lsh_index(vectors: NDArray[np.float32], m: int) -> Any:
    """Signs after a random rotation, 8 in a byte, compared by Hamming distance."""
    import faiss

    index = faiss.IndexLSH(vectors.shape[1], 8 * m, True)
    index.add(vectors)
    return index


def graph_index(vectors: NDArray[np.float32], quantizer: Quantizer | None = None) -> Any:
    """HNSW by Euclidean distance, which orders vectors of length 1 as inner products do. quantizer: store its codes, after
    its rotation (HNSW+OPQ)."""
    import faiss

    dimension = vectors.shape[1]
    graph: Any
    whole: Any
    if quantizer is None:
        whole = graph = faiss.IndexHNSWFlat(dimension, HNSW_LINKS)
    else:
        graph = cast(Any, faiss).IndexHNSWPQ(dimension, quantizer.subvectors, HNSW_LINKS)
        pq = cast(Any, faiss.downcast_index(graph.storage)).pq
        faiss.copy_array_to_vector(quantizer.assigning.ravel(), pq.centroids)
        pq.compute_sdc_table()
        graph.is_trained = graph.storage.is_trained = True
        whole = faiss.IndexPreTransform(faiss_rotation(quantizer), graph)
    graph.hnsw.efSearch = HNSW_SEARCH
    whole.add(vectors)
    return whole


def bytes_of(index: Any, work: Path) -> int:
    """The size of the file that faiss writes, with codebooks, rotation and graph."""
    import faiss

    work.mkdir(parents=True, exist_ok=True)
    file = work / "index.faiss"
    faiss.write_index(index, str(file))
    size = file.stat().st_size
    file.unlink()
    return size
