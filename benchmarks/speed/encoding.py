"""Encoding documents with a sparse model, beside sentence-transformers: speed, memory, equality, quality.

    osn bench encoding                          all of it: a quarter of an hour on two quiet cores
    osn bench encoding --quick                  a look, on few documents; records nothing
    osn bench encoding --model models/mine      another model than the one made here

Every arm encodes the same documents with the same weights, block by block in turn, so that what else the machine does
falls on all of them; each block is a pair for the ratios. The baseline is sentence-transformers' own
`SparseEncoder.encode_document` in float32. "no head" is this package's encoder with the sparse head left out: what no head
can be faster than. Memory is taken in a process of its own for each arm: the most resident memory while documents are
encoded, less what was resident when the model had been loaded.

The model, unless one is named, is described in `benchmarks/speed/tied_head.py`. The documents are SciFact's where
`../shared/data/scifact` is there, or `--data` names a BEIR folder; else Python's documentation strings.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import numpy as np

from benchmarks.speed.tied_head import write_tied_head
from opensearch_neural.corpus.documents import Document
from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.errors import InputError, OsnError
from opensearch_neural.evaluation.results import (
    Goal,
    Machine,
    Row,
    Summary,
    code_commit,
    command_line,
    data_facts,
    machine_facts,
)
from opensearch_neural.models import directory

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from scipy.sparse import csr_matrix
    from torch import Tensor

    from opensearch_neural.models.vectors import SparseVectors

RESULTS = Path(__file__).parents[1] / "results" / "ingest" / "encoding"
SCIFACT = Path(__file__).parents[3] / "shared" / "data" / "scifact"
MAX_LENGTH = 256
BATCH = 32
TOLERANCE = 1e-3
SEED = 0

BASELINE = "sentence-transformers fp32"
BASELINE_BF16 = "sentence-transformers bf16"
FP32 = "osn fp32"
BF16 = "osn bf16"
CEILING = "osn fp32, no head"
ARMS = (BASELINE, BASELINE_BF16, FP32, BF16, CEILING)
READER = "one reader of osn encode"
WRITER = "one writer of osn encode"


@dataclass(frozen=True)
class Sizes:
    """How much is measured. `judged`: whether the whole corpus is encoded for nDCG."""

    block: int = 128
    blocks: int = 6
    memory: int = 256
    judged: bool = True


QUICK = Sizes(block=16, blocks=2, memory=32, judged=False)


@dataclass
class Timed:
    """Wall-clock and processor seconds of one arm, a number for each block."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Memory:
    """Resident bytes of a process: when the model was loaded, and at most while it encoded."""

    loaded: int
    peak: int

    @property
    def encoding(self) -> int:
        return max(0, self.peak - self.loaded)


@dataclass(frozen=True)
class Quality:
    """nDCG@10 in one precision, over the whole corpus."""

    per_query: dict[str, float]
    mean: float


@dataclass(frozen=True)
class Files:
    """What `osn encode` does beside encoding. bytes: of a document in a shard; read, written: documents/s of one process."""

    weights: float
    bytes: float
    read: float
    written: float


@dataclass(frozen=True)
class Difference:
    """Of an arm's weights from the baseline's, over the entries that either has."""

    largest: float
    within: float
    entries: int


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="A BEIR folder.")
@click.option("--model", default=None, help="A sparse model directory that sentence-transformers loads too.")
@click.option("--quick", is_flag=True, help="Few documents, no nDCG, no record.")
@click.option(
    "--record", type=click.Path(path_type=Path), default=None, help="Folder of the result file.  [default: in results/]"
)
@click.option("--memory-of", type=click.Choice(ARMS), hidden=True, help="Of the texts on standard input.")
def encoding(data: Path | None, model: str | None, quick: bool, record: Path | None, memory_of: str | None) -> None:
    """Measure encoding against sentence-transformers on the same weights and documents."""
    # As `osn` sets it, for all arms: threads that wait are to sleep. Read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if memory_of is not None:
        print(json.dumps(measure_memory(memory_of, str(model), json.load(sys.stdin))))
        return
    sizes = QUICK if quick else Sizes()
    with tempfile.TemporaryDirectory(prefix="osn-encoding-") as folder:
        corpus = data or (SCIFACT if SCIFACT.is_dir() else python_docs(Path(folder) / "python-docs", quick))
        summary = measure(corpus, model, sizes, Path(folder))
    for row in summary.rows:
        spread = "" if row.low is None else f"   [{row.low:.3f}, {row.high:.3f}]"
        print(f"{row.line:27} {row.column:43} {row.value:12.4f}{spread}")
    for goal in summary.goals:
        print(goal)
    if record is not None:
        print(summary.write(record))
    elif not quick:
        from benchmarks.speed.encoding_page import write_page

        print(summary.write(RESULTS))
        print(write_page())


def python_docs(folder: Path, quick: bool) -> Path:
    """The documentation strings of the installed packages as a BEIR folder, with held-out queries."""
    from benchmarks.demo.python_docs import build
    from benchmarks.demo.python_objects import installed_sources

    sources = installed_sources()[: 1 if quick else None]  # the first is the standard library
    build(folder, 5000, train_queries=0, test_queries=300, sources=sources)
    return folder


def measure(corpus: Path, model: str | None, sizes: Sizes, scratch: Path) -> Summary:
    """Run every arm; the summary's rows are in the order of ARMS."""
    documents = list(read_corpus(corpus))
    if len(documents) < sizes.block:
        raise InputError(f"{corpus} holds {len(documents)} documents", f"give a corpus of {sizes.block} or more")
    texts = [document.contents for document in documents]
    # Spread over the corpus: neighbours may be alike.
    chosen = np.random.default_rng(SEED).permutation(len(texts))[: max(sizes.block * sizes.blocks, sizes.memory)]
    timed_texts = [texts[i] for i in chosen[: sizes.block * sizes.blocks]]
    bias = None
    if model is None:
        say("making the model")
        folder = scratch / "tied-head-minilm"
        bias = write_tied_head(folder, texts, timed_texts[:64], max_length=MAX_LENGTH)
        model = str(folder)

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
    return summarize(corpus, model, bias, sizes, memory, times, differences, quality, files, tokens)


# ---------------------------------------------------------------- arms


@dataclass(frozen=True)
class Arm:
    """encode: what is timed. matrix: its result as (documents, vocabulary), special tokens left out."""

    encode: Callable[[Sequence[str]], Any]
    matrix: Callable[[Any], csr_matrix]


def load_arm(arm: str, model: str) -> Arm:
    if arm.startswith("sentence-transformers"):
        return _theirs(model, "bf16" if arm.endswith("bf16") else "fp32")
    return _ours(model, "bf16" if arm == BF16 else "fp32", headless=arm == CEILING)


def _ours(model: str, dtype: Literal["fp32", "bf16"], *, headless: bool) -> Arm:
    from opensearch_neural.models.sparse import TorchSparseEncoder, load_sparse

    class Headless(TorchSparseEncoder):
        def _pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
            return hidden.new_zeros((len(hidden), len(self.vocabulary)))

    encoder = load_sparse(model, device="cpu", max_length=MAX_LENGTH, dtype=dtype)
    if not isinstance(encoder, TorchSparseEncoder):
        raise InputError(f"{model} has no network to measure", "give a sparse model that torch runs")
    if headless:
        # Not dataclasses.asdict, which would copy the model.
        encoder = Headless(**{name: getattr(encoder, name) for name in encoder.__dataclass_fields__})
    taken = encoder

    def encode(texts: Sequence[str]) -> SparseVectors:
        return taken.encode_documents(texts, batch_size=BATCH)

    return Arm(encode, lambda vectors: vectors.to_scipy())


def _theirs(model: str, dtype: Literal["fp32", "bf16"]) -> Arm:
    import torch
    from scipy.sparse import csr_matrix
    from sentence_transformers import SparseEncoder

    from opensearch_neural.models.pretrained import quiet_loading
    from opensearch_neural.query_encoder import load_tokenizer, special_tokens, vocabulary_of

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

    return Arm(encode, matrix)


# ---------------------------------------------------------------- measuring


def time_arms(
    arms: dict[str, Arm], texts: Sequence[str], sizes: Sizes
) -> tuple[dict[str, Timed], dict[str, csr_matrix]]:
    """Seconds of each arm on each block, and all that each arm but the headless one gave: (texts, vocabulary)."""
    from scipy.sparse import vstack

    names = list(arms)
    for arm in arms.values():
        arm.encode(texts[:BATCH])
    times = {name: Timed() for name in names}
    outputs: dict[str, list[csr_matrix]] = {name: [] for name in names if name != CEILING}
    for block in range(sizes.blocks):
        part = texts[block * sizes.block : (block + 1) * sizes.block]
        for name in names[block % len(names) :] + names[: block % len(names)]:  # nobody always follows the same one
            wall, cpu = time.perf_counter(), time.process_time()
            vectors = arms[name].encode(part)
            times[name].wall.append(time.perf_counter() - wall)
            times[name].cpu.append(time.process_time() - cpu)
            if name in outputs:
                outputs[name].append(arms[name].matrix(vectors))
        say(f"  block {block + 1} of {sizes.blocks}")
    return times, {name: vstack(parts).tocsr() for name, parts in outputs.items()}


def difference(expected: csr_matrix, found: csr_matrix) -> Difference:
    """Entry by entry over those that are not 0 in both; the vocabularies may be padded differently."""
    width = max(expected.shape[1], found.shape[1])
    wider = [_widened(matrix, width) for matrix in (expected, found)]
    off = abs(wider[0] - wider[1])
    entries = int((wider[0] + wider[1]).count_nonzero())  # weights are positive: nothing cancels
    beyond = int((off.data > TOLERANCE).sum())
    return Difference(float(off.max()) if off.nnz else 0.0, 1 - beyond / max(1, entries), entries)


def _widened(matrix: csr_matrix, width: int) -> csr_matrix:
    matrix = matrix.copy()
    matrix.resize((matrix.shape[0], width))
    return matrix


def measure_quality(model: str, arm: str, documents: Sequence[Document], judged: BeirData) -> Quality:
    """nDCG@10 of exact search over the whole corpus, with the model's own query encoder."""
    from opensearch_neural.evaluation.measures import measure as measured
    from opensearch_neural.models.sparse import load_sparse
    from opensearch_neural.retrievers.exact_sparse import ExactSparseRetriever

    encoder = load_sparse(model, device="cpu", max_length=MAX_LENGTH, dtype="bf16" if arm == BF16 else "fp32")
    vectors = encoder.encode_documents([document.contents for document in documents], batch_size=BATCH)
    retriever = ExactSparseRetriever([document.id for document in documents], vectors, encoder.query.encode)
    queries = {query: judged.queries[query] for query in judged.qrels}
    found = measured(retriever.retrieve(queries, 10), judged.qrels, ("nDCG@10",))

    return Quality(found.per_query["nDCG@10"], found.mean["nDCG@10"])


def measure_files(corpus: Path, documents: Sequence[Document], matrix: csr_matrix, scratch: Path) -> Files:
    """Shards of the corpus's records with the weights in `matrix` (documents, vocabulary), taken in turn."""
    from ingest.corpus import CorpusSource
    from ingest.ray_encode import packed
    from ingest.shards import SHARD_RECORDS, LoadedShard, encode_shard, everything, shard_path, shards_of, write_shard
    from ingest.vectorizers import Vectors
    from opensearch_neural.models.vectors import SparseVectors

    vectors = SparseVectors(
        matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data.astype(np.float32), []
    )

    class Encoded:
        """Gives `encode_shard` what is encoded already."""

        def vectors(self, some: Sequence[Document]) -> Vectors:
            return Vectors(vectors.take(np.arange(len(some)) % len(vectors)), None)

    started, read = time.perf_counter(), 0
    while read < 3 * len(documents) or time.perf_counter() - started < 1:
        for _, part in shards_of(everything(CorpusSource(str(corpus)).reader(str(corpus))), SHARD_RECORDS):
            packed(part)  # as it goes to a worker
            read += len(part)
    reading = time.perf_counter() - started

    shard = [documents[at % len(documents)] for at in range(SHARD_RECORDS)]
    content = encode_shard(0, shard, Encoded(), len(shard))
    folder = scratch / "shards"
    folder.mkdir(parents=True)
    started, written = time.perf_counter(), 0
    while written < 5 or time.perf_counter() - started < 1:
        path = shard_path(folder, written)
        write_shard(path, content)
        LoadedShard.read(path, [])
        written += 1
    writing = time.perf_counter() - started
    return Files(
        len(vectors.weights) / len(vectors),
        len(content) / SHARD_RECORDS,
        read / reading,
        written * SHARD_RECORDS / writing,
    )


def token_counts(model: str, texts: Sequence[str]) -> NDArray[np.int64]:
    """Tokens of each text that the encoders read."""
    from opensearch_neural.query_encoder import encodable, load_tokenizer

    tokenizer = load_tokenizer(model)
    tokenizer.enable_truncation(MAX_LENGTH)
    return np.array([len(each) for each in tokenizer.encode_batch_fast([encodable(text) for text in texts])])


def memory_in_a_process(arm: str, model: str, texts: Sequence[str]) -> Memory:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.speed.encoding", "--memory-of", arm, "--model", model],
        input=json.dumps(list(texts)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    return Memory(**json.loads(done.stdout.splitlines()[-1]))


def measure_memory(arm: str, model: str, texts: Sequence[str]) -> dict[str, int]:
    """Runs in a process of its own: see Memory."""
    loaded = load_arm(arm, model)
    with peak_memory() as memory:
        loaded.encode(texts)
    return {"loaded": memory[0], "peak": memory[1]}


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """[resident bytes now, the most of them until the end]; where the system cannot begin anew, the process's most."""
    import resource

    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    found: list[int] = []

    def read(name: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(name))
        return int(line.split()[1]) * 1024

    try:
        reset.write_text("5")  # sets the peak to what is resident now
        found.append(read("VmRSS"))
        begun_anew = True
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
        begun_anew = False
    yield found
    if begun_anew:
        found.append(read("VmHWM"))
    else:
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


# ---------------------------------------------------------------- the result file


def summarize(
    corpus: Path,
    model: str,
    bias: float | None,
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
    if bias is not None:
        rows.insert(1, Row(set_, "model", "bias of the tied head", bias, None, None, 64))
    return Summary(
        title="Encoding documents, beside sentence-transformers",
        command=command_line(),
        code=code_commit(),
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
    rate, low, high = _over_blocks(lambda pick: documents / np.array(times[arm].wall)[pick].sum(), sizes.blocks)
    yield Row(set_, arm, "documents/s", rate, low, high, documents)
    yield Row(set_, arm, "CPU ms a document", sum(times[arm].cpu) / documents * 1e3, None, None, documents)
    if arm != BASELINE:
        ratio, low, high = _ratio(times, BASELINE, arm)
        row = Row(set_, arm, "documents/s", ratio, low, high, sizes.blocks, kind="ratio", baseline=BASELINE)
        yield replace(row, measure_label=f"times {BASELINE}")
    if arm == FP32:
        share, low, high = _ratio(times, CEILING, arm)
        row = Row(set_, arm, "documents/s", share, low, high, sizes.blocks, kind="ratio", baseline=CEILING)
        yield replace(row, measure_label="share of the speed without a head")
    yield Row(set_, arm, "memory, MB", memory[arm].encoding / 1e6, None, None, sizes.memory)
    yield Row(set_, arm, "memory with the model, MB", memory[arm].peak / 1e6, None, None, sizes.memory)
    if arm in differences and arm != BASELINE:
        off = differences[arm]
        yield Row(set_, arm, "largest difference of a weight", off.largest, None, None, off.entries)
        yield Row(set_, arm, "share of weights within 0.001", off.within, None, None, off.entries)
    if arm in quality:
        found = quality[arm]
        yield Row(set_, arm, "nDCG@10", found.mean, None, None, len(found.per_query))


def goals(
    memory: dict[str, Memory],
    times: dict[str, Timed],
    differences: dict[str, Difference],
    quality: dict[str, Quality],
) -> list[Goal]:
    """Each goal in the words in which it was set; speed counts only where the results are what they have to be."""
    faster, reduced = (round(_ratio(times, BASELINE, arm)[0], 2) for arm in (FP32, BF16))
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


def _ratio(times: dict[str, Timed], slow: str, fast: str) -> tuple[float, float, float]:
    """How many times as fast, over the same blocks, with its 95% interval over blocks."""
    numerator, denominator = np.array(times[slow].wall), np.array(times[fast].wall)
    return _over_blocks(lambda pick: numerator[pick].sum() / denominator[pick].sum(), len(numerator))


def _over_blocks(statistic: Callable[[NDArray[np.int64]], float], blocks: int) -> tuple[float, float, float]:
    """(value, low, high): a statistic of all blocks, and its 95% interval over blocks drawn again with replacement."""
    drawn = np.random.default_rng(SEED).integers(blocks, size=(2000, blocks))
    low, high = np.percentile([statistic(pick) for pick in drawn], [2.5, 97.5])
    return float(statistic(np.arange(blocks))), float(low), float(high)


def _machine() -> Machine:
    import torch

    from opensearch_neural.models.sparse_head import best_screen

    facts = {**machine_facts(), "threads": torch.get_num_threads()}
    return {**facts, "screen": type(best_screen(torch.zeros(1, 1))).__name__}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        encoding()
    except OsnError as error:
        sys.exit(f"error: {error}")
