"""Training with several processes (torchrun): who writes, who waits, and what all get to know."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from accelerate import PartialState

from trainers.common.grad_cache import processes

PATIENCE = timedelta(days=1)
"""How long processes wait for the first one, which alone reads, mines, generates and measures."""


def is_main_process() -> bool:
    """Whether this is the process that writes and prints: the only one, or the first of several."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def main_process_first() -> Iterator[None]:
    """Inside, the main process runs while the others wait until it is done: for work that is done once."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        cpu = not torch.cuda.is_available()
        # Whoever joins the group first says how long its processes wait for each other.
        state = PartialState(cpu=cpu, backend="gloo" if cpu else None, timeout=PATIENCE)
        with state.main_process_first():
            yield
    else:
        yield


def from_main_process(value: dict[str, float]) -> dict[str, float]:
    """What the main process passes here, in every process."""
    if processes() == 1:
        return value
    held: list[Any] = [value]
    dist.broadcast_object_list(held, src=0)
    received: dict[str, float] = held[0]
    return received
