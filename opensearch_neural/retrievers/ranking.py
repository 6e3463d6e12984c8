"""The k best of an array of scores, with ties broken by document id; shared by the offline engines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from opensearch_neural.errors import InputError


class Ranking:
    """Ranks the documents of an engine: score descending, then id ascending.

    Raises InputError for an id that occurs twice, because a run could not distinguish its documents.
    """

    def __init__(self, ids: Sequence[str]) -> None:
        self.ids = list(ids)
        by_id = sorted(range(len(self.ids)), key=self.ids.__getitem__)
        for place, following in pairwise(by_id):
            if self.ids[place] == self.ids[following]:
                raise InputError(
                    f"the document id {self.ids[place]!r} occurs more than once", "give every document its own id"
                )
        # (documents,): the position of each id in sorted order, so that breaking ties only compares integers.
        self._order = np.empty(len(self.ids), dtype=np.int64)
        self._order[by_id] = np.arange(len(self.ids))

    def best(self, positions: npt.NDArray[np.integer], scores: npt.NDArray[np.floating], k: int) -> dict[str, float]:
        """{id: score} of the `k` best documents, best first; ids break ties, also at the cut.

        positions, scores: (candidates,), the documents to rank and their scores
        """
        if k < len(scores):
            # All scores that tie with the k-th are kept until the ids decide.
            best = scores >= np.partition(scores, len(scores) - k)[len(scores) - k]
            positions, scores = positions[best], scores[best]
        ranked = np.lexsort((self._order[positions], -scores))[:k]
        return {
            self.ids[position]: score
            for position, score in zip(positions[ranked].tolist(), scores[ranked].tolist(), strict=True)
        }


def require_positive(k: int) -> None:
    """Raises InputError for a `k` below 1."""
    if k < 1:
        raise InputError(f"k must be at least 1, not {k}")
