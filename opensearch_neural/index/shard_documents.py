"""How many documents a shard of an index holds, which determines the default windows of searches.

Windows are counted in each shard. The number is kept in the index's record, so that all processes choose the same window
while the index grows: pages from two different windows could repeat hits and lose others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opensearch_neural.index.record import existing_record, write_record
from opensearch_neural.index.sparse_scale import GROWN

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

SHARD_DOCUMENTS = "shard_documents"
"""The key of the number in the index's record; older records lack it."""


def count_shard_documents(client: OpenSearch, index: str) -> int:
    """The documents of an index or alias, divided by its primary shards. Raises opensearch-py's errors."""
    answer = client.count(index=index)
    return int(answer["count"]) // int(answer["_shards"]["successful"])


def keep_shard_documents(client: OpenSearch, index: str) -> int:
    """Count the documents of a shard; keep the number in the index's record if it is more than twice the number there.

    Returns the number. Raises opensearch-py's errors.
    """
    documents, meta = count_shard_documents(client, index), existing_record(client, index)
    known = meta.extra.get(SHARD_DOCUMENTS)
    if known is None or documents > GROWN * known:
        write_record(client, index, meta.with_extra(**{SHARD_DOCUMENTS: documents}))
    return documents
