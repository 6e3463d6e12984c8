"""What each part of a query adds to a score, read from OpenSearch's explanation, and the oracle's word on it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from opensearch_neural import queries
from opensearch_neural.index.mapping import index_body, rank_features
from opensearch_neural.index.record import IndexMeta, SparseMeta
from opensearch_neural.queries import forward_index, look_up_table
from opensearch_neural.search.explanation import CODES, Share, doubts, predicted, shares

DOCUMENTS = {
    "a": ("A rainbow after rain", {"rain": 2.3, "##bow": 0.7, "u.s": 1.1}),
    "b": ("Rain in the U.S.", {"rain": 1.9, "u.s": 3.3}),
    "c": ("Nothing else", {"##bow": 1.0}),
}
TOKENS = {"rain": 2.0, "##bow": 3.5, "u.s": 1.5}


def leaf(description: str, value: float, *details: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "value": value, "details": list(details)}


@pytest.fixture(scope="module")
def index(client: Any) -> Iterator[str]:
    name = "osn-test-explanation"
    client.indices.create(index=name, body=index_body(IndexMeta(sparse=SparseMeta("m", "h", "q")), replicas=0))
    for id, (text, row) in DOCUMENTS.items():
        client.index(index=name, id=id, body={"title": text, "text": text, "sparse": rank_features(row)})
    client.indices.refresh(index=name)
    yield name
    client.indices.delete(index=name)


def test_synonyms_are_one_share_without_the_name_of_their_field(client: Any, index_name: str) -> None:
    synonyms = {"type": "synonym", "synonyms": ["rain, shower, drizzle"]}
    analyzer = {"type": "custom", "tokenizer": "standard", "filter": ["lowercase", "ours"]}
    settings = {"analysis": {"filter": {"ours": synonyms}, "analyzer": {"with_synonyms": analyzer}}}
    body = index_body(IndexMeta(analyzer="with_synonyms"), replicas=0, settings=settings)
    client.indices.create(index=index_name, body=body)
    client.index(index=index_name, id="1", body={"text": "light rain"}, params={"refresh": "true"})
    (hit,) = client.search(index=index_name, body=queries.explained(queries.bm25("shower light")))["hits"]["hits"]
    assert {share.token for share in shares(hit["_explanation"])} == {"drizzle / rain / shower", "light"}


def test_a_token_named_like_a_sentence_is_itself() -> None:
    """The token is what stands between the fixed words of the explanation, whatever it holds."""
    token = "for the x feature"
    feature = leaf(
        f"Linear function on the sparse field for the {token} feature, computed as w * S from:",
        6.0,
        leaf("w, weight of this function", 2.0),
        leaf("S, feature value", 3.0),
    )
    assert shares(leaf("sum of:", 6.0, feature)) == [Share("sparse", token, 6.0, 2.0, 3.0)]


def test_a_token_that_a_clause_and_a_row_score_is_one_share_with_its_weight() -> None:
    """The digits of a clause's explanation are not the whole weight: the share lost it, and a right score was doubted."""
    clause = leaf(
        "Linear function on the sparse field for the rain feature, computed as w * S from:",
        0.4345703,
        leaf("w, weight of this function", 1.0),
        leaf("S, feature value", 0.4345703),
    )
    params = f"{{field=sparse_forward, hashes=[{forward_index.token_hash('rain')}], tokens=[rain], weights=[2.5]}}"
    source = f"Script{{type=inline, lang='painless', idOrCode='{forward_index.SCRIPT}', options={{}}, params={params}}}"
    row = leaf(f'script score function, computed with script:"{source}"', 1.0864258)
    (share,) = shares(leaf("sum of:", 1.5209961, clause, row))
    assert share == Share("sparse", "rain", pytest.approx(1.5209961), 3.5, 0.4345703125)


def test_of_the_fields_of_which_the_best_counts_the_others_add_their_part() -> None:
    title, text = (
        leaf("weight(title:rain in 3) [x], result of:", 4.0),
        leaf("weight(text:rain in 3) [x], result of:", 2.0),
    )
    assert shares(leaf("max of:", 4.0, text, title)) == [Share("bm25", "rain", 4.0)]
    assert shares(leaf("max plus 0.5 times others of:", 5.0, text, title)) == [Share("bm25", "rain", 5.0)]


def test_what_cannot_be_told_apart_is_one_share() -> None:
    boosted = leaf("product of:", 6.0, leaf("ConstantScore(contents:rain)", 2.0), leaf("boost", 3.0))
    assert shares(boosted) == [Share("other", "product of:", 6.0)]


def test_an_infinite_part_is_a_number() -> None:
    """OpenSearch writes it as a text. What it adds to is infinite, too, unless a bound follows."""
    infinite, word = leaf("field value function: reciprocal", 0.0), leaf("weight(text:rain in 3) [x], result of:", 4.0)
    infinite["value"] = "Infinity"
    bounded = leaf("min of:", 3e38, infinite, leaf("maxBoost", 3e38))
    whole = leaf("sum of:", 0.0, word, {**infinite})
    whole["value"] = "Infinity"
    assert shares(bounded) == [Share("other", "min of:", 3e38)]
    assert shares(whole) == [Share("other", "sum of:", math.inf)]


def test_only_the_script_that_reads_codes_is_called_codes() -> None:
    def of_script(source: str) -> list[Share]:
        code = f"idOrCode='{source}', options={{}}, params={{}}"
        return shares(leaf(f'script score function, computed with script:"Script{{type=inline, {code}}}"', 2.0))

    assert of_script(look_up_table.SCRIPT) == [Share("codes", CODES, 2.0)]
    (own,) = of_script("doc['popularity'].value * 2")
    assert (own.source, own.score) == ("other", 2.0) and own.token.startswith("script score function")


def test_a_score_that_a_model_on_the_cluster_makes_is_not_doubted() -> None:
    """The body has the query's text, and no tokens to work the score out by."""
    body = {"query": {"neural_sparse": {"sparse": {"query_text": "rain", "model_id": "m"}}}}
    assert doubts(body, [([Share("sparse", "rain", 6.0, 2.0, 3.0)], 6.0)]) == [None]


def boosted_around(*clauses: dict[str, Any]) -> dict[str, Any]:
    return {"query": {"bool": {"should": list(clauses), "boost": 2.0}}}


@pytest.mark.cluster
@pytest.mark.parametrize("plugin", [True, False])
@pytest.mark.parametrize("exact", [True, False])
def test_the_shares_add_up_to_the_score_and_the_oracle_agrees(
    client: Any, index: str, plugin: bool, exact: bool
) -> None:
    bodies = [
        queries.bm25("rain in rainbow", fields=["title", "text", "contents"]),
        queries.neural_sparse(TOKENS, plugin=plugin, filter={"exists": {"field": "title"}}),
        queries.high_idf_first(TOKENS, rare=queries.Rare("count", 1), plugin=plugin, exact=exact),
        boosted_around({"match": {"contents": "rain"}}, {"rank_feature": {"field": "sparse.rain", "linear": {}}}),
        boosted_around({"match": {"contents": "rain"}}, {"match_all": {"boost": 3.0}}),
    ]
    for body in bodies:
        hits = client.search(index=index, body={**body, "explain": True})["hits"]["hits"]
        assert len(hits) >= 2
        for hit in hits:
            explained = shares(hit["_explanation"])
            assert all(share.source != "other" or share.token.startswith("*:*") for share in explained)
            assert sum(share.score for share in explained) == pytest.approx(hit["_score"], rel=1e-5)
            assert predicted(body, [explained]) == [pytest.approx(hit["_score"], rel=1e-5)]
