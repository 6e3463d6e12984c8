"""Tuning of bm25-sparse: the weight of the sparse model's score, and the window of BM25's hits that get it.

Every setting searches every query. Quality is nDCG@10 with judgements, or without, on known items from the corpus: a
document, with half of the words of one of its sentences as the query. The best setting is that with the highest lower end of
the 95% interval of its gain over BM25. The window is then the smallest that surely keeps a share of that gain.

Cross-validation tells how good such a choice is: each fifth of the queries is searched with the setting that the other four
fifths choose.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.engines.settings import Bm25SparseSetting, Setting
from opensearch_neural.errors import InputError
from opensearch_neural.index.sparse_scale import known_items
from opensearch_neural.queries import MOST_HITS
from opensearch_neural.tune.trials import Questions, Tried, share
from opensearch_neural.tune.tuning import Chosen, Tuning

if TYPE_CHECKING:
    from numpy.typing import NDArray

WEIGHTS = (0.1, 0.2, 0.3, 0.45, 0.6, Bm25SparseSetting.weight, 1.1, 1.5)
"""In units of the index's sparse scale."""
WINDOWS = (20, 30, 50, 100, 200)
FOLDS = 5
RESAMPLES = 2000
SHARE_OF_WORDS = 0.5
"""The share of a sentence's words in the query of a known item: with all words, BM25 ranks nearly every document first."""


class Bm25SparseTuning(Tuning):
    setting = Bm25SparseSetting
    nothing_chosen = (
        "the best weight is not surely better than BM25, or not surely as good as the default weight, by {measure}; "
        "nothing was stored"
    )
    own_queries, confirmed, keeps_share = True, "cross-validated", False
    full, full_name = "bm25", "BM25"

    def own_questions(self, most: int, seed: int) -> Questions:
        """At most `2 * most` queries, and at most MOST_HITS, made from the index's documents, each with its document as the
        only relevant one.

        Raises ClusterError, and InputError for an index of fewer than ten documents with text.
        """
        index, drawn = self.engines.index, random.Random(seed)
        texts, qrels = {}, {}
        with translate_errors():
            for hit, sentence in known_items(self.client, index, min(2 * most, MOST_HITS), seed):
                id, words = hit["_id"], sentence.split()
                places = sorted(drawn.sample(range(len(words)), max(1, round(SHARE_OF_WORDS * len(words)))))
                own = id if self.engines.meta.passages is None else hit["_source"]["parent"]
                texts[id], qrels[id] = " ".join(words[at] for at in places), {own: 1}
        if len(texts) < 2 * FOLDS:
            raise InputError(
                f"{index!r} has {len(texts)} documents with text, too few to make queries from", "give --data"
            )
        return Questions(texts, qrels, measure="nDCG@10 of known items")

    def parts(self, questions: Questions, most: int, seed: int) -> tuple[Questions, Questions]:
        """All queries choose and confirm, since the choice is cross-validated."""
        tuning, held_back = super().parts(questions, most, seed)
        every = replace(questions, texts={**tuning.texts, **held_back.texts})
        return every, every

    def grid(self) -> Sequence[Setting]:
        return bm25_sparse_settings(Bm25SparseSetting.fitting(self.engines))

    def choose(self, tried: Sequence[Tried], held_back: Questions, keep: float, *, seed: int = 0) -> Chosen | None:
        return choose_bm25_sparse(tried, keep, Bm25SparseSetting.fitting(self.engines), seed=seed)


def bm25_sparse_settings(default: Bm25SparseSetting) -> list[Bm25SparseSetting]:
    """The settings to try. default: the index's default, whose window is included"""
    windows = sorted({*WINDOWS, default.window})
    return [replace(default, weight=weight, window=window) for weight, window in itertools.product(WEIGHTS, windows)]


def choose_bm25_sparse(
    tried: Sequence[Tried], keep: float, default: Bm25SparseSetting, *, seed: int = 0
) -> Chosen | None:
    """The setting whose gain over BM25, `tried[0]`, has the highest lower end.

    None if the interval of the cross-validated gain includes zero, or if its lower end is less than `keep` times the lower
    end of the gain of the index's default.

    `kept`, `low` and `high` are the cross-validated quality as a share of BM25's. Raises InputError as `share` does.
    """
    bm25, *sums = tried
    queries = sorted(bm25.values)
    rows = np.array([[each.values[query] for query in queries] for each in tried])
    order = np.random.default_rng(seed).permutation(len(queries))
    held_out: dict[str, float] = {}
    for fold in range(min(FOLDS, len(queries))):
        outside = np.sort(np.delete(order, slice(fold, None, FOLDS)))
        chosen = sums[_choice(sums, rows[:, outside], keep, seed)]
        held_out |= {queries[at]: chosen.values[queries[at]] for at in order[fold::FOLDS]}
    kept, low, high = share(held_out, bm25.values, seed=seed)
    best = sums[_choice(sums, rows, keep, seed)]
    assert isinstance(best.setting, Bm25SparseSetting)
    plain = next((each for each in sums if each.setting == default), None)
    by_default = None if plain is None else share(plain.values, bm25.values, seed=seed)[1]
    if low is None or low <= 1 or (by_default is not None and low - 1 < keep * (by_default - 1)):
        return None
    return Chosen(best.setting, best, kept, low, high, 0)


def _choice(sums: Sequence[Tried], rows: NDArray[Any], keep: float, seed: int) -> int:
    """The index of the setting to choose. rows: (1 + settings, queries) qualities, BM25's first."""
    count = rows.shape[1]
    # (resamples, queries): how often each query is drawn, as a share.
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=RESAMPLES) / count
    means = rows @ drawn.T
    gains = means[1:] - means[0]
    best = int(np.argmax(np.quantile(gains, 0.025, axis=1)))
    chosen = sums[best].setting
    assert isinstance(chosen, Bm25SparseSetting)
    for at in sorted(range(len(sums)), key=lambda at: getattr(sums[at].setting, "window", 0)):
        other = sums[at].setting
        assert isinstance(other, Bm25SparseSetting)
        # A difference, not a ratio of gains: a resample may have a gain of 0 or below.
        surely_keeps = np.quantile(gains[at] - keep * gains[best], 0.025) >= 0
        if other.weight == chosen.weight and other.window < chosen.window and surely_keeps:
            return at
    return best
