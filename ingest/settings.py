"""The settings that `osn ingest`, `osn encode` and their jobs share, with their command-line options.

A dataclass holds the settings, each with its option; the decorator below it adds the options to a click command, which gets
them as one argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from opensearch_neural.cluster.patience import RetryPolicy
from opensearch_neural.commands.option_groups import Command, FiniteRange, options_of, setting, setting_options
from opensearch_neural.errors import InputError
from opensearch_neural.index.record import DenseType, PassageMeta
from opensearch_neural.models.sparse.pruning import Pruning

Dtype = Literal["fp32", "bf16"]
MB = 1_000_000


def parse_passages(text: str) -> PassageMeta:
    """Parse TOKENS or TOKENS:STRIDE. Raises InputError for anything else."""
    tokens, colon, stride = text.partition(":")
    try:
        passages = PassageMeta(int(tokens), int(stride) if colon else int(tokens))
    except ValueError:
        raise InputError(f"--passages {text!r}: expected TOKENS or TOKENS:STRIDE, for instance 256:128") from None
    if not 1 <= passages.stride <= passages.tokens:
        raise InputError(f"--passages {text!r}: the stride must lie between 1 and the passage's length")
    return passages


def parse_max_errors(text: str) -> int | float:
    """Parse a number of documents, or a percentage, which becomes a share. Raises InputError for anything else."""
    number, percent, rest = text.partition("%")
    try:
        most = float(number) / 100 if percent else int(number)
    except ValueError:
        most = -1
    if rest or most < 0 or (percent and not most <= 1):
        raise InputError(f"--max-errors {text!r}: expected a number, or a percentage such as 0.5%")
    return most


_SPARSE = "Sparse model: a directory, a hub id, lexical (built from the corpus), or none."
_PRUNE = "Terms to keep of each sparse vector: top_k:N, max_ratio:R, alpha_mass:S or abs_value:W."
_PRUNING: dict[str, Any] = {
    "metavar": "TYPE:VALUE",
    "callback": lambda context, option, text: Pruning.parse(text) if text else None,
}


@dataclass(frozen=True, kw_only=True)
class Models:
    """The models that encode, and how they encode."""

    sparse: str | None = setting(None, f"{_SPARSE}  [default: the model of an existing index, else none]")
    """A directory or hub id, "lexical" (built from the corpus) or "none". None: the index's model; no model if it is new."""
    prune: Pruning | None = setting(None, f"{_PRUNE}  [default: as in an existing index, else all]", **_PRUNING)
    """Which terms of the sparse vectors are kept. None: as in the index; all in a new index."""
    dense: str | None = setting(None, "Dense model (directory or hub id).  [default: none]")
    """A directory or hub id, or "none". None: the index's model; no model if it is new."""
    pq: str | None = setting(None, "Quantized model (directory or hub id); its codes are written too.  [default: none]")
    """A quantized model's directory or hub id, or "none". None: the index's model; no model if it is new."""
    reconstruct: bool = False
    """Whether dense vectors are reconstructed from the codes of `pq`; there is no dense model then."""
    passages: PassageMeta | None = setting(
        None,
        "Split documents into passages; a search finds the best passage of each document.",
        metavar="TOKENS[:STRIDE]",
        callback=lambda context, option, text: parse_passages(text) if text else None,
    )
    """How documents are split. None: as in the index; a new index holds whole documents."""
    tokenizer: str | None = setting(None, "Tokenizer of --sparse lexical.  [default: BERT's word pieces]")
    """Of a new lexical model (None: BERT's word pieces), or the measure of passages without a model (None: words)."""
    encode_batch: int = setting(32, "Texts in one batch of a network.", type=click.IntRange(min=1))
    device: str | None = setting(None, "cpu, cuda, …  [default: a GPU if there is one]")
    dtype: Dtype = setting(
        "fp32",
        "Precision of a sparse model's network; bf16 is faster if the CPU or GPU supports it.",
        type=click.Choice(["fp32", "bf16"]),
    )
    trust_remote_code: bool = setting(False, "Run the sparse model's own code. Read it first.")

    @property
    def encoding(self) -> bool:
        """Whether a new index gets vectors by these settings."""
        return any(model not in (None, "none") for model in (self.sparse, self.dense, self.pq))

    def __post_init__(self) -> None:
        if self.reconstruct and self.dense not in (None, "none"):
            raise InputError(
                f"dense vectors come either from the model {self.dense} or from codes",
                "leave out --dense, or --dense-from-codes",
            )


model_options = options_of(Models, "models", *setting_options(Models).values())
_ALONE = setting_options(Models, sparse=f"{_SPARSE}  [default: none]", prune=f"{_PRUNE}  [default: all]")
encoding_options = options_of(Models, "models", *_ALONE.values())
"""The options of `osn encode`, which has no index to follow."""


@dataclass(frozen=True, kw_only=True)
class NewIndex:
    """The settings of a new index."""

    dense_type: DenseType = setting(
        "float",
        "How dense vectors are stored: byte takes a quarter of the memory, sq half.",
        type=click.Choice(["float", "byte", "sq"]),
    )
    analyzer: str | None = setting(None, "Analyzer of the BM25 fields.  [default: english]")
    """None: as in the index; english in a new index."""
    search_analyzer: str | None = setting(
        None, "Analyzer of queries in the BM25 fields, if not the documents'.  [default: --analyzer]"
    )
    """None: as in the index; that of documents in a new index."""
    shards: int | None = setting(
        None, "Shards of a new index.  [default: an index template's, else 1]", type=click.IntRange(min=1)
    )
    """Primary shards. None: as in the index; in a new index as an index template says, else 1."""
    replicas: int | None = setting(
        None, "Replicas of a new index.  [default: an index template's, else 1]", type=click.IntRange(min=0)
    )
    """Copies of each shard after loading. None: as in the index; in a new index as an index template says, else 1."""
    keep_replicas: bool = setting(False, "Keep replicas while loading: slower, but a failed node loses no data.")
    mapping: Path | None = setting(
        None,
        'JSON: {FIELD: {"type": …}} of your own fields.  [default: numbers double, ISO dates, strings keyword, '
        "objects flat]",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
    )
    """A JSON file with the mappings of the caller's own fields. An existing index gets the fields that it lacks."""
    field_limit: int | None = setting(
        None, "Fields that the index may have.  [default: 1000]", type=click.IntRange(min=100)
    )
    """How many fields the index may map. None: as in the index; OpenSearch's default, 1,000, in a new index."""
    store_vectors: bool = setting(
        False, "Store the vectors in _source too: more bytes, but OpenSearch can reindex them."
    )
    forward_index: bool = setting(
        True, "Store no rows of sparse weights: saves 6 bytes a token, but rescoring is slower.", "--no-forward-index"
    )
    """Whether a new index also stores each document's sparse weights as a row, for fast rescoring."""
    prune_postings: Pruning | None = setting(
        None,
        "Search by each document's heaviest terms only, and score the best hits by whole vectors from the forward "
        "index. Values as for --prune, but of document weight × query weight.  [default: as in an existing index, else all]",
        **_PRUNING,
    )
    """Which terms the postings of a new index hold, chosen by what each can add to a score; rows hold all. None: all."""


new_index_options = options_of(NewIndex, "new_index", *setting_options(NewIndex).values())


@dataclass(frozen=True)
class RayOptions:
    """Where shards are encoded, and by how many processes."""

    address: str = "local"
    """HOST:PORT of a cluster's head; "auto": the cluster that this machine is part of; "local": start Ray here."""
    workers: int | None = None
    """Processes that encode. None: as many as fit on the cluster's GPUs or, without GPUs, on its CPUs."""
    cpus: int = 1
    """CPUs, and so threads, of each worker."""
    gpus: float | None = None
    """GPUs of each worker. None: one if the cluster has any."""


def _megabytes(context: click.Context, option: click.Parameter, number: float) -> int:
    return int(number * MB)


@dataclass(frozen=True, kw_only=True)
class Writing:
    """How documents are written."""

    writers: int = setting(2, "Bulk requests at the same time.", type=click.IntRange(1, 64))
    batch_documents: int = setting(
        256,
        "Documents in a batch, which is written and journalled as a whole.",
        "--batch-docs",
        type=click.IntRange(min=1),
    )
    chunk_bytes: int = setting(
        8 * MB, "Most MB in one bulk request.", "--chunk-mb", shown=8, type=FiniteRange(0.1, 95), callback=_megabytes
    )
    """Most bytes of one bulk request."""
    batch_bytes: int = setting(
        8 * MB,
        "MB at which a batch ends; at most 2 · writers + 1 batches are in memory.",
        "--batch-mb",
        shown=8,
        type=FiniteRange(min=0.1),
        callback=_megabytes,
    )
    """Bytes of documents at which a batch ends; at most `in_flight` batches are in memory."""
    max_errors: int | float = setting(
        1000,
        "Stop after this many rejected documents, or this percentage of the records.",
        shown="1000",
        metavar="N|P%",
        callback=lambda context, option, text: parse_max_errors(text),
    )
    """The run stops after this many dead letters: a number, or a share (a float) of the records."""
    retry: RetryPolicy = setting(
        RetryPolicy(),
        "Seconds to retry one request.",
        "--patience",
        shown=int(RetryPolicy.patience),
        type=FiniteRange(min=0),
        callback=lambda context, option, seconds: RetryPolicy(seconds),
    )
    """How long and how often a request is retried."""
    merge: bool = setting(False, "Merge each shard to one segment at the end, for the fastest searches.")
    restart: bool = setting(False, "Write everything again instead of continuing an interrupted run.")
    remove_others: bool = setting(
        False, "Remove documents from the index that are not in this corpus, even those of other corpora."
    )

    @property
    def in_flight(self) -> int:
        """Most batches that are encoded and not yet journalled. After a kill, these are repeated."""
        return 2 * self.writers + 1


writing_options = options_of(Writing, "writing", *setting_options(Writing).values())
max_errors_option = setting_options(Writing)["max_errors"]


def dead_letters_option(named: str) -> Callable[[Command], Command]:
    """--dead-letters of a command that writes the file NAMED.dead-letters.jsonl by default."""
    return click.option(
        "--dead-letters",
        type=click.Path(path_type=Path),
        help=f"File for rejected documents.  [default: {named}.dead-letters.jsonl]",
    )
