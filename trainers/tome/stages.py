"""The training examples of each stage: query to passage, passage to URL, query to URL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from opensearch_neural.encodable import encodable
from opensearch_neural.models.generative.generative_model import UrlTokenizer
from opensearch_neural.models.generative.settings import GenerativeSettings
from trainers.common.sampling import Visit
from trainers.data.texts import TextStore
from trainers.data.tokenized import TokenCache
from trainers.encoders.sequence_to_sequence import LabelledBatch, LabelledRow, collate_rows
from trainers.tome.data import Queries, TomeCorpus

SPAN_WORDS = (4, 24)
"""Least and most words of a span."""


@dataclass
class ToPassage:
    """Stage 1: a query (or a span of the document) to the document's passage."""

    queries: Queries
    """the questions, each with the documents that answer it"""
    corpus: TomeCorpus
    """the passage of each document, and the text that spans are cut from"""
    tokenizer: PreTrainedTokenizerBase
    """of the stage's model, for inputs and passages"""
    settings: GenerativeSettings
    """the lengths of inputs and passages"""
    spans: int = 0
    """number of random spans of each document that serve as queries, too"""

    def __post_init__(self) -> None:
        self.query_tokens = self.tokens(self.queries.texts, self.settings.query_length)
        self.passage_tokens = self.tokens(self.corpus.passages, self.settings.written_length)

    def tokens(self, texts: TextStore, length: int) -> TokenCache:
        return TokenCache(self.tokenizer, texts.text_at, max_length=length)

    def __len__(self) -> int:
        return len(self.queries.pairs) + self.spans * len(self.corpus.contents)

    def __getitem__(self, visit: Visit) -> LabelledRow:
        at = visit.index
        if at < len(self.queries.pairs):
            query, document = self.queries.pairs[at].tolist()
            return self.queries.texts.ids[query], self.query_tokens.rows([query])[0], self.target(document)
        document = (at - len(self.queries.pairs)) % len(self.corpus.contents)
        text = encodable(span(self.corpus.contents.text_at(document), visit))
        inputs = self.tokenizer(text, truncation=True, max_length=self.settings.query_length)["input_ids"]
        return f"span of {self.corpus.contents.ids[document]}", inputs, self.target(document)

    def target(self, document: int) -> Sequence[int]:
        """The tokens to write for a document."""
        ids: list[int] = self.passage_tokens.rows([document])[0].tolist()
        return ids

    def collate(self, items: Sequence[LabelledRow]) -> LabelledBatch:
        return collate_rows(items, self.tokenizer.pad_token_id)


def span(text: str, visit: Visit) -> str:
    """A random span of words from a text, drawn by the visit."""
    words, drawn = text.split(), visit.random()
    count = drawn.randint(*SPAN_WORDS)
    start = drawn.randint(0, max(0, len(words) - count))
    return " ".join(words[start : start + count])


@dataclass
class ToUrl(ToPassage):
    """The single stage: a query (or a span) to the document's URL."""

    def __post_init__(self) -> None:
        super().__post_init__()
        codec = UrlTokenizer(self.tokenizer)
        # The same sequences as constrained decoding allows.
        self.targets = self.corpus.urls.sequences(lambda url: codec.encode(self.settings.identifier(url)))

    def target(self, document: int) -> Sequence[int]:
        return self.targets[document]


@dataclass
class PassageToUrl(ToUrl):
    """Stage 2: each passage of the corpus to its URL; it needs no queries."""

    def __len__(self) -> int:
        return len(self.corpus.passages)

    def __getitem__(self, visit: Visit) -> LabelledRow:
        row = visit.index
        return self.corpus.passages.ids[row], self.passage_tokens.rows([row])[0], self.target(row)
