"""How the engines of two and three phases search: what `osn tune` chooses, and keeps in the index's record."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, get_args

from opensearch_neural.engines.engine import Opened
from opensearch_neural.errors import ModelError
from opensearch_neural.index.shard_documents import SHARD_DOCUMENTS
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.queries import Rare

if TYPE_CHECKING:
    from typing_extensions import Self

WINDOW = 30
"""Hits of each shard that get their whole score, where a shard holds at most FITTED documents."""
FITTED = 100_000
MOST_RESCORED = 10_000
"""The widest window that an index takes, unless its `index.max_rescore_window` says otherwise."""


def fitting_window(documents: int, power: float, window: int = WINDOW) -> int:
    """The window that keeps about 0.99 of the score in a shard of so many documents: `window`, and beyond FITTED documents
    `window` times their power (`osn bench score-kept`)."""
    return round(window * max(1.0, documents / FITTED) ** power)


def with_window(stored: Mapping[str, Any], opened: Opened, fitting: Callable[[Opened], int]) -> Mapping[str, Any]:
    """A stored choice with the window to search by: a stored one as it has grown since, else the one that fits the index.
    Raises TypeError or ValueError for a stored one that is none.

    Where the caller names a window, which takes this one's place afterwards, none is looked for.

    A stored window grows as the default has since the index was tuned, and never shrinks. A choice that does not say how
    many documents a shard held then is an older version's, and stays as it is.

    fitting: the default of an index
    """
    if opened.given("window"):
        return {**stored, "window": WINDOW}
    if "window" not in stored:
        return {**stored, "window": fitting(opened)}
    tuned_on = stored.get(SHARD_DOCUMENTS)
    if tuned_on is None:
        return stored
    then = replace(opened, meta=opened.meta.with_extra(**{SHARD_DOCUMENTS: int(tuned_on)}))
    window = int(stored["window"])
    grown = round(window * fitting(opened) / fitting(then))
    return {**stored, "window": max(window, min(grown, MOST_RESCORED))}


@contextmanager
def reading(opened: Opened, engine: str, called: str = "") -> Iterator[None]:
    """Inside, what the index stores for an engine is read. Raises ModelError where that is something else.

    called: the engine in the message, if not by its name
    """
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"the index {opened.index!r} stores a setting of {called or engine} that cannot be read: {error}",
            f"`osn tune --engine {engine}` stores a new one",
        ) from None


def parse_tokens(stored: str | None) -> Rare | None:
    """Which tokens a record has searched; None: all."""
    return None if stored is None else Rare.parse(stored)


First = Literal["bm25-sparse", "high-idf-first"]
"""The engines whose hits the cascade scores further."""


def parse_first(text: str) -> First:
    """Raises ValueError for a name that is none of `First`."""
    if text not in get_args(First):
        raise ValueError(f"{text!r} is none of {', '.join(get_args(First))}")
    return cast(First, text)


READ: dict[str, Callable[[Any], Any]] = {
    "rare": Rare.parse,
    "tokens": parse_tokens,
    "window": int,
    "dense_window": int,
    "weight": float,
    "exact": bool,
    "first": parse_first,
}
"""{a setting's field: how its value is read from a record}"""


class Setting:
    """How an engine searches; each engine's is a dataclass.

    Raises ValueError for a window that is no whole number from 1, and for a weight that is not above 0.
    """

    engine: ClassVar[str]
    key: ClassVar[str]
    """Where the index's record keeps the choice, as `record` gives it."""
    options: ClassVar[tuple[str, ...]]
    """Options by which a caller chooses another value of the field of that name."""
    window: int
    """Hits of each shard that get their whole score."""
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __post_init__(self) -> None:
        windows = [value for name, value in vars(self).items() if name in ("window", "dense_window")]
        if min(windows) < 1:
            raise ValueError(f"windows are whole numbers from 1, not {self}")
        if not getattr(self, "weight", 1.0) > 0:
            raise ValueError(f"the weight is above 0, not {self}")

    @property
    def record(self) -> dict[str, Any]:
        """As the index keeps it."""
        return {name: str(value) if isinstance(value, Rare) else value for name, value in vars(self).items()}

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> Self:
        """From `record`, perhaps with more or less in it. Raises TypeError or ValueError for what is none."""
        return cls(**{each.name: READ[each.name](record[each.name]) for each in fields(cls) if each.name in record})

    @classmethod
    def fitting(cls, opened: Opened) -> Self:
        """The default of an index. Raises ClusterError where its documents have to be counted and cannot be."""
        raise NotImplementedError

    @classmethod
    def of(cls, opened: Opened) -> Self:
        """As the caller chose, else as the index stores it, else the default. Raises ModelError where it stores something
        else."""
        with reading(opened, cls.engine):
            stored = opened.meta.extra.get(cls.key, {})
            setting = cls.parse(with_window(stored, opened, lambda opened: cls.fitting(opened).window))
        return replace(setting, **opened.given(*cls.options))


SUM_POWER, TWO_PHASES_POWER = 1 / 2, 1 / 4
"""Exponents by which the default windows of bm25-sparse and of high-IDF-first grow beyond FITTED documents."""


@dataclass(frozen=True)
class WeightedSum(Setting):
    """How bm25-sparse searches.

    The default weight gains most, or next to nothing less, on dev and train questions, both of a published SPLADE and of
    that trained further (`osn bench sum-weight`). The default window grows with the square root of the index.
    """

    engine = "bm25-sparse"
    key = "bm25_sparse"
    options = ("weight", "window", "tokens")
    weight: float = 0.8
    """What the model adds to a known item, as a share of what BM25 gives it (`index.sparse_scale`)."""
    window: int = WINDOW
    """Hits of BM25, of each shard, that get it."""
    tokens: Rare | None = None
    """Which tokens of a query are added; None: all. By clauses, each costs a look into the index for every hit."""

    def __str__(self) -> str:
        return f"weight {self.weight:g}, window {self.window}" + (f", of tokens {self.tokens}" if self.tokens else "")

    @classmethod
    def fitting(cls, opened: Opened) -> WeightedSum:
        return cls(window=fitting_window(opened.shard_documents, SUM_POWER))

    @classmethod
    def stored(cls, opened: Opened) -> WeightedSum:
        """As the index stores it, else the default, but for the tokens that the caller chose: a stage of the cascade, whose
        own settings have the same names."""
        return cls.of(replace(opened, settings=opened.given("tokens")))


@dataclass(frozen=True)
class TwoPhases(Setting):
    """How high-IDF-first searches."""

    engine = "high-idf-first"
    key = "high_idf_first"
    options = ("rare", "window", "tokens")
    rare: Rare = field(default_factory=Rare)
    """Which tokens are searched first."""
    window: int = WINDOW
    """Hits of each shard that are rescored. The default grows with the fourth root of the index; with pruned postings it is
    that of `sparse`."""
    exact: bool = True
    """Whether phase two scores with all tokens anew, or adds the common ones (`queries.high_idf_first`)."""
    tokens: Rare | None = None
    """Which tokens of a query are searched at all; None: all."""

    def __str__(self) -> str:
        adds = "" if self.exact else ", common tokens added"
        return f"{self.rare}, window {self.window}{adds}" + (f", of tokens {self.tokens}" if self.tokens else "")

    @classmethod
    def fitting(cls, opened: Opened) -> TwoPhases:
        if opened.pruned:
            return cls(window=PrunedSparse.fitting(opened).window)
        return cls(window=fitting_window(opened.shard_documents, TWO_PHASES_POWER))

    @classmethod
    def of(cls, opened: Opened) -> TwoPhases:
        setting = super().of(opened)
        # What phase one has found in pruned postings is no score that common tokens could be added to.
        return replace(setting, exact=opened.pruned or opened.settings.get("rescore_all", setting.exact))


MEASURED_SHARD = 1_000_000
PRUNED_WINDOWS = {0.5: (400, 800), 0.6: (100, 300), 0.65: (100, 200), 0.7: (50, 200)}
"""Default windows of `sparse` and high-IDF-first with pruned postings, {share that alpha_mass keeps: (in a shard of FITTED
documents, in one of MEASURED_SHARD)}. Each keeps 0.99 of the score of `sparse` (`osn bench large-sparse`); the first of 0.65
was not measured and is that of 0.6. High-IDF-first gets the same: with fewer tokens it needs as many hits at least."""


def pruned_window(rule: str, documents: int) -> int:
    """The window that keeps about 0.99 of the score where postings are pruned by this rule, in a shard of so many documents.

    A share between two of PRUNED_WINDOWS has the window of the smaller one. No rule has a narrower window than one that
    keeps more, and rules that were not measured have the widest. Raises InputError for what is no rule.
    """
    pruning = Pruning.parse(rule)
    kept = pruning.value if pruning.type == "alpha_mass" else 0.0
    least = max((share for share in PRUNED_WINDOWS if share <= kept), default=0.0)
    grown = math.log10(MEASURED_SHARD / FITTED)
    return max(
        fitting_window(documents, math.log10(larger / window) / grown, window)
        for share, (window, larger) in PRUNED_WINDOWS.items()
        if share >= least
    )


@dataclass(frozen=True)
class PrunedSparse(Setting):
    """How `sparse` searches an index with pruned postings."""

    engine = "sparse"
    key = "pruned_sparse"
    options = ("window",)
    window: int
    """Hits of each shard that are rescored by their rows."""

    def __str__(self) -> str:
        return f"window {self.window}"

    @classmethod
    def fitting(cls, opened: Opened) -> PrunedSparse:
        """The default of an index with pruned postings. Raises ClusterError where its documents have to be counted and
        cannot be."""
        assert opened.meta.prune_postings is not None
        return cls(pruned_window(opened.meta.prune_postings, opened.shard_documents))


RARE_FIRST_WEIGHT = 0.025
"""The cascade's default weight after high-idf-first: best, or near it, with BM25's impacts on train queries of squad-mix."""


@dataclass(frozen=True)
class Cascade(Setting):
    """How the cascade searches.

    The default weight is the best of some on dev and train questions (`osn bench sum-weight --dense`); after high-idf-first
    it is RARE_FIRST_WEIGHT. The windows were best, or near it, on training queries of squad-mix.
    """

    engine = "cascade"
    key = "cascade"
    options = ("rare", "window", "dense_window", "weight", "first")
    rare: Rare = field(default_factory=Rare)
    """Which tokens high-idf-first searches first."""
    window: int = 100
    """Hits of each shard that are scored with all tokens; by default no fewer than `first` scores by itself."""
    dense_window: int = 50
    """Hits of each shard that are scored with their codes or vectors."""
    weight: float = 0.1
    """The share of the query's token weights that one standard deviation of the documents' inner products (`spread` of the
    query's look-up table) adds to a score. So one weight fits long and short queries, and models with inner products of any
    size."""
    first: First = "bm25-sparse"
    """The engine whose hits are scored so."""

    def __str__(self) -> str:
        how = f", rare {self.rare}" if self.first == "high-idf-first" else ""
        return f"{self.first} first, weight {self.weight:g}, windows {self.window} and {self.dense_window}{how}"

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> Cascade:
        # Older records, which do not say it, were all tuned with high-idf-first.
        return super().parse({"first": "high-idf-first", **record})

    @classmethod
    def of(cls, opened: Opened) -> Cascade:
        """As the caller chose, else as the index stores it for the engine that goes first, else the default. Raises
        ModelError where it stores something else."""
        stored = opened.meta.extra.get(cls.key)
        with reading(opened, cls.engine, "the cascade"):
            tuned_after = None if stored is None else cls.parse(stored).first
            first = opened.settings.get("first") or tuned_after or cls.first
            if stored is None or tuned_after != first:
                how = cls.fitting(opened, first)
            else:
                how = cls.parse(with_window(stored, opened, lambda opened: cls.fitting(opened, first).window))
        return replace(how, **opened.given(*cls.options))

    @classmethod
    def fitting(cls, opened: Opened, first: First = "bm25-sparse") -> Cascade:
        """The default of an index with this engine first. Raises as that engine's settings do."""
        # How many hits an index of this size needs, and which tokens are rare, are questions for the first engine, too.
        if first == "bm25-sparse":
            return cls(window=max(cls.window, WeightedSum.stored(opened).window))
        two_phases = TwoPhases.of(opened)
        return cls(two_phases.rare, max(cls.window, two_phases.window), weight=RARE_FIRST_WEIGHT, first=first)
