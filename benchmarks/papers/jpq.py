"""The evidence for JPQ: what M bytes a document keep of a dense model's ranking, and what they save.

    osn bench jpq --data DIR --work DIR --part quality --record benchmarks/results/jpq
    osn bench jpq --work DIR --part cost --record benchmarks/results/jpq

`--data` holds the BEIR folders that `quality` needs. Parts, each with a result file of its own below `--record`, `quality`
with one for each set:
    quality   scifact, and squad-mix with wikiqa-sent as one corpus, with all-MiniLM-L6-v2's vectors, at several M: flat
              search, flat with the tuned query encoder, HNSW, PQ, OPQ, HNSW+OPQ, LSH, OPQ with the query encoder tuned on
              uncompressed documents under the same negatives (the control that isolates joint training), frozen
              centroids, JPQ (`jpq`, table 1, figures 4 and 7)
    cost      bytes a document, codebooks included, and the CPU time of one query on one thread against flat search and
              HNSW, by collection size (table 2, sections 2.4.5 and 2.4.6): all codes scored, or those that a scan finds

Vectors, codebooks and what was measured stay in `--work`: interrupted, the same command goes on. A trained model is
removed once it is measured, unless --keep-models. Settings were chosen on questions held back from train.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click
import numpy as np

from opensearch_neural.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opensearch_neural.evaluation.measures import Measured
    from opensearch_neural.evaluation.results import Goal, Row
    from opensearch_neural.models.quantized import Codes, Quantizer
    from opensearch_neural.retrievers import Retriever
    from trainers.data.examples import TrainingData
    from trainers.data.splits import Apart
    from trainers.jpq.settings import JpqConfig

logger = logging.getLogger(__name__)

START = "sentence-transformers/all-MiniLM-L6-v2"
SETS = {"scifact": ("scifact",), "squad-mix + wikiqa-sent": ("squad-mix", "wikiqa-sent")}
BYTES = (8, 16, 24, 32, 48, 96)
SEEDS = (42, 43, 44)
SEVERAL_SEEDS = (16, 48)
"""The M that are trained with each of SEEDS; the others with the first."""
MEASURES = ("nDCG@10", "RR@10", "R@100")
DEPTH = 100
TEST_QUESTIONS = 1000
"""Of each test split at most, evenly taken: all engines answer the same ones."""
HOLD_BACK = 160
APART: dict[str, Apart] = {"scifact": "questions"}
"""What held-back questions have to themselves, as the test's have: two thirds of scifact's test questions are about
documents that train asks about too (part "quality" counts them). Else "documents"."""
LEARNING_RATE, CENTROID_LEARNING_RATE = 4e-5, 2e-4
"""Chosen on held-back questions at M = 16, by JPQ and the control, which have converged on scifact's after 200 steps. The
paper's rates for centroids (up to 1e-4) are for some hundred times as many steps: here they hardly move."""
ASKED, NEW = "documents that train asks about", "other documents"
FLAT, FLAT_TUNED, HNSW, PQ, OPQ, HNSW_OPQ, LSH, CONTROL, FROZEN, JPQ = (
    "flat",
    "flat, tuned query encoder",
    "HNSW",
    "PQ",
    "OPQ",
    "HNSW+OPQ",
    "LSH",
    "OPQ, query encoder tuned on uncompressed documents",
    "JPQ, frozen centroids",
    "JPQ",
)
TRAINED = (CONTROL, FROZEN, JPQ)
SIZES = (10_000, 100_000, 1_000_000)
TIMED_QUERIES = 30
COST_BYTES = (16, 24, 48, 96)
DIMENSIONS = (384, 768)
"""Of all-MiniLM-L6-v2, and of the paper's models."""
HNSW_LINKS = 16
HNSW_SEARCH = 128
"""efSearch: at least as many as are returned."""
FASTER = "times faster than flat"
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


# ------------------------------------------------ what is trained


def configuration(data: Path, work: Path, name: str, engine: str, *, m: int, seed: int, steps: int) -> JpqConfig:
    """One arm of part "quality" on the set `name`; settings were chosen on held-back parts of train."""
    from trainers.common.settings import TrainingSettings
    from trainers.jpq.settings import JpqConfig, JpqObjective, JpqSelection, JpqSet, NegativeSettings, QuantizerSettings

    parts = SETS[name]
    whole = engine in (CONTROL, FLAT_TUNED)
    return JpqConfig(
        output=work / "models" / slug(f"{name} {engine} {m} {seed} {steps}"),
        cache=work / "cache",
        start=START,
        train=[JpqSet(data / one) for one in parts],
        unseen=[JpqSet(data / one, split="test", name=f"{one}-test") for one in parts],
        quantizer=QuantizerSettings(subvectors=m, train_centroids=engine == JPQ, learning_rate=CENTROID_LEARNING_RATE),
        objective=JpqObjective(documents="uncompressed" if whole else "quantized"),
        negatives=NegativeSettings(search="uncompressed" if engine == FLAT_TUNED else "quantized"),
        selection=JpqSelection(hold_back=HOLD_BACK, apart=APART.get(name, "documents"), queries=HOLD_BACK),
        dropout=0.0,
        training=TrainingSettings(
            steps=steps,
            batch_size=32,
            learning_rate=LEARNING_RATE,
            seed=seed,
            set_weights=0.5,
            precision="auto",
            evaluate_every=max(1, steps // 5),
            save_every=max(1, steps // 2),
        ),
    )


def slug(name: str) -> str:
    return "-".join("".join(letter if letter.isalnum() else " " for letter in name.lower()).split())


# ------------------------------------------------ what is measured


@dataclass
class Ground:
    """A set's test questions and its corpus, with what the engines share; asked: those of its documents that are relevant
    to train's questions."""

    name: str
    data: TrainingData
    asked: frozenset[str]
    start_hash: str
    vectors: NDArray[np.float32]
    queries: NDArray[np.float32]

    def run(self, build: Callable[[Callable[[Sequence[str]], Any]], Retriever], queries: Any = None) -> Measured:
        """An engine on the test questions: `build` makes it of what encodes them; queries: their vectors, the start
        model's by default."""
        from opensearch_neural.evaluation.measures import measure

        rows = self.queries if queries is None else queries
        run = build(lambda texts: rows).retrieve(self.data.query_texts(), DEPTH)
        return measure(run, self.data.qrels(), MEASURES)

    @cached_property
    def on_asked(self) -> dict[str, bool]:
        """Of each test question, whether a document relevant to it is relevant to one of train's, too."""
        return {query: not self.asked.isdisjoint(relevant) for query, relevant in self.data.qrels().items()}

    def flat(self, queries: Any = None) -> Measured:
        from opensearch_neural.retrievers.faiss import FaissRetriever

        return self.run(lambda encode: FaissRetriever(self.data.documents.ids, self.vectors, encode), queries)

    def quantized(self, quantizer: Quantizer, queries: Any = None) -> Measured:
        from opensearch_neural.retrievers.faiss import QuantizedRetriever

        codes = quantizer.encode(self.vectors)
        return self.run(lambda encode: QuantizedRetriever(self.data.documents.ids, codes, quantizer, encode), queries)

    def hashed(self, m: int) -> Measured:
        """LSH of M bytes: signs after a random rotation, by Hamming distance (faiss)."""
        return self.nearest(lsh_index(self.vectors, m))

    @cached_property
    def graph(self) -> Any:
        """HNSW over whole vectors: the same at every M."""
        return graph_index(self.vectors)

    def nearest(self, index: Any) -> Measured:
        """A faiss index whose scores are distances; it gives -1 for what a graph does not reach."""
        from opensearch_neural.evaluation.measures import measure

        distances, rows = index.search(self.queries, min(DEPTH, len(self.vectors)))
        ids = self.data.documents.ids
        run = {
            query: {ids[row]: -float(distance) for row, distance in zip(found, far, strict=True) if row >= 0}
            for query, found, far in zip(self.data.query_texts(), rows.tolist(), distances.tolist(), strict=True)
        }
        return measure(run, self.data.qrels(), MEASURES)


def lsh_index(vectors: NDArray[np.float32], m: int) -> Any:
    import faiss

    index = faiss.IndexLSH(vectors.shape[1], 8 * m, True)
    index.add(vectors)
    return index


def graph_index(vectors: NDArray[np.float32], quantizer: Quantizer | None = None) -> Any:
    """HNSW by Euclidean distance, the order of inner products where vectors have length 1; with the codes of a quantizer
    after its rotation (HNSW+OPQ) where one is given."""
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


def ground_of(data: Path, work: Path, name: str) -> Ground:
    """The test splits of a set over the corpus that its train splits have, with the start's vectors."""
    from opensearch_neural.models.dense import load_dense
    from trainers.data.loading import load_training
    from trainers.data.splits import merge
    from trainers.jpq.preparation import document_vectors

    def merged(split: str) -> TrainingData:
        sets = [load_training(data / one, split=split, name=one) for one in SETS[name]]
        if split == "test":
            sets = [one.take(range(0, len(one), -(-len(one) // TEST_QUESTIONS))) for one in sets]
        return sets[0] if len(sets) == 1 else merge(sets)

    test, train = merged("test"), merged("train")
    asked = frozenset(train.documents.ids[row] for row in train.positives.values.tolist())
    start = load_dense(START)
    vectors = np.asarray(document_vectors(start, test.documents, work / "cache"), np.float32)
    return Ground(name, test, asked, start.info.hash, vectors, start.encode_queries(list(test.query_texts().values())))


class Outcome(NamedTuple):
    """What an engine reached, and the step whose state was kept of those that are trained."""

    measured: Measured
    best_step: int | None = None


class Kept:
    """What was measured, kept in files, so that it is not measured again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def outcome(self, name: str, made_by: str, compute: Callable[[], Outcome]) -> Outcome:
        """made_by: a fingerprint of all that decides it beside what the name says."""
        from opensearch_neural.evaluation.measures import Measured
        from opensearch_neural.files import write_json

        file = self.folder / f"{slug(name)}-{made_by}.json"
        if not file.exists():
            started = time.monotonic()
            found, best_step = compute()
            content = {"per_query": found.per_query, "mean": found.mean, "best_step": best_step}
            write_json(file, content, indent=None)
            logger.info("%s: %s (%.0f s)", name, found.mean, time.monotonic() - started)
        content = json.loads(file.read_text(encoding="utf-8"))
        queries = len(next(iter(content["per_query"].values())))
        return Outcome(Measured(content["per_query"], content["mean"], queries, 0, 0, 0), content["best_step"])


def mean_of(measured: Sequence[Measured]) -> Measured:
    """The mean of several seeds, query by query."""
    from opensearch_neural.evaluation.measures import Measured

    first = measured[0]
    per_query = {
        name: {query: float(np.mean([one.per_query[name][query] for one in measured])) for query in values}
        for name, values in first.per_query.items()
    }
    means = {name: float(np.mean([one.mean[name] for one in measured])) for name in first.mean}
    return Measured(per_query, means, first.queries, 0, 0, 0)


# ------------------------------------------------ part "quality"


def quality(
    data: Path, work: Path, name: str, *, sizes: Sequence[int], steps: int, keep_models: bool
) -> tuple[list[Row], list[Goal]]:
    """Every engine at every M on the set `name`, as rows of the set "NAME, M bytes"."""
    from opensearch_neural.evaluation.result_rows import only_differences, rows

    found: list[Row] = []
    arms = Arms(data, work, name, steps, keep_models)
    for m in sizes:
        seeds = SEEDS if m in SEVERAL_SEEDS else SEEDS[:1]
        engines = (FLAT_TUNED, PQ, OPQ, *TRAINED)
        each = {engine: [arms.outcome(engine, m, seed) for seed in seeds] for engine in engines}
        measured = {
            **{engine: arms.outcome(engine, m, SEEDS[0]).measured for engine in (FLAT, HNSW, LSH, HNSW_OPQ)},
            **{engine: mean_of([one.measured for one in of_seeds]) for engine, of_seeds in each.items()},
        }
        of_set = f"{name}, {m} bytes"
        found += rows(of_set, measured, baseline=OPQ)
        found += only_differences(rows(of_set, {FLAT: measured[FLAT], JPQ: measured[JPQ]}, baseline=FLAT))
        for rival in (FLAT_TUNED, *TRAINED[:-1]):
            pair = {rival: measured[rival], JPQ: measured[JPQ]}
            found += only_differences(rows(of_set, pair, baseline=rival))
        found += seed_rows(of_set, each, seeds)
        found += parted_rows(of_set, measured, arms.ground.on_asked)
        found += arms.bytes_rows(of_set, m)
        found += arms.scan_rows(of_set, m)
    return found, quality_goals(name, found)


class Arms:
    """The engines of one set, trained where that is needed, each measured once."""

    def __init__(self, data: Path, work: Path, name: str, steps: int, keep_models: bool) -> None:
        self.data, self.work, self.name, self.steps, self.keep_models = data, work, name, steps, keep_models
        self.kept = Kept(work / "measured")
        self._ground: Ground | None = None

    @property
    def ground(self) -> Ground:
        if self._ground is None:
            self._ground = ground_of(self.data, self.work, self.name)
        return self._ground

    def outcome(self, engine: str, m: int, seed: int) -> Outcome:
        from trainers.common.config import fingerprint

        if engine in (FLAT, FLAT_TUNED, HNSW):
            m = SEVERAL_SEEDS[0]  # They need no codes, and so no M of their own.
        name, ground = f"{self.name} {engine} {m} {seed}", self.ground
        config = self._configuration(engine, m, seed)
        settings = replace(config, output=Path(), cache=None) if engine in (*TRAINED, FLAT_TUNED) else config.quantizer
        made_by = fingerprint(settings, seed, ground.data.hash, ground.start_hash)

        def compute() -> Outcome:
            if engine == FLAT:
                return Outcome(ground.flat())
            if engine == LSH:
                return Outcome(ground.hashed(m))
            if engine == HNSW:
                return Outcome(ground.nearest(ground.graph))
            if engine == HNSW_OPQ:
                return Outcome(ground.nearest(graph_index(ground.vectors, self._untrained(OPQ, m, seed))))
            if engine in (PQ, OPQ):
                return Outcome(ground.quantized(self._untrained(engine, m, seed)))
            return self._trained(engine, m, seed)

        return self.kept.outcome(name, made_by, compute)

    def _configuration(self, engine: str, m: int, seed: int) -> JpqConfig:
        return configuration(self.data, self.work, self.name, engine, m=m, seed=seed, steps=self.steps)

    def _untrained(self, engine: str, m: int, seed: int) -> Quantizer:
        from trainers.jpq.quantizer import fitted

        config, ground = self._configuration(OPQ, m, seed), self.ground
        settings = replace(config.quantizer, rotate=engine == OPQ)
        made_of = f"{ground.data.documents.hash} {ground.start_hash}"
        return fitted(ground.vectors, made_of, settings, seed=seed, folder=config.folder)

    def bytes_rows(self, name: str, m: int) -> list[Row]:
        """Of faiss's files, codebooks and rotation included; JPQ's holds what OPQ's does, other values."""
        import faiss

        from opensearch_neural.evaluation.results import Row
        from opensearch_neural.retrievers.faiss import quantized_index

        ground = self.ground
        count, dimension = ground.vectors.shape
        indexes: dict[str, Any] = {FLAT: faiss.IndexFlatIP(dimension), LSH: lsh_index(ground.vectors, m)}
        indexes[FLAT].add(ground.vectors)
        for engine in (PQ, OPQ):
            quantizer = self._untrained(engine, m, SEEDS[0])
            indexes[engine] = quantized_index(quantizer, quantizer.encode(ground.vectors))
        rotated = indexes[PQ]
        indexes[PQ] = rotated.index  # PQ's rotation is the identity, which nobody would store.
        indexes |= {
            JPQ: indexes[OPQ],
            HNSW: ground.graph,
            HNSW_OPQ: graph_index(ground.vectors, self._untrained(OPQ, m, SEEDS[0])),
        }
        return [
            Row(name, engine, "bytes a document", bytes_of(index, self.work) / count, None, None, count)
            for engine, index in indexes.items()
        ]

    def scan_rows(self, name: str, m: int) -> list[Row]:
        """How much of what all codes would give is found where a scan chooses the codes that are scored; of OPQ's."""
        from opensearch_neural.evaluation.result_rows import mean_row
        from opensearch_neural.retrievers.faiss import quantized_index

        quantizer, queries = self._untrained(OPQ, m, SEEDS[0]), self.ground.queries
        codes = quantizer.encode(self.ground.vectors)
        every, scan = (quantized_index(quantizer, codes, candidates=number) for number in (None, CANDIDATES))
        return [
            mean_row(name, OPQ, found_of(depth), found_by_scan(queries, every, scan, depth)) for depth in FOUND_DEPTHS
        ]

    def _trained(self, engine: str, m: int, seed: int) -> Outcome:
        from opensearch_neural.models.quantized import load_quantized
        from trainers.jpq.train import train_jpq

        config = self._configuration(engine, m, seed)
        trained = train_jpq(config)
        logger.info("%s: the state after step %s kept: %s", config.output.name, trained.best_step, trained.measures)
        model = load_quantized(config.output)
        queries = model.encode_queries(list(self.ground.data.query_texts().values()))
        found = self.ground.flat(queries) if engine == FLAT_TUNED else self.ground.quantized(model.quantizer, queries)
        if not self.keep_models:
            shutil.rmtree(config.output)
        return Outcome(found, trained.best_step)


def parted_rows(name: str, measured: Mapping[str, Measured], on_asked: Mapping[str, bool]) -> list[Row]:
    """nDCG@10 of test questions about documents that train asks about, and about others, and JPQ's gains: a query encoder
    may learn the former by heart."""
    from opensearch_neural.evaluation.result_rows import only_differences, rows

    found: list[Row] = []
    for part, asked in ((ASKED, True), (NEW, False)):
        queries = sorted(query for query, of_asked in on_asked.items() if of_asked == asked)
        if not queries:
            continue
        chosen = {engine: of_queries(outcome, "nDCG@10", queries) for engine, outcome in measured.items()}
        here = rows(name, chosen, baseline=None)
        for baseline in (OPQ, CONTROL, FLAT, FLAT_TUNED):
            here += only_differences(rows(name, {one: chosen[one] for one in (baseline, JPQ)}, baseline=baseline))
        found += [
            replace(
                row,
                variant=part,
                baseline_variant=part if row.baseline else "",
                engine_label=row.engine,
                measure_label=f"{row.column}, {part}",
            )
            for row in here
        ]
    return found


def of_queries(measured: Measured, measure: str, queries: Sequence[str]) -> Measured:
    """One measure of some queries alone."""
    values = {query: measured.per_query[measure][query] for query in queries}
    mean = {measure: sum(values.values()) / len(values)}
    return replace(measured, per_query={measure: values}, mean=mean, queries=len(values))


def seed_rows(name: str, each: Mapping[str, Sequence[Outcome]], seeds: Sequence[int]) -> list[Row]:
    """nDCG@10 of each seed, how far training differs from run to run, and the step whose state was kept: at 0 an arm is
    what it started from."""
    from opensearch_neural.evaluation.results import Row

    found: list[Row] = []
    for engine, of_seeds in each.items():
        for seed, (measured, best_step) in zip(seeds, of_seeds, strict=True):
            value, queries = measured.mean["nDCG@10"], measured.queries
            for measure, number in (("nDCG@10", value), ("step kept", best_step)):
                if number is not None:
                    row = Row(name, engine, measure, float(number), None, None, queries, seed=seed)
                    found.append(replace(row, engine_label=engine, measure_label=f"{measure}, seed {seed}"))
    return found


def quality_goals(name: str, rows: Sequence[Row]) -> list[Goal]:
    """The goals of the issue, in its words, for the set `name`."""
    from opensearch_neural.evaluation.results import Goal

    found: list[Goal] = []
    by_key = {(row.set, row.line, row.column): row for row in rows}
    for rival, words in ((OPQ, "OPQ"), (CONTROL, "the control")):
        gains = {m: by_key.get((f"{name}, {m} bytes", JPQ, f"nDCG@10 - {rival}")) for m in BYTES if m <= 32}
        measured = {m: row for m, row in gains.items() if row is not None}
        above = [m for m, row in measured.items() if row.value > 0]
        found.append(
            Goal(
                f"JPQ above {words} at every M up to 32 ({name})",
                f"{len(gains)} of {len(gains)}",
                f"{len(above)} of {len(gains)}" if measured else None,
                len(above) == len(gains),
            )
        )
        row = measured.get(16)
        found.append(
            Goal(
                f"JPQ above {words} at M = 16, interval above zero ({name})",
                "low above 0",
                None if row is None or row.low is None else f"{row.value:+.4f} ({row.low:+.4f} to {row.high:+.4f})",
                row is not None and (row.low or 0) > 0,
            )
        )
    flat = by_key.get((f"{name}, 48 bytes", FLAT, "nDCG@10"))
    jpq = by_key.get((f"{name}, 48 bytes", JPQ, "nDCG@10"))
    share = jpq.value / flat.value if flat and jpq and flat.value else None
    found.append(
        Goal(
            f"at M = 48 (32x smaller than float32) within 2% of flat ({name})",
            "at least 0.98",
            None if share is None else round(share, 4),
            share is not None and share >= 0.98,
        )
    )
    return found


# ------------------------------------------------ part "cost"


def cost(work: Path, sizes: Sequence[int], dimensions: Sequence[int], hnsw_most: int) -> tuple[list[Row], list[Goal]]:
    """Bytes of faiss's files, and CPU time of single queries on one thread, by collection size.

    Vectors are random, of a spectrum like that of a dense model's: they stand in for size, and nothing is said of quality,
    but for how much of what all codes would give a scan of them finds.
    """
    import faiss

    threads = faiss.omp_get_max_threads()
    try:
        found = [row for d in dimensions for size in sizes for row in cost_rows(work, size, d, hnsw=size <= hnsw_most)]
    finally:
        faiss.omp_set_num_threads(threads)
    return found, cost_goals(found)


def of_random(size: int, dimension: int) -> str:
    return f"{size:,} random vectors, D = {dimension}"


def cost_rows(work: Path, size: int, dimension: int, *, hnsw: bool) -> list[Row]:
    """Rows of one collection size, the engines timed in turns."""
    import faiss

    from opensearch_neural.evaluation.result_rows import mean_row
    from opensearch_neural.evaluation.results import Row
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
    of_codes: dict[int, tuple[Any, Any]] = {}
    for m, quantizer in quantizers.items():
        every = np.concatenate(codes.pop(m))
        of_codes[m] = quantized_index(quantizer, every), quantized_index(quantizer, every, candidates=CANDIDATES)
        indexes[f"JPQ, {m} bytes"], indexes[scanned(m)] = of_codes[m]
    found = [
        mean_row(name, scanned(m), found_of(depth), found_by_scan(queries, *of_codes[m], depth))
        for m in COST_BYTES
        for depth in FOUND_DEPTHS
    ]
    if hnsw:
        found += [
            mean_row(name, HNSW, of_flat(depth), found_by_scan(queries, indexes[FLAT], indexes[HNSW], depth))
            for depth in FOUND_DEPTHS
        ]
    faiss.omp_set_num_threads(1)
    seconds = cpu_seconds(indexes, queries)
    for engine, index in indexes.items():
        times = seconds[engine]
        milliseconds = [1000 * one for one in times]
        found.append(mean_row(name, engine, "CPU ms a query", milliseconds))
        found.append(Row(name, engine, "bytes a document", bytes_of(index, work) / size, None, None, size))
        if engine != FLAT:
            # Medians: another process may take a part of a query's time, of flat search or of this.
            ratio = float(np.median(seconds[FLAT]) / np.median(times))
            row = Row(name, engine, "speed", ratio, None, None, len(times), baseline=FLAT, kind="ratio")
            found.append(replace(row, measure_label=FASTER))
        if engine.startswith("JPQ") and not engine.endswith(SCANNED):
            expected = theory(int(engine.split()[1]), DEPTH, dimension)
            found.append(Row(name, engine, "times faster in theory", expected, None, None, size))
    return found


def scanned(m: int) -> str:
    return f"JPQ, {m} bytes, {SCANNED}"


def found_of(depth: int) -> str:
    return f"of all codes' top {depth}, found {SCANNED}"


def of_flat(depth: int) -> str:
    return f"of flat's top {depth}, found"


def found_by_scan(queries: NDArray[np.float32], every: Any, scan: Any, depth: int) -> list[float]:
    """Of each query, the share of what the index `every` gives that the index `scan` finds, too."""
    depth = min(depth, every.ntotal)
    exact, some = (index.search(queries, depth)[1] for index in (every, scan))
    return [len(np.intersect1d(one, other)) / depth for one, other in zip(exact, some, strict=True)]


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


def bytes_of(index: Any, work: Path) -> int:
    """Of the file that faiss writes: codebooks, rotation and graph included."""
    import faiss

    work.mkdir(parents=True, exist_ok=True)
    file = work / "index.faiss"
    faiss.write_index(index, str(file))
    size = file.stat().st_size
    file.unlink()
    return size


def cost_goals(rows: Sequence[Row]) -> list[Goal]:
    """The goal of the issue, in its words: of all codes, and of those that a scan finds."""
    from opensearch_neural.evaluation.results import Goal

    value = {(row.set, row.line, row.column): row.value for row in rows}
    goals = []
    for dimension in DIMENSIONS:
        name = of_random(SIZES[-1], dimension)
        words = (
            "CPU time of one query on one thread: at least 10x less than flat search at M = 24 and 1M "
            f"(D = {dimension})"
        )
        ratio = value.get((name, "JPQ, 24 bytes", FASTER))
        goals.append(
            Goal(
                f"{words}, all codes scored",
                "at least 10",
                None if ratio is None else round(ratio, 2),
                ratio is not None and ratio >= 10,
            )
        )
        ratio, share = (value.get((name, scanned(24), measure)) for measure in (FASTER, found_of(DEPTH)))
        goals.append(
            Goal(
                f"{words}, {CANDIDATES} codes scored for each document asked for, which a scan of all finds, with at "
                f"least {LEAST_FOUND:.0%} of all codes' top {DEPTH}",
                f"at least 10, {LEAST_FOUND:.0%}",
                None if ratio is None or share is None else f"{ratio:.2f}, {share:.1%}",
                (ratio or 0) >= 10 and (share or 0) >= LEAST_FOUND,
            )
        )
    return goals


# ------------------------------------------------ the command


@click.command("jpq")
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True),
    default=None,
    help="Holds the BEIR folders, which quality is measured on.",
)
@click.option("--work", required=True, type=click.Path(path_type=Path), help="What is made and measured is kept there.")
@click.option("--record", type=click.Path(path_type=Path), default=None, help="Write summary.json there, by part.")
@click.option("--part", type=click.Choice(["quality", "cost"]), required=True, help="Which evidence.")
@click.option("--set", "names", multiple=True, type=click.Choice(list(SETS)), help="Repeatable.  [default: all]")
@click.option("--bytes", "sizes", multiple=True, type=int, help="M; repeatable.  [default: 8, 16, 24, 32, 48, 96]")
@click.option("--steps", type=int, default=200, show_default=True, help="Optimizer steps of a training.")
@click.option("--keep-models", is_flag=True, help="Keep each trained model in WORK/models.")
@click.option("--hnsw-most", type=int, default=SIZES[-1], show_default=True, help="Largest HNSW that is built.")
def jpq(
    data: Path | None,
    work: Path,
    record: Path | None,
    part: str,
    names: tuple[str, ...],
    sizes: tuple[int, ...],
    steps: int,
    keep_models: bool,
    hnsw_most: int,
) -> None:
    """Measure what M bytes a document keep of a dense model's ranking, or what they save.

    \b
    osn bench jpq --data beir --work /tmp/jpq --part quality --set scifact --bytes 16
    """
    from benchmarks.publish import publish

    if part == "cost":
        rows, goals = cost(work, SIZES, DIMENSIONS, hnsw_most)
        shown = ["CPU ms a query", "bytes a document", FASTER, "times faster in theory"]
        shown += [*map(found_of, FOUND_DEPTHS), *map(of_flat, FOUND_DEPTHS)]
        title, into = "JPQ: bytes and CPU time", record and record / part
        publish(rows, goals, title=title, data=[], seeds=SIZES, shown=shown, record=into)
        return
    if data is None:
        raise InputError("quality is measured on data sets", "give --data, the folder that holds them")
    for name in names or SETS:
        rows, goals = quality(data, work, name, sizes=sizes or BYTES, steps=steps, keep_models=keep_models)
        publish(
            rows,
            goals,
            title=f"JPQ: ranking at M bytes a document, {name}",
            data=[data / folder for folder in SETS[name]],
            seeds=SEEDS,
            shown=["nDCG@10", "MRR@10", "R@100", f"nDCG@10 - {OPQ}", "bytes a document"],
            record=record and record / part / slug(name),
        )
