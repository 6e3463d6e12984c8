"""Result files: what an experiment measured, with which command, code, machine, data and seeds.

Each experiment writes `FOLDER/summary.json`:

    Summary(
        command="osn eval --index scifact --data scifact --json",
        code=code_commit(), machine=machine_facts(), data=[data_facts(Path("scifact"))], seeds=[0],
        rows=[Row("scifact", "bm25", "nDCG@10", 0.683, 0.641, 0.724, n=300)],
        goals=[Goal("BM25 nDCG@10 on scifact", "0.66 to 0.70", 0.683, met=True)],
    ).write(Path("benchmarks/results/published"))

Tables and pages are made from these files and never typed. They are meant to be published, so nothing in them names
this machine, its paths or a credential.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from opensearch_neural import __version__
from opensearch_neural.errors import InputError
from opensearch_neural.files import write_text

FILE_NAME = "summary.json"

Machine = dict[str, str | int | float]


Kind = Literal["value", "difference", "p-value", "ratio"]


class Key(NamedTuple):
    """What tells a row from all others of its result, see `Row`."""

    set: str
    engine: str
    measure: str
    kind: Kind = "value"
    baseline: str = ""
    baseline_variant: str = ""
    seed: int | None = None
    variant: str = ""


class Engine(NamedTuple):
    """An engine of which there are several: of several seeds, or measured in several ways. See `Row`."""

    name: str
    seed: int | None = None
    variant: str = ""

    def __str__(self) -> str:
        seed = "" if self.seed is None else f"seed {self.seed}"
        return ", ".join(part for part in (self.name, seed, self.variant) if part)


@dataclass(frozen=True)
class Row:
    """One number: what `measure` was for `engine` on `set`, or how that compares with `baseline`."""

    set: str
    """The data set, with its load level or size if it has several."""
    engine: str
    """What was measured: its name alone."""
    measure: str
    """The name of the measure alone."""
    value: float
    low: float | None
    """Lower end of the 95% interval; None if there is none."""
    high: float | None
    """Upper end of the 95% interval; None if there is none."""
    n: int
    """How many queries, requests or runs the number rests on."""
    baseline: str = ""
    """The engine that a difference, its p-value or a ratio is against; of the row's seed, if it has one."""
    baseline_variant: str = ""
    """How the baseline was measured, if in several ways."""
    seed: int | None = None
    """The seed that the engine was trained with, if several were."""
    kind: Kind = "value"
    """A value of the engine, its difference from the baseline, the p-value of that, or its ratio to the baseline."""
    variant: str = ""
    """How the engine was measured, if in several ways: the layout of its index, a part of the queries."""
    engine_label: str = ""
    """What heads the row's line in tables, if not the engine with its seed and variant."""
    measure_label: str = ""
    """What heads the row's column in tables, if not the measure with its baseline."""
    baseline_label: str = ""
    """What tables call the baseline, if not its name with the row's seed: a baseline without seed."""

    @property
    def key(self) -> Key:
        return Key(*(getattr(self, name) for name in Key._fields))

    @property
    def line(self) -> str:
        """What heads the row's line in tables: "dual encoder, seed 42"."""
        return self.engine_label or str(Engine(self.engine, self.seed, self.variant))

    @property
    def against(self) -> str:
        """The baseline as tables show it: "dual encoder, seed 42"."""
        whole = str(Engine(self.baseline, self.seed, self.baseline_variant)) if self.baseline else ""
        return self.baseline_label or whole

    @property
    def column(self) -> str:
        """What heads the row's column in tables: "nDCG@10", "nDCG@10 - bm25", "p(nDCG@10 - bm25)", "P99 / bm25"."""
        if self.measure_label or self.kind == "value":
            return self.measure_label or self.measure
        if self.kind == "ratio":
            return f"{self.measure} / {self.against}"
        difference = f"{self.measure} - {self.against}"
        return f"p({difference})" if self.kind == "p-value" else difference

    def to_json(self) -> dict[str, Any]:
        """Its fields, without those that hold their default."""
        every = dataclasses.fields(self)
        return {each.name: value for each in every if (value := getattr(self, each.name)) != each.default}


@dataclass(frozen=True)
class Goal:
    """What was aimed at, in the words of whoever asked for it, and whether it was reached.

    value is None where nothing was measured.
    """

    goal: str
    target: str | float
    value: str | float | None
    met: bool

    def __str__(self) -> str:
        if self.value is None:
            return f"not measured: {self.goal}"
        return f"{'met' if self.met else 'missed'}: {self.goal}: {self.value}"


@dataclass(frozen=True)
class Data:
    """A data set by its name and the SHA-256 (hex) of each of its files."""

    name: str
    files: dict[str, str]


@dataclass(frozen=True)
class Summary:
    """The content of one result file. `title` heads its table; without one the folder's name does."""

    command: str
    code: str
    machine: Machine
    data: list[Data]
    seeds: list[int]
    rows: list[Row]
    goals: list[Goal] = field(default_factory=list)
    title: str = ""

    def validate(self) -> Summary:
        """This summary, if it may be published.

        Raises InputError naming the field: for a missing part, a value that is no finite number, an interval the wrong
        way round, two rows about the same thing, a credential or a home directory.
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
        keys: set[Key] = set()
        cells: set[tuple[str, str, str]] = set()
        for at, row in enumerate(self.rows):
            _validate_row(row, f"rows[{at}]")
            cell = (row.set, row.line, row.column)
            if row.key in keys or cell in cells:
                raise _invalid(f"rows[{at}]", f"repeats {cell}: name what makes it another row in its set or engine")
            keys.add(row.key)
            cells.add(cell)
        for at, goal in enumerate(self.goals):
            _validate_goal(goal, f"goals[{at}]")
        return self

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        content = dataclasses.asdict(self.validate())
        return content | {"rows": [row.to_json() for row in self.rows]}

    def write(self, folder: Path) -> Path:
        """Validate and write `folder`/summary.json; the old file stays until the new one is whole."""
        path = Path(folder) / FILE_NAME
        write_text(path, json.dumps(self.to_json(), ensure_ascii=False, indent=1, allow_nan=False) + "\n")
        return path


def read(path: Path) -> Summary:
    """The summary in `path`: a file, or a folder that holds summary.json.

    Raises InputError naming file and field for what is no result file.
    """
    path = Path(path)
    if path.is_dir():
        path = path / FILE_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the result file {path} cannot be read: {error}") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: not valid JSON ({error.msg})") from None
    try:
        parts = _fields(content, Summary, "the file")
        for name, part in (("rows", Row), ("goals", Goal), ("data", Data)):
            if not isinstance(parts.get(name, []), list):
                raise _invalid(name, "must be a list")
            parts[name] = [part(**_fields(item, part, f"{name}[{at}]")) for at, item in enumerate(parts.get(name, []))]
        if not isinstance(parts["seeds"], list):
            raise _invalid("seeds", "must be a list")
        return Summary(**parts).validate()
    except InputError as error:
        raise InputError(f"{path}: {error.message}", error.remedy) from None


def read_all(folder: Path) -> dict[str, Summary]:
    """{experiment: summary} of every summary.json below `folder`, an experiment named by its folder, sorted.

    Raises InputError where there is none.
    """
    folder = Path(folder)
    found = {path.parent.relative_to(folder).as_posix(): read(path) for path in sorted(folder.rglob(FILE_NAME))}
    if not found:
        raise InputError(f"{folder} holds no result files", f"expected {folder}/EXPERIMENT/{FILE_NAME}")
    return found


def code_commit() -> str:
    """The commit this code runs from, with "-dirty" where tracked files other than results differ from it.

    "opensearch-neural VERSION" where the package was installed and not run from its repository.
    """
    root = Path(__file__).resolve().parents[2]
    inside = _git(root, "ls-files", "--error-unmatch", "opensearch_neural/evaluation/results.py")
    commit = _git(root, "rev-parse", "HEAD") if inside else None
    if not commit:
        return f"opensearch-neural {__version__}"
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    return f"{commit}-dirty" if changed else commit


def machine_facts() -> Machine:
    """What a reader needs to judge a time by: processor, cores, memory, versions. No host name, no path.

    Versions of torch and the GPU are given only where the experiment has imported torch.
    """
    facts: Machine = {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_gib": _memory_gib(),
        "system": platform.system(),
        "python": platform.python_version(),
        "opensearch_neural": __version__,
    }
    for module in ("numpy", "torch", "transformers", "sentence_transformers", "opensearchpy", "faiss", "bm25s"):
        loaded = sys.modules.get(module)
        version = getattr(loaded, "__versionstr__", None) or getattr(loaded, "__version__", None)
        if version:
            facts[module] = str(version)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def data_facts(folder: Path, files: Iterable[str] | None = None) -> Data:
    """Name and hashes of a data set: a folder (all of its files, or those named, hidden ones left out) or one file."""
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


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hex. Raises InputError where it cannot be read."""
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    return digest.hexdigest()


_SECRET_WORD = r"(?:password|passwd|token|secret|api[-_]?key|access[-_]?key|credentials?)"
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")
_SECRET_VALUE = re.compile(rf"(?i)((?:^|[\s?&'\"]|--?)[\w-]*{_SECRET_WORD}=)(?!\*\*\*)[^\s&'\"]+")
_SECRET_OPTION = re.compile(rf"(?i)(--[\w-]*{_SECRET_WORD})(?:\s+(?!\*\*\*|--)\S+)?")
# An absolute path stands at the start, or after one of = : , and quotes; the // of a URL is none.
_ABSOLUTE_PATH = re.compile(r"(?<![^\s=:,'\"])/(?!/)[^\s,'\"]+")


def command_line(argv: Sequence[str] | None = None) -> str:
    """The command as another reader can use it: sys.argv with the program's name alone, shell-quoted.

    Credentials become ***; a path below the current directory relative; the home directory "~"; of any other absolute
    path only the last part is kept (".../scifact").
    """
    argv = sys.argv if argv is None else list(argv)
    name = Path(argv[0]).name if argv else "osn"
    words, hide = [], False
    for argument in argv[1:]:
        hidden = hide and not argument.startswith("--")
        words.append("***" if hidden else _quoted(clean_argument(argument)))
        hide = bool(_SECRET_OPTION.fullmatch(argument))
    return " ".join([name, *words])


def clean_argument(argument: str) -> str:
    """One argument without credentials and without absolute paths of this machine, see `command_line`."""
    option, equals, value = argument.rpartition("=") if argument.startswith("--") else ("", "", argument)
    if value.startswith("/"):  # the whole of it is one path, blanks included
        return f"{option}{equals}{_clean_path(value)}"
    argument = _USER_INFO.sub("", argument)
    argument = _SECRET_VALUE.sub(r"\1***", argument)
    argument = _SECRET_OPTION.sub(lambda found: found[1] if found[0] == found[1] else f"{found[1]} ***", argument)
    return _ABSOLUTE_PATH.sub(lambda found: _clean_path(found[0]), argument)


def _quoted(word: str) -> str:
    # A quoted ~ would no longer be the home directory.
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") else shlex.quote(word)


def _clean_path(text: str) -> str:
    path = Path(text)
    for base, instead in ((Path.cwd(), Path()), (Path.home(), Path("~"))):
        if path == base or (base in path.parents and base != Path("/")):
            return (instead / path.relative_to(base)).as_posix()
    return f".../{path.name}"


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
    for name in ("baseline", "baseline_variant", "variant", "engine_label", "measure_label"):
        if not isinstance(getattr(row, name), str):
            raise _invalid(f"{where}.{name}", f"must be a text, not {getattr(row, name)!r}")
    if row.seed is not None and (not isinstance(row.seed, int) or isinstance(row.seed, bool)):
        raise _invalid(f"{where}.seed", f"must be a whole number, not {row.seed!r}")
    if row.kind not in get_args(Kind):
        raise _invalid(f"{where}.kind", f"must be one of {', '.join(get_args(Kind))}, not {row.kind!r}")
    if (row.kind == "value") == bool(row.baseline):
        raise _invalid(f"{where}.baseline", "must name an engine where the row compares, and only there")


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
        raise _invalid(f"{where}.met", "cannot be true of what was not measured")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return 0.0
