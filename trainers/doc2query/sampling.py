"""Samples queries for passages from a generator: top-k, then nucleus, with their likelihoods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput

from opensearch_neural.encodable import encodable
from trainers.common.batches import IGNORED
from trainers.data.tokenized import mask_of, pad_rows
from trainers.doc2query.passage_words import Copying, CopyingScores
from trainers.doc2query.settings import Sampling


@dataclass(frozen=True, slots=True)
class Candidate:
    """A generated query."""

    text: str
    """the query's text"""
    log_probability: float
    """natural logarithm of the probability of all its tokens, including the end token"""
    tokens: int
    """number of its tokens, including the end token"""


class Draw(LogitsProcessor):
    """Draws one token and sets the scores of all others to −∞, so that greedy decoding takes it.

    It is drawn from the k likeliest tokens, and among these from the fewest whose probabilities sum to at least p (Holtzman
    et al., 2020): the distribution of transformers' two warpers in sequence, without sorting the whole vocabulary.
    """

    def __init__(self, top_k: int, top_p: float, temperature: float = 1.0) -> None:
        self.top_k, self.top_p, self.temperature = top_k, top_p, temperature

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """scores: (rows, vocabulary), before the softmax."""
        values, tokens = self.kept(scores)
        drawn = tokens.gather(-1, torch.multinomial(values.float().softmax(dim=-1), 1))
        return torch.full_like(scores, float("-inf")).scatter(-1, drawn, 0.0)

    def kept(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """(scores, tokens) of the k likeliest tokens, both (rows, k); −∞ for tokens outside the nucleus."""
        values, tokens = (scores / self.temperature).topk(min(self.top_k, scores.shape[-1]), dim=-1)
        probabilities = values.softmax(dim=-1)
        likelier = probabilities.cumsum(dim=-1) - probabilities
        return values.masked_fill(likelier >= self.top_p, float("-inf")), tokens


class Likelihoods(LogitsProcessor):
    """Records the natural logarithm of each drawn token's probability, and changes nothing. It must come before processors
    that cut off tokens."""

    def __init__(self) -> None:
        self._scores: Tensor | None = None
        self._logs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """scores: (rows, vocabulary); input_ids: (rows, length); the last token was drawn by the previous scores."""
        self._take(input_ids)
        self._scores = scores
        return scores

    def of(self, drawn: Tensor) -> Tensor:
        """The logarithms of all drawn tokens: (rows, tokens). drawn: (rows, 1 + tokens), a start token first."""
        self._take(drawn)
        self._scores = None
        return torch.stack(self._logs, dim=1)

    def _take(self, ids: Tensor) -> None:
        if self._scores is not None:
            scores = self._scores.float()
            self._logs.append(scores.gather(-1, ids[:, -1:]).squeeze(-1) - scores.logsumexp(dim=-1))


def sample_queries(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    passages: Sequence[str],
    sampling: Sampling,
    *,
    seed: int,
    copying: Copying | None = None,
) -> list[list[Candidate]]:
    """`sampling.candidates` queries for each passage, in the order of the passages.

    copying: favours words of the passages, with the weight `sampling.copying`; None favours none.
    """
    ids = [
        tokenizer(text, truncation=True, max_length=sampling.passage_length)["input_ids"]
        for text in (encodable(sampling.prefix + passage) for passage in passages)
    ]
    # Passages of similar length share a batch.
    order = sorted(range(len(ids)), key=lambda at: -len(ids[at]))
    queries: list[list[Candidate]] = [[] for _ in ids]
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.inference_mode():
        torch.manual_seed(seed)
        for start in range(0, len(order), sampling.batch_size):
            batch = order[start : start + sampling.batch_size]
            drawn = _sample(model, tokenizer, [ids[at] for at in batch], sampling, copying)
            for at, candidates in zip(batch, drawn, strict=True):
                queries[at] = candidates
    return queries


def _sample(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[list[int]],
    sampling: Sampling,
    copying: Copying | None,
) -> list[list[Candidate]]:
    inputs = pad_rows(ids, int(tokenizer.pad_token_id or 0)).to(model.device)
    mask = mask_of(ids).to(model.device)
    likelihoods = Likelihoods()
    draw = Draw(sampling.top_k, sampling.top_p, sampling.temperature)
    processors = LogitsProcessorList([likelihoods, draw])
    if copying is not None:
        read = inputs.repeat_interleave(sampling.candidates, dim=0)
        processors.insert(0, CopyingScores(copying, sampling.copying, read))
    states = model.get_encoder()(input_ids=inputs, attention_mask=mask).last_hidden_state
    drawn = model.generate(
        encoder_outputs=BaseModelOutput(states.repeat_interleave(sampling.candidates, dim=0)),
        attention_mask=mask.repeat_interleave(sampling.candidates, dim=0),
        do_sample=False,  # True draws from the whole vocabulary, which costs as much as a small model.
        logits_processor=processors,
        max_new_tokens=sampling.query_length,
        num_beams=1,
    )
    tokens = _until_end(drawn[:, 1:], int(model.generation_config.eos_token_id or tokenizer.eos_token_id))
    inside = tokens != IGNORED
    totals = likelihoods.of(drawn).masked_fill(~inside, 0.0).sum(dim=1).tolist()
    texts = tokenizer.batch_decode(drawn, skip_special_tokens=True)
    queries = [
        Candidate(" ".join(text.split()), round(total, 4), count)
        for text, total, count in zip(texts, totals, inside.sum(dim=1).tolist(), strict=True)
    ]
    return [queries[at : at + sampling.candidates] for at in range(0, len(queries), sampling.candidates)]


def _until_end(tokens: Tensor, end: int) -> Tensor:
    """`tokens` with −100 after the first end token, so that padding has no likelihood."""
    ended = (tokens == end).int().cumsum(dim=-1) - (tokens == end).int() > 0
    return tokens.masked_fill(ended, IGNORED)
