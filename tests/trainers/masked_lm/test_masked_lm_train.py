"""`osn train mlm`: models learn, interrupted or not."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from masked_lm_setup import sentences, windows_of
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from opensearch_neural.errors import InputError
from opensearch_neural.models.pretrained import load_tokenizer
from trainers.common.batches import IGNORED
from trainers.common.config import load_config
from trainers.common.sampling import Visit
from trainers.common.settings import TrainingSettings
from trainers.data.masking import special_ids
from trainers.data.tokenized import pad_rows
from trainers.encoders import backbones
from trainers.encoders.backbones import masked_language_model
from trainers.encoders.sequence_to_sequence import log_likelihood
from trainers.encoders.settings import NewBackbone
from trainers.masked_lm import train as masked_lm
from trainers.masked_lm.command import mlm_command
from trainers.masked_lm.settings import MaskedLmConfig
from trainers.masked_lm.train import MaskedLmTraining, train_masked_lm
from trainers.masked_lm.windows import CorruptedWindows, MaskedWindows


def small(corpus: Path, output: Path, **changes: object) -> MaskedLmConfig:
    config = MaskedLmConfig(
        output=output,
        corpus=[corpus],
        new=NewBackbone(layers=1, hidden=32, heads=2, vocabulary=200, dropout=0.0),
        max_length=32,
        dev_share=0.1,
        training=TrainingSettings(steps=120, batch_size=16, learning_rate=1e-2, warmup=5, bucket=4, evaluate_every=60),
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def measures(output: Path) -> dict[str, float]:
    return json.loads((output / "osn.json").read_text())["measures"]


def test_a_new_bert_learns_the_language_of_its_corpus(corpus: Path, tmp_path: Path) -> None:
    config = small(corpus, tmp_path / "bert", whole_word=True)
    output = train_masked_lm(config)
    found = measures(output)
    # ln 12 = 2.5 nats is what knowing the words, but not the text about them, gives.
    assert found["start log_likelihood"] < -4
    assert found["log_likelihood"] > -1.2
    model, tokenizer, fresh = masked_language_model(output)
    assert not fresh
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert tokenizer.tokenize("alpha") == ["alpha"]
    assert AutoModel.from_pretrained(output).config.hidden_size == 32
    assert json.loads((output / "osn.json").read_text())["kind"] == "masked-lm"
    assert train_masked_lm(config) == output


def test_windows_that_are_longer_than_the_model_has_positions_are_refused(corpus: Path, tmp_path: Path) -> None:
    new = NewBackbone(layers=1, hidden=32, heads=2, vocabulary=200, positions=24)
    with pytest.raises(InputError, match="max_length is 32, but the backbone has 24 positions"):
        train_masked_lm(small(corpus, tmp_path / "bert", new=new))


def test_a_folder_that_holds_something_else_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.mkdir()
    (output / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds something else \(notes\.txt\)"):
        train_masked_lm(small(corpus, output))
    assert [path.name for path in output.iterdir()] == ["notes.txt"]


def test_a_tokenizer_of_other_settings_is_made_anew(corpus: Path, tmp_path: Path) -> None:
    refused = small(
        corpus, tmp_path / "model", new=NewBackbone(layers=1, hidden=32, heads=2, vocabulary=60, positions=24)
    )
    with pytest.raises(InputError, match="max_length"):
        train_masked_lm(refused)
    config = small(corpus, tmp_path / "model")
    train_masked_lm(config)
    assert config.new is not None
    tokenizer = load_tokenizer(tmp_path / "model")
    assert tokenizer.model_max_length == config.new.positions != 24


def test_a_corpus_that_was_mended_before_training_began_has_a_tokenizer_of_its_own(
    corpus: Path, tmp_path: Path
) -> None:
    config = small(corpus, tmp_path / "model")
    with pytest.raises(InputError, match="max_length"):  # after its tokenizer was made
        train_masked_lm(replace(config, max_length=1000))
    lines = [json.dumps({"_id": str(at), "text": "zebra quagga okapi"}) + "\n" for at in range(200)]
    corpus.write_text("".join(lines))
    train_masked_lm(config)
    assert "zebra" in backbones.load_tokenizer(tmp_path / "model").get_vocab()


def test_a_new_t5_learns_to_fill_spans(corpus: Path, tmp_path: Path) -> None:
    new = NewBackbone("t5", layers=1, hidden=32, heads=2, vocabulary=450, dropout=0.0)
    config = small(corpus, tmp_path / "t5", new=new)
    config.training = replace(config.training, steps=40)
    with pytest.raises(InputError, match="whole_word would have no effect: a T5 learns from spans"):
        train_masked_lm(replace(config, whole_word=True))
    found = measures(train_masked_lm(config))
    assert found["log_likelihood"] > found["start log_likelihood"] + 1
    model, tokenizer = backbones.sequence_to_sequence(tmp_path / "t5")
    assert tokenizer.decode(tokenizer("https://x.org/7")["input_ids"], skip_special_tokens=True) == "https://x.org/7"
    data = CorruptedWindows(windows_of(sentences(4), tokenizer), tokenizer, 0.15)
    assert np.isfinite(log_likelihood(masked_lm.SequenceToSequence(model, tokenizer), data))


def test_an_interrupted_run_ends_in_the_same_weights(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def config(output: Path) -> MaskedLmConfig:
        settings = TrainingSettings(steps=8, batch_size=8, learning_rate=1e-3, save_every=3, evaluate_every=8)
        return small(corpus, output, training=settings, dev_share=0.0)

    undisturbed = train_masked_lm(config(tmp_path / "whole"))
    visits = 0
    original = MaskedWindows.__getitem__

    def stopping(self: MaskedWindows, visit: Visit) -> object:
        nonlocal visits
        visits += 1
        if visits > 8 * 5:
            raise RuntimeError("killed")
        return original(self, visit)

    with monkeypatch.context() as patch:
        patch.setattr(MaskedWindows, "__getitem__", stopping)
        with pytest.raises(RuntimeError, match="killed"):
            train_masked_lm(config(tmp_path / "killed"))
    assert not (tmp_path / "killed" / "osn.json").exists()
    train_masked_lm(config(tmp_path / "killed"))
    weights = load_file(undisturbed / "model.safetensors")
    resumed = load_file(tmp_path / "killed" / "model.safetensors")
    assert weights.keys() == resumed.keys()
    for name in weights:
        torch.testing.assert_close(resumed[name], weights[name], rtol=0, atol=0)


def test_a_start_whose_weights_changed_is_another_start(corpus: Path, tmp_path: Path, headless: Path) -> None:
    start = tmp_path / "start"
    shutil.copytree(headless, start)
    settings = TrainingSettings(steps=1, batch_size=8)
    config = small(corpus, tmp_path / "model", backbone=str(start), new=None, training=settings, dev_share=0.0)
    assert train_masked_lm(config) == train_masked_lm(config)
    weights = load_file(start / "model.safetensors")
    save_file({name: 2 * weight for name, weight in weights.items()}, start / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="from another start"):
        train_masked_lm(config)


def test_the_command_takes_yaml_and_overrides_and_a_dry_run_keeps_nothing(corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "mlm.yaml"
    path.write_text(
        f"output: {tmp_path / 'out'}\ncorpus: [{corpus}]\nnew: {{layers: 1, hidden: 16, heads: 2, vocabulary: 200}}\n"
    )
    arguments = ["--config", str(path), "--set", "max_length=16", "--dry-run"]
    result = CliRunner().invoke(mlm_command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert "two steps" in result.output
    assert not (tmp_path / "out").exists()


def test_the_loss_of_masked_positions_alone_is_the_loss_of_the_whole_model(
    headless: Path, word_pieces: backbones.PreTrainedTokenizerBase
) -> None:
    model, _, _ = masked_language_model(headless)
    data = MaskedWindows(windows_of(["alpha beta gamma", "mu"], word_pieces), word_pieces, 0.4, False)
    batch = data.collate([data[Visit(index, 0, 0, 7)] for index in (0, 1)])
    assert batch.input_ids.shape == (2, 8 * math.ceil((len(data.windows[0]) + 2) / 8))
    training_model = MaskedLmTraining(model.eval(), word_pieces)
    found = training_model(batch)
    tensors = {name: getattr(batch, name) for name in ("input_ids", "attention_mask", "labels")}
    expected = model(**tensors)
    torch.testing.assert_close(found.total, expected.loss)
    found.total.backward()
    own = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    expected.loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(own[name], parameter.grad, msg=name)


def test_padding_is_never_predicted_and_never_seen(word_pieces: backbones.PreTrainedTokenizerBase) -> None:
    assert pad_rows([[1, 2, 3], [4]], 9).tolist() == [[1, 2, 3, 9, 9, 9, 9, 9], [4, 9, 9, 9, 9, 9, 9, 9]]
    data = MaskedWindows(windows_of(["alpha", "beta gamma delta epsilon"], word_pieces), word_pieces, 0.5, False)
    batch = data.collate([data[Visit(index, 0, 0, 0)] for index in (0, 1)])
    padding = batch.attention_mask == 0
    assert (batch.labels[padding] == IGNORED).all()
    assert not special_ids(word_pieces)[batch.labels[batch.labels != IGNORED].numpy()].any()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("corpus: [x]", "either 'backbone', a model to continue with, or 'new'"),
        ("corpus: [x]\nbackbone: m\nnew: {}", "either 'backbone'"),
        ("corpus: [x]\nbackbone: m\nmasked: 1.5", "masked must be between 0 and 1"),
        ("corpus: [x]\nnew: {architecture: gpt}", "expected one of bert, t5"),
        ("corpus: [x]\nnew: {layer: 4}", "there is no field 'new.layer'"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"output: out\n{text}\n")
    with pytest.raises(InputError, match=message):
        load_config(MaskedLmConfig, path)
