"""Two processes that train together, as `torchrun` starts them."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from typing import Any


def in_two_processes(work: Callable[..., object], *arguments: Any) -> None:
    """Call `work(*arguments)` in two processes of one group on loopback. Raises what one of them raises."""
    import torch.multiprocessing as multiprocessing

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    # Forked from a server that has imported torch, which takes longer than what is tested. After a gradient nothing can be
    # forked from this process itself, and macOS's libraries are not made for forks.
    multiprocessing.set_forkserver_preload(["two_processes", "torch", "sentence_transformers", "torch._dynamo"])
    method = "forkserver" if sys.platform == "linux" else "spawn"
    multiprocessing.start_processes(_process, args=(port, work, arguments), nprocs=2, start_method=method)


def _process(rank: int, port: int, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    import torch

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    work(*arguments)
