"""Match queries of which no term is left, tried on a node."""

from __future__ import annotations

import pytest
from lint_cases import Case, LintNode, named

from opensearch_neural import queries

BENDS = [
    Case("empty-query", queries.bm25("is it the"), queries.bm25("is it the rainbow")),
    Case("empty-query", queries.bm25("?!"), queries.bm25("rainbow")),
]


@pytest.mark.cluster
@pytest.mark.parametrize("case", BENDS, ids=named)
def test_what_is_said_to_bend_gives_other_hits_than_its_remedy(lint_node: LintNode, case: Case) -> None:
    lint_node.check_bends(case)
