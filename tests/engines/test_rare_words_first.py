"""Rare words first, the default of bm25-sparse in large indexes, on a real node: when it is so, and what is found."""

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
from opensearch_neural.engines.settings import RARE_WORDS, Bm25SparseSetting
from opensearch_neural.engines.sparse import Bm25Sparse
from opensearch_neural.index.mapping import WORD_BY_WORD, index_body
from opensearch_neural.lint import lint
from opensearch_neural.models.sparse.pruning import Pruning

pytestmark = pytest.mark.cluster

DOCUMENTS = 40
TEXT = "light and the moon in water"
SETTINGS: dict[str, Any] = {"rare": queries.Rare("ratio", 0.45), "window": 2}
"""Of TEXT, "moon" is rare: in 8 of 40 documents, where "light" is in 20 and "water" in all."""
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
    """Whether they decide in phase one of the engine's body. Any other body is that of all words."""
    body = engines.body("bm25-sparse", text, **{**PAGE, **page})
    if isinstance(body.get("rescore"), list):
        return True
    assert body == all_words(engines).body("bm25-sparse", text, **{**PAGE, **page})
    return False


def all_words(engines: Engines, **settings: Any) -> Engines:
    return engines.with_settings(rare=queries.Rare("ratio", 0), **settings)


def hits(client: Any, engines: Engines, text: str = TEXT, **page: Any) -> dict[str, float]:
    answer = client.search(index=engines.index, body=engines.body("bm25-sparse", text, **page))
    return {hit["_id"]: hit["_score"] for hit in answer["hits"]["hits"]}


def test_in_a_large_index_words_of_a_third_of_the_heaviest_decide_by_default(
    opened: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def afresh(**settings: Any) -> Engines:
        return replace(opened.with_settings(**settings), loaded={})

    assert Bm25SparseSetting.of(afresh()).rare is None and not rare_words_first(afresh())
    monkeypatch.setattr("opensearch_neural.engines.settings.FITTED", DOCUMENTS - 1)
    assert Bm25SparseSetting.of(afresh()).rare == RARE_WORDS == queries.Rare("ratio", 0.35)
    assert (
        rare_words_first(afresh()) and rare_words_first(afresh(window=2)) and not rare_words_first(all_words(afresh()))
    )
    assert Bm25SparseSetting.of(afresh(rare=queries.Rare("count", 1))).rare == queries.Rare("count", 1)
    tuned = opened.meta.with_extra(**{Bm25SparseSetting.key: {"weight": 0.5, "window": 9}})
    assert Bm25SparseSetting.of(replace(afresh(), meta=tuned)) == Bm25SparseSetting(0.5, 9, rare=RARE_WORDS)


def test_rare_words_first_finds_the_same_documents_with_the_same_scores_in_one_ranking(
    client: Any, engines: Engines
) -> None:
    # Clauses would read only what pruned postings hold.
    for clauses in (False,) if engines.has_pruned_postings() else (False, True):
        wide = engines.with_settings(window=3, clauses=clauses)
        assert rare_words_first(wide) and lint(wide.body("bm25-sparse", TEXT, size=2), meta=wide.meta) == []
        every = hits(client, all_words(wide, window=DOCUMENTS), size=DOCUMENTS)
        found = hits(client, wide, size=3)
        assert len(found) == 3 and found == pytest.approx({id: every[id] for id in found}, rel=1e-5)
        pages = [id for from_ in range(0, DOCUMENTS, 2) for id in hits(client, wide, size=2, from_=from_)]
        assert len(set(pages)) == len(pages) and set(pages) == every.keys()
        rare = {f"d{at}" for at in range(0, DOCUMENTS, 5)}
        assert pages[:3] == list(found) and set(pages[: len(rare)]) == rare
        whole = wide.with_settings(window=DOCUMENTS)
        assert hits(client, whole, size=DOCUMENTS) == pytest.approx(every, rel=1e-5)


def test_documents_without_a_rare_word_fill_the_page(client: Any, engines: Engines) -> None:
    """ "rainbow" is in one document, "violin" in none, and the analyzer removes "over", which the table does not list."""
    for text, first in (
        ("light and the rainbow in water", "d0"),
        ("violin in water", None),
        ("over water and light", None),
    ):
        found = hits(client, engines, text, size=5)
        assert len(found) == 5 and (first is None or first in found)
    alone = hits(client, engines, TEXT, size=5, filter={"term": {"_id": "d1"}})
    assert list(alone) == ["d1"]  # it has "water" only


def certified(how: Engines, client: Any, text: str) -> bool:
    engine = how.engine("bm25-sparse")
    assert isinstance(engine, Bm25Sparse)
    return engine.certified(client, text, {"size": 1, "filter": None})


def test_a_page_of_rare_words_first_is_certified_if_it_is_that_of_all_words(client: Any, engines: Engines) -> None:
    text = "moon rainbow water"
    wide = engines.with_settings(window=DOCUMENTS)
    assert rare_words_first(wide, text) and certified(wide, client, text) and certified(all_words(wide), client, text)
    assert certified(engines.with_settings(exact=True), client, TEXT)


def test_a_page_that_rare_words_change_is_not_certified(
    client: Any, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide, page = engines.with_settings(window=DOCUMENTS), {"size": 1}
    best, text = hits(client, all_words(wide), **page), TEXT
    assert certified(wide, client, text)
    # As if the rare words were others: the first hit of "stone" gets no score of "moon" by which all words find another.
    monkeypatch.setattr(Bm25Sparse, "rare_first", lambda *given: ("stone", "glass") if given[-1].rare else None)
    assert hits(client, wide, **page) != pytest.approx(best)
    assert not certified(wide, client, text)


def test_a_query_whose_common_words_are_all_stop_words_is_not_warned_of(client: Any, engines: Engines) -> None:
    how: dict[str, Any] = {"forward": True, "pruned": engines.has_pruned_postings()}
    body = queries.bm25_sparse("the moon", {"moon": 2.0}, rare_first=("moon", "the"), **how)
    assert lint(body, meta=engines.meta) == []
    assert client.search(index=engines.index, body=body)["hits"]["hits"]


def test_an_unknown_word_is_rare_and_words_are_split_as_analyzers_do(engines: Engines) -> None:
    def rare_of(text: str) -> tuple[str, str]:
        return queries.rare_words(text, engines.models.query_encoder.heaviest, SETTINGS["rare"])

    unknown = "x" * 300  # word pieces know no word of so many letters
    assert engines.models.query_encoder.heaviest(unknown) == 0
    assert rare_of(f"water {unknown} moon") == (f"{unknown} moon", "water")
    for blank in "\u00a0\u2007\u202f":
        assert rare_of(f"moon{blank}water") == (f"moon{blank}water", "")


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


def test_a_page_with_a_collapse_with_fields_or_a_query_of_ones_own_searches_all_words(engines: Engines) -> None:
    assert rare_words_first(engines) and not rare_words_first(engines.with_settings(exact=True))
    assert rare_words_first(engines, from_=4) and rare_words_first(engines, filter={"term": {"url": "x"}})
    others: list[dict[str, Any]] = [{"collapse": "url"}, {"base": {"match": {"title": "moon"}}}, {"fields": ["url"]}]
    assert not any(rare_words_first(engines, **page) for page in others)


@pytest.mark.parametrize(
    ("meta", "how", "expected"),
    [
        ({}, {}, True),
        ({"analyzer": "standard"}, {}, True),
        ({"analyzer": "keyword"}, {}, False),
        ({"analyzer": "german"}, {}, True),
        ({"analyzer": "cjk"}, {}, False),
        ({}, {"search_analyzer": "keyword"}, False),
        ({"analyzer": "keyword"}, {"search_analyzer": "english"}, True),
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


@pytest.mark.parametrize("text", ["moon glass", "moon", "", "moon moon"])
def test_a_query_whose_words_are_all_rare_has_one_search_of_bm25(engines: Engines, text: str) -> None:
    assert not rare_words_first(engines, text)


MIXED = (
    "The U.S. ships' 10\u202f000 10\u00a0km well-known «L'été» of Ströme, müßte 3,5 km/h & state-of-the-art ΑΘΗΝΑ коровы "
    "e-mail a@b.org"
)


@pytest.mark.parametrize("analyzer", sorted(WORD_BY_WORD))
def test_each_analyzer_that_is_said_to_go_word_by_word_does(client: Any, analyzer: str) -> None:
    def terms(text: str) -> list[str]:
        made = client.indices.analyze(body={"analyzer": analyzer, "text": text})
        return [token["token"] for token in made["tokens"]]

    assert terms(MIXED) == [term for word in MIXED.split(" ") for term in terms(word)]


def test_the_cascade_and_the_stored_setting_know_nothing_of_rare_words_first(engines: Engines) -> None:
    chosen = Bm25SparseSetting.of(engines)
    assert chosen.rare == SETTINGS["rare"] and str(chosen).endswith("words ratio:0.45 first")
    assert str(Bm25SparseSetting()) == "weight 0.8, window 30"
    assert "rare" not in chosen.record and Bm25SparseSetting.for_cascade(engines).rare is None
    body = Bm25Sparse(engines).within(TEXT, PAGE, 2, Bm25SparseSetting.for_cascade(engines))
    assert isinstance(body["rescore"], dict)
