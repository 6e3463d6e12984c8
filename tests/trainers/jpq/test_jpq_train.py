"""`osn train jpq` from data to model directory; bad input is named."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")
pytest.importorskip("faiss")
from jpq_setup import DOCUMENTS  # noqa: E402
from osn_train import osn_train  # noqa: E402
from sentence_transformers import SentenceTransformer  # noqa: E402
from tiny import WORDS, tiny_beir  # noqa: E402

from opensearch_neural.errors import InputError, ModelError  # noqa: E402
from opensearch_neural.models.dense.quantized import load_quantized  # noqa: E402
from opensearch_neural.models.dense.torch_encoder import documents_alike, load_dense  # noqa: E402
from trainers.common.batches import Batch  # noqa: E402
from trainers.jpq.jpq_model import JpqModel  # noqa: E402
from trainers.jpq.preparation import Preparation, dev_measures  # noqa: E402
from trainers.jpq.settings import JpqConfig, JpqObjective, JpqSelection, JpqSet, NegativeSettings, QuantizerSettings  # noqa: E402
from trainers.jpq.train import train_jpq  # noqa: E402


def test_training_improves_the_quantized_ranking_and_writes_a_directory_that_gives_it(config: JpqConfig) -> None:
    trained = train_jpq(config)
    assert trained.measures["nDCG@10"] > 1.5 * trained.measures["start nDCG@10"]
    model = load_quantized(config.output, device="cpu")
    assert not np.allclose(model.quantizer.scoring, model.quantizer.assigning)
    start = load_dense(config.start, device="cpu")
    texts = ["bab dek", "fin gol kuz lab"]
    np.testing.assert_allclose(model.dense.encode_documents(texts), start.encode_documents(texts), atol=1e-5)
    assert documents_alike(start, model.dense)
    queries = model.encode_queries(texts)
    assert np.abs(queries - start.encode_queries(texts)).max() > 1e-2
    # The same again returns at once.
    assert train_jpq(config).measures == trained.measures


def test_a_model_is_not_measured_on_two_contents_of_a_dev_set(config: JpqConfig, beir: Path, tmp_path: Path) -> None:
    data = shutil.copytree(beir, tmp_path / "data")
    dev, training = [JpqSet(data, split="dev", name="dev")], replace(config.training, steps=1)
    config = replace(config, dev=dev, training=training)
    assert train_jpq(config).steps == 1
    judged = (data / "qrels/dev.tsv").read_text().splitlines(keepends=True)
    (data / "qrels/dev.tsv").write_text("".join(judged[:-1]))
    with pytest.raises(InputError, match="another content of the dev set dev"):
        train_jpq(config)


def test_what_the_directory_retrieves_is_what_was_measured_on_dev(config: JpqConfig) -> None:
    from opensearch_neural.evaluation.measures import measure
    from trainers.data.negatives import open_retriever

    trained = train_jpq(replace(config, training=replace(config.training, steps=20)))
    data = config.dev[0].load()
    retriever = open_retriever(f"quantized:{config.output}", data.documents, device="cpu")
    found = measure(retriever.retrieve(data.query_texts(), 100), data.qrels(), ("nDCG@10",)).mean
    assert found["nDCG@10"] == pytest.approx(trained.measures["nDCG@10"], abs=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": JpqObjective(labels="ranking")},
        {
            "negatives": NegativeSettings(depth=20, search="uncompressed"),
            "objective": JpqObjective(documents="uncompressed"),
            "quantizer": QuantizerSettings(subvectors=4, rotation_iterations=1),
        },
        {"quantizer": QuantizerSettings(subvectors=8, rotate=False, train_centroids=False)},
    ],
    ids=["own ranking", "all uncompressed", "PQ, frozen centroids"],
)
def test_each_ablation_trains(config: JpqConfig, changes: dict[str, Any]) -> None:
    training = replace(config.training, steps=3, evaluate_every=3)
    trained = train_jpq(replace(config, training=training, dev=[], selection=JpqSelection(40, 20), **changes))
    assert trained.steps == 3
    assert 0 <= trained.measures["nDCG@10"] <= 1


def test_an_interrupted_run_goes_on_to_the_same_centroids(
    config: JpqConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = replace(config, dev=[], output=tmp_path / "plain", training=replace(config.training, steps=6, save_every=2))
    train_jpq(plain)
    broken = replace(plain, output=tmp_path / "broken")
    forward, calls = JpqModel.forward, []

    def failing(self: JpqModel, batch: Batch) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return forward(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(JpqModel, "forward", failing)
        with pytest.raises(KeyboardInterrupt):
            train_jpq(broken)
    train_jpq(broken)
    one, other = (load_quantized(folder.output).quantizer.scoring for folder in (plain, broken))
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_corpus_without_questions_trains_on_the_start_models_own_ranking(config: JpqConfig, tmp_path: Path) -> None:
    drawn = random.Random(1)
    corpus = tmp_path / "docs.jsonl"
    with corpus.open("w") as file:
        for at in range(600):
            text = f"{' '.join(drawn.sample(WORDS, 6))}. {' '.join(drawn.sample(WORDS, 20))}."
            file.write(json.dumps({"_id": str(at), "title": "", "text": text}) + "\n")
    own = replace(
        config,
        train=[JpqSet(corpus, questions="first-sentence")],
        training=replace(config.training, learning_rate=1e-3, steps=24, evaluate_every=8),
        dev=[],
        selection=JpqSelection(hold_back=60),
        cache=tmp_path / "cache",
    )
    assert own.ranked == (True,)
    ready = Preparation(own)
    assert len(ready.data.documents) == 600
    # Documents are whole, the question that was taken from them included.
    assert ready.data.queries.text_at(0) in ready.data.documents.text_at(0)
    (dev,) = ready.dev_sets()
    assert {len(found) for found in dev.qrels.values()} == {10}
    before = dev_measures(ready.model, [dev])["nDCG@10"]
    trained = train_jpq(own)
    assert trained.measures["start nDCG@10"] == pytest.approx(before)
    assert trained.measures["nDCG@10"] > before + 0.03


def test_several_sets_make_one_index(config: JpqConfig, beir: Path, tmp_path: Path) -> None:
    two = replace(
        config,
        train=[JpqSet(beir, name="a"), JpqSet(tiny_beir(tmp_path / "b", documents=40, seed=5))],
        dev=[],
        selection=JpqSelection(hold_back=20),
        training=replace(config.training, steps=2, evaluate_every=1),
    )
    ready = Preparation(two)
    assert len(ready.documents) == DOCUMENTS + 40
    assert ready.documents.ids[0] == "a/d0"
    assert ready.dev_sets()[0].documents is ready.documents
    assert train_jpq(two).steps == 2


def test_a_start_without_a_transformer_is_refused(config: JpqConfig, tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(config.start).backend_tokenizer
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=16)], device="cpu")
    model.save_pretrained(str(tmp_path / "static"))
    with pytest.raises(ModelError, match="first module is a StaticEmbedding"):
        Preparation(replace(config, start=str(tmp_path / "static"), cache=tmp_path / "cache"))


def test_the_command_trains_and_prints_its_measures(config: JpqConfig, tmp_path: Path) -> None:
    settings = [
        f"train=[{{path: {config.train[0].path}}}]",
        f"start={config.start}",
        f"cache={config.cache}",
        "quantizer.subvectors=4",
        "quantizer.rotation_iterations=1",
        "selection.hold_back=20",
        "training.batch_size=8",
    ]
    # More is held back than a dry run reads.
    dry = osn_train("jpq", tmp_path / "out", [*settings, "selection.hold_back=130"], "--dry-run")
    assert "nothing kept (dry run): 2 steps" in dry.stdout
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="does not divide the dimension 32"):
        osn_train("jpq", tmp_path / "out", [*settings, "quantizer.subvectors=5"])
