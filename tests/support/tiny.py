"""Tiny backbones and data that a bi-encoder learns in seconds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

WORDS = [f"{first}{second}" for first in "bdfgklmnprst" for second in ("ab", "ek", "in", "ol", "uz")]


def tiny_backbone(
    folder: Path, *, kind: str = "bert", layers: int = 2, dropout: float = 0.0, seed: int = 1, positions: int = 64
) -> Path:
    """A transformers folder: a word tokenizer and a random BERT (with its pooler) or T5 encoder of 32 dimensions."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast, T5Config, T5EncoderModel

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=positions).save_pretrained(folder)
    torch.manual_seed(seed)
    size = len(vocabulary)
    if kind == "t5":
        config = T5Config(
            vocab_size=size, d_model=32, d_kv=16, d_ff=64, num_layers=layers, num_heads=2, dropout_rate=dropout
        )
        T5EncoderModel(config).save_pretrained(folder)
    else:
        BertModel(
            BertConfig(
                vocab_size=size,
                hidden_size=32,
                num_hidden_layers=layers,
                num_attention_heads=2,
                intermediate_size=64,
                max_position_embeddings=positions,
                hidden_dropout_prob=dropout,
                attention_probs_dropout_prob=dropout,
            )
        ).save_pretrained(folder)
    return folder


def tiny_splade(folder: Path, *, positions: int = 256) -> Path:
    """A masked language model with a head of its own, as a published SPLADE is one."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    tiny_backbone(folder, positions=positions)
    torch.manual_seed(0)
    BertForMaskedLM(
        BertConfig(
            vocab_size=len(WORDS) + 5,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=positions,
        )
    ).save_pretrained(folder)
    return folder


def tiny_modern_bert(folder: Path, *, headless: bool = False, **settings: Any) -> Path:
    """A ModernBERT, whose norms have no bias, with its masked-LM head or without; settings: of its configuration."""
    import torch
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    tiny_backbone(folder)
    torch.manual_seed(0)
    small = {
        "vocab_size": len(WORDS) + 5,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
        "local_attention": 16,
        **{f"{name}_token_id": at for name, at in (("pad", 0), ("cls", 2), ("bos", 2), ("sep", 3), ("eos", 3))},
    }
    model = ModernBertForMaskedLM(ModernBertConfig(**(small | settings)))
    (model.model if headless else model).save_pretrained(folder)
    return folder


def tiny_beir(folder: Path, *, documents: int = 60, seed: int = 0) -> Path:
    """A BEIR folder: document i holds 6 words, its question one of them and 3 of their other names; i % 4 == 0 is dev.

    Questions and documents have little in common, so an untrained encoder is not much better than chance.
    """
    drawn = random.Random(seed)
    half = len(WORDS) // 2
    other_name = dict(zip(WORDS[:half], WORDS[half:], strict=True))
    texts = {f"d{at}": drawn.sample(WORDS[:half], 6) for at in range(documents)}
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    with (folder / "corpus.jsonl").open("w") as corpus, (folder / "queries.jsonl").open("w") as queries:
        for at, (identifier, words) in enumerate(texts.items()):
            corpus.write(json.dumps({"_id": identifier, "title": "", "text": " ".join(words)}) + "\n")
            question = " ".join([words[0], *(other_name[word] for word in drawn.sample(words, 3))])
            queries.write(json.dumps({"_id": f"q{at}", "text": question}) + "\n")
    for split, chosen in (
        ("train", [at for at in range(documents) if at % 4]),
        ("dev", [at for at in range(documents) if at % 4 == 0]),
    ):
        lines = ["query-id\tcorpus-id\tscore", *(f"q{at}\td{at}\t1" for at in chosen)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder
