"""BM25 as a sparse model: a document encoder that needs no training, no download and no torch.

BM25 is a sum over query tokens of idf(t) times a factor of the document alone, so it is an inference-free sparse model:
the query's weight of a token is idf(t), and the document's is

    d_t = tf / (tf + k1 · (1 − b + b · |d| / average |d|))

Σ idf(t)·d_t is then BM25 as Lucene computes it (Kamphuis et al., "Which BM25 Do You Mean?", 2020; no factor k1 + 1) over
word pieces, each query token counted once.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from opensearch_neural.encodable import encodable
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.files import read_json_object, write_json
from opensearch_neural.models import directory
from opensearch_neural.models.directory import ModelInfo
from opensearch_neural.models.sparse.idf import DocumentFrequencies
from opensearch_neural.models.sparse.table_encoder import TableEncoder
from opensearch_neural.models.sparse.word_pieces import train_word_pieces
from opensearch_neural.models.tokenizer import load_tokenizer, special_tokens, vocabulary_of
from opensearch_neural.models.vectors import SparseVectors

logger = logging.getLogger(__name__)

KIND = "lexical"
K1 = 1.2
B = 0.75
TRAINING_SAMPLE = 100_000
"""First documents of the corpus that a tokenizer is trained on: enough for word pieces, and memory stays bounded."""

_BATCH = 1024


@dataclass(frozen=True)
class LexicalEncoder:
    """Document vectors from term statistics, and the query encoder that belongs to them."""

    query: TableEncoder
    """The IDF table of the counted texts."""
    average_length: float
    """Mean tokens of a document, without special tokens."""
    documents: int
    """How many documents were counted."""
    k1: float = K1
    """How slowly repeated words saturate."""
    b: float = B
    """How much long documents are discounted, from 0 to 1."""
    name: str = KIND
    """Its name in the index's record."""
    path: Path = field(default_factory=Path)
    """The folder that it was loaded from; `.` if it was made from a corpus."""
    data_hash: str | None = None
    """Hash of the texts that were counted; None if not known."""

    @property
    def vocabulary(self) -> list[str]:
        return self.query.vocabulary

    @cached_property
    def _is_special(self) -> NDArray[np.bool_]:
        """(vocabulary,); kept because asking the tokenizer takes as long as encoding dozens of documents."""
        return _special_ids(self.query.tokenizer)

    @property
    def info(self) -> ModelInfo:
        """The hash covers everything that determines vectors, so it is the same before and after saving."""
        content = f"{self.query.hash} {self.k1:.6g} {self.b:.6g} {self.average_length:.6g}"
        return ModelInfo(self.name, self.path, KIND, hashlib.sha256(content.encode()).hexdigest()[:16])

    def encode_documents(self, texts: Sequence[str], *, batch_size: int = _BATCH) -> SparseVectors:
        """d_t of every token of every text, of any length; special tokens do not count."""
        counts = _count_tokens(self.query.tokenizer, texts, batch_size, self.vocabulary, self._is_special)
        return SparseVectors.concat([self._weigh(*part) for part in counts], self.vocabulary)

    def _weigh(self, counts: SparseVectors, lengths: NDArray[np.int64]) -> SparseVectors:
        saturation = self.k1 * (1 - self.b + self.b * lengths / self.average_length)
        weights = counts.weights / (counts.weights + np.repeat(saturation, np.diff(counts.indptr)))
        return replace(counts, weights=weights.astype(np.float32))

    def save(self, path: str | Path) -> None:
        """Write the model directory: tokenizer.json, idf.json, config.json, osn.json."""
        folder = Path(path)
        self.query.save(folder)
        # No architecture is named, so transformers refuses to load this instead of loading it wrongly.
        statistics = {"k1": self.k1, "b": self.b, "average_length": self.average_length, "documents": self.documents}
        write_json(folder / "config.json", {"kind": KIND, **statistics})
        training = {"k1": self.k1, "b": self.b, "documents": self.documents}
        directory.write_osn_json(folder, KIND, training=training, data_hash=self.data_hash)

    @classmethod
    def load(cls, path: str | Path) -> LexicalEncoder:
        """The encoder that `save` wrote. Raises ModelError if a field is missing or out of range."""
        folder = directory.locate(path)
        file = folder / "config.json"
        config = read_json_object(file)
        if config.get("kind") != KIND:
            raise ModelError(f"{file}: expected kind {KIND!r}, found {config.get('kind')!r}")
        query = TableEncoder.load(folder)
        numbers: dict[str, float] = {}
        for key, (low, high) in {
            "k1": (0.0, np.inf),
            "b": (0.0, 1.0),
            "average_length": (np.nextafter(0, 1), np.inf),
            "documents": (1, np.inf),
        }.items():
            value = config.get(key)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise ModelError(f"{file}, field {key!r}: expected a number from {low:g} to {high:g}, found {value!r}")
            numbers[key] = value
        return cls(
            query,
            numbers["average_length"],
            int(numbers["documents"]),
            numbers["k1"],
            numbers["b"],
            name=directory.display_name(path),
            path=folder,
            data_hash=(directory.read_osn_json(folder) or {}).get("data_hash"),
        )


class NoTokens(InputError):
    """No word of the corpus is in the tokenizer's vocabulary."""

    def __init__(self, documents: int) -> None:
        super().__init__(
            f"the corpus holds no token to count in {documents} documents",
            "expected documents with words of the tokenizer's vocabulary",
        )
        self.documents = documents


def build_lexical(
    contents: Iterable[str],
    *,
    tokenizer: Tokenizer | str | Path | None = None,
    k1: float = K1,
    b: float = B,
    name: str = KIND,
) -> LexicalEncoder:
    """The lexical model of a corpus, in one pass over it.

    contents: the documents' texts, streamed. tokenizer: a fast tokenizer, its folder or hub id; by default BERT's word
    pieces if the package that has them is installed, else word pieces trained on the corpus.
    Raises NoTokens for a corpus without any token.
    """
    if not 0 <= k1 < np.inf or not 0 <= b <= 1:
        raise InputError(f"k1 = {k1:g}, b = {b:g}: expected k1 of 0 or more and b between 0 and 1")
    data_hash = hashlib.sha256()
    stream = _hashed(contents, data_hash)
    if tokenizer is None and (packaged := directory.minilm_directory()):
        logger.info("tokenizer: BERT's word pieces, from the installed package %s", directory.MINILM_PACKAGE)
        tokenizer = packaged
    if tokenizer is None:
        sample = list(itertools.islice(stream, TRAINING_SAMPLE))
        logger.info("tokenizer: word pieces trained on the first %d documents of the corpus", len(sample))
        tokenizer = train_word_pieces(sample)
        stream = itertools.chain(sample, stream)  # the sample is hashed already
    if isinstance(tokenizer, (str, Path)):
        tokenizer = load_tokenizer(tokenizer)
    frequencies = count_documents(stream, tokenizer)
    return LexicalEncoder(
        TableEncoder(tokenizer, idf_table(frequencies, tokenizer), name=name),
        frequencies.length / frequencies.n,
        frequencies.n,
        k1,
        b,
        name,
        data_hash=data_hash.hexdigest()[:16],
    )


def count_documents(contents: Iterable[str], tokenizer: Tokenizer) -> DocumentFrequencies:
    """The document frequencies of a streamed corpus, special tokens excluded.

    Raises NoTokens for a corpus without any token.
    """
    counter = DocumentCounter(tokenizer)
    counter.add(contents)
    if counter.frequencies.length == 0:
        raise NoTokens(counter.frequencies.n)
    return counter.frequencies


class DocumentCounter:
    """Counts the documents that hold each token of a tokenizer, special tokens excluded, as documents are added."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._vocabulary = vocabulary_of(tokenizer)
        self.frequencies = DocumentFrequencies(len(self._vocabulary))
        self._tokenizer = tokenizer
        self._is_special = _special_ids(tokenizer)

    def add(self, contents: Iterable[str]) -> None:
        """Count the documents with these texts."""
        for counts, lengths in _count_tokens(self._tokenizer, contents, _BATCH, self._vocabulary, self._is_special):
            self.frequencies.add_batch(counts.token_ids, len(counts), length=int(lengths.sum()))


def check_tokens(contents: Iterable[str], tokenizer: Tokenizer) -> None:
    """Raise NoTokens for a corpus without any token. Reads the corpus up to its first document with a token."""
    is_special = _special_ids(tokenizer)
    documents = 0
    for text in contents:
        documents += 1
        if not is_special[tokenizer.encode(encodable(text), add_special_tokens=False).ids].all():
            return
    raise NoTokens(documents)


def idf_table(frequencies: DocumentFrequencies, tokenizer: Tokenizer) -> dict[str, float]:
    """{token: weight} for every token of the tokenizer; special tokens have 0."""
    return frequencies.idf_table(vocabulary_of(tokenizer), special=special_tokens(tokenizer))


def _hashed(texts: Iterable[str], digest: hashlib._Hash) -> Iterator[str]:
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        yield text


def _special_ids(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """(vocabulary,): whether the token of each id is special."""
    special = special_tokens(tokenizer)
    return np.array([token in special for token in vocabulary_of(tokenizer)])


def _count_tokens(
    tokenizer: Tokenizer, texts: Iterable[str], batch_size: int, vocabulary: list[str], is_special: NDArray[np.bool_]
) -> Iterator[tuple[SparseVectors, NDArray[np.int64]]]:
    """(how often each token occurs in each document, the documents' tokens), without special tokens, in batches."""
    stream = iter(texts)
    while batch := list(itertools.islice(stream, batch_size)):
        encodings = tokenizer.encode_batch_fast([encodable(text) for text in batch], add_special_tokens=False)
        ids = [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]
        rows = np.repeat(np.arange(len(ids)), [len(row) for row in ids])
        flat = np.concatenate(ids)
        kept = ~is_special[flat]
        rows, flat = rows[kept], flat[kept]
        keys, frequencies = np.unique(rows * len(is_special) + flat, return_counts=True)
        row_of_key, token_ids = np.divmod(keys, len(is_special))
        indptr = np.searchsorted(row_of_key, np.arange(len(ids) + 1))
        counts = SparseVectors(
            indptr.astype(np.int64), token_ids.astype(np.int32), frequencies.astype(np.float32), vocabulary
        )
        yield counts, np.bincount(rows, minlength=len(ids))
