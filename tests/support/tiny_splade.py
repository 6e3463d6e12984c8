"""SPLADEs that encode both sides by networks, made in a moment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpora import WORDS

if TYPE_CHECKING:
    from sentence_transformers import SparseEncoder


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


def write_two_networks(folder: Path, *, documents: Path, queries: Path, **options: Any) -> SparseEncoder:
    """A Router of sentence-transformers with a masked language model for documents, and another for queries."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Router

    router = Router.for_query_document(_splade(queries), _splade(documents))
    model = SparseEncoder(modules=[router], similarity_fn_name="dot", device="cpu", **options)
    model.save_pretrained(str(folder))
    return model


def _splade(network: Path) -> list[Any]:
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    return [Transformer(str(network), transformer_task="fill-mask"), SpladePooling("max")]
