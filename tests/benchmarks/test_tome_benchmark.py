"""The benchmark of TOME on tiny data: every arm is trained and measured, and its goals follow from its rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from tiny import WORDS, tiny_backbone  # noqa: E402
from transformers import T5Config, T5ForConditionalGeneration  # noqa: E402

from benchmarks.beir_parts import evenly  # noqa: E402
from benchmarks.papers import inference_free_sparse, tome  # noqa: E402
from benchmarks.papers.tome import (  # noqa: E402
    ARMS,
    BARE,
    BM25,
    DEEPER,
    GOLD,
    HALF,
    LAYERS,
    RANDOM,
    SINGLE,
    SMALL,
    SPANLESS,
    TWO,
    WRITTEN,
    Effort,
    Trial,
    configuration,
    fused,
    goals,
    some_documents,
    with_dev_questions,
)
from opensearch_neural.errors import InputError  # noqa: E402
from opensearch_neural.evaluation.results import Row, read  # noqa: E402
from opensearch_neural.models.generative import GenerativeModel  # noqa: E402
from trainers.common import loop  # noqa: E402
from trainers.data.loading import load_training  # noqa: E402
from trainers.encoders import backbones  # noqa: E402
from trainers.encoders.backbones import NewBackbone  # noqa: E402


def beir_with_urls(folder: Path) -> None:
    (folder / "qrels").mkdir(parents=True)
    with (folder / "corpus.jsonl").open("w") as corpus, (folder / "queries.jsonl").open("w") as queries:
        for at, word in enumerate(WORDS[:30]):
            line = {"_id": f"d{at}", "title": word, "text": f"{word} {folder.name}", "url": f"https://x.org/{word}"}
            corpus.write(json.dumps(line) + "\n")
            for number in (1, 2):
                query = {"_id": f"q{at}-{number}", "text": f"what is {word} {folder.name} {number}"}
                queries.write(json.dumps(query) + "\n")
    for split, number in (("train", 1), ("test", 2)):
        lines = ["query-id\tcorpus-id\tscore", *(f"q{at}-{number}\td{at}\t1" for at in range(30))]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")


def test_every_arm_is_trained_and_measured(tmp_path: Path, cluster_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tome.PAIRS:
        beir_with_urls(tmp_path / "data" / name)
    monkeypatch.setattr(tome, "DENSE", str(tiny_backbone(tmp_path / "dense", positions=256)))
    monkeypatch.setattr(inference_free_sparse, "GRID", ((1.2,), (0.75,)))
    monkeypatch.setattr(tome, "TIMED", 3)
    monkeypatch.setattr(tome, "LAYERS", 1)
    monkeypatch.setattr(tome, "DEEPER", 2)
    monkeypatch.setattr(backbones, "NewBackbone", small_backbone)
    arguments = ["--data", str(tmp_path / "data"), "--work", str(tmp_path / "work"), "--only", "wikiqa-doc"]
    arguments += ["--steps", "2", "--url-steps", "1", "--generator-steps", "1", "--pretraining-steps", "1"]
    arguments += ["--batch", "8", "--candidates", "2", "--spans", "1", "--precision", "float32", "--seeds", "2"]
    arguments += ["--documents", "20", "--record", str(tmp_path / "out"), "--url", cluster_url]
    result = CliRunner().invoke(tome.tome, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = read(tmp_path / "out").rows
    by_engine = {(row.line, row.column): row for row in rows}
    repeated = [f"{arm}, {which}" for arm in tome.REPEATED for which in ("seed 43", "mean of 2 seeds")]
    for arm in (*ARMS, GOLD, *repeated):
        for engine in (arm, f"{arm}, free", f"{arm}, greedy"):
            assert by_engine[(engine, "Hits@1")].n == 20, engine
    assert by_engine[(BM25, "Hits@1")].value > 0.9
    for measure in ("generated passages in the corpus", "generated titles of a relevant document"):
        assert by_engine[(TWO, measure)].n == 20
    by_passage = [row for row in rows if row.column.startswith("Hits@1, free, where")]
    assert sum(row.n for row in by_passage) == 20
    free = by_engine[(f"{TWO}, free", "Hits@1")].value
    assert sum(row.n * row.value for row in by_passage) == pytest.approx(20 * free)
    assert {arm: by_engine[(arm, "updates")].value for arm in (TWO, SINGLE, SMALL)} == {TWO: 3, SINGLE: 3, SMALL: 3}
    assert by_engine[(TWO, "parameters")].value == 2 * by_engine[(SMALL, "parameters")].value
    for arm, other in (
        (BARE, TWO),
        (HALF, TWO),
        (SPANLESS, TWO),
        (WRITTEN, TWO),
        (GOLD, TWO),
        (RANDOM, SINGLE),
        (TWO, BM25),
    ):
        gain = by_engine[(arm, f"Hits@1 - {other}")]
        assert gain.value == pytest.approx(by_engine[(arm, "Hits@1")].value - by_engine[(other, "Hits@1")].value)
    for rival in (SINGLE, SMALL):
        assert (f"{TWO}, mean of 2 seeds, free", f"Hits@1 - {rival}, mean of 2 seeds, free") in by_engine
    assert by_engine[(BM25, "P50 ms")].value > 0 and by_engine[(f"{TWO}, free", "P50 ms")].value > 0
    assert len(read(tmp_path / "out").goals) == 6

    (of_set,) = (tmp_path / "work" / "wikiqa-doc").glob("20-documents-2-queries-*")
    (bare,) = of_set.glob("no-prompts-*/generative.json")
    assert json.loads(bare.read_text())["prompts"] is False
    (written,) = of_set.glob("written-passages-*")
    (two,) = of_set.glob("two-stage-1-2*")
    stages = [folder / "passage" / "model.safetensors" for folder in (written, two)]
    assert stages[0].read_bytes() == stages[1].read_bytes()
    assert (written / ".stages" / "written.json").exists()

    # Again: nothing is trained or decoded, and the same comes out.
    def never(*_: object, **__: object) -> None:
        pytest.fail("done already")

    monkeypatch.setattr(loop.LoopTrainer, "train", never)
    for decode in ("find_documents", "find_urls", "write_passages"):
        monkeypatch.setattr(GenerativeModel, decode, never)
    monkeypatch.setattr(tome, "latency", lambda *_: (1.0, 1.0))
    again = [*arguments[: arguments.index("--record")], "--record", str(tmp_path / "again"), "--url", cluster_url]
    assert CliRunner().invoke(tome.tome, again, catch_exceptions=False).exit_code == 0
    hits = [[row for row in read(tmp_path / name).rows if row.column.startswith("Hits")] for name in ("out", "again")]
    assert hits[0] == hits[1]

    # Arms that are ablated on another set are not measured on this one.
    fewer = [*again[: again.index("--record")], "--ablations-on", "tldr", "--record", str(tmp_path / "fewer")]
    assert CliRunner().invoke(tome.tome, [*fewer, "--url", cluster_url], catch_exceptions=False).exit_code == 0
    left = [one for one in hits[0] if one in read(tmp_path / "fewer").rows]
    assert {one.engine for one in left} >= {TWO, SINGLE, SMALL, GOLD, BM25}
    assert not {one.engine for one in read(tmp_path / "fewer").rows} & {
        RANDOM,
        BARE,
        HALF,
        SPANLESS,
        WRITTEN,
    }


def test_stage_1_is_trained_where_another_arm_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    effort = Effort(1, 1, steps=10, url_steps=4, candidates=4, spans=0, precision="float32")
    asked: list[Path] = []

    def train(config: Any) -> dict[str, Any]:
        asked.append(config.output)
        (config.output / "passage").mkdir(parents=True, exist_ok=True)
        return {}

    monkeypatch.setattr("trainers.tome.train.train_tome", train)
    monkeypatch.setattr("opensearch_neural.models.generative.load_generative", lambda _: None)
    monkeypatch.setattr(tome, "count_queries", lambda _: 10)
    tome.trained(Trial(WRITTEN), tmp_path / "tldr", tmp_path / "work", tmp_path / "start", effort)
    assert [folder.name.partition("-1-")[0] for folder in asked] == [TWO, "written-passages"]


def test_an_unknown_set_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    result = CliRunner().invoke(tome.tome, ["--data", str(tmp_path), "--work", str(tmp_path / "w"), "--only", "tlrd"])
    assert result.exit_code == 2 and "'tlrd' is not one of" in result.output


def small_backbone(architecture: Any, *, layers: int, **_: Any) -> NewBackbone:
    return NewBackbone(architecture, layers=layers, hidden=16, heads=2, vocabulary=420, dropout=0.0)


def test_two_stages_and_one_have_as_many_parameters(tmp_path: Path) -> None:
    def count(layers: int) -> int:
        config = T5Config(vocab_size=8000, d_model=256, d_kv=64, d_ff=1024, num_layers=layers, num_heads=4)
        with torch.device("meta"):
            return sum(one.numel() for one in T5ForConditionalGeneration(config).parameters())

    assert 2 * count(LAYERS) == pytest.approx(count(DEEPER), rel=0.02)


def test_what_writes_urls_has_read_some(tmp_path: Path) -> None:
    beir_with_urls(tmp_path / "tldr")
    file = tome.with_urls(tmp_path / "tldr", tmp_path / "work" / "tldr.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == 30 and all(line["text"].endswith(line["url"]) for line in lines)


def test_a_part_of_a_set_holds_what_test_questions_ask_for_and_others(tmp_path: Path) -> None:
    beir_with_urls(tmp_path / "data" / "tldr")
    qrels = tmp_path / "data" / "tldr" / "qrels"
    (qrels / "test.tsv").write_text("".join((qrels / "test.tsv").read_text().splitlines(keepends=True)[:5]))
    part = some_documents(tmp_path / "data" / "tldr", tmp_path / "work", 10)
    assert part.name == "tldr"
    documents = [json.loads(line) for line in (part / "corpus.jsonl").read_text().splitlines()]
    assert len(documents) == 10 and {"d0", "d1", "d2", "d3"} <= {one["_id"] for one in documents}
    assert all(one["url"] for one in documents)
    data = load_training(part, split="test")
    assert sorted(data.query_texts()) == ["q0-2", "q1-2", "q2-2", "q3-2"]
    assert {one.positives[0] for one in load_training(part).examples} == {one["_id"] for one in documents}
    assert evenly(["a", "b", "c", "d", "e"], 2) == ["a", "c"] and evenly(["a"], 3) == ["a"]


def test_dev_questions_are_of_train_and_train_nothing(tmp_path: Path) -> None:
    beir_with_urls(tmp_path / "data" / "tldr")
    folder = with_dev_questions(tmp_path / "data" / "tldr", tmp_path / "work")
    dev, train = (load_training(folder, split=split) for split in ("test", "train"))
    whole = load_training(tmp_path / "data" / "tldr")
    assert len(dev.examples) == 6 and not dev.query_texts().keys() & train.query_texts().keys()
    assert dev.query_texts() | train.query_texts() == whole.query_texts()
    assert set(dev.documents.ids) == set(load_training(tmp_path / "data" / "tldr", split="test").documents.ids)
    # The same ones, another time.
    assert with_dev_questions(tmp_path / "data" / "tldr", tmp_path / "again").name == "tldr"
    assert load_training(tmp_path / "again" / "tldr", split="test").query_texts() == dev.query_texts()


def test_ranks_are_fused_by_hand() -> None:
    found = fused({"q": {"a": 9.0, "b": 1.0}}, {"q": {"b": -1.0}, "r": {}})
    assert found == {"q": {"b": pytest.approx(1 / 62 + 1 / 61), "a": pytest.approx(1 / 61)}, "r": {}}
    assert list(found["q"]) == ["b", "a"]


def row(name: str, engine: str, measure: str, value: float, low: float | None = None) -> Row:
    return Row(name, engine, measure, value, low, None if low is None else value + 0.1, 100)


def gains(name: str, how: str, of: str, *lows: float) -> list[Row]:
    """Two stages to both rivals, of differences with these low ends."""
    return [
        row(name, f"{TWO}{of}{how}", f"Hits@1 - {rival}{of}{how}", low + 0.05, low)
        for rival, low in zip((SINGLE, SMALL), lows, strict=False)
    ]


def test_goals_follow_from_rows() -> None:
    rows = [
        *gains("tldr", ", free", "", 0.01, 0.02),
        *gains("wikiqa-doc", ", free", "", 0.01, -0.01),
        row("tldr", f"{TWO}, free", "Hits@1", 0.3),
        row("tldr", f"{TWO}, greedy", "Hits@1", 0.3),
    ]
    as_many, half, *others = goals(rows)
    assert as_many.met and str(as_many.value).startswith("2 of 2 (tldr: +0.060 [+0.010")
    assert half.met and str(half.value).startswith("1 of 2 (tldr: +0.070 [+0.020")
    assert "half as many" in half.goal and "half as many" not in as_many.goal
    assert [(goal.value, goal.met) for goal in others] == [(None, False)] * 4
    # Each rival is a goal of its own, and one that was not measured is none that was reached.
    assert [goal.met for goal in goals(gains("tldr", ", free", "", 0.01, -0.01))][:2] == [True, False]
    assert [goal.value is None for goal in goals(gains("tldr", ", free", "", 0.01))][:2] == [False, True]
    # With several seeds their mean counts.
    of = ", mean of 2 seeds"
    several = [*rows, row("tldr", f"{TWO}{of}, free", "Hits@1", 0.3)]
    assert not goals([*several, *gains("tldr", ", free", of, -0.01, 0.02)])[0].met
    (found, *_) = goals([*several, *gains("tldr", ", free", of, 0.01, 0.02)])
    assert found.met and "2 seeds" in found.goal


def test_each_arm_is_told_what_its_name_says(tmp_path: Path) -> None:
    effort = Effort(1, 1, steps=10, url_steps=4, candidates=4, spans=3, precision="float32")
    work, start = tmp_path / "work", tmp_path / "start"
    of = {arm: configuration(Trial(arm), tmp_path / "tldr", work, start, effort) for arm in ARMS}
    assert {arm: one.stages for arm, one in of.items() if one.stages != "both"} == {
        SINGLE: "single",
        SMALL: "single",
        RANDOM: "single",
        HALF: "passage",
        SPANLESS: "passage",
    }
    assert {arm for arm, one in of.items() if one.training.steps == 14} == {SINGLE, SMALL, RANDOM}
    assert {one.training.steps for one in of.values()} == {10, 14}
    assert {one.url_training.steps for one in of.values() if one.stages == "both"} == {4}
    assert {arm for arm, one in of.items() if one.backbone.endswith("t5-9")} == {SINGLE, RANDOM}
    assert {arm: one.candidates for arm, one in of.items() if one.candidates is not None} == {HALF: 2}
    assert {arm: one.spans for arm, one in of.items() if one.spans != 3} == {SPANLESS: 0}
    assert [arm for arm, one in of.items() if one.settings.identifiers == "random"] == [RANDOM]
    assert [arm for arm, one in of.items() if not one.settings.prompts] == [BARE]
    for one in of.values():
        assert [given.path for given in one.unseen] == [tmp_path / "tldr"]
    outputs = {one.output for one in of.values()}
    # Other sizes and seeds are other folders.
    changes: list[dict[str, Any]] = [{"steps": 11}, {"batch_size": 8}, {"learning_rate": 1e-4}, {"pretraining": 2}]
    for other in (replace(effort, **change) for change in changes):
        outputs.add(configuration(Trial(TWO), tmp_path / "tldr", work, start, other).output)
    another = configuration(Trial(TWO, 43), tmp_path / "tldr", work, start, effort)
    assert another.training.seed == another.url_training.seed == 43
    assert len({*outputs, another.output}) == len(ARMS) + 5
    assert replace(effort, writer="a").queries != replace(effort, writer="b").queries


def test_where_the_loss_arises_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beir_with_urls(tmp_path / "tldr")
    test = load_training(tmp_path / "tldr", split="test").take(range(4))
    passages = {f"d{at}": f"title: {WORDS[at]} passage: {WORDS[at]} tldr" for at in range(4)}
    relevant = {query: next(iter(judged)) for query, judged in test.qrels().items()}
    first, second, third, fourth = relevant
    nobodys = f"title: {WORDS[int(relevant[third][1:])]} passage: of nothing"
    read = {
        first: passages[relevant[first]],
        second: passages[relevant[first]],
        third: nobodys,
        fourth: "title: nothing passage: nothing",
    }

    class Settings:
        def passage(self, _: object, title: str, text: str) -> str:
            title = WORDS[28] if title == WORDS[29] else title
            return f"title: {title} passage: {title} tldr"

    model: Any = SimpleNamespace(settings=Settings(), passage=(None, None), url=(None, None))
    arm = tome.Arm(model, [], read, tmp_path)
    found = {first: {relevant[first]: 0.0}, second: {}, third: {relevant[third]: 0.0}, fourth: {relevant[first]: 0.0}}
    monkeypatch.setattr(tome.Arm, "run", lambda *_, **__: found)
    value = {one.measure: (one.value, one.n) for one in tome.shares(arm, tmp_path / "tldr", "tldr", test)}
    assert value == {
        "documents whose passage is another's, too": (pytest.approx(2 / 30), 30),
        "generated passages in the corpus": (0.5, 4),
        "generated passages of a relevant document": (0.25, 4),
        "generated titles of a relevant document": (0.5, 4),
        "freely written URLs in the corpus": (0.75, 4),
        "Hits@1, free, where the passage is of a relevant document": (1.0, 1),
        "Hits@1, free, where the passage is of another document": (0.0, 1),
        "Hits@1, free, where the passage is of no document": (0.5, 2),
    }


def test_an_odd_number_of_queries_has_no_half(tmp_path: Path) -> None:
    arguments = ["--data", str(tmp_path), "--work", str(tmp_path / "work"), "--candidates", "5"]
    with pytest.raises(InputError, match="half of 5"):
        CliRunner().invoke(tome.tome, arguments, catch_exceptions=False)
