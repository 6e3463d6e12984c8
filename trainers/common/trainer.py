"""`transformers.Trainer` for a `TrainingModel`: its steps, its log, and the state that it keeps.

It adds: loss terms logged by name; gradient caching; a stop, with step and batch ids, if the loss is not finite; the best
state on dev, stored apart from checkpoints; a checkpoint counts only when it is complete.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerCallback, TrainerControl

from opensearch_neural.errors import InputError, OsnError
from trainers.common.batches import Batch, CachedBatch, Collator, WholeBatchCollator
from trainers.common.grad_cache import CachedModel, average_gradients, cached_backward, processes
from trainers.common.precision import computed_in
from trainers.common.processes import PATIENCE, from_main_process
from trainers.common.run_folder import BestState, RunFolder, Trained
from trainers.common.sampling import EpochBatches, SampledData, batches_an_epoch, total_steps
from trainers.common.settings import LAST, TrainingSettings
from trainers.common.step_log import StepLines, tensorboard
from trainers.common.training_model import Losses, TrainingModel, TrainingProgress, decay_groups

logger = logging.getLogger(__name__)

Evaluate = Callable[[], dict[str, float]]
"""Returns dev measures of the model in its present state; higher is better."""


class LoopTrainer(Trainer):
    """`transformers.Trainer` for a `TrainingModel`. Use it through `loop.train`."""

    def __init__(
        self,
        model: TrainingModel,
        data: SampledData,
        collate: Collator,
        *,
        settings: TrainingSettings,
        run: RunFolder,
        evaluate: Evaluate | None,
        best_from: float = 0.0,
        baselines: Container[str] = (),
    ) -> None:
        steps = total_steps(settings, batches_an_epoch(data, settings))
        # Building the arguments joins the process group, so the number of processes is known afterwards.
        arguments = _arguments(settings, run, steps=steps, measured=evaluate is not None)
        rank, world = arguments.process_index, arguments.world_size
        whole = isinstance(collate, WholeBatchCollator)
        self.collate: Callable[[list[Any]], Batch] = (
            partial(collate, rank=rank, world=world) if isinstance(collate, WholeBatchCollator) else collate
        )
        self.batches = EpochBatches(data, settings, rank=rank, world=world, whole=whole)
        self.module, self.settings, self.run, self.measure = model, settings, run, evaluate
        if settings.activation_checkpointing:
            for module in model.modules():
                if isinstance(module, PreTrainedModel):
                    module.gradient_checkpointing_enable()
        model.progress = TrainingProgress(0, steps)
        self._best_from = best_from * steps
        super().__init__(model=model, args=arguments, train_dataset=data, eval_dataset=data, callbacks=[])
        # After super(), which moves the model to its device, and before a resumed run reads its checkpoint.
        self._start = _trained_weights(model) if settings.start_share else {}
        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)
        self.add_callback(_IntervalsOfSettings())
        if self.is_world_process_zero():
            self.add_callback(StepLines(run.output.name, baselines))
            if (writer := tensorboard(run.logs)) is not None:
                self.add_callback(writer)
        # Without a checkpoint the run begins anew, and a best state would be that of a failed one.
        self.best = BestState() if run.last_checkpoint() is None else run.read_best()
        self._patience_ended = False
        self._sums: dict[str, Tensor] = {}
        self._batches_summed = 0
        self._pending: list[tuple[Losses, list[str]]] = []
        # Where counting steps for the rate began: (step, time).
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
            # The loader draws a seed for its workers. Its own generator keeps dropout's random numbers the same in a
            # resumed run, which makes more loaders.
            generator=torch.Generator().manual_seed(self.settings.seed),
        )

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], None]:
        """The batches of a step. Losses divide by their own counts, so the count here is None."""
        return list(islice(epoch_iterator, num_batches)), None

    def floating_point_ops(self, inputs: Any) -> int:
        """0: nothing reads the number, and the Trainer would search batches for it."""
        return 0

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        groups = self.module.parameter_groups(self.settings)
        if (faster := self.settings.embedding_rate) is not None:
            groups = decay_groups(self.module.parameters()) if groups is None else groups
            rate = self.settings.learning_rate
            groups = with_embedding_rate(groups, self.module, learning_rate=rate, embedding_rate=faster)
        if groups is not None and self.optimizer is None:
            # Fused, as the Trainer's own default is: one pass over the weights instead of a dozen.
            self.optimizer = torch.optim.AdamW(
                groups, lr=self.settings.learning_rate, weight_decay=self.settings.weight_decay, fused=True
            )
        optimizer: torch.optim.Optimizer = super().create_optimizer()
        return optimizer

    # ------------------------------------------------ one step

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        model.train()
        self._since = self._since or (self.state.global_step, time.perf_counter())
        self.module.progress.step = self.state.global_step
        batch: Batch = inputs.to(self.args.device)
        scale = 1 / self.current_gradient_accumulation_steps
        if self.settings.chunk_size is not None and isinstance(self.module, CachedModel):
            assert isinstance(batch, CachedBatch)
            losses = cached_backward(self.module, batch, scale=scale, autocast=self.accelerator.autocast)
            if self.accelerator.sync_gradients:
                average_gradients(list(self.module.parameters()))
        else:
            losses = model(batch)
            self.accelerator.backward(losses.total * scale)
        loss = losses.total.detach() * scale
        self._pending.append((losses, batch.ids))
        for name, value in {**losses.terms, **losses.measures}.items():
            value = value.detach().float()
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._batches_summed += 1
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        # Called before the optimizer uses the gradients: the norm is finite only if every batch's loss is.
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
                    "look at these examples; a lower learning rate or a higher temperature may help",
                )
        return OsnError(
            f"step {step}: the gradient is not finite though the loss is; the batch: "
            + _shortened([name for _, ids in pending for name in ids]),
            "lower the learning rate, or train with precision float32",
        )

    # ------------------------------------------------ logging

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._batches_summed:
            means = torch.stack(list(self._sums.values())) / self._batches_summed
            if processes() > 1:
                dist.all_reduce(means)
                means /= processes()
            logs |= {name: float(f"{value:.6g}") for name, value in zip(self._sums, means.tolist(), strict=True)}
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
        """Dev measures, logged as eval_…; the state is kept if they are the best so far."""
        if self.measure is None:
            return {}
        measures: dict[str, float] = {}
        if self.is_world_process_zero():
            training = self.module.training
            self.module.eval()
            # Measuring must not change the random numbers that training draws next.
            random = torch.random.fork_rng(devices=range(torch.cuda.device_count()))
            with random, torch.no_grad(), self._averaged_with_start():
                measures = self.measure()
            self.module.train(training)
        measures = from_main_process(measures)
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
        step, best = self.state.global_step, self.best
        start = measures if step == 0 else best.start
        if step < self._best_from:
            self._keep(BestState(start), None)
            return
        if select == LAST or best.step is None or measures[select] > best.measures[select]:
            self._keep(BestState(start, step, measures), self.module)
        best_step = self.best.step or 0
        since = sum(1 for entry in self.state.log_history if f"eval_{select}" in entry and entry["step"] > best_step)
        if self.settings.patience is not None and since >= self.settings.patience:
            logger.info("no gain in %s for %d evaluations: stopping at step %d", select, since, step)
            self.control.should_training_stop = self.control.should_save = self._patience_ended = True

    def _keep(self, best: BestState, model: TrainingModel | None) -> None:
        self.best = best
        if self.is_world_process_zero():
            self.run.write_best(model, best)

    @contextmanager
    def _averaged_with_start(self) -> Iterator[None]:
        """Inside, the weights are averaged with the start, as measured and written; afterwards exactly as before."""
        weights = dict(self.module.named_parameters())
        trained = {name: weights[name].detach().clone() for name in self._start}
        with torch.no_grad():
            for name, start in self._start.items():
                weights[name].lerp_(start, self.settings.start_share)
            try:
                yield
            finally:
                for name, weight in trained.items():
                    weights[name].copy_(weight)

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
            self.run.mark_complete(self.state.global_step, keep=self.settings.keep)
            if self._patience_ended:
                self.run.mark_trained()

    def reopen(self, checkpoint: Path) -> None:
        """Load the state of a run that was stopped after its last step."""
        self._load_from_checkpoint(str(checkpoint))
        self.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))

    def finish(self) -> Trained:
        """Measure the last state unless that is done, go back to the best state, and write the model directory."""
        if self.measure is not None and not any(
            entry["step"] == self.state.global_step and any(name.startswith("eval_") for name in entry)
            for entry in self.state.log_history
        ):
            self.evaluate()
        best = self.best
        if best.step is not None:
            if best.step == 0 and self.state.global_step > 0:
                logger.warning("no state was better on dev than the start: the start is kept")
            load_model(self.module, str(self.run.best / "model.safetensors"))
        measures = best.measures | {f"start {name}": value for name, value in best.start.items()}
        trained = Trained(self.state.global_step, best.step, measures)
        if self.is_world_process_zero():
            self.module.eval()
            with self._averaged_with_start():
                self.run.publish(self.module, trained)
        if processes() > 1:
            dist.barrier()
        return trained


class _IntervalsOfSettings(TrainerCallback):
    """How often a continued run logs and saves is as its settings say, not as its checkpoint does."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        state.compute_steps(args, state.max_steps)


def _trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of every weight that training changes; a shared weight is there once."""
    return {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}


class _Loader(DataLoader[Any]):
    """A loader that passes the epoch, which the Trainer sets at each epoch's start, on to its sampler."""

    def set_epoch(self, epoch: int) -> None:
        sampler = self.batch_sampler
        if isinstance(sampler, EpochBatches):
            sampler.set_epoch(epoch)


def with_embedding_rate(
    groups: Sequence[dict[str, Any]], module: nn.Module, *, learning_rate: float, embedding_rate: float
) -> list[dict[str, Any]]:
    """Optimizer groups in which the word embeddings of all models in `module` have a learning rate of their own.

    AdamW moves every weight by about the learning rate, but a new T5's embeddings are 16 to 20 times as large as its
    matrices. Adafactor, T5's own optimizer, scales steps to the size of weights (Shazeer & Stern 2018, section 8).
    """
    models = [part for part in module.modules() if isinstance(part, PreTrainedModel)]
    embeddings = {id(model.get_input_embeddings().weight) for model in models}
    others, own = [], []
    for group in groups:
        rate = group.get("lr", learning_rate) * embedding_rate
        others.append({**group, "params": [weight for weight in group["params"] if id(weight) not in embeddings]})
        own.append({**group, "params": [weight for weight in group["params"] if id(weight) in embeddings], "lr": rate})
    return [group for group in others + own if group["params"]]


def _arguments(settings: TrainingSettings, run: RunFolder, *, steps: int, measured: bool) -> TrainingArguments:
    tenth = max(1, round(steps / 10))
    warmup = settings.warmup if settings.warmup >= 1 else math.ceil(settings.warmup * steps)
    cpu = settings.device_type == "cpu"
    arguments = TrainingArguments(
        output_dir=str(run.checkpoints),
        max_steps=steps,
        # The Trainer uses this size only in its counts: `EpochBatches` makes the batches.
        per_device_train_batch_size=max(1, settings.batch_size),
        gradient_accumulation_steps=settings.gradient_accumulation,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant_with_warmup" if settings.schedule == "constant" else settings.schedule,
        warmup_steps=int(warmup),
        weight_decay=settings.weight_decay,
        # An infinite limit clips nothing, but the norm is still computed: it shows whether the gradient is finite.
        max_grad_norm=math.inf if settings.max_gradient_norm is None else settings.max_gradient_norm,
        bf16=computed_in(settings.precision, "cpu" if cpu else None) == "bfloat16",
        seed=settings.seed,
        eval_strategy="steps" if measured else "no",
        eval_steps=settings.evaluate_every or tenth,
        save_strategy="steps",
        save_steps=settings.save_every or tenth,
        # The run folder deletes old checkpoints, when the new one is complete: the Trainer would do so before.
        save_total_limit=None,
        logging_steps=settings.log_every,
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        report_to="none",
        remove_unused_columns=False,
        use_cpu=cpu,
        ddp_backend="gloo" if cpu and int(os.environ.get("WORLD_SIZE", "1")) > 1 else None,
        ddp_find_unused_parameters=False,
        # Buffers (a corpus's codes, for instance) are the same in every process, and large.
        ddp_broadcast_buffers=False,
        # Other processes wait while the first one measures on dev.
        ddp_timeout=int(PATIENCE.total_seconds()),
        average_tokens_across_devices=False,
    )
    # One process uses one GPU; several GPUs need several processes (torchrun).
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments


def _shortened(ids: Sequence[str]) -> str:
    shown = ", ".join(map(repr, ids[:20]))
    return shown + (f" and {len(ids) - 20} more" if len(ids) > 20 else "") if ids else "(no ids given)"
