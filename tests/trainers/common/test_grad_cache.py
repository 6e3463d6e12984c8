"""Gradient caching is exact: chunked and whole batches give the same gradients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from two_processes import in_two_processes  # noqa: E402

from trainers.common import losses  # noqa: E402
from trainers.common.batches import CachedBatch, Part  # noqa: E402
from trainers.common.grad_cache import CachedModel, Encoded, RandomState, cached_backward, gather  # noqa: E402
from trainers.common.training_model import Losses  # noqa: E402


@dataclass
class LabelledPart(Part):
    labels: Tensor


@dataclass
class Targets:
    positives: Tensor


class TwoTowers(CachedModel):
    """Word vectors, a transformer layer with dropout, CLS as the vector, and a masked-LM head on every row."""

    def __init__(self, *, dropout: float, vocabulary: int = 50, dimension: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, dimension)
        self.layer = nn.TransformerEncoderLayer(dimension, 2, 32, dropout=dropout, batch_first=True)
        self.sharpness = nn.Parameter(torch.tensor(1.5))

    def encode(self, role: str, part: LabelledPart) -> Encoded:
        hidden = self.layer(self.words(part.input_ids), src_key_padding_mask=part.attention_mask == 0)
        total, count = losses.masked_lm(hidden @ self.words.weight.T, part.labels)
        # Queries and documents have a term of their own, with its own count.
        return Encoded(hidden[:, 0], {f"{role}_mlm": 0.3 * total}, {f"{role}_mlm": count})

    def loss_terms(self, vectors: dict[str, Tensor], targets: Targets) -> Losses:
        scores = self.sharpness * vectors["query"] @ gather(vectors["document"]).T
        return Losses({"contrastive": losses.info_nce(scores, targets.positives)}, {"largest": scores.max()})


def rows(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, mask and labels: (count, 9), of lengths 2 to 9, with very uneven numbers of masked positions."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 50, (count, 9), generator=generator)
    lengths = torch.randint(2, 10, (count,), generator=generator)
    mask = (torch.arange(9)[None] < lengths[:, None]).long()
    masked = torch.rand(count, 9, generator=generator) < torch.linspace(0.05, 0.9, count)[:, None]
    return ids, mask, torch.where(masked & (mask == 1), ids, -100)


def parts(count: int, seed: int, size: int) -> list[LabelledPart]:
    ids, mask, labels = rows(count, seed)
    # Not in order, and padded no further than each part needs: as `collate` makes them.
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).split(size)
    made = []
    for at in order:
        longest = int(mask[at].sum(1).max())
        made.append(
            LabelledPart(
                input_ids=ids[at, :longest],
                attention_mask=mask[at, :longest],
                labels=labels[at, :longest],
                position=at,
            )
        )
    return made


def batch(size: int, *, queries: int = 6) -> CachedBatch:
    return CachedBatch(
        ids=[f"q{at}" for at in range(queries)],
        parts={"query": parts(queries, 1, size), "document": parts(2 * queries, 2, size)},
        targets=Targets(positives=torch.arange(queries)),
    )


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    return found


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], atol=tolerance, rtol=1e-5)


@pytest.fixture
def model() -> TwoTowers:
    torch.manual_seed(0)
    return TwoTowers(dropout=0.0)


@pytest.mark.parametrize("size", [1, 2, 5, 12])
def test_chunks_give_the_gradient_and_the_terms_of_the_whole_batch(model: TwoTowers, size: int) -> None:
    whole = model(batch(100))
    whole.total.backward()
    expected = gradients(model)
    chunked = cached_backward(model, batch(size))
    assert_same(gradients(model), expected)
    assert chunked.terms.keys() == whole.terms.keys() == {"contrastive", "query_mlm", "document_mlm"}
    for name, term in whole.terms.items():
        assert chunked.terms[name].item() == pytest.approx(term.item(), rel=1e-5)
    assert chunked.measures["largest"].item() == pytest.approx(whole.measures["largest"].item(), rel=1e-5)


def test_the_language_model_term_is_over_the_batch_and_not_the_mean_of_the_chunks(model: TwoTowers) -> None:
    chunked = cached_backward(model, batch(2)).terms["document_mlm"].item()
    each = [model.encode("document", part) for part in batch(2).parts["document"]]
    mean_of_means = sum(
        float((one.sums["document_mlm"] / one.counts["document_mlm"].clamp(min=1)).detach()) for one in each
    ) / len(each)
    # The rows' numbers of masked positions are uneven, so the two differ; only one of them is the batch's loss.
    assert abs(mean_of_means - chunked) > 1e-3
    assert chunked == pytest.approx(model(batch(100)).terms["document_mlm"].item(), rel=1e-5)


def test_a_batch_without_a_masked_token_has_a_language_model_loss_of_zero(model: TwoTowers) -> None:
    empty = batch(3)
    for of_role in empty.parts.values():
        for part in of_role:
            part.labels = torch.full_like(part.labels, -100)
    assert cached_backward(model, empty).terms["query_mlm"].item() == 0
    assert all(gradient.isfinite().all() for gradient in gradients(model).values())


def test_with_dropout_the_second_pass_draws_what_the_first_drew() -> None:
    torch.manual_seed(0)
    model = TwoTowers(dropout=0.4)
    torch.manual_seed(7)
    cached_backward(model, batch(2))
    after = torch.get_rng_state()
    chunked = gradients(model)
    # The same chunks with all activations kept: the definition of what caching must give.
    torch.manual_seed(7)
    model(batch(2)).total.backward()
    assert_same(chunked, gradients(model))
    # Replaying leaves no trace: training goes on with the numbers it would have had.
    assert torch.equal(after, torch.get_rng_state())
    torch.manual_seed(8)
    cached_backward(model, batch(2))
    other = gradients(model)
    assert any(not torch.allclose(other[name], chunked[name], atol=1e-4) for name in other), "dropout did not act"


def test_scale_multiplies_contrastive_and_language_model_gradients_alike(model: TwoTowers) -> None:
    cached_backward(model, batch(3))
    full = gradients(model)
    cached_backward(model, batch(3), scale=0.25)
    assert_same(gradients(model), {name: 0.25 * gradient for name, gradient in full.items()})


def test_under_bfloat16_chunks_train_the_weights_that_a_whole_batch_trains(model: TwoTowers) -> None:
    def autocast() -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16)

    with autocast():
        whole = model(batch(4))
    whole.total.backward()
    expected = gradients(model)
    chunked = cached_backward(model, batch(4), autocast=autocast)
    # bfloat16 keeps 8 bits; what this must find is a weight that chunks leave without any gradient.
    assert_same(gradients(model), expected, tolerance=0.02)
    assert chunked.terms["contrastive"].dtype == torch.float32


def test_replaying_a_random_state_restores_the_one_outside() -> None:
    state = RandomState.of(torch.device("cpu"))
    first = torch.rand(3)
    with state.replayed():
        again = torch.rand(3)
    assert torch.equal(first, again)
    assert not torch.equal(torch.rand(3), first)


def share_of_the_gradient(folder: Path) -> None:
    """What each of two processes does; the first one writes what both then have."""
    import torch.distributed as dist

    from trainers.common.grad_cache import average_gradients

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = TwoTowers(dropout=0.0)
    # Uneven numbers of documents: 5 here, 7 there; queries are shared evenly.
    documents = [range(0, 5), range(5, 12)][rank]
    share = _rows_of(range(3 * rank, 3 * rank + 3), documents)
    for chunked in (False, True):
        if chunked:
            share.parts = {role: _split(of_role[0], 2) for role, of_role in share.parts.items()}
            cached_backward(model, share)
        else:
            model(share).total.backward()
        average_gradients(list(model.parameters()))
        found = gradients(model)
        if rank == 0:
            torch.save(found, folder / f"{'chunked' if chunked else 'whole'}.pt")
    dist.destroy_process_group()


def _rows_of(queries: range, documents: range) -> CachedBatch:
    """These of the 6 queries and 12 documents; query i's positive is document i of all that are gathered."""
    taken = {}
    for role, wanted in (("query", queries), ("document", documents)):
        ids, mask, labels = rows(6 if role == "query" else 12, 1 if role == "query" else 2)
        at = torch.tensor(list(wanted))
        position = torch.arange(len(at))
        taken[role] = [LabelledPart(ids[at], mask[at], position, labels[at])]
    return CachedBatch(ids=[], parts=taken, targets=Targets(torch.arange(6)[list(queries)]))


def _split(part: LabelledPart, size: int) -> list[LabelledPart]:
    return [
        LabelledPart(**{name: tensor[at : at + size] for name, tensor in vars(part).items()})
        for at in range(0, len(part.position), size)
    ]


def test_two_processes_have_the_gradient_of_one_whole_or_in_chunks(tmp_path: Path, model: TwoTowers) -> None:
    model(_rows_of(range(6), range(12))).total.backward()
    expected = gradients(model)
    in_two_processes(share_of_the_gradient, tmp_path)
    for name in ("whole", "chunked"):
        assert_same(torch.load(tmp_path / f"{name}.pt", weights_only=True), expected)
