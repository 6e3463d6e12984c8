"""Part "head" of `osn paper inference-free-sparse`: what the sampled output layer saves of a step, and what it costs.

The sampled head is timed against the full one that is pooled tile by tile, and against the plain formula, all logits at
once: steps of the student's own training in both precisions, and forward and backward of the head alone.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from unittest.mock import patch

import numpy as np

from benchmarks.experiment import kept
from opensearch_neural.evaluation.result_rows import mean_row
from opensearch_neural.evaluation.results import Goal, Row

if TYPE_CHECKING:
    import torch

    from trainers.sparse.settings import SparseConfig

Precision = Literal["bfloat16", "float32"]
PRECISIONS: tuple[Precision, ...] = ("bfloat16", "float32")
SAMPLED, FULL, PLAIN = "sampled", "full", "plain"
TIMED_STEPS, TIMED_TURNS = 8, 3
VOCABULARY = 30_522
LEAST = 2.5
"""Times the steps a second that are aimed at."""


def with_head(config: SparseConfig, kind: str) -> SparseConfig:
    return replace(config, student=replace(config.student, head=kind))  # type: ignore[arg-type]


def plain_logits(
    hidden: torch.Tensor,
    mask: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    columns: torch.Tensor | None = None,
    *,
    revive: float = 0.0,
) -> torch.Tensor:
    """What `largest_logits` gives of all columns, by the formula: all logits at once."""
    from torch.nn.functional import linear

    assert columns is None
    logits = linear(hidden, weight.to(hidden.dtype), bias.to(hidden.dtype))
    return (logits * mask[:, :, None]).relu().amax(dim=1)


# ------------------------------------------------ steps of a training


def step_rates(
    configuration: Callable[[str], SparseConfig], folder: Path, precision: Precision
) -> dict[str, list[float]]:
    """Steps a second of each head, one value a turn: the student's own training, short; "plain" trains with the formula.

    configuration: of a training with a name."""
    rates: dict[str, list[float]] = {SAMPLED: [], FULL: [], PLAIN: []}
    for turn, (kind, values) in itertools.product(range(TIMED_TURNS), rates.items()):
        config = configuration(f"timed-{precision}-{kind}-{turn}")
        config = replace(config, training=replace(config.training, precision=precision))
        with patch("trainers.sparse.student.largest_logits", plain_logits) if kind == PLAIN else nullcontext():
            values.append(steps_per_second(with_head(config, FULL if kind == PLAIN else kind), folder))
    return rates


def steps_per_second(config: SparseConfig, folder: Path) -> float:
    """Of a short run, its first two steps and measuring on dev left out."""
    from trainers.sparse.train import train_sparse

    output = folder / config.output.name

    def measure() -> float:
        training = replace(config.training, log_every=1, evaluate_every=1000, save_every=1000)
        selection = replace(config.selection, hold_back=None)
        shutil.rmtree(output, ignore_errors=True)
        done = train_sparse(replace(config, output=output, training=training, selection=selection))
        shutil.rmtree(output, ignore_errors=True)
        seconds = [1 / entry["steps_per_second"] for entry in done.history if "steps_per_second" in entry][2:]
        return len(seconds) / sum(seconds)

    return float(kept(output.with_suffix(".json"), measure))


def rate_rows(name: str, rates: Mapping[Precision, Mapping[str, Sequence[float]]]) -> list[Row]:
    """rates: {precision: {head: steps a second of each turn}}."""
    rows: list[Row] = []
    for precision, kinds in rates.items():
        for kind, values in kinds.items():
            rows.append(mean_row(name, f"{kind} head, {precision}", "steps/s", values))
        for kind in (FULL, PLAIN):
            how = {"baseline": f"{kind} head, {precision}", "measure_label": f"steps/s ÷ {kind} head's"}
            ratios = turn_by_turn(kinds, kind)
            rows.append(mean_row(name, f"{SAMPLED} head, {precision}", "steps/s", ratios, kind="ratio", **how))
    return rows


def turn_by_turn(rates: Mapping[str, Sequence[float]], kind: str) -> list[float]:
    """How many times the steps a second of `kind` the sampled head does."""
    return [sampled / other for sampled, other in zip(rates[SAMPLED], rates[kind], strict=True)]


def rate_goals(rates: Mapping[Precision, Mapping[str, Sequence[float]]]) -> list[Goal]:
    goals = []
    for kind, what in ((PLAIN, "the plain full head"), (FULL, "the full head pooled tile by tile")):
        ratios = {precision: float(np.mean(turn_by_turn(kinds, kind))) for precision, kinds in rates.items()}
        shown = ", ".join(f"{ratio:.2f} in {precision}" for precision, ratio in ratios.items())
        words = f"the sampled head: at least {LEAST}× the steps per second of {what}, on 2 cores"
        goals.append(Goal(words, f"{LEAST}", shown, min(ratios.values()) >= LEAST))
    return goals


# ------------------------------------------------ the head alone


def head_seconds(rounds: int = 7, documents: int = 32, length: int = 128, size: int = 384) -> dict[str, list[float]]:
    """Forward and backward of the head alone, on vectors that look like a trained model's: some hundred weights a
    document. {head: seconds of each round}, in turns; "plain" is the formula, all logits at once."""
    import torch

    from trainers.sparse.tiled_head import largest_logits, sample_columns

    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(documents, length, size, generator=generator).bfloat16().requires_grad_()
    weight = torch.randn(VOCABULARY, size, generator=generator)
    # Products of such vectors have the standard deviation √size; some 200 columns reach 3.9 of them within 128 positions.
    bias = torch.full((VOCABULARY,), -3.9 * size**0.5).requires_grad_()
    mask = torch.ones(documents, length, dtype=torch.long)
    wanted = np.arange(0, VOCABULARY, 60)
    drawn = sample_columns(wanted, np.arange(VOCABULARY), 1024, np.random.default_rng(0))
    columns = torch.from_numpy(drawn.ids)
    heads: dict[str, Callable[[], torch.Tensor]] = {
        PLAIN: lambda: plain_logits(hidden, mask, weight, bias),
        "tiled": lambda: largest_logits(hidden, mask, weight, bias),
        SAMPLED: lambda: largest_logits(hidden, mask, weight, bias, columns),
    }
    seconds: dict[str, list[float]] = {name: [] for name in heads}
    for number in range(rounds + 1):
        for name, head in heads.items():
            start = time.perf_counter()
            head().float().log1p().square().sum().backward()
            if number:  # The first round takes memory and chooses kernels.
                seconds[name].append(time.perf_counter() - start)
    return seconds


def head_rows(seconds: Mapping[str, Sequence[float]]) -> list[Row]:
    rows = []
    head_alone = f"head alone, 32 documents of 128 tokens, {VOCABULARY:,} columns"
    for name, values in seconds.items():
        rows.append(mean_row("random vectors", f"{name} {head_alone}", "ms", [1000 * value for value in values]))
        of_plain = [value / plain for value, plain in zip(values, seconds[PLAIN], strict=True)]
        how = {"kind": "ratio", "baseline": f"{PLAIN} {head_alone}", "measure_label": "seconds ÷ plain"}
        rows.append(mean_row("random vectors", f"{name} {head_alone}", "seconds", of_plain, **how))
    return rows
