"""How many clauses Lucene makes from a query: the number that indices.query.bool.max_clause_count limits.

The setting sets two limits. A single bool, or a match query, which becomes a bool, may have `limit` clauses. The whole tree
may have `limit + 1` leaves after rewriting, whatever combines them. A filter on a number counts twice, because Lucene keeps
a query over points and one over doc values, and chooses later. Both limits were observed on 2.19.1.

The number of terms depends on the analyzer, and the number of clauses of a filter on the mapping. So counts are bounds, from
`low` to `high`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from opensearch_neural.index.mapping import ENGLISH_STOP_WORDS
from opensearch_neural.lint.values import as_list, number_or
from opensearch_neural.queries.body_parts import Clause

KEYWORD = "keyword"
"""The analyzer that keeps a text as one term; also used for fields that hold no words."""
OF_TEXT = ("match", "match_bool_prefix", "multi_match", "query_string", "simple_query_string")
"""Queries whose text is analyzed."""
AnalyzerOf = Callable[[str], "str | None"]

# A fuzzy term becomes up to `max_expansions` terms, 50 by default.
FUZZY_EXPANSIONS = 50

MUST_NOT = ("must_not", "mustNot")
"""Both spellings that OpenSearch reads; the second is deprecated."""

# Queries that contain queries: {kind: members that are a query or a list of queries}.
HOLDERS: dict[str, tuple[str, ...]] = {
    "bool": ("must", "should", "filter", *MUST_NOT),
    "boosting": ("positive", "negative"),
    "constant_score": ("filter",),
    "dis_max": ("queries",),
    "function_score": ("query",),
    "has_child": ("query",),
    "has_parent": ("query",),
    "hybrid": ("queries",),
    "nested": ("query",),
    "script_score": ("query",),
}


@dataclass(frozen=True)
class Count:
    """Bounds of two numbers: the leaves of the tree, and the clauses of its widest single bool."""

    low: int
    """The fewest leaves that the tree can have."""
    high: int
    """The most leaves that the tree can have."""
    widest_low: int = 1
    """The fewest clauses of its widest single bool."""
    widest_high: int = 1
    """The most clauses of its widest single bool."""

    def __add__(self, other: Count) -> Count:
        return Count(
            self.low + other.low,
            self.high + other.high,
            max(self.widest_low, other.widest_low),
            max(self.widest_high, other.widest_high),
        )


NOTHING = Count(0, 0, 0, 0)


def children(clause: Clause) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """(path inside the clause, query) for every query that a clause directly contains."""
    for kind, inner in clause.items():
        for name in HOLDERS.get(kind, ()) if isinstance(inner, dict) else ():
            below = inner.get(name)
            if isinstance(below, list):
                yield from (((kind, name, place), query) for place, query in enumerate(below))
            elif below is not None:
                yield (kind, name), below


def clauses(
    query: Any, path: tuple[str | int, ...], *, beside: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Clause]]:
    """(path, clause) of a query and of all queries in it, without malformed ones and those in the members `beside`."""
    if not isinstance(query, dict) or len(query) != 1 or not isinstance(next(iter(query.values())), dict):
        return
    yield path, query
    for below, inner in children(query):
        if below[1] not in beside:
            yield from clauses(inner, (*path, *below), beside=beside)


def words_of(text: str, analyzer: str | None) -> tuple[int, int]:
    """(least, most) terms that an analyzer makes from a text. The least is 0 for an analyzer that is not known.

    The most: one for each run of ASCII letters and digits, and one for each other character except blanks. Analyzers that
    make several terms from a word (n-grams, synonyms) are not considered. A field without words gets the whole text as one
    value, which counts twice if it is a number.
    """
    runs = [-(-len(run) // 255) for run in re.findall(r"[A-Za-z0-9_]+", text)]
    most = sum(runs) + sum(1 for character in text if ord(character) > 127 and not character.isspace())
    if analyzer == KEYWORD:
        return 0, 2
    if analyzer not in ("english", "standard"):
        return 0, most
    stopped = ENGLISH_STOP_WORDS if analyzer == "english" else frozenset()
    plain = [word for word in text.lower().split() if re.fullmatch(r"[a-z0-9]{1,255}", word)]
    return sum(1 for word in plain if word not in stopped), most


def count(clause: Any, analyzer_of: AnalyzerOf = lambda name: None) -> Count:
    """The clauses of a query. analyzer_of: {field → analyzer}, like `LintedRequest.analyzer_of`."""
    if not isinstance(clause, dict) or len(clause) != 1:
        return NOTHING
    ((kind, inner),) = clause.items()
    if kind == "match_none" or not isinstance(inner, dict):
        return NOTHING
    if kind in HOLDERS:
        return _of_holder(clause, kind, analyzer_of)
    if kind == "neural_sparse":
        size = len(_tokens(inner))
        return Count(size, size, size, size)
    if kind in OF_TEXT:
        return _of_text(*text_query(kind, inner), analyzer_of)
    if kind in ("rank_feature", "match_all", "knn", "script"):
        return Count(1, 1)
    return Count(0, 2)


def text_query(kind: str, inner: Clause) -> tuple[list[str], Clause]:
    """(fields, options) of a query in OF_TEXT; the field "" stands for the index's default fields."""
    if kind in ("match", "match_bool_prefix"):
        ((name, how),) = list(inner.items())[:1] or [("", "")]
        return [name], how if isinstance(how, dict) else {"query": how}
    fields = inner.get("fields")
    return [str(name).partition("^")[0] for name in fields] if isinstance(fields, list) and fields else [""], inner


def _of_holder(clause: Clause, kind: str, analyzer_of: AnalyzerOf) -> Count:
    counts = [count(query, analyzer_of) for _, query in children(clause)]
    total = sum(counts, NOTHING)
    if kind != "bool":
        return total
    # Lucene merges equal clauses when it rewrites the tree, but only after it has built the bool.
    bool_ = clause["bool"]
    direct = sum(
        len(clauses) if isinstance(clauses, list) else 1 for name in HOLDERS["bool"] if (clauses := bool_.get(name))
    )
    # A required clause that matches nothing removes the whole bool.
    required = [query for name in ("must", "filter") for query in as_list(bool_.get(name))]
    low = 0 if any(isinstance(query, dict) and "match_none" in query for query in required) else _distinct(clause)
    return Count(
        min(total.low, low),
        total.high,
        max(total.widest_low, direct),
        # Nested `should` clauses are merged into one bool.
        max(total.widest_high, direct, total.high),
    )


def _distinct(clause: Clause) -> int:
    """The least number of leaves after equal ones are merged: features by name; nothing else is counted."""
    features: set[tuple[str, str]] = set()

    def visit(query: Any) -> None:
        if not isinstance(query, dict):
            return
        for _, below in children(query):
            visit(below)
        if isinstance(sparse := query.get("neural_sparse"), dict):
            features.update((field, token) for field in sparse for token in _tokens(sparse))
        if isinstance(feature := query.get("rank_feature"), dict):
            features.add(("", str(feature.get("field"))))

    visit(clause)
    return len(features)


def _of_text(fields: list[str], how: Clause, analyzer_of: AnalyzerOf) -> Count:
    words = [words_of(str(how.get("query", "")), how.get("analyzer") or analyzer_of(name)) for name in fields]
    low, high = max(least for least, _ in words), sum(most for _, most in words)
    if "fuzziness" in how:
        expansions = number_or(how.get("max_expansions"), FUZZY_EXPANSIONS)
        high *= int(expansions) if math.isfinite(expansions) else FUZZY_EXPANSIONS
    return Count(0, high, low, high)


def _tokens(sparse: Clause) -> dict[str, Any]:
    for options in sparse.values():
        if isinstance(options, dict) and isinstance(options.get("query_tokens"), dict):
            return options["query_tokens"]
    return {}
