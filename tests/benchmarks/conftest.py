"""What the tests of the benchmarks share."""

from __future__ import annotations

import contextlib


def pytest_configure() -> None:
    with contextlib.suppress(ModuleNotFoundError):
        import torch

        # Models here are so small that a second thread costs more than it does.
        torch.set_num_threads(1)
