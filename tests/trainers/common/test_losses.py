"""Every expected number here was worked out by hand from the equation, as the comment beside it shows."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from trainers.common import losses  # noqa: E402


def vectors(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_info_nce_of_two_queries() -> None:
    scores = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])
    # 3/(3+1) for the first, 1/2 for the second: (ln 4/3 + ln 2) / 2
    expected = (math.log(4 / 3) + math.log(2)) / 2
    assert losses.info_nce(scores, torch.tensor([0, 1])).item() == pytest.approx(expected, rel=1e-6)


def test_info_nce_divides_by_the_temperature() -> None:
    scores = torch.tensor([[0.05 * math.log(3.0), 0.0]])
    assert losses.info_nce(scores, torch.tensor([0]), temperature=0.05).item() == pytest.approx(math.log(4 / 3))


def test_info_nce_leaves_excluded_documents_out_of_the_sum() -> None:
    scores = torch.tensor([[math.log(3.0), 0.0, 7.0]], requires_grad=True)
    excluded = torch.tensor([[False, False, True]])
    loss = losses.info_nce(scores, torch.tensor([0]), excluded=excluded)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(4 / 3))
    assert scores.grad is not None and scores.grad[0, 2] == 0


def test_info_nce_where_all_negatives_are_excluded_is_zero_and_not_nan() -> None:
    scores = torch.tensor([[2.0, 1.0]])
    assert losses.info_nce(scores, torch.tensor([0]), excluded=torch.tensor([[False, True]])).item() == 0


def test_info_nce_equals_sentence_transformers_multiple_negatives_ranking() -> None:
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.util import cos_sim

    queries, documents, hard = vectors(5, 8), vectors(5, 8, seed=1), vectors(5, 8, seed=2)
    theirs = MultipleNegativesRankingLoss(model=torch.nn.Module(), scale=20.0)
    expected = theirs.compute_loss_from_embeddings([queries, documents, hard], torch.empty(0))
    scores = cos_sim(queries, torch.cat([documents, hard]))
    assert losses.info_nce(scores, torch.arange(5), temperature=0.05).item() == pytest.approx(expected.item(), rel=1e-5)


def test_margin_mse_of_one_query_and_two_negatives() -> None:
    student, teacher = torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([[10.0, 7.0, 9.0]])
    # margins of the student 2 and 1, of the teacher 3 and 1: (1² + 0²) / 2
    assert losses.margin_mse(student, teacher).item() == pytest.approx(0.5)


def test_margin_mse_counts_only_pairs_the_teacher_knows() -> None:
    student = torch.tensor([[3.0, 1.0, 2.0]], requires_grad=True)
    teacher, known = torch.tensor([[10.0, 7.0, math.nan]]), torch.tensor([[True, True, False]])
    loss = losses.margin_mse(student, teacher, known=known)
    loss.backward()
    assert loss.item() == pytest.approx(1.0)
    assert student.grad is not None and student.grad.isfinite().all()


def test_margin_mse_equals_sentence_transformers() -> None:
    from sentence_transformers.sentence_transformer.losses import MarginMSELoss
    from sentence_transformers.util import pairwise_dot_score

    query, candidates, teacher = vectors(4, 8), [vectors(4, 8, seed=at) for at in (1, 2, 3)], vectors(4, 3, seed=9)
    theirs = MarginMSELoss(torch.nn.Module(), similarity_fct=pairwise_dot_score)
    expected = theirs.compute_loss_from_embeddings([query, *candidates], teacher).item()
    student = torch.stack([(query * candidate).sum(-1) for candidate in candidates], dim=1)
    assert losses.margin_mse(student, teacher).item() == pytest.approx(expected, rel=1e-5)


def test_kl_distillation_of_one_query() -> None:
    teacher, student = torch.tensor([[math.log(3.0), 0.0]]), torch.tensor([[0.0, 0.0]])
    # teacher (3/4, 1/4) against student (1/2, 1/2)
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert losses.kl_distillation(student, teacher).item() == pytest.approx(expected, rel=1e-6)


def test_kl_distillation_leaves_unknown_candidates_out_on_both_sides() -> None:
    teacher = torch.tensor([[math.log(3.0), 0.0, 50.0]])
    student = torch.tensor([[0.0, 0.0, 30.0]], requires_grad=True)
    loss = losses.kl_distillation(student, teacher, known=torch.tensor([[True, True, False]]))
    loss.backward()
    assert loss.item() == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), rel=1e-6)
    assert student.grad is not None and student.grad[0, 2] == 0


def test_kl_distillation_equals_sentence_transformers() -> None:
    from sentence_transformers.sentence_transformer.losses import DistillKLDivLoss
    from sentence_transformers.util import pairwise_dot_score

    query, candidates, teacher = vectors(4, 8), [vectors(4, 8, seed=at) for at in (1, 2, 3)], vectors(4, 3, seed=9)
    theirs = DistillKLDivLoss(torch.nn.Module(), similarity_fct=pairwise_dot_score, temperature=1.0)
    expected = theirs.compute_loss_from_embeddings([query, *candidates], teacher).item()
    student = torch.stack([(query * candidate).sum(-1) for candidate in candidates], dim=1)
    assert losses.kl_distillation(student, teacher).item() == pytest.approx(expected, rel=1e-4)


def test_normalized_ensemble_brings_teachers_of_unlike_scales_together() -> None:
    dense, sparse = torch.tensor([[0.2, 0.8, 0.5]]), torch.tensor([[30.0, 10.0, 20.0]])
    # dense → (0, 1, 1/2), sparse → (1, 0, 1/2); half of each, times 10
    combined = losses.normalized_ensemble([dense, sparse], scale=10.0)
    assert combined.tolist() == [pytest.approx([5.0, 5.0, 5.0])]
    # weights 1/4 and 3/4: (3/4, 1/4, 1/2) · 10
    weighted = losses.normalized_ensemble([dense, sparse], [0.25, 0.75], scale=10.0)
    assert weighted.tolist() == [pytest.approx([7.5, 2.5, 5.0])]


def test_normalized_ensemble_normalizes_each_query_by_itself() -> None:
    teacher = torch.tensor([[0.0, 1.0], [100.0, 300.0]])
    assert losses.normalized_ensemble([teacher], scale=2.0).tolist() == [[0.0, 2.0], [0.0, 2.0]]


def test_normalized_ensemble_without_normalization_adds_raw_scores() -> None:
    combined = losses.normalized_ensemble(
        [torch.tensor([[1.0, 2.0]]), torch.tensor([[10.0, 30.0]])], [1.0, 1.0], scale=1.0, normalize=False
    )
    assert combined.tolist() == [[11.0, 32.0]]


def test_a_teacher_that_scores_all_candidates_alike_adds_nothing() -> None:
    flat, useful = torch.tensor([[7.0, 7.0]]), torch.tensor([[0.0, 4.0]])
    assert losses.normalized_ensemble([flat, useful], scale=10.0).tolist() == [[0.0, 5.0]]


def test_normalized_ensemble_takes_minimum_and_maximum_over_known_candidates_only() -> None:
    teacher, known = torch.tensor([[1.0, 3.0, -100.0]]), torch.tensor([[True, True, False]])
    assert losses.normalized_ensemble([teacher], scale=1.0, known=known).tolist() == [[0.0, 1.0, 0.0]]


def test_flops_is_the_sum_of_squared_means() -> None:
    # means over the two documents: 2, 0, 1/2 → 4 + 0 + 1/4
    assert losses.flops(torch.tensor([[1.0, 0.0, 1.0], [3.0, 0.0, 0.0]])).item() == pytest.approx(4.25)


def test_flops_of_a_batch_of_one_keeps_its_document_axis() -> None:
    assert losses.flops(torch.tensor([[1.0, 2.0]])).item() == pytest.approx(5.0)


def test_flops_equals_sentence_transformers() -> None:
    from sentence_transformers.sparse_encoder.losses import FlopsLoss

    weights = vectors(6, 40).relu()
    expected = FlopsLoss(model=torch.nn.Module()).compute_loss_from_embeddings(weights)  # type: ignore[arg-type]
    assert losses.flops(weights).item() == pytest.approx(expected.item(), rel=1e-6)


def test_flops_of_documents_above_a_number_of_terms_equals_sentence_transformers() -> None:
    from sentence_transformers.sparse_encoder.losses import FlopsLoss

    weights = vectors(6, 40).relu()
    terms = sorted((weights > 0).sum(dim=1).tolist())
    assert terms[0] < terms[3] < terms[-1], "the data shows nothing"
    loss = FlopsLoss(model=torch.nn.Module(), threshold=terms[3])  # type: ignore[arg-type]
    expected = loss.compute_loss_from_embeddings(weights)
    found = losses.flops(weights, least_terms=terms[3]).item()
    assert found == pytest.approx(expected.item(), rel=1e-6) != pytest.approx(losses.flops(weights).item())


def test_a_document_of_few_terms_adds_nothing_to_flops_and_gets_no_gradient() -> None:
    weights = torch.tensor([[[2.0, 2.0, 0.0], [2.0, 2.0, 2.0]], [[4.0, 4.0, 4.0], [0.0, 6.0, 0.0]]], requires_grad=True)
    # Of two slots, each has one document of three terms. Slot 0: means (2, 2, 2) → 12; slot 1: means (1, 1, 1) → 3.
    losses.flops(weights, least_terms=2).backward()
    assert losses.flops(weights, least_terms=2).item() == pytest.approx(15.0)
    assert weights.grad is not None
    assert (weights.grad != 0).any(dim=-1).tolist() == [[False, True], [True, False]]
    # The first entry stands for three: the document with two entries has four terms, and counts.
    shares, sampled = torch.tensor([3.0, 1.0, 1.0]), torch.tensor([[2.0, 2.0, 0.0], [0.0, 2.0, 2.0]])
    # means (1, 1, 0) → 3 · 1 + 1
    assert losses.flops(sampled, shares, least_terms=2).item() == pytest.approx(4.0)


def test_flops_of_several_slots_are_the_sum_of_each_slots() -> None:
    weights = torch.tensor([[[1.0, 0.0], [2.0, 2.0]], [[3.0, 0.0], [0.0, 2.0]]])
    # slot 0: means (2, 0) → 4; slot 1: means (1, 2) → 5; over all four documents: means (3/2, 1) → 3.25
    assert losses.flops(weights).item() == pytest.approx(9.0)
    assert losses.flops(weights.flatten(0, 1)).item() == pytest.approx(3.25)


def test_lambda_rank_weighs_a_pair_by_what_swapping_it_changes() -> None:
    # |1/1 − 1/2| = 1/2 and |1/4 − 1/2| = 1/4; equal scores: softplus(0) = ln 2
    loss = losses.lambda_rank(
        torch.tensor([1.0]), torch.tensor([[1.0, 1.0]]), torch.tensor([2]), torch.tensor([[1, 4]]), cutoff=10
    )
    assert loss.item() == pytest.approx(0.75 * math.log(2))


def test_lambda_rank_is_least_where_a_pair_has_the_probability_that_is_preferred() -> None:
    negatives = torch.tensor([[1.0, 0.5]], requires_grad=True)
    ranks = {"positive_ranks": torch.tensor([2]), "negative_ranks": torch.tensor([[1, 4]]), "cutoff": 10}
    positive = torch.tensor([1.0])
    loss = losses.lambda_rank(positive, negatives, preferences=torch.tensor([[0.8, 0.3]]), **ranks)
    # −p ln σ(x) − (1 − p) ln (1 − σ(x)) at x = 0 and x = 1/2, weights 1/2 and 1/4
    one, other = math.log(2), -0.3 * math.log(1 / (1 + math.exp(-0.5))) - 0.7 * math.log(1 / (1 + math.exp(0.5)))
    assert loss.item() == pytest.approx(0.5 * one + 0.25 * other)
    here = torch.sigmoid(positive[:, None] - negatives).detach()
    losses.lambda_rank(positive, negatives, preferences=here, **ranks).backward()
    assert negatives.grad is not None and negatives.grad.abs().max() < 1e-7
    sure = losses.lambda_rank(positive, negatives, preferences=torch.ones(1, 2), **ranks)
    assert sure.item() == losses.lambda_rank(positive, negatives, **ranks).item()


def test_lambda_rank_counts_ranks_beyond_the_cutoff_as_zero() -> None:
    # positive at rank 50 (0 under a cut-off of 10), negatives at 1 and 20: weights 1 and 0
    loss = losses.lambda_rank(
        torch.tensor([0.0]), torch.tensor([[0.0, 5.0]]), torch.tensor([50]), torch.tensor([[1, 20]]), cutoff=10
    )
    assert loss.item() == pytest.approx(math.log(2))


def test_lambda_rank_stays_finite_where_exp_would_overflow() -> None:
    scores = torch.tensor([[1000.0]], requires_grad=True)
    loss = losses.lambda_rank(torch.tensor([0.0]), scores, torch.tensor([2]), torch.tensor([[1]]), cutoff=10)
    loss.backward()
    assert loss.item() == pytest.approx(500.0)
    assert scores.grad is not None and scores.grad.item() == pytest.approx(0.5)


def test_lambda_rank_ignores_empty_slots() -> None:
    negatives = torch.tensor([[1.0, math.inf]], requires_grad=True)
    known = torch.tensor([[True, False]])
    loss = losses.lambda_rank(
        torch.tensor([1.0]), negatives, torch.tensor([2]), torch.tensor([[1, 1]]), cutoff=10, known=known
    )
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * math.log(2))
    assert negatives.grad is not None and negatives.grad.isfinite().all()


def test_masked_lm_sums_over_masked_positions_only() -> None:
    logits = torch.tensor([[[math.log(3.0), 0.0], [0.0, 0.0], [9.0, -9.0]]])
    total, count = losses.masked_lm(logits, torch.tensor([[0, 1, -100]]))
    assert total.item() == pytest.approx(math.log(4 / 3) + math.log(2))
    assert count.item() == 2


def test_masked_lm_without_a_masked_position_is_zero_of_zero() -> None:
    total, count = losses.masked_lm(torch.zeros(1, 2, 3), torch.full((1, 2), -100))
    assert (total.item(), count.item()) == (0.0, 0)


def test_largest_similarity_takes_the_best_vector_of_each_document() -> None:
    queries = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    documents = torch.tensor([[[1.0, 0.0], [3.0, 1.0]], [[0.0, 5.0], [2.0, 0.0]]])
    assert losses.largest_similarity(queries, documents).tolist() == [[3.0, 2.0], [2.0, 10.0]]


def test_largest_similarity_passes_over_vectors_that_a_document_does_not_have() -> None:
    documents = torch.tensor([[[1.0], [9.0]], [[-2.0], [0.0]]], requires_grad=True)
    known = torch.tensor([[True, False], [True, False]])
    scores = losses.largest_similarity(torch.tensor([[2.0]]), documents, known=known)
    assert scores.tolist() == [[2.0, -4.0]]
    scores.sum().backward()
    assert documents.grad is not None and documents.grad.flatten().tolist() == [2.0, 0.0, 2.0, 0.0]


def test_self_contrastive_scores_the_positive_on_its_last_layer_and_negatives_on_their_best() -> None:
    queries = torch.tensor([[1.0]])
    documents = torch.tensor([[[9.0], [0.0]], [[math.log(3.0)], [-5.0]]])  # (documents, layers, 1); last = 1
    positives = torch.tensor([0])
    # positive: last layer 0 → 1; negative: best layer ln 3 → 3; −ln(1/4). Nothing of the positive's 9.
    scores = losses.self_contrastive_scores(queries, documents, positives, last=1)
    assert scores.tolist() == [pytest.approx([0.0, math.log(3.0)])]
    assert losses.info_nce(scores, positives).item() == pytest.approx(math.log(4))
    # The same vectors with the layers named in the other order: the positive's last layer is 9 then.
    other = losses.self_contrastive_scores(queries, documents, positives, last=0)
    assert losses.info_nce(other, positives).item() == pytest.approx(math.log(1 + 3 * math.exp(-9)), rel=1e-3)


def test_self_contrastive_scores_a_document_by_its_last_layer_for_its_own_query_alone() -> None:
    queries = torch.tensor([[1.0], [2.0]])
    documents = torch.tensor([[[3.0], [1.0]], [[0.5], [4.0]]])  # last = 1
    scores = losses.self_contrastive_scores(queries, documents, torch.tensor([0, 1]), last=1)
    # query 0: its positive 1·1, the other document 1·4; query 1: the other document 2·3, its positive 2·4
    assert scores.tolist() == [[1.0, 4.0], [6.0, 8.0]]


def test_self_contrastive_regularization_prefers_the_last_layer() -> None:
    positives = torch.tensor([[[math.log(3.0)], [0.0]]])
    # layers exp: 3 and 1; last = 1 → −ln(1/4)
    loss = losses.self_contrastive_regularization(torch.tensor([[1.0]]), positives, last=1)
    assert loss.item() == pytest.approx(math.log(4))
    # At temperature 1/2 the exponents double: 9 and 1.
    sharper = losses.self_contrastive_regularization(torch.tensor([[1.0]]), positives, last=1, temperature=0.5)
    assert sharper.item() == pytest.approx(math.log(10))
    # Of a document that has the last alone nothing can be better than it.
    alone = losses.self_contrastive_regularization(
        torch.tensor([[1.0]]), positives, last=1, known=torch.tensor([[False, True]])
    )
    assert alone.item() == 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_losses_reduce_in_float32(dtype: torch.dtype) -> None:
    scores = vectors(3, 5).to(dtype)
    assert losses.info_nce(scores, torch.tensor([0, 1, 2])).dtype == torch.float32
    assert losses.kl_distillation(scores, scores).dtype == torch.float32
    assert losses.flops(scores).dtype == torch.float32
