"""Production's own query as an engine: a template's answers, unchanged, from any index, alias or pattern.

retriever = template_retriever(client, "articles", "production", BodyTemplate.read("production.json"))
run = retriever.retrieve({"q1": "what causes a rainbow"}, k=100)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from opensearch_neural.body_template import BodyTemplate
from opensearch_neural.cluster.errors import allowed, translate_errors
from opensearch_neural.errors import InputError, Unanswerable
from opensearch_neural.index.result_window import most_hits
from opensearch_neural.queries import Body
from opensearch_neural.retrievers.opensearch import OpenSearchRetriever, finite_score

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

WITHOUT_EFFECT_ON_RANKS = frozenset(
    {"aggs", "aggregations", "suggest", "highlight", "fields", "docvalue_fields", "stored_fields", "script_fields"}
)
"""Parts of a body that are left out if only ids and scores are needed, and no search pipeline may read them."""
EFFECTS_ON_MEASURES = {
    "terminate_after": "each shard stops after that many matches, and a relevant document that comes later is not found",
    "min_score": "hits below this score are left out, and a relevant document among them is not found",
    "timeout": "a query that takes longer ends the measurement",
}
"""{part of a body that excludes hits: what it does to the measures}"""
FILTERING = frozenset({"filter", "must_not"})
"""Members of a bool query that leave hits out and add nothing to scores."""
DEFAULT_PIPELINE = "index.search.default_pipeline"


def template_retriever(
    client: OpenSearch,
    index: str,
    name: str,
    template: BodyTemplate,
    *,
    id_field: str | None = None,
    progress: Callable[[int], object] | None = None,
    unanswered: Callable[[str, Unanswerable], object] | None = None,
) -> OpenSearchRetriever:
    """The template as a retriever.

    A body that sorts keeps its order; a run then holds ranks instead of scores, the first hit's the highest. id_field: a
    field with doc values, such as a keyword, with the documents' ids in the judgements; None: `_id`.

    If a search pipeline processes the hits (one that the template names, or the index's default), bodies are sent whole but
    for stored fields, because a processor may rank hits by any of their fields.
    """
    whole = "search_pipeline" in template.content or may_have_pipeline(client, index)
    left_out = {"stored_fields"} if whole else WITHOUT_EFFECT_ON_RANKS  # it may leave out the id

    def body(text: str, size: int) -> Body:
        filled = template.body(text, size)
        kept = {key: value for key, value in filled.items() if key not in left_out}
        return kept if id_field is None else {**kept, "docvalue_fields": [*kept.get("docvalue_fields", []), id_field]}

    hits_of = partial(ids_of, id_field=id_field)
    return OpenSearchRetriever(
        client, index, name, body, progress=progress, hits_of=hits_of, ids_only=not whole, unanswered=unanswered
    )


def effects_on_measures(name: str, template: BodyTemplate) -> dict[str, str]:
    """{part of the template: what it does to the measures}, for parts that exclude hits.

    Raises InputError for `search_after`, which begins every query's hits at the same place.
    """
    if "search_after" in template.content:
        raise InputError(
            f"the template {name} has search_after, which leaves out the first hits: they cannot be measured",
            "leave search_after out",
        )
    without_effect: dict[str, tuple[Any, ...]] = {"timeout": (None, -1, "-1")}
    return {
        part: effect
        for part, effect in EFFECTS_ON_MEASURES.items()
        if template.content.get(part) not in without_effect.get(part, (None, 0, "0"))
    }


def filters_of(template: BodyTemplate) -> list[str]:
    """The names of a template's members that filter its hits: `post_filter`, `FILTERING` of its bool queries, and the
    filters of its dense and hybrid ones."""
    content = template.content
    return sorted({*_filters_in(content.get("query")), *(["post_filter"] if content.get("post_filter") else [])})


def _filters_in(query: Any) -> Iterator[str]:
    if isinstance(query, list):
        for each in query:
            yield from _filters_in(each)
    elif isinstance(query, dict):
        if isinstance(boolean := query.get("bool"), dict):
            yield from (name for name in boolean.keys() & FILTERING if boolean[name])
        for kind in ("knn", "neural"):
            if isinstance(fields := query.get(kind), dict):
                yield from (f"{kind}.filter" for of in fields.values() if isinstance(of, dict) and of.get("filter"))
        if isinstance(hybrid := query.get("hybrid"), dict) and hybrid.get("filter"):
            yield "hybrid.filter"
        for each in query.values():
            yield from _filters_in(each)


def may_have_pipeline(client: OpenSearch, index: str) -> bool:
    """Whether an index, alias or pattern has a default search pipeline, or this user may not know."""
    with translate_errors():
        settings = allowed(lambda: client.indices.get_settings(index=index, flat_settings=True))
    if settings is None:
        return True
    return any(of["settings"].get(DEFAULT_PIPELINE, "_none") != "_none" for of in settings.values())


def ids_of(body: Body, answer: Any, size: int, *, id_field: str | None = None) -> dict[str, float]:
    """{document: score} from the answer to the user's own body, by `_id` or `id_field`; ranks as scores if it sorts."""
    hits = answer["hits"]["hits"]
    sorts = "sort" in body or any(hit["_score"] is None for hit in hits)
    best: dict[str, float] = {}
    for place, hit in enumerate(hits):
        # A document that is in two indexes of an alias, or has two variants, counts once.
        best.setdefault(_id_of(hit, id_field), float(len(hits) - place) if sorts else finite_score(hit))
    return best


def _id_of(hit: Any, id_field: str | None) -> str:
    if id_field is None:
        return str(hit["_id"])
    values = hit.get("fields", {}).get(id_field)
    if not values:
        raise InputError(f"the document {hit['_id']} has no value in the field {id_field!r} (--id-field)")
    return str(values[0])


def absent_count(client: OpenSearch, index: str, documents: Sequence[str], id_field: str | None = None) -> int:
    """How many of the documents are not in the index, alias or pattern.

    A document that is there several times, in indexes of an alias or as variants with one `id_field`, counts once.
    """
    present = 0
    for start in range(0, len(documents), 1000):
        part = list(documents[start : start + 1000])
        with translate_errors():
            present += (
                _held_ids(client, index, part) if id_field is None else _held_values(client, index, part, id_field)
            )
    return len(documents) - present


def _held_ids(client: OpenSearch, index: str, ids: list[str]) -> int:
    from opensearchpy.helpers import scan

    body = {"query": {"ids": {"values": ids}}, "_source": False}
    size = most_hits(client, index, 1000)
    return len({hit["_id"] for hit in scan(client, query=body, index=index, size=size, raise_on_error=False)})


def _held_values(client: OpenSearch, index: str, values: list[str], field: str) -> int:
    counted = {"terms": {"field": field, "include": values, "size": len(values)}}
    body = {"size": 0, "query": {"terms": {field: values}}, "aggs": {"held": counted}}
    return len(client.search(index=index, body=body)["aggregations"]["held"]["buckets"])
