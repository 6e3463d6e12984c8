"""How an engine is tuned: on which queries, which settings are tried, what they are compared with, what is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from opensearch_neural.engines import Engines
from opensearch_neural.engines.settings import Setting
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.evaluation.overlap import PAGE
from opensearch_neural.progress import Progress
from opensearch_neural.retrievers import Run
from opensearch_neural.tune.choice import Chosen
from opensearch_neural.tune.trials import (
    Questions,
    Tried,
    asker,
    body_of,
    halves,
    reads_every_row,
    try_all,
)

if TYPE_CHECKING:
    from opensearchpy import OpenSearch


@dataclass(frozen=True)
class Tuned:
    """What one run of `osn tune` did."""

    tried: list[Tried]
    """All settings on the tuning queries, after what they are compared with."""
    chosen: Chosen | None
    queries: int
    """How many all settings were tried on."""
    confirming: int
    """How many confirmed the choice."""


class Tuning:
    """An engine's tuning in one index.

    One half of the queries chooses, the other confirms: what is chosen must hold there too.
    """

    setting: ClassVar[type[Setting]]
    """What is chosen; it names the engine."""
    nothing_chosen: ClassVar[str]
    """The message if no setting is chosen; {full}, {keep} and {measure} are filled in."""
    unjudged: ClassVar[bool] = False
    """Whether queries without judgements serve: the exact search then says what is best."""
    own_queries: ClassVar[bool] = False
    """Whether queries are made of the index where none are named."""
    confirmed: ClassVar[str] = "held-back"
    """Which queries confirm the choice."""
    keeps_share: ClassVar[bool] = True
    """Whether a setting must keep the share `keep` of the quality of `full`; else it must be better."""
    full: str = "sparse"
    """The engine that all settings are compared with."""
    full_name: str = "all tokens"
    """What tables call it."""

    def __init__(self, client: OpenSearch, engines: Engines) -> None:
        try:
            self.setting.of(engines)
        except ModelError:
            # What is stored and cannot be read is what a new choice takes the place of.
            engines = replace(engines, meta=engines.meta.with_extra(**{self.setting.key: None}))
        self.client, self.engines, self.ask = client, engines, asker(client, engines.index)

    @classmethod
    def check_queries(cls, *, judged: bool, unjudged: bool) -> None:
        """Raises InputError if the engine cannot be tuned on what is named."""
        if judged and unjudged:
            raise InputError("give --data or --queries, not both", "--data: judged queries; --queries: any queries")
        engine, data = cls.setting.engine, "--data (judged queries, a folder in BEIR layout)"
        if unjudged and not cls.unjudged:
            more = ", or nothing: queries are then made of the index" if cls.own_queries else ""
            raise InputError(f"{engine} is tuned by judged queries, not by --queries", f"give {data}{more}")
        if not (judged or unjudged or cls.own_queries):
            more = " or --queries (any queries)" if cls.unjudged else ""
            raise InputError(f"tuning {engine} needs queries", f"give {data}{more}")

    def own_questions(self, most: int, seed: int) -> tuple[Questions, str]:
        """(queries made of the index, at most so many in each half; what their measure is called)"""
        raise NotImplementedError

    def load(self) -> None:
        """Load what encodes queries, which all copies of the engines then share.

        Raises ModelError if the index lacks what the engine needs.
        """
        self.engines.body_of(self.setting.engine)

    def grid(self) -> Sequence[Setting]:
        """What is tried; the default window of the index is among them."""
        raise NotImplementedError

    def choose(self, tried: Sequence[Tried], held_back: Questions, keep: float, *, seed: int = 0) -> Chosen | None:
        """What is chosen of the settings; None if none is good enough."""
        raise NotImplementedError

    def run(self, questions: Questions, keep: float, *, most: int, passes: int = 3, seed: int = 0) -> Tuned:
        """Try all settings and choose, with a bar on stderr. most: queries in each half.

        Raises InputError for fewer than ten usable queries, and as `load` does.
        """
        tuning, held_back = self.parts(questions, most, seed)
        self.load()
        tried = self.tried(tuning, passes, seed)
        chosen = self.choose(tried, held_back, keep, seed=seed)
        return Tuned(tried, chosen, len(tuning.texts), len(held_back.texts))

    def tried(self, questions: Questions, passes: int, seed: int) -> list[Tried]:
        """All settings on the queries, after some requests that are not timed."""
        ask, engines, full, grid = self.ask, self.engines, self.full, self.grid()
        reference = [] if reads_every_row(engines, full) else [None]
        for text in list(questions.texts.values())[:50]:
            for setting in (*reference, grid[0], grid[-1]):
                ask(body_of(engines, setting, text, PAGE, full))
        total = (len(grid) + 1) * len(questions.texts) * passes
        with Progress(f"tune → {engines.index}", total=total, unit="requests") as progress:
            return try_all(ask, engines, questions, grid, full=full, passes=passes, seed=seed, advance=progress.update)

    def run_of(self, setting: Setting | None, questions: Questions, size: int = PAGE) -> Run:
        """The hits of each query with this setting; None: of the engine `full`."""
        return {
            query: self.ask(body_of(self.engines, setting, text, size, self.full))[0]
            for query, text in questions.texts.items()
        }

    def parts(self, questions: Questions, most: int, seed: int) -> tuple[Questions, Questions]:
        """(queries on which all settings are tried, those that confirm the choice). Raises InputError for too few."""
        return halves(questions.texts, questions.qrels, most, seed)
