"""Scores of an index whose postings hold only each document's heaviest tokens (`osn ingest --prune-postings`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opensearch_neural.lint.clause_count import MUST_NOT, clauses
from opensearch_neural.lint.findings import Path
from opensearch_neural.lint.request import LintedRequest
from opensearch_neural.lint.sparse import feature
from opensearch_neural.lint.values import as_object, number_or
from opensearch_neural.queries import REPLACED, forward_index
from opensearch_neural.queries.body_parts import reads_rows

RULE = "pruned-postings"


def pruned_postings(request: LintedRequest) -> None:
    prune = request.prune_postings
    if prune is None:
        return
    replaced = any(
        number_or(as_object(stage.get("query")).get("query_weight"), 1) <= REPLACED
        and any(reads_rows(clause) for _, clause in _scoring(as_object(stage.get("query")).get("rescore_query")))
        for _, stage in request.rescore_stages
    )
    for path, query in request.queries:
        if path[0] not in ("query", "rescore"):
            continue
        for where, clause in _scoring(query, path):
            if _asks_postings(request, clause) and not (replaced and path[0] == "query"):
                request.report(
                    RULE,
                    "bends",
                    where,
                    f"the postings are pruned by {prune}: scores are only a part of the whole scores, and a document with "
                    "only light tokens of the query is not found",
                    "queries.pruned_sparse, or pruned=True in bm25_sparse and high_idf_first, score whole vectors",
                )
                return
            if reads_rows(clause) and not _says_pruned(clause):
                request.report(
                    RULE,
                    "doubtful",
                    where,
                    "the body does not say that the postings are pruned, so queries.certified treats them as whole",
                    "pass pruned=True instead of forward=True",
                )


def _scoring(query: Any, path: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    """(path, clause) for a query, and for all clauses in it that contribute to the score."""
    return clauses(query, path, beside=("filter", *MUST_NOT))


def _says_pruned(clause: dict[str, Any]) -> bool:
    return bool(as_object(clause["script_score"]["script"].get("params")).get(forward_index.PRUNED))


def _asks_postings(request: LintedRequest, clause: dict[str, Any]) -> bool:
    if "neural_sparse" in clause:
        return "sparse" in clause["neural_sparse"]
    name = as_object(clause.get("rank_feature")).get("field")
    return isinstance(name, str) and feature(request, name)[0] == "sparse"
