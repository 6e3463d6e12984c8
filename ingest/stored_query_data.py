"""Stores on the cluster what searches use: the query encoder, the largest weights, the scale of the scores, and the number
of documents of a shard.

Searches also work without these: they then need the model's files, ask for the largest weights, measure the scale, and
count. So an ingest does not fail if one of them cannot be stored, but only warns. An IDF table that was counted while the
corpus was written is always stored on this machine; if the cluster does not take it, the warning names its folder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ingest.counted_idf import CorpusTable, splade_of, with_kept_table
from ingest.vectorizers import NotingLargest
from ingest.writing.target import Target, existing_target
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.errors import OsnError
from opensearch_neural.index import hidden_index
from opensearch_neural.index.models import IndexModels
from opensearch_neural.index.record import IndexMeta, existing_record, write_record
from opensearch_neural.index.shard_documents import keep_shard_documents
from opensearch_neural.index.sparse_scale import GROWN, MEASURED_ON, keep_sparse_scale
from opensearch_neural.models import directory, registry
from opensearch_neural.models.sparse.corpus_statistics import has_query_table

if TYPE_CHECKING:
    from pathlib import Path

    from opensearchpy import OpenSearch

    from opensearch_neural.models.sparse.table_encoder import TableEncoder

log = logging.getLogger(__name__)


def keep_encoder(
    client: OpenSearch, index: str, encoder: TableEncoder, name: str, *, only_copy: Path | None = None
) -> None:
    """Store the query encoder of an index, so that searches need no model files.

    only_copy: the folder of a model that was made on this machine, and that nobody else has
    """
    try:
        with translate_errors():
            hidden_index.store_encoder(client, index, encoder.hash, name, encoder.to_bytes())
    except OsnError as error:
        log.warning(
            "the query encoder could not be stored on the cluster; searches need the model's files: %s", error.message
        )
        if only_copy is not None:
            log.warning(
                "only %s has the IDF table that was counted from this corpus: keep this folder, and run `osn index "
                "store-encoder %s` here as soon as the cluster takes it",
                only_copy,
                index,
            )


def store_encoder_again(client: OpenSearch, name: str, sparse: str | None = None) -> str:
    """Store the query encoder of an index, or of the index behind an alias, from this machine's files; returns its own name.

    It also deletes the stored largest weights: restored ones may be older than the documents, whose weights may be larger.
    sparse: the folder or hub id of the model that wrote the index; None: the one that this machine knows by its hash
    Raises ModelError if the model is not here, is another one, or if the index holds no sparse vectors.
    """
    with translate_errors():
        target = existing_target(client, name)
        sparse_meta = target.meta.sparse
        if sparse_meta is not None and sparse is not None and not has_query_table(splade := directory.locate(sparse)):
            sparse = str(with_kept_table(None, sparse_meta, splade, False, index=target.index) or sparse)
        encoder = IndexModels(target.index, target.meta, sparse=sparse).query_encoder
        assert sparse_meta is not None
        hidden_index.store_encoder(client, target.index, encoder.hash, sparse_meta.name, encoder.to_bytes())
        if id := target.meta.extra.get(hidden_index.LARGEST):
            hidden_index.forget_largest(client, id)
    return target.index


def keep_table(client: OpenSearch, index: str, table: CorpusTable) -> None:
    """Store the counted table of a corpus: the model on this machine, the query encoder on the cluster, and last the index's
    record. So the record never names a model that is stored nowhere; a cluster that does not take it is warned of.

    Raises ModelError if the SPLADE has changed, and opensearch-py's errors, since the index is not complete without the
    table.
    """
    keep_encoder(client, index, table.query, table.name, only_copy=table.folder)
    write_record(client, index, replace(existing_record(client, index), sparse=table.counted))


def keep_measures(
    client: OpenSearch, target: Target, encoder: TableEncoder, noted: NotingLargest, *, everything: bool
) -> None:
    """Store the number of a shard's documents, the largest weights and the scale of an index that was just written.

    everything: whether `noted` has seen every document of the index. If not, the index is asked for the largest weights,
        unless they are stored already, and so were raised while it was written. Pruned postings do not show them.
    """
    keeping: dict[str, Callable[[], object]] = {
        "number of documents of a shard": lambda: keep_shard_documents(client, target.index),
        "largest weights": lambda: _keep_largest(client, target, encoder, noted, everything),
        "scale": lambda: _keep_scale(client, target, encoder, noted.drawn if everything else ()),
    }
    for measure, keep in keeping.items():
        try:
            with translate_errors():
                keep()
        except OsnError as error:
            log.warning("the %s of %s could not be stored: %s", measure, target.index, error.message)


def _keep_scale(client: OpenSearch, target: Target, encoder: TableEncoder, drawn: Sequence[str]) -> None:
    """Keep the scale of the scores; if it was measured again because the index has grown, warn of an IDF table that was
    counted in the documents of the first ingest."""
    keep_sparse_scale(client, target.index, encoder, drawn)
    before, now = (meta.extra.get(MEASURED_ON, 0) for meta in (target.meta, existing_record(client, target.index)))
    model = None if target.meta.sparse is None else registry.linked(target.meta.sparse.hash)
    if before and now > GROWN * before and model is not None and splade_of(model) is not None:
        log.warning(
            "%s has %s documents, and had %s: its IDF table was counted in those of its first ingest. `osn index inspect "
            "%s` shows how far it is off; a new build (--alias, or another --index) counts another table",
            *(target.index, f"{now:,}", f"{before:,}", target.index),
        )


def _keep_largest(
    client: OpenSearch, target: Target, encoder: TableEncoder, noted: NotingLargest, everything: bool
) -> None:
    if hidden_index.read_largest(client, target.meta.extra.get(hidden_index.LARGEST)) is not None:
        return
    if not everything and target.meta.prune_postings is not None:
        log.warning(
            "no page of %s can be certified: an earlier run wrote a part of it, so not all of its largest weights are known",
            target.index,
        )
        return
    if everything:
        largest: Mapping[str, float] = noted.largest
    else:
        tokens = [token for token, weight in encoder.weights.items() if weight]
        log.info("asking %s for the largest weight of each of %s tokens", target.index, f"{len(tokens):,}")
        largest = hidden_index.ask_largest(client, target.index, tokens)
    id = hidden_index.store_largest(client, target.index, target.uuid, largest)
    meta = existing_record(client, target.index)
    write_record(client, target.index, meta.with_extra(**{hidden_index.LARGEST: id}))


def raising(client: OpenSearch, index: str, meta: IndexMeta) -> Callable[[Mapping[str, float]], None] | None:
    """A function that raises the stored largest weights of an index, to be called before documents with larger weights are
    written; None if the index has no stored weights."""
    from opensearchpy.exceptions import AuthorizationException

    id = meta.extra.get(hidden_index.LARGEST)
    if id is None:
        return None

    def raise_(weights: Mapping[str, float]) -> None:
        try:
            hidden_index.raise_largest(client, id, weights)
        except AuthorizationException:
            log.warning(
                "this user may not write to %r: the largest weights of %s are no longer used", hidden_index.INDEX, index
            )
            write_record(client, index, existing_record(client, index).with_extra(**{hidden_index.LARGEST: None}))

    return raise_
