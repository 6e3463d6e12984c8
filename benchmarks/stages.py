"""Stages of training that two arms have in common are trained once."""

from __future__ import annotations

import shutil
from pathlib import Path


def share_stage(trained: Path, output: Path) -> None:
    """What was trained at `trained` as `output` too, which would be trained alike; stopped in the middle, `output` is not
    there."""
    if not output.exists():
        output.parent.mkdir(parents=True, exist_ok=True)
        beside = output.with_name(f".{output.name}.part")
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(trained, beside)
        beside.rename(output)
