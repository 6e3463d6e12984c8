"""The evidence of inference-free sparse retrieval on tiny data: every part runs and goes on, goals are judged right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from tiny import tiny_backbone, tiny_beir, tiny_splade  # noqa: E402

from benchmarks import cluster_bm25 as rival  # noqa: E402
from benchmarks.bm25_sparse import models  # noqa: E402
from benchmarks.bm25_sparse.engines import TUNED  # noqa: E402
from benchmarks.bm25_sparse.models import PUBLISHED, Experiment  # noqa: E402
from benchmarks.cluster_bm25 import Bm25Settings, best_settings, cluster_bm25  # noqa: E402
from benchmarks.experiment import Table  # noqa: E402
from benchmarks.papers import exact_sparse, idf_and_teachers  # noqa: E402
from benchmarks.papers import inference_free_sparse as paper  # noqa: E402
from benchmarks.papers.exact_sparse import PIECES, PRESENCE  # noqa: E402
from benchmarks.papers.idf_and_teachers import (  # noqa: E402
    ENSEMBLE,
    FIRST_STAGES,
    NEITHER,
    NO_PRETRAINING,
    SEARCH_ALONE,
    TARGET,
    WITH,
    WITHOUT,
    Ablation,
    distillation_goal,
    engine_on_curve,
    flops_goal,
    idf_goal,
    idf_shares,
    share_goals,
    terms_goal,
)
from benchmarks.papers.inference_free_sparse import (  # noqa: E402
    ALL_TOKENS,
    quality_goals,
    rare_first_name,
    rare_goals,
)
from benchmarks.render import gains  # noqa: E402
from opensearch_neural.errors import InputError  # noqa: E402
from opensearch_neural.evaluation.results import Row, read  # noqa: E402
from trainers.sparse import train  # noqa: E402

if TYPE_CHECKING:
    from opensearchpy import OpenSearch


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for at, name in enumerate(("one", "two", "cranfield")):
        beir = tiny_beir(folder / name, seed=at)
        shutil.copy(beir / "qrels" / "dev.tsv", beir / "qrels" / "test.tsv")
    with (folder / "cranfield" / "corpus.jsonl").open("a") as corpus:  # the real one has documents without text, too
        corpus.write(json.dumps({"_id": "empty", "title": "", "text": ""}) + "\n")
    return folder


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_splade(tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def dense_teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_backbone(tmp_path_factory.mktemp("teacher"), positions=256)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture
def run_part(
    data: Path,
    work: Path,
    start: Path,
    dense_teacher: Path,
    tmp_path: Path,
    cluster_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str], list[Row]]:
    small = {
        "SMALL": ("one", "two"),
        "TESTED": ("one", "cranfield"),
        "LAMBDAS": (0.0, 1e-2),
        "RATIOS": (0.0, 0.9),
        "DEPTH": 5,
        # By both kinds of teachers, by two of one kind of which one is trained, and by none.
        "FIRST_STAGES": {name: FIRST_STAGES[name] for name in (ENSEMBLE, "two dense", "InfoNCE")},
        "DENSE_TEACHER_STEPS": 2,
        "QUALITY": (PUBLISHED, "trained 10 minutes"),
    }
    modules = (exact_sparse, idf_and_teachers, paper)
    for module, (name, value) in product(modules, small.items()):
        if hasattr(module, name):  # each that defines it or imports it
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(models, "TRAINED_ON", ("one", "two"))
    monkeypatch.setattr(models, "STEPS", {"trained 10 minutes": 2})
    monkeypatch.setattr(rival, "GRID", ((0.9, 1.2), (0.5,)))

    def run(part: str) -> list[Row]:
        arguments = [
            "--url", cluster_url, "--start", str(start), "--seeds", "1,2", "--teacher", str(dense_teacher), "--teacher",
            str(start), "--data", str(data), "--work", str(work), "--part", part, "--steps", "4", "--record", str(tmp_path),
        ]  # fmt: skip
        result = CliRunner().invoke(paper.inference_free_sparse, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return read(tmp_path / part).rows

    return run


@pytest.mark.parametrize("part", ["quality", "high-idf-first", "flops", "distillation"])
def test_each_part_is_one_command_that_trains_with_every_seed_and_finds_again_what_it_kept(
    part: str, run_part: Callable[[str], list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = run_part(part)
    means = {(row.set, row.engine) for row in rows if row.kind == "difference" and row.seeds == (1, 2)}
    expected = {
        "quality": "trained 10 minutes",
        "high-idf-first": rare_first_name(0.9),
        "flops": engine_on_curve(WITH, 0.01, TARGET),
        "distillation": "InfoNCE",
    }
    assert {("one", expected[part]), ("cranfield", expected[part])} <= means
    if part != "high-idf-first":
        engines = {row.line for row in rows if row.set == "cranfield" and row.column == "nDCG@10"}
        assert {PRESENCE, PIECES} < engines, "a lead has to be over what needs no learning"
    monkeypatch.setattr(train, "train_stage", None)  # whatever would train, fails
    assert run_part(part) == rows


def test_the_shares_of_idf_in_training_and_in_search_add_up(run_part: Callable[[str], list[Row]]) -> None:
    table = Table(run_part("flops"), (1, 2))
    both, search, neither = (
        engine_on_curve(WITH, 0.01, TARGET),
        engine_on_curve(WITHOUT, 0.01, TARGET),
        engine_on_curve(WITHOUT, 0.01, "no IDF"),
    )
    for name in ("one", "cranfield"):
        of_training, of_search, whole = (
            table.difference(name, *engines, "nDCG@10")
            for engines in ((both, search), (search, neither), (both, neither))
        )
        assert of_training and of_search and whole
        assert of_training.value + of_search.value == pytest.approx(whole.value)
        assert of_training.seeds == (1, 2) and of_training.low is not None
        terms = table.value(name, both, "active terms")
        assert terms and terms.seeds == (1, 2) and terms.value > 0


def test_with_all_tokens_rare_nothing_is_lost_and_with_few_of_them_something_changes(
    run_part: Callable[[str], list[Row]],
) -> None:
    rows = run_part("high-idf-first")
    lost = {
        (row.set, row.engine): row.value
        for row in rows
        if row.kind == "difference" and row.measure == "nDCG@10" and row.variant == PUBLISHED
    }
    assert {value for (_, engine), value in lost.items() if engine == rare_first_name(0.0)} == {0.0}
    assert any(value for (_, engine), value in lost.items() if engine == rare_first_name(0.9))
    assert ("mean of 3 sets", rare_first_name(0.9)) in lost


def test_quality_is_shown_by_the_mean_over_seeds(run_part: Callable[[str], list[Row]]) -> None:
    header, *lines = gains(run_part("quality")).splitlines()
    assert [cell.strip() for cell in header.split("|")[1:-1]] == [
        "",
        f"{TUNED}: nDCG@10",
        *(f"{name}: points above" for name in (PRESENCE, PIECES, PUBLISHED, "trained 10 minutes, seeds 1 to 2")),
    ]
    assert {line.split("|")[1].strip() for line in lines[1:]} == {
        "cranfield", "one", "two", "mean of 3 sets", "mean of 1 unseen sets",
    }  # fmt: skip


def test_who_teaches_is_another_question_than_what_is_trained(
    data: Path, start: Path, dense_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idf_and_teachers, "SMALL", ("one",))
    ablation = Ablation(data, tmp_path, str(start), (str(dense_teacher),), (1,), 2)
    config = ablation.student()
    assert (config.start, config.objective.teachers) == (str(start), [str(dense_teacher)])
    assert ablation.of_kind("dense") == str(dense_teacher)
    with pytest.raises(InputError, match="no sparse model is among the teachers"):
        ablation.of_kind("sparse")
    both = Ablation(data, tmp_path, str(start), (str(dense_teacher), str(start)), (1,), 2)
    assert both.of_kind("sparse") == str(start)


def test_other_steps_and_seeds_and_another_start_of_that_name_make_other_models_beside_the_first(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idf_and_teachers, "SMALL", ("one",))
    monkeypatch.setattr(idf_and_teachers, "TESTED", ("one",))
    start = tiny_splade(tmp_path / "start")

    def output(steps: int, seed: int) -> Path:
        ablation = Ablation(data, tmp_path, str(start), (str(start),), (1, 2), steps)
        return ablation.seeded("arm", ablation.student(), seed).output

    first = output(2, 1)
    assert len({first, output(4, 1), output(2, 2)}) == 3 and output(2, 1) == first
    tiny_splade(start, positions=300)
    assert output(2, 1) != first


def test_test_sets_are_measured_by_grades(data: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(data / "one", tmp_path / "graded")
    judged = folder / "qrels" / "test.tsv"
    query, first = judged.read_text().splitlines()[1].split("\t")[:2]
    others = [json.loads(line)["_id"] for line in (folder / "corpus.jsonl").read_text().splitlines()]
    second = next(id for id in others if id != first)
    judged.write_text(f"query-id\tcorpus-id\tscore\n{query}\t{first}\t1\n{query}\t{second}\t3\n")
    test = exact_sparse.sparse_test(tmp_path, "graded", tmp_path)
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


def experiment(folder: Path) -> Experiment:
    for name in ("cranfield", "tldr"):
        (folder / name / "qrels").mkdir(parents=True)
        (folder / name / "qrels" / "test.tsv").touch()
    return Experiment(data=folder, start="", work=folder, seeds=(1,), arms=(PUBLISHED,), connection=None)  # type: ignore[arg-type]


def difference(engine: str, baseline: str, value: float, low: float | None, high: float, **how: str) -> Row:
    return Row(**{"set": "cranfield"} | how, engine=engine, measure="nDCG@10", value=value, low=low, high=high, n=9,
               baseline=baseline, kind="difference")  # type: ignore[arg-type]  # fmt: skip


def test_the_student_alone_has_to_lead_tuned_bm25_on_unseen_sets(tmp_path: Path) -> None:
    asked = experiment(tmp_path)
    lead = difference(PUBLISHED, TUNED, 0.02, 0.01, 0.03, set="mean of 1 unseen sets")
    (goal,) = quality_goals(asked, [lead])
    assert goal.met and goal.value == "+0.020 [+0.010, +0.030]"
    (goal,) = quality_goals(asked, [difference(PUBLISHED, TUNED, 0.02, -0.01, 0.03, set="mean of 1 unseen sets")])
    assert not goal.met
    (goal,) = quality_goals(asked, [difference(PUBLISHED, TUNED, 0.02, 0.01, 0.03, set="mean of 2 sets")])
    assert not goal.met and goal.value is None


def test_rare_tokens_first_may_lose_half_a_point_interval_included(tmp_path: Path) -> None:
    asked, (first, *others) = experiment(tmp_path), paper.RATIOS
    rows = [
        difference(rare_first_name(first), ALL_TOKENS, -0.003, -0.004, 0.0, set="mean of 2 sets", variant=PUBLISHED),
        difference(
            rare_first_name(others[0]), ALL_TOKENS, -0.003, -0.006, 0.0, set="mean of 2 sets", variant=PUBLISHED
        ),
    ]
    assert [goal.met for goal in rare_goals(asked, rows)] == [True, *(False for _ in others)]


def point(trained: str, retrieval: str, weight: float, **values: float) -> list[Row]:
    engine = engine_on_curve(trained, weight, retrieval)
    names = {"cost": "FLOPS", "quality": "nDCG@10", "terms": "active terms"}
    return [Row("cranfield", engine, names[name], value, None, None, 9) for name, value in values.items()]


def test_curves_are_compared_at_equal_flops_and_never_at_equal_lambda() -> None:
    rows = point(WITH, TARGET, 0.0, cost=4.0, quality=0.7) + point(WITH, TARGET, 0.1, cost=1.0, quality=0.6)
    rows += point(WITHOUT, "no IDF", 0.0, cost=8.0, quality=0.65) + point(
        WITHOUT, "no IDF", 0.1, cost=2.0, quality=0.62
    )
    rows += point(WITHOUT, TARGET, 0.0, cost=8.0, quality=0.71) + point(WITHOUT, TARGET, 0.1, cost=2.0, quality=0.59)
    # At 8 the best affordable is 0.7 > 0.65; at 2 it is 0.6 < 0.62. Of those with IDF in search alone it is the other way.
    assert flops_goal(Table(rows), NEITHER).value == flops_goal(Table(rows), SEARCH_ALONE).value == "1 of 2"
    better = Table([*rows[2:], *point(WITH, TARGET, 0.0, cost=1.0, quality=0.7)])
    assert flops_goal(better, NEITHER).met and not flops_goal(better, SEARCH_ALONE).met


def test_training_and_search_each_have_their_share_of_idf() -> None:
    both, search, neither = (
        engine_on_curve(WITH, 0.1, TARGET),
        engine_on_curve(WITHOUT, 0.1, TARGET),
        engine_on_curve(WITHOUT, 0.1, "no IDF"),
    )
    rows = [difference(both, search, 0.02, -0.01, 0.05), difference(search, neither, 0.13, 0.1, 0.2)]
    of_training, of_search = share_goals(Table(rows))
    assert (of_training.met, of_training.value) == (False, "0 of 1, 2.0 to 2.0 points of nDCG@10")
    assert (of_search.met, of_search.value) == (True, "1 of 1, 13.0 to 13.0 points of nDCG@10")
    assert not any(goal.met for goal in share_goals(Table([])))


def test_teachers_scores_are_as_large_as_a_way_to_train_asks_for(
    data: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms: dict[str, Any] = {}
    monkeypatch.setattr(Ablation, "rows", lambda self, of, *_: arms.update(of) or [])
    idf_and_teachers.flops(Ablation(data, tmp_path, str(start), (str(start),), (42,), 2))
    scales = {
        (arm.partition(",")[0], config.student.idf, config.objective.teacher_scale) for arm, config in arms.items()
    }
    assert scales == {(WITH, "train", 30.0), (WITHOUT, "none", 10.0)}


def test_the_idfs_gain_is_split_between_retrieval_and_training() -> None:
    neither, searched, both = (
        engine_on_curve(WITHOUT, 0.01, "no IDF"),
        engine_on_curve(WITHOUT, 0.01, TARGET),
        engine_on_curve(WITH, 0.01, TARGET),
    )
    start = Row("cranfield", neither, "nDCG@10", 0.3, None, None, 9)
    at_retrieval = difference(searched, neither, 0.04, 0.02, 0.06)
    rows = [start, at_retrieval, difference(both, searched, 0.025, 0.01, 0.04)]
    terms = {"active terms": 123.02, "expansion terms": 81.7}
    rows += [Row("cranfield", both, name, value, None, None, 9) for name, value in terms.items()]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in idf_shares(rows).splitlines()]
    assert lines[2:] == [["cranfield", "0.01", "0.300", "4.00 [2.00, 6.00]", "2.50 [1.00, 4.00]", "–", "123 (82)"]]
    # With the IDF of training at retrieval it is another comparison.
    other = difference(engine_on_curve(WITH, 0.01, "training corpus"), searched, 0.1, 0.05, 0.2)
    assert len(idf_shares([start, at_retrieval, other]).splitlines()) == 2


def test_flops_are_compared_at_equal_terms() -> None:
    rows = point(WITHOUT, "no IDF", 0.1, terms=100, cost=2.0) + point(WITHOUT, "no IDF", 0.0, terms=300, cost=4.0)
    # Between the points: 3.0 at 200 terms. At 50 there is nothing to compare with.
    rows += point(WITH, TARGET, 0.01, terms=200, cost=1.5) + point(WITH, TARGET, 0.1, terms=50, cost=9.0)
    goal = terms_goal(Table(rows))
    assert (goal.met, goal.value) == (True, "1 of 1, 0.50 to 0.50 times the FLOPS")
    assert not terms_goal(Table([*rows, *point(WITH, TARGET, 0.5, terms=300, cost=4.1)])).met
    assert not terms_goal(Table([])).met


def test_the_ensemble_has_to_lead_every_other_way_to_pre_train() -> None:
    rows = [difference(arm, ENSEMBLE, -0.02, -0.1, -0.001) for arm in ("InfoNCE", "two dense")]
    goal = distillation_goal(Table([*rows, difference(PRESENCE, ENSEMBLE, 0.1, 0.05, 0.2)]))
    assert goal.met
    assert goal.value == "2 of 2, 2 without regard to the interval"
    chance = distillation_goal(Table([*rows, difference(NO_PRETRAINING, ENSEMBLE, -0.001, -0.1, 0.1)]))
    assert not chance.met and chance.value == "2 of 3, 3 without regard to the interval"


def test_the_searched_corpus_idf_has_to_be_the_better_one_for_every_student() -> None:
    def gain(weight: float, value: float, low: float | None, trained: str = WITH) -> Row:
        own = "training corpus" if trained == WITH else "no IDF"
        return difference(
            engine_on_curve(trained, weight, TARGET), engine_on_curve(trained, weight, own), value, low, value + 0.1
        )

    sure = [gain(0.0, 0.02, 0.01), gain(0.0, -0.1, -0.2, WITHOUT)]
    assert idf_goal(Table(sure)).met
    chance = idf_goal(Table([*sure, gain(0.1, 0.01, -0.01)]))
    assert not chance.met and chance.value == "1 of 2, 2 without regard to the interval"
    assert not idf_goal(Table([*sure, gain(0.1, -0.01, None)])).met
