"""Which examples meet in a batch: every process, and every resumed run, draws the same batches.

`EpochBatches` gives the batches of an epoch as visits; a visit is one example's turn, with the seed of its random choices.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch.utils.data import Sampler

from opensearch_neural.errors import InputError
from trainers.common.set_range import SetRange
from trainers.common.settings import TrainingSettings


@dataclass(frozen=True, slots=True)
class Visit:
    """One example's turn. Its random choices (a negative, masks, a generated query) are drawn from `random()`, which is
    the same in every process, worker and resumed run."""

    index: int
    """the example's number in the data"""
    epoch: int
    """passes over the data before this one"""
    batch: int
    """the number of the batch in the epoch"""
    seed: int
    """the seed of the training"""

    def random(self) -> random.Random:
        return random.Random(f"{self.seed} {self.epoch} {self.batch} {self.index}")

    def generator(self) -> np.random.Generator:
        """`random` for numpy, for many draws at once."""
        return np.random.default_rng([self.seed, self.epoch, self.batch, self.index])


class SampledData(Protocol):
    """Examples by number. If the data has `sets` (trainers.common.set_range.SetRange), each batch comes from one set.

    If it has `lengths` (tokens of each example), it can be bucketed."""

    def __len__(self) -> int: ...
    def __getitem__(self, visit: Visit, /) -> Any: ...


class EpochBatches(Sampler[list[Visit]]):
    """The batches of an epoch, as visits. Each process gets its consecutive share of a batch; if `whole`, all of it.

    A batch that the processes cannot share evenly loses its last examples: the mean of the processes' means stays the mean.
    """

    def __init__(
        self, data: SampledData, settings: TrainingSettings, *, rank: int = 0, world: int = 1, whole: bool
    ) -> None:
        if settings.batch_size % world:
            raise InputError(f"a batch of {settings.batch_size} cannot be shared evenly by {world} processes")
        if not len(data):
            raise InputError("there is nothing to train on")
        self.data, self.settings = data, settings
        self.rank, self.world, self.whole = rank, world, whole
        self.epoch = 0
        self.sets = _sets(data)
        if small := [part.name for part in self.sets if 0 < part.stop - part.start < world]:
            raise InputError(f"{small[0]} has fewer examples than the {world} processes")

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return batches_an_epoch(self.data, self.settings)

    def __iter__(self) -> Iterator[list[Visit]]:
        for number, batch in enumerate(self._drawn()):
            batch = batch[: len(batch) - len(batch) % self.world]
            if not self.whole:
                share = len(batch) // self.world
                batch = batch[self.rank * share : (self.rank + 1) * share]
            yield [Visit(index, self.epoch, number, self.settings.seed) for index in batch]

    def _drawn(self) -> Iterator[list[int]]:
        settings = self.settings
        drawn = draw_batches(
            self.sets, settings.batch_size, seed=settings.seed, epoch=self.epoch, weights=settings.set_weights
        )
        lengths: Sequence[int] | None = getattr(self.data, "lengths", None)
        if settings.bucket == 1 or lengths is None:
            return drawn
        return self._bucketed(list(drawn), np.asarray(lengths))

    def _bucketed(self, batches: list[list[int]], lengths: np.ndarray) -> Iterator[list[int]]:
        """Sorts each window of `bucket` batches of one set by length, cuts it into batches, and shuffles all batches."""
        rng = np.random.default_rng([self.settings.seed, self.epoch, 1 << 20])
        by_set: dict[int, list[list[int]]] = {}
        for batch in batches:
            number = next(at for at, part in enumerate(self.sets) if part.start <= batch[0] < part.stop)
            by_set.setdefault(number, []).append(batch)
        bucketed: list[list[int]] = []
        for own in by_set.values():
            if len(own[0]) < self.settings.batch_size:  # the whole set in each batch
                bucketed += own
                continue
            for start in range(0, len(own), self.settings.bucket):
                window = [index for batch in own[start : start + self.settings.bucket] for index in batch]
                window.sort(key=lambda index: int(lengths[index]))
                size = self.settings.batch_size
                bucketed += [window[at : at + size] for at in range(0, len(window), size)]
        return iter([bucketed[at] for at in rng.permutation(len(bucketed))])


def batches_an_epoch(data: SampledData, settings: TrainingSettings) -> int:
    """The number of batches in one pass: the full batches of every set; one for a set smaller than a batch."""
    sizes = [part.stop - part.start for part in _sets(data)]
    return sum(max(1, size // settings.batch_size) for size in sizes if size)


def total_steps(settings: TrainingSettings, batches: int) -> int:
    """The optimizer steps of a run with `batches` batches per epoch."""
    if settings.steps is not None:
        return settings.steps
    return math.ceil(settings.epochs * math.ceil(batches / settings.gradient_accumulation))


def _sets(data: SampledData) -> Sequence[SetRange]:
    sets: Sequence[SetRange] | None = getattr(data, "sets", None)
    return sets if sets is not None else (SetRange("data", 0, len(data), 0, 0),)


def draw_batches(
    sets: Sequence[SetRange], batch_size: int, *, seed: int, epoch: int, weights: Sequence[float] | float | None = None
) -> Iterator[list[int]]:
    """One epoch of batches as lists of example indices, each batch from one set.

    (`inference-free-sparse`, section 5.1.1: one data set drawn per step.) Every set is shuffled anew in each pass. The
    examples left over at the end of a pass are skipped, but a set smaller than a batch is one batch.
    weights: None draws each example once, so that sets come in proportion to their size; a list gives each set's
    share of the steps; a number p makes the shares proportional to size ** p. With weights, the epoch has as many
    batches as without, and small sets are repeated. The same arguments give the same batches.
    """
    if batch_size < 1:
        raise InputError(f"the batch size must be at least 1, not {batch_size}")
    filled = [part for part in sets if part.stop > part.start]
    sizes = np.array([part.stop - part.start for part in filled])
    counts = np.maximum(sizes // batch_size, 1)
    rng = np.random.default_rng([seed, epoch, 0])
    if weights is None:
        choices = rng.permutation(np.repeat(np.arange(len(filled)), counts))
    else:
        if isinstance(weights, (int, float)):
            shares = sizes.astype(float) ** weights
        else:
            if len(weights) != len(sets) or min(weights) < 0 or sum(weights) <= 0:
                raise InputError(f"expected {len(sets)} weights, one for each data set, none negative: {list(weights)}")
            shares = np.array([w for w, part in zip(weights, sets, strict=True) if part.stop > part.start], dtype=float)
            if not shares.any():
                raise InputError(f"training.set_weights {list(weights)} leave nothing to train on: the sets are empty")
        choices = rng.choice(len(filled), size=int(counts.sum()), p=shares / shares.sum())
    passes = [_passes(part, batch_size, [seed, epoch, 1 + at]) for at, part in enumerate(filled)]
    for choice in choices.tolist():
        yield next(passes[choice])


def _passes(part: SetRange, batch_size: int, seed: list[int]) -> Iterator[list[int]]:
    rng = np.random.default_rng(seed)
    while True:
        order = (rng.permutation(part.stop - part.start) + part.start).tolist()
        for start in range(0, max(len(order) - batch_size, 0) + 1, batch_size):
            yield order[start : start + batch_size]
