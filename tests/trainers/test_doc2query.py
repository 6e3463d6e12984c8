from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from tiny import WORDS, tiny_backbone
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.models.directory import write_osn_json
from trainers.common.settings import TrainingSettings
from trainers.data.loading import load_training
from trainers.data.texts import TextStore
from trainers.doc2query import generate, sampling
from trainers.doc2query import train as doc2query
from trainers.doc2query.consistency import filter_generated
from trainers.doc2query.generate import generate_queries, generate_queries_command
from trainers.doc2query.sampling import Sampling, TopKThenNucleus, sample_queries
from trainers.doc2query.train import Doc2QueryConfig, doc2query_command, run
from trainers.encoders import backbones
from trainers.encoders.backbones import NewBackbone, new_backbone, train_tokenizer

NOUNS = ["cat", "dog", "bird", "fish", "snake", "horse", "goat", "mouse"]


def passage(noun: str, number: int) -> str:
    return f"{noun} {noun} {noun} number {number} lives here"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models gain nothing from threads, and lose much where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("t5")
    texts = [f"{passage(noun, 1)} what is a {noun}" for noun in NOUNS]
    tokenizer = train_tokenizer(texts * 3, "byte-level", 460)
    torch.manual_seed(0)
    model = new_backbone(NewBackbone("t5", layers=1, hidden=32, heads=2, dropout=0.0), tokenizer)
    # Larger weights than usual, so that an untrained model is not indifferent between tokens.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    backbones.save(model, tokenizer, folder)
    return folder


@pytest.fixture
def documents() -> TextStore:
    return TextStore((f"d{i}", passage(NOUNS[i % len(NOUNS)], i) + " indeed" * (i % 3)) for i in range(10))


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


SMALL = Sampling(candidates=2, query_length=6, passage_length=24, batch_size=2)


# ------------------------------------------------------------------------------------------------ training


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
    run(config)
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
    trained: list[doc2query.Pairs] = []
    monkeypatch.setattr(doc2query, "train", lambda model, data, *_, **__: trained.append(data))
    for unseen in ([], [other]):
        run(Doc2QueryConfig(tmp_path / "model", [path], str(t5), unseen=unseen, dev_share=0.0))
    whole, without = ([example.query for example in data.data.examples] for data in trained)
    assert len(whole) == 8 and without == [query for query in whole if query != "what is q3"]


def test_the_training_command_dry_runs(t5: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"query": f"q{i}", "positive": f"p{i}"}) + "\n" for i in range(8)))
    arguments = ["--set", f"backbone={t5}", "--set", f"data=[{path}]", "--output", str(tmp_path / "m"), "--dry-run"]
    result = CliRunner().invoke(doc2query_command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert not (tmp_path / "m").exists()


# ------------------------------------------------------------------------------------------------ sampling


@pytest.mark.parametrize(
    ("top_k", "top_p", "temperature"), [(5, 0.7, 1.0), (25, 0.95, 0.7), (3, 1.0, 1.0), (50, 0.3, 2.0)]
)
def test_top_k_then_nucleus_is_what_transformers_warpers_give(top_k: int, top_p: float, temperature: float) -> None:
    scores = torch.randn(20, 40, generator=torch.Generator().manual_seed(0)) * 3
    theirs = LogitsProcessorList(
        [TemperatureLogitsWarper(temperature), TopKLogitsWarper(min(top_k, 40)), TopPLogitsWarper(top_p)]
    )
    ids = torch.zeros(20, 1, dtype=torch.long)
    torch.testing.assert_close(TopKThenNucleus(top_k, top_p, temperature)(ids, scores), theirs(ids, scores))


def test_nucleus_by_hand() -> None:
    scores = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    kept = TopKThenNucleus(4, 0.79)(torch.zeros(1, 1), scores).exp()
    torch.testing.assert_close(kept, torch.tensor([[0.5, 0.3, 0.0, 0.0]]))
    # Of the top three, 0.5 / 0.95 is not yet 0.79, and together with the next it is more.
    assert TopKThenNucleus(3, 0.79)(torch.zeros(1, 1), scores).isfinite().tolist() == [[True, True, False, False]]
    assert TopKThenNucleus(1, 0.99)(torch.zeros(1, 1), scores).isfinite().tolist() == [[True, False, False, False]]


def test_the_log_probability_is_that_of_the_tokens_under_the_whole_distribution(t5: Path) -> None:
    model, tokenizer = backbones.sequence_to_sequence(t5)
    model.eval()
    texts = [passage("cat", 1), passage("dog", 22) + " and eats"]
    greedy = Sampling(candidates=1, top_k=1, query_length=7)
    found = sample_queries(model, tokenizer, texts, greedy, seed=0)
    for text, (candidate,) in zip(texts, found, strict=True):
        # Token by token, one passage at a time, without padding or cache.
        inputs = tokenizer(text, return_tensors="pt")
        tokens = [model.config.decoder_start_token_id]
        expected = 0.0
        while len(tokens) <= 7 and tokens[-1] != tokenizer.eos_token_id:
            with torch.no_grad():
                logits = model(**inputs, decoder_input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
            tokens.append(int(logits.argmax()))
            expected += float(logits.log_softmax(-1)[tokens[-1]])
        assert candidate.log_probability == pytest.approx(expected, abs=2e-3)
        assert candidate.tokens == len(tokens) - 1
        assert candidate.text == " ".join(tokenizer.decode(tokens, skip_special_tokens=True).split())


def test_what_follows_the_end_has_no_likelihood() -> None:
    tokens = torch.tensor([[5, 1, 0, 0], [5, 6, 7, 8], [1, 1, 0, 0]])
    assert sampling._until_end(tokens, 1).tolist() == [[5, 1, -100, -100], [5, 6, 7, 8], [1, -100, -100, -100]]


def test_candidates_differ_and_follow_the_seed(t5: Path) -> None:
    model, tokenizer = backbones.sequence_to_sequence(t5)
    sampling = Sampling(candidates=4, query_length=6)
    state = torch.random.get_rng_state()
    first, again, other = (
        sample_queries(model.eval(), tokenizer, [passage("cat", 1)], sampling, seed=seed)[0] for seed in (1, 1, 2)
    )
    assert first == again != other
    assert len({candidate.text for candidate in first}) > 1
    assert torch.equal(torch.random.get_rng_state(), state)


def test_queries_stay_with_their_passages_whatever_the_batch(t5: Path) -> None:
    model, tokenizer = backbones.sequence_to_sequence(t5)
    texts = [passage(noun, 7) + " and so on" * (i % 4) for i, noun in enumerate(NOUNS)]
    results = [
        sample_queries(
            model.eval(), tokenizer, texts, Sampling(candidates=1, top_k=1, query_length=5, batch_size=size), seed=0
        )
        for size in (1, 3, 8)
    ]
    assert [[c.text for c in row] for row in results[0]] == [[c.text for c in row] for row in results[1]]
    assert [[c.text for c in row] for row in results[0]] == [[c.text for c in row] for row in results[2]]


# ------------------------------------------------------------------------------------------------ files


def test_every_document_gets_its_candidates_in_order(t5: Path, documents: TextStore, tmp_path: Path) -> None:
    output = tmp_path / "q.jsonl"
    assert generate_queries(t5, documents, output=output, sampling=SMALL, chunk=4)
    header, *lines = read(output)
    assert header["osn"] == "generated-queries"
    assert (header["candidates"], header["top_k"], header["top_p"], header["seed"]) == (2, 25, 0.95, 42)
    assert header["counts"]["queries"] == 20
    assert [line["_id"] for line in lines] == documents.ids
    for line in lines:
        assert len(line["queries"]) == 2
        assert all(query["log_probability"] < 0 and 1 <= query["tokens"] <= 6 for query in line["queries"])


def test_an_interrupted_generation_goes_on_and_ends_in_the_same_file(
    t5: Path, documents: TextStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate_queries(t5, documents, output=tmp_path / "whole.jsonl", sampling=SMALL, chunk=3)
    calls = 0
    original = generate.sample_queries

    def stopping(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return original(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(generate, "sample_queries", stopping)
    output = tmp_path / "q.jsonl"
    with pytest.raises(KeyboardInterrupt):
        generate_queries(t5, documents, output=output, sampling=SMALL, chunk=3)
    assert not output.exists()
    # The random state of the process that goes on is another one.
    torch.manual_seed(99)
    generate_queries(t5, documents, output=output, sampling=SMALL, chunk=3)
    assert calls == 5
    assert output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert generate_queries(t5, documents, output=output, sampling=SMALL, chunk=3)
    assert calls == 5


def test_a_generator_that_fails_at_once_leaves_nothing_in_the_way(
    t5: Path, documents: TextStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "generated.jsonl"

    def fail(*_: Any, **__: Any) -> None:
        raise ModelError("does not load")

    with monkeypatch.context() as broken:
        broken.setattr(backbones, "sequence_to_sequence", fail)
        with pytest.raises(ModelError, match="does not load"):
            generate_queries(t5, documents, output=output, sampling=replace(SMALL, seed=8))
    assert not list(tmp_path.iterdir())
    assert generate_queries(t5, documents, output=output, sampling=SMALL)


def test_a_model_that_was_trained_for_something_else_writes_no_queries(
    t5: Path, documents: TextStore, tmp_path: Path
) -> None:
    other = shutil.copytree(t5, tmp_path / "t5")
    write_osn_json(other, "masked-lm")
    with pytest.raises(ModelError, match="is a masked-lm model, which writes no queries"):
        generate_queries(other, documents, output=tmp_path / "generated.jsonl", sampling=SMALL)
    assert [one.name for one in tmp_path.iterdir()] == ["t5"]


def test_shards_together_are_the_whole(t5: Path, documents: TextStore, tmp_path: Path) -> None:
    generate_queries(t5, documents, output=tmp_path / "whole.jsonl", sampling=SMALL, chunk=2)
    output = tmp_path / "q.jsonl"
    ended = [
        generate_queries(t5, documents, output=output, sampling=SMALL, chunk=2, shard=(shard, 3)) for shard in (2, 1, 3)
    ]
    assert ended == [False, False, True]
    assert output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    with pytest.raises(InputError, match="there is no shard 4/3"):
        generate_queries(t5, documents, output=tmp_path / "x.jsonl", sampling=SMALL, shard=(4, 3))


def test_queries_of_another_model_or_other_settings_are_refused(t5: Path, documents: TextStore, tmp_path: Path) -> None:
    output = tmp_path / "q.jsonl"
    generate_queries(t5, documents, output=output, sampling=SMALL)
    with pytest.raises(InputError, match="top_k: 25 there, 10 now"):
        generate_queries(
            t5, documents, output=output, sampling=Sampling(2, 10, query_length=6, passage_length=24, batch_size=2)
        )
    other = TextStore([("d0", "another text")])
    with pytest.raises(InputError, match="documents: "):
        generate_queries(t5, other, output=output, sampling=SMALL)
    with pytest.raises(InputError, match="top_p must be in"):
        Sampling(top_p=0)


class Finds:
    """A retriever that knows which document each text is about."""

    name = "finds"

    def __init__(self, hits: Mapping[str, list[str]]) -> None:
        self.hits = hits

    def retrieve(self, queries: Mapping[str, str], k: int) -> dict[str, dict[str, float]]:
        return {
            query: {document: 9.0 - at for at, document in enumerate(self.hits.get(text, [])[:k])}
            for query, text in queries.items()
        }


def test_only_queries_that_find_their_own_passage_are_kept(tmp_path: Path) -> None:
    documents = TextStore([("a", "cats"), ("b", "dogs"), ("c", "Cats!"), ("e", "emus")])
    path = tmp_path / "q.jsonl"
    header = {"osn": "generated-queries", "format": 1, "documents": documents.hash, "counts": {}}
    rows = {"a": ["purr", "Purr?", "bark", ""], "b": ["bark", "late"], "c": ["purr"], "e": ["run"]}
    lines = [
        {"_id": key, "queries": [{"text": text, "log_probability": -1} for text in texts]}
        for key, texts in rows.items()
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *lines]))
    retriever = Finds({"purr": ["a"], "Purr?": ["b", "a"], "bark": ["b"], "late": ["a", "c", "b"], "run": ["a"]})

    counts = filter_generated(path, documents, retriever, top=2, output=tmp_path / "kept.jsonl", chunk=2)
    header, *kept = read(tmp_path / "kept.jsonl")
    assert [[query["text"] for query in line["queries"]] for line in kept] == [["purr"], ["bark"], ["purr"], []]
    assert kept[0]["queries"][0]["log_probability"] == -1
    assert counts == {"passages": 4, "queries": 3, "left_out": 5, "without": 1}
    assert (header["consistency"], header["retriever"]) == (2, "finds")
    with pytest.raises(InputError, match="queries for other documents"):
        filter_generated(path, TextStore([("a", "x")]), retriever, top=2, output=tmp_path / "o.jsonl")


def test_the_command_generates_filters_and_gives_training_data(t5: Path, documents: TextStore, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"_id": key, "text": text}) + "\n" for key, text in documents.items()))
    output = tmp_path / "q.jsonl"
    arguments = [str(corpus), "--model", str(t5), "--output", str(output), "--candidates", "2", "--query-length", "5"]
    result = CliRunner().invoke(generate_queries_command, [*arguments, "--consistency", "10"], catch_exceptions=False)
    assert result.exit_code == 0
    assert (tmp_path / "q.unfiltered.jsonl").exists()
    assert len(read(output)) == 11
    data = load_training(tmp_path / "q.unfiltered.jsonl", corpus=corpus)
    texts = {query["text"] for line in read(tmp_path / "q.unfiltered.jsonl")[1:] for query in line["queries"]}
    assert {example.query for example in data.examples} == {text for text in texts if text}
    assert data.documents.hash == documents.hash
    assert all(example.query_id.split("#")[0] == example.positives[0] for example in data.examples)
    with pytest.raises(InputError, match="expected I/N"):
        CliRunner().invoke(generate_queries_command, [*arguments, "--shard", "2"], catch_exceptions=False)


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
    assert backbones.is_sequence_to_sequence(run(config))
