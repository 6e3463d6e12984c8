"""Splits documents into passages of whole sentences, and reads or generates queries for the passages."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from opensearch_neural.corpus.documents import Document
from opensearch_neural.corpus.passages import split
from opensearch_neural.errors import InputError
from opensearch_neural.files import replaced, write_json
from opensearch_neural.models.directory import hash_files, locate
from opensearch_neural.models.pretrained import load_tokenizer
from opensearch_neural.models.tokenizer import unlimited
from trainers.common.config import fingerprint
from trainers.common.precision import computed_in
from trainers.common.processes import main_process_first
from trainers.data.examples import TrainingData
from trainers.data.formats import read_generated, read_header
from trainers.data.loading import GENERATED, read_documents, text_store
from trainers.data.masking import Ids
from trainers.data.texts import Ragged, TextStore, normalised
from trainers.doc2query.generate import generate_queries
from trainers.doc2query.settings import GenerationSettings
from trainers.query_as_context.settings import CorpusSettings, QueryAsContextConfig

logger = logging.getLogger(__name__)


@dataclass
class Passages:
    """The passages of all corpora, and their queries."""

    texts: TextStore
    """the passages"""
    articles: Ids
    """(passages,), each passage's index in `keys`"""
    keys: list[str]
    """(articles,), the key of each article"""
    queries: TextStore
    """texts of the passages' queries, by row"""
    candidates: Ragged
    """the rows of the queries of each passage"""

    def members(self) -> Ragged:
        """The rows of the passages of each article."""
        rows: list[list[int]] = [[] for _ in self.keys]
        for row, article in enumerate(self.articles.tolist()):
            rows[article].append(row)
        return Ragged(rows)

    @property
    def hash(self) -> str:
        """16 hex digits over everything that affects training."""
        digest = hashlib.sha256(f"{self.texts.hash} {self.queries.hash}".encode())
        for numbers in (self.articles, self.candidates.offsets, self.candidates.values):
            digest.update(numbers.tobytes())
        return digest.hexdigest()[:16]


def read_passages(config: QueryAsContextConfig) -> Passages:
    """The passages and queries that `config` names; they are made if missing.

    Raises InputError for corpora with the same name, queries for other passages, and missing queries without a generator.
    """
    names = [corpus.corpus_name for corpus in config.corpora]
    if len(set(names)) < len(names):
        raise InputError(f"two corpora have the same name: {', '.join(names)}", "give each its own: corpora[…].name")
    texts, queries = TextStore(what="passage"), TextStore(what="query")
    numbers: dict[str, int] = {}  # of articles
    articles: list[int] = []
    candidates: list[list[int]] = []
    for corpus, (file, query_file) in zip(config.corpora, question_files(config), strict=True):
        own = TextStore(what="passage")
        first = len(texts)
        for document in read_documents(file):
            if own.add(document.id, document.contents) < len(texts) - first:
                continue  # A repeated document.
            texts.add(f"{corpus.corpus_name}/{document.id}", document.contents)
            articles.append(numbers.setdefault(document.fields["article"], len(numbers)))
            candidates.append([])
        if query_file is None:
            continue
        if (made_for := read_header(query_file, GENERATED).get("documents")) != own.hash:
            raise InputError(
                f"{query_file} holds queries for other passages (hash {made_for}) than {file} ({own.hash})",
                f"generate them for that file: osn data generate-queries {file} --model MODEL --output QUERIES",
            )
        for record in read_generated(query_file):
            assert record.query_id is not None
            of_passage = candidates[first + own.row(record.positives[0].id or "")]
            if config.candidates is None or len(of_passage) < config.candidates:
                of_passage.append(queries.add(f"{corpus.corpus_name}/{record.query_id}", record.query or ""))
    logger.info("%d passages of %d articles, %d queries", len(texts), len(numbers), len(queries))
    return Passages(texts, np.array(articles, dtype=np.int64), list(numbers), queries, Ragged(candidates))


def question_files(config: QueryAsContextConfig) -> list[tuple[Path, Path | None]]:
    """For each corpus, the files of its passages and of their queries, which are made if missing; None in place of queries
    if contexts need none."""
    with main_process_first():
        files = write_passages(config)
        return [(file, _queries(config, corpus, file)) for corpus, file in zip(config.corpora, files, strict=True)]


def write_passages(config: QueryAsContextConfig) -> list[Path]:
    """A file of passages for each corpus: lines {"_id", "title": "", "text", "article"}, for `osn data generate-queries`.

    A passage is as many whole sentences as fit `passage_length` with the special tokens (section 4.1). A rule finds the ends
    of sentences, because the paper's tool, NLTK's model, would need a download. A file is made anew if its inputs changed.
    """
    tokenizer = load_tokenizer(locate(config.backbone))
    pieces = unlimited(tokenizer.backend_tokenizer)
    unseen = [settings.load() for settings in config.unseen]
    made_by = {
        "tokenizer": fingerprint(pieces.to_str()),
        "length": config.passage_length,
        "titles": config.titles,
        "least_passages": config.least_passages,
        "unseen": sorted(data.hash for data in unseen),
    }
    files: list[Path] = []
    todo: list[tuple[CorpusSettings, Path, dict[str, Any]]] = []
    for corpus in config.corpora:
        documents = _documents_hash(corpus)
        of_corpus = {**made_by, "documents": documents, "article": corpus.article, "corpora": _others(config, corpus)}
        file = config.folder / f"{corpus.corpus_name}-{fingerprint(of_corpus)}.jsonl"
        files.append(file)
        if not file.exists():
            todo.append((corpus, file, of_corpus))
    if not todo:
        return files
    articles = tested_articles(config.corpora, unseen)
    if unseen:
        logger.info(
            "%d articles are left out: they hold a document of a test set, with the same title and text",
            len(articles),
        )
    room = config.passage_length - tokenizer.num_special_tokens_to_add()
    for corpus, file, of_corpus in todo:
        with replaced(file) as beside, beside.open("w", encoding="utf-8") as target:
            lines = partial(_lines, corpus, pieces, room, articles, config)
            for line in _large_enough(lines, config.least_passages):
                target.write(json.dumps(line, ensure_ascii=False) + "\n")
            write_json(file.with_suffix(".json"), of_corpus)
    return files


def _large_enough(lines: Callable[[], Iterator[dict[str, str]]], least: int) -> Iterator[dict[str, str]]:
    """The passages of articles with at least `least` of them; reads them twice instead of keeping them in memory."""
    if least == 1:
        return lines()
    counts = Counter(line["article"] for line in lines())
    return (line for line in lines() if counts[line["article"]] >= least)


def _lines(
    corpus: CorpusSettings, pieces: Any, room: int, without: set[str], config: QueryAsContextConfig
) -> Iterator[dict[str, str]]:
    for document in read_documents(corpus.path, limit=corpus.limit):
        if (key := corpus.key(document)) not in without:
            for line in _passages_of(document, pieces, room, titles=config.titles):
                yield line | {"article": key}


def tested_articles(corpora: Sequence[CorpusSettings], unseen: Sequence[TrainingData]) -> set[str]:
    """The articles with a document whose text is relevant in `unseen`. Such an article is left out of all corpora, as a
    whole."""
    texts = {normalised(data.documents.text_at(row)) for data in unseen for row in set(data.positives.values.tolist())}
    return {
        corpus.key(document)
        for corpus in corpora
        for document in (read_documents(corpus.path, limit=corpus.limit) if texts else ())
        if normalised(document.contents) in texts
    }


def _passages_of(document: Document, pieces: Any, room: int, *, titles: bool) -> Iterator[dict[str, str]]:
    title = document.title.strip() if titles else ""
    title_pieces = len(pieces.encode(title, add_special_tokens=False).ids) if title else 0
    for passage in split(document, pieces, max(room - title_pieces, room // 2), sentences=True):
        text = f"{title} {passage.text}".strip()
        if normalised(text):
            yield {"_id": passage.id, "title": "", "text": text}


def _documents_hash(corpus: CorpusSettings) -> str:
    """A hash of a corpus's documents, which shows whether passages made from it are current."""
    digest = hashlib.sha256()
    for document in read_documents(corpus.path, limit=corpus.limit):
        fields = (document.id, document.title, document.url, document.text)
        digest.update(json.dumps(fields, ensure_ascii=True).encode())
    return digest.hexdigest()[:16]


def _others(config: QueryAsContextConfig, corpus: CorpusSettings) -> list[str]:
    """The other corpora, which also decide which articles are left out; none without `unseen`."""
    others = [other for other in config.corpora if other is not corpus] if config.unseen else []
    return sorted(f"{other.path} {other.article} {_documents_hash(other)}" for other in others)


def generation_for(config: QueryAsContextConfig, corpus: CorpusSettings) -> GenerationSettings:
    """The query generator of a corpus. Raises InputError if there is none."""
    model = corpus.generator or config.generation.model
    if model is None:
        raise InputError(
            f"context {config.context} needs queries for {corpus.corpus_name}, but no generator or file of queries is named",
            "--set generation.model=MODEL (osn train doc2query), or corpora[…].queries (osn data generate-queries)",
        )
    return replace(config.generation, model=model)


def _queries(config: QueryAsContextConfig, corpus: CorpusSettings, passages: Path) -> Path | None:
    """The file of queries for a corpus's passages, generated if missing; None if contexts need no queries."""
    if not config.uses_queries:
        return None
    if corpus.queries is not None:
        return corpus.queries
    generation = generation_for(config, corpus)
    model = hash_files(locate(generation.generator))
    name = fingerprint(passages.name, model, generation.sampling(), computed_in(generation.precision))
    file = config.folder / f"{corpus.corpus_name}-{name}.queries.jsonl"
    documents = text_store(passages)
    generate_queries(generation, documents, output=file)
    return file
