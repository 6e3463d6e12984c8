"""SPLADE: one network encodes queries and documents (`student.queries: network`), to teach inference-free students."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tiny_sparse import TEXTS, batch_of, configuration, student  # noqa: E402

from opensearch_neural.errors import ModelError  # noqa: E402
from opensearch_neural.models.sparse import ml_commons  # noqa: E402
from opensearch_neural.models.sparse.encoder import load_sparse  # noqa: E402
from opensearch_neural.models.sparse.hub_export import export_for_hub  # noqa: E402
from opensearch_neural.query_encoder import QueryEncoder  # noqa: E402
from opensearch_neural.retrievers.bm25 import BM25Retriever  # noqa: E402
from trainers.common.grad_cache import cached_backward  # noqa: E402
from trainers.common.run_folder import history  # noqa: E402
from trainers.common.settings import TrainingSettings  # noqa: E402
from trainers.common.training_model import TrainingProgress  # noqa: E402
from trainers.data.dev_sets import dev_set  # noqa: E402
from trainers.data.negatives import open_retriever  # noqa: E402
from trainers.data.teach import teach  # noqa: E402
from trainers.data.teacher_scores import open_teacher  # noqa: E402
from trainers.doc2query.question_sets import QuestionSet  # noqa: E402
from trainers.sparse.settings import (  # noqa: E402
    RegularizationSettings,
    SparseCandidates,
    SparseObjective,
    StudentSettings,
)
from trainers.sparse.student_measures import DevRetrieval  # noqa: E402
from trainers.sparse.train import train_sparse  # noqa: E402

SPLADE = StudentSettings(document_length=32, query_length=16, queries="network", head="full")
QUERIES = ["bab bab sab", "unknown dek"]


def test_a_score_is_the_product_of_two_encoded_texts_and_flops_are_weighed_apart(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    settings = RegularizationSettings(weight=0.1, query_weight=0.7, ramp=0.5)
    config = configuration(backbone, beir, tmp_path, student=SPLADE, regularization=settings)
    model = student(config)
    batch = batch_of(config, model)
    data = config.train[0].load()
    queries = torch.from_numpy(model.vectors([data.example(at).query for at in range(6)]).to_scipy().toarray())
    (part,) = batch.parts["document"]
    documents = model.encode("document", part).vectors.detach()[part.position.argsort()]
    scores = (queries @ documents[:, : queries.shape[1]].T).masked_fill(batch.targets.excluded, -torch.inf)
    expected = torch.nn.functional.cross_entropy(scores, batch.targets.candidates[:, 0])
    for step, share in ((0, 0.0), (10, 0.25), (20, 1.0), (40, 1.0)):
        model.progress = TrainingProgress(step, 40)
        found = model(batch)
        assert found.terms["info_nce"].item() == pytest.approx(expected.item(), rel=1e-4)
        flops = float(documents.mean(dim=0).square().sum()), float(queries.mean(dim=0).square().sum())
        assert min(flops) > 0
        assert found.terms["flops"].item() == pytest.approx(0.1 * share * flops[0], rel=1e-4)
        assert found.terms["query_flops"].item() == pytest.approx(0.7 * share * flops[1], rel=1e-4)
        assert found.measures["query_active"].item() == pytest.approx(float((queries > 0).sum(dim=1).float().mean()))


def test_gradient_caching_has_the_gradient_of_queries_and_documents(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(backbone, beir, tmp_path, student=SPLADE)
    model = student(config).train()
    model.progress = TrainingProgress(4, 4)
    model(batch_of(config, model)).total.backward()
    whole = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    model.zero_grad()
    cached_backward(model, batch_of(replace(config, training=replace(config.training, chunk_size=4)), model))
    for name, one in model.named_parameters():
        if one.grad is not None:
            torch.testing.assert_close(one.grad, whole[name], atol=1e-5, rtol=1e-3)


def test_dev_measures_rank_by_what_the_network_makes_of_a_query(tmp_path: Path, backbone: Path, beir: Path) -> None:
    objective = SparseObjective(info_nce=1.0, kl=0.0, base="bm25", sparse_weight=0.7)
    config = configuration(backbone, beir, tmp_path, student=SPLADE, objective=objective)
    dev = dev_set(config.train[0].load(), queries=5, documents=20, seed=0)
    model = student(config)
    retrieval = DevRetrieval(model, [dev], config.bm25)
    retrieval.measures()
    documents = model.vectors(list(dev.documents.values())).to_scipy()
    scores = (model.vectors(list(dev.queries.values())).to_scipy() @ documents.T).toarray()
    bm25 = BM25Retriever(list(dev.documents), dev.documents.values(), analyzer="english").retrieve(dev.queries, 100)
    alone = retrieval.alone(dev.queries, dev.documents)
    summed = retrieval.trained_sum(dev.queries, dev.documents)
    for query, row in zip(dev.queries, scores, strict=True):
        expected = dict(zip(dev.documents, row.tolist(), strict=True))
        assert alone[query] == pytest.approx({hit: score for hit, score in expected.items() if score > 0}, rel=1e-4)
        both = {hit: bm25[query].get(hit, 0.0) + 0.7 * score for hit, score in expected.items()}
        assert summed[query] == pytest.approx({hit: score for hit, score in both.items() if score > 0}, rel=1e-4)


@pytest.mark.parametrize(("activation", "max_active"), [("log", None), ("double-log", 4)])
def test_the_directory_loads_in_sentence_transformers_with_the_same_vectors_on_both_sides(
    tmp_path: Path, backbone: Path, beir: Path, activation: Any, max_active: int | None
) -> None:
    from sentence_transformers import SparseEncoder

    settings = replace(SPLADE, activation=activation, max_active=max_active)
    model = student(configuration(backbone, beir, tmp_path / "x", student=settings))
    model.export(tmp_path)
    loaded = SparseEncoder(str(tmp_path), device="cpu")
    assert not any("Router" in type(module).__name__ for module in loaded)
    for encode, texts in ((loaded.encode_query, QUERIES), (loaded.encode_document, TEXTS[:4])):
        ours, theirs = model.vectors(texts).to_scipy().toarray(), encode(texts).to_dense().numpy()
        assert (ours > 0).sum() > len(texts)
        np.testing.assert_allclose(ours, theirs[:, : ours.shape[1]], atol=2e-6)
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == set()


def test_searches_without_query_inference_refuse_it_and_say_what_to_do(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    student(configuration(backbone, beir, tmp_path / "x", student=SPLADE)).export(tmp_path)
    for load in (load_sparse, QueryEncoder.load):
        with pytest.raises(ModelError, match="the query side of this model is a neural network") as refused:
            load(tmp_path)
        assert "osn model idf --corpus CORPUS --model" in str(refused.value.remedy)


def test_a_trained_model_exports_to_ml_commons_and_to_the_hub(tmp_path: Path, backbone: Path, beir: Path) -> None:
    student(configuration(backbone, beir, tmp_path / "x", student=SPLADE)).export(tmp_path / "model")
    exported = ml_commons.export(tmp_path / "model", tmp_path / "exported")
    assert [each.zip.name for each in exported] == ["model-doc.zip"]
    card = export_for_hub(tmp_path / "model", tmp_path / "upload", licence="mit").read_text()
    assert "inference" not in card and "a network encodes documents and queries" in card


def test_training_lowers_the_loss_and_the_model_mines_and_teaches_an_inference_free_student(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    dev = [QuestionSet(beir, split="dev", name="dev")]
    steps = TrainingSettings(steps=60, batch_size=15, learning_rate=1e-2, warmup=0.1, evaluate_every=60, log_every=5)
    config = configuration(
        backbone, beir, tmp_path / "splade", student=SPLADE, training=steps, dev=dev,
        regularization=RegularizationSettings(weight=1e-3, query_weight=2e-3),
    )  # fmt: skip
    trained = train_sparse(config)
    logged = [entry["info_nce"] for entry in history(config.output) if "info_nce" in entry]
    assert logged[-1] < 0.5 * logged[0]
    assert trained.measures["nDCG@10"] > trained.measures["start nDCG@10"] + 0.2
    assert trained.measures["query terms"] > 0
    assert "BM25 + sparse nDCG@10" not in trained.measures

    from sentence_transformers import SparseEncoder

    network, data = SparseEncoder(str(tmp_path / "splade"), device="cpu"), QuestionSet(beir).load()
    queries, documents = [example.query_id for example in data.examples[:5]], data.documents.ids
    texts = [data.queries[query] for query in queries]
    expected = (
        network.encode_query(texts).to_dense() @ network.encode_document(list(data.documents.values())).to_dense().T
    )
    taught = open_teacher(teach(tmp_path / "splade", data, output=tmp_path / "taught"), data)
    np.testing.assert_allclose(taught.scores(queries, documents), expected.cpu().numpy(), rtol=1e-3, atol=1e-4)
    mined = open_retriever(f"sparse:{tmp_path / 'splade'}", data.documents, cache=tmp_path / "cache")
    for query, hits in mined.retrieve(dict(zip(queries, texts, strict=True)), 3).items():
        best = expected[queries.index(query)].topk(3).values.tolist()
        assert list(hits.values()) == pytest.approx(best, rel=1e-3)

    # The teacher alone, no judgement in the loss: what the student learns is the SPLADE's.
    objective = SparseObjective(info_nce=0.0, kl=1.0, teachers=[str(tmp_path / "splade")], all_pairs=True)
    free = configuration(
        backbone, beir, tmp_path / "free", objective=objective, training=replace(steps, steps=40), dev=dev,
        candidates=SparseCandidates(negatives=1, mine=f"sparse:{tmp_path / 'splade'}"),
    )  # fmt: skip
    learned = train_sparse(free)
    assert learned.measures["nDCG@10"] > learned.measures["start nDCG@10"]
    assert load_sparse(tmp_path / "free").query.encode("bab")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": "sampled"}, "queries network needs head full"),
        ({"idf": "own"}, "idf and idf_rate set the table"),
        ({"idf_rate": 50.0}, "idf and idf_rate set the table"),
    ],
)
def test_settings_that_have_no_place_beside_a_network_of_queries_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SPLADE, **changes)


def test_a_weight_of_queries_needs_queries_that_are_encoded(tmp_path: Path, backbone: Path, beir: Path) -> None:
    settings = RegularizationSettings(query_weight=0.1)
    with pytest.raises(ValueError, match=r"student\.queries"):
        configuration(backbone, beir, tmp_path, regularization=settings)
    assert configuration(backbone, beir, tmp_path, regularization=settings, student=SPLADE)
