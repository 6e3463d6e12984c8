"""Gradient caching: batches of any size in the memory of one chunk, with the gradient of the whole batch.

Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup": a contrastive loss needs all
vectors of the batch at once, but not all activations. (1) Encode every chunk without gradient, keeping the vectors.
(2) Compute the loss over all vectors, and its gradient for each vector. (3) Encode each chunk again, with the same random
numbers, and propagate the gradients of its vectors.

The gradient is exact: dropout masks are the same in (1) and (3), and language-model terms, which do not pass through the
vectors, are divided by the counts of the whole batch, not of the chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.common.batches import CachedBatch, Part
from trainers.common.training_model import Losses, TrainingModel


@dataclass(slots=True)
class Encoded:
    """The vectors and language-model terms of some rows. A term is Σ sums / Σ counts over all rows of the batch."""

    vectors: Tensor
    """(rows, …), one entry per row"""
    sums: dict[str, Tensor] = field(default_factory=dict)
    """the sum of each language-model term over these rows, a scalar"""
    counts: dict[str, Tensor] = field(default_factory=dict)
    """the count that the sum is to be divided by, a scalar"""


class CachedModel(TrainingModel):
    """A method whose loss compares rows: `encode` the rows of each role ("query", "document"), then `loss_terms` over all.

    Its batch is a `CachedBatch`: parts, which `encode` takes one by one, and targets, which `loss_terms` takes with the
    vectors. Both are dataclasses; a subclass defines its own.
    """

    @property
    def compares(self) -> bool:
        """Whether `loss_terms` has terms over the vectors. If False (only language-model terms), each part is encoded once,
        and the model gives the divisors of its terms beforehand (`counts`)."""
        return True

    def counts(self, part: Any) -> dict[str, Tensor]:
        """`Encoded.counts` of these rows, without encoding them; called only if `compares` is False."""
        raise NotImplementedError

    def encode(self, role: str, part: Any) -> Encoded:
        raise NotImplementedError

    def loss_terms(self, vectors: dict[str, Tensor], targets: Any) -> Losses:
        """The terms over the vectors of each role, (rows, …) in order. With several processes these are the rows of this
        process: `gather` adds the rows of the others, and each term is the mean over this process's rows."""
        raise NotImplementedError

    def forward(self, batch: CachedBatch) -> Losses:
        encoded = [(role, part, self.encode(role, part)) for role, part in _parts(batch)]
        vectors = {
            role: in_order(
                [one.vectors for of, _, one in encoded if of == role],
                [part.position for of, part, _ in encoded if of == role],
            )
            for role in batch.parts
        }
        with _full_precision(next(iter(vectors.values())).device):
            losses = self.loss_terms(vectors, batch.targets)
        counts = _total_counts([one.counts for _, _, one in encoded])
        for _, _, one in encoded:
            for name, term in _language_model_terms(one, counts).items():
                losses.terms[name] = losses.terms[name] + term if name in losses.terms else term
        return losses


def cached_backward(
    model: CachedModel,
    batch: CachedBatch,
    *,
    scale: float = 1.0,
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Losses:
    """`model(batch)` and `(scale · loss).backward()`, with the activations of one part at a time.

    autocast: makes a new context for each part, because autocast's cached weights from (1) carry no gradient.
    Does not average the gradients of several processes: see `average_gradients`.
    """
    parts = _parts(batch)
    if not model.compares:
        return _part_by_part(model, parts, scale, autocast)
    states: list[RandomState] = []
    encoded: list[Encoded] = []
    with torch.no_grad():
        for role, part in parts:
            states.append(RandomState.of(part.input_ids.device))
            with autocast():
                encoded.append(model.encode(role, part))
    counts = _total_counts([one.counts for one in encoded])

    leaves = {}
    for role in batch.parts:
        at = [i for i, (of, _) in enumerate(parts) if of == role]
        joined = in_order([encoded[i].vectors for i in at], [parts[i][1].position for i in at])
        leaves[role] = joined.detach().requires_grad_()
    with _full_precision(next(iter(leaves.values())).device):
        losses = model.loss_terms(leaves, batch.targets)
    (losses.total * scale).backward()
    losses = Losses(
        {name: term.detach() for name, term in losses.terms.items()},
        {name: measure.detach() for name, measure in losses.measures.items()},
    )

    for (role, part), state in zip(parts, states, strict=True):
        gradient = leaves[role].grad
        with state.replayed(), autocast():
            again = model.encode(role, part)
        surrogate = again.vectors.new_zeros(())
        if gradient is not None:
            surrogate = (again.vectors * gradient[part.position]).sum()
        for name, term in _language_model_terms(again, counts).items():
            surrogate = surrogate + scale * term
            losses.terms[name] = losses.terms.get(name, term.new_zeros(())) + term.detach()
        surrogate.backward()
    return losses


def _part_by_part(
    model: CachedModel,
    parts: Sequence[tuple[str, Part]],
    scale: float,
    autocast: Callable[[], AbstractContextManager[None]],
) -> Losses:
    counts = _total_counts([model.counts(part) for _, part in parts])
    losses = Losses({})
    for role, part in parts:
        with autocast():
            encoded = model.encode(role, part)
        terms = _language_model_terms(encoded, counts)
        torch.stack([scale * term for term in terms.values()]).sum().backward()
        for name, term in terms.items():
            losses.terms[name] = losses.terms.get(name, term.new_zeros(())) + term.detach()
    return losses


def gather(rows: Tensor) -> Tensor:
    """The rows of all processes, process 0 first. Gradients flow back, so each process's rows learn from all losses.
    Processes may have different numbers of rows. With one process: `rows` themselves.

    If a term is the mean over this process's queries and gradients are averaged over processes, the gradient equals that
    of the mean over all queries in one process.
    """
    if processes() == 1:
        return rows
    gathered: Tensor = _Gather.apply(rows)
    return gathered


def processes() -> int:
    """The number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def average_gradients(parameters: Sequence[Tensor]) -> None:
    """Replace each gradient by its mean over the processes (what DistributedDataParallel does for `forward`)."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if processes() == 1 or not gradients:
        return
    # One collective call for all tensors: a call for each would cost more than the sums.
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= processes()
    at = 0
    for gradient in gradients:
        gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient))
        at += gradient.numel()


@dataclass(slots=True)
class RandomState:
    """The states of the random number generators that dropout draws from."""

    device: torch.device
    """the device of the training"""
    cpu: Tensor
    """The state of the CPU's generator."""
    accelerator: Tensor | None
    """None without a GPU"""

    @classmethod
    def of(cls, device: torch.device) -> RandomState:
        accelerator = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(device, torch.get_rng_state(), accelerator)

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Inside, random numbers repeat from this state; afterwards they go on as if nothing had been drawn."""
        devices = [self.device] if self.accelerator is not None else []
        with torch.random.fork_rng(devices=devices):
            torch.set_rng_state(self.cpu)
            if self.accelerator is not None:
                torch.cuda.set_rng_state(self.accelerator, self.device)
            yield


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, rows: Tensor) -> Tensor:
        world, rank = dist.get_world_size(), dist.get_rank()
        count = torch.tensor([len(rows)], device=rows.device)
        counts = [torch.zeros_like(count) for _ in range(world)]
        dist.all_gather(counts, count)
        sizes = [int(part) for part in counts]
        # all_gather needs equal shapes: pad to the largest number of rows, and cut again.
        filled = rows.new_zeros((max(sizes), *rows.shape[1:]))
        filled[: len(rows)] = rows
        gathered = [torch.empty_like(filled) for _ in range(world)]
        dist.all_gather(gathered, filled)
        ctx.own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))  # type: ignore[attr-defined]
        return torch.cat([part[:size] for part, size in zip(gathered, sizes, strict=True)])

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> Tensor:
        # Every process's loss has a gradient for these rows: sum them.
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        return total[ctx.own]  # type: ignore[attr-defined]


def _parts(batch: CachedBatch) -> list[tuple[str, Part]]:
    return [(role, part) for role, parts in batch.parts.items() for part in parts]


def in_order(vectors: list[Tensor], positions: list[Tensor]) -> Tensor:
    """The rows of several parts, by `position`, in float32."""
    joined = torch.cat(vectors).float()
    return joined[torch.argsort(torch.cat(positions))]


def _total_counts(of_parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The divisor of each language-model term: the count over the whole batch, divided by the number of processes."""
    names = sorted({name for part in of_parts for name in part})
    if not names:
        return {}
    counts = torch.stack(
        [torch.stack([part[name].float() for part in of_parts if name in part]).sum() for name in names]
    )
    if processes() > 1:
        dist.all_reduce(counts)
        counts /= processes()
    return dict(zip(names, counts.clamp(min=torch.finfo(counts.dtype).tiny).unbind(), strict=True))


def _language_model_terms(encoded: Encoded, counts: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: total.float() / counts[name] for name, total in encoded.sums.items()}


def _full_precision(device: torch.device) -> AbstractContextManager[None]:
    # In bfloat16, rounding would hide small differences between a contrastive loss's scores.
    context: AbstractContextManager[None] = torch.autocast(device.type, enabled=False)
    return context
