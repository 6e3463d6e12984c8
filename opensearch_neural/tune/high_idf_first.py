"""Tuning of high-IDF-first, and of `sparse` in an index with pruned postings: the fastest setting that keeps a share of the
quality of all tokens.

Two settings decide what high-IDF-first costs and finds: which tokens count as rare, and how many of their hits are rescored
with all tokens. With pruned postings `sparse` has such a window, too. The fastest setting that keeps the share on the tuning
queries must also keep it on the held-back queries. On both, the lower end of the interval decides, not the mean.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from opensearch_neural.engines.settings import HighIdfFirstSetting, PrunedSparseSetting, Setting
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.measures import rank
from opensearch_neural.evaluation.overlap import TIES
from opensearch_neural.queries import Rare
from opensearch_neural.tune.trials import Questions, Tried, body_of, noted, share, with_scores_of
from opensearch_neural.tune.tuning import Chosen, Tuning

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from opensearch_neural.engines import Engines

RARE = (
    *(Rare("ratio", value) for value in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)),
    *(Rare("share", value) for value in (0.5, 0.6, 0.7, 0.8, 0.9)),
    *(Rare("count", value) for value in (1, 2, 3, 4, 6)),
)
WINDOWS = (10, 20, 50, 100, 200, 400)
ROW_WINDOWS = (*WINDOWS, 800, 1600)
TOKENS = (None, Rare("share", 0.98))


class HighIdfFirstTuning(Tuning):
    setting: ClassVar[type[Setting]] = HighIdfFirstSetting
    nothing_chosen = "no setting surely keeps {keep:.1%} of {measure} and is faster than {full}; nothing was stored"
    unjudged = True

    def grid(self) -> Sequence[Setting]:
        return high_idf_first_settings(HighIdfFirstSetting.fitting(self.engines))

    def choose(self, tried: Sequence[Tried], held_back: Questions, keep: float, *, seed: int = 0) -> Chosen | None:
        """The fastest setting that keeps the share on both halves with the lower end of its interval. None if no setting
        that is faster than all tokens does.

        Each setting that is checked on the held-back queries raises the probability that one passes by chance;
        `passed_over` reports how many failed.
        """
        exact = self.run_of(None, held_back, TIES)
        pages = {query: dict(rank(hits)[: held_back.page(query)]) for query, hits in exact.items()}
        passed_over = 0
        for each in sorted(tried, key=lambda each: each.ms):
            if each.setting is None or each.ms >= tried[0].ms or not each.surely_keeps(keep, tried[0], seed=seed):
                continue
            run = self.run_of(each.setting, held_back.without(self.unanswered))
            if held_back.qrels is None:
                for query in run:
                    body = body_of(self.engines, None, held_back.texts[query], TIES)
                    with noted(query, self.unanswered):
                        exact[query] = with_scores_of(self.ask, body, exact[query], run[query])
            answered = held_back.without(self.unanswered)
            run, pages, exact = (answered.of(values) for values in (run, pages, exact))
            kept, low, high = share(answered.quality(run, exact), answered.quality(pages, exact), seed=seed)
            if low is not None and low >= keep:
                return Chosen(each.setting, each, kept, low, high, passed_over)
            passed_over += 1
        return None


class PrunedSparseTuning(HighIdfFirstTuning):
    setting = PrunedSparseSetting
    nothing_chosen = (
        "no window surely keeps {keep:.1%} of {measure} and is faster than the exact search; nothing was stored"
    )

    def __init__(self, client: OpenSearch, engines: Engines) -> None:
        """Raises InputError for an index without pruned postings."""
        if not engines.has_pruned_postings():
            raise InputError(
                f"{engines.index!r} has no pruned postings: sparse searches all tokens, and there is nothing to tune"
            )
        super().__init__(client, engines)

    def grid(self) -> Sequence[Setting]:
        return pruned_sparse_settings(PrunedSparseSetting.fitting(self.engines))


def high_idf_first_settings(default: HighIdfFirstSetting) -> list[HighIdfFirstSetting]:
    """The settings to try. All score with all tokens again (exact): common tokens in phase one then find more, which is
    worth more than the time saved without.

    default: the index's default, whose window is included
    """
    windows = sorted({*WINDOWS, default.window})
    return [HighIdfFirstSetting(*each) for each in itertools.product(RARE, windows, [True], TOKENS)]


def pruned_sparse_settings(default: PrunedSparseSetting) -> list[PrunedSparseSetting]:
    """The settings to try. default: the index's default, which is included"""
    return [PrunedSparseSetting(window) for window in sorted({*ROW_WINDOWS, default.window})]
