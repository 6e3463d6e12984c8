"""The settings that `osn ingest`, `osn encode` and their jobs share, with their command-line options.

A dataclass holds and documents the settings; the decorator below it adds the options to a click command, which gets them as
one argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import click

from opensearch_neural.cluster.patience import RetryPolicy
from opensearch_neural.commands.option_groups import Command, FiniteRange, options_of
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


@dataclass(frozen=True, kw_only=True)
class Models:
    """The models that encode, and how they encode."""

    sparse: str | None = None
    """A directory or hub id, "lexical" (built from the corpus) or "none". None: the index's model; no model if it is new."""
    dense: str | None = None
    """A directory or hub id, or "none". None: the index's model; no model if it is new."""
    pq: str | None = None
    """A quantized model's directory or hub id, or "none". None: the index's model; no model if it is new."""
    reconstruct: bool = False
    """Whether dense vectors are reconstructed from the codes of `pq`; there is no dense model then."""
    tokenizer: str | None = None
    """Of a new lexical model (None: BERT's word pieces), or the measure of passages without a model (None: words)."""
    prune: Pruning | None = None
    """Which terms of the sparse vectors are kept. None: as in the index; all in a new index."""
    passages: PassageMeta | None = None
    """How documents are split. None: as in the index; a new index holds whole documents."""
    encode_batch: int = 32
    """Texts in one batch of a network."""
    device: str | None = None
    """cpu, cuda, … None: a GPU if there is one."""
    dtype: Dtype = "fp32"
    """The precision of a sparse model's network."""
    trust_remote_code: bool = False
    """Whether the sparse model's own code may run."""

    def __post_init__(self) -> None:
        if self.reconstruct and self.dense not in (None, "none"):
            raise InputError(
                f"dense vectors come either from the model {self.dense} or from codes",
                "leave out --dense, or --dense-from-codes",
            )


_SPARSE = "Sparse model: a directory, a hub id, lexical (built from the corpus), or none."
_PRUNE = "Terms to keep of each sparse vector: top_k:N, max_ratio:R, alpha_mass:S or abs_value:W."


def _prune_option(default: str) -> Callable[[Any], Any]:
    return click.option(
        "--prune",
        metavar="TYPE:VALUE",
        callback=lambda context, option, text: Pruning.parse(text) if text else None,
        help=f"{_PRUNE}  [default: {default}]",
    )


_MODEL_OPTIONS = (
    click.option("--dense", help="Dense model (directory or hub id).  [default: none]"),
    click.option("--pq", help="Quantized model (directory or hub id); its codes are written too.  [default: none]"),
    click.option(
        "--passages",
        metavar="TOKENS[:STRIDE]",
        callback=lambda context, option, text: parse_passages(text) if text else None,
        help="Split documents into passages; a search finds the best passage of each document.",
    ),
    click.option("--tokenizer", help="Tokenizer of --sparse lexical.  [default: BERT's word pieces]"),
    click.option(
        "--encode-batch",
        type=click.IntRange(min=1),
        default=Models.encode_batch,
        show_default=True,
        help="Texts in one batch of a network.",
    ),
    click.option("--device", help="cpu, cuda, …  [default: a GPU if there is one]"),
    click.option(
        "--dtype",
        type=click.Choice(["fp32", "bf16"]),
        default=Models.dtype,
        show_default=True,
        help="Precision of a sparse model's network; bf16 is faster if the CPU or GPU supports it.",
    ),
    click.option("--trust-remote-code", is_flag=True, help="Run the sparse model's own code. Read it first."),
)
model_options = options_of(
    Models,
    "models",
    click.option("--sparse", help=f"{_SPARSE}  [default: the model of an existing index, else none]"),
    _prune_option("as in an existing index, else all"),
    *_MODEL_OPTIONS,
)
encoding_options = options_of(
    Models,
    "models",
    click.option("--sparse", help=f"{_SPARSE}  [default: none]"),
    _prune_option("all"),
    *_MODEL_OPTIONS,
)
"""The options of `osn encode`, which has no index to follow."""


@dataclass(frozen=True, kw_only=True)
class NewIndex:
    """The settings of a new index."""

    dense_type: DenseType = "float"
    """How dense vectors are stored."""
    analyzer: str | None = None
    """The analyzer of the BM25 fields. None: as in the index; english in a new index."""
    search_analyzer: str | None = None
    """The analyzer of queries in the BM25 fields. None: as in the index; that of documents in a new index."""
    shards: int | None = None
    """Primary shards. None: as in the index; in a new index as an index template says, else 1."""
    replicas: int | None = None
    """Copies of each shard after loading. None: as in the index; in a new index as an index template says, else 1."""
    keep_replicas: bool = False
    """Whether the index has its replicas during loading too."""
    store_vectors: bool = False
    """Whether `_source` holds the vectors too."""
    forward_index: bool = True
    """Whether a new index also stores each document's sparse weights as a row, for fast rescoring."""
    prune_postings: Pruning | None = None
    """Which terms the postings of a new index hold, chosen by what each can add to a score; rows hold all. None: all."""
    mapping: Path | None = None
    """A JSON file with the mappings of the caller's own fields. An existing index gets the fields that it lacks."""
    field_limit: int | None = None
    """How many fields the index may map. None: as in the index; OpenSearch's default, 1,000, in a new index."""


new_index_options = options_of(
    NewIndex,
    "new_index",
    click.option(
        "--dense-type",
        type=click.Choice(["float", "byte", "sq"]),
        default=NewIndex.dense_type,
        show_default=True,
        help="How dense vectors are stored: byte takes a quarter of the memory, sq half.",
    ),
    click.option("--analyzer", help="Analyzer of the BM25 fields.  [default: english]"),
    click.option(
        "--search-analyzer",
        help="Analyzer of queries in the BM25 fields, if not the documents'.  [default: --analyzer]",
    ),
    click.option(
        "--shards", type=click.IntRange(min=1), help="Shards of a new index.  [default: an index template's, else 1]"
    ),
    click.option(
        "--replicas",
        type=click.IntRange(min=0),
        help="Replicas of a new index.  [default: an index template's, else 1]",
    ),
    click.option(
        "--keep-replicas", is_flag=True, help="Keep replicas while loading: slower, but a failed node loses no data."
    ),
    click.option(
        "--mapping",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help='JSON: {FIELD: {"type": …}} of your own fields.  [default: numbers double, ISO dates, strings keyword, '
        "objects flat]",
    ),
    click.option(
        "--field-limit", type=click.IntRange(min=100), help="Fields that the index may have.  [default: 1000]"
    ),
    click.option(
        "--store-vectors",
        is_flag=True,
        help="Store the vectors in _source too: more bytes, but OpenSearch can reindex them.",
    ),
    click.option(
        "--no-forward-index",
        "forward_index",
        is_flag=True,
        flag_value=False,
        default=NewIndex.forward_index,
        help="Store no rows of sparse weights: saves 6 bytes a token, but rescoring is slower.",
    ),
    click.option(
        "--prune-postings",
        metavar="TYPE:VALUE",
        callback=lambda context, option, text: Pruning.parse(text) if text else None,
        help="Search by each document's heaviest terms only, and score the best hits by whole vectors from the forward "
        "index. Values as for --prune, but of document weight × query weight.  [default: as in an existing index, else all]",
    ),
)


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


@dataclass(frozen=True, kw_only=True)
class Writing:
    """How documents are written."""

    writers: int = 2
    """Bulk requests at the same time."""
    batch_documents: int = 256
    """Documents in a batch, which is written and journalled as a whole."""
    batch_bytes: int = 8 * MB
    """Bytes of documents at which a batch ends; at most `in_flight` batches are in memory."""
    chunk_bytes: int = 8 * MB
    """Most bytes of one bulk request."""
    max_errors: int | float = 1000
    """The run stops after this many dead letters: a number, or a share (a float) of the records."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """How long and how often a request is retried."""
    merge: bool = False
    """Whether each shard is merged to one segment at the end."""
    restart: bool = False
    """Whether to write everything again instead of continuing an interrupted run."""
    remove_others: bool = False
    """Whether documents of the index that are not in the corpus are removed."""

    @property
    def in_flight(self) -> int:
        """Most batches that are encoded and not yet journalled. After a kill, these are repeated."""
        return 2 * self.writers + 1


max_errors_option = click.option(
    "--max-errors",
    metavar="N|P%",
    default=str(Writing.max_errors),
    show_default=True,
    callback=lambda context, option, text: parse_max_errors(text),
    help="Stop after this many rejected documents, or this percentage of the records.",
)


def dead_letters_option(named: str) -> Callable[[Command], Command]:
    """--dead-letters of a command that writes the file NAMED.dead-letters.jsonl by default."""
    return click.option(
        "--dead-letters",
        type=click.Path(path_type=Path),
        help=f"File for rejected documents.  [default: {named}.dead-letters.jsonl]",
    )


writing_options = options_of(
    Writing,
    "writing",
    click.option(
        "--writers",
        type=click.IntRange(1, 64),
        default=Writing.writers,
        show_default=True,
        help="Bulk requests at the same time.",
    ),
    click.option(
        "--batch-docs",
        "batch_documents",
        type=click.IntRange(min=1),
        default=Writing.batch_documents,
        show_default=True,
        help="Documents in a batch, which is written and journalled as a whole.",
    ),
    click.option(
        "--chunk-mb",
        "chunk_bytes",
        type=FiniteRange(0.1, 95),
        default=Writing.chunk_bytes // MB,
        show_default=True,
        callback=lambda context, option, megabytes: int(megabytes * MB),
        help="Most MB in one bulk request.",
    ),
    click.option(
        "--batch-mb",
        "batch_bytes",
        type=FiniteRange(min=0.1),
        default=Writing.batch_bytes // MB,
        show_default=True,
        callback=lambda context, option, megabytes: int(megabytes * MB),
        help="MB at which a batch ends; at most 2 · writers + 1 batches are in memory.",
    ),
    max_errors_option,
    click.option(
        "--patience",
        "retry",
        type=FiniteRange(min=0),
        default=int(RetryPolicy.patience),
        show_default=True,
        callback=lambda context, option, seconds: RetryPolicy(seconds),
        help="Seconds to retry one request.",
    ),
    click.option("--merge", is_flag=True, help="Merge each shard to one segment at the end, for the fastest searches."),
    click.option("--restart", is_flag=True, help="Write everything again instead of continuing an interrupted run."),
    click.option(
        "--remove-others",
        is_flag=True,
        help="Remove documents from the index that are not in this corpus, even those of other corpora.",
    ),
)
