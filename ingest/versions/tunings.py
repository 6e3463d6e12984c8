"""Settings that `osn tune` stored in the serving index, carried over to the next build."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ingest.versions.builds import record_if_ours, serving_index
from opensearch_neural.engines.settings import TUNED, Bm25SparseSetting, HighIdfFirstSetting, PrunedSparseSetting
from opensearch_neural.index.mapping import search_analyzer_of
from opensearch_neural.index.record import IndexMeta, existing_record, write_record

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

log = logging.getLogger(__name__)

ENGINE_OF = {setting.key: setting.engine for setting in TUNED}
"""{key in an index's record: engine that searches with this setting}"""


def carry_tunings(client: OpenSearch, alias: str, index: str, *, store: bool = True) -> None:
    """Store in a finished build those tuned settings of the serving index that it lacks, if both were made alike.

    Of the others one warning says that they must be tuned again.
    store: False: only warn, since `osn tune` may store others in the serving index before the swap
    """
    serving = serving_index(client, alias)
    if serving is None or serving == index or (serving_meta := record_if_ours(client, serving)) is None:
        return
    meta = existing_record(client, index)
    tuned = {key: serving_meta.extra[key] for key in ENGINE_OF if key in serving_meta.extra and key not in meta.extra}
    before, now = _analyzers(client, serving, serving_meta), _analyzers(client, index, meta)
    carried = {
        key: setting
        for key, setting in tuned.items()
        if _searched(serving_meta, key, before) == _searched(meta, key, now)
    }
    if carried and store:
        write_record(client, index, meta.with_extra(**carried))
    if lost := [ENGINE_OF[key] for key in tuned if key not in carried]:
        log.warning(
            "%s has other models, vectors or analyzers than %s, so what `osn tune` stored there for %s is not carried over: "
            "run `osn tune` again",
            index,
            serving,
            ", ".join(lost),
        )


def _analyzers(client: OpenSearch, index: str, meta: IndexMeta) -> tuple[str, str]:
    """(analyzer of documents, analyzer of queries) of an index."""
    (mapping,) = client.indices.get_mapping(index=index).values()
    return meta.analyzer, search_analyzer_of(mapping["mappings"], meta)


def _searched(meta: IndexMeta, key: str, analyzers: tuple[str, str]) -> Any:
    """What a setting was tuned for: hashes of the models, how documents are split and pruned; with BM25, the analyzers."""
    sparse, dense, codes = meta.sparse, meta.dense, meta.quantized
    of_sparse = (sparse and (sparse.hash, sparse.query_hash), meta.passages, meta.prune, meta.prune_postings)
    if key in (HighIdfFirstSetting.key, PrunedSparseSetting.key):
        return of_sparse
    if key == Bm25SparseSetting.key:
        return of_sparse, analyzers
    return of_sparse, analyzers, dense and (dense.hash, dense.type), codes and codes.hash
