"""One training loop for every method: `train(model, data, collate, …)` on `transformers.Trainer`.

What it adds to the Trainer: loss terms logged by name; batches that every process and every resumed run draws alike;
a checkpoint counts only when it is complete; the best state on dev is kept apart from checkpoints; gradient caching;
a stop with step and batch ids where the loss is not finite; advice where memory runs out.

Layout of an output directory:
    model files, osn.json (written last: its presence says that training ended), training.yaml
    .training/   run.json, checkpoints/, best/, logs/ (TensorBoard), history.jsonl

Several processes:  torchrun --nproc-per-node 2 -m opensearch_neural.cli train dense --config dense.yaml
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
import torch.distributed as dist
import yaml
from accelerate import PartialState
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler
from transformers import (
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from opensearch_neural.errors import InputError, OsnError
from opensearch_neural.files import share, write_json
from opensearch_neural.models.directory import read_osn_json, write_osn_json
from trainers.common.attention import fast_attention
from trainers.common.config import fingerprint, save_config, to_dict
from trainers.common.grad_cache import CachedModel, average_gradients, cached_backward, processes
from trainers.common.precision import Precision, computed_in, flushed_denormals
from trainers.common.training_model import Batch, Losses, Progress, TrainingModel, decay_groups
from trainers.data.examples import SetRange, draw_batches

logger = logging.getLogger(__name__)

PATIENCE = timedelta(days=1)
"""How long processes wait for the first one, which alone reads, mines, generates and measures."""

Evaluate = Callable[[TrainingModel], dict[str, float]]

WITHOUT_EFFECT = (
    "log_every",
    "save_every",
    "keep",
    "workers",
    "device",
    "chunk_size",
    "activation_checkpointing",
    "output",
    "cache",
)
"""Settings that may change between a run and its continuation: they do not change the weights, but for rounding."""
LAST = "last"
"""`TrainingSettings.select` where no measure selects."""


YAML = (".yaml", ".yml")


@dataclass(slots=True)
class TrainingSettings:
    """How long, how fast, in what batches. `*_every` and `steps` count optimizer steps.

    batch_size: examples whose vectors meet in one loss, over all processes. gradient_accumulation: so many batches a
    step (in-batch negatives do not reach across them). chunk_size: rows encoded at a time under gradient caching, with
    the same gradient as without; None encodes all at once. warmup: a share of the steps below 1, else a number of
    steps. select: the dev measure by which the best state is kept; None takes the first one that is measured, "last" keeps
    the last state, whatever is measured.
    patience: evaluations without a gain before training stops. bucket: batches of examples of like length within so
    many batches, for data that knows its lengths. evaluate_every, save_every: None is a tenth of all steps.
    embedding_rate: the learning rate of word embeddings, in learning rates of the rest; None is 1. AdamW moves every weight
    by about the learning rate, and a new T5's embeddings are 16 to 20 times as large as its matrices, which Adafactor, made
    for them, allows for (Shazeer & Stern 2018, section 8).
    precision: what the network computes in; auto is bfloat16 where the hardware is faster in it, else float32.
    """

    steps: int | None = None
    epochs: float = 1.0
    batch_size: int = 32
    gradient_accumulation: int = 1
    chunk_size: int | None = None
    learning_rate: float = 2e-5
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    warmup: float = 0.1
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0
    precision: Precision = "float32"
    activation_checkpointing: bool = False
    seed: int = 42
    evaluate_every: int | None = None
    save_every: int | None = None
    keep: int = 2
    log_every: int = 10
    select: str | None = None
    patience: int | None = None
    bucket: int = 1
    set_weights: list[float] | float | None = None
    embedding_rate: float | None = None
    workers: int = 0
    device: Literal["auto", "cpu"] = "auto"

    def __post_init__(self) -> None:
        for name in ("batch_size", "gradient_accumulation", "keep", "log_every", "bucket"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("steps", "chunk_size", "evaluate_every", "save_every", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.epochs <= 0 or self.learning_rate <= 0 or self.warmup < 0:
            raise ValueError("epochs and learning_rate must be above 0, warmup not below 0")
        if self.embedding_rate is not None and self.embedding_rate <= 0:
            raise ValueError(f"embedding_rate must be above 0, not {self.embedding_rate}")


@dataclass(frozen=True, slots=True)
class Visit:
    """One example's turn: what is drawn for it (a negative, masks, a generated query) is drawn from `random()`, which
    is the same in every process, worker and resumed run."""

    index: int
    epoch: int
    batch: int
    seed: int

    def random(self) -> random.Random:
        return random.Random(f"{self.seed} {self.epoch} {self.batch} {self.index}")

    def generator(self) -> np.random.Generator:
        """`random` for numpy, for many draws at once."""
        return np.random.default_rng([self.seed, self.epoch, self.batch, self.index])


class Data(Protocol):
    """Examples by number. One with `sets` (trainers.data.examples.SetRange) gets each batch out of one set.

    One with `lengths` (tokens of each) can be bucketed."""

    def __len__(self) -> int: ...
    def __getitem__(self, visit: Visit, /) -> Any: ...


@dataclass(slots=True)
class Trained:
    """What training came to. measures: of the state that was kept, and "start …" those before the first step."""

    steps: int
    best_step: int | None
    measures: dict[str, float]
    history: list[dict[str, float]] = field(default_factory=list)


class Batches(Sampler[list[Visit]]):
    """The batches of an epoch, as visits; each process gets its consecutive share, or all where `whole`.

    A batch that the processes cannot share evenly loses its last examples, so that a mean of means is the mean.
    """

    def __init__(self, data: Data, settings: TrainingSettings, *, rank: int = 0, world: int = 1, whole: bool) -> None:
        if settings.batch_size % world:
            raise InputError(f"a batch of {settings.batch_size} cannot be shared evenly by {world} processes")
        if not len(data):
            raise InputError("there is nothing to train on")
        self.data, self.settings = data, settings
        self.rank, self.world, self.whole = rank, world, whole
        self.epoch = 0
        self.sets = _sets(data)
        if small := [one.name for one in self.sets if 0 < one.stop - one.start < world]:
            raise InputError(f"{small[0]} has fewer examples than the {world} processes")

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return batches_an_epoch(self.data, self.settings)

    def __iter__(self) -> Iterator[list[Visit]]:
        for number, batch in enumerate(self._drawn()):
            batch = batch[: len(batch) - len(batch) % self.world]
            if not self.whole:
                share = len(batch) // self.world
                batch = batch[self.rank * share : (self.rank + 1) * share]
            yield [Visit(index, self.epoch, number, self.settings.seed) for index in batch]

    def _drawn(self) -> Iterator[list[int]]:
        settings = self.settings
        drawn = draw_batches(
            self.sets, settings.batch_size, seed=settings.seed, epoch=self.epoch, weights=settings.set_weights
        )
        lengths: Sequence[int] | None = getattr(self.data, "lengths", None)
        if settings.bucket == 1 or lengths is None:
            return drawn
        return self._bucketed(list(drawn), np.asarray(lengths))

    def _bucketed(self, batches: list[list[int]], lengths: np.ndarray) -> Iterator[list[int]]:
        """Within windows of `bucket` batches of one set: sorted by length, cut into batches, these shuffled."""
        rng = np.random.default_rng([self.settings.seed, self.epoch, 1 << 20])
        by_set: dict[int, list[list[int]]] = {}
        for batch in batches:
            of = next(at for at, one in enumerate(self.sets) if one.start <= batch[0] < one.stop)
            by_set.setdefault(of, []).append(batch)
        bucketed: list[list[int]] = []
        for own in by_set.values():
            for start in range(0, len(own), self.settings.bucket):
                window = [index for batch in own[start : start + self.settings.bucket] for index in batch]
                window.sort(key=lambda index: int(lengths[index]))
                size = self.settings.batch_size
                bucketed += [window[at : at + size] for at in range(0, len(window), size)]
        return iter([bucketed[at] for at in rng.permutation(len(bucketed))])


def batches_an_epoch(data: Data, settings: TrainingSettings) -> int:
    """How many batches one pass makes: those that every set fills, one for a set that is smaller than a batch."""
    sizes = [one.stop - one.start for one in _sets(data)]
    return sum(max(1, size // settings.batch_size) for size in sizes if size)


def _sets(data: Data) -> Sequence[SetRange]:
    sets: Sequence[SetRange] | None = getattr(data, "sets", None)
    return sets if sets is not None else (SetRange("data", 0, len(data), 0, 0),)


class _Loader(DataLoader[Any]):
    """A loader that passes the epoch on to `Batches`; the Trainer sets it at each epoch's start."""

    def set_epoch(self, epoch: int) -> None:
        sampler = self.batch_sampler
        if isinstance(sampler, Batches):
            sampler.set_epoch(epoch)


class _Collate:
    """`collate` with this process's rank where the method wants whole batches; a class, so that workers can have it."""

    def __init__(self, collate: Callable[..., Batch], rank: int, world: int) -> None:
        self.collate, self.rank, self.world = collate, rank, world
        self.whole = bool(getattr(collate, "whole_batch", False))

    def __call__(self, items: list[Any]) -> Batch:
        return self.collate(items, self.rank, self.world) if self.whole else self.collate(items)


def total_steps(settings: TrainingSettings, batches: int) -> int:
    """Optimizer steps of a run with `batches` batches an epoch."""
    if settings.steps is not None:
        return settings.steps
    return math.ceil(settings.epochs * math.ceil(batches / settings.gradient_accumulation))


def train(
    model: TrainingModel,
    data: Data,
    collate: Callable[..., Batch],
    *,
    settings: TrainingSettings,
    output: Path,
    kind: str,
    config: Any = None,
    data_hash: str = "",
    evaluate: Evaluate | None = None,
    evaluate_start: bool = True,
    best_from: float = 0.0,
) -> Trained:
    """Train `model` on `data` and write it to `output` as a model directory of `kind`.

    collate: items of `data` to a batch; with the attribute `whole_batch = True` it gets the items of the whole batch,
    and (items, rank, world) as arguments. config: what is saved beside the model (the settings by default). evaluate:
    dev measures of the model as it stands, higher is better; called in the main process, in evaluation mode. best_from:
    the share of the steps before which a state is measured, but neither kept nor counted for patience.

    Run again with the same configuration and data, it continues an interrupted run, to the same weights, and returns at
    once when training had ended. Raises InputError where `output` belongs to another configuration or other data,
    OsnError for a loss that is not finite and for too little memory.
    """
    config = settings if config is None else config
    run = _Run(output, kind, config, data_hash)
    if (ended := run.ended()) is not None:
        logger.info("%s is trained already (%d steps)", output, ended.steps)
        return ended
    run.start()
    with _advice_on_memory(settings):
        trainer = LoopTrainer(model, data, collate, settings=settings, run=run, evaluate=evaluate, best_from=best_from)
        resume_from = run.last_checkpoint()
        if resume_from is None and evaluate is not None and evaluate_start:
            trainer.evaluate()
        if resume_from is not None:
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


@contextmanager
def main_process_first() -> Iterator[None]:
    """Inside, the main process runs while the others wait for it to be through: for work that is done once, and which
    the others then find done."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        cpu = not torch.cuda.is_available()
        # Whoever joins the group first says how long its processes wait for each other.
        state = PartialState(cpu=cpu, backend="gloo" if cpu else None, timeout=PATIENCE)
        with state.main_process_first():
            yield
    else:
        yield


def _with_embedding_rate(
    groups: Sequence[dict[str, Any]], module: nn.Module, *, learning_rate: float, embedding_rate: float
) -> list[dict[str, Any]]:
    """Optimizer groups in which the word embeddings of all models in `module` have a rate of their own."""
    models = [one for one in module.modules() if isinstance(one, PreTrainedModel)]
    embeddings = {id(one.get_input_embeddings().weight) for one in models}
    others, own = [], []
    for group in groups:
        rate = group.get("lr", learning_rate) * embedding_rate
        others.append({**group, "params": [one for one in group["params"] if id(one) not in embeddings]})
        own.append({**group, "params": [one for one in group["params"] if id(one) in embeddings], "lr": rate})
    return [group for group in others + own if group["params"]]


class LoopTrainer(Trainer):
    """`transformers.Trainer` over a `TrainingModel`. Use it through `train`."""

    def __init__(
        self,
        model: TrainingModel,
        data: Data,
        collate: Callable[..., Batch],
        *,
        settings: TrainingSettings,
        run: _Run,
        evaluate: Evaluate | None,
        best_from: float = 0.0,
    ) -> None:
        steps = total_steps(settings, batches_an_epoch(data, settings))
        # Building the arguments joins the process group, which tells how many processes share a batch.
        arguments = _arguments(settings, run, steps=steps, measured=evaluate is not None)
        rank, world = arguments.process_index, arguments.world_size
        self.collate = _Collate(collate, rank, world)
        self.batches = Batches(data, settings, rank=rank, world=world, whole=self.collate.whole)
        self.module, self.settings, self.run, self.measure = model, settings, run, evaluate
        if settings.activation_checkpointing:
            for module in model.modules():
                if isinstance(module, PreTrainedModel):
                    module.gradient_checkpointing_enable()
        model.progress = Progress(0, steps)
        self._best_from = best_from * steps
        super().__init__(model=model, args=arguments, train_dataset=data, eval_dataset=data, callbacks=[])
        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)
        if self.is_world_process_zero():
            self.add_callback(_Lines(run))
            if (writer := _tensorboard(run.logs)) is not None:
                self.add_callback(writer)
        self.best: dict[str, Any] = run.read_best()
        self._sums: dict[str, Tensor] = {}
        self._batches_summed = 0
        self._pending: list[tuple[Losses, list[str]]] = []
        # Since when steps are counted for the rate: (step, time).
        self._since: tuple[int, float] | None = None

    # ------------------------------------------------ batches and optimizer

    def get_train_dataloader(self) -> DataLoader[Any]:
        return _Loader(
            self.train_dataset,  # type: ignore[arg-type]
            batch_sampler=self.batches,
            collate_fn=self.collate,
            num_workers=self.settings.workers,
            pin_memory=self.args.device.type == "cuda",
            persistent_workers=self.settings.workers > 0,
            # The loader draws a seed for its workers; from its own generator, so that dropout's numbers do not depend
            # on how often a loader was made, which a resumed run does more often.
            generator=torch.Generator().manual_seed(self.settings.seed),
        )

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        groups = self.module.parameter_groups(self.settings)
        if (faster := self.settings.embedding_rate) is not None:
            groups = decay_groups(self.module.parameters()) if groups is None else groups
            rate = self.settings.learning_rate
            groups = _with_embedding_rate(groups, self.module, learning_rate=rate, embedding_rate=faster)
        if groups is not None and self.optimizer is None:
            # Fused, as the Trainer's own default is: one pass over the weights instead of a dozen.
            self.optimizer = torch.optim.AdamW(
                groups, lr=self.settings.learning_rate, weight_decay=self.settings.weight_decay, fused=True
            )
        optimizer: torch.optim.Optimizer = super().create_optimizer()
        return optimizer

    # ------------------------------------------------ one step

    def training_step(self, model: nn.Module, inputs: Batch, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        model.train()
        self._since = self._since or (self.state.global_step, time.perf_counter())
        self.module.progress.step = self.state.global_step
        batch: Batch = self._prepare_inputs(inputs)
        scale = 1 / self.current_gradient_accumulation_steps
        if self.settings.chunk_size is not None and isinstance(self.module, CachedModel):
            losses = cached_backward(self.module, batch, scale=scale, autocast=self.accelerator.autocast)
            if self.accelerator.sync_gradients:
                average_gradients(list(self.module.parameters()))
        else:
            losses = model(batch)
            self.accelerator.backward(losses.total * scale)
        loss = losses.total.detach() * scale
        self._pending.append((losses, list(batch.get("ids", []))))
        for name, value in {**losses.terms, **losses.measures}.items():
            value = value.detach().float()
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._batches_summed += 1
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        # Before the optimizer has used them: one look at the norm covers the loss of every batch of the step.
        norm = super()._get_grad_norm(model, grad_norm)
        pending, self._pending = self._pending, []
        finite = norm.isfinite().all() if isinstance(norm, Tensor) else math.isfinite(norm)
        if not finite:
            raise self._not_finite(pending)
        return norm

    def _not_finite(self, pending: list[tuple[Losses, list[str]]]) -> OsnError:
        step = self.state.global_step + 1
        for losses, ids in pending:
            bad = [name for name, term in losses.terms.items() if not bool(term.isfinite())]
            if bad:
                return OsnError(
                    f"step {step}: the loss is not finite ({', '.join(bad)}); the batch: {_shortened(ids)}",
                    "look at these examples; a lower learning rate or temperature that is less sharp may help",
                )
        ids = [one for _, batch in pending for one in batch]
        return OsnError(
            f"step {step}: the gradient is not finite though the loss is; the batch: {_shortened(ids)}",
            "lower the learning rate, or train with precision float32",
        )

    # ------------------------------------------------ logging

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._batches_summed:
            means = torch.stack(list(self._sums.values())) / self._batches_summed
            if processes() > 1:
                dist.all_reduce(means)
                means /= processes()
            logs |= {name: round(value, 6) for name, value in zip(self._sums, means.tolist(), strict=True)}
            if self._since is not None:
                before, then = self._since
                now = time.perf_counter()
                logs["steps_per_second"] = round((self.state.global_step - before) / (now - then), 4)
                self._since = (self.state.global_step, now)
            self._sums, self._batches_summed = {}, 0
        super().log(logs, start_time)
        if self.is_world_process_zero():
            self.run.note(self.state.log_history[-1])

    # ------------------------------------------------ dev measures and the best state

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Dev measures, logged as eval_…; the state is kept where they are the best so far."""
        if self.measure is None:
            return {}
        measures: dict[str, float] = {}
        if self.is_world_process_zero():
            training = self.module.training
            self.module.eval()
            # Measuring must leave no trace in what training draws next.
            with torch.random.fork_rng(devices=range(torch.cuda.device_count())), torch.no_grad():
                measures = self.measure(self.module)
            self.module.train(training)
        measures = _from_main_process(measures)
        logs = {f"eval_{name}": value for name, value in measures.items()}
        self.log(dict(logs))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, logs)
        if measures:
            self._keep_if_best(measures)
        # Time spent measuring is not training time.
        self._since = (self.state.global_step, time.perf_counter())
        return logs

    def _keep_if_best(self, measures: dict[str, float]) -> None:
        select = self.settings.select or next(iter(measures))
        if select != LAST and select not in measures:
            raise InputError(f"select: there is no dev measure {select!r}", "measured: " + ", ".join(measures))
        step = self.state.global_step
        start = self.best.get("start", measures if step == 0 else {})
        if step < self._best_from:
            self.best = {"start": start}
            if self.is_world_process_zero():
                self.run.write_best(None, self.best)
            return
        if select == LAST or "measures" not in self.best or measures[select] > self.best["measures"][select]:
            self.best = {"step": step, "measures": measures, "start": start}
            if self.is_world_process_zero():
                self.run.write_best(self.module, self.best)
        since = sum(
            1 for entry in self.state.log_history if f"eval_{select}" in entry and entry["step"] > self.best["step"]
        )
        if self.settings.patience is not None and since >= self.settings.patience:
            logger.info("no gain in %s for %d evaluations: stopping at step %d", select, since, step)
            self.control.should_training_stop = True

    # ------------------------------------------------ checkpoints

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        # safetensors only, tied weights once; no pickled arguments.
        if self.args.should_save:
            folder = Path(output_dir or self.run.checkpoints)
            folder.mkdir(parents=True, exist_ok=True)
            save_model(self.module, str(folder / "model.safetensors"))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        load_model(self.module, str(Path(resume_from_checkpoint) / "model.safetensors"))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if processes() > 1:
            dist.barrier()
        if self.args.should_save:
            self.run.mark_complete(self.state.global_step)

    def reopen(self, checkpoint: Path) -> None:
        """Go to the state of a run whose steps were all done when it was stopped."""
        self._load_from_checkpoint(str(checkpoint))
        self.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))

    def finish(self) -> Trained:
        """Measure the last state where it was not, go back to the best one, and write the model directory."""
        if self.measure is not None and not any(
            entry["step"] == self.state.global_step and any(name.startswith("eval_") for name in entry)
            for entry in self.state.log_history
        ):
            self.evaluate()
        best_step = None
        if "measures" in self.best:
            best_step = int(self.best["step"])
            if best_step == 0 and self.state.global_step > 0:
                logger.warning("no state was better on dev than the one that training started from: it is kept")
            load_model(self.module, str(self.run.best / "model.safetensors"))
        measures = {**self.best.get("measures", {})}
        measures |= {f"start {name}": value for name, value in self.best.get("start", {}).items()}
        trained = Trained(self.state.global_step, best_step, measures, list(self.state.log_history))
        if self.is_world_process_zero():
            self.module.eval()
            self.run.publish(self.module, trained)
        if processes() > 1:
            dist.barrier()
        return trained


def check_output(output: Path, kind: str, parts: Collection[str] = ()) -> None:
    """Raises InputError where a training that makes a model of `kind` would write among what is not its own: another
    kind of model, a file, or a folder of something else (YAML files may lie there, and the folders `parts`). Called before
    anything is written."""
    if not output.exists():
        return
    if not output.is_dir():
        raise InputError(f"{output} is a file", "name a folder as --output")
    run = output / ".training" / "run.json"
    made = read_osn_json(output) or (json.loads(run.read_text(encoding="utf-8")) if run.exists() else None)
    if made is not None:
        if made["kind"] != kind:
            raise InputError(f"{output} holds another kind of model ({made['kind']})", "choose another --output")
        return
    names = [one.name for one in output.iterdir() if not one.name.startswith(".") and one.suffix not in YAML]
    others = [name for name in names if name not in parts]
    if others:
        raise InputError(f"{output} holds something else ({sorted(others)[0]})", "choose another --output")


class _Run:
    """The files of one training run in its output directory."""

    def __init__(self, output: Path, kind: str, config: Any, data_hash: str) -> None:
        self.output, self.kind, self.config, self.data_hash = output, kind, config, data_hash
        self.folder = output / ".training"
        self._saved = output / "training.yaml"
        self.checkpoints = self.folder / "checkpoints"
        self.best = self.folder / "best"
        self.logs = self.folder / "logs"
        self.identity = {
            "kind": kind,
            "data_hash": data_hash,
            "configuration": fingerprint(_with_effect(to_dict(config))),
        }

    def ended(self) -> Trained | None:
        """What the run came to where it ended. Raises InputError where the directory is another run's."""
        check_output(self.output, self.kind)
        content = read_osn_json(self.output) if self.output.is_dir() else None
        identity = self.folder / "run.json"
        if identity.exists():
            other = json.loads(identity.read_text(encoding="utf-8"))
            changed = [name for name in self.identity if other.get(name) != self.identity[name]]
            if "configuration" in changed and not (fields := self._other_fields()) and self._saved.exists():
                changed.remove("configuration")  # Settings that came later, not given.
            if "configuration" in changed:
                shown = "; ".join(fields[:5]) + (f"; and {len(fields) - 5} more" if len(fields) > 5 else "")
                raise InputError(
                    f"{self.output} holds a training run with another configuration"
                    + (f" ({shown})" if fields else ""),
                    f"choose another --output, or remove {self.output}",
                )
            if changed:
                raise InputError(
                    f"{self.output} holds a training run on other data, or from another start",
                    f"choose another --output, or remove {self.output}",
                )
        elif content is not None:
            raise InputError(f"{self.output} holds a model that was not trained there", "choose another --output")
        if content is None:
            return None
        outcome = json.loads((self.folder / "outcome.json").read_text(encoding="utf-8"))
        return Trained(outcome["steps"], outcome["best_step"], dict(content["measures"]))

    def _other_fields(self) -> list[str]:
        """The fields of the configuration beside the model that differ from this one's."""
        there = yaml.safe_load(self._saved.read_text(encoding="utf-8")) if self._saved.exists() else {}
        return differing(_with_effect(there), _with_effect(to_dict(self.config)))

    def start(self) -> None:
        if is_main_process():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / "run.json", self.identity)
            save_config(self.config, self.output)

    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint that was completely written."""
        complete = [path.parent for path in self.checkpoints.glob("checkpoint-*/complete")]
        return max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)

    def mark_complete(self, step: int) -> None:
        (self.checkpoints / f"checkpoint-{step}" / "complete").touch()

    def mark_trained(self) -> None:
        """All steps are done, or training was stopped for want of gain: what remains is to write the model."""
        if is_main_process():
            (self.folder / "trained").touch()

    def is_trained(self, checkpoint: Path, steps: int) -> bool:
        return (self.folder / "trained").exists() or int(checkpoint.name.rpartition("-")[2]) >= steps

    def read_best(self) -> dict[str, Any]:
        path = self.best / "best.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def write_best(self, model: TrainingModel | None, best: Mapping[str, Any]) -> None:
        """model: None where no state counts yet."""
        self.best.mkdir(parents=True, exist_ok=True)
        if model is not None:
            beside = self.best / ".model.safetensors"
            save_model(model, str(beside))
            beside.replace(self.best / "model.safetensors")
        write_json(self.best / "best.json", best)

    def note(self, entry: Mapping[str, Any]) -> None:
        with (self.folder / "history.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def publish(self, model: TrainingModel, trained: Trained) -> None:
        """The model's files beside, then into place; osn.json last. Checkpoints have served their purpose then."""
        staging = self.folder / "export"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        model.export(staging)
        share(staging)
        for path in sorted(staging.iterdir()):
            target = self.output / path.name
            if target.is_dir():
                shutil.rmtree(target)
            path.replace(target)
        staging.rmdir()
        write_json(self.folder / "outcome.json", {"steps": trained.steps, "best_step": trained.best_step})
        write_osn_json(
            self.output,
            self.kind,
            training=to_dict(self.config),
            data_hash=self.data_hash,
            measures=trained.measures,
        )
        for folder in (self.checkpoints, self.best):
            shutil.rmtree(folder, ignore_errors=True)
        (self.folder / "trained").unlink(missing_ok=True)


class _Lines(TrainerCallback):
    """Progress on stderr: every line of the log, and on a terminal a bar."""

    def __init__(self, run: _Run) -> None:
        self.run = run
        self.bar: Any = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if sys.stderr.isatty():
            from tqdm.auto import tqdm

            name = self.run.output.name
            self.bar = tqdm(total=state.max_steps, initial=state.global_step, desc=name, unit="step", file=sys.stderr)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, logs: dict[str, float] | None = None, **_: Any
    ) -> None:
        logs = logs or {}
        measured = {name: value for name, value in logs.items() if isinstance(value, (int, float))}
        if "train_runtime" in measured:
            return
        if self.bar is not None and "loss" in measured:
            self.bar.set_postfix(loss=f"{measured['loss']:.4g}")
        if state.max_steps and "steps_per_second" in measured:
            measured["minutes_left"] = (state.max_steps - state.global_step) / measured["steps_per_second"] / 60
        shown = "  ".join(f"{name.removeprefix('eval_')} {value:.4g}" for name, value in measured.items())
        of = f"/{state.max_steps}" if state.max_steps else ""
        line = f"{self.run.output.name}  step {state.global_step}{of}  {shown}"
        if self.bar is not None:
            self.bar.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None


def _arguments(settings: TrainingSettings, run: _Run, *, steps: int, measured: bool) -> TrainingArguments:
    tenth = max(1, round(steps / 10))
    warmup = settings.warmup if settings.warmup >= 1 else math.ceil(settings.warmup * steps)
    cpu = settings.device == "cpu" or not torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=str(run.checkpoints),
        max_steps=steps,
        # The Trainer's own batch size only appears in its counts: `Batches` makes the batches.
        per_device_train_batch_size=max(1, settings.batch_size),
        gradient_accumulation_steps=settings.gradient_accumulation,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant_with_warmup" if settings.schedule == "constant" else settings.schedule,
        warmup_steps=int(warmup),
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_gradient_norm,
        bf16=computed_in(settings.precision, "cpu" if cpu else None) == "bfloat16",
        seed=settings.seed,
        eval_strategy="steps" if measured else "no",
        eval_steps=settings.evaluate_every or tenth,
        save_strategy="steps",
        save_steps=settings.save_every or tenth,
        save_total_limit=settings.keep,
        logging_steps=settings.log_every,
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        report_to="none",
        remove_unused_columns=False,
        use_cpu=cpu,
        ddp_backend="gloo" if cpu and int(os.environ.get("WORLD_SIZE", "1")) > 1 else None,
        ddp_find_unused_parameters=False,
        # What buffers hold (a corpus's codes, say) is the same everywhere, and large.
        ddp_broadcast_buffers=False,
        # Other processes wait while the first one measures on dev.
        ddp_timeout=int(PATIENCE.total_seconds()),
        average_tokens_across_devices=False,
    )
    # One process uses one GPU; several GPUs are for several processes (torchrun), not for threads of one.
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments


def _tensorboard(folder: Path) -> TrainerCallback | None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        logger.warning('no TensorBoard logs: pip install "opensearch-neural[train]"')
        return None
    from transformers.integrations import TensorBoardCallback

    return TensorBoardCallback(SummaryWriter(log_dir=str(folder)))


def _with_effect(config: Any) -> Any:
    """`config` (plain values) without what does not change the result: where it is written, how often it is saved."""
    if not isinstance(config, dict):
        return config
    return {name: _with_effect(value) for name, value in config.items() if name not in WITHOUT_EFFECT}


def differing(there: Any, now: Any, name: str = "") -> list[str]:
    """The fields of plain values (`to_dict`) that are not the same, each with both."""
    if isinstance(there, dict) and isinstance(now, dict):
        fields = [*there, *(field for field in now if field not in there)]
        below = [differing(there.get(one), now.get(one), f"{name}.{one}" if name else one) for one in fields]
        return [one for found in below for one in found]
    return [] if there == now else [f"{name}: {_brief(there)} there, {_brief(now)} now"]


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


@contextmanager
def _advice_on_memory(settings: TrainingSettings) -> Iterator[None]:
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError):
            text = str(error)
            if "not enough memory" not in text and "can't allocate memory" not in text:
                raise
        smaller = max(1, (settings.chunk_size or settings.batch_size) // 2)
        raise OsnError(
            f"memory ran out with training.batch_size {settings.batch_size}, chunk_size {settings.chunk_size}",
            f"--set training.chunk_size={smaller} needs less and trains the same; shorter texts, precision auto "
            "and training.activation_checkpointing=true need less too. The same command then continues",
        ) from error


@contextmanager
def _interrupted_after_a_step(trainer: LoopTrainer) -> Iterator[None]:
    """Ctrl-C and SIGTERM: the step is finished, a checkpoint written, then KeyboardInterrupt. A second one is at once."""
    stop = _StopAfterStep()
    trainer.add_callback(stop)
    try:
        previous = {one: signal.signal(one, stop.ask) for one in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # Only the main thread may have handlers: elsewhere interrupts end training at once.
        previous = {}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if stop.asked:
        if is_main_process():
            print(
                f"saved after step {trainer.state.global_step}: the same command goes on", file=sys.stderr, flush=True
            )
        raise KeyboardInterrupt


class _StopAfterStep(TrainerCallback):
    def __init__(self) -> None:
        self.asked = False

    def ask(self, number: int, _: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("finishing the step and saving; once more to stop at once", file=sys.stderr, flush=True)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if processes() > 1:
            # The signal may reach processes in different steps; they have to stop after the same one.
            asked = torch.tensor(int(self.asked), device=args.device)
            dist.all_reduce(asked, dist.ReduceOp.MAX)
            self.asked = bool(asked)
        if self.asked:
            control.should_save = control.should_training_stop = True


def _shortened(ids: Sequence[str]) -> str:
    shown = ", ".join(map(repr, ids[:20]))
    return shown + (f" and {len(ids) - 20} more" if len(ids) > 20 else "") if ids else "(no ids given)"


def _from_main_process(value: dict[str, float]) -> dict[str, float]:
    if processes() == 1:
        return value
    held: list[Any] = [value]
    dist.broadcast_object_list(held, src=0)
    received: dict[str, float] = held[0]
    return received


def is_main_process() -> bool:
    """Whether this is the process that writes and prints: the only one, or the first of several."""
    return int(os.environ.get("RANK", "0")) == 0
