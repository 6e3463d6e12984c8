"""Shortens sparse weights to as few digits as the index can distinguish.

`rank_features` stores the upper 17 bits of a float32: 9 significant bits (Lucene's FeatureField shifts the rest away). All
weights between two neighbouring stored values give the same index, so the shortest decimal among them is written: `0.281`
for `0.28125637769699097`. Request bodies shrink to less than half, and scores do not change.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# The least positive normal float32: OpenSearch refuses a rank feature below it.
SMALLEST = float(np.finfo(np.float32).tiny)

# The shortest decimal of each of the 2¹⁶ cells, computed when a cell first occurs.
_SHORTEST: NDArray[np.float64] = np.full(1 << 16, np.nan)


def shortest(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """(n,) → (n,): for each weight, the number with the fewest digits that the index stores alike.

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
        # Exactly the cell's lower end, or farther inside than a parser's rounding error.
        if number == low or (low < number * (1 - 1e-7) and number * (1 + 1e-7) < above):
            return number
    return low
