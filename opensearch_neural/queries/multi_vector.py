"""Several vectors per document in OpenSearch; the nearest gives the score (`multi-layer-representations`, eq. 2).

    properties["dense"] = several_vectors(knn_vector)
    document["dense"] = stored(vectors)                       (vectors, dimension) of one document
    client.search(index="docs", body=nearest(vector))

Each vector is the `dense.vector` of a nested document; all are in one graph. `docs/evidence/multi-layer.md` has what they
cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opensearch_neural.queries.body_parts import Body
from opensearch_neural.queries.dense import knn

if TYPE_CHECKING:
    from numpy.typing import NDArray

PATH = "dense"
FIELD = f"{PATH}.vector"


def several_vectors(knn_vector: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of a field with several vectors per document. knn_vector: the mapping of each vector."""
    return {"type": "nested", "properties": {"vector": dict(knn_vector)}}


def stored(vectors: NDArray[Any] | Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """The field's value for one document's vectors (vectors, dimension); the rows stay arrays."""
    return [{"vector": row} for row in vectors]


def nearest(vector: Sequence[float] | NDArray[Any], **page: Any) -> Body:
    """The body of a search that ranks documents by their nearest vector. page: options of `queries.knn` except `field`.

    A document's score is the largest `queries.knn` score of its vectors; `k` counts documents. A filter applies to the
    documents' own fields.
    """
    body = knn(vector, field=FIELD, **page)
    body["query"] = by_the_best(body["query"])
    return body


def by_the_best(query: dict[str, Any]) -> dict[str, Any]:
    """The query that scores a document by its best vector. query: searches `FIELD`."""
    return {"nested": {"path": PATH, "query": query, "score_mode": "max"}}
