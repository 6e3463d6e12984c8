"""A whole run: index facts, ceilings, quality, warm-up, and blocks in random turns.

If a run ends early (a killed worker, a dying node, Ctrl-C), everything measured so far is reported, marked as partial, with
the reason.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from benchmarks.load import quality, server
from benchmarks.load.blocks import Block, BlockLog, Level, Pace, Turn, round_of, run_block
from benchmarks.load.ceiling import measure_ceilings
from benchmarks.load.generator import GeneratorLost, Generators, default_processes
from benchmarks.load.measurement import LoadSettings, Measurement, Warmup, WarmupSettings
from benchmarks.load.server import ServerProbe
from benchmarks.load.variants import Variant, parameters, spec_of, with_options
from benchmarks.load.workload import Workload, body_builders, request_heads
from opensearch_neural.corpus.judgements import JudgedQueries
from opensearch_neural.errors import InputError, OsnError, Unanswerable
from opensearch_neural.evaluation.provenance import machine_facts
from opensearch_neural.index.contents import change, contents_of
from opensearch_neural.index.models import models_with_hashes
from opensearch_neural.index.record import RESAMPLED
from opensearch_neural.node.clusters import Say
from opensearch_neural.retrievers.opensearch import search

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

log = logging.getLogger(__name__)

HALF = 0.5
"""If more than this share of a block's requests gets no answer, the cluster is asked whether it still answers."""
SHORTEST = 0.5  # seconds of the shortest window of the warm-up
WINDOWS = 3  # the last windows of each engine that are compared with as many before them
TOLERANCE = 0.05  # throughput that changes by at most this share is steady

OnBlock = Callable[[Block, int], object]
"""Called with each finished block and the number of blocks so far."""


class _Ended(Exception):
    """The run cannot go on; the message says why."""


def genuine_answers(client: OpenSearch, workload: Workload) -> dict[str, bytes]:
    """{variant: body of the answer to the first query that it can answer}. Raises ClusterError with the cluster's reason for
    a refusal, and the first query's reason if a variant can answer none."""
    builders = body_builders(workload)

    def answer(variant: Variant) -> bytes:
        reasons: list[Unanswerable] = []
        for text in workload.texts:
            try:
                body = builders[variant.name](text)
                return orjson.dumps(search(client, workload.index_of(variant), body, **parameters(variant)))
            except Unanswerable as reason:
                reasons.append(reason)
        raise reasons[0]

    answers = {}
    for variant in workload.variants:
        answers[variant.name] = answer(variant)
        request_heads(workload, variant)  # raises here if a header cannot be sent
    return answers


def measure(
    client: OpenSearch,
    workload: Workload,
    settings: LoadSettings,
    *,
    out: Path,
    judged: JudgedQueries | None = None,
    restart: bool = False,
    code: str | None = None,
    once: bool = False,
    say: Say = log.info,
    on_block: OnBlock = lambda block, done: None,
) -> Measurement:
    """Run the load test. Once the first block is measured, errors end it with a partial result and are not raised.

    out: folder for the log of blocks
    code: the version of the code, see `measuring_code`. Blocks of another version or machine are refused; None: they are
        continued
    once: refuse a run that is complete, since nothing of it would be measured now

    Raises InputError, ModelError and ClusterError if the test cannot begin.
    """
    settings.validate()
    names = [variant.name for variant in workload.variants]
    if settings.baseline not in names:
        raise InputError(
            f"the baseline {settings.baseline!r} is not among the engines: {', '.join(names)}",
            "name it with --baseline, or add it to --engines",
        )
    measurement = Measurement(
        settings=settings,
        index=workload.index,
        variants={variant.name: spec_of(variant) for variant in workload.variants},
        queries=len(workload.texts),
    )
    began = time.monotonic()
    probe = ServerProbe(client, workload.target.settings.urls)
    answers = genuine_answers(client, workload)
    measurement.cluster = server.cluster_facts(probe)
    for index in workload.indexes:
        server.settle_index(client, index)
        measurement.indexes[index] = server.index_facts(client, index)
    before = {index: contents_of(client, index) for index in workload.indexes}
    measurement.notes += notes(measurement, workload)
    made_alike = resampled(workload)
    block_log = BlockLog.open(
        out,
        identity(measurement, workload, code),
        engines=len(names),
        restart=restart,
        contents={index: contents for index, contents in before.items() if index not in made_alike},
    )
    before |= block_log.contents
    measurement.blocks = block_log.blocks
    if block_log.blocks:
        measurement.incidents.append(f"continued after {len(block_log.blocks)} blocks of an earlier run")
    run = LoadRun(client, workload, probe, measurement, block_log, say, on_block, began)
    if once and block_log.blocks and not run.wanting(run.next_round):
        raise InputError(
            f"{block_log.path} holds this run, and it is complete",
            "give --restart to measure it again, or another --output",
        )
    try:
        run.everything(answers, judged)
    except (_Ended, GeneratorLost) as ended:
        measurement.partial = str(ended)
    except KeyboardInterrupt:
        measurement.partial = "interrupted"
    except OsnError as error:
        if not measurement.blocks:
            raise
        measurement.partial = error.message
    if measurement.partial is None or probe.answers():
        measurement.changes += [
            changed for index in before if (changed := change(index, before[index], contents_of(client, index)))
        ]
    return measurement


def resampled(workload: Workload) -> set[str]:
    """The indexes of resampled documents."""
    return {name for name, facts in workload.indexes.items() if RESAMPLED in facts.meta.extra}


def identity(measurement: Measurement, workload: Workload, code: str | None = None) -> dict[str, Any]:
    """What identifies a run: with another engine, query, index, cluster, heap or setting it is another run. With `code`
    another version of the code or another machine is another run, too.

    An index of resampled documents is known by its record, so that it may be made again, also on a new node.
    """
    of_real_documents = workload.indexes.keys() - resampled(workload)
    cluster = measurement.cluster
    machine = machine_facts()
    settings = asdict(measurement.settings)
    for name in ("rounds", "requests", "minutes", "quality", "quality_queries", "ceiling", "warmup"):
        settings.pop(name)  # a run may be continued with more blocks
    return orjson.loads(
        orjson.dumps(
            {
                "cluster": cluster
                and [bool(of_real_documents) and cluster.uuid, cluster.version, cluster.nodes, cluster.heap_max],
                "index": {
                    name: [name in of_real_documents and facts.uuid, facts.documents, facts.segments]
                    for name, facts in measurement.indexes.items()
                },
                # The models of the vectors, and what `osn tune` stored.
                "records": {name: facts.meta for name, facts in workload.indexes.items()},
                "variants": measurement.variants,
                "queries": hashlib.sha256("\n".join(workload.texts).encode()).hexdigest()[:16],
                "settings": settings,
                "models": asdict(workload.models),
                **({} if code is None else {"code": code, "machine": [machine["cpu"], machine["cores"]]}),
            }
        )
    )


def measuring_code() -> str:
    """A hash of the sources that a load test runs: of opensearch_neural and of this package. A change of other files, such
    as a page of docs/, leaves it the same run."""
    root = Path(__file__).parents[2]
    files = (path for package in ("opensearch_neural", "benchmarks/load") for path in (root / package).rglob("*.py"))
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _drawn(index: Mapping[str, Any]) -> str:
    """How the index's documents were drawn, in words. index: the entry RESAMPLED of its record."""
    if index["documents"] > index["of"]:
        parts = [
            f"resampled from {index['of']:,} real documents, text and vectors drawn together, no exact duplicates",
            f"{index['mix']:.0%} of a drawn document's words come from a second one",
        ]
    else:
        parts = [f"the first {index['documents']:,} of {index['of']:,} real documents"]
    if index.get("prune"):
        parts.append(f"sparse vectors pruned to {index['prune']}")
    return "; ".join(parts)


def notes(measurement: Measurement, workload: Workload) -> list[str]:
    """Facts that a reader needs to judge the numbers."""
    sentences = [
        "The request cache is off (request_cache=false); filters are cached as the index's settings say. "
        "The operating system's page cache is warm."
    ]
    for variant in workload.variants:
        how = with_options(variant, workload.engines_of(variant)).engine(variant.kind.name).how()
        if how is not None and not variant.whole:
            sentences.append(f"{variant.name}: {how}")
    for name, opened in workload.indexes.items():
        sentences += [f"{name}: {model}" for model in models_with_hashes(opened.meta)]
        drawn = opened.meta.extra.get(RESAMPLED)
        if drawn:
            sentences.append(f"{name}: {_drawn(drawn)}")
    for name, facts in measurement.indexes.items():
        if facts.segments > facts.shards:
            sentences.append(
                f"{name} has {facts.segments} segments in {facts.shards} shards; `osn ingest --merge` makes it one each."
            )
    if measurement.queries < 100:
        sentences.append(f"Only {measurement.queries} different queries: the same postings are read again and again.")
    return sentences


def steady(throughput: Sequence[float]) -> bool:
    """Whether the last windows are as fast as those before them."""
    if len(throughput) < 2 * WINDOWS:
        return False
    last, before = sum(throughput[-WINDOWS:]), sum(throughput[-2 * WINDOWS : -WINDOWS])
    return before > 0 and abs(last / before - 1) <= TOLERANCE


def warm_up(
    measure: Callable[[Turn, float], Block],
    variants: Sequence[str],
    level: Level,
    settings: WarmupSettings,
    warmup: Warmup,
) -> None:
    """Engines take turns at `level` until all are steady, for `least` to `most` seconds: a JVM needs a minute or more to
    compile its code.

    measure: (turn, seconds of the window) → block
    warmup: gets what is measured; after an interruption it has what came before
    """
    # With many engines the windows are shorter, so that each engine gets enough windows in the least time.
    length = min(settings.window, max(SHORTEST, settings.least / (2 * WINDOWS * len(variants))))
    warmup.throughput = {variant: [] for variant in variants}
    began = time.monotonic()
    try:
        for number in count(1):
            for variant in variants:
                block = measure(Turn(-number, level, variant), length)
                warmup.throughput[variant].append(block.completed / block.seconds)
            warmup.steady = all(map(steady, warmup.throughput.values()))
            passed = time.monotonic() - began
            if passed >= settings.most or (warmup.steady and passed >= settings.least):
                break
    finally:
        warmup.seconds = time.monotonic() - began


@dataclass
class LoadRun:
    """A run and its state."""

    client: OpenSearch
    """A client of the cluster under test, for everything but the load."""
    workload: Workload
    """The queries and engines, as worker processes get them."""
    probe: ServerProbe
    """Reads processor times and garbage collections of the nodes."""
    measurement: Measurement
    """What was measured so far; the run fills it."""
    block_log: BlockLog
    """The blocks on disk, with which an interrupted run continues."""
    say: Say
    """Called with each line of progress."""
    on_block: OnBlock
    """Called with each finished block."""
    began: float
    """When the run began, by the monotonic clock, in seconds."""

    def __post_init__(self) -> None:
        self.settings = settings = self.measurement.settings
        self.pace = Pace(settings.requests, settings.rounds, settings.shortest, settings.longest)

    def everything(self, answers: Mapping[str, bytes], judged: JudgedQueries | None) -> None:
        settings, measurement = self.settings, self.measurement
        processes = settings.processes or default_processes()
        most_clients = max([*settings.clients, 2 * processes] if settings.clients else [50])
        self.say(f"the generator's own ceiling, with {processes} processes and {most_clients} clients")
        measurement.ceilings = measure_ceilings(
            self.workload, answers, clients=most_clients, processes=processes, seconds=settings.ceiling
        )
        if settings.quality:
            self.say("quality")
            self.measure_quality(judged)
        with Generators(self.workload, processes) as generators:
            self.generators = generators
            closed = [level for level in settings.levels() if level.mode == "closed"]
            # An open loop's throughput is its rate, whatever the server does, so it cannot show that the server is warm.
            level = max(closed or [Level("closed", 8.0)])
            self.say(
                f"warm-up at {level.label}, {settings.warmup.least:g} s at least, until throughput is steady "
                f"({settings.warmup.most:g} s at most)"
            )
            warm_up(self.block, list(measurement.variants), level, settings.warmup, measurement.warmup)
            if not measurement.warmup.steady:
                measurement.incidents.append(
                    f"throughput was not yet steady after {measurement.warmup.seconds:.0f} s of warm-up"
                )
            self.rounds()

    def measure_quality(self, judged: JudgedQueries | None) -> None:
        settings, workload, index = self.settings, self.workload, self.workload.index
        rows, tell = self.measurement.quality, self.measurement.incidents.append
        if judged is not None:
            rows += quality.judged_rows(
                self.client, workload, judged, index, baseline=settings.baseline, seed=settings.seed, tell=tell
            )
        queries = judged.queries if judged else {str(at): text for at, text in enumerate(workload.texts)}
        drawn = quality.drawn_queries(queries, settings.quality_queries, settings.seed)
        rows += quality.nearness_rows(self.client, workload, drawn, index, seed=settings.seed, tell=tell)

    def block(self, turn: Turn, length: float) -> Block:
        """Measure one turn. Raises _Ended if the cluster no longer answers."""
        block = run_block(
            self.generators,
            self.probe,
            turn,
            settle=self.settings.settle,
            length=length,
            seed=self.settings.seed,
            run_began=self.began,
        )
        broken = block.broken
        unreachable = block.failures.get("connection", 0) + block.failures.get("timeout", 0)
        if not broken and unreachable > HALF * block.requests and not self.probe.answers():
            broken = "the cluster does not answer"
        if broken:
            self.measurement.blocks.append(replace(block, broken=broken))
            failures = ", ".join(f"{count} × {what}" for what, count in sorted(block.failures.items()))
            raise _Ended(
                f"the cluster stopped answering during {turn.variant} at {turn.level.label} ({failures}); "
                "this block is left out"
            )
        self.pace.learn(block)
        return block

    def rounds(self) -> None:
        """Measure blocks until every engine has its requests at every level, or the time is up."""
        settings, measurement = self.settings, self.measurement
        names, levels = list(measurement.variants), settings.levels()
        for block in measurement.blocks:
            self.pace.learn(block)
        number = self.next_round
        deadline = math.inf if settings.minutes is None else time.monotonic() + 60 * settings.minutes
        self.say(f"blocks: {len(names)} engines at {', '.join(level.label for level in levels)}")
        while wanting := self.wanting(number):
            for turn in round_of(number, wanting, names, settings.seed):
                length = self.pace.length(turn)
                if time.monotonic() + settings.settle + length > deadline:
                    measurement.incidents.append(
                        f"the limit of {settings.minutes:g} minutes was reached in round {number + 1}, before the end"
                    )
                    return
                block = self.block(turn, length)
                self.block_log.add(block)
                self.on_block(block, len(measurement.blocks))
            number += 1

    @property
    def next_round(self) -> int:
        """The number of the first round that has not begun."""
        return 1 + max((block.round for block in self.measurement.blocks), default=-1)

    def wanting(self, number: int) -> list[Level]:
        """The levels at which an engine lacks requests or rounds."""
        settings = self.settings
        if number < settings.rounds:
            return settings.levels()
        lacking = [level for level in settings.levels() if self.fewest(level) < settings.requests]
        if not lacking or number < 3 * settings.rounds:
            return lacking
        # Even the longest windows give too few requests: the engine is too slow for the settings.
        self.measurement.incidents.append(
            f"fewer than {settings.requests} requests at {', '.join(level.label for level in lacking)} "
            f"after {number} rounds"
        )
        return []

    def fewest(self, level: Level) -> int:
        """The requests of the engine that has the fewest at this level."""
        blocks = [block for block in self.measurement.blocks if block.level == level]
        return min(
            sum(block.requests for block in blocks if block.variant == name) for name in self.measurement.variants
        )
