"""The scripts that score codes, tried on a node."""

from __future__ import annotations

from lint_cases import Case, bending, by_rows, quantized, rejected

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

test_what_is_called_rejected_is_rejected = rejected(REJECTED)
test_what_is_said_to_bend_gives_other_hits_than_its_remedy = bending(BENDS)
