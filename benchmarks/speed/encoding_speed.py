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
import pickle
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import numpy as np

from benchmarks.experiment import Table, facts, publish, record_option
from benchmarks.turns import SEED, on_blocks, rate, ratio, ratio_row, say
from ingest.vectors.shards import SHARD_RECORDS
from opensearch_neural.corpus.documents import Document
from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.provenance import Machine, machine_facts
from opensearch_neural.evaluation.results import Goal, MeasuredEngine, Row, Summary
from opensearch_neural.evaluation.tables import number
from opensearch_neural.models import directory

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from scipy.sparse import csr_matrix
    from torch import Tensor

    from opensearch_neural.models.vectors import SparseVectors

Dtype = Literal["fp32", "bf16"]

MAX_LENGTH = 256
BATCH = 32
TOLERANCE = 1e-3

BASELINE = "sentence-transformers fp32"
BASELINE_BF16 = "sentence-transformers bf16"
FP32 = "osn fp32"
BF16 = "osn bf16"
READER = "one reader of osn encode"
WRITER = "one writer of osn encode"
LARGEST, MEMORY, NDCG = "largest difference of a weight", "memory, MB", "nDCG@10"


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    block: int = 128
    """Documents of a block."""
    blocks: int = 6
    """Blocks that every arm encodes."""
    memory: int = 256
    """Documents to measure memory with."""


@dataclass(frozen=True)
class TimedEncoder:
    """One of ARMS, loaded."""

    encode: Callable[[Sequence[str]], Any]
    """The function that is timed: texts → vectors."""
    matrix: Callable[[Any], csr_matrix]
    """Vectors → (documents, vocabulary), without special tokens."""


def _ours(model: str, dtype: Dtype) -> TimedEncoder:
    from opensearch_neural.models.sparse.encoder import TorchSparseEncoder, load_sparse

    encoder = load_sparse(model, device="cpu", max_length=MAX_LENGTH, dtype=dtype)
    if not isinstance(encoder, TorchSparseEncoder):
        raise InputError(f"{model} has no network to measure", "give a sparse model that torch runs")

    def encode(texts: Sequence[str]) -> SparseVectors:
        return encoder.encode_documents(texts, batch_size=BATCH)

    return TimedEncoder(encode, lambda vectors: vectors.to_scipy())


def _theirs(model: str, dtype: Dtype) -> TimedEncoder:
    import torch
    from scipy.sparse import csr_matrix
    from sentence_transformers import SparseEncoder

    from opensearch_neural.models.pretrained import quiet_loading
    from opensearch_neural.models.tokenizer import load_tokenizer, special_tokens, vocabulary_of

    dtypes = {"dtype": torch.bfloat16} if dtype == "bf16" else {}
    with quiet_loading():
        encoder = SparseEncoder(model, device="cpu", model_kwargs=dtypes)
    encoder.max_seq_length = MAX_LENGTH
    special: list[int] | None = None

    def encode(texts: Sequence[str]) -> Tensor:
        return encoder.encode_document(list(texts), batch_size=BATCH, show_progress_bar=False)

    def matrix(vectors: Tensor) -> csr_matrix:
        nonlocal special
        if special is None:
            tokenizer = load_tokenizer(model)
            names = special_tokens(tokenizer)
            special = [at for at, token in enumerate(vocabulary_of(tokenizer)) if token in names]
        vectors = vectors.coalesce()
        rows, columns = vectors.indices().numpy()
        values = np.where(np.isin(columns, special), 0, vectors.values().float().numpy())
        return csr_matrix((values, (rows, columns)), shape=tuple(vectors.shape))

    return TimedEncoder(encode, matrix)


ARMS: dict[str, tuple[Callable[[str, Dtype], TimedEncoder], Dtype]] = {
    BASELINE: (_theirs, "fp32"),
    BASELINE_BF16: (_theirs, "bf16"),
    FP32: (_ours, "fp32"),
    BF16: (_ours, "bf16"),
}
"""{name in results: (loads a folder or hub id, the precision of its network)}"""


def loaded(arm: str, model: str) -> TimedEncoder:
    load, dtype = ARMS[arm]
    return load(model, dtype)


@click.command()
@click.option(
    "--data", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path), help="A BEIR folder."
)
@click.option("--model", required=True, help="A sparse model directory that sentence-transformers loads too.")
@record_option()
def encoding(data: Path, model: str, record: Path | None) -> None:
    """Measure encoding against sentence-transformers on the same weights and documents."""
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


def measure(corpus: Path, model: str, sizes: Sizes, scratch: Path) -> list[Row]:
    """Run every arm; rows are in the order of ARMS."""
    documents = list(read_corpus(corpus))
    count = sizes.block * sizes.blocks
    if len(documents) < count:
        raise InputError(f"{corpus} holds {len(documents)} documents", f"give a corpus of {count} or more")
    texts = [document.contents for document in documents]
    # Spread over the corpus, since neighbours may be alike.
    chosen = np.random.default_rng(SEED).permutation(len(texts))[: max(count, sizes.memory)]
    timed_texts, memory_texts = ([texts[at] for at in chosen[:size]] for size in (count, sizes.memory))
    say("memory")
    memory = {arm: memory_in_a_process(arm, model, memory_texts) for arm in ARMS}
    say("speed")
    times, outputs = time_arms({arm: loaded(arm, model) for arm in ARMS}, timed_texts, sizes)
    judged = BeirData.load(corpus, "test")
    set_ = corpus.resolve().name
    tokens = float(token_counts(model, timed_texts).mean())
    rows = facts(set_, MeasuredEngine("corpus"), {"tokens a document": tokens}, count)
    for arm in ARMS:
        rows.append(Row(set_, arm, "documents/s", *rate(times[arm], sizes.block), count))
        rows += facts(set_, MeasuredEngine(arm), {MEMORY: memory[arm] / 1e6}, sizes.memory)
        if arm != BASELINE:
            rows.append(ratio_row(set_, arm, BASELINE, ratio(times[BASELINE], times[arm]), sizes.blocks))
            rows.append(largest_difference(set_, arm, outputs[BASELINE], outputs[arm]))
        if arm in (FP32, BF16):
            say(f"nDCG of {arm}")
            rows.append(quality_row(set_, model, arm, documents, judged))
    say("files")
    return rows + file_rows(set_, corpus, documents, outputs[FP32], scratch)


def time_arms(
    arms: dict[str, TimedEncoder], texts: Sequence[str], sizes: Sizes
) -> tuple[dict[str, list[float]], dict[str, csr_matrix]]:
    """({arm: its seconds on each block}, {arm: its vectors, (texts, vocabulary)})."""
    from scipy.sparse import vstack

    for arm in arms.values():
        arm.encode(texts[:BATCH])
    blocks = [texts[at : at + sizes.block] for at in range(0, len(texts), sizes.block)]
    times, vectors = on_blocks({name: arm.encode for name, arm in arms.items()}, blocks)
    return times, {name: vstack(list(map(arms[name].matrix, parts))).tocsr() for name, parts in vectors.items()}


def largest_difference(set_: str, arm: str, expected: csr_matrix, actual: csr_matrix) -> Row:
    """The largest difference between the arm's weights and the expected ones; n counts entries that are not 0 in either.
    The vocabularies may be padded differently."""
    width = max(expected.shape[1], actual.shape[1])
    wider = [_widened(matrix, width) for matrix in (expected, actual)]
    off = abs(wider[0] - wider[1])
    entries = int((wider[0] + wider[1]).count_nonzero())  # weights are positive: nothing cancels
    return Row(set_, arm, LARGEST, float(off.max()) if off.nnz else 0.0, None, None, entries)


def _widened(matrix: csr_matrix, width: int) -> csr_matrix:
    matrix = matrix.copy()
    matrix.resize((matrix.shape[0], width))
    return matrix


def quality_row(set_: str, model: str, arm: str, documents: Sequence[Document], judged: BeirData) -> Row:
    """nDCG@10 of exact search over the whole corpus, with the model's own query encoder."""
    from opensearch_neural.evaluation.measures import measure
    from opensearch_neural.models.sparse.encoder import load_sparse
    from opensearch_neural.retrievers.exact_sparse import ExactSparseRetriever

    encoder = load_sparse(model, device="cpu", max_length=MAX_LENGTH, dtype=ARMS[arm][1])
    vectors = encoder.encode_documents([document.contents for document in documents], batch_size=BATCH)
    retriever = ExactSparseRetriever([document.id for document in documents], vectors, encoder.query.encode)
    queries = {query: judged.queries[query] for query in judged.qrels}
    scores = measure(retriever.retrieve(queries, 10), judged.qrels, (NDCG,))
    return Row(set_, arm, NDCG, scores.mean[NDCG], None, None, len(scores.per_query[NDCG]))


def file_rows(set_: str, corpus: Path, documents: Sequence[Document], matrix: csr_matrix, scratch: Path) -> list[Row]:
    """The work of `osn encode` besides encoding: the documents that a process reads and writes a second, and the size of
    shards of the corpus's records with the weights in `matrix` (documents, vocabulary), taken in turn."""
    from ingest.corpus import CorpusSource, everything
    from ingest.vectorizers import Vectors
    from ingest.vectors.shards import SHARD_RECORDS, LoadedShard, encode_shard, shard_path, shards_of, write_shard
    from opensearch_neural.models.vectors import SparseVectors

    vectors = SparseVectors(
        matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data.astype(np.float32), []
    )

    class EncodedAlready:
        """Gives `encode_shard` vectors that are already encoded."""

        def vectors(self, some: Sequence[Document]) -> Vectors:
            return Vectors(vectors.take(np.arange(len(some)) % len(vectors)), None)

    started, read = time.perf_counter(), 0
    while read < 3 * len(documents) or time.perf_counter() - started < 1:
        for _, part in shards_of(everything(CorpusSource(str(corpus)).reader(str(corpus))), SHARD_RECORDS):
            pickle.dumps(part)  # as Ray sends it to a worker
            read += len(part)
    reading = time.perf_counter() - started

    shard = [documents[at % len(documents)] for at in range(SHARD_RECORDS)]
    content = encode_shard(0, shard, EncodedAlready(), len(shard))
    folder = scratch / "shards"
    folder.mkdir(parents=True)
    started, written = time.perf_counter(), 0
    while written < 5 or time.perf_counter() - started < 1:
        path = shard_path(folder, written)
        write_shard(path, content)
        LoadedShard.read(path, [])
        written += 1
    writing = time.perf_counter() - started
    measured = {
        (FP32, "weights a document"): len(vectors.weights) / len(vectors),
        (FP32, "bytes a document in shards"): len(content) / SHARD_RECORDS,
        (READER, "documents/s"): read / reading,
        (WRITER, "documents/s"): written * SHARD_RECORDS / writing,
    }
    return [
        row
        for (engine, measure), value in measured.items()
        for row in facts(set_, MeasuredEngine(engine), {measure: value}, len(vectors))
    ]


def token_counts(model: str, texts: Sequence[str]) -> NDArray[np.int64]:
    """The number of tokens that the encoders read of each text."""
    from opensearch_neural.encodable import encodable
    from opensearch_neural.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(model)
    tokenizer.enable_truncation(MAX_LENGTH)
    return np.array([len(encoded) for encoded in tokenizer.encode_batch_fast([encodable(text) for text in texts])])


def memory_in_a_process(arm: str, model: str, texts: Sequence[str]) -> int:
    """`measure_memory` in a new process, which has done nothing else before."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(measure_memory, arm, model, list(texts)).result()


def measure_memory(arm: str, model: str, texts: Sequence[str]) -> int:
    """The bytes that encoding takes beside the loaded model."""
    encoder = loaded(arm, model)
    return peak_memory(lambda: encoder.encode(texts))


def peak_memory(job: Callable[[], object]) -> int:
    """Peak resident bytes of this process during the job, less those before it, from Linux's accounting."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the bytes resident now
    before = _status("VmRSS")
    job()
    return max(0, _status("VmHWM") - before)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


# ------------------------------------------------ goals


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

    machine = {**machine_facts(), "threads": torch.get_num_threads()}
    return {**machine, "screen": type(best_screen(torch.zeros(1, 1))).__name__}


# ------------------------------------------------ docs/encoding-at-scale.md

DOCUMENTS = 100_000_000
DENSE_BYTES = 4 * 384
UNMEASURED = "not measured yet"
CEILING = "osn fp32, no head"
"""The network without its sparse head; no encoder can be faster."""
SHOWN_ARMS = {"st32": BASELINE, "st16": BASELINE_BF16, "fp32": FP32, "bf16": BF16, "ceiling": CEILING}
"""{arm in figure names: its engine}"""


def figures(summary: Summary) -> dict[str, str]:
    """{figure: text} for docs/encoding-at-scale.md; UNMEASURED if the run did not measure it."""
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


FIGURES = {"ingest/encoding": figures}
"""{name of a result: its summary → {figure: text}}"""


def _text(value: float, form: Callable[[float], str] = number) -> str:
    return form(value) if math.isfinite(value) else UNMEASURED
