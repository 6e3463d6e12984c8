"""`osn train doc2query`: a generator learns the query of a passage."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from doc2query_setup import NOUNS, passage
from safetensors.torch import load_file, save_file
from tiny import WORDS, tiny_backbone

from opensearch_neural.errors import InputError
from trainers.common.settings import TrainingSettings
from trainers.data.texts import TextStore
from trainers.doc2query import train as doc2query
from trainers.doc2query.command import doc2query_command
from trainers.doc2query.generate import generate_queries
from trainers.doc2query.sampling import sample_queries
from trainers.doc2query.settings import Doc2QueryConfig, GenerationSettings, Sampling
from trainers.doc2query.train import train_doc2query
from trainers.encoders import backbones


def test_a_generator_learns_the_query_of_a_passage(t5: Path, tmp_path: Path) -> None:
    rng = random.Random(0)
    nouns = [rng.choice(NOUNS) for _ in range(240)]
    rows = [{"query": f"what is a {noun}", "positive": passage(noun, i)} for i, noun in enumerate(nouns)]
    # Every question is asked once only, or hold_back could not part them.
    for i, row in enumerate(rows):
        row["query"] += f" {i}"
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = Doc2QueryConfig(
        output=tmp_path / "model",
        data=[path],
        backbone=str(t5),
        prefix="ask: ",
        passage_length=32,
        dev_share=0.1,
        training=TrainingSettings(steps=60, batch_size=16, learning_rate=1e-2, warmup=5, evaluate_every=60, bucket=2),
    )
    train_doc2query(config)
    osn = json.loads((tmp_path / "model" / "osn.json").read_text())
    assert osn["kind"] == "doc2query"
    assert osn["training"]["prefix"] == "ask: "
    assert osn["measures"]["log_likelihood"] > osn["measures"]["start log_likelihood"] + 2

    model, tokenizer = backbones.sequence_to_sequence(tmp_path / "model")
    greedy = Sampling(candidates=1, top_k=1, query_length=16, prefix="ask: ")
    (found,) = sample_queries(model.eval(), tokenizer, [passage("dog", 3)], greedy, seed=0)
    assert found[0].text.startswith("what is a")


def test_questions_of_unseen_sets_train_nothing(t5: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "pairs.jsonl", tmp_path / "unseen.jsonl"
    path.write_text("".join(json.dumps({"query": f"what is q{at}", "positive": f"p{at}"}) + "\n" for at in range(8)))
    other.write_text(json.dumps({"query": "What is  q3", "positive": "another"}) + "\n")
    trained: list[doc2query.QueryPairs] = []
    monkeypatch.setattr(doc2query, "train", lambda model, data, *_, **__: trained.append(data))
    for unseen in ([], [other]):
        train_doc2query(Doc2QueryConfig(tmp_path / "model", [path], str(t5), unseen=unseen, dev_share=0.0))
    whole, without = ([example.query for example in data.data.examples] for data in trained)
    assert len(whole) == 8 and without == [query for query in whole if query != "what is q3"]


def test_half_a_surrogate_pair_in_a_text_trains(t5: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(
        "".join(json.dumps({"query": f"q{i} \ud83d", "positive": f"p{i} \udc00"}) + "\n" for i in range(20))
    )
    training = TrainingSettings(steps=5, batch_size=4)
    config = Doc2QueryConfig(tmp_path / "m", [path], str(t5), dev_share=0.1, copying=True, training=training)
    train_doc2query(config)
    model, tokenizer = backbones.sequence_to_sequence(tmp_path / "m")
    sampling = Sampling(candidates=1, top_k=1, query_length=4)
    (written,) = sample_queries(model.eval(), tokenizer, ["half \ud83d"], sampling, seed=0)
    assert len(written) == 1


def test_a_start_whose_weights_changed_is_another_start(t5: Path, tmp_path: Path) -> None:
    path, start = tmp_path / "pairs.jsonl", tmp_path / "start"
    path.write_text("".join(json.dumps({"query": f"what is q{at}", "positive": f"p{at}"}) + "\n" for at in range(8)))
    shutil.copytree(t5, start)
    settings = TrainingSettings(steps=1, batch_size=4, device="cpu")
    config = Doc2QueryConfig(tmp_path / "model", [path], str(start), dev_share=0.0, training=settings)
    assert train_doc2query(config) == train_doc2query(config)
    weights = load_file(start / "model.safetensors")
    save_file({name: 2 * weight for name, weight in weights.items()}, start / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="from another start"):
        train_doc2query(config)


def test_the_training_command_dry_runs(t5: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"query": f"q{i}", "positive": f"p{i}"}) + "\n" for i in range(8)))
    arguments = ["--set", f"backbone={t5}", "--set", f"data=[{path}]", "--output", str(tmp_path / "m"), "--dry-run"]
    result = CliRunner().invoke(doc2query_command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert not (tmp_path / "m").exists()


def test_a_dry_run_holds_back_passages_with_many_questions(t5: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    rows = [{"query": f"what is q{at}", "positive": f"p{at // 8}"} for at in range(2000)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["--set", f"backbone={t5}", "--set", f"data=[{path}]", "--output", str(tmp_path / "m"), "--dry-run"]
    result = CliRunner().invoke(doc2query_command, arguments)
    assert result.exit_code == 0, result.output
    assert not (tmp_path / "m").exists()


def test_an_encoder_twice_is_a_start_for_a_generator(tmp_path: Path) -> None:
    encoder = tiny_backbone(tmp_path / "encoder", layers=3)
    model, tokenizer = backbones.encoder_decoder(encoder, layers=2)
    backbones.save(model, tokenizer, tmp_path / "both")
    loaded: Any
    loaded, tokenizer = backbones.sequence_to_sequence(tmp_path / "both")
    words = load_file(encoder / "model.safetensors")["embeddings.word_embeddings.weight"]
    for half, body in (("encoder", loaded.encoder), ("decoder", loaded.decoder.bert)):
        assert len(body.encoder.layer) == 2, half
        torch.testing.assert_close(body.embeddings.word_embeddings.weight, words)
    sampling = Sampling(candidates=2, query_length=6, passage_length=16)
    queries = sample_queries(loaded.eval(), tokenizer, ["bab dek", "gol"], sampling, seed=1)
    assert [len(of_passage) for of_passage in queries] == [2, 2]
    assert all(candidate.tokens <= 6 for of_passage in queries for candidate in of_passage)

    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps([word, f"{word} {word}"]) + "\n" for word in WORDS[:20]))
    settings = TrainingSettings(steps=1, batch_size=4, device="cpu")
    config = Doc2QueryConfig(tmp_path / "out", [pairs], str(encoder), passage_length=16, training=settings)
    assert backbones.is_sequence_to_sequence(train_doc2query(config))
    with pytest.raises(InputError, match="passage_length is 65, but the backbone has 64 positions"):
        train_doc2query(replace(config, passage_length=65))
    with pytest.raises(InputError, match="query_length is 65, but the backbone has 64 positions"):
        train_doc2query(replace(config, query_length=65))
    documents = TextStore([("a", "bab " * 100)])
    asked = GenerationSettings(str(tmp_path / "both"), passage_length=65)
    with pytest.raises(InputError, match="passage_length is 65, but the backbone has 64 positions"):
        generate_queries(asked, documents, output=tmp_path / "queries.jsonl")
    assert generate_queries(replace(asked, passage_length=64), documents, output=tmp_path / "queries.jsonl")
