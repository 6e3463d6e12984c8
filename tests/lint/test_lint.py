"""The linter against a real node: what it calls rejected is rejected, what it says bends gives other results than its
remedy, and bodies that pass are taken. The cases of each family of rules stand in the file of its name."""

from __future__ import annotations

import copy
import json
import os
import random
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from lint_cases import (
    ALL,
    META,
    NORMALIZED,
    RAINBOW,
    TOKENS,
    VECTOR,
    Case,
    LintNode,
    Q,
    hybrid,
    knn,
    many,
    outcomes,
    ranked,
    refusal,
    rejected,
    rescore,
    sparse,
    table,
    two_phase,
)

from opensearch_neural import queries
from opensearch_neural.cluster.capabilities import Capabilities, quick_capabilities
from opensearch_neural.index.mapping import index_body, rank_features
from opensearch_neural.index.record import IndexMeta
from opensearch_neural.lint import lint
from opensearch_neural.lint.findings import RULES
from opensearch_neural.lint.index_description import IndexDescription
from opensearch_neural.queries import Body, Rare

from . import (
    test_boolean,
    test_fields,
    test_fusion,
    test_highlight,
    test_hybrid,
    test_limits,
    test_members,
    test_neighbours,
    test_nested_documents,
    test_quantized,
    test_request,
    test_rescoring,
    test_sparse,
    test_text,
    test_two_phase,
    test_weights,
)

FAMILIES = (
    test_boolean,
    test_fields,
    test_fusion,
    test_highlight,
    test_hybrid,
    test_limits,
    test_members,
    test_nested_documents,
    test_neighbours,
    test_quantized,
    test_request,
    test_rescoring,
    test_sparse,
    test_text,
    test_two_phase,
    test_weights,
)
MALFORMED = [
    Case("malformed", {"query": {}}),
    Case("malformed", {"query": {"match_all": {}, "match_none": {}}}),
]
REJECTED = MALFORMED + [case for family in FAMILIES for case in getattr(family, "REJECTED", [])]
BENDS = [case for family in FAMILIES for case in getattr(family, "BENDS", [])]

# No node that can be had here has sparse_vector fields; `plugin` has its own test, on a node without plugins, and
# `pruned-postings` another index (tests/engines/test_pruned_postings.py).
NOT_SHOWN = {"seismic-token", "seismic-collision", "plugin", "pruned-postings"}

test_what_is_called_rejected_is_rejected = rejected(MALFORMED)


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
@given(body=bodies(), beside=st.sampled_from(BESIDE))
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_body_is_rejected_exactly_where_the_linter_says_so(lint_node: LintNode, body: Body, beside: Body) -> None:
    """Both directions at once, for every body that queries.py makes, its arguments and what stands beside good or bad."""
    body = {**body, **copy.deepcopy(beside)}
    findings = lint(body, lint_node.capabilities, META, index=lint_node.facts)
    why = refusal(lint_node.client, lint_node.index, body)
    outcomes = {finding.outcome for finding in findings}
    event(next((outcome for outcome in ("rejected", "doubtful", "bends") if outcome in outcomes), "passes"))
    if "rejected" in outcomes:
        assert why, findings
    elif "doubtful" not in outcomes:
        assert not why, body


# ------------------------------------------------------------------------------------------------------ without a cluster

PARTS = {"hybrid": {"queries": [{"match_all": {}}, {"match_none": {}}]}}


def fused_by_rank(**combination: Any) -> dict[str, Any]:
    processor = {"score-ranker-processor": {"combination": {"technique": "rrf", **combination}}}
    return {"query": PARTS, "search_pipeline": {"phase_results_processors": [processor]}}


@pytest.mark.parametrize(
    ("body", "rule", "by_release"),
    [
        (
            fused_by_rank(parameters={"weights": [0.5, 0.5]}),
            "fusion-weights",
            {"2.19.1": "rejected", "3.0.0": "rejected", "3.1.0": None, "": "doubtful"},
        ),
        (
            fused_by_rank(rank_constant=10),
            "rank-constant",
            {"2.19.1": "bends", "3.0.0": None, "3.4.0": None, "": "doubtful"},
        ),
        (
            fused_by_rank(parameters={"rank_constant": 10}),
            "rank-constant",
            {"2.19.1": None, "3.1.0": "rejected", "": None},
        ),
        (
            {"query": {"hybrid": {**PARTS["hybrid"], "filter": {"match_all": {}}}}, "search_pipeline": "fused"},
            "hybrid-option",
            {"2.19.1": "rejected", "3.0.0": None, "": "doubtful"},
        ),
        (
            {"query": {"hybrid": {**PARTS["hybrid"], "pagination_depth": 50}}, "search_pipeline": "fused"},
            "hybrid-pagination",
            {"2.18.0": "rejected", "2.19.0": None, "": "doubtful"},
        ),
        (
            {"query": PARTS, "search_pipeline": "fused", "min_score": 0.5},
            "hybrid-with",
            {"2.19.1": "bends", "3.4.0": "bends", "3.5.0": None, "": "doubtful"},
        ),
        (
            {"query": PARTS, "search_pipeline": "fused", "collapse": {"field": "url"}},
            "hybrid-with",
            {"2.19.1": "bends", "3.1.0": None, "": "doubtful"},
        ),
    ],
)
def test_a_rule_follows_the_release(body: dict[str, Any], rule: str, by_release: dict[str, str | None]) -> None:
    for release, outcome in by_release.items():
        assert outcomes(body, release).get(rule) == outcome, release


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(["bool", "_score"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["query", "bool", "should", "must", "filter", "hybrid", "queries", "knn", "neural_sparse", "rank_feature", "sort",
         "sparse", "query_tokens", "rescore", "rescore_query", "match", "terms", "boost", "k", "vector", "field", "size",
         "search_pipeline", "request_processors", "phase_results_processors", "neural_sparse_two_phase_processor",
         "normalization-processor", "score-ranker-processor", "combination", "parameters", "weights", "highlight",
         "two_phase_parameter", "window_size", "from", "pagination_depth", "search_after", "linear", "rank_constant"]
    ), inner, max_size=4),
    max_leaves=25,
)  # fmt: skip


@given(json_values)
def test_no_value_makes_the_linter_fail(body: Any) -> None:
    for known in ({}, {"meta": META}, {"index": IndexDescription(fields={"v": {"type": "sparse_vector"}})}):
        assert all(finding.rule in RULES and finding.remedy for finding in lint(body, **known))


def test_both_spellings_of_must_not_are_checked_alike() -> None:
    """OpenSearch still reads the second."""
    checked = 0
    for case in REJECTED + BENDS:
        text = json.dumps(case.body)
        spelled = json.loads(text.replace('"must_not"', '"mustNot"'))
        assert outcomes(spelled) == outcomes(case.body)
        checked += spelled != case.body
    assert checked


AS_PYTHON = [
    {"query": {"bool": {"must": (ALL, RAINBOW)}}},
    {"query": {"terms": {"n": np.arange(3)}}, "size": np.int64(5)},
    {"query": RAINBOW, "sort": ("_score", {"n": "desc"})},
    {"query": knn(tuple(VECTOR))},
    {"query": knn(np.array(VECTOR, np.float32))},
    {"query": sparse({"t1": np.float32(2), "t2": Decimal("1.5")})},
    {"query": {"match": {"text": {"query": "rainbow", "boost": Decimal("1.5")}}}, "docvalue_fields": ("n",)},
    {
        "query": hybrid(ALL, RAINBOW),
        "search_pipeline": {"phase_results_processors": ({"normalization-processor": {}},)},
    },
]


@pytest.mark.cluster
@pytest.mark.parametrize("body", AS_PYTHON, ids=str)
def test_what_opensearch_py_sends_is_read_as_it_sends_it(lint_node: LintNode, body: Body) -> None:
    assert lint(body, lint_node.capabilities, META, index=lint_node.facts) == []
    assert lint_node.client.search(index=lint_node.index, body=body)["hits"]["hits"]


def test_a_tuple_is_looked_into() -> None:
    twice = {"query": {"bool": {"must": ({"bool": {"should": ()}}, sparse({"t1": -1.0}))}}}
    assert outcomes(twice) == outcomes(json.loads(json.dumps(twice))) != {}
    staged = {"query": RAINBOW, "rescore": (rescore(), rescore(0))}
    assert outcomes(staged) == outcomes(json.loads(json.dumps(staged))) != {}


def test_linting_costs_less_than_a_millisecond() -> None:
    body = queries.high_idf_first({f"t{number}": 1.0 + number for number in range(20)}, filter={"term": {"a": 1}})
    runs = []
    for _ in range(50):
        start = time.perf_counter()
        lint(body, meta=META)
        runs.append(time.perf_counter() - start)
    assert min(runs) < 1e-3


# --------------------------------------------------------------------------------------------- a node without plugins


@pytest.fixture(scope="module")
def bare_client() -> Iterator[Any]:
    """A client of OpenSearch 3.5 without plugins; skipped where no Java can run it."""
    from opensearch_neural import node
    from opensearch_neural.cluster.connect import connect
    from opensearch_neural.errors import ClusterError
    from opensearch_neural.node.java_and_jars import PROFILES, find_java

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
    assert not lint(test_limits.BY_GROUP.body, capabilities, meta, index=facts)
    assert not refusal(bare_client, name, test_limits.BY_GROUP.body)
    for tokens in (Q, many("x", 1024), {".": 1.0}, {"t1": 64.0, "t0": 1e-40}, {}):
        for body in (
            queries.neural_sparse(tokens, plugin=False, highlight="rainbow"),
            queries.high_idf_first(tokens, plugin=False, size=3, from_=2),
        ):
            assert not [each for each in lint(body, capabilities, meta, index=facts) if each.outcome == "rejected"]
            assert not refusal(bare_client, name, body)


def test_members_are_the_same_in_3_5(bare_client) -> None:
    properties = {"url": {"type": "keyword", "store": True}}
    bare_client.indices.create(index="members", body={"mappings": {"properties": properties}})
    bare_client.index(index="members", body={"url": "u"}, params={"refresh": "true"})
    test_members.check_members(bare_client, "members", quick_capabilities(bare_client))
    of_plugins = {"hybrid", "knn", "neural", "neural_sparse"}
    assert test_members.unknown_queries(bare_client, "members") == of_plugins
