"""Engines with options, so that each idea for a faster search can be measured on its own.

    bm25                                       as `osn search --engine bm25` sends it
    high-idf-first+window=50+rare=ratio:0.4    an engine with options
    small=high-idf-first+window=50             an engine with options, under a name

Engines are those of `opensearch_neural.engines` and `two-phase`, neural-search's own processor as a rival. Options:

    hits=yes            count all hits (track_total_hits), which keeps OpenSearch from skipping blocks; `10000`: count up to
                        10,000, the default of OpenSearch
    whole=yes           bm25-sparse: the sum over all documents, without a window
    keep=share:0.98     which tokens of the query are searched at all
    rescore=all         rescore with all tokens; `remaining` adds only the common tokens to phase one's score
    form=features       linear rank_feature clauses; `plugin`: the neural_sparse clause; both also in rescoring
    source=none         return no fields; `default`: title and url; `all`: everything
    size=20             hits on a page
    index=docs-pruned   another index: pruned documents, more segments, another setting; quality is measured there too

Options of `two-phase`:

    prune=0.4           tokens below this share of the highest weight wait for phase two
    expansion=5         rescored hits, as a multiple of the page

An engine's other options (`Engine.options`) have the names that they have in `osn search`, without those that load files.
Its options tokens, exact and clauses are called keep, whole and form here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import click
import orjson

from opensearch_neural.commands.option_groups import FiniteRange
from opensearch_neural.engines import ENGINES, Engines
from opensearch_neural.engines.dense import Dense
from opensearch_neural.engines.engine import Engine, Option
from opensearch_neural.engines.sparse import Bm25, Bm25Sparse, HighIdfFirst, Sparse
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.queries import Body, Rare

TWO_PHASE = "two-phase"


class TwoPhase(Sparse):
    """The requests of `sparse`, which neural-search's own two-phase processor changes by a search pipeline."""

    options = (
        Option("prune", FiniteRange(min=0), "tokens below this share of the highest weight wait for phase two.", "0.4"),
        Option("expansion", FiniteRange(min=1), "rescored hits, as a multiple of the page.", "5"),
    )


ALL_ENGINES: dict[str, type[Engine]] = {**ENGINES, TWO_PHASE: TwoPhase}
RENAMED = ("tokens", "exact", "clauses")
"""Options of engines that have other names here: keep (tokens), whole (exact) and form (clauses)."""

FAST = "fast=high-idf-first+rare=share:0.8+window=20+rescore=remaining+keep=share:0.98"
"""Rare tokens hold 80% of the weight, 20 hits are rescored, phase two does not repeat phase one's tokens, and the tokens
with the last 2% of the weight are not searched. Chosen on train questions of SciFact and WikiQA, among settings whose loss
of nDCG@10 stays below half a point with its 95% interval."""

PRESETS: dict[str, tuple[str, ...]] = {
    "sum": ("bm25", "bm25-sparse", "sparse", "high-idf-first"),
    "paper": ("bm25", "sparse", "high-idf-first", FAST),
    "quantized": ("bm25", "sparse", "high-idf-first", "dense", "hybrid", "jpq-rescore", "cascade"),
    "rivals": ("bm25", "sparse", "high-idf-first", TWO_PHASE),
    "windows": (
        "bm25",
        *(f"high-idf-first+window={window}" for window in (10, 20, 30, 50, 100, 200)),
        *(f"bm25-sparse+window={window}" for window in (20, 30, 50, 100, 200, 400)),
    ),
    "processor": (
        "bm25",
        "sparse",
        *(f"{TWO_PHASE}+prune={prune}+expansion={by}" for prune in (0.2, 0.4, 0.6, 0.8) for by in (2.0, 5.0, 10.0)),
    ),
}


class Bodies(Protocol):
    """An experiment's own way to make request bodies; plain data, since it is sent to worker processes."""

    def builder(self, engines: Engines, page: Mapping[str, Any]) -> Callable[[str], Body]:
        """The function from a query's text to its body; page: options for the functions of `queries`."""


@dataclass(frozen=True)
class Variant:
    """An engine and its options, as in the module's docstring. None: the engine's default, unless a field says otherwise."""

    name: str
    """Its name in tables."""
    engine: str
    """One of ALL_ENGINES."""
    index: str | None = None
    """The index to search; None: that of the run."""
    size: int = 10
    """Hits on a page."""
    hits: bool | int = False
    """Whether all hits are counted (`track_total_hits`); a number: up to this many."""
    keep: Rare | None = None
    """The tokens of the query that are searched at all; None: all."""
    rescore: str | None = None
    """"all": rescore with all tokens; "remaining": add only the common ones to phase one's score."""
    form: str | None = None
    """"features": linear rank_feature clauses; "plugin": the neural_sparse clause."""
    source: str = "default"
    """Fields of a hit that are returned: "none", "all", or "default" (title and url)."""
    whole: bool = False
    """Search all documents, without a window (bm25-sparse, and sparse with pruned postings)."""
    bodies: Bodies | None = None
    """Makes the request bodies in the engine's place. Their result approaches the engine's exact one."""
    settings: tuple[tuple[str, Any], ...] = ()
    """(name, value) of the engine's own options, for `open_engines`."""

    @property
    def kind(self) -> type[Engine]:
        return ALL_ENGINES[self.engine]

    @property
    def exact(self) -> Variant | None:
        """The search whose result this one approaches; None if it is exact itself, or nobody said what it approaches."""
        if issubclass(self.kind, Bm25Sparse) and (not self.whole or self.changes_hits):
            settings = tuple((name, value) for name, value in self.settings if name not in APPROXIMATE)
            return Variant(f"exact {self.engine}", self.engine, whole=True, settings=settings)
        if issubclass(self.kind, TwoPhase | HighIdfFirst) or (self.kind is Sparse and self.changes_hits):
            return EXACT_SPARSE
        if issubclass(self.kind, Bm25) and self.changes_hits:
            return Variant(f"exact {self.engine}", self.engine, settings=self.settings)
        return Variant("exact dense", "dense") if issubclass(self.kind, Dense) else None

    @property
    def changes_hits(self) -> bool:
        """Whether the result differs from that of the engine with its own options."""
        return any(value is not None for value in (self.keep, self.index, self.bodies))


EXACT_SPARSE = Variant("exact sparse", "sparse", whole=True)
APPROXIMATE = ("window", "rare", "tokens")
"""Options of bm25-sparse by which it approaches its exact result."""


def _yes(text: str) -> bool:
    return click.Choice(("yes", "no"))(text) == "yes"


def _hits(text: str) -> bool | int:
    if text in ("yes", "no"):
        return text == "yes"
    try:
        return COUNT(text)
    except click.BadParameter:
        raise ValueError(f"{text!r} is not yes, no or a whole number from 1") from None


COUNT = click.IntRange(min=1)
OPTIONS: dict[str, Callable[[str], Any]] = {
    "hits": _hits,
    "keep": Rare.parse,
    "rescore": click.Choice(("all", "remaining")),
    "form": click.Choice(("plugin", "features")),
    "source": click.Choice(("default", "none", "all")),
    "size": COUNT,
    "index": str,
    "whole": _yes,
}
"""{option: reads its value; raises ValueError or BadParameter, which say what is expected}"""


def parse_variants(text: str) -> list[Variant]:
    """Variants from a comma-separated list; the name of a preset (paper, rivals, …) stands for its variants.

    Raises InputError for an unknown engine, option or value, and for a repeated name.
    """
    specs = [spec for part in text.split(",") if part.strip() for spec in PRESETS.get(part.strip(), (part.strip(),))]
    variants = [parse_variant(spec) for spec in dict.fromkeys(specs)]
    if not variants:
        raise InputError("no engine was named", f"engines: {', '.join(ALL_ENGINES)}; presets: {', '.join(PRESETS)}")
    for variant in variants:
        if sum(other.name == variant.name for other in variants) > 1:
            raise InputError(f"two engines are called {variant.name!r}", "give one a name: NAME=ENGINE+OPTION=VALUE")
    return variants


def parse_variant(spec: str) -> Variant:
    """One variant from `[NAME=]ENGINE[+OPTION=VALUE]…`. Raises InputError naming what is wrong."""
    name, named, rest = spec.partition("=")
    if not named or "+" in name:
        name, rest = spec, spec
    engine, *options = rest.split("+")
    if engine not in ALL_ENGINES:
        raise InputError(
            f"there is no engine {engine!r} in {spec!r}",
            f"engines: {', '.join(ALL_ENGINES)}; presets: {', '.join(PRESETS)}",
        )
    if not re.fullmatch(r"[\w.:+=/-]+", name):
        raise InputError(f"{name!r} is not a valid name for an engine", "use letters, digits and . : + = / - _")
    values: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    own = own_options(engine)
    readers = OPTIONS | {name: _yes if taken.is_flag else taken.parse for name, taken in own.items()}
    for option in options:
        key, _, value = option.partition("=")
        if key not in readers:
            raise InputError(f"there is no option {key!r} in {spec!r}", f"options: {', '.join(readers)}")
        try:
            read = readers[key](value)
        except (ValueError, click.BadParameter) as error:
            raise InputError(f"{option!r} in {spec!r}: {error}") from None
        if key in own:
            settings[own[key].name] = read
        else:
            values[key.replace("-", "_")] = read
    return Variant(name, engine, **values, settings=tuple(sorted(settings.items())))


def own_options(engine: str) -> dict[str, Option]:
    """{name in a variant: option} of an engine's options, without those that load files and those that are RENAMED here."""
    named = {option.name.replace("_", "-"): option for option in ALL_ENGINES[engine].options if not option.loads}
    return {name: option for name, option in named.items() if name not in {*OPTIONS, *RENAMED}}


def body_builder(variant: Variant, engines: Engines) -> Callable[[str], Body]:
    """The function from a query's text to the variant's request body: an application's work before it sends a request.

    engines: of the variant's index. Models are loaded now. Raises what `Engines.body_of` raises, and ClusterError if the
    plugin is needed and missing.
    """
    plugin = engines.plugin if variant.form is None else variant.form == "plugin"
    needed = issubclass(variant.kind, TwoPhase) or (plugin and issubclass(variant.kind, Sparse))
    if needed and not engines.plugin:
        raise ClusterError(f"{variant.name!r} needs the neural-search plugin, which this cluster lacks")
    engine = variant.kind.name
    engines.body_of(engine)  # before it is copied, so that all variants share one encoder
    chosen = replace(with_options(variant, engines), plugin=plugin)
    page = page_of(variant)
    if variant.bodies is not None:
        return variant.bodies.builder(chosen, page)
    return lambda text: chosen.body(engine, text, **page)


def with_options(variant: Variant, engines: Engines) -> Engines:
    """`engines` with the variant's search options."""
    chosen = {
        "rescore_all": None if variant.rescore is None else variant.rescore == "all",
        "tokens": variant.keep,
        "exact": variant.whole or None,
        "clauses": variant.form is not None or None,
        **dict(variant.settings),
    }
    return engines.with_settings(**{name: value for name, value in chosen.items() if value is not None})


def page_of(variant: Variant) -> dict[str, Any]:
    """The variant's options for the functions of `queries`."""
    page: dict[str, Any] = {"size": variant.size, "track_total_hits": variant.hits}
    if variant.source != "default":
        page["source"] = variant.source == "all"
    return page


def parameters(variant: Variant) -> dict[str, str]:
    """The URL parameters of the variant's requests."""
    return {"request_cache": "false", **pipeline_parameter(variant)}


def pipeline_parameter(variant: Variant) -> dict[str, str]:
    """The URL parameter that names the variant's search pipeline; empty if it needs none."""
    pipeline = pipeline_of(variant)
    return {} if pipeline is None else {"search_pipeline": pipeline[0]}


def pipeline_of(variant: Variant) -> tuple[str, Body] | None:
    """(name, body) of the search pipeline that the variant needs on the cluster; None if it needs none.

    It is stored under a name, because OpenSearch parses a pipeline in a request every time. Equal pipelines have one name.
    """
    if not issubclass(variant.kind, TwoPhase):
        return None
    settings = {option.name: option.parse(option.default) for option in TwoPhase.options} | dict(variant.settings)
    parameter = {"prune_ratio": settings["prune"], "expansion_rate": settings["expansion"], "max_window_size": 10_000}
    body = {"request_processors": [{"neural_sparse_two_phase_processor": {"two_phase_parameter": parameter}}]}
    digest = hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()[:12]
    return f"osn-bench-{digest}", body


def spec_of(variant: Variant) -> str:
    """Its engine and options, in the syntax of `parse_variant`."""
    plain = Variant(variant.name, variant.engine)
    parts = [variant.engine]
    for key in OPTIONS:
        value = getattr(variant, key.replace("-", "_"))
        if value != getattr(plain, key.replace("-", "_")):
            parts.append(f"{key}={'yes' if value is True else value}")
    parts += [f"{name.replace('_', '-')}={'yes' if value is True else value}" for name, value in variant.settings]
    return "+".join(parts if variant.bodies is None else [*parts, str(variant.bodies)])
