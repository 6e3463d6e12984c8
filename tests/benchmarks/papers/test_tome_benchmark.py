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

from benchmarks import cluster_bm25  # noqa: E402
from benchmarks.beir_parts import evenly  # noqa: E402
from benchmarks.experiment import JudgedSet  # noqa: E402
from benchmarks.papers import tome as paper  # noqa: E402
from benchmarks.papers.tome import (  # noqa: E402
    ARMS,
    BARE,
    BM25,
    DEEPER,
    FREE,
    GOLD,
    GREEDY,
    HALF,
    LAYERS,
    RANDOM,
    SINGLE,
    SMALL,
    SPANLESS,
    TWO,
    SetExperiment,
    TomeScale,
    fused,
    goals,
    some_documents,
)
from opensearch_neural.errors import InputError  # noqa: E402
from opensearch_neural.evaluation.results import Row, read  # noqa: E402
from opensearch_neural.models.generative.generative_model import GenerativeModel  # noqa: E402
from trainers.common import loop  # noqa: E402
from trainers.data.loading import load_training  # noqa: E402
from trainers.encoders.settings import NewBackbone  # noqa: E402


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
    for name in paper.PAIRS:
        beir_with_urls(tmp_path / "data" / name)
    monkeypatch.setattr(paper, "MINILM", str(tiny_backbone(tmp_path / "dense", positions=256)))
    monkeypatch.setattr(cluster_bm25, "GRID", ((1.2,), (0.75,)))
    monkeypatch.setattr(paper, "TIMED", 3)
    monkeypatch.setattr(paper, "LAYERS", 1)
    monkeypatch.setattr(paper, "DEEPER", 2)
    monkeypatch.setattr(paper, "NewBackbone", small_backbone)
    arguments = ["--data", str(tmp_path / "data"), "--work", str(tmp_path / "work"), "--only", "wikiqa-doc"]
    arguments += ["--steps", "2", "--url-steps", "1", "--generator-steps", "1", "--pretraining-steps", "1"]
    arguments += ["--batch", "8", "--candidates", "2", "--spans", "1", "--precision", "float32"]
    arguments += ["--documents", "8", "--url", cluster_url]

    def rows_of(record: str, *more: str) -> list[Row]:
        every = [*arguments, *more, "--record", str(tmp_path / record)]
        result = CliRunner().invoke(paper.tome, every, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return read(tmp_path / record).rows

    rows = rows_of("out")
    value = {(row.line, row.column): row for row in rows}
    for arm in (f"{arm}, seed 42" for arm in (*ARMS, GOLD)):
        for engine in (arm, f"{arm}, {FREE}", f"{arm}, {GREEDY}"):
            assert value[engine, "Hits@1"].n == 8, engine
    assert value[BM25, "Hits@1"].value > 0.9
    two = f"{TWO}, seed 42"
    for measure in ("generated passages in the corpus", "generated passages of a relevant document"):
        assert value[two, measure].n == 8
    for arm in (TWO, SINGLE, SMALL):
        assert value[f"{arm}, seed 42", "updates"].value == 3
    assert value[two, "parameters"].value == 2 * value[f"{SMALL}, seed 42", "parameters"].value
    for arm in (BARE, HALF, SPANLESS, GOLD):
        gain = value[f"{arm}, seed 42", f"Hits@1 - {two}"]
        assert gain.value == pytest.approx(value[f"{arm}, seed 42", "Hits@1"].value - value[two, "Hits@1"].value)
    assert (f"{RANDOM}, seed 42", f"Hits@1 - {SINGLE}, seed 42") in value
    assert any(row.engine == TWO and row.baseline == BM25 for row in rows)
    for rival in (SINGLE, SMALL):
        assert (f"{TWO}, seed 42, {FREE}", f"Hits@1 - {rival}, seed 42, {FREE}") in value
    assert value[BM25, "P50 ms"].value > 0 and value[f"{two}, {FREE}", "P50 ms"].value > 0
    assert len(read(tmp_path / "out").goals) == 6

    (of_set,) = (tmp_path / "work" / "wikiqa-doc").glob("8-documents-2-queries-*")
    (bare,) = of_set.glob("no-prompts-*/generative.json")
    assert json.loads(bare.read_text())["prompts"] is False

    # Again: nothing is trained or decoded, and the same comes out of what is asked for.
    def never(*_: object, **__: object) -> None:
        pytest.fail("done already")

    monkeypatch.setattr(loop.LoopTrainer, "train", never)
    for decode in ("find_documents", "find_urls", "write_passages"):
        monkeypatch.setattr(GenerativeModel, decode, never)
    monkeypatch.setattr(paper, "latency", lambda *_: (1.0, 1.0))
    fewer = rows_of("fewer", *(word for arm in (TWO, SINGLE, SMALL) for word in ("--arm", arm)))
    hits = [row for row in rows if row.measure.startswith("Hits")]
    ablated = {RANDOM, BARE, HALF, SPANLESS}
    assert [row for row in hits if row.engine not in ablated] == [
        row for row in fewer if row.measure.startswith("Hits")
    ]
    assert not {row.engine for row in fewer} & ablated


SCALE = TomeScale(
    pretraining_steps=1, generator_steps=1, steps=10, url_steps=4, candidates=4, spans=3, precision="float32"
)


def test_an_unknown_set_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    result = CliRunner().invoke(paper.tome, ["--data", str(tmp_path), "--work", str(tmp_path / "w"), "--only", "tlrd"])
    assert result.exit_code == 2 and "'tlrd' is not one of" in result.output


def small_backbone(architecture: Any, *, layers: int, **_: Any) -> NewBackbone:
    return NewBackbone(architecture, layers=layers, hidden=16, heads=2, vocabulary=420, dropout=0.0)


def test_two_stages_and_one_have_as_many_parameters(tmp_path: Path) -> None:
    def count(layers: int) -> int:
        config = T5Config(vocab_size=8000, d_model=256, d_kv=64, d_ff=1024, num_layers=layers, num_heads=4)
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in T5ForConditionalGeneration(config).parameters())

    assert 2 * count(LAYERS) == pytest.approx(count(DEEPER), rel=0.02)


def test_what_writes_urls_has_read_some(tmp_path: Path) -> None:
    beir_with_urls(tmp_path / "tldr")
    file = paper.with_urls(tmp_path / "tldr", tmp_path / "work" / "tldr.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == 30 and all(line["text"].endswith(line["url"]) for line in lines)


def test_a_part_of_a_set_holds_what_test_questions_ask_for_and_others(tmp_path: Path) -> None:
    beir_with_urls(tmp_path / "data" / "tldr")
    qrels = tmp_path / "data" / "tldr" / "qrels"
    (qrels / "test.tsv").write_text("".join((qrels / "test.tsv").read_text().splitlines(keepends=True)[:5]))
    part = some_documents(tmp_path / "data" / "tldr", tmp_path / "work", 10)
    assert part.name == "tldr"
    documents = [json.loads(line) for line in (part / "corpus.jsonl").read_text().splitlines()]
    assert len(documents) == 10 and {"d0", "d1", "d2", "d3"} <= {document["_id"] for document in documents}
    assert all(document["url"] for document in documents)
    data = load_training(part, split="test")
    assert sorted(data.query_texts()) == ["q0-2", "q1-2", "q2-2", "q3-2"]
    assert {example.positives[0] for example in load_training(part).examples} == {
        document["_id"] for document in documents
    }
    assert evenly(["a", "b", "c", "d", "e"], 2) == ["a", "c"] and evenly(["a"], 3) == ["a"]


def test_ranks_are_fused_by_hand() -> None:
    run = fused({"q": {"a": 9.0, "b": 1.0}}, {"q": {"b": -1.0}, "r": {}})
    assert run == {"q": {"b": pytest.approx(1 / 62 + 1 / 61), "a": pytest.approx(1 / 61)}, "r": {}}
    assert list(run["q"]) == ["b", "a"]


def gains(way: str, *lows: tuple[str, float, float | None], **how: Any) -> list[Row]:
    """Two stages to both rivals, of differences with these low ends: (set, to one T5, to one of as many parameters)."""
    return [
        Row(name, TWO, "Hits@1", low + 0.05, low, low + 0.1, 9, baseline=rival, kind="difference", variant=way, **how)
        for name, *of_rivals in lows
        for rival, low in zip((SMALL, SINGLE), of_rivals, strict=True)
        if isinstance(low, float)
    ]


def test_goals_follow_from_rows() -> None:
    rows = gains(FREE, ("tldr", 0.02, 0.01), ("wikiqa-doc", -0.01, 0.01), seed=42)
    papers, as_many, *others = goals(rows)
    assert as_many.met and str(as_many.value).startswith("2 of 2 (tldr: +0.060 [+0.010")
    assert papers.met and str(papers.value).startswith("1 of 2 (tldr: +0.070 [+0.020")
    assert "the paper's comparison" in papers.goal and "the paper's comparison" not in as_many.goal
    assert [(goal.value, goal.met) for goal in others] == [(None, False)] * 4
    # Each rival is a goal of its own, and one that was not measured is none that was reached.
    assert [goal.met for goal in goals(gains(FREE, ("tldr", -0.01, 0.01), seed=42))][:2] == [False, True]
    assert [goal.value is None for goal in goals(gains(FREE, ("tldr", 0.01, None), seed=42))][:2] == [False, True]


def test_each_arm_is_told_what_its_name_says(tmp_path: Path) -> None:
    trainings = SetExperiment(tmp_path / "tldr", tmp_path / "work", tmp_path / "start", SCALE)
    of = {arm: trainings.configuration(arm) for arm in ARMS}
    assert {arm: config.stages for arm, config in of.items() if config.stages != "both"} == {
        SINGLE: "single",
        SMALL: "single",
        RANDOM: "single",
        HALF: "passage",
        SPANLESS: "passage",
    }
    assert {arm for arm, config in of.items() if config.training.steps == 14} == {SINGLE, SMALL, RANDOM}
    assert {config.training.steps for config in of.values()} == {10, 14}
    assert {config.url_training.steps for config in of.values() if config.stages == "both"} == {4}
    assert {arm for arm, config in of.items() if config.backbone.endswith("t5-9")} == {SINGLE, RANDOM}
    assert {arm: config.candidates for arm, config in of.items() if config.candidates is not None} == {HALF: 2}
    assert {arm: config.spans for arm, config in of.items() if config.spans != 3} == {SPANLESS: 0}
    assert [arm for arm, config in of.items() if config.settings.identifiers == "random"] == [RANDOM]
    assert [arm for arm, config in of.items() if not config.settings.prompts] == [BARE]
    assert all([each.path for each in config.unseen] == [tmp_path / "tldr"] for config in of.values())
    outputs = {config.output for config in of.values()}
    # Other sizes are other folders.
    changes: list[dict[str, Any]] = [{"steps": 11}, {"batch": 8}, {"learning_rate": 1e-4}, {"pretraining_steps": 2}]
    for change in changes:
        outputs.add(replace(trainings, scale=replace(SCALE, **change)).configuration(TWO).output)
    assert len(outputs) == len(ARMS) + 4
    assert replace(SCALE, writer="a").queries != replace(SCALE, writer="b").queries


def test_where_the_loss_arises_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beir_with_urls(tmp_path / "tldr")
    data = load_training(tmp_path / "tldr", split="test").take(range(4))
    test = JudgedSet(data, data.qrels())
    passages = {f"d{at}": f"title: {WORDS[at]} passage: {WORDS[at]} tldr" for at in range(4)}
    relevant = {query: next(iter(judged)) for query, judged in test.qrels.items()}
    first, second, third, fourth = relevant
    nobodys = f"title: {WORDS[int(relevant[third][1:])]} passage: of nothing"
    inputs = {
        first: passages[relevant[first]],
        second: passages[relevant[first]],
        third: nobodys,
        fourth: "title: nothing passage: nothing",
    }

    class Settings:
        def passage(self, _: object, title: str, text: str) -> str:
            return f"title: {title} passage: {title} tldr"

    model: Any = SimpleNamespace(settings=Settings(), passage=(None, None), url=(None, None))
    decoder = paper.Decoder(model, [], inputs, tmp_path)
    run = {first: {relevant[first]: 0.0}, second: {}, third: {relevant[third]: 0.0}, fourth: {relevant[first]: 0.0}}
    monkeypatch.setattr(paper.Decoder, "run", lambda *_, **__: run)
    assert paper.stage_losses(decoder, tmp_path / "tldr", test) == {
        "generated passages in the corpus": 0.5,
        "generated passages of a relevant document": 0.25,
        "freely written URLs in the corpus": 0.75,
    }


def test_an_odd_number_of_queries_has_no_half(tmp_path: Path) -> None:
    arguments = ["--data", str(tmp_path), "--work", str(tmp_path / "work"), "--candidates", "5"]
    with pytest.raises(InputError, match="half of 5"):
        CliRunner().invoke(paper.tome, arguments, catch_exceptions=False)
