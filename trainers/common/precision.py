"""The number format of a network in training and encoding: float32, bfloat16, or the faster one of the hardware."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

Precision = Literal["auto", "float32", "bfloat16"]
"""auto: bfloat16 where the hardware is faster in it, float32 elsewhere."""
Computed = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = ("auto", "float32", "bfloat16")


def faster_in_bfloat16(device: str | torch.device | None = None) -> bool:
    """Whether a device multiplies faster in bfloat16 than in float32; a processor without any units for it is over ten
    times slower. AMX is several times faster. AVX-512's dot products of bfloat16 are twice as fast on AMD's processors;
    on Intel's there are half as many of them a cycle as of float32, and a transformer takes half as long again.
    device: by default a GPU if there is one, else the processor."""
    import torch

    kind = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")).type
    if kind == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_amx_tile_supported() or (torch.cpu._is_avx512_bf16_supported() and _vendor() != "GenuineIntel")


def _vendor() -> str:
    """The vendor of the processor, as Linux names it; empty on other systems."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def computed_in(precision: Precision, device: str | torch.device | None = None) -> Computed:
    """The number format for `precision` on a device; warns of bfloat16 if the device has no units for it."""
    if precision == "float32":
        return "float32"
    fast = faster_in_bfloat16(device)
    if precision == "auto":
        return "bfloat16" if fast else "float32"
    if not fast:
        logger.warning(
            "this hardware does not multiply in bfloat16, or slower than in float32, and may take many times as long: "
            "precision auto takes the faster one"
        )
    return "bfloat16"


def computing_in(precision: Computed, device: str | torch.device | None = None) -> AbstractContextManager[Any]:
    """Networks that are called inside, in this thread, compute in `precision` (see `computed_in`) as they do where they are
    trained: their weights stay in float32, and so do sums, norms and softmax."""
    import torch

    kind = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")).type
    return torch.autocast(kind, torch.bfloat16, enabled=precision == "bfloat16")


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Inside, results nearer to 0 than float32's smallest normal number (1.2e-38) are 0 on a processor too, as on a GPU.

    A processor takes many times as long to compute with them, and gradients of attention that is all but settled are full
    of them. Of torch's threads those obey that started inside; the first computation with several starts them.
    """
    import torch

    already = float(torch.full((1,), 1e-30) * 1e-10) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(already)
