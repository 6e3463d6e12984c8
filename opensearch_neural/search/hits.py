"""Hits as `osn search` and `osn ui` show them: title, excerpt, and the shares of an explained score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opensearch_neural.corpus.documents import BETWEEN, FieldNames, text_of
from opensearch_neural.corpus.sentences import Span
from opensearch_neural.queries import Body
from opensearch_neural.queries.answers import score_of
from opensearch_neural.search.excerpt import around, heaviest_sentence, marked_words, with_marks
from opensearch_neural.search.explanation import Share, doubts, shares, told_apart

if TYPE_CHECKING:
    from opensearch_neural.models.sparse.table_encoder import TableEncoder

GROUPS = {
    ("bm25", None): "BM25",
    ("sparse", None): "sparse",
    ("sparse", True): "sparse, in the text",
    ("sparse", False): "sparse, added by the model",
    ("codes", None): "codes",
    ("dense", None): "dense",
    ("other", None): "other",
}
"""{(source of a share, whether its token is in the text): the name shown}"""


def read_explanations(
    body: Body, hits: Sequence[tuple[str, Mapping[str, Any]]]
) -> tuple[list[list[Share] | None], list[str]]:
    """(the shares of each hit's score, None without an explanation; warnings about shares that may be wrong).

    hits: (the name for warnings, the hit)
    """
    adding = [shares(hit["_explanation"]) if "_explanation" in hit else None for _, hit in hits]
    scored = [  # a hit that is sorted by a field has no score, and an infinite one is the sum of anything
        (name, each, score)
        for (name, hit), each in zip(hits, adding, strict=True)
        if each is not None and (score := score_of(hit)) is not None and math.isfinite(score)
    ]
    doubtful = doubts(body, [(each, score) for _, each, score in scored])
    return adding, [f"{name}: {doubt}" for (name, *_), doubt in zip(scored, doubtful, strict=True) if doubt]


def hit_of(
    hit: Mapping[str, Any],
    *,
    document: str | None = None,
    encoder: TableEncoder | None = None,
    adding: Sequence[Share] | None = None,
) -> dict[str, Any]:
    """A hit as `osn search` shows it: id, score, title, url, an excerpt, and, if explained, the shares of its score.

    An explained hit also has the sentence of its text that contributes most to the score, if any; the excerpt includes it.

    document: the id of the document, if the hit is one of its passages; the passage is then shown too
    encoder: tells which tokens of a sparse model occur in the text
    adding: the shares of its score; None: read from the hit's explanation, if it has one
    """
    source = hit.get("_source", {})
    marked = hit.get("highlight", {})
    names = FieldNames()  # an index that `osn` did not write may have other names
    text_name = next((name for name in names.text if name in marked and name in source), names.find(source, "text"))
    title_value, text_value = (source.get(name) for name in (names.find(source, "title"), text_name))
    title, text = text_of(title_value, BETWEEN["title"]), text_of(text_value, BETWEEN["text"])
    fragments = [fragment for name, of_field in marked.items() if name != "title" for fragment in of_field]
    excerpt = " … ".join(fragments) or " ".join((text or "").split())[:200]
    shown: dict[str, Any] = {"id": document or id_of(hit), "score": score_of(hit)}
    shown["title"] = _marked_title(marked.get("title", []), title_value) or title
    if document and "passage" in source:
        shown["passage"] = source["passage"]
    if source.get("url"):
        shown["url"] = source["url"]
    shown["excerpt"] = " ".join(excerpt.split())
    if adding is None and "_explanation" in hit:
        adding = shares(hit["_explanation"])
    if adding is not None:
        if encoder is not None:
            adding = told_apart(adding, encoder.tokens_in(f"{title or ''} {text or ''}"))
        of_text = marked.get(text_name, [])
        words = marked_words(of_text, text_of(text_value, "\0") or "")
        if text and words is not None and (of_text or not fragments):  # else the user's own body asks for fragments
            shown |= sentence_of(text, words, adding, encoder)
        shown["tokens"] = [share.to_json() for share in adding]
        shown["sum"] = sum(share.score for share in adding)
    return shown


def sentence_of(
    text: str, words: Sequence[Span], adding: Sequence[Share], encoder: TableEncoder | None
) -> dict[str, str]:
    """An excerpt of the text with its marked words, and its sentence that contributes most to the score, if any."""
    sentence = heaviest_sentence(text, words, adding, *([encoder.tokens_in] if encoder else []))
    start, end = around(text, sentence or (words or [(0, 0)])[0])
    left, right = ("… " if text[:start].strip() else ""), (" …" if text[end:].strip() else "")
    shown = {"excerpt": f"{left}{with_marks(text, words, (start, end))}{right}"}
    return shown if sentence is None else {**shown, "sentence": with_marks(text, words, sentence)}


def id_of(hit: Mapping[str, Any]) -> str:
    return str(hit.get("_id", ""))  # the user's own body may ask for no stored field, not even the id


def _marked_title(highlighted: Sequence[str], title: Any) -> str:
    """The title with its marked words; "" without any. Of a list the highlighter leaves out strings without marks."""
    if not isinstance(title, list):
        return "".join(highlighted)
    words = marked_words(highlighted, text_of(title, "\0") or "")
    whole = text_of(title, BETWEEN["title"]) or ""
    return with_marks(whole, words, (0, len(whole))) if words else ""


@dataclass(frozen=True)
class ScorePart:
    """The part of a hit's score from one kind of share."""

    name: str
    """One of `GROUPS`, as shown."""
    score: float
    """The sum of its shares."""
    shares: list[Mapping[str, Any]]
    """As `hit_of` gives them, the largest first."""


def parts_of(hit: Mapping[str, Any]) -> list[ScorePart]:
    """The parts of an explained hit's score, in the order of `GROUPS`; empty if it is not explained."""
    parts = []
    for key, name in GROUPS.items():
        shares = [each for each in hit.get("tokens", ()) if (each["source"], each.get("literal")) == key]
        if shares:
            parts.append(ScorePart(name, sum(each["score"] for each in shares), shares))
    return parts
