"""Statistics of word pieces, without a model: the IDF of a corpus, and the BM25 impacts of texts."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from transformers import PreTrainedTokenizerBase

from opensearch_neural.models.sparse.idf import in_seven_digits, load_idf
from opensearch_neural.models.sparse.lexical import LexicalEncoder, build_lexical
from opensearch_neural.models.sparse.table_encoder import TableEncoder
from opensearch_neural.models.tokenizer import special_tokens, vocabulary_of
from trainers.sparse.settings import StudentSettings


class Lexicon:
    """The IDF of a corpus by word pieces, and the BM25 impacts of texts.

    idf: (vocabulary,), 0 for special tokens and unused ids. Raises InputError for a corpus without text.
    """

    def __init__(self, encoder: LexicalEncoder, size: int) -> None:
        self.encoder = encoder
        self.idf = np.zeros(size, dtype=np.float32)
        weights = list(encoder.query.weights.values())
        self.idf[: len(weights)] = weights

    @classmethod
    def of(
        cls,
        stores: Sequence[Mapping[str, str]],
        tokenizer: PreTrainedTokenizerBase,
        size: int,
        settings: StudentSettings,
        *,
        table: Mapping[str, float] | None = None,
    ) -> Lexicon:
        """The statistics of texts by id; `settings.idf` determines the weights of query tokens.

        table: the start's weights of query tokens, for settings.idf "start".
        """
        texts = (text for store in stores for text in store.values())
        # A copy, because batches set truncation in the tokenizer, but statistics are of whole texts.
        whole = copy.deepcopy(tokenizer.backend_tokenizer)
        whole.no_truncation()
        whole.no_padding()
        encoder = build_lexical(texts, tokenizer=whole)
        if settings.idf in ("train", "own"):
            return cls(encoder, size)
        words = encoder.query.tokenizer
        special = special_tokens(words)
        if settings.idf == "start":
            if table is None:
                raise ValueError("settings.idf is start: give its table")
            listed = table
        else:
            listed = dict.fromkeys(vocabulary_of(words), 1.0) if settings.idf == "none" else load_idf(settings.idf)
        weights = {**listed, **dict.fromkeys(special, 0.0)}
        return cls(replace(encoder, query=TableEncoder(words, weights, name=encoder.name)), size)

    def weighing(self, idf: npt.NDArray[np.float32]) -> Lexicon:
        """The same statistics with other weights of query tokens: (vocabulary,)."""
        query = self.encoder.query
        table = {token: in_seven_digits(weight) for token, weight in zip(query.weights, idf.tolist(), strict=False)}
        return Lexicon(
            replace(self.encoder, query=TableEncoder(query.tokenizer, table, name=query.name)), len(self.idf)
        )

    def impacts(self, texts: Sequence[str]) -> csr_matrix:
        """BM25 impacts of texts, (texts, vocabulary)."""
        return self.encoder.encode_documents(texts).to_scipy()
