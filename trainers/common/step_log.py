"""The progress of a training: lines on stderr, a bar on a terminal, TensorBoard."""

from __future__ import annotations

import logging
import sys
from collections.abc import Container
from pathlib import Path
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState

logger = logging.getLogger(__name__)


class StepLines(TrainerCallback):
    """Prints every line of the log on stderr, and a progress bar on a terminal.

    baselines: names of dev measures that training does not change; they are left out"""

    def __init__(self, name: str, baselines: Container[str] = ()) -> None:
        self.name, self.baselines = name, baselines
        self.bar = tqdm(disable=True)

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        # disable=None disables the bar if stderr is no terminal.
        self.bar = tqdm(
            total=state.max_steps,
            initial=state.global_step,
            desc=self.name,
            unit="step",
            file=sys.stderr,
            disable=None,
        )

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.bar.update(state.global_step - self.bar.n)

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, logs: dict[str, float] | None = None, **_: Any
    ) -> None:
        measured = {name: value for name, value in (logs or {}).items() if isinstance(value, (int, float))}
        if "train_runtime" in measured:
            return
        if "loss" in measured:
            self.bar.set_postfix(loss=f"{measured['loss']:.4g}")
        if state.max_steps and "steps_per_second" in measured:
            measured["minutes_left"] = (state.max_steps - state.global_step) / measured["steps_per_second"] / 60
        named = {name.removeprefix("eval_"): value for name, value in measured.items()}
        shown = "  ".join(f"{name} {value:.4g}" for name, value in named.items() if name not in self.baselines)
        of = f"/{state.max_steps}" if state.max_steps else ""
        tqdm.write(f"{self.name}  step {state.global_step}{of}  {shown}", file=sys.stderr)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.bar.close()


def tensorboard(folder: Path) -> TrainerCallback | None:
    """The callback that writes TensorBoard logs into `folder`; None, with a warning, if TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        logger.warning('no TensorBoard logs: pip install "opensearch-neural[train]"')
        return None
    from transformers.integrations import TensorBoardCallback

    return TensorBoardCallback(SummaryWriter(log_dir=str(folder)))
