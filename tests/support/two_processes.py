"""Two processes that train together, as `torchrun` starts them."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable
from typing import Any

from fork_server import METHOD


def in_two_processes(work: Callable[..., object], *arguments: Any) -> None:
    """Call `work(*arguments)` in two processes of one group on loopback. Raises what one of them raises."""
    import torch.multiprocessing as multiprocessing

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    # To import torch takes longer than what is tested, and after a gradient nothing can be forked from this process itself.
    multiprocessing.start_processes(_process, args=(port, work, arguments), nprocs=2, start_method=METHOD)


def _process(rank: int, port: int, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    import torch

    gc.freeze()  # what was imported stays: a training's `gc.collect()` would go through all of it
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    work(*arguments)
