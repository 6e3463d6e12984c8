"""The benchmark of TOME on tiny data: every arm is trained and measured, and its goals follow from its rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from tiny import WORDS, tiny_backbone  # noqa: E402
from transformers import T5Config, T5ForConditionalGeneration  # noqa: E402

from benchmarks import inference_free_sparse, tome  # noqa: E402
from benchmarks.beir_parts import evenly  # noqa: E402
from benchmarks.tome import (  # noqa: E402
    ARMS,
    BARE,
    BM25,
    DEEPER,
    GOLD,
    HALF,
    LATER,
    LAYERS,
    MINILM,
    RANDOM,
    SHORT,
    SINGLE,
    TWO,
    Effort,
    configuration,
    fused,
    goals,
    some_documents,
)
from opensearch_neural.errors import InputError  # noqa: E402
from opensearch_neural.results import Row, read  # noqa: E402
from trainers import backbones  # noqa: E402
from trainers.backbones import NewBackbone  # noqa: E402
from trainers.data import load_training  # noqa: E402


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
    tokenizer = backbones.train_tokenizer(WORDS * 3, "byte-level", 420)
    for layers in (tome.LAYERS, tome.DEEPER):
        folder = tmp_path / "work" / f"t5-{layers}"
        new = NewBackbone("t5", layers=1 if layers == tome.LAYERS else 2, hidden=16, heads=2)
        backbones.save(backbones.new_backbone(new, tokenizer), tokenizer, folder)
    monkeypatch.setattr(tome, "pretrained", lambda *arguments: None)
    arguments = ["--data", str(tmp_path / "data"), "--work", str(tmp_path / "work"), "--only", "wikiqa-doc"]
    arguments += ["--steps", "2", "--generator-steps", "1", "--candidates", "2", "--precision", "float32"]
    arguments += ["--documents", "20", "--record", str(tmp_path / "out"), "--url", cluster_url]
    result = CliRunner().invoke(tome.tome, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = read(tmp_path / "out").rows
    by_engine = {(row.engine, row.measure): row for row in rows}
    for arm in (*(arm for arm in ARMS if arm != LATER), GOLD):
        for engine in (arm, f"{arm}, free", f"{arm}, greedy"):
            assert by_engine[(engine, "Hits@1")].n == 20, engine
    assert by_engine[(BM25, "Hits@1")].value > 0.9
    assert by_engine[(TWO, f"Hits@1 - {SINGLE}")].n == 20
    assert by_engine[(TWO, "generated passages in the corpus")].n == 20
    for kind, count in (("their questions", 2), ("other questions", 18)):
        assert by_engine[(f"{LATER}: {kind}", "Hits@1")].n == count
        assert by_engine[(f"{LATER}: {kind}", f"Hits@1 - {TWO}: {kind}")].n == count
    assert {arm: by_engine[(arm, "updates")].value for arm in (TWO, SINGLE, SHORT)} == {TWO: 4, SINGLE: 4, SHORT: 2}
    for arm, other in ((BARE, TWO), (HALF, TWO), (GOLD, TWO), (RANDOM, SINGLE), (TWO, BM25), (TWO, MINILM)):
        gain = by_engine[(arm, f"Hits@1 - {other}")]
        assert gain.value == pytest.approx(by_engine[(arm, "Hits@1")].value - by_engine[(other, "Hits@1")].value)
    assert (f"{TWO}, free", f"Hits@1 - {SINGLE}, free") in by_engine
    assert by_engine[(BM25, "P50 ms")].value > 0
    assert [goal.target for goal in read(tmp_path / "out").goals] == ["1 of 2", "at least 0", "at least 0"]

    before = (tmp_path / "work" / "wikiqa-doc" / "before" / "corpus.jsonl").read_text().splitlines()
    assert len(before) == 18
    bare = json.loads((tmp_path / "work" / "wikiqa-doc" / BARE.replace(" ", "-") / "generative.json").read_text())
    assert bare["prompts"] is False


def test_two_stages_and_one_have_as_many_parameters(tmp_path: Path) -> None:
    def count(layers: int) -> int:
        config = T5Config(vocab_size=8000, d_model=256, d_kv=64, d_ff=1024, num_layers=layers, num_heads=4)
        with torch.device("meta"):
            return sum(one.numel() for one in T5ForConditionalGeneration(config).parameters())

    assert 2 * count(LAYERS) == pytest.approx(count(DEEPER), rel=0.02)


def test_a_part_of_a_set_holds_what_test_questions_ask_for_and_others(tmp_path: Path) -> None:
    beir_with_urls(tmp_path / "data" / "tldr")
    qrels = tmp_path / "data" / "tldr" / "qrels"
    (qrels / "test.tsv").write_text("".join((qrels / "test.tsv").read_text().splitlines(keepends=True)[:5]))
    part = some_documents(tmp_path / "data", "tldr", tmp_path / "work", 10) / "tldr"
    documents = [json.loads(line) for line in (part / "corpus.jsonl").read_text().splitlines()]
    assert len(documents) == 10 and {"d0", "d1", "d2", "d3"} <= {one["_id"] for one in documents}
    assert all(one["url"] for one in documents)
    data = load_training(part, split="test")
    assert sorted(data.query_texts()) == ["q0-2", "q1-2", "q2-2", "q3-2"]
    assert {one.positives[0] for one in load_training(part).examples} == {one["_id"] for one in documents}
    assert evenly(["a", "b", "c", "d", "e"], 2) == ["a", "c"] and evenly(["a"], 3) == ["a"]


def test_ranks_are_fused_by_hand() -> None:
    found = fused({"q": {"a": 9.0, "b": 1.0}}, {"q": {"b": -1.0}, "r": {}})
    assert found == {"q": {"b": pytest.approx(1 / 62 + 1 / 61), "a": pytest.approx(1 / 61)}, "r": {}}
    assert list(found["q"]) == ["b", "a"]


def row(name: str, engine: str, measure: str, value: float, low: float | None = None) -> Row:
    return Row(name, engine, measure, value, low, None if low is None else value + 0.1, 100)


def test_goals_follow_from_rows() -> None:
    gain, short = f"Hits@1 - {SINGLE}", f"Hits@1 - {SHORT}"
    rows = [
        row("tldr", TWO, gain, 0.05, 0.01),
        row("wikiqa-doc", TWO, gain, 0.05, -0.01),
        row("tldr", f"{TWO}, free", "Hits@1", 0.3),
        row("tldr", f"{TWO}, greedy", "Hits@1", 0.3),
    ]
    assert [goal.met for goal in goals(rows)] == [True, True]
    assert [goal.met for goal in goals([*rows, row("tldr", TWO, short, 0.01, -0.01)])] == [False, True]
    rows.append(row("tldr", TWO, "Hits@1", 0.29))
    assert [goal.met for goal in goals(rows)] == [True, True, False]
    rows += [row("tldr", f"{SINGLE}, free", "Hits@1", 0.3), row("tldr", f"{SINGLE}, greedy", "Hits@1", 0.29)]
    assert [goal.met for goal in goals([rows[1], *rows[2:]])] == [False, False, False]


def test_each_arm_is_told_what_its_name_says(tmp_path: Path) -> None:
    effort = Effort(1, 1, steps=10, candidates=4, spans=0, precision="float32")
    of = {arm: configuration(arm, tmp_path, "tldr", tmp_path / "work", effort) for arm in ARMS}
    assert {arm: one.stages for arm, one in of.items() if one.stages != "both"} == {
        SINGLE: "single",
        SHORT: "single",
        RANDOM: "single",
        HALF: "passage",
    }
    assert {arm: one.training.steps for arm, one in of.items() if one.training.steps != 10} == {SINGLE: 20, RANDOM: 20}
    assert {arm: one.candidates for arm, one in of.items() if one.candidates is not None} == {HALF: 2}
    assert [arm for arm, one in of.items() if one.settings.identifiers == "random"] == [RANDOM]
    assert [arm for arm, one in of.items() if not one.settings.prompts] == [BARE]
    before = tmp_path / "work" / "tldr" / "before"
    for arm, one in of.items():
        read = {one.corpus, *(path for given in one.queries for path in (given.path, given.corpus) if path)}
        assert all(before in (path, *path.parents) for path in read) == (arm == LATER), arm
        assert [given.path for given in one.unseen] == [tmp_path / "tldr"]
    assert len({one.output for one in of.values()}) == len(ARMS)


def test_an_odd_number_of_queries_has_no_half(tmp_path: Path) -> None:
    arguments = ["--data", str(tmp_path), "--work", str(tmp_path / "work"), "--candidates", "5"]
    with pytest.raises(InputError, match="half of 5"):
        CliRunner().invoke(tome.tome, arguments, catch_exceptions=False)
