"""Searches of an index whose postings hold each document's heaviest tokens alone, beside one that holds all of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from corpora import WORDS, job, records, snapshot, write_jsonl
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from opensearchpy.exceptions import TransportError
from osn_command import osn_command
from quantized_models import quantized_model

from ingest.job import run_job
from opensearch_neural import queries
from opensearch_neural.cluster.capabilities import quick_capabilities
from opensearch_neural.engines import Engines, open_engines
from opensearch_neural.engines.settings import HighIdfFirstSetting, PrunedSparseSetting, pruned_window
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.index.mapping import index_body
from opensearch_neural.index.record import existing_record, write_record
from opensearch_neural.lint import lint
from opensearch_neural.lint.index_description import IndexDescription
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.queries import Body, Rare
from opensearch_neural.search.explanation import doubts, predicted, shares
from opensearch_neural.search.oracle import StoredWeights, predict
from opensearch_neural.search.request import Request, find
from opensearch_neural.tune import store, trials
from opensearch_neural.tune.cascade import CascadeTuning
from opensearch_neural.tune.high_idf_first import (
    HighIdfFirstTuning,
    PrunedSparseTuning,
    high_idf_first_settings,
    pruned_sparse_settings,
)

pytestmark = pytest.mark.cluster
DOCUMENTS = 70
ENGINES = ("sparse", "high-idf-first", "bm25-sparse")
FILLED = ("sparse", "high-idf-first", "cascade after high-idf-first")
"""Those whose pages pruned postings may leave short."""
EVERY_ROW = 100
"""A window that no index here fills."""


@dataclass(frozen=True)
class Both:
    """Two indexes of the same documents and model: one with whole postings, one with pruned ones."""

    client: Any
    whole: Engines
    pruned: Engines
    vectors: dict[str, dict[str, float]]
    """{document: its whole sparse vector}"""
    postings: dict[str, dict[str, float]]
    """{document: what its postings hold}"""

    def page(self, engines: Engines, name: str, text: str, **page: Any) -> list[tuple[str, float]]:
        """(id, score) of the hits, as the engine searches."""
        engine = engines.engine(name)
        body = engine.body(text, engines.page(source=False, **page))
        answer = engine.search(self.client, body, text)
        return [(hit["_id"], hit["_score"]) for hit in answer["hits"]["hits"]]


@pytest.fixture(scope="module", params=[1, 3], ids=["1 shard", "3 shards"])
def both(client: Any, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("pruned-postings")
    corpus, name = (
        write_jsonl(folder / "d.jsonl", records(DOCUMENTS)),
        f"osn-test-{folder.name.lower()}-{request.param}",
    )
    codes = quantized_model(folder / "quantized", [record["text"] for record in records(DOCUMENTS)])
    how: dict[str, Any] = {"shards": request.param, "dead_letters": folder / "dead.jsonl"}
    # Hits with equal scores are in the order of the documents, which two writers mix, differently in each index.
    how |= {"writing": {"writers": 1}}
    how |= {"pq": str(codes), "device": "cpu"}
    run_job(client, job(corpus, f"{name}-whole", **how), show_progress=False)
    run_job(client, job(corpus, name, prune_postings=Pruning("top_k", 2), **how), show_progress=False)
    held = [snapshot(client, index) for index in (f"{name}-whole", name)]
    vectors, postings = ({id: source["sparse"] for id, source in each.items()} for each in held)
    yield Both(client, open_engines(client, f"{name}-whole"), open_engines(client, name), vectors, postings)
    client.indices.delete(index=f"{name},{name}-whole")


words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6, unique=True).map(" ".join)
searches = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.mark.parametrize("engine", ENGINES)
def test_hits_have_the_scores_of_their_whole_vectors(both: Both, engine: str) -> None:
    assert {len(row) for row in both.postings.values()} == {2} and min(map(len, both.vectors.values())) > 5
    chosen = random.Random(engine)
    for _ in range(10):
        text = " ".join(chosen.sample(WORDS, 4))
        expected = dict(both.page(both.whole.with_settings(exact=True), engine, text, size=DOCUMENTS))
        hits = both.page(both.pruned.with_settings(window=EVERY_ROW), engine, text, size=DOCUMENTS)
        rescored = [(id, score) for id, score in hits if score > 1e-9]
        assert len(rescored) > 2
        assert dict(rescored) == pytest.approx({id: expected[id] for id, _ in rescored}, rel=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_exact_search_finds_what_that_of_whole_postings_finds(both: Both, engine: str) -> None:
    for text in ("rain bow", "pear oil oven", "salt", "unknown"):
        expected, actual = (
            both.page(each.with_settings(exact=True), engine, text, size=DOCUMENTS)
            for each in (both.whole, both.pruned)
        )
        assert dict(actual) == pytest.approx(dict(expected), rel=1e-5)
        assert [score for _, score in actual] == sorted((score for _, score in actual), reverse=True)


@pytest.mark.parametrize("engine", [*FILLED, "cascade", "bm25-sparse"])
@settings(searches, max_examples=15)
@given(text=words, size=st.integers(3, 16), window=st.integers(1, 12), filtered=st.booleans(), plugin=st.booleans())
def test_a_page_is_full_whenever_the_full_querys_is_and_pages_are_one_ranking(
    both: Both, text: str, engine: str, size: int, window: int, filtered: bool, plugin: bool
) -> None:
    filter = {"range": {"year": {"lt": 1940}}} if filtered else None
    full = "sparse" if engine in FILLED else "bm25"
    whole = dict(both.page(both.whole, full, text, size=DOCUMENTS, filter=filter))
    pruned = replace(both.pruned, plugin=plugin).with_settings(window=window, dense_window=(window + 1) // 2)
    engine, _, first = engine.partition(" after ")
    pruned = pruned.with_settings(first=first or None)
    ranking: list[tuple[str, float]] = []
    while len(ranking) < len(whole):
        page = both.page(pruned, engine, text, size=size, from_=len(ranking), filter=filter)
        assert len(page) == min(size, len(whole) - len(ranking))
        ranking += page
    assert {id for id, _ in ranking} == whole.keys(), "the documents of the full query, without repeats"
    assert not both.page(pruned, engine, text, size=size, from_=len(ranking), filter=filter)
    assert [score for _, score in ranking] == sorted((score for _, score in ranking), reverse=True)
    if full == "bm25":
        assert both.page(pruned, engine, text, size=DOCUMENTS, filter=filter) == ranking
        return
    matches = sum(
        not both.postings[id].keys().isdisjoint(both.pruned.models.query_encoder.encode(text)) for id in whole
    )
    event(f"the postings find all: {matches == len(whole)}")
    assert both.page(pruned, engine, text, size=DOCUMENTS, filter=filter) == ranking
    rest = ranking[matches:]  # by their whole scores
    assert [score * 2.0**80 for _, score in rest] == pytest.approx([whole[id] for id, _ in rest], rel=1e-4)


@pytest.mark.parametrize("first_weight", [0.0, 1.0])
def test_after_another_stage_what_fills_a_page_comes_last(both: Both, first_weight: float) -> None:
    table = [[float(7 * number % 31) for number in range(256)]] * 4
    for at in (0, 20):
        tokens = both.pruned.models.query_encoder.encode(" ".join(WORDS[at : at + 8]))
        first = queries.pruned_sparse(tokens, window=3, size=DOCUMENTS)
        body = queries.quantized_rescore(first, table, window=2, first_weight=first_weight)
        answer = both.client.search(index=both.pruned.index, body=body)
        rest = queries.unsearched(body, len(answer["hits"]["hits"]))
        assert rest is not None
        filled = queries.filled(answer, both.client.search(index=both.pruned.index, body=rest))["hits"]["hits"]
        assert len(filled) > len(answer["hits"]["hits"]) > 9, "hits of both windows, of one, of none, and beyond"
        scores = [hit["_score"] for hit in filled]
        assert scores == sorted(scores, reverse=True) and scores[-1] > 0


@dataclass
class Losing:
    """A client of whose cluster shards go between a search and the count after it: it counts in an index without them."""

    client: Any
    lacking: str

    def search(self, **how: Any) -> Any:
        return self.client.search(**how)

    def count(self, *, index: str, **how: Any) -> Any:
        return self.client.count(index=self.lacking, **how)


@pytest.mark.parametrize("lost", ["one", "all"])
@pytest.mark.parametrize("engine", FILLED)
def test_a_page_that_was_not_filled_because_a_shard_is_missing_says_so(
    both: Both, index_name: str, engine: str, lost: str
) -> None:
    """The page lies behind what the postings find, so that they are counted."""
    word = next(word for word in WORDS if 0 < _matches(both, word) < 15 <= _matches(both, word, whole=True))
    engine, _, first = engine.partition(" after ")
    searched = both.pruned.with_settings(first=first or None).engine(engine)
    body = searched.body(word, {"size": 5, "from_": 15})
    nodes = int(both.client.cluster.health()["number_of_data_nodes"])
    lacking = index_body(both.pruned.meta, shards=nodes + 1, replicas=0)
    allocation = {"total_shards_per_node": 1} if lost == "one" else {"require._name": "none"}
    lacking["settings"]["index"] |= {f"routing.allocation.{name}": value for name, value in allocation.items()}
    both.client.indices.create(index=index_name, body=lacking, params={"wait_for_active_shards": 0})
    both.client.cluster.health(index=index_name, params={"wait_for_no_initializing_shards": "true"})
    losing: Any = Losing(both.client, index_name)
    whole = searched.search(both.client, body, word)
    assert whole["hits"]["hits"] and not queries.partial_answer(whole)
    if lost == "all":
        with pytest.raises(TransportError, match="search_phase_execution_exception"):
            searched.search(losing, body, word)
        return
    answer = searched.search(losing, body, word)
    assert not answer["hits"]["hits"]
    missing = f"1 of {nodes + 1} shards, and their hits are missing"
    assert missing in queries.partial_answer(answer)["shards_failed"]


def test_a_bare_body_may_be_short_and_says_how_it_is_filled(both: Both) -> None:
    client, index = both.client, both.pruned.index
    word = next(word for word in WORDS if 0 < _matches(both, word) < 10 <= _matches(both, word, whole=True))
    tokens = both.pruned.models.query_encoder.encode(word)
    body = queries.pruned_sparse(tokens, size=10)
    answer = client.search(index=index, body=body)
    count = len(answer["hits"]["hits"])
    assert 0 < count < 10
    rest = queries.unsearched(body, count)
    assert rest is not None
    filled = queries.filled(answer, client.search(index=index, body=rest))
    ids = [hit["_id"] for hit in filled["hits"]["hits"]]
    assert len(set(ids)) == len(ids) == 10 and filled["took"] >= answer["took"]
    assert all(word in both.vectors[id] for id in ids)
    for other in (
        queries.pruned_sparse(tokens, window=None),
        queries.pruned_sparse({}),
        queries.high_idf_first(tokens, forward=True),
        queries.bm25_sparse(word, tokens, pruned=True),
        queries.bm25(word),
    ):
        assert queries.unsearched(other, 0) is None
    # Documents that were added between the search and `_count` may fill the page.
    second = queries.pruned_sparse(tokens, size=10, from_=10)
    assert [queries.unsearched(second, matches) is None for matches in (0, 19, 20, 35)] == [False, False, True, True]


@pytest.mark.parametrize("engine", FILLED)
def test_a_search_by_an_engines_name_fills_the_page_that_its_body_leaves_short(both: Both, engine: str) -> None:
    word = next(word for word in WORDS if 0 < _matches(both, word) < 10 <= _matches(both, word, whole=True))
    engine, _, first = engine.partition(" after ")
    engines = both.pruned.with_settings(first=first or None)
    body = engines.body(engine, word, size=10, source=False)
    assert len(both.client.search(index=engines.index, body=body)["hits"]["hits"]) < 10
    hits = engines.search(engine, word, size=10, source=False)["hits"]["hits"]
    assert len(hits) == 10 and all(word in both.vectors[hit["_id"]] for hit in hits)
    assert [(hit["_id"], hit["_score"]) for hit in hits] == both.page(engines, engine, word, size=10)


def _matches(both: Both, word: str, *, whole: bool = False) -> int:
    return sum(word in row for row in (both.vectors if whole else both.postings).values())


@searches
@given(text=words, engine=st.sampled_from(ENGINES), window=st.integers(1, 40), size=st.integers(1, 5))
def test_a_certified_page_is_that_of_the_whole_vectors(
    both: Both, text: str, engine: str, window: int, size: int
) -> None:
    pruned = both.pruned.with_settings(window=window)
    page = pruned.page(size=size, source=False)
    if engine == "sparse":
        body = pruned.body("sparse", text, size=size)
        certain = "rescore" not in body or _certified(both, body)
    else:
        certain = pruned.engine(engine).certified(both.client, text, page)
    event(f"certain: {certain}")
    if certain:
        exact = both.page(both.whole.with_settings(exact=True), engine, text, size=size)
        assert both.page(pruned, engine, text, size=size) == [(id, pytest.approx(score)) for id, score in exact]


def _certified(both: Both, body: Body) -> bool:
    """As an application asks."""
    client, index = both.client, both.pruned.index
    tops = {token: client.search(index=index, body=top) for token, top in queries.heaviest(body).items()}
    answer, end = (client.search(index=index, body=each) for each in (body, queries.window_end(body)))
    return queries.certified(body, answer, end, queries.largest_weights(tops))


def test_some_pages_of_the_sum_are_certified_by_the_largest_weights_of_whole_vectors(both: Both) -> None:
    certain = []
    for word in WORDS:
        text = f"{word} {word}"
        tokens = both.pruned.models.query_encoder.encode(text)
        body = queries.bm25_sparse(text, tokens, weight=0.01, window=30, pruned=True, size=3)
        tops = {
            token: both.client.search(index=both.pruned.index, body=top)
            for token, top in queries.heaviest(body).items()
        }
        largest = {token: max(row.get(token, 0) for row in both.vectors.values()) for token in tokens}
        assert queries.largest_weights(tops) == pytest.approx(largest, rel=2**-8)
        certain.append(_certified(both, body))
    assert any(certain)


def test_nothing_is_certain_without_the_largest_weights_that_ingest_keeps(both: Both) -> None:
    def certain(engines: Engines) -> list[bool]:
        engine: Any = engines.with_settings(window=40, weight=0.01).engine("bm25-sparse")
        return [engine.certified(both.client, word, engines.page(size=2)) for word in WORDS[:20]]

    assert any(certain(both.pruned))
    meta = both.pruned.meta.with_extra(largest_weights=None)
    assert not any(certain(replace(both.pruned, meta=meta, loaded={})))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_shares_are_those_of_the_whole_vectors_and_add_up(both: Both, engine: str, exact: bool) -> None:
    pruned = both.pruned.with_settings(window=EVERY_ROW, **({"exact": True} if exact else {}))
    weights = pruned.models.query_encoder.weights
    for text in ("rain bow", "pear oil oven", "salt"):
        result = find(both.client, Request.make(pruned, engine, text, size=12), explain=True)
        assert not result.warnings and not result.findings and len(result.hits) == 12
        scores = both.page(pruned, engine, text, size=12)
        assert [(hit["id"], hit["score"]) for hit in result.hits] == [
            (id, pytest.approx(score)) for id, score in scores
        ]
        for hit in result.hits:
            assert hit["sum"] == pytest.approx(hit["score"], rel=1e-5)
            sparse = {share["token"]: share for share in hit["tokens"] if share["source"] == "sparse"}
            vector = both.vectors[hit["id"]]
            assert sparse.keys() == {word for word in text.split() if word in vector}
            for token, share in sparse.items():
                assert share["document_weight"] == pytest.approx(vector[token], rel=2**-8)
                assert share["query_weight"] * share["document_weight"] == pytest.approx(share["score"], rel=1e-5)
                assert share["query_weight"] > 0 and weights[token] > 0
            assert not {share["source"] for share in hit["tokens"]} & {"other", "codes"}


def test_the_exact_search_with_a_stage_after_it_is_explained_by_tokens_too(both: Both) -> None:
    table = [[float(7 * number % 31) for number in range(256)]] * 4
    tokens, size = both.pruned.models.query_encoder.encode("rain bow light"), 12
    for first in (
        queries.pruned_sparse(tokens, window=None, size=size),
        queries.bm25_sparse("rain bow light", tokens, window=None, pruned=True, size=size),
    ):
        body = queries.quantized_rescore(first, table, window=5, weight=0.01, first_weight=1.0)
        plain, told = (
            both.client.search(index=both.pruned.index, body=each)["hits"]["hits"]
            for each in (body, queries.explained(body))
        )
        assert [(hit["_id"], hit["_score"]) for hit in told] == [
            (hit["_id"], pytest.approx(hit["_score"], rel=1e-5)) for hit in plain
        ]
        for hit in told:
            parts = shares(hit["_explanation"])
            of_tokens = {share.token: share.score for share in parts if share.source == "sparse"}
            vector = both.vectors[hit["_id"]]
            assert of_tokens == pytest.approx(
                {token: weight * vector[token] for token, weight in tokens.items() if token in vector}, rel=2**-8
            )
            assert sum(share.score for share in parts) == pytest.approx(hit["_score"], rel=1e-5)
        assert queries.unsearched(queries.explained(body), 0) is None


def test_the_oracle_tells_what_postings_find_and_rows_score(both: Both) -> None:
    ids = sorted(both.vectors)
    documents = StoredWeights.of_pruned((both.vectors[id] for id in ids), (both.postings[id] for id in ids))
    for text in ("rain bow light", "water"):
        tokens = both.pruned.models.query_encoder.encode(text)
        for body in (
            queries.pruned_sparse(tokens, window=EVERY_ROW, size=DOCUMENTS),
            queries.pruned_sparse(tokens, window=None, size=DOCUMENTS),
            queries.high_idf_first(tokens, window=EVERY_ROW, size=DOCUMENTS, pruned=True),
            queries.neural_sparse(tokens, size=DOCUMENTS),
            queries.unsearched(queries.pruned_sparse(tokens, size=DOCUMENTS), 0),
        ):
            assert body is not None
            hits = both.client.search(index=both.pruned.index, body=body)["hits"]["hits"]
            expected = {ids[number]: score for number, score in predict(body, documents).items()}
            assert {hit["_id"]: hit["_score"] for hit in hits} == pytest.approx(expected, rel=1e-5), body


def test_a_share_that_was_read_of_postings_would_be_doubted(both: Both) -> None:
    tokens = both.pruned.models.query_encoder.encode("rain bow light")
    body = queries.explained(queries.pruned_sparse(tokens, window=EVERY_ROW))
    hits = both.client.search(index=both.pruned.index, body=body)["hits"]["hits"]
    read = [(shares(hit["_explanation"]), hit["_score"]) for hit in hits]
    assert doubts(body, read) == [None] * len(hits)
    assert predicted(body, [of for of, _ in read]) == [pytest.approx(score, rel=1e-5) for _, score in read]
    at = next(number for number, (of, _) in enumerate(read) if len(of) > 1)
    assert doubts(body, [(read[at][0][:1], read[at][1])]) != [None]


def test_the_linter_knows_which_bodies_see_a_part_of_the_vectors(both: Both) -> None:
    client, index, meta = both.client, both.pruned.index, both.pruned.meta
    facts, capabilities = IndexDescription.of(client, index), quick_capabilities(client)
    text = " ".join(WORDS[:9])
    tokens = both.pruned.models.query_encoder.encode(text)
    bending = {
        "all tokens": (queries.neural_sparse(tokens), queries.pruned_sparse(tokens)),
        "without the plugin": (queries.neural_sparse(tokens, plugin=False), queries.pruned_sparse(tokens)),
        "rare first": (queries.high_idf_first(tokens), queries.high_idf_first(tokens, pruned=True)),
        "the sum": (
            queries.bm25_sparse(text, tokens, plugin=False),
            queries.bm25_sparse(text, tokens, pruned=True),
        ),
        "the exact sum": (
            queries.bm25_sparse(text, tokens, window=None),
            queries.bm25_sparse(text, tokens, window=None, pruned=True),
        ),
    }
    for what, (body, mended) in bending.items():
        for known in ({"meta": meta}, {"index": facts}):
            findings = [(each.rule, each.outcome) for each in lint(body, capabilities, **known)]
            assert findings == [("pruned-postings", "bends")], what
            assert lint(mended, capabilities, **known) == [], what
        assert not lint(body, capabilities, both.whole.meta), what
        first, second = (client.search(index=index, body=each)["hits"]["hits"] for each in (body, mended))
        assert [(hit["_id"], hit["_score"]) for hit in first] != [(hit["_id"], hit["_score"]) for hit in second], what
    (silent,) = lint(queries.bm25_sparse(text, tokens, forward=True), capabilities, meta)
    assert (silent.rule, silent.outcome) == ("pruned-postings", "doubtful")
    held = queries.bm25(text, filter={"rank_feature": {"field": "sparse.rain", "linear": {}}})
    assert lint(held, capabilities, meta) == []


def test_what_cannot_be_had_of_pruned_postings_is_refused(both: Both) -> None:
    for engine in ENGINES:
        with pytest.raises(InputError, match="has pruned postings \\(top_k:2\\), and --clauses reads only postings"):
            both.pruned.with_settings(clauses=True).body(engine, "rain")
        with pytest.raises(InputError, match="--clauses reads only postings"):
            both.pruned.with_settings(clauses=True).body_of(engine)
    with pytest.raises(ValueError, match="exact must be true"):
        queries.high_idf_first({"rain": 1.0, "bow": 2.0}, exact=False, pruned=True)
    with pytest.raises(ValueError, match="whole number from 1, or None"):
        queries.pruned_sparse({"rain": 1.0}, window=0)
    stored = both.pruned.meta.with_extra(high_idf_first={"rare": "count:1", "window": 5, "exact": False})
    body = replace(both.pruned, meta=stored).body("high-idf-first", "rain bow light")
    assert "hashes" in json.dumps(body["rescore"]) and body["rescore"]["query"]["query_weight"] == queries.REPLACED


def test_a_fused_search_takes_the_postings_and_the_linter_says_so(both: Both) -> None:
    result = find(both.client, Request.make(both.pruned, "hybrid", "rain bow"))
    assert result.hits and [each.rule for each in result.findings] == ["pruned-postings"]


def test_collapsed_hits_have_whole_scores(both: Both) -> None:
    for engine in ENGINES:
        body = both.pruned.body(engine, "rain bow", collapse="year", size=DOCUMENTS)
        whole = both.whole.body(engine, "rain bow", collapse="year", size=DOCUMENTS)
        answers = [
            {hit["_id"]: hit["_score"] for hit in both.client.search(index=index, body=each)["hits"]["hits"]}
            for index, each in ((both.pruned.index, body), (both.whole.index, whole))
        ]
        assert answers[0] == pytest.approx(answers[1], rel=1e-5) and len(answers[0]) > 5


@pytest.mark.parametrize(
    ("rule", "windows"),
    [
        ("alpha_mass:0.5", (400, 400, 800)),
        ("alpha_mass:0.6", (100, 100, 300)),
        ("alpha_mass:0.7", (50, 50, 200)),
        ("alpha_mass:0.65", (100, 100, 200)),
        ("alpha_mass:0.55", (400, 400, 800)),
        ("alpha_mass:0.9", (50, 50, 200)),
        ("alpha_mass:0.3", (400, 400, 800)),
        ("top_k:2", (400, 400, 800)),
        ("max_ratio:0.1", (400, 400, 800)),
    ],
)
def test_the_default_window_is_what_was_measured_for_the_rule_and_the_widest_for_others(
    rule: str, windows: tuple[int, int, int]
) -> None:
    assert tuple(pruned_window(rule, documents) for documents in (0, 100_000, 1_000_000)) == windows


@given(first=st.floats(0.01, 1), second=st.floats(0.01, 1), documents=st.integers(0, 2**31))
def test_no_default_window_is_narrower_than_that_of_a_rule_that_keeps_more(
    first: float, second: float, documents: int
) -> None:
    less, more = (pruned_window(f"alpha_mass:{share!r}", documents) for share in sorted((first, second)))
    assert less >= more


def test_the_window_grows_with_the_index(both: Both) -> None:
    for documents, window in ((70, 400), (100_000, 400), (1_000_000, 800)):
        opened = replace(both.pruned, meta=both.pruned.meta.with_extra(shard_documents=documents))
        assert opened.body("sparse", "rain")["rescore"]["window_size"] == window
        # Phase one knows no more of a document than all tokens do, and in a tuned grid there is this default.
        assert opened.body("high-idf-first", "rain bow light")["rescore"]["window_size"] == window
        assert HighIdfFirstSetting(window=window) in high_idf_first_settings(HighIdfFirstSetting.fitting(opened))
        assert PrunedSparseSetting(window) in pruned_sparse_settings(PrunedSparseSetting.fitting(opened))
        after = opened.with_settings(first="high-idf-first")
        assert after.body("cascade", "rain bow light")["rescore"][0]["window_size"] == window
    assert both.pruned.with_settings(window=7).body("sparse", "rain")["rescore"]["window_size"] == 7
    assert "rescore" not in both.whole.with_settings(window=7).body("sparse", "rain")


@pytest.fixture
def tunable(both: Both) -> Iterator[Both]:
    """`both`, whose record is as before afterwards."""
    before = existing_record(both.client, both.pruned.index)
    yield both
    write_record(both.client, both.pruned.index, before)


@pytest.mark.parametrize("judged", [True, False])
def test_osn_tune_chooses_the_smallest_window_that_keeps_the_share_and_sparse_searches_with_it(
    tunable: Both, monkeypatch: pytest.MonkeyPatch, judged: bool
) -> None:
    """With times that are made up: a request takes as long as its window is wide, and the exact one longest."""

    def timed(*of: Any) -> trials.Ask:
        ask = asker(*of)
        return lambda body: (ask(body)[0], body["rescore"]["window_size"] if "rescore" in body else 1e6)

    asker = trials.asker
    client, index = tunable.client, tunable.pruned.index
    monkeypatch.setattr("opensearch_neural.tune.tuning.asker", timed)
    monkeypatch.setattr("opensearch_neural.tune.high_idf_first.ROW_WINDOWS", (1, 2, 60))
    texts = {f"q{at}": " ".join(WORDS[at : at + 9]) for at in range(40)}
    best = {query: tunable.page(tunable.whole, "sparse", text, size=10) for query, text in texts.items()}
    qrels = {query: {id: 1 for id, _ in hits} for query, hits in best.items()} if judged else None
    half, _ = trials.halves(trials.Questions(texts, qrels), 20, seed=0)
    _, narrow, wide = trials.try_all(
        asker(client, index), tunable.pruned, half, [PrunedSparseSetting(1), PrunedSparseSetting(60)], passes=1
    )
    assert narrow.kept < wide.kept
    keep = narrow.kept + (wide.kept - narrow.kept) / 3
    tuning = PrunedSparseTuning(client, tunable.pruned)
    tuned = tuning.run(trials.Questions(texts, qrels), keep, most=20, passes=1)
    chosen = tuned.chosen
    assert [each.setting for each in tuned.tried] == [None, *map(PrunedSparseSetting, (1, 2, 60, 400))]
    assert chosen is not None and chosen.setting in (PrunedSparseSetting(2), PrunedSparseSetting(60))
    store(client, index, chosen, keep=keep, measure="nDCG@10", queries=20)
    opened, window = open_engines(client, index), chosen.setting.window
    assert opened.meta.extra[PrunedSparseSetting.key]["kept"] >= keep
    assert opened.body("sparse", "rain bow")["rescore"]["window_size"] == window
    assert opened.with_settings(window=7).body("sparse", "rain bow")["rescore"]["window_size"] == 7
    assert opened.body("high-idf-first", "rain bow light")["rescore"]["window_size"] == 400, "has a choice of its own"


def test_tuned_windows_grow_as_the_default_of_pruned_postings_does(both: Both) -> None:
    """Which twice as many hits are for a million documents as for 100,000."""
    tuned: dict[str, dict[str, Any]] = {
        "pruned_sparse": {"window": 40},
        "high_idf_first": {"rare": "ratio:0.5", "window": 30, "exact": True},
        "cascade": {"rare": "ratio:0.5", "window": 150, "dense_window": 20, "weight": 0.1},
    }

    def windows(tuned_on: dict[str, int], **how: int) -> list[int]:
        stored = {name: each | tuned_on for name, each in tuned.items()}
        meta = both.pruned.meta.with_extra(shard_documents=1_000_000, **stored)
        engines = replace(both.pruned, meta=meta).with_settings(**how)
        bodies = [engines.body(name, "rain bow light") for name in ("sparse", "high-idf-first", "cascade")]
        stages = [stage for body in bodies for stage in (body["rescore"] if body is bodies[2] else [body["rescore"]])]
        return [stage["window_size"] for stage in stages]

    assert windows({}) == [40, 30, 150, 20]
    assert windows({"shard_documents": 1_000_000}) == [40, 30, 150, 20]
    assert windows({"shard_documents": 100_000}, window=50) == [50, 50, 50, 20]
    del tuned["high_idf_first"]  # else the cascade's default is as that is tuned
    assert windows({"shard_documents": 100_000}) == [80, 800, 300, 20]


def test_a_cascade_is_tuned_with_the_default_window_of_its_index_among_the_windows(both: Both) -> None:
    stored = {"rare": "ratio:0.5", "window": 75, "dense_window": 20, "weight": 0.1}
    meta = both.pruned.meta.with_extra(shard_documents=1_000_000, cascade=stored)
    grid = CascadeTuning(both.client, replace(both.pruned, meta=meta)).grid()
    assert {20, 200, 800} <= {setting.window for setting in grid}


def test_a_stored_window_that_cannot_be_read_is_named(both: Both) -> None:
    for stored in ({"window": "wide"}, {"window": 0}, [3]):
        meta = both.pruned.meta.with_extra(**{PrunedSparseSetting.key: stored})
        with pytest.raises(ModelError, match="stores a setting of the engine 'sparse' that cannot be read"):
            replace(both.pruned, meta=meta).body("sparse", "rain")


def test_a_window_of_the_caller_that_is_none_is_not_blamed_on_the_index(both: Both) -> None:
    with pytest.raises(InputError, match="the setting window=0: 0 is not a whole number from 1"):
        both.pruned.with_settings(window=0)


def test_without_pruned_postings_osn_tune_says_that_nothing_is_to_be_chosen(
    both: Both, cluster_url: str, tmp_path: Path
) -> None:
    asked = write_jsonl(tmp_path / "queries.jsonl", [{"_id": f"q{at}", "text": WORDS[at]} for at in range(12)])
    command = ("tune", "--url", cluster_url, "--index", both.whole.index, "--engine", "sparse", "--queries", str(asked))
    done = osn_command(*command)
    assert done.returncode and not done.stdout and len(done.stderr.splitlines()) == 1
    assert "has no pruned postings: sparse searches all tokens, and there is nothing to tune" in done.stderr


def test_osn_search_fills_explains_and_searches_exactly(both: Both, cluster_url: str) -> None:
    def hits(index: str, *options: str) -> list[dict[str, Any]]:
        asked = ("--url", cluster_url, "--index", index, "--engine", "sparse", "--json", *options)
        ran = osn_command("search", *asked, "water")
        assert ran.returncode == 0 and not ran.stderr, ran.stderr
        answered: list[dict[str, Any]] = json.loads(ran.stdout)["hits"]
        return answered

    filled, exact = hits(both.pruned.index), hits(both.pruned.index, "--exact", "--window", "1")
    assert len(filled) == len(exact) == 10
    expected = hits(both.whole.index)
    assert [hit["score"] for hit in exact] == pytest.approx([hit["score"] for hit in expected], rel=1e-5)
    # A smaller window is the user's choice: fewer hits have their whole score, and none is lost.
    narrow, wide = (
        dict(both.page(engines, "sparse", " ".join(WORDS[:9]), size=DOCUMENTS))
        for engines in (both.pruned.with_settings(window=1), both.pruned)
    )
    assert narrow.keys() == wide.keys()
    assert 0 < sum(score > 1e-9 for score in narrow.values()) < sum(score > 1e-9 for score in wide.values())
    assert all(hit["tokens"] for hit in hits(both.pruned.index, "--explain"))


@pytest.mark.parametrize("judged", [True, False])
def test_settings_are_compared_with_the_exact_result_which_is_asked_no_oftener_than_needed(
    both: Both, judged: bool
) -> None:
    texts = {f"q{at}": " ".join(WORDS[at : at + 9]) for at in range(12)}
    exact = {query: both.page(both.whole, "sparse", text, size=DOCUMENTS) for query, text in texts.items()}
    # Of those that tie with the tenth, which are shown is chance.
    best = {query: {id: 1 for id, score in hits if score > 0.9999 * hits[9][1]} for query, hits in exact.items()}
    qrels = best if judged else None
    asked: list[Body] = []
    ask = trials.asker(both.client, both.pruned.index)

    def noting(body: Body) -> tuple[dict[str, float], float]:
        asked.append(body)
        return ask(body)

    engines, questions = both.pruned, trials.Questions(texts, qrels)
    grid = [HighIdfFirstSetting(window=1), HighIdfFirstSetting(window=EVERY_ROW)]
    tried = trials.try_all(noting, engines, questions, grid, passes=3)
    assert tried[0].quality == pytest.approx(1.0) and tried[1].kept < tried[2].kept <= 1.0
    every_row = [body for body in asked if "rescore" not in body and '"ids"' not in json.dumps(body)]
    of_hits = [body for body in asked if '"ids"' in json.dumps(body)]
    assert len(every_row) == len(texts) * (1 if judged else 2)
    assert len(of_hits) <= (0 if judged else len(texts)), "what hits beyond the exact best ones score"
    assert len(asked) - len(every_row) - len(of_hits) == 3 * len(grid) * len(texts)
    asked.clear()
    slow = replace(tried[0], ms=1e9)
    tuning = HighIdfFirstTuning(both.client, engines)
    tuning.ask = noting
    chosen = tuning.choose([slow, *tried[1:]], questions, 0.01)
    assert chosen is not None and chosen.kept == pytest.approx(chosen.tried.kept)
    assert sum("rescore" not in body and '"ids"' not in json.dumps(body) for body in asked) == len(texts)


@pytest.mark.parametrize("pruned", [False, True])
def test_without_judgements_what_the_hits_score_exactly_is_measured(both: Both, pruned: bool) -> None:
    """Also of hits that are far from the exact best ones, and of those that a window has left with another score."""
    engines = both.pruned if pruned else both.whole
    texts = {f"q{at}": " ".join(WORDS[at : at + 9]) for at in range(8)}
    exact = {query: dict(both.page(both.whole, "sparse", text, size=DOCUMENTS)) for query, text in texts.items()}
    narrow = HighIdfFirstSetting(Rare("count", 1), window=1)
    tried = trials.try_all(
        trials.asker(both.client, engines.index), engines, trials.Questions(texts), [narrow], passes=1
    )
    beyond = False
    for query, text in texts.items():
        hits = both.client.search(index=engines.index, body=trials.body_of(engines, narrow, text, 10))["hits"]["hits"]
        best = list(exact[query].values())
        beyond |= any(exact[query][hit["_id"]] < best[29] for hit in hits)
        kept = sum(exact[query][hit["_id"]] for hit in hits) / sum(best[:10])
        assert tried[1].values[query] == pytest.approx(kept, rel=1e-4)
    assert tried[0].values == pytest.approx(dict.fromkeys(texts, 1.0)) and tried[1].quality < 0.99
    assert beyond, "hits that the exact search's own answer does not hold"
