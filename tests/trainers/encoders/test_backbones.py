"""Networks to start from."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from safetensors.torch import load_file, save_file
from tiny import tiny_backbone

from opensearch_neural.errors import ModelError
from trainers.encoders import backbones


def test_a_masked_lm_head_that_lacks_weights_is_refused_and_not_replaced(tmp_path: Path) -> None:
    model, tokenizer, fresh = backbones.masked_language_model(tiny_backbone(tmp_path / "tiny"))
    assert fresh
    backbones.save(model, tokenizer, tmp_path / "model")
    assert backbones.masked_language_model(tmp_path / "model")[2] is False
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    del tensors["cls.predictions.transform.dense.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"the masked-LM head lack cls\.predictions\.transform\.dense\.weight"):
        backbones.masked_language_model(tmp_path / "model")
