"""Sparse queries: neural_sparse and rank_feature clauses."""

from __future__ import annotations

from opensearch_neural.lint.findings import Path
from opensearch_neural.lint.request import LintedRequest
from opensearch_neural.lint.values import as_object
from opensearch_neural.lint.weights import check_weight
from opensearch_neural.queries.body_parts import Body

SEISMIC_IDS = 32_768
FUNCTIONS = {"linear", "log", "saturation", "sigmoid"}


def neural_sparse(request: LintedRequest, inner: Body, path: Path) -> None:
    remedy = "queries.neural_sparse(…, plugin=False) needs no plugin"
    request.check_cluster("neural_sparse", path, "neural_sparse with raw tokens", remedy)
    for name, options in inner.items():
        where, options = (*path, name), as_object(options)
        tokens = options.get("query_tokens")
        seismic_field = request.type_of(name) == "sparse_vector"
        request.check_field(name, "rank_features", where, also="sparse_vector")
        if not isinstance(tokens, dict):
            continue
        if not tokens:
            request.report("empty-query", "bends", (*where, "query_tokens"), "no token: finds nothing", "send no query")
        for token, weight in tokens.items():
            check_weight(request, weight, (*where, "query_tokens", token))
        if seismic_field:
            seismic(request, tokens, (*where, "query_tokens"))


def seismic(request: LintedRequest, tokens: Body, path: Path) -> None:
    """Rules from neural-search's sources (SparseAnnQueryBuilder, SparseVector); not tried on a release with this field."""
    folded: dict[int, str] = {}
    for token in tokens:
        ident = int(token) if len(token) < 20 and token.isascii() and token.removeprefix("+").isdigit() else -1
        if not 0 <= ident < 2**31:
            request.report(
                "seismic-token",
                "rejected",
                (*path, token),
                f"{token!r} is not the id of a vocabulary entry (0 to 2147483647)",
                "query a sparse_vector field with token ids, not with tokens",
            )
            continue
        other = folded.setdefault(ident % SEISMIC_IDS, token)
        if other != token:
            request.report(
                "seismic-collision",
                "bends",
                (*path, token),
                f"the ids {other} and {token} are equal modulo {SEISMIC_IDS:,}; the larger weight counts for both",
                f"use a rank_features field for vocabularies of more than {SEISMIC_IDS:,} entries",
            )
        elif ident >= SEISMIC_IDS:
            request.report(
                "seismic-collision",
                "doubtful",
                (*path, token),
                f"the id {token} also matches documents that hold {ident % SEISMIC_IDS}",
                f"use a rank_features field for vocabularies of more than {SEISMIC_IDS:,} entries",
            )


def rank_feature(request: LintedRequest, inner: Body, path: Path) -> None:
    name = inner.get("field")
    if not isinstance(name, str):
        request.report("malformed", "rejected", (*path, "field"), "rank_feature needs a field", "FIELD.TOKEN")
        return
    field_, token = feature(request, name)
    type_ = request.type_of(field_)
    if type_ == "rank_feature":  # one number a document, such as its popularity: to saturate is what it is for
        return
    may_be_token = type_ is None and "." in name  # else the field is named whole, and so holds one number a document
    if not FUNCTIONS & inner.keys() and (type_ == "rank_features" or may_be_token):
        known = type_ == "rank_features" or field_ == "sparse"
        request.report(
            "not-linear",
            "bends" if known else "doubtful",
            path,
            "without a function the clause saturates: w·S/(S + pivot), and scores are no longer sums of products",
            'add "linear": {}' if known else f'add "linear": {{}} if {field_!r} is of type rank_features',
        )
    if request.check_field(field_, "rank_features", (*path, "field"), "bends") and (not token or "." in token):
        request.report(
            "dot-token",
            "bends",
            (*path, "field"),
            f"{name!r} is split at its last dot: the field {name.rpartition('.')[0]!r} is searched and nothing found",
            "write queries.DOT_ALIAS for each dot of the token, as index.mapping.rank_features also writes it, or use "
            "neural_sparse",
        )


def feature(request: LintedRequest, name: str) -> tuple[str, str]:
    """(field, token) that the author of a rank_feature clause meant."""
    known = request.index.fields
    if known is not None:
        if as_object(known.get(name)).get("type") == "rank_feature":
            return name, "-"
        fields = [each for each in known if name.startswith(f"{each}.") and known[each].get("type") == "rank_features"]
        if fields:
            longest = max(fields, key=len)
            return longest, name[len(longest) + 1 :]
    elif name.startswith("sparse."):
        return "sparse", name.removeprefix("sparse.")
    before, _, after = name.rpartition(".")
    return (before, after or "-") if before else (name, "-")
