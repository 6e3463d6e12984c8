"""The stage of whole vectors, on a real node: what it scores, in which window, of bytes, nested vectors and passages."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from opensearch_neural import queries
from opensearch_neural.index.mapping import index_body
from opensearch_neural.index.record import DenseMeta, DenseType, IndexMeta
from opensearch_neural.queries import multi_vector
from opensearch_neural.search.explanation import shares

ASKED = [3.0, -1.0, 2.0]
KINDS = [(type, normalized, 1) for type in ("float", "byte", "sq") for normalized in (True, False)] + [
    ("float", True, 2)
]


class Written(NamedTuple):
    """An index of random vectors; every tenth document has none. vectors: of each document, in whole numbers."""

    client: Any
    index: str
    meta: DenseMeta
    vectors: dict[str, list[list[float]]]

    def hits(self, body: queries.Body) -> dict[str, float]:
        return {hit["_id"]: hit["_score"] for hit in self.client.search(index=self.index, body=body)["hits"]["hits"]}

    def rescored(self, body: queries.Body, **how: Any) -> dict[str, float]:
        space = "cosinesimil" if self.meta.normalized else "innerproduct"
        nested = multi_vector.PATH if self.meta.vectors > 1 else None
        return self.hits(
            queries.dense_rescore(body, ASKED, field=self.meta.field_name, nested=nested, space_type=space, **how)  # type: ignore[arg-type]
        )

    def nearness(self, id: str) -> float:
        return max((self._nearness(vector) for vector in self.vectors[id]), default=0.0)

    def _nearness(self, vector: list[float]) -> float:
        inner = sum(a * b for a, b in zip(ASKED, vector, strict=True))
        if not self.meta.normalized:
            return 1 + inner if inner >= 0 else 1 / (1 - inner)
        cosine = inner / math.hypot(*ASKED) / math.hypot(*vector)
        return 1 + cosine if self.meta.type == "byte" else (1 + cosine) / 2


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: "-".join(map(str, kind)))
def written(client: Any, request: pytest.FixtureRequest) -> Iterator[Written]:
    type_: DenseType
    type_, normalized, several = request.param
    name = f"osn-test-dense-rescore-{type_}-{normalized}-{several}".lower()
    meta = DenseMeta("m", "h", 3, type_, normalized, vectors=several)
    client.indices.create(index=name, body=index_body(IndexMeta(dense=meta), replicas=0))
    drawn, vectors = random.Random(1), {}
    lines: list[dict[str, Any]] = []
    for number in range(60):
        each = [[float(drawn.choice([-3, -1, 1, 2, 9])) for _ in range(3)] for _ in range(several)]
        vectors[f"d{number}"] = each = each if number % 10 else []
        record: dict[str, Any] = {"text": "rain " * drawn.randint(1, 9) + "snow " * 9, "group": f"g{number % 20}"}
        if each:
            record["dense"] = multi_vector.stored(each) if several > 1 else each[0]
        lines += [{"index": {"_id": f"d{number}"}}, record]
    assert not client.bulk(index=name, body=lines, refresh=True)["errors"]
    yield Written(client, name, meta, vectors)
    client.indices.delete(index=name)


@pytest.mark.cluster
def test_hits_of_the_window_get_their_nearness_and_the_others_follow_as_they_were(written: Written) -> None:
    before = written.hits(queries.bm25("rain", size=60))
    found = written.rescored(queries.bm25("rain", size=60), window=25, weight=40.0, first_weight=2.0)
    assert len(before) == len(found) == 60
    best = list(before)[:25]
    expected = {id: 2 * before[id] + 40 * written.nearness(id) if id in best else 2 * before[id] for id in before}
    assert found == pytest.approx(expected, rel=1e-4)
    # By nearness alone, and what was not rescored behind in its order.
    alone = list(written.rescored(queries.bm25("rain", size=60), window=25))
    assert [round(written.nearness(id), 4) for id in alone[:25]] == sorted(
        (round(written.nearness(id), 4) for id in best), reverse=True
    )
    assert alone[25:] == list(before)[25:]


@pytest.mark.cluster
def test_a_body_that_collapses_is_scored_so_for_all_that_it_finds(written: Written) -> None:
    before = written.hits(queries.bm25("rain", size=60))
    body = queries.bm25("rain", size=5, collapse="group")
    found = written.rescored(body, window=1, weight=40.0, first_weight=2.0)
    best: dict[int, float] = {}
    for id, score in before.items():
        group = int(id[1:]) % 20
        best[group] = max(best.get(group, 0.0), 2 * score + 40 * written.nearness(id))
    assert list(found.values()) == pytest.approx(sorted(best.values(), reverse=True)[:5], rel=1e-4)
    near = {int(id[1:]) % 20: 0.0 for id in before}
    for id in before:
        near[int(id[1:]) % 20] = max(near[int(id[1:]) % 20], written.nearness(id))
    assert list(written.rescored(body).values()) == pytest.approx(sorted(near.values(), reverse=True)[:5], rel=1e-4)


@pytest.mark.cluster
@pytest.mark.parametrize("collapse", [None, "group"])
def test_explained_words_and_vectors_add_up_to_the_score(written: Written, collapse: str | None) -> None:
    nested = multi_vector.PATH if written.meta.vectors > 1 else None
    how: dict[str, Any] = {"field": written.meta.field_name, "nested": nested}
    first = queries.bm25("rain snow", size=60, collapse=collapse)
    body = queries.dense_rescore(first, ASKED, weight=3.0, first_weight=0.5, **how)
    hits = written.client.search(index=written.index, body={**body, "explain": True})["hits"]["hits"]
    assert any(not written.vectors[hit["_id"]] for hit in hits) or collapse
    for hit in hits:
        parts = {share.source: share.score for share in shares(hit["_explanation"])}
        total = sum(share.score for share in shares(hit["_explanation"]))
        assert total == pytest.approx(hit["_score"], rel=1e-5)
        assert parts.keys() == ({"bm25", "dense"} if written.vectors[hit["_id"]] else {"bm25"})


def test_what_cannot_be_rescored_is_refused() -> None:
    with pytest.raises(ValueError, match="before its parts are fused"):
        queries.dense_rescore(queries.hybrid(queries.bm25("a"), queries.bm25("b")), ASKED)
    for weights in ({"weight": 0.0}, {"weight": float("nan")}, {"first_weight": -1.0}):
        with pytest.raises(ValueError, match="weight must be above 0"):
            queries.dense_rescore(queries.bm25("a"), ASKED, **weights)
    first = queries.bm25_sparse("a", {"a": 1.0}, window=20)
    with pytest.raises(ValueError, match="no wider than the 20 hits of the stage before"):
        queries.dense_rescore(first, ASKED, window=21)
    assert [stage["window_size"] for stage in queries.dense_rescore(first, ASKED)["rescore"]] == [20, 20]
