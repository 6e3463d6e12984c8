"""The batches that a collator hands to a model: dataclasses whose fields document content and shape.

A method whose loss is a sum over rows subclasses `Batch`. A method whose loss compares rows (`grad_cache.CachedModel`)
subclasses `CachedBatch`, defines a dataclass for `targets`, and derives one from `Part` if it encodes more than token ids:

    @dataclass
    class PairTargets:
        keys: Tensor  # (pairs,) int64, the article of each pair

    @dataclass
    class PairBatch(CachedBatch):
        targets: PairTargets
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

B = TypeVar("B", bound="Batch")

IGNORED = -100
"""The label of positions where nothing is to be predicted."""


@dataclass
class Batch:
    """Examples that meet in one loss; a subclass adds their tensors."""

    ids: list[str]
    """(batch,), the examples' names for messages"""

    def to(self: B, device: torch.device) -> B:
        """The same batch with every tensor on `device`."""
        moved: B = _changed(self, lambda tensor: tensor.to(device))
        return moved

    def pin_memory(self: B) -> B:
        """The same batch in pinned memory, which a GPU reads directly; the data loader calls this."""
        pinned: B = _changed(self, Tensor.pin_memory)
        return pinned


@dataclass
class Part:
    """Rows that are encoded together, padded to the longest row."""

    input_ids: Tensor
    """(rows, length) int64"""
    attention_mask: Tensor
    """(rows, length) int64, 1 at tokens and 0 at padding"""
    position: Tensor
    """(rows,) int64, each row's position among all rows of its role"""


@dataclass
class CachedBatch(Batch):
    """Rows of several roles, which are encoded part by part and then compared."""

    parts: Mapping[str, Sequence[Part]]
    """{role: parts}; the split into parts affects only padding and memory"""
    targets: Any
    """the inputs of the loss besides the vectors: a dataclass of the method"""


class WholeBatchCollator(ABC):
    """A collator that sees all processes' examples, for a loss that compares queries with documents of other processes."""

    @abstractmethod
    def __call__(self, items: list[Any], rank: int, world: int) -> Batch:
        """The share of process `rank` of `world` in the batch of all `items`."""


Collator = Callable[[list[Any]], Batch] | WholeBatchCollator
"""Makes a batch from one process's examples, or the process's share of a batch of all examples."""


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _changed(getattr(value, field.name), change) for field in fields(value)})
    if isinstance(value, Mapping):
        return {key: _changed(part, change) for key, part in value.items()}
    if isinstance(value, list):
        return [_changed(part, change) for part in value]
    return value
