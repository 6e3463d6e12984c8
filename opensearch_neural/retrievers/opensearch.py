"""The cluster as a retriever: sends any request body of `queries`, for many queries at once.

    retriever = OpenSearchRetriever(client, "docs", "bm25", lambda text, k: queries.bm25(text, size=k))
    run = retriever.retrieve({"q1": "what causes a rainbow"}, k=100)

`time_queries` measures latency: one request after the other, so that no query waits for another.
"""

from __future__ import annotations

import math
import time
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.errors import ClusterError, InputError, Unanswerable
from opensearch_neural.index.result_window import most_hits
from opensearch_neural.queries import MOST_HITS, Body, best_passages, partial_answer
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.ranking import require_positive

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

# Bodies are built this many at a time by the calling thread (an encoder need not be thread-safe), then sent together.
_CHUNK = 64

# Requests sent at a time.
THREADS = 4


@dataclass(frozen=True)
class Latencies:
    """Client-side times of single requests in milliseconds, in the order in which they were sent."""

    ms: list[float]
    """(requests,)"""

    @property
    def p50(self) -> float:
        """The time within which half of the requests were answered."""
        return float(np.percentile(self.ms, 50))

    @property
    def p99(self) -> float:
        return float(np.percentile(self.ms, 99))


class OpenSearchRetriever:
    """Searches `index` of a cluster with `body(text, k)`, THREADS requests at a time."""

    def __init__(
        self,
        client: OpenSearch,
        index: str,
        name: str,
        body: Callable[[str, int], Body],
        *,
        params: Mapping[str, str] | None = None,
        progress: Callable[[int], object] | None = None,
        hits_of: Callable[[Body, Any, int], dict[str, float]] | None = None,
        ids_only: bool = True,
        unanswered: Callable[[str, Unanswerable], object] | None = None,
    ) -> None:
        """params: URL parameters of each request.
        progress: called with the number of queries answered since the last call.
        hits_of: (body, answer, k) → {document: score}; None: `scores_of`, for bodies of `queries`
        ids_only: leave out what the hits would bring beside ids and scores; False if a search pipeline may read it
        unanswered: called with the id of a query that gets no hits, and the reason. None: raise the reason"""
        self.name = name
        self._client = client
        self._index = index
        self._body = body
        self._params = params or {}
        self._progress = progress
        self._hits_of = hits_of or scores_of
        self._sent = _ids_only if ids_only else dict
        self._unanswered = unanswered

    def retrieve(self, queries: Mapping[str, str], k: int) -> Run:
        """The `k` best documents of each query, k up to 10,000.

        The cluster decides which of several documents with equal scores are among the `k`. Raises ClusterError if the
        cluster refuses a request, or if not all shards answer, and what making a body raises.
        """
        require_positive(k)
        if k > MOST_HITS:
            raise InputError(f"k = {k:,} is more than OpenSearch returns for a query", f"choose k up to {MOST_HITS:,}")
        run: Run = {}
        items = iter(queries.items())
        with ThreadPoolExecutor(max_workers=THREADS) as pool:
            while chunk := list(islice(items, _CHUNK)):
                bodies = {query_id: self._body_or_none(query_id, text, k) for query_id, text in chunk}
                scores_of_chunk = pool.map(self._scores, bodies, bodies.values(), repeat(k))
                for query_id, scores in zip(bodies, scores_of_chunk, strict=True):
                    run[query_id] = dict(sorted(scores.items(), key=lambda hit: (-hit[1], hit[0])))
                if self._progress:
                    self._progress(len(chunk))
        return run

    def _body_or_none(self, query_id: str, text: str, k: int) -> Body | None:
        """The body of a query; None for one that cannot be answered."""
        try:
            return self._sent(self._body(text, k))
        except Unanswerable as reason:
            self._tell(query_id, reason)
            return None

    def _scores(self, query_id: str, body: Body | None, k: int) -> dict[str, float]:
        """{document: score} of one request. Only this is kept: an answer may hold whole documents."""
        if body is None:
            return {}
        try:
            answer = search(self._client, self._index, body, **self._params)
        except Unanswerable as reason:
            self._tell(query_id, reason)
            return {}
        try:
            return self._hits_of(body, answer, k)
        except InputError as refused:
            refused.message = f"query {query_id!r}: {refused.message}"
            raise

    def _tell(self, query_id: str, reason: Unanswerable) -> None:
        """Raises the reason if nobody wants to know which queries are not answered."""
        if self._unanswered is None:
            reason.message = f"query {query_id!r}: {reason.message}"
            raise reason
        self._unanswered(query_id, reason)


def search(client: OpenSearch, index: str, body: Body, **params: str) -> Any:
    """The complete answer of one `_search`. params: URL parameters.

    Raises ClusterError if the cluster refuses the request, for a time-out, and if a shard fails: measured on only a part of
    the index, an engine would look worse or better than it is.
    """
    with translate_errors():
        answer = client.search(index=index, body=body, params=params)
    if lacking := partial_answer(answer):
        raise ClusterError(
            f"only a part of the index {index!r} answered: {'; '.join(lacking.values())}",
            "see the node's log and `osn doctor`",
        )
    return answer


def passages_of(
    client: OpenSearch, index: str, document: str, size: int, source: Sequence[str] | bool = True
) -> Iterator[dict[str, Any]]:
    """The sources of all passages of a document, in order.

    size: how many are read at once. source: the fields to read. Raises ClusterError as `search` does.
    """
    body = {"query": {"term": {"parent": document}}, "size": size, "sort": ["passage.number"], "_source": source}
    while True:
        hits = search(client, index, body)["hits"]["hits"]
        yield from (hit["_source"] for hit in hits)
        if len(hits) < size:
            return
        body["search_after"] = hits[-1]["sort"]


def time_queries(client: OpenSearch, index: str, bodies: Iterable[Body], *, warmup: int = 50) -> Latencies:
    """Latency of each body in milliseconds, from sending it to the parsed answer; one thread sends one after the other.

    The first `warmup` bodies are sent once before, without timing. Bodies are sent unchanged: give them the application's
    size and `_source`. Raises InputError if there is no body, ClusterError as `search` does.
    """
    requests: Sequence[Body] = list(bodies)
    if not requests:
        raise InputError("there is no query to time")
    for body in requests[:warmup]:
        search(client, index, body)
    times = []
    for body in requests:
        start = time.perf_counter()
        search(client, index, body)
        times.append((time.perf_counter() - start) * 1000)
    return Latencies(times)


def read_codes(client: OpenSearch, index: str, subvectors: int) -> tuple[list[str], NDArray[np.uint8]]:
    """(ids, codes (documents, subvectors)) of all documents of an index that have a code, in the index's order.

    Raises ClusterError for an incomplete answer, if no document has a code, and for a code of another length.
    """
    from opensearchpy.helpers import ScanError, scan

    ids: list[str] = []
    codes = bytearray()
    lengths: set[int] = set()
    body = {"query": {"exists": {"field": "pq"}}, "_source": False, "docvalue_fields": ["pq"]}
    with translate_errors():
        try:
            size = most_hits(client, index, 5000)
            for hit in scan(client, query=body, index=index, size=size, request_timeout=120):
                ids.append(hit["_id"])
                code = b64decode(hit["fields"]["pq"][0] + "==")  # OpenSearch leaves the padding out
                lengths.add(len(code))
                codes += code
        except ScanError as error:
            raise ClusterError(f"only a part of the index {index!r} answered: {error}") from None
    if lengths != {subvectors}:
        present = f"codes of {', '.join(map(str, sorted(lengths)))} bytes" if ids else "no codes"
        raise ClusterError(
            f"the index {index!r} holds {present}, but its model makes codes of {subvectors} bytes",
            "ingest again with --pq MODEL",
        )
    return ids, np.frombuffer(bytes(codes), np.uint8).reshape(-1, subvectors)


def _ids_only(body: Body) -> Body:
    """The body, asking only for ids and scores, because a run holds nothing else."""
    return {**{key: value for key, value in body.items() if key != "highlight"}, "_source": False}


def scores_of(body: Body, answer: Any, k: int) -> dict[str, float]:
    """{document: score} from the answer to a body of `queries` that asks for `k` hits."""
    listed = answer["hits"]["hits"]
    if any(hit["_score"] is None for hit in listed):
        raise InputError("the request body sorts by something other than the score", 'leave "sort" out of it')
    if "collapse" in body or "docvalue_fields" in body:
        # A passage counts as its document.
        return {id: finite_score(hit) for id, hit in best_passages(body, listed, size=k)}
    return {hit["_id"]: finite_score(hit) for hit in listed}


def finite_score(hit: Mapping[str, Any]) -> float:
    """The score of a hit. Raises InputError for an infinite one: all such hits rank alike."""
    score = float(hit["_score"])
    if math.isinf(score):
        raise InputError(
            f"the query gives the document {hit['_id']} an infinite score, and all such hits rank alike",
            "bound the score: by max_boost of a function_score, by smaller boosts, or in the script",
        )
    return score
