"""`osn tune` finds the fastest setting that keeps the share, on queries that had no part in choosing it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from corpora import write_jsonl
from docstring_corpus import write_docstring_corpus
from loaded_index import write
from osn_command import osn_command
from page_elements import Elements

from opensearch_neural import QueryEncoder
from opensearch_neural.cli import osn
from opensearch_neural.commands.tune import NamedQueries, read_questions, tune
from opensearch_neural.corpus.judgements import BeirData
from opensearch_neural.engines import Engines, open_engines
from opensearch_neural.engines.settings import (
    BM25_SPARSE_POWER,
    HIGH_IDF_FIRST_POWER,
    RARE_WORDS,
    TUNED,
    Bm25SparseSetting,
    CascadeSetting,
    HighIdfFirstSetting,
    fitting_window,
)
from opensearch_neural.errors import ClusterError, InputError, ModelError, TooManyClauses, Unanswerable, ZeroVector
from opensearch_neural.evaluation.results import Summary
from opensearch_neural.index.models import IndexModels
from opensearch_neural.index.record import IndexMeta, existing_record, write_record
from opensearch_neural.index.shard_documents import SHARD_DOCUMENTS
from opensearch_neural.index.sparse_scale import SCALE
from opensearch_neural.queries import Rare
from opensearch_neural.tune import TUNINGS, Chosen, Questions, Tried, Tuned, pareto, share, store
from opensearch_neural.tune.bm25_sparse import Bm25SparseTuning, bm25_sparse_settings, choose_bm25_sparse
from opensearch_neural.tune.cascade import WEIGHTS, CascadeTuning, cascade_settings
from opensearch_neural.tune.high_idf_first import HighIdfFirstTuning, high_idf_first_settings
from opensearch_neural.tune.plot import plot
from opensearch_neural.tune.trials import Ask, asker, body_of, halves, try_all
from opensearch_neural.ui.tune_report import tune_report

QUERIES = [f"q{at}" for at in range(40)]
ALL = Tried(None, 10.0, 0.8, 1.0, dict.fromkeys(QUERIES, 0.8))


def tried(ms: float, kept: float, window: int = 10) -> Tried:
    return Tried(
        HighIdfFirstSetting(Rare("count", 2), window, exact=False, tokens=Rare("share", 0.9)), ms, 0.8 * kept, kept
    )


def stages_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The rescoring stages: one, or with rare words first two."""
    stages = body["rescore"]
    return stages if isinstance(stages, list) else [stages]


def windows_of(body: dict[str, Any]) -> set[int]:
    return {stage["window_size"] for stage in stages_of(body)}


def test_the_pareto_set_is_what_nothing_beats_in_both() -> None:
    fast, good, beaten, equal = tried(2, 0.7), tried(5, 0.99), tried(6, 0.9), tried(5.5, 0.99)
    assert pareto([ALL, beaten, good, fast, equal]) == [fast, good, ALL]


def test_halves_share_no_query_and_hold_only_judged_ones() -> None:
    texts = {f"q{at}": f"text {at}" for at in range(100)}
    qrels = {f"q{at}": {"d": 1 if at < 90 else 0} for at in range(95)}
    tuning, held_back = halves(Questions(texts, qrels), 30, seed=1)
    assert len(tuning.texts) == len(held_back.texts) == 30
    assert not tuning.texts.keys() & held_back.texts.keys()
    assert all(int(query[1:]) < 90 for query in [*tuning.texts, *held_back.texts])
    with pytest.raises(InputError, match="9 usable queries are too few"):
        halves(Questions({f"q{at}": "x" for at in range(9)}, None), 30, seed=1)


def test_a_query_that_is_a_document_is_left_out_of_its_own_hits() -> None:
    questions = Questions({"m": "moon", "q": "lion"}, {"m": {"l": 1}, "q": {"l": 1}}, own={"m"})
    assert (questions.page("m"), questions.page("q")) == (11, 10)
    assert questions.quality({"m": {"m": 3.0, "l": 2.0}, "q": {"l": 1.0}}, {}) == {"m": 1.0, "q": 1.0}
    ten = Questions({f"q{at}": "x" for at in range(10)}, {f"q{at}": {"d": 1} for at in range(10)}, own={"q1"})
    for part in halves(ten, 5, 0):
        assert part.own == {"q1"}


def test_a_share_is_of_sums_and_its_interval_over_queries() -> None:
    kept, low, high = share({"a": 0.5, "b": 1.0}, {"a": 1.0, "b": 1.0})
    assert kept == 0.75 and low == 0.5 and high == 1.0


def test_the_plot_shows_the_choice_the_front_and_the_share_asked_for() -> None:
    candidates = [ALL, tried(2, 0.7), tried(4, 0.992, window=20), tried(5, 0.95, window=50)]
    chosen = Chosen(candidates[2].setting, candidates[2], 0.99, 0.98, 1.0, 0)  # type: ignore[arg-type]
    shown = plot(candidates, chosen, 0.99)
    assert {"#", "o", "·", "A", "="} <= set(shown) and "2.00 ms" in shown and "10.00 ms" in shown


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_docstring_corpus(tmp_path_factory.mktemp("tune") / "docstrings")


@pytest.fixture(scope="module")
def index(client, corpus: Path) -> Iterator[str]:
    name = f"osn-test-tune-{uuid.uuid4().hex[:8]}"
    write(client, corpus, name)
    yield name
    client.indices.delete(index=name)


@pytest.mark.cluster
@pytest.mark.parametrize("judged", [True, False])
def test_every_setting_is_tried_on_every_query_and_judged(client, index: str, corpus: Path, judged: bool) -> None:
    data = BeirData.load(corpus)
    questions = Questions(dict(list(data.queries.items())[:12]), data.qrels if judged else None)
    engines = open_engines(client, index)
    engines.body_of("sparse")
    grid = [HighIdfFirstSetting(Rare("count", 1), 10), HighIdfFirstSetting(Rare("ratio", 0.0), 10)]
    results = try_all(asker(client, index), engines, questions, grid, passes=1)
    assert [each.setting for each in results] == [None, *grid]
    assert results[0].kept == 1.0 and results[2].kept == pytest.approx(1.0)  # all tokens are rare: nothing is lost
    assert results[1].kept < 1.0 or judged
    assert results[1].quality < (1.0 if not judged else 1.01)
    assert all(each.ms > 0 for each in results)


def test_a_query_that_a_setting_cannot_answer_is_left_out_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """One judged query of 1,200 words ended `osn tune`, with OpenSearch's words and without the query's id."""
    monkeypatch.setattr(
        "opensearch_neural.tune.trials.body_of", lambda _, setting, text, *__: {"query": text, "setting": setting}
    )
    slow, quick = HighIdfFirstSetting(window=20), HighIdfFirstSetting(window=10)

    def ask(body: dict[str, Any]) -> tuple[dict[str, float], float]:
        if body["query"] == "long" and body["setting"] == slow:
            raise TooManyClauses("maxClauseCount is set to 1024")
        return {"d": 1.0}, 2.0

    texts, unanswered = {"q1": "short", "q2": "long", "q3": "brief"}, dict[str, Unanswerable]()
    questions = Questions(texts, {query: {"d": 1} for query in texts})
    results = try_all(ask, None, questions, [slow, quick], full="bm25", unanswered=unanswered)  # type: ignore[arg-type]
    assert [each.values for each in results] == [{"q1": 1.0, "q3": 1.0}] * 3
    assert unanswered.keys() == {"q2"} and all(each.ms == 2.0 for each in results)
    with pytest.raises(TooManyClauses, match="no query can be answered; 'q2': maxClauseCount"):
        try_all(ask, None, Questions({"q2": "long"}, questions.qrels), [slow], full="bm25")  # type: ignore[arg-type]


@pytest.mark.cluster
@pytest.mark.parametrize("only_with_a_setting", [False, True])
@pytest.mark.parametrize("judged", [True, False])
def test_a_held_back_query_that_cannot_be_answered_is_left_out_of_the_choice(
    client, index: str, corpus: Path, monkeypatch: pytest.MonkeyPatch, judged: bool, only_with_a_setting: bool
) -> None:
    data = BeirData.load(corpus)
    held_back = Questions(dict(list(data.queries.items())[:20]), data.qrels if judged else None)
    query = next(iter(held_back.texts))

    def refusing(engines: Engines, setting: Any, text: str, *how: Any) -> dict[str, Any]:
        if text == held_back.texts[query] and (setting is not None or not only_with_a_setting):
            raise ZeroVector()
        return body_of(engines, setting, text, *how)

    for module in ("tuning", "high_idf_first"):
        monkeypatch.setattr(f"opensearch_neural.tune.{module}.body_of", refusing)
    tuning = HighIdfFirstTuning(client, open_engines(client, index))
    tuning.load()
    sound = Tried(HighIdfFirstSetting(Rare("ratio", 0.0), 10), 2.0, 1.0, 1.0, ALL.values)
    choice = tuning.choose([ALL, sound], held_back, 0.99)
    assert choice is not None and choice.kept == pytest.approx(1.0) and tuning.unanswered.keys() == {query}


@pytest.mark.cluster
def test_a_query_of_too_many_words_is_named_and_the_tuning_goes_on(
    cluster_url: str, index: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opensearch_neural.tune.bm25_sparse.WEIGHTS", (Bm25SparseSetting.weight,))
    data = BeirData.load(corpus)
    document = " ".join(f"word{at}" for at in range(1100))
    write_jsonl(
        tmp_path / "queries.jsonl",
        [{"_id": id, "text": text} for id, text in {**data.queries, "whole": document}.items()],
    )
    (tmp_path / "qrels").mkdir()
    lines = [f"{query}\t{id}\t{grade}\n" for query, of in data.qrels.items() for id, grade in of.items()]
    (tmp_path / "qrels" / "train.tsv").write_text("".join(["query-id\tcorpus-id\tscore\n", *lines, "whole\tany\t1\n"]))
    command = ("tune", "--url", cluster_url, "--index", index, "--data", str(tmp_path), "--passes", "1", "--dry-run")
    done = CliRunner().invoke(osn, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert f"warning: 1 of {len(data.queries) + 1} queries are left out, because they make more clauses" in done.stderr
    assert "whole" in done.stderr and f"settings on {len(data.queries)} queries" in done.stdout


@pytest.mark.cluster
def test_what_fails_on_the_held_back_queries_is_passed_over(client, index: str, corpus: Path) -> None:
    """A setting that looked perfect on the tuning queries, and loses half of the exact result on the others."""
    data = BeirData.load(corpus)
    held_back = Questions(dict(list(data.queries.items())[:20]))
    engines = open_engines(client, index)
    engines.body_of("sparse")
    lucky = Tried(HighIdfFirstSetting(Rare("count", 1), 10), 1.0, 1.0, 1.0, ALL.values)
    sound = Tried(HighIdfFirstSetting(Rare("ratio", 0.0), 10), 2.0, 1.0, 1.0, ALL.values)
    tuning = HighIdfFirstTuning(client, engines)
    choice = tuning.choose([ALL, sound, lucky], held_back, 0.99)
    assert choice is not None and choice.setting == sound.setting and choice.passed_over == 1
    assert choice.kept == pytest.approx(1.0)
    assert tuning.choose([ALL, lucky], held_back, 0.99) is None


@pytest.mark.cluster
def test_the_lower_end_of_the_interval_decides(client, index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept on average is not enough: with so few queries the share might as well be lower."""
    held_back = Questions({"q1": "parse a string", "q2": "open a file"})
    engines = open_engines(client, index)
    sound = Tried(HighIdfFirstSetting(Rare("ratio", 0.0), 10), 2.0, 1.0, 1.0, ALL.values)
    for low, chosen in ((0.98, False), (0.99, True)):
        monkeypatch.setattr("opensearch_neural.tune.high_idf_first.share", lambda *_, low=low, **__: (1.0, low, 1.0))
        choice = HighIdfFirstTuning(client, engines).choose([ALL, sound], held_back, 0.99)
        assert (choice is not None) == chosen


def test_on_the_tuning_queries_the_lower_end_decides_too() -> None:
    """The same mean: every query a little less than all tokens, or some much more and some much less."""
    steady = Tried(None, 1.0, 0.796, 0.995, dict.fromkeys(QUERIES, 0.796))
    wild = Tried(
        None, 1.0, 0.796, 0.995, {query: 0.796 + (0.1 if at % 2 else -0.1) for at, query in enumerate(QUERIES)}
    )
    assert steady.surely_keeps(0.99, ALL) and not wild.surely_keeps(0.99, ALL)


def sums(**gains: list[float]) -> list[Tried]:
    """BM25 with 0.5 for every query, and settings "w0_45x50" with what they gain on each."""
    tried = [Tried(None, 5.0, 0.5, 1.0, dict.fromkeys(QUERIES, 0.5))]
    for name, values in gains.items():
        weight, _, window = name.removeprefix("w").replace("_", ".").partition("x")
        each = {query: 0.5 + gain for query, gain in zip(QUERIES, values, strict=True)}
        mean = sum(each.values()) / len(each)
        tried.append(Tried(Bm25SparseSetting(float(weight), int(window)), 6.0, mean, mean / 0.5, each))
    return tried


def test_the_weight_with_the_most_sure_gain_is_chosen_not_that_with_the_most() -> None:
    steady, wild = [0.05, 0.06] * 20, [0.5, -0.3] * 20
    assert sum(wild) > sum(steady)
    chosen = choose_bm25_sparse(sums(w0_2x50=steady, w0_8x50=wild, w0_45x50=[0.01] * 40), 0.99, Bm25SparseSetting())
    assert chosen is not None and chosen.setting == Bm25SparseSetting(0.2, 50)
    assert chosen.low is not None and chosen.low > 1.09 and chosen.kept == pytest.approx(1.11)


def test_the_smallest_window_that_surely_keeps_the_share_is_chosen() -> None:
    gains = {"w0_8x50": [0.05] * 40, "w0_8x20": [0.0498] * 40, "w0_3x20": [0.0499] * 40, "w0_8x10": [0.03] * 40}
    chosen = choose_bm25_sparse(sums(**gains), 0.99, Bm25SparseSetting())
    assert chosen is not None and chosen.setting == Bm25SparseSetting(0.8, 20)


@pytest.mark.parametrize(("keep", "window"), [(0.99, 50), (0.95, 20)])
def test_the_share_is_of_the_gain_not_of_the_whole_quality(keep: float, window: int) -> None:
    """BM25 has 0.5, window 50 0.55 and window 20 0.548: 99.6% of the quality, 96% of the gain."""
    gains = {"w0_8x50": [0.05] * 40, "w0_8x20": [0.048] * 40}
    chosen = choose_bm25_sparse(sums(**gains), keep, Bm25SparseSetting(window=50))
    assert chosen is not None and chosen.setting == Bm25SparseSetting(0.8, window)


def test_a_window_is_chosen_also_if_some_resamples_gain_nothing() -> None:
    """One query in ten gains: about one resample in seventy has none of them."""
    rare = ([0.5] + [0.0] * 9) * 4
    chosen = choose_bm25_sparse(sums(w0_8x50=rare, w0_8x20=rare), 0.99, Bm25SparseSetting(window=50))
    assert chosen is not None and chosen.setting == Bm25SparseSetting(0.8, 20)


@pytest.mark.parametrize("gains", [[0.0] * 40, [0.2, -0.2] * 20])
def test_a_gain_that_may_be_none_is_not_chosen(gains: list[float]) -> None:
    assert choose_bm25_sparse(sums(w0_45x50=gains), 0.99, Bm25SparseSetting()) is None


@pytest.mark.parametrize(
    ("lucky", "luck", "others", "expected"),
    [(4, 0.3, -0.01, Bm25SparseSetting()), (12, 0.3, -0.02, None), (10, 0.1, 0.02, None)],
)
def test_what_is_best_on_a_part_of_the_queries_is_not_chosen_before_the_default(
    lucky: int, luck: float, others: float, expected: Bm25SparseSetting | None
) -> None:
    """With twelve lucky queries each part chooses another weight, which on the rest is no surer than the default. With ten,
    and less luck, the lower end of the gain is 0.0267, and the default's is 0.03."""
    first = [luck] * lucky + [others] * (40 - lucky)
    chosen = choose_bm25_sparse(
        sums(w0_8x30=[0.03] * 40, w0_2x50=first, w0_6x50=first[::-1]), 0.99, Bm25SparseSetting()
    )
    assert (chosen and chosen.setting) == expected


@pytest.mark.cluster
def test_bm25_sparse_is_tuned_on_known_items_and_searched_as_stored(
    client, cluster_url: str, index: str, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = bm25_sparse_settings(Bm25SparseSetting())[::5]
    few += [] if Bm25SparseSetting() in few else [Bm25SparseSetting()]
    monkeypatch.setattr("opensearch_neural.tune.bm25_sparse.bm25_sparse_settings", lambda default: few)
    # What is stored and cannot be read is in nobody's way.
    write_record(
        client, index, existing_record(client, index).with_extra(**{Bm25SparseSetting.key: {"weight": "heavy"}})
    )
    command = ["tune", "--url", cluster_url, "--index", index, "--passes", "1", "--json"]
    done = CliRunner().invoke(osn, [*command, "--most", "6", "--dry-run"], catch_exceptions=False)
    content = json.loads(done.stdout)
    assert content["measure"] == "nDCG@10 of known items"
    assert len(content["tried"]) == 1 + len(few) and Bm25SparseSetting() in bm25_sparse_settings(Bm25SparseSetting())
    assert all(0 < each[content["measure"]] <= 1 for each in content["tried"])
    setting = Bm25SparseSetting(0.9, 20)
    each = Tried(setting, 1.0, 0.9, 1.1)
    store(client, index, Chosen(setting, each, 1.1, 1.05, 1.2, 0), keep=0.99, measure="nDCG@10", queries=30)
    engines = open_engines(client, index)
    assert Bm25SparseSetting.of(engines) == setting
    *_, stage = stages_of(engines.body("bm25-sparse", "parse a string"))
    scale = engines.meta.extra[SCALE]
    assert (stage["window_size"], stage["query"]["rescore_query_weight"]) == (20, pytest.approx(0.9 / scale))
    judged = [*command, "--data", str(corpus), "--split", "test", "--most", "6", "--dry-run"]
    assert json.loads(CliRunner().invoke(osn, judged, catch_exceptions=False).stdout)["measure"] == "nDCG@10"
    drawn: list[float] = []
    monkeypatch.setattr(
        "opensearch_neural.commands.tune.plot_and_table", lambda tuned: drawn.append(tuned.required) or ""
    )
    CliRunner().invoke(osn, [each for each in judged if each != "--json"], catch_exceptions=False)
    assert drawn == [1.0], "the settings must be better than BM25, whatever share of their own quality they keep"


@pytest.mark.cluster
def test_osn_tune_and_osn_eval_measure_the_same(
    client, cluster_url: str, index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the queries are documents of the index, which `osn eval` leaves out of their own hits."""
    hits = client.search(index=index, body={"size": 24, "query": {"exists": {"field": "text"}}})["hits"]["hits"]
    queries = [{"_id": hit["_id"], "text": hit["_source"]["text"]} for hit in hits]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    near = client.msearch(body=[
        line for query in queries
        for line in ({"index": index}, {"size": 2, "query": {"match": {"contents": query["text"]}}})
    ])  # fmt: skip
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(
        f"{query['_id']}\t{hit['_id']}\t1\n"
        for query, answer in zip(queries, near["responses"], strict=True)
        for hit in answer["hits"]["hits"] if hit["_id"] != query["_id"]
    ))  # fmt: skip
    monkeypatch.setattr("opensearch_neural.tune.bm25_sparse.WEIGHTS", (Bm25SparseSetting.weight,))
    place = ("--url", cluster_url, "--index", index, "--data", str(tmp_path), "--split", "train", "--json")
    tune_command, eval_command = ["tune", *place, "--passes", "1", "--dry-run"], ["eval", *place, "--engines", "bm25"]
    tuned = CliRunner().invoke(osn, tune_command, catch_exceptions=False)
    measured = CliRunner().invoke(osn, [*eval_command, "--timed", "0", "--measures", "nDCG@10"], catch_exceptions=False)
    assert "queries are documents of the index too" in measured.stderr
    bm25 = next(row for row in json.loads(measured.stdout)["rows"] if row["measure"] == "nDCG@10")
    assert json.loads(tuned.stdout)["tried"][0]["nDCG@10"] == pytest.approx(bm25["value"])


@pytest.mark.cluster
def test_known_items_of_long_texts_without_full_stops_can_be_searched(client, tmp_path: Path) -> None:
    """Before, OpenSearch refused a query of as many terms as such a text has, and more than 10,000 known items."""
    texts = {f"list{at}": " ".join(f"w{at}x{number}" for number in range(3000)) for at in range(6)}
    for at in range(6):
        characters = (chr(0x4E00 + 2000 * at + number) + ("。" if number % 30 == 29 else "") for number in range(2000))
        texts[f"chinese{at}"] = "".join(characters)
    corpus = tmp_path / "long"
    corpus.mkdir()
    lines = [json.dumps({"_id": id, "title": "", "text": text}) + "\n" for id, text in texts.items()]
    (corpus / "corpus.jsonl").write_text("".join(lines))
    name = f"osn-test-long-{uuid.uuid4().hex[:8]}"
    write(client, corpus, name)
    try:
        tuning = Bm25SparseTuning(client, open_engines(client, name))
        questions = tuning.own_questions(6000, seed=0)
        assert questions.texts.keys() == texts.keys()
        assert all(len(text) <= 1000 for text in questions.texts.values())
        assert {id: next(iter(hits)) for id, hits in tuning.run_of(None, questions).items()} == {id: id for id in texts}
    finally:
        client.indices.delete(index=name)


def test_judged_queries_need_no_corpus(tmp_path: Path) -> None:
    """Such as those of `osn data from-clicks`, which `osn eval` takes."""
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\train\t0.5\n")
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "rainbow"}\n')
    questions = read_questions(NamedQueries(tmp_path, "train", None)) or Questions({})
    assert (questions.texts, questions.qrels, questions.measure) == (
        {"q1": "rainbow"},
        {"q1": {"rain": 0.5}},
        "nDCG@10",
    )


@pytest.mark.cluster
def test_the_choice_is_kept_in_the_index_and_found_by_every_search(client, index: str) -> None:
    before = open_engines(client, index)
    assert HighIdfFirstSetting.of(before) == HighIdfFirstSetting()
    result = tried(1.0, 1.0, window=33)
    chosen = Chosen(result.setting, result, 0.995, 0.99, 1.0, 0)  # type: ignore[arg-type]
    store(client, index, chosen, keep=0.99, measure="nDCG@10", queries=30)
    after = open_engines(client, index)
    assert after.meta.extra[HighIdfFirstSetting.key]["kept"] == 0.995 and after.meta.sparse == before.meta.sparse
    assert HighIdfFirstSetting.of(after) == HighIdfFirstSetting(
        Rare("count", 2), 33, exact=False, tokens=Rare("share", 0.9)
    )
    assert after.body("high-idf-first", "parse a string into a tree")["rescore"]["window_size"] == 33
    # What the caller says counts more.
    assert HighIdfFirstSetting.of(open_engines(client, index, window=50, rare=Rare("count", 1))) == HighIdfFirstSetting(
        Rare("count", 1), 50, exact=False, tokens=Rare("share", 0.9)
    )


def test_the_default_window_grows_with_the_index() -> None:
    shards = (0, 100_000, 1_000_000, 10_000_000)
    assert [fitting_window(each, BM25_SPARSE_POWER) for each in shards] == [30, 30, 95, 300]
    assert [fitting_window(each, HIGH_IDF_FIRST_POWER) for each in shards[:3]] == [30, 30, 53]
    default = Bm25SparseSetting(window=164)
    assert default in bm25_sparse_settings(default), "what is chosen is compared with the default"
    for each in (HighIdfFirstSetting(), HighIdfFirstSetting(window=53)):
        assert each in high_idf_first_settings(each)


@pytest.mark.cluster
def test_the_default_window_fits_the_index_unless_one_was_chosen(
    client, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def untuned(**how: int) -> Engines:
        engines = open_engines(client, index, **how)
        meta = engines.meta.with_extra(**{HighIdfFirstSetting.key: None, Bm25SparseSetting.key: None})
        return replace(engines, meta=meta)

    documents = client.count(index=index)["count"]
    monkeypatch.setattr("opensearch_neural.engines.settings.FITTED", documents / 16)
    for engine, grown in (("bm25-sparse", 120), ("high-idf-first", 60)):
        assert windows_of(untuned().body(engine, "parse a string into a tree")) == {grown}
        assert windows_of(untuned(window=7).body(engine, "parse a string into a tree")) == {7}
    for stored, setting in (
        (Bm25SparseSetting(window=11).record, Bm25SparseSetting(window=11, rare=RARE_WORDS)),
        ({"weight": 0.5}, Bm25SparseSetting(0.5, 120, rare=RARE_WORDS)),
    ):
        engines = untuned()
        tuned = replace(engines, meta=engines.meta.with_extra(**{Bm25SparseSetting.key: stored}))
        assert Bm25SparseSetting.of(tuned) == setting
        assert Bm25SparseSetting.of(engines) == Bm25SparseSetting(window=120, rare=RARE_WORDS), (
            "an index that was not tuned is another one"
        )


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("setting", "engine", "grown"),
    [
        (Bm25SparseSetting(0.9, 20), "bm25-sparse", 80),
        (HighIdfFirstSetting(Rare("count", 2), 33), "high-idf-first", 66),
        (Bm25SparseSetting(0.9, 4000), "bm25-sparse", 10_000),
    ],
)
def test_a_tuned_window_grows_with_the_index_as_the_default_does(
    client,
    index: str,
    monkeypatch: pytest.MonkeyPatch,
    setting: Bm25SparseSetting | HighIdfFirstSetting,
    engine: str,
    grown: int,
) -> None:
    documents, before = client.count(index=index)["count"], existing_record(client, index)
    monkeypatch.setattr("opensearch_neural.engines.settings.FITTED", documents)
    chosen = Chosen(setting, Tried(setting, 1.0, 0.9, 1.1), 1.1, 1.05, 1.2, 0)

    def window(tuned_on: int | None, held: int, **how: int) -> int:
        meta = existing_record(client, index)
        tuned = {name: value for name, value in meta.extra[key].items() if name != SHARD_DOCUMENTS}
        tuned |= {} if tuned_on is None else {SHARD_DOCUMENTS: tuned_on}
        write_record(client, index, meta.with_extra(**{key: tuned, SHARD_DOCUMENTS: held}))
        (size,) = windows_of(open_engines(client, index, **how).body(engine, "parse a string"))
        return size

    try:
        key = setting.key
        store(client, index, chosen, keep=0.99, measure="nDCG@10", queries=30)
        assert existing_record(client, index).extra[key][SHARD_DOCUMENTS] == documents
        assert window(documents, documents) == setting.window
        assert window(documents, 16 * documents) == grown
        assert window(documents, 16 * documents, window=7) == 7, "what the caller says counts more"
        assert window(16 * documents, documents) == setting.window, "never less"
        assert window(None, 16 * documents) == setting.window, "as an older version stored it"
    finally:
        write_record(client, index, before)


@pytest.mark.cluster
def test_a_stored_setting_that_cannot_be_read_is_named_and_tuned_anew(client, index: str) -> None:
    for tuning, stored, why in (
        (HighIdfFirstTuning, {"rare": "most", "window": 10}, "'most' is not a threshold"),
        (Bm25SparseTuning, {"weight": "heavy"}, "could not convert"),
    ):
        key, engine = tuning.setting.key, tuning.setting.engine
        engines = open_engines(client, index)
        engines = replace(engines, meta=engines.meta.with_extra(**{key: stored}))
        with pytest.raises(ModelError, match=f"cannot be read: {why}"):
            engines.body(engine, "parse a string")
        anew = tuning(client, engines)
        anew.load()
        assert key not in anew.engines.meta.extra and anew.grid()


@pytest.mark.cluster
@pytest.mark.parametrize("faster", [True, False])
def test_the_command_tunes_shows_and_stores(
    client,
    cluster_url: str,
    index: str,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    faster: bool,
) -> None:
    """With times that are made up: two phases are faster than all tokens, or slower."""

    def timed(*of: Any) -> Ask:
        ask = asker(*of)
        return lambda body: (ask(body)[0], 1.0 if ("rescore" in body) == faster else 2.0)

    few = high_idf_first_settings(HighIdfFirstSetting())
    few = few[:: len(few) // 6]
    monkeypatch.setattr("opensearch_neural.tune.high_idf_first.high_idf_first_settings", lambda default: few)
    monkeypatch.setattr("opensearch_neural.tune.tuning.asker", timed)
    write_record(client, index, existing_record(client, index).with_extra(**{HighIdfFirstSetting.key: None}))
    command = [
        *("tune", "--url", cluster_url, "--index", index, "--engine", "high-idf-first"),
        *("--data", str(corpus), "--split", "test", "--most", "8", "--passes", "1", "--keep", "0.9"),
    ]
    done = osn_command(*command)
    assert done.returncode == 0, done.stderr
    assert f"{len(few)} settings on 8 queries, by nDCG@10" in done.stdout and "all tokens" in done.stdout
    assert "up: nDCG@10, as a share of that of all tokens (=: the required share)" in done.stdout
    assert "A all tokens, # chosen" in done.stdout
    stored = existing_record(client, index).extra.get(HighIdfFirstSetting.key)
    assert ("stored in" in done.stdout) == faster == (stored is not None and stored["keep"] == 0.9)
    page = tmp_path / "report.html"
    command += ["--report", str(page)]

    def forbidden(*_: Any, **__: Any) -> None:
        raise ClusterError("OpenSearch refused: no permissions")

    with monkeypatch.context() as patch:
        patch.setattr("opensearch_neural.commands.tune.store", forbidden)
        refused = osn_command(*command)
    assert "A all tokens, # chosen" in refused.stdout and page.exists(), "what was found is shown all the same"
    assert (refused.returncode == 1 and "not stored: OpenSearch refused" in refused.stdout) == faster
    page.unlink()
    shown = osn_command(*command, "--json", "--dry-run")
    content = json.loads(shown.stdout)
    assert len(content["tried"]) == len(few) + 1 and content["tried"][0]["all"] is True
    assert any(each["pareto"] for each in content["tried"])
    report = Elements(page.read_text())
    assert len(report.of("circle", "point")) >= len(few) - 1 and "all tokens: " in str(report.of("svg", "costs"))
    assert content["stored"] is False and ("--dry-run" if faster else "nothing was stored") in content["verdict"]
    assert (content["chosen"] is not None) == faster == len(report.of("svg", "forest")) and "SHA-256" in report.text
    assert ("nothing was stored" in report.text) == (not faster)


@pytest.mark.cluster
@pytest.mark.parametrize("stored", [False, True])
def test_where_nothing_is_chosen_an_earlier_choice_is_named(
    client, cluster_url: str, index: str, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    record = Bm25SparseSetting(1.1, 20).record if stored else None
    write_record(client, index, existing_record(client, index).with_extra(**{Bm25SparseSetting.key: record}))
    monkeypatch.setattr("opensearch_neural.tune.bm25_sparse.WEIGHTS", (0.1,))
    monkeypatch.setattr("opensearch_neural.tune.bm25_sparse.choose_bm25_sparse", lambda *_, **__: None)
    command = ("tune", "--url", cluster_url, "--index", index, "--most", "5", "--passes", "1")
    done = CliRunner().invoke(osn, command, catch_exceptions=False)
    write_record(client, index, existing_record(client, index).with_extra(**{Bm25SparseSetting.key: None}))
    assert "nothing was stored" in done.stdout
    assert ("bm25-sparse goes on with the setting that was stored before" in done.stdout) == stored


def test_a_cascade_goes_on_with_what_was_tuned_after_the_same_engine() -> None:
    meta = IndexMeta(extra={CascadeSetting.key: CascadeSetting(first="high-idf-first").record, SHARD_DOCUMENTS: 10})
    for first, used in (("high-idf-first", True), ("bm25-sparse", False), (None, True)):
        engines = Engines("docs", meta, True, IndexModels("docs", meta), {} if first is None else {"first": first})
        assert CascadeTuning(None, engines).has_stored_setting is used  # type: ignore[arg-type]


@pytest.mark.cluster
@pytest.mark.parametrize("alike", [False, True])
def test_osn_eval_and_osn_tune_say_that_all_tokens_weigh_the_same(
    client, cluster_url: str, index: str, corpus: Path, monkeypatch: pytest.MonkeyPatch, alike: bool
) -> None:
    def opened(*of: Any, **how: Any) -> Engines:
        engines = open_engines(*of, **how)
        encoder = engines.models.query_encoder
        flat = QueryEncoder(encoder.tokenizer, dict.fromkeys(encoder.vocabulary, 1.0))
        return replace(engines, models=engines.models.holding(query_encoder=flat)) if alike else engines

    monkeypatch.setattr("opensearch_neural.commands.tune.open_engines", opened)
    monkeypatch.setattr("opensearch_neural.commands.evaluate.open_engines", opened)
    monkeypatch.setattr("opensearch_neural.tune.high_idf_first.high_idf_first_settings", lambda default: [default])
    asked = ["--url", cluster_url, "--index", index, "--data", str(corpus), "--split", "test"]
    for command in (
        ["eval", *asked, "--engines", "bm25,high-idf-first", "--timed", "0"],
        ["tune", *asked, "--engine", "high-idf-first", "--most", "5", "--passes", "1", "--dry-run"],
    ):
        done = CliRunner().invoke(osn, command, catch_exceptions=False)
        assert (
            done.exit_code == 0 and done.stderr.count("warning: all tokens of the sparse model weigh the same") == alike
        )


def test_what_can_be_tuned_says_which_queries_it_takes() -> None:
    (choice,) = (option for option in tune.params if option.name == "engine")
    assert isinstance(choice.type, click.Choice) and {*choice.type.choices} == TUNINGS.keys()
    assert {tuning.setting for tuning in TUNINGS.values()} == set(TUNED), "a build takes over only what TUNED has"
    for engine, tuning in TUNINGS.items():
        tuning.check_queries(judged=True, unjudged=False)
        with pytest.raises(InputError, match="give --data or --queries, not both"):
            tuning.check_queries(judged=True, unjudged=True)
        for unjudged, allowed in ((True, ("high-idf-first", "sparse")), (False, ("bm25-sparse",))):
            refusal = f"{engine} is tuned by judged queries" if unjudged else f"tuning {engine} needs queries"
            with nullcontext() if engine in allowed else pytest.raises(InputError, match=refusal):
                tuning.check_queries(judged=False, unjudged=unjudged)


def test_a_report_shows_the_choice_beside_the_share_that_was_asked_for() -> None:
    values = [dict.fromkeys(QUERIES, value) for value in (0.8, 0.79, 0.5)]
    candidates = [
        Tried(setting, ms, kept * 0.8, kept, of_queries)
        for setting, ms, kept, of_queries in zip(
            (None, HighIdfFirstSetting(window=20), HighIdfFirstSetting(window=10)),
            (10.0, 4.0, 2.0),
            (1.0, 0.9875, 0.625),
            values,
            strict=True,
        )
    ]
    chosen = Chosen(HighIdfFirstSetting(window=20), candidates[1], 0.991, 0.985, 0.995, 0)
    tuned = Tuned(candidates, chosen, 40, 30, "held-back", "nDCG@10", "all tokens", keep=0.98, required=0.98)
    summary = Summary("osn tune", "c0ffee", {}, [], [0], [])
    text = tune_report(summary, tuned, "<b>kept</b>")
    page = Elements(text)
    forest = page.of("svg", "forest")[0]["aria-label"] or ""
    assert "chosen, on 30 held-back queries 99.1% [98.5%, 99.5%]" in forest
    line, *bars = [float(each["x1"] or 0) for each in page.of("line") if each["class"] in ("zero", "interval")][:4]
    assert bars[0] < line < bars[1] and line < bars[2], "the share of window 10 is below the line, that of 20 above it"
    assert "<b>kept</b>" in page.text and not page.of("b")


def test_cascades_of_every_weight_and_both_windows_are_tried() -> None:
    start = CascadeSetting(rare=Rare("count", 2), weight=0.025, first="high-idf-first")
    grid = cascade_settings(start, start)
    assert CascadeSetting() in cascade_settings(CascadeSetting(), CascadeSetting())
    assert start in grid, "the default is among them"
    default = CascadeSetting(window=300)
    assert default in cascade_settings(CascadeSetting(window=75), default), "as it is for the index at hand"
    assert {setting.rare for setting in grid} == {start.rare}
    assert {setting.weight for setting in grid} == set(WEIGHTS["high-idf-first"])
    windows = {(setting.window, setting.dense_window) for setting in grid}
    assert {(200, 20), (50, 50)} <= windows and all(window >= dense for window, dense in windows)
    assert len(set(map(str, grid))) == len(grid) == len(windows) * len(WEIGHTS["high-idf-first"])
