"""The sparse student: its scores, its loss, its batches."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tiny import WORDS, tiny_beir, tiny_modern_bert  # noqa: E402
from tiny_sparse import SMALL, TEXTS, batch_of, configuration, student  # noqa: E402

from opensearch_neural.errors import InputError  # noqa: E402
from opensearch_neural.models.sparse.lexical import build_lexical  # noqa: E402
from opensearch_neural.retrievers.bm25 import BM25Retriever  # noqa: E402
from trainers.common.grad_cache import cached_backward  # noqa: E402
from trainers.common.sampling import Visit  # noqa: E402
from trainers.common.settings import TrainingSettings  # noqa: E402
from trainers.common.training_model import TrainingProgress  # noqa: E402
from trainers.data.candidates import RetrievalData, unique_documents  # noqa: E402
from trainers.doc2query.question_sets import QuestionSet  # noqa: E402
from trainers.sparse.batches import SparseCollate  # noqa: E402
from trainers.sparse.settings import (  # noqa: E402
    BM25Settings,
    RegularizationSettings,
    SparseCandidates,
    SparseObjective,
    StudentSettings,
    WarmUpSettings,
)
from trainers.sparse.stage_data import teachers  # noqa: E402
from trainers.sparse.start import build  # noqa: E402
from trainers.sparse.student_measures import measured_flops  # noqa: E402
from trainers.sparse.tiled_head import sample_entries  # noqa: E402
from trainers.sparse.warm_up import calibrate  # noqa: E402


def test_a_querys_score_is_the_sum_of_idf_times_weight_over_its_distinct_tokens(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    config = configuration(backbone, beir, tmp_path)
    model = student(config)
    batch = batch_of(config, model)
    part = batch.parts["document"][0]
    vectors = model.encode("document", part).vectors
    scores = batch.targets.query @ vectors.T
    data = config.train[0].load()
    idf = model.lexicon.encoder.query
    example = data.example(0)
    whole = model.vectors([data.documents[example.positives[0]]]).row(0)
    expected = sum(weight * whole.get(token, 0.0) for token, weight in idf.encode(example.query).items())
    row = int((part.position == batch.targets.candidates[0, 0]).nonzero())
    assert scores[0, row].item() == pytest.approx(expected, rel=1e-4)


def test_sampled_and_full_heads_agree_on_scores_and_a_sample_of_everything_on_flops(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    found = {}
    for head, columns in (("full", 1), ("sampled", 10_000)):
        settings = StudentSettings(document_length=32, query_length=16, head=head, columns=columns)  # type: ignore[arg-type]
        config = configuration(backbone, beir, tmp_path, student=settings)
        model = student(config)
        model.progress = TrainingProgress(4, 4)
        losses = model(batch_of(config, model))
        found[head] = {name: value.item() for name, value in {**losses.terms, **losses.measures}.items()}
    assert found["full"] == pytest.approx(found["sampled"], rel=1e-4)
    assert found["full"]["flops"] > 0
    assert 0 < found["full"]["expansions"] < found["full"]["active"]


def test_frozen_layers_and_embeddings_get_no_gradient_and_the_rest_does(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    settings = StudentSettings(document_length=32, query_length=16, frozen_layers=1)
    config = configuration(backbone, beir, tmp_path, student=settings)
    model = student(config).train()
    model(batch_of(config, model)).total.backward()
    touched = {name for name, one in model.named_parameters() if one.grad is not None and one.grad.abs().sum() > 0}
    assert "head.bias" in touched
    assert any(".layer.1." in name for name in touched)
    assert not any("embeddings" in name or ".layer.0." in name or name == "head.weight" for name in touched)
    with pytest.raises(InputError, match="has 2 layers"):
        build(replace(config, student=replace(settings, frozen_layers=3)), [config.train[0].load().documents])


def test_an_output_layer_of_its_own_is_frozen_with_the_embeddings(tmp_path: Path, beir: Path) -> None:
    start = tiny_modern_bert(tmp_path / "modern", tie_word_embeddings=False)
    frozen = replace(SMALL, frozen_layers=1)
    config = configuration(start, beir, tmp_path, student=frozen)
    model = build(config, [config.train[0].load().documents])
    assert model.head.weight is not model.model.get_input_embeddings().weight
    assert not model.head.weight.requires_grad
    assert model.head.bias.requires_grad


def test_gradient_caching_has_the_gradient_of_the_whole_batch(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(backbone, beir, tmp_path)
    model = student(config).train()
    batch = batch_of(config, model)
    model(batch).total.backward()
    whole = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    model.zero_grad()
    halves = replace(config, training=replace(config.training, chunk_size=3))
    cached_backward(model, batch_of(halves, model))
    for name, one in model.named_parameters():
        if one.grad is not None:
            torch.testing.assert_close(one.grad, whole[name], atol=1e-5, rtol=1e-3)


def test_the_ramp_is_quadratic_and_ends_at_one() -> None:
    settings = RegularizationSettings(weight=1.0, ramp=1.0)
    # (1/4)², (1/2)², 1, and 1 from there on
    assert [settings.at(step, 100) for step in (0, 25, 50, 100, 300)] == [0, 0.0625, 0.25, 1, 1]


def test_no_ramp_is_full_weight_from_the_start() -> None:
    assert RegularizationSettings(weight=1.0, ramp=0.0).at(0, 100) == 1.0


def test_the_regularizer_waits_then_grows_quadratically() -> None:
    settings = RegularizationSettings(weight=0.8, delay=0.5, ramp=0.25)
    assert [settings.at(step, 40) for step in (0, 19, 20, 25, 30, 40)] == pytest.approx([0, 0, 0, 0.2, 0.8, 0.8])


def test_flops_a_slot_are_the_papers_and_larger_than_over_all_documents(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    values = {}
    for definition in ("batch", "slot"):
        config = configuration(
            backbone, beir, tmp_path,
            student=StudentSettings(document_length=32, query_length=16, head="full"),
            regularization=RegularizationSettings(flops=definition),  # type: ignore[arg-type]
        )  # fmt: skip
        model = student(config)
        values[definition] = float(model(batch_of(config, model)).measures["flops_unweighted"])
    assert values["batch"] < values["slot"]


@pytest.mark.parametrize("definition", ["batch", "slot"])
def test_documents_of_few_terms_cost_nothing_and_get_no_gradient_from_flops(
    tmp_path: Path, backbone: Path, beir: Path, definition: Any
) -> None:
    config = configuration(
        backbone, beir, tmp_path,
        student=replace(SMALL, head="full"),
        regularization=RegularizationSettings(flops=definition, least_terms=3),
    )  # fmt: skip
    model = student(config)
    learned = torch.zeros(2, len(model.head.weight))
    learned[0, 10:13], learned[1, 10:15] = 1.0, 2.0  # three terms, which is few enough, and five
    learned.requires_grad_()
    flops = model._document_flops(learned, torch.tensor([[0], [1]]), torch.ones(learned.shape[1]))
    # Five entries, in each the mean of 0 and 2, squared.
    assert flops.item() == pytest.approx(5.0)
    flops.backward()
    assert learned.grad is not None
    assert (learned.grad[0] == 0).all() and learned.grad[1].count_nonzero() == 5
    with pytest.raises(ValueError, match="least_terms must be at least 1"):
        RegularizationSettings(least_terms=0)


def test_flops_count_the_chance_that_query_and_document_share_a_token() -> None:
    from scipy.sparse import csr_matrix

    # Of two queries both ask a and one asks b; of four documents one holds a and two hold b: 1 · 1/4 + 1/2 · 2/4.
    documents = csr_matrix(np.array([[1.0, 0.5], [0, 3], [0, 0], [0, 0]]))
    assert measured_flops([{"a": 1.0}, {"a": 2.0, "b": 1.0, "c": 1.0}], documents, ["a", "b"]) == pytest.approx(0.5)


def test_estimated_flops_are_those_of_the_whole_vocabulary_on_average(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    config = configuration(backbone, beir, tmp_path, student=replace(SMALL, head="full"))
    model = student(config)
    batch = batch_of(config, model)
    targets, (part,) = batch.targets, batch.parts["document"]
    learned = model.encode("document", part).vectors.detach()
    order = part.position.argsort()
    full = float(model._document_flops(learned[order], targets.candidates, targets.entry_counts))
    rng = np.random.default_rng(3)
    wanted = model.ordinary_entries[:4]
    estimates = []
    for _ in range(400):
        drawn = sample_entries(wanted, model.ordinary_entries, 12, rng)
        some = learned[order][:, torch.from_numpy(drawn.entries)]
        estimates.append(float(model._document_flops(some, targets.candidates, torch.from_numpy(drawn.entry_counts))))
    assert np.mean(estimates) == pytest.approx(full, rel=0.1)
    assert np.mean(estimates) > 2 * float(
        model._document_flops(some, targets.candidates, torch.ones(len(drawn.entries)))
    )


@pytest.mark.parametrize(
    ("head", "bm25"), [("full", BM25Settings()), ("sampled", BM25Settings("german", k1=0.5, b=0.2))]
)
def test_with_a_base_the_loss_compares_bm25_plus_the_weighted_student(
    tmp_path: Path, backbone: Path, beir: Path, head: Any, bm25: Any
) -> None:
    objective = SparseObjective(info_nce=1.0, kl=0.0, base="bm25", sparse_weight=0.3)
    config = configuration(backbone, beir, tmp_path, student=replace(SMALL, head=head), objective=objective, bm25=bm25)
    model = student(config)
    batch = batch_of(config, model)
    targets, (part,) = batch.targets, batch.parts["document"]
    learned = model.encode("document", part).vectors.detach()[part.position.argsort()]
    found = model.loss_terms({"document": learned}, targets).terms["info_nce"]

    data = config.train[0].load()
    drawn = RetrievalData([data], negatives=1, depth=10)
    items = [drawn[Visit(index, 0, 0, 1)] for index in range(6)]
    documents = [data.documents.ids[row] for row in unique_documents(items)]
    settings = asdict(config.bm25)
    run = BM25Retriever(data.documents.ids, data.documents.values(), **settings).retrieve(
        {str(index): data.example(index).query for index in range(6)}, len(data.documents)
    )
    base = torch.tensor([[run[str(index)].get(document, 0.0) for document in documents] for index in range(6)])
    assert float(base.max()) > 0
    scores = (base + 0.3 * targets.query @ learned.T).masked_fill(targets.excluded, -torch.inf)
    expected = torch.nn.functional.cross_entropy(scores, targets.candidates[:, 0])
    assert float(found) == pytest.approx(float(expected), rel=1e-4)
    model.objective = replace(objective, base_share=0.75)
    mixed = model.loss_terms({"document": learned}, targets).terms["info_nce"]
    scores = (targets.query @ learned.T).masked_fill(targets.excluded, -torch.inf)
    other = torch.nn.functional.cross_entropy(scores, targets.candidates[:, 0])
    assert float(other) != pytest.approx(float(expected), rel=1e-2)
    assert float(mixed) == pytest.approx(float(0.75 * expected + 0.25 * other), rel=1e-4)
    alone = replace(config, objective=SparseObjective(info_nce=1.0, kl=0.0))
    assert batch_of(alone, student(alone)).targets.base is None
    for settings in ({"sparse_weight": 0.3}, {"base_share": 0.5}, {"base": "bm25", "base_share": 0.0}):
        with pytest.raises(ValueError, match=r"name objective\.base"):
            SparseObjective(info_nce=1.0, **settings)


def test_settings_that_would_have_no_effect_are_refused() -> None:
    with pytest.raises(ValueError, match="weight would have no effect"):
        WarmUpSettings(expansions=None, weight=0.2)


@pytest.mark.parametrize("head", ["full", "sampled"])
def test_a_table_that_is_trained_starts_as_it_was_and_learns_from_the_queries_tokens(
    tmp_path: Path, backbone: Path, beir: Path, head: Any
) -> None:
    fixed = configuration(backbone, beir, tmp_path, student=replace(SMALL, head=head))
    learned = replace(fixed, student=replace(fixed.student, idf_rate=50.0))
    stores = [fixed.train[0].load().documents]
    model, plain = build(learned, stores).eval(), build(fixed, stores).eval()
    for each in (model, plain):
        calibrate(each, TEXTS[:2], expansions=10, weight=0.5)
    torch.testing.assert_close(model(batch_of(learned, model)).total, plain(batch_of(fixed, plain)).total)
    assert model.lexicon.encoder.query.weights == plain.lexicon.encoder.query.weights

    batch = batch_of(learned, model)
    model(batch).total.backward()
    asked = (batch.targets.query > 0).any(dim=0).nonzero()[:, 0]
    asked = asked if batch.targets.entries is None else batch.targets.entries[asked]
    factors = model.log_idf_factors
    assert factors is not None and factors.grad is not None and factors.grad.count_nonzero() > 0
    assert set(factors.grad.nonzero()[:, 0].tolist()) <= set(asked.tolist())
    groups = model.parameter_groups(TrainingSettings(learning_rate=1e-4))
    assert groups is not None
    assert [group["lr"] for group in groups if group["params"][0] is factors] == [pytest.approx(5e-3)]
    assert sum(len(group["params"]) for group in groups) == sum(one.requires_grad for one in model.parameters())

    # A weight of the table is what a score has of its token, in the loss as in use.
    with torch.no_grad():
        factors[asked] = torch.tensor(2.0).log()
    weights, before = model.lexicon.encoder.query.weights, plain.lexicon.encoder.query.weights
    words = [model.vocabulary[at] for at in asked.tolist()]
    assert [weights[word] for word in words] == pytest.approx([2 * before[word] for word in words], rel=1e-6)
    torch.testing.assert_close(model._query_weights(batch.targets), 2 * batch.targets.query)
    torch.testing.assert_close(batch_of(learned, model).targets.query, batch.targets.query)


def test_a_table_that_is_not_trained_is_no_parameter(tmp_path: Path, backbone: Path, beir: Path) -> None:
    for rate in (None, 0.0):
        config = configuration(backbone, beir, tmp_path, student=replace(SMALL, idf_rate=rate))
        model = build(config, [config.train[0].load().documents])
        assert model.log_idf_factors is None and model.parameter_groups(TrainingSettings()) is None
    with pytest.raises(ValueError, match="idf must not be own"):
        replace(SMALL, idf="own", idf_rate=20.0)
    with pytest.raises(ValueError, match="idf_rate must not be below 0"):
        replace(SMALL, idf_rate=-1.0)


def test_special_tokens_are_silent_in_training(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(backbone, beir, tmp_path, student=replace(SMALL, head="full"))
    model = build(config, [config.train[0].load().documents])
    with torch.no_grad():
        model.head.bias += 20.0  # Every word is active.
    (part,) = batch_of(config, model).parts["document"]
    weights = model.encode("document", part).vectors
    assert not weights[:, :5].any()
    assert bool((weights[:, 5:] > 0).all())


def test_idf_is_of_all_sets_of_each_or_of_none(tmp_path: Path, backbone: Path, beir: Path) -> None:
    other = tiny_beir(tmp_path / "other", seed=5)
    table = tmp_path / "idf.json"
    table.write_text(json.dumps(dict.fromkeys(WORDS, 3.0)))
    seen = {}
    for source in ("train", "own", "none", str(table)):
        config = configuration(
            backbone, beir, tmp_path, student=replace(SMALL, idf=source), train=[QuestionSet(beir), QuestionSet(other)]
        )
        sets = [one.load() for one in config.train]
        model = build(config, [one.documents for one in sets])
        made = SparseCollate(config, sets, model, teachers=teachers(config, sets))
        assert len(made.idf) == 2
        seen[source] = [idf[5:] for idf in made.idf]
    assert np.array_equal(*seen["train"])
    assert not np.array_equal(*seen["own"])
    assert {float(one) for two in seen["none"] for one in two} == {1.0}
    assert {float(one) for two in seen[str(table)] for one in two} == {3.0}
    own = build_lexical(config.train[1].load().documents.values(), tokenizer=model.lexicon.encoder.query.tokenizer)
    assert seen["own"][1].tolist() == pytest.approx(list(own.query.weights.values())[5:])


def test_teachers_of_a_batch_are_normalized_weighed_and_added(tmp_path: Path, backbone: Path, beir: Path) -> None:
    data = QuestionSet(beir).load()
    presence = tmp_path / "presence"
    build_lexical(data.documents.values(), k1=0.0).save(presence)
    config = configuration(
        backbone, beir, tmp_path,
        objective=SparseObjective(
            info_nce=0.0, kl=1.0, teachers=["lexical", str(presence)], teacher_weights=[0.75, 0.25], teacher_scale=8.0
        ),
        candidates=SparseCandidates(negatives=5, mine=None),
    )  # fmt: skip
    model = student(config)
    (folders,) = teachers(config, [data])
    items = [RetrievalData([data], negatives=5, depth=10)[Visit(index, 0, 0, 1)] for index in range(6)]
    expected = np.zeros((6, 6))
    for teacher, weight in zip(folders, (0.75, 0.25), strict=True):
        for row, one in enumerate(items):
            candidates = [data.documents.ids[at] for at in (one.positive, *one.negatives)]
            scores = teacher.scores([data.queries.ids[one.query]], candidates)[0]
            expected[row] += 8.0 * weight * (scores - scores.min()) / np.ptp(scores)
    np.testing.assert_allclose(batch_of(config, model).targets.teacher.scores, expected, rtol=1e-5)


def test_all_pairs_of_the_batch_can_teach(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(
        backbone, beir, tmp_path, objective=SparseObjective(kl=1.0, teachers=["lexical"], all_pairs=True),
        candidates=SparseCandidates(negatives=0),
    )  # fmt: skip
    model = student(config)
    batch = batch_of(config, model)
    targets = batch.targets
    assert targets.teacher is not None
    assert targets.teacher.scores.shape == targets.teacher.known.shape == targets.excluded.shape
    assert bool(model(batch).total.isfinite())
