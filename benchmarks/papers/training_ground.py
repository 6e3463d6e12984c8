"""The trainers' ground measured: does training help, and what does a step cost?

    osn bench training-ground --data DIR --work DIR --record benchmarks/results/training_ground

`--data` holds the BEIR folders squad-mix, wikiqa-doc and tldr. For each, `osn train dense` starts from all-MiniLM-L6-v2
on the train split (less the questions that the test split asks too) and is compared with the untrained model on the
test split, whole corpus, query by query. Then this loop and sentence-transformers' trainer take the same steps on the
same model and batches, in processes of their own, in turns; compared step by step.

Models and vectors stay in `--work`: interrupted, the same command goes on, and what is done is not repeated.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from opensearch_neural.evaluation.measures import Measured
    from opensearch_neural.evaluation.results import Goal, Row
    from trainers.dense import DenseConfig

logger = logging.getLogger(__name__)

START = "sentence-transformers/all-MiniLM-L6-v2"
UNTRAINED, TRAINED = "MiniLM", "MiniLM trained"
OURS, THEIRS = "osn train dense", "sentence-transformers"
WARM_UP = 2
"""Steps at the start of a process that are not counted: memory is taken and kernels are chosen in them."""


@dataclass(frozen=True)
class Set:
    """How a set is trained on; chosen on its dev split, or on a part of train held back where it has none."""

    name: str
    epochs: float
    learning_rate: float = 5e-5
    has_dev: bool = False


SETS = (
    Set("wikiqa-doc", epochs=1, learning_rate=2e-5, has_dev=True),
    Set("tldr", epochs=2),
    Set("squad-mix", epochs=0.25, learning_rate=2e-5),
)


def configuration(one: Set, data: Path, work: Path) -> DenseConfig:
    """What `osn train dense` is told for a set."""
    from trainers.common.settings import TrainingSettings
    from trainers.data.sets import DevSettings, SetSettings
    from trainers.dense import DenseConfig
    from trainers.encoders.tower import EncoderSettings

    folder = data / one.name
    return DenseConfig(
        output=work / "models" / one.name,
        train=[SetSettings(folder)],
        start=START,
        dev=[SetSettings(folder, split="dev", name=f"{one.name}-dev")] if one.has_dev else [],
        unseen=[SetSettings(folder, split="test", name=f"{one.name}-test")],
        encoder=EncoderSettings(query_length=64, document_length=256),
        selection=DevSettings(hold_back=None if one.has_dev else 0.02, queries=300, documents=1000),
        training=TrainingSettings(
            epochs=one.epochs, batch_size=64, learning_rate=one.learning_rate, precision="auto", log_every=5
        ),
    )


@click.command("training-ground")
@click.option("--data", required=True, type=click.Path(path_type=Path, exists=True), help="Holds the BEIR folders.")
@click.option("--work", required=True, type=click.Path(path_type=Path), help="Models and vectors are kept there.")
@click.option("--record", type=click.Path(path_type=Path), default=None, help="Write summary.json there.")
@click.option("--part", type=click.Choice(["all", "quality", "speed"]), default="all", show_default=True)
@click.option("--only", multiple=True, help="A set by name; repeatable. All by default.")
@click.option("--steps", type=int, default=12, show_default=True, help="Timed steps a process, warm-up included.")
@click.option("--pairs", type=int, default=3, show_default=True, help="Processes of each trainer, in turns.")
@click.option("--precision", multiple=True, default=("bfloat16", "float32"), show_default=True)
def training_ground(
    data: Path,
    work: Path,
    record: Path | None,
    part: str,
    only: tuple[str, ...],
    steps: int,
    pairs: int,
    precision: tuple[str, ...],
) -> None:
    """Measure what training gains on three sets, and its speed and memory against sentence-transformers."""
    from benchmarks.publish import publish

    sets = [one for one in SETS if not only or one.name in only]
    rows: list[Row] = []
    if part != "speed":
        for one in sets:
            rows += quality(one, data, work)
    if part != "quality":
        for kind in precision:
            rows += speed(data, work, steps=steps, pairs=pairs, precision=kind)
    publish(
        rows,
        goals(rows),
        title="The ground that all trainers share",
        data=[data / one.name for one in sets],
        seeds=[42],
        shown=sorted({row.column for row in rows}),
        record=record,
    )


# ------------------------------------------------ what training gains


def quality(one: Set, data: Path, work: Path) -> list[Row]:
    """Train on the set where that is not done yet; rows of both models on its test split."""
    from opensearch_neural.evaluation.result_rows import rows
    from trainers.common.dev_measures import corpus_measures
    from trainers.data.loading import load_training
    from trainers.dense import train_dense

    config = configuration(one, data, work)
    trained = train_dense(config)
    logger.info("%s: %d steps, best after %s, %s", one.name, trained.steps, trained.best_step, trained.measures)
    test = load_training(data / one.name, split="test", name=one.name)
    measured: dict[str, Measured] = {
        UNTRAINED: corpus_measures(f"dense:{START}", test, cache=work / "vectors" / f"{one.name}-untrained"),
        TRAINED: corpus_measures(f"dense:{config.output}", test, cache=work / "vectors" / f"{one.name}-trained"),
    }
    return rows(one.name, measured, baseline=UNTRAINED)


# ------------------------------------------------ what a step costs


def speed(data: Path, work: Path, *, steps: int, pairs: int, precision: str) -> list[Row]:
    """Both trainers in turns; rows of steps per second and peak memory, and of the paired ratios."""
    seconds: dict[str, list[float]] = {OURS: [], THEIRS: []}
    memory: dict[str, list[float]] = {OURS: [], THEIRS: []}
    for pair in range(pairs):
        for trainer in (OURS, THEIRS) if pair % 2 == 0 else (THEIRS, OURS):
            measured = in_its_own_process(trainer, data, work, steps, precision)
            seconds[trainer] += measured["seconds"][WARM_UP:]
            memory[trainer].append(measured["peak_mib"])
            logger.info("%s: %s", trainer, measured)
    return speed_rows(f"squad-mix, batches of 64, {precision}", seconds, memory)


def speed_rows(name: str, seconds: Mapping[str, Sequence[float]], memory: Mapping[str, Sequence[float]]) -> list[Row]:
    """seconds: of each timed step, memory: of each process (MiB), the same ones in the same order for both trainers."""
    from opensearch_neural.evaluation.comparison import interval
    from opensearch_neural.evaluation.result_rows import mean_row
    from opensearch_neural.evaluation.results import Row

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
    compared = partial(mean_row, name, OURS, kind="ratio", baseline=THEIRS)
    rows.append(compared("steps/s", ratios, measure_label=f"steps/s ÷ {THEIRS}"))
    shares = [ours / theirs for ours, theirs in zip(memory[OURS], memory[THEIRS], strict=True)]
    rows.append(compared("peak MiB", shares, measure_label=f"peak MiB ÷ {THEIRS}"))
    return rows


def in_its_own_process(trainer: str, data: Path, work: Path, steps: int, precision: str) -> dict[str, Any]:
    """{"seconds": of each step, "peak_mib"} of one trainer: memory is measured by process."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.papers.training_ground",
        trainer,
        str(data),
        str(work),
        str(steps),
        precision,
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


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
    """The most memory that this process has held: on the GPU where there is one, else resident."""
    import resource

    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def goals(rows: Sequence[Row]) -> list[Goal]:
    """The evidence that the issue of this experiment asks for, in its words, as far as it was measured."""
    from opensearch_neural.evaluation.results import Goal

    found: list[Goal] = []
    gains = [row for row in rows if row.column == f"nDCG@10 - {UNTRAINED}"]
    if gains:
        above = [row.set for row in gains if row.low is not None and row.low > 0]
        found.append(
            Goal(
                "nDCG@10 on the test splits raised over the untrained MiniLM, paired interval above zero, on at least "
                "two of squad-mix, wikiqa-doc and tldr",
                "2 of 3",
                f"{len(above)} of {len(gains)}" + (f" ({', '.join(above)})" if above else ""),
                len(above) >= 2,
            )
        )
    for measure, words, target, met in (
        (f"steps/s ÷ {THEIRS}", "steps per second: no slower than sentence-transformers' trainer", "at least 1", 1),
        (f"peak MiB ÷ {THEIRS}", "peak memory: no larger than sentence-transformers' trainer", "at most 1", -1),
    ):
        for row in rows:
            if row.column == measure:
                reached = row.value >= 1 if met > 0 else row.value <= 1
                found.append(Goal(f"{words} ({row.set})", target, round(row.value, 3), reached))
    return found


def _child(trainer: str, data: Path, work: Path, steps: int, precision: str) -> None:
    import contextlib
    import tempfile

    squad = next(one for one in SETS if one.name == "squad-mix")
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
