"""Encoding documents with a sparse model, beside sentence-transformers: speed, memory, equality, quality.

    osn bench encoding --model models/mine              all of it: a quarter of an hour on two quiet cores
    osn bench encoding --model models/mine --quick      a look, on few documents; records nothing

Every arm encodes the same documents with the same weights, block by block in turn, so that what else the machine does
falls on all of them; each block is a pair for the ratios. The baseline is sentence-transformers' own
`SparseEncoder.encode_document` in float32. Memory is taken in a process of its own for each arm: the most resident memory
while documents are encoded, less what was resident when the model had been loaded.

The documents are SciFact's where `../shared/data/scifact` is there, or `--data` names a BEIR folder; else Python's
documentation strings.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from benchmarks.speed.encoder_arms import (
    ARMS,
    BASELINE,
    BASELINE_BF16,
    BF16,
    FP32,
    QUICK,
    READER,
    TOLERANCE,
    WRITER,
    Difference,
    Files,
    Memory,
    Quality,
    Sizes,
    difference,
    load_arm,
    measure_files,
    measure_quality,
    memory_in_a_process,
    sleep_while_waiting,
    time_arms,
    token_counts,
)
from benchmarks.speed.turns import SCIFACT, SEED, Timed, rate, ratio, ratio_row, say, tell
from ingest.vectors.shards import SHARD_RECORDS
from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.provenance import Machine, machine_facts
from opensearch_neural.evaluation.results import Goal, Key, Row, RowKind, Summary, data_facts
from opensearch_neural.evaluation.tables import number
from opensearch_neural.models import directory

if TYPE_CHECKING:
    from numpy.typing import NDArray


RESULTS = Path(__file__).parents[1] / "results" / "ingest" / "encoding"


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="A BEIR folder.")
@click.option("--model", required=True, help="A sparse model directory that sentence-transformers loads too.")
@click.option("--quick", is_flag=True, help="Few documents, no nDCG, no record.")
@click.option(
    "--record", type=click.Path(path_type=Path), default=None, help="Folder of the result file.  [default: in results/]"
)
def encoding(data: Path | None, model: str, quick: bool, record: Path | None) -> None:
    """Measure encoding against sentence-transformers on the same weights and documents."""
    sleep_while_waiting()
    sizes = QUICK if quick else Sizes()
    with tempfile.TemporaryDirectory(prefix="osn-encoding-") as folder:
        corpus = data or (SCIFACT if SCIFACT.is_dir() else python_docs(Path(folder) / "python-docs", quick))
        summary = measure(corpus, model, sizes, Path(folder))
    tell(summary)
    if record is not None:
        print(summary.write(record))
    elif not quick:
        print(summary.write(RESULTS))
        print("the documentation has these figures after: python -m benchmarks.pages")


def python_docs(folder: Path, quick: bool) -> Path:
    """The documentation strings of the installed packages as a BEIR folder, with held-out queries."""
    from benchmarks.demo.python_docs import build
    from benchmarks.demo.python_objects import installed_sources

    sources = installed_sources()[: 1 if quick else None]  # the first is the standard library
    build(folder, 5000, train_queries=0, test_queries=300, sources=sources)
    return folder


def measure(corpus: Path, model: str, sizes: Sizes, scratch: Path) -> Summary:
    """Run every arm; the summary's rows are in the order of ARMS."""
    documents = list(read_corpus(corpus))
    if len(documents) < (least := sizes.block * sizes.blocks):
        raise InputError(f"{corpus} holds {len(documents)} documents", f"give a corpus of {least} or more")
    texts = [document.contents for document in documents]
    # Spread over the corpus: neighbours may be alike.
    chosen = np.random.default_rng(SEED).permutation(len(texts))[: max(sizes.block * sizes.blocks, sizes.memory)]
    timed_texts = [texts[i] for i in chosen[: sizes.block * sizes.blocks]]
    say("memory")
    memory = {arm: memory_in_a_process(arm, model, [texts[i] for i in chosen[: sizes.memory]]) for arm in ARMS}
    say("speed")
    arms = {arm: load_arm(arm, model) for arm in ARMS}
    times, outputs = time_arms(arms, timed_texts, sizes)
    differences = {arm: difference(outputs[BASELINE], matrix) for arm, matrix in outputs.items()}
    quality: dict[str, Quality] = {}
    if sizes.judged:
        judged = BeirData.load(corpus, "test")
        for arm in (FP32, BF16):
            say(f"nDCG of {arm}")
            quality[arm] = measure_quality(model, arm, documents, judged)
    say("files")
    files = measure_files(corpus, documents, outputs[FP32], scratch)
    tokens = token_counts(model, timed_texts)
    return summarize(corpus, model, sizes, memory, times, differences, quality, files, tokens)


def summarize(
    corpus: Path,
    model: str,
    sizes: Sizes,
    memory: dict[str, Memory],
    times: dict[str, Timed],
    differences: dict[str, Difference],
    quality: dict[str, Quality],
    files: Files,
    tokens: NDArray[np.int64],
) -> Summary:
    set_ = corpus.resolve().name
    documents = sizes.block * sizes.blocks
    rows = [
        Row(set_, "corpus", "tokens a document", float(tokens.mean()), None, None, documents),
        *(row for arm in ARMS for row in _rows_of(set_, arm, sizes, memory, times, differences, quality)),
        Row(set_, FP32, "weights a document", files.weights, None, None, documents),
        Row(set_, FP32, "bytes a document in shards", files.bytes, None, None, documents),
        Row(set_, READER, "documents/s", files.read, None, None, documents),
        Row(set_, WRITER, "documents/s", files.written, None, None, documents),
    ]
    return Summary.of_this_run(
        title="Encoding documents, beside sentence-transformers",
        machine=_machine(),
        data=[data_facts(corpus), data_facts(directory.locate(model))],
        seeds=[SEED],
        rows=rows,
        goals=goals(memory, times, differences, quality),
    )


def _rows_of(
    set_: str,
    arm: str,
    sizes: Sizes,
    memory: dict[str, Memory],
    times: dict[str, Timed],
    differences: dict[str, Difference],
    quality: dict[str, Quality],
) -> Iterator[Row]:
    documents = sizes.block * sizes.blocks
    yield Row(set_, arm, "documents/s", *rate(times[arm], sizes.block), documents)
    yield Row(set_, arm, "CPU ms a document", sum(times[arm].cpu) / documents * 1e3, None, None, documents)
    if arm != BASELINE:
        yield ratio_row(set_, arm, BASELINE, ratio(times[BASELINE], times[arm]), sizes.blocks)
    yield Row(set_, arm, "memory, MB", memory[arm].encoding / 1e6, None, None, sizes.memory)
    yield Row(set_, arm, "memory with the model, MB", memory[arm].peak / 1e6, None, None, sizes.memory)
    if arm in differences and arm != BASELINE:
        off = differences[arm]
        yield Row(set_, arm, "largest difference of a weight", off.largest, None, None, off.entries)
        yield Row(set_, arm, "share of weights within 0.001", off.within, None, None, off.entries)
    if arm in quality:
        own = quality[arm]
        yield Row(set_, arm, "nDCG@10", own.mean, None, None, len(own.per_query))


def goals(
    memory: dict[str, Memory], times: dict[str, Timed], differences: dict[str, Difference], quality: dict[str, Quality]
) -> list[Goal]:
    """Each goal in the words in which it was set; speed counts only where the results are what they have to be."""
    faster, reduced = (round(ratio(times[BASELINE], times[arm])[0], 2) for arm in (FP32, BF16))
    share = round(memory[FP32].encoding / max(1, memory[BASELINE].encoding), 3)
    off = differences[FP32].largest
    equal = off <= TOLERANCE
    points = abs(quality[BF16].mean - quality[FP32].mean) * 100 if quality else None
    near = points is not None and points <= 0.2
    return [
        Goal("fp32, equal within 1e-3: at least 1.5× the documents per second", 1.5, faster, equal and faster >= 1.5),
        Goal("fp32: at no more than a quarter of the peak memory", 0.25, share, share <= 0.25),
        Goal("fp32: equal within 1e-3 (largest difference)", TOLERANCE, float(f"{off:.2g}"), equal),
        Goal("reduced precision (bf16): at least 3×", 3, reduced, near and reduced >= 3),
        Goal(
            "reduced precision (bf16): nDCG@10 within 0.2 points of fp32",
            0.2,
            None if points is None else round(points, 3),
            near,
        ),
    ]


def _machine() -> Machine:
    import torch

    from opensearch_neural.models.sparse.head import best_screen

    facts = {**machine_facts(), "threads": torch.get_num_threads()}
    return {**facts, "screen": type(best_screen(torch.zeros(1, 1))).__name__}


# ------------------------------------------------ docs/encoding-at-scale.md

DOCUMENTS = 100_000_000
DENSE_BYTES = 4 * 384
UNMEASURED = "not measured yet"
CEILING = "osn fp32, no head"
"""The arm of the network without its sparse head; no encoder can be faster."""
SHOWN_ARMS = {"st32": BASELINE, "st16": BASELINE_BF16, "fp32": FP32, "bf16": BF16, "ceiling": CEILING}
"""{arm in the names of figures: its engine}"""


def figures(summary: Summary) -> dict[str, str]:
    """The figures of docs/encoding-at-scale.md by their names, as text; UNMEASURED for what the run did not measure."""
    (set_,) = {row.set for row in summary.rows}
    values = {row.key: row.value for row in summary.rows}

    def value(engine: str, measure: str, baseline: str = "") -> float:
        kind: RowKind = "ratio" if baseline else "value"
        return values.get(Key(set_, engine, measure, kind, baseline), math.nan)

    cores = int(summary.machine["cores"])
    rates = {arm: value(engine, "documents/s") for arm, engine in SHOWN_ARMS.items()}
    reader, writer = value(READER, "documents/s"), value(WRITER, "documents/s")
    size, tokens = value(FP32, "bytes a document in shards"), value("corpus", "tokens a document")
    shown = {
        "machine": f"{summary.machine['cpu']}, {cores} cores",
        "model": summary.data[1].name,
        "corpus": summary.data[0].name,
        "command": f"`{summary.command}` ({summary.code[:12]})",
        "tokens": _text(tokens),
        "weights": _text(value(FP32, "weights a document")),
        "off fp32": _text(value(FP32, "largest difference of a weight")),
        "share fp32": _text(value(FP32, "documents/s", CEILING), "{:.0%}".format),
        "reader": _text(reader),
        "writer": _text(writer),
        "cores kept busy": _text(min(reader, writer) / rates["bf16"] * cores),
        "bytes": _text(size),
        "bytes dense": _text(size + DENSE_BYTES),
        "GB": _text(DOCUMENTS * size / 1e9),
        "GB dense": _text(DOCUMENTS * (size + DENSE_BYTES) / 1e9),
        "shards": f"{math.ceil(DOCUMENTS / SHARD_RECORDS):,}",
        "shard MB": _text(SHARD_RECORDS * size / 1e6),
        "shard MB dense": _text(SHARD_RECORDS * (size + DENSE_BYTES) / 1e6),
        "shard minutes": _text(SHARD_RECORDS * cores / rates["bf16"] / 60),
    }
    for arm, engine in SHOWN_ARMS.items():
        core_hours = DOCUMENTS * cores / rates[arm] / 3600
        shown |= {
            f"rate {arm}": _text(rates[arm]),
            f"times {arm}": _text(value(engine, "documents/s", BASELINE), "{:.2f}".format),
            f"memory {arm}": _text(value(engine, "memory, MB")),
            f"ndcg {arm}": _text(value(engine, "nDCG@10"), "{:.4f}".format),
            f"core-hours {arm}": _text(core_hours),
            f"days {arm}": _text(core_hours / cores / 24),
            f"hours64 {arm}": _text(core_hours / 64),
            f"hours1024 {arm}": _text(core_hours / 1024),
        }
    return shown


def _text(value: float, form: Callable[[float], str] = number) -> str:
    return form(value) if math.isfinite(value) else UNMEASURED
