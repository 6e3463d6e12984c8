"""The corpus as the stages see it, and what leads to its documents."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from opensearch_neural.corpus.documents import Document
from opensearch_neural.errors import InputError
from opensearch_neural.models.generative import GenerativeSettings, UrlTokenizer
from opensearch_neural.models.url_trie import CorpusUrls
from trainers.common.config import fingerprint
from trainers.common.processes import main_process_first
from trainers.data.examples import TrainingData
from trainers.data.leaks import find_leaks, without_leaks
from trainers.data.loading import format_of, read_documents
from trainers.data.sets import SetSettings
from trainers.data.texts import TextStore
from trainers.doc2query.generate import generate_queries
from trainers.doc2query.sampling import sampling_for
from trainers.tome.settings import TomeConfig

logger = logging.getLogger(__name__)


FOLDER = ".stages"
"""Beside the model: what was generated on the way, queries and passages."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents as the stages see them, by rows: the texts, as a passage stage 1 writes, and the URLs."""

    contents: TextStore
    passages: TextStore
    urls: CorpusUrls

    @property
    def hash(self) -> str:
        return fingerprint(self.passages.hash, self.urls.corpus)


def tome_corpus(
    documents: Iterable[Document],
    tokenizer: PreTrainedTokenizerBase,
    settings: GenerativeSettings,
    *,
    url_tokenizer: PreTrainedTokenizerBase | None = None,
) -> Corpus:
    """The corpus for a tokenizer, its URLs for another one if given. Raises InputError as `CorpusUrls.build` does, and
    warns of URLs that do not come back."""
    contents, passages = TextStore(), TextStore()
    urls: list[tuple[str, str | None]] = []
    of_urls = url_tokenizer or tokenizer
    codec = UrlTokenizer(of_urls)
    changed: list[str] = []
    for document in documents:
        contents.add(document.id, document.contents)
        passages.add(document.id, settings.passage(tokenizer, document.title, document.text))
        urls.append((document.id, document.url))
        if document.url and codec.decode(codec.encode(document.url)) != document.url:
            changed.append(document.url)
    if changed:
        logger.warning(
            "%d of %d URLs do not come back from their tokens (%r first): free decoding can never write them; "
            "a byte-level tokenizer gives back all",
            len(changed),
            len(urls),
            changed[0],
        )

    def encode(url: str) -> list[int]:
        return codec.encode(settings.identifier(url))

    model = {"name": of_urls.name_or_path, "hash": ""}
    made = CorpusUrls.build(urls, encode, model=model, length=settings.url_length, numbered=settings.number_urls)
    return Corpus(contents, passages, made)


@dataclass(frozen=True, eq=False)
class Queries:
    """What leads to a document: `texts` by row, and pairs (pairs, 2) of a row of these and a document's row."""

    texts: TextStore
    pairs: npt.NDArray[np.int64]

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.texts.hash.encode() + self.pairs.tobytes()).hexdigest()[:16]

    def take(self, chosen: Sequence[int] | npt.NDArray[np.int64]) -> Queries:
        return Queries(self.texts, self.pairs[np.asarray(chosen, dtype=np.int64)])


def gather(sets: Sequence[TrainingData], documents: TextStore) -> Queries:
    """The (query, positive) pairs of several sets.

    Raises InputError for a positive that is not among the documents.
    """
    texts = TextStore(what="query")
    pairs: list[tuple[int, int]] = []
    for data in sets:
        for example in data.examples:
            for positive in example.positives:
                if positive not in documents:
                    raise InputError(
                        f"{data.name}: the document {positive!r} of query {example.query_id!r} is not in the corpus",
                        "queries and corpus must belong together",
                    )
                row = texts.add(f"{data.name}/{example.query_id}", example.query)
                pairs.append((row, documents.row(positive)))
    return Queries(texts, np.array(pairs, dtype=np.int64).reshape(-1, 2))


def fewer(data: TrainingData, candidates: int | None) -> TrainingData:
    """Of generated queries the first `candidates` of each document, or all."""
    if candidates is None:
        return data
    taken: dict[int, int] = {}
    kept = []
    for index, positives in enumerate(data.positives):
        document = int(positives[0])
        taken[document] = taken.get(document, 0) + 1
        if taken[document] <= candidates:
            kept.append(index)
    return data.take(kept)


def read_sets(config: TomeConfig, limit: int | None = None) -> list[TrainingData]:
    """The data sets of `queries`, without the questions of `unseen`, of generated ones not more than `candidates`."""
    sets: list[TrainingData] = []
    for one in config.queries:
        given = one if one.corpus is not None or one.path.is_dir() else replace(one, corpus=config.corpus)
        sets.append((replace(given, limit=limit) if limit is not None else given).load())
    sets = without_unseen(config, sets)
    return [
        fewer(data, config.candidates) if (one.format or format_of(one.path)) == "generated" else data
        for one, data in zip(config.queries, sets, strict=True)
    ]


def without_unseen(config: TomeConfig, sets: list[TrainingData]) -> list[TrainingData]:
    """`sets` without the questions of the sets that `unseen` names."""
    for one in config.unseen:
        other = one.load()
        sets = [without_leaks(data, find_leaks(data, other)) for data in sets]
    return sets


def corpus_documents(config: TomeConfig, sets: Sequence[TrainingData], limit: int | None) -> Iterator[Document]:
    """The corpus; of a dry run the first documents and those that its queries lead to."""
    documents = read_documents(config.corpus)
    if limit is None:
        return documents
    wanted = {data.documents.ids[row] for data in sets for row in data.positives.values.tolist()}
    return (one for at, one in enumerate(documents) if at < limit or one.id in wanted)


def generated_queries(config: TomeConfig, corpus: Corpus) -> TrainingData:
    """Queries that the generator writes for every document; kept beside the model."""
    path = config.output / FOLDER / "queries.jsonl"
    assert config.generator is not None
    with main_process_first():
        sampling = sampling_for(config.generator, **asdict(config.sampling))
        generate_queries(config.generator, corpus.contents, output=path, sampling=sampling)
    return SetSettings(path, corpus=config.corpus, name="generated").load()


def split(queries: Queries, share: float, seed: int) -> tuple[Queries, Queries]:
    """(train, dev) by query; dev gets that share of them, drawn at random. Their documents stay in training."""
    rows = np.unique(queries.pairs[:, 0])
    count = round(share * len(rows))
    drawn = np.random.default_rng([seed, 11]).permutation(rows)[:count]
    inside = np.isin(queries.pairs[:, 0], drawn)
    return queries.take(np.flatnonzero(~inside)), queries.take(np.flatnonzero(inside))
