"""What an error status means, in words that say what to do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cluster_servers import (
    Answer,
    closed_port,
    http_server,
)

from opensearch_neural.cluster.connect import connect, connect_async
from opensearch_neural.cluster.error_reasons import reasons_on_one_line
from opensearch_neural.cluster.errors import translate_errors
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.errors import ClusterError, InputError

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.mark.parametrize(
    ("status", "kind", "reason", "expected"),
    [
        (404, "index_not_found_exception", "no such index [docs]", "no such index [docs]"),
        (400, "index_closed_exception", "closed", "POST /docs/_search: the index is closed"),
        (400, "too_many_clauses", "maxClauseCount is set to 1024", "max_clause_count"),
        (403, "cluster_block_exception", "index [docs] blocked by: [read-only / allow delete]", "disk fills up"),
        (
            403,
            "index_create_block_exception",
            "blocked by: [FORBIDDEN/10/cluster create-index blocked (api)];",
            "cluster.blocks.create_index: null",
        ),
        (403, "cluster_block_exception", "index [docs] blocked by: [FORBIDDEN/8/index write (api)]", "set this block"),
        (403, "some_other_exception", "not on a Sunday", "refused POST /docs/_search (403): not on a Sunday"),
        (
            400,
            "illegal_argument_exception",
            "Result window is too large: the [index.max_result_window] index level setting",
            "raise index.max_result_window in the index's settings",
        ),
        (413, "", "", "http.max_content_length"),
        (429, "circuit_breaking_exception", "[parent] Data too large", "overloaded"),
        (400, "mapper_parsing_exception", "failed to parse field [v]", "failed to parse field [v]"),
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_error_status_is_told_with_the_reason_of_the_server(
    status: int, kind: str, reason: str, expected: str, asynchronous: bool
) -> None:
    cause = {"type": kind, "reason": reason}
    answer = Answer.of_json({"error": {"root_cause": [cause], **cause}, "status": status}, status)

    async def ask_async(settings: ConnectionSettings) -> None:
        client = await connect_async(settings=settings, check=False)
        try:
            with translate_errors():
                await client.search(index="docs", body={})
        finally:
            await client.close()

    @translate_errors()
    def ask(settings: ConnectionSettings) -> None:
        with connect(settings=settings, check=False) as client:
            client.search(index="docs", body={})

    with http_server(lambda _: answer) as server:
        settings = ConnectionSettings(urls=(server.url,), patience=0)
        with pytest.raises(ClusterError) as caught:
            asyncio.run(ask_async(settings)) if asynchronous else ask(settings)
    assert expected in str(caught.value)
    assert "OSN_USER" not in str(caught.value), "no credentials would help"
    assert server.url in caught.value.message


SCRIPT = {
    "type": "script_exception",
    "reason": "runtime error",
    "script": "doc['n'].value / 0",
    "caused_by": {"type": "arithmetic_exception", "reason": "/ by zero"},
}
PARSED = {"type": "mapper_parsing_exception", "reason": "failed to parse field [n] of type [long]"}
"""Errors as OpenSearch nests them."""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            {
                "root_cause": [{key: value for key, value in SCRIPT.items() if key != "caused_by"}],
                "type": "search_phase_execution_exception",
                "reason": "all shards failed",
                "failed_shards": [{"shard": 0, "index": "docs", "reason": SCRIPT}],
                "caused_by": SCRIPT,
            },
            "runtime error: / by zero",
        ),
        (
            {
                "root_cause": [PARSED],
                **PARSED,
                "caused_by": {"type": "illegal_argument_exception", "reason": 'For input string:\n"MCM"'},
            },
            'failed to parse field [n] of type [long]: For input string: "MCM"',
        ),
        (
            {
                "root_cause": [{"type": "query_shard_exception", "reason": "failed to create query: too deep"}],
                "type": "search_phase_execution_exception",
                "reason": "all shards failed",
                "caused_by": {"type": "illegal_argument_exception", "reason": "too deep"},
            },
            "failed to create query: too deep",
        ),
        (
            {
                "root_cause": [
                    {"type": "query_shard_exception", "reason": "no field [a]", "index": "one"},
                    {"type": "query_shard_exception", "reason": "no field [b]", "index": "two"},
                ],
                "type": "search_phase_execution_exception",
                "reason": "all shards failed",
                "caused_by": {"type": "query_shard_exception", "reason": "no field [b]"},
            },
            "no field [a]; no field [b]",
        ),
        (
            {
                "root_cause": [],
                "type": "search_phase_execution_exception",
                "reason": "",
                "caused_by": {"type": "null_pointer_exception", "reason": None},
            },
            "search_phase_execution_exception: null_pointer_exception",
        ),
    ],
    ids=["of a script", "of a field", "twice the same", "of two indexes", "without words"],
)
def test_all_causes_are_told_on_one_line(error: dict[str, Any], told: str) -> None:
    assert reasons_on_one_line(error) == told
    with http_server(lambda _: Answer.of_json({"error": error, "status": 400}, 400)) as server:
        settings = ConnectionSettings(urls=(server.url,), patience=0)
        client = connect(settings=settings, check=False)
        with pytest.raises(ClusterError) as caught, translate_errors():
            client.search(index="docs", body={})
        client.close()
    assert caught.value.message.endswith(f"refused POST /docs/_search (400): {told}")


def test_a_failure_of_a_document_is_told_by_its_cause() -> None:
    """`_delete_by_query` and `_update_by_query` answer so, without an error of the whole request."""
    block = {"type": "cluster_block_exception", "reason": "index [docs] blocked by: [FORBIDDEN/8/index write (api)];"}
    answer = {"deleted": 0, "failures": [{"index": "docs", "id": "1", "cause": block, "status": 403}]}
    with http_server(lambda _: Answer.of_json(answer, 403)) as server:
        client = connect(settings=ConnectionSettings(urls=(server.url,), patience=0), check=False)
        with (
            pytest.raises(ClusterError, match=r"is blocked for POST .*: index \[docs\] blocked by"),
            translate_errors(),
        ):
            client.delete_by_query(index="docs", body={})
        client.close()


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("<html>\r\n<head><title>503 Service\r\nUnavailable</title></head>\r\n<body>…", ": 503 Service Unavailable"),
        ("\n<!DOCTYPE html><p>Sorry", ""),
    ],
)
def test_of_a_proxys_page_the_title_is_told(page: str, told: str) -> None:
    """Before, the whole page was printed."""
    answer = Answer(503, page.encode(), {"Content-Type": "text/html"})
    with http_server(lambda _: answer) as server, pytest.raises(ClusterError) as caught:
        connect(server.url)
    assert caught.value.message.endswith(
        f"GET / now (503): a page that is not OpenSearch's, but of a proxy before it{told}"
    )


def test_other_exceptions_pass_through_translation_unchanged() -> None:
    with pytest.raises(KeyError), translate_errors():
        raise KeyError("mine")
    with pytest.raises(InputError, match="mine"), translate_errors():
        raise InputError("mine")


def test_an_error_of_a_client_made_elsewhere_is_translated_too() -> None:
    from opensearchpy import OpenSearch

    url = closed_port()
    with pytest.raises(ClusterError, match=f"nothing listens at {url.removeprefix('http://')}"), translate_errors():
        OpenSearch(url, max_retries=0).info()
