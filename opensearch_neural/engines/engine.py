"""The base class of engines, their command-line options, and the state that all engines of one index share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from opensearch_neural import queries
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.errors import InputError
from opensearch_neural.index.models import IndexModels, IndexPart
from opensearch_neural.index.record import IndexMeta
from opensearch_neural.index.shard_documents import SHARD_DOCUMENTS, count_shard_documents
from opensearch_neural.queries import Body, Rare

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

Page = dict[str, Any]
"""Arguments that all functions of `queries` take: size, from_, filter, source, highlight, collapse, …"""

Loaded = TypeVar("Loaded")


@dataclass(frozen=True)
class Option:
    """A setting of an engine as a command-line option."""

    name: str
    """The setting's name; on the command line with hyphens: --dense-window."""
    parse: Callable[[str], Any]
    """Parses the text of the option. Raises ValueError with a message that says what is wrong."""
    help: str
    """The setting in a sentence, for --help."""
    default: str = ""
    """The default in words, for the help text."""
    is_flag: bool = False
    """Whether the option takes no value; then `parse` is not called, and the setting is True."""
    loads: bool = False
    """Whether a value may load a file or a model: then a browser (`osn ui`) and load tests cannot choose it."""


def whole_number(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(f"{text} is not a whole number from 1")
    return number


MOST_WEIGHT = 1e30
"""The largest weight: OpenSearch computes scores in single precision, which ends at 3e38."""


def positive(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise ValueError(f"{text} is not above 0")
    if number > MOST_WEIGHT:
        raise ValueError(f"{text} is above {MOST_WEIGHT:g}")
    return number


RARE = Option("rare", Rare.parse, "which tokens are rare: ratio:R, share:S or count:N.", "as tuned, else ratio:0.5")
TOKENS = Option(
    "tokens",
    Rare.parse,
    "which tokens of a query are searched: ratio:R, share:S or count:N; share:1 is all.",
    "as tuned, else all",
)
CLAUSES = Option("clauses", bool, "rescore by clauses even if the index has a forward index.", is_flag=True)


@dataclass
class OpenedIndex:
    """One index, opened for searching. `engines.Engines` extends it, and each engine holds it as `opened`."""

    index: str
    """The name of the index, or of an alias."""
    meta: IndexMeta
    """The index's record."""
    plugin: bool
    """Whether the cluster has the neural-search plugin."""
    models: IndexModels
    """Loads the index's models when an engine first needs them."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """{option: value} that the caller chose. Other options have the value stored in the index, or the engine's default."""
    connect: Callable[[], OpenSearch] | None = None
    """Returns a client of the cluster, for engines that read from the cluster before they search."""
    loaded: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    """What engines hold in memory, shared by all engines of one opened index."""
    resolved: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What `settings.Setting.of` keeps. A copy with another record or other options resolves its settings anew."""

    @property
    def forward(self) -> bool:
        """Whether the forward index rescores hits."""
        return self.meta.forward_index and not self.settings.get("clauses")

    def check_clauses(self) -> None:
        """Raises InputError if an index with pruned postings is to be rescored by clauses, which read only postings."""
        if self.meta.prune_postings is not None and self.settings.get("clauses"):
            raise InputError(
                f"{self.index!r} has pruned postings ({self.meta.prune_postings}), and --clauses reads only postings",
                "leave out --clauses: then hits are rescored with their whole vectors",
            )

    def has_pruned_postings(self) -> bool:
        """Whether the postings hold fewer tokens than the rows of the forward index. Raises as `check_clauses` does."""
        self.check_clauses()
        return self.meta.prune_postings is not None

    def load_shard_documents(self) -> int:
        """Documents in a shard, from the index's record; if it has no number, counted once, or 0 without a connection.

        Raises ClusterError.
        """
        stored = self.meta.extra.get(SHARD_DOCUMENTS)
        return self.once(SHARD_DOCUMENTS, self._counted) if stored is None else int(stored)

    def _counted(self) -> int:
        with translate_errors():
            return count_shard_documents(self.connect(), self.index) if self.connect else 0

    def chosen_settings(self, *names: str) -> dict[str, Any]:
        """{name: value} of those settings that the caller chose."""
        return {name: value for name in names if (value := self.settings.get(name)) is not None}

    def once(self, key: Hashable, load: Callable[[], Loaded]) -> Loaded:
        """The result of `load`, which is called only the first time."""
        if key not in self.loaded:
            self.loaded[key] = load()
        value: Loaded = self.loaded[key]
        return value


@dataclass(frozen=True)
class Missing:
    """What an answer lacks."""

    warnings: tuple[str, ...] = ()
    """Sentences for people."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """{name: value} for programs, output beside the hits."""


class Engine:
    """One way to search an index: its request body, what it needs, its options, and what its answer may lack."""

    name: ClassVar[str]
    finds: ClassVar[str]
    """What the engine finds, in a few words."""
    options: ClassVar[tuple[Option, ...]] = ()
    needs_plugin: ClassVar[bool] = False
    compared: ClassVar[bool] = True
    """Whether `osn eval` measures the engine if no engine is named."""
    most_hits: ClassVar[int] = queries.MOST_HITS
    """The most hits that it can find, including those of earlier pages."""
    fused: ClassVar[bool] = False
    """Whether scores are computed after the search, so that the cluster cannot explain them."""

    def __init__(self, opened: OpenedIndex) -> None:
        self.opened = opened

    def needs(self) -> tuple[IndexPart, ...]:
        """What the index must hold."""
        return ()

    def serves(self) -> bool:
        """Whether index and cluster have what it needs. Does not check that the models can be loaded."""
        if self.needs_plugin and not self.opened.plugin:
            return False
        return all(getattr(self.opened.meta, part) for part in self.needs())

    def how(self) -> object:
        """The `engines.settings.Setting` with which it searches: the caller's choice, else the stored one, else the default.
        None for an engine without one."""
        return None

    def load(self) -> None:
        """Load the query encoders now. Raises ModelError if one cannot be loaded."""
        for part in self.needs():
            getattr(self.opened.models, "query_encoder" if part == "sparse" else part)

    def body(self, text: str, page: Page) -> Body:
        """The request body for a query's text."""
        raise NotImplementedError

    def counted(self, body: Body) -> Body:
        """A body without filters, changed so that the cluster counts what `missing` needs."""
        return body

    def search(self, client: OpenSearch, body: Body, text: str) -> Mapping[str, Any]:
        """The answer to a body that was made from this text. Raises opensearch-py's errors."""
        params = {"preference": queries.preference(text)}
        answer: Mapping[str, Any] = client.search(index=self.opened.index, body=body, params=params)
        return answer

    def warnings(self) -> tuple[str, ...]:
        """Warnings about this engine in this index that apply to every query. Loads what `load` does."""
        return ()

    def missing(self, body: Body, answer: Mapping[str, Any], *, filtered: bool) -> Missing:
        """What the answer lacks. filtered: whether a filter may also have removed documents."""
        return Missing()


def part_of(page: Page) -> Page:
    """The page arguments for each body of a fused search: it must find all hits up to the end of the page, and the same
    hits for every page that ends at hit `queries.FUSED` or before."""
    reach = min(queries.MOST_HITS, max(queries.FUSED, page.get("from_", 0) + page.get("size", 10)))
    return {"size": reach, "collapse": page.get("collapse")}


def lost_documents(
    body: Body, answer: Mapping[str, Any], what: str, index: str, stored_count: int | None = None
) -> Missing:
    """A warning if the answer has fewer documents than a body of `queries.listed` requests: the index lost the others.

    No warning for a partial answer. stored_count: how many of the documents the index holds; None: the number of hits.
    """
    if queries.partial_answer(answer):
        return Missing()
    lost = queries.listed_count(body) - (answer["hits"]["total"]["value"] if stored_count is None else stored_count)
    return Missing((f"{lost} of the {what} are not in {index!r} any more",)) if lost > 0 else Missing()
