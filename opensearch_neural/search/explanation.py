"""Why a hit has its score: the share of each query token, each BM25 word, the codes and the vector.

    answer = client.search(index="docs", body=queries.explained(body))
    for share in shares(answer["hits"]["hits"][0]["_explanation"]): …

The shares add up to `_score`. They are read from OpenSearch's explanation; `predicted` computes the tokens' part again from
the document's weights alone, with the oracle, which reveals a share that was read wrongly.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from opensearch_neural.errors import InputError
from opensearch_neural.lint.clause_count import MUST_NOT
from opensearch_neural.lint.values import as_list, number_or
from opensearch_neural.queries import DOT_ALIAS, REPLACED, Body, Clause, forward_index, look_up_table
from opensearch_neural.queries.body_parts import reads_rows

ScoreSource = Literal["bm25", "sparse", "codes", "dense", "other"]
TOLERANCE = 1e-4
"""Largest relative difference between a score and the sum of its parts: each search phase rounds to float32."""
LOST = 2.0**-24
"""float32 rounding loses a part below this share of a sum. Such a part is a score that was replaced (`queries.REPLACED`)."""
CODES = "[codes]"
"""The name of the share of a document's codes, which includes the query's constant offset."""
VECTOR = "[vector]"
"""The name of the share of a document's vector (`queries.dense_rescore`)."""
ROWS = "[all tokens]"
"""The name of the share of a forward-index row if one script reads several tokens (`queries.explained` makes it one token
per script)."""

_FEATURE = re.compile(r"^Linear function on the \S+ field for the (?P<token>.+) feature, computed as", re.DOTALL)
_HELD = re.compile(r"^ConstantScore\(FeatureQuery\(field=\S+, feature=(?P<token>.+), function=", re.DOTALL)
_TERM = re.compile(r"^weight\((?P<term>.+) in \d+\)", re.DOTALL)
_MAX = re.compile(r"^max (?:plus (?P<others>[\d.E-]+) times others )?of:")
_STAGES = ("primaryWeight", "secondaryWeight")


@dataclass(frozen=True)
class Share:
    """The share of one token, word or stage in a score."""

    source: ScoreSource
    """The kind of search or stage that gives the share."""
    token: str
    """A token, a word, or the name of another part, such as `CODES`."""
    score: float
    """What it adds to the hit's score."""
    query_weight: float | None = None
    """Weight of a sparse token in the query, times its stage's factor; score = query_weight · document_weight."""
    document_weight: float | None = None
    """The weight of a sparse token in the document; None if unknown."""
    literal: bool | None = None
    """True if a sparse token occurs in the document's text, False if the model added it, None if unknown."""

    def to_json(self) -> dict[str, Any]:
        """The fields that are known."""
        return {name: value for name, value in vars(self).items() if value is not None}


def shares(explanation: Mapping[str, Any]) -> list[Share]:
    """The shares of a score, the largest first, read from OpenSearch's explanation.

    Each share includes the weight of its search stage. A part that cannot be split further is a share of source "other".
    """
    by_name: dict[tuple[ScoreSource, str], Share] = {}

    def add(share: Share) -> None:
        key = (share.source, share.token)
        before = by_name.get(key)
        by_name[key] = share if before is None else _together(before, share)

    def visit(node: Mapping[str, Any], factor: float) -> None:
        description, details = node["description"], node["details"]
        if details and details[-1]["description"] in _STAGES:
            *stage, weight = details
            for detail in stage:
                visit(detail, factor * _value(weight))
            return
        value = _value(node)
        if factor == 0 or value == 0:
            return
        score = factor * value
        if match := _FEATURE.match(description):
            query_weight, document_weight = map(_value, details)
            token = match["token"].replace(DOT_ALIAS, ".")
            add(Share("sparse", token, score, factor * query_weight, _nine_bits(document_weight)))
        elif match := _HELD.match(description):
            add(Share("sparse", match["token"].replace(DOT_ALIAS, "."), score))
        elif match := _TERM.match(description):
            add(Share("bm25", _word(match["term"]), score))
        elif description.startswith("script score function"):
            add(_of_script(description, value, factor))
        elif description.startswith("Boosted score"):
            boost, boosted = details
            visit(boosted, factor * _value(boost))
        elif match := _MAX.match(description):
            best, *others = sorted(details, key=_value, reverse=True)
            visit(best, factor)
            for other in others:
                visit(other, factor * float(match["others"] or 0))
        elif not description.startswith("product of") and _adds_up(node):
            for detail in details:
                if abs(_value(detail)) > LOST * abs(value):
                    visit(detail, factor)
        else:
            add(_other(description, score))

    visit(explanation, 1.0)
    return sorted(by_name.values(), key=lambda share: (-share.score, share.source, share.token))


def _other(description: str, score: float) -> Share:
    return Share("other", " ".join(description.split())[:60], score)


def _of_script(description: str, value: float, factor: float) -> Share:
    score = factor * value
    if "knn_score" in description:
        return Share("dense", VECTOR, score)
    if look_up_table.SCRIPT.splitlines()[0] in description:
        return Share("codes", CODES, score)
    if forward_index.SCRIPT.splitlines()[0] not in description or "hashes" not in description:
        return _other(description, score)  # a script of the user's own
    read = _read_of_row(description)
    if read is None:
        return Share("sparse", ROWS, score)
    token, weight = read
    return Share("sparse", token, score, factor * weight, _nine_bits(value / weight))


def told_apart(explained: Iterable[Share], words: Collection[str]) -> list[Share]:
    """The shares, with `literal` set for sparse tokens. words: the tokens of the document's text."""
    return [replace(share, literal=share.token in words) if share.source == "sparse" else share for share in explained]


def predicted(body: Body, hits: Sequence[Iterable[Share]]) -> list[float]:
    """The score of each hit: what the oracle gives the body's tokens by the weights in the hit's shares, plus the shares
    without a weight (BM25, codes, …), which are taken as they are.

    Raises InputError for a body whose tokens' scores the oracle cannot tell, and for a share of several tokens (`ROWS`).
    """
    from opensearch_neural.search.oracle import StoredWeights, predict

    weights: list[dict[str, float]] = [{} for _ in hits]
    others = [0.0 for _ in hits]
    for number, explained in enumerate(hits):
        for share in explained:
            if share.document_weight is not None:
                weights[number][share.token] = share.document_weight
            elif share.token == ROWS:
                raise InputError("the score of several tokens together is not predicted")
            else:
                others[number] += share.score
    scores = predict(_tokens_alone(body), StoredWeights.of(weights))
    return [other + scores[number] for number, other in enumerate(others)]


ADDS_NOTHING: Clause = {"match_all": {"boost": 0.0}}
"""Stands for every clause whose score is no token's."""


def _tokens_alone(body: Body) -> Body:
    """The body's query and stages with `ADDS_NOTHING` for all that scores no tokens. Every document is a hit."""
    query = _clause_alone(body.get("query", ADDS_NOTHING), matches=True)
    end, stages = number_or(body.get("from"), 0) + number_or(body.get("size"), 10), []
    for stage in as_list(body.get("rescore")):
        how = stage["query"]
        # A hit that a stage which replaces scores does not match, or that is beyond its window, scores almost nothing, and
        # is not doubted.
        replaces = how.get("query_weight") == REPLACED
        if not replaces and number_or(stage.get("window_size"), 10) < end:
            raise InputError("which hits of a page are beyond a window is not known")
        clause = _clause_alone(how["rescore_query"], matches=replaces)
        stages.append({"query": {**how, "rescore_query": clause}})
    return {"query": {"bool": {"should": [ADDS_NOTHING, query]}}, "rescore": stages}


def _clause_alone(clause: Clause, *, matches: bool) -> Clause:
    """matches: whether it is known that every hit matches the clause."""
    ((kind, inner),) = clause.items() if len(clause) == 1 else [("", {})]
    if kind == "bool":
        if not matches and inner.keys() & {"must", "filter", *MUST_NOT, "minimum_should_match"}:
            raise InputError("the score of a bool that a hit need not match is not predicted")
        must = [_clause_alone(each, matches=matches) for each in as_list(inner.get("must"))]
        should = [_clause_alone(each, matches=False) for each in as_list(inner.get("should"))]
        return {"bool": {"must": must, "should": should, "boost": inner.get("boost", 1.0)}}
    if kind in ("match_none", "neural_sparse") or reads_rows(clause) or (kind == "rank_feature" and "linear" in inner):
        return clause
    if kind != "constant_score" and any(name in str(clause) for name in ("neural_sparse", "rank_feature", "hashes")):
        raise InputError(f"the score of tokens in a {kind or 'malformed'} query is not predicted")
    return ADDS_NOTHING


def doubts(body: Body, hits: Sequence[tuple[Sequence[Share], float]]) -> list[str | None]:
    """For each hit (shares, score) a sentence that says why its shares may be wrong; None if they add up and the oracle
    agrees."""
    try:
        expected: Sequence[float | None] = predicted(body, [explained for explained, _ in hits])
    except (InputError, ValueError):  # a body that the oracle does not know, or a damaged one
        expected = [None] * len(hits)
    return [
        _doubt(sum(share.score for share in explained), score, by_oracle)
        for (explained, score), by_oracle in zip(hits, expected, strict=True)
    ]


def _doubt(total: float, score: float, expected: float | None) -> str | None:
    if abs(total - score) > TOLERANCE * abs(score):
        return f"the shares add up to {total:.4f}, but the score is {score:.4f}"
    if expected is None or abs(score) < LOST * abs(expected):  # a hit beyond the window
        return None
    if abs(expected - score) > TOLERANCE * abs(score):
        return f"its tokens' weights give a score of {expected:.4f}, but it is {score:.4f}"
    return None


def _read_of_row(description: str) -> tuple[str, float] | None:
    """(the only token that the script reads from a row, its query weight); None if it reads several."""
    params = description.partition("params={")[2]
    start = params.find("tokens=[") + len("tokens=[")
    end = params.find("]", start)
    while end >= 0:  # a token may hold a bracket, too
        token = params[start:end]
        if f"hashes=[{forward_index.token_hash(token)}]" in params:
            weights = re.search(r"weights=\[([\d.E+-]+)\]", params[:start] + params[end:])
            return None if weights is None else (token, float(weights[1]))
        end = params.find("]", end + 1)
    return None


def _nine_bits(weight: float) -> float:
    """The nearest weight that an index can store. Dividing float32 numbers gives it only approximately, and so do the digits
    of an explanation."""
    (bits,) = struct.unpack(">I", struct.pack(">f", weight))
    (nearest,) = struct.unpack(">f", struct.pack(">I", bits + 0x4000 & 0xFFFF_8000))
    return float(nearest)


def _value(node: Mapping[str, Any]) -> float:
    """The value of a node, also an infinite one, which OpenSearch writes as a text."""
    return float(node["value"])


def _adds_up(node: Mapping[str, Any]) -> bool:
    """Whether an explanation's value, other than 0, is the sum of its details. An infinite value is the sum of anything."""
    total, value = sum(map(_value, node["details"])), _value(node)
    return bool(node["details"]) and abs(total - value) < 1e-5 * abs(value)


def _together(first: Share, second: Share) -> Share:
    """The sum of two shares with the same name: from two fields, or from two stages that score the same token."""
    if first.query_weight is None or second.query_weight is None or first.document_weight != second.document_weight:
        return replace(first, score=first.score + second.score, query_weight=None, document_weight=None)
    return replace(first, score=first.score + second.score, query_weight=first.query_weight + second.query_weight)


def _word(term: str) -> str:
    """The word in "contents:rain". The words in "Synonym(contents:rain contents:shower)" count as one: "rain / shower"."""
    synonyms = re.match(r"^Synonym\((?P<field>[^:]*):(?P<words>.*)\)$", term, flags=re.DOTALL)
    if synonyms is not None:
        return synonyms["words"].replace(f" {synonyms['field']}:", " / ")
    return term.partition(":")[2] or term
