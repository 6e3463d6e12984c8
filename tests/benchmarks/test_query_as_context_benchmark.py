"""The evidence for query-as-context pre-training on tiny data: every part runs, and nothing that is tested trains."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from tiny import tiny_backbone, tiny_beir  # noqa: E402

from benchmarks.papers import inference_free_sparse, query_as_context  # noqa: E402
from benchmarks.papers.query_as_context import QUERY, RANDOM, STAGES, TESTED, Ground, Scale, arms, goals  # noqa: E402
from opensearch_neural.errors import InputError  # noqa: E402
from opensearch_neural.evaluation.results import Row, read  # noqa: E402
from opensearch_neural.models.directory import hash_files  # noqa: E402

SIZES = {
    "layers": 2,
    "hidden": 16,
    "mlm-steps": 1,
    "steps": 5,
    "batch": 4,
    "generator-steps": 1,
    "fine-tuning-steps": 1,
    "sparse-steps": 2,
    "documents": 40,
    "seeds": 2,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Articles of three documents, at least one of each fourth of them tested on."""
    folder = tmp_path_factory.mktemp("data")
    for seed, name in enumerate(query_as_context.ARTICLES):
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
    monkeypatch.setattr(query_as_context, "READER", str(reader))
    monkeypatch.setattr(query_as_context, "READER_LAYERS", 1)
    monkeypatch.setattr(query_as_context, "LEAST_PASSAGES", 2)
    monkeypatch.setattr(query_as_context, "QUERY_LENGTH", 8)
    monkeypatch.setattr(query_as_context, "PASSAGE_LENGTH", 16)
    monkeypatch.setattr(inference_free_sparse, "HOLD_BACK", 8)
    few = [arm for arm in arms() if (arm.label == "none") != (arm.variant == "cocondenser") or arm.label == RANDOM]
    assert len(few) == 6, "of CoT-MAE none and random passage, of coCondenser all but none"
    monkeypatch.setattr(query_as_context, "arms", lambda: few)


def value_of(rows: list[Row], engine: str) -> float:
    (row,) = (
        row for row in rows if (row.set, row.line, row.column) == (f"{TESTED[0]}, {STAGES[0]}", engine, "nDCG@10")
    )
    return row.value


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("part", query_as_context.PARTS)
def test_each_part_runs_and_records(part: str, data: Path, work: Path, tmp_path: Path) -> None:
    arguments = ["--data", str(data), "--work", str(work / "w"), "--record", str(tmp_path), "--part", part]
    for name, value in SIZES.items():
        arguments += [f"--{name}", str(value)]
    result = CliRunner().invoke(query_as_context.query_as_context, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    summary = read(tmp_path / part)
    rows = summary.rows
    engines = {row.line for row in rows if row.set != "questions"}
    if part == "zero-shot":
        again = {f"coCondenser, {label}, {of}" for label in (RANDOM, QUERY) for of in ("seed 43", "mean of 2 seeds")}
        assert {arm.engine for arm in query_as_context.arms()} | {"start"} | again == engines
        mean, first, second = (
            value_of(rows, f"coCondenser, {QUERY}{of}") for of in (", mean of 2 seeds", "", ", seed 43")
        )
        assert mean == pytest.approx((first + second) / 2)
        models = [work / "w" / "models" / arm.folder for arm in query_as_context.of_seeds("cocondenser", QUERY, 2)]
        assert len({hash_files(model) for model in models}) == 2
        # Beside the start, one candidate, and people's questions apart.
        machine = [arm.engine for arm in query_as_context.arms() if not arm.human]
        value = {(row.set, row.line, row.column): row.value for row in rows}
        of_set = f"{TESTED[0]}, {STAGES[0]}"
        for engine in machine:
            gain = value[of_set, engine, "nDCG@10 - start"]
            assert gain == pytest.approx(value[of_set, engine, "nDCG@10"] - value[of_set, "start", "nDCG@10"])
        assert (
            of_set,
            f"coCondenser, {QUERY}",
            "nDCG@10 - coCondenser, query of 1 candidate",
        ) in value
        human = {row.line for row in rows if row.set.endswith("upper bound")}
        assert human == {f"coCondenser, {QUERY}", "coCondenser, human questions"}
        assert not any("human" in row.line for row in rows if row.set == of_set)
        asked = {row.line: row.value for row in rows if row.column == "own passage in BM25's top 10"}
        assert len(asked) == 2 * len(query_as_context.ARTICLES) and all(0 <= share <= 1 for share in asked.values())
        of_passages = {row.value for row in rows if row.column == "passages with a question" and TESTED[0] in row.line}
        assert len(of_passages) == 1, "people asked of some, and all arms read the same"
        assert {"masked LM at the start", "masked LM", "steps/s"} <= {row.column for row in rows}
        assert [goal.target for goal in summary.goals] == [
            "1 variant",
            "1 variant",
            "8 of 8",
            "8 of 8",
        ]
    elif part == "fine-tuning":
        sets = {f"{name}, {stage}" for name in TESTED for stage in STAGES[1:]}
        dev = {f"dev, {stage}" for stage in STAGES[1:]}
        assert {row.set for row in rows} == sets | dev
        against = "nDCG@10 - start"
        assert {row.line for row in rows if row.column == against} == engines - {"start"}
        assert {row.column for row in rows if row.set in dev} >= {"nDCG@10 at the start", "nDCG@10", "step kept"}
    else:
        assert len(engines) == 3
        (pair,) = {row.column for row in rows if row.column.startswith("nDCG@10 - ") and RANDOM in row.column}
        assert {row.line for row in rows if row.column == pair} == {f"sparse student from coCondenser, {QUERY}"}
        assert {row.line for row in rows if row.column == "active terms" and row.value > 0} == engines
    assert any(row.column == "nDCG@10" for row in rows)


@pytest.mark.usefixtures("small")
def test_nothing_of_a_tested_article_trains(data: Path, tmp_path: Path) -> None:
    ground = Ground(data, tmp_path, Scale(documents=90))
    for corpus in ground.documents:
        kept = {json.loads(line)["_id"] for line in corpus.path.read_text().splitlines()}
        if corpus.title not in TESTED:
            assert len(kept) == 90
            continue
        # Every fourth document is tested on, and with it go the two others of its three.
        articles = [range(at, at + 3) for at in range(0, 90, 3)]
        assert kept == {f"d{at}" for article in articles if all(at % 4 for at in article) for at in article}
        asked = list(ground.questions(corpus.title))
        assert asked
        assert {document for _, document in asked} <= kept


@pytest.mark.usefixtures("small")
def test_other_data_needs_another_folder_of_work(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(data, other)
    Ground(data, tmp_path / "work", Scale())
    Ground(other, tmp_path / "work", Scale())
    with (other / TESTED[0] / "corpus.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(InputError, match=f"another {TESTED[0]} than"):
        Ground(other, tmp_path / "work", Scale())


@pytest.mark.usefixtures("small")
def test_another_number_of_documents_is_read_anew(data: Path, tmp_path: Path) -> None:
    def count(documents: int) -> int:
        corpus = next(one for one in Ground(data, tmp_path, Scale(documents=documents)).documents
                      if one.title not in TESTED)  # fmt: skip
        return len(corpus.path.read_text().splitlines())

    assert (count(20), count(80), count(20)) == (20, 80, 20)


def test_the_goals_are_what_the_rows_say() -> None:
    def difference(name: str, stage: str, variant: str, low: float) -> Row:
        engine = f"{variant}, query"
        return Row(f"{name}, {stage}", engine, f"MRR@10 - {variant}, {RANDOM}", low + 0.1, low, low + 0.2, 50)

    def both(stage: str, variant: str, *lows: float) -> list[Row]:
        return [difference(name, stage, variant, low) for name, low in zip(TESTED, lows, strict=True)]

    held = [
        Row("passages held back", engine, measure, value, None, None, 9)
        for engine, before, after in (("a", 5.0, 4.0), ("b", 6.0, 5.0))
        for measure, value in (
            ("masked LM at the start", before),
            ("masked LM", before + 1 if engine == "a" else after),
            ("nDCG@10 on dev at the start", 0.4),
            ("nDCG@10 on dev", 0.5),
        )
    ]
    rows = [*both(STAGES[0], "CoT-MAE", 0.01, 0.02), *both(STAGES[0], "coCondenser", 0.01, -0.01), *held]
    # With several seeds the mean counts, and the first beside it is shown.
    mean = [
        replace(row, engine=f"{row.line}, mean of 2 seeds", measure=f"{row.column}, mean of 2 seeds", low=low)
        for row, low in zip(both(STAGES[0], "CoT-MAE", 0.01, 0.02), (0.01, -0.01), strict=True)
    ]
    of_sets = goals([*both(STAGES[0], "CoT-MAE", 0.01, 0.02), *mean])
    assert [goal.met for goal in of_sets] == [True, False]
    assert all(str(goal.value).count("CoT-MAE") == 2 and "mean of 2 seeds" in str(goal.value) for goal in of_sets)
    found = goals(rows + both(STAGES[2], "CoT-MAE", -0.2, 0.1))
    assert [goal.met for goal in found] == [True, True, False, False, True]
    assert "CoT-MAE +0.110 [+0.010, +0.210]" in str(found[0].value)
    missed = goals(both(STAGES[0], "CoT-MAE", 0.0, 0.02) + both(STAGES[0], "coCondenser", -0.01, 0.01))
    assert [goal.met for goal in missed] == [False, True]
    assert goals([]) == []
