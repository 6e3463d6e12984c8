"""An index of the cluster as a corpus: `osn ingest opensearch:INDEX`.

The documents are read at one point in time, in the order of their ids, into a file of JSON lines. So a run that was
interrupted meets the same order again, and every pass over the corpus sees the same documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.errors import InputError

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

PREFIX = "opensearch:"
PAGE = 1000
KEEP_ALIVE = "10m"


def is_index(corpus: str) -> bool:
    """Whether a corpus is named as an index of the cluster."""
    return corpus.startswith(PREFIX)


def copy_index(client: OpenSearch, corpus: str, file: IO[bytes]) -> int:
    """Write the documents of `opensearch:INDEX` as JSON lines, each with its `_id` and what its `_source` holds; how many.

    Raises InputError for an index whose documents keep no `_source`, ClusterError for what the cluster refuses.
    """
    index = corpus.removeprefix(PREFIX)
    written = 0
    with translate_errors():
        for hit in _hits(client, index):
            if not hit.get("_source"):
                raise InputError(
                    f"the document {hit['_id']!r} of {index!r} has no _source, and nothing else can be read of it",
                    "ingest from where the documents came from",
                )
            file.write(json.dumps({"_id": hit["_id"], **hit["_source"]}, ensure_ascii=False).encode() + b"\n")
            written += 1
    return written


def _hits(client: OpenSearch, index: str) -> Iterator[dict[str, Any]]:
    """Every document at one point in time, by id."""
    point = client.create_pit(index=index, params={"keep_alive": KEEP_ALIVE})["pit_id"]
    try:
        body: dict[str, Any] = {"size": PAGE, "sort": [{"_id": "asc"}], "track_total_hits": False}
        while True:
            answer = client.search(body={**body, "pit": {"id": point, "keep_alive": KEEP_ALIVE}})
            hits = answer["hits"]["hits"]
            if answer["_shards"]["failed"]:
                raise InputError(f"{index!r} cannot be read whole: a shard does not answer", "look at its health")
            yield from hits
            if len(hits) < PAGE:
                return
            body["search_after"] = hits[-1]["sort"]
    finally:
        client.delete_pit(body={"pit_id": [point]})
