"""The output directory of a training: its files during the run, on resuming, and at the end.

model files, osn.json (written last: if it exists, training has ended), training.yaml
.training/   run.json, checkpoints/, best/, logs/ (TensorBoard), history.jsonl, questions.jsonl (of osn train sparse)
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol

import click
import yaml
from safetensors.torch import save_model

from opensearch_neural.errors import InputError
from opensearch_neural.files import replaced, share, write_json
from opensearch_neural.locks import locked
from opensearch_neural.models.directory import read_osn_json, write_osn_json
from trainers.common.config import fingerprint, save_config, to_dict
from trainers.common.own_loss import LOSS
from trainers.common.processes import is_main_process
from trainers.common.training_model import TrainingModel

WORKERS_END = 10.0
"""Seconds after which the workers of a process that was killed have ended."""
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
"""Settings that may change between a run and its continuation: they change the weights by rounding at most."""
RUN = ".training"
"""The folder, in the output, of what belongs to the run and not to the model."""
QUESTIONS_FILE = "questions.jsonl"
"""In this folder: a line of JSON for each state measured, {set: {name: {question: nDCG@10}}} for BM25 and the sum."""
YAML = (".yaml", ".yml")
DEV = "dev set "
"""In `made_from`, the hash of a dev set has this before the set's name."""


class Measured(Protocol):
    """Data that a run measures its states on."""

    @property
    def name(self) -> str: ...
    @property
    def hash(self) -> str: ...


def dev_hashes(sets: Iterable[Measured]) -> dict[str, str]:
    """The part of `made_from` for dev sets."""
    return {f"{DEV}{dev.name}": dev.hash for dev in sets}


@dataclass(slots=True)
class Trained:
    """The result of a training."""

    steps: int
    """optimizer steps taken"""
    best_step: int | None
    """the step of the kept state; None without dev measures"""
    measures: dict[str, float]
    """dev measures of the kept state; names with "start …": measures before the first step"""


def print_result(
    output: Path, trained: Trained, dry_run: bool, *, width: int = 24, without: tuple[str, ...] = ()
) -> None:
    """Print the result of a training to stdout. width: of a measure's name. without: prefixes of measures to omit."""
    if not is_main_process():
        return
    place = "nothing kept (dry run)" if dry_run else str(output)
    kept = "" if trained.best_step is None else f", the state after step {trained.best_step} kept"
    click.echo(f"{place}: {trained.steps} steps{kept}")
    for name, value in trained.measures.items():
        if not name.startswith(without):
            click.echo(f"{name:>{width}}  {value:.4f}")


def history(output: Path, name: str = "history.jsonl") -> list[dict[str, Any]]:
    """The lines of a training's log, also of an earlier process; empty if nothing was logged. A line that was not written to
    its end, because the disk was full for instance, is left out. name: of the file"""
    file = output / RUN / name
    lines: list[dict[str, Any]] = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        with suppress(json.JSONDecodeError):
            lines.append(json.loads(line))
    return lines


@dataclass(slots=True)
class BestState:
    """The best state on dev so far; its weights are in the file beside it."""

    start: dict[str, float] = field(default_factory=dict)
    """measures before the first step"""
    step: int | None = None
    """the step after which this state was measured; None while no state counts"""
    measures: dict[str, float] = field(default_factory=dict)
    """measures of this state"""


def check_output(output: Path, kind: str, parts: Collection[str] = ()) -> None:
    """Raises InputError if `output` is not free for a training of a `kind`: it is a file, or holds another kind of model
    or other files (YAML files and the folders `parts` are allowed). Called before anything is written."""
    if not output.exists():
        return
    if not output.is_dir():
        raise InputError(f"{output} is a file", "name a folder as --output")
    run = output / RUN / "run.json"
    made = read_osn_json(output) or (json.loads(run.read_text(encoding="utf-8")) if run.exists() else None)
    if made is not None:
        if made["kind"] != kind:
            raise InputError(f"{output} holds another kind of model ({made['kind']})", "choose another --output")
        return
    names = [path.name for path in output.iterdir() if not path.name.startswith(".") and path.suffix not in YAML]
    others = [name for name in names if name not in parts]
    if others:
        raise InputError(f"{output} holds something else ({sorted(others)[0]})", "choose another --output")


class RunFolder:
    """The files of one training run in its output directory."""

    def __init__(
        self,
        output: Path,
        kind: str,
        config: Any,
        data_hash: str,
        made_from: Mapping[str, str] | None = None,
        start_field: str | None = None,
    ) -> None:
        """made_from, start_field: as in `loop.train`."""
        self.output, self.kind, self.config, self.data_hash = output, kind, config, data_hash
        self.made_from, self.start_field = made_from or {}, start_field
        self.folder = output / RUN
        self._saved = output / "training.yaml"
        self.checkpoints = self.folder / "checkpoints"
        self.best = self.folder / "best"
        self.logs = self.folder / "logs"
        self.identity = {
            "kind": kind,
            "data_hash": data_hash,
            "configuration": fingerprint(_with_effect(to_dict(config))),
            **self.made_from,
        }

    # ------------------------------------------------ whose run it is

    def ended(self) -> Trained | None:
        """The result of the run if it has ended, else None. Raises InputError if the directory is another run's."""
        check_output(self.output, self.kind)
        content = read_osn_json(self.output) if self.output.is_dir() else None
        identity = self.folder / "run.json"
        if identity.exists():
            other = json.loads(identity.read_text(encoding="utf-8"))
            noted = self.made_from | other  # runs of earlier versions did not note what they were made from
            changed = [name for name, value in self.identity.items() if noted.get(name) != value]
            fields = self._other_fields() if "configuration" in changed else []
            if "data_hash" not in changed and other.get("start") == self.made_from.get("start", other.get("start")):
                # The same start, in another place.
                fields = [line for line in fields if not line.startswith(f"{self.start_field}: ")]
            if "configuration" in changed and not fields and self._saved.exists():
                changed.remove("configuration")  # Only settings added since, at their defaults.
            if "configuration" in changed:
                shown = "; ".join(fields[:5]) + (f"; and {len(fields) - 5} more" if len(fields) > 5 else "")
                raise InputError(
                    f"{self.output} holds a training run with another configuration"
                    + (f" ({shown})" if fields else ""),
                    f"choose another --output, or remove {self.output}",
                )
            if changed and changed[0].startswith(DEV):
                raise InputError(
                    f"{self.output} holds a training run that measured its states on another content of the {changed[0]}: "
                    "measures on two contents do not show which state is best",
                    f"give the set as it was, choose another --output, or remove {self.output}",
                )
            if LOSS in changed:
                raise InputError(
                    f"{self.output} holds a training run with another text of the module of your loss",
                    f"choose another --output, or remove {self.output}",
                )
            if changed:
                others = {"start": "from another start", "teachers": "with other teachers"}
                raise InputError(
                    f"{self.output} holds a training run "
                    + others.get(
                        changed[0], "on other data, from another start, or by a version that drew other negatives"
                    ),
                    f"choose another --output, or remove {self.output}",
                )
        elif content is not None:
            raise InputError(f"{self.output} holds a model that was not trained there", "choose another --output")
        if content is None:
            return None
        outcome = json.loads((self.folder / "outcome.json").read_text(encoding="utf-8"))
        return Trained(outcome["steps"], outcome["best_step"], dict(content["measures"]))

    def _other_fields(self) -> list[str]:
        """The fields in which the configuration saved beside the model differs from this run's."""
        there = yaml.safe_load(self._saved.read_text(encoding="utf-8")) if self._saved.exists() else {}
        return differing(there, self.config)

    @contextmanager
    def started(self) -> Iterator[None]:
        """The folder belongs to this run from here on. A run that fails before its first checkpoint gives the folder back:
        what fails at once should not stand in the way of a corrected configuration.

        Raises InputError if another process trains in the folder."""
        if not is_main_process():
            yield
            return
        with self._alone():
            if self.ended() is not None:
                raise InputError(f"another process has just trained {self.output}", "run the same command again")
            if self.last_checkpoint() is None:  # Then it begins at its first step.
                for folder in (self.checkpoints, self.best, self.logs):
                    shutil.rmtree(folder, ignore_errors=True)
                for file in ("history.jsonl", QUESTIONS_FILE, "trained"):
                    (self.folder / file).unlink(missing_ok=True)
            write_json(self.folder / "run.json", self.identity)
            save_config(self.config, self.output)
            try:
                yield
            except BaseException:
                ended = (self.output / "osn.json").exists()
                if self.last_checkpoint() is None and not ended:
                    (self.folder / "run.json").unlink(missing_ok=True)
                raise

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Holds the folder's lock. Workers of a process that was killed hold it for some seconds more."""
        deadline = time.monotonic() + WORKERS_END
        while True:
            with locked(self.folder / "run.json", wait=False) as alone:
                if alone:
                    yield
                    return
            if time.monotonic() >= deadline:
                raise InputError(
                    f"another process is training in {self.output}", "wait until it ends, or choose another --output"
                )
            time.sleep(1.0)

    # ------------------------------------------------ while it runs

    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint that was completely written."""
        return max(self._complete(), key=_step, default=None)

    def _complete(self) -> list[Path]:
        return [path.parent for path in self.checkpoints.glob("checkpoint-*/complete")]

    def mark_complete(self, step: int, *, keep: int) -> None:
        """Notes that the checkpoint of `step` is completely written; only now delete others, except the newest `keep`."""
        (self.checkpoints / f"checkpoint-{step}" / "complete").touch()
        kept = sorted(self._complete(), key=_step)[-keep:]
        for folder in self.checkpoints.glob("checkpoint-*"):
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def mark_trained(self) -> None:
        """Notes that all steps are done, or that training stopped early: only writing the model remains."""
        if is_main_process():
            (self.folder / "trained").touch()

    def is_trained(self, checkpoint: Path, steps: int) -> bool:
        return (self.folder / "trained").exists() or _step(checkpoint) >= steps

    def read_best(self) -> BestState:
        path = self.best / "best.json"
        return BestState(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else BestState()

    def write_best(self, model: TrainingModel | None, best: BestState) -> None:
        """model: None if no state counts yet."""
        if model is not None:
            with replaced(self.best / "model.safetensors") as beside:
                save_model(model, str(beside))
        write_json(self.best / "best.json", asdict(best))

    def note(self, entry: Mapping[str, Any]) -> None:
        """Add a line to the history."""
        with (self.folder / "history.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    # ------------------------------------------------ what is left

    def publish(self, model: TrainingModel, trained: Trained) -> None:
        """Write the model's files into a folder beside, move them into place, osn.json last; then delete checkpoints."""
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
            self.output, self.kind, training=to_dict(self.config), data_hash=self.data_hash, measures=trained.measures
        )
        for folder in (self.checkpoints, self.best):
            shutil.rmtree(folder, ignore_errors=True)
        (self.folder / "trained").unlink(missing_ok=True)


def _step(checkpoint: Path) -> int:
    """The step after which a checkpoint was written."""
    return int(checkpoint.name.rpartition("-")[2])


def _with_effect(config: Any) -> Any:
    """`config` (plain values) without settings that do not change the result: output, how often to save, and so on."""
    if not isinstance(config, dict):
        return config
    return {name: _with_effect(value) for name, value in config.items() if name not in WITHOUT_EFFECT}


def _with_fields_of(config: Any, there: Any) -> Any:
    """`there` with the fields of `config` (a dataclass, or several by name): those that were added later at their defaults,
    and without those that are gone, so that older models count as trained."""
    if not isinstance(there, dict):
        return there
    if isinstance(config, Mapping):
        return {name: _with_fields_of(config[name], value) for name, value in there.items() if name in config}
    if not is_dataclass(config):
        return there
    names = {each.name for each in fields(config)}
    whole = {name: value for name, value in there.items() if name in names}
    for each in fields(config):
        if each.name in there:
            whole[each.name] = _with_fields_of(getattr(config, each.name), there[each.name])
        elif each.default is not MISSING:
            whole[each.name] = to_dict(each.default)
        elif each.default_factory is not MISSING:
            whole[each.name] = to_dict(each.default_factory())
    return whole


def differing(there: Any, config: Any, name: str = "") -> list[str]:
    """The fields in which `config` differs from `there`, the plain values of an earlier one; each with both values.

    Fields that were added later, are gone since, or do not change the weights do not count. name: of the whole.
    """
    return _differing(_with_effect(_with_fields_of(config, there)), _with_effect(to_dict(config)), name)


def _differing(there: Any, now: Any, name: str) -> list[str]:
    if isinstance(there, dict) and isinstance(now, dict):
        names = [*there, *(key for key in now if key not in there)]
        return [
            line for key in names for line in _differing(there.get(key), now.get(key), f"{name}.{key}" if name else key)
        ]
    if there == now:
        return []
    return [f"{name}: {_brief(there)} there, {_brief(now)} now"]


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
