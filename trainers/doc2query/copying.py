"""The words of a passage, likelier in a query written for it.

A generator with few updates knows how a question sounds long before its attention finds what the passage is about: its
questions fit any passage. `Copying` adds, to the scores of the tokens that the passage holds, their rarity times a weight:

    score(token) + weight · rarity(token)    where the token starts a word that was not written yet
    score(token) + weight                    where it goes on with a word as the passage does

rarity: ln(1 + N / (1 + df)) / ln(1 + N), 0 to 1, of N passages of which df hold the token. One number, the weight, is
fitted: the likeliest for pairs held back (`fitted`). A generator that attends well gets 0, and writes as it would have.

What CopyNet (Gu et al., 2016) and the pointer-generator (See et al., 2017) learn as a second distribution over the input's
words is here one log-linear feature, which needs no training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedTokenizerBase

from opensearch_neural.models.tokenizer import encodable
from trainers.common.batches import IGNORED
from trainers.common.sampling import Visit
from trainers.data.masking import continuations
from trainers.data.texts import TextStore
from trainers.encoders.sequence_to_sequence import Batched

WEIGHTS = (0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0)
"""Weights that `fitted` tries."""
COUNTED = 20_000
"""Documents in which rarity is counted, at most."""
ROWS = 8
"""Scored together: (rows, target length, vocabulary) numbers."""


class Copying:
    """Which tokens of a passage are likelier in its queries, and by how much."""

    def __init__(self, rarity: Tensor, continuation: Tensor) -> None:
        """rarity: (vocabulary,), 0 for tokens never copied. continuation: (vocabulary,), true for pieces within a word."""
        self.rarity, self.continuation = rarity, continuation

    @classmethod
    def of(cls, passages: Iterable[Sequence[int]], tokenizer: PreTrainedTokenizerBase) -> Copying:
        """Counted in passages, given by their token ids; special ones do not count."""
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
        """(rows, vocabulary): what the weight multiplies. passages: (rows, length) of ids; written: (rows, t ≥ 1), the start
        token first."""
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
    """Counted in a corpus, at most in COUNTED documents of it, evenly taken. passage_length: tokens read of each."""
    rows = range(0, len(documents), max(1, -(-len(documents) // COUNTED)))
    texts = (encodable(documents.text_at(row)) for row in rows)
    read = (tokenizer(text, truncation=True, max_length=passage_length)["input_ids"] for text in texts)
    return Copying.of(read, tokenizer)


class CopyingScores(LogitsProcessor):
    """Adds `weight` times `copying`'s features to the scores. passages: (rows, length), one for each row that is written."""

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
    """(weight, mean log-likelihood of a target's token in nats): of WEIGHTS the one by which `data` is likeliest."""
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
