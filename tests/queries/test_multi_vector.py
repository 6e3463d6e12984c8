"""Several vectors a document in OpenSearch: the documents of the nearest vectors are found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from opensearch_neural.index.mapping import knn_vector
from opensearch_neural.index.record import DenseMeta
from opensearch_neural.queries import multi_vector

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

DOCUMENTS, COUNT, DIMENSION = 120, 3, 8


@pytest.mark.parametrize("normalized", [False, True])
def test_the_documents_of_the_nearest_vectors_are_found_with_and_without_a_filter(
    client: OpenSearch, index_name: str, normalized: bool
) -> None:
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(DOCUMENTS, COUNT, DIMENSION)).astype(np.float32)
    if normalized:
        vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    mapping = knn_vector(DenseMeta("m", "h", DIMENSION, "float", normalized))
    properties = {multi_vector.PATH: multi_vector.several_vectors(mapping)}
    client.indices.create(
        index=index_name,
        body={
            "settings": {"index": {"knn": True, "number_of_replicas": 0}},
            "mappings": {"properties": {**properties, "odd": {"type": "boolean"}}},
        },
    )
    lines = []
    for at, own in enumerate(vectors):
        stored = multi_vector.stored(own.tolist())
        lines += [{"index": {"_id": str(at)}}, {"odd": bool(at % 2), multi_vector.PATH: stored}]
    assert not client.bulk(index=index_name, body=lines, params={"refresh": "true"})["errors"]
    for query in rng.normal(size=(3, DIMENSION)).astype(np.float32):
        largest = (vectors @ query).max(axis=1)  # by inner product; of vectors of length 1 that is by cosine
        for only_odd in (False, True):
            allowed = [at for at in np.argsort(-largest) if at % 2 or not only_odd]
            body = multi_vector.nearest(
                query,
                size=10,
                k=DOCUMENTS,
                filter={"term": {"odd": True}} if only_odd else None,
                source=False,
            )
            hits = client.search(index=index_name, body=body)["hits"]["hits"]
            assert [int(hit["_id"]) for hit in hits] == allowed[:10]
            if not normalized:
                # Lucene's score of an inner product above 0 is 1 more.
                expected = [1 + largest[at] for at in allowed[:10] if largest[at] > 0]
                assert [hit["_score"] for hit in hits][: len(expected)] == pytest.approx(expected, rel=1e-5)


def test_bodies_and_documents_are_plain_json() -> None:
    body = multi_vector.nearest(np.ones(2, np.float32), filter=[{"term": {"a": 1}}])
    stored = multi_vector.stored([[1.0, 2.0], [3.0, 4.0]])
    assert json.loads(json.dumps([body, stored])) == [body, stored]
    assert len(stored) == 2
