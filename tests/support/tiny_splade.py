"""A SPLADE that encodes both sides by its network, made in a moment."""

from __future__ import annotations

from pathlib import Path

from corpora import WORDS


def write_splade(folder: Path, *, seed: int = 0) -> Path:
    """A plain masked language model of random weights, some of whose outputs are above 0."""
    import torch
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

    folder.mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(WORDS)]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForMaskedLM(BertConfig(vocab_size=len(vocabulary), initializer_range=0.3, **sizes))
    model.save_pretrained(folder)
    return folder
