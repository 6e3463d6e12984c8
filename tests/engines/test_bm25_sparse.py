"""BM25 and what a sparse model adds, on a real node: the sum, its window and pages, the certificate, the model's scale."""

from __future__ import annotations

import json
import random
import re
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from forward_rows import row_field
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opensearchpy.exceptions import TransportError

from ingest.corpus import CorpusSource
from ingest.job import Job, run_job
from ingest.settings import Models, NewIndex
from opensearch_neural import queries
from opensearch_neural.cli import osn
from opensearch_neural.engines import open_engines
from opensearch_neural.engines.settings import Bm25SparseSetting
from opensearch_neural.engines.sparse import Bm25Sparse, Windowed
from opensearch_neural.index.mapping import index_body, rank_features
from opensearch_neural.index.record import DenseMeta, IndexMeta, PassageMeta, QuantizedMeta, SparseMeta
from opensearch_neural.index.sparse_scale import SCALE, measure_sparse_scale
from opensearch_neural.lint import lint
from opensearch_neural.models.registry import link_of
from opensearch_neural.models.sparse.lexical import LexicalEncoder
from opensearch_neural.query_encoder import QueryEncoder
from opensearch_neural.search.explanation import doubts, predicted, shares

DOCUMENTS = 150
WORDS = [f"word{number}" for number in range(24)]
TOKENS = [f"t{number}" for number in range(20)] + ["u.s", "##ing"]
TABLE = [[float(7 * number % 31) for number in range(256)]]


def last_stage(kind: str, body: queries.Body) -> queries.Body:
    """The body with a stage of codes or of vectors, or as it is."""
    if kind == "codes":
        return queries.quantized_rescore(body, TABLE, weight=0.02, first_weight=1.0)
    return queries.dense_rescore(body, [1.0, 2.0], weight=2.0, first_weight=1.0) if kind == "vectors" else body


class Written(NamedTuple):
    """An index of random documents. largest: {token: its largest weight, as given}."""

    client: Any
    index: str
    shards: int
    largest: dict[str, float]

    def search(self, body: queries.Body) -> Any:
        return self.client.search(index=self.index, body=body)

    def hits(self, body: queries.Body) -> dict[str, float]:
        return {hit["_id"]: hit["_score"] for hit in self.search(body)["hits"]["hits"]}


@pytest.fixture(scope="module", params=[1, 3])
def written(client: Any, request: pytest.FixtureRequest) -> Iterator[Written]:
    """Words and tokens are drawn apart, so that many documents hold one of a query's and not the other."""
    name = f"osn-test-sum-{request.param}"
    drawn = random.Random(request.param)
    meta = IndexMeta(
        sparse=SparseMeta("m", "h", "q"),
        dense=DenseMeta("m", "h", 2, "float", True),
        quantized=QuantizedMeta("m", "h", 1),
        analyzer="standard",
        forward_index=True,
    )
    client.indices.create(index=name, body=index_body(meta, shards=request.param, replicas=0))
    largest: dict[str, float] = {}
    lines: list[dict[str, Any]] = []
    for number in range(DOCUMENTS):
        words = drawn.choices(WORDS, weights=[1 / (at + 1) for at in range(len(WORDS))], k=drawn.randint(2, 12))
        row = {token: drawn.uniform(0.1, 3) for token in drawn.sample(TOKENS, drawn.randint(0, 8))}
        for token, weight in row.items():
            largest[token] = max(weight, largest.get(token, 0.0))
        record = {"text": " ".join(words), "group": f"g{number % 40}", "even": number % 2 == 0}
        record |= {"sparse": rank_features(row), "pq": b64encode(bytes([drawn.randrange(256)])).decode()}
        record |= row_field(row)
        if number % 7:
            record["dense"] = [drawn.uniform(-1, 1), drawn.uniform(-1, 1)]
        lines += [{"index": {"_id": f"d{number}"}}, record]
    assert not client.bulk(index=name, body=lines, refresh=True)["errors"]
    yield Written(client, name, request.param, largest)
    client.indices.delete(index=name)


texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4, unique=True).map(" ".join)
tokens = st.dictionaries(st.sampled_from(TOKENS), st.floats(0.5, 8), max_size=5)
of_a_cluster = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def bases(text: str) -> dict[str, queries.Clause]:
    """{what it is: a query of one's own}; half of the documents are even."""
    match, even = {"match": {"text": text}}, {"term": {"even": True}}
    constant, feature = {"constant_score": {"filter": match}}, {"rank_feature": {"field": "sparse.t1"}}
    return {
        "must as an object, filter": {"bool": {"must": match, "filter": even}},
        "should, must_not": {"bool": {"should": [match], "must_not": [even], "minimum_should_match": 1}},
        "filter alone": {"bool": {"filter": even}},
        "empty must": {"bool": {"must": [], "should": [constant], "filter": [even]}},
        "must of a filter": {"bool": {"must": [match, {"constant_score": {"filter": even, "boost": 0}}]}},
        "should as an object": {"bool": {"should": constant}},
        "should of constants": {"bool": {"should": [constant, match]}},
        "constant_score": constant,
        "as held tokens": {"bool": {"should": [match, {"constant_score": {"filter": feature, "boost": 9.0}}]}},
        "function_score": {
            "function_score": {"query": {"bool": {"must": match, "filter": even}}, "functions": [{"weight": 2.0}]}
        },
        "match": match,
        "multi_match": {"multi_match": {"query": text, "fields": ["text^3", "title"]}},
        "dis_max": {"dis_max": {"queries": [match, {"match": {"contents": text}}]}},
    }


@pytest.mark.cluster
@pytest.mark.parametrize("field", ["text^3", "te*t", "te*t^3"])
def test_a_single_field_may_have_a_boost_or_be_a_pattern(written: Written, field: str) -> None:
    factor = 3 if "^" in field else 1
    plain = written.hits(queries.bm25("word1 word3", fields=["text"], size=DOCUMENTS))
    assert len(plain) > 10
    expected = {id: factor * score for id, score in plain.items()}
    assert written.hits(queries.bm25("word1 word3", fields=[field], size=DOCUMENTS)) == pytest.approx(
        expected, rel=1e-5
    )
    summed = queries.bm25_sparse("word1 word3", {"t1": 1e-6}, fields=[field], window=5, size=DOCUMENTS)
    assert written.hits(summed) == pytest.approx(expected, rel=1e-4)


@pytest.mark.cluster
@of_a_cluster
@given(texts, tokens, st.floats(0.05, 4), st.booleans(), st.booleans())
def test_without_a_window_every_document_has_the_sum(
    written: Written, text: str, tokens: dict[str, float], weight: float, plugin: bool, narrowed: bool
) -> None:
    every: dict[str, Any] = {"size": DOCUMENTS, "filter": {"term": {"even": True}} if narrowed else None}
    lexical = written.hits(queries.bm25(text, **every))
    sparse = written.hits(queries.neural_sparse(tokens, **every))
    expected = {id: lexical.get(id, 0) + weight * sparse.get(id, 0) for id in lexical.keys() | sparse.keys()}
    body = queries.bm25_sparse(text, tokens, weight=weight, window=None, plugin=plugin, **every)
    assert written.hits(body) == pytest.approx(expected, rel=1e-5)


@pytest.mark.cluster
@of_a_cluster
@given(texts, tokens, st.floats(0.05, 4), st.integers(1, 60), st.booleans(), st.booleans())
def test_the_windows_hits_have_the_sum_and_the_others_bm25(
    written: Written, text: str, tokens: dict[str, float], weight: float, window: int, plugin: bool, forward: bool
) -> None:
    lexical = written.hits(queries.bm25(text, size=DOCUMENTS))
    sparse = written.hits(queries.neural_sparse(tokens, size=DOCUMENTS)) if tokens else {}
    how: dict[str, Any] = {"weight": weight, "window": window, "plugin": plugin, "forward": forward}
    body = queries.bm25_sparse(text, tokens, **how, size=DOCUMENTS)
    scores = written.hits(body)
    assert scores.keys() == lexical.keys()
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    whole = {id for id in scores if scores[id] == pytest.approx(lexical[id] + weight * sparse.get(id, 0), rel=1e-5)}
    assert all(scores[id] == pytest.approx(lexical[id], rel=1e-5) for id in scores.keys() - whole)
    assert len(whole) >= min(window, len(lexical))
    if written.shards == 1:
        assert set(list(lexical)[:window]) <= whole


@pytest.mark.cluster
@pytest.mark.parametrize("last", ["", "codes", "vectors"])
@settings(of_a_cluster, max_examples=15)
@given(
    texts,
    tokens,
    st.integers(1, 40),
    st.integers(3, 23),
    st.fixed_dictionaries({"forward": st.booleans(), "plugin": st.booleans()}),
    st.sampled_from([None, {"term": {"even": True}}]),
)
def test_pages_are_as_full_as_bm25s_and_put_together_one_ranking_without_repeats(
    written: Written,
    last: str,
    text: str,
    tokens: dict[str, float],
    window: int,
    size: int,
    how: dict[str, bool],
    filter: queries.Clause | None,
) -> None:
    def page(from_: int, size: int) -> list[str]:
        asked: dict[str, Any] = {"weight": 0.7, "window": window, "filter": filter, **how}
        body = queries.bm25_sparse(text, tokens, **asked, size=size, from_=from_)
        return list(written.hits(last_stage(last, body)))

    whole = written.hits(queries.bm25(text, size=DOCUMENTS, filter=filter))
    pages = [id for from_ in range(0, len(whole) + size, size) for id in page(from_, size)]  # the last one is empty
    assert len(set(pages)) == len(pages) and set(pages) == whole.keys()
    assert pages == page(0, DOCUMENTS)


@pytest.mark.cluster
@of_a_cluster
@given(texts, texts, tokens.filter(bool), st.integers(1, 60), st.integers(3, 23), st.booleans())
def test_with_rare_words_first_the_windows_hits_have_the_same_sum_and_pages_are_one_ranking(
    written: Written, rare: str, others: str, tokens: dict[str, float], window: int, size: int, forward: bool
) -> None:
    text = f"{others} {rare}"
    how: dict[str, Any] = {"weight": 0.7, "window": window, "forward": forward, "rare_first": (rare, others)}
    every = {"window": DOCUMENTS, "size": DOCUMENTS}
    whole = written.hits(queries.bm25_sparse(text, tokens, **{**how, "rare_first": None, **every}))
    first = written.hits(queries.bm25(rare, size=DOCUMENTS))
    scores = written.hits(queries.bm25_sparse(text, tokens, **how, size=DOCUMENTS))
    assert first.keys() <= scores.keys() == whole.keys()
    rescored = {id for id in scores if scores[id] == pytest.approx(whole[id], rel=1e-5)}
    beyond = {id: scores[id] for id in scores.keys() - rescored}
    assert beyond == pytest.approx({id: first.get(id, 0.0) for id in beyond}, rel=1e-5, abs=1e-9)
    assert len(rescored) >= min(window, len(whole))
    if written.shards == 1:
        assert set(list(first)[:window]) <= rescored
    wide = written.hits(queries.bm25_sparse(text, tokens, **{**how, **every}))
    assert wide == pytest.approx(whole, rel=1e-5)
    pages = [
        id
        for from_ in range(0, len(whole) + size, size)
        for id in written.hits(queries.bm25_sparse(text, tokens, **how, size=size, from_=from_))
    ]
    assert pages == list(scores)


@pytest.mark.cluster
@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("explained", [False, True])
def test_with_rare_words_first_the_shares_of_all_words_and_tokens_add_up(
    written: Written, explained: bool, pruned: bool
) -> None:
    asked = {"t1": 2.0, "t2": 1.5, "u.s": 1.0, "##ing": 4.0}
    how: dict[str, Any] = {"weight": 0.3, "forward": True, "pruned": pruned, "rare_first": ("word5", "word1 word2")}
    body = queries.bm25_sparse("word1 word5 word2", asked, **how)
    hits = written.search(queries.explained(body) if explained else {**body, "explain": True})["hits"]["hits"]
    words = set()
    for hit in hits:
        told = shares(hit["_explanation"])
        assert sum(share.score for share in told) == pytest.approx(hit["_score"], rel=1e-5)
        words |= {share.token for share in told if share.source == "bm25"}
    assert words == {"word1", "word2", "word5"}
    # What it lacks are not documents whose tokens the postings do not hold.
    assert queries.unsearched(body, 3) is None


def test_rare_words_are_first_only_if_there_are_others_and_a_window_whose_hits_can_be_rescored() -> None:
    def body(**how: Any) -> queries.Body:
        return queries.bm25_sparse("x y z", **{"tokens": {"x": 1.0}, "rare_first": ("x z", "y"), **how})

    stages = body(window=7)["rescore"]
    assert [stage["window_size"] for stage in stages] == [7, 7]
    assert lint(body(window=50)) == lint(body(window=50, rare_first=None)) == []
    assert stages[1] == body(window=7, rare_first=None)["rescore"]
    for how in (
        {"window": None},
        {"collapse": "group"},
        {"base": {"match_all": {}}},
        {"tokens": {}},
        {"rare_first": ("x y z", "")},
    ):
        assert body(**how) == body(**{**how, "rare_first": None})
    with pytest.raises(
        ValueError, match="must be of bm25_sparse or high_idf_first, with a window and no further stage"
    ):
        queries.window_end(body())
    windows = [stage["window_size"] for stage in queries.quantized_rescore(body(), TABLE, window=20)["rescore"]]
    assert windows == [30, 30, 20]


@pytest.mark.cluster
@pytest.mark.parametrize("last", ["codes", "vectors"])
def test_no_hit_outranks_others_by_its_last_stage_alone(written: Written, last: str) -> None:
    text, asked = "word1 word5", {"t1": 2.0, "t2": 1.5, "u.s": 1.0}
    first = queries.bm25_sparse(text, asked, weight=0.7, window=20, size=DOCUMENTS)
    body = last_stage(last, first)
    whole = written.hits(queries.bm25_sparse(text, asked, weight=0.7, window=DOCUMENTS, size=DOCUMENTS))
    before, after = written.hits(first), written.hits(body)
    assert len(after) > 20 * written.shards + 20, "else every hit lies within the window"
    for id, score in after.items():
        if score > before[id] * (1 + 1e-5):  # it has got what its code or vector adds
            assert before[id] == pytest.approx(whole[id], rel=1e-5)


@pytest.mark.cluster
def test_a_certified_page_is_that_of_all_documents(written: Written) -> None:
    drawn = random.Random(7)
    outcomes = []
    for _ in range(80):
        text = " ".join(drawn.sample(WORDS[4:], drawn.randint(1, 3)))
        asked = {token: drawn.uniform(0.5, 6) for token in drawn.sample(TOKENS, drawn.randint(0, 4))}
        how: dict[str, Any] = {"weight": drawn.choice([0.01, 0.05, 0.3]), "size": drawn.randint(0, 5)}
        how["from_"] = drawn.choice([0, 0, 2])
        rows = drawn.random() < 0.5
        body = queries.bm25_sparse(text, asked, window=drawn.choice([3, 10, 40]), forward=rows, **how)
        if "rescore" not in body:
            continue
        answer = written.search(body)
        end = written.search(queries.window_end(body))
        tops = {token: written.hits(top) for token, top in queries.heaviest(body).items()}
        stored = {token: max(hits.values()) for token, hits in tops.items() if hits}
        assert all(written.largest[token] * (1 - 2**-8) <= stored[token] <= written.largest[token] for token in stored)
        sure = queries.certified(body, answer, end, stored)
        assert sure >= queries.certified(body, answer, end, written.largest), "larger bounds certify no more"
        outcomes.append(sure)
        if sure:
            exact = written.hits(queries.bm25_sparse(text, asked, window=None, **how))
            page = {hit["_id"]: hit["_score"] for hit in answer["hits"]["hits"]}
            assert list(page.values()) == pytest.approx(list(exact.values()), rel=1e-5)
            everything = written.hits(
                queries.bm25_sparse(text, asked, weight=how["weight"], window=None, size=DOCUMENTS)
            )
            assert page == pytest.approx({id: everything[id] for id in page}, rel=1e-5)
    assert 0.1 < sum(outcomes) / len(outcomes) < 0.95, "else nothing was tried"


@pytest.mark.cluster
@pytest.mark.parametrize("kind", bases("x"))
def test_a_certified_page_of_a_query_of_ones_own_is_that_of_all_it_matches(written: Written, kind: str) -> None:
    drawn, outcomes = random.Random(kind), []
    for turn in range(25):
        how: dict[str, Any] = {"base": bases(" ".join(drawn.sample(WORDS[4:], 2)))[kind], "size": drawn.randint(1, 4)}
        how["weight"], window = drawn.choice([0.001, 0.3]), drawn.choice([3, 10, 200])
        if turn < 3:  # nothing lies beyond
            how["weight"], window = 0.001, 200
        asked = {token: drawn.uniform(0.5, 6) for token in drawn.sample(TOKENS[1:], 2)}
        body = queries.bm25_sparse("", asked, window=window, forward=drawn.random() < 0.5, **how)
        answer, end = written.search(body), written.search(queries.window_end(body))
        sure = queries.certified(body, answer, end, written.largest)
        outcomes.append((window, sure))
        if sure:
            exact = written.hits(queries.bm25_sparse("", asked, window=None, **how))
            page = [hit["_score"] for hit in answer["hits"]["hits"]]
            assert page == pytest.approx(list(exact.values()), rel=1e-5)
    # What all score 0 for stays above nothing.
    assert any(sure for window, sure in outcomes if window == 200) == (kind != "filter alone")


@pytest.mark.cluster
def test_all_hits_are_read_by_search_after_without_a_window_and_not_beside_a_rescore(written: Written) -> None:
    def sum_of(window: int | None, size: int) -> queries.Body:
        return queries.bm25_sparse("word3 word7", {"t1": 2.0, "t5": 1.0}, weight=0.5, window=window, size=size)

    everything, paged = {**sum_of(None, 7), "sort": ["_score", {"_id": "asc"}]}, []
    while hits := written.search(everything)["hits"]["hits"]:
        paged += hits
        everything["search_after"] = hits[-1]["sort"]
    assert {hit["_id"]: hit["_score"] for hit in paged} == written.hits(sum_of(None, DOCUMENTS))
    assert [hit["_score"] for hit in paged] == sorted((hit["_score"] for hit in paged), reverse=True)
    after = {name: everything[name] for name in ("sort", "search_after")}
    collapsed = {**everything, "collapse": {"field": "group"}}
    for body, reason in (({**sum_of(30, 7), **after}, "sort"), (collapsed, "search_after")):
        with pytest.raises(TransportError) as refused:
            written.search(body)
        assert reason in str(refused.value.info)


@pytest.mark.cluster
def test_passages_are_collapsed_and_have_the_sum(written: Written) -> None:
    text, asked = "word3 word7", {"t1": 2.0, "t5": 1.0}
    everything = written.hits(queries.bm25_sparse(text, asked, weight=0.5, window=None, size=DOCUMENTS))
    lexical = written.hits(queries.bm25(text, size=DOCUMENTS))
    for window, of in ((None, everything), (5, {id: everything[id] for id in lexical})):
        best: dict[str, float] = {}
        for id, score in of.items():
            group = f"g{int(id[1:]) % 40}"
            best[group] = max(score, best.get(group, 0))
        body = queries.bm25_sparse(text, asked, weight=0.5, window=window, size=10, collapse="group")
        hits = queries.best_passages(body, written.search(body)["hits"]["hits"])
        expected = sorted(best.values(), reverse=True)[:10]
        assert [hit["_score"] for _, hit in hits] == pytest.approx(expected, rel=1e-5)
        assert {group: hit["_score"] for group, hit in hits} == pytest.approx({g: best[g] for g, _ in hits}, rel=1e-5)


@pytest.mark.cluster
def test_a_query_of_ones_own_stands_where_bm25_stands(written: Written) -> None:
    base = {"match": {"text": {"query": "word2 word9", "operator": "and", "boost": 3.0}}}
    asked = {"t1": 2.0, "t2": 1.5, "u.s": 1.0}
    own = written.hits({"query": base, "size": DOCUMENTS})
    sparse = written.hits(queries.neural_sparse(asked, size=DOCUMENTS))
    assert own
    body = queries.bm25_sparse("", asked, base=base, weight=0.5, window=DOCUMENTS, size=DOCUMENTS)
    assert written.hits(body) == pytest.approx({id: own[id] + 0.5 * sparse.get(id, 0) for id in own}, rel=1e-5)


@pytest.mark.cluster
@pytest.mark.parametrize("kind", bases("x"))
def test_only_what_a_query_of_ones_own_matches_is_a_hit_also_without_a_window(written: Written, kind: str) -> None:
    base, asked = bases("word2 word9")[kind], {"t1": 2.0, "t2": 1.5, "u.s": 1.0}
    own = written.hits({"query": base, "size": DOCUMENTS})
    sparse = written.hits(queries.neural_sparse(asked, size=DOCUMENTS))
    assert own and sparse.keys() - own.keys()
    for window in (None, DOCUMENTS):
        body = queries.bm25_sparse("", asked, base=base, weight=0.5, window=window, size=DOCUMENTS)
        assert written.hits(body) == pytest.approx({id: own[id] + 0.5 * sparse.get(id, 0) for id in own}, rel=1e-5)
        grouped = written.search(queries.bm25_sparse("", asked, base=base, window=window, size=40, collapse="group"))
        assert {hit["_id"] for hit in grouped["hits"]["hits"]} <= own.keys()


@pytest.mark.cluster
@pytest.mark.parametrize("plugin", [True, False])
@pytest.mark.parametrize("window", [30, None])
def test_the_shares_of_bm25_and_of_each_token_add_up_and_the_oracle_agrees(
    written: Written, plugin: bool, window: int | None
) -> None:
    asked = {"t1": 2.0, "t2": 1.5, "u.s": 1.0, "##ing": 4.0}
    body = queries.bm25_sparse("word1 word5", asked, weight=0.3, window=window, plugin=plugin)
    hits = written.search({**body, "explain": True})["hits"]["hits"]
    for hit in hits:
        explained = shares(hit["_explanation"])
        assert sum(share.score for share in explained) == pytest.approx(hit["_score"], rel=1e-5)
        assert predicted(body, [explained]) == [pytest.approx(hit["_score"], rel=1e-5)]
        for share in explained:
            if share.source == "sparse":
                assert share.query_weight == pytest.approx(0.3 * asked[share.token], rel=1e-5)
    assert {"bm25", "sparse"} == {share.source for hit in hits for share in shares(hit["_explanation"])}


@pytest.mark.cluster
def test_no_right_explanation_of_a_query_of_ones_own_is_doubted_and_a_wrong_weight_is(written: Written) -> None:
    text, asked = "word1 word5", {"t1": 2.0, "t2": 1.5, "u.s": 1.0, "##ing": 4.0}
    match, every = {"match": {"text": text}}, {"match_all": {}}
    tokens = {"neural_sparse": {"sparse": {"query_tokens": {"t1": 3.0}}}}
    tripled = {"function_score": {"query": every, "functions": [{"weight": 3.0}], "boost_mode": "sum"}}
    own: dict[str, queries.Clause] = {
        **bases(text),
        "words left out": {"simple_query_string": {"query": "word1 -word2", "fields": ["text"]}},
        "of all": tripled,
        "all beside of all": {"bool": {"must": [match, every], "should": [tripled]}},
        "boosting": {"boosting": {"positive": every, "negative": {"term": {"even": True}}, "negative_boost": 0.3}},
        "twice": {"bool": {"should": [match, match]}},
        "no score": {"match": {"text": {"query": text, "boost": 0}}},
        "all": every,
        "tokens": tokens,
        "the best": {"dis_max": {"queries": [match, tokens]}},
        "tokens of some": {
            "bool": {"should": [match, {"bool": {"must": [tokens], "filter": {"term": {"even": True}}}}]}
        },
    }
    ways: list[dict[str, Any]] = [
        *({"window": 30, "forward": forward} for forward in (False, True)),
        {"window": None},
        {"collapse": "group"},
        {"pruned": True, "collapse": "group"},
    ]
    rescored = [
        {"rescore_query": tokens, "rescore_query_weight": -0.1},
        {"rescore_query": match, "query_weight": 2.0, "rescore_query_weight": 0.5},
        {"rescore_query": {"bool": {"must": [tokens], "filter": {"term": {"even": True}}}}},
    ]
    for kind, base in own.items():
        bodies = [queries.bm25_sparse("", asked, base=base, **how) for how in ways]
        searched = queries.bm25_sparse("", asked, base=base, window=None)
        bodies += [{**searched, "rescore": {"query": how, "window_size": 5}} for how in rescored]
        for body in map(queries.explained, bodies):
            read = [(shares(hit["_explanation"]), hit["_score"]) for hit in written.search(body)["hits"]["hits"]]
            assert read and doubts(body, read) == [None] * len(read), (kind, body)
    body = queries.bm25_sparse("", asked, base=own["twice"])
    read = [
        (shares(hit["_explanation"]), hit["_score"]) for hit in written.search(queries.explained(body))["hits"]["hits"]
    ]
    wrong = [
        ([replace(share, document_weight=share.document_weight and 2 * share.document_weight) for share in told], score)
        for told, score in read
    ]
    assert all(doubt and "its tokens' weights give" in doubt for doubt in doubts(body, wrong))


def test_what_is_no_weight_window_or_body_of_the_sum_is_refused() -> None:
    for weight in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="weight must be a number above 0"):
            queries.bm25_sparse("x", {"x": 1.0}, weight=weight)
    with pytest.raises(ValueError, match="window must be a whole number from 1"):
        queries.bm25_sparse("x", {"x": 1.0}, window=0)
    for body in (queries.bm25("x"), queries.bm25_sparse("x", {"x": 1.0}, window=None)):
        with pytest.raises(ValueError, match="must be of bm25_sparse or high_idf_first, with a window"):
            queries.window_end(body)


def test_a_query_without_tokens_is_bm25s() -> None:
    assert queries.bm25_sparse("x y", {}, size=3) == queries.bm25("x y", size=3)


def test_a_stage_of_codes_ranks_no_more_hits_than_the_stage_before() -> None:
    first = queries.bm25_sparse("x", {"x": 1.0}, window=50)

    def windows(body: queries.Body, **how: Any) -> list[int]:
        return [stage["window_size"] for stage in queries.quantized_rescore(body, TABLE, **how)["rescore"]]

    assert windows(first) == [50, 50] and windows(first, window=20) == [50, 20]
    assert windows(queries.bm25("x")) == [100]
    assert windows(queries.bm25_sparse("x", {"x": 1.0}, window=500)) == [500, 100]
    assert windows(queries.high_idf_first({"x": 9.0, "y": 1.0}, window=7)) == [7, 7]
    assert windows(queries.quantized_rescore(first, TABLE, window=20)) == [50, 20, 20]
    with pytest.raises(ValueError, match="no wider than the 50 hits of the stage before, not 51: the hits beyond lack"):
        queries.quantized_rescore(first, TABLE, window=51)
    for window in (0, -1):
        with pytest.raises(ValueError, match=f"a whole number from 1, not {window}"):
            queries.quantized_rescore(first, TABLE, window=window)
    with pytest.raises(ValueError, match="no further stage"):
        queries.window_end(queries.quantized_rescore(first, TABLE))


TEXTS = {
    "rain": "A rainbow is made of light. Droplets refract the light of the sun after rain.",
    "cake": "Beat the eggs with sugar for long. Fold in the flour with a spoon.",
    "engine": "The piston compresses the mixture of fuel and air. Then the spark ignites the fuel.",
    "moon": "The moon reflects the light of the sun. It has phases as it goes around the earth.",
}


@pytest.fixture(scope="module")
def docs(client: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("docs")
    corpus = folder / "docs.jsonl"
    corpus.write_text("".join(json.dumps({"_id": id, "text": text}) + "\n" for id, text in TEXTS.items()))
    name = "osn-test-sum-docs"
    job = Job(
        CorpusSource(str(corpus)),
        name,
        models=Models(sparse="lexical"),
        new_index=NewIndex(replicas=0),
        dead_letters=folder / "dead.jsonl",
    )
    run_job(client, job, show_progress=False)
    yield name
    client.indices.delete(index=name)


@pytest.mark.cluster
def test_the_weight_does_not_depend_on_the_models_scale(client: Any, docs: str, index_name: str) -> None:
    """A model whose weights are eight times as large ranks, and scores, the same."""
    plain = open_engines(client, docs)
    assert plain.meta.sparse is not None
    model = LexicalEncoder.load(link_of(plain.meta.sparse.hash))
    extra = {key: value for key, value in plain.meta.extra.items() if key != SCALE}
    client.indices.create(
        index=index_name, body=index_body(replace(plain.meta, extra=extra, forward_index=False), replicas=0)
    )
    for id, row in zip(TEXTS, model.encode_documents(list(TEXTS.values())).rows(), strict=True):
        larger = rank_features({token: 8 * weight for token, weight in row.items()})
        client.index(index=index_name, id=id, body={"text": TEXTS[id], "sparse": larger})
    client.indices.refresh(index=index_name)
    scaled = open_engines(client, index_name)
    scales = [measure_sparse_scale(client, each.index, each.models.query_encoder) for each in (plain, scaled)]
    assert scales[0] is not None and scales[1] == pytest.approx(8 * scales[0], rel=0.01)
    stored = [
        replace(engines, meta=engines.meta.with_extra(**{SCALE: scale}))
        for engines, scale in ((plain, 1.0), (scaled, 8.0))
    ]
    for text in ("light of the sun", "sugar and flour with fuel"):
        answers = []
        for engines in stored:
            hits = client.search(index=engines.index, body=engines.body("bm25-sparse", text))["hits"]["hits"]
            answers.append({hit["_id"]: hit["_score"] for hit in hits})
        assert answers[0] == pytest.approx(answers[1], rel=1e-5) and answers[0]


@pytest.mark.cluster
def test_osn_search_sums_by_default_and_explains_which_words_were_added(docs: str, cluster_url: str) -> None:
    asked = ["search", "--url", cluster_url, "--index", docs, "--json", "--explain", "light of the sun"]
    done = CliRunner().invoke(osn, asked, catch_exceptions=False)
    answer = json.loads(done.stdout)
    assert answer["engine"] == "bm25-sparse"
    for hit in answer["hits"]:
        assert hit["sum"] == pytest.approx(hit["score"], rel=1e-4)
        assert {"bm25", "sparse"} == {each["source"] for each in hit["tokens"]}
        # A lexical model adds no words of its own.
        assert all(each["literal"] for each in hit["tokens"] if each["source"] == "sparse")
    shown = CliRunner().invoke(osn, [each for each in asked if each != "--json"], catch_exceptions=False).stdout
    assert "BM25" in shown and "in the text" in shown and "added" not in shown


@pytest.mark.cluster
def test_exact_hits_are_those_of_all_documents(client: Any, docs: str, cluster_url: str) -> None:
    asked = ["search", "--url", cluster_url, "--index", docs, "--json", "--exact", "--window", "1", "--size", "2"]
    done = CliRunner().invoke(osn, [*asked, "the light of the sun on flour"], catch_exceptions=False)
    answer = json.loads(done.stdout)
    text, engines = "the light of the sun on flour", open_engines(client, docs)
    weight = Bm25SparseSetting().weight / Bm25Sparse(engines).load_scale()
    tokens = engines.models.query_encoder.encode(text)
    hits = client.search(index=docs, body=queries.bm25_sparse(text, tokens, weight=weight, window=None, size=2))
    expected = [(hit["_id"], pytest.approx(hit["_score"], rel=1e-5)) for hit in hits["hits"]["hits"]]
    assert [(hit["id"], hit["score"]) for hit in answer["hits"]] == expected


@pytest.mark.cluster
def test_exact_hits_of_a_query_of_ones_own_pass_its_filter(client: Any, docs: str) -> None:
    engine = open_engines(client, docs, exact=True, window=1).engine("bm25-sparse")
    text = "light of the sun"
    match = {"match": {"contents": text}}
    for wanted in (["moon"], ["moon", "rain"]):
        page: dict[str, Any] = {"base": {"bool": {"must": match, "filter": {"ids": {"values": wanted}}}}}
        answer = engine.search(client, engine.body(text, page), text)
        assert {hit["_id"] for hit in answer["hits"]["hits"]} == set(wanted)


@pytest.fixture
def lacking(client: Any, docs: str, index_name: str) -> str:
    """An index of which no node holds one shard. No document is in that."""
    nodes = int(client.cluster.health()["number_of_data_nodes"])
    opened = open_engines(client, docs)
    body = index_body(replace(opened.meta, forward_index=False), shards=nodes + 1, replicas=0)
    body["settings"]["index"]["routing.allocation.total_shards_per_node"] = 1
    client.indices.create(index=index_name, body=body, params={"wait_for_active_shards": 0})
    client.cluster.health(index=index_name, params={"wait_for_no_initializing_shards": "true"})
    places = {
        place: client.search_shards(index=index_name, params={"routing": place})["shards"][0] for place in "abcdefghij"
    }
    place = next(place for place, copies in places.items() if copies)
    lines: list[dict[str, Any]] = []
    for id, row in zip(TEXTS, opened.models.sparse.encode_documents(list(TEXTS.values())).rows(), strict=True):
        for number in range(3):
            lines += [{"index": {"_id": f"{id}{number}"}}, {"text": TEXTS[id], "sparse": rank_features(row)}]
    # A request to refresh the index would wait for the shard.
    assert not client.bulk(index=index_name, body=lines, routing=place, refresh=True)["errors"]
    return index_name


def find_all_shards(client: Any, index: str) -> None:
    client.indices.put_settings(index=index, body={"index.routing.allocation.total_shards_per_node": -1})
    client.cluster.health(index=index, params={"wait_for_status": "green"})


@pytest.mark.cluster
def test_nothing_is_certain_of_an_answer_that_lacks_a_shard(client: Any, lacking: str) -> None:
    text = "light of the sun"
    tokens = open_engines(client, lacking).models.query_encoder.encode(text)
    body = queries.bm25_sparse(text, tokens, weight=0.001, window=10, size=2)

    def asked() -> tuple[Any, Any, dict[str, float]]:
        tops = {token: client.search(index=lacking, body=top) for token, top in queries.heaviest(body).items()}
        answer, end = (client.search(index=lacking, body=each) for each in (body, queries.window_end(body)))
        return answer, end, queries.largest_weights(tops)

    partial = asked()
    find_all_shards(client, lacking)
    whole = asked()
    assert partial[0]["hits"] == whole[0]["hits"] and partial[0]["_shards"]["failed"] == 0
    assert queries.certified(body, *whole)
    for parts in product((False, True), repeat=3):
        chosen = [
            lacking_part if late else whole_part
            for late, lacking_part, whole_part in zip(parts, partial, whole, strict=True)
        ]
        assert queries.certified(body, *chosen) == (not any(parts))
    for late in ({**whole[0], "timed_out": True}, {**whole[0], "_shards": {"total": 3, "successful": 2, "failed": 1}}):
        assert not queries.certified(body, late, *whole[1:]) and not queries.certified(body, whole[0], late, whole[2])


@pytest.mark.cluster
def test_exact_hits_without_a_shard_are_told_of(client: Any, lacking: str, cluster_url: str) -> None:
    said = "warning: the hits may not be the best of all documents"
    text = "light of the sun"
    how = ["search", "--url", cluster_url, "--index", lacking, "--json", "--exact", "--size", "2", text, "--engine"]
    for engine in ("bm25-sparse", "high-idf-first"):
        done = CliRunner().invoke(osn, [*how, engine], catch_exceptions=False)
        assert said in done.stderr and re.search("no node answers for 1 of . shards, and their hits are", done.stderr)
        answer = json.loads(done.stdout)
        assert answer["exact"] is False and len(answer["hits"]) == 2
        page = {"size": 2}
        assert not open_engines(client, lacking, window=100).engine(engine).certified(client, text, page)
    # No token of it is known: it is searched in one phase.
    one_phase = open_engines(client, lacking).engine("high-idf-first")
    assert isinstance(one_phase, Windowed) and "rescore" not in one_phase.body("zzz", page)
    assert not one_phase.certified(client, "zzz", page)
    find_all_shards(client, lacking)
    assert one_phase.certified(client, "zzz", page)
    for engine in ("bm25-sparse", "high-idf-first"):
        done = CliRunner().invoke(osn, [*how, engine], catch_exceptions=False)
        assert said not in done.stderr and "exact" not in json.loads(done.stdout)


@pytest.mark.cluster
def test_the_heaviest_tokens_of_a_query_are_added_if_asked_for_and_all_by_the_exact_search(
    client: Any, docs: str
) -> None:
    text = "the moon and the sun reflect light and rain on flour and sugar with eggs and air and fuel for a spark"
    engines = open_engines(client, docs)
    every = engines.models.query_encoder.encode(text)
    assert len(every) > 12

    def added(tuned: dict[str, Any] | None = None, **settings: Any) -> dict[str, float]:
        opened = replace(engines, meta=engines.meta.with_extra(**{Bm25SparseSetting.key: tuned}), settings=settings)
        body = opened.body("bm25-sparse", text)
        query = body["rescore"]["query"]["rescore_query"] if "rescore" in body else body["query"]["bool"]["should"][1]
        return queries.sparse_tokens(query)[1]

    assert added() == every
    eight = queries.Rare("count", 8)
    heaviest = added(tokens=eight)
    assert len(heaviest) == 8 and heaviest.items() <= every.items()
    assert min(heaviest.values()) >= max(every[token] for token in every.keys() - heaviest.keys())
    assert added(exact=True, tokens=eight) == every
    stored = Bm25SparseSetting(tokens=eight).record
    assert added(stored) == heaviest and added(stored, exact=True) == every
    # As it was stored before there was this setting.
    assert added({"weight": 0.45, "window": 50}) == every


@pytest.mark.cluster
def test_exact_hits_of_high_idf_first_are_those_of_all_tokens(client: Any, docs: str, cluster_url: str) -> None:
    text = "the light of the sun on flour"
    asked = ["search", "--url", cluster_url, "--index", docs, "--json", "--size", "2", text, "--engine"]
    runs = []
    for engine in (["high-idf-first", "--exact", "--window", "1"], ["sparse"]):
        answer = json.loads(CliRunner().invoke(osn, [*asked, *engine], catch_exceptions=False).stdout)
        runs.append([(hit["id"], hit["score"]) for hit in answer["hits"]])
    assert runs[0] == runs[1] and len(runs[0]) == 2


@pytest.mark.cluster
def test_a_table_without_spread_is_searched_in_one_phase_and_that_is_said(client: Any, docs: str) -> None:
    engines = open_engines(client, docs)
    encoder = engines.models.query_encoder
    alike = QueryEncoder(encoder.tokenizer, dict.fromkeys(encoder.vocabulary, 1.0))
    for models, warned in ((engines.models, False), (engines.models.holding(query_encoder=alike), True)):
        engine = replace(engines, models=models, loaded={}).engine("high-idf-first")
        body = engine.body("the light of the sun", {})
        assert ("rescore" in body) != warned
        told = engine.missing(body, client.search(index=docs, body=body), filtered=False).warnings
        assert bool(told) == warned and all("weigh the same" in warning for warning in told)


@pytest.mark.cluster
def test_exact_hits_of_passages_are_the_best_of_each_document(
    client: Any, index_name: str, cluster_url: str, tmp_path: Path
) -> None:
    corpus = tmp_path / "docs.jsonl"
    corpus.write_text("".join(json.dumps({"_id": id, "text": text}) + "\n" for id, text in TEXTS.items()))
    passages = PassageMeta(8, 6)
    run_job(
        client,
        Job(
            CorpusSource(str(corpus)),
            index_name,
            models=Models(sparse="lexical", passages=passages),
            new_index=NewIndex(replicas=0),
            dead_letters=tmp_path / "dead.jsonl",
        ),
        show_progress=False,
    )
    asked = ["search", "--url", cluster_url, "--index", index_name, "--json", "--explain"]
    runs = []
    for how in ([], ["--exact"]):
        done = CliRunner().invoke(osn, [*asked, *how, "light of the sun"], catch_exceptions=False)
        runs.append([(hit["id"], hit["score"]) for hit in json.loads(done.stdout)["hits"]])
    assert len(dict(runs[0])) == len(runs[0]) >= 2
    # What BM25 does not find comes behind, if it is found at all.
    assert dict(runs[1][: len(runs[0])]) == pytest.approx(dict(runs[0]), rel=1e-5)
