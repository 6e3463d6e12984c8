"""JPQ's model: scores are the quantizer's, negatives are the live top, gradients reach what is to learn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")
pytest.importorskip("faiss")
from jpq_setup import DOCUMENTS, batch_of, moved, replace_scoring  # noqa: E402

from trainers.common.sampling import Visit  # noqa: E402
from trainers.jpq.jpq_model import CodedDocuments, JpqModel  # noqa: E402
from trainers.jpq.preparation import Preparation  # noqa: E402
from trainers.jpq.questions import JpqCollate, TrainingQuestions  # noqa: E402
from trainers.jpq.settings import JpqConfig, JpqObjective, NegativeSettings  # noqa: E402


def scores_by_look_up(model: JpqModel, query: np.ndarray) -> np.ndarray:
    """(documents,) scores of a query (D,): JPQ, eq. 12."""
    table = replace_scoring(model).table(query)
    return table[np.arange(len(table)), model.documents.codes.numpy()].sum(axis=1)


def test_search_and_candidate_scores_are_those_of_the_quantizer(
    config: JpqConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = Preparation(config)
    model = moved(ready.model)
    queries = torch.randn(3, 32)
    expected = np.stack([scores_by_look_up(model, query) for query in queries.numpy()])
    excluded = torch.tensor([[0, 0, 2], [int(expected[0].argmax()), 5, 7]])
    for block in (1 << 24, 3 * 50):  # all documents at once, and 50 at a time
        monkeypatch.setattr("trainers.jpq.jpq_model._NUMBERS_AT_ONCE", block)
        scores, rows = model.search(queries, 30, model.documents, "quantized", excluded)
        for query in range(3):
            of_query = expected[query].copy()
            of_query[excluded[1, excluded[0] == query].numpy()] = -np.inf
            assert rows[query].tolist() == np.argsort(-of_query, kind="stable")[:30].tolist()
            np.testing.assert_allclose(scores[query], np.sort(of_query)[::-1][:30], atol=1e-4)
    some = torch.tensor([[3, 8], [1, 0], [279, 4]])
    found = model.scores(queries, some, "quantized").detach().numpy()
    np.testing.assert_allclose(found, np.take_along_axis(expected, some.numpy(), axis=1), atol=1e-4)


def test_uncompressed_search_is_the_inner_product_with_whole_vectors(config: JpqConfig) -> None:
    ready = Preparation(replace(config, negatives=NegativeSettings(depth=20, search="uncompressed")))
    queries = torch.randn(2, 32)
    expected = queries.numpy() @ np.asarray(ready.vectors).T
    scores, rows = ready.model.search(queries, 5, ready.documents, "uncompressed")
    assert rows.tolist() == np.argsort(-expected, axis=1)[:, :5].tolist()
    np.testing.assert_allclose(scores, np.take_along_axis(expected, rows.numpy(), axis=1), atol=1e-4)


def test_where_fewer_documents_are_left_than_asked_for_rows_are_minus_one(config: JpqConfig) -> None:
    model = Preparation(config).model
    few = CodedDocuments(["a", "b", "c"], model.documents.codes[:3].numpy(), None)
    scores, rows = model.search(torch.randn(1, 32), 5, few, "quantized", torch.tensor([[0], [1]]))
    assert sorted(rows[0, :2].tolist()) == [0, 2]
    assert rows[0, 2:].tolist() == [-1, -1, -1]
    assert torch.isneginf(scores[0, 2:]).all()
    # Such empty slots take no part in the loss.
    all_of_them = replace(config, negatives=NegativeSettings(depth=DOCUMENTS + 50))
    assert Preparation(all_of_them).model(batch_of(Preparation(all_of_them))).total.isfinite()


def test_the_loss_is_lambda_rank_over_the_live_top_by_hand(config: JpqConfig) -> None:
    ready = Preparation(replace(config, dropout=0.0, objective=JpqObjective(scale=2.0)))
    model = moved(ready.model)
    batch = batch_of(ready, count=1)
    with torch.no_grad():
        vector = model.query.in_order(batch.parts)
        loss = model(batch).total.item()
    scores = scores_by_look_up(model, vector.numpy()[0])
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
        objective = JpqObjective(labels=labels, documents=documents)
        quantizer = replace(config.quantizer, learning_rate=None)
        ready = Preparation(replace(config, dropout=0.0, objective=objective, quantizer=quantizer))
        ranked = labels == "ranking"
        data = TrainingQuestions(ready.data, (ranked,), ready.ranking(ready.data, 10) if ranked else None)
        teacher = ready.question_vectors(ready.data) if ranked else None
        collate = JpqCollate(ready.data, ready.model.query, 16, teacher=teacher)
        batch = collate([data[Visit(at, 0, 0, 7)] for at in range(8)])
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
            quantizer=replace(
                config.quantizer,
                train_centroids=train_centroids,
                learning_rate=config.quantizer.learning_rate if learns else None,
            ),
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


def test_the_step_searches_without_dropout_and_the_loss_keeps_it(config: JpqConfig) -> None:
    ready = Preparation(config)
    model = ready.model.train()
    batch = batch_of(ready)
    assert model.query.noisy
    with torch.no_grad():
        noisy = model.query.in_order(batch.parts)
        searched = model.query.without_dropout(noisy, batch.parts)
        assert model.query.training
        plain = model.query.eval().in_order(batch.parts)
    torch.testing.assert_close(searched, plain)
    assert (noisy - plain).abs().max() > 1e-3
