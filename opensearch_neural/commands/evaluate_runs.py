"""`osn eval runs`: run files against judgements, without a cluster."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from opensearch_neural.commands.evaluation_options import Evaluation, chosen_baseline, evaluation_options
from opensearch_neural.commands.headings import Headed
from opensearch_neural.commands.option_groups import warn
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.engine_comparison import EngineResult, unjudged_hits
from opensearch_neural.evaluation.measures import cutoff, measure, rank
from opensearch_neural.evaluation.overlap import PAGE
from opensearch_neural.evaluation.run_files import read_run
from opensearch_neural.retrievers import Run


@click.command(
    name="runs", cls=Headed, first="data split queries qrels baseline measures segments per-query output report json"
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@evaluation_options
def runs_command(evaluation: Evaluation, files: tuple[Path, ...]) -> None:
    """Compare run files (TREC: query Q0 document rank score tag), of any system, with the first of them.

    Measures, intervals and tests are as in `osn eval`; only --per-query shows the texts of queries. A run is ranked by its
    scores, not by its rank column, as in trec_eval. A judged query that a run lacks counts as 0.

    \b
    osn eval runs bm25.trec mine.trec --qrels judged.qrels
    osn eval runs a.trec b.trec c.trec --data data/scifact --baseline b --segments segments.tsv --json
    """
    judged = evaluation.judged(texts=evaluation.per_query)
    segment_of = evaluation.segment_of(judged)
    names = names_of(files)
    against = chosen_baseline(evaluation.baseline, names, names[0])
    expectations = evaluation.expected(names)
    results = []
    for name, file in zip(names, files, strict=True):
        run = read_run(file)
        if not run.keys() & judged.qrels.keys():
            first = next(iter(run), None)
            raise InputError(
                f"{file} has hits for none of the {len(judged.qrels):,} judged queries",
                f"its queries have ids like {first!r}, the judgements {next(iter(judged.qrels))!r}",
            )
        measured = measure(run, judged.qrels, evaluation.names)
        if measured.unjudged and evaluation.limit_queries is None:
            warn(f"{file}: {measured.unjudged:,} queries have no judgement and are left out")
        if beyond := cut_short(run, evaluation.names):
            deepest = max(map(len, run.values()))
            warn(f"{file} ends at {deepest:,} hits a query: {', '.join(beyond)} cannot count later hits")
        shown = {}
        if evaluation.report is not None:
            shown[PAGE] = {query: dict(rank(hits)[:PAGE]) for query, hits in run.items()}
        results.append(EngineResult(name, measured, shown, unjudged=unjudged_hits(run, judged.qrels)))
    what = f"{len(files):,} runs, {results[0].measured.queries:,} queries"
    summary = evaluation.summary(judged, segment_of, results, against, expectations, files, what)
    evaluation.tell(summary, results, judged, against)


def cut_short(run: Run, measures: Iterable[str]) -> list[str]:
    """The measures with a cut-off beyond the depth of a truncated run. A run counts as truncated if at least half of its
    queries have the largest number of hits."""
    depths = [len(hits) for hits in run.values()]
    deepest = max(depths)
    if 2 * depths.count(deepest) < len(depths):
        return []
    return [name for name in measures if (cutoff(name) or math.inf) > deepest]


def names_of(files: Sequence[Path]) -> list[str]:
    """The names of the runs in tables: the file names without extension, or the paths of files that share a name."""
    stems = [file.name.removesuffix(".gz").removesuffix(".trec").removesuffix(".run") for file in files]
    names = [stem if stems.count(stem) == 1 else str(file) for stem, file in zip(stems, files, strict=True)]
    if len(set(names)) < len(names):
        raise InputError("a run file is named twice", "name each once")
    return names
