"""match and multi_match: texts of which no term is left."""

from __future__ import annotations

from opensearch_neural.lint.clause_count import ENGLISH_STOP_WORDS, words_of
from opensearch_neural.lint.findings import Path
from opensearch_neural.lint.request import Body, LintedRequest


def match(request: LintedRequest, kind: str, inner: Body, path: Path) -> None:
    if kind == "match":
        ((_, how),) = list(inner.items())[:1] or [("", "")]
        how = how if isinstance(how, dict) else {"query": how}
    else:
        how = inner
    analyzer, text = how.get("analyzer", request.analyzer), how.get("query")
    if not isinstance(text, str) or how.get("zero_terms_query") == "all":
        return
    words = [word for word in text.lower().split() if word not in ENGLISH_STOP_WORDS]
    nothing = words_of(text, analyzer)[1] == 0
    if nothing or (analyzer == "english" and not words):
        request.report(
            "empty-query",
            "bends",
            path,
            f"no term is left of {text[:60]!r}: finds nothing",
            'answer such queries otherwise, or give "zero_terms_query": "all"',
        )
