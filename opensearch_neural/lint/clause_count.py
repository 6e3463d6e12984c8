"""How many clauses Lucene makes of a query: what OpenSearch holds against indices.query.bool.max_clause_count.

Two limits bear that one setting's name. A single bool, and a match query, which becomes one, may have `limit` clauses.
The whole tree may have `limit + 1` leaves after rewriting, whatever combines them; a filter on a number counts twice,
because Lucene keeps a query over points and one over doc values and decides later. Both were found on 2.19.1.

What a text becomes is the analyzer's business, and what a filter becomes is the mapping's, so counts here are bounds:
`low` is what there is at least, `high` at most.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from opensearch_neural.lint.values import as_list, number_or
from opensearch_neural.queries.clauses import Clause

# What Lucene's English analyzer removes.
_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
ENGLISH_STOP_WORDS = frozenset(_STOP_WORDS.split())

KEYWORD = "keyword"
"""The analyzer that keeps a text as one term; also said of fields that hold no words."""
OF_TEXT = ("match", "match_bool_prefix", "multi_match", "query_string", "simple_query_string")
"""Queries whose text is analyzed."""
AnalyzerOf = Callable[[str], "str | None"]

# A fuzzy term becomes as many terms as `max_expansions` says, 50 unless told.
FUZZY_EXPANSIONS = 50

# Where a query holds other queries: {kind: names of the members that are a query or a list of them}.
HOLDERS: dict[str, tuple[str, ...]] = {
    "bool": ("must", "should", "filter", "must_not"),
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
    """Leaves of the tree, and clauses of its widest single bool; each at least `low` and at most `high`."""

    low: int
    high: int
    widest_low: int = 1
    widest_high: int = 1

    def __add__(self, other: Count) -> Count:
        return Count(
            self.low + other.low,
            self.high + other.high,
            max(self.widest_low, other.widest_low),
            max(self.widest_high, other.widest_high),
        )


NOTHING = Count(0, 0, 0, 0)


def children(clause: Clause) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """(path inside the clause, query) of every query that a clause holds."""
    for kind, inner in clause.items():
        for name in HOLDERS.get(kind, ()) if isinstance(inner, dict) else ():
            held = inner.get(name)
            if isinstance(held, list):
                yield from (((kind, name, place), query) for place, query in enumerate(held))
            elif held is not None:
                yield (kind, name), held


def words_of(text: str, analyzer: str | None) -> tuple[int, int]:
    """(at least, at most) how many terms an analyzer makes of a text; 0 is the least that is known of a strange one.

    At most: one for each run of ASCII letters and digits, one for each other character that is no blank. Analyzers that
    make several terms of a word (n-grams, synonyms) are not thought of. Of a field without words: the text as a whole, which
    counts twice if it is a number.
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
    """The clauses of one query. analyzer_of: as `LintedRequest.analyzer_of`"""
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
    """(fields, how they are asked) of one of the queries OF_TEXT; the field "" stands for those of the index's default."""
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
    # Equal clauses are merged when the tree is rewritten, but only after the bool itself was built.
    bool_ = clause["bool"]
    direct = sum(len(held) if isinstance(held, list) else 1 for name in HOLDERS["bool"] if (held := bool_.get(name)))
    # A clause that matches nothing takes everything beside it away.
    required = [query for name in ("must", "filter") for query in as_list(bool_.get(name))]
    low = 0 if any(isinstance(query, dict) and "match_none" in query for query in required) else _distinct(clause)
    return Count(
        min(total.low, low),
        total.high,
        max(total.widest_low, direct),
        # Alternatives within alternatives become one bool.
        max(total.widest_high, direct, total.high),
    )


def _distinct(clause: Clause) -> int:
    """Leaves that are certainly there after equal ones were merged: features by name, everything else not counted."""
    features: set[tuple[str, str]] = set()

    def visit(query: Any) -> None:
        if not isinstance(query, dict):
            return
        for _, held in children(query):
            visit(held)
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
