"""How an engine is tuned: its queries, the settings to try, the reference engine, and the choice, which the index stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.engines import Engines
from opensearch_neural.engines.settings import Setting
from opensearch_neural.errors import InputError, ModelError, Unanswerable
from opensearch_neural.evaluation.engine_comparison import own_documents
from opensearch_neural.evaluation.overlap import PAGE
from opensearch_neural.index.record import existing_record, write_record
from opensearch_neural.index.shard_documents import SHARD_DOCUMENTS, count_shard_documents
from opensearch_neural.progress import Progress
from opensearch_neural.retrievers import Run
from opensearch_neural.tune.trials import Questions, Tried, asker, body_of, halves, noted, reads_every_row, try_all

if TYPE_CHECKING:
    from opensearchpy import OpenSearch


@dataclass(frozen=True)
class Chosen:
    """The choice, and the quality that it keeps on queries that were not used to choose it."""

    setting: Setting
    """The setting to store in the index."""
    tried: Tried
    """The setting on the tuning queries."""
    kept: float
    """Its quality on the confirming queries, as a share of the reference engine's quality."""
    low: float | None
    """Lower end of the 95% interval of `kept`."""
    high: float | None
    """Upper end of that interval."""
    passed_over: int
    """How many faster settings kept the share on the tuning queries, but not on the confirming ones."""


@dataclass(frozen=True)
class Tuned:
    """The result of a run of `osn tune`, with the words that tables and messages need."""

    tried: list[Tried]
    """The reference engine, then all settings, on the tuning queries."""
    chosen: Chosen | None
    """None if no setting was good enough."""
    queries: int
    """The number of queries that all settings were tried on."""
    confirming: int
    """The number of queries that confirmed the choice."""
    confirmed: str
    """Which queries these are: "held-back"."""
    measure: str
    """The measure of quality."""
    full: str
    """The name of the reference engine."""
    keep: float
    """The share of quality to keep that was asked for."""
    required: float
    """The share that a setting must have: 1 for an engine that must be better than the reference."""
    unanswered: Mapping[str, Unanswerable] = field(default_factory=dict)
    """{query: why an engine cannot answer it}; these queries are left out of all settings."""

    @property
    def confirmed_by(self) -> str:
        """The queries that confirmed the choice, such as "40 held-back"."""
        return f"{self.confirming} {self.confirmed}"


class Tuning:
    """An engine's tuning in one index.

    One half of the queries chooses a setting, and the other half must confirm it.
    """

    setting: ClassVar[type[Setting]]
    """The class of the settings, which names the engine."""
    nothing_chosen: ClassVar[str]
    """The message if no setting is chosen, with the fields {full}, {keep} and {measure}."""
    unjudged: ClassVar[bool] = False
    """Whether queries without judgements can be used: then the exact search tells what is best."""
    own_queries: ClassVar[bool] = False
    """Whether queries are made from the index if none are named."""
    confirmed: ClassVar[str] = "held-back"
    """Which queries confirm the choice."""
    keeps_share: ClassVar[bool] = True
    """Whether a setting must keep the share `keep` of the quality of `full`; else it must be better."""
    full: str = "sparse"
    """The engine that all settings are compared with."""
    full_name: str = "all tokens"
    """Its name in tables."""

    def __init__(self, client: OpenSearch, engines: Engines) -> None:
        try:
            self.setting.of(engines)
        except ModelError:
            # The stored choice cannot be read, and a new choice will replace it.
            engines = replace(engines, meta=engines.meta.with_extra(**{self.setting.key: None}))
        self.client, self.engines, self.ask = client, engines, asker(client, engines.index)
        self.unanswered: dict[str, Unanswerable] = {}

    @property
    def has_stored_setting(self) -> bool:
        """Whether searches use a setting that an earlier tuning stored; a cascade's counts only after the same engine."""
        record = self.engines.meta.extra.get(self.setting.key)
        if record is None:
            return False
        stored, used = self.setting.parse(record), self.setting.of(self.engines)
        return getattr(stored, "first", None) == getattr(used, "first", None)

    @classmethod
    def check_queries(cls, *, judged: bool, unjudged: bool) -> None:
        """Raises InputError if the engine cannot be tuned with the options that are given."""
        if judged and unjudged:
            raise InputError("give --data or --queries, not both", "--data: judged queries; --queries: any queries")
        engine, data = cls.setting.engine, "--data (judged queries, a folder in BEIR layout)"
        if unjudged and not cls.unjudged:
            more = ", or nothing: then queries are made from the index" if cls.own_queries else ""
            raise InputError(f"{engine} is tuned by judged queries, not by --queries", f"give {data}{more}")
        if not (judged or unjudged or cls.own_queries):
            more = " or --queries (any queries)" if cls.unjudged else ""
            raise InputError(f"tuning {engine} needs queries", f"give {data}{more}")

    def own_questions(self, most: int, seed: int) -> Questions:
        """Queries made from the index, at most `most` in each half."""
        raise NotImplementedError

    def load(self) -> None:
        """Load the query encoders, which all copies of the engines share.

        Raises ModelError if the index lacks what the engine needs.
        """
        self.engines.load(self.setting.engine)

    def grid(self) -> Sequence[Setting]:
        """The settings to try; they include the default window of the index."""
        raise NotImplementedError

    def choose(self, tried: Sequence[Tried], held_back: Questions, keep: float, *, seed: int = 0) -> Chosen | None:
        """The chosen setting; None if none is good enough."""
        raise NotImplementedError

    def run(self, questions: Questions, keep: float, *, most: int, passes: int = 3, seed: int = 0) -> Tuned:
        """Try all settings and choose one, with a progress bar on stderr. most: queries in each half.

        Raises InputError for fewer than ten usable queries, and as `load` does.
        """
        tuning, held_back = self.parts(questions, most, seed)
        if questions.qrels is not None:
            texts = {**tuning.texts, **held_back.texts}
            with translate_errors():
                own = own_documents(self.client, self.engines.index, texts, questions.qrels)
            tuning, held_back = replace(tuning, own=own), replace(held_back, own=own)
        self.load()
        tried = self.tried(tuning, passes, seed)
        chosen = self.choose(tried, held_back, keep, seed=seed)
        return Tuned(
            tried,
            chosen,
            len(tuning.without(self.unanswered).texts),
            len(held_back.without(self.unanswered).texts),
            self.confirmed,
            questions.measure,
            self.full_name,
            keep,
            required=keep if self.keeps_share else 1.0,
            unanswered=self.unanswered,
        )

    def tried(self, questions: Questions, passes: int, seed: int) -> list[Tried]:
        """Try all settings on the queries, after some warm-up requests that are not timed."""
        ask, engines, full, grid = self.ask, self.engines, self.full, self.grid()
        reference = [] if reads_every_row(engines, full) else [None]
        for text in list(questions.texts.values())[:50]:
            for setting in (*reference, grid[0], grid[-1]):
                with suppress(Unanswerable):
                    ask(body_of(engines, setting, text, PAGE, full))
        total = (len(grid) + 1) * len(questions.texts) * passes
        with Progress(f"tune → {engines.index}", total=total, unit="requests") as progress:
            return try_all(
                ask, engines, questions, grid, full=full, passes=passes, seed=seed, advance=progress.update,
                unanswered=self.unanswered,
            )  # fmt: skip

    def run_of(self, setting: Setting | None, questions: Questions, size: int | None = None) -> Run:
        """The hits of each query with this setting; None: with the engine `full`. A query that cannot be answered is left
        out and noted in `unanswered`. size: hits of a query; None: a page"""
        run: Run = {}
        for query, text in questions.texts.items():
            with noted(query, self.unanswered):
                body = body_of(self.engines, setting, text, size or questions.page(query), self.full)
                run[query], _ = self.ask(body)
        return run

    def parts(self, questions: Questions, most: int, seed: int) -> tuple[Questions, Questions]:
        """(queries to try all settings on, queries to confirm the choice). Raises InputError for too few queries."""
        return halves(questions, most, seed)


def store(client: OpenSearch, index: str, chosen: Chosen, *, keep: float, measure: str, queries: int) -> None:
    """Write the choice into the index's `_meta.osn`, where `Engines` reads it. The number of documents in a shard is stored
    too: if it grows, so does the window. Raises ClusterError."""
    with translate_errors():
        meta = existing_record(client, index)
        record = {
            **chosen.setting.record,
            "keep": keep,
            "kept": round(chosen.kept, 4),
            "measure": measure,
            "queries": queries,
            SHARD_DOCUMENTS: count_shard_documents(client, index),
        }
        write_record(client, index, meta.with_extra(**{chosen.setting.key: record}))
