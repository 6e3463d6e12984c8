"""The evidence of multi-layer representations on tiny data: each part runs, and its goals follow from its rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from safetensors.torch import load_file, save_file  # noqa: E402
from tiny import tiny_backbone, tiny_beir  # noqa: E402

from benchmarks import multi_layer as bench  # noqa: E402
from benchmarks.multi_layer import (  # noqa: E402
    DUAL,
    HELD,
    MULTI_VECTOR,
    SELF_CONTRASTIVE,
    SQUAD,
    TOP_5,
    WIKIQA,
    Arm,
    Ground,
    Outcome,
    best_on_dev,
    colbert,
    dev_goal,
    last_layer_goal,
    layer_arms,
    me_bert,
    mlr,
    self_contrastive_goal,
    shares_won,
)
from opensearch_neural.results import Row, read  # noqa: E402

OTHERS = tuple(arm for arm in bench.VARIANTS if arm not in (SELF_CONTRASTIVE, MULTI_VECTOR))[:6]
"""The dual encoder, and arms that no other test has."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for at, name in enumerate((SQUAD, WIKIQA)):
        beir = tiny_beir(folder / name, seed=at)
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
    monkeypatch.setattr(bench, "VARIANTS", (DUAL, SELF_CONTRASTIVE, MULTI_VECTOR))
    monkeypatch.setattr(bench, "layer_arms", lambda depth: [mlr("last:2", "multi-vector"), me_bert(4, "average")])
    monkeypatch.setattr(bench, "LAMBDAS", (0.01, 1.0))
    monkeypatch.setattr(bench, "DEV_SHARE", 0.2)
    monkeypatch.setattr(bench, "TEST_SHARE", 0.3)


@pytest.fixture(scope="module")
def start(work: Path) -> Path:
    folder = tiny_backbone(work / "start", layers=3, positions=128)
    weights = load_file(folder / "model.safetensors")
    # As they are drawn, first tokens of different texts differ by little more than rounding.
    louder = {name: weight * 5 if weight.dim() == 2 else weight for name, weight in weights.items()}
    save_file(louder, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def ran(part: str, data: Path, start: Path, record: Path) -> dict[tuple[str, str, str], float]:
    work = start.parent
    arguments = ["--data", str(data), "--work", str(work), "--part", part, "--steps", "1", "--seeds", "2"]
    arguments += ["--start", str(start), "--record", str(record)]
    result = CliRunner().invoke(bench.multi_layer, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    summary = read(record / part)
    assert summary.goals
    return {(row.set, row.engine, row.measure): row.value for row in summary.rows}


def chosen(value: dict[tuple[str, str, str], float]) -> str:
    """The one self-contrastive arm that a result has."""
    (name,) = {
        engine.partition(", seed")[0] for _, engine, _ in value if "last:2, self" in engine and "seed " in engine
    }
    return name


def test_the_weight_is_chosen_on_dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dev = {0.01: [0.1, 0.5], 1.0: [0.1, 0.4]}

    def outcome(arm: Arm, ground: Ground, *, steps: int, seed: int) -> Outcome:
        assert seed == 42 and arm.representation is not None
        return Outcome(arm, seed, tmp_path, dev[arm.representation["regularization"]])

    monkeypatch.setattr(bench, "trained", outcome)
    best = best_on_dev(Ground(tmp_path, tmp_path, ""), steps=1)
    assert best == mlr("last:2", "self-contrastive", weight=0.01, repeated=True)
    assert SELF_CONTRASTIVE.repeated


def test_the_variants_are_compared_seed_by_seed_and_on_average(tmp_path: Path, data: Path, start: Path) -> None:
    value = ran("variants", data, start, tmp_path)
    best = chosen(value)
    for name in (SQUAD, HELD, WIKIQA):
        seeds = [value[name, f"{best}, seed {seed}", TOP_5] for seed in (42, 43)]
        duals = [value[name, f"{DUAL.name}, seed {seed}", TOP_5] for seed in (42, 43)]
        mean = f"{best}, 2 seeds"
        assert value[name, mean, TOP_5] == pytest.approx(sum(seeds) / 2)
        assert value[name, mean, f"{TOP_5} - {DUAL.name}, 2 seeds"] == pytest.approx((sum(seeds) - sum(duals)) / 2)
        wins = [share for (of, _, measure), share in value.items() if of == name and measure.endswith("wins, answers")]
        assert sum(wins) == pytest.approx(1)


def test_other_arms_and_both_stages_run_from_one_command(
    tmp_path: Path, data: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "PARTS", ("variants", "two-stage"))
    monkeypatch.setattr(bench, "VARIANTS", OTHERS)
    arguments = ["--data", str(data), "--work", str(start.parent), "--steps", "10", "--seeds", "1"]
    arguments += ["--start", str(start), "--record", str(tmp_path)]
    result = CliRunner().invoke(bench.multi_layer, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = read(tmp_path / "variants").rows
    assert {f"{arm.name}, seed 42" for arm in OTHERS} <= {row.engine for row in rows}
    mixed = [row for row in rows if row.set == "scalar mix" and row.engine.startswith("MLR")]
    assert sum(row.value for row in mixed) == pytest.approx(1)
    two = read(tmp_path / "two-stage")
    against = f"{TOP_5} - {DUAL.name}, two stages, seed 42"
    gained = {row.engine for row in two.rows if row.measure == against}
    (gain,) = {engine for engine in gained if "two stages" in engine}
    assert "self-contrastive" in gain
    assert "(two stages)" in two.goals[0].goal and two.goals[0].value is not None


def test_layers_and_lambda_leave_plots(tmp_path: Path, data: Path, start: Path) -> None:
    ran("layers", data, start, tmp_path)
    ran("lambda", data, start, tmp_path)
    assert {path.name for path in tmp_path.rglob("*.svg")} == {"layers.svg", "winners.svg", "lambda.svg"}


def test_storage_measures_faiss_and_both_layouts_of_opensearch(
    tmp_path: Path, data: Path, start: Path, cluster_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import multi_layer_storage

    monkeypatch.setenv("OSN_URL", cluster_url)
    tokens = colbert("multi-vector")
    monkeypatch.setattr(multi_layer_storage, "ARMS", (DUAL, MULTI_VECTOR, tokens))
    value = ran("storage", data, start, tmp_path)
    single, several = (f"faiss, {arm.name}" for arm in (DUAL, MULTI_VECTOR))
    assert value[SQUAD, several, "index MiB"] == pytest.approx(2 * value[SQUAD, single, "index MiB"])
    assert value[SQUAD, f"faiss, {tokens.name}", "index MiB"] > value[SQUAD, several, "index MiB"]
    for layout in ("fields", "nested"):
        engine = f"OpenSearch, {MULTI_VECTOR.name}, {layout}"
        # So few documents are searched exactly.
        assert value[SQUAD, engine, "of the exact top 10"] == 1
        assert value[SQUAD, engine, "nDCG@10"] == pytest.approx(value[SQUAD, several, "nDCG@10"])


def test_what_is_tested_is_not_trained_on(tmp_path: Path, data: Path) -> None:
    ground = Ground(data, tmp_path, "unused").prepare()

    def judged(folder: Path, split: str) -> set[str]:
        return {line.split("\t")[1] for line in (folder / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]}

    parts = [judged(ground.train(SQUAD), "train"), judged(ground.held, "dev"), judged(ground.held, "test")]
    assert all(parts) and sum(map(len, parts)) == len(set().union(*parts))
    kept = {json.loads(line)["_id"] for line in (ground.train(SQUAD) / "corpus.jsonl").read_text().splitlines()}
    assert kept == parts[0]
    wikiqa = ground.data / WIKIQA
    own = judged(ground.train(WIKIQA), "train")
    assert own and not own & (judged(wikiqa, "dev") | judged(wikiqa, "test"))
    assert judged(wikiqa, "train") & judged(wikiqa, "test"), "the data would show nothing"
    # Once made it stays, whatever the shares are then.
    before = (ground.held / "qrels/test.tsv").read_bytes()
    Ground(data, tmp_path, "unused").prepare()
    assert (ground.held / "qrels/test.tsv").read_bytes() == before


def test_the_papers_studies_as_far_as_six_layers_go() -> None:
    names = [arm.name for arm in layer_arms(6)]
    assert [arm.name for arm in Ground(Path(), Path(), "", only=("average", "all")).wanted(bench.VARIANTS)] == [
        DUAL.name
    ]
    assert "MLR uniform:4, multi-vector" in names and "MLR last:6, multi-vector" in names
    assert "MLR first:6, multi-vector" not in names and not any(
        "8, multi-vector" in name and "MLR" in name for name in names
    )
    assert len({arm.slug for arm in (*layer_arms(12), *bench.VARIANTS, colbert("multi-vector"))}) == len(
        {arm.name for arm in (*layer_arms(12), *bench.VARIANTS, colbert("multi-vector"))}
    )


def test_which_layer_wins_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two documents of two layers; of the first the second layer is nearer to (1, 0), of the second the first.
    vectors = np.array([[[0, 1], [2, 0]], [[3, 0], [0, 5]]], np.float32)
    queries = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    monkeypatch.setattr(bench, "QUERIES_AT_ONCE", 2)
    of_answers, of_first = shares_won(queries, vectors, np.array([0, 1, 0])).tolist()
    assert of_answers == pytest.approx([2 / 3, 1 / 3])
    # Ranked first is the second document each time, by its first layer twice and by its second once.
    assert of_first == pytest.approx([2 / 3, 1 / 3])
    (_, other) = shares_won(queries[:2], vectors, np.array([0, 0])).tolist()
    assert other == [1, 0]


@pytest.mark.parametrize(("recall", "ms", "met"), [(0.9, 2.0, True), (0.9, 3.1, False), (0.8, 2.0, False)])
def test_fields_are_the_better_layout_if_they_find_no_less_and_no_later(recall: float, ms: float, met: bool) -> None:
    from benchmarks.multi_layer_storage import layout_goal

    measured = {"fields": (recall, ms, 20.0), "nested": (0.9, 3.0, 10.0)}
    value = {
        (f"OpenSearch, {MULTI_VECTOR.name}, {layout}", measure): one
        for layout, values in measured.items()
        for measure, one in zip(("of the exact top 10", "P50 ms", "index MiB"), values, strict=True)
    }
    goal = layout_goal(value)
    assert goal.met == met and "bytes 2.00 times" in str(goal.value)


def test_the_goals_are_what_the_rows_say() -> None:
    def gain(of: str, low: float) -> Row:
        return Row(of, f"{SELF_CONTRASTIVE.name}, 3 seeds", f"{TOP_5} - {DUAL.name}, 3 seeds", 0.02, low, 0.03, 100)

    def met(*gains: Row) -> bool:
        return self_contrastive_goal(gains, SELF_CONTRASTIVE, "3 seeds").met

    assert met(gain("a", -0.01), gain("b", 0.01))
    assert not met(gain("a", -0.01)) and not met()

    def dev(start: float, end: float, last: float) -> list[Row]:
        values = (("nDCG@10 at the start", start), ("nDCG@10", end), ("gain of the last quarter", last))
        return [Row("dev", "arm", measure, value, None, None, 7) for measure, value in values]

    assert dev_goal(dev(0.5, 0.6, 0.001)).met
    assert not dev_goal(dev(0.5, 0.6, 0.05)).met and not dev_goal(dev(0.6, 0.6, 0.0)).met

    shares = [Row("a", "arm", f"layer {layer} wins, documents ranked first", 0.5, None, None, 9) for layer in (5, 6)]
    bought = Row("a", "arm", f"{TOP_5} - arm, the last layer's vectors alone", 0.01, 0.001, 0.02, 9)
    assert "50.0%" in str(last_layer_goal([*shares, bought]).value) and "1 of 1" in str(
        last_layer_goal([*shares, bought]).value
    )
    assert not last_layer_goal([]).met
