"""Nearest neighbours: knn queries, and filters beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opensearch_neural.lint.findings import Outcome, Path
from opensearch_neural.lint.request import LintedRequest, shards_fail, type_in
from opensearch_neural.lint.values import as_list, as_number, as_object, float32
from opensearch_neural.queries.body_parts import Body

MOST_NEIGHBOURS = 10_000


def knn(request: LintedRequest, inner: Body, path: Path) -> None:
    without_plugin(request, path, "knn")
    for name, options in inner.items():
        where, options = (*path, name), as_object(options)
        # An index without the field is then left out.
        unmapped: Outcome | None = "bends" if options.get("ignore_unmapped") in (True, "true") else None
        request.check_field(name, "knn_vector", where, missing=unmapped)
        check_k(request, options, where)
        check_vector(request, name, options.get("vector"), (*where, "vector"))
        if isinstance(options.get("filter"), list):
            remedy = 'write {"bool": {"filter": […]}}'
            request.report(
                "knn-filter", "rejected", (*where, "filter"), "knn takes one filter object, not a list", remedy
            )


def scored(request: LintedRequest, params: Body, path: Path) -> None:
    """Check the parameters of the k-NN plugin's script, which `queries.dense_rescore` uses."""
    without_plugin(request, path, "the script knn_score")
    where, name = (*path, "script", "params"), str(params.get("field"))
    # If the field does not exist, no document has it, and none is scored.
    request.check_field(name, "knn_vector", (*where, "field"), missing="bends")
    check_vector(request, name, params.get("query_value"), (*where, "query_value"))


def without_plugin(request: LintedRequest, path: Path, what: str) -> None:
    if not (request.capabilities and request.capabilities.knn_faiss):
        request.check_cluster("knn_lucene", path, what, "osn doctor shows what the cluster has")


def check_k(request: LintedRequest, options: Body, where: Path) -> None:
    limits = [name for name in ("k", "min_score", "max_distance") if name in options]
    if len(limits) != 1:
        request.report(
            "knn-k", "rejected", where, "knn takes exactly one of k, min_score and max_distance", 'give "k": SIZE'
        )
        return
    if limits != ["k"]:
        return
    k = as_number(options["k"])
    if k is None or not 1 <= k < MOST_NEIGHBOURS + 1:
        message = f"k is {options['k']!r}, and must be from 1 to {MOST_NEIGHBOURS:,}"
        request.report("knn-k", "rejected", (*where, "k"), message, "ask for fewer neighbours, and for less deep pages")
    elif int(k) < request.page_end:
        request.report(
            "knn-k",
            "bends",
            (*where, "k"),
            f"each segment returns {options['k']} neighbours, and the page ends at hit {request.page_end:.0f}",
            "give a k of at least from + size",
        )
    elif k != int(k):
        request.report("knn-k", "bends", (*where, "k"), f"k = {k} is read as {int(k)}", "give a whole number")


def check_vector(request: LintedRequest, name: str, vector: Any, path: Path) -> None:
    numbers = [float32(number) for number in vector] if isinstance(vector, list) else []
    finite = [number for number in numbers if number is not None and math.isfinite(number)]
    if not numbers or len(finite) != len(numbers):
        message = "the vector is not a list of finite numbers"
        request.report("knn-vector", "rejected", path, message, "give as many numbers as the field has dimensions")
        return
    fields = fields_of_vectors(request, name)
    wrong = {index: found for index, of in fields.items() if (found := misfit(name, finite, *of))}
    if wrong:
        message, remedy = next(iter(wrong.values()))
        everywhere = len(wrong) == len(fields)
        told = message if everywhere else f"{message}: {shards_fail([*wrong])}"
        request.report("knn-vector", "rejected" if everywhere else "bends", path, told, remedy)


def misfit(
    name: str, numbers: Sequence[float], dimension: int | None, type_: str | None, cosine: bool
) -> tuple[str, str] | None:
    """(message, remedy) if the numbers are no vector of a field, which `fields_of_vectors` describes."""
    if type_ == "binary" and dimension is not None:
        dimension //= 8  # it counts bits, and each number has eight
    if dimension is not None and len(numbers) != dimension:
        message = f"{len(numbers)} numbers, and the field {name!r} takes {dimension}"
        return message, "encode the query with the model that wrote the index"
    if type_ in ("byte", "binary") and any(number != int(number) or not -128 <= number <= 127 for number in numbers):
        remedy = "index.mapping.to_bytes(vector, scale) makes them" if type_ == "byte" else "each holds eight bits"
        return f"the field {name!r} holds bytes: whole numbers from -128 to 127", remedy
    if cosine and not any(numbers):
        return "a vector of zeros has no cosine", "an empty text has no neighbours: answer it in another way"
    return None


def fields_of_vectors(request: LintedRequest, name: str) -> dict[str, tuple[int | None, str | None, bool]]:
    """{index: (dimension, element type, whether compared by cosine)} of a knn_vector field; None for what is not known.

    The index is "" if there is only one."""
    several = request.index.several or {"": request.index.fields or {}}
    mappings = {index: fields[name] for index, fields in several.items() if type_in(fields, name) == "knn_vector"}
    if mappings:
        return {index: _of_vectors(mapping) for index, mapping in mappings.items()}
    if request.meta and request.meta.dense and name == request.vector_field and request.index.fields is None:
        dense = request.meta.dense
        return {"": (dense.dimension, dense.type, dense.normalized)}
    return {}


def _of_vectors(mapping: Mapping[str, Any]) -> tuple[int | None, str | None, bool]:
    method = as_object(mapping.get("method"))
    space = mapping.get("space_type", method.get("space_type"))
    return mapping.get("dimension"), str(mapping.get("data_type", "float")).lower(), space == "cosinesimil"


def filters(kind: str, inner: Body) -> Iterator[tuple[Path, Any]]:
    """(path, query) of the filters in a knn query."""
    for name, options in inner.items() if kind == "knn" else ():
        if "filter" in as_object(options) and not isinstance(options["filter"], list):
            yield (name, "filter"), options["filter"]


def post_filter(request: LintedRequest) -> None:
    if "post_filter" in request.body and neighbours_only(request.body.get("query")):
        message = "post_filter is applied to the k neighbours found without it, so hits are lost"
        request.report("knn-filter", "bends", ("post_filter",), message, "put the filter into the knn query")


def neighbours_only(clause: Any) -> bool:
    """Whether a query returns only nearest neighbours: knn, alone, nested (several vectors a document), or in a dis_max."""
    clause = as_object(clause)
    if "nested" in clause:
        return "knn" in as_object(as_object(clause["nested"]).get("query"))
    parts = [as_object(part) for part in as_list(as_object(clause.get("dis_max")).get("queries"))]
    return "knn" in clause or (bool(parts) and all("knn" in part for part in parts))
