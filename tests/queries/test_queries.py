"""Request bodies: what is in them, and what a real cluster answers to them."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from forward_rows import row_field
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opensearch_neural import queries
from opensearch_neural.engines.engine import positive
from opensearch_neural.errors import InputError
from opensearch_neural.index.mapping import index_body, rank_features
from opensearch_neural.index.record import DenseMeta, IndexMeta, QuantizedMeta, SparseMeta
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.queries import Rare, rare_tokens, rare_words

WEIGHTS = {"rainbow": 9.0, "cause": 5.0, "what": 1.0, "a": 0.2}


@pytest.mark.parametrize(
    ("rare", "expected"),
    [
        (Rare("ratio", 0.6), {"rainbow"}),
        (Rare("ratio", 0.5), {"rainbow", "cause"}),
        (Rare("ratio", 1.0), {"rainbow"}),
        (Rare("ratio", 0.0), set(WEIGHTS)),
        # 9 + 5 = 14 of 15.2 is 92%
        (Rare("share", 0.9), {"rainbow", "cause"}),
        (Rare("share", 0.95), {"rainbow", "cause", "what"}),
        (Rare("share", 0.0), {"rainbow"}),
        (Rare("share", 1.0), set(WEIGHTS)),
        (Rare("count", 2), {"rainbow", "cause"}),
        (Rare("count", 99), set(WEIGHTS)),
    ],
)
def test_rare_tokens_by_each_rule(rare: Rare, expected: set[str]) -> None:
    assert set(rare_tokens(WEIGHTS, rare)) == expected


def test_words_keep_their_order_and_repeats_whether_rare_or_not() -> None:
    def heaviest(word: str) -> float:
        return {"rainbow": 8.0, "what": 1.0, "causes": 5.0, "a": 0.5}.get(word, 0.0)

    text = "what causes\na  rainbow what rainbow causes"
    assert rare_words(text, heaviest, Rare("ratio", 0.6)) == ("causes rainbow rainbow causes", "what a what")
    assert rare_words(text, heaviest, Rare("count", 1)) == ("rainbow rainbow", "what causes a what causes")
    assert rare_words(text, heaviest, Rare("ratio", 0)) == ("what causes a rainbow what rainbow causes", "")
    assert rare_words("what Zq7 causes", heaviest, Rare("count", 1)) == ("Zq7 causes", "what"), "it may be very rare"
    assert rare_words(" ", heaviest) == ("", "")


@given(
    tokens=st.dictionaries(st.text(min_size=1, max_size=3), st.floats(1e-6, 64), min_size=1, max_size=12),
    rare=st.one_of(
        st.builds(Rare, st.sampled_from(["ratio", "share"]), st.floats(0, 1)),
        st.builds(Rare, st.just("count"), st.integers(1, 20)),
    ),
)
def test_phase_one_is_never_empty_and_no_common_token_outweighs_a_rare_one(
    tokens: dict[str, float], rare: Rare
) -> None:
    chosen = rare_tokens(tokens, rare)
    assert chosen
    assert all(tokens[token] == weight for token, weight in chosen.items())
    common = [weight for token, weight in tokens.items() if token not in chosen]
    assert not common or max(common) <= min(chosen.values())


@pytest.mark.parametrize("wrong", ["ratio:2", "share:-1", "count:0", "count:1.5", "size:3", "ratio", "ratio:x"])
def test_a_wrong_threshold_is_named(wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        Rare.parse(wrong)


def test_the_window_is_the_same_for_every_page() -> None:
    pages = [queries.high_idf_first(WEIGHTS, window=100, size=size, from_=at) for size, at in ((10, 0), (50, 200))]
    assert [body["rescore"]["window_size"] for body in pages] == [100, 100]
    with pytest.raises(ValueError, match="window must be a whole number from 1"):
        queries.high_idf_first(WEIGHTS, window=0)


def test_tokens_that_weigh_the_same_are_searched_in_one_phase() -> None:
    alike = {"rainbow": 1.0, "what": 1.0, "a": 1.0}
    for rare in (Rare(), Rare("count", 1), Rare("share", 0.5)):
        assert queries.high_idf_first(alike, rare=rare) == queries.neural_sparse(alike)


def test_without_common_tokens_there_is_no_second_phase() -> None:
    assert "rescore" not in queries.high_idf_first({"rainbow": 9.0, "cause": 8.0})


@pytest.mark.parametrize("plugin", [True, False])
def test_unless_exact_no_token_is_scored_twice_and_none_is_left_out(plugin: bool) -> None:
    body = queries.high_idf_first(WEIGHTS, rare=Rare("count", 2), exact=False, plugin=plugin)
    _, first = queries.searched_first(body)
    _, second = queries.sparse_tokens(body["rescore"]["query"]["rescore_query"])
    assert {**first, **second} == WEIGHTS and not first.keys() & second.keys()
    assert set(body["rescore"]["query"]) == {"rescore_query"}


@pytest.mark.parametrize("plugin", [True, False])
@pytest.mark.parametrize("exact", [True, False])
def test_what_is_searched_first_is_read_from_the_body(plugin: bool, exact: bool) -> None:
    how = {"plugin": plugin, "exact": exact, "filter": {"exists": {"field": "n"}}}
    body = queries.high_idf_first(WEIGHTS, rare=Rare("count", 2), **how)  # type: ignore[arg-type]
    assert queries.searched_first(body) == ("sparse", {"rainbow": 9.0, "cause": 5.0})
    assert queries.searched_first(queries.high_idf_first(WEIGHTS, rare=Rare("count", 9))) == ("sparse", WEIGHTS)


def test_a_body_without_a_size_or_a_window_has_opensearchs_10() -> None:
    """Such as your own request with the query of a body (`own_request`)."""
    rare = queries.high_idf_first(WEIGHTS, window=10, pruned=True)
    bare = {name: value for name, value in rare.items() if name != "size"}
    rest = queries.unsearched(rare, 3)
    assert rest is not None and queries.unsearched(bare, 3) == rest
    assert queries.unsearched(bare, 10) is None
    summed = queries.bm25_sparse("rain", WEIGHTS, window=10)
    bare = {"query": summed["query"], "rescore": {"query": summed["rescore"]["query"]}}
    assert queries.window_end(bare) == queries.window_end(summed)
    shards = {"total": 1, "successful": 1, "failed": 0}

    def answer(*scores: float) -> dict[str, Any]:
        return {"_shards": shards, "hits": {"hits": [{"_score": score} for score in scores]}}

    for scores, certain in (((9.0,) * 10, True), ((9.0,) * 9, False)):
        assert queries.certified(bare, answer(*scores), answer(1.0), {"rainbow": 0.1}) is certain


def test_bodies_are_plain_json() -> None:
    import numpy as np

    for body in (
        queries.bm25("x", filter={"term": {"a": 1}}, highlight="x"),
        queries.neural_sparse({"a": np.float32(0.1)}),  # type: ignore[dict-item]
        queries.high_idf_first(WEIGHTS, plugin=False),
        queries.knn(np.ones(3, np.float32), filter=[{"term": {"a": 1}}]),
        queries.hybrid(queries.bm25("x"), queries.knn([1.0])),
    ):
        assert json.loads(json.dumps(body)) == body


@pytest.mark.parametrize(
    ("weights", "method", "message"),
    [
        ([0.5], "min_max", "1 weights for 2"),
        ([0.9, 0.9], "min_max", "sum to 1"),
        ([float("nan"), 0.5], "min_max", "sum to 1"),
        ([0.5, 0.5], "rrf", "no weights"),
    ],
)
def test_hybrid_refuses_weights_that_opensearch_would_refuse(weights: list[float], method: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        queries.hybrid(queries.bm25("x"), queries.knn([1.0]), weights=weights, method=method)  # type: ignore[arg-type]


def test_a_body_without_codes_has_no_offset_of_them() -> None:
    for body in (queries.pruned_sparse({"a": 1.0}, window=None), queries.bm25("x"), queries.pruned_sparse({"a": 1.0})):
        with pytest.raises(ValueError, match="no quantized scores"):
            queries.quantized_offset(body)


def test_a_two_phase_body_cannot_be_part_of_a_hybrid() -> None:
    with pytest.raises(ValueError, match="rescore"):
        queries.hybrid(queries.bm25("x"), queries.high_idf_first(WEIGHTS))


def test_a_filter_of_a_hybrid_is_put_into_the_neighbours_of_each_of_several_fields() -> None:
    only = {"term": {"lang": "en"}}
    parts = [queries.knn([1.0], field=name)["query"] for name in ("a", "b")]
    hybrid = queries.hybrid(
        queries.bm25("x"), {"query": {"dis_max": {"queries": parts, "tie_breaker": 0.1}}}, filter=only
    )
    neighbours = hybrid["query"]["hybrid"]["queries"][1]["dis_max"]
    assert [part["knn"][name]["filter"] for part, name in zip(neighbours["queries"], "ab", strict=True)] == [
        {"bool": {"filter": [only]}}
    ] * 2
    assert neighbours["tie_breaker"] == 0.1
    # Hits of a text are filtered like any others, and nothing of it is put into their query.
    mixed = {"dis_max": {"queries": [parts[0], {"match": {"text": "x"}}]}}
    body = queries.hybrid(queries.bm25("x"), {"query": mixed}, filter=only)
    assert body["query"]["hybrid"]["queries"][1] == {"bool": {"must": [mixed], "filter": [only]}}


def test_a_filter_of_a_hybrid_is_put_into_each_part_beside_its_own() -> None:
    own, more = {"term": {"a": 1}}, {"term": {"b": 2}}
    body = queries.hybrid(queries.bm25("x", filter=own), queries.knn([1.0], filter=own), filter=more)
    text, vectors = body["query"]["hybrid"]["queries"]
    assert text["bool"]["filter"] == [more]
    assert text["bool"]["must"][0]["bool"]["filter"] == [own]
    # Beside the vector's clause a filter would only be applied to the neighbours found without it.
    assert vectors["knn"]["dense"]["filter"]["bool"]["filter"] == [{"bool": {"filter": [own]}}, more]


def test_a_filter_of_a_hybrid_that_can_be_read_only_once_is_in_each_part() -> None:
    """Before, only the first part had it, and the others found what the filter excludes."""
    only, parts = {"term": {"lang": "en"}}, (queries.bm25("x"), queries.knn([1.0]), queries.bm25("y"))
    for filter in (iter([only]), map(dict, [only]), (only for _ in range(1))):
        assert queries.hybrid(*parts, filter=filter) == queries.hybrid(*parts, filter=[only])  # type: ignore[arg-type]


def test_passages_of_a_body_that_was_not_collapsed_are_a_named_error() -> None:
    with pytest.raises(ValueError, match="without collapse"):
        queries.best_passages(queries.bm25("x"), [])


# ---------------------------------------------------------------- against a real cluster

VOCABULARY = [f"t{n}" for n in range(12)] + [".", "u.s", "##ing", "é", "a b", "[x]"]
DOCUMENTS = 120


def documents() -> list[dict[str, float]]:
    """Documents over a small vocabulary, in which the first tokens are rare and the last are common."""
    random_ = random.Random(7)
    rows = []
    for _ in range(DOCUMENTS):
        row = {
            token: round(random_.uniform(0.01, 3), 3)
            for place, token in enumerate(VOCABULARY)
            if random_.random() < 0.05 + 0.5 * place / len(VOCABULARY)
        }
        rows.append(row)
    return rows


@pytest.fixture(scope="module")
def sparse_index(client) -> Iterator[dict[int, str]]:
    """Two indexes with the same documents, of 1 and of 3 shards: {shards: name}."""
    names = {shards: f"osn-test-queries-{shards}-{random.randrange(1 << 30)}" for shards in (1, 3)}
    meta = IndexMeta(
        sparse=SparseMeta("m", "h", "q"),
        dense=DenseMeta("m", "h", 3, "float", True),
        quantized=QuantizedMeta("m", "h", 2),
        forward_index=True,
    )
    for shards, name in names.items():
        client.indices.create(index=name, body=index_body(meta, shards=shards, replicas=0))
        lines: list[dict] = []
        for number, row in enumerate(documents()):
            source = {"text": f"rainbow {number} {' '.join(row)}", "n": number, "sparse": rank_features(row)}
            source |= {"dense": [1, number, 1], "pq": b64encode(bytes([number, 3 * number % 256])).decode()}
            source |= row_field(row)
            lines += [{"index": {"_id": f"d{number:03}"}}, source]
        answer = client.bulk(index=name, body=lines, refresh=True)
        assert not answer["errors"]
    yield names
    for name in names.values():
        client.indices.delete(index=name)


def run(client, index: str, body: dict) -> list[tuple[str, float]]:
    """Hits as (id, score), ties put in order of id (OpenSearch breaks them by segment and shard)."""
    answer = client.search(index=index, body=body)
    hits = [(hit["_id"], hit["_score"]) for hit in answer["hits"]["hits"]]
    return sorted(hits, key=lambda hit: (-hit[1], hit[0]))


query_tokens = st.dictionaries(st.sampled_from(VOCABULARY), st.floats(0.05, 12).map(lambda x: round(x, 3)), min_size=1)
rares = st.one_of(
    st.builds(Rare, st.sampled_from(["ratio", "share"]), st.floats(0, 1)),
    st.builds(Rare, st.just("count"), st.integers(1, 6)),
)
filters = st.sampled_from(
    [None, {"range": {"n": {"lt": 60}}}, [{"range": {"n": {"gte": 30}}}, {"exists": {"field": "n"}}]]
)
shards = st.sampled_from([1, 3])
against_the_cluster = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.cluster
@given(shards=shards, tokens=query_tokens, rare=rares, filter=filters, plugin=st.booleans(), forward=st.booleans())
@against_the_cluster
def test_high_idf_first_with_a_window_of_all_documents_is_the_full_query(
    client,
    sparse_index,
    shards: int,
    tokens: dict[str, float],
    rare: Rare,
    filter,
    plugin: bool,
    forward: bool,
) -> None:
    """The same scores, the same order, nothing else."""
    index = sparse_index[shards]
    page = {"size": DOCUMENTS, "filter": filter, "plugin": plugin}
    expected = run(client, index, queries.neural_sparse(tokens, **page))
    every = {"rare": rare, "window": DOCUMENTS, "forward": forward, **page}
    assert run(client, index, queries.high_idf_first(tokens, **every)) == expected
    hits = run(client, index, queries.high_idf_first(tokens, exact=False, **every))
    assert dict(hits) == pytest.approx(dict(expected), rel=1e-6)  # the sum of two phases, each a float32
    in_full = [dict(expected)[id] for id, _ in hits]
    # The order, ties but for rounding.
    assert all(score >= next_score * (1 - 1e-6) for score, next_score in pairwise(in_full))


@pytest.mark.cluster
@given(
    shards=shards,
    tokens=query_tokens,
    rare=rares,
    filter=filters,
    plugin=st.booleans(),
    exact=st.booleans(),
    forward=st.booleans(),
    size=st.integers(1, 40),
    window=st.integers(1, 40),
)
@against_the_cluster
def test_a_page_of_high_idf_first_is_full_whenever_that_of_all_tokens_is(
    client,
    sparse_index,
    shards: int,
    tokens: dict[str, float],
    rare: Rare,
    filter,
    plugin: bool,
    exact: bool,
    forward: bool,
    size,
    window,
) -> None:
    page = {"size": size, "filter": filter, "plugin": plugin, "source": False}
    full = run(client, sparse_index[shards], queries.neural_sparse(tokens, **page))
    how = {"rare": rare, "window": window, "exact": exact, "forward": forward}
    hits = run(client, sparse_index[shards], queries.high_idf_first(tokens, **how, **page))
    assert len(hits) == len(full)


@pytest.mark.cluster
def test_rare_tokens_come_first_and_common_ones_fill_up(client, sparse_index) -> None:
    rows = {f"d{number:03}": row for number, row in enumerate(documents())}
    holding = {id for id, row in rows.items() if "t0" in row}
    assert 2 <= len(holding) < 30
    for window in (1, 30):
        body = queries.high_idf_first({"t0": 12.0, "[x]": 1.0}, window=window, size=30)
        hits = [hit["_id"] for hit in client.search(index=sparse_index[1], body=body)["hits"]["hits"]]
        assert len(hits) == 30 and holding <= set(hits)
        if window == 1:
            assert set(hits[: len(holding)]) == holding


@pytest.mark.cluster
@pytest.mark.parametrize("plugin", [True, False])
def test_a_common_token_adds_the_same_to_every_document_that_holds_it(client, sparse_index, plugin: bool) -> None:
    tokens = {"t0": 12.0, "t9": 3.0, "u.s": 2.0}
    for exact, share in ((True, queries.HELD), (False, 0.0)):
        body = queries.high_idf_first(tokens, exact=exact, plugin=plugin)
        scores = dict(run(client, sparse_index[3], {"query": body["query"], "size": DOCUMENTS}))
        rows = {f"d{number:03}": row for number, row in enumerate(documents())}
        assert scores.keys() == {id for id, row in rows.items() if row.keys() & tokens.keys()}
        for id, score in scores.items():
            held = share * sum(tokens[token] for token in ("t9", "u.s") if token in rows[id])
            assert score == pytest.approx(12 * rows[id].get("t0", 0) + held, rel=2**-8, abs=1e-9)


@pytest.mark.cluster
@pytest.mark.parametrize("shards", [1, 3])
def test_a_certified_page_of_high_idf_first_is_that_of_all_tokens(client, sparse_index, shards: int) -> None:
    def answer(body: dict) -> dict:
        return client.search(index=sparse_index[shards], body=body)

    drawn = random.Random(shards)
    sure = []
    for _ in range(80):
        rare, common = drawn.choice(VOCABULARY[:8]), drawn.sample(VOCABULARY[8:], drawn.randint(1, 3))
        tokens = {rare: drawn.uniform(4, 12), **{token: drawn.uniform(0.01, 2) for token in common}}
        page = {"size": drawn.randint(0, 4), "from_": drawn.choice([0, 0, 2]), "plugin": drawn.random() < 0.5}
        how = {"window": drawn.choice([3, 8, 200]), "exact": drawn.random() < 0.7, "forward": drawn.random() < 0.5}
        body = queries.high_idf_first(tokens, rare=Rare("count", 1), **how, **page)
        if "rescore" not in body:
            continue
        tops = {token: answer(top)["hits"]["hits"] for token, top in queries.heaviest(body).items()}
        largest = {token: hits[0]["_score"] for token, hits in tops.items() if hits}
        got, end = answer(body), answer(queries.window_end(body))
        sure.append(queries.certified(body, got, end, largest))
        assert sure[-1] >= queries.certified(body, got, end, dict.fromkeys(largest, 9.0))
        if sure[-1]:
            exact = [hit["_score"] for hit in answer(queries.neural_sparse(tokens, **page))["hits"]["hits"]]
            assert [hit["_score"] for hit in got["hits"]["hits"]] == pytest.approx(exact, rel=1e-5)
    assert 0.2 < sum(sure) / len(sure) < 0.95, "else nothing was tried"


TABLE = [[float((7 * part + number) % 31) for number in range(256)] for part in range(2)]


def paged(
    engine: str, tokens: dict[str, float], window: int, *, rare: Rare, plugin: bool, forward: bool, **page
) -> dict:
    if engine == "jpq-rescore":
        return queries.quantized_rescore(queries.bm25(" ".join(tokens), **page), TABLE, window=window)
    how = {"rare": rare, "window": window, "plugin": plugin, "forward": forward, **page}
    last = max(1, window // 2)
    if engine == "cascade":
        return queries.cascade(tokens, TABLE, dense_window=last, weight=0.3, **how)
    first = queries.high_idf_first(tokens, exact=engine != "high-idf-first, remaining", **how)
    if engine == "cascade by vectors":
        return queries.dense_rescore(first, [1.0, 60.0, 2.0], window=last, weight=3.0, first_weight=1.0)
    return first


@pytest.mark.cluster
@pytest.mark.parametrize(
    "engine", ["high-idf-first", "high-idf-first, remaining", "cascade", "cascade by vectors", "jpq-rescore"]
)
@given(
    shards=shards,
    tokens=query_tokens,
    filter=filters,
    how=st.fixed_dictionaries({"rare": rares, "plugin": st.booleans(), "forward": st.booleans()}),
    window=st.integers(1, 40),
    size=st.integers(3, 23),
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pages_are_full_and_put_together_one_ranking_without_repeats(
    client, sparse_index, engine: str, shards: int, tokens: dict[str, float], filter, how: dict, window: int, size: int
) -> None:
    def page(from_: int, size: int) -> list[str]:
        body = paged(engine, tokens, window, **how, size=size, from_=from_, source=False, filter=filter)
        return [hit["_id"] for hit in client.search(index=sparse_index[shards], body=body)["hits"]["hits"]]

    full = queries.neural_sparse(tokens, size=DOCUMENTS, filter=filter)
    if engine == "jpq-rescore":
        full = queries.bm25(" ".join(tokens), size=DOCUMENTS, filter=filter)
    whole = {id for id, _ in run(client, sparse_index[shards], full)}
    pages = [id for from_ in range(0, len(whole) + size, size) for id in page(from_, size)]  # the last one is empty
    assert len(set(pages)) == len(pages) and set(pages) == whole
    assert pages == page(0, DOCUMENTS)


@pytest.mark.cluster
@given(tokens=query_tokens, filter=filters)
@against_the_cluster
def test_the_plugin_free_form_scores_as_the_plugin_does(client, sparse_index, tokens: dict[str, float], filter) -> None:
    with_plugin = run(client, sparse_index[1], queries.neural_sparse(tokens, size=DOCUMENTS, filter=filter))
    without = run(client, sparse_index[1], queries.neural_sparse(tokens, size=DOCUMENTS, filter=filter, plugin=False))
    assert with_plugin == without


@pytest.mark.cluster
def test_scores_are_the_sum_of_query_weight_times_document_weight(client, sparse_index) -> None:
    tokens = {"t3": 2.5, "t11": 0.5, "u.s": 1.5, "é": 1.0}
    expected = {
        f"d{number:03}": sum(weight * row[token] for token, weight in tokens.items() if token in row)
        for number, row in enumerate(documents())
    }
    hits = run(client, sparse_index[3], queries.neural_sparse(tokens, size=DOCUMENTS))
    assert {id for id, _ in hits} == {id for id, score in expected.items() if score}
    for id, score in hits:
        assert score == pytest.approx(expected[id], rel=2**-8)  # rank_features keep 9 significant bits


@pytest.mark.cluster
@pytest.mark.parametrize(
    "engine", ["bm25", "neural_sparse", "high_idf_first", "knn", "hybrid", "rrf", "hybrid of unfiltered bodies"]
)
def test_filters_hold_on_every_engine_and_add_nothing_to_scores(client, sparse_index, engine: str) -> None:
    def body(filter: dict | None) -> dict:
        page = {"size": DOCUMENTS, "filter": filter}
        made = {
            "bm25": queries.bm25("rainbow", **page),
            "neural_sparse": queries.neural_sparse({"é": 1.0, "u.s": 3.0}, **page),
            "high_idf_first": queries.high_idf_first({"é": 1.0, "u.s": 3.0}, window=DOCUMENTS, **page),
            "knn": queries.knn([1.0, 5.0, 1.0], **page),
        }
        if engine in made:
            return made[engine]
        if engine == "hybrid of unfiltered bodies":
            parts = queries.bm25("rainbow", size=DOCUMENTS), queries.knn([1.0, 5.0, 1.0], size=DOCUMENTS)
            return queries.hybrid(*parts, size=DOCUMENTS, filter=filter)
        return queries.hybrid(made["bm25"], made["knn"], method="rrf" if engine == "rrf" else "min_max", size=DOCUMENTS)

    filtered = run(client, sparse_index[3], body({"terms": {"n": [3, 5, 80]}}))
    assert filtered
    assert {id for id, _ in filtered} <= {"d003", "d005", "d080"}
    if engine in ("neural_sparse", "high_idf_first", "knn", "bm25"):
        everything = dict(run(client, sparse_index[3], body(None)))
        assert all(everything[id] == score for id, score in filtered)


@pytest.mark.cluster
def test_a_query_without_known_tokens_finds_nothing_and_is_no_error(client, sparse_index) -> None:
    for body in (queries.neural_sparse({}), queries.high_idf_first({}), queries.neural_sparse({}, plugin=False)):
        assert run(client, sparse_index[1], body) == []


@pytest.mark.cluster
def test_a_query_with_half_a_surrogate_pair_finds_what_its_words_find(client, sparse_index) -> None:
    """Before, BM25 found nothing if it was at the end."""
    text, index = "rainbow \ud83d", sparse_index[3]
    for fields in (["text"], ["title", "text"]):
        found = run(client, index, queries.bm25(text, fields=fields))
        assert found == run(client, index, queries.bm25("rainbow", fields=fields)) != []
    summed = queries.bm25_sparse(text, {"é": 1.0}, rare_first=("rainbow \ud83d", "what \ud83d"))
    assert run(client, index, summed)
    marked = queries.neural_sparse({"é": 1.0, "u.s": 1.0}, highlight=text, size=DOCUMENTS)
    assert any("highlight" in hit for hit in client.search(index=index, body=marked)["hits"]["hits"])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"filter": "lang=en"}, "a filter is a query clause such as .*, not 'lang=en'"),
        ({"filter": ["lang", "en"]}, "a filter is a query clause"),
        ({"filter": {"query": {"match_all": {}}}}, "a filter is a query clause, not a request body"),
        ({"filter": True}, "a filter is a query clause such as .*, not True"),
        ({"filter": 5}, "a filter is a query clause such as .*, not 5"),
        ({"filter": b"x"}, "a filter is a query clause such as .*, not b'x'"),
        ({"highlight": True}, "highlight is a text, not True"),
        ({"source": None}, "source is a list of fields, True or False, not None"),
        ({"source": 5}, "source is a list of fields, True or False, not 5"),
        ({"source": b"x"}, "source is a list of fields, True or False, not b'x'"),
    ],
)
def test_what_is_no_clause_and_no_text_is_named(wrong: dict, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        queries.bm25("rain", **wrong)
    with pytest.raises(TypeError, match=told):
        queries.neural_sparse({"rain": 1.0}, **wrong)


@pytest.mark.parametrize("text", [None, b"rain", 5, ["rain"]])
def test_a_query_that_is_no_text_is_named(text: object) -> None:
    with pytest.raises(TypeError, match="a query is a text, not "):
        queries.bm25(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("base", "told"), [("rain", "not 'rain'"), ({"query": {"match_all": {}}, "size": 1}, "not a request")]
)
def test_a_base_that_is_no_clause_is_named(base: object, told: str) -> None:
    with pytest.raises(TypeError, match=f"base is a query clause.*{told}"):
        queries.bm25_sparse("rain", {"rain": 1.0}, base=base)  # type: ignore[arg-type]


FUSED_PARTS = {"hybrid": {"queries": [{"match": {"text": "rain"}}, {"match": {"title": "rain"}}]}}


@pytest.mark.parametrize(
    "base",
    [
        FUSED_PARTS,
        {"bool": {"must": [FUSED_PARTS], "filter": [{"term": {"lang": "en"}}]}},
        {"bool": {"must": {"match_all": {}}, "filter": ({"dis_max": {"queries": [FUSED_PARTS]}},)}},
        {"function_score": {"query": FUSED_PARTS, "functions": []}},
    ],
)
def test_a_base_with_a_hybrid_query_is_refused(base: queries.Clause) -> None:
    """OpenSearch returned the marks between its parts (-9549511700) as scores of hits."""
    pages: list[dict] = [{}, {"window": None}, {"collapse": "parent"}]
    for page in pages:
        for tokens in ({"rain": 1.0}, {}):
            with pytest.raises(ValueError, match="base is or contains a hybrid query"):
                queries.bm25_sparse("rain", tokens, base=base, **page)


def test_a_base_may_search_a_field_that_is_called_hybrid() -> None:
    match: queries.Clause = {"match": {"hybrid": {"query": "tea"}}}
    term: queries.Clause = {"term": {"hybrid": True}}
    for base in (match, term):
        assert queries.bm25_sparse("tea", {"tea": 1.0}, base=base)["query"] == base


def test_a_hybrid_body_is_not_rescored_wherever_its_pipeline_is_named() -> None:
    """In a parameter of the request or the settings of the index, the pipeline is not in the body."""
    body = queries.hybrid(queries.bm25("x"), queries.knn([1.0]))
    del body["search_pipeline"]
    with pytest.raises(ValueError, match="rescored before its parts are fused"):
        queries.dense_rescore(body, [1.0])


def test_one_field_may_be_named_alone() -> None:
    """Its letters are no fields."""
    assert queries.bm25("rain", source="title") == queries.bm25("rain", source=["title"])
    for field in ("title", "title^3"):
        assert queries.bm25("rain", fields=field) == queries.bm25("rain", fields=[field])
        both = [queries.bm25_sparse("rain", {"rain": 1.0}, fields=each) for each in (field, [field])]
        assert both[0] == both[1]
    with pytest.raises(ValueError, match="at least one field"):
        queries.bm25("rain", fields="")


@pytest.mark.cluster
def test_highlighting_marks_the_query_words_whatever_the_engine(client, sparse_index) -> None:
    body = queries.neural_sparse({"é": 1.0}, highlight="rainbow", size=1)
    (hit,) = client.search(index=sparse_index[1], body=body)["hits"]["hits"]
    assert "<em>rainbow</em>" in hit["highlight"]["text"][0]


@pytest.mark.cluster
def test_hybrid_fuses_more_than_the_page_shows(client, sparse_index) -> None:
    """The best of both lists may be below the page of each; `depth` lets it be found."""
    parts = (queries.bm25("rainbow", size=3), queries.knn([1.0, 60.0, 1.0], size=3, k=100))
    deep = run(client, sparse_index[1], queries.hybrid(*parts, size=3, depth=DOCUMENTS))
    everything = run(client, sparse_index[1], queries.hybrid(*parts, size=DOCUMENTS, depth=DOCUMENTS))
    assert deep == everything[:3]


@pytest.mark.parametrize("text", ["count:inf", "count:nan", "share:inf", "ratio:nan", "count:1.5"])
def test_a_threshold_that_is_no_number_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a threshold"):
        Rare.parse(text)
    with pytest.raises(InputError, match="is no pruning"):
        Pruning.parse(text.replace("count", "top_k").replace("share", "alpha_mass").replace("ratio", "max_ratio"))


@pytest.mark.parametrize("text", ["inf", "nan", "0", "-1", "x"])
def test_a_number_above_0_is_finite(text: str) -> None:
    with pytest.raises(ValueError):
        positive(text)
