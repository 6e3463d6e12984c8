"""How a query is drawn, and its likelihood."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from doc2query_setup import NOUNS, passage
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from trainers.doc2query import sampling
from trainers.doc2query.sampling import Draw, sample_queries
from trainers.doc2query.settings import Sampling
from trainers.encoders import backbones


def kept(draw: Draw, scores: torch.Tensor) -> torch.Tensor:
    """(rows, vocabulary): the scores of the tokens of which one is drawn, −∞ for the others."""
    values, tokens = draw.kept(scores)
    return torch.full_like(scores, float("-inf")).scatter(-1, tokens, values)


@pytest.mark.parametrize(
    ("top_k", "top_p", "temperature"), [(5, 0.7, 1.0), (25, 0.95, 0.7), (3, 1.0, 1.0), (50, 0.3, 2.0)]
)
def test_top_k_then_nucleus_is_what_transformers_warpers_give(top_k: int, top_p: float, temperature: float) -> None:
    scores = torch.randn(20, 40, generator=torch.Generator().manual_seed(0)) * 3
    theirs = LogitsProcessorList(
        [TemperatureLogitsWarper(temperature), TopKLogitsWarper(min(top_k, 40)), TopPLogitsWarper(top_p)]
    )
    ids = torch.zeros(20, 1, dtype=torch.long)
    torch.testing.assert_close(kept(Draw(top_k, top_p, temperature), scores), theirs(ids, scores))


def test_nucleus_by_hand() -> None:
    scores = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    torch.testing.assert_close(kept(Draw(4, 0.79), scores).exp(), torch.tensor([[0.5, 0.3, 0.0, 0.0]]))
    # Of the top three, 0.5 / 0.95 is not yet 0.79, and together with the next it is more.
    assert kept(Draw(3, 0.79), scores).isfinite().tolist() == [[True, True, False, False]]
    assert kept(Draw(1, 0.99), scores).isfinite().tolist() == [[True, False, False, False]]


def test_the_log_probability_is_that_of_the_tokens_under_the_whole_distribution(t5: Path) -> None:
    model, tokenizer = backbones.sequence_to_sequence(t5)
    model.eval()
    texts = [passage("cat", 1), passage("dog", 22) + " and eats"]
    greedy = Sampling(candidates=1, top_k=1, query_length=7)
    found = sample_queries(model, tokenizer, texts, greedy, seed=0)
    for text, (candidate,) in zip(texts, found, strict=True):
        # Token by token, one passage at a time, without padding or cache.
        inputs = tokenizer(text, return_tensors="pt")
        tokens = [model.config.decoder_start_token_id]
        expected = 0.0
        while len(tokens) <= 7 and tokens[-1] != tokenizer.eos_token_id:
            with torch.no_grad():
                logits = model(**inputs, decoder_input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
            tokens.append(int(logits.argmax()))
            expected += float(logits.log_softmax(-1)[tokens[-1]])
        assert candidate.log_probability == pytest.approx(expected, abs=2e-3)
        assert candidate.tokens == len(tokens) - 1
        assert candidate.text == " ".join(tokenizer.decode(tokens, skip_special_tokens=True).split())


def test_what_follows_the_end_has_no_likelihood() -> None:
    tokens = torch.tensor([[5, 1, 0, 0], [5, 6, 7, 8], [1, 1, 0, 0]])
    assert sampling._until_end(tokens, 1).tolist() == [[5, 1, -100, -100], [5, 6, 7, 8], [1, -100, -100, -100]]


def test_candidates_differ_and_follow_the_seed(t5: Path) -> None:
    model, tokenizer = backbones.sequence_to_sequence(t5)
    sampling = Sampling(candidates=4, query_length=6)
    state = torch.random.get_rng_state()
    first, again, other = (
        sample_queries(model.eval(), tokenizer, [passage("cat", 1)], sampling, seed=seed)[0] for seed in (1, 1, 2)
    )
    assert first == again != other
    assert len({candidate.text for candidate in first}) > 1
    assert torch.equal(torch.random.get_rng_state(), state)


def test_queries_stay_with_their_passages_whatever_the_batch(t5: Path) -> None:
    model, tokenizer = backbones.sequence_to_sequence(t5)
    texts = [passage(noun, 7) + " and so on" * (i % 4) for i, noun in enumerate(NOUNS)]
    results = [
        sample_queries(
            model.eval(), tokenizer, texts, Sampling(candidates=1, top_k=1, query_length=5, batch_size=size), seed=0
        )
        for size in (1, 3, 8)
    ]
    assert [[c.text for c in row] for row in results[0]] == [[c.text for c in row] for row in results[1]]
    assert [[c.text for c in row] for row in results[0]] == [[c.text for c in row] for row in results[2]]
