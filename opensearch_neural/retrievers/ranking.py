"""The k best of an array of scores, with ties broken by document id; shared by the offline engines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from opensearch_neural.errors import InputError


def id_order(ids: Sequence[str]) -> npt.NDArray[np.int64]:
    """(documents,): the position of each id in sorted order, so that breaking ties only compares integers.

    Raises InputError for an id that occurs twice, because a run could not distinguish its documents.
    """
    by_id = sorted(range(len(ids)), key=ids.__getitem__)
    for place, following in pairwise(by_id):
        if ids[place] == ids[following]:
            raise InputError(f"the document id {ids[place]!r} occurs more than once", "give every document its own id")
    order = np.empty(len(ids), dtype=np.int64)
    order[by_id] = np.arange(len(ids))
    return order


def best(
    scores: npt.NDArray[np.floating], order: npt.NDArray[np.int64], k: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.floating]]:
    """Positions and scores of the `k` highest `scores`, best first; `order` breaks ties, also at the cut.

    scores: (candidates,); order: (candidates,), from `id_order`
    """
    positions = np.arange(len(scores))
    if k < len(scores):
        # All scores that tie with the k-th are kept until `order` decides.
        lowest = np.partition(scores, len(scores) - k)[len(scores) - k]
        positions = np.flatnonzero(scores >= lowest)
    ranked = positions[np.lexsort((order[positions], -scores[positions]))][:k]
    return ranked, scores[ranked]


def require_positive(k: int) -> None:
    """Raises InputError for a `k` below 1."""
    if k < 1:
        raise InputError(f"k must be at least 1, not {k}")
