"""Boosts, and the weights of sparse queries."""

from __future__ import annotations

import math
from typing import Any

from opensearch_neural.lint.findings import Path
from opensearch_neural.lint.request import LintedRequest
from opensearch_neural.lint.values import as_list, as_number, as_object, float32, number_or
from opensearch_neural.queries.body_parts import Body

LARGEST_WEIGHT = 64.0

ONE_FIELD = ("match", "term", "range", "prefix", "wildcard", "fuzzy", "neural_sparse", "knn", "match_phrase")
"""Queries of one field, of the form {kind: {field: …}}."""


def boosts(request: LintedRequest, kind: str, inner: Body, path: Path) -> None:
    # A query on one field has its boost beside the value, so that a field may be named boost.
    by_field = [((*path, name), as_object(options)) for name, options in inner.items()]
    places = by_field if kind in ONE_FIELD else [(path, inner)]
    for place, options in places:
        if "boost" not in options:
            continue
        value, boost = options["boost"], float32(options["boost"])
        where = (*place, "boost")
        sparse = kind == "rank_feature"
        if boost is None or not math.isfinite(boost) or boost < 0 or number_or(value, 0) < 0:
            request.report(
                "boost", "rejected", where, f"{value!r} is not a finite number of 0 or more", "give a number above 0"
            )
        elif boost == 0:
            what = "the token scores 0, and documents with no other token are hits with score 0" if sparse else ""
            request.report(
                "weight" if sparse else "boost",
                "bends",
                where,
                what or "the query scores 0 for every hit",
                "leave the token out" if sparse else "put the query into bool.filter if only matching counts",
            )
        elif sparse and boost > LARGEST_WEIGHT:
            request.report(
                "weight",
                "doubtful",
                where,
                f"{value!r} is above {LARGEST_WEIGHT:g}: rank_feature accepts it, neural_sparse refuses the same query",
                "scale all weights of the query alike: the order of hits stays",
            )


def indices_boost(request: LintedRequest) -> None:
    objects = request.body.get("indices_boost")
    for place, boosts in enumerate(as_list(objects)):
        for name, value in as_object(boosts).items():
            boost, at = as_number(value), (place,) if isinstance(objects, list) else ()
            where: Path = ("indices_boost", *at, name)
            if boost is not None and boost < 0:
                message = f"{value!r} is not a number of 0 or more"
                request.report("boost", "rejected", where, message, "give a number above 0")
            elif boost == 0:
                message = "every hit of this index scores 0"
                request.report("boost", "bends", where, message, "give a number above 0")


def check_weight(request: LintedRequest, weight: Any, path: Path) -> None:
    value = float32(weight)
    if value is not None and 0 < value <= LARGEST_WEIGHT:
        return
    why = f"{weight!r} is not a number" if value is None else f"the weight {weight!r} is outside (0, 64]"
    if value == 0 and as_number(weight):
        why = f"the weight {weight!r} is 0 as a float32"
    remedy = "scale all weights of the query alike: the order of hits stays"
    if value is None or not value > 0:
        remedy = "leave the token out: a weight of 0 adds nothing, and a negative weight is not possible"
    request.report("weight", "rejected", path, why, remedy)
