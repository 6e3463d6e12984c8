"""Sparse weights as few characters as the index can tell apart.

`rank_features` keeps the upper 17 bits of a float32: 9 significant bits (Lucene's FeatureField shifts the rest away).
All weights between two neighbouring values of that form make the same index, so the shortest decimal among them is
written: `0.281` for `0.28125637769699097`. Bodies shrink to less than half, and scores stay what they were.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# The least positive normal float32: OpenSearch refuses a rank feature below it.
SMALLEST = float(np.finfo(np.float32).tiny)

# Shortest decimal of each of the 2¹⁶ cells, filled as they occur.
_SHORTEST: NDArray[np.float64] = np.full(1 << 16, np.nan)


def shortest(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """(n,) → (n,): for each weight the number of fewest digits that the index stores alike.

    Weights must be finite and at least SMALLEST.
    """
    cells = np.ascontiguousarray(weights, dtype=np.float32).view(np.uint32) >> 15
    short = _SHORTEST[cells]
    if np.isnan(short).any():
        for cell in np.unique(cells[np.isnan(short)]).tolist():
            _SHORTEST[cell] = _shortest_in(cell)
        short = _SHORTEST[cells]
    return short


def _shortest_in(cell: int) -> float:
    first = np.array(cell << 15, np.uint32).view(np.float32)
    low, above = float(first), float(first) + float(np.spacing(first)) * 2**15
    for digits in range(1, 9):
        number = float(f"{(low + above) / 2:.{digits}g}")
        # At the cell's lower end exactly, or inside by more than a parser rounds.
        if number == low or (low < number * (1 - 1e-7) and number * (1 + 1e-7) < above):
            return number
    return low
