"""Several vectors a document in OpenSearch: its score is that of the nearest (`multi-layer-representations`, eq. 2).

    properties["dense"] = several_vectors(knn_vector)
    document["dense"] = stored(vectors)                       (vectors, dimension) of one document
    client.search(index="docs", body=nearest(vector))

They are nested documents with one `dense.vector` each, in one graph. What they cost stands in
`docs/evidence.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opensearch_neural import queries
from opensearch_neural.queries import Body

if TYPE_CHECKING:
    from numpy.typing import NDArray

PATH = "dense"
FIELD = f"{PATH}.vector"


def several_vectors(knn_vector: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of the field that holds several vectors a document, each mapped as `knn_vector` says."""
    return {"type": "nested", "properties": {"vector": dict(knn_vector)}}


def stored(vectors: NDArray[Any] | Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """The content of the field in a document with these vectors (vectors, dimension); the rows stay arrays."""
    return [{"vector": row} for row in vectors]


def nearest(vector: Sequence[float] | NDArray[Any], **page: Any) -> Body:
    """Documents by the nearest of their vectors; `page` takes what `queries.knn` takes beside the field.

    The score is the largest of what `queries.knn` would give each vector; `k` counts documents, each by its best vector.
    A filter is of the documents' own fields.
    """
    body = queries.knn(vector, field=FIELD, **page)
    body["query"] = by_the_best(body["query"])
    return body


def by_the_best(query: dict[str, Any]) -> dict[str, Any]:
    """Documents by the largest score that a query of `FIELD` gives one of their vectors."""
    return {"nested": {"path": PATH, "query": query, "score_mode": "max"}}
