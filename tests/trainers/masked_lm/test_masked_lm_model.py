"""The loss of masked positions."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from masked_lm_setup import windows_of

from trainers.common.batches import IGNORED
from trainers.common.sampling import Visit
from trainers.data.masking import special_ids
from trainers.data.tokenized import pad_rows
from trainers.encoders import backbones
from trainers.encoders.backbones import masked_language_model
from trainers.masked_lm.model import MaskedLmTraining
from trainers.masked_lm.windows import MaskedWindows


def test_the_loss_of_masked_positions_alone_is_the_loss_of_the_whole_model(
    headless: Path, word_pieces: backbones.PreTrainedTokenizerBase
) -> None:
    model, _, _ = masked_language_model(headless)
    data = MaskedWindows(windows_of(["alpha beta gamma", "mu"], word_pieces), word_pieces, 0.4, False)
    batch = data.collate([data[Visit(index, 0, 0, 7)] for index in (0, 1)])
    assert batch.input_ids.shape == (2, 8 * math.ceil((len(data.windows[0]) + 2) / 8))
    training_model = MaskedLmTraining(model.eval(), word_pieces)
    found = training_model(batch)
    tensors = {name: getattr(batch, name) for name in ("input_ids", "attention_mask", "labels")}
    expected = model(**tensors)
    torch.testing.assert_close(found.total, expected.loss)
    found.total.backward()
    own = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    expected.loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(own[name], parameter.grad, msg=name)


def test_padding_is_never_predicted_and_never_seen(word_pieces: backbones.PreTrainedTokenizerBase) -> None:
    assert pad_rows([[1, 2, 3], [4]], 9).tolist() == [[1, 2, 3, 9, 9, 9, 9, 9], [4, 9, 9, 9, 9, 9, 9, 9]]
    data = MaskedWindows(windows_of(["alpha", "beta gamma delta epsilon"], word_pieces), word_pieces, 0.5, False)
    batch = data.collate([data[Visit(index, 0, 0, 0)] for index in (0, 1)])
    padding = batch.attention_mask == 0
    assert (batch.labels[padding] == IGNORED).all()
    assert not special_ids(word_pieces)[batch.labels[batch.labels != IGNORED].numpy()].any()
