"""Reads answers: whether one is whole, and the best passage of each document in it. A `preference` makes all answers come
from the same shard copies."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from opensearch_neural.cluster.error_reasons import reasons_on_one_line
from opensearch_neural.queries.body_parts import Body


def partial_answer(answer: Mapping[str, Any]) -> dict[str, str]:
    """What an answer lacks because of failed or absent shards, or of a timeout: {"shards_failed", "timed_out": in words}.

    Empty for a whole answer.
    """
    lacking = {}
    shards = answer.get("_shards", {})
    if failed := shards.get("failed", 0):
        reasons = [reasons_on_one_line(failure.get("reason")) for failure in shards.get("failures", [])]
        lacking["shards_failed"] = f"{failed} of {shards['total']} shards failed, and their hits are missing" + (
            f": {reasons[0]}" if reasons else ""
        )
    elif absent := shards.get("total", 0) - shards.get("successful", 0):
        # OpenSearch counts a shard without a node neither as failed nor as successful.
        lacking["shards_failed"] = (
            f"no node answers for {absent} of {shards['total']} shards, and their hits are missing"
        )
    if answer.get("timed_out"):
        lacking["timed_out"] = "the search timed out, and hits are missing"
    return lacking


def score_of(hit: Mapping[str, Any]) -> float | None:
    """A hit's score, also an infinite one, which OpenSearch writes as a text; None if something else sorts the hits."""
    score = hit["_score"]
    return None if score is None else float(score)


def filled(answer: Mapping[str, Any], rest: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a body, followed by the hits of the answer to `unsearched`. It is partial if one of the two is."""
    hits, more = answer["hits"], rest["hits"]
    joined = {**hits, "hits": [*hits["hits"], *more["hits"]]}
    if hits.get("max_score") is None:
        joined["max_score"] = more.get("max_score")
    if "total" in hits and "total" in more:
        joined["total"] = {**hits["total"], "value": hits["total"]["value"] + more["total"]["value"]}
    lacking = rest if partial_answer(rest) else answer
    whole = {name: lacking[name] for name in ("_shards", "timed_out") if name in lacking}
    return {**answer, **whole, "took": answer.get("took", 0) + rest.get("took", 0), "hits": joined}


def preference(query: str) -> str:
    """The `preference` of a search. It sends all requests of one query to the same copy of each shard, and spreads different
    queries over all copies.

    Replicas differ in the deleted documents that BM25 still counts, and in the order of equal scores. So pages form one
    ranking, and a certificate is valid, only within one copy.
    """
    # A hash: OpenSearch gives a meaning to values that begin with "_", and a long query does not fit a URL.
    return hashlib.sha256(query.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def best_passages(
    body: Body, hits: Sequence[Mapping[str, Any]], *, size: int = 10, from_: int = 0
) -> list[tuple[str, Mapping[str, Any]]]:
    """[(document id, hit of its best passage)] from the answer to a body that was made with `collapse`.

    hits: `answer["hits"]["hits"]`. `size` and `from_`: those of the page; used only for `hybrid` bodies, whose page is
    cut out here. A hit without a value in the field is its own document. Raises ValueError for a body without `collapse`.
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
