"""The two-phase processor, tried on a node."""

from __future__ import annotations

from lint_cases import Case, Q, bending, feature, rejected, rescore, should, sparse, two_phase

REJECTED = [
    *(
        Case("two-phase-parameter", {"query": sparse(), **two_phase(**parameters)})
        for parameters in (
            {"prune_ratio": 1},
            {"prune_ratio": -0.1},
            {"prune_type": "top_k", "prune_ratio": 2.5},
            {"prune_type": "top_k", "prune_ratio": 0},
            {"prune_type": "alpha_mass", "prune_ratio": 1.0},
            {"prune_type": "abs_value", "prune_ratio": -1},
            {"prune_type": "rare"},
            {"expansion_rate": 0.5},
            {"max_window_size": 49},
        )
    ),
    Case("two-phase-window", {"query": sparse(), "size": 2001, **two_phase()}),
    Case("two-phase-window", {"query": sparse(), "size": 30, **two_phase(max_window_size=100)}),
    Case(
        "two-phase-window",
        {"query": sparse(), "size": 4000, **two_phase(expansion_rate=2.6, max_window_size=20_000)},
    ),
]

BENDS = [
    Case(
        "two-phase-window",
        {"query": sparse(), "from": 30, **two_phase(prune_ratio=0.9, expansion_rate=1.0)},
        {"query": sparse(), "from": 30, **two_phase(prune_ratio=0.9, expansion_rate=5.0)},
    ),
    Case(
        "two-phase-empty",
        {"query": sparse(), **two_phase(prune_type="alpha_mass", prune_ratio=0.5)},
        {"query": sparse(), **two_phase(prune_type="max_ratio", prune_ratio=0.5)},
    ),
    Case(
        "two-phase-empty",
        {"query": sparse(), **two_phase(prune_type="abs_value", prune_ratio=2.1)},
        {"query": sparse(), **two_phase(prune_type="abs_value", prune_ratio=2.0)},
    ),
    Case(
        "two-phase-with-rescore",
        {"query": sparse(), "rescore": rescore(200, Q), "size": 100, **two_phase(prune_ratio=0.9)},
        {"query": sparse(), "rescore": rescore(200, Q), "size": 100},
    ),
    *(
        # Split, a query leaves out the documents that hold its light tokens only.
        Case(
            "two-phase-not-split",
            {"query": query, "size": 200, **two_phase(prune_ratio=0.9)},
            {"query": sparse(), "size": 200, **two_phase(prune_ratio=0.9)},
        )
        for query in (
            {"bool": {"must": [sparse()]}},
            {"bool": {"filter": [sparse()]}},
            {"constant_score": {"filter": sparse()}},
            {"dis_max": {"queries": [sparse()]}},
            should(*(feature(f"sparse.{token}", boost=weight) for token, weight in Q.items())),
        )
    ),
]

test_what_is_called_rejected_is_rejected = rejected(REJECTED)
test_what_is_said_to_bend_gives_other_hits_than_its_remedy = bending(BENDS)
