"""One training loop for every method: `train(model, data, collate, …)`.

    run folder        is this run done, begun, or another run's?       run_folder.RunFolder
    trainer           transformers.Trainer for the method's model      trainer.LoopTrainer
      a batch         the same examples in every process               sampling.EpochBatches, then the method's `collate`
      a step          the loss, whole or by gradient caching           grad_cache.cached_backward
      dev measures    the best state, stored apart from checkpoints    LoopTrainer.evaluate
    model directory   the best state, osn.json last                    RunFolder.publish

Several processes:  torchrun --nproc-per-node 2 -m opensearch_neural.cli train dense --config dense.yaml
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from transformers import TrainerCallback, TrainerControl, TrainerState

from opensearch_neural.errors import InputError, OsnError
from trainers.common.attention import fast_attention
from trainers.common.batches import Collator
from trainers.common.grad_cache import CachedModel, processes
from trainers.common.precision import flushed_denormals
from trainers.common.processes import is_main_process
from trainers.common.run_folder import RunFolder, Trained
from trainers.common.sampling import SampledData
from trainers.common.settings import TrainingSettings
from trainers.common.trainer import Evaluate, LoopTrainer
from trainers.common.training_model import TrainingModel

logger = logging.getLogger(__name__)


def train(
    model: TrainingModel,
    data: SampledData,
    collate: Collator,
    *,
    settings: TrainingSettings,
    output: Path,
    kind: str,
    config: Any = None,
    data_hash: str = "",
    made_from: Mapping[str, str] | None = None,
    start_field: str | None = None,
    evaluate: Evaluate | None = None,
    best_from: float = 0.0,
    baselines: Container[str] = (),
) -> Trained:
    """Train `model` on `data` and write it to `output` as a model directory of `kind`.

    collate: turns items of `data` into a batch. config: the configuration to save beside the model (by default the
    settings). made_from: hashes of what `data_hash` does not cover, or that an error should name: of "start", "teachers" and
    the user's own "loss", and of `dev_hashes`.
    start_field: the field of `config` that names the model that training starts from; its files, covered by `data_hash` or
    `made_from`, may lie elsewhere when a run is continued. evaluate: returns dev measures of `model` in its present state,
    higher is better; called in the main process, in evaluation mode. best_from: states before this share of the steps are
    measured, but not kept or counted for patience. baselines: names of dev measures that training does not change; the lines
    on stderr leave them out.

    Called again with the same configuration and data, it continues an interrupted run, to the same weights, and returns at
    once if training has ended. Raises InputError if `output` belongs to another configuration, other data or other contents
    of dev sets, or another process trains there; OsnError if the loss is not finite, or memory or the disk runs out.
    """
    try:
        settings.check_measured(evaluate is not None)
    except ValueError as error:  # A share of few questions or articles may be none.
        logger.warning("%s: all steps are trained and the last state is kept", error)
    run = RunFolder(output, kind, settings if config is None else config, data_hash, made_from, start_field)
    if (ended := run.ended()) is not None:
        logger.info("%s is trained already (%d steps)", output, ended.steps)
        return ended
    _refuse_without_effect(model, data, settings)
    with run.started(), _with_advice(settings, output, in_chunks=isinstance(model, CachedModel)):
        trainer = LoopTrainer(
            model,
            data,
            collate,
            settings=settings,
            run=run,
            evaluate=evaluate,
            best_from=best_from,
            baselines=baselines,
        )
        resume_from = run.last_checkpoint()
        if resume_from is None:
            trainer.evaluate()
        else:
            logger.info("continuing %s from step %s", output, resume_from.name.rpartition("-")[2])
        if resume_from is not None and run.is_trained(resume_from, trainer.args.max_steps):
            trainer.reopen(resume_from)
        else:
            bfloat16_on_a_processor = trainer.args.bf16 and trainer.args.device.type == "cpu"
            attention = fast_attention(model) if bfloat16_on_a_processor else nullcontext()
            with attention, flushed_denormals(), _interrupted_after_a_step(trainer):
                trainer.train(resume_from_checkpoint=str(resume_from) if resume_from is not None else None)
            run.mark_trained()
        return trainer.finish()


def _refuse_without_effect(model: TrainingModel, data: SampledData, settings: TrainingSettings) -> None:
    """Raises InputError for settings that this training does not read."""
    if settings.chunk_size is not None and not isinstance(model, CachedModel):
        raise InputError(
            "training.chunk_size would have no effect: no text of a batch is compared with others here",
            "leave it out; activation_checkpointing=true or a smaller batch_size with more gradient_accumulation need less",
        )
    if settings.set_weights is not None and getattr(data, "sets", None) is None:
        raise InputError(
            "training.set_weights would have no effect: the data of this training are one set", "leave it out"
        )
    if settings.bucket > 1 and getattr(data, "lengths", None) is None:
        raise InputError(
            "training.bucket would have no effect: this training does not know the lengths of its examples beforehand",
            "leave it out",
        )


@contextmanager
def _with_advice(settings: TrainingSettings, output: Path, *, in_chunks: bool) -> Iterator[None]:
    """Turn errors of torch and safetensors that a user can do something about into errors with a remedy."""
    try:
        yield
    except (MemoryError, RuntimeError, SafetensorError, ValueError) as error:
        advice = _advice(error, settings, output, in_chunks)
        if advice is None:
            raise
        raise advice from error


def _advice(error: Exception, settings: TrainingSettings, output: Path, in_chunks: bool) -> OsnError | None:
    """The error to raise for it; None if there is nothing to advise. torch has classes for few of its errors.

    in_chunks: whether a batch can be encoded in chunks."""

    def says(*texts: str) -> bool:
        return any(text in str(error) for text in texts)

    if isinstance(error, ValueError):
        if not says("parameter group"):  # of an optimizer's state for other parameters
            return None
        return InputError(
            f"{output} holds a training of an earlier version, which trained other parameters of this model",
            f"end it with that version, or remove {output} and begin anew",
        )
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or says("not enough memory", "can't allocate memory"):
        if not in_chunks:
            return OsnError(
                f"memory ran out with training.batch_size {settings.batch_size}",
                "--set training.activation_checkpointing=true needs less and trains the same: run the same command with it "
                "to continue. A smaller batch_size with more gradient_accumulation, shorter texts and precision auto need "
                "less too, in a training of their own",
            )
        smaller = max(1, (settings.chunk_size or settings.batch_size) // 2)
        return OsnError(
            f"memory ran out with training.batch_size {settings.batch_size}, chunk_size {settings.chunk_size}",
            f"--set training.chunk_size={smaller} needs less and trains the same; shorter texts, precision auto "
            "and training.activation_checkpointing=true need less too. Then run the same command again to continue",
        )
    if says("Error while serializing", "unexpected pos", "PytorchStreamWriter"):  # of a file not written to its end
        return OsnError(
            f"{output}: a file could not be written to its end",
            "is the disk full? Make room, and run the same command again to continue",
        )
    return None


@contextmanager
def _interrupted_after_a_step(trainer: LoopTrainer) -> Iterator[None]:
    """On Ctrl-C or SIGTERM: finish the step, write a checkpoint, raise KeyboardInterrupt. A second signal stops at once."""
    stop = _StopAfterStep()
    trainer.add_callback(stop)
    try:
        previous = {number: signal.signal(number, stop.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # Only the main thread may set handlers; in others an interrupt ends training at once.
        previous = {}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if stop.asked:
        if is_main_process():
            print(
                f"saved after step {trainer.state.global_step}: run the same command again to continue",
                file=sys.stderr,
                flush=True,
            )
        raise KeyboardInterrupt


class _StopAfterStep(TrainerCallback):
    def __init__(self) -> None:
        self.asked = False

    def ask(self, number: int, _: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("finishing the step and saving; interrupt again to stop at once", file=sys.stderr, flush=True)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if processes() > 1:
            # The signal may reach processes in different steps; all must stop after the same step.
            stop = torch.tensor(int(self.asked), device=args.device)
            dist.all_reduce(stop, dist.ReduceOp.MAX)
            self.asked = bool(stop)
        if self.asked:
            control.should_save = control.should_training_stop = True
