"""The figures of docs/encoding-at-scale.md, made from a result of `osn bench encoding`.

    python -m benchmarks.pages                                   write the page from the recorded result
    python -m benchmarks.speed.encoding_page SUMMARY.json        print the page with the figures of another one

A figure stands between `<!--=NAME-->` and `<!--/-->`. Nothing in between is typed by hand.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.speed.encoder_arms import BASELINE, BASELINE_BF16, BF16, FP32, READER, WRITER
from ingest.vectors.shards import SHARD_RECORDS
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.results import Key, RowKind, Summary, read
from opensearch_neural.evaluation.tables import number

PAGE = Path(__file__).parents[2] / "docs" / "encoding-at-scale.md"
DOCUMENTS = 100_000_000
DENSE_BYTES = 4 * 384
UNMEASURED = "not measured yet"

CEILING = "osn fp32, no head"
"""The arm of the network without its sparse head; no encoder can be faster."""
ARMS = {"st32": BASELINE, "st16": BASELINE_BF16, "fp32": FP32, "bf16": BF16, "ceiling": CEILING}

_FIGURE = re.compile(r"(<!--=(?P<name>[^>]+)-->).*?(<!--/-->)", re.DOTALL)


def with_figures(page: str, summary: Summary | None) -> str:
    """The page with every figure as the result file has it; without a result file, with none.

    Raises InputError for a figure of an unknown name.
    """
    known = figures(summary) if summary is not None else None

    def figure(match: re.Match[str]) -> str:
        name = match["name"]
        if known is not None and name not in known:
            raise InputError(f"no figure is called {name!r}", f"known are {', '.join(known)}")
        return match[1] + (UNMEASURED if known is None else known[name]) + match[3]

    return _FIGURE.sub(figure, page)


def figures(summary: Summary) -> dict[str, str]:
    """Every figure of the page by its name, as text; what the run did not measure is "not measured yet"."""
    (set_,) = {row.set for row in summary.rows}
    values = {row.key: row.value for row in summary.rows}

    def value(engine: str, measure: str, baseline: str = "") -> float:
        kind: RowKind = "ratio" if baseline else "value"
        return values.get(Key(set_, engine, measure, kind, baseline), math.nan)

    cores = int(summary.machine["cores"])
    rates = {arm: value(engine, "documents/s") for arm, engine in ARMS.items()}
    reader, writer = value(READER, "documents/s"), value(WRITER, "documents/s")
    size, tokens = value(FP32, "bytes a document in shards"), value("corpus", "tokens a document")
    found = {
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
    for arm, engine in ARMS.items():
        core_hours = DOCUMENTS * cores / rates[arm] / 3600
        found |= {
            f"rate {arm}": _text(rates[arm]),
            f"times {arm}": _text(value(engine, "documents/s", BASELINE), "{:.2f}".format),
            f"memory {arm}": _text(value(engine, "memory, MB")),
            f"ndcg {arm}": _text(value(engine, "nDCG@10"), "{:.4f}".format),
            f"core-hours {arm}": _text(core_hours),
            f"days {arm}": _text(core_hours / cores / 24),
            f"hours64 {arm}": _text(core_hours / 64),
            f"hours1024 {arm}": _text(core_hours / 1024),
        }
    return found


def _text(value: float, form: Callable[[float], str] = number) -> str:
    return form(value) if math.isfinite(value) else UNMEASURED


if __name__ == "__main__":
    try:
        print(with_figures(PAGE.read_text(encoding="utf-8"), read(Path(sys.argv[1]))))
    except InputError as error:
        sys.exit(f"error: {error}")
