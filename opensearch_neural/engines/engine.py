"""What an engine is, and what all engines of one index share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from opensearch_neural import queries
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.engines.options import Option
from opensearch_neural.errors import InputError
from opensearch_neural.index.models import IndexModels, IndexPart
from opensearch_neural.index.record import IndexMeta
from opensearch_neural.index.shard_documents import SHARD_DOCUMENTS, count_shard_documents
from opensearch_neural.queries import Body

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

Page = dict[str, Any]
"""What all functions of `queries` take: size, from_, filter, source, highlight, collapse, …"""

Loaded = TypeVar("Loaded")


@dataclass
class Opened:
    """One index, opened for searching."""

    index: str
    meta: IndexMeta
    plugin: bool
    """Whether the cluster has the neural-search plugin."""
    models: IndexModels
    settings: Mapping[str, Any] = field(default_factory=dict)
    """{option: value} that the caller chose; what is not in it is as stored in the index, or the engine's default."""
    connect: Callable[[], OpenSearch] | None = None
    """Gives a client of the cluster, for engines that read from it before they search."""
    loaded: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    """What engines hold in memory, shared by all that were made of one opened index."""

    @property
    def forward(self) -> bool:
        """Whether hits are rescored by the forward index."""
        return self.meta.forward_index and not self.settings.get("clauses")

    @property
    def pruned(self) -> bool:
        """Whether the postings hold less than the rows of the forward index. Raises InputError where hits are to be rescored
        by clauses, that is by these postings."""
        if self.meta.prune_postings is not None and self.settings.get("clauses"):
            raise InputError(
                f"the postings of {self.index!r} are pruned by {self.meta.prune_postings}, and clauses read no others",
                "leave out --clauses: hits are rescored by whole vectors then",
            )
        return self.meta.prune_postings is not None

    @property
    def shard_documents(self) -> int:
        """Documents of a shard, as the index's record keeps them; else counted once, or 0 without a connection.

        Raises ClusterError.
        """
        kept = self.meta.extra.get(SHARD_DOCUMENTS)
        return self.once(SHARD_DOCUMENTS, self._counted) if kept is None else int(kept)

    def _counted(self) -> int:
        with translate_errors():
            return count_shard_documents(self.connect(), self.index) if self.connect else 0

    def given(self, *names: str) -> dict[str, Any]:
        """Those of the settings that the caller chose."""
        return {name: value for name in names if (value := self.settings.get(name)) is not None}

    def once(self, key: Hashable, load: Callable[[], Loaded]) -> Loaded:
        """What `load` returns, which is called the first time only."""
        if key not in self.loaded:
            self.loaded[key] = load()
        value: Loaded = self.loaded[key]
        return value


@dataclass(frozen=True)
class Missing:
    """What an answer lacks of what was asked for."""

    warnings: tuple[str, ...] = ()
    """For people."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """For programs, beside the hits."""


class Engine:
    """One way to search an index: the body that it sends, what that needs, how it can be set, what its answer may lack."""

    name: ClassVar[str]
    finds: ClassVar[str]
    """What it does, in a few words."""
    options: ClassVar[tuple[Option, ...]] = ()
    needs_plugin: ClassVar[bool] = False
    compared: ClassVar[bool] = True
    """Whether `osn eval` measures it where no engine is named."""
    most_hits: ClassVar[int] = queries.MOST_HITS
    """Hits that it finds at most, those of the pages before included."""
    fused: ClassVar[bool] = False
    """Whether its scores are made after the search, so that the cluster explains none of them."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened

    def needs(self) -> tuple[IndexPart, ...]:
        """What the index must hold."""
        return ()

    def serves(self) -> bool:
        """Whether index and cluster have what it needs; models are not looked for."""
        if self.needs_plugin and not self.opened.plugin:
            return False
        return all(getattr(self.opened.meta, part) for part in self.needs())

    def load(self) -> None:
        """Load now what encodes queries. Raises ModelError where that cannot be had."""
        for part in self.needs():
            self.opened.models.load_for_queries(part)

    def body(self, text: str, page: Page) -> Body:
        """The request body for a query's text."""
        raise NotImplementedError

    def counted(self, body: Body) -> Body:
        """A body without filters, changed so that the cluster counts what `missing` tells of."""
        return body

    def search(self, client: OpenSearch, body: Body, text: str) -> Mapping[str, Any]:
        """The answer to a body that was made of this text. Raises opensearch-py's errors."""
        params = {"preference": queries.preference(text)}
        answer: Mapping[str, Any] = client.search(index=self.opened.index, body=body, params=params)
        return answer

    def warnings(self) -> tuple[str, ...]:
        """What to know of this engine in this index, whatever is searched. Loads what `load` does."""
        return ()

    def missing(self, body: Body, answer: Mapping[str, Any], *, filtered: bool) -> Missing:
        """What the answer lacks. filtered: whether a filter may have left out documents too."""
        return Missing()


def part_of(page: Page) -> Page:
    """What of a page goes into each of the bodies that are fused: each finds as many hits as the page and those before."""
    reach = min(queries.MOST_HITS, page.get("from_", 0) + page.get("size", 10))
    return {"size": reach, "collapse": page.get("collapse")}


def gone(body: Body, answer: Mapping[str, Any], what: str, index: str, held: int | None = None) -> Missing:
    """That fewer documents were found than a body of `queries.listed` asks for: those that the index lost since.

    Nothing is known of an answer that a shard is missing from. held: the documents found, if these are not the hits.
    """
    if queries.partial_answer(answer):
        return Missing()
    gone = queries.listed_count(body) - (answer["hits"]["total"]["value"] if held is None else held)
    return Missing((f"{gone} of the {what} are not in {index!r} any more",)) if gone > 0 else Missing()
