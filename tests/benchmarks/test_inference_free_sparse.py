"""The evidence of inference-free sparse retrieval on tiny data: the comparison with BM25 runs, goals are judged right."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from tiny import tiny_backbone, tiny_beir  # noqa: E402

from benchmarks.papers import cluster_bm25 as rival  # noqa: E402
from benchmarks.papers import inference_free_sparse, sparse_search  # noqa: E402
from benchmarks.papers import inference_free_sparse_training as training  # noqa: E402
from benchmarks.papers.cluster_bm25 import Bm25Settings, best_settings, cluster_bm25  # noqa: E402
from benchmarks.papers.inference_free_sparse import (  # noqa: E402
    ENSEMBLE,
    FIRST_STAGES,
    STUDENT,
    SUM,
    distillation_goal,
    flops_goal,
    idf_goal,
    idf_shares,
    quality_goals,
    terms_goal,
)
from benchmarks.papers.inference_free_sparse_training import OWN  # noqa: E402
from benchmarks.papers.sparse_search import PIECES, PRESENCE  # noqa: E402
from opensearch_neural.evaluation.results import Row, read  # noqa: E402

if TYPE_CHECKING:
    from opensearchpy import OpenSearch


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for at, name in enumerate(("one", "two", "cranfield")):
        beir = tiny_beir(folder / name, seed=at)
        shutil.copy(beir / "qrels" / "dev.tsv", beir / "qrels" / "test.tsv")
    return folder


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.mark.parametrize("part", ["quality", "high-idf-first", "flops", "distillation"])
def test_each_part_is_one_command_that_writes_its_result(
    part: str, tmp_path: Path, data: Path, work: Path, cluster_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = work / "start"
    if not start.exists():
        tiny_backbone(start, layers=4, positions=512)
    small = {
        "START": str(start),
        "TRAINED_ON": ("one", "two"),
        "UNSEEN": ("cranfield",),
        "SMALL": ("one", "two"),
        "TESTED": ("one", "cranfield"),
        "LAMBDAS": (0.0, 1e-2),
        # With both dense teachers, with BM25 beside one, and with none.
        "FIRST_STAGES": {name: FIRST_STAGES[name] for name in (ENSEMBLE, "dense pair", "InfoNCE")},
        "WARM_UP_STEPS": 1,
        "DENSE_TEACHER_STEPS": 2,
        "CLAIMED": ("one", "two"),
        "HOLD_BACK": 8,
    }
    for name, value in small.items():
        for module in (inference_free_sparse, training):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(rival, "GRID", ((0.9, 1.2), (0.5,)))
    arguments = [
        "--url",
        cluster_url,
        "--data",
        str(data),
        "--work",
        str(work),
        "--part",
        part,
        "--steps",
        "2",
        "--record",
        str(tmp_path),
    ]
    result = CliRunner().invoke(inference_free_sparse.inference_free_sparse, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    summary = read(tmp_path / part)
    if part not in ("quality", "high-idf-first"):
        assert {row.set for row in summary.rows} >= {"one", "cranfield"}
        engines = {row.line for row in summary.rows if row.set == "cranfield" and row.column == "nDCG@10"}
        assert {PRESENCE, PIECES} < engines, "a lead has to be over what needs no learning"
        return
    assert {row.set for row in summary.rows} >= {"one", "two"}
    assert all((work / "models" / "student" / name).exists() for name in ("modules.json", "osn.json"))
    if part == "quality":
        assert {STUDENT, SUM} <= {row.engine for row in summary.rows}


def test_test_sets_are_measured_by_grades(data: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(data / "one", tmp_path / "graded")
    judged = folder / "qrels" / "test.tsv"
    query, first = judged.read_text().splitlines()[1].split("\t")[:2]
    others = [json.loads(line)["_id"] for line in (folder / "corpus.jsonl").read_text().splitlines()]
    second = next(id for id in others if id != first)
    judged.write_text(f"query-id\tcorpus-id\tscore\n{query}\t{first}\t1\n{query}\t{second}\t3\n")
    test = sparse_search.sparse_test(tmp_path, "graded", tmp_path)
    better = test.measure({query: {second: 2.0, first: 1.0}}, ["nDCG@10"]).mean["nDCG@10"]
    assert better == pytest.approx(1.0)
    assert test.measure({query: {first: 2.0, second: 1.0}}, ["nDCG@10"]).mean["nDCG@10"] < 0.9


def test_bm25_gets_the_analyzer_k1_and_b_that_are_best_on_average_or_on_the_set() -> None:
    plain, stemmed = Bm25Settings("standard", 1.2, 0.75), Bm25Settings("english", 0.9, 0.4)
    chosen = best_settings({"one": {plain: 0.5, stemmed: 0.4}, "two": {plain: 0.1, stemmed: 0.3}})
    assert chosen == {"one": plain, "two": stemmed, "": stemmed}


def test_k1_and_b_reach_the_cluster(client: OpenSearch, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    documents = {"d1": "tide tide tide", "d2": "tide and moon and sun and stars and more of them"}
    corpus.write_text("".join(json.dumps({"_id": id, "text": text}) + "\n" for id, text in documents.items()))
    with cluster_bm25(client, corpus) as engine:
        flat = engine.run({"q": "tide"}, 10, Bm25Settings("standard", 0.0, 0.5))["q"]
        assert flat["d1"] == pytest.approx(flat["d2"]), "without k1 a term counts once, however often it occurs"
        steep = engine.run({"q": "tide"}, 10, Bm25Settings("standard", 2.0, 0.5))["q"]
        assert steep["d1"] > 1.5 * steep["d2"]
        assert set(engine.run({"q": "tides"}, 10, Bm25Settings("english", 1.2, 0.75))["q"]) == {"d1", "d2"}
        assert not engine.run({"q": "tides"}, 10, Bm25Settings("standard", 1.2, 0.75))["q"]
    assert not client.indices.exists(index=",".join(engine.indexes.values()))


def test_the_goal_needs_the_interval_above_zero_on_two_sets_and_the_unseen_mean_within_a_point() -> None:
    def gain(name: str, value: float, low: float) -> Row:
        return Row(name, SUM, "nDCG@10", value, low, value + 0.01, 100, baseline="BM25", kind="difference")

    rows = [gain("scifact", 0.02, 0.001), gain("tldr", 0.1, 0.08), gain("wikiqa-doc", 0.01, -0.001)]
    rows += [gain("cranfield", -0.02, -0.03), gain("snopes-claims", 0.0, -0.01), gain("medquad-liveqa", -0.004, -0.01)]
    above, unseen = quality_goals(rows)
    assert above.met
    assert above.value == "2 of 3 (scifact, tldr)"
    assert unseen.met
    assert unseen.value == -0.008
    assert not quality_goals(rows[1:])[0].met


def test_curves_are_compared_at_equal_flops_and_never_at_equal_lambda() -> None:
    def point(trained: str, retrieval: str, weight: float, cost: float, quality: float) -> list[Row]:
        engine = f"{trained}, λ {weight:g}, {retrieval}"
        return [
            Row("cranfield", engine, "FLOPS", cost, None, None, 9),
            Row("cranfield", engine, "nDCG@10", quality, None, None, 9),
        ]

    rows = point("with IDF", "training corpus", 0.0, 4.0, 0.7) + point("with IDF", "training corpus", 0.1, 1.0, 0.6)
    rows += point("without IDF", "no IDF", 0.0, 8.0, 0.65) + point("without IDF", "no IDF", 0.1, 2.0, 0.62)
    # At 8 the best affordable is 0.7 > 0.65; at 2 it is 0.6 < 0.62.
    assert flops_goal(rows).value == "1 of 2"


def test_flops_are_compared_at_equal_terms() -> None:
    def point(trained: str, retrieval: str, weight: float, terms: float, cost: float) -> list[Row]:
        engine = f"{trained}, λ {weight:g}, {retrieval}"
        return [
            Row("cranfield", engine, name, at, None, None, 9) for name, at in (("active terms", terms), ("FLOPS", cost))
        ]

    rows = point("without IDF", "no IDF", 0.1, 100, 2.0) + point("without IDF", "no IDF", 0.0, 300, 4.0)
    # Between the points: 3.0 at 200 terms. At 50 there is nothing to compare with.
    rows += point("with IDF", "training corpus", 0.01, 200, 1.5) + point("with IDF", "training corpus", 0.1, 50, 9.0)
    goal = terms_goal(rows)
    assert (goal.met, goal.value) == (True, "1 of 1, 0.50 to 0.50 times the FLOPS")
    assert not terms_goal([*rows, *point("with IDF", "training corpus", 0.001, 300, 4.1)]).met
    assert not terms_goal([]).met


def difference(engine: str, baseline: str, value: float, low: float | None, high: float) -> Row:
    return Row("cranfield", engine, "nDCG@10", value, low, high, 9, baseline=baseline, kind="difference")


def test_the_ensemble_has_to_lead_every_other_way_to_pre_train() -> None:
    def lag(engine: str, value: float, high: float) -> Row:
        return difference(engine, ENSEMBLE, value, value - 0.1, high)

    rows = [lag("InfoNCE", -0.02, -0.01), lag("dense pair", -0.02, -0.001), lag(PRESENCE, 0.1, 0.2)]
    goal = distillation_goal(rows)
    assert goal.met
    assert goal.value == "2 of 2, 2 without regard to the interval"
    chance = distillation_goal([*rows, lag("no pre-training", -0.001, 0.1)])
    assert not chance.met and chance.value == "2 of 3, 3 without regard to the interval"


def test_the_searched_corpus_idf_has_to_be_the_better_one_for_every_student() -> None:
    def gain(engine: str, value: float, low: float | None) -> Row:
        return difference(engine, OWN, value, low, value + 0.1)

    sure = [gain("with IDF, λ 0", 0.02, 0.01), gain("without IDF, λ 0", -0.1, -0.2)]
    assert idf_goal(sure).met
    chance = idf_goal([*sure, gain("with IDF, λ 1", 0.01, -0.01)])
    assert not chance.met and chance.value == "1 of 2, 2 without regard to the interval"
    assert not idf_goal([*sure, gain("with IDF, λ 1", -0.01, None)]).met


def test_the_idfs_gain_is_split_between_retrieval_and_training() -> None:
    def value(engine: str, at: float) -> Row:
        return Row("cranfield", engine, "nDCG@10", at, None, None, 9)

    neither, searched, both = (
        f"{how}, λ 0.01, {idf}"
        for how, idf in (("without IDF", "no IDF"), ("without IDF", "target corpus"), ("with IDF", "target corpus"))
    )
    rows = [
        value(neither, 0.30),
        value(searched, 0.34),
        value(both, 0.365),
        difference(searched, OWN, 0.04, 0.02, 0.06),
    ]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in idf_shares(rows).splitlines()]
    assert lines[2:] == [["cranfield", "0.01", "0.300", "4.00 [2.00, 6.00]", "2.50"]]
    # With the IDF of training at retrieval it is another comparison.
    assert len(idf_shares([*rows[:2], value("with IDF, λ 0.01, training corpus", 0.4), rows[3]]).splitlines()) == 2
