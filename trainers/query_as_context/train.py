"""Query-as-context pre-training: an encoder learns from a passage and a query that was written for it.

    osn train query-as-context --variant cocondenser --context query --output models/pretrained \\
        --set 'corpora=[{path: squad-mix}]' --backbone models/mlm --set generation.model=models/doc2query
    osn train query-as-context --config query-as-context --output models/pretrained      the whole paper

"Query-as-context Pre-training for Dense Passage Retrieval". Documents become passages of whole sentences, each passage gets
generated queries, and one of them is drawn as its context at each visit; or another passage of the same article, what
coCondenser and CoT-MAE do and what the paper compares with.

- coCondenser (section 2.1): masked LM, masked LM through a Condenser head that reads the last layer's CLS and a middle
  layer's tokens, and a contrastive loss between passage and context.
- CoT-MAE (section 2.2): masked LM, and masked LM of the context through a shallow decoder that reads the passage's CLS.

The result is a backbone like any other (`osn train dense`, `sparse`, `mlr` start from it), and as it stands a dense model:
CLS, raw inner products. Passages and queries lie in `cache`, later steps read what earlier ones wrote, and the same command
again repeats nothing that is done.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click
import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed
from transformers.masking_utils import create_bidirectional_mask

from opensearch_neural.corpus.documents import Document
from opensearch_neural.corpus.passages import split
from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.files import read_json_object, write_json
from opensearch_neural.models.directory import hash_files, locate
from opensearch_neural.query_encoder import unlimited
from trainers import dense as bi_encoder
from trainers.common import losses
from trainers.common.config import backbone_option, config_options, fingerprint
from trainers.common.dev_measures import DevSet, corpus_measures, dev_measures, dev_set
from trainers.common.grad_cache import CachedModel, Encoded, Part, gather, in_order, processes
from trainers.common.loop import (
    Trained,
    TrainingSettings,
    Visit,
    check_output,
    is_main_process,
    main_process_first,
    train,
)
from trainers.common.precision import Precision, computed_in
from trainers.common.schedules import FIRST, FOLDER
from trainers.common.training_model import Batch, Losses, TrainingModel
from trainers.data.examples import GENERATED, TrainingData, read_documents
from trainers.data.formats import read_generated, read_header
from trainers.data.texts import Ragged, TextStore, normalised
from trainers.data.tokenized import TokenCache, padded_parts
from trainers.dense import (
    BiEncoder,
    DenseConfig,
    DevSettings,
    ObjectiveSettings,
    SetSettings,
    padding_id,
    train_dense,
)
from trainers.doc2query.train import generate_queries, sampling_for
from trainers.encoders import backbones
from trainers.encoders.sequence_to_sequence import IGNORED
from trainers.encoders.tower import Encoder, EncoderSettings, Role, write_sentence_transformer
from trainers.masked_lm import continuations, in_dev, mask_tokens, special_ids

logger = logging.getLogger(__name__)

KIND = "masked-lm"
HEAD_FILE = "condenser_head.safetensors"
"""The Condenser head beside the backbone: further pre-training starts with it, everything else ignores it."""
EVALUATION_PAIRS = 32

Variant = Literal["cocondenser", "cot-mae"]
Context = Literal["query", "random-passage", "mixed", "none"]
Ids = npt.NDArray[np.int64]


# ------------------------------------------------ configuration


@dataclass(slots=True)
class CorpusSettings:
    """Documents, and which of them make an article: those of one "title", of one "url" (up to its #), or each "document" by
    itself, as one without title or URL does anyway. queries: a file of `osn generate-queries` for the passages of this
    corpus; generator: a model that writes them here, instead of generation.model."""

    path: Path
    name: str | None = None
    article: Literal["title", "url", "document"] = "title"
    queries: Path | None = None
    generator: str | None = None
    limit: int | None = None

    @property
    def title(self) -> str:
        return self.name or self.path.resolve().name.partition(".")[0]

    def key(self, document: Document) -> str:
        """Which article a document belongs to."""
        found = {"title": document.title.strip(), "url": (document.url or "").partition("#")[0], "document": ""}
        return found[self.article] or f"{self.title}/{document.id}"


@dataclass(slots=True)
class GenerationSettings:
    """Queries written for the passages (section 3.1): `candidates` a passage, sampled from the `top_k` likeliest tokens that
    have the mass `top_p`. model: of `osn train doc2query`, or any sequence-to-sequence directory or hub id. What is None is
    as that model was trained."""

    model: str | None = None
    candidates: int = 5
    top_k: int = 25
    top_p: float = 0.95
    copying: float | None = None
    query_length: int | None = None
    passage_length: int | None = None
    prefix: str | None = None
    batch_size: int = 32
    seed: int = 42
    precision: Precision = "float32"


@dataclass(slots=True)
class MaskingSettings:
    """The shares of masked tokens, of whole words; None is the variant's own: 15% everywhere for coCondenser, 30% of the
    passage and 45% of the context for CoT-MAE."""

    passage: float | None = None
    context: float | None = None
    whole_word: bool = True

    def __post_init__(self) -> None:
        if any(share is not None and not 0 < share < 1 for share in (self.passage, self.context)):
            raise ValueError(f"passage {self.passage} and context {self.context} are shares between 0 and 1")

    def share(self, variant: Variant, role: Literal["passage", "context"]) -> float:
        own = {"cocondenser": (0.15, 0.15), "cot-mae": (0.3, 0.45)}[variant]
        given = self.passage if role == "passage" else self.context
        return own[role == "context"] if given is None else given


@dataclass(slots=True)
class QueryAsContextConfig:
    """`osn train query-as-context`.

    backbone: a BERT-like directory or hub id. context: what a passage is paired with; "mixed" is a query or a random
    passage, each half of the time; "none" leaves the pair out (masked LM, with the Condenser head: Condenser pre-training).
    unseen: sets (test splits) whose relevant documents, and the articles that these belong to, train nothing.
    passage_length, query_length: tokens, special ones included. titles: passages begin with their document's title.
    least_passages: articles of fewer in a corpus are left out. candidates: of the queries of a passage the first so many.
    layers: of the Condenser head, or of the decoder. middle: whose tokens the head reads; None is the middle layer.
    dev_share: the part of the articles that measures and does not train. dev: sets whose questions are searched for with
    the model as it stands. condenser: pre-training with context "none" before, for a backbone that had none.
    retriever: the fine-tuning afterwards (`osn train dense`), from this checkpoint whatever its `start` says.
    test: sets that every step's model is measured on, over their whole corpus. cache: where passages and queries lie.
    """

    output: Path
    corpora: list[CorpusSettings]
    backbone: str
    variant: Variant = "cocondenser"
    context: Context = "query"
    generation: GenerationSettings = field(default_factory=GenerationSettings)
    unseen: list[SetSettings] = field(default_factory=list)
    passage_length: int = 144
    query_length: int = 64
    titles: bool = False
    least_passages: int = 1
    candidates: int | None = None
    masking: MaskingSettings = field(default_factory=MaskingSettings)
    layers: int = 2
    middle: int | None = None
    temperature: float = 1.0
    dev_share: float = 0.01
    dev: list[SetSettings] = field(default_factory=list)
    selection: DevSettings = field(default_factory=DevSettings)
    condenser: TrainingSettings | None = None
    training: TrainingSettings = field(default_factory=lambda: TrainingSettings(learning_rate=1e-4, batch_size=128))
    retriever: DenseConfig | None = None
    test: list[SetSettings] = field(default_factory=list)
    cache: Path | None = None

    def __post_init__(self) -> None:
        if not self.corpora:
            raise ValueError("corpora names no corpus")
        if not 0 <= self.dev_share < 1:
            raise ValueError(f"dev_share must be from 0 to below 1, not {self.dev_share}")
        if min(self.passage_length, self.query_length) < 8 or min(self.layers, self.least_passages) < 1:
            raise ValueError("passage_length and query_length are at least 8, layers and least_passages at least 1")
        if self.temperature <= 0 or (self.candidates is not None and self.candidates < 1):
            raise ValueError(f"temperature {self.temperature} and candidates {self.candidates} must be above 0")
        if self.variant == "cot-mae" and self.condenser is not None:
            raise ValueError("condenser is a step before coCondenser: CoT-MAE has no Condenser head")
        own = self.output / FOLDER
        if self.retriever is not None and (
            _inside(self.retriever.output, self.output) or _inside(self.output, self.retriever.output)
        ):
            raise ValueError("retriever.output must be another folder than output, neither inside the other")
        if _inside(self.folder, self.output) and not _inside(self.folder, own):
            raise ValueError(f"cache must not be inside output ({own} is, where none is given)")
        written_here = any(corpus.queries is None for corpus in self.corpora)
        if self.asks and written_here and (self.candidates or 0) > self.generation.candidates:
            raise ValueError(f"candidates is {self.candidates}, but generation.candidates {self.generation.candidates}")

    @property
    def folder(self) -> Path:
        """Of passages and queries."""
        return self.cache or self.output / FOLDER

    @property
    def asks(self) -> bool:
        """Whether queries are contexts."""
        return self.context in ("query", "mixed")


def _inside(one: Path, other: Path) -> bool:
    """Whether a folder is another one, or lies in it."""
    return one.absolute().is_relative_to(other.absolute())


# ------------------------------------------------ documents → passages → queries


@dataclass
class Passages:
    """Passages of all corpora. articles: (passages,), numbers into `keys`; candidates: rows of `queries` for each."""

    texts: TextStore
    articles: Ids
    keys: list[str]
    queries: TextStore
    candidates: Ragged

    def members(self) -> Ragged:
        """The passages of each article."""
        rows: list[list[int]] = [[] for _ in self.keys]
        for row, article in enumerate(self.articles.tolist()):
            rows[article].append(row)
        return Ragged(rows)

    @property
    def hash(self) -> str:
        """16 hex digits over everything that trains."""
        digest = hashlib.sha256(f"{self.texts.hash} {self.queries.hash}".encode())
        for numbers in (self.articles, self.candidates.offsets, self.candidates.values):
            digest.update(numbers.tobytes())
        return digest.hexdigest()[:16]


def read_passages(config: QueryAsContextConfig) -> Passages:
    """The passages and queries that `config` names, made where they are not there yet.

    Raises InputError for corpora of the same name, queries of other passages, and contexts that need queries where nothing
    says where they come from.
    """
    names = [corpus.title for corpus in config.corpora]
    if len(set(names)) < len(names):
        raise InputError(f"two corpora have the same name: {', '.join(names)}", "give each its own: corpora[…].name")
    texts, queries = TextStore(what="passage"), TextStore(what="query")
    numbers: dict[str, int] = {}
    articles: list[int] = []
    found: list[list[int]] = []
    for corpus, (file, query_file) in zip(config.corpora, question_files(config), strict=True):
        own = TextStore(what="passage")
        first = len(texts)
        for document in read_documents(file):
            if own.add(document.id, document.contents) < len(texts) - first:
                continue  # A document that its corpus has twice.
            texts.add(f"{corpus.title}/{document.id}", document.contents)
            articles.append(numbers.setdefault(document.fields["article"], len(numbers)))
            found.append([])
        if query_file is None:
            continue
        if (made_for := read_header(query_file, GENERATED).get("documents")) != own.hash:
            raise InputError(
                f"{query_file} holds queries for other passages (hash {made_for}) than {file} ({own.hash})",
                f"generate them for that file: osn generate-queries {file} --model MODEL --output QUERIES",
            )
        for record in read_generated(query_file):
            assert record.query_id is not None
            of_passage = found[first + own.row(record.positives[0].id or "")]
            if config.candidates is None or len(of_passage) < config.candidates:
                of_passage.append(queries.add(f"{corpus.title}/{record.query_id}", record.query or ""))
    passages = Passages(texts, np.array(articles, dtype=np.int64), list(numbers), queries, Ragged(found))
    logger.info("%d passages of %d articles, %d queries", len(texts), len(numbers), len(queries))
    return passages


def question_files(config: QueryAsContextConfig) -> list[tuple[Path, Path | None]]:
    """For each corpus its passages and what was generated for them, made where it is not there yet; None where no context
    needs it."""
    with main_process_first():
        files = write_passages(config)
        return [(file, _queries(config, corpus, file)) for corpus, file in zip(config.corpora, files, strict=True)]


def write_passages(config: QueryAsContextConfig) -> list[Path]:
    """A file of passages for each corpus: lines {"_id", "title": "", "text", "article"}, which `osn generate-queries` reads.

    Whole sentences, as many as fit `passage_length` with the special tokens (section 4.1; a rule finds where sentences end,
    for NLTK's model would have to be downloaded). Made anew where what they depend on has changed.
    """
    tokenizer = backbones.load_tokenizer(locate(config.backbone))
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
        file = config.folder / f"{corpus.title}-{fingerprint(of_corpus)}.jsonl"
        files.append(file)
        if not file.exists():
            todo.append((corpus, file, of_corpus))
    if not todo:
        return files
    articles = tested_articles(config.corpora, unseen)
    if unseen:
        logger.info(
            "%d articles of the corpora hold a document that is tested on, title and text as they stand; they are left out",
            len(articles),
        )
    room = config.passage_length - tokenizer.num_special_tokens_to_add()
    for corpus, file, of_corpus in todo:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(f".{file.name}")
        with beside.open("w", encoding="utf-8") as target:
            lines = partial(_lines, corpus, pieces, room, articles, config)
            for line in _large_enough(lines, config.least_passages):
                target.write(json.dumps(line, ensure_ascii=False) + "\n")
        write_json(file.with_suffix(".json"), of_corpus)
        beside.replace(file)
    return files


def _large_enough(lines: Callable[[], Iterator[dict[str, str]]], least: int) -> Iterator[dict[str, str]]:
    """The passages of articles that have at least so many; read twice rather than kept."""
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
    """The articles that hold a document which `unseen` has as relevant, by text: to be left out as a whole, also where
    another corpus has a part of them."""
    texts = {normalised(data.documents.text_at(row)) for data in unseen for row in set(data.positives.values.tolist())}
    return {
        corpus.key(document)
        for corpus in corpora
        for document in (read_documents(corpus.path, limit=corpus.limit) if texts else ())
        if normalised(document.contents) in texts
    }


def _passages_of(document: Document, pieces: Any, room: int, *, titles: bool) -> Iterator[dict[str, str]]:
    title = document.title.strip() if titles else ""
    taken = len(pieces.encode(title, add_special_tokens=False).ids) if title else 0
    for passage in split(document, pieces, max(room - taken, room // 2), sentences=True):
        text = f"{title} {passage.text}".strip()
        if normalised(text):
            yield {"_id": passage.id, "title": "", "text": text}


def _documents_hash(corpus: CorpusSettings) -> str:
    """Of what a corpus holds: it tells whether passages made of it are current."""
    digest = hashlib.sha256()
    for document in read_documents(corpus.path, limit=corpus.limit):
        fields = (document.id, document.title, document.url, document.text)
        digest.update(json.dumps(fields, ensure_ascii=True).encode())
    return digest.hexdigest()[:16]


def _others(config: QueryAsContextConfig, corpus: CorpusSettings) -> list[str]:
    """What else decides which articles are left out."""
    others = [other for other in config.corpora if other is not corpus] if config.unseen else []
    return sorted(f"{other.path} {other.article} {_documents_hash(other)}" for other in others)


def _generator(config: QueryAsContextConfig, corpus: CorpusSettings) -> str:
    """What writes the queries of a corpus. Raises InputError where nothing does."""
    model = corpus.generator or config.generation.model
    if model is None:
        raise InputError(
            f"context {config.context}: nothing says where the queries of {corpus.title} come from",
            "--set generation.model=MODEL (osn train doc2query), or corpora[…].queries (osn generate-queries)",
        )
    return model


def _queries(config: QueryAsContextConfig, corpus: CorpusSettings, passages: Path) -> Path | None:
    """The file of queries of a corpus' passages, generated where it is not there; None where no context needs one."""
    if not config.asks:
        return None
    if corpus.queries is not None:
        return corpus.queries
    settings, model = config.generation, _generator(config, corpus)
    sampling = sampling_for(
        model,
        candidates=settings.candidates,
        top_k=settings.top_k,
        top_p=settings.top_p,
        copying=settings.copying,
        query_length=settings.query_length,
        passage_length=settings.passage_length,
        prefix=settings.prefix,
        batch_size=settings.batch_size,
        seed=settings.seed,
    )
    name = fingerprint(passages.name, hash_files(locate(model)), sampling, computed_in(settings.precision))
    file = config.folder / f"{corpus.title}-{name}.queries.jsonl"
    documents = TextStore((document.id, document.contents) for document in read_documents(passages))
    generate_queries(model, documents, output=file, sampling=sampling, precision=settings.precision)
    return file


# ------------------------------------------------ batches


class Drawn(NamedTuple):
    """What one passage became at one visit: (input ids, labels) of it and of its context. keys: of the passage (its article,
    with the context "query" its text) and of the context's text; rows of a batch that have a key in common are no negatives
    of each other."""

    name: str
    passage: tuple[Ids, Ids]
    context: tuple[Ids, Ids] | None
    keys: tuple[int, int]


class Pairs:
    """Passages with their context, drawn and masked anew at every visit."""

    def __init__(
        self, passages: Passages, tokenizer: PreTrainedTokenizerBase, config: QueryAsContextConfig, rows: Sequence[int]
    ) -> None:
        self.passages, self.tokenizer, self.config, self.rows = passages, tokenizer, config, rows
        self.members = passages.members()
        self.special = special_ids(tokenizer)
        self.continuation = continuations(tokenizer) if config.masking.whole_word else None
        self.passage_tokens = TokenCache(tokenizer, passages.texts.text_at, max_length=config.passage_length)
        self.query_tokens = TokenCache(tokenizer, passages.queries.text_at, max_length=config.query_length)
        self.same_text = passages.texts.canonical()
        self.same_query = passages.queries.canonical()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, visit: Visit) -> Drawn:
        row, rng = self.rows[visit.index], visit.generator()
        # A passage of the same article is related where such pairs are learned from; elsewhere it is a negative.
        key = int(self.same_text[row] if self.config.context == "query" else self.passages.articles[row])
        passage = self._masked(self.passage_tokens, row, "passage", rng)
        context, same = self._context(row, rng)
        return Drawn(self.passages.texts.ids[row], passage, context, (key, same))

    def _context(self, row: int, rng: np.random.Generator) -> tuple[tuple[Ids, Ids] | None, int]:
        """A context, and a number that contexts of the same text share: one question may have been written for several
        passages."""
        context = self.config.context
        if context == "none":
            return None, -1
        if context == "query" or (context == "mixed" and rng.random() < 0.5):
            query = int(rng.choice(self.passages.candidates[row]))
            return self._masked(self.query_tokens, query, "context", rng), int(self.same_query[query])
        others = self.members[int(self.passages.articles[row])]
        other = int(rng.choice(others[self.same_text[others] != self.same_text[row]]))
        same = len(self.same_query) + int(self.same_text[other])
        return self._masked(self.passage_tokens, other, "context", rng), same

    def _masked(
        self, tokens: TokenCache, row: int, role: Literal["passage", "context"], rng: np.random.Generator
    ) -> tuple[Ids, Ids]:
        assert self.tokenizer.mask_token_id is not None
        return mask_tokens(
            tokens.rows([row])[0].astype(np.int64),
            rate=self.config.masking.share(self.config.variant, role),
            mask_id=int(self.tokenizer.mask_token_id),
            special=self.special,
            rng=rng,
            continuation=self.continuation,
            # What its decoder is to predict from the passage's CLS, it must not read (section 2).
            stays=0.0 if role == "context" and self.config.variant == "cot-mae" else 0.1,
        )

    def collate(self, items: Sequence[Drawn]) -> Batch:
        """coCondenser: passages and contexts are rows of their own; CoT-MAE: a passage's row has its context with it."""
        passages = [one.passage for one in items]
        contexts = [one.context for one in items if one.context is not None]
        parts = {"passage": self._parts(passages)}
        if contexts and self.config.variant == "cocondenser":
            parts["context"] = self._parts(contexts)
        elif contexts:
            for part in parts["passage"]:
                part |= self._contexts_of(part["position"].tolist(), contexts)
        return {
            "ids": [one.name for one in items],
            "parts": parts,
            "targets": {"keys": torch.tensor([one.keys for one in items])},
        }

    def _parts(self, rows: Sequence[tuple[Ids, Ids]]) -> list[Part]:
        cuda = torch.cuda.is_available() and self.config.training.device == "auto"
        parts = padded_parts(
            [inputs.astype(np.int32) for inputs, _ in rows],
            padding=padding_id(self.tokenizer),
            overhead=bi_encoder.PART_OVERHEAD["cuda" if cuda else "cpu"],
            largest=self.config.training.chunk_size,
        )
        for part in parts:
            part["labels"] = _filled([rows[at][1] for at in part["position"].tolist()], part["input_ids"].shape[1])
        return parts

    def _contexts_of(self, at: Sequence[int], contexts: Sequence[tuple[Ids, Ids]]) -> Part:
        (together,) = padded_parts(
            [contexts[one][0].astype(np.int32) for one in at], padding=padding_id(self.tokenizer), overhead=1 << 40
        )
        # One part, which is in order of length: back to the order of the passages.
        order = torch.argsort(together["position"])
        width = together["input_ids"].shape[1]
        return {
            "context_input_ids": together["input_ids"][order],
            "context_attention_mask": together["attention_mask"][order],
            "context_labels": _filled([contexts[one][1] for one in at], width),
        }


def _filled(labels: Sequence[Ids], width: int) -> Tensor:
    filled = np.full((len(labels), width), IGNORED, dtype=np.int64)
    for at, row in enumerate(labels):
        filled[at, : len(row)] = row
    return torch.from_numpy(filled)


def usable_rows(passages: Passages, config: QueryAsContextConfig) -> tuple[list[int], list[int]]:
    """(train, dev): the passages that have the context asked for, split by article. Raises InputError for none at all."""
    counts = np.bincount(passages.articles, minlength=len(passages.keys))
    usable = counts[passages.articles] >= config.least_passages
    if config.context in ("random-passage", "mixed"):
        different = np.unique(np.stack([passages.articles, passages.texts.canonical()]), axis=1)
        usable &= np.bincount(different[0], minlength=len(passages.keys))[passages.articles] >= 2
    if config.asks:
        usable &= np.diff(passages.candidates.offsets) > 0
    held = np.array([in_dev(key, config.dev_share) for key in passages.keys], dtype=bool)
    of_dev = held[passages.articles]
    rows = np.flatnonzero(usable & ~of_dev).tolist(), np.flatnonzero(usable & of_dev).tolist()
    left_out = len(passages.texts) - len(rows[0]) - len(rows[1])
    logger.info(
        "context %s: %d passages to train on, %d of dev, %d without one", config.context, *map(len, rows), left_out
    )
    if not rows[0]:
        raise InputError(
            f"no passage has a context ({config.context})",
            "random passages need articles of two different ones at least (corpora[…].article), queries a generator",
        )
    return rows


# ------------------------------------------------ models


def masked_lm_head(model: PreTrainedModel) -> nn.Module:
    """What makes the logits of a BERT- or RoBERTa-like masked language model, position by position. Raises ModelError
    elsewhere."""
    for name in ("cls", "lm_head"):
        if isinstance(found := getattr(model, name, None), nn.Module):
            return found
    raise ModelError(f"{type(model).__name__} has no masked-LM head as BERT has one", "start from a BERT-like backbone")


def _body(model: PreTrainedModel) -> Any:
    """The encoder without its head."""
    return model.base_model


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """The transformer layers of a BERT-like model, the first one first. Raises ModelError elsewhere."""
    found = getattr(getattr(model.base_model, "encoder", None), "layer", None)
    if not isinstance(found, nn.ModuleList):
        raise ModelError(
            f"{type(model).__name__} does not keep its layers as BERT does", "start from a BERT-like backbone"
        )
    return found


class ContextModel(CachedModel):
    """What both variants share: a backbone with its masked-LM head, and layers that only pre-training has."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        layers: nn.ModuleList,
        config: QueryAsContextConfig,
    ) -> None:
        super().__init__()
        # Not `config`: the Trainer takes that for the one of a transformers model.
        self.model, self.tokenizer, self.layers, self.settings = model, tokenizer, layers, config

    def predicted(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """`losses.masked_lm` of these hidden states, (rows, length, dimension): the head is applied where it is asked."""
        positions = labels != IGNORED
        return losses.masked_lm(masked_lm_head(self.model)(hidden[positions]), labels[positions])

    def through(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """(rows, length, dimension) after the layers of pre-training."""
        mask = create_bidirectional_mask(self.model.config, hidden, attention_mask)
        for layer in self.layers:
            hidden = layer(hidden, attention_mask=mask)
        return hidden

    def dense(self) -> BiEncoder:
        """The model as it stands as a retriever: CLS, raw inner products. It shares the weights."""
        settings = EncoderSettings(
            pooling="cls",
            normalize=False,
            query_length=self.settings.query_length,
            document_length=self.settings.passage_length,
        )
        encoder = Encoder(_body(self.model), pooling="cls", normalize=False)
        towers, tokenizers = (
            {"query": encoder, "document": encoder},
            {"query": self.tokenizer, "document": self.tokenizer},
        )
        return BiEncoder(towers, tokenizers, settings, ObjectiveSettings())  # type: ignore[arg-type]

    def export(self, folder: Path) -> None:
        dense = self.dense()
        with backbones.quiet():  # A pooler is missing, which nothing reads.
            towers: dict[Role, Encoder] = {"query": dense.query, "document": dense.document}
            write_sentence_transformer(towers, dense.tokenizers, dense.settings, folder)
        # Over the encoder alone: the same weights with the masked-LM head, which loaders of encoders skip.
        backbones.save(self.model, self.tokenizer, folder)


class CoCondenser(ContextModel):
    """L = L_mlm + L_aux-mlm + L_co (section 2.1), the first two over passages and contexts; without contexts Condenser."""

    @property
    def middle(self) -> int:
        """The layer whose tokens the head reads; 0 are the embeddings."""
        depth = int(self.model.config.num_hidden_layers)
        middle = depth // 2 if self.settings.middle is None else self.settings.middle
        if not 0 <= middle < depth:
            raise InputError(f"middle is {middle}, but the backbone has {depth} layers", f"expected 0 to {depth - 1}")
        return middle

    @property
    def compares(self) -> bool:
        return self.settings.context != "none"

    def counts(self, part: Part) -> dict[str, Tensor]:
        masked = (part["labels"] != IGNORED).sum()
        return {"masked_lm": masked, "late_masked_lm": masked}

    def encode(self, role: str, part: Part) -> Encoded:
        mask, labels = part["attention_mask"], part["labels"]
        found = _body(self.model)(part["input_ids"], attention_mask=mask, output_hidden_states=True)
        late = found.last_hidden_state
        read = torch.cat([late[:, :1], found.hidden_states[self.middle][:, 1:]], dim=1)
        total, _ = self.predicted(late, labels)
        late_total, _ = self.predicted(self.through(read, mask), labels)
        return Encoded(late[:, 0], {"masked_lm": total, "late_masked_lm": late_total}, self.counts(part))

    def losses(self, vectors: dict[str, Tensor], targets: dict[str, Tensor]) -> Losses:
        """vectors: "passage" and "context", both (pairs, dimension), row by row partners; targets: "keys" (pairs, kinds)."""
        if not self.compares:
            return Losses({})
        passages, contexts, keys = vectors["passage"], vectors["context"], targets["keys"]
        rows, columns = torch.cat([passages, contexts]), torch.cat([gather(passages), gather(contexts)])
        # Every process has as many pairs as the others.
        first = dist.get_rank() * len(keys) if processes() > 1 else 0
        return self.compared(rows, columns, keys, gather(keys), first=first)

    def compared(self, rows: Tensor, columns: Tensor, keys: Tensor, everyone: Tensor, *, first: int) -> Losses:
        """L_co of rows, (2 · pairs, dimension), among columns, (2 · all pairs, dimension); see `losses.pair_targets`."""
        positives, excluded = losses.pair_targets(keys, everyone, first)
        scores = rows @ columns.T
        contrastive = losses.info_nce(scores, positives, temperature=self.settings.temperature, excluded=excluded)
        best = scores.masked_fill(excluded, -torch.inf).argmax(dim=1)
        return Losses({"contrastive": contrastive}, {"in_batch_accuracy": (best == positives).float().mean()})

    def export(self, folder: Path) -> None:
        super().export(folder)
        save_file({name: weight.contiguous() for name, weight in self.layers.state_dict().items()}, folder / HEAD_FILE)


class CotMae(ContextModel):
    """L = L_mlm + L_ctx-mlm (section 2.2); without contexts masked LM alone."""

    @property
    def compares(self) -> bool:
        return False

    def counts(self, part: Part) -> dict[str, Tensor]:
        counts = {"masked_lm": (part["labels"] != IGNORED).sum()}
        if "context_labels" in part:
            counts["context_masked_lm"] = (part["context_labels"] != IGNORED).sum()
        return counts

    def encode(self, role: str, part: Part) -> Encoded:
        found = _body(self.model)(part["input_ids"], attention_mask=part["attention_mask"])
        late = found.last_hidden_state
        sums = {"masked_lm": self.predicted(late, part["labels"])[0]}
        if "context_labels" in part:
            # The context's own first token gives way to the passage's CLS: all that the decoder sees of the passage.
            context = _body(self.model).embeddings(input_ids=part["context_input_ids"])
            read = torch.cat([late[:, :1], context[:, 1:]], dim=1)
            decoded = self.through(read, part["context_attention_mask"])
            sums["context_masked_lm"] = self.predicted(decoded, part["context_labels"])[0]
        return Encoded(late[:, 0], sums, self.counts(part))

    def losses(self, vectors: dict[str, Tensor], targets: dict[str, Tensor]) -> Losses:
        return Losses({})


def build(config: QueryAsContextConfig) -> ContextModel:
    """The model before training.

    A Condenser head is the one that lies beside the backbone, else a copy of the backbone's last layers; a decoder starts
    from scratch (section 4.1). Raises ModelError for a backbone without BERT's layers, InputError for a head of another
    number of layers.
    """
    set_seed(config.training.seed)
    model, tokenizer, _ = backbones.masked_language_model(config.backbone)
    positions = getattr(model.config, "max_position_embeddings", None)
    longest = max(config.passage_length, config.query_length)
    if positions is not None and longest > positions:
        raise InputError(f"passages of {longest} tokens, but the backbone has {positions} positions")
    own = layers_of(model)
    if config.layers > len(own):
        raise InputError(f"layers is {config.layers}, more than the {len(own)} of the backbone")
    layers = nn.ModuleList(copy.deepcopy(layer) for layer in list(own)[-config.layers :])
    if config.variant == "cot-mae":
        for module in layers.modules():
            model._init_weights(module)
        return CotMae(model, tokenizer, layers if config.context != "none" else nn.ModuleList(), config)
    saved = locate(config.backbone) / HEAD_FILE
    if saved.exists():
        try:
            layers.load_state_dict(load_file(saved))
        except RuntimeError:
            raise InputError(
                f"{saved} is no Condenser head of {config.layers} layers", "set layers to its own"
            ) from None
    return CoCondenser(model, tokenizer, layers, config)


# ------------------------------------------------ training


def held_back_loss(model: ContextModel, pairs: Pairs) -> dict[str, float]:
    """The terms of the loss over all of `pairs`, drawn and masked alike each time, in batches of EVALUATION_PAIRS. Without
    other processes, which do not measure."""
    device = next(model.parameters()).device
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    # As in training, a batch's passages are of many articles: those of one exclude each other.
    order = np.random.default_rng(0).permutation(len(pairs)).tolist()
    for start in range(0, len(pairs), EVALUATION_PAIRS):
        visits = [Visit(index, 0, 0, 0) for index in order[start : start + EVALUATION_PAIRS]]
        batch = _to(pairs.collate([pairs[visit] for visit in visits]), device)
        vectors: dict[str, Tensor] = {}
        for role, parts in batch["parts"].items():
            encoded = [model.encode(role, part) for part in parts]
            vectors[role] = in_order([one.vectors for one in encoded], [part["position"] for part in parts])
            for one in encoded:
                for name, total in one.sums.items():
                    sums[name] = sums.get(name, 0.0) + float(total)
                    counts[name] = counts.get(name, 0.0) + float(one.counts[name])
        if isinstance(model, CoCondenser) and model.compares:
            rows, keys = torch.cat([vectors["passage"], vectors["context"]]), batch["targets"]["keys"]
            found = model.compared(rows, rows, keys, keys, first=0)
            sums["contrastive"] = sums.get("contrastive", 0.0) + len(visits) * float(found.terms["contrastive"])
            counts["contrastive"] = counts.get("contrastive", 0.0) + len(visits)
    return {name: total / max(counts[name], 1) for name, total in sums.items()}


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _to(one, device) for key, one in value.items()}
    return [_to(one, device) for one in value] if isinstance(value, list) else value


def pretrain(config: QueryAsContextConfig, passages: Passages, dev: Sequence[DevSet]) -> Trained:
    """One pre-training of `config.backbone`, written to `config.output`. The state that is kept is the one whose loss on the
    passages held back is least (`training.select` names another measure)."""
    model = build(config)
    train_rows, dev_rows = usable_rows(passages, config)
    pairs, held = (Pairs(passages, model.tokenizer, config, rows) for rows in (train_rows, dev_rows))

    def measured(current: TrainingModel) -> dict[str, float]:
        assert isinstance(current, ContextModel)
        terms = held_back_loss(current, held) if len(held) else {}
        measures = {"objective": -sum(terms.values())} if terms else {}
        measures |= {name: -value for name, value in terms.items()}
        return measures | (dev_measures(dev, current.dense().retrieve) if dev else {})

    # What comes before and after makes another folder, and no other weights here.
    alone = replace(config, retriever=None, condenser=None, test=[], cache=None)
    return train(
        model,
        pairs,
        pairs.collate,
        settings=config.training,
        output=config.output,
        kind=KIND,
        config=alone,
        data_hash=fingerprint(passages.hash, hash_files(locate(config.backbone))),
        evaluate=measured if len(held) or dev else None,
    )


@dataclass(slots=True)
class Step:
    """A model that the schedule made: what it is called, its directory, and what it was measured to be on each test set."""

    name: str
    model: Path
    measures: dict[str, dict[str, float]] = field(default_factory=dict)


def run(config: QueryAsContextConfig) -> list[Step]:
    """Passages, queries, Condenser pre-training where asked for, pre-training, retrievers 1 and 2; measured after each step.

    Interrupted at any point, the same call goes on; what is done and current is not repeated.
    """
    _refuse_early(config)
    passages = read_passages(config)
    dev = [
        dev_set(
            settings.load(),
            queries=config.selection.queries,
            documents=config.selection.documents,
            seed=config.training.seed,
        )
        for settings in config.dev
    ]
    steps: list[Step] = []
    current = config
    if config.condenser is not None:
        before = replace(config, output=config.output / FOLDER / "condenser", context="none", training=config.condenser)
        pretrain(before, passages, dev)
        current = replace(config, backbone=str(before.output))
        steps.append(_measured("Condenser", before.output, config))
    pretrain(current, passages, dev)
    steps.append(_measured("pre-trained", config.output, config))
    if config.retriever is not None:
        fine_tuning = replace(config.retriever, start=str(config.output))
        train_dense(fine_tuning)
        if fine_tuning.two_stage is not None:
            steps.append(_measured("retriever 1", fine_tuning.output / FOLDER / FIRST, config))
            steps.append(_measured("retriever 2", fine_tuning.output, config))
        else:
            steps.append(_measured("retriever", fine_tuning.output, config))
    return steps


def _refuse_early(config: QueryAsContextConfig) -> None:
    """Raises what later steps would raise after hours: for folders of something else, data sets that are not there, and a
    backbone that the variant cannot be made of."""
    check_output(config.output, KIND)
    sets = [*config.unseen, *config.dev, *config.test]
    if config.retriever is not None:
        check_output(config.retriever.output, bi_encoder.KIND)
        sets += [*config.retriever.train, *config.retriever.dev, *config.retriever.unseen]
    files = [corpus.queries for corpus in config.corpora if config.asks and corpus.queries is not None]
    for path in [corpus.path for corpus in config.corpora] + files + [one.path for one in sets]:
        if not path.exists():
            raise InputError(f"{path} does not exist")
    if config.asks:
        for generator in {_generator(config, corpus) for corpus in config.corpora if corpus.queries is None}:
            if not backbones.is_sequence_to_sequence(generator):
                raise ModelError(
                    f"{generator} is no sequence-to-sequence model", "a generator is made by osn train doc2query"
                )
    model = build(config)
    if model.tokenizer.mask_token_id is None:
        raise InputError(f"the tokenizer of {config.backbone} has no mask token")
    if isinstance(model, CoCondenser):
        _ = model.middle
    masked_lm_head(model.model)
    try:
        with torch.no_grad():
            hidden = torch.zeros(1, 2, int(model.model.config.hidden_size))
            passed: Any = model.through(hidden, torch.ones(1, 2, dtype=torch.long))
        if not isinstance(passed, Tensor):
            raise TypeError(f"they return a {type(passed).__name__}")
    except (TypeError, AttributeError, RuntimeError) as error:
        raise ModelError(
            f"the layers of {type(model.model).__name__} are not called as BERT's ({error})",
            "start from a BERT-like backbone",
        ) from None


def _measured(name: str, model: Path, config: QueryAsContextConfig) -> Step:
    """The model on each test set; kept beside it, and measured again where the model or the set has changed."""
    step = Step(name, model)
    for settings in config.test:
        data = settings.load()
        folder = model / FOLDER / f"test-{data.name}-{fingerprint(hash_files(model), data.hash)[:8]}"
        file = folder / "measures.json"
        if is_main_process() and not file.exists():
            found = corpus_measures(f"dense:{model}", data, cache=folder)
            write_json(file, {"measures": found.mean})
            for vectors in folder.iterdir():  # Of a large corpus more than everything else together.
                if vectors != file:
                    shutil.rmtree(vectors) if vectors.is_dir() else vectors.unlink()
        if is_main_process():
            step.measures[data.name] = read_json_object(file)["measures"]
    return step


def rehearse(config: QueryAsContextConfig) -> list[Step]:
    """Everything that `config` asks, on the first rows of its data, two steps a training, nothing kept."""

    def two_steps(training: TrainingSettings) -> TrainingSettings:
        return replace(
            training, steps=2, batch_size=min(training.batch_size, 8), evaluate_every=1, save_every=1, log_every=1
        )

    for settings in config.unseen:
        settings.load()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / config.output.name
        small = replace(
            config,
            output=output,
            cache=None,
            # A file of queries is for all passages of its corpus.
            corpora=[
                one if one.queries is not None else replace(one, limit=min(one.limit or 64, 64))
                for one in config.corpora
            ],
            # All of the first documents may be tested on. Queries that are given are for what is left of the whole corpus.
            unseen=config.unseen if any(one.queries for one in config.corpora) else [],
            dev=[replace(one, limit=min(one.limit or 8, 8)) for one in config.dev],
            test=[replace(one, limit=min(one.limit or 8, 8)) for one in config.test],
            dev_share=max(config.dev_share, 0.1),
            selection=replace(config.selection, queries=8, documents=64),
            training=two_steps(config.training),
            condenser=None if config.condenser is None else two_steps(config.condenser),
            retriever=None,
        )
        steps = run(small)
        if config.retriever is not None:
            bi_encoder.rehearse(replace(config.retriever, start=str(output)))
            steps.append(Step("retrievers", config.retriever.output))
        return steps


@click.command("query-as-context")
@config_options(
    QueryAsContextConfig,
    shortcuts={
        **backbone_option("backbone"),
        "variant": ("variant", "cocondenser or cot-mae.  [default: cocondenser]"),
        "context": ("context", "query, random-passage, mixed or none.  [default: query]"),
    },
)
def query_as_context_command(config: QueryAsContextConfig, dry_run: bool) -> None:
    """Pre-train an encoder on passages and the queries written for them (coCondenser or CoT-MAE).

    \b
    osn train query-as-context --set 'corpora=[{path: squad-mix}]' --backbone models/mlm \\
        --set generation.model=models/doc2query --output models/pretrained
    osn train query-as-context --variant cot-mae --context random-passage --set 'corpora=[{path: squad-mix}]' \\
        --backbone models/mlm --output models/random
    osn train query-as-context --config query-as-context --output models/pretrained

    Then: osn train dense --set start=models/pretrained … (CLS and raw inner products are the default there). With
    `retriever` in the configuration fine-tuning follows at once. Stopped at any point, the same command goes on.
    """
    steps = rehearse(config) if dry_run else run(config)
    if not is_main_process():
        return
    for step in steps:
        place = "nothing kept (dry run)" if dry_run else str(step.model)
        click.echo(f"{step.name}: {place}")
        for name, measures in step.measures.items():
            click.echo(f"{name:>24}  " + "  ".join(f"{measure} {value:.4f}" for measure, value in measures.items()))
    if not dry_run and (rate := steps_per_second(config.output)) is not None:
        click.echo(f"pre-training: {rate:.3g} steps/s of {config.training.batch_size} pairs")


def steps_per_second(model: Path) -> float | None:
    """The median rate of a training, by its history; None where nothing was logged."""
    file = model / ".training" / "history.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    rates = [line["steps_per_second"] for line in lines if "steps_per_second" in line]
    return float(np.median(rates)) if rates else None
