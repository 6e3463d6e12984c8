"""A corpus as windows, corrupted at every visit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from masked_lm_setup import sentences, windows_of

from opensearch_neural.errors import InputError
from trainers.common.sampling import Visit
from trainers.encoders import backbones
from trainers.masked_lm.windows import MaskedWindows, tokenize_corpus


def test_a_visit_masks_alike_each_time_and_differently_the_next(word_pieces: backbones.PreTrainedTokenizerBase) -> None:
    data = MaskedWindows(windows_of(sentences(3), word_pieces), word_pieces, 0.3, True)
    first, again, later = (data[Visit(1, epoch, 0, 5)] for epoch in (0, 0, 1))
    np.testing.assert_array_equal(first[1], again[1])
    assert (first[1] != later[1]).any()


def test_long_documents_become_windows_and_repeated_ones_stay_on_one_side(
    tmp_path: Path, word_pieces: backbones.PreTrainedTokenizerBase
) -> None:
    path = tmp_path / "c.jsonl"
    texts = [*sentences(60), " ".join(sentences(3))]
    rows = [{"_id": str(i), "text": text.upper() if i % 2 else text} for i, text in enumerate(texts * 2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train, dev = tokenize_corpus([path], word_pieces, tmp_path / "w", length=10, dev_share=0.3)

    assert len(train) and len(dev)
    lengths = np.concatenate([train.stops - train.starts, dev.stops - dev.starts])
    assert lengths.max() <= 10
    assert lengths.min() >= 5  # nearly equal parts, no crumbs
    tokens = sum(len(word_pieces(text, add_special_tokens=False)["input_ids"]) for text in texts * 2)
    assert lengths.sum() == tokens
    sides = [{tuple(part[i].tolist()) for i in range(len(part))} for part in (train, dev)]
    whole = tokenize_corpus([path], word_pieces, tmp_path / "whole", length=1000, dev_share=0.3)
    of_sides = [{tuple(part[i].tolist()) for i in range(len(part))} for part in whole]
    assert not of_sides[0] & of_sides[1]
    assert sides[0] and sides[1]
    again = tokenize_corpus([path], word_pieces, tmp_path / "w", length=10, dev_share=0.3)
    assert again[0].hash == train.hash
    np.testing.assert_array_equal(again[0].starts, train.starts)


def test_a_corpus_without_text_is_refused(tmp_path: Path, word_pieces: backbones.PreTrainedTokenizerBase) -> None:
    (tmp_path / "c.jsonl").write_text('{"_id": "1", "text": ""}\n{"_id": "2", "text": "  "}\n')
    with pytest.raises(InputError, match="no document holds a token to train on"):
        tokenize_corpus([tmp_path / "c.jsonl"], word_pieces, tmp_path / "w", length=10, dev_share=0.1)
