"""The linter without a cluster: rules of releases that are not at hand, what it knows from where, and `osn lint`."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from osn_command import osn_command as osn

from opensearch_neural import multi_vector, queries
from opensearch_neural.cluster.capabilities import Capabilities
from opensearch_neural.index.record import DenseMeta, IndexMeta, SparseMeta
from opensearch_neural.lint import lint
from opensearch_neural.lint.clause_count import words_of
from opensearch_neural.lint.findings import RULES
from opensearch_neural.lint.index_description import IndexDescription

META = IndexMeta(sparse=SparseMeta("m", "h", "q"), dense=DenseMeta("m", "h", 3, "byte", True))
PARTS = {"hybrid": {"queries": [{"match_all": {}}, {"match_none": {}}]}}


def outcomes(body: Any, release: str = "", **known: Any) -> dict[str, str]:
    """{rule: outcome} of the findings for a cluster of that release."""
    findings = lint(body, Capabilities(version=release) if release else None, **known)
    return {finding.rule: finding.outcome for finding in findings}


def ranked(**combination: Any) -> dict[str, Any]:
    processor = {"score-ranker-processor": {"combination": {"technique": "rrf", **combination}}}
    return {"query": PARTS, "search_pipeline": {"phase_results_processors": [processor]}}


def test_every_rule_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "queries.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE) == list(RULES)


# ------------------------------------------------------------------------------------------------------------ releases


@pytest.mark.parametrize(
    ("body", "rule", "by_release"),
    [
        (
            ranked(parameters={"weights": [0.5, 0.5]}),
            "fusion-weights",
            {"2.19.1": "rejected", "3.0.0": "rejected", "3.1.0": None, "": "doubtful"},
        ),
        (
            ranked(rank_constant=10),
            "rank-constant",
            {"2.19.1": "bends", "3.0.0": None, "3.4.0": None, "": "doubtful"},
        ),
        (
            ranked(parameters={"rank_constant": 10}),
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


# -------------------------------------------------------------------------------------------------------- sparse_vector

SEISMIC = IndexDescription(fields={"v": {"type": "sparse_vector"}})


def seismic(*tokens: str) -> list[tuple[str, str]]:
    body = {"query": {"neural_sparse": {"v": {"query_tokens": dict.fromkeys(tokens, 1.0)}}}}
    return [(finding.rule, finding.outcome) for finding in lint(body, index=SEISMIC)]


def test_tokens_of_a_sparse_vector_field_are_ids() -> None:
    assert seismic("0", "1000", "32767") == []
    for token in ("rain", "-1", "1.5", "", "2147483648", "²"):
        assert seismic(token) == [("seismic-token", "rejected")], token


@given(st.integers(0, 32_767), st.integers(1, 65_535))
def test_ids_that_are_equal_modulo_32768_collide(ident: int, times: int) -> None:
    far = ident + times * 32_768
    assert seismic(str(ident), str(far)) == [("seismic-collision", "bends")]
    assert seismic(str(far)) == [("seismic-collision", "doubtful")]
    assert seismic(str(ident), str(ident ^ 1)) == []


def test_a_rank_features_field_has_no_ids() -> None:
    body = queries.neural_sparse({"70000": 1.0, "4464": 1.0})
    assert lint(body, meta=META) == []


# ------------------------------------------------------------------------------------------------- what is known, and not


def test_nothing_is_said_of_fields_that_are_not_known() -> None:
    assert lint(queries.knn([1.0, 2.0, 3.0, 4.0])) == []
    assert lint({"query": {"neural_sparse": {"any": {"query_tokens": {"a": 1.0}}}}}) == []
    assert lint({"query": {"rank_feature": {"field": "features.u.s", "linear": {}}}}) == []


def test_the_record_of_an_index_is_enough_for_its_vectors() -> None:
    assert outcomes(queries.knn([1, 2, 3, 4]), meta=META) == {"knn-vector": "rejected"}
    assert outcomes(queries.knn([1, 2, 1.5]), meta=META) == {"knn-vector": "rejected"}
    assert outcomes(queries.knn([1, 2, 3]), meta=META) == {}
    assert outcomes(queries.knn([1, 2, 3]), meta=IndexMeta(sparse=META.sparse)) == {"field": "rejected"}
    assert outcomes(queries.neural_sparse({"a": 1.0}), meta=IndexMeta(dense=META.dense)) == {"field": "rejected"}


def test_the_record_of_an_index_is_enough_for_several_vectors() -> None:
    assert META.dense is not None
    several = replace(META, dense=replace(META.dense, vectors=2))

    nearest = multi_vector.nearest
    assert outcomes(nearest([1, 2, 3]), meta=several) == {}
    for wrong in ([1, 2, 3, 4], [1, 2, 1.5], [0, 0, 0]):
        (finding,) = lint(nearest(wrong), meta=several)
        assert (finding.rule, finding.path) == ("knn-vector", "query.nested.query.knn['dense.vector'].vector")
    # Fields that the index has not: another of the nested documents, and those of several vectors where there is one.
    other = nearest([1, 2, 3])
    other["query"]["nested"]["query"] = queries.knn([1, 2, 3], field="dense.other")["query"]
    (finding,) = lint(other, meta=several)
    assert (finding.rule, finding.outcome) == (
        "field",
        "rejected",
    ) and "'dense.other' does not exist" in finding.message
    (whole,) = lint(queries.knn([1, 2, 3]), meta=several)
    assert (whole.rule, whole.outcome) == ("field", "rejected") and "is of type nested" in whole.message
    # Taken, and nothing is found.
    (bare,) = lint(queries.knn([1, 2, 3], field=multi_vector.FIELD), meta=several)
    assert (bare.rule, bare.outcome) == ("nested-field", "bends")
    assert outcomes(nearest([1, 2, 3]), meta=META) == {"field": "rejected"}
    assert outcomes(nearest([1, 2, 3, 4])) == {}


def test_a_field_is_asked_for_among_the_documents_that_have_it() -> None:
    fields = {
        "t": {"type": "keyword"},
        "a": {"type": "nested"},
        "a.t": {"type": "keyword"},
        "a.b": {"type": "nested"},
        "a.b.t": {"type": "keyword"},
    }

    def nested(path: str, *held: dict[str, Any]) -> dict[str, Any]:
        return {"nested": {"path": path, "query": {"bool": {"must": list(held)}}}}

    root, outer, inner = ({"term": {name: "x"}} for name in ("t", "a.t", "a.b.t"))
    index = IndexDescription(fields=fields)
    # What stands behind a nested query is again of the documents around it.
    right = {"bool": {"must": [nested("a", nested("a.b", inner), outer), root]}}
    assert lint({"query": right}, index=index) == []
    for wrong in (nested("a", nested("a.b", outer)), nested("a", inner), nested("a.b", root), outer):
        assert outcomes({"query": wrong}, index=index) == {"nested-field": "bends"}


def test_a_filter_beside_several_vectors_is_said_once() -> None:
    near = {"range": {"n": {"gt": 100}}}
    body = multi_vector.nearest([1, 2, 3])
    for wrong, path in (
        ({**body, "post_filter": near}, "post_filter"),
        ({"query": {"bool": {"must": [body["query"]], "filter": near}}}, "query.bool.must[0].nested"),
    ):
        (finding,) = lint(wrong)
        assert (finding.rule, finding.outcome, finding.path) == ("knn-filter", "bends", path)
    assert lint(multi_vector.nearest([1, 2, 3], filter=near)) == []
    # Hits of a text are filtered like any others.
    either = {"dis_max": {"queries": [body["query"], {"match": {"text": "rainbow"}}]}}
    assert lint({"query": either, "post_filter": near}) == []


def test_limits_are_those_of_the_cluster_and_the_index() -> None:
    tokens = {f"t{number}": 1.0 for number in range(50)}
    assert outcomes(queries.neural_sparse(tokens)) == {}
    findings = lint(queries.neural_sparse(tokens), Capabilities(max_clause_count=40))
    assert [(finding.rule, finding.outcome) for finding in findings] == [("too-many-clauses", "rejected")]
    assert "at least 50 clauses, and this cluster takes 40" in findings[0].message
    small = IndexDescription(max_result_window=100, max_rescore_window=100)
    assert outcomes(queries.bm25("rain", size=101), index=small) == {"page": "rejected"}
    assert outcomes(queries.high_idf_first({"a": 9.0, "b": 1.0}, window=101), index=small) == {
        "rescore-window": "rejected"
    }


def test_a_pipeline_by_name_is_looked_into_where_it_is_known() -> None:
    weights = {"combination": {"technique": "arithmetic_mean", "parameters": {"weights": [0.9, 0.9]}}}
    pipeline = {"phase_results_processors": [{"normalization-processor": weights}]}
    body = {"query": PARTS, "search_pipeline": "fused"}
    assert outcomes(body) == {}
    assert outcomes(body, index=IndexDescription(pipelines={"fused": pipeline})) == {"fusion-weights": "rejected"}
    default = IndexDescription(pipelines={"fused": pipeline}, default_pipeline="fused")
    assert outcomes({"query": PARTS}, index=default) == {"fusion-weights": "rejected"}
    assert outcomes({"query": PARTS, "search_pipeline": "_none"}, index=default) == {"hybrid-without-pipeline": "bends"}


def test_a_finding_says_where_and_what_to_do() -> None:
    (finding,) = lint(queries.neural_sparse({"u.s.a": 0.0}, filter={"match_all": {}}))
    assert finding.path == "query.bool.must[0].neural_sparse.sparse.query_tokens['u.s.a']"
    assert str(finding).startswith("rejected: query.bool.must[0]")
    assert "leave the token out" in str(finding)


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
    for known in ({}, {"meta": META}, {"index": SEISMIC}):
        assert all(finding.rule in RULES and finding.remedy for finding in lint(body, **known))


@given(st.text())
def test_at_least_as_many_words_as_at_most_is_never_claimed(text: str) -> None:
    low, high = words_of(text, "english")
    assert 0 <= low <= high


def test_linting_costs_less_than_a_millisecond() -> None:
    body = queries.high_idf_first({f"t{number}": 1.0 + number for number in range(20)}, filter={"term": {"a": 1}})
    runs = []
    for _ in range(50):
        start = time.perf_counter()
        lint(body, meta=META)
        runs.append(time.perf_counter() - start)
    assert min(runs) < 1e-3


# ------------------------------------------------------------------------------------------------------------- osn lint


def test_a_body_is_read_from_standard_input_and_the_status_tells(tmp_path: Path) -> None:
    wrong = osn("lint", input=json.dumps(queries.neural_sparse({"rain": 65.0})))
    assert wrong.returncode == 1
    assert wrong.stdout.startswith("rejected: query.neural_sparse.sparse.query_tokens.rain: the weight 65.0 is outside")
    fine = tmp_path / "body.json"
    fine.write_text(json.dumps(queries.neural_sparse({"rain": 6.0})))
    done = osn("lint", str(fine))
    assert (done.returncode, done.stdout, done.stderr) == (0, "nothing found\n", "")
    as_json = osn("lint", "--json", "-", input='{"query": {"match_all": {}}, "size": -1}')
    assert [finding["rule"] for finding in json.loads(as_json.stdout)] == ["page"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"query": {"match_all": {}}\n,}', "standard input, line 2, column 2: not valid JSON"),
        ("", "line 1, column 1: not valid JSON"),
        ("[" * 100_000, "nested deeper"),
    ],
)
def test_what_is_no_json_is_named_by_line(text: str, message: str) -> None:
    done = osn("lint", input=text)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.cluster
def test_the_cluster_is_asked_for_what_the_index_allows(client, cluster_url: str, index_name: str) -> None:
    settings = {"number_of_replicas": 0, "index.max_result_window": 50}
    mapping = {"properties": {"sparse": {"type": "rank_features"}, "text": {"type": "text"}}}
    client.indices.create(index=index_name, body={"settings": settings, "mappings": mapping})
    body = json.dumps({"query": {"neural_sparse": {"text": {"query_tokens": {"rain": 1.0}}}}, "size": 60})
    assert osn("lint", input=body).returncode == 0
    done = osn("lint", "--url", cluster_url, "--index", index_name, "--json", input=body)
    assert done.returncode == 1
    assert {finding["rule"] for finding in json.loads(done.stdout)} == {"page", "field"}
    absent = osn("lint", "--url", cluster_url, "--index", f"{index_name}-absent", input=body)
    assert absent.returncode == 1
    assert f"there is no index '{index_name}-absent'" in absent.stderr


@pytest.mark.cluster
def test_osn_search_warns_of_the_body_that_it_sends(client, cluster_url: str, index_name: str, tmp_path: Path) -> None:
    from ingest.corpus import CorpusSource
    from ingest.job import Job, run_job
    from ingest.settings import Models, NewIndex

    corpus = tmp_path / "docs.jsonl"
    corpus.write_text('{"_id": "1", "text": "a rainbow in the sky"}\n')
    job = Job(
        CorpusSource(str(corpus)),
        index=index_name,
        models=Models(sparse="lexical"),
        new_index=NewIndex(replicas=0),
        dead_letters=tmp_path / "dead.jsonl",
    )
    run_job(client, job, show_progress=False)
    quiet = osn("search", "--url", cluster_url, "--index", index_name, "rainbow")
    assert (quiet.returncode, quiet.stderr) == (0, "")
    warned = osn("search", "--url", cluster_url, "--index", index_name, "--engine", "bm25", "is it the")
    assert warned.returncode == 0
    assert "warning: bends: query.match: no term is left of 'is it the': finds nothing" in warned.stderr
    assert "warning" not in warned.stdout
