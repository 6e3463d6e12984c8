"""What `osn eval` and `osn eval runs` share: options for judgements and for output."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import click

from opensearch_neural.commands.option_groups import (
    Command,
    Renamed,
    check_report,
    flags_on_command_line,
    options_of,
    setting,
    setting_options,
    warn,
)
from opensearch_neural.corpus.judgements import JudgedQueries, read_qrels
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation import engine_report
from opensearch_neural.evaluation.engine_comparison import EngineResult, engine_rows
from opensearch_neural.evaluation.expectations import Expectation, parse_expectation
from opensearch_neural.evaluation.measures import has_fractions, parse_measures, require_fitting
from opensearch_neural.evaluation.query_segments import (
    SEGMENT,
    by_frequency,
    read_frequencies,
    read_query_values,
    segment_rows,
)
from opensearch_neural.evaluation.results import Data, Summary, data_facts, read_facts
from opensearch_neural.files import write_text

SHOWN = 10  # wins, and losses, that --per-query shows
FILE = click.Path(path_type=Path)


@dataclass
class Evaluation:
    """What is measured, against which judgements, and where it is told and written."""

    data: Path | None = setting(None, "A folder in BEIR layout: queries and qrels/SPLIT.tsv.", type=FILE)
    split: str = setting("test", "Split of --data's judgements.")
    queries: Path | None = setting(None, "Queries, in place of --data: jsonl, tsv, csv or TREC topics.", type=FILE)
    qrels: Path | None = setting(None, "Judgements, in place of --data: TREC or BEIR format.", type=FILE)
    limit_queries: int | None = setting(None, "Only the first N judged queries.", type=click.IntRange(min=1))
    measures: str = setting("nDCG@10,RR@10,R@100,R@1000", "Measures, by their names in ir-measures.")
    """Separated by commas."""
    baseline: str | None = setting(None, "The engine to compare with.  [default: bm25, or the first run]")
    segments: str | None = setting(
        None, "Measure parts of the queries: a file of query id and segment, or names from most to least frequent."
    )
    """Names are separated by commas."""
    frequencies: Path | None = setting(
        None,
        "A file of query id and count, if --segments are names.  [default: `frequency` in the queries]",
        type=FILE,
    )
    seed: int = setting(0, "Seed of the bootstrap and the randomization test.", type=click.IntRange(min=0))
    per_query: bool = setting(False, f"Show the {SHOWN} largest wins and losses against the baseline.")
    expect: tuple[str, ...] = setting(
        (), "A goal, ENGINE:MEASURE=LOW..HIGH; exit status 1 if it is missed. Repeatable.", multiple=True
    )
    as_json: bool = setting(False, "Print a result file instead of tables.", "--json")
    out: Path | None = setting(
        None, "Write run files and per-query values here.", "--output --out", cls=Renamed, type=FILE
    )
    """A folder."""
    record: Path | None = setting(None, "Write the result file summary.json here.", type=FILE)
    """A folder."""
    report: Path | None = setting(None, "Write an HTML report here; needs the extra [ui].", type=FILE)
    names: list[str] = field(init=False)
    """The measures, by their names in ir-measures."""

    def __post_init__(self) -> None:
        if self.per_query and self.as_json:
            raise click.UsageError("--per-query shows text; for programs, --output writes per-query.tsv")
        self._refuse_contradictions()
        for option, place in (("--record", self.record), ("--output", self.out)):
            if place is not None and place.is_file():
                raise InputError(f"{option} {place} is a file", "name a folder: files are written in it")
        check_report(self.report, "opensearch_neural.ui.report")
        # Commas in parentheses are part of a name: P(rel=2,judged_only=True)@5.
        self.names = list(parse_measures(re.split(r",(?![^(]*\))", self.measures)))

    def _refuse_contradictions(self) -> None:
        """Raise UsageError for an option that has no effect because of another option."""
        if self.data is not None and self.queries is not None:
            raise click.UsageError("--queries has no effect with --data, which holds queries")
        if self.qrels is not None and "split" in flags_on_command_line():
            raise click.UsageError("--split has no effect with --qrels: it names judgements of --data")
        if self.frequencies is not None and (self.segments is None or Path(self.segments).is_file()):
            raise click.UsageError("--frequencies has no effect unless --segments are names, such as head,torso,tail")

    def judged(self, *, texts: bool = True) -> JudgedQueries:
        """The judged queries. texts: whether their texts are needed.

        Raises InputError if no document is judged relevant, or if a measure cannot use the grades.
        """
        if (self.data is None) == (self.qrels is None):
            raise click.UsageError("give the judgements: --data FOLDER, or --qrels FILE (with --queries FILE)")
        if self.data is not None:
            judged = JudgedQueries.of_folder(self.data, self.split)
        elif self.qrels is not None and self.queries is not None:
            judged = JudgedQueries.of_files(self.queries, self.qrels)
        elif self.qrels is not None and not texts:
            qrels = read_qrels(self.qrels)
            judged = JudgedQueries(self.qrels.stem, "", dict.fromkeys(qrels, ""), qrels, (self.qrels,))
        else:
            raise click.UsageError("--qrels needs the queries' texts: --queries FILE")
        which = f"the judgements of the split {judged.split!r}" if judged.split else f"{judged.files[-1]}"
        if self.limit_queries is not None:
            queries = dict(islice(judged.queries.items(), self.limit_queries))
            judged = replace(judged, queries=queries, qrels={query: judged.qrels[query] for query in queries})
        if not any(grade > 0 for grades in judged.qrels.values() for grade in grades.values()):
            if self.limit_queries is None:
                raise InputError(f"{which} have no relevant document")
            raise InputError(
                f"none of the first {self.limit_queries:,} queries of {which} has a relevant document",
                "raise --limit-queries",
            )
        warn_of(judged, self.names)
        require_fitting(judged.qrels, self.names)
        return judged

    def expected(self, engines: Sequence[str]) -> list[Expectation]:
        return [parse_expectation(text, engines, self.names) for text in self.expect]

    def segment_of(self, judged: JudgedQueries) -> dict[str, str]:
        """{judged query: its segment}; empty without --segments. Raises InputError if the file has no judged query."""
        if self.segments is None:
            return {}
        if Path(self.segments).is_file():
            file: str | Path = self.segments
            of_query = read_query_values(file, SEGMENT)
            known = {query: of for query, of in of_query.items() if query in judged.qrels}
            segments = list(dict.fromkeys(of_query.values()))
        else:
            names = [name.strip() for name in self.segments.split(",") if name.strip()]
            if len(names) < 2 or "/" in self.segments:
                raise InputError(
                    f"--segments {self.segments} is neither a file nor several names",
                    "give a file of query id and segment, or names such as head,torso,tail",
                )
            file = self.frequencies or judged.files[0]
            if not self.frequencies and len(judged.files) < 2:
                raise InputError(
                    f"--segments {self.segments} needs the frequency of each query", "give --frequencies FILE"
                )
            if len(set(names)) < len(names):
                raise InputError(f"--segments {self.segments} names a segment twice")
            frequencies = {query: count for query, count in read_frequencies(file).items() if query in judged.qrels}
            if frequencies and not any(frequencies.values()):
                raise InputError(f"{file}: the frequency of every judged query is 0", "give the numbers of searches")
            known = by_frequency(frequencies, names)
            segments = names
        if not known:
            raise InputError(f"{file} has no segment or frequency for any judged query")
        measured = {
            known[query] for query, of in judged.qrels.items() if query in known and max(of.values(), default=0) > 0
        }
        if empty := [name for name in segments if name not in measured]:
            warn(f"no query with a relevant document is in {', '.join(empty)} ({file})")
        if missing := len(judged.qrels) - len(known):
            warn(f"{missing:,} judged queries are in no segment ({file})")
        return known

    def summary(
        self,
        judged: JudgedQueries,
        segment_of: Mapping[str, str],
        results: Sequence[EngineResult],
        against: str | None,
        expectations: Sequence[Expectation],
        files: Iterable[Path],
        what: str,
        **facts: Any,
    ) -> Summary:
        """The result file, with the rows of all queries and of each segment.

        files: what was read besides judgements and segments. what: what was measured, for the title.
        """
        segments = segment_rows(judged.name, results, segment_of, baseline=against, seed=self.seed)
        return Summary.of_this_run(
            data=[*self._read(judged), *read_facts(files)],
            seeds=[self.seed],
            rows=[*engine_rows(judged.name, results, baseline=against, seed=self.seed), *segments],
            goals=[expectation.goal_of(results) for expectation in expectations],
            title=f"{judged.name} ({judged.split}): {what}" if judged.split else f"{judged.name}: {what}",
            **facts,
        )

    def _read(self, judged: JudgedQueries) -> list[Data]:
        """Names and hashes of the files that were read: judgements, the corpus of a folder, segments."""
        of_segments = [Path(self.segments or ""), *([self.frequencies] if self.frequencies else [])]
        segments = [data_facts(file) for file in of_segments if file.is_file()]
        if self.data is None:
            return [*read_facts(judged.files), *segments]
        files = [*sorted(self.data.glob("corpus.jsonl*")), *judged.files]
        return [data_facts(self.data, [path.relative_to(self.data).as_posix() for path in files]), *segments]

    def tell(
        self,
        summary: Summary,
        results: Sequence[EngineResult],
        judged: JudgedQueries,
        against: str | None,
        titles: Callable[[list[str]], Mapping[str, str]] | None = None,
    ) -> None:
        """Print and write as the options say; exit with 1 if a goal is missed. titles: {id: title} of documents."""
        queries = judged.queries
        if self.as_json:
            print(json.dumps(summary.to_json(), ensure_ascii=False, indent=1))
        else:
            engine_report.print_tables(summary, results, against)
            if self.per_query:
                engine_report.print_per_query(queries, results, self.names[0], against, SHOWN)
        if self.out is not None:
            engine_report.write_runs(self.out, results)
        if self.record is not None:
            print(f"wrote {summary.write(self.record)}", file=sys.stderr)
        if self.report is not None:
            from opensearch_neural.ui.report import documents_shown, report

            known = titles(documents_shown(results)) if titles else {}
            write_text(self.report, report(summary, results, queries, judged.qrels, against, known))
            print(f"wrote {self.report}", file=sys.stderr)
        if not all(goal.met for goal in summary.goals):
            sys.exit(1)


def chosen_baseline(name: str | None, engines: Sequence[str], default: str) -> str | None:
    """The engine to compare with, or None. Raises InputError for an engine that is not measured."""
    if name is not None and name not in engines:
        raise InputError(f"the baseline {name!r} is not among the engines measured ({', '.join(engines)})")
    return name or (default if default in engines else None)


def warn_of(judged: JudgedQueries, names: Sequence[str]) -> None:
    """Say on stderr how many judged queries are left out, and how fractional grades are treated."""
    without_relevant = sum(1 for grades in judged.qrels.values() if not any(grade > 0 for grade in grades.values()))
    if without_relevant:
        warn(f"{without_relevant:,} judged queries have no relevant document and are left out")
    others = [
        name
        for name, each in parse_measures(names).items()
        if each.NAME not in ("nDCG", "Judged") and each.params.get("rel", 1) == 1
    ]
    if has_fractions(judged.qrels):
        also = f"; {', '.join(others)} count any grade above 0 as relevant" if others else ""
        click.echo(f"some grades are fractions: nDCG uses them as they are{also}", err=True)


def evaluation_options(command: Command) -> Command:
    """Add the options of `Evaluation`; the command gets them as `evaluation`. It does not run if a subcommand is named."""
    gathered = options_of(Evaluation, "evaluation", *setting_options(Evaluation).values())(command)

    @functools.wraps(gathered)
    def unless_before_a_subcommand(*args: Any, **kwargs: Any) -> Any:
        ctx = click.get_current_context()
        if ctx.invoked_subcommand is not None:
            for flag in flags_on_command_line().values():  # they would be ignored
                raise click.UsageError(f"write {flag} after {ctx.invoked_subcommand!r}, if that command has it")
            return None
        return gathered(*args, **kwargs)

    return cast(Command, unless_before_a_subcommand)
