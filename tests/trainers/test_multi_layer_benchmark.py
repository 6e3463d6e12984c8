"""The evidence of multi-layer representations on tiny data: each part runs, and its goals follow from its rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

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
    Ground,
    colbert,
    dev_goal,
    last_layer_goal,
    layer_arms,
    me_bert,
    mlr,
    self_contrastive_goal,
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
    return tiny_backbone(work / "start", layers=3, positions=128)


def ran(part: str, data: Path, start: Path, record: Path) -> dict[tuple[str, str, str], float]:
    work = start.parent
    arguments = ["--data", str(data), "--work", str(work), "--part", part, "--steps", "1", "--seeds", "2"]
    arguments += ["--start", str(start), "--record", str(record)]
    result = CliRunner().invoke(bench.multi_layer, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    summary = read(record / part)
    assert summary.goals
    return {(row.set, row.engine, row.measure): row.value for row in summary.rows}


def test_the_variants_are_compared_seed_by_seed_and_on_average(tmp_path: Path, data: Path, start: Path) -> None:
    value = ran("variants", data, start, tmp_path)
    for name in (SQUAD, HELD, WIKIQA):
        seeds = [value[name, f"{SELF_CONTRASTIVE.name}, seed {seed}", TOP_5] for seed in (42, 43)]
        duals = [value[name, f"{DUAL.name}, seed {seed}", TOP_5] for seed in (42, 43)]
        mean = f"{SELF_CONTRASTIVE.name}, 2 seeds"
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
    assert {row.engine for row in read(tmp_path / "two-stage").rows if "two stages" in row.engine}


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


def test_the_goals_are_what_the_rows_say() -> None:
    def gain(of: str, low: float) -> Row:
        return Row(of, f"{SELF_CONTRASTIVE.name}, 3 seeds", f"{TOP_5} - {DUAL.name}, 3 seeds", 0.02, low, 0.03, 100)

    assert self_contrastive_goal([gain("a", -0.01), gain("b", 0.01)], 3).met
    assert not self_contrastive_goal([gain("a", -0.01)], 3).met and not self_contrastive_goal([], 3).met

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
