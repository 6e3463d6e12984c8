"""Training with several processes (torchrun): which process writes, which wait, and what they share."""

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
"""How long processes wait for the main process, which alone reads, mines, generates and measures."""


def is_main_process() -> bool:
    """Whether this process writes and prints: the only process, or the first of several."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def main_process_first() -> Iterator[None]:
    """Inside, the main process runs first and the others wait for it: for work that only one needs to do."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        cpu = not torch.cuda.is_available()
        # The first call that joins the process group sets its timeout.
        state = PartialState(cpu=cpu, backend="gloo" if cpu else None, timeout=PATIENCE)
        with state.main_process_first():
            yield
    else:
        yield


def from_main_process(value: dict[str, float]) -> dict[str, float]:
    """Returns, in every process, the value that the main process passes."""
    if processes() == 1:
        return value
    values: list[Any] = [value]
    dist.broadcast_object_list(values, src=0)
    received: dict[str, float] = values[0]
    return received
