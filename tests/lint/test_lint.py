"""The linter against a real node: what it calls rejected is rejected, what it says bends gives other results than its
remedy, and bodies that pass are taken."""

from __future__ import annotations

import base64
import copy
import json
import os
import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from opensearch_neural import forward_index, queries
from opensearch_neural.cluster.capabilities import Capabilities, quick_capabilities
from opensearch_neural.index.mapping import index_body, rank_features
from opensearch_neural.index.record import DenseMeta, IndexMeta, QuantizedMeta, SparseMeta
from opensearch_neural.lint import lint
from opensearch_neural.lint.findings import RULES
from opensearch_neural.lint.index_description import IndexDescription
from opensearch_neural.multi_vector import several_vectors, stored
from opensearch_neural.queries import Body, Rare

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

REJECTED = [
    Case("malformed", {"query": {}}),
    Case("malformed", {"query": {"match_all": {}, "match_none": {}}}),
    Case("malformed", {"query": {"rank_feature": {"linear": {}}}}),
    Case("page", {"query": ALL, "size": -1}),
    Case("page", {"query": ALL, "from": -1}),
    Case("page", {"query": ALL, "from": 9_991}),
    Case("page", {"query": ALL, "size": 10_001}),
    Case("page", {"query": ALL, "search_after": [5]}),
    Case("page", {"query": ALL, "sort": ["_score"], "search_after": [5]}),
    Case("page", {"query": ALL, "sort": [{"n": "asc"}], "search_after": [5], "from": 5}),
    Case("too-many-clauses", {"query": sparse(many("a", 1025))}),
    Case("too-many-clauses", {"query": should(*(feature(f"sparse.a{number}") for number in range(1025)))}),
    Case("too-many-clauses", {"query": {"bool": {"should": [feature("sparse.a")] * 1025}}}),
    Case("too-many-clauses", {"query": should(sparse(many("a", 600)), sparse(many("b", 600)))}),
    Case("too-many-clauses", {"query": hybrid(sparse(many("a", 600)), sparse(many("b", 600))), **NORMALIZED}),
    Case("too-many-clauses", queries.bm25(" ".join(f"w{number}" for number in range(1025)))),
    Case("too-many-clauses", {"query": ALL, "rescore": rescore(tokens=many("a", 1025))}),
    Case("too-many-clauses", {"query": ALL, "post_filter": should(*[{"term": {"url": "x"}}] * 1025)}),
    Case("too-many-clauses", queries.bm25("x", highlight=" ".join(f"w{number}" for number in range(1025)))),
    Case("too-many-terms", {"query": {"terms": {"url": [str(number) for number in range(65_537)]}}}),
    Case("boost", {"query": feature("sparse.t1", boost=-1)}),
    Case("boost", {"query": feature("sparse.t1", boost="NaN")}),
    Case("boost", {"query": feature("sparse.t1", boost=float("nan"))}),
    Case("boost", {"query": feature("sparse.t1", boost=1e39)}),
    Case("boost", {"query": feature("sparse.t1", boost=None)}),
    Case("boost", {"query": feature("sparse.t1", boost=True)}),
    Case("boost", {"query": should(sparse(), boost=-2)}),
    Case("boost", {"query": {"match": {"text": {"query": "x", "boost": -2}}}}),
    Case("boost", {"query": knn(k=10, boost=-1)}),
    *(
        Case("weight", {"query": sparse({"t1": weight, "t2": 1.0})})
        for weight in (0, 0.0, -1, 65, 64.00001, 1e-50, 1e30, "NaN", float("nan"), float("inf"), None, True, "x", [1])
    ),
    Case("field", {"query": {"neural_sparse": {"text": {"query_tokens": Q}}}}),
    Case("field", {"query": {"neural_sparse": {"nowhere": {"query_tokens": Q}}}}),
    Case("field", {"query": knn(field="text")}),
    Case("field", {"query": knn(field="nowhere")}),
    Case("field", {"query": knn(field="several")}),
    Case("field", {"query": nearest("dense")}),
    Case("field", {"query": nearest("nowhere")}),
    Case("field", {"query": {"nested": {"path": "plain", "query": ALL, "ignore_unmapped": True}}}),
    Case("malformed", {"query": {"nested": {"query": nearest()}}}),
    Case("field", {"query": {"nested": {"path": "several", "query": knn(field="several.other")}}}),
    *(
        Case("rescore-with-sort", {"query": sparse(), "rescore": rescore(), "sort": sort})
        for sort in (["n"], "n", {"n": "asc"}, [{"_score": "asc"}], ["_score", "n"], ["_doc"])
    ),
    Case("rescore-with-sort", {"query": sparse(), "sort": ["n"], **two_phase(prune_ratio=0.9)}),
    Case(
        "rescore-with-sort",
        {"query": sparse(), "rescore": rescore(), "sort": [{"_score": "desc"}, {"n": "asc"}], "search_after": [5, 1]},
    ),
    Case("rescore-with-collapse", {"query": sparse(), "rescore": rescore(), "collapse": {"field": "url"}}),
    Case("rescore-with-collapse", {"query": sparse(), "collapse": {"field": "url"}, **two_phase()}),
    Case("rescore-window", {"query": sparse(), "rescore": rescore(10_001)}),
    Case("rescore-window", {"query": sparse(), "rescore": rescore(-1)}),
    Case("quantized-table", quantized(parts=1)),
    Case("quantized-table", quantized(table=None)),
    Case("quantized-table", quantized(table=[0.5] * 512)),
    Case("quantized-table", quantized(scale=None)),
    Case("field", quantized(field="text")),
    Case("field", quantized(field="codes")),
    Case("rescore-window", {"query": sparse(), "rescore": [rescore(20), rescore(10_001)]}),
    *(
        Case("two-phase-parameter", {"query": sparse(), **two_phase(**parameters)})
        for parameters in (
            {"prune_ratio": 1},
            {"prune_ratio": -0.1},
            {"prune_type": "top_k", "prune_ratio": 2.5},
            {"prune_type": "top_k", "prune_ratio": 0},
            {"prune_type": "alpha_mass", "prune_ratio": 1.0},
            {"prune_type": "abs_value", "prune_ratio": -1},
            {"prune_type": "rare"},
            {"expansion_rate": 0.5},
            {"max_window_size": 49},
        )
    ),
    Case("two-phase-window", {"query": sparse(), "size": 2001, **two_phase()}),
    Case("two-phase-window", {"query": sparse(), "size": 30, **two_phase(max_window_size=100)}),
    Case(
        "two-phase-window",
        {"query": sparse(), "size": 4000, **two_phase(expansion_rate=2.6, max_window_size=20_000)},
    ),
    Case("hybrid-nested", {"query": {"bool": {"must": [hybrid()], "filter": [WIDE]}}, **NORMALIZED}),
    Case("hybrid-nested", {"query": should(hybrid(), ALL), **NORMALIZED}),
    Case("hybrid-nested", {"query": {"bool": {"must_not": [hybrid()]}}, **NORMALIZED}),
    Case("hybrid-nested", {"query": {"dis_max": {"queries": [hybrid(), ALL]}}, **NORMALIZED}),
    Case("hybrid-queries", {"query": hybrid(*[sparse()] * 6), **NORMALIZED}),
    Case("hybrid-queries", {"query": {"hybrid": {"queries": []}}, **NORMALIZED}),
    Case("hybrid-option", {"query": hybrid(boost=2.0), **NORMALIZED}),
    Case("hybrid-option", {"query": hybrid(filter=WIDE), **NORMALIZED}),
    Case("hybrid-pagination", {"query": hybrid(), "from": 5, **NORMALIZED}),
    *(Case("hybrid-pagination", {"query": hybrid(pagination_depth=depth), **NORMALIZED}) for depth in (0, -1, 10_001)),
    Case("hybrid-with", {"query": hybrid(), "sort": ["_score", "n"], **NORMALIZED}),
    Case("hybrid-with", {"query": hybrid(), "profile": True, **NORMALIZED}),
    Case("fusion-technique", {"query": hybrid(), **fused(normalization={"technique": "z_score"})}),
    Case("fusion-technique", {"query": hybrid(), **fused(normalization={"technique": "max"})}),
    *(
        Case("fusion-weights", {"query": hybrid(), **weighted(*weights)})
        for weights in (
            [0.5],
            [0.3, 0.3, 0.4],
            [0.5, 0.4],
            [0.5, 0.5101],
            [0.5, 0.489],
            [1.5, -0.5],
            [1, 0],
            [1.0, 0],
            ["a", 1.0],
            [],
        )
    ),
    Case("fusion-weights", {"query": hybrid(), **ranked(parameters={"weights": [0.5, 0.5]})}),
    *(
        Case("rank-constant", {"query": hybrid(), **ranked(parameters={"rank_constant": constant})})
        for constant in (0, 10_001, 1.5, "x")
    ),
    *(Case("knn-k", {"query": knn(k=k)}) for k in (0, -1, 10_001, None, "x")),
    Case("knn-k", {"query": knn(k=5, min_score=0.5)}),
    Case("knn-k", {"query": {"knn": {"dense": {"vector": VECTOR}}}}),
    *(
        Case("knn-vector", {"query": knn(vector)})
        for vector in ([1.0, 2.0], [1.0, 2, 3, 4], [0, 0, 0], [], [1, 2, None], "abc", [1e39, 1, 1], [True, 1, 1])
    ),
    Case("knn-vector", {"query": nearest(vector=[1, 2, 3, 4])}),
    Case("knn-vector", {"query": knn([1, 2, 128], field="bytes")}),
    Case("knn-vector", {"query": knn([1, 2, 1.5], field="bytes")}),
    *(
        Case("knn-vector", queries.dense_rescore(queries.bm25("rainbow"), vector, field=field))
        for field, vector in (("dense", [1.0, 2.0]), ("dense", [0.0, 0.0, 0.0]), ("bytes", [1, 2, 1.5]), ("dense", []))
    ),
    Case("field", queries.dense_rescore(queries.bm25("rainbow"), VECTOR, field="n")),
    Case("knn-filter", {"query": knn(k=10, filter=[WIDE])}),
]

BENDS = [
    Case("weight", {"query": feature("sparse.t1", boost=0)}, {"query": {"match_none": {}}}),
    Case("weight", {"query": feature("sparse.t1", boost=1e-50)}, {"query": {"match_none": {}}}),
    Case("boost", {"query": {"match": {"text": {"query": "rainbow", "boost": 0}}}}, {"query": RAINBOW}),
    Case("empty-query", {"query": sparse({})}, {"query": sparse()}),
    Case("empty-query", {"query": {"bool": {"should": []}}}, {"query": {"match_none": {}}}),
    Case(
        "field",
        queries.dense_rescore(queries.bm25("rainbow"), VECTOR, field="nowhere"),
        queries.dense_rescore(queries.bm25("rainbow"), VECTOR),
    ),
    Case("empty-query", queries.bm25("is it the"), queries.bm25("is it the rainbow")),
    Case("empty-query", queries.bm25("?!"), queries.bm25("rainbow")),
    Case("field", {"query": feature("text.t1")}, {"query": feature("sparse.t1")}),
    Case("field", {"query": feature("nowhere.t1")}, {"query": feature("sparse.t1")}),
    Case("dot-token", {"query": feature("sparse.u.s")}, {"query": sparse({"u.s": 1.0})}),
    Case("dot-token", {"query": feature("sparse..")}, queries.neural_sparse({".": 1.0}, plugin=False)),
    Case("not-linear", {"query": {"rank_feature": {"field": "sparse.t1"}}}, {"query": feature("sparse.t1")}),
    Case(
        "optional-tokens",
        {"query": should(sparse(), filter=[WIDE]), "size": 200},
        {"query": should(sparse(), filter=[WIDE], minimum_should_match=1), "size": 200},
    ),
    Case(
        "optional-tokens",
        {"query": should(feature("sparse.t1"), filter=WIDE), "size": 200},
        {"query": {"bool": {"must": [feature("sparse.t1")], "filter": WIDE}}, "size": 200},
    ),
    Case(
        "rescore-of-hybrid",
        {"query": hybrid(), "rescore": rescore(), **NORMALIZED},
        {"query": hybrid(), **NORMALIZED},
    ),
    Case("rescore-window", {"query": sparse(), "rescore": rescore(3)}, {"query": sparse(), "rescore": rescore(200)}),
    Case("rescore-window", {"query": sparse(), "rescore": rescore(0)}, {"query": sparse(), "rescore": rescore(200)}),
    Case(
        "rescore-window",
        {"query": sparse(), "size": 20, "rescore": {"query": rescore()["query"]}},
        {"query": sparse(), "size": 20, "rescore": rescore(20)},
    ),
    Case("quantized-table", quantized(parts=3), quantized()),
    Case("forward-index", by_rows(hashes=[3, 2, 1]), by_rows()),
    Case("forward-index", by_rows(hashes=[1, 2, 3]), by_rows()),
    Case(
        "rescore-order",
        {"query": sparse(), "rescore": [rescore(20), rescore(60, query_weight=1.0)], "size": 20},
        {"query": sparse(), "rescore": [rescore(60), rescore(60, query_weight=1.0)], "size": 20},
    ),
    Case(
        "rescore-min-score",
        {"query": sparse(), "rescore": rescore(200), "min_score": 4, "size": 200},
        {"query": sparse(), "rescore": rescore(200), "size": 200},
    ),
    Case(
        "rescore-weight",
        {"query": sparse(), "rescore": rescore(rescore_query_weight=-1.0)},
        {"query": sparse(), "rescore": rescore()},
    ),
    Case(
        "two-phase-window",
        {"query": sparse(), "from": 30, **two_phase(prune_ratio=0.9, expansion_rate=1.0)},
        {"query": sparse(), "from": 30, **two_phase(prune_ratio=0.9, expansion_rate=5.0)},
    ),
    Case(
        "two-phase-empty",
        {"query": sparse(), **two_phase(prune_type="alpha_mass", prune_ratio=0.5)},
        {"query": sparse(), **two_phase(prune_type="max_ratio", prune_ratio=0.5)},
    ),
    Case(
        "two-phase-empty",
        {"query": sparse(), **two_phase(prune_type="abs_value", prune_ratio=2.1)},
        {"query": sparse(), **two_phase(prune_type="abs_value", prune_ratio=2.0)},
    ),
    Case(
        "two-phase-with-rescore",
        {"query": sparse(), "rescore": rescore(200, Q), "size": 100, **two_phase(prune_ratio=0.9)},
        {"query": sparse(), "rescore": rescore(200, Q), "size": 100},
    ),
    *(
        # Split, a query leaves out the documents that hold its light tokens only.
        Case(
            "two-phase-not-split",
            {"query": query, "size": 200, **two_phase(prune_ratio=0.9)},
            {"query": sparse(), "size": 200, **two_phase(prune_ratio=0.9)},
        )
        for query in (
            {"bool": {"must": [sparse()]}},
            {"bool": {"filter": [sparse()]}},
            {"constant_score": {"filter": sparse()}},
            {"dis_max": {"queries": [sparse()]}},
            should(*(feature(f"sparse.{token}", boost=weight) for token, weight in Q.items())),
        )
    ),
    *(
        Case("hybrid-nested", {"query": query, **NORMALIZED}, {"query": hybrid(), **NORMALIZED})
        for query in (
            {"constant_score": {"filter": hybrid()}},
            {"function_score": {"query": hybrid()}},
            {"boosting": {"positive": hybrid(), "negative": {"match_none": {}}, "negative_boost": 0.5}},
            {"bool": {"filter": [hybrid()]}},
        )
    ),
    Case(
        "hybrid-nested",
        {"query": hybrid(hybrid(sparse({"t1": 2.0}), sparse({"t2": 1.0})), RAINBOW), **NORMALIZED},
        {"query": hybrid(sparse({"t1": 2.0}), sparse({"t2": 1.0}), RAINBOW), **NORMALIZED},
    ),
    Case(
        "hybrid-nested",
        {"query": ALL, "rescore": {"window_size": 200, "query": {"rescore_query": hybrid()}}},
        {"query": hybrid(), **NORMALIZED},
    ),
    Case("hybrid-without-pipeline", {"query": hybrid()}, {"query": hybrid(), **NORMALIZED}),
    Case(
        "hybrid-pagination",
        {"query": hybrid(pagination_depth=10), "size": 50, **NORMALIZED},
        {"query": hybrid(pagination_depth=50), "size": 50, **NORMALIZED},
    ),
    Case(
        "hybrid-with",
        {"query": hybrid(pagination_depth=100), "size": 100, "collapse": {"field": "url"}, **NORMALIZED},
        {"query": sparse(), "size": 100, "collapse": {"field": "url"}},
    ),
    Case(
        "hybrid-with",
        {"query": hybrid(), "min_score": 0.9, **NORMALIZED},
        {"query": hybrid(), "size": 1, **NORMALIZED},
    ),
    Case("fusion-without-hybrid", {"query": sparse(), **NORMALIZED}, {"query": hybrid(sparse()), **NORMALIZED}),
    Case("fusion-without-hybrid", {"query": sparse(), **ranked()}, {"query": hybrid(sparse()), **ranked()}),
    Case(
        "fusion-technique",
        {"query": hybrid(), **fused(combination={"technique": "rrf"})},
        {"query": hybrid(), **ranked()},
    ),
    Case(
        "fusion-weights",
        {"query": hybrid(), **fused(combination={"technique": "arithmetic_mean", "weights": [0.9, 0.1]})},
        {"query": hybrid(), **weighted(0.9, 0.1)},
    ),
    Case(
        "rank-constant",
        {"query": hybrid(), **ranked(rank_constant=1)},
        {"query": hybrid(), **ranked(parameters={"rank_constant": 1})},
    ),
    Case("knn-k", {"query": knn(k=3)}, {"query": knn(k=10)}),
    Case("knn-k", {"query": knn(k=10), "from": 10}, {"query": knn(k=20), "from": 10}),
    Case("knn-k", {"query": knn(k=3.9), "size": 3}, {"query": knn(k=4), "size": 4}),
    Case(
        "knn-filter",
        {"query": {"bool": {"must": [knn(k=10)], "filter": [NEAR]}}},
        {"query": knn(k=10, filter=NEAR)},
    ),
    Case("knn-filter", {"query": knn(k=10), "post_filter": NEAR}, {"query": knn(k=10, filter=NEAR)}),
    Case("knn-filter", {"query": nearest(), "post_filter": NEAR}, {"query": nearest(filter=NEAR)}),
    Case(
        "knn-filter",
        {"query": {"bool": {"must": [nearest()], "filter": [NEAR]}}},
        {"query": nearest(filter=NEAR)},
    ),
    Case("nested-field", {"query": knn(field="several.vector")}, {"query": nearest()}),
    Case("nested-field", {"query": {"nested": {"path": "several", "query": knn()}}}, {"query": knn()}),
    Case("nested-field", {"query": {"nested": {"path": "several", "query": RAINBOW}}}, {"query": RAINBOW}),
    Case(
        "nested-field",
        {"query": {"exists": {"field": "several.vector"}}},
        {"query": {"nested": {"path": "several", "query": {"exists": {"field": "several.vector"}}}}},
    ),
]

# No node that can be had here has sparse_vector fields; `plugin` has its own test, on a node without plugins, and
# `pruned-postings` another index (tests/engines/test_pruned_postings.py).
NOT_SHOWN = {"seismic-token", "seismic-collision", "plugin", "pruned-postings"}


@contextmanager
def written(client, *, several: bool = False) -> Iterator[str]:
    name = f"osn-test-lint-{uuid.uuid4().hex[:12]}"
    body = index_body(META, replicas=0)
    method = {"name": "hnsw", "engine": "lucene", "space_type": "l2"}
    properties = body["mappings"]["properties"]
    properties["bytes"] = {"type": "knn_vector", "dimension": 3, "data_type": "byte", "method": method}
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


@pytest.fixture(scope="module")
def index(client) -> Iterator[str]:
    with written(client) as name:
        yield name


@pytest.fixture(scope="module")
def facts(client, index: str) -> IndexDescription:
    return IndexDescription.of(client, index)


@pytest.fixture(scope="module")
def several(client) -> Iterator[tuple[str, IndexDescription]]:
    """An index whose field `several` has nested documents: OpenSearch puts queries of such an index into another bool."""
    with written(client, several=True) as name:
        yield name, IndexDescription.of(client, name)


@pytest.fixture(scope="module")
def capabilities(client) -> Capabilities:
    capabilities = quick_capabilities(client)
    if capabilities.version_number >= (3, 0):
        pytest.skip("the cases are those of OpenSearch 2.19")
    return capabilities


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


def named(case: Case) -> str:
    return f"{case.rule}: {json.dumps(case.body)[:90]}"


@pytest.mark.cluster
@pytest.mark.parametrize("case", REJECTED, ids=named)
def test_what_the_linter_calls_rejected_is_rejected(
    client,
    index: str,
    facts: IndexDescription,
    several: tuple[str, IndexDescription],
    capabilities: Capabilities,
    case: Case,
) -> None:
    if "several" in str(case.body):
        index, facts = several
    findings = lint(case.body, capabilities, META, index=facts)
    assert (case.rule, "rejected") in {(finding.rule, finding.outcome) for finding in findings}
    assert refusal(client, index, case.body)


@pytest.mark.cluster
@pytest.mark.parametrize("case", BENDS, ids=named)
def test_what_the_linter_says_bends_gives_other_hits_than_its_remedy(
    client,
    index: str,
    facts: IndexDescription,
    several: tuple[str, IndexDescription],
    capabilities: Capabilities,
    case: Case,
) -> None:
    if "several" in str(case.body):
        index, facts = several
    findings = lint(case.body, capabilities, META, index=facts)
    assert (case.rule, "bends") in {(finding.rule, finding.outcome) for finding in findings}
    assert not [finding for finding in findings if finding.outcome == "rejected"]
    assert case.mended is not None
    assert case.rule not in {finding.rule for finding in lint(case.mended, capabilities, META, index=facts)}
    assert hits(client, index, case.body) != hits(client, index, case.mended)


@pytest.mark.cluster
@pytest.mark.parametrize("case", [case for case in REJECTED if case.rule == "hybrid-nested"], ids=named)
def test_a_hybrid_below_another_query_of_an_index_with_nested_documents(
    client, several: tuple[str, IndexDescription], capabilities: Capabilities, case: Case
) -> None:
    index, facts = several
    (outcome,) = (
        finding.outcome
        for finding in lint(case.body, capabilities, META, index=facts)
        if finding.rule == "hybrid-nested"
    )
    taken = not refusal(client, index, case.body)
    assert outcome == ("doubtful" if "dis_max" in str(case.body) else "rejected")
    assert taken == (outcome == "doubtful")


@pytest.mark.cluster
@pytest.mark.parametrize("path", ["nowhere", "dense"])
def test_a_nested_query_that_may_have_no_nested_documents_finds_nothing_and_is_fine(
    client, index: str, facts: IndexDescription, capabilities: Capabilities, path: str
) -> None:
    body = {"query": {"nested": {"path": path, "query": knn(field="nowhere.vector"), "ignore_unmapped": True}}}
    assert not lint(body, capabilities, META, index=facts) and not hits(client, index, body)


def test_every_rule_is_shown_on_the_node() -> None:
    assert {case.rule for case in REJECTED + BENDS} == set(RULES) - NOT_SHOWN


JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    "x",
    "",
    [],
    {},
    [None],
    {"a": 1},
    float("nan"),
    float("inf"),
    10**400,
    [[1]],
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a body, at most a dozen of one list."""
    held = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in list(held)[:12]:
        yield (*path, step)
        yield from places(inner, (*path, step))


def test_a_body_with_any_part_of_it_replaced_is_linted_without_failing() -> None:
    random_ = random.Random(1)
    bodies_ = [case.body for case in REJECTED + BENDS if len(str(case.body)) < 5_000]
    releases = [None, Capabilities(version="2.19.1"), Capabilities(version="3.4.0", hybrid=False, neural_sparse=False)]
    for _ in range(8_000):
        body = copy.deepcopy(random_.choice(bodies_))
        *path, last = random_.choice(list(places(body)))
        holder = body
        for step in path:
            holder = holder[step]
        holder[last] = copy.deepcopy(random_.choice(JUNK))
        assert all(str(finding) for finding in lint(body, random_.choice(releases), META)), body


# ------------------------------------------------------------------------------------------- bodies made by queries.py


def mostly(good: list[Any], bad: list[Any]) -> st.SearchStrategy[Any]:
    """One of the good values nine times in ten, so that most bodies have one fault or none."""
    return st.sampled_from([True] * 9 + [False]).flatmap(lambda fine: st.sampled_from(good if fine else bad))


weights = st.floats(0.01, 64) | st.sampled_from([64, 1e-40, 1e-30])
bad_weights = weights | st.sampled_from([0.0, -1.0, 64.5, 1e-46, 1e9])
few = st.sampled_from([*TOKENS, "é", "a b", "[x]", "東"])
token_maps = st.one_of(
    *[st.dictionaries(few, weights, max_size=8)] * 8,
    st.dictionaries(few, bad_weights, max_size=8),
    st.builds(many, st.just("x"), st.sampled_from([1000, 1023, 1024, 1025, 1100])),
)
filters: list[Any] = [
    None,
    None,
    {"range": {"n": {"lt": 60}}},
    [{"term": {"url": "u1"}}, {"exists": {"field": "n"}}],
    {"bool": {"must_not": [{"terms": {"n": [1, 2, 3]}}]}},
]
pages = st.fixed_dictionaries(
    {
        "size": mostly([1, 10, 50, 2_000], [0, 9_000, 10_001]),
        "from_": mostly([0, 0, 0, 5, 40], [2_000, 9_999]),
        "filter": st.sampled_from(filters),
        "highlight": mostly([None, None, "rainbow"], ["w " * 1025]),
    }
)


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    """A body of queries.py; now and then one of its arguments is bad."""
    page = draw(pages)
    kind = draw(
        st.sampled_from(["bm25", "sparse", "sparse", "first", "knn", "hybrid", "hybrid", "cascade", "jpq", "near"])
    )
    tokens, plugin = draw(token_maps), draw(st.booleans())
    text = draw(mostly(["rainbow", "rainbow in the rain", "東京"], ["x " * 1024, "x " * 1025]))
    vector = draw(mostly([VECTOR, [0.0, 0.0, 1.0]], [[0.0, 0.0, 0.0], [1.0, 2.0], [1.0, 2.0, float("nan")]]))
    k = draw(mostly([1, 100, 10_000], [10_001]))
    if kind == "bm25":
        return queries.bm25(text, fields=draw(st.sampled_from([("contents",), ("title", "text")])), **page)
    if kind == "sparse":
        return queries.neural_sparse(tokens, plugin=plugin, **page)
    if kind == "first":
        rare = draw(st.sampled_from([Rare(), Rare("share", 0.5), Rare("count", 2)]))
        window = draw(mostly([1, 100, 10_000], [10_001]))
        return queries.high_idf_first(tokens, rare=rare, window=window, plugin=plugin, **page)
    if kind == "cascade":
        windows = {name: draw(mostly([1, 100, 10_000], [10_001])) for name in ("window", "dense_window")}
        weight = draw(st.floats(1e-3, 1e3))
        return queries.cascade(tokens, table(2), weight=weight, plugin=plugin, **windows, **page)
    if kind == "jpq":
        return draw(
            st.sampled_from(
                [queries.quantized(table(2), **page), queries.quantized_rescore(queries.bm25(text, **page), table(2))]
            )
        )
    if kind == "near":
        first = queries.bm25_sparse(text, tokens, weight=0.5, window=100, plugin=plugin, **page)
        return queries.dense_rescore(first, vector, window=100, first_weight=1.0)
    if kind == "knn":
        return queries.knn(vector, k=k, **page)
    filter = page.pop("filter")
    parts = [queries.bm25(text, filter=filter), queries.knn(vector, k=k, filter=filter)]
    if draw(st.booleans()):
        parts.append(queries.neural_sparse(tokens, plugin=plugin, filter=filter))
    method = draw(st.sampled_from(["min_max", "l2", "rrf"]))
    shares = draw(st.sampled_from([None, [0.4, 0.6], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]))
    if shares is not None and (len(shares) != len(parts) or method == "rrf"):
        shares = None
    depth = draw(mostly([100, 10_000], [None]))
    return queries.hybrid(*parts, method=method, weights=shares, depth=depth, **page)


BESIDE: list[Body] = [
    *[{}] * 12,
    {"sort": ["_score"]},
    {"sort": [{"n": "asc"}]},
    {"sort": ["_score", {"n": "asc"}], "search_after": [5, 3]},
    {"collapse": {"field": "url"}},
    {"min_score": 0.5},
    {"post_filter": {"range": {"n": {"lt": 60}}}},
    {"rescore": rescore(20)},
    {"rescore": rescore(10_001)},
    two_phase(),
    two_phase(prune_type="alpha_mass"),
    {"profile": True},
]


@pytest.mark.cluster
def test_a_hybrid_query_for_no_hits_fails_when_the_shard_answers_from_its_cache(
    client, index: str, facts: IndexDescription, capabilities: Capabilities
) -> None:
    body = {"query": hybrid(pagination_depth=100), "size": 0, **NORMALIZED}
    (finding,) = lint(body, capabilities, META, index=facts)
    assert (finding.rule, finding.outcome) == ("hybrid-with", "doubtful")
    assert not refusal(client, index, body)
    assert "cannot produce final query result" in refusal(client, index, body)


@pytest.mark.cluster
@given(body=bodies(), beside=st.sampled_from(BESIDE))
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_body_is_rejected_exactly_where_the_linter_says_so(
    client, index: str, facts: IndexDescription, capabilities: Capabilities, body: Body, beside: Body
) -> None:
    """Both directions at once, for every body that queries.py makes, its arguments and what stands beside good or bad."""
    body = {**body, **copy.deepcopy(beside)}
    findings = lint(body, capabilities, META, index=facts)
    why = refusal(client, index, body)
    outcomes = {finding.outcome for finding in findings}
    event(next((outcome for outcome in ("rejected", "doubtful", "bends") if outcome in outcomes), "passes"))
    if "rejected" in outcomes:
        assert why, findings
    elif "doubtful" not in outcomes:
        assert not why, body


# --------------------------------------------------------------------------------------------- a node without plugins


@pytest.fixture(scope="module")
def bare_client() -> Iterator[Any]:
    """A client of OpenSearch 3.5 without plugins; skipped where no Java can run it."""
    from opensearch_neural import node
    from opensearch_neural.cluster.connect import connect
    from opensearch_neural.errors import ClusterError
    from opensearch_neural.node.parts import PROFILES, find_java

    try:
        find_java(PROFILES["core"].java, "the core profile")
    except ClusterError as error:
        pytest.skip(str(error))
    name = f"osn-test-lint-core-{os.getpid()}"
    running = node.start("core", port=0, heap="512m", name=name, attached=True)
    connected = connect(running.url)
    yield connected
    connected.close()
    node.stop(name, purge=True)


def test_the_core_profile_scores_features_and_bytes_without_plugins(bare_client) -> None:
    assert bare_client.info()["version"]["number"] == "3.5.0"
    properties = {"sparse": {"type": "rank_features"}, "pq": {"type": "binary", "doc_values": True}}
    bare_client.indices.create(index="a", body={"mappings": {"properties": properties}})
    bare_client.index(index="a", body={"sparse": {"cat": 1.5}, "pq": "/wA="}, params={"refresh": "true"})
    query = {"rank_feature": {"field": "sparse.cat", "linear": {}, "boost": 2.0}}
    by_script = {"script_score": {"query": ALL, "script": {"source": "doc['pq'].value.bytes[0] & 255"}}}
    rescoring = {"window_size": 10, "query": {"rescore_query": by_script}}
    (hit,) = bare_client.search(index="a", body={"query": query, "rescore": rescoring})["hits"]["hits"]
    assert hit["_score"] == 3.0 + 255.0


def test_without_plugins_what_needs_one_is_rejected_and_the_plugin_free_form_is_taken(bare_client) -> None:
    """The same rules on another release: 3.5 refuses what they say it does, and takes what passes."""
    name = "lint"
    meta = IndexMeta(sparse=META.sparse, quantized=META.quantized)
    bare_client.indices.create(index=name, body=index_body(meta, replicas=0))
    for number in range(20):
        row = rank_features({f"t{number % 4}": 1.0 + number, ".": 1.0})
        bare_client.index(
            index=name, id=str(number), body={"text": "rainbow", "n": number, "sparse": row, "pq": "AAE="}
        )
    bare_client.indices.refresh(index=name)
    capabilities, facts = quick_capabilities(bare_client), IndexDescription.of(bare_client, name)
    assert capabilities.neural_sparse is False
    needing = [{"query": sparse()}, {"query": knn()}, {"query": hybrid(), **NORMALIZED}, {"query": ALL, **two_phase()}]
    for body in [*needing, {"query": hybrid(), **ranked()}]:
        assert ("plugin", "rejected") in {
            (each.rule, each.outcome) for each in lint(body, capabilities, meta, index=facts)
        }
        assert refusal(bare_client, name, body)
    plugin = (
        "neural_sparse",
        "knn",
        "hybrid",
        "processors",
        "ignore_unmapped",
    )  # the last is of a field that is not here
    plain = [case for case in REJECTED if not any(kind in json.dumps(case.body) for kind in plugin)]
    assert len({case.rule for case in plain}) >= 5
    for case in plain:
        assert (case.rule, "rejected") in {
            (each.rule, each.outcome) for each in lint(case.body, capabilities, meta, index=facts)
        }
        assert refusal(bare_client, name, case.body), case
    for tokens in (Q, many("x", 1024), {".": 1.0}, {"t1": 64.0, "t0": 1e-40}, {}):
        for body in (
            queries.neural_sparse(tokens, plugin=False, highlight="rainbow"),
            queries.high_idf_first(tokens, plugin=False, size=3, from_=2),
        ):
            assert not [each for each in lint(body, capabilities, meta, index=facts) if each.outcome == "rejected"]
            assert not refusal(bare_client, name, body)
