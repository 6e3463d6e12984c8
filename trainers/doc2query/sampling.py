"""Queries drawn from a generator for passages: top-k, then nucleus, with their likelihoods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput

from opensearch_neural.errors import InputError
from opensearch_neural.models import directory
from trainers.doc2query.copying import Copying, CopyingScores
from trainers.encoders.sequence_to_sequence import IGNORED, pad_rows

KIND = "doc2query"
"""Of the model directory of a generator."""
COPYING = "copying"
"""The measure that holds the fitted weight of the passage's words."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How queries are drawn. Lengths in tokens; copying: the weight of the passage's words (see copying.py). The same
    settings, seed included, give the same queries."""

    candidates: int = 5
    top_k: int = 25
    top_p: float = 0.95
    temperature: float = 1.0
    copying: float = 0.0
    query_length: int = 64
    passage_length: int = 384
    prefix: str = ""
    batch_size: int = 32
    seed: int = 42

    def __post_init__(self) -> None:
        if min(self.candidates, self.top_k, self.query_length, self.passage_length, self.batch_size) < 1:
            raise InputError("candidates, top_k, query_length, passage_length and batch_size must be at least 1")
        if self.copying < 0:
            raise InputError(f"copying must be 0 or more, not {self.copying}")
        if not 0 < self.top_p <= 1 or self.temperature <= 0:
            raise InputError(f"top_p must be in (0, 1] and temperature above 0: {self.top_p}, {self.temperature}")


@dataclass(slots=True)
class SamplingSettings:
    """`Sampling` as a configuration gives it: what is None is as the generator was trained, else the default."""

    candidates: int | None = None
    top_k: int | None = None
    top_p: float | None = None
    temperature: float | None = None
    copying: float | None = None
    query_length: int | None = None
    passage_length: int | None = None
    prefix: str | None = None
    batch_size: int | None = None
    seed: int | None = None


def sampling_for(model: str | Path, **given: Any) -> Sampling:
    """Settings for a model of queries: what is not given, or None, is as it was trained, else the default."""
    info = directory.read_osn_json(directory.locate(model)) or {}
    trained, measured = info.get("training", {}), info.get("measures", {})
    told = {name: trained[name] for name in ("query_length", "passage_length", "prefix") if name in trained}
    # Among the settings, `copying` says whether a weight was to be fitted.
    told |= {COPYING: measured[COPYING]} if COPYING in measured else {}
    return Sampling(**told | {name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Candidate:
    """A generated query; `log_probability` (natural logarithm, the end included) is of `tokens` tokens together."""

    text: str
    log_probability: float
    tokens: int


class TopKThenNucleus(LogitsProcessor):
    """The k likeliest tokens, and of these the fewest whose probabilities sum to at least p (Holtzman et al., 2020).

    The same distribution as transformers' two warpers one after the other, which sort the whole vocabulary for it.
    """

    def __init__(self, top_k: int, top_p: float, temperature: float = 1.0) -> None:
        self.top_k, self.top_p, self.temperature = top_k, top_p, temperature

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """scores: (rows, vocabulary), before the softmax; −∞ in the result where a token is not drawn."""
        kept, tokens = self.kept(scores)
        return torch.full_like(scores, float("-inf")).scatter(-1, tokens, kept)

    def kept(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, k): scores of the k likeliest tokens, −∞ for those that are not drawn, and the tokens."""
        values, tokens = (scores / self.temperature).topk(min(self.top_k, scores.shape[-1]), dim=-1)
        probabilities = values.softmax(dim=-1)
        likelier = probabilities.cumsum(dim=-1) - probabilities
        return values.masked_fill(likelier >= self.top_p, float("-inf")), tokens


class Draw(LogitsProcessor):
    """Draws a token from what `cut` keeps; it alone has a score that is not −∞, so that decoding greedily takes it."""

    def __init__(self, cut: TopKThenNucleus) -> None:
        self.cut = cut

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """scores: (rows, vocabulary), before the softmax."""
        values, tokens = self.cut.kept(scores)
        drawn = tokens.gather(-1, torch.multinomial(values.float().softmax(dim=-1), 1))
        return torch.full_like(scores, float("-inf")).scatter(-1, drawn, 0.0)


class Likelihoods(LogitsProcessor):
    """Changes nothing, and keeps the natural logarithm of the probability of each token that is drawn. It comes first,
    before anything is cut off."""

    def __init__(self) -> None:
        self._scores: Tensor | None = None
        self._logs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """scores: (rows, vocabulary); input_ids: (rows, length), of which the last was drawn by the scores before."""
        self._take(input_ids)
        self._scores = scores
        return scores

    def of(self, drawn: Tensor) -> Tensor:
        """(rows, tokens) of all that was drawn, (rows, 1 + tokens): a start token first."""
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
    """`sampling.candidates` queries for each passage. Passages of like length share a batch; the order is kept. copying:
    what sampling.copying is the weight of; by default, of these passages."""
    ids = [
        tokenizer(sampling.prefix + passage, truncation=True, max_length=sampling.passage_length)["input_ids"]
        for passage in passages
    ]
    if sampling.copying and copying is None:
        copying = Copying.of(ids, tokenizer)
    order = sorted(range(len(ids)), key=lambda at: -len(ids[at]))
    found: list[list[Candidate]] = [[] for _ in ids]
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.inference_mode():
        torch.manual_seed(seed)
        for start in range(0, len(order), sampling.batch_size):
            batch = order[start : start + sampling.batch_size]
            for at, candidates in zip(
                batch, _sample(model, tokenizer, [ids[at] for at in batch], sampling, copying), strict=True
            ):
                found[at] = candidates
    return found


def _sample(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[list[int]],
    sampling: Sampling,
    copying: Copying | None,
) -> list[list[Candidate]]:
    inputs = pad_rows(ids, int(tokenizer.pad_token_id or 0)).to(model.device)
    mask = pad_rows([[1] * len(row) for row in ids], 0).to(model.device)
    likelihoods = Likelihoods()
    draw = Draw(TopKThenNucleus(sampling.top_k, sampling.top_p, sampling.temperature))
    processors = LogitsProcessorList([likelihoods, draw])
    if sampling.copying and copying is not None:
        read = inputs.repeat_interleave(sampling.candidates, dim=0)
        processors.insert(0, CopyingScores(copying, sampling.copying, read))
    states = model.get_encoder()(input_ids=inputs, attention_mask=mask).last_hidden_state
    drawn = model.generate(
        encoder_outputs=BaseModelOutput(states.repeat_interleave(sampling.candidates, dim=0)),
        attention_mask=mask.repeat_interleave(sampling.candidates, dim=0),
        do_sample=False,  # It would draw from the whole vocabulary, which costs about as much as a small model.
        logits_processor=processors,
        max_new_tokens=sampling.query_length,
        num_beams=1,
    )
    tokens = _until_end(drawn[:, 1:], int(model.generation_config.eos_token_id or tokenizer.eos_token_id))
    inside = tokens != IGNORED
    totals = likelihoods.of(drawn).masked_fill(~inside, 0.0).sum(dim=1).tolist()
    texts = tokenizer.batch_decode(drawn, skip_special_tokens=True)
    found = [
        Candidate(" ".join(text.split()), round(total, 4), count)
        for text, total, count in zip(texts, totals, inside.sum(dim=1).tolist(), strict=True)
    ]
    return [found[at : at + sampling.candidates] for at in range(0, len(found), sampling.candidates)]


def _until_end(tokens: Tensor, end: int) -> Tensor:
    """`tokens` with −100 behind the first end token, so that padding has no likelihood."""
    ended = (tokens == end).int().cumsum(dim=-1) - (tokens == end).int() > 0
    return tokens.masked_fill(ended, IGNORED)
