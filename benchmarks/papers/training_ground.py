"""The trainers' ground measured: does training help, and what does a step cost?

    osn paper training-ground --data DIR --work DIR --record benchmarks/results/training_ground

`--data` holds the BEIR folders squad-mix, wikiqa-doc and tldr. Part "quality": for each, `osn train dense` starts from
all-MiniLM-L6-v2 on the train split, less the questions that the test split asks too. It is compared with the untrained model
on the test split, whole corpus, query by query. Part "speed": this loop and sentence-transformers' trainer take the same
steps on the same model and batches, in processes of their own, in turns; compared step by step.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.experiment import (
    Part,
    Table,
    compared,
    goal_of,
    is_above,
    kept_measured,
    paper_options,
    part_option,
    run_parts,
)
from opensearch_neural.evaluation.results import Engine, Goal, Row

if TYPE_CHECKING:
    from trainers.dense import DenseConfig

logger = logging.getLogger(__name__)

START = "sentence-transformers/all-MiniLM-L6-v2"
UNTRAINED, TRAINED = "MiniLM", "MiniLM trained"
OURS, THEIRS = "osn train dense", "sentence-transformers"
WARM_UP = 2
"""Steps at the start of a process that are not counted: memory is taken and kernels are chosen in them."""


@dataclass(frozen=True)
class Set:
    """How a set is trained on; chosen on its dev split, or on a part of train held back if it has none."""

    name: str
    epochs: float
    learning_rate: float = 5e-5
    has_dev: bool = False


SETS = (
    Set("wikiqa-doc", epochs=1, learning_rate=2e-5, has_dev=True),
    Set("tldr", epochs=2),
    Set("squad-mix", epochs=0.25, learning_rate=2e-5),
)


def configuration(settings: Set, data: Path, work: Path) -> DenseConfig:
    """What `osn train dense` is told for a set."""
    from trainers.common.settings import TrainingSettings
    from trainers.data.sets import DevSettings, SetSettings
    from trainers.dense import DenseConfig
    from trainers.encoders.tower import EncoderSettings

    folder = data / settings.name
    return DenseConfig(
        output=work / "models" / settings.name,
        train=[SetSettings(folder)],
        start=START,
        dev=[SetSettings(folder, split="dev", name=f"{settings.name}-dev")] if settings.has_dev else [],
        unseen=[SetSettings(folder, split="test", name=f"{settings.name}-test")],
        encoder=EncoderSettings(query_length=64, document_length=256),
        selection=DevSettings(hold_back=None if settings.has_dev else 0.02, queries=300, documents=1000),
        training=TrainingSettings(
            epochs=settings.epochs, batch_size=64, learning_rate=settings.learning_rate, precision="auto", log_every=5
        ),
    )


# ------------------------------------------------ what training gains


def quality(data: Path, work: Path, sets: Sequence[Set]) -> tuple[list[Row], list[Goal]]:
    """Train on each set if that is not done yet; rows of both models on its test split."""
    rows: list[Row] = []
    for settings in sets:
        rows += quality_rows(settings, data, work)
    return rows, [quality_goal(rows)]


def quality_rows(settings: Set, data: Path, work: Path) -> list[Row]:
    from opensearch_neural.models.directory import hash_files, locate
    from trainers.common.dev_measures import corpus_measures
    from trainers.data.loading import load_training
    from trainers.dense import train_dense

    config, name = configuration(settings, data, work), settings.name
    done = train_dense(config)
    logger.info("%s: %d steps, best after %s, %s", name, done.steps, done.best_step, done.measures)
    test = load_training(data / name, split="test", name=name)
    measured = {
        Engine(engine): kept_measured(
            work / "measured" / f"{name}-{hash_files(locate(str(model)))}-{test.hash}.json",
            partial(corpus_measures, f"dense:{model}", test, cache=work / "vectors" / f"{name}-{engine}"),
        )
        for engine, model in ((UNTRAINED, START), (TRAINED, config.output))
    }
    return compared(name, measured, [(TRAINED, UNTRAINED)])


def quality_goal(rows: Iterable[Row]) -> Goal:
    table = Table(rows)
    above = [name for name in table.sets if is_above(table.difference(name, TRAINED, UNTRAINED, "nDCG@10"))]
    return goal_of(
        "nDCG@10 on the test splits raised over the untrained MiniLM, paired interval above zero, on at least "
        "two of squad-mix, wikiqa-doc and tldr",
        "2 of 3",
        f"{len(above)} of {len(table.sets)}" + (f" ({', '.join(above)})" if above else ""),
        len(above) >= 2,
    )


# ------------------------------------------------ what a step costs


def speed(data: Path, work: Path, *, steps: int, pairs: int, precisions: Sequence[str]) -> tuple[list[Row], list[Goal]]:
    """Both trainers in turns; rows of steps per second and peak memory, and of the paired ratios."""
    rows: list[Row] = []
    for precision in precisions:
        seconds: dict[str, list[float]] = {OURS: [], THEIRS: []}
        memory: dict[str, list[float]] = {OURS: [], THEIRS: []}
        for pair in range(pairs):
            for trainer in (OURS, THEIRS) if pair % 2 == 0 else (THEIRS, OURS):
                measured = in_its_own_process(trainer, data, work, steps, precision)
                seconds[trainer] += measured["seconds"][WARM_UP:]
                memory[trainer].append(measured["peak_mib"])
                logger.info("%s: %s", trainer, measured)
        rows += speed_rows(f"squad-mix, batches of 64, {precision}", seconds, memory)
    return rows, speed_goals(rows)


def speed_rows(name: str, seconds: Mapping[str, Sequence[float]], memory: Mapping[str, Sequence[float]]) -> list[Row]:
    """seconds: of each timed step, memory: of each process (MiB), the same ones in the same order for both trainers."""
    from opensearch_neural.evaluation.comparison import interval
    from opensearch_neural.evaluation.result_rows import mean_row

    rows = []
    for trainer in (OURS, THEIRS):
        low, high = interval(seconds[trainer]) or (None, None)
        count = len(seconds[trainer])
        mean = sum(seconds[trainer]) / count
        # The interval of the time turned round: the longest time is the lowest rate.
        rates = (None if high is None else 1 / high, None if low is None else 1 / low)
        rows.append(Row(name, trainer, "steps/s", 1 / mean, *rates, count))
        rows.append(Row(name, trainer, "peak MiB", max(memory[trainer]), None, None, len(memory[trainer])))
    ratios = [theirs / ours for ours, theirs in zip(seconds[OURS], seconds[THEIRS], strict=True)]
    ratio_row = partial(mean_row, name, OURS, kind="ratio", baseline=THEIRS)
    rows.append(ratio_row("steps/s", ratios, measure_label=f"steps/s ÷ {THEIRS}"))
    shares = [ours / theirs for ours, theirs in zip(memory[OURS], memory[THEIRS], strict=True)]
    rows.append(ratio_row("peak MiB", shares, measure_label=f"peak MiB ÷ {THEIRS}"))
    return rows


def in_its_own_process(trainer: str, data: Path, work: Path, steps: int, precision: str) -> dict[str, Any]:
    """{"seconds": of each step, "peak_mib"} of one trainer: memory is measured by process."""
    told = [trainer, str(data), str(work), str(steps), precision]
    command = [sys.executable, "-m", "benchmarks.papers.training_ground", *told]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def step_with_ours(config: DenseConfig) -> list[float]:
    """Seconds of each step of `osn train dense`."""
    from trainers.dense import train_dense

    return [1 / entry["steps_per_second"] for entry in train_dense(config).history if "steps_per_second" in entry]


def step_with_sentence_transformers(config: DenseConfig) -> list[float]:
    """Seconds of each step of sentence-transformers' trainer on the same batches, in the same order."""
    import time
    import warnings

    import torch
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from torch.utils.data import BatchSampler, SequentialSampler
    from transformers import TrainerCallback

    from opensearch_neural.models.directory import locate
    from trainers.common.sampling import EpochBatches
    from trainers.data.candidates import RetrievalData
    from trainers.dense import prepared_sets

    settings, steps = config.training, config.training.steps or 0
    data = RetrievalData(prepared_sets(config).train, negatives=0, depth=1)
    pairs: dict[str, list[str]] = {"anchor": [], "positive": []}
    for number, batch in enumerate(EpochBatches(data, settings, whole=True)):
        if number == steps:
            break
        for drawn in (data[visit] for visit in batch):
            store = data.parts[drawn.at]
            pairs["anchor"].append(store.queries.text_at(drawn.query))
            pairs["positive"].append(store.documents.text_at(drawn.positive))
    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if not times:
                times.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

    model = SentenceTransformer(str(locate(config.start)), device="cpu" if settings.device == "cpu" else None)
    model.max_seq_length = config.encoder.document_length
    arguments = Arguments(
        output_dir=str(config.output),
        max_steps=steps,
        per_device_train_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_gradient_norm or 0.0,
        bf16=settings.precision == "bfloat16",
        use_cpu=settings.device == "cpu" or not torch.cuda.is_available(),
        seed=settings.seed,
        batch_sampler=lambda dataset, batch_size, drop_last, **_: BatchSampler(  # type: ignore[arg-type]
            SequentialSampler(dataset), batch_size, drop_last
        ),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_steps=steps,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss = MultipleNegativesRankingLoss(model, scale=20.0)
        SentenceTransformerTrainer(
            model=model, args=arguments, train_dataset=Dataset.from_dict(pairs), loss=loss, callbacks=[Clock()]
        ).train()
    return [after - before for before, after in pairwise(times)]


def peak_mib() -> float:
    """The most memory that this process has held: on the GPU if there is one, else resident."""
    import resource

    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def speed_goals(rows: Iterable[Row]) -> list[Goal]:
    goals: list[Goal] = []
    for row in (row for row in rows if row.kind == "ratio"):
        value = round(row.value, 3)
        if row.measure == "steps/s":
            words = f"steps per second: no slower than sentence-transformers' trainer ({row.set})"
            goals.append(goal_of(words, "at least 1", value, row.value >= 1))
        else:
            words = f"peak memory: no larger than sentence-transformers' trainer ({row.set})"
            goals.append(goal_of(words, "at most 1", value, row.value <= 1))
    return sorted(goals, key=lambda goal: goal.goal, reverse=True)


# ------------------------------------------------ the command


@click.command("training-ground")
@paper_options
@part_option(["quality", "speed"])
@click.option("--only", multiple=True, help="A set by name; repeatable. All by default.")
@click.option("--steps", type=int, default=12, show_default=True, help="Timed steps a process, warm-up included.")
@click.option("--pairs", type=int, default=3, show_default=True, help="Processes of each trainer, in turns.")
@click.option(
    "--precision",
    multiple=True,
    default=("bfloat16", "float32"),
    show_default=True,
    help="Precision to train in; repeatable.",
)
def training_ground(
    data: Path,
    work: Path,
    record: Path | None,
    chosen: tuple[str, ...],
    only: tuple[str, ...],
    steps: int,
    pairs: int,
    precision: tuple[str, ...],
) -> None:
    """Measure what training gains on three sets, and its speed and memory against sentence-transformers."""
    sets = [settings for settings in SETS if not only or settings.name in only]
    runs = {
        "quality": ("", partial(quality, data, work, sets), [settings.name for settings in sets]),
        "speed": ("speed", partial(speed, data, work, steps=steps, pairs=pairs, precisions=precision), ["squad-mix"]),
    }
    parts = {
        folder: Part(
            f"The ground that all trainers share, {name}", run, [data / used for used in names], [42], lambda row: True
        )
        for name, (folder, run, names) in runs.items()
        if not chosen or name in chosen
    }
    run_parts(parts, record)


def _child(trainer: str, data: Path, work: Path, steps: int, precision: str) -> None:
    import contextlib
    import tempfile

    squad = next(settings for settings in SETS if settings.name == "squad-mix")
    config = configuration(squad, data, work)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        training = replace(
            config.training,
            steps=steps,
            log_every=1,
            save_every=10 * steps,
            evaluate_every=10 * steps,
            precision=precision,  # type: ignore[arg-type]
        )
        selection = replace(config.selection, hold_back=None)
        # The rival has one length for queries and documents: here both have it.
        encoder = replace(config.encoder, query_length=config.encoder.document_length)
        config = replace(
            config, output=Path(folder) / "model", encoder=encoder, training=training, selection=selection, unseen=[]
        )
        step = step_with_ours if trainer == OURS else step_with_sentence_transformers
        seconds = step(config)
    print(json.dumps({"seconds": seconds, "peak_mib": peak_mib()}))


if __name__ == "__main__":
    _child(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
