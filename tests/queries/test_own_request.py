"""An application's own request with what a model adds: what stays of it, and what is refused instead of dropped."""

from __future__ import annotations

from typing import Any

import pytest
from opensearchpy.exceptions import TransportError

from opensearch_neural import queries
from opensearch_neural.queries import Body

RAINBOW = {"match": {"text": "rainbow"}}
TOKENS = {"t": 2.0}
TIES = ["_score", {"price": "desc"}]


def made(**options: Any) -> Body:
    return queries.bm25_sparse("", TOKENS, base=RAINBOW, plugin=False, **options)


def own(**members: Any) -> Body:
    return {"query": RAINBOW, **members}


def test_only_the_query_and_the_second_phase_are_the_models() -> None:
    facets, rescore = {"shops": {"terms": {"field": "shop"}}}, {"query": {"rescore_query": {"match_all": {}}}}
    mine = own(size=7, aggs=facets, _source=["text"], post_filter={"term": {"shop": "s1"}}, rescore=rescore)
    model = made()
    assert queries.own_request(mine, model) == {**mine, "query": RAINBOW, "rescore": model["rescore"]}
    exact = made(window=None)
    assert queries.own_request(mine, exact) == {
        **{name: value for name, value in mine.items() if name != "rescore"},
        "query": exact["query"],
    }
    assert mine["rescore"] == rescore


@pytest.mark.parametrize("sort", ["_score", ["_score"], [{"_score": "desc"}], {"_score": {"order": "DESC"}}, []])
def test_a_sort_by_the_score_alone_stays(sort: Any) -> None:
    assert queries.own_request(own(sort=sort), made())["sort"] == sort


@pytest.mark.parametrize("sort", ["price", [{"price": "desc"}, "_score"], [{"_score": "asc"}], ["_doc"]])
def test_a_sort_that_the_model_cannot_change_is_refused(sort: Any) -> None:
    for options in ({}, {"window": None}, {"collapse": "shop"}):
        with pytest.raises(ValueError, match="would not change the order of its hits"):
            queries.own_request(own(sort=sort), made(**options), drop_tie_breaks=True)


def test_nothing_is_dropped_unless_told() -> None:
    with pytest.raises(ValueError, match=r"hits of equal score by 'price'.*drop_tie_breaks"):
        queries.own_request(own(sort=TIES), made())
    with pytest.raises(ValueError, match="collapse='shop'"):
        queries.own_request(own(collapse={"field": "shop"}), made())
    for sort in ({"sort": TIES}, {}):
        after = own(search_after=[1.0, 5], **sort)
        with pytest.raises(ValueError, match=r"search_after.*window=None"):
            queries.own_request(after, made(), drop_tie_breaks=True)
        assert queries.own_request(after, made(window=None))["search_after"] == [1.0, 5]
    collapsed = own(sort=TIES, search_after=[1.0, 5], collapse={"field": "shop"})
    for mine, model in (
        (collapsed, made(window=None)),
        (collapsed, made(collapse="shop")),
        (after, made(collapse="shop")),
    ):
        with pytest.raises(ValueError, match=r"search_after.*beside collapse"):
            queries.own_request(mine, model)
    assert "sort" not in queries.own_request(own(sort=TIES), made(), drop_tie_breaks=True)
    for options in ({"window": None}, {"collapse": "shop"}):
        for sort in (TIES, tuple(TIES)):
            assert queries.own_request(own(sort=sort), made(**options), drop_tie_breaks=True)["sort"] == TIES


@pytest.mark.cluster
def test_the_request_is_taken_and_its_sort_holds(client: Any, index_name: str) -> None:
    """Of equal scores the dearer one comes first, also where each shop is shown once."""
    properties = {"shop": {"type": "keyword"}, "price": {"type": "integer"}, "sparse": {"type": "rank_features"}}
    client.indices.create(index=index_name, body={"mappings": {"properties": properties}})
    for number in range(12):
        record = {"text": "rainbow", "price": number, "shop": f"s{number % 3}", "sparse": {"t": 1.0 + number % 2}}
        client.index(index=index_name, id=str(number), body=record)
    client.indices.refresh(index=index_name)

    def found(request: Body) -> list[str]:
        return [hit["_id"] for hit in client.search(index=index_name, body=request)["hits"]["hits"]]

    mine = own(sort=TIES, size=12)
    dearest = [str(number) for number in (11, 9, 7, 5, 3, 1, 10, 8, 6, 4, 2, 0)]
    assert found(queries.own_request(mine, made(window=None))) == dearest
    (first,) = client.search(index=index_name, body={**queries.own_request(mine, made(window=None)), "size": 1})[
        "hits"
    ]["hits"]
    assert found(queries.own_request({**mine, "search_after": first["sort"]}, made(window=None))) == dearest[1:]
    for sort in ({}, {"sort": ["_score"]}, {"sort": TIES}):
        for model in (made(), made(collapse="shop")):
            with pytest.raises(TransportError):  # which is why it is refused
                found({**queries.own_request(own(), model), "search_after": first["sort"], **sort})
    # The lowest score counts what the model adds only if there is no second phase.
    lowest = {"min_score": first["_score"] - 0.01}
    assert {int(id) % 2 for id in found(queries.own_request({**mine, **lowest}, made(window=None)))} == {1}
    assert not found(queries.own_request({"size": 12, **own(), **lowest}, made()))
    grouped = queries.own_request({**mine, "collapse": {"field": "shop"}}, made(collapse="shop"))
    assert found(grouped) == ["11", "9", "7"]
    assert found(queries.own_request(mine, made(collapse="shop"))) == ["11", "9", "7"]
    rescored = found(queries.own_request(mine, made(), drop_tie_breaks=True))
    assert {int(id) % 2 for id in rescored[:6]} == {1} and len(rescored) == 12
