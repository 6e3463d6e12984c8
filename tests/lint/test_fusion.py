"""The processors that fuse the parts of a hybrid query, tried on a node."""

from __future__ import annotations

from lint_cases import NORMALIZED, Case, bending, fused, hybrid, ranked, rejected, sparse, weighted

REJECTED = [
    Case("fusion-technique", {"query": hybrid(), **fused(normalization={"technique": "z_score"})}),
    Case("fusion-technique", {"query": hybrid(), **fused(normalization={"technique": "max"})}),
    Case("fusion-technique", {"query": hybrid(), **fused(combination={"technique": "median"})}),
    *(
        Case("fusion-weights", {"query": hybrid(), **weighted(*weights)})
        for weights in (
            [0.5],
            [0.3, 0.3, 0.4],
            [0.5, 0.4],
            [0.5, 0.5101],
            [0.5, 0.489],
            [1.5, -0.5],
            [1, 0],
            [1.0, 0],
            ["a", 1.0],
            [],
        )
    ),
    Case("fusion-weights", {"query": hybrid(), **ranked(parameters={"weights": [0.5, 0.5]})}),
    *(
        Case("rank-constant", {"query": hybrid(), **ranked(parameters={"rank_constant": constant})})
        for constant in (0, 10_001, 1.5, "x")
    ),
]

BENDS = [
    Case("fusion-without-hybrid", {"query": sparse(), **NORMALIZED}, {"query": hybrid(sparse()), **NORMALIZED}),
    Case("fusion-without-hybrid", {"query": sparse(), **ranked()}, {"query": hybrid(sparse()), **ranked()}),
    Case(
        "fusion-technique",
        {"query": hybrid(), **fused(combination={"technique": "rrf"})},
        {"query": hybrid(), **ranked()},
    ),
    Case(
        "fusion-weights",
        {"query": hybrid(), **fused(combination={"technique": "arithmetic_mean", "weights": [0.9, 0.1]})},
        {"query": hybrid(), **weighted(0.9, 0.1)},
    ),
    Case(
        "rank-constant",
        {"query": hybrid(), **ranked(rank_constant=1)},
        {"query": hybrid(), **ranked(parameters={"rank_constant": 1})},
    ),
]

test_what_is_called_rejected_is_rejected = rejected(REJECTED)
test_what_is_said_to_bend_gives_other_hits_than_its_remedy = bending(BENDS)
