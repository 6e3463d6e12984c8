"""Several vectors a document in OpenSearch: its score is that of the nearest (`multi-layer-representations`, eq. 2).

    properties["dense"] = several_vectors(knn_vector, count=2)
    document["dense"] = stored(vectors)                       (vectors, dimension) of one document
    client.search(index="docs", body=nearest(vector, count=2))

Two layouts, of which `benchmarks/multi_layer_storage.py` measures size, speed and quality:

    fields    `dense.at_0`, `dense.at_1`, …: a graph for each place in the order of the layers; what `osn ingest` writes
    nested    `dense`, a list of nested documents with one `vector` each: one graph over all of them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from opensearch_neural import queries
from opensearch_neural.queries import Body

if TYPE_CHECKING:
    from numpy.typing import NDArray

Layout = Literal["fields", "nested"]
FIELD = "dense"


def several_vectors(knn_vector: Mapping[str, Any], *, count: int, layout: Layout = "fields") -> dict[str, Any]:
    """The mapping of the field that holds `count` vectors a document, each mapped as `knn_vector` says."""
    if layout == "nested":
        return {"type": "nested", "properties": {"vector": dict(knn_vector)}}
    return {"properties": {f"at_{place}": dict(knn_vector) for place in range(count)}}


def field_of(place: int) -> str:
    """The full name of the field that holds each document's vector at `place`, in the layout of fields."""
    return f"{FIELD}.at_{place}"


def stored(vectors: NDArray[Any] | Sequence[Sequence[float]], *, layout: Layout = "fields") -> Any:
    """The content of the field in a document with these vectors (vectors, dimension); the rows stay arrays."""
    if layout == "nested":
        return [{"vector": row} for row in vectors]
    return {f"at_{place}": row for place, row in enumerate(vectors)}


def nearest(vector: Sequence[float] | NDArray[Any], *, count: int, layout: Layout = "fields", **page: Any) -> Body:
    """Documents by the nearest of their `count` vectors; `page` takes what `queries.knn` takes beside the field.

    The score is the largest of what `queries.knn` would give each vector. fields: of each field `k` candidates, so that
    no document that belongs on the page is lost to the union. nested: `k` documents, compared by their best vector.
    """
    if layout == "nested":
        body = queries.knn(vector, field=f"{FIELD}.vector", **page)
        body["query"] = {"nested": {"path": FIELD, "query": body["query"], "score_mode": "max"}}
        return body
    bodies = [queries.knn(vector, field=field_of(place), **page) for place in range(count)]
    return {**bodies[0], "query": {"dis_max": {"queries": [body["query"] for body in bodies]}}}
