"""The evidence for query-as-context pre-training on tiny data: every part runs, and nothing that is tested trains."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from tiny import tiny_backbone, tiny_beir  # noqa: E402

from benchmarks.papers import query_as_context as paper  # noqa: E402
from benchmarks.papers.query_as_context import (  # noqa: E402
    NONE,
    QUERY,
    RANDOM,
    STAGES,
    TESTED,
    QueryAsContextExperiment,
    QueryAsContextScale,
    arms,
    direction_goals,
    start_goals,
)
from opensearch_neural.errors import InputError  # noqa: E402
from opensearch_neural.evaluation.results import Goal, Row, read  # noqa: E402

SIZES = {
    "layers": 2,
    "hidden": 16,
    "mlm-steps": 1,
    "steps": 5,
    "batch": 4,
    "generator-steps": 1,
    "fine-tuning-steps": 1,
    "documents": 40,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Articles of three documents, at least one of each fourth of them tested on."""
    folder = tmp_path_factory.mktemp("data")
    for seed, name in enumerate(paper.ARTICLES):
        beir = tiny_beir(folder / name, documents=90, seed=seed)
        shutil.copy(beir / "qrels" / "dev.tsv", beir / "qrels" / "test.tsv")
        lines = [json.loads(line) for line in (beir / "corpus.jsonl").read_text().splitlines()]
        for at, line in enumerate(lines):
            line |= {"title": f"{name} {at // 3}", "url": f"https://x.org/{at // 3}"}
        (beir / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        if name not in TESTED:
            shutil.rmtree(beir / "qrels")
    return folder


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture
def small(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = work / "reader"
    if not reader.exists():
        tiny_backbone(reader, layers=1, positions=256)
    monkeypatch.setattr(paper, "READER", str(reader))
    monkeypatch.setattr(paper, "READER_LAYERS", 1)
    monkeypatch.setattr(paper, "LEAST_PASSAGES", 2)
    monkeypatch.setattr(paper, "QUERY_LENGTH", 8)
    monkeypatch.setattr(paper, "PASSAGE_LENGTH", 16)
    few = {
        name: arm
        for name, arm in arms().items()
        if (arm.label == NONE) != (arm.variant == "cocondenser") or arm.label == RANDOM
    }
    assert len(few) == 5, "of CoT-MAE none and random passage, of coCondenser all but none"
    monkeypatch.setattr(paper, "arms", lambda: few)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("part", paper.PARTS)
def test_each_part_runs_and_records(part: str, data: Path, work: Path, tmp_path: Path) -> None:
    arguments = ["--data", str(data), "--work", str(work / "w"), "--record", str(tmp_path), "--part", part]
    for name, value in SIZES.items():
        arguments += [f"--{name}", str(value)]
    result = CliRunner().invoke(paper.query_as_context, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    summary = read(tmp_path / part)
    rows = summary.rows
    engines = {row.line for row in rows}
    if part == "zero-shot":
        assert {f"{name}, seed 42" for name in paper.arms()} | {"start"} == engines
        # Every arm beside the start; five candidates beside one.
        value = {(row.set, row.line, row.column): row.value for row in rows}
        of_set = f"{TESTED[0]}, {STAGES[0]}"
        for name in paper.arms():
            engine = f"{name}, seed 42"
            gain = value[of_set, engine, "nDCG@10 - start"]
            assert gain == pytest.approx(value[of_set, engine, "nDCG@10"] - value[of_set, "start", "nDCG@10"])
        five = f"coCondenser, {QUERY}, seed 42"
        assert (of_set, five, "nDCG@10 - coCondenser, query of 1 candidate, seed 42") in value
        assert {"masked LM at the start", "masked LM"} <= {row.column for row in rows}
        assert [goal.target for goal in summary.goals] == ["1 variant", "1 variant", "5 of 5", "5 of 5"]
    else:
        sets = {f"{name}, {stage}" for name in TESTED for stage in STAGES[1:]}
        assert {row.set for row in rows} == sets
        against = "nDCG@10 - start"
        assert {row.line for row in rows if row.column == against} == engines - {"start"}
    assert any(row.column == "nDCG@10" for row in rows)


@pytest.mark.usefixtures("small")
def test_nothing_of_a_tested_article_trains(data: Path, tmp_path: Path) -> None:
    experiment = QueryAsContextExperiment(data, tmp_path, QueryAsContextScale(documents=90))
    for corpus in experiment.documents:
        kept = {json.loads(line)["_id"] for line in corpus.path.read_text().splitlines()}
        if corpus.corpus_name not in TESTED:
            assert len(kept) == 90
            continue
        # Every fourth document is tested on, and with it go the two others of its three.
        articles = [range(at, at + 3) for at in range(0, 90, 3)]
        assert kept == {f"d{at}" for article in articles if all(at % 4 for at in article) for at in article}
        asked = list(experiment.questions(corpus.corpus_name))
        assert asked
        assert {document for _, document in asked} <= kept


@pytest.mark.usefixtures("small")
def test_other_data_needs_another_folder_of_work(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(data, other)
    QueryAsContextExperiment(data, tmp_path / "work", QueryAsContextScale())
    QueryAsContextExperiment(other, tmp_path / "work", QueryAsContextScale())
    with (other / TESTED[0] / "corpus.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(InputError, match=f"another {TESTED[0]} than"):
        QueryAsContextExperiment(other, tmp_path / "work", QueryAsContextScale())


@pytest.mark.usefixtures("small")
def test_another_number_of_documents_is_read_anew(data: Path, tmp_path: Path) -> None:
    def count(documents: int) -> int:
        experiment = QueryAsContextExperiment(data, tmp_path, QueryAsContextScale(documents=documents))
        corpus = next(each for each in experiment.documents if each.corpus_name not in TESTED)
        return len(corpus.path.read_text().splitlines())

    assert (count(20), count(80), count(20)) == (20, 80, 20)


def test_the_goals_are_what_the_rows_say() -> None:
    def gains(stage: str, variant: str, *lows: float) -> list[Row]:
        return [
            Row(
                f"{name}, {stage}",
                f"{variant}, {QUERY}",
                "MRR@10",
                low + 0.1,
                low,
                low + 0.2,
                50,
                baseline=f"{variant}, {RANDOM}",
                kind="difference",
                seed=42,
            )
            for name, low in zip(TESTED, lows, strict=True)
        ]

    def met(goals: list[Goal]) -> list[bool]:
        return [goal.met for goal in goals]

    rows = [*gains(STAGES[0], "CoT-MAE", 0.01, 0.02), *gains(STAGES[0], "coCondenser", 0.01, -0.01)]
    assert met(direction_goals(rows)) == [True, True]
    assert "CoT-MAE: +0.110 [+0.010, +0.210]" in str(direction_goals(rows)[0].value)
    missed = gains(STAGES[0], "CoT-MAE", 0.0, 0.02) + gains(STAGES[0], "coCondenser", -0.01, 0.01)
    assert met(direction_goals(missed)) == [False, True]
    # The paper's direction is a gain on both sets that is more than chance.
    assert met(direction_goals(gains(STAGES[2], "CoT-MAE", -0.05, 0.1))) == [False]
    assert met(direction_goals(gains(STAGES[2], "CoT-MAE", 0.05, 0.1))) == [True]
    held = [
        Row("passages held back", arm, measure, value, None, None, 9, seed=42)
        for arm, after in (("a", 6.0), ("b", 4.0))
        for measure, value in (
            ("masked LM at the start", 5.0),
            ("masked LM", after),
            ("nDCG@10 on dev at the start", 0.4),
            ("nDCG@10 on dev", 0.5),
        )
    ]
    assert met(start_goals(held)) == [False, True]
    assert direction_goals([]) == start_goals([]) == []
