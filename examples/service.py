"""A search service: FastAPI, an asynchronous client, one ordinary request a search, and why a hit is there.

    pip install ".[async]" fastapi uvicorn    # in a clone
    OSN_URL=http://localhost:9200 OSN_INDEX=docs uvicorn service:app --app-dir examples

    curl "localhost:8000/search?q=what+causes+a+rainbow&size=3"
    curl "localhost:8000/search?q=what+causes+a+rainbow&explain=true"

The query side is read from the cluster when the service starts, and again when an alias leads to another build; there are no
model files here. Encoding a query takes microseconds, so it may run in the event loop.

If hits are missing, since shards failed or the time was over, the answer has the header X-Partial: shards_failed or
timed_out.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Query, Response
from opensearchpy import OpenSearch, OpenSearchException

from opensearch_neural import OsnError, connect, connect_async
from opensearch_neural.cluster.errors import translate
from opensearch_neural.engines import Engines, open_engines
from opensearch_neural.errors import TooManyClauses
from opensearch_neural.index.record import existing_record_async
from opensearch_neural.queries import best_passages, explained, partial_answer
from opensearch_neural.search.explanation import shares

INDEX = os.environ.get("OSN_INDEX", "docs")
INTERVAL = 5.0
"""Seconds after which the index's record is looked at again."""
log = logging.getLogger(__name__)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    cluster = connect()
    app.state.engines = engines_of(cluster)
    app.state.client = await connect_async()
    following = asyncio.create_task(follow(app, cluster))
    yield
    following.cancel()
    await app.state.client.close()


def engines_of(cluster: OpenSearch) -> Engines:
    engines = open_engines(cluster, INDEX)
    engines.body_of("bm25-sparse")  # reads the query side now, not at the first search
    return engines


async def follow(app: FastAPI, cluster: OpenSearch) -> None:
    """Open the engines again whenever the index's record is another: an alias was swapped, or the index was tuned."""
    while True:
        await asyncio.sleep(INTERVAL)
        try:
            if await existing_record_async(app.state.client, INDEX) != app.state.engines.meta:
                app.state.engines = await asyncio.to_thread(engines_of, cluster)
        except (OpenSearchException, OsnError) as error:
            log.warning("the engines stay as they are: %s", error)


app = FastAPI(title=f"Search in {INDEX}", lifespan=lifespan)


@app.get("/search")
async def search(
    response: Response,
    q: str = Query(min_length=1),
    size: int = Query(10, ge=1, le=100),
    engine: str = "bm25-sparse",
    explain: bool = False,
) -> list[dict[str, Any]]:
    """The best hits. explain: what each word adds to the score, as BM25 has it and as the model does."""
    if engine not in ("bm25", "bm25-sparse"):
        raise HTTPException(422, "engine is bm25 or bm25-sparse")
    engines: Engines = app.state.engines
    body = engines.body(engine, q, size=size, source=["title"])
    if explain:
        body = explained(body)
    try:
        answer = await app.state.client.search(index=INDEX, body=body)
    except OpenSearchException as error:
        if isinstance(translate(error), TooManyClauses):
            raise HTTPException(
                400, "the query has more words than the cluster searches at once: shorten it"
            ) from error
        raise HTTPException(503, f"the search failed: {error}") from error
    if lacking := partial_answer(answer):
        log.warning("a partial answer: %s", "; ".join(lacking.values()))
        response.headers["X-Partial"] = ", ".join(lacking)
    hits = answer["hits"]["hits"]
    if engines.meta.passages:  # a hit is the best passage of its document
        return [hit_of(id, hit) for id, hit in best_passages(body, hits)]
    return [hit_of(hit["_id"], hit) for hit in hits]


def hit_of(id: str, hit: Mapping[str, Any]) -> dict[str, Any]:
    shown = {"id": id, "score": hit["_score"], **hit["_source"]}
    if "_explanation" in hit:
        shown["why"] = [{"from": s.source, "word": s.token, "adds": s.score} for s in shares(hit["_explanation"])]
    return shown
