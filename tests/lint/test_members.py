"""The names of a body's members, and the kinds of their values, tried on nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lint_cases import ALL, Case, LintNode, bending, refusal, rejected
from opensearchpy.exceptions import TransportError

from opensearch_neural.cluster.capabilities import Capabilities
from opensearch_neural.lint import lint
from opensearch_neural.lint.members import FIRST_RELEASES, MEMBERS, PARAMETERS, QUERIES, kind_of

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

REJECTED = [
    Case("member", {"querry": ALL}),
    Case("member", {"query": ALL, "form": 10}),
    Case("member", {"query": ALL, "runtime_mappings": {}}),
    Case("member", {"query": ALL, "_source_includes": ["url"]}),
    Case("member", {"knn": {"dense": {"vector": [1.0], "k": 1}}}),
    Case("member", {"query": ALL, "Size": 3}),
    Case("member", {"query": ALL, "sort": None}),
    Case("member", {"query": ALL, "fields": "url"}),
    Case("member", {"query": ALL, "aggs": []}),
    Case("member", {"query": ALL, "explain": 1}),
    Case("member", {"query": ALL, "timeout": 10}),
    Case("member", {"query": ALL, "min_score": "a"}),
    Case("member", {"query": ALL, "track_total_hits": -2}),
    Case("member", {"query": ALL, "terminate_after": 2**31}),
    Case("member", {"query": ALL, "explain": "yes"}),
    Case("member", {"query": ALL, "timeout": "10"}),
    Case("member", {"pit": {"id": "unknown", "keep_alive": 10}}),
]

test_what_is_called_rejected_is_rejected = rejected(REJECTED)


TAKEN: dict[str, list[Any]] = {
    "_source": [{"includes": ["url"]}, ["url"], "url", True], "aggregations": [{}], "aggs": [{}],
    "collapse": [{"field": "url"}], "derived": [{}], "docvalue_fields": [["url"]], "explain": [True, "true"], "ext": [{}],
    "fields": [["url"]], "from": [0, "0"], "highlight": [{}], "include_named_queries_score": [True, "true"],
    "indices_boost": [{}, []], "min_score": [0.1, "0.1"], "pit": [{"id": "unknown"}], "post_filter": [ALL],
    "profile": [True, "true"], "query": [ALL], "rescore": [{"query": {"rescore_query": ALL}}, []], "script_fields": [{}],
    "search_after": [["u"]], "search_pipeline": [{}, "_none"], "seq_no_primary_term": [True, "true"], "size": [1, "1"],
    "slice": [{}], "sort": [{"url": "asc"}, ["url"], "url"], "stats": [["group"]], "stored_fields": [["url"], "url"],
    "suggest": [{}], "terminate_after": [1, "1"], "timeout": [0, "1s"], "track_scores": [True, "true"],
    "track_total_hits": [True, 1, "1"], "verbose_pipeline": [False, "false"], "version": [True, "true"],
}  # fmt: skip
"""{member: a value of each kind that it takes}"""
OF_EACH_KIND: list[Any] = [{}, [], ["url"], "url", 1, True, None]


def check_members(client: OpenSearch, index: str, capabilities: Capabilities) -> None:
    """The node takes exactly the kinds of values that the linter lets pass. The index has a keyword field `url`."""
    assert TAKEN.keys() == MEMBERS.keys()
    for name, values in TAKEN.items():
        assert {kind_of(value) for value in values} == set(MEMBERS[name].split(" or "))
        beside = {"sort": ["url"]} if name == "search_after" else {}
        for value in values:
            body = {**beside, name: value}
            why = refusal(client, index, body)
            assert not why or (name == "pit" and "Unknown key" not in why), (body, why)
            assert not lint(body, capabilities), body
        for value in OF_EACH_KIND:
            if kind_of(value) not in MEMBERS[name].split(" or "):
                body = {**beside, name: value}
                assert refusal(client, index, body), body
                assert [finding.outcome for finding in lint(body, capabilities)] == ["rejected"], body


@pytest.mark.cluster
def test_a_member_passes_with_just_those_kinds_of_values_that_the_node_takes(lint_node: LintNode) -> None:
    check_members(lint_node.client, lint_node.index, lint_node.capabilities)


TIMES = [
    "10s", "10 s", " 10s ", "10S", "10ms", "10MS", "10micros", "10nanos", "1m", "1h", "1d", "+1s", "0", "00", "-1", "٣s",
]  # fmt: skip
NO_TIMES = [
    "10", "", "s", "soon", "1.5s", "1M", "1m ", "1w", "1y", "1 second", "1e3s", "1_0s", "9" * 20 + "s", "-5", "1\u00a0s",
]  # fmt: skip


@pytest.mark.cluster
def test_a_time_passes_just_as_the_node_takes_it(lint_node: LintNode) -> None:
    def told(body: Any) -> tuple[str, bool]:
        """(why the node refuses it, whether the linter lets it pass)"""
        return refusal(lint_node.client, lint_node.index, body), not lint(body, lint_node.capabilities)

    for value in [*TIMES, *NO_TIMES, 0, -1, 10, 0.0, 1.5]:
        why, passes = told({"query": ALL, "timeout": value})
        assert passes == (not why) == (value in [*TIMES, 0, -1] and not isinstance(value, float)), (value, why)
    unknown, _ = told({"pit": {"id": "unknown"}})
    for value in [*TIMES, *NO_TIMES, 0, -1, 10, True, None]:
        why, passes = told({"pit": {"id": "unknown", "keep_alive": value}})
        assert passes == (why == unknown) == (value in TIMES), (value, why)


NUMBERS: list[Any] = [
    -2, -1, 0, 1, 1.5, -0.5, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 10**400, 1e30, "a", "", " ", "1", " 1 ", "-1", "-2",
    "1.5", ".5", "1.", "1e", "1e3", "+1", "++1", "1_0", "NaN", "Infinity", "-Infinity", "inf", "nan", "\u0663", "\u00a01",
    "1f", "1D", "1L", "0x1", str(2**31), "true", "false", "True",
]  # fmt: skip


@pytest.mark.cluster
@pytest.mark.parametrize("name", ["from", "size", "min_score", "terminate_after", "track_total_hits"])
def test_a_number_passes_just_as_the_node_takes_it(lint_node: LintNode, name: str) -> None:
    for value in NUMBERS:
        body = {"query": ALL, name: value}
        why = refusal(lint_node.client, lint_node.index, body)
        found = lint(body, lint_node.capabilities)
        assert any(finding.outcome == "rejected" for finding in found) == bool(why), (value, why, found)


@pytest.mark.cluster
def test_a_word_passes_as_true_or_false_just_as_the_node_takes_it(lint_node: LintNode) -> None:
    names = [name for name, kinds in MEMBERS.items() if kinds == "boolean or string"]
    assert names
    for name in names:
        for value in ("false", "", "False", "yes", "0", "1", " true"):
            body = {"query": ALL, name: value}
            why = refusal(lint_node.client, lint_node.index, body)
            assert bool(lint(body, lint_node.capabilities)) == bool(why) == (value not in ("false", "")), body


test_what_is_said_to_bend_gives_other_hits = bending(
    [Case("member", {"query": ALL, "terminate_after": below}, {"query": ALL}) for below in (-1, "-2")]
)


def test_a_value_that_cannot_be_read_is_told_what_to_write() -> None:
    body = {"query": ALL, "min_score": "a", "track_total_hits": -2, "terminate_after": 2**31, "explain": "yes"}
    assert [(finding.path, finding.message, finding.remedy) for finding in lint(body)] == [
        ("min_score", "min_score is no number: 'a'", "write a number"),
        ("track_total_hits", "track_total_hits is no count: -2", "write true, false, or a whole number to count to"),
        ("terminate_after", "terminate_after is no whole number of 32 bits: 2147483648", "write a whole number"),
        ("explain", "explain is neither true nor false: 'yes'", "write true or false"),
    ]


def test_a_time_is_told_how_it_is_written() -> None:
    findings = lint({"query": ALL, "timeout": 10, "pit": {"id": "x", "keep_alive": 5}})
    assert [(finding.path, finding.message) for finding in findings] == [
        ("timeout", "timeout is no time: 10"),
        ("pit.keep_alive", "keep_alive is no time: 5"),
    ]
    assert all('"10s"' in finding.remedy for finding in findings)


def unknown_queries(client: OpenSearch, index: str) -> set[str]:
    """The kinds in QUERIES that a node does not know."""
    return {kind for kind in QUERIES if "unknown query" in refusal(client, index, {"query": {kind: {}}})}


@pytest.mark.cluster
def test_what_belongs_in_query_is_a_kind_of_query(lint_node: LintNode) -> None:
    assert unknown_queries(lint_node.client, lint_node.index) == {"combined_fields"}  # it came with OpenSearch 3


PARAMETER_VALUES = {
    **dict.fromkeys(PARAMETERS, "true"), "batched_reduce_size": "512", "cancel_after_time_interval": "10s",
    "expand_wildcards": "open", "max_concurrent_shard_requests": "5", "pre_filter_shard_size": "128",
    "preference": "_local", "scroll": "1m", "search_type": "query_then_fetch",
}  # fmt: skip


@pytest.mark.cluster
def test_what_belongs_in_the_url_is_known_there_and_not_in_the_body(lint_node: LintNode) -> None:
    for name, value in PARAMETER_VALUES.items():
        answer = None
        try:
            params = {"ignore_unavailable": "true", name: value}
            answer = lint_node.client.transport.perform_request("POST", "/_search", params=params, body={})
        except TransportError as error:
            assert "unrecognized parameter" not in str(error), name
        if answer and "_scroll_id" in answer:
            lint_node.client.clear_scroll(scroll_id=answer["_scroll_id"])
        assert "Unknown key" in refusal(lint_node.client, lint_node.index, {name: value}), name


REMEDIES = {
    "querry": "write query", "form": "write from", "Size": "write size", "source": "write _source",
    "knn": "put it into `query`", "prefix": "put it into `query`", "exists": "put it into `query`",
    "ids": "put it into `query`", "constant_score": "put it into `query`", "script_score": "put it into `query`",
    "function_score": "put it into `query`", "should": "put it into `query`, inside a `bool`",
    "filter": "put it into `bool.filter`, or into the knn query",
    "search_type": "send it as a parameter of the URL", "preference": "send it as a parameter of the URL",
    "routing": "send it as a parameter of the URL", "request_cache": "send it as a parameter of the URL",
    "_source_includes": "send it as a parameter of the URL", "runtime_mappings": "define such fields in `derived`",
    "later": "leave it out; a query belongs in `query`",
}  # fmt: skip


@pytest.mark.parametrize(("name", "remedy"), REMEDIES.items())
def test_what_was_meant_is_named(name: str, remedy: str) -> None:
    (finding,) = lint({name: {}}, Capabilities(version="2.19.1"))
    assert (finding.rule, finding.outcome, finding.path, finding.remedy) == ("member", "rejected", name, remedy)
    assert finding.message == f"OpenSearch knows no member {name!r}"


@pytest.mark.parametrize("name", MEMBERS)
def test_null_is_to_be_left_out_and_reported_once(name: str) -> None:
    (finding,) = lint({"query": ALL, name: None}, Capabilities(version="2.19.1"))
    assert (finding.outcome, finding.path, finding.remedy) == ("rejected", name, "leave it out")
    assert finding.message == f"{name} cannot be null"


def test_a_value_of_another_kind_is_told_which_to_write() -> None:
    findings = lint({"query": ALL, "fields": "url", "explain": 1, "sort": True})
    told = [(finding.path, finding.message, finding.remedy) for finding in findings]
    assert told == [
        ("fields", "fields takes no string", "write a list"),
        ("explain", "explain takes no number", "write a boolean or string"),
        ("sort", "sort takes no boolean", "write an object or list or string"),
    ]


def test_values_that_become_json_later_pass() -> None:
    assert not lint({"query": ALL, "sort": ("_score", "url"), "search_after": (1.0, "u"), "min_score": complex(1)})


@pytest.mark.parametrize(("name", "release"), FIRST_RELEASES.items())
def test_a_member_is_rejected_before_its_first_release(name: str, release: tuple[int, int]) -> None:
    body = {name: TAKEN[name][0]}
    (finding,) = lint(body, Capabilities(version=f"{release[0]}.{release[1] - 1}.0"))
    assert (finding.rule, finding.outcome, finding.path) == ("member", "rejected", name)
    assert finding.message == f"OpenSearch knows no member {name!r} before {release[0]}.{release[1]}"
    assert lint(body, Capabilities(version="1.3.0")) == [finding]
    assert not lint(body, Capabilities(version=f"{release[0]}.{release[1]}.0")) and not lint(body)


@pytest.mark.parametrize("body", [{"later": {}}, {"querry": ALL}, {"sort": None}, {"fields": "url"}])
def test_a_later_release_may_take_more_and_an_unknown_one_counts_as_the_latest_that_was_tried(body: Any) -> None:
    assert [finding.outcome for finding in lint(body, Capabilities(version="3.9.0"))] == ["doubtful"]
    assert [finding.outcome for finding in lint(body)] == ["rejected"]


def test_a_cluster_that_does_not_say_its_release_may_know_more() -> None:
    assert [finding.outcome for finding in lint({"querry": ALL}, Capabilities(version=""))] == ["doubtful"]


@pytest.mark.parametrize("name", ["collapse", "min_score"])
def test_null_beside_hybrid_is_reported_once(name: str) -> None:
    body = {"query": {"hybrid": {"queries": [ALL]}}, name: None}
    findings = lint(body, Capabilities(version="2.19.1", plugins={"opensearch-neural-search": "2.19.1.0"}))
    assert [finding.rule for finding in findings if finding.path == name] == ["member"]
