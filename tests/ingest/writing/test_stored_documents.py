"""Deletions of an index's documents."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from corpora import snapshot

from ingest.writing.stored_documents import delete_ids
from opensearch_neural.cluster.patience import patience
from opensearch_neural.errors import ClusterError

FULL = "index.blocks.read_only_allow_delete"
"""What a node sets when its disk fills up: each document of a request is refused with status 429."""


def test_deletions_that_a_full_disk_refuses_are_tried_again(client: Any, index_name: str) -> None:
    lines: list[dict[str, Any]] = []
    for id in "abc":
        lines += [{"index": {"_id": id}}, {"n": 1}]
    client.bulk(index=index_name, body=lines, params={"refresh": "true"})
    client.indices.put_settings(index=index_name, body={FULL: True})
    with patience(0), pytest.raises(ClusterError, match=r"2 documents of .* could not be deleted: .*blocked by"):
        delete_ids(client, index_name, ["a", "b"])
    made_room = threading.Timer(0.5, lambda: client.indices.put_settings(index=index_name, body={FULL: None}))
    made_room.start()
    with patience(60):
        delete_ids(client, index_name, ["a", "b", "gone"])
    made_room.join()
    assert snapshot(client, index_name).keys() == {"c"}
