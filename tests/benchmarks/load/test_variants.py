"""Each option changes what it says and nothing else."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from extend_page import names_below

from benchmarks.load.measurement import LoadSettings, Measurement
from benchmarks.load.quality import judged_rows, nearness_rows, retriever
from benchmarks.load.run import notes
from benchmarks.load.variants import (
    ALL_ENGINES,
    PRESETS,
    Variant,
    parse_variant,
    parse_variants,
    pipeline_of,
    spec_of,
)
from benchmarks.load.workload import LoadTarget, SearchedIndex, Workload, body_builders, prepare, prepared
from benchmarks.render import SCORE_KEPT
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.corpus.judgements import BeirData, JudgedQueries
from opensearch_neural.engines import ENGINES
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.overlap import overlap
from opensearch_neural.index.record import IndexMeta, SparseMeta, existing_record, write_record
from opensearch_neural.index.shard_documents import SHARD_DOCUMENTS
from opensearch_neural.index.sparse_scale import SCALE
from opensearch_neural.queries import Rare


def test_a_report_notes_how_each_engine_searches_that_has_a_setting() -> None:
    specs = (
        "bm25,two-phase,sparse,bm25-sparse+window=7,whole=bm25-sparse+whole=yes,high-idf-first+rare=count:3,"
        "cascade+first=high-idf-first+weight=0.1"
    )
    index = SearchedIndex(IndexMeta(sparse=SparseMeta("m", "h", "q"), extra={SHARD_DOCUMENTS: 10}), plugin=True)
    workload = Workload(LoadTarget(ConnectionSettings()), ("x",), tuple(parse_variants(specs)), {"docs": index}, "docs")
    noted = notes(Measurement(LoadSettings(), "docs", {}, queries=100), workload)
    assert noted[1:] == [
        "bm25-sparse+window=7: weight 0.8, window 7",
        "high-idf-first+rare=count:3: rare count:3, window 30",
        "cascade+first=high-idf-first+weight=0.1: high-idf-first first, weight 0.1, windows 100 and 50, rare ratio:0.5",
        "docs: sparse: m (h)",
    ]


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine that docs/how-to/extend.md adds."""
    engine = names_below("An engine")["Bm25Title"]
    monkeypatch.setitem(ENGINES, engine.name, engine)
    monkeypatch.setattr("benchmarks.load.variants.ALL_ENGINES", {**ALL_ENGINES, engine.name: engine})


def test_variants_are_read_as_they_are_written() -> None:
    variants = parse_variants("bm25,high-idf-first+window=50+rare=count:3,mine=sparse+hits=yes+source=none")
    assert [each.name for each in variants] == ["bm25", "high-idf-first+window=50+rare=count:3", "mine"]
    assert dict(variants[1].settings) == {"window": 50, "rare": Rare("count", 3)}
    assert (variants[2].engine, variants[2].hits, variants[2].source) == ("sparse", True, "none")
    variants += parse_variants("bm25+hits=10000")
    assert variants[3].hits == 10_000 and not isinstance(variants[3].hits, bool)
    for variant in variants:
        assert spec_of(parse_variant(spec_of(variant))) == spec_of(variant)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_variants_with_names_of_their_own(preset: str) -> None:
    variants = parse_variants(preset)
    assert len({each.name for each in variants}) == len(variants) >= 3 and variants[0].name == "bm25"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("splade", "there is no engine 'splade'"),
        ("bm25+color=red", "there is no option 'color'"),
        ("bm25+hits=maybe", "'maybe' is not yes, no or a whole number from 1"),
        ("bm25+hits=0", "'0' is not yes, no or a whole number from 1"),
        ("bm25+hits=-3", "'-3' is not yes, no or a whole number from 1"),
        ("high-idf-first+rare=0.6", "is not a threshold like ratio:0.6"),
        ("high-idf-first+window=0", "0 is not a whole number from 1"),
        ("bm25+window=5", "there is no option 'window'"),
        ("sparse+prune=0.4", "there is no option 'prune'"),
        ("two-phase+expansion=0.5", "0.5 is not in the range x>=1"),
        ("bm25+source=some", "'some' is not one of"),
        ("cascade+first=dense", "is not one of bm25-sparse"),
        ("a=bm25,a=sparse", "two engines are called 'a'"),
        ("", "no engine was named"),
        ("my name=bm25", "is not a valid name"),
    ],
)
def test_what_is_wrong_is_named(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_variants(text)


def test_the_processor_gets_the_settings_of_its_variant() -> None:
    pipeline = pipeline_of(parse_variant("two-phase+prune=0.8"))
    assert pipeline is not None and pipeline_of(parse_variant("sparse")) is None
    (processor,) = pipeline[1]["request_processors"]
    parameter = processor["neural_sparse_two_phase_processor"]["two_phase_parameter"]
    assert parameter == {"prune_ratio": 0.8, "expansion_rate": 5.0, "max_window_size": 10_000}


@pytest.mark.parametrize(
    ("hits", "share"),
    [
        ({"a": 3.0, "b": 2.0}, 1.0),
        ({"a": 3.0, "x": 2.9}, 0.9),
        ({"a": 3.0, "c": 2.0}, 1.0),  # c ties with b
        ({"d": 1.0, "x": 0.5}, 0.8),
        ({}, 0.8),
    ],
)
def test_overlap_counts_ties_with_the_last_place(hits: dict[str, float], share: float) -> None:
    first = {f"common {at}": 9.0 for at in range(8)}
    assert overlap(first | hits, {**first, "a": 3.0, "b": 2.0, "c": 2.0, "d": 1.0}) == pytest.approx(share)
    assert overlap({}, first) == 0.0


@pytest.mark.cluster
def test_ways_of_asking_the_same_find_the_same(client, loaded: str, corpus) -> None:
    """Forms, fields returned and how the second phase adds up are matters of speed: scores stay what they are.

    In a window of all documents, as `rescore=remaining` chooses those of a narrower one by rare tokens alone.
    """
    ways = (
        "",
        "rescore=remaining",
        "form=features",
        "rescore=remaining+form=features",
        "source=none",
    )
    first, *others = [f"high-idf-first+window=1000{'+' * bool(way)}{way}" for way in (*ways, "hits=yes")]
    variants = parse_variants(",".join([first, *others]))
    questions = BeirData.load(corpus).queries
    workload = prepare(client, LoadTarget(ConnectionSettings()), loaded, variants, list(questions.values()))
    runs = {each.name: retriever(client, workload, each, {}).retrieve(questions, 10) for each in variants}
    plain = runs.pop(first)
    for name, run in runs.items():
        for query, hits in plain.items():
            assert sorted(run[query].values(), reverse=True) == pytest.approx(
                sorted(hits.values(), reverse=True), rel=1e-5
            ), (name, query)


def stored_now(client) -> set[str]:
    """Search pipelines on the cluster; where there is none, it answers with 404."""
    return set(client.transport.perform_request("GET", "/_search/pipeline", params={"ignore": 404}))


@pytest.mark.parametrize("engine", ["bm25", "bm25-sparse+whole=yes", "sparse"])
@pytest.mark.parametrize("option", ["index=docs-pruned", "keep=share:0.5"])
def test_what_changes_an_exact_engine_is_compared_with_it(engine: str, option: str) -> None:
    assert parse_variant(engine).exact is None
    exact = parse_variant(f"{engine}+{option}").exact
    assert exact is not None and exact.engine == engine.partition("+")[0] and exact.index is exact.keep is None


def test_the_exact_search_of_bm25_sparse_adds_all_tokens_in_all_documents() -> None:
    exact = Variant(
        "mine", "bm25-sparse", settings=(("tokens", Rare("share", 0.9)), ("window", 50), ("weight", 0.5))
    ).exact
    assert exact == Variant("exact bm25-sparse", "bm25-sparse", whole=True, settings=(("weight", 0.5),))


@pytest.mark.cluster
def test_quality_is_shown_where_there_are_judgements_and_overlap_where_not(client, loaded: str, corpus) -> None:
    data = BeirData.load(corpus)
    variants = parse_variants(
        "rivals,all=high-idf-first+rare=ratio:0,one=high-idf-first+rare=count:1+window=10,"
        "sum=bm25-sparse+whole=yes,wide=bm25-sparse+window=1000,narrow=bm25-sparse+window=2"
    )
    texts = list(data.queries.values())
    with prepared(client, LoadTarget(ConnectionSettings()), loaded, variants, texts) as workload:
        names = set(workload.pipelines)
        assert names and names <= stored_now(client)
        judged = judged_rows(client, workload, data, loaded, baseline="bm25")
        rows = nearness_rows(client, workload, data.queries, loaded)
    assert not names & stored_now(client)
    ndcg = {row.line: row.value for row in judged if row.column == "nDCG@10"}
    assert ndcg["all"] == pytest.approx(ndcg["sparse"]) and ndcg["sparse"] > 0.8  # a first line finds its docstring
    share = {row.line: row.value for row in rows if row.column == "overlap@10"}
    # bm25, sparse and the whole sum are exact by their own measure.
    assert set(share) == {"high-idf-first", "two-phase", "all", "one", "wide", "narrow"}
    assert share["all"] == 1.0 > share["one"]
    score = {row.line: row.value for row in rows if row.column == SCORE_KEPT}
    assert set(score) == set(share)
    assert score["all"] == pytest.approx(1.0) and score["one"] < 1 and score["narrow"] < score["wide"] <= 1 + 1e-6
    assert all(share[name] <= score[name] + 1e-6 for name in share)  # a hit that is no longer first still scores


@pytest.mark.cluster
def test_a_query_that_is_a_document_is_left_out_of_its_own_hits_as_in_osn_eval(client, loaded: str) -> None:
    (document,) = client.search(index=loaded, body={"size": 1, "query": {"exists": {"field": "text"}}})["hits"]["hits"]
    id, text = document["_id"], document["_source"]["text"]
    found = client.search(index=loaded, body={"size": 2, "query": {"match": {"contents": text}}})["hits"]["hits"]
    other = next(hit["_id"] for hit in found if hit["_id"] != id)
    judged = JudgedQueries("own", "", {id: text}, {id: {other: 1}}, ())
    with prepared(client, LoadTarget(ConnectionSettings()), loaded, parse_variants("bm25"), [text]) as workload:
        rows = judged_rows(client, workload, judged, loaded, baseline="bm25")
    assert {row.column: row.value for row in rows}["nDCG@10"] == 1.0


@pytest.mark.cluster
def test_a_worker_on_a_machine_without_the_models_files_has_the_encoder_of_the_cluster(
    client, loaded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = LoadTarget(ConnectionSettings(("http://127.0.0.1:9",)))
    asked = client, nowhere, loaded, parse_variants("bm25-sparse"), ["x"]
    here = prepare(*asked)
    assert here.indexes[loaded].encoder is None
    (wanted,) = body_builders(here).values()
    monkeypatch.setenv("OSN_HOME", str(tmp_path))
    worker = pickle.loads(pickle.dumps(prepare(*asked)))
    (build,) = body_builders(worker).values()
    assert build("read a file") == wanted("read a file")


@pytest.mark.cluster
def test_a_worker_asks_the_cluster_for_neither_scale_nor_size_of_an_index_that_keeps_none(
    client, loaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opensearch_neural.engines.settings.FITTED", client.count(index=loaded)["count"] / 16)
    meta = existing_record(client, loaded)
    write_record(client, loaded, meta.with_extra(**{SHARD_DOCUMENTS: None, SCALE: None}))
    try:
        nowhere = LoadTarget(ConnectionSettings(("http://127.0.0.1:9",)))
        workload = prepare(client, nowhere, loaded, parse_variants("bm25-sparse,high-idf-first+rare=count:1"), ["x"])
    finally:
        write_record(client, loaded, meta)
    bodies = [build("parse a string into a tree") for build in body_builders(workload).values()]
    assert [body["rescore"][0]["window_size"] for body in bodies[:1]] == [120]
    assert bodies[1]["rescore"]["window_size"] == 60


@pytest.mark.cluster
def test_a_worker_lets_bm25_search_rare_words_first_without_asking_the_cluster(client, loaded: str) -> None:
    nowhere = LoadTarget(ConnectionSettings(("http://127.0.0.1:9",)))
    variants = parse_variants("bm25-sparse+window=2+rare=ratio:0,bm25-sparse+rare=count:1+window=2")
    workload = pickle.loads(pickle.dumps(prepare(client, nowhere, loaded, variants, ["x"])))
    plain, first = (build("the class of a string") for build in body_builders(workload).values())
    assert first["query"] != plain["query"] and first["rescore"][1] == plain["rescore"]


@pytest.mark.usefixtures("added")
def test_an_engine_that_is_added_has_its_options_and_its_exact_search_here() -> None:
    variant = parse_variant("bm25-title+weight=0.5+title-boost=3")
    assert variant.settings == (("title_boost", 3.0), ("weight", 0.5))
    assert parse_variant(f"mine={spec_of(variant)}") == replace(variant, name="mine")
    assert variant.exact == Variant(
        "exact bm25-title", "bm25-title", whole=True, settings=(("title_boost", 3.0), ("weight", 0.5))
    )
    with pytest.raises(InputError, match=r"'title-boost=0' in .*: 0 is not above 0"):
        parse_variant("bm25-title+title-boost=0")
    with pytest.raises(InputError, match="no option 'title-boost' in 'bm25"):
        parse_variant("bm25+title-boost=3")


@pytest.mark.cluster
@pytest.mark.usefixtures("added")
def test_a_worker_makes_the_bodies_of_an_engine_that_is_added(client, loaded: str) -> None:
    meta = existing_record(client, loaded)
    write_record(client, loaded, meta.with_extra(**{SCALE: None}))
    try:
        nowhere = LoadTarget(ConnectionSettings(("http://127.0.0.1:9",)))
        workload = prepare(client, nowhere, loaded, parse_variants("bm25-title+title-boost=3"), ["x"])
    finally:
        write_record(client, loaded, meta)
    (build,) = body_builders(workload).values()
    body = build("parse a string into a tree")
    assert "title^3" in body["query"]["multi_match"]["fields"] and body["rescore"]
    assert client.search(index=loaded, body=body)["hits"]["hits"]


@pytest.mark.cluster
def test_every_variant_of_presets_and_options_is_answered(client, loaded: str) -> None:
    options = (
        "bm25+hits=yes,bm25+hits=2,bm25+source=none,sparse+hits=yes,sparse+form=features,high-idf-first+form=features+source=none,"
        "high-idf-first+rescore=remaining+keep=share:0.98,high-idf-first+rare=ratio:0.6+window=20,high-idf-first+rare=count:2"
    )
    variants = parse_variants(f"rivals,sum,{options},dense=sparse+size=3")
    target = LoadTarget(ConnectionSettings())
    with prepared(client, target, loaded, variants, ["parse a string"]) as workload:
        for variant in variants:
            body = body_builders(workload, [variant])[variant.name]("parse a string")
            answer = client.transport.perform_request("POST", workload.path_of(variant), body=body)
            assert answer["hits"]["hits"], variant.name
            assert ("total" in answer["hits"]) is bool(variant.hits), variant.name
            if variant.name == "bm25+hits=2":
                assert answer["hits"]["total"] == {"value": 2, "relation": "gte"}
            assert len(answer["hits"]["hits"]) <= variant.size
