"""Attention by matrix products gives what transformers' own attention gives, and is gone again after training."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import (  # noqa: E402
    AutoModel,
    BertConfig,
    DistilBertConfig,
    PreTrainedConfig,
    RobertaConfig,
    T5Config,
)

from trainers.common import attention  # noqa: E402
from trainers.common.attention import NAME, fast_attention  # noqa: E402

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 90}
CONFIGS = {
    "bert": BertConfig(**SMALL),
    "roberta": RobertaConfig(**SMALL),
    "distilbert": DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=90),
    "t5": T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=90, decoder_start_token_id=0),
}
IDS = torch.randint(5, 90, (3, 12), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[1] * 12, [1] * 7 + [0] * 5, [1] * 9 + [0] * 3])


@pytest.fixture(params=list(CONFIGS))
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    torch.manual_seed(0)
    config: PreTrainedConfig = CONFIGS[request.param]
    return AutoModel.from_config(config).eval()


def outcome(model: torch.nn.Module, mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """What comes out where something is to be seen, and the gradient of all weights."""
    given = {"input_ids": IDS, "attention_mask": mask}
    if model.config.model_type == "t5":
        given |= {"decoder_input_ids": IDS, "decoder_attention_mask": mask}
    model.zero_grad()
    out = model(**given).last_hidden_state[(torch.ones_like(MASK) if mask is None else mask) > 0]
    out.square().sum().backward()
    return out.detach(), torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "padded"])
def test_it_is_the_attention_that_it_replaces(model: torch.nn.Module, mask: torch.Tensor | None) -> None:
    wanted = outcome(model, mask)
    with fast_attention(model):
        assert model.config._attn_implementation == NAME
        found = outcome(model, mask)
        with torch.autocast("cpu", torch.bfloat16):
            rough = outcome(model, mask)
    assert model.config._attn_implementation == "sdpa"
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    for one, other in zip(rough, wanted, strict=True):
        assert (one - other).norm() < 0.03 * other.norm()


def test_a_row_that_is_masked_throughout_is_finite_in_bfloat16() -> None:
    query = torch.ones(1, 1, 2, 4, dtype=torch.bfloat16)
    mask = torch.full((1, 1, 2, 2), torch.finfo(torch.float32).min)
    found, _ = attention.attention_by_products(torch.nn.Identity(), query, query, query, mask)
    assert torch.isfinite(found).all()


def test_dropout_leaves_out_as_much_as_is_asked() -> None:
    values = torch.ones(1, 1, 400, 4)
    found, _ = attention.attention_by_products(torch.nn.Identity(), values, values, values, None, dropout=0.25)
    assert found.std() > 0 and found.mean() == pytest.approx(1.0, abs=0.05)


def test_models_with_an_attention_of_their_own_are_left_alone() -> None:
    model = AutoModel.from_config(BertConfig(**SMALL), attn_implementation="eager")
    with fast_attention(model):
        assert model.config._attn_implementation == "eager"


def test_models_inside_others_are_reached_and_restored() -> None:
    inner = AutoModel.from_config(CONFIGS["bert"])
    outer = torch.nn.ModuleDict({"one": inner, "two": torch.nn.Linear(2, 2)})
    with pytest.raises(RuntimeError, match="stopped"), fast_attention(outer):
        assert inner.config._attn_implementation == NAME
        raise RuntimeError("stopped")
    assert inner.config._attn_implementation == "sdpa"
