"""The trained head: the plain formula and its gradient, less memory, and a sample of the vocabulary that is unbiased."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from trainers.common import losses  # noqa: E402
from trainers.sparse.tiled_head import PAIRS, sample_entries, trained_logits  # noqa: E402


def example(*, documents: int, length: int, vocabulary: int, size: int, bias: float, seed: int = 0) -> list:
    """hidden, mask (one row in full, the others cut anywhere), weight, bias: float64, all but the mask with gradient."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, length + 1, (documents,), generator=generator)
    lengths[0] = length
    hidden = torch.randn(documents, length, size, generator=generator, dtype=torch.float64)
    weight = torch.randn(vocabulary, size, generator=generator, dtype=torch.float64)
    biases = torch.randn(vocabulary, generator=generator, dtype=torch.float64) + bias
    mask = (torch.arange(length) < lengths[:, None]).long()
    return [hidden.requires_grad_(), mask, weight.requires_grad_(), biases.requires_grad_()]


def plain(hidden, mask, weight, bias) -> torch.Tensor:
    """All logits at once."""
    logits = (hidden @ weight.T + bias).masked_fill(~mask.bool()[:, :, None], -torch.inf)
    return logits.amax(dim=1).relu()


def gradients(function, inputs: list, upstream: torch.Tensor) -> list[torch.Tensor]:
    leaves = [one for one in inputs if one.requires_grad]
    return list(torch.autograd.grad((function(*inputs).log1p() * upstream).sum(), leaves))


@pytest.mark.parametrize("bias", [-4.0, 0.0, 3.0])
@pytest.mark.parametrize(
    "shape",
    [
        {"documents": 1, "length": 1, "vocabulary": 5, "size": 4},
        {"documents": 5, "length": 9, "vocabulary": 4100, "size": 6},
        {"documents": 3, "length": 2100, "vocabulary": 40, "size": 4},
    ],
)
def test_the_tiled_head_has_the_values_and_gradients_of_the_plain_formula(shape: dict[str, int], bias: float) -> None:
    inputs = example(**shape, bias=bias)
    upstream = torch.randn(
        shape["documents"], shape["vocabulary"], generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    torch.testing.assert_close(trained_logits(*inputs), plain(*inputs))
    for ours, expected in zip(
        gradients(trained_logits, inputs, upstream), gradients(plain, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(ours, expected)
    assert shape["vocabulary"] < PAIRS or bias < 3 or (trained_logits(*inputs) > 0).sum() > PAIRS


def test_chosen_entries_are_those_of_the_whole_head_in_their_order() -> None:
    inputs = example(documents=4, length=6, vocabulary=50, size=5, bias=0.0)
    entries = torch.tensor([3, 0, 49, 17])
    torch.testing.assert_close(trained_logits(*inputs, entries), trained_logits(*inputs)[:, entries])
    ours = torch.autograd.grad(trained_logits(*inputs, entries).square().sum(), [inputs[0], inputs[2], inputs[3]])
    theirs = torch.autograd.grad(plain(*inputs)[:, entries].square().sum(), [inputs[0], inputs[2], inputs[3]])
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_silenced_entry_is_only_revived_where_the_gradient_would_raise_it() -> None:
    inputs = example(documents=2, length=3, vocabulary=4, size=5, bias=-100.0)
    upstream = torch.tensor([[-1.0, 1.0, 0.0, -2.0], [0.0, 3.0, 0.0, 0.0]], dtype=torch.float64)

    def of_bias(revive: float) -> torch.Tensor:
        weights = trained_logits(*inputs, revive=revive).log1p()
        return torch.autograd.grad((weights * upstream).sum(), inputs[3])[0]

    assert of_bias(0.0).tolist() == [0, 0, 0, 0]
    assert of_bias(0.25).tolist() == [-0.25, 0, 0, -0.5]


def test_in_bfloat16_the_gradient_has_the_dtypes_of_what_it_is_for() -> None:
    hidden, mask, weight, bias = (
        one if one.dtype == torch.int64 else one.detach().float()
        for one in example(documents=2, length=5, vocabulary=30, size=8, bias=0.0)
    )
    inputs = [hidden.to(torch.bfloat16).requires_grad_(), mask, weight.requires_grad_(), bias.requires_grad_()]
    for gradient, leaf in zip(
        gradients(trained_logits, inputs, torch.ones(2, 30)), [inputs[0], inputs[2], inputs[3]], strict=True
    ):
        assert gradient.dtype == leaf.dtype
        assert gradient.abs().sum() > 0


@pytest.mark.parametrize("entries", [None, torch.tensor([3, 0, 29, 17])])
def test_autocast_multiplies_in_bfloat16_what_a_layer_norm_gave_in_float32(entries: torch.Tensor | None) -> None:
    """As on a GPU, whose autocast computes norms in float32."""
    inputs = [
        one if one.dtype == torch.int64 else one.detach().float().requires_grad_()
        for one in example(documents=2, length=5, vocabulary=30, size=8, bias=0.0)
    ]
    with torch.autocast("cpu", torch.bfloat16):
        logits = trained_logits(*inputs, entries)
    expected = plain(*inputs) if entries is None else plain(*inputs)[:, entries]
    torch.testing.assert_close(logits, expected, atol=0.05, rtol=0.02)
    for gradient in torch.autograd.grad(logits.log1p().sum(), [inputs[0], inputs[2], inputs[3]]):
        assert gradient.dtype == torch.float32
        assert gradient.abs().sum() > 0


@given(st.integers(1, 40), st.integers(0, 60), st.integers(0, 2**32 - 1))
def test_shares_add_up_to_the_vocabulary_and_wanted_entries_stand_for_themselves(
    wanted: int, count: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    queries = rng.integers(0, 50, size=wanted)
    sample = sample_entries(queries, np.arange(50), count, rng)
    assert len(set(sample.entries.tolist())) == len(sample.entries)
    assert set(queries.tolist()) <= set(sample.entries.tolist())
    assert (sample.entry_counts[np.isin(sample.entries, queries)] == 1).all()
    if count and len(set(queries.tolist())) < 50:
        assert sample.entry_counts.sum() == pytest.approx(50, rel=1e-5)


def test_the_sampled_heads_gradient_has_the_full_ones_expectation() -> None:
    """Score and FLOPS together. Of 6 entries, 2 are the queries' and every pair of the other 4 is equally likely: the
    mean over all six draws is the expectation, exactly."""
    import itertools

    inputs = example(documents=3, length=4, vocabulary=6, size=5, bias=0.5)
    leaves = [inputs[0], inputs[2], inputs[3]]
    wanted, others = [1, 4], [0, 2, 3, 5]

    def loss(ids: list[int], shares: list[float]) -> torch.Tensor:
        weights = trained_logits(*inputs, torch.tensor(ids)).log1p()
        scores = weights[:, [ids.index(one) for one in wanted]].sum(dim=1)
        return scores.softmax(0)[0] + 0.3 * losses.flops(weights, torch.tensor(shares))

    full = torch.autograd.grad(loss(list(range(6)), [1.0] * 6), leaves)
    draws = [
        torch.autograd.grad(loss([*wanted, *drawn], [1, 1, 2, 2]), leaves)
        for drawn in itertools.combinations(others, 2)
    ]
    for at, expected in enumerate(full):
        torch.testing.assert_close(torch.stack([draw[at] for draw in draws]).mean(0), expected, atol=1e-6, rtol=1e-5)


def test_every_draw_of_the_other_entries_is_equally_likely() -> None:
    """What the test above takes for granted: chi-square over the six pairs, 5 degrees of freedom, p = 0.001 at 20.5."""
    rng = np.random.default_rng(0)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(1200):
        sample = sample_entries(np.array([1, 4]), np.arange(6), 2, rng)
        drawn = tuple(int(one) for one in sample.entries if one not in (1, 4))
        counts[drawn] = counts.get(drawn, 0) + 1
    assert len(counts) == 6
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 20.5


MEMORY = """
import torch
from trainers.sparse.tiled_head import trained_logits
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
hidden = torch.randn(16, 96, 64, generator=generator).requires_grad_()
weight = torch.randn(16000, 64, generator=generator).requires_grad_()
bias = torch.full((16000,), -28.0).requires_grad_()
mask = torch.ones(16, 96, dtype=torch.long)
def peak():  # Of this process; ru_maxrss would start at the parent's.
    (line,) = [one for one in open("/proc/self/status") if one.startswith("VmHWM")]
    return int(line.split()[1])
def step(weights):
    weights.square().sum().backward()
step(trained_logits(hidden[:1, :2], mask[:1, :2], weight, bias).log1p())
before = peak()
step(trained_logits(hidden, mask, weight, bias).log1p())
tiled = peak()
step(((hidden @ weight.T + bias) * mask[:, :, None]).relu().log1p().amax(dim=1))
print(tiled - before, peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is counted in other units elsewhere")
def test_peak_memory_is_at_most_a_quarter_of_the_plain_heads() -> None:
    """In a process of their own, since a process's peak does not fall; the smaller one first."""
    done = subprocess.run([sys.executable, "-c", MEMORY], check=True, capture_output=True, text=True)
    tiled, plain = map(int, done.stdout.split())
    assert plain > 100_000  # KiB: the logits are 98 MB
    assert tiled <= plain / 4
