"""Makes the words of a passage more likely in the queries generated for it.

After few updates, a generator writes fluent questions, but its attention does not yet find the topic of the passage: the
questions fit any passage. `Copying` raises the scores of tokens in the passage:

    score(token) + weight · rarity(token)    if the token starts a word that is not yet written
    score(token) + weight                    if it continues a word as in the passage

rarity: ln(1 + N / (1 + df)) / ln(1 + N), 0 to 1, where df of N passages hold the token. Only the weight is fitted, to the
likelihood of held-back pairs (`fitted`). A generator with good attention gets the weight 0, which changes nothing.

CopyNet (Gu et al., 2016) and the pointer-generator (See et al., 2017) learn a second distribution over the input's words;
here a single log-linear feature does this, which needs no training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedTokenizerBase

from opensearch_neural.encodable import encodable
from trainers.common.batches import IGNORED
from trainers.common.sampling import Visit
from trainers.data.masking import continuations
from trainers.data.texts import TextStore
from trainers.encoders.sequence_to_sequence import Batched

WEIGHTS = (0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0)
"""Weights that `fitted` tries."""
COUNTED = 20_000
"""Largest number of documents for counting rarity."""
ROWS = 8
"""Rows scored together, each (target length, vocabulary) numbers."""


class Copying:
    """Raises the likelihood of a passage's tokens in its queries."""

    def __init__(self, rarity: Tensor, continuation: Tensor) -> None:
        """rarity: (vocabulary,), 0 for tokens that are never copied. continuation: (vocabulary,), True inside words."""
        self.rarity, self.continuation = rarity, continuation

    @classmethod
    def of(cls, passages: Iterable[Sequence[int]], tokenizer: PreTrainedTokenizerBase) -> Copying:
        """Counts rarity in passages, given as token ids; special tokens do not count."""
        special = set(tokenizer.all_special_ids)
        frequencies: Counter[int] = Counter()
        number = 0
        for ids in passages:
            frequencies.update(set(ids) - special)
            number += 1
        rarity = np.zeros(len(tokenizer), dtype=np.float32)
        for token, frequency in frequencies.items():
            rarity[token] = np.log1p(number / (1 + frequency)) / np.log1p(number)
        return cls(torch.from_numpy(rarity), torch.from_numpy(continuations(tokenizer)))

    def features(self, passages: Tensor, written: Tensor) -> Tensor:
        """The features that the weight multiplies, (rows, vocabulary). passages: (rows, length), token ids; written:
        (rows, t ≥ 1), the start token first."""
        place = passages.device
        rarity, inside = self.rarity.to(place), self.continuation.to(place)
        goes_on = torch.zeros_like(passages, dtype=torch.bool)
        goes_on[:, 1:] = passages[:, :-1] == written[:, -1:]
        again = (passages[:, :, None] == written[:, None, :]).any(dim=-1)
        within = inside[passages]
        values = torch.where(within, goes_on.float(), rarity[passages].masked_fill(again, 0.0))
        values = values * (rarity[passages] > 0)
        features = torch.zeros(len(passages), len(rarity), device=place)
        return features.scatter_reduce(1, passages, values, "amax")


def copying_of(documents: TextStore, tokenizer: PreTrainedTokenizerBase, passage_length: int) -> Copying:
    """Counts rarity in at most COUNTED evenly spaced documents of a corpus. passage_length: tokens read of each."""
    rows = range(0, len(documents), max(1, -(-len(documents) // COUNTED)))
    texts = (encodable(documents.text_at(row)) for row in rows)
    read = (tokenizer(text, truncation=True, max_length=passage_length)["input_ids"] for text in texts)
    return Copying.of(read, tokenizer)


class CopyingScores(LogitsProcessor):
    """Adds `weight` times `copying`'s features to the scores. passages: (rows, length), one per generated row."""

    def __init__(self, copying: Copying, weight: float, passages: Tensor) -> None:
        self.copying, self.weight, self.passages = copying, weight, passages

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """scores: (rows, vocabulary), before the softmax."""
        features = self.copying.features(self.passages, input_ids)
        scores = scores.clone()
        scores[:, : features.shape[1]] += self.weight * features
        return scores


@torch.inference_mode()
def fitted(model: Any, data: Batched, copying: Copying) -> tuple[float, float]:
    """(weight, mean log-likelihood of a target's token in nats): the one of WEIGHTS that makes `data` most likely."""
    device = next(model.parameters()).device
    totals, count = np.zeros(len(WEIGHTS)), 0
    for start in range(0, len(data), ROWS):
        visits = [Visit(index, 0, 0, 0) for index in range(start, min(start + ROWS, len(data)))]
        batch = data.collate([data[visit] for visit in visits])
        ids, mask, labels = (tensor.to(device) for tensor in (batch.input_ids, batch.attention_mask, batch.labels))
        decoded = model.prepare_decoder_input_ids_from_labels(labels=labels)
        logits = model(input_ids=ids, attention_mask=mask, decoder_input_ids=decoded, use_cache=False).logits.float()
        steps = [copying.features(ids, decoded[:, : at + 1]) for at in range(decoded.shape[1])]
        features = torch.zeros_like(logits)
        features[..., : len(copying.rarity)] = torch.stack(steps, dim=1)
        counted = labels != IGNORED
        logits, features, own = logits[counted], features[counted], labels[counted][:, None]
        for at, weight in enumerate(WEIGHTS):
            likely = (logits + weight * features).log_softmax(dim=-1).gather(-1, own)
            totals[at] += float(likely.sum())
        count += int(counted.sum())
    best = int(totals.argmax())
    return WEIGHTS[best], float(totals[best]) / max(count, 1)
