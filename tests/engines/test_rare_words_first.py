"""bm25-sparse with rare words first (`--rare`), on a real node: when the engine does so, and what it finds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from corpora import job, write_jsonl

from ingest.job import run_job
from opensearch_neural import queries
from opensearch_neural.cli import osn
from opensearch_neural.engines import Engines, open_engines
from opensearch_neural.engines.settings import Bm25SparseSetting
from opensearch_neural.engines.sparse import Bm25Sparse
from opensearch_neural.index.mapping import index_body
from opensearch_neural.index.record import RESAMPLED
from opensearch_neural.index.shard_documents import SHARD_DOCUMENTS
from opensearch_neural.lint import lint
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.query_encoder import QueryEncoder

pytestmark = pytest.mark.cluster

DOCUMENTS = 40
TEXT = "light and the moon in water"
SETTINGS: dict[str, Any] = {"rare": queries.Rare("ratio", 0.45), "window": 2}
"""Of TEXT, "moon" is rare: in 8 of 40 documents, where "light" is in 20 and "water" in all. With a window of 2 and a page of
2, a rare word must be in 4."""
PAGE = {"size": 2}


def text_of(number: int) -> str:
    held = {"light": 2, "moon": 5, "glass": 7, "garden": 13, "river": 3, "rainbow": DOCUMENTS}
    words = ["water", *(word for word, every in held.items() if number % every == 0)]
    return f"{' '.join(words)} {'stone ' * (number % 4 + 1)}"


@pytest.fixture(scope="module", params=["whole", "pruned"])
def opened(client: Any, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Engines]:
    folder = tmp_path_factory.mktemp("rare-words")
    lines = [{"_id": f"d{at}", "text": text_of(at)} for at in range(DOCUMENTS)]
    name = f"osn-test-rare-words-{request.param}"
    how: dict[str, Any] = {"tokenizer": None, "store_vectors": False, "dead_letters": folder / "dead.jsonl"}
    how["prune_postings"] = Pruning("top_k", 2) if request.param == "pruned" else None
    run_job(client, job(write_jsonl(folder / "docs.jsonl", lines), name, **how), show_progress=False)
    yield open_engines(client, name)
    client.indices.delete(index=name)


@pytest.fixture
def engines(opened: Engines) -> Engines:
    """With the settings under which "moon" is searched first."""
    return opened.with_settings(**SETTINGS)


def rare_words_first(engines: Engines, text: str = TEXT, **page: Any) -> bool:
    """Whether the engine's body searches them first. Any other body is that of all words."""
    body = engines.body("bm25-sparse", text, **{**PAGE, **page})
    if isinstance(body.get("rescore"), list):
        return True
    assert body == engines.with_settings(rare=None).body("bm25-sparse", text, **{**PAGE, **page})
    return False


def hits(client: Any, engines: Engines, **page: Any) -> dict[str, float]:
    answer = client.search(index=engines.index, body=engines.body("bm25-sparse", TEXT, **page))
    return {hit["_id"]: hit["_score"] for hit in answer["hits"]["hits"]}


def with_record(engines: Engines, **extra: Any) -> Engines:
    return replace(engines, meta=engines.meta.with_extra(**extra), loaded={})


def holding(engines: Engines, **how: Any) -> Engines:
    """The same with another query encoder."""
    encoder = engines.models.query_encoder
    table = how.pop("table", encoder.weights)
    models = engines.models.holding(query_encoder=QueryEncoder(encoder.tokenizer, table, **how))
    return replace(engines, models=models, loaded={})


def test_rare_words_first_has_the_same_scores_and_one_ranking_for_all_pages(client: Any, engines: Engines) -> None:
    assert rare_words_first(engines) and not rare_words_first(engines.with_settings(rare=None))
    # Clauses would read only what pruned postings hold.
    for clauses in (False,) if engines.has_pruned_postings() else (False, True):
        wide = engines.with_settings(window=3, clauses=clauses)
        assert rare_words_first(wide) and lint(wide.body("bm25-sparse", TEXT, size=2), meta=wide.meta) == []
        every = hits(client, wide.with_settings(rare=None, window=DOCUMENTS), size=DOCUMENTS)
        found = hits(client, wide, size=3)
        assert len(found) == 3 and found == pytest.approx({id: every[id] for id in found}, rel=1e-5)
        pages = [id for from_ in range(0, 10, 2) for id in hits(client, wide, size=2, from_=from_)]
        assert len(set(pages)) == len(pages) and set(pages) == {f"d{at}" for at in range(0, DOCUMENTS, 5)}
        assert pages[:3] == list(found)


def test_a_page_of_rare_words_first_is_never_certified(client: Any, engines: Engines) -> None:
    engine, plain = (
        each.engine("bm25-sparse") for each in (engines, engines.with_settings(rare=None, window=DOCUMENTS))
    )
    assert isinstance(engine, Bm25Sparse) and isinstance(plain, Bm25Sparse)
    page = {"size": 1, "filter": None}
    assert plain.certified(client, "moon rainbow water", page)
    assert not engine.certified(client, "moon rainbow water", page)
    assert not engine.certified(client, TEXT, page)
    whole = engines.with_settings(exact=True).engine("bm25-sparse")
    assert isinstance(whole, Bm25Sparse) and whole.certified(client, TEXT, page)


def test_osn_search_explains_the_words_of_both_phases(engines: Engines, cluster_url: str) -> None:
    asked = ["search", "--url", cluster_url, "--index", engines.index, "--rare", "ratio:0.45", "--window", "2", TEXT]
    done = CliRunner().invoke(osn, [*asked, "--size", "2", "--json", "--explain"], catch_exceptions=False)
    assert not done.stderr
    for hit in json.loads(done.stdout)["hits"]:
        assert hit["sum"] == pytest.approx(hit["score"], rel=1e-4)
        words = {each["token"] for each in hit["tokens"] if each["source"] == "bm25"}
        assert words >= {"moon", "water"} and "sparse" in {each["source"] for each in hit["tokens"]}
    shown = CliRunner().invoke(osn, [*asked, "--size", "2", "--body"], catch_exceptions=False)
    assert len(json.loads(shown.stdout)["rescore"]) == 2


def test_a_page_with_a_filter_a_collapse_or_a_query_of_ones_own_searches_all_words(engines: Engines) -> None:
    assert rare_words_first(engines) and not rare_words_first(engines.with_settings(exact=True))
    assert rare_words_first(engines, from_=4)
    own = ({"filter": {"term": {"url": "x"}}}, {"collapse": "url"}, {"base": {"match": {"title": "moon"}}})
    assert not any(rare_words_first(engines, **page) for page in own)


@pytest.mark.parametrize(
    ("meta", "how", "expected"),
    [
        ({}, {}, True),
        ({"analyzer": "standard"}, {}, True),
        ({"analyzer": "keyword"}, {}, False),
        ({"analyzer": "german"}, {}, False),
        ({}, {"search_analyzer": "keyword"}, False),
        ({"analyzer": "german"}, {"search_analyzer": "english"}, True),
        ({}, {"settings": {"analysis.analyzer.english.type": "german"}}, False),
        ({"analyzer": "mine"}, {"settings": {"analysis.analyzer.mine.type": "english"}}, False),
        ({}, {"settings": {"analysis.analyzer.default_search.type": "keyword"}}, False),
    ],
)
def test_only_words_that_are_analyzed_one_by_one_are_searched_apart(
    client: Any, engines: Engines, index_name: str, meta: dict[str, str], how: dict[str, Any], expected: bool
) -> None:
    record = replace(engines.meta, **meta)  # it says how many documents a shard holds
    client.indices.create(index=index_name, body=index_body(record, shards=1, replicas=0, **how))
    client.indices.put_alias(index=index_name, name=f"{index_name}-alias")
    for name in (index_name, f"{index_name}-alias"):
        assert rare_words_first(open_engines(client, name, **SETTINGS)) == expected


def test_without_a_connection_it_is_unknown_how_words_are_analyzed(engines: Engines) -> None:
    assert not rare_words_first(replace(engines, connect=None, loaded={}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("light and the moon in water", True),
        ("light and the MOON in water", True),
        # Punctuation is not part of the word's token.
        ("light and the moon, in water", False),
        # "rainbow" is in one document.
        ("light and the rainbow in water", False),
        ("the rainbow and the moon in water", True),
        # All words are rare.
        ("moon glass", False),
        ("", False),
    ],
)
def test_one_rare_word_alone_must_be_in_enough_documents(engines: Engines, text: str, expected: bool) -> None:
    assert rare_words_first(engines, text) == expected


def test_what_is_enough_grows_with_the_window_and_the_page(engines: Engines) -> None:
    assert rare_words_first(engines.with_settings(window=3), size=3)
    assert not rare_words_first(engines.with_settings(window=5), size=3)
    assert not rare_words_first(engines, size=5)
    shards = replace(
        engines, meta=engines.meta.with_extra(word_shards=2, **{SHARD_DOCUMENTS: DOCUMENTS // 2}), loaded={}
    )
    assert rare_words_first(shards.with_settings(window=1)) and not rare_words_first(shards.with_settings(window=3))


def test_a_stop_word_is_no_rare_word_that_finds_documents(engines: Engines) -> None:
    """The table has an IDF for it, but the analyzer removes it."""
    weights = engines.models.query_encoder.weights
    renamed = {**weights, "with": weights["moon"], "moon": weights["water"]}
    assert not rare_words_first(holding(engines, table=renamed), "water with moon")
    assert rare_words_first(holding(engines, table={**weights, "over": weights["moon"]}), "water over light")


def test_a_word_is_no_witness_without_letters_or_without_an_idf_of_its_own(engines: Engines) -> None:
    """The table has an IDF for "#", which the analyzer removes, and that of a word in no document is only a usual one."""
    weights = engines.models.query_encoder.weights
    signs = {**weights, "#": weights["moon"], "moon": weights["water"]}
    assert not rare_words_first(holding(engines, table=signs), "# in water")
    assert weights["violin"] == 1.0
    assert not rare_words_first(engines, "violin in water")


def test_a_table_that_was_not_counted_on_the_indexs_documents_says_nothing_of_them(engines: Engines) -> None:
    weights = engines.models.query_encoder.weights
    assert rare_words_first(holding(engines))
    assert not rare_words_first(holding(engines, table={token: 1.1 * weight for token, weight in weights.items()}))
    assert not rare_words_first(holding(engines, prompt="moon "))
    for documents, expected in ((19, False), (20, True), (80, True), (81, False)):
        assert rare_words_first(with_record(engines, **{SHARD_DOCUMENTS: documents}), "light in water") == expected
    # Drawn from the counted corpus, with the same shares: "rainbow" is then in 140 documents.
    drawn = with_record(engines, **{SHARD_DOCUMENTS: 4000, RESAMPLED: {"of": DOCUMENTS}})
    assert rare_words_first(drawn, "the rainbow in water")
    assert not rare_words_first(with_record(drawn, **{RESAMPLED: {"of": 4000}}), "the rainbow in water")


def test_the_cascade_and_the_stored_setting_know_nothing_of_rare_words_first(engines: Engines) -> None:
    chosen = Bm25SparseSetting.of(engines)
    assert chosen.rare == SETTINGS["rare"] and str(chosen).endswith("words ratio:0.45 first")
    assert "rare" not in chosen.record and Bm25SparseSetting.stored(engines).rare is None
    body = Bm25Sparse(engines).within(TEXT, PAGE, 2, Bm25SparseSetting.stored(engines))
    assert isinstance(body["rescore"], dict)
