"""Settings of the engines with several phases: `osn tune` chooses them and keeps them in the index's record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, final, get_args

from opensearch_neural.engines.engine import OpenedIndex
from opensearch_neural.errors import ModelError
from opensearch_neural.index.shard_documents import SHARD_DOCUMENTS
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.queries import MOST_RESCORED, Rare

if TYPE_CHECKING:
    from typing_extensions import Self

WINDOW = 30
"""Hits of each shard that get their whole score, if a shard holds at most FITTED documents."""
FITTED = 100_000


def fitting_window(documents: int, power: float, window: int = WINDOW) -> int:
    """The window that keeps about 0.99 of the score in a shard of this many documents: `window` up to FITTED documents,
    beyond it window · (documents / FITTED)^power (`osn bench score-kept`)."""
    return round(window * max(1.0, documents / FITTED) ** power)


def with_window(
    stored: Mapping[str, Any], opened: OpenedIndex, chosen: Mapping[str, Any], fitting: Callable[[OpenedIndex], Setting]
) -> Mapping[str, Any]:
    """A stored setting with the window to search with: the stored window, grown with the index, else the default.
    Raises TypeError or ValueError if a stored number is invalid.

    If the caller chose a window, none is computed.

    A stored window grows by the same factor as the default window since the index was tuned, and never shrinks. A record of
    an older version, which does not say how many documents a shard held, keeps its window.

    fitting: returns the default of an index
    """
    if "window" in chosen:
        return {**stored, "window": WINDOW}
    if "window" not in stored:
        return {**stored, "window": fitting(opened).window}
    tuned_on = stored.get(SHARD_DOCUMENTS)
    if tuned_on is None:
        return stored
    then = replace(opened, meta=opened.meta.with_extra(**{SHARD_DOCUMENTS: int(tuned_on)}))
    window = int(stored["window"])
    grown = round(window * fitting(opened).window / fitting(then).window)
    return {**stored, "window": max(window, min(grown, MOST_RESCORED))}


First = Literal["bm25-sparse", "high-idf-first"]
"""The engines whose hits the cascade can rescore."""


def parse_first(text: str) -> First:
    """Raises ValueError for a name that is not in `First`."""
    if text not in get_args(First):
        raise ValueError(f"{text!r} is not one of {', '.join(get_args(First))}")
    return cast(First, text)


READ: dict[str, Callable[[Any], Any]] = {
    "rare": Rare.parse,
    "tokens": lambda stored: None if stored is None else Rare.parse(stored),
    "window": int,
    "dense_window": int,
    "weight": float,
    "exact": bool,
    "first": parse_first,
}
"""{field of a setting: function that reads its value from a record}"""


class Setting:
    """How an engine searches. Each engine has a subclass, a dataclass.

    Raises ValueError for a window below 1, and for a weight that is not above 0.
    """

    engine: ClassVar[str]
    key: ClassVar[str]
    """The key in the index's record under which the setting is stored, in the form of `record`."""
    options: ClassVar[tuple[str, ...]]
    """Options by which a caller can override the field of the same name."""
    window: int
    """Hits of each shard that get their whole score."""
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __post_init__(self) -> None:
        windows = [value for name, value in vars(self).items() if name in ("window", "dense_window")]
        if min(windows) < 1:
            raise ValueError(f"windows must be whole numbers from 1, not {self}")
        if not getattr(self, "weight", 1.0) > 0:
            raise ValueError(f"the weight must be above 0, not {self}")

    @property
    def record(self) -> dict[str, Any]:
        """The setting in the form that the index stores."""
        return {name: str(value) if isinstance(value, Rare) else value for name, value in vars(self).items()}

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> Self:
        """The inverse of `record`; ignores unknown fields, and a missing field has its default. Raises TypeError or
        ValueError for an invalid value."""
        return cls(**{each.name: READ[each.name](record[each.name]) for each in fields(cls) if each.name in record})

    @classmethod
    def fitting(cls, opened: OpenedIndex) -> Self:
        """The default of an index. Raises ClusterError if its documents must be counted and cannot be."""
        raise NotImplementedError

    @classmethod
    def resolve(cls, opened: OpenedIndex, chosen: Mapping[str, Any]) -> Self:
        """The stored setting, else the default. chosen: what the caller chose and replaces afterwards."""
        return cls.parse(with_window(opened.meta.extra.get(cls.key, {}), opened, chosen, cls.fitting))

    @classmethod
    @final
    def of(cls, opened: OpenedIndex, options: tuple[str, ...] | None = None) -> Self:
        """The setting: the caller's choice, else the stored one, else the default. Kept, since every query asks for it more
        than once.

        options: the options that the caller's choice may override; None: the engine's. Raises ModelError if the stored
        setting is invalid.
        """
        key = cls, options
        if key not in opened.resolved:
            chosen = opened.chosen_settings(*(cls.options if options is None else options))
            try:
                setting = cls.resolve(opened, chosen)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise ModelError(
                    f"the index {opened.index!r} stores a setting of the engine {cls.engine!r} that cannot be read: {error}",
                    f"`osn tune --engine {cls.engine}` stores a new one",
                ) from None
            opened.resolved[key] = replace(setting, **chosen)
        resolved: Self = opened.resolved[key]
        return resolved


BM25_SPARSE_POWER, HIGH_IDF_FIRST_POWER = 1 / 2, 1 / 4
"""Exponents by which the default windows of bm25-sparse and of high-IDF-first grow beyond FITTED documents."""


RARE_WORDS = Rare("ratio", 0.35)
"""The words that decide in phase one of bm25-sparse, if a shard holds more than FITTED documents. Chosen on train questions
of SciFact: of 0.2 to 0.65, the share with the least time for the score that is kept (docs/load.md)."""


@dataclass(frozen=True)
class Bm25SparseSetting(Setting):
    """How bm25-sparse searches.

    The default weight is the best, or almost, on dev and train questions, for a published SPLADE as for the same model
    trained further (`osn bench sum-weight`). The default window grows with the square root of the number of documents.
    """

    engine = "bm25-sparse"
    key = "bm25_sparse"
    options = ("weight", "window", "tokens", "rare")
    weight: float = 0.8
    """The score that the model adds to a known item, as a share of its BM25 score (`index.sparse_scale`)."""
    window: int = WINDOW
    """Hits of BM25 in each shard that get the model's score."""
    tokens: Rare | None = None
    """Which tokens of a query are added; None: all. With clauses, each token costs an index access for every hit."""
    rare: Rare | None = None
    """Which words of a query decide in BM25's phase; None: all. The caller's choice, else that for the index's size."""

    @property
    def record(self) -> dict[str, Any]:
        return {name: value for name, value in super().record.items() if name != "rare"}

    def __str__(self) -> str:
        tokens = f", of tokens {self.tokens}" if self.tokens else ""
        first = f", words {self.rare} first" if self.rare else ""
        return f"weight {self.weight:g}, window {self.window}{tokens}{first}"

    @classmethod
    def fitting(cls, opened: OpenedIndex) -> Bm25SparseSetting:
        documents = opened.load_shard_documents()
        rare = RARE_WORDS if documents > FITTED else None
        return cls(window=fitting_window(documents, BM25_SPARSE_POWER), rare=rare)

    @classmethod
    def resolve(cls, opened: OpenedIndex, chosen: Mapping[str, Any]) -> Bm25SparseSetting:
        setting = super().resolve(opened, chosen)
        return setting if "rare" in chosen else replace(setting, rare=cls.fitting(opened).rare)

    @classmethod
    def for_cascade(cls, opened: OpenedIndex) -> Bm25SparseSetting:
        """The stored setting, else the default, with only `tokens` as the caller chose, since the caller's weight and window
        are the cascade's own. All words decide in BM25's phase."""
        key = cls, "cascade"
        if key not in opened.resolved:
            opened.resolved[key] = replace(cls.of(opened, ("tokens",)), rare=None)
        resolved: Bm25SparseSetting = opened.resolved[key]
        return resolved


@dataclass(frozen=True)
class HighIdfFirstSetting(Setting):
    """How high-IDF-first searches."""

    engine = "high-idf-first"
    key = "high_idf_first"
    options = ("rare", "window", "tokens")
    rare: Rare = field(default_factory=Rare)
    """Which tokens are searched first."""
    window: int = WINDOW
    """Hits of each shard that are rescored. The default grows with the fourth root of the number of documents; with pruned
    postings it is that of `sparse`."""
    exact: bool = True
    """Whether phase two scores with all tokens again, or adds only the common ones (`queries.high_idf_first`)."""
    tokens: Rare | None = None
    """Which tokens of a query are searched; None: all."""

    def __str__(self) -> str:
        adds = "" if self.exact else ", common tokens added"
        return f"rare {self.rare}, window {self.window}{adds}" + (f", of tokens {self.tokens}" if self.tokens else "")

    @classmethod
    def fitting(cls, opened: OpenedIndex) -> HighIdfFirstSetting:
        if opened.has_pruned_postings():
            return cls(window=PrunedSparseSetting.fitting(opened).window)
        return cls(window=fitting_window(opened.load_shard_documents(), HIGH_IDF_FIRST_POWER))

    @classmethod
    def resolve(cls, opened: OpenedIndex, chosen: Mapping[str, Any]) -> HighIdfFirstSetting:
        setting = super().resolve(opened, chosen)
        # With pruned postings, the scores of phase one are too low to add common tokens to.
        return replace(setting, exact=opened.has_pruned_postings() or opened.settings.get("rescore_all", setting.exact))


MEASURED_SHARD = 1_000_000
PRUNED_WINDOWS = {0.5: (400, 800), 0.6: (100, 300), 0.65: (100, 200), 0.7: (50, 200)}
"""Default windows of `sparse` and high-IDF-first with pruned postings: {share that alpha_mass keeps: (window in a shard of
FITTED documents, window in a shard of MEASURED_SHARD)}. Each keeps 0.99 of the score of `sparse` (`osn bench large-sparse`);
the first window of 0.65 was not measured and is that of 0.6. High-IDF-first gets the same windows: it searches fewer tokens
first, so it needs at least as many hits."""


def pruned_window(rule: str, documents: int) -> int:
    """The window that keeps about 0.99 of the score if postings are pruned by this rule, in a shard of this many documents.

    A share between two in PRUNED_WINDOWS has the window of the smaller share. A rule that keeps less never has a narrower
    window. Rules that were not measured have the widest. Raises InputError for an invalid rule.
    """
    pruning = Pruning.parse(rule)
    mass = pruning.value if pruning.type == "alpha_mass" else 0.0
    least = max((share for share in PRUNED_WINDOWS if share <= mass), default=0.0)
    grown = math.log10(MEASURED_SHARD / FITTED)
    return max(
        fitting_window(documents, math.log10(larger / window) / grown, window)
        for share, (window, larger) in PRUNED_WINDOWS.items()
        if share >= least
    )


@dataclass(frozen=True)
class PrunedSparseSetting(Setting):
    """How `sparse` searches an index with pruned postings."""

    engine = "sparse"
    key = "pruned_sparse"
    options = ("window",)
    window: int
    """Hits of each shard that are rescored with their rows."""

    def __str__(self) -> str:
        return f"window {self.window}"

    @classmethod
    def fitting(cls, opened: OpenedIndex) -> PrunedSparseSetting:
        """The default of an index with pruned postings. Raises ClusterError if its documents must be counted and cannot
        be."""
        assert opened.meta.prune_postings is not None
        return cls(pruned_window(opened.meta.prune_postings, opened.load_shard_documents()))


RARE_FIRST_WEIGHT = 0.025
"""The cascade's default weight after high-idf-first: best, or almost, with BM25's impacts on train queries of squad-mix."""


@dataclass(frozen=True)
class CascadeSetting(Setting):
    """How the cascade searches.

    The default weight was the best of several on dev and train questions (`osn bench sum-weight --dense`); after
    high-idf-first it is RARE_FIRST_WEIGHT. The windows were best, or almost, on training queries of squad-mix.
    """

    engine = "cascade"
    key = "cascade"
    options = ("rare", "window", "dense_window", "weight", "first")
    rare: Rare = field(default_factory=Rare)
    """Which tokens high-idf-first searches first."""
    window: int = 100
    """Hits of each shard that are scored with all tokens; the default is at least the window of `first` alone."""
    dense_window: int = 50
    """Hits of each shard that are scored with their codes or vectors."""
    weight: float = 0.1
    """The score that one standard deviation of the documents' inner products (`spread` of the query's look-up table) adds,
    as a share of the sum of the query's token weights. So one weight fits long and short queries, and models with inner
    products of any size."""
    first: First = "bm25-sparse"
    """The engine whose hits the cascade rescores."""

    def __str__(self) -> str:
        how = f", rare {self.rare}" if self.first == "high-idf-first" else ""
        return f"{self.first} first, weight {self.weight:g}, windows {self.window} and {self.dense_window}{how}"

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> CascadeSetting:
        # Older records lack `first`; they were all tuned with high-idf-first.
        return super().parse({"first": "high-idf-first", **record})

    @classmethod
    def resolve(cls, opened: OpenedIndex, chosen: Mapping[str, Any]) -> CascadeSetting:
        """The stored setting if it was tuned with the same first engine, else the default."""
        stored = opened.meta.extra.get(cls.key)
        tuned_after = None if stored is None else cls.parse(stored).first
        first = chosen.get("first") or tuned_after or cls.first
        if stored is None or tuned_after != first:
            return cls.fitting(opened, first)
        return cls.parse(with_window(stored, opened, chosen, lambda opened: cls.fitting(opened, first)))

    @classmethod
    def fitting(cls, opened: OpenedIndex, first: First = "bm25-sparse") -> CascadeSetting:
        """The default of an index with this engine first. Raises as that engine's settings do."""
        # The first engine's settings know how many hits an index of this size needs, and which tokens are rare.
        if first == "bm25-sparse":
            return cls(window=max(cls.window, Bm25SparseSetting.for_cascade(opened).window))
        high_idf_first = HighIdfFirstSetting.of(opened)
        return cls(high_idf_first.rare, max(cls.window, high_idf_first.window), weight=RARE_FIRST_WEIGHT, first=first)


TUNED: tuple[type[Setting], ...] = (Bm25SparseSetting, HighIdfFirstSetting, PrunedSparseSetting, CascadeSetting)
"""The settings that `osn tune` stores in an index's record; each has a class in `tune.TUNINGS`."""
