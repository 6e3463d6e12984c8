"""Which copy answers: all requests of one query are asked of the same one, on a cluster of three nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from corpora import WORDS, job, records, write_jsonl

from ingest.job import run_job
from opensearch_neural import node, queries
from opensearch_neural.cluster.connect import connect
from opensearch_neural.engines import open_engines
from opensearch_neural.engines.sparse import Windowed
from opensearch_neural.shown_search import Request, find, find_by_body

pytestmark = pytest.mark.faults

INDEX = "osn-test-replicas"


class Asked:
    """A client's searches, and the nodes whose copies have answered them since it was last looked."""

    def __init__(self, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client, self.nodes = client, set[str]()
        send = client.transport.perform_request

        def noting(method: str, url: str, *arguments: Any, **more: Any) -> Any:
            answer = send(method, url, *arguments, **more)
            if url.endswith("search"):
                for each in answer.get("responses", [answer]):
                    self.nodes |= {hit["_node"] for hit in each["hits"]["hits"] if "_node" in hit}
            return answer

        monkeypatch.setattr(client.transport, "perform_request", noting)

    def looked(self) -> set[str]:
        seen, self.nodes = self.nodes, set()
        return seen


@pytest.fixture
def asked(three_nodes: node.ClusterState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    client = connect(three_nodes.urls)
    run_job(client, job(write_jsonl(tmp_path / "c.jsonl", records(200)), INDEX, replicas=2), show_progress=False)
    client.cluster.health(index=INDEX, params={"wait_for_status": "green"})
    yield Asked(client, monkeypatch)
    client.indices.delete(index=INDEX)


def test_pages_of_one_query_are_of_one_copy_and_other_queries_of_others(asked: Asked) -> None:
    client = asked.client
    engines = open_engines(client, INDEX, window=3)
    of_queries = []
    for word in WORDS[:12]:
        text = f"{word} {WORDS[-1]}"
        for name in ("bm25", "bm25-sparse", "high-idf-first"):
            for from_ in (0, 5, 10):
                find(client, Request.make(engines, name, text, size=5, from_=from_), explain=True)
            if isinstance(engine := engines.engine(name), Windowed):
                engine.certified(client, text, engines.page(size=5))
        of_queries.append(asked.looked())
        for from_ in (0, 5, 10):
            find_by_body(client, INDEX, {**queries.bm25(text, size=5), "from": from_}, explain=True)
        of_queries.append(asked.looked())
    assert {len(nodes) for nodes in of_queries} == {1}
    assert len(set.union(*of_queries)) == 3
