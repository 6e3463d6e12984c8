"""The query encoder for applications: turns a query into token weights; loaded from a model's files or from an index.

It adds to `TableEncoder` how it is read from an index. That cannot stand in `TableEncoder` itself: the modules of `index`
import it, and no modules import each other in a circle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opensearch_neural.errors import ModelError
from opensearch_neural.models.sparse.table_encoder import TableEncoder

if TYPE_CHECKING:
    from opensearchpy import AsyncOpenSearch, OpenSearch

    from opensearch_neural.index.record import IndexMeta, SparseMeta


class QueryEncoder(TableEncoder):
    __doc__ = TableEncoder.__doc__  # for an application there is this class alone

    @classmethod
    def of_index(cls, client: OpenSearch, index: str) -> QueryEncoder:
        """The query encoder of an index or alias: the copy that ingest stored on the cluster, else the model's files on
        this machine.

        Raises ClusterError if there is no such index. Raises ModelError if the index holds no sparse vectors, if its IDF
        table is not counted yet, or if neither the cluster nor this machine has its model.
        """
        from opensearch_neural.index.hidden_index import encoder_of, read_encoder
        from opensearch_neural.index.record import existing_record

        sparse_meta = _sparse_of(existing_record(client, index), index)
        return encoder_of(cls, sparse_meta, read_encoder(client, sparse_meta.query_hash), index)

    @classmethod
    async def of_index_async(cls, client: AsyncOpenSearch, index: str) -> QueryEncoder:
        """As `of_index`, for the client that `connect_async` gives."""
        from opensearch_neural.index.hidden_index import encoder_of, read_encoder_async
        from opensearch_neural.index.record import existing_record_async

        sparse_meta = _sparse_of(await existing_record_async(client, index), index)
        return encoder_of(cls, sparse_meta, await read_encoder_async(client, sparse_meta.query_hash), index)


def _sparse_of(meta: IndexMeta, index: str) -> SparseMeta:
    from opensearch_neural.index.record import check_counted

    check_counted(index, meta)
    if meta.sparse is None:
        raise ModelError(f"the index {index!r} holds no sparse vectors", "ingest with --sparse MODEL")
    return meta.sparse
