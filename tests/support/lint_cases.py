"""Search bodies with the mistakes that the linter finds, and the node on which they are tried."""

from __future__ import annotations

import base64
import json
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from opensearch_neural import queries
from opensearch_neural.cluster.capabilities import Capabilities
from opensearch_neural.index.mapping import index_body, rank_features
from opensearch_neural.index.record import DenseMeta, IndexMeta, QuantizedMeta, SparseMeta
from opensearch_neural.lint import Finding, lint
from opensearch_neural.lint.index_description import IndexDescription
from opensearch_neural.queries import Body, forward_index
from opensearch_neural.queries.multi_vector import several_vectors, stored

META = IndexMeta(
    sparse=SparseMeta("m", "h", "q"),
    dense=DenseMeta("m", "h", 3, "float", True),
    quantized=QuantizedMeta("m", "h", 2),
    forward_index=True,
)
DOCUMENTS = 120
TOKENS = [f"t{number}" for number in range(12)] + ["u.s", "."]
Q = {"t1": 2.0, "t2": 1.0, "t3": 0.5}
VECTOR = [1.0, 2.0, 3.0]


def sparse(tokens: dict[str, Any] = Q) -> dict[str, Any]:
    return {"neural_sparse": {"sparse": {"query_tokens": tokens}}}


def feature(name: str, **how: Any) -> dict[str, Any]:
    return {"rank_feature": {"field": name, "linear": {}, **how}}


def should(*held: dict[str, Any], **beside: Any) -> dict[str, Any]:
    return {"bool": {"should": list(held), **beside}}


def many(letter: str, count: int) -> dict[str, float]:
    return {f"{letter}{number}": 1.0 for number in range(count)}


def rescore(window: Any = 20, tokens: dict[str, float] | None = None, **weights: float) -> dict[str, Any]:
    how = {"query_weight": 0.0, "rescore_query_weight": 1.0, **weights}
    return {"window_size": window, "query": {"rescore_query": sparse(tokens or {"t5": 3.0}), **how}}


def two_phase(**parameters: Any) -> dict[str, Any]:
    processor = {"neural_sparse_two_phase_processor": {"two_phase_parameter": parameters}}
    return {"search_pipeline": {"request_processors": [processor]}}


def hybrid(*parts: dict[str, Any], **options: Any) -> dict[str, Any]:
    held = list(parts) or [sparse(), {"match": {"text": "rainbow"}}]
    return {"hybrid": {"queries": held, **options}}


def fused(kind: str = "normalization-processor", **config: Any) -> dict[str, Any]:
    return {"search_pipeline": {"phase_results_processors": [{kind: config}]}}


def weighted(*weights: Any, **combination: Any) -> dict[str, Any]:
    parameters = {"parameters": {"weights": list(weights)}}
    return fused(combination={"technique": "arithmetic_mean", **parameters, **combination})


def ranked(**combination: Any) -> dict[str, Any]:
    return fused("score-ranker-processor", combination={"technique": "rrf", **combination})


def knn(vector: Any = VECTOR, field: str = "dense", **options: Any) -> dict[str, Any]:
    return {"knn": {field: {"vector": vector, **(options or {"k": 10})}}}


def nearest(path: str = "several", vector: Any = VECTOR, **options: Any) -> dict[str, Any]:
    """As `multi_vector.nearest` asks for several vectors a document."""
    return {"nested": {"path": path, "query": knn(vector, "several.vector", k=10, **options), "score_mode": "max"}}


def table(parts: int) -> np.ndarray:
    return np.sin(parts * np.arange(parts * 256.0)).reshape(parts, 256)


def quantized(parts: int = 2, **changed: Any) -> dict[str, Any]:
    body = queries.quantized(table(parts))
    body["query"]["script_score"]["script"]["params"].update(changed)
    return body


def by_rows(**changed: Any) -> dict[str, Any]:
    """A sum whose second phase reads the forward index."""
    body = queries.bm25_sparse("rainbow", Q, window=200, forward=True, size=200)
    body["rescore"]["query"]["rescore_query"]["script_score"]["script"]["params"].update(changed)
    return body


@dataclass(frozen=True)
class Case:
    """A body that a rule finds fault with; where it bends, also the body that asks for what was meant."""

    rule: str
    body: dict[str, Any]
    mended: dict[str, Any] | None = None


NEAR = {"range": {"n": {"gt": 100}}}
WIDE = {"range": {"n": {"gte": 0}}}
ALL = {"match_all": {}}
RAINBOW = {"match": {"text": "rainbow"}}
NORMALIZED = fused()


def named(case: Case) -> str:
    return f"{case.rule}: {json.dumps(case.body)[:90]}"


@contextmanager
def written(client, *, several: bool = False) -> Iterator[str]:
    name = f"osn-test-lint-{uuid.uuid4().hex[:12]}"
    body = index_body(META, replicas=0)
    method = {"name": "hnsw", "engine": "lucene", "space_type": "l2"}
    properties = body["mappings"]["properties"]
    properties["bytes"] = {"type": "knn_vector", "dimension": 3, "data_type": "byte", "method": method}
    hamming = {**method, "space_type": "hamming"}
    properties["bits"] = {"type": "knn_vector", "dimension": 16, "data_type": "binary", "method": hamming}
    if several:
        properties["several"] = several_vectors(properties["dense"])
    properties["plain"] = {"properties": {"n": {"type": "integer"}}}
    client.indices.create(index=name, body=body)
    random_ = random.Random(3)
    lines: list[dict[str, Any]] = []
    for number in range(DOCUMENTS):
        row = {token: round(random_.uniform(0.1, 3), 3) for token in TOKENS if random_.random() < 0.4} or {"t0": 1.0}
        source = {"text": f"rainbow {number}", "n": number, "url": f"u{number % 7}", "sparse": rank_features(row)}
        vectors: dict[str, Any] = {"dense": [1, number, 1], "bytes": [1, number, 1]}
        if several:
            vectors["several"] = stored([[1, number, 1], [number, 1, 1]])
        hashes = forward_index.hashes_of(row)
        packed = forward_index.packed(hashes, np.array(list(row.values()), np.float32))
        vectors[forward_index.FIELD] = base64.b64encode(packed).decode()
        codes = {"pq": base64.b64encode(bytes([number, 255 - number])).decode()}
        lines += [{"index": {"_id": f"d{number:03}"}}, source | vectors | codes]
    answer = client.bulk(index=name, body=lines, refresh=True)
    assert not answer["errors"]
    yield name
    client.indices.delete(index=name)


def refusal(client, index: str, body: Body) -> str:
    """Why OpenSearch refuses a body; empty where it takes it. NaN and infinity go out as JSON has no word for them."""
    from opensearchpy.exceptions import TransportError

    try:
        answer = client.transport.perform_request("POST", f"/{index}/_search", body=json.dumps(body))
    except TransportError as error:
        assert error.status_code in (400, 500), error
        return str(error.info)
    assert not answer["_shards"].get("failures"), answer["_shards"]
    return ""


def hits(client, index: str, body: Body) -> list[tuple[str, float | None]]:
    answer = client.search(index=index, body=body)
    return [(hit["_id"], hit["_score"]) for hit in answer["hits"]["hits"]]


def shown(client, index: str, body: Body) -> tuple[Any, Any]:
    """What a user sees of an answer: its hits, with marked words and values, and its aggregations."""
    answer = client.search(index=index, body=body)
    seen = ("_id", "_score", "highlight", "fields")
    return [[hit.get(each) for each in seen] for hit in answer["hits"]["hits"]], answer.get("aggregations")


@dataclass(frozen=True)
class LintNode:
    """A node with an index on which cases are tried."""

    client: Any
    index: str
    facts: IndexDescription
    several: tuple[str, IndexDescription]
    """The same of an index whose field `several` has nested documents: OpenSearch puts queries of such an index into another
    bool."""
    capabilities: Capabilities

    def of(self, case: Case) -> tuple[str, IndexDescription]:
        """The index that a case is about."""
        return self.several if "several" in str(case.body) else (self.index, self.facts)

    def lint(self, case: Case, body: Body | None = None) -> list[Finding]:
        return lint(case.body if body is None else body, self.capabilities, META, index=self.of(case)[1])

    def check_rejected(self, case: Case) -> None:
        assert (case.rule, "rejected") in {(finding.rule, finding.outcome) for finding in self.lint(case)}
        assert refusal(self.client, self.of(case)[0], case.body)

    def check_bends(self, case: Case) -> None:
        """The answer is another than that of the remedy."""
        findings, index = self.lint(case), self.of(case)[0]
        assert (case.rule, "bends") in {(finding.rule, finding.outcome) for finding in findings}
        assert not [finding for finding in findings if finding.outcome == "rejected"]
        assert case.mended is not None
        assert case.rule not in {finding.rule for finding in self.lint(case, case.mended)}
        assert shown(self.client, index, case.body) != shown(self.client, index, case.mended)


def rejected(cases: list[Case]) -> Callable[..., None]:
    """The test that what is called rejected is rejected."""

    @pytest.mark.cluster
    @pytest.mark.parametrize("case", cases, ids=named)
    def test(lint_node: LintNode, case: Case) -> None:
        lint_node.check_rejected(case)

    return test


def bending(cases: list[Case]) -> Callable[..., None]:
    """The test that what is said to bend gives other hits than its remedy."""

    @pytest.mark.cluster
    @pytest.mark.parametrize("case", cases, ids=named)
    def test(lint_node: LintNode, case: Case) -> None:
        lint_node.check_bends(case)

    return test


def outcomes(body: Any, release: str = "", **known: Any) -> dict[str, str]:
    """{rule: outcome} of the findings for a cluster of that release."""
    findings = lint(body, Capabilities(version=release) if release else None, **known)
    return {finding.rule: finding.outcome for finding in findings}
