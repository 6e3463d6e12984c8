"""More documents of the same kind: resampled from real, encoded ones, so that cost can be measured at any size.

A new document takes most of its words from one document and the rest from another. Its vectors follow the same choice of
words: tokens of removed words are removed, tokens of added words bring their weights from the other document, and dense
vectors are mixed in the same proportion. Lengths, weights and the share of documents that hold a token stay those of the
corpus. No two documents have the same title and text.

What this cannot show: a vocabulary that grows with the corpus. A token that one document in a thousand holds is held by one
in a thousand at any size, but a real corpus of that size would have new rare tokens. Judgements cannot be used.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ingest.vectorizers import Vectors
from opensearch_neural.corpus.documents import Document
from opensearch_neural.errors import InputError
from opensearch_neural.models.dense.quantized import Quantizer
from opensearch_neural.models.sparse.pruning import Pruning
from opensearch_neural.models.vectors import SparseVectors

if TYPE_CHECKING:
    from opensearch_neural.models.sparse.table_encoder import TableEncoder

MOST_ATTEMPTS = 101
"""How often a document is drawn until its text is new."""


@dataclass(slots=True)
class DrawnDocument(Document):
    """A document with its vectors."""

    token_ids: NDArray[np.int32] | None = None
    """(tokens,), ids of its sparse vector in the vocabulary; None: it has none."""
    weights: NDArray[np.float32] | None = None
    """(tokens,), the weights of these tokens."""
    dense: NDArray[np.float32] | None = None
    """(dimension,); None: it has no dense vector."""


class Resampler:
    """Draws documents from real ones. A drawn document depends only on the seed and its number, not on earlier documents,
    except that it is drawn again if its text already exists."""

    def __init__(
        self, documents: Sequence[Document], vectors: Vectors, query: TableEncoder | None, *, mix: float, seed: int
    ) -> None:
        """vectors: of the documents, in their order; query: the query encoder of the sparse vectors, if there are any.

        Raises InputError for fewer than two documents.
        """
        if len(documents) < 2:
            raise InputError("at least two documents are needed to draw others from")
        self.documents = documents
        self.vectors = vectors
        self.query = query
        self.mix = mix
        self.seed = seed
        self.query_weights = {} if query is None else query.weights
        self._words = [document.text.split() for document in documents]
        self._of_word: dict[str, tuple[int, ...]] = {}

    def vectorizer(self, prune: Pruning | None = None, quantizer: Quantizer | None = None) -> DrawnVectors:
        """The vectorizer of the drawn documents."""
        vocabulary = [] if self.vectors.sparse is None else self.vectors.sparse.vocabulary
        return DrawnVectors(vocabulary, prune, self.query_weights, quantizer)

    def real(self, number: int) -> DrawnDocument:
        """A document of the corpus itself."""
        document, dense = self.documents[number], self.vectors.dense
        real = DrawnDocument(document.id, document.text, document.title, document.url, dict(document.fields))
        real.token_ids, real.weights = self._row(number) or (None, None)
        real.dense = None if dense is None else dense[number]
        return real

    def draw(self, number: int, attempt: int = 0) -> DrawnDocument:
        """A document mixed of two of the corpus: the first one's text, some of its words replaced by the second's."""
        random_ = random.Random(f"{self.seed}/{number}/{attempt}")
        first, second = random_.sample(range(len(self.documents)), 2)
        words, others = self._words[first], self._words[second]
        distinct = dict.fromkeys(words)
        gone = {word for word in distinct if random_.random() < self.mix}
        coming = {word for word in dict.fromkeys(others) if random_.random() < self.mix}
        donors = [word for word in others if word in coming] or others
        text, came, at = [], set(), 0
        for word in words:
            if word in gone and donors:
                word = donors[at % len(donors)]
                came.add(word)
                at += 1
            text.append(word)
        real = self.documents[first]
        drawn = DrawnDocument(f"drawn-{number:09d}", " ".join(text), real.title, real.url, dict(real.fields))
        if self.vectors.sparse is not None:
            stayed = [word for word in distinct if word not in gone] + real.title.split()
            drawn.token_ids, drawn.weights = self._mixed(first, second, stayed, gone, came, random_)
        if self.vectors.dense is not None:
            # A random share around that of the words, so that the same two documents do not give the same vector again.
            share = self.mix * random_.uniform(0.5, 1.5)
            mixed = (1 - share) * self.vectors.dense[first] + share * self.vectors.dense[second]
            # Keep the length of the first vector, so that normalized vectors stay normalized.
            length = np.linalg.norm(self.vectors.dense[first]) / max(float(np.linalg.norm(mixed)), 1e-12)
            drawn.dense = (mixed * length).astype(np.float32)
        return drawn

    def take(self, count: int) -> Iterator[DrawnDocument]:
        """`count` documents: the real ones, then drawn ones; no text twice."""
        seen: set[bytes] = set()
        taken = 0
        numbers = (number for number, document in enumerate(self.documents) if self._is_new(document, seen))
        for number in islice(numbers, count):
            taken += 1
            yield self.real(number)
        for number in range(count - taken):
            attempts = (self.draw(number, attempt) for attempt in range(MOST_ATTEMPTS))
            drawn = next((document for document in attempts if self._is_new(document, seen)), None)
            if drawn is None:
                raise InputError(
                    f"the corpus is too small to draw {count:,} different documents from it",
                    "take a larger corpus, or fewer documents",
                )
            yield drawn

    @staticmethod
    def _is_new(document: Document, seen: set[bytes]) -> bool:
        digest = hashlib.blake2b(document.contents.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        if digest in seen:
            return False
        seen.add(digest)
        return True

    def _row(self, number: int) -> tuple[NDArray[np.int32], NDArray[np.float32]] | None:
        sparse = self.vectors.sparse
        if sparse is None:
            return None
        start, end = sparse.indptr[number], sparse.indptr[number + 1]
        return sparse.token_ids[start:end], sparse.weights[start:end]

    def _mixed(
        self, first: int, second: int, stayed: list[str], gone: set[str], came: set[str], random_: random.Random
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The sparse vector for the mixed words. Tokens of no word (learned expansions) are kept or added by chance."""
        ours, theirs = self._row(first), self._row(second)
        assert ours is not None and theirs is not None
        stays, leaves, arrives = self._tokens(stayed), self._tokens(gone), self._tokens(came)
        other_words = self._tokens(self._words[second]) | self._tokens(self.documents[second].title.split())
        row: dict[int, float] = {}
        for token, weight in zip(ours[0].tolist(), ours[1].tolist(), strict=True):
            if token in stays or (token not in leaves and random_.random() >= self.mix):
                row[token] = weight
        for token, weight in zip(theirs[0].tolist(), theirs[1].tolist(), strict=True):
            if token not in row and (token in arrives or (token not in other_words and random_.random() < self.mix)):
                row[token] = weight
        return np.array(list(row), dtype=np.int32), np.array(list(row.values()), dtype=np.float32)

    def _tokens(self, words: Sequence[str] | set[str]) -> set[int]:
        tokens: set[int] = set()
        for word in words:
            ids = self._of_word.get(word)
            if ids is None:
                assert self.query is not None
                ids = self._of_word[word] = tuple(self.query.tokenizer.encode(word, add_special_tokens=False).ids)
            tokens.update(ids)
        return tokens


@dataclass(frozen=True)
class DrawnVectors:
    """A `Vectorizer` that gives documents the vectors they were drawn with."""

    vocabulary: list[str]
    """Tokens by id."""
    prune: Pruning | None = None
    """Keeps the tokens of a document that can add most to a score (document weight × query weight)."""
    query_weights: Mapping[str, float] = field(default_factory=dict)
    """{token: its weight in a query}, 1 for other tokens."""
    quantizer: Quantizer | None = None
    """Makes codes of the dense vectors."""

    def vectors(self, documents: Sequence[Document]) -> Vectors:
        drawn = [document for document in documents if isinstance(document, DrawnDocument)]
        sparse = dense = None
        if drawn and drawn[0].token_ids is not None:
            rows = [(document.token_ids, document.weights) for document in drawn]
            sparse = SparseVectors(
                np.cumsum([0, *(len(ids) for ids, _ in rows if ids is not None)]).astype(np.int64),
                np.concatenate([ids for ids, _ in rows if ids is not None]),
                np.concatenate([weights for _, weights in rows if weights is not None]),
                self.vocabulary,
            )
            if self.prune is not None:
                added = sparse.weights * self._factors[sparse.token_ids]
                sparse = sparse.where(self.prune.kept(sparse.indptr, added))
        if drawn and drawn[0].dense is not None:
            dense = np.stack([document.dense for document in drawn if document.dense is not None])
        return Vectors(sparse, dense, None if self.quantizer is None or dense is None else self.quantizer.encode(dense))

    @cached_property
    def _factors(self) -> NDArray[np.float32]:
        """Each token's weight in a query: (vocabulary,)."""
        return np.array([self.query_weights.get(token, 1.0) for token in self.vocabulary], np.float32)
