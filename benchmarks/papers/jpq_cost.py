"""Part "cost" of `osn paper jpq`: bytes of faiss's indexes, and CPU time of single queries on one thread.

Vectors are random, of a spectrum like that of a dense model's: they stand in for size. Nothing is said of quality, and how
much of flat search HNSW finds among random vectors says little of what it finds among texts, which lie on fewer dimensions.
What a scan of codes finds of all codes' best depends on the codes alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from benchmarks.experiment import Table, goal_of
from opensearch_neural.evaluation.result_rows import mean_row
from opensearch_neural.evaluation.results import Goal, Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opensearch_neural.models.quantized import Codes, Quantizer

FLAT, HNSW = "flat", "HNSW"
DEPTH = 100
SIZES = (10_000, 100_000, 1_000_000)
TIMED_QUERIES = 30
COST_BYTES = (16, 24, 48, 96)
DIMENSIONS = (384, 768)
"""Of all-MiniLM-L6-v2, and of the paper's models."""
HNSW_LINKS = 16
HNSW_SEARCH = 128
"""efSearch: at least as many as are returned."""
SPEED, FASTER = "speed", "times faster than flat"
"""The measure of a ratio, and how tables name it."""
BYTES = "bytes a document"
SCANNED = "after a scan"
CANDIDATES = 100
"""Codes scored for each document asked for, where a scan finds them."""
FOUND_DEPTHS = (10, 100)
LEAST_FOUND = 0.95
"""Of all codes' top 100: with less, time is not saved but taken from quality."""
BLOCK = 100_000
"""Random vectors made at a time."""
LEARNED_FROM = 20_000
"""Random vectors that centroids are learned from."""
FITTED_WITH = 1234
"""Seed of their k-means: faiss's own by default."""


# ------------------------------------------------ indexes


def lsh_index(vectors: NDArray[np.float32], m: int) -> Any:
    """Signs after a random rotation, 8 a byte, by Hamming distance."""
    import faiss

    index = faiss.IndexLSH(vectors.shape[1], 8 * m, True)
    index.add(vectors)
    return index


def graph_index(vectors: NDArray[np.float32], quantizer: Quantizer | None = None) -> Any:
    """HNSW by Euclidean distance, the order of inner products where vectors have length 1; with the codes of a quantizer
    after its rotation (HNSW+OPQ) if there is one."""
    import faiss

    from opensearch_neural.retrievers.faiss import faiss_rotation

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
    """Of the file that faiss writes: codebooks, rotation and graph included."""
    import faiss

    work.mkdir(parents=True, exist_ok=True)
    file = work / "index.faiss"
    faiss.write_index(index, str(file))
    size = file.stat().st_size
    file.unlink()
    return size


def found_of(depth: int) -> str:
    return f"of all codes' top {depth}, found {SCANNED}"


def of_flat(depth: int) -> str:
    return f"of flat's top {depth}, found"


def shares_found(queries: NDArray[np.float32], every: Any, some: Any, depth: int) -> list[float]:
    """Of each query, the share of what the index `every` gives that the index `some` finds, too."""
    depth = min(depth, every.ntotal)
    exact, near = (index.search(queries, depth)[1] for index in (every, some))
    return [len(np.intersect1d(*both)) / depth for both in zip(exact, near, strict=True)]


# ------------------------------------------------ cost by size


def cost(work: Path, hnsw_most: int) -> tuple[list[Row], list[Goal]]:
    """hnsw_most: the largest collection that HNSW is built of."""
    import faiss

    threads = faiss.omp_get_max_threads()
    try:
        rows = [
            row
            for dimension in DIMENSIONS
            for size in SIZES
            for row in cost_rows(work, size, dimension, hnsw=size <= hnsw_most)
        ]
    finally:
        faiss.omp_set_num_threads(threads)
    return rows, cost_goals(rows)


def of_random(size: int, dimension: int) -> str:
    return f"{size:,} random vectors, D = {dimension}"


def cost_rows(work: Path, size: int, dimension: int, *, hnsw: bool) -> list[Row]:
    """Rows of one collection size, the engines timed in turns."""
    import faiss

    from opensearch_neural.retrievers.faiss import quantized_index

    rng = np.random.default_rng(size)
    name = of_random(size, dimension)
    queries = random_vectors(rng, TIMED_QUERIES, dimension)
    sample = random_vectors(rng, LEARNED_FROM, dimension)
    quantizers = {m: plain_quantizer(rng, sample, m) for m in COST_BYTES}
    indexes: dict[str, Any] = {FLAT: faiss.IndexFlatIP(dimension)}
    if hnsw:
        indexes[HNSW] = faiss.IndexHNSWFlat(dimension, HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
        indexes[HNSW].hnsw.efSearch = HNSW_SEARCH
    codes: dict[int, list[Codes]] = {m: [] for m in COST_BYTES}
    for start in range(0, size, BLOCK):
        vectors = random_vectors(rng, min(BLOCK, size - start), dimension)
        for index in indexes.values():
            index.add(vectors)
        for m, quantizer in quantizers.items():
            codes[m].append(quantizer.encode(vectors))
    rows: list[Row] = []
    for m, quantizer in quantizers.items():
        every = np.concatenate(codes.pop(m))
        whole, scan = quantized_index(quantizer, every), quantized_index(quantizer, every, candidates=CANDIDATES)
        indexes[of_bytes(m)], indexes[scanned(m)] = whole, scan
        rows += [
            mean_row(name, scanned(m), found_of(depth), shares_found(queries, whole, scan, depth))
            for depth in FOUND_DEPTHS
        ]
    if hnsw:
        rows += [
            mean_row(name, HNSW, of_flat(depth), shares_found(queries, indexes[FLAT], indexes[HNSW], depth))
            for depth in FOUND_DEPTHS
        ]
    for m in COST_BYTES:
        rows.append(Row(name, of_bytes(m), "times faster in theory", theory(m, DEPTH, dimension), None, None, size))
    faiss.omp_set_num_threads(1)
    seconds = cpu_seconds(indexes, queries)
    for engine, index in indexes.items():
        times = seconds[engine]
        rows.append(mean_row(name, engine, "CPU ms a query", [1000 * each for each in times]))
        rows.append(Row(name, engine, BYTES, bytes_of(index, work) / size, None, None, size))
        if engine != FLAT:
            # Medians: another process may take a part of a query's time, of flat search or of this.
            ratio = float(np.median(seconds[FLAT]) / np.median(times))
            row = Row(name, engine, SPEED, ratio, None, None, len(times), baseline=FLAT, kind="ratio")
            rows.append(replace(row, measure_label=FASTER))
    return rows


def of_bytes(m: int) -> str:
    return f"JPQ, {m} bytes"


def scanned(m: int) -> str:
    return f"{of_bytes(m)}, {SCANNED}"


def theory(m: int, n: int, dimension: int) -> float:
    """(D + log n) / (M + log n) with the n documents returned (`jpq`, section 3.6)."""
    return (dimension + math.log2(n)) / (m + math.log2(n))


def random_vectors(rng: np.random.Generator, count: int, dimension: int) -> NDArray[np.float32]:
    """Of length 1; the i-th coordinate's deviation falls as 1/√i, as that of a dense model's principal components does."""
    vectors = rng.standard_normal((count, dimension), dtype=np.float32)
    vectors /= np.sqrt(np.arange(1, dimension + 1, dtype=np.float32))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def plain_quantizer(rng: np.random.Generator, vectors: NDArray[np.float32], m: int) -> Quantizer:
    """PQ after a random rotation, which gives all parts their share of the coordinates that vary most."""
    from trainers.jpq.quantizer import fit_quantizer
    from trainers.jpq.settings import QuantizerSettings

    dimension = vectors.shape[1]
    rotation = np.linalg.qr(rng.standard_normal((dimension, dimension)))[0].astype(np.float32)
    settings = QuantizerSettings(subvectors=m, rotate=False)
    return replace(fit_quantizer(vectors @ rotation.T, settings, seed=FITTED_WITH), rotation=rotation)


def cpu_seconds(indexes: Mapping[str, Any], queries: NDArray[np.float32]) -> dict[str, list[float]]:
    """Seconds of this process for each query of each index, one after the other, in turns; the first is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in indexes}
    for at in range(len(queries)):
        for name, index in indexes.items():
            start = time.process_time()
            index.search(queries[at : at + 1], DEPTH)
            if at:
                seconds[name].append(time.process_time() - start)
    return seconds


def cost_goals(rows: Iterable[Row]) -> list[Goal]:
    """Of all codes, and of those that a scan finds."""
    rows = list(rows)
    table = Table(rows)
    speed = {(row.set, row.engine): row.value for row in rows if (row.kind, row.measure) == ("ratio", SPEED)}
    goals = []
    for dimension in DIMENSIONS:
        name = of_random(SIZES[-1], dimension)
        words = (
            "CPU time of one query on one thread: at least 10x less than flat search at M = 24 and 1M "
            f"(D = {dimension})"
        )
        ratio = speed.get((name, of_bytes(24)))
        shown = None if ratio is None else round(ratio, 2)
        goals.append(goal_of(f"{words}, all codes scored", "at least 10", shown, (ratio or 0) >= 10))
        ratio, share = speed.get((name, scanned(24))), table.value(name, scanned(24), found_of(DEPTH))
        goals.append(
            goal_of(
                f"{words}, {CANDIDATES} codes scored for each document asked for, which a scan of all finds, with at "
                f"least {LEAST_FOUND:.0%} of all codes' top {DEPTH}",
                f"at least 10, {LEAST_FOUND:.0%}",
                None if ratio is None or share is None else f"{ratio:.2f}, {share.value:.1%}",
                (ratio or 0) >= 10 and share is not None and share.value >= LEAST_FOUND,
            )
        )
    return goals
