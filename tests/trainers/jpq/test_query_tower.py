"""The query encoder that learns: with all layers, some, or none."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")
pytest.importorskip("faiss")
from jpq_setup import batch_of  # noqa: E402
from sentence_transformers import SentenceTransformer  # noqa: E402
from sentence_transformers.base.modules import Transformer  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, StaticEmbedding  # noqa: E402

from opensearch_neural.errors import InputError  # noqa: E402
from opensearch_neural.models.dense.quantized import load_quantized  # noqa: E402
from opensearch_neural.models.dense.torch_encoder import TorchDenseEncoder, documents_alike, load_dense, stages_of  # noqa: E402
from trainers.encoders import backbones  # noqa: E402
from trainers.jpq.jpq_model import JpqModel  # noqa: E402
from trainers.jpq.preparation import Preparation  # noqa: E402
from trainers.jpq.query_tower import TokenTable, query_tower  # noqa: E402
from trainers.jpq.settings import JpqConfig, JpqObjective, NegativeSettings  # noqa: E402
from trainers.jpq.train import train_jpq  # noqa: E402


def strong(backbone: Path, folder: Path) -> Path:
    """The backbone with a first layer that changes much."""
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(backbone)
    with torch.no_grad():
        for parameter in model.encoder.layer[0].parameters():
            if parameter.ndim == 2:
                parameter.mul_(30)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(backbone).save_pretrained(folder)
    return folder


def test_a_query_encoder_of_fewer_layers_is_brought_back_to_the_start_s_vectors(
    config: JpqConfig, backbone: Path, tmp_path: Path
) -> None:
    config = replace(config, start=str(strong(backbone, tmp_path / "strong")), cache=None)
    texts = list(config.dev[0].load().query_texts().values())

    def likeness(encode: Any) -> float:
        start = load_dense(config.start, device="cpu").encode_queries(texts)
        vectors = np.asarray(encode(texts))
        lengths = np.linalg.norm(start, axis=1) * np.linalg.norm(vectors, axis=1)
        return float(((start * vectors).sum(axis=1) / lengths).mean())

    one = replace(config, query_layers=1, dev=[])
    assert one.alignment > config.alignment == 0
    ready = Preparation(one)
    assert batch_of(ready, teacher=ready.question_vectors(ready.data)).aligned is not None
    before = likeness(ready.model.query.encode)
    train_jpq(one)
    model = load_quantized(one.output, device="cpu")
    after = likeness(model.encode_queries)
    assert after > before + 0.2, before
    # Not by what ranking alone would do.
    unaligned = replace(one, output=tmp_path / "unaligned", objective=JpqObjective(alignment=0.0))
    train_jpq(unaligned)
    assert after > likeness(load_quantized(unaligned.output, device="cpu").encode_queries) + 0.1
    assert isinstance(model.dense, TorchDenseEncoder)
    depths = [len(stages_of(model.dense.model, "query")[0].auto_model.encoder.layer)]
    depths.append(len(stages_of(model.dense.model, "document")[0].auto_model.encoder.layer))
    assert depths == [1, 2]
    assert documents_alike(model.dense, load_dense(config.start, device="cpu"))


def test_the_layers_that_are_kept_lie_evenly_and_make_a_model_that_loads(tmp_path: Path) -> None:
    from transformers import AutoModel, BertConfig, BertModel

    assert backbones.spread(6, 6) == [0, 1, 2, 3, 4, 5]
    assert backbones.spread(6, 1) == [5]
    assert backbones.spread(6, 2) == [0, 5]
    assert backbones.spread(12, 4) == [0, 4, 7, 11]
    size = {"vocab_size": 30, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertModel(BertConfig(num_hidden_layers=5, **size)).eval()
    before = list(model.encoder.layer)
    backbones.keep_layers(model, 3)
    assert [before.index(layer) for layer in model.encoder.layer] == [0, 2, 4]
    model.save_pretrained(tmp_path / "three")
    ids = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        expected = model(ids).last_hidden_state
        found = AutoModel.from_pretrained(tmp_path / "three").eval()(ids).last_hidden_state
    torch.testing.assert_close(found, expected)


def test_a_query_encoder_without_layers_learns_the_start_s_vectors_by_tokens_alone(
    config: JpqConfig, backbone: Path, tmp_path: Path
) -> None:
    stages: list[Any] = [Transformer(str(strong(backbone, tmp_path / "strong"))), Pooling(32, "cls"), Normalize()]
    SentenceTransformer(modules=stages).save_pretrained(str(tmp_path / "cls"))
    config = replace(config, start=str(tmp_path / "cls"), cache=None)
    none = replace(config, query_layers=0, dev=[], onnx=True)
    texts = list(config.dev[0].load().query_texts().values())
    expected = load_dense(config.start, device="cpu").encode_queries(texts)

    def likeness(vectors: Any) -> float:
        own = np.asarray(vectors)
        lengths = np.linalg.norm(expected, axis=1) * np.linalg.norm(own, axis=1)
        return float(((expected * own).sum(axis=1) / lengths).mean())

    before = likeness(Preparation(none).model.query.encode(texts))
    train_jpq(none)
    model = load_quantized(none.output, device="cpu")
    vectors = model.encode_queries(texts)
    assert likeness(vectors) > before + 0.04, before
    apart = np.linalg.norm(vectors - vectors[:1], axis=1)[1:] / np.linalg.norm(vectors[0])
    assert apart.min() > 0.01, "all queries are the same"
    assert len(list(none.output.rglob("model.onnx"))) == 1, "of the document encoder"
    for backend in ("onnx", "onnx-int8"):
        written = load_quantized(none.output, backend=backend, threads=1)
        np.testing.assert_allclose(written.encode_queries(texts), vectors, atol=1e-5)
    assert documents_alike(model.dense, load_dense(config.start, device="cpu"))
    assert isinstance(model.dense, TorchDenseEncoder)
    assert isinstance(stages_of(model.dense.model, "query")[0], StaticEmbedding)


def test_a_table_that_is_aligned_alone_searches_nothing_and_leaves_other_tokens_as_they_were(
    config: JpqConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(JpqModel, "search", refused)
    some = [replace(config.train[0], limit=3)]
    quantizer, objective = replace(config.quantizer, learning_rate=None), JpqObjective(lambda_rank=0.0)
    settings: dict[str, Any] = {"objective": objective, "quantizer": quantizer, "negatives": NegativeSettings()}
    alone = replace(config, train=some, query_layers=0, dev=[], **settings)
    ready = Preparation(alone)
    table: Any = ready.model.query.stages[0]
    before = table.embedding.weight.detach().clone()
    train_jpq(alone)
    model = load_quantized(alone.output, device="cpu")
    np.testing.assert_array_equal(model.quantizer.scoring, model.quantizer.assigning)
    assert isinstance(model.dense, TorchDenseEncoder)
    after = stages_of(model.dense.model, "query")[0].embedding.weight
    texts = [ready.data.queries.text_at(row) for row in ready.data.query_rows.tolist()]
    asked = {token for text in texts for token in table.tokenizer.encode(text, add_special_tokens=False).ids}
    others = sorted({*range(len(before))} - asked)
    assert others and not torch.allclose(after[sorted(asked)], before[sorted(asked)], atol=1e-3)
    torch.testing.assert_close(after[others], before[others], rtol=1e-2, atol=1e-3)  # weight decay is slight
    lengths = before.norm(dim=1)
    assert lengths[sorted(asked)].max() < lengths[others].min(), "common tokens weigh less"


def test_a_prompt_is_common_to_all_queries_and_weighs_little(config: JpqConfig) -> None:
    start = load_dense(config.start, device="cpu")
    assert isinstance(start, TorchDenseEncoder)
    tower = query_tower(start, config, 0)
    assert isinstance(tower, TokenTable)
    table: Any = tower.stages[0]
    before = table.embedding.weight.detach().clone()
    tower.prompt = "bab "
    tower.weigh(["dek", "fin"])
    ratio = table.embedding.weight.detach().norm(dim=1) / before.norm(dim=1)
    prompt, half, none = (table.tokenizer.encode(word, add_special_tokens=False).ids for word in ("bab", "dek", "gol"))
    torch.testing.assert_close(ratio[prompt], torch.full((len(prompt),), 0.01 / 1.01))
    torch.testing.assert_close(ratio[half], torch.full((len(half),), 0.01 / 0.51))
    torch.testing.assert_close(ratio[none], torch.ones(len(none)))


def test_fewer_than_no_layers_and_nothing_to_learn_are_refused(config: JpqConfig) -> None:
    with pytest.raises(ValueError, match="nothing is learned"):
        replace(config, objective=JpqObjective(lambda_rank=0.0))
    with pytest.raises(ValueError, match="with query_layers 0 set"):
        replace(config, query_layers=0, training=replace(config.training, embedding_rate=1e-3))
    with pytest.raises(ValueError, match="dropout is for transformers"):
        replace(config, query_layers=0, dropout=0.1)
    with pytest.raises(ValueError, match="lambda_rank must be at least 0, not -1"):
        JpqObjective(lambda_rank=-1)
    with pytest.raises(ValueError, match="query_layers must be at least 0, not -1"):
        replace(config, query_layers=-1)


def test_layers_that_are_no_list_or_built_otherwise_are_refused() -> None:
    from transformers import AlbertConfig, AlbertModel, ModernBertConfig, ModernBertModel

    size = {"vocab_size": 30, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    with pytest.raises(InputError, match="albert: its layers are not one list"):
        backbones.keep_layers(AlbertModel(AlbertConfig(num_hidden_layers=4, embedding_size=8, **size)), 2)
    # The first layer of a ModernBERT has no norm before its attention.
    modern = ModernBertModel(ModernBertConfig(num_hidden_layers=4, pad_token_id=0, **size))
    with pytest.raises(InputError, match="modernbert: 1 of its 4 layers do not form a model of 1 layers"):
        backbones.keep_layers(copy.deepcopy(modern), 1)
    backbones.keep_layers(modern, 2)


def test_more_layers_than_the_start_has_are_refused_before_anything_is_encoded(config: JpqConfig) -> None:
    config = replace(config, query_layers=3, cache=None)
    with pytest.raises(InputError, match="3 layers are asked for, but the model has 2"):
        Preparation(config)
    assert not list(config.folder.glob("documents-*"))


def test_dropout_is_set_where_attention_is_told_its_share_too() -> None:
    from transformers import ModernBertConfig, ModernBertModel

    small = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 50,
    }
    config = ModernBertConfig(**small, attention_dropout=0.5, pad_token_id=0, eos_token_id=1, bos_token_id=2)
    model = ModernBertModel(config).train()
    assert backbones.largest_dropout(model) == 0.5
    backbones.set_dropout(model, 0.0)
    assert backbones.largest_dropout(model) == 0.0
    ids = torch.arange(3, 13)[None]
    assert torch.equal(model(ids).last_hidden_state, model(ids).last_hidden_state)
