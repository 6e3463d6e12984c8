"""A whole run: ceilings, quality, warm-up, blocks in random turns, index facts; and what is left when it ends early.

Whatever ends a run (a killed worker, a dying node, Ctrl-C), what was measured until then is reported, marked as partial,
with the reason.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from benchmarks.load import histogram as hdr
from benchmarks.load import quality, server
from benchmarks.load.blocks import Block, Level, Pace, Turn, round_of, run_block
from benchmarks.load.ceiling import Ceiling, measure_ceilings
from benchmarks.load.generator import CONNECTIONS, GeneratorLost, Generators, default_processes
from benchmarks.load.journal import Journal
from benchmarks.load.postings import Postings, postings
from benchmarks.load.quality import Judged
from benchmarks.load.server import ClusterFacts, Counters, ServerProbe
from benchmarks.load.slo import Probe, SloResult, highest_rate
from benchmarks.load.strain import strain_of
from benchmarks.load.target import Target
from benchmarks.load.variants import Variant, described, pipeline_body, with_options
from benchmarks.load.warmup import Warmup, WarmupSettings, warm_up
from benchmarks.load.workload import IndexFacts, ModelChoice, Workload, body_builders, request_heads
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.engines import open_engines
from opensearch_neural.engines.settings import Cascade, TwoPhases
from opensearch_neural.errors import ClusterError, InputError, OsnError
from opensearch_neural.evaluation.results import Row

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

log = logging.getLogger(__name__)

BASELINE = "bm25"
POSTINGS_QUERIES = 200
RESAMPLED = "resampled"  # the key of an index's `_meta.osn` that says that its documents are drawn (`growth.py`)
HALF = 0.5  # of a block's requests failing makes one ask whether the node still lives


@dataclass(frozen=True)
class LoadSettings:
    """How to measure.

    clients, rates: levels of the closed and of the open loop; slo: limits of P99 in ms, for each of which the highest
        rate is searched
    requests: wanted of each engine at each level; rounds: over how many blocks they are spread; minutes: the most that
        the blocks may take
    settle, shortest, longest: seconds: before each window, and of a window
    processes: of the generator; None: half the cores, two at least
    ceiling: seconds for each engine against the endpoint that does nothing
    quality_queries: at most so many for overlap@10
    """

    clients: tuple[int, ...] = (5, 10, 20, 40, 80)
    rates: tuple[float, ...] = ()
    slo: tuple[float, ...] = ()
    requests: int = 10_000
    rounds: int = 20
    minutes: float | None = None
    settle: float = 0.5
    shortest: float = 1.0
    longest: float = 60.0
    warmup: WarmupSettings = field(default_factory=WarmupSettings)
    processes: int | None = None
    ceiling: float = 2.0
    quality: bool = True
    quality_queries: int = 300
    baseline: str = BASELINE
    seed: int = 0

    def levels(self) -> list[Level]:
        return [Level("closed", float(clients)) for clients in self.clients] + [
            Level("open", rate) for rate in self.rates
        ]

    def validate(self) -> LoadSettings:
        """Raises InputError for values that cannot work."""
        if not self.clients and not self.rates and not self.slo:
            raise InputError("there is no load to measure with", "give --clients, --rates or --slo")
        if any(clients < 1 for clients in self.clients) or any(rate <= 0 for rate in self.rates):
            raise InputError("numbers of clients and rates must be above 0")
        if any(not limit > 0 for limit in self.slo):
            raise InputError("a limit of P99 must be above 0 ms")
        if len(set(self.levels())) < len(self.levels()):
            raise InputError("a number of clients or a rate is given twice")
        for name in ("requests", "rounds", "shortest", "longest"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be above 0")
        most = CONNECTIONS * (self.processes or default_processes())
        if any(clients > most for clients in self.clients):
            raise InputError(
                f"{max(self.clients):,} clients are more than the generator has connections for: {most:,}",
                f"give more --processes, one for {CONNECTIONS} clients",
            )
        if self.slo and not hdr.may_show(0.99, self.requests):
            raise InputError(
                f"{self.requests:,} requests are too few for a P99, which a limit is compared with",
                "give --requests 10000 or more",
            )
        if self.shortest > self.longest:
            raise InputError("the shortest window must not be longer than the longest")
        return self


@dataclass
class Measurement:
    """All that a run found out; `report.py` makes tables of it.

    quality: rows of nDCG@10 and recall, or of overlap@10
    more: rows of whoever made the index, to be reported beside the others
    before, after: the cluster's counters around the blocks
    partial: why the run ended before it was done; None when it was done
    incidents: what happened during it that a reader should know
    """

    settings: LoadSettings
    index: str
    variants: dict[str, str]
    queries: int
    queries_hash: str
    judged: bool
    blocks: list[Block] = field(default_factory=list)
    ceilings: dict[str, Ceiling] = field(default_factory=dict)
    warmup: Warmup = field(default_factory=Warmup)
    slo: dict[str, list[SloResult]] = field(default_factory=dict)
    quality: list[Row] = field(default_factory=list)
    postings: dict[str, Postings] = field(default_factory=dict)
    cluster: ClusterFacts | None = None
    indexes: dict[str, server.IndexFacts] = field(default_factory=dict)
    more: list[Row] = field(default_factory=list)
    before: Counters | None = None
    after: Counters | None = None
    partial: str | None = None
    incidents: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0


class _Ended(Exception):
    """The run cannot go on; the message says why."""


Say = Callable[[str], object]
"""Takes a line about what is being done now."""


def prepare(
    client: OpenSearch,
    target: Target,
    index: str,
    variants: Sequence[Variant],
    texts: Sequence[str],
    models: ModelChoice | None = None,
    pipelines: Mapping[str, str] | None = None,
) -> Workload:
    """The workload, with what the cluster says of its indexes.

    Raises ClusterError and ModelError as `open_engines` does, InputError for no queries.
    """
    if not texts:
        raise InputError("there are no queries to ask")
    indexes = {}
    for name in dict.fromkeys([index, *(variant.index for variant in variants if variant.index)]):
        opened = open_engines(client, name)
        indexes[name] = IndexFacts(name, opened.meta, opened.plugin)
    return Workload(
        target, tuple(texts), tuple(variants), indexes, index, models or ModelChoice(), dict(pipelines or {})
    )


def pipeline_names(variants: Sequence[Variant]) -> dict[str, str]:
    """{variant: name of the search pipeline it needs}, of those that need one; the same pipeline has the same name."""
    names = {}
    for variant in variants:
        body = pipeline_body(variant)
        if body is not None:
            digest = hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()[:12]
            names[variant.name] = f"osn-bench-{digest}"
    return names


@contextmanager
def stored_pipelines(client: OpenSearch, variants: Sequence[Variant]) -> Iterator[dict[str, str]]:
    """{variant: name of the search pipeline stored for it}; they are removed at the end. Raises ClusterError."""
    names = pipeline_names(variants)
    stored: set[str] = set()
    try:
        for variant in variants:
            name = names.get(variant.name)
            if name is not None and name not in stored:
                with translate_errors():
                    client.transport.perform_request("PUT", f"/_search/pipeline/{name}", body=pipeline_body(variant))
                stored.add(name)
        yield names
    finally:
        for name in stored:
            try:
                client.transport.perform_request("DELETE", f"/_search/pipeline/{name}")
            except Exception as error:  # the cluster may be gone, which is not what the user should read about now
                log.debug("the search pipeline %s was left: %s", name, error)


def genuine_answers(client: OpenSearch, workload: Workload) -> dict[str, bytes]:
    """{variant: body of the answer to the first query}. Raises ClusterError with the cluster's reason for a refusal."""
    builders = body_builders(workload)
    found = {}
    for variant in workload.variants:
        with translate_errors():
            answer = client.transport.perform_request(
                "POST", workload.path_of(variant), body=builders[variant.name](workload.texts[0])
            )
        if answer.get("timed_out") or answer.get("_shards", {}).get("failed"):
            raise ClusterError(f"only a part of the index {workload.index_of(variant)!r} answered")
        found[variant.name] = orjson.dumps(answer)
        request_heads(workload, variant)  # a header that cannot be sent is met here
    return found


def measure(
    client: OpenSearch,
    workload: Workload,
    settings: LoadSettings,
    *,
    judged: Judged | None = None,
    out: Path | None = None,
    restart: bool = False,
    say: Say = log.info,
    on_block: Callable[[Block, float], object] | None = None,
) -> Measurement:
    """Run the load test. Needs a cluster that answers when it begins; after that, a partial result is returned rather
    than an error raised.

    out: folder for the journal of blocks; on_block: called with each finished block and the share of the work done.

    Raises InputError, ModelError and ClusterError for what keeps it from beginning.
    """
    settings.validate()
    names = [variant.name for variant in workload.variants]
    if settings.baseline not in names:
        raise InputError(
            f"the baseline {settings.baseline!r} is not among the engines: {', '.join(names)}",
            "name it with --baseline, or add it to --engines",
        )
    found = Measurement(
        settings=settings,
        index=workload.index,
        variants=described(workload.variants),
        queries=len(workload.texts),
        queries_hash=hashlib.sha256("\n".join(workload.texts).encode()).hexdigest()[:16],
        judged=judged is not None,
    )
    began = time.monotonic()
    probe = ServerProbe(client, workload.target.settings.urls)
    answers = genuine_answers(client, workload)
    found.cluster = server.cluster_facts(probe)
    for index in workload.indexes:
        server.settle_index(client, index)
        found.indexes[index] = server.index_facts(client, index)
    found.notes += notes(found, workload)
    journal = None
    if out is not None:
        journal = Journal.open(out, identity(found, workload), engines=len(names), restart=restart)
        found.blocks = journal.blocks
        if journal.blocks:
            found.incidents.append(f"continued after {len(journal.blocks)} blocks of an interrupted run")
    run = _Run(client, workload, settings, probe, found, journal, say, on_block, began)
    try:
        run.everything(answers, judged)
    except _Ended as ended:
        found.partial = str(ended)
    except GeneratorLost as lost:
        found.partial = str(lost)
    except KeyboardInterrupt:
        found.partial = "interrupted"
    except OsnError as error:
        if not found.blocks:
            raise
        found.partial = error.message
    found.seconds = time.monotonic() - began
    return found


def identity(found: Measurement, workload: Workload) -> dict[str, Any]:
    """What makes two runs one: another engine, query, index or setting makes another."""
    settings = asdict(found.settings)
    for name in ("rounds", "requests", "minutes", "quality", "quality_queries", "ceiling", "warmup", "slo"):
        settings.pop(name)  # more of the same may be added to a run
    return orjson.loads(
        orjson.dumps(
            {
                "index": {name: [facts.documents, facts.segments] for name, facts in found.indexes.items()},
                # What the vectors were made with, and what `osn tune` stored.
                "records": {name: facts.meta for name, facts in workload.indexes.items()},
                "variants": found.variants,
                "queries": found.queries_hash,
                "settings": settings,
                "models": asdict(workload.models),
            }
        )
    )


def _drawn(index: Mapping[str, Any]) -> str:
    """What an index's record says of how its documents were drawn."""
    if index["documents"] > index["of"]:
        parts = [
            f"resampled from {index['of']:,} real documents, text and vectors drawn together, no exact duplicates",
            f"{index['mix']:.0%} of a drawn document's words come from a second one",
        ]
    else:
        parts = [f"the first {index['documents']:,} of {index['of']:,} real documents"]
    if index.get("prune"):
        parts.append(f"sparse vectors pruned to {index['prune']}")
    if index.get("weight_bits"):
        parts.append(f"sparse weights of {index['weight_bits']} significant bits")
    return "; ".join(parts)


def notes(found: Measurement, workload: Workload) -> list[str]:
    """What a reader must know to judge the numbers."""
    said = [
        "Request cache off for these requests (request_cache=false) unless an engine says cache=yes; the query cache of "
        "filters is as the index has it. The operating system's page cache is warm.",
    ]
    for variant in workload.variants:
        if variant.engine == "high-idf-first":
            said.append(
                f"{variant.name}: rare tokens {TwoPhases.of(with_options(variant, workload.engines_of(variant)))}"
            )
        elif variant.engine == "cascade":
            said.append(f"{variant.name}: {Cascade.of(with_options(variant, workload.engines_of(variant)))}")
    for name, opened in workload.indexes.items():
        drawn = opened.meta.extra.get(RESAMPLED)
        if drawn:
            said.append(f"{name}: {_drawn(drawn)}")
    for name, facts in found.indexes.items():
        if facts.segments > facts.shards:
            said.append(
                f"{name} has {facts.segments} segments in {facts.shards} shards; `osn ingest --merge` makes it one each."
            )
    if found.queries < 100:
        said.append(f"Only {found.queries} different queries: the same postings are read again and again.")
    return said


@dataclass
class _Run:
    """The state of a run under way."""

    client: OpenSearch
    workload: Workload
    settings: LoadSettings
    probe: ServerProbe
    found: Measurement
    journal: Journal | None
    say: Say
    on_block: Callable[[Block, float], object] | None
    began: float

    def everything(self, answers: Mapping[str, bytes], judged: Judged | None) -> None:
        settings, found = self.settings, self.found
        processes = settings.processes or default_processes()
        most_clients = max([*settings.clients, 2 * processes] if settings.clients else [50])
        self.say(f"the generator's own ceiling, with {processes} processes and {most_clients} clients")
        found.ceilings = measure_ceilings(
            self.workload, answers, clients=most_clients, processes=processes, seconds=settings.ceiling
        )
        if settings.quality:
            self.say("quality")
            self.measure_quality(judged)
            queries = {str(at): text for at, text in enumerate(self.workload.texts)}
            found.postings = postings(self.client, self.workload, quality.some(queries, POSTINGS_QUERIES))
        with Generators(self.workload, processes) as generators:
            self.generators = generators
            closed = [level for level in settings.levels() if level.mode == "closed"]
            # An open loop is as fast as its rate, whatever the server does: it cannot show that the server is warm.
            level = max(closed or [Level("closed", 8.0)])
            self.say(
                f"warm-up at {level.label}, {settings.warmup.least:g} s at least, until throughput is steady "
                f"({settings.warmup.most:g} s at most)"
            )
            self.pace = Pace(settings.requests, settings.rounds, settings.shortest, settings.longest)
            self.warm_up(level)
            found.before = self.probe.counters()
            try:
                if settings.levels():
                    self.rounds()
                for limit in settings.slo:
                    self.search_rates(limit)
            finally:
                found.after = self.probe.counters()

    def measure_quality(self, judged: Judged | None) -> None:
        settings, workload = self.settings, self.workload
        if judged is not None:
            self.found.quality += quality.judged_rows(
                self.client, workload, judged, workload.index, baseline=settings.baseline, seed=settings.seed
            )
        queries = judged.queries if judged else {str(at): text for at, text in enumerate(workload.texts)}
        self.found.quality += quality.overlap_rows(
            self.client,
            workload,
            quality.some(queries, settings.quality_queries, settings.seed),
            workload.index,
            seed=settings.seed,
        )

    def warm_up(self, level: Level) -> None:
        names = list(self.found.variants)
        self.found.warmup = warm_up(
            lambda turn, length: self.block(turn, length),
            names,
            level,
            self.settings.warmup,
            on_block=lambda block: self.pace.learn(block),
        )
        if not self.found.warmup.steady:
            self.found.incidents.append(
                f"throughput was not steady yet after {self.found.warmup.seconds:.0f} s of warm-up"
            )

    def block(self, turn: Turn, length: float) -> Block:
        """Measure one turn. Raises _Ended where the cluster is gone."""
        block = run_block(
            self.generators,
            self.probe,
            turn,
            settle=self.settings.settle,
            length=length,
            seed=self.settings.seed,
            run_began=self.began,
        )
        unreachable = sum(count for what, count in block.failures.items() if what in ("connection", "timeout"))
        if block.broken or (block.requests and unreachable > HALF * block.requests):
            failures = ", ".join(f"{count} × {what}" for what, count in sorted(block.failures.items()))
            if block.broken or not self.probe.answers():
                block = replace(block, broken=block.broken or "the cluster does not answer")
                self.found.blocks.append(block)
                raise _Ended(
                    f"the cluster stopped answering during {turn.variant} at {turn.level.label} ({failures}); "
                    "that block does not count"
                )
        return block

    def rounds(self) -> None:
        """Blocks until every engine has its requests at every level, the time is up, or something ends it."""
        settings, found = self.settings, self.found
        names = list(found.variants)
        levels = settings.levels()
        for block in found.blocks:
            self.pace.learn(block)
        number = 1 + max((block.round for block in found.blocks), default=-1)
        deadline = math.inf if settings.minutes is None else time.monotonic() + 60 * settings.minutes
        self.say(f"blocks: {len(names)} engines at {', '.join(level.label for level in levels)}")
        while wanting := self.wanting(levels, names, number):
            for turn in round_of(number, wanting, names, settings.seed):
                length = self.pace.length(turn)
                if time.monotonic() + settings.settle + length > deadline:
                    found.incidents.append(
                        f"the time of {settings.minutes:g} minutes was up in round {number + 1}, before all was measured"
                    )
                    return
                block = self.block(turn, length)
                self.pace.learn(block)
                found.blocks.append(block) if self.journal is None else self.journal.add(block)
                if self.on_block:
                    self.on_block(block, self.done(levels, names))
            number += 1

    def wanting(self, levels: Sequence[Level], names: Sequence[str], number: int) -> list[Level]:
        """The levels at which an engine lacks requests or rounds."""
        if number < self.settings.rounds:
            return list(levels)
        if number >= 3 * self.settings.rounds:
            # Windows at their longest and still too few: the engine is too slow for what was asked.
            lacking = [level.label for level in levels if self.fewest(level, names) < self.settings.requests]
            if lacking:
                self.found.incidents.append(
                    f"fewer than {self.settings.requests} requests at {', '.join(lacking)} after {number} rounds"
                )
            return []
        return [level for level in levels if self.fewest(level, names) < self.settings.requests]

    def fewest(self, level: Level, names: Sequence[str]) -> int:
        counts = dict.fromkeys(names, 0)
        for block in self.found.blocks:
            if block.level == level and block.broken is None and block.variant in counts:
                counts[block.variant] += block.requests
        return min(counts.values())

    def done(self, levels: Sequence[Level], names: Sequence[str]) -> float:
        """The share of the blocks that are measured."""
        whole = self.settings.rounds * len(levels) * len(names)
        return min(1.0, len(self.found.blocks) / whole)

    def search_rates(self, limit: float) -> None:
        """For each engine the highest rate with P99 at or below `limit` ms."""
        names = list(self.found.variants)
        for name in names:
            self.say(f"the highest rate of {name} with P99 ≤ {limit:g} ms")
            fastest = max((speed for (_, variant), speed in self.pace.speed.items() if variant == name), default=100.0)
            result = highest_rate(lambda rate, name=name: self.probe_rate(name, rate, limit), limit, 0.7 * fastest)  # type: ignore[misc]
            self.found.slo.setdefault(name, []).append(result)

    def probe_rate(self, name: str, rate: float, limit: float) -> Probe:
        """P99 at one rate: a short look first, since a rate that is far too high would take minutes to drain."""
        level, ceiling = Level("open", rate), self.found.ceilings.get(name)
        block = self.block(Turn(-1, level, name), max(2.0, min(10.0, 200 / rate)))
        p95 = hdr.quantile(hdr.counts(hdr.decode(block.latency)), float(block.failed), 0.95)
        p99 = math.inf
        if float(p95) <= 2 * limit and block.completed >= 0.8 * block.requests:
            block = self.block(Turn(-1, level, name), max(self.settings.shortest, 1.05 * self.settings.requests / rate))
            p99 = float(hdr.quantile(hdr.counts(hdr.decode(block.latency)), float(block.failed), 0.99))
        # A rate that held, held; one that did not may have met the generator's limits instead of the cluster's.
        refused = None if p99 <= limit else strain_of(level, [block], ceiling).refusal()
        return Probe(rate, p99, block.requests, block.seconds, refused)
