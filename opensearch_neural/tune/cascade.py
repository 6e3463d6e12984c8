"""Tuning of the cascade: the fastest setting that keeps a share of the best cascade's quality.

It needs judgements, since no exact search shows what is best. The setting is chosen on one half of the queries. On the
other half its mean must be no worse than that of the engine of its first stages, and the interval's lower end must keep
the share.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from opensearch_neural.engines.settings import CascadeSetting, First, Setting
from opensearch_neural.tune.trials import Questions, Tried, share
from opensearch_neural.tune.tuning import Chosen, Tuning

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from opensearchpy import OpenSearch

    from opensearch_neural.engines import Engines
    from opensearch_neural.models.dense.dense_encoder import DenseEncoder

WEIGHTS: dict[First, tuple[float, ...]] = {
    "bm25-sparse": (0.025, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3),
    "high-idf-first": (0.003, 0.006, 0.012, 0.018, 0.025, 0.035, 0.05, 0.1, 0.2),
}
WINDOWS = (20, 50, 100, 200)


class CascadeTuning(Tuning):
    setting = CascadeSetting
    nothing_chosen = (
        "the best cascade may be worse than {full} on the held-back queries, by {measure}; nothing was stored"
    )

    def __init__(self, client: OpenSearch, engines: Engines) -> None:
        super().__init__(client, engines)
        # The engine of its first stages, which the cascade must not be worse than; for high-idf-first, all tokens.
        if CascadeSetting.of(self.engines).first == "bm25-sparse":
            self.full = self.full_name = "bm25-sparse"

    def load(self) -> None:
        super().load()
        models = self.engines.models
        if self.engines.meta.quantized:
            quantized = replace(models.quantized, dense=_Remembering(models.quantized.dense))
            remembering = models.holding(quantized=quantized)
        else:
            remembering = models.holding(dense=_Remembering(models.dense))
        self.engines = replace(self.engines, models=remembering)

    def grid(self) -> Sequence[Setting]:
        start = CascadeSetting.of(self.engines)
        return cascade_settings(start, CascadeSetting.fitting(self.engines, start.first))

    def choose(self, tried: Sequence[Tried], held_back: Questions, keep: float, *, seed: int = 0) -> Chosen | None:
        """The fastest cascade whose interval keeps the share of the best cascade's quality. None if, on the held-back
        queries, it is worse than the engine `full`, or the lower end of its interval does not keep the share.

        `kept` is its share of the quality of `full` on the held-back queries.
        """
        settings = [each for each in tried if each.setting is not None]
        best = max(settings, key=lambda each: each.quality)
        kept_by = [each for each in settings if each is best or each.surely_keeps(keep, best, seed=seed)]
        chosen = min(kept_by, key=lambda each: each.ms)
        runs = [self.run_of(setting, held_back) for setting in (None, chosen.setting)]
        answered = held_back.without(self.unanswered)
        theirs, ours = (answered.quality(answered.of(run), {}) for run in runs)
        kept, low, high = share(ours, theirs, seed=seed)
        assert chosen.setting is not None
        keeps = kept >= 1 and low is not None and low >= keep
        return Chosen(chosen.setting, chosen, kept, low, high, 0) if keeps else None


def cascade_settings(start: CascadeSetting, default: CascadeSetting) -> list[CascadeSetting]:
    """All combinations of weights and both windows, otherwise like `start`. The second stage's window is at least as wide
    as the third's.

    default: the index's default, whose window is included
    """
    windows = sorted({*WINDOWS, default.window})
    return [
        replace(start, weight=weight, window=window, dense_window=dense_window)
        for weight, window, dense_window in itertools.product(WEIGHTS[start.first], windows, WINDOWS)
        if window >= dense_window
    ]


class _Remembering:
    """A dense encoder that encodes each query only once, for all settings."""

    def __init__(self, encoder: DenseEncoder) -> None:
        self._encoder = encoder
        self._vectors: dict[str, NDArray[Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode_queries(self, texts: Sequence[str], *, batch_size: int = 32) -> NDArray[Any]:
        if new := [text for text in dict.fromkeys(texts) if text not in self._vectors]:
            self._vectors |= dict(zip(new, self._encoder.encode_queries(new, batch_size=batch_size), strict=True))
        return np.stack([self._vectors[text] for text in texts])
