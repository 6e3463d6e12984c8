"""Encoding documents with a sparse model, beside sentence-transformers: speed, memory, equality, quality.

    osn bench encoding --model models/mine --data my-beir-folder           15 minutes on two idle cores

Every arm encodes the same documents with the same weights, block by block in turn, so that other work of the machine slows
all of them alike; each block is a pair for the ratios. The baseline is sentence-transformers' own
`SparseEncoder.encode_document` in float32. Memory is measured in a new process for each arm: the peak resident memory while
documents are encoded, less the resident memory after the model was loaded.

The documents are those of `--data`, a BEIR folder.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from benchmarks.experiment import Table, publish, record_option
from benchmarks.speed.encoder_arms import (
    BASELINE,
    BASELINE_BF16,
    BF16,
    FP32,
    LARGEST,
    MEMORY,
    NDCG,
    READER,
    TOLERANCE,
    WRITER,
    Sizes,
    measure,
    sleep_while_waiting,
)
from benchmarks.speed.turns import SEED
from ingest.vectors.shards import SHARD_RECORDS
from opensearch_neural.evaluation.provenance import Machine, machine_facts
from opensearch_neural.evaluation.results import Goal, Row, Summary
from opensearch_neural.evaluation.tables import number
from opensearch_neural.models import directory


@click.command()
@click.option(
    "--data", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path), help="A BEIR folder."
)
@click.option("--model", required=True, help="A sparse model directory that sentence-transformers loads too.")
@record_option()
def encoding(data: Path, model: str, record: Path | None) -> None:
    """Measure encoding against sentence-transformers on the same weights and documents."""
    sleep_while_waiting()
    with tempfile.TemporaryDirectory(prefix="osn-encoding-") as folder:
        rows = measure(data, model, Sizes(), Path(folder))
    publish(
        rows,
        goals(rows),
        title="Encoding documents, beside sentence-transformers",
        data=[data, directory.locate(model)],
        seeds=[SEED],
        record=record,
        machine=_machine(),
    )


def goals(rows: Sequence[Row]) -> list[Goal]:
    """The goals, each in its original words; a speed goal is met only if the results are correct too."""
    value = values_of(rows)
    faster, reduced = (value(arm, "documents/s", BASELINE) for arm in (FP32, BF16))
    share = value(FP32, MEMORY) / max(1e-6, value(BASELINE, MEMORY))
    off = value(FP32, LARGEST)
    equal = off <= TOLERANCE
    points = abs(value(BF16, NDCG) - value(FP32, NDCG)) * 100
    near = points <= 0.2
    return [
        Goal(
            "fp32, equal within 1e-3: at least 1.5× the documents per second",
            1.5,
            round(faster, 2),
            equal and faster >= 1.5,
        ),
        Goal("fp32: at no more than a quarter of the peak memory", 0.25, round(share, 3), share <= 0.25),
        Goal("fp32: equal within 1e-3 (largest difference)", TOLERANCE, float(f"{off:.2g}"), equal),
        Goal("reduced precision (bf16): at least 3×", 3, round(reduced, 2), near and reduced >= 3),
        Goal(
            "reduced precision (bf16): nDCG@10 within 0.2 points of fp32",
            0.2,
            None if math.isnan(points) else round(points, 3),
            near,
        ),
    ]


def values_of(rows: Sequence[Row]) -> Callable[..., float]:
    """The function (arm, measure, baseline of a ratio or nothing) → value; NaN if it was not measured."""
    table = Table(rows)
    (set_,) = table.sets

    def value(arm: str, measure: str, baseline: str = "") -> float:
        row = table.ratio(set_, "", arm, baseline, measure) if baseline else table.value(set_, arm, measure)
        return math.nan if row is None else row.value

    return value


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
"""The network without its sparse head; no encoder can be faster."""
SHOWN_ARMS = {"st32": BASELINE, "st16": BASELINE_BF16, "fp32": FP32, "bf16": BF16, "ceiling": CEILING}
"""{arm in figure names: its engine}"""


def figures(summary: Summary) -> dict[str, str]:
    """{name: figure as text} for docs/encoding-at-scale.md; UNMEASURED if the run did not measure it."""
    value = values_of(summary.rows)
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
