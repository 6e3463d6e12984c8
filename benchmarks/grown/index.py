"""An index of any number of documents drawn from a corpus (`documents.py`); an interrupted run can be continued."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from benchmarks.grown.resampler import DrawnVectors, Resampler
from benchmarks.load.server import index_facts
from benchmarks.local_cluster import created_with
from benchmarks.options import setting
from ingest.corpus import CorpusSource, ignore
from ingest.index_content import Content, content_by_models, content_of_files
from ingest.model_request import ModelRequest
from ingest.settings import Models, NewIndex, Writing
from ingest.stored_query_data import keep_measures
from ingest.vectorizers import NotingLargest, Vectors, for_index
from ingest.vectors.stored_vectors import StoredVectors, find_manifest
from ingest.writing.pipeline import CorpusOfRun
from ingest.writing.pipeline import ingest as run_pipeline
from ingest.writing.stored_documents import count
from ingest.writing.target import LOADING, open_target
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.errors import ClusterError, InputError
from opensearch_neural.index.record import RESAMPLED, IndexMeta, read_record
from opensearch_neural.index.segments import merge_segments
from opensearch_neural.models.dense.quantized import QUANTIZER_FILE, Quantizer
from opensearch_neural.models.directory import locate
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.models.vectors import SparseVectors

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

log = logging.getLogger(__name__)

BATCH = 256


def set_of_size(documents: int) -> str:
    """The `set` of rows that were measured on this many drawn documents."""
    return f"{documents:,} documents"


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise InputError(f"--setting {text!r}: expected KEY=VALUE")
    return key.removeprefix("index."), value


@dataclass(frozen=True)
class Growth:
    """What to write; fields with a help text are options of `osn bench grow`."""

    corpus: str
    """The corpus that documents are drawn from: whatever `osn ingest` reads."""
    index: str
    """The name of the index."""
    documents: int
    """How many; the corpus's own come first, once each."""
    sparse: str | None = setting("lexical", "Sparse model, or none.")
    dense: str | None = setting(None, "Dense model; none by default.", type=str)
    quantized: str | None = setting(None, "Quantized model: codes of the drawn dense vectors.", option="--pq", type=str)
    vectors: Path | None = setting(None, "A folder of `osn encode`.", type=click.Path(path_type=Path))
    """None: the models encode the corpus."""
    base: int | None = setting(None, "Draw from the first N documents.", type=click.IntRange(min=2))
    mix: float = 0.3
    """Share of a drawn document's words that come from a second one."""
    prune: Pruning | None = setting(
        None, "Terms to keep of sparse vectors: top_k:N, max_ratio:R, …", type=Pruning.parse, metavar="TYPE:VALUE"
    )
    """By the score that a term can add (document weight × query weight)."""
    prune_postings: Pruning | None = setting(
        None, "Terms that postings hold, as for `osn ingest`.", type=Pruning.parse, metavar="TYPE:VALUE"
    )
    segments: int = setting(1, "Segments of each shard after merging.")
    shards: int = setting(1, "Shards of each new index.")
    settings: dict[str, str] | None = setting(
        None, "Index setting; repeatable.", option="--setting", multiple=True, type=str, metavar="KEY=VALUE",
        callback=lambda _context, _option, texts: dict(map(_setting, texts)),
    )  # fmt: skip
    seed: int = 0
    """Seed of everything that is drawn."""

    def __post_init__(self) -> None:
        if self.documents < 1:
            raise InputError("the number of documents must be 1 or more")
        if self.quantized is not None and self.dense is None and self.vectors is None:
            raise InputError("--pq makes codes of dense vectors, and there are none", "give --dense MODEL too")

    @property
    def described(self) -> dict[str, Any]:
        """What the index's `_meta.osn` keeps of it."""
        prune = None if self.prune is None else str(self.prune)
        described = {"documents": self.documents, "mix": self.mix, "seed": self.seed, "prune": prune}
        postings = self.prune_postings
        return described if postings is None else {**described, "prune_postings": str(postings)}


def resampler_of(growth: Growth) -> tuple[IndexMeta, Resampler]:
    """(the index's record, the resampler of its documents).

    Raises what reading the corpus, finding and loading the models raise.
    """
    corpus = CorpusSource(growth.corpus, limit=growth.base)
    models = Models(sparse=growth.sparse, dense=growth.dense, pq=growth.quantized)
    content: Content
    if growth.vectors is not None:
        stored = StoredVectors(*find_manifest(growth.vectors))
        content = content_of_files(models, NewIndex(), stored, stored.manifest.corpus.reader(growth.corpus))
    else:
        request = ModelRequest(models, None, growth.index, corpus.reader(growth.corpus), corpus.name)
        content = content_by_models(request, NewIndex())
    documents = list(content.records(ignore))
    parts = [content.vectorizer.vectors(documents[at : at + BATCH]) for at in range(0, len(documents), BATCH)]
    sparse = [part.sparse for part in parts if part.sparse is not None]
    dense = [part.dense for part in parts if part.dense is not None]
    vectors = Vectors(SparseVectors.concat(sparse) if sparse else None, np.concatenate(dense) if dense else None)
    return content.meta, Resampler(documents, vectors, content.query, mix=growth.mix, seed=growth.seed)


def drawn_vectors(growth: Growth, resampler: Resampler) -> DrawnVectors:
    """The vectorizer of the drawn documents, with the pruning and codes of `growth`."""
    quantizer = None if growth.quantized is None else Quantizer.load(locate(growth.quantized) / QUANTIZER_FILE)
    return resampler.vectorizer(growth.prune, quantizer)


def grow(
    client: OpenSearch,
    growth: Growth,
    prepared: tuple[IndexMeta, Resampler] | None = None,
    *,
    say: Callable[[str], object] = log.info,
) -> None:
    """Write the index. The same call again continues an interrupted one; a complete index is left as it is.

    prepared: the result of `resampler_of`, if several sizes are drawn from one corpus. Raises as `pipeline.ingest`.
    """
    meta, resampler = prepared or resampler_of(growth)
    new_meta = meta.with_extra(**{RESAMPLED: {**growth.described, "of": len(resampler.documents)}})
    with translate_errors():
        present_meta = read_record(client, growth.index)
        if present_meta is not None and _facts(present_meta) != _facts(new_meta):
            raise ClusterError(
                f"there is already an index {growth.index!r} with other documents", "delete it, or give another --index"
            )
        if present_meta is not None and (shards := index_facts(client, growth.index).shards) != growth.shards:
            raise ClusterError(
                f"there is already an index {growth.index!r} with {shards} shard(s), and --shards says {growth.shards}",
                "delete it, or give another --index",
            )

        whole = present_meta is not None and LOADING not in present_meta.extra
        if not (whole and count(client, growth.index) == growth.documents):
            _write(client, growth, new_meta, resampler)
        if index_facts(client, growth.index).segments > growth.segments * growth.shards:
            say(f"merging {growth.index} to {growth.segments} segment(s) a shard")
            merge_segments(client, growth.index, growth.segments, least=0)
        if lacking := _lacking(client, growth):
            client.indices.put_settings(index=growth.index, body={"index": lacking})


def grown_to_sizes(
    client: OpenSearch, growth: Growth, sizes: Iterable[int], *, say: Callable[[str], object] = log.info
) -> Iterator[Growth]:
    """Write an index of each size, called INDEX-SIZE, from documents that are encoded once; yields each when it is whole."""
    prepared = resampler_of(growth)
    for size in sorted(sizes):
        of_size = replace(growth, index=f"{growth.index}-{size}", documents=size)
        grow(client, of_size, prepared, say=say)
        yield of_size


def _lacking(client: OpenSearch, growth: Growth) -> dict[str, str]:
    """The settings of `growth` that the index lacks or has with another value."""
    ((_, answer),) = client.indices.get_settings(index=growth.index, params={"flat_settings": "true"}).items()
    has = answer["settings"]
    return {key: value for key, value in (growth.settings or {}).items() if has.get(f"index.{key}") != value}


def _facts(meta: IndexMeta) -> tuple[Any, ...]:
    """The facts by which drawn indexes differ; a lexical model's hash is that of its corpus's statistics."""
    return meta.extra.get(RESAMPLED), meta.sparse, meta.dense, meta.quantized


def _write(client: OpenSearch, growth: Growth, meta: IndexMeta, resampler: Resampler) -> None:
    with created_with(client, growth.index, growth.settings) if growth.settings else nullcontext():
        settings = NewIndex(shards=growth.shards, replicas=0, prune_postings=growth.prune_postings)
        target = open_target(client, growth.index, meta, settings, corpus_name=growth.corpus)
    noted = NotingLargest(for_index(drawn_vectors(growth, resampler), target.meta, resampler.query))
    report = run_pipeline(
        client,
        target,
        Content(meta, lambda _: resampler.take(growth.documents), noted, growth.documents),
        CorpusOfRun(growth.corpus, f"{growth.described}", Path(f"{growth.index}.dead-letters.jsonl")),
        writing=Writing(merge=False),
    )
    if growth.prune_postings is not None and resampler.query is not None:
        # Pruned postings do not show the largest weights, which certify pages.
        keep_measures(client, target, resampler.query, noted, everything=not report.skipped)
