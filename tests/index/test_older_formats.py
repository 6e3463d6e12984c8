"""An index and a model as osn 0.1 wrote them are read, whatever this version writes.

`format_1/` was recorded once and must never be made anew. `index.json` holds what a cluster kept of an index of three
documents (its mapping with the record, its documents with their vectors, the query side), and the scores that it
answered with; `model/` is the model. A change that breaks this test breaks the indexes of users: raise the format, and
keep reading the old one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from opensearch_neural.engines import open_engines
from opensearch_neural.index.hidden_index import INDEX
from opensearch_neural.models.directory import read_osn_json
from opensearch_neural.models.sparse.encoder import load_sparse
from opensearch_neural.queries import DOT_ALIAS
from opensearch_neural.query_encoder import QueryEncoder

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

FOLDER = Path(__file__).parent / "format_1"


@pytest.fixture
def recorded() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))
    return content


def test_an_index_of_format_1_is_searched_with_the_scores_of_then(
    recorded: dict[str, Any], client: OpenSearch, index_name: str
) -> None:
    assert recorded["mappings"]["_meta"]["osn"]["format"] == 1
    settings = {"number_of_shards": 1, "number_of_replicas": 0}
    client.indices.create(index=index_name, body={"mappings": recorded["mappings"], "settings": settings})
    for id, document in recorded["documents"].items():
        client.index(index=index_name, id=id, body=document)
    for id, document in recorded["query_encoders"].items():
        client.index(index=INDEX, id=id, body=document)
    client.indices.refresh(index=index_name)
    engines = open_engines(client, index_name, weight=0.45)  # the default then
    for engine, scores in recorded["hits"].items():
        found = client.search(index=index_name, body=engines.body(engine, recorded["query"]))["hits"]["hits"]
        assert {hit["_id"]: hit["_score"] for hit in found} == pytest.approx(scores, rel=1e-5), engine


def test_a_model_of_format_1_encodes_what_it_encoded_then(recorded: dict[str, Any]) -> None:
    osn_json = read_osn_json(FOLDER / "model")
    assert osn_json is not None and osn_json["format"] == 1
    for document in recorded["documents"].values():
        vectors = load_sparse(FOLDER / "model").encode_documents([f"{document['title']} {document['text']}"])
        (encoded,) = vectors.rows()
        kept = {token: weight for token, weight in document["sparse"].items() if token != DOT_ALIAS}
        assert kept == pytest.approx(encoded, rel=1e-2)
    assert QueryEncoder.load(FOLDER / "model").encode(recorded["query"]).keys() >= {"rainbow", "causes"}
