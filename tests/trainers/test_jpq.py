"""JPQ: scores are the quantizer's, gradients reach what is to learn, negatives are the live top, bad input is named."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")
pytest.importorskip("faiss")

from sentence_transformers import SentenceTransformer  # noqa: E402
from sentence_transformers.base.modules import Transformer  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Pooling  # noqa: E402
from tiny import WORDS, tiny_backbone, tiny_beir  # noqa: E402

from opensearch_neural.errors import InputError, ModelError  # noqa: E402
from opensearch_neural.models.dense import TorchDenseEncoder, documents_alike, load_dense, stages_of  # noqa: E402
from opensearch_neural.models.dense_onnx import export_onnx  # noqa: E402
from opensearch_neural.models.quantized import load_quantized  # noqa: E402
from trainers.common.sampling import Visit  # noqa: E402
from trainers.common.settings import TrainingSettings  # noqa: E402
from trainers.encoders import backbones  # noqa: E402
from trainers.jpq.model import Corpus, JpqModel  # noqa: E402
from trainers.jpq.preparation import Preparation, dev_measures  # noqa: E402
from trainers.jpq.quantizer import centroid_learning_rate, fit_quantizer  # noqa: E402
from trainers.jpq.questions import JpqBatch, JpqCollate, JudgedData, Questions, RankedData  # noqa: E402
from trainers.jpq.settings import JpqConfig, JpqObjective, JpqSelection, JpqSet, NegativeSettings, QuantizerSettings  # noqa: E402
from trainers.jpq.train import train_jpq  # noqa: E402

DOCUMENTS = 280


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_backbone(tmp_path_factory.mktemp("backbone") / "tiny", dropout=0.1)


@pytest.fixture(scope="module")
def beir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_beir(tmp_path_factory.mktemp("data") / "tiny", documents=DOCUMENTS)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def config(backbone: Path, beir: Path, cache: Path, tmp_path: Path) -> JpqConfig:
    return JpqConfig(
        output=tmp_path / "model",
        train=[JpqSet(beir)],
        start=str(backbone),
        quantizer=QuantizerSettings(subvectors=4, rotation_iterations=1, learning_rate=1e-2),
        negatives=NegativeSettings(depth=20),
        dev=[JpqSet(beir, split="dev", name="dev")],
        training=TrainingSettings(
            steps=40, batch_size=16, learning_rate=3e-3, evaluate_every=20, log_every=5, device="cpu"
        ),
        cache=cache,
    )


def batch_of(ready: Preparation, static: Any = None, count: int = 8, teacher: Any = None) -> JpqBatch:
    data = JudgedData(ready.data)
    items = [data[Visit(index, 0, 0, 7)] for index in range(count)]
    return JpqCollate(ready.data, ready.model.query, static, 16, teacher, aligns=ready.config.alignment > 0)(items)


def moved(model: JpqModel, seed: int = 3) -> JpqModel:
    """`model` with scoring centroids that are no longer those that code."""
    torch.manual_seed(seed)
    with torch.no_grad():
        model.scoring += 0.3 * torch.randn_like(model.scoring)
    return model


# ------------------------------------------------ scores and search


def test_search_and_candidate_scores_are_those_of_the_quantizer(
    config: JpqConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = Preparation(config)
    model = moved(ready.model)
    queries = torch.randn(3, 32)
    expected = np.stack(
        [
            replace_scoring(model).scores(queries[row : row + 1].numpy(), model.corpus.codes.numpy())[0]
            for row in range(3)
        ]
    )
    excluded = torch.tensor([[0, 0, 2], [int(expected[0].argmax()), 5, 7]])
    for block in (1 << 24, 3 * 50):  # all documents at once, and 50 at a time
        monkeypatch.setattr("trainers.jpq.model._NUMBERS_AT_ONCE", block)
        scores, rows = model.search(queries, 30, model.corpus, "quantized", excluded)
        for query in range(3):
            of_query = expected[query].copy()
            of_query[excluded[1, excluded[0] == query].numpy()] = -np.inf
            assert rows[query].tolist() == np.argsort(-of_query, kind="stable")[:30].tolist()
            np.testing.assert_allclose(scores[query], np.sort(of_query)[::-1][:30], atol=1e-4)
    some = torch.tensor([[3, 8], [1, 0], [279, 4]])
    found = model.scores(queries, some, "quantized").detach().numpy()
    np.testing.assert_allclose(found, np.take_along_axis(expected, some.numpy(), axis=1), atol=1e-4)


def replace_scoring(model: JpqModel) -> Any:
    return replace(model.quantizer, scoring=model.scoring.detach().numpy())


def test_uncompressed_search_is_the_inner_product_with_whole_vectors(config: JpqConfig) -> None:
    ready = Preparation(replace(config, negatives=NegativeSettings(depth=20, search="uncompressed")))
    queries = torch.randn(2, 32)
    expected = queries.numpy() @ np.asarray(ready.vectors).T
    scores, rows = ready.model.search(queries, 5, ready.corpus, "uncompressed")
    assert rows.tolist() == np.argsort(-expected, axis=1)[:, :5].tolist()
    np.testing.assert_allclose(scores, np.take_along_axis(expected, rows.numpy(), axis=1), atol=1e-4)


def test_where_fewer_documents_are_left_than_asked_for_rows_are_minus_one(config: JpqConfig) -> None:
    model = Preparation(config).model
    few = Corpus(["a", "b", "c"], model.corpus.codes[:3].numpy(), None)
    scores, rows = model.search(torch.randn(1, 32), 5, few, "quantized", torch.tensor([[0], [1]]))
    assert sorted(rows[0, :2].tolist()) == [0, 2]
    assert rows[0, 2:].tolist() == [-1, -1, -1]
    assert torch.isneginf(scores[0, 2:]).all()
    # Such empty slots take no part in the loss.
    all_of_them = replace(config, negatives=NegativeSettings(depth=DOCUMENTS + 50))
    assert Preparation(all_of_them).model(batch_of(Preparation(all_of_them))).total.isfinite()


# ------------------------------------------------ the loss


def test_the_loss_is_lambda_rank_over_the_live_top_by_hand(config: JpqConfig) -> None:
    ready = Preparation(replace(config, dropout=0.0, objective=JpqObjective(scale=2.0)))
    model = moved(ready.model)
    batch = batch_of(ready, count=1)
    with torch.no_grad():
        vector = model.query.in_order(batch.parts)
        loss = model(batch).total.item()
    scores = replace_scoring(model).scores(vector.numpy(), model.corpus.codes.numpy())[0]
    positive, relevant = int(batch.positives[0]), set(batch.relevant[1].tolist())
    assert positive in relevant
    negatives = [row for row in np.argsort(-scores, kind="stable").tolist() if row not in relevant][:20]
    rank = 1 + sum(scores[row] >= scores[positive] for row in negatives)
    expected = 0.0
    for at, row in enumerate(negatives):
        own = at + 1 + (scores[positive] > scores[row])
        weight = abs((1 / own if own <= 20 else 0) - (1 / rank if rank <= 20 else 0))
        expected += weight * np.log1p(np.exp(2.0 * (scores[row] - scores[positive])))
    assert loss == pytest.approx(expected, rel=1e-4)


def test_the_start_models_own_scores_are_what_its_ranking_teaches(config: JpqConfig) -> None:
    """Over whole documents the start has nothing to learn of itself; of judgements, and over codes, it has."""

    def largest_gradient(labels: Any, documents: Any) -> float:
        ready = Preparation(replace(config, dropout=0.0, objective=JpqObjective(labels=labels, documents=documents)))
        ranked = labels == "ranking"
        data = (
            RankedData(ready.data, ready.ranking(ready.data, 10, "uncompressed")) if ranked else JudgedData(ready.data)
        )
        teacher = ready.taught(ready.data) if ranked else None
        batch = JpqCollate(ready.data, ready.model.query, None, 16, teacher)(
            [data[Visit(at, 0, 0, 7)] for at in range(8)]
        )
        ready.model.train()(batch).total.backward()
        return max(float(one.grad.abs().max()) for one in ready.model.parameters() if one.grad is not None)

    assert largest_gradient("ranking", "uncompressed") < 1e-3 * largest_gradient("judged", "uncompressed")
    assert largest_gradient("ranking", "quantized") > 1e-2 * largest_gradient("judged", "quantized")


@pytest.mark.parametrize(
    ("train_centroids", "documents", "learns"),
    [(True, "quantized", True), (False, "quantized", False), (True, "uncompressed", False)],
)
def test_centroids_learn_only_where_the_loss_is_of_quantized_documents_and_they_are_not_frozen(
    config: JpqConfig, train_centroids: bool, documents: Any, learns: bool
) -> None:
    ready = Preparation(
        replace(
            config,
            quantizer=replace(config.quantizer, train_centroids=train_centroids),
            objective=JpqObjective(documents=documents),
        )
    )
    model = ready.model.train()
    model(batch_of(ready)).total.backward()
    assert (model.scoring.grad is not None and model.scoring.grad.abs().sum() > 0) == learns
    touched = [name for name, one in model.query.named_parameters() if one.grad is not None and one.grad.any()]
    assert len(touched) > 20
    # Nothing of the documents' encoder is the loop's to train.
    assert {name.split(".")[0] for name, one in model.named_parameters() if one.requires_grad} <= {"query", "scoring"}
    rates = {group.get("lr") for group in model.parameter_groups(config.training)}
    assert (1e-2 in rates) == learns


def test_a_query_encoder_of_fewer_layers_is_brought_back_to_the_start_s_vectors(
    config: JpqConfig, backbone: Path, tmp_path: Path
) -> None:
    from transformers import AutoModel, AutoTokenizer

    # The layer that is left out changes much.
    strong = AutoModel.from_pretrained(backbone)
    with torch.no_grad():
        for parameter in strong.encoder.layer[0].parameters():
            if parameter.ndim == 2:
                parameter.mul_(30)
    strong.save_pretrained(tmp_path / "strong")
    AutoTokenizer.from_pretrained(backbone).save_pretrained(tmp_path / "strong")
    config = replace(config, start=str(tmp_path / "strong"), cache=None)

    texts = list(config.dev[0].load().query_texts().values())

    def likeness(encode: Any) -> float:
        start = load_dense(config.start, device="cpu").encode_queries(texts)
        vectors = np.asarray(encode(texts))
        lengths = np.linalg.norm(start, axis=1) * np.linalg.norm(vectors, axis=1)
        return float(((start * vectors).sum(axis=1) / lengths).mean())

    one = replace(config, query_layers=1, dev=[])
    assert one.alignment > config.alignment == 0
    ready = Preparation(one)
    assert batch_of(ready, teacher=ready.taught(ready.data)).aligned is not None
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
    assert backbones.spread(6, 0) == []
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
    config: JpqConfig, tmp_path: Path
) -> None:
    # By the first token, which without layers is the same in every query.
    stages = list(SentenceTransformer(config.start, device="cpu"))
    assert isinstance(stages[1], Pooling)
    stages[1] = Pooling(stages[1].embedding_dimension, "cls")
    SentenceTransformer(modules=stages).save_pretrained(str(tmp_path / "cls"))
    config = replace(config, start=str(tmp_path / "cls"), cache=None)
    none = replace(config, query_layers=0, dev=[])
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
    assert likeness(vectors) > before + 0.1, before
    apart = np.linalg.norm(vectors - vectors[:1], axis=1)[1:] / np.linalg.norm(vectors[0])
    assert apart.min() > 0.01, "all queries are the same"
    export_onnx(none.output, int8=True)  # there is no matrix to round
    for backend in ("onnx", "onnx-int8"):
        written = load_quantized(none.output, backend=backend, threads=1)
        np.testing.assert_allclose(written.encode_queries(texts), vectors, atol=1e-4)
    assert documents_alike(model.dense, load_dense(config.start, device="cpu"))
    # What a token adds does not depend on those beside it.
    assert isinstance(model.dense, TorchDenseEncoder)
    stages = stages_of(model.dense.model, "query")
    assert isinstance(stages[0], Transformer)
    embed = stages[0].auto_model
    with torch.no_grad():
        first = embed(torch.tensor([[5, 6, 7]])).last_hidden_state[0]
        second = embed(torch.tensor([[5, 9, 7]])).last_hidden_state[0]
    torch.testing.assert_close(first[[0, 2]], second[[0, 2]])
    assert not torch.allclose(first[1], second[1])


def test_fewer_than_no_layers_are_refused(config: JpqConfig) -> None:
    with pytest.raises(ValueError, match="query_layers must be at least 0, not -1"):
        replace(config, query_layers=-1)


def test_layers_that_are_no_list_or_built_otherwise_are_refused() -> None:
    from transformers import AlbertConfig, AlbertModel, ModernBertConfig, ModernBertModel

    size = {"vocab_size": 30, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    with pytest.raises(InputError, match="albert: its layers are not one list"):
        backbones.keep_layers(AlbertModel(AlbertConfig(num_hidden_layers=4, embedding_size=8, **size)), 2)
    # The first layer of a ModernBERT has no norm before its attention.
    modern = ModernBertModel(ModernBertConfig(num_hidden_layers=4, pad_token_id=0, **size))
    with pytest.raises(InputError, match="modernbert: 1 of its 4 layers make no model of 1 layers"):
        backbones.keep_layers(copy.deepcopy(modern), 1)
    backbones.keep_layers(modern, 2)


def test_more_layers_than_the_start_has_are_refused_before_anything_is_encoded(config: JpqConfig) -> None:
    config = replace(config, query_layers=3, cache=None)
    with pytest.raises(InputError, match="3 layers are asked for of 2"):
        Preparation(config)
    assert not list(config.folder.glob("documents-*"))


def test_the_step_searches_without_dropout_and_the_loss_keeps_it(config: JpqConfig) -> None:
    ready = Preparation(config)
    model = ready.model.train()
    batch = batch_of(ready)
    assert model.query.noisy
    with torch.no_grad():
        noisy = model.query.in_order(batch.parts)
        searched = model._searched(noisy, batch.parts)
        assert model.query.training
        plain = model.query.eval().in_order(batch.parts)
    torch.testing.assert_close(searched, plain)
    assert (noisy - plain).abs().max() > 1e-3


def test_no_relevant_document_is_a_negative_nor_a_copy_of_one(config: JpqConfig, tmp_path: Path, beir: Path) -> None:
    import json
    import shutil

    folder = shutil.copytree(beir, tmp_path / "beir")
    lines = (folder / "corpus.jsonl").read_text().splitlines()
    copy = json.loads(lines[1]) | {"_id": "copy"}  # d1 again, with other punctuation
    copy["text"] = copy["text"].upper() + "!"
    (folder / "corpus.jsonl").write_text("\n".join([*lines, json.dumps(copy)]) + "\n")
    ready = Preparation(replace(config, train=[JpqSet(folder)], cache=tmp_path / "cache"))
    data = JudgedData(ready.data)
    index = ready.data.query_rows.tolist().index(ready.data.queries.row("q1"))
    found = {ready.data.documents.ids[row] for row in data.relevant[index].tolist()}
    assert found == {"d1", "copy"}


def test_static_negatives_are_ranked_anew_and_relevant_ones_are_left_out(config: JpqConfig) -> None:
    ready = Preparation(replace(config, negatives=NegativeSettings(depth=20, source="static")))
    static = ready.ranking(ready.data, 20, "quantized")
    model = ready.model.eval()
    batch = batch_of(ready, static)
    with torch.no_grad():
        queries = model.query.in_order(batch.parts)
        before = model.search(queries, 20, model.corpus, "quantized")[1]
        assert (np.sort(static[:8], axis=1) == np.sort(before.numpy(), axis=1)).mean() > 0.99
        moved(model)
        scores, rows = model._ranked(queries, batch.static, batch.relevant)
    assert (scores[:, :-1] >= scores[:, 1:]).all()
    relevant = set(map(tuple, batch.relevant.T.tolist()))
    for query in range(8):
        kept = [row for row in static[query].tolist() if (query, row) not in relevant]
        assert sorted(rows[query][rows[query] >= 0].tolist()) == sorted(kept)


def test_of_the_uncompressed_ranking_one_is_drawn_and_what_ranks_higher_is_no_negative(config: JpqConfig) -> None:
    ready = Preparation(config)
    ranking = ready.ranking(ready.data, 10, "uncompressed")
    data = RankedData(ready.data, ranking)
    drawn = {}
    for epoch in range(40):
        question = data[Visit(3, epoch, 0, 7)]
        at = ranking[3].tolist().index(question.positive)
        assert question.relevant.tolist() == sorted(ranking[3][: at + 1].tolist())
        drawn[at] = True
    assert len(drawn) > 5


# ------------------------------------------------ the quantizer


def test_opq_reconstructs_better_than_pq_and_both_better_than_their_mean() -> None:
    rng = np.random.default_rng(0)
    # Variance lies in few directions that no part of the coordinates holds: what a rotation is for.
    vectors = (rng.normal(size=(600, 16)) * np.geomspace(4, 0.1, 16)) @ np.linalg.qr(rng.normal(size=(16, 16)))[0]
    vectors = vectors.astype(np.float32)
    errors = {}
    for rotate in (True, False):
        quantizer = fit_quantizer(
            vectors, QuantizerSettings(subvectors=4, rotate=rotate, rotation_iterations=5), seed=1
        )
        assert (quantizer.assigning == quantizer.scoring).all()
        assert rotate != np.allclose(quantizer.rotation, np.eye(16))
        errors[rotate] = np.square(vectors - quantizer.reconstruct(quantizer.encode(vectors))).sum(1).mean()
    assert errors[True] < errors[False] < np.square(vectors - vectors.mean(0)).sum(1).mean()


@pytest.mark.parametrize("m", [1, 6], ids=["one part", "a part for each coordinate"])
def test_the_fewest_and_the_most_parts(m: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    quantizer = fit_quantizer(vectors, QuantizerSettings(subvectors=m, rotation_iterations=2), seed=1)
    assert quantizer.scoring.shape == (m, 256, 6 // m)
    codes = quantizer.encode(vectors)
    assert codes.shape == (300, m)
    lost = np.square(vectors - quantizer.reconstruct(codes)).sum(axis=1).mean()
    # 256 centroids for 300 vectors, or for 300 numbers: nearly all have their own.
    assert lost < 0.1 * np.square(vectors).sum(axis=1).mean()
    scores = quantizer.scores(vectors[:5], codes)
    np.testing.assert_allclose(scores, vectors[:5] @ quantizer.reconstruct(codes).T, atol=1e-4)


def test_what_cannot_be_quantized_is_named(config: JpqConfig) -> None:
    vectors = np.random.default_rng(0).normal(size=(300, 12)).astype(np.float32)
    with pytest.raises(InputError, match="subvectors 5 does not divide the dimension 12") as caught:
        fit_quantizer(vectors, QuantizerSettings(subvectors=5), seed=1)
    assert caught.value.remedy == "what does: 1, 2, 3, 4, 6, 12"
    with pytest.raises(InputError, match="255 documents are too few for 256 centroids"):
        fit_quantizer(vectors[:255], QuantizerSettings(subvectors=4), seed=1)
    with pytest.raises(InputError, match="query_length is 1000, but the start reads"):
        Preparation(replace(config, query_length=1000))


def test_the_papers_centroid_learning_rates_are_read_by_the_coordinates_of_a_part() -> None:
    rates = {m: centroid_learning_rate(QuantizerSettings(subvectors=m), 768) for m in (16, 24, 32, 48, 64, 96)}
    assert rates == {16: 5e-6, 24: 5e-6, 32: 2e-5, 48: 1e-4, 64: 1e-4, 96: 1e-4}
    assert centroid_learning_rate(QuantizerSettings(subvectors=16, learning_rate=3e-3), 768) == 3e-3


# ------------------------------------------------ whole runs


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
        {"negatives": NegativeSettings(depth=20, source="static"), "objective": JpqObjective(labels="ranking")},
        {
            "negatives": NegativeSettings(depth=20, search="uncompressed"),
            "objective": JpqObjective(documents="uncompressed"),
        },
        {"quantizer": QuantizerSettings(subvectors=8, rotate=False, train_centroids=False)},
    ],
    ids=["static, own ranking", "all uncompressed", "PQ, frozen centroids"],
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

    def failing(self: JpqModel, batch: JpqBatch) -> Any:
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
    (dev,) = ready.dev()
    assert {len(found) for found in dev.qrels.values()} == {10}
    before = dev_measures(ready.model, [dev])["nDCG@10"]
    trained = train_jpq(own)
    assert trained.measures["start nDCG@10"] == pytest.approx(before)
    assert trained.measures["nDCG@10"] > before + 0.03


def test_judged_questions_and_questions_made_of_all_documents_train_together(config: JpqConfig, tmp_path: Path) -> None:
    beir = tiny_beir(tmp_path / "whole", documents=DOCUMENTS, seed=3)
    drawn = random.Random(1)
    lines = [json.loads(line) for line in (beir / "corpus.jsonl").read_text().splitlines()]
    with (beir / "corpus.jsonl").open("w") as file:
        for line in lines:
            text = f"{' '.join(drawn.sample(WORDS, 6))}. {line['text']} {' '.join(drawn.sample(WORDS, 20))}."
            file.write(json.dumps({**line, "text": text}) + "\n")
    both = replace(
        config,
        train=[JpqSet(beir), JpqSet(beir, questions="first-sentence", name="made")],
        dev=[],
        selection=JpqSelection(hold_back=20, apart="questions"),
        training=replace(config.training, steps=8, set_weights=0.0, evaluate_every=4),
    )
    ready = Preparation(both)
    assert both.ranked == (False, True)
    # One corpus, whose documents the made questions share; only judged ones are held back.
    assert len(ready.data.documents) == len(ready.corpus) == DOCUMENTS
    judged, made = ready.data.sets
    assert (judged.document_start, judged.document_stop) == (made.document_start, made.document_stop)
    (dev,) = ready.dev()
    assert len(dev.qrels) == 20
    assert all(query.startswith(f"{judged.name}/") for query in dev.qrels)
    data = Questions(ready.data, both.ranked, ready.ranking(ready.data, 10, "uncompressed"))
    collate = JpqCollate(ready.data, ready.model.query, None, 16, ready.taught(ready.data))
    for one, taught in ((judged, False), (made, True)):
        batch = collate([data[Visit(one.start + at, 0, 0, 7)] for at in range(4)])
        assert (batch.teacher is not None) == taught
    of_judged = data[Visit(judged.start, 0, 0, 7)]
    assert of_judged.positive in ready.data.positives[judged.start]
    seen: list[bool] = []
    forward = JpqModel.forward

    def noted(self: JpqModel, batch: JpqBatch) -> Any:
        seen.append(batch.teacher is not None)
        return forward(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JpqModel, "forward", noted)
        assert train_jpq(both).steps == 8
    assert set(seen) == {True, False}


def test_several_sets_make_one_index(config: JpqConfig, beir: Path, tmp_path: Path) -> None:
    two = replace(
        config,
        train=[JpqSet(beir, name="a"), JpqSet(tiny_beir(tmp_path / "b", documents=40, seed=5))],
        dev=[],
        selection=JpqSelection(hold_back=20),
        training=replace(config.training, steps=2, evaluate_every=1),
    )
    ready = Preparation(two)
    assert len(ready.corpus) == DOCUMENTS + 40
    assert ready.corpus.ids[0] == "a/d0"
    assert ready.dev()[0].corpus is ready.corpus
    assert train_jpq(two).steps == 2


def test_a_start_without_a_transformer_is_refused(config: JpqConfig, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(config.start).backend_tokenizer
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=16)], device="cpu")
    model.save_pretrained(str(tmp_path / "static"))
    with pytest.raises(ModelError, match="first module is a StaticEmbedding"):
        Preparation(replace(config, start=str(tmp_path / "static"), cache=tmp_path / "cache"))


def test_the_command_trains_and_prints_its_measures(config: JpqConfig, tmp_path: Path) -> None:
    from opensearch_neural.cli import osn

    arguments = ["train", "jpq", "--output", str(tmp_path / "out")]
    for one in (
        f"train=[{{path: {config.train[0].path}}}]",
        f"start={config.start}",
        f"cache={config.cache}",
        "quantizer.subvectors=4",
        "quantizer.rotation_iterations=1",
        "selection.hold_back=20",
        "training.batch_size=8",
    ):
        arguments += ["--set", one]
    # ONNX files are written and checked against torch, too.
    # More is held back than a dry run reads.
    more = ["--set", "onnx=true", "--set", "selection.hold_back=130"]
    dry = CliRunner().invoke(osn, [*arguments, *more, "--dry-run"], catch_exceptions=False)
    assert dry.exit_code == 0, dry.output
    assert "nothing kept (dry run): 2 steps" in dry.stdout
    assert not (tmp_path / "out").exists()
    bad = CliRunner().invoke(osn, [*arguments, "--set", "quantizer.subvectors=5"])
    assert bad.exit_code == 1
    assert "does not divide the dimension 32" in str(bad.exception or bad.output)


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
