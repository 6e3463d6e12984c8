from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny import WORDS, tiny_backbone
from torch import Tensor

from trainers.doc2query import passage_words
from trainers.doc2query.passage_words import Copying, CopyingScores, fitted
from trainers.doc2query.settings import GenerationSettings
from trainers.encoders.sequence_to_sequence import LabelledRow, collate_rows

# A vocabulary of 8: 0 pads, 1 starts and ends, 5 and 6 continue words.
CONTINUATION = torch.tensor([False, False, False, False, False, True, True, False])
RARITY = torch.tensor([0.0, 0.0, 0.5, 0.75, 1.0, 0.25, 0.9, 1.0])


def features(passage: list[int], written: list[int]) -> list[float]:
    values = Copying(RARITY, CONTINUATION).features(torch.tensor([passage]), torch.tensor([written]))
    assert values.shape == (1, 8)
    return [round(value, 4) for value in values[0].tolist()]


def test_words_of_the_passage_count_by_their_rarity() -> None:
    # 2 and 3 start words; 5 continues the word that 3 starts, which is not written yet; 7 is not in the passage.
    assert features([1, 2, 3, 5, 1, 0, 0], [1]) == [0, 0, 0.5, 0.75, 0, 0, 0, 0]


def test_a_word_goes_on_as_in_the_passage_and_only_there() -> None:
    assert features([1, 2, 3, 5, 4, 6, 1], [1, 3]) == [0, 0, 0.5, 0, 1.0, 1.0, 0, 0]
    assert features([1, 2, 3, 5, 4, 6, 1], [1, 3, 5]) == [0, 0, 0.5, 0, 1.0, 0, 0, 0]
    assert features([1, 2, 3, 5, 4, 6, 1], [1, 4]) == [0, 0, 0.5, 0.75, 0, 0, 1.0, 0]


def test_a_word_that_is_written_is_not_copied_again() -> None:
    assert features([1, 2, 3, 1], [1, 2]) == [0, 0, 0, 0.75, 0, 0, 0, 0]
    assert features([1, 2, 3, 1], [1, 2, 3]) == [0] * 8


def test_special_tokens_and_padding_are_never_copied() -> None:
    assert features([1, 0, 0], [1, 2]) == [0] * 8


def test_scores_gain_the_weighted_features_and_padded_vocabulary_stays() -> None:
    scores = torch.zeros(2, 10)  # A model's vocabulary may be longer than its tokenizer's.
    passages = torch.tensor([[1, 2, 1], [1, 3, 1]])
    raised = CopyingScores(Copying(RARITY, CONTINUATION), 4.0, passages)(torch.ones(2, 1, dtype=torch.long), scores)
    assert raised[0].tolist() == [0, 0, 2.0, 0, 0, 0, 0, 0, 0, 0]
    assert raised[1].tolist() == [0, 0, 0, 3.0, 0, 0, 0, 0, 0, 0]
    assert scores.abs().sum() == 0


def test_rarity_is_counted_in_passages(tmp_path: Any) -> None:
    from trainers.encoders import backbones

    tokenizer = backbones.encoder_decoder(str(tiny_backbone(tmp_path / "bert")))[1]
    first, second, third = WORDS[:3]
    texts = [f"{first} {second}", f"{first} {first}", f"{first} {third}"]
    rows = [tokenizer(text)["input_ids"] for text in texts]
    rarity = Copying.of(rows, tokenizer).rarity
    everywhere, once, elsewhere = (tokenizer.convert_tokens_to_ids(word) for word in (first, second, third))
    assert float(rarity[everywhere]) == pytest.approx(math.log(1 + 3 / 4) / math.log(4))
    assert float(rarity[once]) == float(rarity[elsewhere]) == pytest.approx(math.log(1 + 3 / 2) / math.log(4))
    assert all(rarity[token] == 0 for token in tokenizer.all_special_ids)


class Pairs:
    """Passage [1, p, 1] and target [p, 1], for each p."""

    def __init__(self, copied: bool) -> None:
        self.rows = [(token, token if copied else 5 - token) for token in (2, 3) * 5]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, visit: Any, /) -> LabelledRow:
        passage, target = self.rows[visit.index]
        return str(visit.index), [1, passage, 1], [target, 1]

    def collate(self, items: Any) -> dict[str, Any]:
        return collate_rows(items, 0)


class Indifferent(torch.nn.Module):
    """All tokens alike at first, the end for certain then."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        started = torch.ones_like(labels)
        started[:, 1:] = labels[:, :-1].clamp(min=0)
        return started

    def forward(self, decoder_input_ids: Tensor, **_: Any) -> Any:
        logits = torch.zeros(*decoder_input_ids.shape, 8)
        logits[:, 1:, 1] = 100.0
        return SimpleNamespace(logits=logits)


def test_the_weight_is_the_likeliest() -> None:
    # One token of two is certain; ln of the other is w·r − ln(7 + e^(w·r)) where it is copied.
    rarity = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    weight, likelihood = fitted(Indifferent(), Pairs(copied=True), Copying(rarity, CONTINUATION))
    assert weight == max(passage_words.WEIGHTS)
    assert likelihood == pytest.approx((weight - math.log(7 + math.exp(weight))) / 2, abs=1e-5)


def test_who_copies_nothing_gets_no_weight() -> None:
    weight, likelihood = fitted(Indifferent(), Pairs(copied=False), Copying(RARITY, CONTINUATION))
    assert weight == 0
    assert likelihood == pytest.approx(-math.log(8) / 2, abs=1e-5)


def test_a_generator_whose_weight_was_not_fitted_copies_nothing(tmp_path: Path) -> None:
    def told(**measures: float) -> float:
        info = {
            "format": 1,
            "kind": "doc2query",
            "training": {"copying": True, "query_length": 9},
            "measures": measures,
        }
        (tmp_path / "osn.json").write_text(json.dumps(info))
        sampling = GenerationSettings(str(tmp_path)).sampling()
        assert sampling.query_length == 9
        return sampling.copying

    assert told() == 0.0 and not isinstance(told(), bool)
    assert told(copying=3.0) == 3.0
