"""What a sparse query costs an application before it reaches OpenSearch: importing, loading, encoding.

    osn bench query-encoding
    osn bench query-encoding --data scifact --model models/mine --record benchmarks/results/query_encoding

One thread, one query after the other. An encoder remembers the words it has met, so a query is timed when it is met first,
by which the goal is judged, and again several times, of which the median counts. Imports are timed in fresh interpreters.
"""

from __future__ import annotations

import ast
import gc
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from opensearch_neural import QueryEncoder
from opensearch_neural.corpus.judgements import read_queries
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import Data, Goal, Row, Summary, data_facts
from opensearch_neural.models.lexical import build_lexical

ENCODE_GOAL = 100.0  # microseconds
IMPORT_GOAL = 0.3  # seconds
REPEATS = 9
IMPORTS = 7


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Queries of a BEIR folder.")
@click.option("--model", help="Model directory or hub id; default: the lexical model of the documentation strings.")
@click.option("--limit", default=2000, show_default=True, help="Queries at most.")
@click.option("--record", type=click.Path(path_type=Path), help="Folder to write the result file into.")
def query_encoding(data: Path | None, model: str | None, limit: int, record: Path | None) -> None:
    """Time `import opensearch_neural` and QueryEncoder.encode against their goals."""
    texts = standard_library_docstrings()
    queries = list(read_queries(data).values())[:limit] if data else first_lines(texts)[:limit]
    if not queries:
        raise InputError(f"{data} holds no queries")
    encoder = QueryEncoder.load(model) if model else build_lexical(texts).query
    first, again = time_queries(encoder, queries)
    imports = [time_import() for _ in range(IMPORTS)]
    set_ = data.resolve().name if data else "documentation strings"
    summary = summarize(set_, first, again, imports, [data_facts(data, ["queries.jsonl.gz"])] if data else [])
    for row in summary.rows:
        print(f"{row.measure:45} {row.value:10.3f}   (n = {row.n})")
    for goal in summary.goals:
        print(f"{'met' if goal.met else 'MISSED'}: {goal.goal}")
    if record:
        print(summary.write(record))


def time_queries(encoder: QueryEncoder, queries: Sequence[str]) -> tuple[list[float], list[float]]:
    """Microseconds that each query takes: when it is met first, and the median of several times after that."""

    def time_all() -> list[float]:
        taken = []
        for query in queries:
            start = time.perf_counter_ns()
            encoder.encode(query)
            taken.append((time.perf_counter_ns() - start) / 1000)
        return taken

    encoder.encode("")  # a first call loads what later ones find loaded
    gc.disable()
    try:
        first = time_all()
        again = [time_all() for _ in range(REPEATS)]
    finally:
        gc.enable()
    return first, [statistics.median(taken) for taken in zip(*again, strict=True)]


def time_import() -> float:
    """Seconds that an application's import takes in a fresh interpreter; torch must not be part of it."""
    script = (
        "import sys, time; start = time.perf_counter()\n"
        "import opensearch_neural\n"
        "from opensearch_neural import QueryEncoder, queries\n"
        "print(time.perf_counter() - start, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    seconds, torch_imported = done.stdout.split()
    if torch_imported != "False":
        raise RuntimeError("importing opensearch_neural imported torch")
    return float(seconds)


def summarize(
    set_: str, first: Sequence[float], again: Sequence[float], imports: Sequence[float], data: list[Data]
) -> Summary:
    importing = float(np.median(imports))
    engine = "QueryEncoder"
    rows = []
    for when, microseconds in (("met first", first), ("met again", again)):
        drawn = np.random.default_rng(0).choice(np.asarray(microseconds), size=(1000, len(microseconds)))
        low, high = (float(bound) for bound in np.percentile(np.median(drawn, axis=1), [2.5, 97.5]))
        median, at_99 = float(np.median(microseconds)), float(np.percentile(microseconds, 99))
        rows += [
            Row(set_, engine, f"microseconds a query {when}, median", median, low, high, len(microseconds)),
            Row(set_, engine, f"microseconds a query {when}, 99th percentile", at_99, None, None, len(microseconds)),
        ]
    median = rows[0].value
    return Summary.of_this_run(
        title="Encoding a query",
        data=data,
        seeds=[0],
        rows=[
            *rows,
            Row(set_, engine, "seconds to import", importing, min(imports), max(imports), len(imports)),
        ],
        goals=[
            Goal("a query encoded in under 100 µs median", ENCODE_GOAL, round(median, 1), median < ENCODE_GOAL),
            Goal(
                "`import opensearch_neural` under 0.3 s without torch",
                IMPORT_GOAL,
                round(importing, 3),
                importing < IMPORT_GOAL,
            ),
        ],
    )


def standard_library_docstrings() -> list[str]:
    """Documentation strings of the standard library's modules, parsed and never imported: on every machine."""
    texts = []
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (text := ast.get_docstring(node)):
                texts.append(text)
    return texts


def first_lines(texts: Sequence[str]) -> list[str]:
    """First lines of five to ten words: the length of a typical query."""
    lines = dict.fromkeys(text.partition("\n")[0] for text in texts)
    return [line for line in lines if 5 <= len(line.split()) <= 10]
