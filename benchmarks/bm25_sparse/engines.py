"""The engines of `osn bench bm25-sparse`: what the table calls each, how it searches, and what it is compared with."""

from __future__ import annotations

from typing import Any

from benchmarks.bm25_sparse.models import PUBLISHED, Experiment
from benchmarks.experiment import Baseline
from opensearch_neural.engines.settings import RARE_WORDS
from opensearch_neural.evaluation.results import MeasuredEngine
from opensearch_neural.models.dense.dense_encoder import Backend
from opensearch_neural.queries import Rare

BM25, TUNED, SUM, SPARSE, HIGH_IDF_FIRST = "bm25", "bm25 tuned", "bm25-sparse", "sparse", "high-idf-first"
TUNED_SUM = "bm25-sparse with bm25 tuned"
"""The sum with BM25 as it is tuned for the set, instead of the index's own."""
BM25_BESIDE_DENSE = "bm25 beside dense vectors"
"""BM25 as it was measured in the load of DENSE_ENGINES, whose costs are ratios to it: its index has dense vectors, too."""
HYBRID = "hybrid"
RARE_CASCADE, SUM_CASCADE = CASCADES = ("cascade after rare tokens", "cascade after bm25-sparse")
DENSE_ENGINES = (HYBRID, *CASCADES)
"""Engines that need a dense model: hybrid searches its vectors, the cascades use codes of them after two stages."""
BACKEND: Backend = "onnx-int8"
"""Encodes the queries of DENSE_ENGINES."""
WINDOWS = {f"bm25-sparse, window {window}": window for window in (20, 50)}
"""{engine: window}; bm25-sparse itself has the default window."""
Way = tuple[str, dict[str, Any]]
"""(the engine that searches, its settings)."""
WAYS: dict[str, Way] = {engine: (engine, {}) for engine in (BM25, SUM, SPARSE, HIGH_IDF_FIRST, HYBRID)}
WAYS |= {engine: (SUM, {"window": window}) for engine, window in WINDOWS.items()}
RARE_FIRST, ALL_WORDS = BY_WORDS = ("bm25-sparse, rare words", "bm25-sparse, all words")
"""bm25-sparse in whose first phase rare words decide, as by default in large indexes, and all words."""
WAYS |= {RARE_FIRST: (SUM, {"rare": RARE_WORDS}), ALL_WORDS: (SUM, {"rare": Rare("ratio", 0)})}
HEAVY_TOKENS = "bm25-sparse, tokens of 0.9"
"""bm25-sparse that adds only the heaviest tokens of a query, which hold 0.9 of its weight."""
WAYS |= {HEAVY_TOKENS: (SUM, {"tokens": Rare("share", 0.9)})}
WAYS |= {RARE_CASCADE: ("cascade", {"first": HIGH_IDF_FIRST}), SUM_CASCADE: ("cascade", {"first": SUM})}
"""{engine of the table: the way that it searches}"""
SPARSE_ENGINES = (SUM, *WINDOWS, *BY_WORDS, HEAVY_TOKENS, SPARSE, HIGH_IDF_FIRST)


def dense_engines(experiment: Experiment, arm: str) -> tuple[str, ...]:
    """The DENSE_ENGINES that are measured for an arm. A trained arm gets only the cascade after bm25-sparse, since hybrid
    searches no sparse vectors. With --pq only cascades are measured, since no other engine uses codes."""
    if arm != PUBLISHED:
        return (SUM_CASCADE,)
    return DENSE_ENGINES if experiment.quantized is None else CASCADES


def hybrid_of(experiment: Experiment) -> MeasuredEngine:
    """The hybrid of the rows, which searches no sparse vectors. It has the name of the published model, with which it is
    measured; with --pq it is the one kept in `work`, without a name."""
    return MeasuredEngine(HYBRID, variant=PUBLISHED if experiment.quantized is None else "")


def differences_of(experiment: Experiment) -> list[tuple[str, Baseline]]:
    """(engine, baseline) of the differences in the rows; the last two show what training adds."""
    measured = [
        engine
        for engine in (TUNED, *SPARSE_ENGINES, TUNED_SUM, *DENSE_ENGINES)
        if engine != HYBRID or experiment.quantized is None
    ]
    pairs: list[tuple[str, Baseline]] = [(engine, BM25) for engine in measured]
    pairs += [
        (RARE_FIRST, ALL_WORDS),
        (HEAVY_TOKENS, SUM),
        (SUM, TUNED),
        (TUNED_SUM, TUNED),
        (HIGH_IDF_FIRST, SPARSE),
        (SUM_CASCADE, hybrid_of(experiment)),
    ]
    pairs += [(engine, MeasuredEngine(engine, None, PUBLISHED)) for engine in (SUM, SUM_CASCADE)]
    return [pair for pair in pairs if pair[0] in DENSE_ENGINES or not experiment.beside]
