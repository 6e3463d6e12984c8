"""Boosts, and the weights of tokens, tried on a node."""

from __future__ import annotations

from typing import Any

from lint_cases import RAINBOW, Case, bending, feature, knn, rejected, should, sparse


def of_indexes(boosts: Any) -> dict[str, Any]:
    return {"query": RAINBOW, "indices_boost": boosts}


REJECTED = [
    Case("boost", {"query": feature("sparse.t1", boost=-1)}),
    Case("boost", {"query": feature("sparse.t1", boost="NaN")}),
    Case("boost", {"query": feature("sparse.t1", boost=float("nan"))}),
    Case("boost", {"query": feature("sparse.t1", boost=1e39)}),
    Case("boost", {"query": feature("sparse.t1", boost=None)}),
    Case("boost", {"query": feature("sparse.t1", boost=True)}),
    Case("boost", {"query": should(sparse(), boost=-2)}),
    Case("boost", {"query": {"match": {"text": {"query": "x", "boost": -2}}}}),
    Case("boost", {"query": knn(k=10, boost=-1)}),
    Case("boost", of_indexes([{"*": -1}])),
    Case("boost", of_indexes({"*": -1})),
    *(
        Case("weight", {"query": sparse({"t1": weight, "t2": 1.0})})
        for weight in (0, 0.0, -1, 65, 64.00001, 1e-50, 1e30, "NaN", float("nan"), float("inf"), None, True, "x", [1])
    ),
]

BENDS = [
    Case("weight", {"query": feature("sparse.t1", boost=0)}, {"query": {"match_none": {}}}),
    Case("weight", {"query": feature("sparse.t1", boost=1e-50)}, {"query": {"match_none": {}}}),
    Case("boost", {"query": {"match": {"text": {"query": "rainbow", "boost": 0}}}}, {"query": RAINBOW}),
    Case("boost", of_indexes([{"none-*": 2}, {"*": 0}]), {"query": RAINBOW}),
]

test_what_is_called_rejected_is_rejected = rejected(REJECTED)
test_what_is_said_to_bend_gives_other_hits_than_its_remedy = bending(BENDS)
