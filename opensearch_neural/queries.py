"""OpenSearch request bodies, as plain dicts from pure functions.

Every function returns the whole body of a `_search` request: print it, paste it into Dashboards, send it with any client.
Nothing in a body depends on this library at run time.

    encoder = QueryEncoder.load("models/my-model")
    client.search(index="docs", body=queries.high_idf_first(encoder.encode("what causes a rainbow")))

A sparse query is a mapping {token: weight}; with the project's encoders a weight is the token's idf, since queries are
binary (`inference-free-sparse`, eq. 5). All functions take `filter`: an OpenSearch query clause, or a list of them, that
hits must match and that adds nothing to their score. `highlight` is the text whose words are to be marked in `title` and
`text`. `collapse` is the field by which hits are one: of several with the same value only the best is returned. For an
index of passages it is "parent"; `best_passages` reads the answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from opensearch_neural.look_up_table import SCRIPT, WEIGHTED_SCRIPT, PackedTable

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Body = dict[str, Any]
Clause = dict[str, Any]
Filter = Clause | Sequence[Clause] | None

DEFAULT_SOURCE = ("title", "url")

# Collapsing happens after nearest neighbours were found, and for hybrid queries not at all on the cluster: so many times as
# many are asked for. A document with more passages than this among the best leaves fewer documents than `size`.
COLLAPSED_PASSAGES = 5
MOST_HITS = 10_000
HIGHLIGHTED_CHARACTERS = 1_000_000
MOST_LISTED = 1_000

# `rank_feature` splits its field name at the last dot, so a token that holds one cannot be named there. Ingest writes such
# a token a second time under this look-alike, which word-piece tokenizers fold to "." and so never produce themselves.
DOT_ALIAS = "\u2024"

# What the score of one phase counts where that of the next replaces it. Beside the new score it is lost in the rounding to
# float32; hits that were not rescored keep it, and so their order, below all others. A power of two rounds no two to one.
REPLACED = 2.0**-40

# What a common token adds in phase one of high-IDF-first to a document that holds it, as a share of its weight in the query.
HELD = 0.2


@dataclass(frozen=True)
class Rare:
    """Which tokens of a query count as rare, that is: are searched for in phase one.

    by="ratio"   tokens whose weight is at least `value` × the query's highest weight
    by="share"   the heaviest tokens that together hold at least `value` of the query's total weight
    by="count"   the `value` heaviest tokens

    Half of the highest weight, and 30 hits rescored, kept nDCG@10 within half a point of all tokens on training queries
    of three kinds (scientific claims, web-search questions, questions about paragraphs) at the least cost.

    At least one token is always rare. Raises ValueError for another rule, a ratio or share
    outside 0 to 1, and a count that is no whole number from 1.
    """

    by: Literal["ratio", "share", "count"] = "ratio"
    value: float = 0.5

    def __post_init__(self) -> None:
        if self.by not in ("ratio", "share", "count"):
            raise ValueError(f"by must be ratio, share or count, not {self.by!r}")
        if self.by == "count":
            if self.value < 1 or int(self.value) != self.value:
                raise ValueError(f"a count of rare tokens must be a whole number from 1, not {self.value!r}")
        elif not 0 <= self.value <= 1:
            raise ValueError(f"a {self.by} must lie between 0 and 1, not {self.value!r}")

    def __str__(self) -> str:
        return f"{self.by}:{self.value:g}"

    @classmethod
    def parse(cls, text: str) -> Rare:
        """`Rare` from "ratio:0.6", "share:0.8" or "count:3", as the command line writes it."""
        by, _, value = text.partition(":")
        try:
            return cls(by, float(value))  # type: ignore[arg-type]
        except ValueError as error:
            raise ValueError(f"{text!r} is not a threshold like ratio:0.6, share:0.8 or count:3 ({error})") from None


def rare_tokens(tokens: Mapping[str, float], rare: Rare = Rare()) -> dict[str, float]:
    """The tokens of phase one of high-IDF-first, in the order of `tokens`; all of an empty query."""
    if not tokens:
        return {}
    if rare.by == "ratio":
        least = rare.value * max(tokens.values())
        return {token: weight for token, weight in tokens.items() if weight >= least}
    heaviest_first = sorted(sorted(tokens), key=tokens.__getitem__, reverse=True)  # of equal ones the first by name
    if rare.by == "count":
        chosen = set(heaviest_first[: int(rare.value)])
    else:
        # A little less than asked for is accepted, so that the rounding of a sum never adds a token.
        needed, held, chosen = rare.value * sum(tokens.values()) * (1 - 1e-9), 0.0, set()
        for token in heaviest_first:
            if chosen and held >= needed:
                break
            chosen.add(token)
            held += tokens[token]
    return {token: weight for token, weight in tokens.items() if token in chosen}


def bm25(
    text: str,
    *,
    size: int = 10,
    from_: int = 0,
    fields: Sequence[str] = ("contents",),
    filter: Filter = None,
    source: Sequence[str] | bool = DEFAULT_SOURCE,
    track_total_hits: bool = False,
    highlight: str | None = None,
    collapse: str | None = None,
) -> Body:
    """BM25 over `contents` (title and text together), or over several fields, whose scores are then added.

    `track_total_hits` is off, here as everywhere: OpenSearch may then skip blocks of documents that cannot reach the top
    (block-max WAND), which is what makes BM25 fast. Raises ValueError without a field.
    """
    query = _filtered(_match(text, fields), filter)
    return _body(query, size, from_, source, track_total_hits, highlight, collapse)


def bm25_sparse(
    text: str,
    tokens: Mapping[str, float],
    *,
    weight: float = 1.0,
    window: int | None = 50,
    base: Clause | None = None,
    fields: Sequence[str] = ("contents",),
    plugin: bool = True,
    size: int = 10,
    from_: int = 0,
    field: str = "sparse",
    filter: Filter = None,
    source: Sequence[str] | bool = DEFAULT_SOURCE,
    track_total_hits: bool = False,
    highlight: str | None = None,
    collapse: str | None = None,
) -> Body:
    """BM25, and what a sparse model adds: score(d) = BM25(d) + weight · Σ_t tokens[t] · d_t.

    BM25 searches, and its `window` best hits of each shard get what the model adds. What lies beyond the window keeps its
    BM25 score, and follows: the window is the same for every page, so that pages put together are one ranking without
    repeats. A window of the deepest page that is asked for, or more, gives every hit its whole score.

    What the rescoring costs grows with the window and with the tokens. Of a long query the eight heaviest do:
    `rare_tokens(tokens, Rare("count", 8))`.

    With window=None both parts search: the exact sum over all documents, those included that hold no word of the query. It
    takes longer. `certified` tells whether a page of the window is the exact one.

    With `collapse` there is no window either, because OpenSearch collapses nothing that it rescores: with a window, all
    documents that BM25 finds get the whole score.

    base: a query clause that stands where BM25 stands (boosts, phrases, a user's own query); its scores must not be
    negative, and `text` and `fields` are not used. Raises ValueError for a weight that is not above 0, a window below 1, and
    as `bm25`.
    """
    if not 0 < weight < math.inf:
        raise ValueError(f"weight must be a number above 0, not {weight}")
    if window is not None and window < 1:
        raise ValueError(f"window must be a whole number from 1, or None, not {window}")
    first = dict(base) if base is not None else _match(text, fields)
    query = first
    if tokens and window is None:
        query = {"bool": {"should": [first, _sparse(tokens, field, plugin, boost=weight)]}}
    elif tokens and collapse:
        query = {"bool": {"must": [first], "should": [_sparse(tokens, field, plugin, boost=weight)]}}
    body = _body(_filtered(query, filter), size, from_, source, track_total_hits, highlight, collapse)
    if tokens and window is not None and not collapse:
        added = {"rescore_query": _sparse(tokens, field, plugin), "rescore_query_weight": float(weight)}
        body["rescore"] = {"window_size": window, "query": added}
    return body


def window_end(body: Body) -> Body:
    """The request for the last hit of the window of a `bm25_sparse` or `high_idf_first` body, by its first phase alone:
    what `certified` compares with.

    Raises ValueError for a body without such a window.
    """
    stage, _, _ = _second_phase(body)
    last = {"size": 1, "from": stage["window_size"] - 1, "_source": False, "track_total_hits": False}
    return {"query": body["query"], **last}


def heaviest(body: Body) -> dict[str, Body]:
    """{token: the request for the document in which the token weighs most} of the tokens of a body's second phase.

    The hit's score is that weight, as the index stores it. Raises ValueError for a body without a window.
    """
    _, field, tokens = _second_phase(body)
    best = {"size": 1, "_source": False, "track_total_hits": False}
    return {token: {"query": _sparse({token: 1.0}, field, plugin=False), **best} for token in tokens}


def certified(body: Body, answer: Mapping[str, Any], end: Mapping[str, Any], largest: Mapping[str, float]) -> bool:
    """Whether the page that a body got is exactly that of all documents, without searching so: for `bm25_sparse` that of
    `window=None`, for `high_idf_first` that of `neural_sparse`.

    No document outside the windows has more in the first phase than a window's last hit, and no more can be added to that
    than what the tokens of the second phase add at their largest weights (the bound of MaxScore): for `bm25_sparse` weight ·
    Σ_t tokens[t] · largest[t], for `high_idf_first` as much of each common token as is above what it has added already. If
    the page's last hit has more than that, nothing outside belongs on the page or before it. On several shards the last
    hit's score is that of the whole index, which is no less than any shard's.

    answer: to the body. end: the answer to `window_end(body)`. largest: {token: its largest weight in the index}, or more;
    a token that is not in it is in no document. Raises ValueError for a body without a window.
    """
    stage, _, tokens = _second_phase(body)
    hits, last = answer["hits"]["hits"], end["hits"]["hits"]
    held = _held_scores(body["query"])
    if held and not last:
        return True  # all that match lie within the windows
    # Of a sum every document is scored, also what its first phase does not match.
    weight = 1.0 if held else stage["query"].get("rescore_query_weight", 1.0)
    most = {token: weight * value * largest.get(token, 0.0) for token, value in tokens.items()}
    if not held and not any(most.values()):
        return True  # the sum is BM25's
    added = sum(max(0.0, most[token] - held.get(token, 0.0)) for token in (held or tokens))
    bound = (last[0]["_score"] if last else 0.0) + added
    # A full page, and more than the bound by what adding up in float32 may cost.
    return len(hits) == body["size"] and hits[-1]["_score"] > bound * (1 + 1e-6)


def _second_phase(body: Body) -> tuple[dict[str, Any], str, dict[str, float]]:
    """(the rescoring stage, its field, its tokens) of a `bm25_sparse` or `high_idf_first` body."""
    stage = body.get("rescore")
    if isinstance(stage, dict) and stage["query"].get("query_weight", 1.0) in (1.0, REPLACED):
        try:
            return stage, *sparse_tokens(stage["query"]["rescore_query"])
        except ValueError:
            pass
    raise ValueError("the body is none of bm25_sparse or high_idf_first with a window and no stage after it")


def neural_sparse(
    tokens: Mapping[str, float],
    *,
    plugin: bool = True,
    size: int = 10,
    from_: int = 0,
    field: str = "sparse",
    filter: Filter = None,
    source: Sequence[str] | bool = DEFAULT_SOURCE,
    track_total_hits: bool = False,
    highlight: str | None = None,
    collapse: str | None = None,
) -> Body:
    """All tokens: score(d) = Σ_t tokens[t] · d_t.

    With `plugin` the clause is `neural_sparse` with raw query tokens (neural-search plugin, no model on the cluster);
    without, a `bool` of linear `rank_feature` clauses, which every OpenSearch has. The scores are equal.
    """
    query = _filtered(_sparse(tokens, field, plugin), filter)
    return _body(query, size, from_, source, track_total_hits, highlight, collapse)


def high_idf_first(
    tokens: Mapping[str, float],
    *,
    rare: Rare = Rare(),
    window: int = 30,
    exact: bool = True,
    plugin: bool = True,
    size: int = 10,
    from_: int = 0,
    field: str = "sparse",
    filter: Filter = None,
    source: Sequence[str] | bool = DEFAULT_SOURCE,
    track_total_hits: bool = False,
    highlight: str | None = None,
    collapse: str | None = None,
) -> Body:
    """Rare tokens first, the best of what they find rescored with all tokens (`inference-free-sparse`, section 5.3.2).

    In phase one a common token adds the same to every document that holds it: `HELD` times its weight. What it weighs
    there is not read, and as it adds little, OpenSearch passes over documents that hold common tokens only, once rare ones
    have filled the window. Where rare tokens find too few documents the common ones fill up: a page is full whenever that of
    all tokens is.

    A hit's score is the full query's score. What is lost, by design: documents beyond the `window` best of phase one in each
    shard. The window is the same for every page, so that pages put together are one ranking without repeats. Hits beyond it
    come behind, in the order of phase one, and their scores are not the query's; a window of the deepest page that is asked
    for, or more, gives every hit its score.

    With `exact` the second phase scores with all tokens anew. Without, it adds the common tokens' scores to what the first
    has found and reads no rare token twice: the same sum but for the last bits of a float32, to which each phase rounds.
    Common tokens then add next to nothing in phase one, so that it chooses by rare tokens alone where these find enough.

    With `collapse` there is one phase, because OpenSearch collapses nothing that it rescores: every document is scored with
    all tokens. So there is no window and what lies beyond it is not lost; it takes longer.

    Tokens that all weigh the same are searched in one phase too. Raises ValueError for a window below 1.
    """
    if window < 1:
        raise ValueError(f"window must be a whole number from 1, not {window}")
    # Of tokens that weigh the same, as a table without spread has them, none is rarer than another.
    first = rare_tokens(tokens, rare) if len(set(tokens.values())) > 1 else tokens
    common = {token: weight for token, weight in tokens.items() if token not in first}
    if not common or collapse:
        query = _filtered(_sparse(tokens, field, plugin), filter)
        return _body(query, size, from_, source, track_total_hits, highlight, collapse)
    held = [_held(token, weight * (HELD if exact else REPLACED), field) for token, weight in common.items()]
    query = _filtered({"bool": {"should": [_sparse(first, field, plugin), *held]}}, filter)
    body = _body(query, size, from_, source, track_total_hits, highlight, collapse)
    if exact:
        replaced = {"query_weight": REPLACED, "rescore_query_weight": 1.0}
        second = {"rescore_query": _sparse(tokens, field, plugin), **replaced}
    else:
        # The sum of both phases counts, which is what OpenSearch does unless told otherwise.
        second = {"rescore_query": _sparse(common, field, plugin)}
    body["rescore"] = {"window_size": window, "query": second}
    return body


def searched_first(body: Body) -> tuple[str, dict[str, float]]:
    """(field, {token: weight}) of the rare tokens of a `high_idf_first` body; of a body with one phase, all its tokens.

    Raises ValueError for a query that is not sparse.
    """
    query = body["query"]
    query = query["bool"]["must"][0] if "must" in query.get("bool", {}) else query
    parts = query.get("bool", {}).get("should", [])
    return sparse_tokens(parts[0] if any("constant_score" in part for part in parts) else query)


def _held_scores(query: Clause) -> dict[str, float]:
    """{common token: what phase one of a `high_idf_first` query adds to a document that holds it}; none in any other."""
    query = query["bool"]["must"][0] if "must" in query.get("bool", {}) else query
    held = [part["constant_score"] for part in query.get("bool", {}).get("should", []) if "constant_score" in part]
    features = [(clause["filter"].get("rank_feature", {}), clause["boost"]) for clause in held]
    return {_token_of(feature): boost for feature, boost in features if feature}


def knn(
    vector: Sequence[float] | NDArray[Any],
    *,
    size: int = 10,
    from_: int = 0,
    k: int = 100,
    field: str = "dense",
    filter: Filter = None,
    source: Sequence[str] | bool = DEFAULT_SOURCE,
    track_total_hits: bool = False,
    highlight: str | None = None,
    collapse: str | None = None,
) -> Body:
    """Approximate nearest neighbours of `vector` (length = the field's dimension) over the HNSW graph.

    `k` is how many neighbours each segment is asked for, and with the Lucene engine also how wide its search is: asked for
    no more than the page shows, it misses some of the nearest. It is at least `from_ + size`, and `COLLAPSED_PASSAGES`
    times that with `collapse`. A filter is applied during the graph search, so it does not cost hits.
    """
    least = min(MOST_HITS, (from_ + size) * COLLAPSED_PASSAGES) if collapse else from_ + size
    clause: dict[str, Any] = {"vector": _numbers(vector), "k": max(k, least)}
    if filter:
        clause["filter"] = {"bool": {"filter": _clauses(filter)}}
    return _body({"knn": {field: clause}}, size, from_, source, track_total_hits, highlight, collapse)


def quantized(
    table: ArrayLike,
    *,
    size: int = 10,
    from_: int = 0,
    field: str = "pq",
    filter: Filter = None,
    source: Sequence[str] | bool = DEFAULT_SOURCE,
    track_total_hits: bool = False,
    highlight: str | None = None,
    collapse: str | None = None,
) -> Body:
    """Every document that passes the filter, by the exact inner product of the query with its reconstructed vector.

    table: (M, 256), of `Quantizer.table`. Time grows with the documents that pass. A hit's score is above the inner
    product by `quantized_offset` of the body. Raises ValueError as `PackedTable.of` does.
    """
    query = _quantized(table, field, _filtered({"exists": {"field": field}}, filter))
    return _body(query, size, from_, source, track_total_hits, highlight, collapse)


def quantized_rescore(
    body: Body,
    table: ArrayLike,
    *,
    window: int = 100,
    weight: float = 1.0,
    first_weight: float = 0.0,
    field: str = "pq",
) -> Body:
    """A body of this module with one stage more: the inner product of the query with each hit's reconstructed vector,
    exactly, from the M bytes in `field` (JPQ, section 2.4), for the `window` best hits of each shard.

    table: (M, 256), of `Quantizer.table`. A hit's score becomes

        first_weight · (score so far) + weight · (inner product + offset)

    where the offset is the least constant that keeps every score from being negative, which OpenSearch would refuse. It
    is the same for all hits of a query, so that it changes no ranking; `quantized_offset` of the body says what to
    subtract. Hits without a code are ranked as by the least inner product there can be. The window is the same for every
    page, and hits beyond it come behind, in the order that they had: pages put together are one ranking without repeats.

    A body with `collapse` gets no stage, because OpenSearch collapses nothing that it rescores: everything that its query
    matches is scored so, window or not.

    Raises ValueError for a hybrid body, weights that put the best last, and as `PackedTable.of` does.
    """
    if "search_pipeline" in body:
        raise ValueError("a hybrid query is rescored before its parts are fused: rescore a body without one")
    if not weight > 0 or not first_weight >= 0:
        raise ValueError(f"weight must be above 0 and first_weight not below, not {weight} and {first_weight}")
    if "collapse" in body:
        script = _quantized(table, field, body["query"])
        script["script_score"]["script"] = {
            "source": WEIGHTED_SCRIPT,
            "params": {
                **script["script_score"]["script"]["params"],
                "weight": float(weight),
                "first_weight": float(first_weight),
            },
        }
        return {**body, "query": script}
    stage = {
        "window_size": window,
        "query": {
            "rescore_query": _quantized(table, field, {"match_all": {}}),
            "query_weight": float(first_weight) or REPLACED,
            "rescore_query_weight": float(weight),
        },
    }
    before = body.get("rescore", [])
    return {**body, "rescore": [*(before if isinstance(before, list) else [before]), stage]}


def quantized_offset(body: Body) -> float:
    """By how much the scores of a body's hits lie above what the inner products alone make of them.

    Of `quantized_rescore` and `cascade` it holds for hits that were rescored, which are those of the page. Raises ValueError
    for a body without quantized scores.
    """
    for stage in reversed(body.get("rescore", [])) if isinstance(body.get("rescore"), list) else []:
        if "script_score" in stage["query"]["rescore_query"]:
            script = stage["query"]["rescore_query"]["script_score"]["script"]
            return script["params"]["offset"] * stage["query"]["rescore_query_weight"]
    if "script_score" in body["query"]:
        params = body["query"]["script_score"]["script"]["params"]
        return params["offset"] * params.get("weight", 1.0)
    raise ValueError("the body has no quantized scores")


def cascade(
    tokens: Mapping[str, float],
    table: ArrayLike,
    *,
    rare: Rare = Rare(),
    window: int = 100,
    dense_window: int = 50,
    weight: float = 1.0,
    plugin: bool = True,
    size: int = 10,
    from_: int = 0,
    field: str = "sparse",
    filter: Filter = None,
    source: Sequence[str] | bool = DEFAULT_SOURCE,
    track_total_hits: bool = False,
    highlight: str | None = None,
    collapse: str | None = None,
) -> Body:
    """Rare tokens first, all tokens for the `window` best of these, and the inner product with the reconstructed vectors for
    the `dense_window` best of those: three stages in one request, windows counted in each shard.

    The score of a hit is `high_idf_first`'s + weight · (inner product + offset), see `quantized_rescore`. table: (M, 256).
    The second stage's window is no narrower than the third's. Windows are the same for every page.
    """
    first = high_idf_first(
        tokens,
        rare=rare,
        window=max(window, dense_window),
        plugin=plugin,
        size=size,
        from_=from_,
        field=field,
        filter=filter,
        source=source,
        track_total_hits=track_total_hits,
        highlight=highlight,
        collapse=collapse,
    )
    return quantized_rescore(first, table, window=dense_window, weight=weight, first_weight=1.0)


def listed(
    scores: Mapping[str, float],
    *,
    size: int = 10,
    from_: int = 0,
    filter: Filter = None,
    source: Sequence[str] | bool = DEFAULT_SOURCE,
    track_total_hits: bool = False,
    highlight: str | None = None,
    collapse: str | None = None,
    field: str = "_id",
) -> Body:
    """Documents that were found elsewhere, {id: score}, in the order of their scores; those that the index does not hold
    (any more), or that do not pass the filter, are left out. With another `field` they are known by its value instead.

    Scores are as given, or all raised by the same constant where one is not above 0. Raises ValueError for more than
    `MOST_LISTED`.
    """
    if len(scores) > MOST_LISTED:
        raise ValueError(f"{len(scores):,} documents are more than a request can list, {MOST_LISTED:,}")
    least = min(scores.values(), default=1.0)
    raised = 0.0 if least > 0 else 1.0 - least
    each = [
        {
            "constant_score": {
                "filter": {"ids": {"values": [id]}} if field == "_id" else {"term": {field: id}},
                "boost": float(score) + raised,
            }
        }
        for id, score in scores.items()
    ]
    query: Clause = {"bool": {"should": each}} if each else {"match_none": {}}
    return _body(_filtered(query, filter), size, from_, source, track_total_hits, highlight, collapse)


def listed_count(body: Body) -> int:
    """How many documents a body of `listed` asks for. Where fewer are counted, the index does not hold the others."""
    query = body["query"]["bool"]["must"][0] if "must" in body["query"].get("bool", {}) else body["query"]
    return len(query.get("bool", {}).get("should", []))


def listed_urls(body: Body) -> list[str]:
    """The URLs that a body of `listed(field="url")` asks for, best first, or one of `hybrid` with such a body in it."""
    parts = body["query"].get("hybrid", {}).get("queries", [body["query"]])
    clauses = [clause for part in parts for clause in part.get("bool", {}).get("should", [])]
    terms = [clause.get("constant_score", {}).get("filter", {}).get("term", {}) for clause in clauses]
    return [term["url"] for term in terms if "url" in term]


def unfound_urls(body: Body, urls: Sequence[str | None]) -> list[str]:
    """Which URLs that a body of `listed(field="url")` asks for the index does not hold, as far as the answer's first page,
    `urls` of its hits, tells: all of them where it is not full, else those that would rank above its last hit."""
    asked = listed_urls(body)
    if len(urls) >= body.get("size", 10):
        asked = asked[: max((asked.index(url) for url in urls if url in asked), default=0)]
    return [url for url in asked if url not in urls]


def hybrid(
    *bodies: Body,
    method: Literal["min_max", "l2", "rrf"] = "min_max",
    weights: Sequence[float] | None = None,
    depth: int | None = 100,
    size: int = 10,
    from_: int = 0,
    filter: Filter = None,
    source: Sequence[str] | bool = DEFAULT_SOURCE,
    track_total_hits: bool = False,
    highlight: str | None = None,
    collapse: str | None = None,
) -> Body:
    """Several bodies of this module in one request, their scores normalized and averaged, or their ranks fused (RRF).

    Needs the neural-search plugin. The normalization travels with the request as a temporary search pipeline, so nothing
    has to be set up on the cluster. `weights`: one per body, none negative, summing to 1; equal ones when left out (RRF
    knows none). `filter` is put into each of the bodies, beside what they filter by already. `depth` is how many hits of
    each body in each shard are fused, before the page is cut out of them (OpenSearch 2.19 and later; None before, which
    fuses `size` hits).

    With `collapse` the body asks for the first `COLLAPSED_PASSAGES * (from_ + size)` hits with their values of that field,
    because OpenSearch 2.19 takes a hybrid query with `collapse` and does not collapse it: `best_passages` then cuts out
    the page.

    Raises ValueError for fewer than two bodies, a body that needs a second phase (`rescore`), or weights that
    OpenSearch would refuse.
    """
    if len(bodies) < 2:
        raise ValueError("hybrid needs at least two bodies")
    if any("rescore" in body or "search_pipeline" in body for body in bodies):
        raise ValueError("a body with a rescore phase or a pipeline of its own cannot be part of a hybrid query")
    if weights is not None:
        if method == "rrf":
            raise ValueError("rank fusion takes no weights; give them to min_max or l2")
        if len(weights) != len(bodies):
            raise ValueError(f"hybrid got {len(weights)} weights for {len(bodies)} bodies")
        if any(weight < 0 for weight in weights) or abs(sum(weights) - 1) > 1e-3:
            raise ValueError(f"the weights of hybrid must not be negative and must sum to 1, not {list(weights)}")
    combination: dict[str, Any] = {}
    if weights is not None:
        combination["parameters"] = {"weights": [float(weight) for weight in weights]}  # an int is a 500
    if method == "rrf":
        processor = {"score-ranker-processor": {"combination": {"technique": "rrf"}}}
    else:
        processor = {
            "normalization-processor": {
                "normalization": {"technique": method},
                "combination": {"technique": "arithmetic_mean", **combination},
            }
        }
    query: Clause = {"hybrid": {"queries": [_narrowed(body["query"], filter) for body in bodies]}}
    if collapse:
        size, from_ = min(MOST_HITS, COLLAPSED_PASSAGES * (from_ + size)), 0
    if depth is not None:
        query["hybrid"]["pagination_depth"] = max(depth, from_ + size)
    body = _body(query, size, from_, source, track_total_hits, highlight)
    if collapse:
        body["docvalue_fields"] = [collapse]
    body["search_pipeline"] = {"phase_results_processors": [processor]}
    return body


def best_passages(
    body: Body, hits: Sequence[Mapping[str, Any]], *, size: int = 10, from_: int = 0
) -> list[tuple[str, Mapping[str, Any]]]:
    """[(document id, the hit of its best passage)] of the answer to a body that was made with `collapse`.

    hits: `answer["hits"]["hits"]`. `size` and `from_` as the body was asked for: only for `hybrid` the page is cut out
    here. A hit without a value of the field stands for itself. Raises ValueError for a body without `collapse`.
    """
    if "collapse" in body:
        field = body["collapse"]["field"]
    elif "docvalue_fields" in body:
        (field,) = body["docvalue_fields"]
    else:
        raise ValueError("the body was made without collapse: its hits are documents already")
    best: dict[str, Mapping[str, Any]] = {}
    for hit in hits:
        best.setdefault(str(hit.get("fields", {}).get(field, [hit["_id"]])[0]), hit)
    page = list(best.items())
    return page if "collapse" in body else page[from_ : from_ + size]


def _match(text: str, fields: Sequence[str]) -> Clause:
    if not fields:
        raise ValueError("bm25 needs at least one field")
    if len(fields) == 1:
        return {"match": {fields[0]: {"query": text}}}
    return {"multi_match": {"query": text, "fields": list(fields), "type": "most_fields"}}


def _sparse(tokens: Mapping[str, float], field: str, plugin: bool, boost: float = 1.0) -> Clause:
    boosted = {} if boost == 1 else {"boost": float(boost)}
    weights = {token: float(weight) for token, weight in tokens.items()}
    if not weights:
        # Of a query whose every token is unknown to the table nothing can match; an empty clause would be a 400.
        return {"match_none": {}}
    if plugin:
        return {"neural_sparse": {field: {"query_tokens": weights, **boosted}}}
    each = [_feature(token, field, boost=weight) for token, weight in weights.items()]
    return {"bool": {"should": each, **boosted}}


def _feature(token: str, field: str, **boost: float) -> Clause:
    return {"rank_feature": {"field": f"{field}.{token.replace('.', DOT_ALIAS)}", "linear": {}, **boost}}


def _held(token: str, score: float, field: str) -> Clause:
    """The same score for every document that holds the token."""
    return {"constant_score": {"filter": _feature(token, field), "boost": float(score)}}


def sparse_tokens(clause: Clause) -> tuple[str, dict[str, float]]:
    """(field, {token: weight}) of a sparse clause of this module, in either form. Raises ValueError for any other."""
    if "neural_sparse" in clause:
        ((field, options),) = clause["neural_sparse"].items()
        return field, dict(options["query_tokens"])
    each = [part.get("rank_feature", {}) for part in clause.get("bool", {}).get("should", [])]
    if not each or not all("linear" in feature for feature in each):
        raise ValueError("the clause is not sparse")
    field = each[0]["field"].rpartition(".")[0]
    return field, {_token_of(feature): feature["boost"] for feature in each}


def _token_of(feature: Clause) -> str:
    return feature["field"].rpartition(".")[2].replace(DOT_ALIAS, ".")


def _quantized(table: ArrayLike, field: str, over: Clause) -> Clause:
    script = {"source": SCRIPT, "params": PackedTable.of(table).params(field)}
    return {"script_score": {"query": over, "script": script}}


def _clauses(filter: Filter) -> list[Clause]:
    if not filter:
        return []
    return [dict(filter)] if isinstance(filter, Mapping) else [dict(clause) for clause in filter]


def _filtered(query: Clause, filter: Filter) -> Clause:
    return {"bool": {"must": [query], "filter": _clauses(filter)}} if filter else query


def nearest_clauses(query: Clause) -> list[dict[str, Any]]:
    """What nearest neighbours are asked for ({"vector", "k", …}) in a query of `knn`, of several vectors a document
    (`multi_vector.nearest`), or of several fields (a dis_max of such); none in any other."""
    if "dis_max" in query:
        parts = [nearest_clauses(part) for part in query["dis_max"]["queries"]]
        return [clause for clauses in parts for clause in clauses] if all(parts) else []
    inner = query["nested"]["query"] if "nested" in query else query
    return list(inner.get("knn", {}).values())


def _narrowed(query: Clause, filter: Filter) -> Clause:
    """A whole query with one more filter; nearest neighbours take it inside, or it would be applied to those found."""
    if not filter or not nearest_clauses(query):
        return _filtered(query, filter)
    if "dis_max" in query:
        parts = [_narrowed(part, filter) for part in query["dis_max"]["queries"]]
        return {"dis_max": {**query["dis_max"], "queries": parts}}
    if "nested" in query:
        return {"nested": {**query["nested"], "query": _narrowed(query["nested"]["query"], filter)}}
    ((field, clause),) = query["knn"].items()
    own = [clause["filter"]] if "filter" in clause else []
    return {"knn": {field: {**clause, "filter": {"bool": {"filter": [*own, *_clauses(filter)]}}}}}


def _numbers(vector: Sequence[float] | NDArray[Any]) -> list[float]:
    """Numbers that the JSON serializer of any client takes (a numpy array's scalars are not)."""
    tolist = getattr(vector, "tolist", None)
    return tolist() if tolist else list(vector)


def _body(
    query: Clause,
    size: int,
    from_: int,
    source: Sequence[str] | bool,
    track_total_hits: bool,
    highlight: str | None,
    collapse: str | None = None,
) -> Body:
    body: Body = {
        "size": size,
        "query": query,
        "_source": source if isinstance(source, bool) else list(source),
        "track_total_hits": track_total_hits,
    }
    if from_:
        body["from"] = from_
    if collapse:
        body["collapse"] = {"field": collapse}
    if highlight:
        # Named apart from the query, because a sparse or dense query holds no words that could be marked.
        body["highlight"] = {
            "fields": {"title": {"number_of_fragments": 0}, "text": {"number_of_fragments": 2}},
            "highlight_query": {"multi_match": {"query": highlight, "fields": ["title", "text"]}},
            # A longer text would fail its whole shard: index.highlight.max_analyzer_offset has this default.
            "max_analyzer_offset": HIGHLIGHTED_CHARACTERS,
        }
    return body
