"""The parts of request bodies: clauses, filters, second phases, the page around them, and how it is sorted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from opensearch_neural.encodable import encodable
from opensearch_neural.queries import forward_index

if TYPE_CHECKING:
    from numpy.typing import NDArray


Body = dict[str, Any]

Clause = dict[str, Any]

Filter = Clause | Sequence[Clause] | None

DEFAULT_SOURCE = ("title", "url")

HIGHLIGHTED_CHARACTERS = 1_000_000

LEAST_SCORE = 1.4e-45
"""The smallest float32 above 0. As `min_score` it excludes documents that score 0."""

# Weight of the first phase's score when the second phase's score replaces it. Added to the new score it vanishes in float32
# rounding. Hits that were not rescored keep it, so they keep their order, below all others. As a power of two it never makes
# two different scores equal.
REPLACED = 2.0**-40

# `rank_feature` splits its field name at the last dot, so it cannot name a token that contains a dot. Ingest writes such a
# token a second time with this look-alike. Word-piece tokenizers fold the look-alike to ".", so no token contains it.
DOT_ALIAS = "\u2024"


def match_clause(text: str, fields: Sequence[str], *, for_any_text: bool = False) -> Clause:
    """BM25 over the fields, or over one, with boosts and patterns (`title^3`, `*_en`). Raises ValueError without a field.

    for_any_text: write out that a text without terms finds nothing, so that it is known as meant (`lint`).
    """
    text = checked_text(text)
    query = {"query": text, "zero_terms_query": "none"} if for_any_text else {"query": text}
    if not fields:
        raise ValueError("bm25 needs at least one field")
    fields = [fields] if isinstance(fields, str) else fields
    if len(fields) == 1 and not any(sign in fields[0] for sign in "^*"):  # `match` knows neither boosts nor patterns
        return {"match": {fields[0]: query}}
    return {"multi_match": {**query, "fields": list(fields), "type": "most_fields"}}


def sparse_clause(tokens: Mapping[str, float], field: str, plugin: bool, boost: float = 1.0) -> Clause:
    boosted = {} if boost == 1 else {"boost": float(boost)}
    weights = {token: float(weight) for token, weight in tokens.items()}
    if not weights:
        # If the table knows no token of the query, nothing can match. OpenSearch refuses an empty clause (400).
        return {"match_none": {}}
    if plugin:
        return {"neural_sparse": {field: {"query_tokens": weights, **boosted}}}
    each = [feature_clause(token, field, boost=weight) for token, weight in weights.items()]
    return {"bool": {"should": each, **boosted}}


def forward_clause(tokens: Mapping[str, float], field: str, *, pruned: bool = False) -> Clause:
    """Score documents by the forward index rows of `field` (`forward_index`); a document without these tokens scores 0.

    pruned: True if the postings hold fewer tokens than the rows.
    """
    params = forward_index.script_params(tokens, field + forward_index.SUFFIX, pruned=pruned)
    script = {"source": forward_index.SCRIPT, "params": params}
    return {"script_score": {"query": {"match_all": {}}, "script": script}}


def every_row_clause(
    tokens: Mapping[str, float], field: str, *, among: Clause | None = None, boost: float = 1.0
) -> Clause:
    """Find and score by rows all documents that hold a token: `sparse_clause` for an index with pruned postings.

    It reads the row of every document that `among` matches (None: of all documents)."""
    if not tokens:
        return {"match_none": {}}
    clause = forward_clause(tokens, field, pruned=True)["script_score"]
    boosted = {} if boost == 1 else {"boost": float(boost)}
    return {"script_score": {**clause, "query": among or clause["query"], "min_score": LEAST_SCORE, **boosted}}


def rescoring_clause(
    tokens: Mapping[str, float], field: str, *, plugin: bool, forward: bool, pruned: bool = False
) -> Clause:
    """The clause that rescores hits with all tokens: by rows if `forward` or `pruned`, else by sparse clauses."""
    if tokens and (forward or pruned):
        return forward_clause(tokens, field, pruned=pruned)
    return sparse_clause(tokens, field, plugin)


def replacing(clause: Clause) -> Body:
    """A second phase by a clause whose scores replace the first phase's."""
    return {"rescore_query": clause, "query_weight": REPLACED, "rescore_query_weight": 1.0}


def feature_clause(token: str, field: str, **boost: float) -> Clause:
    return {"rank_feature": {"field": f"{field}.{token.replace('.', DOT_ALIAS)}", "linear": {}, **boost}}


def constant_clause(token: str, score: float, field: str) -> Clause:
    """A clause that gives the same score to every document with the token."""
    return {"constant_score": {"filter": feature_clause(token, field), "boost": float(score)}}


def sparse_tokens(clause: Clause) -> tuple[str, dict[str, float]]:
    """(field, {token: weight}) of any sparse clause of this module. Raises ValueError for other clauses."""
    if "script_score" in clause:
        return _tokens_of_rows(clause)
    parts = clause.get("bool", {}).get("should", [])
    if parts and all("script_score" in part for part in parts):  # as `explained` splits them
        of_parts = [_tokens_of_rows(part) for part in parts]
        return of_parts[0][0], {token: weight for _, tokens in of_parts for token, weight in tokens.items()}
    if "neural_sparse" in clause:
        ((field, options),) = clause["neural_sparse"].items()
        return field, dict(options["query_tokens"])
    each = [part.get("rank_feature", {}) for part in clause.get("bool", {}).get("should", [])]
    if not each or not all("linear" in feature for feature in each):
        raise ValueError("the clause is not sparse")
    field = each[0]["field"].rpartition(".")[0]
    return field, {token_of(feature): feature["boost"] for feature in each}


def _tokens_of_rows(clause: Clause) -> tuple[str, dict[str, float]]:
    try:
        script = clause["script_score"]["script"]
        source, params, field = script["source"], script["params"], script["params"]["field"]
    except (KeyError, TypeError):
        raise ValueError("the clause is not sparse") from None
    if source != forward_index.SCRIPT or not isinstance(field, str) or not field.endswith(forward_index.SUFFIX):
        raise ValueError("the clause is not sparse")
    return field.removesuffix(forward_index.SUFFIX), forward_index.tokens_of(params)


def reads_rows(clause: Clause) -> bool:
    """Whether a clause scores by the rows of a forward index."""
    try:
        source: Any = clause["script_score"]["script"]["source"]
    except (KeyError, TypeError):
        return False
    return source == forward_index.SCRIPT


def says_pruned(clause: Clause) -> bool:
    """Whether a clause that reads rows, whole or split by tokens, was made for pruned postings."""
    parts = clause["bool"].get("should", []) if "bool" in clause else [clause]
    return any(
        reads_rows(part) and part["script_score"]["script"]["params"].get(forward_index.PRUNED) for part in parts
    )


def token_of(feature: Clause) -> str:
    """The token of a rank_feature clause, spelled as in the documents' weights."""
    return feature["field"].rpartition(".")[2].replace(DOT_ALIAS, ".")


def filter_clauses(filter: Filter) -> list[Clause]:
    """The clauses of a filter. Raises TypeError for anything but clauses."""
    if not filter:
        return []
    single: object = filter  # of any type, if a caller is wrong
    several = isinstance(single, Iterable) and not isinstance(single, str | bytes | Mapping)
    clauses: list[object] = [*filter] if several else [filter]
    return [checked_clause(clause, "a filter") for clause in clauses]


def checked_clause(clause: object, what: str) -> Clause:
    """A query clause. Raises TypeError for anything else, and for a whole request body."""
    if not isinstance(clause, Mapping):
        raise TypeError(f'{what} is a query clause such as {{"term": {{"lang": "en"}}}}, not {clause!r}')
    if "query" in clause:
        raise TypeError(f"{what} is a query clause, not a request body: give what its 'query' holds")
    return dict(clause)


def holds_hybrid(clause: object) -> bool:
    """Whether a query is a hybrid query or contains one. A field of that name is none."""
    if isinstance(clause, Mapping):
        hybrid = clause.get("hybrid")
        return (isinstance(hybrid, Mapping) and "queries" in hybrid) or any(map(holds_hybrid, clause.values()))
    return isinstance(clause, list | tuple) and any(map(holds_hybrid, clause))


def checked_text(text: object, what: str = "a query") -> str:
    """A text that a request can hold (`encodable`). Raises TypeError for anything else."""
    if not isinstance(text, str):
        raise TypeError(f"{what} is a text, not {text!r}")
    return encodable(text)


def filtered(query: Clause, filter: Filter) -> Clause:
    return {"bool": {"must": [query], "filter": filter_clauses(filter)}} if filter else query


def unfiltered(query: Clause) -> tuple[Clause, list[Clause]]:
    """The inverse of `filtered`: (query, filters)."""
    parts = query.get("bool", {})
    return (parts["must"][0], parts.get("filter", [])) if "must" in parts else (query, [])


def nearest_clauses(query: Clause) -> list[dict[str, Any]]:
    """The k-NN clauses ({"vector", "k", …}) of a query by `knn`, by `multi_vector.nearest` (several vectors a document), or
    by a dis_max of these (several fields). Empty for any other query."""
    if "dis_max" in query:
        parts = [nearest_clauses(part) for part in query["dis_max"]["queries"]]
        return [clause for clauses in parts for clause in clauses] if all(parts) else []
    inner = query["nested"]["query"] if "nested" in query else query
    return list(inner.get("knn", {}).values())


def narrowed(query: Clause, filter: Filter) -> Clause:
    """The query with one more filter. A k-NN clause takes the filter inside, else only its results would be filtered."""
    if not filter or not nearest_clauses(query):
        return filtered(query, filter)
    if "dis_max" in query:
        parts = [narrowed(part, filter) for part in query["dis_max"]["queries"]]
        return {"dis_max": {**query["dis_max"], "queries": parts}}
    if "nested" in query:
        return {"nested": {**query["nested"], "query": narrowed(query["nested"]["query"], filter)}}
    ((field, clause),) = query["knn"].items()
    own = [clause["filter"]] if "filter" in clause else []
    return {"knn": {field: {**clause, "filter": {"bool": {"filter": [*own, *filter_clauses(filter)]}}}}}


def numbers(vector: Sequence[float] | NDArray[Any]) -> list[float]:
    """Plain Python numbers, which every client's JSON serializer accepts (numpy scalars it may refuse)."""
    tolist = getattr(vector, "tolist", None)
    return tolist() if tolist else list(vector)


class PageOptions(TypedDict, total=False):
    """The options that the functions of `queries` share."""

    size: int
    """Hits of the page; 10 if not given."""
    from_: int
    """Hits before the page; 0 if not given."""
    filter: Filter
    """Clauses that hits must match and that add nothing to their score."""
    source: str | Sequence[str] | bool
    """The fields that hits bring along; title and url if not given."""
    track_total_hits: bool | int
    """Whether all hits are counted, or up to which number; False if not given."""
    highlight: str | None
    """A text whose words are marked in `title` and `text`."""
    collapse: str | None
    """A field: of several hits with the same value in it, only the best is returned."""


def source_fields(source: str | Sequence[str] | bool) -> list[str] | bool:
    """The `_source` of a body. Raises TypeError for anything but fields, True and False."""
    if isinstance(source, bool):
        return source
    if isinstance(source, str):
        return [source]
    fields: object = source  # of any type, if a caller is wrong
    if isinstance(fields, bytes | Mapping) or not isinstance(fields, Iterable):
        raise TypeError(f"source is a list of fields, True or False, not {fields!r}")
    return list(source)


def page_body(
    query: Clause,
    *,
    size: int = 10,
    from_: int = 0,
    filter: Filter = None,
    source: str | Sequence[str] | bool = DEFAULT_SOURCE,
    track_total_hits: bool | int = False,
    highlight: str | None = None,
    collapse: str | None = None,
) -> Body:
    body: Body = {
        "size": size,
        "query": filtered(query, filter),
        "_source": source_fields(source),
        "track_total_hits": track_total_hits,
    }
    if from_:
        body["from"] = from_
    if collapse:
        body["collapse"] = {"field": collapse}
    if highlight:
        # A query of its own, because sparse and dense queries contain no words to highlight.
        body["highlight"] = {
            "fields": {"title": {"number_of_fragments": 0}, "text": {"number_of_fragments": 2}},
            "highlight_query": {
                "multi_match": {"query": checked_text(highlight, "highlight"), "fields": ["title", "text"]}
            },
            # Without it a longer text fails its whole shard. This is the default of index.highlight.max_analyzer_offset.
            "max_analyzer_offset": HIGHLIGHTED_CHARACTERS,
        }
    return body


def sort_entries(sort: Any) -> list[tuple[tuple[str | int, ...], str, Any]]:
    """[(path inside `sort`, field, order or options)]; one object may name several fields."""
    entries: list[tuple[tuple[str | int, ...], str, Any]] = []
    for place, entry in enumerate(sort if isinstance(sort, list) else [] if sort is None else [sort]):
        at = (place,) if isinstance(sort, list) else ()
        if isinstance(entry, dict):
            entries += [((*at, str(name)), str(name), how) for name, how in entry.items()]
        else:
            entries.append((at, str(entry), None))
    return entries


def sorts_by_score(sort: Any) -> bool:
    """Whether hits are ordered only by descending score, which OpenSearch treats as no sort."""
    entries = sort_entries(sort)
    return not entries or (len(entries) == 1 and descending_score(*entries[0][1:]))


def descending_score(field: str, how: Any) -> bool:
    """Whether one entry of a sort, as `sort_entries` gives it, is the descending score."""
    order = how.get("order") if isinstance(how, dict) else how
    return field == "_score" and str(order or "desc").lower() == "desc"
