"""The output of `osn eval`: run files, and tables of the measured engines."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.engine_comparison import UNJUDGED, EngineResult
from opensearch_neural.evaluation.measures import label
from opensearch_neural.evaluation.results import Key, Row, RowKind, Summary
from opensearch_neural.evaluation.run_files import write_run
from opensearch_neural.evaluation.significance import FEW
from opensearch_neural.evaluation.tables import cell, result_table, table
from opensearch_neural.files import write_text


def write_runs(folder: Path, results: Sequence[EngineResult]) -> None:
    """Write ENGINE.top10.trec, ENGINE.top1000.trec if there are deeper measures, and per-query.tsv.

    A slash in an engine's name (the path of a run file) becomes _ in the file's name.
    A run that the format cannot represent (an empty id) is left out with a warning; its measures are still written. A
    note, printed once, says that ids are percent-encoded.
    """
    lines, written, encoded = ["query\tengine\tmeasure\tvalue\n"], 0, False
    for result in results:
        for size, run in result.runs.items():
            path = folder / f"{result.engine.replace('/', '_')}.top{size}.trec"
            try:
                encoded |= write_run(path, run, result.engine)
                written += 1
            except InputError as error:
                print(f"warning: {path} is not written: {error.message}", file=sys.stderr)
        for measure, values in result.measured.per_query.items():
            lines += [f"{query}\t{result.engine}\t{measure}\t{value!r}\n" for query, value in values.items()]
    write_text(folder / "per-query.tsv", "".join(lines))
    if encoded:
        print(
            "note: a TREC run holds no id with white space, so ids are percent-encoded in such runs (`a b` is a%20b, and "
            "% is %25); `osn eval runs` decodes them, and other tools need judgements with the same ids",
            file=sys.stderr,
        )
    print(f"wrote per-query.tsv and {written} runs to {folder}", file=sys.stderr)


def print_tables(summary: Summary, results: Sequence[EngineResult], baseline: str | None) -> None:
    """Print means and latencies, differences to the baseline, segments, and the goals."""
    measures = [label(name) for name in results[0].measured.mean]
    timed = ["P50 ms", "P99 ms", "encode P50 ms"] if results[0].latency is not None else []
    data = summary.rows[0].set
    whole = [row for row in summary.rows if row.set == data]
    print(f"{summary.title}\n")
    print(result_table(whole, [*measures, UNJUDGED, *timed]))
    if results[0].latency is not None:
        print(f"\nms: {len(results[0].latency.ms):,} requests, one at a time; a P99 to decide by: osn bench load")
    others = [result.engine for result in results if result.engine != baseline]
    if baseline is not None and others:
        print_differences(whole, others, measures, baseline)
    print_segments([row for row in summary.rows if row.set != data], measures, baseline)
    if told := few_queries(summary.rows):
        print(f"\n{told}")
    for result in results:
        if result.measured.unanswered:
            print(f"\n{result.engine} found nothing for {result.measured.unanswered:,} queries; each counts as 0")
        if result.certified is not None:
            share = sum(result.certified) / max(1, len(result.certified))
            print(
                f"\n{result.engine}: for {share:.1%} of the queries the page is certainly exact "
                "(for all with --exact, which searches without a window)"
            )
    for goal in summary.goals:
        print(f"\n{'met' if goal.met else 'MISSED'}: {goal.goal}: {goal.value:.4f}")


def print_differences(whole: Sequence[Row], others: Sequence[str], measures: Sequence[str], baseline: str) -> None:
    """Print each engine's differences to the baseline, and the smallest difference that could be detected."""
    by_key = {row.key: row for row in whole}

    def compared(engine: str, measure: str, kind: RowKind) -> Row | None:
        return by_key.get(Key(whole[0].set, engine, measure, kind, baseline))

    def cells(engine: str) -> Iterator[str]:
        for measure in measures:
            row, p = compared(engine, measure, "difference"), compared(engine, measure, "holm")
            yield difference(row, p) if row is not None and p is not None else ""

    holm = f", corrected for {len(others)} comparisons (Holm)" if len(others) > 1 else ""
    print(f"\ndifference to {baseline} [95% interval], p{holm}\n")
    print(table(["engine", *measures], [[engine, *cells(engine)] for engine in others]))
    smallest = [[compared(engine, measure, "detectable") for measure in measures] for engine in others]
    if any(row is not None for line in smallest for row in line):
        print(f"\nsmallest difference that {whole[0].n:,} queries detect with 80% probability\n")
        lines = zip(others, smallest, strict=True)
        print(table(["engine", *measures], [[engine, *(cell(row, False) for row in line)] for engine, line in lines]))


def print_segments(rows: Sequence[Row], measures: Sequence[str], baseline: str | None) -> None:
    """Print a line for each segment and engine: means with intervals, and the first measure's difference to the baseline."""
    if rows:
        compared = [row for row in rows if row.kind == "holm" and row.measure == measures[0]]
        holm = f", p corrected for {len(compared)} comparisons (Holm)" if len(compared) > 1 else ""
        print(f"\nsegments [95% interval]{holm}\n")
        queries = {row.set: row.n for row in rows}
        titled = [replace(row, set=f"{row.set} ({queries[row.set]:,} queries)") for row in rows]
        against = [f"{measures[0]} - {baseline}", *dict.fromkeys(row.column for row in compared)] if baseline else []
        print(result_table(titled, [*measures, UNJUDGED, *against], intervals=True, sets=True))


def few_queries(rows: Sequence[Row]) -> str:
    """Which intervals are too narrow because of few queries; empty if none is."""
    whole = rows[0].set
    few = [row for row in rows if row.low is not None and row.n < FEW]
    if not few:
        return ""
    sets = dict.fromkeys(row.set for row in few)
    names = ["all"] if whole in sets else [name.removeprefix(f"{whole}: ") for name in sets]
    return (
        f"intervals from fewer than {FEW} queries ({', '.join(names)}) are too narrow: those of 10 queries cover 89% "
        "instead of 95%, those of 5 queries 83%" + ("; go by p" if any(row.kind == "difference" for row in few) else "")
    )


def difference(row: Row, p: Row) -> str:
    """ "+0.012 [-0.003, +0.028] p=0.12"."""
    spread = f" [{row.low:+.3f}, {row.high:+.3f}]" if row.low is not None and row.high is not None else ""
    return f"{row.value:+.3f}{spread} " + ("p<0.001" if p.value < 0.001 else f"p={p.value:.3f}")


def print_per_query(
    queries: Mapping[str, str], results: Sequence[EngineResult], measure: str, baseline: str | None, shown: int
) -> None:
    """Print the `shown` queries with the largest gains, and with the largest losses, of each engine against the baseline."""
    if baseline is None:
        print("\n--per-query: no baseline was measured", file=sys.stderr)
        return
    base = next(result for result in results if result.engine == baseline).measured.per_query[measure]
    for result in results:
        if result.engine == baseline:
            continue
        values = result.measured.per_query[measure]
        change = sorted(
            ((values[query] - base[query], query) for query in values), key=lambda pair: (-pair[0], pair[1])
        )
        wins, losses = [pair for pair in change if pair[0] > 0], [pair for pair in change[::-1] if pair[0] < 0]
        print(f"\n{result.engine} against {baseline}, {label(measure)}: {len(wins):,} wins, {len(losses):,} losses")
        for gain, query in wins[:shown] + losses[:shown]:
            text = " ".join(queries.get(query, "").split())
            print(f"  {gain:+.3f}  {base[query]:.3f} → {values[query]:.3f}  {query}  {text[:100]}")
