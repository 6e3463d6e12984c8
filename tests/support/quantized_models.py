"""Small models of kind "quantized": random networks, and centroids that hold given texts exactly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from opensearch_neural.models.dense.quantized import KIND, QUANTIZER_FILE, Quantizer
from opensearch_neural.models.dense.torch_encoder import load_dense
from opensearch_neural.models.directory import write_osn_json
from opensearch_neural.models.sparse.word_pieces import train_word_pieces

DIMENSION = 32


def quantized_model(folder: Path, texts: Sequence[str], *, parts: int = 4, seed: int = 0) -> Path:
    """A directory whose first centroids are the texts' own vectors; what it reconstructs is 0.9 of these."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import BertConfig, BertModel, BertTokenizerFast

    torch.manual_seed(seed)
    tokenizer = BertTokenizerFast(tokenizer_object=train_word_pieces([*texts] * 3, vocabulary=200), model_max_length=64)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 64}
    network = BertModel(BertConfig(vocab_size=len(tokenizer), hidden_size=DIMENSION, **sizes)).eval()
    # Weights that large, so that the vectors of different texts differ.
    for parameter in network.parameters():
        parameter.data.mul_(5)
    network.save_pretrained(folder / "network")
    tokenizer.save_pretrained(folder / "network")
    modules = [Transformer(str(folder / "network"), max_seq_length=64), Pooling(DIMENSION)]
    path = folder / "model"
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(path))
    random = np.random.default_rng(seed)
    rotation = np.linalg.qr(random.normal(size=(DIMENSION, DIMENSION)))[0].astype(np.float32)
    rotated = load_dense(path, device="cpu").encode_documents(list(texts))[:256] @ rotation.T
    filled = np.concatenate([rotated, rotated.mean(0) + random.normal(size=(256 - len(rotated), DIMENSION))])
    assigning = filled.reshape(256, parts, -1).transpose(1, 0, 2).astype(np.float32)
    Quantizer(rotation, assigning, np.float32(0.9) * assigning).save(path / QUANTIZER_FILE)
    write_osn_json(path, KIND)
    return path
