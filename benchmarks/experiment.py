"""What experiments share: arms × seeds → kept measurements → rows → goals → a summary.

A paper's file declares its sets, arms, engines, measures, differences and goals, and holds what only it needs. An arm
trained with a seed is a `MeasuredEngine`. Every part of a paper takes the same steps:

    trials(ARMS, REPEATED, seeds)             every arm with the first seed; arms in REPEATED with all seeds
    for_each(engines, output, train)          trains each once, also in several processes side by side
    kept_measured(file, compute)              searches each once, and keeps the measures of every question
    compared(set, measured, DIFFERENCES)      values with intervals, and paired differences; the mean over seeds, too
    facts(set, engine, values, n)             values without interval, such as sizes
    Table(rows, seeds)                        finds rows by set, engine and measure, to judge goals (`gain_goal`, …)
    run_parts({name: PaperPart(...)}, record) tables, goals and a summary for each part

Slow results are kept in the folder --work, named by the settings that made them. The same command continues where an
earlier one stopped; other settings write other files.
"""

from __future__ import annotations

import json
import logging
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from benchmarks.render import signed
from opensearch_neural.errors import MissingExtra
from opensearch_neural.evaluation import result_rows
from opensearch_neural.evaluation.measures import Measured, Qrels, averaged, label, measure
from opensearch_neural.evaluation.provenance import Machine, code_commit, machine_facts
from opensearch_neural.evaluation.results import Goal, Key, MeasuredEngine, Row, Summary, data_facts
from opensearch_neural.evaluation.tables import result_table
from opensearch_neural.files import write_json
from opensearch_neural.locks import locked
from opensearch_neural.retrievers import Run
from trainers.data.examples import TrainingData

logger = logging.getLogger(__name__)

T = TypeVar("T")
RowsAndGoals = tuple[list[Row], list[Goal]]
RowsAndNotes = tuple[list[Row], list[str]]
Draw = Callable[[Sequence[Row], Path], None]
Baseline = str | MeasuredEngine
"""What an engine is compared with: a name (with the engine's own seed and variant, see `pairs`), or one exact engine."""

SEED_ERROR = "standard error over seeds"


# ------------------------------------------------ arms and seeds


def trials(arms: Iterable[str], repeated: Iterable[str], seeds: Sequence[int]) -> list[MeasuredEngine]:
    """Every arm with the first of `seeds`; arms in `repeated` with each of the others too."""
    arms, repeated = list(arms), set(repeated)
    return [MeasuredEngine(arm, seed) for seed in seeds for arm in arms if seed == seeds[0] or arm in repeated]


def slug(name: str) -> str:
    """A name as a file name: its letters and digits, in lower case, with - for what is between them."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in name.lower()).split())


# ------------------------------------------------ what is done once


def shared(jobs: Mapping[Path, Callable[[], T]]) -> list[T]:
    """The results of `jobs` {path that the job makes: job}, in their order. Processes with the same jobs divide the work.

    A job that another process is running comes last: when it has ended there, it is called here too, and must find what is
    already made. Jobs may call `shared` for other jobs, but not in a circle.
    """
    results: dict[Path, T] = {}
    for wait in (False, True):
        for path, job in jobs.items():
            if path in results:
                continue
            with locked(path, wait=wait) as is_ours:
                if is_ours:
                    results[path] = job()
    return [results[path] for path in jobs]


def for_each(
    engines: Iterable[MeasuredEngine], output: Callable[[MeasuredEngine], Path], job: Callable[[MeasuredEngine], T]
) -> dict[MeasuredEngine, T]:
    """{engine: the result of its job}, in the order of `engines`; see `shared`. output: the path that a job makes."""
    paths = {engine: output(engine) for engine in engines}
    jobs = {path: partial(job, engine) for engine, path in paths.items()}
    results = dict(zip(jobs, shared(jobs), strict=True))
    return {engine: results[path] for engine, path in paths.items()}


def kept(file: Path, compute: Callable[[], Any]) -> Any:
    """The JSON content of `file`. If it is missing, one of the processes that ask calls `compute` and writes its result."""
    with locked(file, done=file):
        if not file.exists():
            started = time.monotonic()
            write_json(file, compute(), indent=None)
            logger.info("%s: %.0f s", file.stem, time.monotonic() - started)
    return json.loads(file.read_text(encoding="utf-8"))


def kept_measured(file: Path, compute: Callable[[], Measured]) -> Measured:
    """What `compute` measured, kept in `file` question by question."""
    return Measured.from_json(kept(file, lambda: asdict(compute())))


def kept_rows(file: Path, compute: Callable[[], Iterable[Row]]) -> list[Row]:
    """The rows that `compute` made, kept in `file`."""
    return [Row.from_json(row) for row in kept(file, lambda: [row.to_json() for row in compute()])]


def kept_costs(file: Path, measure: Callable[[], RowsAndNotes]) -> RowsAndNotes:
    """The rows and notes that `measure` made, kept in `file` with the code and the machine that made them. A further note
    tells if these are others than now."""

    def measured() -> dict[str, Any]:
        rows, notes = measure()
        return {"code": code_commit(), "machine": _machine(), "notes": notes, "rows": [row.to_json() for row in rows]}

    content = kept(file, measured)
    if isinstance(content, list):  # an earlier version kept the rows alone
        content = {"code": "unknown code", "machine": "an unknown machine", "notes": [], "rows": content}
    code, machine, notes = content["code"], content["machine"], content["notes"]
    if (code, machine) != (code_commit(), _machine()):
        notes.append(f"{file.stem}: measured before, by {code} on {machine}")
    return [Row.from_json(row) for row in content["rows"]], notes


def _machine() -> str:
    machine = machine_facts()
    return f"{machine['cpu']}, {machine['cores']} cores"


# ------------------------------------------------ what is measured


@dataclass(frozen=True)
class JudgedSet:
    """A test split: questions over a corpus, with judgements."""

    data: TrainingData
    """The questions and the whole corpus."""
    qrels: Qrels
    """{question: {document: grade}}"""
    clusters: Mapping[str, str] | None = None
    """{question: its group, such as the article that answers it}; intervals resample the groups. None: single questions."""

    @classmethod
    def grouped(cls, data: TrainingData, group_of: Mapping[str, str]) -> JudgedSet:
        """The questions of `data`, each in the group of its first relevant document. group_of: {document: its group}"""
        qrels = data.qrels()
        return cls(data, qrels, {query: group_of[next(iter(relevant))] for query, relevant in qrels.items()})

    @property
    def name(self) -> str:
        return self.data.name

    @property
    def texts(self) -> dict[str, str]:
        """{question id: text}."""
        return self.data.query_texts()

    def measure(self, run: Run, measures: Iterable[str]) -> Measured:
        return measure(run, self.qrels, measures)


def means(measured: Mapping[MeasuredEngine, Measured], seeds: Sequence[int]) -> dict[MeasuredEngine, Measured]:
    """{engine: its mean over `seeds`, question by question}, if measured with all of them; empty for a single seed."""
    averages: dict[MeasuredEngine, Measured] = {}
    for engine in measured:
        of_seeds = [engine._replace(seed=seed) for seed in seeds]
        if len(seeds) > 1 and engine.seed == seeds[0] and all(seeded in measured for seeded in of_seeds):
            mean = engine._replace(seed=None, seeds=tuple(seeds))
            averages[mean] = averaged([measured[seeded] for seeded in of_seeds])
    return averages


# ------------------------------------------------ rows


def compared(
    name: str,
    measured: Mapping[MeasuredEngine, Measured],
    differences: Iterable[tuple[str, Baseline]] = (),
    *,
    clusters: Mapping[str, str] | None = None,
    seeds: Sequence[int] = (),
) -> list[Row]:
    """Rows of the set `name`: each engine's values with intervals, and paired differences by `pairs`; with several `seeds`
    also those of `means` over them.

    Intervals are over questions, or `clusters` of them; they do not include the variation between seeds. Differences of
    means over several `seeds` have a further row: the standard error over seeds.
    """
    measured = {**measured, **means(measured, seeds)}
    against: dict[MeasuredEngine | None, list[MeasuredEngine]] = {}
    for engine, baseline in pairs(measured, differences):
        against.setdefault(baseline, []).append(engine)
    paired = {*against, *(engine for engines in against.values() for engine in engines)}
    against[None] = [engine for engine in measured if engine not in paired]
    rows: dict[Key, Row] = {}
    for rival, engines in against.items():
        compared_with = {engine: measured[engine] for engine in (rival, *engines) if engine is not None}
        for row in result_rows.rows(name, compared_with, baseline=rival, clusters=clusters):
            rows.setdefault(row.key, row)
    return [*rows.values(), *seed_error_rows(list(rows.values()), seeds)]


def facts(name: str, engine: MeasuredEngine, values: Mapping[str, float], n: int) -> list[Row]:
    """Rows of `values` {measure: value} without interval on the set `name`. n: how many queries or documents were counted"""
    return [
        Row(name, engine.name, measure, value, None, None, n, seed=engine.seed, variant=engine.variant)
        for measure, value in values.items()
    ]


def pairs(
    engines: Iterable[MeasuredEngine], differences: Iterable[tuple[str, Baseline]]
) -> list[tuple[MeasuredEngine, MeasuredEngine]]:
    """(engine, baseline) for each of `differences` (name, baseline) if both are among `engines`.

    If the baseline is a name, an engine is compared with the baseline of its own seed and variant, else with the one that
    has neither. An engine without a seed is compared with the baseline of the first seed.
    """
    known = list(dict.fromkeys(engines))
    matched: list[tuple[MeasuredEngine, MeasuredEngine]] = []
    for name, baseline in dict.fromkeys(differences):
        if isinstance(baseline, MeasuredEngine):
            if baseline in known:
                matched += [(engine, baseline) for engine in known if engine.name == name and engine != baseline]
            continue
        rivals = [engine for engine in known if engine.name == baseline]
        for engine in (engine for engine in known if engine.name == name):
            alike = [rival for rival in rivals if rival[1:] == engine[1:]] or [
                rival for rival in rivals if rival == MeasuredEngine(baseline)
            ]
            if not alike and engine == MeasuredEngine(name):
                alike = [rival for rival in rivals if not rival.variant and not rival.seeds]
            matched += [(engine, rival) for rival in alike[:1] if rival != engine]
    return matched


def seed_error_rows(rows: Sequence[Row], seeds: Sequence[int]) -> list[Row]:
    """The standard error of each difference of means over `seeds`: the standard deviation of the seeds' own differences,
    divided by √seeds."""
    return [
        replace(
            own[0],
            measure=f"{own[0].measure}, {SEED_ERROR}",
            value=statistics.stdev(row.value for row in own) / math.sqrt(len(own)),
            low=None,
            high=None,
            n=len(own),
            seed=None,
            seeds=tuple(seeds),
        )
        for own in _of_all_seeds((row for row in rows if row.kind == "difference"), seeds)
    ]


def mean_values(rows: Iterable[Row], seeds: Sequence[int]) -> list[Row]:
    """Means over `seeds` of values without interval, such as terms a document, if models of all seeds were measured."""
    return [
        replace(own[0], value=statistics.fmean(row.value for row in own), seed=None, seeds=tuple(seeds))
        for own in _of_all_seeds(rows, seeds)
    ]


def _of_all_seeds(rows: Iterable[Row], seeds: Sequence[int]) -> list[list[Row]]:
    """Rows that differ in nothing but their seed, if there is one for each of several `seeds`."""
    alike: dict[Key, list[Row]] = {}
    for row in rows:
        if row.seed in seeds:
            alike.setdefault(row.key._replace(seed=None), []).append(row)
    return [own for own in alike.values() if len(own) == len(seeds) > 1]


# ------------------------------------------------ goals


class Table:
    """Finds rows by set, engine and measure. An engine's row is its mean over `seeds`, else that of the first seed, else
    that without a seed. A measure may have the name of rows or of ir-measures: MRR@10 or RR@10."""

    def __init__(self, rows: Iterable[Row], seeds: Sequence[int] = ()) -> None:
        self.rows = list(rows)
        self.sets = list(dict.fromkeys(row.set for row in self.rows))
        self.seeds = list(seeds)
        self._rows: dict[Key, Row] = {}
        for row in self.rows:
            self._rows.setdefault(row.key._replace(baseline_variant=""), row)

    def value(self, name: str, engine: str, measure: str, *, variant: str = "") -> Row | None:
        return self._find(Key(name, engine, measure, variant=variant))

    def difference(self, name: str, engine: str, baseline: str, measure: str, *, variant: str = "") -> Row | None:
        return self._find(Key(name, engine, measure, "difference", baseline, variant=variant))

    def differences(
        self, names: Iterable[str], engine: str, baseline: str, measure: str, *, variant: str = ""
    ) -> dict[str, Row]:
        """{set: the difference on it}, of those `names` on which it was measured."""
        rows = {name: self.difference(name, engine, baseline, measure, variant=variant) for name in names}
        return {name: row for name, row in rows.items() if row is not None}

    def ratio(
        self, name: str, level: str, engine: str, baseline: str, measure: str, *, variant: str = ""
    ) -> Row | None:
        """The ratio to the baseline under the load `level`."""
        return self._find(Key(name, engine, measure, "ratio", baseline, variant=variant, level=level))

    def by_seed(self, name: str, engine: str, baseline: str, measure: str) -> list[Row]:
        """The difference of each of the seeds that were measured."""
        key = Key(name, engine, label(measure), "difference", baseline)
        return [row for seed in self.seeds if (row := self._rows.get(key._replace(seed=seed))) is not None]

    def _find(self, key: Key) -> Row | None:
        key = key._replace(measure=label(key.measure))
        mean = key._replace(seeds=tuple(self.seeds) if len(self.seeds) > 1 else ())
        first = key._replace(seed=self.seeds[0] if self.seeds else None)
        return next((row for wanted in (mean, first, key) if (row := self._rows.get(wanted)) is not None), None)


def is_above(row: Row | None) -> bool:
    """Whether the interval of a difference lies above zero."""
    return row is not None and row.low is not None and row.low > 0


def goal_of(words: str, target: str | float, value: str | float | None, met: bool) -> Goal:
    """A goal; with an empty value nothing was measured, and the goal is not met."""
    measured = value not in (None, "")
    return Goal(words, target, value if measured else None, measured and bool(met))


def all_goal(words: str, passed: Collection[bool], note: str = "") -> Goal:
    """A goal that all of `passed` are True, shown as "2 of 3" with `note`; not measured if `passed` is empty."""
    count, met = len(passed), sum(passed)
    return goal_of(words, f"{count} of {count}", f"{met} of {count}{note}" if count else None, met == count)


def gain_goal(words: str, gain: Row | None, *, digits: int = 3) -> Goal:
    """A goal that the interval of a difference lies above zero."""
    return goal_of(words, "low above 0", None if gain is None else signed(gain, digits), is_above(gain))


def gains_goal(
    words: str, target: str, gains: Mapping[str, Row], least: int, *, shown: Callable[[Row], str] = signed
) -> Goal:
    """A goal that at least so many of `gains` {name: difference} lie above zero with their interval. Its value is "1 of 2"
    with all of them; there is none without any."""
    above = sum(map(is_above, gains.values()))
    values = "; ".join(f"{name}: {shown(row)}" for name, row in gains.items())
    return goal_of(words, target, f"{above} of {len(gains)} ({values})" if gains else None, above >= least)


# ------------------------------------------------ the command


def record_option(help: str = "Write summary.json there.") -> Callable[[Any], Any]:
    return click.option("--record", type=click.Path(path_type=Path, file_okay=False), default=None, help=help)


def publish(
    rows: list[Row],
    goals: list[Goal],
    *,
    title: str,
    data: Iterable[Path],
    seeds: Sequence[int],
    record: Path | None,
    shown: Callable[[Row], bool] = lambda row: True,
    draw: Draw | None = None,
    machine: Machine | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Print the table, the goals and the notes; write summary.json and the plots into the folder `record`, if given.

    data: the folders of the data sets behind the rows; machine: its facts, if not the usual ones; notes: what a reader of
        the rows needs to know; others as in `PaperPart`
    """
    facts = [data_facts(folder) for folder in data]
    summary = Summary.of_this_run(
        data=facts, seeds=seeds, rows=rows, goals=goals, title=title, machine=machine, notes=notes
    )
    columns = dict.fromkeys(row.column for row in rows if shown(row))
    print(result_table(rows, list(columns), intervals=True))
    for goal in goals:
        print(goal)
    for note in notes:
        print(f"! {note}")
    if record:
        print(f"written: {summary.write(record)}")
    if record and draw:
        try:
            draw(rows, record)
        except MissingExtra as error:
            logger.warning("no plots: %s", error)


@dataclass(frozen=True)
class PaperPart:
    """What one result file holds."""

    title: str
    """The heading of its table."""
    run: Callable[[], RowsAndGoals]
    """Trains and measures; returns the rows and goals."""
    data: Sequence[Path]
    """The folders of the data sets that the rows rest on."""
    seeds: Sequence[int]
    """The seeds of its trainings, for the result file."""
    shown: Callable[[Row], bool]
    """Whether the printed table has the row's column."""
    draw: Draw | None = None
    """Writes plots of the rows into a folder."""


def run_parts(parts: Mapping[str, PaperPart], record: Path | None, chosen: Sequence[str] = ()) -> None:
    """Run the `chosen` parts (empty: all) one after the other, and `publish` each, in RECORD/NAME."""
    for name in dict.fromkeys(chosen or parts):
        part = parts[name]
        rows, goals = part.run()
        publish(
            rows,
            goals,
            title=part.title,
            data=part.data,
            seeds=part.seeds,
            record=record and record / name,
            shown=part.shown,
            draw=part.draw,
        )


def work_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --work and --record."""
    folder = click.Path(path_type=Path, file_okay=False)
    help = "Folder for models and measurements; a second run continues from it."
    record = record_option("Write PART/summary.json and plots there.")
    return click.option("--work", required=True, type=folder, help=help)(record(command))


def paper_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --data, --work and --record."""
    existing = click.Path(path_type=Path, exists=True)
    return click.option("--data", required=True, type=existing, help="Folder of the BEIR folders.")(
        work_options(command)
    )
