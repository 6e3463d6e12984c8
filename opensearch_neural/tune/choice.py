"""The setting that was chosen, and how the index stores it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.engines.settings import Setting
from opensearch_neural.index.record import existing_record, write_record
from opensearch_neural.index.shard_documents import SHARD_DOCUMENTS, count_shard_documents
from opensearch_neural.tune.trials import Tried

if TYPE_CHECKING:
    from opensearchpy import OpenSearch


@dataclass(frozen=True)
class Chosen:
    """The choice, and the quality that it keeps on queries that were not used to choose it."""

    setting: Setting
    tried: Tried
    """The setting on the tuning queries."""
    kept: float
    """Its quality on the confirming queries, as a share of the reference engine's quality."""
    low: float | None
    """Lower end of the 95% interval of `kept`."""
    high: float | None
    """Upper end of that interval."""
    passed_over: int
    """How many faster settings kept the share on the tuning queries, but not on the confirming ones."""


def store(client: OpenSearch, index: str, chosen: Chosen, *, keep: float, measure: str, queries: int) -> None:
    """Write the choice into the index's `_meta.osn`, where `Engines` reads it. The number of documents in a shard is stored
    too: if it grows, so does the window. Raises ClusterError."""
    with translate_errors():
        meta = existing_record(client, index)
        record = {
            **chosen.setting.record,
            "keep": keep,
            "kept": round(chosen.kept, 4),
            "measure": measure,
            "queries": queries,
            SHARD_DOCUMENTS: count_shard_documents(client, index),
        }
        write_record(client, index, meta.with_extra(**{chosen.setting.key: record}))
