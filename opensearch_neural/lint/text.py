"""match and multi_match: texts with no term left after analysis."""

from __future__ import annotations

from opensearch_neural.index.mapping import ENGLISH_STOP_WORDS
from opensearch_neural.lint.clause_count import KEYWORD, text_query, words_of
from opensearch_neural.lint.findings import Path
from opensearch_neural.lint.request import LintedRequest
from opensearch_neural.queries.body_parts import Body


def match(request: LintedRequest, kind: str, inner: Body, path: Path) -> None:
    fields, how = text_query(kind, inner)
    text = how.get("query")
    if not isinstance(text, str) or "zero_terms_query" in how:  # what such a text finds is chosen
        return
    left = {_is_left(text, how.get("analyzer") or request.analyzer_of(name)) for name in fields}
    if True not in left:
        request.report(
            "empty-query",
            "doubtful" if None in left else "bends",
            path,
            f"no term is left of {text[:60]!r}: it finds nothing",
            'answer such queries in another way, or give "zero_terms_query": "all"',
        )


def _is_left(text: str, analyzer: str | None) -> bool | None:
    """Whether the analyzer leaves a term of the text; None if that is not known."""
    words = [word for word in text.lower().split() if word not in ENGLISH_STOP_WORDS]
    if analyzer == KEYWORD or (words_of(text, analyzer)[1] > 0 and (words or analyzer != "english")):
        return True
    return False if analyzer in ("english", "standard") else None
