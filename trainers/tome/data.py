"""The corpus in the form for the stages, and the queries for its documents."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from opensearch_neural.corpus.documents import Document
from opensearch_neural.errors import InputError
from opensearch_neural.models.generative.generative_model import UrlTokenizer
from opensearch_neural.models.generative.settings import GenerativeSettings
from opensearch_neural.models.generative.url_trie import CorpusUrls
from trainers.common.config import fingerprint
from trainers.common.processes import main_process_first
from trainers.common.settings import FOLDER
from trainers.data.examples import TrainingData
from trainers.data.leaks import without_questions_of
from trainers.data.loading import format_of, read_documents
from trainers.data.settings import SetSettings
from trainers.data.texts import TextStore
from trainers.doc2query.generate import generate_queries
from trainers.tome.settings import TomeConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class TomeCorpus:
    """The documents in the form for the stages; a document has the same row in all fields."""

    contents: TextStore
    """title and text"""
    passages: TextStore
    """the texts that stage 1 writes ("title: … passage: …")"""
    urls: CorpusUrls
    """each document's URL"""

    @property
    def hash(self) -> str:
        return fingerprint(self.passages.hash, self.urls.corpus)


def tome_corpus(
    documents: Iterable[Document],
    tokenizer: PreTrainedTokenizerBase,
    settings: GenerativeSettings,
    *,
    url_tokenizer: PreTrainedTokenizerBase | None = None,
) -> TomeCorpus:
    """The corpus, with passages cut by `tokenizer` and URLs encoded by `url_tokenizer` (by default the same).

    Raises InputError as `CorpusUrls.build` does, and warns of URLs that decoding their tokens does not restore.
    """
    contents, passages = TextStore(), TextStore()
    urls: list[tuple[str, str | None]] = []
    url_tokenizer = url_tokenizer or tokenizer
    codec = UrlTokenizer(url_tokenizer)
    changed: list[str] = []
    for document in documents:
        contents.add(document.id, document.contents)
        passages.add(document.id, settings.passage(tokenizer, document.title, document.text))
        urls.append((document.id, document.url))
        if document.url and codec.decode(codec.encode(document.url)) != document.url:
            changed.append(document.url)
    if changed:
        logger.warning(
            "%d of %d URLs cannot be restored from their tokens (%r first), so free decoding cannot write them; "
            "a byte-level tokenizer restores all",
            len(changed),
            len(urls),
            changed[0],
        )

    def encode(url: str) -> list[int]:
        return codec.encode(settings.identifier(url))

    model = {"name": url_tokenizer.name_or_path, "hash": ""}
    built = CorpusUrls.build(urls, encode, model=model, length=settings.url_length, numbered=settings.number_urls)
    return TomeCorpus(contents, passages, built)


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries with their documents."""

    texts: TextStore
    """the queries' texts, by row"""
    pairs: npt.NDArray[np.int64]
    """(pairs, 2), the rows of a text and its document"""

    @classmethod
    def none(cls) -> Queries:
        return cls(TextStore(what="query"), np.empty((0, 2), dtype=np.int64))

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.texts.hash.encode() + self.pairs.tobytes()).hexdigest()[:16]


def read_sets(config: TomeConfig, limit: int | None = None) -> list[TrainingData]:
    """The data sets of `queries`, without the questions of `unseen`; generated queries: at most `candidates` per document.

    limit: queries of each set (for a dry run).
    """
    sets: list[TrainingData] = []
    for settings in config.queries:
        if settings.corpus is None and (settings.format or format_of(settings.path)) in ("triples", "generated"):
            settings = replace(settings, corpus=config.corpus)
        if limit is not None:
            settings = replace(settings, limit=limit)
        sets.append(settings.load())
    unseen = [settings.load() for settings in config.unseen]
    sets = [without_questions_of(data, unseen) for data in sets]
    return [
        first_candidates(data, config.candidates)
        if (settings.format or format_of(settings.path)) == "generated"
        else data
        for settings, data in zip(config.queries, sets, strict=True)
    ]


def generated_set(config: TomeConfig, corpus: TomeCorpus) -> TrainingData:
    """Queries that `generation.model` writes for every document, kept beside the model; without the questions of `unseen`,
    at most `candidates` per document."""
    path = config.output / FOLDER / "queries.jsonl"
    with main_process_first():
        generate_queries(config.generation, corpus.contents, output=path)
    data = SetSettings(path, corpus=config.corpus, name="generated").load()
    unseen = (settings.load() for settings in config.unseen)
    return first_candidates(without_questions_of(data, unseen), config.candidates)


def first_candidates(data: TrainingData, candidates: int | None) -> TrainingData:
    """The first `candidates` generated queries of each document; None takes all."""
    if candidates is None:
        return data
    counts: Counter[int] = Counter()
    examples = []
    for index, positives in enumerate(data.positives):
        document = int(positives[0])
        counts[document] += 1
        if counts[document] <= candidates:
            examples.append(index)
    return data.take(examples)


def corpus_documents(config: TomeConfig, sets: Sequence[TrainingData], limit: int | None) -> Iterator[Document]:
    """The corpus; in a dry run only the first `limit` documents and the positives of its queries."""
    documents = read_documents(config.corpus)
    if limit is None:
        return documents
    positives = {data.documents.ids[row] for data in sets for row in data.positives.values.tolist()}
    return (document for at, document in enumerate(documents) if at < limit or document.id in positives)


def gather(sets: Sequence[TrainingData], documents: TextStore) -> Queries:
    """The (query, positive) pairs of several sets.

    Raises InputError for a positive that is not among the documents.
    """
    texts = TextStore(what="query")
    pairs: list[tuple[int, int]] = []
    for data in sets:
        for example in map(data.example, range(len(data))):
            for positive in example.positives:
                if positive not in documents:
                    raise InputError(
                        f"{data.name}: the document {positive!r} of query {example.query_id!r} is not in the corpus",
                        "queries and corpus must belong together",
                    )
                row = texts.add(f"{data.name}/{example.query_id}", example.query)
                pairs.append((row, documents.row(positive)))
    return Queries(texts, np.array(pairs, dtype=np.int64).reshape(-1, 2))


def split(queries: Queries, share: float, seed: int) -> tuple[Queries, Queries]:
    """(train, dev), split by the normalised text of queries: dev gets the share `share` of the texts, drawn at random. Their
    documents stay in training."""
    text_of_pair = queries.texts.canonical[queries.pairs[:, 0]]
    texts = np.unique(text_of_pair)
    count = round(share * len(texts))
    drawn = np.random.default_rng([seed, 11]).permutation(texts)[:count]
    inside = np.isin(text_of_pair, drawn)
    return Queries(queries.texts, queries.pairs[~inside]), Queries(queries.texts, queries.pairs[inside])
