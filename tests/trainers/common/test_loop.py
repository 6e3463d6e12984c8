"""The loop's promises: resuming changes nothing, the best state is kept, what goes wrong is named."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny import tiny_backbone  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from transformers import BertModel  # noqa: E402
from two_processes import in_two_processes  # noqa: E402

from opensearch_neural.errors import InputError, OsnError  # noqa: E402
from trainers.common import losses, run_folder  # noqa: E402
from trainers.common.batches import Batch, CachedBatch, Part, WholeBatchCollator  # noqa: E402
from trainers.common.grad_cache import CachedModel, Encoded, gather  # noqa: E402
from trainers.common.loop import train  # noqa: E402
from trainers.common.run_folder import RunFolder, Trained, dev_hashes, history  # noqa: E402
from trainers.common.sampling import EpochBatches, Visit, total_steps  # noqa: E402
from trainers.common.set_range import SetRange  # noqa: E402
from trainers.common.settings import TrainingSettings  # noqa: E402
from trainers.common.training_model import Losses, TrainingModel  # noqa: E402


class Numbers:
    """Example i is the number i; what is drawn for it at a visit is added."""

    def __init__(self, count: int = 20, sets: tuple[SetRange, ...] | None = None) -> None:
        self.count = count
        if sets is not None:
            self.sets = sets

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, visit: Visit) -> tuple[int, float]:
        return visit.index, visit.random().random()


@dataclass
class NumberBatch(Batch):
    values: Tensor
    """(batch, 2) float32, each index and draw"""


def collate(items: list[tuple[int, float]]) -> NumberBatch:
    values = torch.tensor([[index / 10, drawn] for index, drawn in items])
    return NumberBatch(ids=[f"n{index}" for index, _ in items], values=values)


class Regression(TrainingModel):
    """Learns index and draw from each other under dropout: the weights depend on data order, draws and dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 1))
        self.seen: list[list[str]] = []
        self.fail_at: Callable[[Batch], Tensor | None] = lambda batch: None

    def forward(self, batch: NumberBatch) -> Losses:
        self.seen.append(batch.ids)
        values = batch.values
        error = (self.net(values)[:, 0] - values.sum(dim=1)).square().mean()
        if (failure := self.fail_at(batch)) is not None:
            error = error * failure
        return Losses(
            {"error": error, "size": 0.01 * self.net[0].weight.square().sum()},  # type: ignore[union-attr]
            {"share": torch.tensor(self.progress.share), "lambda": torch.tensor(1.25e-7)},
        )

    def export(self, folder: Path) -> None:
        torch.save(self.state_dict(), folder / "weights.pt")


def settings(**changes: Any) -> TrainingSettings:
    plain: dict[str, Any] = {"epochs": 3, "batch_size": 4, "learning_rate": 0.05, "save_every": 4, "log_every": 2}
    return TrainingSettings(**(plain | changes))


def run(output: Path, model: TrainingModel | None = None, **options: Any) -> Trained:
    chosen = options.pop("settings", None) or settings()
    data = options.pop("data", None) or Numbers()
    return train(model or Regression(), data, collate, settings=chosen, output=output, kind="test", **options)


def weights(output: Path) -> dict[str, Tensor]:
    loaded: dict[str, Tensor] = torch.load(output / "weights.pt", weights_only=True)
    return loaded


def assert_equal_weights(one: Path, other: Path) -> None:
    left, right = weights(one), weights(other)
    for name in left:
        assert torch.equal(left[name], right[name]), name


class Killed(BaseException):
    """Stands for a process that ends without any chance to tidy up."""


def die_at(batches: int) -> Callable[[Batch], None]:
    count = 0

    def fail(_: Batch) -> None:
        nonlocal count
        count += 1
        if count > batches:
            raise Killed

    return fail


# ------------------------------------------------ resuming


@pytest.mark.parametrize(
    ("killed_after", "changes"),
    [(6, {}), (11, {}), (9, {"gradient_accumulation": 2, "save_every": 2}), (6, {"save_every": 5})],
    ids=["in the second epoch", "after two checkpoints", "with accumulation", "at an epoch's end"],
)
def test_a_killed_and_resumed_run_ends_in_the_weights_of_an_undisturbed_one(
    tmp_path: Path, killed_after: int, changes: dict[str, Any]
) -> None:
    undisturbed = Regression()
    run(tmp_path / "undisturbed", undisturbed, settings=settings(**changes))
    broken, resumed = Regression(), Regression()
    broken.fail_at = die_at(killed_after)
    with pytest.raises(Killed):
        run(tmp_path / "resumed", broken, settings=settings(**changes))
    # Whatever a new process has drawn before: the state of the checkpoint counts.
    torch.rand(100)
    run(tmp_path / "resumed", resumed, settings=settings(**changes))
    assert_equal_weights(tmp_path / "undisturbed", tmp_path / "resumed")
    assert 0 < len(resumed.seen) < len(undisturbed.seen), "it did not continue, it started again"
    assert resumed.seen == undisturbed.seen[-len(resumed.seen) :]


def test_a_continued_run_saves_and_logs_as_often_as_its_settings_say_now(tmp_path: Path) -> None:
    run(tmp_path / "undisturbed", settings=settings(save_every=5))
    broken = Regression()
    broken.fail_at = die_at(6)
    with pytest.raises(Killed):
        run(tmp_path / "resumed", broken, settings=settings(save_every=5))
    broken.fail_at = die_at(3)
    often = settings(save_every=1, keep=20, log_every=1)
    with pytest.raises(Killed):
        run(tmp_path / "resumed", broken, settings=often)
    checkpoints = tmp_path / "resumed/.training/checkpoints"
    assert {path.name for path in checkpoints.iterdir()} == {f"checkpoint-{step}" for step in (5, 6, 7, 8)}
    run(tmp_path / "resumed", settings=often)
    logged = {entry["step"] for entry in history(tmp_path / "resumed") if "error" in entry}
    assert sorted(logged) == [2, 4, *range(6, 16)]
    assert_equal_weights(tmp_path / "undisturbed", tmp_path / "resumed")


def test_a_checkpoint_that_was_not_written_to_its_end_is_not_resumed_from(tmp_path: Path) -> None:
    run(tmp_path / "undisturbed")
    broken = Regression()
    broken.fail_at = die_at(9)
    with pytest.raises(Killed):
        run(tmp_path / "resumed", broken)
    newest = tmp_path / "resumed/.training/checkpoints/checkpoint-8"
    (newest / "complete").unlink()
    (newest / "optimizer.pt").write_bytes(b"half")
    resumed = Regression()
    run(tmp_path / "resumed", resumed)
    assert len(resumed.seen) == 15 - 4
    assert_equal_weights(tmp_path / "undisturbed", tmp_path / "resumed")


@pytest.mark.parametrize("clock", ["right", "set back"])
def test_a_checkpoint_is_kept_until_the_next_one_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    options: dict[str, Any] = {"settings": settings(keep=1)}
    run(tmp_path / "undisturbed", **options)
    checkpoints = tmp_path / "resumed/.training/checkpoints"
    complete, at_eight = RunFolder.mark_complete, Regression()

    def killed(folder: RunFolder, step: int, **keep: int) -> None:
        if step == 8:
            raise Killed
        complete(folder, step, **keep)
        if clock == "set back":
            os.utime(checkpoints / f"checkpoint-{step}", (2**32, 2**32))

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(RunFolder, "mark_complete", killed)
        run(tmp_path / "resumed", at_eight, **options)
    resumed = Regression()
    run(tmp_path / "resumed", resumed, **options)
    assert len(resumed.seen) == 15 - 4
    assert_equal_weights(tmp_path / "undisturbed", tmp_path / "resumed")


def test_a_run_stopped_between_its_last_step_and_its_export_trains_no_further(tmp_path: Path) -> None:
    class Unwritable(Regression):
        def export(self, folder: Path) -> None:
            raise Killed

    run(tmp_path / "undisturbed")
    with pytest.raises(Killed):
        run(tmp_path / "resumed", Unwritable())
    assert not (tmp_path / "resumed/osn.json").exists()
    resumed = Regression()
    run(tmp_path / "resumed", resumed)
    assert resumed.seen == []
    assert_equal_weights(tmp_path / "undisturbed", tmp_path / "resumed")


def test_ctrl_c_finishes_the_step_and_leaves_a_checkpoint_of_it(tmp_path: Path) -> None:
    interrupted, before = Regression(), signal.getsignal(signal.SIGINT)

    def press(batch: Batch) -> None:
        if len(interrupted.seen) == 6:
            os.kill(os.getpid(), signal.SIGINT)

    interrupted.fail_at = press
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "resumed", interrupted)
    assert len(interrupted.seen) == 6
    assert (tmp_path / "resumed/.training/checkpoints/checkpoint-6/complete").exists()
    assert signal.getsignal(signal.SIGINT) is before
    run(tmp_path / "undisturbed")
    run(tmp_path / "resumed")
    assert_equal_weights(tmp_path / "undisturbed", tmp_path / "resumed")


def test_a_run_of_a_version_that_trained_other_parameters_is_refused_in_words(tmp_path: Path) -> None:
    before = Regression()
    before.fail_at = lambda batch: os.kill(os.getpid(), signal.SIGINT) if len(before.seen) == 6 else None
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, before)
    now = Regression()
    now.net[0].bias.requires_grad_(False)  # type: ignore[union-attr]
    with pytest.raises(InputError, match="holds a training of an earlier version"):
        run(tmp_path, now)
    assert not now.seen


def test_a_second_process_does_not_train_in_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It removed the best state and the history of the first, which had no checkpoint yet."""
    monkeypatch.setattr(run_folder, "WORKERS_END", 0.0)
    values = iter([0.9, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])

    def evaluate() -> dict[str, float]:
        with pytest.raises(InputError, match="another process is training in"):
            run(tmp_path)
        return {"nDCG@10": next(values)}

    trained = run(tmp_path, evaluate=evaluate)
    assert trained.best_step == 0 and len(trained.measures) == 2
    assert run(tmp_path).steps == trained.steps, "it has ended"


def test_the_same_command_after_the_end_returns_at_once(tmp_path: Path) -> None:
    first = run(tmp_path / "model", evaluate=lambda: {"nDCG@10": 0.5})
    again = Regression()
    second = run(tmp_path / "model", again, evaluate=lambda: {"nDCG@10": 0.9})
    assert again.seen == []
    assert (second.steps, second.measures) == (first.steps, first.measures)


def test_a_run_with_a_setting_that_is_gone_since_then_is_still_the_same_run(tmp_path: Path) -> None:
    first = run(tmp_path / "model")
    saved = tmp_path / "model" / "training.yaml"
    saved.write_text(saved.read_text() + "kl_temperature: 1.0\n")
    identity = tmp_path / "model" / ".training" / "run.json"
    identity.write_text(identity.read_text().replace('"configuration": "', '"configuration": "0'))
    again = Regression()
    assert run(tmp_path / "model", again).steps == first.steps
    assert again.seen == []


def test_a_run_that_failed_before_its_first_checkpoint_leaves_the_output_to_a_corrected_one(tmp_path: Path) -> None:
    options: dict[str, Any] = {"evaluate": lambda: {"nDCG@10": 0.5}}
    run(tmp_path / "undisturbed", **options)
    output = tmp_path / "model"
    with pytest.raises(InputError, match="there is no dev measure 'nDCG'"):
        run(output, settings=settings(select="nDCG"), **options)
    with pytest.raises(InputError, match="expected 1 weights, one for each data set"):
        one_set = Numbers(20, sets=(SetRange("only", 0, 20, 0, 0),))
        run(output, settings=settings(set_weights=[1.0, 2.0]), data=one_set, **options)
    broken = Regression()
    broken.fail_at = die_at(3)
    with pytest.raises(Killed):
        run(output, broken, settings=settings(learning_rate=0.5), **options)
    run(output, **options)
    assert_equal_weights(tmp_path / "undisturbed", output)
    undisturbed, corrected = (
        [json.loads(line)["step"] for line in (folder / ".training/history.jsonl").read_text().splitlines()]
        for folder in (tmp_path / "undisturbed", output)
    )
    assert corrected == undisturbed, "lines of the runs that failed"


def test_a_run_that_failed_after_a_checkpoint_is_refused_to_another_configuration(tmp_path: Path) -> None:
    broken = Regression()
    broken.fail_at = die_at(5)
    with pytest.raises(Killed):
        run(tmp_path / "model", broken)
    with pytest.raises(InputError, match="another configuration"):
        run(tmp_path / "model", settings=settings(learning_rate=0.1))


def test_an_output_of_another_configuration_or_other_data_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "model", data_hash="a")
    with pytest.raises(InputError, match=r"another configuration \(learning_rate: 0\.05 there, 0\.1 now\)"):
        run(tmp_path / "model", data_hash="a", settings=settings(learning_rate=0.1, log_every=1))
    with pytest.raises(InputError, match="on other data"):
        run(tmp_path / "model", data_hash="b")
    # How often it logs or saves does not make another run of it.
    run(tmp_path / "model", data_hash="a", settings=settings(log_every=1, save_every=2, keep=5))


@dataclass
class Judged:
    """A dev set, as far as a run folder knows it."""

    name: str
    hash: str


def test_a_run_is_not_continued_on_another_content_of_a_dev_set(tmp_path: Path) -> None:
    """Its best state would be chosen by measures on two sets."""
    output, before = tmp_path / "model", dev_hashes([Judged("a", "1"), Judged("b", "2")])
    broken = Regression()
    broken.fail_at = die_at(5)
    with pytest.raises(Killed):
        run(output, broken, made_from=before)
    with pytest.raises(InputError, match=r"another content of the dev set b: .*\n  give the set as it was"):
        run(output, made_from=dev_hashes([Judged("a", "1"), Judged("b", "3")]))
    run(output, made_from=before)
    assert (output / "osn.json").exists()


def test_a_run_that_noted_no_dev_sets_is_continued_and_notes_them(tmp_path: Path) -> None:
    """Earlier versions noted none."""
    output, broken = tmp_path / "model", Regression()
    broken.fail_at = die_at(5)
    with pytest.raises(Killed):
        run(output, broken)
    broken.fail_at = die_at(5)
    with pytest.raises(Killed):
        run(output, broken, made_from=dev_hashes([Judged("a", "1")]))
    with pytest.raises(InputError, match="another content of the dev set a"):
        run(output, made_from=dev_hashes([Judged("a", "2")]))
    run(output, made_from=dev_hashes([Judged("a", "1")]))


def test_a_model_that_was_not_trained_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "osn.json").write_text('{"format": 1, "kind": "test", "training": {}}')
    with pytest.raises(InputError, match="not trained there"):
        run(tmp_path)


# ------------------------------------------------ measuring and selecting


def test_the_state_that_was_best_on_dev_is_the_one_that_is_written(tmp_path: Path) -> None:
    states: dict[int, Tensor] = {}
    values = {0: 0.1, 5: 0.9, 10: 0.3, 15: 0.2}
    model = Regression()

    def evaluate() -> dict[str, float]:
        assert not model.training
        torch.rand(7)  # Measuring may draw; training must not notice.
        step = model.progress.step + 1 if model.progress.step else 0
        states[step] = model.state_dict()["net.0.weight"].clone()
        return {"nDCG@10": values[step], "R@100": 1.0}

    trained = run(tmp_path / "measured", model, settings=settings(evaluate_every=5), evaluate=evaluate)
    assert trained.best_step == 5
    assert torch.equal(weights(tmp_path / "measured")["net.0.weight"], states[5])
    osn = json.loads((tmp_path / "measured/osn.json").read_text())
    assert osn["measures"] == {"nDCG@10": 0.9, "R@100": 1.0, "start nDCG@10": 0.1, "start R@100": 1.0}
    run(tmp_path / "plain")
    assert torch.equal(weights(tmp_path / "plain")["net.0.weight"], states[15]), "measuring changed training"


def test_states_before_best_from_are_measured_but_neither_kept_nor_waited_for(tmp_path: Path) -> None:
    values = iter([0.9, 0.8, 0.7, 0.1, 0.2, 0.1])
    trained = run(
        tmp_path,
        settings=settings(evaluate_every=3, patience=2),
        evaluate=lambda: {"nDCG@10": next(values)},
        best_from=0.55,
    )
    assert (trained.steps, trained.best_step) == (15, 12)
    assert trained.measures == {"nDCG@10": 0.2, "start nDCG@10": 0.9}


def test_training_that_makes_dev_worse_keeps_the_start(tmp_path: Path) -> None:
    values = iter([0.9, 0.5, 0.4, 0.3, 0.2])
    model = Regression()
    start = model.state_dict()["net.0.weight"].clone()
    trained = run(tmp_path, model, settings=settings(evaluate_every=5), evaluate=lambda: {"nDCG@10": next(values)})
    assert trained.best_step == 0
    assert torch.equal(weights(tmp_path)["net.0.weight"], start)


def test_the_last_state_is_kept_where_no_measure_selects(tmp_path: Path) -> None:
    values = iter([0.9, 0.5, 0.4, 0.3])
    trained = run(
        tmp_path,
        settings=settings(evaluate_every=5, select="last"),
        evaluate=lambda: {"nDCG@10": next(values)},
    )
    assert (trained.best_step, trained.steps) == (15, 15)
    assert trained.measures == {"nDCG@10": 0.3, "start nDCG@10": 0.9}


def test_what_is_measured_and_written_is_averaged_with_the_start_and_training_goes_on_without_it(
    tmp_path: Path,
) -> None:
    measured: list[Tensor] = []
    model = Regression()

    def evaluate() -> dict[str, float]:
        measured.append(model.state_dict()["net.0.weight"].clone())
        return {"nDCG@10": 0.5}

    start = {name: weight.clone() for name, weight in Regression().state_dict().items()}
    run(tmp_path / "alone")
    options: dict[str, Any] = {
        "settings": settings(start_share=0.25, evaluate_every=5, select="last"),
        "evaluate": evaluate,
    }
    run(tmp_path / "averaged", model, **options)
    alone, averaged = weights(tmp_path / "alone"), weights(tmp_path / "averaged")
    for name, weight in alone.items():
        torch.testing.assert_close(averaged[name], 0.75 * weight + 0.25 * start[name])
    assert torch.equal(measured[0], start["net.0.weight"])
    assert torch.equal(measured[-1], averaged["net.0.weight"]), "another state was measured than was written"
    killed = Regression()
    killed.fail_at = die_at(9)
    with pytest.raises(Killed):
        run(tmp_path / "resumed", killed, **options)
    run(tmp_path / "resumed", **options)
    assert_equal_weights(tmp_path / "resumed", tmp_path / "averaged")


def test_patience_ends_training_that_gains_nothing(tmp_path: Path) -> None:
    values = iter([0.1, 0.5, 0.4, 0.3, 0.2, 0.9])
    trained = run(tmp_path, settings=settings(evaluate_every=2, patience=2), evaluate=lambda: {"nDCG@10": next(values)})
    assert (trained.best_step, trained.steps) == (2, 6)


def test_a_run_that_patience_ended_is_written_by_the_next_call_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between checkpoints, killed before its model was written."""
    values = iter([0.1, 0.5, 0.4, 0.3])
    how = settings(evaluate_every=2, save_every=4, patience=2)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RunFolder, "publish", Mock(side_effect=Killed))
        run(tmp_path, settings=how, evaluate=lambda: {"nDCG@10": next(values)})
    trained = run(tmp_path, settings=how, evaluate=lambda: pytest.fail("it was measured already"))
    assert (trained.best_step, trained.steps) == (2, 6)


def test_a_run_that_is_interrupted_in_its_last_evaluation_trains_no_further(tmp_path: Path) -> None:
    values = iter([0.1, 0.5, 0.4, 0.3])
    how = settings(evaluate_every=2, patience=2)

    def evaluate() -> dict[str, float]:
        value = next(values)
        if value == 0.3:
            os.kill(os.getpid(), signal.SIGINT)
        return {"nDCG@10": value}

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, settings=how, evaluate=evaluate)
    trained = run(tmp_path, settings=how, evaluate=lambda: pytest.fail("patience has ended it"))
    assert (trained.best_step, trained.steps) == (2, 6)


def test_a_run_without_anything_to_measure_on_says_that_nothing_selects(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A share of few questions to hold back may be none."""
    trained = run(tmp_path / "patient", settings=settings(patience=2))
    assert trained.best_step is None
    assert "there is nothing to measure on: all steps are trained and the last state is kept" in caplog.text
    caplog.clear()
    run(tmp_path / "plain")
    assert "nothing to measure on" not in caplog.text


def test_selecting_by_a_measure_that_is_not_taken_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'MRR@10'") as failure:
        run(tmp_path, settings=settings(select="MRR@10"), evaluate=lambda: {"nDCG@10": 0.5})
    assert "nDCG@10" in str(failure.value)


# ------------------------------------------------ what is logged and written


def test_each_loss_term_and_measure_is_logged_by_its_name(tmp_path: Path) -> None:
    run(tmp_path)
    logged = [entry for entry in history(tmp_path) if "loss" in entry]
    assert [entry["step"] for entry in logged] == [2, 4, 6, 8, 10, 12, 14]
    for entry in logged:
        assert entry["error"] + entry["size"] == pytest.approx(entry["loss"], abs=1e-4)
        assert entry["steps_per_second"] > 0
        assert entry["lambda"] == pytest.approx(1.25e-7, rel=1e-5), "however small"
    assert logged[-1]["share"] == pytest.approx((12 + 13) / 2 / 15)


def test_loss_terms_reach_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run(tmp_path)
    events = accumulator.EventAccumulator(str(tmp_path / ".training/logs"))
    events.Reload()
    assert {"train/error", "train/size", "train/loss"} <= set(events.Tags()["scalars"])


def test_the_output_is_a_model_directory_with_its_configuration(tmp_path: Path) -> None:
    run(tmp_path, data_hash="0123456789abcdef")
    osn = json.loads((tmp_path / "osn.json").read_text())
    assert (osn["kind"], osn["data_hash"]) == ("test", "0123456789abcdef")
    assert osn["training"]["learning_rate"] == 0.05
    assert "learning_rate: 0.05" in (tmp_path / "training.yaml").read_text()
    assert not (tmp_path / ".training/checkpoints").exists()
    assert not list(tmp_path.rglob("training_args.bin")), "pickled arguments"


def test_an_account_of_its_own_may_read_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def export(_: Any, folder: Path) -> None:
        (folder / "tower").mkdir()
        (folder / "tower" / "model.safetensors").touch(0o600)  # As newer releases of safetensors leave it.

    monkeypatch.setattr(Regression, "export", export)
    before = os.umask(0o027)
    try:
        run(tmp_path)
    finally:
        os.umask(before)
    assert (tmp_path / "tower" / "model.safetensors").stat().st_mode & 0o777 == 0o640


def test_a_part_with_a_learning_rate_of_its_own_is_trained_at_it(tmp_path: Path) -> None:
    class Frozen(Regression):
        def parameter_groups(self, settings: TrainingSettings) -> list[dict[str, Any]]:
            first, last = self.net[0], self.net[3]
            return [{"params": list(first.parameters()), "lr": 0.0}, {"params": list(last.parameters())}]

    model = Frozen()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    run(tmp_path, model, settings=settings(weight_decay=0.0))
    after = dict(model.named_parameters())
    assert torch.equal(before["net.0.weight"], after["net.0.weight"])
    assert not torch.equal(before["net.3.weight"], after["net.3.weight"])


class OfWords(TrainingModel):
    """A transformer and a layer above it; the loss asks something of every weight."""

    def __init__(self, folder: Path, *, groups: bool) -> None:
        super().__init__()
        self.model = BertModel.from_pretrained(tiny_backbone(folder), add_pooling_layer=False)
        self.above, self.groups = nn.Linear(32, 1, bias=False), groups

    def forward(self, batch: NumberBatch) -> Losses:
        every = torch.stack([one.square().sum() for one in self.parameters()]).sum()
        return Losses({"size": every})

    def export(self, folder: Path) -> None:
        pass

    def parameter_groups(self, settings: TrainingSettings) -> list[dict[str, Any]] | None:
        if not self.groups:
            return None
        return [{"params": list(self.model.parameters()), "lr": 1e-3}, {"params": list(self.above.parameters())}]


@pytest.mark.parametrize("groups", [False, True])
def test_word_embeddings_may_have_a_learning_rate_of_their_own(tmp_path: Path, groups: bool) -> None:
    model = OfWords(tmp_path / "bert", groups=groups)
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    chosen = settings(steps=1, learning_rate=2e-3, embedding_rate=8.0, schedule="constant", warmup=0, weight_decay=0.0)
    run(tmp_path / "out", model, settings=chosen)
    # AdamW's first step is the learning rate, whatever the gradient.
    moved = {name: float((one.detach() - before[name]).abs().max()) for name, one in model.named_parameters()}
    of_words = "model.embeddings.word_embeddings.weight"
    rate = 1e-3 if groups else 2e-3
    assert moved[of_words] == pytest.approx(8 * rate, rel=0.01)
    assert moved["above.weight"] == pytest.approx(2e-3, rel=0.01)
    others = [step for name, step in moved.items() if name.startswith("model.") and name != of_words and step]
    assert len(others) > 10 and others == pytest.approx([rate] * len(others), rel=0.01)


def test_without_a_limit_no_gradient_is_clipped(tmp_path: Path) -> None:
    for name, limit in (("none", None), ("large", 1e9), ("small", 1e-9)):
        # AdamW divides by a gradient's size, but for its ε of 1e-8.
        run(tmp_path / name, settings=settings(steps=3, max_gradient_norm=limit))
    none, large, small = (weights(tmp_path / name) for name in ("none", "large", "small"))
    assert all(torch.equal(none[name], large[name]) for name in none)
    assert any(not torch.allclose(none[name], small[name]) for name in none)


# ------------------------------------------------ what goes wrong


def test_a_loss_that_is_not_finite_stops_with_step_term_and_batch_before_the_weights_are_spoilt(tmp_path: Path) -> None:
    model = Regression()
    model.fail_at = lambda batch: torch.tensor(float("nan")) if len(model.seen) == 5 else None
    with pytest.raises(OsnError) as failure:
        run(tmp_path, model)
    message = str(failure.value)
    assert message.startswith("step 5: the loss is not finite (error)")
    assert all(one in message for one in model.seen[-1])
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_a_gradient_that_is_not_finite_stops_too(tmp_path: Path) -> None:
    class Root(Regression):
        def forward(self, batch: NumberBatch) -> Losses:
            self.seen.append(batch.ids)
            # The root has the value 0 and an infinite slope.
            return Losses({"root": (self.net(batch.values).sum() * 0.0).sqrt()})

    with pytest.raises(OsnError, match="step 1: the gradient is not finite though the loss is"):
        run(tmp_path, Root())


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ],
)
def test_out_of_memory_becomes_advice(tmp_path: Path, error: Exception) -> None:
    model = Regression()

    def fail(batch: Batch) -> None:
        raise error

    model.fail_at = fail
    with pytest.raises(OsnError, match=r"memory ran out with training\.batch_size 4") as failure:
        run(tmp_path / "rows", model)
    assert "training.activation_checkpointing=true" in str(failure.value)
    assert "A smaller batch_size with more gradient_accumulation" in str(failure.value)
    assert "chunk_size" not in str(failure.value), "it has no effect where rows are not compared"
    with pytest.raises(OsnError, match=r"training\.batch_size 4, chunk_size None\n  --set training\.chunk_size=2 "):
        train_pairs(tmp_path / "pairs", None, OutOfMemory(error))


def test_the_advice_on_memory_can_be_followed(tmp_path: Path) -> None:
    undisturbed, broken = Regression(), Regression()
    run(tmp_path / "undisturbed", undisturbed)
    count = iter(range(9))

    def fail(batch: Batch) -> None:
        if next(count) == 8:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    broken.fail_at = fail
    with pytest.raises(OsnError, match="run the same command with it to continue"):
        run(tmp_path / "resumed", broken)
    run(tmp_path / "resumed", Regression(), settings=settings(activation_checkpointing=True))
    assert_equal_weights(tmp_path / "undisturbed", tmp_path / "resumed")


def test_settings_that_this_training_does_not_read_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"training\.chunk_size would have no effect"):
        run(tmp_path / "model", settings=settings(chunk_size=2))
    for weights_of_sets in (0.5, [1.0]):
        with pytest.raises(InputError, match=r"training\.set_weights would have no effect"):
            run(tmp_path / "model", settings=settings(set_weights=weights_of_sets))
    with pytest.raises(InputError, match=r"training\.bucket would have no effect"):
        run(tmp_path / "model", settings=settings(bucket=2))
    assert not (tmp_path / "model").exists()
    two = (SetRange("a", 0, 8, 0, 0), SetRange("b", 8, 20, 0, 0))
    run(tmp_path / "model", data=Numbers(sets=two), settings=settings(set_weights=0.5))
    measured = Numbers()
    measured.lengths = list(range(20))  # type: ignore[attr-defined]
    run(tmp_path / "bucketed", data=measured, settings=settings(bucket=2))


def test_memory_that_runs_out_while_measuring_gives_the_same_advice(tmp_path: Path) -> None:
    def measure() -> dict[str, float]:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(OsnError, match="memory ran out"):
        run(tmp_path, Regression(), evaluate=measure)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt"])
def test_a_full_disk_is_told_and_the_run_goes_on_when_there_is_room(tmp_path: Path, file: str) -> None:
    run(tmp_path / "undisturbed")
    broken = Regression()
    checkpoint = tmp_path / "resumed/.training/checkpoints/checkpoint-8"

    def fill(batch: Batch) -> None:
        if len(broken.seen) == 8:
            checkpoint.mkdir()
            if file == "model.safetensors":  # written beside, then moved: a folder in the way fails it like a full disk
                (checkpoint / file).mkdir()
            else:
                (checkpoint / file).symlink_to("/dev/full")

    broken.fail_at = fill
    with pytest.raises(OsnError, match="resumed: a file could not be written to its end"):
        run(tmp_path / "resumed", broken)
    shutil.rmtree(checkpoint)
    resumed = Regression()
    run(tmp_path / "resumed", resumed)
    assert len(resumed.seen) == 15 - 4
    assert_equal_weights(tmp_path / "undisturbed", tmp_path / "resumed")


def test_other_runtime_errors_stay_what_they_are(tmp_path: Path) -> None:
    model = Regression()

    def fail(batch: Batch) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    model.fail_at = fail
    with pytest.raises(RuntimeError, match="mat1"):
        run(tmp_path, model)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"steps": 0},
        {"learning_rate": 0.0},
        {"chunk_size": 0},
        {"embedding_rate": 0.0},
        {"start_share": 1.0},
    ],
)
def test_settings_without_meaning_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        settings(**wrong)


# ------------------------------------------------ batches


def drawn(data: Numbers, chosen: TrainingSettings, *, epoch: int = 0, **share: Any) -> list[list[int]]:
    batches = EpochBatches(data, chosen, whole=share.pop("whole", False), **share)
    batches.set_epoch(epoch)
    return [[visit.index for visit in batch] for batch in batches]


def test_an_epoch_visits_each_example_once_and_each_epoch_in_another_order() -> None:
    first, second = (drawn(Numbers(20), settings(), epoch=epoch) for epoch in (0, 1))
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(20))
    assert first != second


def test_the_processes_share_the_batches_of_one() -> None:
    alone = drawn(Numbers(22), settings())
    shares = [drawn(Numbers(22), settings(), rank=rank, world=2) for rank in (0, 1)]
    assert [left + right for left, right in zip(*shares, strict=True)] == alone
    assert drawn(Numbers(22), settings(), rank=1, world=2, whole=True) == alone


def test_a_set_smaller_than_a_batch_is_shared_evenly() -> None:
    tiny = Numbers(3, sets=(SetRange("tiny", 0, 3, 0, 0),))
    assert [len(batch) for batch in drawn(tiny, settings(), rank=0, world=2)] == [1]
    with pytest.raises(InputError, match="tiny has fewer examples than the 4 processes"):
        EpochBatches(tiny, settings(), rank=0, world=4, whole=False)


def test_each_batch_is_out_of_one_set() -> None:
    data = Numbers(20, sets=(SetRange("low", 0, 8, 0, 0), SetRange("high", 8, 20, 0, 0)))
    for batch in drawn(data, settings()):
        assert max(batch) < 8 or min(batch) >= 8


def test_buckets_bring_like_lengths_together_and_still_visit_all() -> None:
    data = Numbers(64)
    data.lengths = [(index * 37) % 64 for index in range(64)]  # type: ignore[attr-defined]
    mixed, bucketed = drawn(data, settings()), drawn(data, settings(bucket=8))
    assert sorted(chain(*bucketed)) == list(range(64))

    def padding(batches: list[list[int]]) -> int:
        lengths = [[(index * 37) % 64 for index in batch] for batch in batches]
        return sum(max(batch) * len(batch) - sum(batch) for batch in lengths)

    assert padding(bucketed) < padding(mixed) / 3


def test_a_bucketed_batch_of_a_set_smaller_than_it_holds_no_example_twice() -> None:
    data = Numbers(48, sets=(SetRange("tiny", 0, 3, 0, 0), SetRange("large", 3, 48, 0, 0)))
    data.lengths = list(range(48))  # type: ignore[attr-defined]
    how = settings(bucket=16, set_weights=[0.5, 0.5])
    batches = drawn(data, how)
    assert len(batches) == len(EpochBatches(data, how, rank=0, world=1, whole=False))
    assert all(len(set(batch)) == len(batch) for batch in batches)
    assert {len(batch) for batch in batches if batch[0] < 3} == {3}


def test_a_batch_that_the_processes_cannot_share_is_refused() -> None:
    with pytest.raises(InputError, match="4 cannot be shared evenly by 3"):
        EpochBatches(Numbers(), settings(), rank=0, world=3, whole=False)


def test_a_visit_draws_the_same_again_and_each_visit_something_else() -> None:
    first = Visit(3, 0, 1, 42)
    assert first.random().random() == Visit(3, 0, 1, 42).random().random()
    others = [Visit(3, 1, 1, 42), Visit(4, 0, 1, 42), Visit(3, 0, 2, 42), Visit(3, 0, 1, 43)]
    assert first.random().random() not in [other.random().random() for other in others]


def test_steps_follow_from_epochs_and_accumulation() -> None:
    assert total_steps(settings(epochs=3), 5) == 15
    assert total_steps(settings(epochs=1.5, gradient_accumulation=2), 5) == 5
    assert total_steps(settings(steps=7), 5) == 7
    for seed in (-1, 2**32):
        with pytest.raises(ValueError, match="seed must be from 0"):
            settings(seed=seed)


def test_accumulated_batches_train_the_weights_of_one_large_batch(tmp_path: Path) -> None:
    for name, changes in (("large", {"batch_size": 4}), ("small", {"batch_size": 2, "gradient_accumulation": 2})):
        model = Regression()
        model.net[1] = nn.Identity()  # in the dropout's place
        train(
            model,
            Numbers(),
            lambda items: collate([(index, index / 20) for index, _ in items]),  # no draws: they follow the batch
            settings=settings(**changes),
            output=tmp_path / name,
            kind="test",
        )
    large, small = weights(tmp_path / "large"), weights(tmp_path / "small")
    for name, value in large.items():
        torch.testing.assert_close(small[name], value, atol=1e-5, rtol=1e-4)


# ------------------------------------------------ several processes


@dataclass
class PairTargets:
    positives: Tensor


class Pairs(CachedModel):
    """Number i and its image are a pair; the other pairs of the batch are negatives."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        # Without biases: a document bias has no gradient but rounding, which Adam would blow up to full steps.
        self.towers = nn.ModuleDict({role: nn.Linear(2, 4, bias=False) for role in ("query", "document")})

    def encode(self, role: str, part: Part) -> Encoded:
        return Encoded(self.towers[role](part.input_ids))

    def loss_terms(self, vectors: dict[str, Tensor], targets: PairTargets) -> Losses:
        scores = vectors["query"] @ gather(vectors["document"]).T
        return Losses({"contrastive": losses.info_nce(scores, targets.positives)})

    def export(self, folder: Path) -> None:
        torch.save(self.state_dict(), folder / "weights.pt")


class OutOfMemory(Pairs):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def encode(self, role: str, part: Part) -> Encoded:
        raise self.error


class CollatePairs(WholeBatchCollator):
    def __call__(self, items: list[tuple[int, float]], rank: int, world: int) -> CachedBatch:
        share = len(items) // world
        own = slice(rank * share, (rank + 1) * share)
        values = torch.tensor([[index / 10, drawn] for index, drawn in items])[own]
        query = Part(values, torch.ones_like(values), torch.arange(share))
        return CachedBatch(
            ids=[f"n{index}" for index, _ in items[own]],
            parts={"query": [query], "document": [replace(query, input_ids=values.flip(1))]},
            targets=PairTargets(torch.arange(len(items))[own]),
        )


def train_pairs(output: Path, chunk_size: int | None, model: Pairs | None = None) -> None:
    model = model or Pairs()
    train(
        model,
        Numbers(),
        CollatePairs(),
        settings=settings(gradient_accumulation=2, chunk_size=chunk_size, device="cpu"),
        output=output,
        kind="test",
        evaluate=lambda: {"nDCG@10": float(model.progress.step)},
    )


def train_whole_and_chunked(folder: Path) -> None:
    train_pairs(folder / "whole", None)
    train_pairs(folder / "chunked", 2)


def test_two_processes_train_the_weights_of_one(tmp_path: Path) -> None:
    train_pairs(tmp_path / "alone", None)
    in_two_processes(train_whole_and_chunked, tmp_path)
    alone = weights(tmp_path / "alone")
    for name in ("whole", "chunked"):
        for key, value in weights(tmp_path / name).items():
            torch.testing.assert_close(value, alone[key], atol=1e-6, rtol=1e-5)


# ------------------------------------------------ what lies in the output already


def test_a_folder_of_something_else_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(InputError, match=r"holds something else \(thesis.txt\)"):
        run(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["thesis.txt"]
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file is a file"):
        run(tmp_path / "file")
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "sparse.yaml").write_text("output: beside\n")
    run(tmp_path / "beside")


def test_another_kind_of_model_is_refused_by_its_name(tmp_path: Path) -> None:
    run(tmp_path / "model")
    with pytest.raises(InputError, match=r"holds another kind of model \(test\)"):
        train(Regression(), Numbers(), collate, settings=settings(), output=tmp_path / "model", kind="sparse")


def test_every_line_that_is_asked_for_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "model", settings=settings(epochs=1, log_every=1))
    steps = [line for line in capsys.readouterr().err.splitlines() if "  loss " in line]
    assert len(steps) == len(Numbers()) // 4
    assert "minutes_left" in steps[1]
