"""Bool queries that match everything, or nothing, tried on a node."""

from __future__ import annotations

from lint_cases import WIDE, Case, bending, feature, should, sparse

BENDS = [
    Case("empty-query", {"query": {"bool": {"should": []}}}, {"query": {"match_none": {}}}),
    Case(
        "optional-tokens",
        {"query": should(sparse(), filter=[WIDE]), "size": 200},
        {"query": should(sparse(), filter=[WIDE], minimum_should_match=1), "size": 200},
    ),
    Case(
        "optional-tokens",
        {"query": should(feature("sparse.t1"), filter=WIDE), "size": 200},
        {"query": {"bool": {"must": [feature("sparse.t1")], "filter": WIDE}}, "size": 200},
    ),
]

test_what_is_said_to_bend_gives_other_hits_than_its_remedy = bending(BENDS)
