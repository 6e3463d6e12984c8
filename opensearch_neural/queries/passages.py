"""The best passage of each document, from the answer to a body with `collapse`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opensearch_neural.queries.clauses import Body


def best_passages(
    body: Body, hits: Sequence[Mapping[str, Any]], *, size: int = 10, from_: int = 0
) -> list[tuple[str, Mapping[str, Any]]]:
    """[(document id, hit of its best passage)] from the answer to a body that was made with `collapse`.

    hits: `answer["hits"]["hits"]`. `size` and `from_`: those of the page; used only for `hybrid` bodies, whose page is
    cut out here. A hit without a value in the field is its own document. Raises ValueError for a body without `collapse`.
    """
    if "collapse" in body:
        field = body["collapse"]["field"]
    elif "docvalue_fields" in body:
        (field,) = body["docvalue_fields"]
    else:
        raise ValueError("the body was made without collapse: its hits are documents already")
    best: dict[str, Mapping[str, Any]] = {}
    for hit in hits:
        best.setdefault(str(hit.get("fields", {}).get(field, [hit["_id"]])[0]), hit)
    page = list(best.items())
    return page if "collapse" in body else page[from_ : from_ + size]
