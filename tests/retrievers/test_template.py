"""Production's own query as an engine: its hits are those that production returns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from opensearch_neural.body_template import BodyTemplate
from opensearch_neural.errors import InputError
from opensearch_neural.retrievers.opensearch import OpenSearchRetriever
from opensearch_neural.retrievers.template import may_have_pipeline, template_retriever

pytestmark = pytest.mark.cluster
BODY = {"query": {"match": {"body": "{{query}}"}}, "docvalue_fields": ["views"]}


@pytest.fixture
def pipeline(client: Any, index_name: str) -> Iterator[str]:
    """A search pipeline that ranks hits by the field `views` of their source; an index of four documents has its name."""
    lines = []
    for number, body in enumerate(["rain rain", "rain and a rainbow", "a fish", "a long day of rain"]):
        lines += [{"index": {"_id": f"d{number}"}}, {"body": body, "views": 10 * number, "sku": f"s{number}"}]
    mapping = {"properties": {"sku": {"type": "keyword"}}}
    client.indices.create(index=index_name, body={"settings": {"number_of_replicas": 0}, "mappings": mapping})
    client.bulk(index=index_name, body=lines, refresh=True)
    send = client.transport.perform_request
    ranked = {"response_processors": [{"rerank": {"by_field": {"target_field": "views"}}}]}
    send("PUT", f"/_search/pipeline/{index_name}", body=ranked)
    yield index_name
    client.indices.put_settings(index=index_name, body={"index.search.default_pipeline": None})
    send("DELETE", f"/_search/pipeline/{index_name}")


@pytest.mark.parametrize("named", ["by the body", "by the index"])
def test_a_pipeline_ranks_hits_by_their_fields_as_in_production(client: Any, pipeline: str, named: str) -> None:
    """Before, hits had no source, and the request failed."""
    body = BODY | ({"search_pipeline": pipeline} if named == "by the body" else {})
    assert not may_have_pipeline(client, pipeline)
    if named == "by the index":
        client.indices.put_settings(index=pipeline, body={"index.search.default_pipeline": pipeline})
        assert may_have_pipeline(client, pipeline)
    template = BodyTemplate.parse(json.dumps(body))
    hits = client.search(index=pipeline, body=template.body("rain"))["hits"]["hits"]
    assert [hit["_id"] for hit in hits] == ["d3", "d1", "d0"]
    run = template_retriever(client, pipeline, "production", template).retrieve({"q": "rain"}, 10)
    assert list(run["q"]) == ["d3", "d1", "d0"]
    bare = BodyTemplate.parse(json.dumps(body | {"stored_fields": "_none_"}))
    assert template_retriever(client, pipeline, "production", bare).retrieve({"q": "rain"}, 10) == run
    by_sku = template_retriever(client, pipeline, "production", template, id_field="sku").retrieve({"q": "rain"}, 10)
    assert list(by_sku["q"]) == ["s3", "s1", "s0"]


def test_a_query_with_an_infinite_score_is_refused(client: Any, index_name: str) -> None:
    """OpenSearch writes it as a text, by which hits could not be sorted."""
    for number in range(2):
        client.index(index=index_name, id=f"d{number}", body={"body": "rain", "price": number})
    client.indices.refresh(index=index_name)
    query = {"match": {"body": {"query": "{{query}}", "boost": 1000}}}
    by_price = {"field": "price", "modifier": "reciprocal"}
    body = {"query": {"function_score": {"query": query, "field_value_factor": by_price}}}
    template = BodyTemplate.parse(json.dumps(body))
    for retriever in (
        template_retriever(client, index_name, "production", template),
        OpenSearchRetriever(client, index_name, "own", template.body),
    ):
        with pytest.raises(InputError, match="query 'q': the query gives the document d0 an infinite score"):
            retriever.retrieve({"q": "rain"}, 10)
