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
"""auto: bfloat16 if the hardware is faster with it, else float32."""
Computed = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = ("auto", "float32", "bfloat16")


def faster_in_bfloat16(device: str | torch.device | None = None) -> bool:
    """Whether a device multiplies faster in bfloat16 than in float32.

    With AMX, a processor is several times faster. AVX-512's bfloat16 dot products are twice as fast on AMD's processors;
    Intel's do half as many per cycle as in float32, and a transformer takes 1.5 times as long. Without units for bfloat16,
    a processor is over ten times slower. device: by default a GPU if there is one, else the processor."""
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
    """The number format for `precision` on a device; warns if it is bfloat16 and the device is not faster with it."""
    if precision == "float32":
        return "float32"
    fast = faster_in_bfloat16(device)
    if precision == "auto":
        return "bfloat16" if fast else "float32"
    if not fast:
        logger.warning(
            "this hardware has no fast bfloat16 and may take many times as long as in float32: "
            "precision auto takes the faster format"
        )
    return "bfloat16"


def computing_in(precision: Computed, device: str | torch.device | None = None) -> AbstractContextManager[Any]:
    """Inside, networks called in this thread compute in `precision` (see `computed_in`), as in training: weights, sums,
    norms and softmax stay in float32."""
    import torch

    kind = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")).type
    return torch.autocast(kind, torch.bfloat16, enabled=precision == "bfloat16")


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Inside, results nearer to 0 than float32's smallest normal number (1.2e-38) become 0 on a processor, as on a GPU.

    A processor computes many times slower with such numbers (denormals), and gradients of nearly one-hot attention are full
    of them. Only torch threads started inside obey; the first computation with several threads starts them.
    """
    import torch

    already = float(torch.full((1,), 1e-30) * 1e-10) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(already)
