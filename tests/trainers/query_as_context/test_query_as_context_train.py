"""The whole schedule on a tiny backbone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")
from osn_train import osn_train  # noqa: E402
from query_as_context_setup import pairs_of, settings, with_queries, write_corpus  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from tiny import WORDS, tiny_beir  # noqa: E402

from opensearch_neural.errors import InputError, ModelError  # noqa: E402
from trainers.common.batches import IGNORED  # noqa: E402
from trainers.common.sampling import Visit  # noqa: E402
from trainers.common.settings import TrainingSettings  # noqa: E402
from trainers.data.loading import read_documents  # noqa: E402
from trainers.data.settings import CandidateSettings, SetSettings  # noqa: E402
from trainers.dense.settings import DenseConfig, TwoStageSettings  # noqa: E402
from trainers.doc2query.settings import GenerationSettings  # noqa: E402
from trainers.encoders import backbones  # noqa: E402
from trainers.encoders.settings import NewBackbone  # noqa: E402
from trainers.query_as_context import train as query_as_context  # noqa: E402
from trainers.query_as_context.context_models import HEAD_FILE, build  # noqa: E402
from trainers.query_as_context.pairs import ContextPairs  # noqa: E402
from trainers.query_as_context.settings import CorpusSettings, QueryAsContextConfig  # noqa: E402
from trainers.query_as_context.train import held_back_loss, train_query_as_context  # noqa: E402


def test_what_cannot_end_well_is_refused_before_anything_is_made(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    def refused(config: QueryAsContextConfig, words: str) -> None:
        with pytest.raises((InputError, ModelError), match=words):
            train_query_as_context(config)
        assert not (tmp_path / "cache").exists()

    fine = settings(corpus, backbone, tmp_path / "out", cache=tmp_path / "cache")
    missing = SetSettings(tmp_path / "nowhere", split="test")
    refused(replace(fine, test=[missing]), "nowhere does not exist")
    retriever = DenseConfig(output=tmp_path / "retriever", train=[missing])
    refused(replace(fine, retriever=retriever), "nowhere does not exist")
    twice = [SetSettings(corpus), SetSettings(corpus, split="test")]
    refused(replace(fine, dev=twice), "two dev sets have the same name: articles")
    refused(replace(fine, test=twice), "two test sets have the same name: articles")
    refused(replace(fine, retriever=replace(retriever, train=twice)), "two train sets have the same name: articles")
    asking = replace(fine, context="query")
    refused(asking, "needs queries for articles")
    refused(
        replace(asking, corpora=[CorpusSettings(corpus, queries=tmp_path / "none.jsonl")]), "none.jsonl does not exist"
    )
    refused(replace(asking, generation=GenerationSettings(str(backbone))), "is not a sequence-to-sequence model")
    tokenizer = backbones.train_tokenizer(WORDS * 3, "byte-level", 400)
    generator = tmp_path / "generator"
    backbones.save(
        backbones.new_backbone(NewBackbone("t5", layers=1, hidden=32, heads=2), tokenizer), tokenizer, generator
    )
    weights = generator / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    refused(replace(asking, generation=GenerationSettings(str(generator))), "generator does not load as")
    refused(replace(fine, layers=9), "layers is 9")
    (tmp_path / "retriever").mkdir()
    (tmp_path / "retriever" / "thesis.txt").touch()
    train = SetSettings(corpus)
    refused(replace(fine, retriever=replace(retriever, train=[train])), r"something else \(thesis.txt\)")


def measures(output: Path) -> dict[str, float]:
    return dict(json.loads((output / "osn.json").read_text())["measures"])


@pytest.mark.parametrize("variant", ["cocondenser", "cot-mae"])
def test_pre_training_beats_its_start(variant: Any, tmp_path: Path, backbone: Path) -> None:
    # Few words: to know them is soon learned.
    corpus = write_corpus(tmp_path / "c.jsonl", articles=40, words=WORDS[:8])
    training = TrainingSettings(
        steps=20,
        batch_size=16,
        chunk_size=16,
        learning_rate=5e-3,
        precision="bfloat16",
        evaluate_every=20,
        device="cpu",
    )
    config = settings(corpus, backbone, tmp_path / "pretrained", variant=variant, training=training)
    train_query_as_context(with_queries(config, tmp_path / "q.jsonl"))
    measured = measures(config.output)
    assert measured["objective"] > measured["start objective"] + 1
    assert measured["masked_lm"] > measured["start masked_lm"] + 0.5
    assert query_as_context.steps_per_second(config.output)
    assert (config.output / HEAD_FILE).exists() == (variant == "cocondenser")


def test_the_checkpoint_is_a_backbone_that_every_trainer_takes(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    from opensearch_neural.models.dense.torch_encoder import load_dense

    beir = tiny_beir(tmp_path / "beir", documents=24)
    training = TrainingSettings(steps=1, batch_size=8, device="cpu")
    dev = [SetSettings(beir, split="dev", name="dev")]
    config = settings(corpus, backbone, tmp_path / "pretrained", training=training, dev=dev)
    train_query_as_context(config)
    assert {"nDCG@10", "start nDCG@10"} <= measures(config.output).keys()
    model: Any
    model, tokenizer, fresh = backbones.masked_language_model(config.output)
    assert not fresh
    encoded = load_dense(config.output, device="cpu").encode_queries(["bab dek"])
    inputs = tokenizer("bab dek", return_tensors="pt")
    # As a dense model it is CLS, raw.
    expected = model.eval().bert(**inputs).last_hidden_state[0, 0].detach().numpy()
    np.testing.assert_allclose(encoded[0], expected, atol=1e-5)

    lengths = ["encoder.document_length=16", "encoder.query_length=16"]
    of_sparse = ["document_length=16", "student.document_length=16", "student.query_length=16", "student.idf=train"]
    of_sparse += ["objective.kl=0", "objective.info_nce=1"]
    for method, more in {"dense": lengths, "mlr": lengths, "sparse": of_sparse}.items():
        asked = (f"train=[{{path: {beir}}}]", "training.batch_size=4", *more)
        osn_train(method, tmp_path / method, asked, "--dry-run", "--backbone", str(config.output))


def test_a_model_is_not_measured_on_two_contents_of_a_dev_set(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    beir = tiny_beir(tmp_path / "beir", documents=24)
    training = TrainingSettings(steps=1, batch_size=8, device="cpu")
    dev = [SetSettings(beir, split="dev", name="dev")]
    config = settings(corpus, backbone, tmp_path / "pretrained", training=training, dev=dev)
    train_query_as_context(config)
    judged = (beir / "qrels/dev.tsv").read_text().splitlines(keepends=True)
    (beir / "qrels/dev.tsv").write_text("".join(judged[:-1]))
    with pytest.raises(InputError, match="another content of the dev set dev"):
        train_query_as_context(config)


def test_a_rehearsal_does_without_the_documents_that_are_tested_on(
    tmp_path: Path, backbone: Path, corpus: Path
) -> None:
    corpus = write_corpus(tmp_path / "long.jsonl", articles=80)
    beir = tmp_path / "beir"
    (beir / "qrels").mkdir(parents=True)
    documents = list(read_documents(corpus))
    (beir / "corpus.jsonl").write_text("".join(json.dumps(document.record()) + "\n" for document in documents))
    (beir / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": f"q{at}", "text": "bab"}) + "\n" for at in range(64))
    )
    judged = "".join(f"q{at}\t{document.id}\t1\n" for at, document in enumerate(documents[:64]))
    (beir / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    config = settings(corpus, backbone, tmp_path / "out", unseen=[SetSettings(beir, split="test")])
    query_as_context.rehearse(config)
    assert not config.output.exists()


def test_an_interrupted_run_ends_in_the_same_weights(
    tmp_path: Path, backbone: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def config(name: str) -> QueryAsContextConfig:
        training = TrainingSettings(
            steps=6, batch_size=8, chunk_size=4, gradient_accumulation=2, save_every=2, evaluate_every=6, device="cpu"
        )
        return settings(corpus, backbone, tmp_path / name, training=training, cache=tmp_path / "cache", dev_share=0.0)

    train_query_as_context(config("whole"))
    visits = 0
    original = ContextPairs.__getitem__

    def stopping(self: ContextPairs, visit: Visit) -> Any:
        nonlocal visits
        visits += 1
        if visits > 8 * 7:
            raise RuntimeError("killed")
        return original(self, visit)

    with monkeypatch.context() as patch:
        patch.setattr(ContextPairs, "__getitem__", stopping)
        with pytest.raises(RuntimeError, match="killed"):
            train_query_as_context(config("killed"))
    assert not (tmp_path / "killed" / "osn.json").exists()
    train_query_as_context(config("killed"))
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(resumed[name], weights) for name, weights in whole.items())


def test_held_back_loss_is_the_mean_over_masked_tokens_and_pairs(backbone: Path, tmp_path: Path, corpus: Path) -> None:
    config = settings(corpus, backbone, tmp_path / "out", dev_share=0.0)
    model = build(config).eval()
    pairs = pairs_of(config, model)
    with torch.no_grad():
        measured = held_back_loss(model, pairs)
        # 36 passages: a batch of 32 and one of 4, in an order that mixes articles.
        assert len(pairs) == 36
        order = np.random.default_rng(0).permutation(36)
        batches = [pairs.collate([pairs[Visit(at, 0, 0, 0)] for at in rows]) for rows in (order[:32], order[32:])]
        terms = [model(batch).terms for batch in batches]
    expected = (32 * terms[0]["contrastive"] + 4 * terms[1]["contrastive"]).item() / 36
    assert measured["contrastive"] == pytest.approx(expected, rel=1e-5)
    parts = [[part for of_role in batch.parts.values() for part in of_role] for batch in batches]
    tokens = [sum(int((part.labels != IGNORED).sum()) for part in of_batch) for of_batch in parts]
    expected = sum(n * losses["masked_lm"].item() for n, losses in zip(tokens, terms, strict=True)) / sum(tokens)
    assert measured["masked_lm"] == pytest.approx(expected, rel=1e-5)


def tiny_generator(folder: Path) -> Path:
    tokenizer = backbones.train_tokenizer(WORDS, "byte-level", 400)
    torch.manual_seed(0)
    new = NewBackbone("t5", layers=1, hidden=16, heads=2)
    backbones.save(backbones.new_backbone(new, tokenizer), tokenizer, folder)
    return folder


def schedule(tmp_path: Path, backbone: Path, beir: Path, **changes: Any) -> QueryAsContextConfig:
    """The paper's steps, two updates each, queries written by a tiny model."""
    two = TrainingSettings(steps=2, batch_size=8, device="cpu")
    retriever = DenseConfig(
        output=tmp_path / "retriever",
        train=[SetSettings(beir)],
        start="replaced by the checkpoint",
        training=two,
        candidates=CandidateSettings(negatives=1),
        two_stage=TwoStageSettings(depth=10),
    )
    retriever.encoder.document_length = retriever.encoder.query_length = 16
    return settings(
        write_corpus(tmp_path / "c.jsonl"),
        backbone,
        tmp_path / "pretrained",
        context="query",
        generation=GenerationSettings(str(tiny_generator(tmp_path / "t5")), candidates=2, query_length=6),
        training=two,
        retriever=retriever,
        **changes,
    )


def test_the_whole_paper_runs_and_repeats_nothing(
    tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beir = tiny_beir(tmp_path / "beir", documents=24)
    tested = [SetSettings(beir, split="dev", name="tested")]
    config = schedule(tmp_path, backbone, beir, test=tested)
    config.condenser = config.training
    steps = train_query_as_context(config)
    assert [step.name for step in steps] == ["Condenser", "pre-trained", "retriever 1", "retriever 2"]
    assert all("nDCG@10" in step.measures["tested"] for step in steps)
    for start in (tmp_path / "retriever", tmp_path / "retriever" / ".stages" / "retriever-1"):
        assert json.loads((start / "osn.json").read_text())["training"]["start"] == str(config.output)
    condenser = json.loads((config.output / ".stages" / "condenser" / "osn.json").read_text())
    assert condenser["training"]["context"] == "none"
    assert json.loads((config.output / "osn.json").read_text())["training"]["backbone"].endswith("condenser")

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("done already")

    monkeypatch.setattr("trainers.doc2query.generate.sample_queries", never)
    monkeypatch.setattr("trainers.common.loop.LoopTrainer.train", never)
    monkeypatch.setattr(query_as_context, "corpus_measures", never)
    monkeypatch.setattr("trainers.query_as_context.passages.split", never)
    again = train_query_as_context(config)
    assert [step.measures for step in again] == [step.measures for step in steps]
    # Also in folders that were moved.
    assert config.retriever is not None
    moved = replace(config.retriever, output=config.retriever.output.rename(tmp_path / "moved retriever"))
    config = replace(config, output=config.output.rename(tmp_path / "moved"), retriever=moved)
    assert [step.name for step in train_query_as_context(config)] == [step.name for step in steps]


def test_a_schedule_that_was_interrupted_between_steps_goes_on(
    tmp_path: Path, backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = schedule(tmp_path, backbone, tiny_beir(tmp_path / "beir", documents=24))

    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("done already")

    done: list[str] = []
    for step in (
        "query_as_context.train.pretrain",
        "query_as_context.train.train_dense",
        "dense.train.with_mined",
    ):
        with monkeypatch.context() as patch:
            for earlier in done:
                patch.setattr(earlier, never)
            patch.setattr(f"trainers.{step}", killed)
            with pytest.raises(KeyboardInterrupt):
                train_query_as_context(config)
        done = ["trainers.doc2query.generate.sample_queries"]
    steps = train_query_as_context(config)
    assert [step.name for step in steps] == ["pre-trained", "retriever 1", "retriever 2"]
