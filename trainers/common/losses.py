"""The losses of the papers: pure functions, tensors in, scalar out, one equation each.

Shapes are written as (queries, documents). A loss is the mean over queries unless a function says otherwise (`margin_mse` is
a mean over pairs, `masked_lm` a sum beside its count), so it does not grow with the batch. Scores are raw inner products
unless a function says otherwise. Reductions run in float32 for every input type. docs/how-to/extend.md says what else a loss
needs.

Abbreviations of the references:
    sparse   "Towards Competitive Search Relevance For Inference-Free Learned Sparse Retrievers"
    context  "Query-as-context Pre-training for Dense Passage Retrieval"
    MLR      "Investigating Multi-layer Representations for Dense Passage Retrieval"
    JPQ      "Jointly Optimizing Query Encoder and Product Quantization to Improve Retrieval Performance"
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def info_nce(scores: Tensor, positives: Tensor, *, temperature: float = 1.0, excluded: Tensor | None = None) -> Tensor:
    """−log exp(s(q, d⁺)/τ) / Σ_d exp(s(q, d)/τ), the mean over queries (context, eq. in 3.2; MLR, eq. 3).

    scores: (queries, documents), in-batch documents included; positives: (queries,), the column of each query's d⁺;
    excluded: (queries, documents), True where a document must not count as a negative (another positive, a second copy).
    τ = 1 is the papers' setting for raw inner products; cosines need about 0.05, or the softmax stays flat.
    """
    logits = scores.float() / temperature
    if excluded is not None:
        logits = logits.masked_fill(excluded, -torch.inf)
    return F.cross_entropy(logits, positives)


def pair_targets(keys: Tensor, everyone: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Positives and exclusions for `info_nce` if each half of a pair searches for the other half among all rows (context,
    eq. in 2.1).

    keys: (pairs, kinds), the keys of this process's pairs; everyone: (all pairs, kinds), the keys of all processes, where
    this process's begin at `first`. Rows: first halves, then second halves; columns: all first halves, then all second.
    Returns the column of each row's partner, (2 · pairs,), and True where a column is not a negative,
    (2 · pairs, 2 · all pairs): the row itself, and both halves of other pairs that share a key of any kind.
    """
    own = torch.arange(first, first + len(keys), device=keys.device)
    positives = torch.cat([own + len(everyone), own])
    excluded = (keys[:, None] == everyone[None, :]).any(dim=-1).repeat(2, 2)
    excluded[torch.arange(2 * len(keys), device=keys.device), positives] = False
    return positives, excluded


def margin_mse(student: Tensor, teacher: Tensor, *, known: Tensor | None = None) -> Tensor:
    """((s⁺ − s⁻) − (t⁺ − t⁻))², the mean over all pairs of a positive and a negative (Hofstätter et al. 2020, "Improving
    Efficient Neural Ranking Models with Cross-Architecture Knowledge Distillation", eq. 4).

    student, teacher: (queries, candidates), the positive in column 0; known: (queries, candidates), False where the
    teacher has no score. A pair counts if both of its scores are known.
    """
    difference = (student[:, :1] - student[:, 1:]).float() - (teacher[:, :1] - teacher[:, 1:]).float()
    if known is None:
        return difference.square().mean()
    pairs = known[:, :1] & known[:, 1:]
    # where(), not a product: an unknown score may be NaN, and 0 · NaN is NaN.
    return torch.where(pairs, difference, 0.0).square().sum() / pairs.sum().clamp(min=1)


def kl_distillation(student: Tensor, teacher: Tensor, *, known: Tensor | None = None) -> Tensor:
    """KL(softmax(t) ‖ softmax(s)), the mean over queries (sparse, eq. 1).

    student, teacher: (queries, candidates); known: (queries, candidates), False where the teacher has no score or the
    slot is empty: such candidates are left out on both sides.
    """
    student, teacher = student.float(), teacher.float()
    if known is not None:
        # A finite stand-in for −inf: exp() of it is exactly 0, and its gradient is 0 instead of NaN.
        lowest = torch.finfo(student.dtype).min / 4
        student, teacher = student.masked_fill(~known, lowest), teacher.masked_fill(~known, lowest)
    log_student, log_teacher = student.log_softmax(dim=-1), teacher.log_softmax(dim=-1)
    return (log_teacher.exp() * (log_teacher - log_student)).sum(dim=-1).mean()


def normalized_ensemble(
    teachers: Sequence[Tensor],
    weights: Sequence[float] | None = None,
    *,
    scale: float,
    normalize: bool = True,
    known: Tensor | None = None,
) -> Tensor:
    """ŝ = S · Σ_j w_j (s^j − min s^j) / (max s^j − min s^j), minimum and maximum per query (sparse, eq. 8 and 9).

    teachers: scores (queries, candidates) of each; weights: one per teacher, by default equal weights that sum to 1;
    scale: S, 10 in the paper's pre-training and 30 in its fine-tuning; known: (queries, candidates), False where a slot
    is empty. Returns (queries, candidates). Equation 9 prints s, but its text says the normalized ŝ, as here.
    `normalize=False` adds the raw scores (the ablation of Table 6). A teacher that gives all candidates of a query the
    same score adds 0.
    """
    shares = [1 / len(teachers)] * len(teachers) if weights is None else list(weights)
    if len(shares) != len(teachers):
        raise ValueError(f"{len(teachers)} teachers but {len(shares)} weights")
    total = torch.zeros_like(teachers[0], dtype=torch.float32)
    for scores, weight in zip(teachers, shares, strict=True):
        scores = scores.float()
        if normalize:
            lowest = scores if known is None else scores.masked_fill(~known, torch.inf)
            highest = scores if known is None else scores.masked_fill(~known, -torch.inf)
            low, high = lowest.amin(dim=-1, keepdim=True), highest.amax(dim=-1, keepdim=True)
            spread = high - low
            scores = torch.where(spread > 0, (scores - low) / spread, 0.0)
        total = total + weight * scores
    return scale * (total if known is None else total.masked_fill(~known, 0.0))


def flops(weights: Tensor, shares: Tensor | None = None, *, least_terms: int | None = None) -> Tensor:
    """Σ_j (1/N Σ_i w_j(d_i))²: the expected cost of scoring (sparse, eq. 3; Paria et al. 2020).

    weights: (documents, …, vocabulary), not negative. All documents of the batch together, as in sentence-transformers;
    over axes in between, such as candidate slots, it is summed.
    shares: (entries,), if `weights` holds a sample of the vocabulary (`tiled_head.sample_entries`). The estimate is then
    unbiased, because the square is of a mean over documents, within one entry.
    least_terms: documents with at most this many active terms cost nothing, and add nothing to the cost of others: the ℓ0
    mask loss of Shen et al. 2025, "Exploring ℓ0 Sparsification for Inference-free Sparse Retrievers". With `shares` the
    number of terms is an estimate.
    """
    if least_terms is not None:
        active = (weights > 0).float()
        terms = active.sum(dim=-1) if shares is None else active @ shares
        weights = weights * (terms > least_terms).unsqueeze(-1)
    squares = weights.float().mean(dim=0).square()
    return squares.sum() if shares is None else (squares * shares).sum()


def lambda_rank(
    positive_scores: Tensor,
    negative_scores: Tensor,
    positive_ranks: Tensor,
    negative_ranks: Tensor,
    *,
    cutoff: int,
    known: Tensor | None = None,
    preferences: Tensor | None = None,
) -> Tensor:
    """Σ over d⁻ of |1/r⁻ − 1/r⁺| · softplus(s⁻ − s⁺), the mean over queries (JPQ, eq. 16, with Burges' LambdaRank).

    positive_scores, positive_ranks: (queries,); negative_scores, negative_ranks: (queries, negatives); ranks from 1 in
    the current result list; known: (queries, negatives), False for an empty slot. The weight is the change in reciprocal
    rank if the pair were swapped; 1/r beyond `cutoff` counts as 0, as in MRR@cutoff. preferences: (queries, negatives),
    the probability p that d⁺ belongs above d⁻, 1 by default: a pair's loss is the cross-entropy of RankNet
    (Burges et al. 2005, eq. 2 and 3), which is least at σ(s⁺ − s⁻) = p.
    """
    weights = (_reciprocal(negative_ranks, cutoff) - _reciprocal(positive_ranks, cutoff)[:, None]).abs()
    if known is not None:
        weights = torch.where(known, weights, 0.0)
        negative_scores = torch.where(known, negative_scores, 0.0)
    # softplus, because log(1 + exp(x)) is infinite from x = 89 in float32.
    above = (positive_scores[:, None] - negative_scores).float()
    pairs = F.softplus(-above)
    if preferences is not None:
        pairs = pairs + (1 - preferences) * above
    return (weights * pairs).sum(dim=-1).mean()


def _reciprocal(ranks: Tensor, cutoff: int) -> Tensor:
    return torch.where(ranks <= cutoff, 1 / ranks.float(), 0.0)


def masked_lm(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Σ CE(logits_i, label_i) over the masked positions, and their number (context, L_mlm in section 2).

    logits: (…, vocabulary); labels: (…), −100 where nothing is to be predicted. Sum and number are separate, because the
    mean over a batch that is encoded in chunks is Σ sums / Σ counts, not the mean of the chunks' means.
    """
    total = F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), ignore_index=-100, reduction="sum")
    return total, (labels != -100).sum()


def largest_similarity(queries: Tensor, documents: Tensor, *, known: Tensor | None = None) -> Tensor:
    """sim(q, d) = max over the vectors of d of ⟨q, h⟩ (MLR, eq. 2).

    queries: (queries, dimension); documents: (documents, vectors, dimension); known: (documents, vectors), False where a
    document has no such vector. Returns (queries, documents).
    """
    scores = torch.einsum("qd,nvd->qnv", queries, documents)
    return (scores if known is None else scores.masked_fill(~known, -torch.inf)).amax(dim=-1)


def self_contrastive_scores(
    queries: Tensor, documents: Tensor, positives: Tensor, *, last: int, known: Tensor | None = None
) -> Tensor:
    """The scores of L_con: d⁺ by its last layer's vector, other documents by their best vector (MLR, eq. 5).

    L_con is `info_nce` of these scores. queries: (queries, dimension); documents: (documents, layers, dimension);
    positives: (queries,); last: the index of the last layer among the documents' vectors; known: as in
    `largest_similarity`. Returns (queries, documents).
    """
    of_positives = (queries * documents[positives, last]).sum(dim=-1)
    return largest_similarity(queries, documents, known=known).scatter(1, positives[:, None], of_positives[:, None])


def self_contrastive_regularization(
    queries: Tensor, positives: Tensor, *, last: int, temperature: float = 1.0, known: Tensor | None = None
) -> Tensor:
    """L_reg = −log exp⟨q, h_last⟩ / Σ_l exp⟨q, h_l⟩ over the layers of d⁺ (MLR, eq. 6); L = L_con + λ·L_reg (eq. 7).

    queries: (queries, dimension); positives: (queries, layers, dimension), the vectors of each query's own d⁺; known:
    (queries, layers), False where d⁺ has no such vector.
    """
    scores = torch.einsum("qd,qvd->qv", queries, positives)
    lasts = torch.full((len(scores),), last, dtype=torch.long, device=scores.device)
    return info_nce(scores, lasts, temperature=temperature, excluded=None if known is None else ~known)
