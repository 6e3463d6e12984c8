"""The evidence of multi-layer representations on tiny data: each part runs, and its goals follow from its rows."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from safetensors.torch import load_file, save_file  # noqa: E402
from tiny import tiny_backbone, tiny_beir  # noqa: E402

from benchmarks.experiment import SEED_ERROR, Table, slug  # noqa: E402
from benchmarks.papers import multi_layer as paper  # noqa: E402
from benchmarks.papers.multi_layer import (  # noqa: E402
    DUAL,
    HELD,
    MULTI_VECTOR,
    SELF_CONTRASTIVE,
    SQUAD,
    TESTS,
    TOP_5,
    WIKIQA,
    Arm,
    MultiLayerExperiment,
    TrainedArm,
    colbert,
    dev_rows,
    layer_arms,
    me_bert,
    mlr,
    multi_layer,
    rivals_goal,
    self_contrastive_goal,
)
from opensearch_neural.errors import InputError, ModelError  # noqa: E402
from opensearch_neural.evaluation.results import Row, Summary, read  # noqa: E402
from opensearch_neural.evaluation.significance import interval  # noqa: E402
from opensearch_neural.models.directory import hash_files  # noqa: E402
from trainers.common.run_folder import history  # noqa: E402
from trainers.dense import train as dense  # noqa: E402
from trainers.multi_layer.settings import chosen_layers  # noqa: E402

OTHERS = tuple(arm for arm in paper.VARIANTS if arm not in (SELF_CONTRASTIVE, MULTI_VECTOR))[:6]
"""The dual encoder, and arms that no other test has."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Articles of six documents, one or two of them asked for by test questions."""
    folder = tmp_path_factory.mktemp("data")
    for at, name in enumerate((SQUAD, WIKIQA)):
        beir = tiny_beir(folder / name, documents=120, seed=at)
        lines = [json.loads(line) for line in (beir / "corpus.jsonl").read_text().splitlines()]
        titled = [line | {"title": f"article {number // 6}"} for number, line in enumerate(lines)]
        (beir / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in titled))
        qrels = beir / "qrels"
        (qrels / "dev.tsv").rename(qrels / "test.tsv")
        with (qrels / "train.tsv").open("a") as train:
            train.write("q1\td0\t1\n")  # which a test question asks for, too
        (qrels / "dev.tsv").write_text("\n".join((qrels / "test.tsv").read_text().splitlines()[:6]) + "\n")
    return folder


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "VARIANTS", (DUAL, SELF_CONTRASTIVE, MULTI_VECTOR))
    monkeypatch.setattr(paper, "layer_arms", lambda depth: [mlr("last:2", "multi-vector"), me_bert(4, "average")])
    monkeypatch.setattr(paper, "LAMBDAS", (0.01, 1.0))
    monkeypatch.setattr(paper, "DEV_SHARE", 0.2)
    monkeypatch.setattr(paper, "TEST_SHARE", 0.3)


@pytest.fixture(scope="module")
def start(work: Path) -> Path:
    folder = tiny_backbone(work / "start", layers=3, positions=128)
    weights = load_file(folder / "model.safetensors")
    # As they are drawn, first tokens of different texts differ by little more than rounding.
    louder = {name: weight * 5 if weight.dim() == 2 else weight for name, weight in weights.items()}
    save_file(louder, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def command(data: Path, start: Path, *more: str, work: Path | None = None) -> Any:
    arguments = ["--data", str(data), "--work", str(work or start.parent), "--start", str(start), "--steps", "2", *more]
    return CliRunner().invoke(paper.multi_layer, arguments, catch_exceptions=False)


def summary_of(part: str, data: Path, start: Path, record: Path, *more: str) -> Summary:
    result = command(data, start, "--part", part, "--seeds", "2", "--record", str(record), *more)
    assert result.exit_code == 0, result.output
    return read(record / part)


def values_of(summary: Summary) -> dict[tuple[str, str, str], float]:
    return {(row.set, row.line, row.column): row.value for row in summary.rows}


def chosen(value: dict[tuple[str, str, str], float]) -> str:
    """The one self-contrastive arm that a result has of the test sets; on dev there are those that it was chosen among."""
    (name,) = {
        engine.partition(", seed")[0]
        for of, engine, _ in value
        if of != "dev" and "last:2, self" in engine and "seed " in engine
    }
    return name


def test_the_weight_is_chosen_on_dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dev = {0.01: 0.5, 1.0: 0.4}

    def train(experiment: MultiLayerExperiment, arm: Arm, seed: int) -> TrainedArm:
        assert seed == 42 and arm.representation is not None
        return TrainedArm(arm, seed, tmp_path, dev[arm.representation["regularization"]])

    monkeypatch.setattr(MultiLayerExperiment, "train", train)
    monkeypatch.setattr(MultiLayerExperiment, "start_hash", "")
    assert MultiLayerExperiment(tmp_path, tmp_path).best_on_dev() == mlr(
        "last:2", "self-contrastive", weight=0.01, repeated=True
    )
    assert SELF_CONTRASTIVE.repeated


def test_the_variants_are_judged_by_seeds_that_chose_nothing(tmp_path: Path, data: Path, start: Path) -> None:
    summary = summary_of("variants", data, start, tmp_path)
    value, best = values_of(summary), chosen(values_of(summary))
    mean, single = f"{best}, seeds 43 to 44", f"{DUAL.name}, seeds 43 to 44"
    for name in TESTS:
        seeds = [value[name, f"{best}, seed {seed}", TOP_5] for seed in (43, 44)]
        duals = [value[name, f"{DUAL.name}, seed {seed}", TOP_5] for seed in (43, 44)]
        assert value[name, mean, TOP_5] == pytest.approx(sum(seeds) / 2)
        assert value[name, mean, f"{TOP_5} - {single}"] == pytest.approx((sum(seeds) - sum(duals)) / 2)
        gains = [own - dual for own, dual in zip(seeds, duals, strict=True)]
        assert value[name, mean, f"{TOP_5}, {SEED_ERROR} - {single}"] == pytest.approx(abs(gains[0] - gains[1]) / 2)
        wins = [share for (of, _, measure), share in value.items() if of == name and measure.endswith("wins, answers")]
        assert sum(wins) == pytest.approx(1)
        # Beside the other variants it stands with the seed that they have.
        own, other = f"{best}, seed 42", f"{MULTI_VECTOR.name}, seed 42"
        assert value[name, own, f"{TOP_5} - {other}"] == pytest.approx(
            value[name, own, TOP_5] - value[name, other, TOP_5]
        )
    dev = {engine for of, engine, _ in value if of == "dev"}
    # What λ was chosen among.
    assert {f"{mlr('last:2', 'self-contrastive', weight=weight).name}, seed 42" for weight in paper.LAMBDAS} <= dev
    goals = {goal.goal: goal for goal in summary.goals}
    (of_goal,) = (goal for words, goal in goals.items() if words.startswith("self-contrastive above the dual encoder"))
    assert "2 seeds" in of_goal.goal and "2 steps" in of_goal.goal and str(of_goal.value).count("by seed") == 3
    (rivals,) = (goal for words, goal in goals.items() if "rival" in words)
    assert rivals.value is None and not rivals.met, "none was trained"


def test_the_start_is_measured_at_the_arms_length_too(tmp_path: Path, data: Path) -> None:
    from sentence_transformers import SentenceTransformer

    from opensearch_neural.models.dense.torch_encoder import load_dense

    published = tmp_path / "published"
    transformer = SentenceTransformer(str(tiny_backbone(tmp_path / "backbone", positions=128)), device="cpu")
    transformer.save(str(published))
    short, long = "a b", "a b " * 60
    for length, names in ((20, ["published as it is", "published as it is, 20 tokens"]), (128, ["published as it is"])):
        starts = MultiLayerExperiment(data, tmp_path / "work", str(published), document_length=length).starts()
        assert [start.arm.name for start in starts] == names and starts[0].spec == f"dense:{published}"
        whole, cut = (load_dense(start.folder) for start in (starts[0], starts[-1]))
        ours, theirs = (encoder.encode_documents([short, long]) for encoder in (cut, whole))
        assert np.allclose(ours[0], theirs[0], atol=1e-6)
        assert np.allclose(ours[1], theirs[1], atol=1e-6) == (length == 128)


def test_intervals_resample_articles(tmp_path: Path, data: Path, start: Path) -> None:
    summary = summary_of("lambda", data, start, tmp_path)
    engine = f"{DUAL.name}, seed 42"
    experiment = MultiLayerExperiment(data, start.parent, str(start), steps=2).prepare()
    titles = {
        name: {
            line["_id"]: line["title"]
            for line in map(json.loads, (data / name / "corpus.jsonl").read_text().splitlines())
        }
        for name in (SQUAD, WIKIQA)
    }
    trained = experiment.train(DUAL, 42)
    evaluated = [line["eval_nDCG@10"] for line in history(trained.folder) if "eval_nDCG@10" in line]
    assert len(evaluated) > 1 and trained.dev == max(evaluated), "the state that was kept is the best on dev"
    others = 0
    for name in TESTS:
        of_document = titles[WIKIQA if name == WIKIQA else SQUAD]
        qrels = experiment.judged(name).qrels
        of_question = {question: of_document[next(iter(judged))] for question, judged in qrels.items()}
        assert len(set(of_question.values())) < len(of_question), "the data would show nothing"
        values = experiment.searched(trained, name).per_query["nDCG@10"]
        (row,) = (row for row in summary.rows if (row.set, row.line, row.column) == (name, engine, "nDCG@10"))
        clustered = interval(values.values(), clusters=[of_question[question] for question in values])
        assert (row.low, row.high) == clustered
        others += clustered != interval(values.values())
    assert others


def test_other_arms_and_both_stages_run_from_one_command(
    tmp_path: Path, data: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper, "VARIANTS", OTHERS)
    parts = ["--part", "variants", "--part", "two-stage"]
    result = command(data, start, *parts, "--steps", "10", "--seeds", "1", "--record", str(tmp_path))
    assert result.exit_code == 0, result.output
    rows = read(tmp_path / "variants").rows
    assert {f"{arm.name}, seed 42" for arm in OTHERS} <= {row.line for row in rows}
    two = read(tmp_path / "two-stage")
    against = f"{TOP_5} - {DUAL.name}, two stages, seed 42"
    gained = {row.engine for row in two.rows if row.column == against}
    (gain,) = {engine for engine in gained if "two stages" in engine}
    assert "self-contrastive" in gain
    assert "two stages" in two.goals[0].goal and two.goals[0].value is not None
    # The first stage is what was trained in one: the history with its times is the same.
    (folder,) = (path for path in (start.parent / "models").glob("dual-encoder-two-stages-10-*") if path.is_dir())
    (alone,) = (path for path in (start.parent / "models").glob("dual-encoder-10-42-*") if path.is_dir())
    histories = [place / ".training" / "history.jsonl" for place in (folder / ".stages" / "retriever-1", alone)]
    assert histories[0].read_bytes() == histories[1].read_bytes()


def test_the_first_of_two_stages_is_copied_whole_or_not_at_all(
    tmp_path: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = tmp_path / "trained"
    (trained / "inside").mkdir(parents=True)
    (trained / "inside" / "weights").write_text("w")
    experiment = MultiLayerExperiment(tmp_path, tmp_path / "work", start=str(start))
    first = TrainedArm(DUAL, 42, trained, 0.0)
    monkeypatch.setattr(experiment, "each_trained", lambda arms: [replace(first, arm=arm) for arm in arms])

    def copies() -> list[Path]:
        return list((tmp_path / "work").rglob("weights"))

    with monkeypatch.context() as broken:
        broken.setattr("benchmarks.experiment.Path.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            experiment.train_on(first)
    assert copies() == []
    assert experiment.train_on(first).arm.two_stage
    (copy,) = copies()
    assert copy.parts[-4:] == (".stages", "retriever-1", "inside", "weights") and copy.read_text() == "w"
    copy.write_text("trained on")
    experiment.train_on(first)
    assert [path.read_text() for path in copies()] == ["trained on"]


def test_dev_rows_say_how_many_questions_they_rest_on(
    tmp_path: Path, data: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for most in (paper.DEV_QUERIES, 2):
        monkeypatch.setattr(paper, "DEV_QUERIES", most)
        experiment = MultiLayerExperiment(data, tmp_path, str(start), steps=2).prepare()
        drawn = dense.prepared_sets(experiment.configuration(DUAL, 42)).dev
        counts.append(sum(len(one.queries) for one in drawn))
        rows = dev_rows(experiment, [TrainedArm(DUAL, 42, tmp_path, 0.3)])
        assert [(row.value, row.n) for row in rows] == [(0.3, counts[-1])]
    assert counts[0] > counts[1] == 4


def test_curves_share_what_was_trained_once() -> None:
    points = {choice: paper.layer_points(4, choice) for choice in paper.CHOICES}
    of_two = {"last": "last:2", "first": "first:2", "uniform": "uniform:2"}
    for choice, own in of_two.items():
        assert points[choice] == [(2, f"MLR {own}, multi-vector"), (4, "MLR last:4, multi-vector")]


def test_the_answers_that_other_layers_win_are_plotted_for_each_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, ranked_first = paper.WINS
    shares = {(1, answers): 0.01, (2, answers): 0.03, (3, answers): 0.96, (3, ranked_first): 1.0}
    rows = [
        Row(of, MULTI_VECTOR.name, paper.wins(*won), share, None, None, 100, seed=42)
        for of in (SQUAD, WIKIQA)
        for won, share in shares.items()
    ]
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(paper.plots, "curves", lambda panels, *_, **__: drawn.update(panels))
    paper._draw_winners(3, rows, tmp_path / "winners.svg")
    assert drawn == {name: {"MLR last:2": [(1, 1.0), (2, 3.0)]} for name in (SQUAD, WIKIQA)}


def test_layers_and_lambda_leave_plots_and_without_matplotlib_their_numbers(
    tmp_path: Path, data: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary_of("layers", data, start, tmp_path)
    summary_of("lambda", data, start, tmp_path)
    assert {path.name for path in tmp_path.rglob("*.svg")} == {"layers.svg", "winners.svg", "lambda.svg"}
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    again = tmp_path / "again"
    summary_of("lambda", data, start, again)
    assert not list(again.rglob("*.svg")) and (again / "lambda" / "summary.json").exists()


def test_an_interrupted_command_goes_on_without_training_again(
    tmp_path: Path, data: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Path] = []
    train = dense.train

    def watched(*arguments: Any, output: Path, **named: Any) -> Any:
        if not (output / "osn.json").exists():
            begun.append(output)
            if len(begun) == 3:
                raise KeyboardInterrupt
        return train(*arguments, output=output, **named)

    def files() -> dict[Path, tuple[int, bytes]]:
        return {
            path: (path.stat().st_mtime_ns, path.read_bytes())
            for folder in begun[:2]
            for path in folder.rglob("model.safetensors")
        }

    monkeypatch.setattr(dense, "train", watched)
    assert command(data, start, "--part", "lambda", work=tmp_path).exit_code != 0
    before = files()
    assert len(begun) == 3 and before
    assert command(data, start, "--part", "lambda", work=tmp_path).exit_code == 0
    assert begun[3:] == begun[2:3] and files() == before, "what was interrupted, and nothing else"
    # Once measured, nothing is searched again.
    monkeypatch.setattr(paper, "open_retriever", lambda *_, **__: pytest.fail("searched again"))
    assert command(data, start, "--part", "lambda", work=tmp_path).exit_code == 0
    assert len(begun) == 4


def test_another_option_trains_other_models_beside_the_first(
    tmp_path: Path, data: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper, "lambda_arms", lambda: [])

    def ran(*more: str) -> set[str]:
        assert command(data, start, "--part", "lambda", *more, work=tmp_path).exit_code == 0
        return {path.name for path in (tmp_path / "models").glob("[!.]*")}

    first = ran()
    more = ["--pooling=cls", "--inner-products", "--batch=4", "--document-length=16", "--learning-rate=1e-3"]
    assert len(first) == 1 and len(ran(*more) - first) == 1 and ran() == ran(*more)
    (made,) = {path.name for path in (tmp_path / "models").glob("[!.]*")} - first
    content = json.loads((tmp_path / "models" / made / "osn.json").read_text())["training"]
    assert (content["encoder"]["pooling"], content["encoder"]["document_length"]) == ("cls", 16)
    assert (content["encoder"]["normalize"], content["training"]["batch_size"]) == (False, 4)


def test_each_option_is_in_a_models_folder(tmp_path: Path, start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = MultiLayerExperiment(tmp_path, tmp_path, str(start))

    def folder(experiment: MultiLayerExperiment, seed: int = 42) -> Path:
        return experiment.configuration(DUAL, seed).output

    others: list[dict[str, Any]] = [
        {"pooling": "cls"},
        {"cosine": False},
        {"learning_rate": 1e-3},
        {"batch": 8},
        {"document_length": 64},
        {"steps": 4},
        {"start": str(tiny_backbone(tmp_path / "other", layers=3, seed=2))},
    ]
    folders = {folder(first), folder(first, 43), *(folder(replace(first, **other)) for other in others)}
    monkeypatch.setattr(paper, "computed_in", lambda _: "another format")
    folders.add(folder(replace(first)))
    assert len(folders) == len(others) + 3
    # Another backbone under the same name, too.
    moved = replace(first, start=str(tmp_path / "other"))
    before = folder(moved)
    (tmp_path / "other" / "config.json").write_text((tmp_path / "other" / "config.json").read_text() + " ")
    assert folder(replace(moved)) != before


def test_test_sets_are_encoded_as_trainings_compute(
    tmp_path: Path, data: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper, "lambda_arms", lambda: [])
    for precision in ("float32", "bfloat16"):
        monkeypatch.setattr(paper, "computed_in", lambda _, precision=precision: precision)
        assert command(data, start, "--part=lambda", work=tmp_path).exit_code == 0
    experiment = MultiLayerExperiment(data, tmp_path)
    folder = tmp_path / "vectors" / hash_files(start)
    (test,) = {path.name.partition("-")[0] for path in folder.glob("[!.]*")} & {
        experiment.judged(WIKIQA).data.documents.hash
    }
    exact, rounded = (
        np.load(folder / f"{test}-{precision}" / "documents.npy").astype(np.float32)
        for precision in ("float32", "bfloat16")
    )
    rounding = float(np.abs(exact - rounded).max() / np.abs(exact).max())
    assert 1e-4 < rounding < 0.05
    measured = len(list((tmp_path / "measured").glob("[!.]*")))
    assert measured == 2 * 3 * len(TESTS), "of both, the start, whole and cut to the arms' length, and one arm"


def test_a_start_that_cannot_work_is_refused_before_data_are_made(tmp_path: Path, data: Path) -> None:
    t5, work = str(tiny_backbone(tmp_path / "t5", kind="t5")), tmp_path / "work"
    arguments = ["--data", str(data), "--work", str(work)]
    for start, error, words in ((t5, InputError, "no CLS"), (str(tmp_path), ModelError, "does not load")):
        with pytest.raises(error, match=words):
            CliRunner().invoke(multi_layer, [*arguments, "--start", start, "--pooling", "cls"], catch_exceptions=False)
    assert not work.exists()


def test_work_on_other_data_is_refused(tmp_path: Path, data: Path) -> None:
    MultiLayerExperiment(data, tmp_path / "work").prepare()
    other = tmp_path / "data"
    for at, name in enumerate((SQUAD, WIKIQA)):
        tiny_beir(other / name, seed=at + 7)
    with pytest.raises(InputError, match=f"another {SQUAD}"):
        MultiLayerExperiment(other, tmp_path / "work").prepare()


def test_what_is_tested_is_not_trained_on(tmp_path: Path, data: Path) -> None:
    experiment = MultiLayerExperiment(data, tmp_path).prepare()

    def judged(folder: Path, split: str) -> set[str]:
        return {line.split("\t")[1] for line in (folder / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]}

    parts = [
        judged(experiment.train_set(SQUAD), "train"),
        judged(experiment.held, "dev"),
        judged(experiment.held, "test"),
    ]
    assert all(parts) and sum(map(len, parts)) == len(set().union(*parts))
    kept = {json.loads(line)["_id"] for line in (experiment.train_set(SQUAD) / "corpus.jsonl").read_text().splitlines()}
    assert kept == parts[0]
    wikiqa = experiment.data / WIKIQA
    own = judged(experiment.train_set(WIKIQA), "train")
    assert own and not own & (judged(wikiqa, "dev") | judged(wikiqa, "test"))
    assert judged(wikiqa, "train") & judged(wikiqa, "test"), "the data would show nothing"
    # Once made it stays, whatever the shares are then.
    before = (experiment.held / "qrels/test.tsv").read_bytes()
    MultiLayerExperiment(data, tmp_path).prepare()
    assert (experiment.held / "qrels/test.tsv").read_bytes() == before


def test_the_papers_studies_as_far_as_a_backbone_goes() -> None:
    names = [arm.name for arm in layer_arms(6)]
    assert "MLR uniform:4, multi-vector" in names and "MLR last:6, multi-vector" in names
    assert "MLR first:6, multi-vector" not in names and not any(
        "8, multi-vector" in name and "MLR" in name for name in names
    )
    # {10, 12} of 12 layers; of 4 layers uniform:2 are these.
    assert "MLR 4,6, multi-vector" in names and "MLR 10,12, multi-vector" in [arm.name for arm in layer_arms(12)]
    assert [arm.name for arm in layer_arms(4) if arm.name.startswith("MLR")] == [
        f"MLR {chosen}, multi-vector" for chosen in ("last:2", "first:2", "uniform:2", "last:4")
    ]
    assert chosen_layers("uniform:2", 4) == (2, 4)
    every = (*layer_arms(12), *paper.VARIANTS, colbert("multi-vector"))
    assert len({slug(arm.name) for arm in every}) == len({arm.name for arm in every})


def test_held_back_questions_are_taken_from_all_over(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = list(MultiLayerExperiment(data, tmp_path).prepare().judged(HELD).texts)
    monkeypatch.setattr(paper, "HELD_QUERIES", len(whole) - 2)
    some = list(MultiLayerExperiment(data, tmp_path).judged(HELD).texts)
    assert len(some) == len(whole) - 2 and some[: len(some) - 1] != whole[: len(some) - 1]


def test_which_layer_wins_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two documents of two layers; of the first the second layer is nearer to (1, 0), of the second the first.
    vectors = np.array([[[0, 1], [2, 0]], [[3, 0], [0, 5]]], np.float32)
    queries = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    monkeypatch.setattr(paper, "QUERIES_AT_ONCE", 2)
    of_answers, of_first = paper.shares_won(queries, vectors, np.array([0, 1, 0])).tolist()
    assert of_answers == pytest.approx([2 / 3, 1 / 3])
    # Ranked first is the second document each time, by its first layer twice and by its second once.
    assert of_first == pytest.approx([2 / 3, 1 / 3])
    (_, other) = paper.shares_won(queries[:2], vectors, np.array([0, 0])).tolist()
    assert other == [1, 0]


def difference(name: str, arm: Arm, baseline: Arm, value: float, low: float, **how: Any) -> Row:
    return Row(name, arm.name, TOP_5, value, low, 0.03, 100, baseline=baseline.name, kind="difference", **how)


def test_the_goals_are_what_the_rows_say() -> None:
    def gain(name: str, low: float, value: float = 0.02, **how: Any) -> Row:
        return difference(name, SELF_CONTRASTIVE, DUAL, value, low, **how or {"seeds": (43, 44, 45)})

    def goal(*gains: Row) -> Any:
        return self_contrastive_goal(Table(gains, (43, 44, 45)), SELF_CONTRASTIVE, 200)

    assert goal(gain(SQUAD, -0.01), gain(WIKIQA, 0.01)).met
    assert not goal(gain(SQUAD, -0.01)).met and not goal().met and goal().value is None
    # Another seed's interval counts for nothing.
    assert not goal(gain(SQUAD, -0.01), gain(SQUAD, 0.01, seed=44)).met
    shown = goal(gain(SQUAD, 0.01), *(gain(SQUAD, 0.0, seed / 1000, seed=seed) for seed in (43, 44, 45)))
    assert "by seed +0.0430, +0.0440, +0.0450" in str(shown.value) and "[+0.0100, +0.0300]" in str(shown.value)
    assert "3 seeds" in shown.goal and "200 steps" in shown.goal


def test_rivals_are_beaten_one_by_one() -> None:
    rivals = (me_bert(8, "average"), colbert("multi-vector"))

    def gain(name: str, other: Arm, low: float) -> Row:
        return difference(name, SELF_CONTRASTIVE, other, 0.02, low, seed=42)

    def goal(*rows: Row) -> Any:
        return rivals_goal(Table(rows, (42,)), SELF_CONTRASTIVE, [rival.name for rival in rivals])

    won = [gain(SQUAD, rivals[0], 0.01), gain(WIKIQA, rivals[0], -0.01)]
    of_two = goal(*won, gain(SQUAD, rivals[1], -0.01))
    assert not of_two.met and str(of_two.value).startswith("1 of 2") and of_two.target == "2 of 2"
    assert goal(*won, gain(WIKIQA, rivals[1], 0.01)).met
    # Another variant is no rival, and one of two rivals not all of them.
    assert goal(gain(SQUAD, MULTI_VECTOR, 0.01)).value is None
    assert not goal(*won).met
