"""The tiled head equals the plain formula; what is screened out is proven to be below 0."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs the extra [encode]")

from opensearch_neural.models.sparse import head as sparse_head  # noqa: E402


def example(*, batch: int, length: int, vocabulary: int, size: int, bias: float, seed: int = 0) -> tuple:
    """hidden, mask with one row in full and the others cut anywhere, weight, bias."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(batch, length, size, generator=generator) * 3
    lengths = torch.randint(1, length + 1, (batch,), generator=generator)
    lengths[0] = length
    mask = (torch.arange(length) < lengths[:, None]).long()
    weight = torch.randn(vocabulary, size, generator=generator)
    return hidden, mask, weight, torch.randn(vocabulary, generator=generator) + bias


def plain(hidden, mask, weight, bias, *, strategy="max", double_log=False) -> torch.Tensor:
    """SPLADE's formula with all logits at once, as sentence-transformers computes it."""
    logits = (hidden @ weight.T + bias) * mask[:, :, None]
    activations = torch.log1p(torch.relu(logits))
    if double_log:
        activations = torch.log1p(activations)
    return activations.amax(dim=1) if strategy == "max" else activations.sum(dim=1)


SHAPES = [
    # One position; a vocabulary that is no multiple of the tile; documents longer than ROWS; more documents than fit.
    {"batch": 1, "length": 1, "vocabulary": 5, "size": 4},
    {"batch": 3, "length": 7, "vocabulary": 2 * sparse_head.TILE + 3, "size": 8},
    {"batch": 2, "length": sparse_head.ROWS + 1, "vocabulary": 11, "size": 4},
    {"batch": 9, "length": sparse_head.ROWS // 4, "vocabulary": 100, "size": 16},
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [-30.0, -4.0, 3.0])
@pytest.mark.parametrize("double_log", [False, True])
def test_largest_logits_give_the_plain_formula(shape: dict[str, int], bias: float, double_log: bool) -> None:
    inputs = example(**shape, bias=bias)
    expected = plain(*inputs, double_log=double_log)
    tiled = sparse_head.activated(sparse_head.largest_logits(*inputs), double_log=double_log)
    torch.testing.assert_close(tiled, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [-100.0, -60.0, -30.0, 3.0])
@pytest.mark.parametrize("screen", [sparse_head.Bfloat16Screen, sparse_head.Int8Screen])
def test_screening_changes_no_value(shape: dict[str, int], bias: float, screen: type) -> None:
    hidden, mask, weight, biases = example(**shape, bias=bias)
    screened = sparse_head.largest_logits(hidden, mask, weight, biases, screen(weight))
    exact = sparse_head.largest_logits(hidden, mask, weight, biases)
    torch.testing.assert_close(screened, exact, atol=1e-4, rtol=1e-6)


def test_screening_keeps_an_entry_that_coarse_products_put_below_0() -> None:
    # 1 + 2⁻⁸ is 1 in bfloat16: the coarse product 1 · 1 − 1.003 is negative, the exact one positive.
    weight = torch.full((40, 1), -1.0)
    weight[7] = 1 + 2**-8
    hidden, mask, bias = torch.ones(1, 1, 1), torch.ones(1, 1), torch.full((40,), -1.003)
    screen = sparse_head.Bfloat16Screen(weight)
    assert screen.coarse[7].item() == 1
    logits = sparse_head.largest_logits(hidden, mask, weight, bias, screen)
    assert logits.nonzero().tolist() == [[0, 7]]
    assert logits[0, 7].item() == pytest.approx(2**-8 - 0.003, rel=1e-4)


def test_screening_by_integers_keeps_what_they_put_below_0_and_drops_what_is_far_below() -> None:
    # In steps of 100/127 the second component, 0.39, is 0: the coarse product is 0, the exact one 0.39 · 100 = 39.
    weight = torch.tensor([[100.0, 0.39], [100.0, -0.39], [-100.0, 0.0]]).repeat(40, 1)
    hidden, mask, bias = torch.tensor([[[0.0, 100.0]]]), torch.ones(1, 1), torch.full((120,), -38.0)
    bias[1::3] = -200  # the bound on what is lost, some 39 + 79, is less
    screen = sparse_head.Int8Screen(weight)
    assert screen.coarse[:3].tolist() == [[127, 0], [127, 0], [-127, 0]]
    possible = screen.possible(hidden, mask, bias)[0]
    assert possible[0::3].all() and not possible[1::3].any()
    logits = sparse_head.largest_logits(hidden, mask, weight, bias, screen)
    torch.testing.assert_close(logits[0, 0::3], torch.full((40,), 1.0))
    assert not logits[0, 1::3].any() and not logits[0, 2::3].any()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("double_log", [False, True])
def test_summed_activations_give_the_plain_formula(shape: dict[str, int], double_log: bool) -> None:
    inputs = example(**shape, bias=-4.0)
    expected = plain(*inputs, strategy="sum", double_log=double_log)
    summed = sparse_head.summed_activations(*inputs, double_log=double_log)
    torch.testing.assert_close(summed, expected, atol=1e-5, rtol=1e-5)


def test_logits_of_all_positions_are_never_held() -> None:
    hidden, mask, weight, bias = example(batch=8, length=512, vocabulary=20_000, size=8, bias=-4.0)
    with torch.inference_mode(), torch.profiler.profile(profile_memory=True) as profile:
        sparse_head.largest_logits(hidden, mask, weight, bias)
    largest = max(event.self_cpu_memory_usage / max(1, event.count) for event in profile.key_averages())
    # All logits would be 8 · 512 · 20,000 floats, 328 MB; a tile is 16 MB.
    assert largest <= 4 * sparse_head.ROWS * sparse_head.TILE
