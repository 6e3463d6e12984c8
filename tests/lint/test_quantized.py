"""The scripts that score codes, tried on a node."""

from __future__ import annotations

import pytest
from lint_cases import Case, LintNode, by_rows, named, quantized

REJECTED = [
    Case("quantized-table", quantized(parts=1)),
    Case("quantized-table", quantized(table=None)),
    Case("quantized-table", quantized(table=[0.5] * 512)),
    Case("quantized-table", quantized(scale=None)),
]

BENDS = [
    Case("quantized-table", quantized(parts=3), quantized()),
    Case("forward-index", by_rows(hashes=[3, 2, 1]), by_rows()),
    Case("forward-index", by_rows(hashes=[1, 2, 3]), by_rows()),
]


@pytest.mark.cluster
@pytest.mark.parametrize("case", REJECTED, ids=named)
def test_what_is_called_rejected_is_rejected(lint_node: LintNode, case: Case) -> None:
    lint_node.check_rejected(case)


@pytest.mark.cluster
@pytest.mark.parametrize("case", BENDS, ids=named)
def test_what_is_said_to_bend_gives_other_hits_than_its_remedy(lint_node: LintNode, case: Case) -> None:
    lint_node.check_bends(case)
