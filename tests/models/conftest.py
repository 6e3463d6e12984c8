"""A tokenizer that small models of these tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from opensearch_neural.models.sparse.word_pieces import train_word_pieces


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import BertTokenizerFast

    folder = tmp_path_factory.mktemp("tokenizer")
    from .sparse.test_encoder import QUERIES, TEXTS, VOCABULARY

    words = train_word_pieces(TEXTS * 3 + QUERIES, vocabulary=VOCABULARY)
    BertTokenizerFast(tokenizer_object=words, model_max_length=512).save_pretrained(folder)
    return folder
