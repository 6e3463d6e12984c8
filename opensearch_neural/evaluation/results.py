"""Result files: the numbers of an experiment, with its command, code, machine, data and seeds.

Each experiment writes `FOLDER/summary.json`:

    Summary.of_this_run(
        title="BM25 on SciFact", data=[data_facts(Path("scifact"))], seeds=[0],
        rows=[Row("scifact", "bm25", "nDCG@10", 0.683, 0.641, 0.724, n=300)],
        goals=[Goal("BM25 nDCG@10 on scifact", "0.66 to 0.70", 0.683, met=True)],
    ).write(Path("benchmarks/results/published"))

Tables and pages are made from these files and never typed by hand. The files are meant to be published, so they contain no
host name, no path of this machine and no credentials.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.provenance import Machine, clean_argument, code_commit, command_line, machine_facts
from opensearch_neural.files import read_json, write_text

log = logging.getLogger(__name__)

FILE_NAME = "summary.json"

RowKind = Literal["value", "difference", "p-value", "holm", "detectable", "ratio"]
"""The engine's value; its difference from the baseline; the p-value of the difference, uncorrected or corrected by Holm for
the number of engines; the smallest difference that this number of queries can detect; or the ratio to the baseline."""


class Key(NamedTuple):
    """The fields that identify a row in its result."""

    set: str
    """The data set, with its size if it has several."""
    engine: str
    """The engine's name, without seed and variant."""
    measure: str
    """The name of the measure, without the baseline."""
    kind: RowKind = "value"
    """The engine's own value, or a comparison with the baseline."""
    baseline: str = ""
    """The engine that a comparison is with; "" if the row compares nothing."""
    baseline_variant: str = ""
    """The variant of the baseline; "" if it was measured in one way."""
    seed: int | None = None
    """The seed that the engine was trained with; None if there is one model, or a mean of several."""
    variant: str = ""
    """How the engine was measured; "" if in one way only."""
    level: str = ""
    """The load under which it was measured; "" without load."""
    seeds: tuple[int, ...] = ()
    """The seeds of a mean over several models; empty if it is no such mean."""


class MeasuredEngine(NamedTuple):
    """An engine with several seeds, or measured in several ways."""

    name: str
    """Without seed and variant."""
    seed: int | None = None
    """The seed of its training; None if there is one model, or a mean of several."""
    variant: str = ""
    """How it was measured; "" if in one way only."""
    seeds: tuple[int, ...] = ()
    """The seeds of a mean over several models; empty if it is no such mean."""

    def __str__(self) -> str:
        seed = "" if self.seed is None else f"seed {self.seed}"
        seeds = f"seeds {self.seeds[0]} to {self.seeds[-1]}" if self.seeds else ""
        return ", ".join(part for part in (self.name, seed, seeds, self.variant) if part)


@dataclass(frozen=True)
class Row:
    """One number: the `measure` of `engine` on `set`, or its comparison with `baseline`."""

    set: str
    """The data set, with its size if it has several."""
    engine: str
    """The engine's name, without seed and variant."""
    measure: str
    """The name of the measure, without the baseline."""
    value: float
    """In the unit of the measure; of a comparison: the difference, ratio or p-value."""
    low: float | None
    """Lower end of the 95% interval; None if there is none."""
    high: float | None
    """Upper end of the 95% interval; None if there is none."""
    n: int
    """The number of queries, requests or runs that were measured."""
    baseline: str = ""
    """The engine that a difference, p-value or ratio compares with; it has the row's seed or seeds, if any."""
    baseline_variant: str = ""
    """The variant of the baseline, if it was measured in several ways."""
    seed: int | None = None
    """The seed that the engine was trained with, if there are several seeds."""
    kind: RowKind = "value"
    """The engine's own value, or a comparison with the baseline."""
    variant: str = ""
    """How the engine was measured, if in several ways: the layout of its index, a part of the queries."""
    engine_label: str = ""
    """The title of the row's line in tables; empty: the engine with its seed and variant."""
    measure_label: str = ""
    """The title of the row's column in tables; empty: the measure with its baseline."""
    baseline_label: str = ""
    """The baseline's name in tables, if it has no seed; empty: its name with the row's seed or seeds."""
    level: str = ""
    """The load under which it was measured: "20 clients", "250/s"."""
    seeds: tuple[int, ...] = ()
    """The seeds of a mean over several models; `seed` is None then."""
    sets: int = 0
    """The number of sets in a mean over several sets, whose name is in `set`; 0: one set."""

    @property
    def key(self) -> Key:
        return Key(*(getattr(self, name) for name in Key._fields))

    @property
    def where(self) -> str:
        """The set's name in tables: "100,000 documents, 20 clients"."""
        return f"{self.set}, {self.level}" if self.level else self.set

    @property
    def line(self) -> str:
        """The title of the row's line in tables: "dual encoder, seed 42"."""
        return self.engine_label or str(MeasuredEngine(self.engine, self.seed, self.variant, self.seeds))

    @property
    def against(self) -> str:
        """The baseline's name in tables: "dual encoder, seed 42"."""
        whole = MeasuredEngine(self.baseline, self.seed, self.baseline_variant, self.seeds)
        return self.baseline_label or (str(whole) if self.baseline else "")

    @property
    def column(self) -> str:
        """The title of the row's column in tables: "nDCG@10", "nDCG@10 - bm25", "p(nDCG@10 - bm25)", "P99 / bm25", …"""
        if self.measure_label or self.kind == "value":
            return self.measure_label or self.measure
        if self.kind == "ratio":
            return f"{self.measure} / {self.against}"
        difference = f"{self.measure} - {self.against}"
        formats = {"p-value": "p({})", "holm": "Holm's p({})", "detectable": "detectable {}"}
        return formats.get(self.kind, "{}").format(difference)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Row:
        """The inverse of `to_json`."""
        fields = dict(content)
        if isinstance(fields.get("seeds"), list):
            fields["seeds"] = tuple(fields["seeds"])
        return cls(**fields)

    def to_json(self) -> dict[str, Any]:
        """The row's fields, without those that have their default."""
        every = dataclasses.fields(self)
        return {each.name: value for each in every if (value := getattr(self, each.name)) != each.default}


@dataclass(frozen=True)
class Goal:
    """A goal, and whether it was met."""

    goal: str
    """The goal in words."""
    target: str | float
    """The value to reach, as text or number."""
    value: str | float | None
    """None if nothing was measured."""
    met: bool
    """Whether the value reaches the target; False if nothing was measured."""

    def __str__(self) -> str:
        if self.value is None:
            return f"not measured: {self.with_target}"
        return f"{'met' if self.met else 'missed'}: {self.with_target}: {self.value}"

    @property
    def with_target(self) -> str:
        """The goal's words with its target: "P99, at most" and 1.25 are "P99, at most 1.25". A target whose numbers the
        words have already is not repeated."""
        target = self.target if isinstance(self.target, str) else f"{self.target:g}"
        words, count = re.subn(r"\bat (?:least|most)(?=,|$)", rf"\g<0> {target}", self.goal)
        if count or _numbers(target) <= {0.0, *_numbers(words)}:
            return words
        return f"{words} (goal: {target})"


def _numbers(text: str) -> set[float]:
    """The sizes of the numbers in a text."""
    return {float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", text)}


@dataclass(frozen=True)
class Data:
    name: str
    """The name of the file or folder, without its path."""
    files: dict[str, str]
    """{file: its SHA-256 in hex}"""


@dataclass(frozen=True)
class Summary:
    """The content of one result file."""

    command: str
    """The command line, without paths of this machine and credentials."""
    code: str
    """The commit, or the version."""
    machine: Machine
    """Processor, memory and software that measured."""
    data: list[Data]
    """The files that were read, with their hashes."""
    seeds: list[int]
    """The seeds of trainings and statistics."""
    rows: list[Row]
    """In the order of its tables."""
    goals: list[Goal] = field(default_factory=list)
    """Goals, missed ones included."""
    title: str = ""
    """The title of its table; empty: the folder's name."""
    notes: list[str] = field(default_factory=list)
    """What made the figures beside the command: models, settings of engines, documents, and events during the run."""

    @classmethod
    def of_this_run(
        cls,
        *,
        title: str,
        rows: list[Row],
        data: Iterable[Data],
        seeds: Iterable[int],
        goals: Iterable[Goal] = (),
        machine: Machine | None = None,
        notes: Iterable[str] = (),
    ) -> Summary:
        """The summary of the running command, with its command line, code version and machine filled in."""
        machine = machine_facts() if machine is None else machine
        return cls(
            command_line(), code_commit(), machine, list(data), list(seeds), rows, list(goals), title, list(notes)
        )

    def validate(self) -> Summary:
        """This summary, if it may be published.

        Raises InputError that names the field: for a missing part, a value that is not a finite number, an interval with its
        ends swapped, two rows with the same key, a credential or a home directory.
        """
        for name in ("command", "code"):
            text = getattr(self, name)
            if not isinstance(text, str) or not text.strip():
                raise _invalid(name, "must not be empty")
        if clean_argument(self.command) != self.command:
            raise _invalid(
                "command", f"holds a credential or a path of this machine ({clean_argument(self.command)!r})"
            )
        if not isinstance(self.machine, dict) or not self.machine:
            raise _invalid("machine", "must name at least one fact, see machine_facts()")
        for at, seed in enumerate(self.seeds):
            if not isinstance(seed, int) or isinstance(seed, bool):
                raise _invalid(f"seeds[{at}]", f"must be a whole number, not {seed!r}")
        for at, data in enumerate(self.data):
            if not data.name or not data.files:
                raise _invalid(f"data[{at}]", "must have a name and the hash of at least one file")
            for file, digest in data.files.items():
                if not re.fullmatch("[0-9a-f]{64}", str(digest)):
                    raise _invalid(f"data[{at}].files[{file!r}]", f"must be a SHA-256 in hex, not {digest!r}")
        for at, note in enumerate(self.notes):
            if not isinstance(note, str) or not note.strip():
                raise _invalid(f"notes[{at}]", f"must be a sentence, not {note!r}")
        keys: set[Key] = set()
        cells: set[tuple[str, str, str]] = set()
        for at, row in enumerate(self.rows):
            _validate_row(row, f"rows[{at}]")
            cell = (row.where, row.line, row.column)
            if row.key in keys or cell in cells:
                raise _invalid(f"rows[{at}]", f"repeats {cell}: give it another set, engine or variant")
            keys.add(row.key)
            cells.add(cell)
        for at, goal in enumerate(self.goals):
            _validate_goal(goal, f"goals[{at}]")
        return self

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        content = dataclasses.asdict(self.validate()) | {"rows": [row.to_json() for row in self.rows]}
        if not self.notes:
            del content["notes"]
        return content

    def write(self, folder: Path) -> Path:
        """Validate and write `folder`/summary.json; the old file stays until the new one is whole."""
        path = Path(folder) / FILE_NAME
        write_text(path, json.dumps(self.to_json(), ensure_ascii=False, indent=1, allow_nan=False) + "\n")
        return path


def read(path: Path) -> Summary:
    """The summary in `path`: a file, or a folder that holds summary.json.

    Raises InputError for an invalid result file, naming the file and the field, or the line for invalid JSON.
    """
    path = Path(path)
    if path.is_dir():
        path = path / FILE_NAME
    content = read_json(path, InputError)
    try:
        parts = _fields(content, Summary, "the file")
        for name, part in (("rows", Row), ("goals", Goal), ("data", Data)):
            if not isinstance(parts.get(name, []), list):
                raise _invalid(name, "must be a list")
            made = [_fields(item, part, f"{name}[{at}]") for at, item in enumerate(parts.get(name, []))]
            parts[name] = [Row.from_json(each) if part is Row else part(**each) for each in made]
        for name in ("seeds", "notes"):
            if not isinstance(parts.get(name, []), list):
                raise _invalid(name, "must be a list")
        return Summary(**parts).validate()
    except InputError as error:
        raise InputError(f"{path}: {error.message}", error.remedy) from None


def read_all(folder: Path) -> dict[str, Summary]:
    """{experiment: summary} of every summary.json below `folder`, sorted. An experiment is named by its folder.

    Raises InputError if there is none.
    """
    folder = Path(folder)
    summaries = {path.parent.relative_to(folder).as_posix(): read(path) for path in sorted(folder.rglob(FILE_NAME))}
    if not summaries:
        raise InputError(f"{folder} holds no result files", f"expected {folder}/EXPERIMENT/{FILE_NAME}")
    return summaries


def data_facts(folder: Path, files: Iterable[str] | None = None) -> Data:
    """Name and hashes of a data set: one file, or a folder with `files` (None: all of its files that are not hidden)."""
    folder = Path(folder)
    if folder.is_file():
        return Data(folder.name, {folder.name: sha256(folder)})
    if files is None:
        paths = sorted(
            path
            for path in folder.rglob("*")
            if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        )
    else:
        paths = [folder / name for name in files]
    if not paths:
        raise InputError(f"{folder} holds no file")
    return Data(folder.resolve().name, {path.relative_to(folder).as_posix(): sha256(path) for path in paths})


def read_facts(places: Iterable[Path]) -> list[Data]:
    """`data_facts` of files and folders that were read. A pipe, which cannot be read twice, and a file that is gone are left
    out with a warning, so that they do not cost the result."""
    facts = []
    for place in places:
        if place.is_file() or place.is_dir():
            facts.append(data_facts(place))
        else:
            log.warning("%s cannot be read again: the result has no hash of it", place)
    return facts


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hex. Raises InputError if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    return digest.hexdigest()


def _invalid(name: str, what: str) -> InputError:
    return InputError(f"result summary: {name} {what}")


def _fields(content: Any, into: type, where: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise _invalid(where, f"must be an object, not {type(content).__name__}")
    known = {item.name: item for item in dataclasses.fields(into)}
    for name in content:
        if name not in known:
            raise _invalid(where, f"has the unknown field {name!r}; known are {', '.join(known)}")
    for name, item in known.items():
        optional = item.default is not dataclasses.MISSING or item.default_factory is not dataclasses.MISSING
        if name not in content and not optional:
            raise _invalid(where, f"lacks the field {name!r}")
    return dict(content)


def _validate_row(row: Row, where: str) -> None:
    for name in ("set", "engine", "measure"):
        text = getattr(row, name)
        if not isinstance(text, str) or not text:
            raise _invalid(f"{where}.{name}", "must be a text that is not empty")
    for name in ("value", "low", "high"):
        value = getattr(row, name)
        if value is None and name != "value":
            continue
        if not _is_number(value):
            raise _invalid(f"{where}.{name}", f"must be a finite number, not {value!r} ({row.engine}, {row.measure})")
    if row.low is not None and row.high is not None and row.low > row.high:
        raise _invalid(where, f"has low {row.low} above high {row.high}")
    if not isinstance(row.n, int) or isinstance(row.n, bool) or row.n < 0:
        raise _invalid(f"{where}.n", f"must be a count, not {row.n!r}")
    for name in ("baseline", "baseline_variant", "variant", "engine_label", "measure_label", "level"):
        if not isinstance(getattr(row, name), str):
            raise _invalid(f"{where}.{name}", f"must be a text, not {getattr(row, name)!r}")
    if row.seed is not None and (not isinstance(row.seed, int) or isinstance(row.seed, bool)):
        raise _invalid(f"{where}.seed", f"must be a whole number, not {row.seed!r}")
    if not isinstance(row.seeds, tuple) or not all(isinstance(seed, int) for seed in row.seeds):
        raise _invalid(f"{where}.seeds", f"must be whole numbers, not {row.seeds!r}")
    if row.kind not in get_args(RowKind):
        raise _invalid(f"{where}.kind", f"must be one of {', '.join(get_args(RowKind))}, not {row.kind!r}")
    if (row.kind == "value") == bool(row.baseline):
        raise _invalid(f"{where}.baseline", "must name an engine if the row compares engines, else be empty")


def _validate_goal(goal: Goal, where: str) -> None:
    if not isinstance(goal.goal, str) or not goal.goal:
        raise _invalid(f"{where}.goal", "must be a text that is not empty")
    for name in ("target", "value"):
        value = getattr(goal, name)
        if not (isinstance(value, str) or _is_number(value) or (value is None and name == "value")):
            raise _invalid(f"{where}.{name}", f"must be a text or a finite number, not {value!r}")
    if not isinstance(goal.met, bool):
        raise _invalid(f"{where}.met", f"must be true or false, not {goal.met!r}")
    if goal.met and goal.value is None:
        raise _invalid(f"{where}.met", "cannot be true without a measured value")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
