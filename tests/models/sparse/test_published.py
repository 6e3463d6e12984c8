"""What reading a document costs: the formula against torch's own count, and the sizes of published models."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from opensearch_neural.cli import osn
from opensearch_neural.models.sparse.published import (
    DOCUMENT_TOKENS,
    PUBLISHED,
    NetworkSize,
    PublishedModel,
    multiply_adds,
)


def test_a_cost_worked_out_by_hand() -> None:
    # One layer of 2 dimensions, 3 in between, 5 words, 7 tokens. A token: projections 4 * 4, feed-forward 2 * 6, attention
    # to 7 tokens 2 * 14, head 4 + 10. So 7 * (16 + 12 + 28 + 14).
    assert multiply_adds(NetworkSize(1, 2, 3, 5), 7) == 490
    # A gate is a third matrix of 2 * 3.
    assert multiply_adds(NetworkSize(1, 2, 3, 5, gated=True), 7) == 490 + 7 * 6


@pytest.mark.parametrize("tokens", [5, 64])
def test_the_cost_is_what_torch_counts(tokens: int) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    size = NetworkSize(layers=3, hidden=16, intermediate=40, vocabulary=101)
    config = transformers.BertConfig(
        num_hidden_layers=size.layers,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        vocab_size=size.vocabulary,
        num_attention_heads=4,
        attn_implementation="eager",
    )
    model = transformers.BertForMaskedLM(config).eval()
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.ones(1, tokens, dtype=torch.long))
    assert counter.get_total_flops() == 2 * multiply_adds(size, tokens), "a multiply-add is two operations"


@pytest.mark.parametrize("model", [each for each in PUBLISHED if each.size], ids=lambda model: model.name)
def test_the_sizes_of_a_published_model_make_its_parameters(model: PublishedModel) -> None:
    size = model.size
    assert size is not None
    assert parameters_of(size) / 1e6 == pytest.approx(model.parameters, rel=0.05), "pages round"


@pytest.mark.parametrize(("name", "megabytes"), [("doc-v3-gte", 550), ("multilingual-v1", 670)])
def test_the_sizes_of_a_published_model_make_its_weights_file(name: str, megabytes: int) -> None:
    """As the hub lists these files. Without the gate doc-v3-gte would have 437 MB."""
    (size,) = [model.size for model in PUBLISHED if model.name.endswith(name)]
    assert size is not None
    assert 4 * parameters_of(size) / 1e6 == pytest.approx(megabytes, rel=0.005), "float32"


def parameters_of(size: NetworkSize) -> int:
    """Without biases and norms; 512 positions, which a network with rotary ones does not have."""
    embeddings = (size.vocabulary + 512) * size.hidden
    return embeddings + size.layers * size.layer_weights + size.hidden**2


def test_the_list_says_what_reading_a_document_costs() -> None:
    shown = CliRunner().invoke(osn, ["model", "list"], catch_exceptions=False).stdout
    listed = json.loads(CliRunner().invoke(osn, ["model", "list", "--json"]).stdout)["published"]
    known = {each.name: each.multiply_adds for each in PUBLISHED}
    assert {each["name"]: each["multiply_adds"] for each in listed} == known
    of = {name.rpartition("-doc-")[2]: count for name, count in known.items()}
    assert of["v3-distill"] == multiply_adds(NetworkSize(6, 768, 3072, 30_522), DOCUMENT_TOKENS)
    assert "17.6 billion multiply-adds for a document of 256 tokens" in shown
    assert shown.count("billion multiply-adds") == len(PUBLISHED), "the sizes of all are known"
    assert of["v3-gte"] == multiply_adds(NetworkSize(12, 768, 3072, 30_528, gated=True), DOCUMENT_TOKENS)
