"""Bi-encoders: one vector for a query, one for a document, their inner product the score.

    osn train dense --set 'train=[{path: squad-mix}]' --output models/dense
    osn train dense --config dense.yaml --set training.batch_size=256 --set training.chunk_size=32
    osn train dense --config query-as-context-retriever --output models/retriever    a paper's recipe, two stages

In one place: DPR (in-batch negatives and one of BM25's, "Dense Passage Retrieval" by Karpukhin et al. 2020), the
fine-tuning of `query-as-context` (section 3.2 and 4.2: retriever 1, mined negatives, retriever 2, both from the same
start), and distillation from teachers. The result loads in `SentenceTransformer(path)`.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import click
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, set_seed

from opensearch_neural.errors import InputError
from opensearch_neural.models.directory import hash_files, locate
from opensearch_neural.retrievers import Run
from trainers.common import losses
from trainers.common.config import backbone_option, config_options, fingerprint
from trainers.common.dev_measures import DEPTH, DevSet, dev_measures, dev_set
from trainers.common.grad_cache import CachedModel, Encoded, Part, gather
from trainers.common.loop import Trained, TrainingSettings, Visit, is_main_process, train
from trainers.common.precision import computed_in, computing_in
from trainers.common.schedules import FOLDER, TwoStageSettings, second_stage, two_stage, with_mined
from trainers.common.training_model import Batch, Losses, TrainingModel
from trainers.data.examples import SetRange, TrainingData, fewer_documents, hold_back, load_training, sample_candidates
from trainers.data.leaks import find_leaks, without_leaks
from trainers.data.teachers import Documents, Teacher, open_teacher
from trainers.data.tokenized import TokenCache, padded_parts
from trainers.data.unlabelled_questions import unlabelled
from trainers.encoders.tower import (
    ROLES,
    Encoder,
    EncoderSettings,
    Role,
    load_towers,
    read_start,
    resolved,
    write_sentence_transformer,
)

logger = logging.getLogger(__name__)

KIND = "dense"
COSINE_TEMPERATURE = 0.05
PART_OVERHEAD = {"cpu": 16, "cuda": 8192}
"""What one more part of a batch costs, in tokens: calls, and a gradient of all word vectors; a GPU idles meanwhile."""


# ------------------------------------------------ configuration


@dataclass(slots=True)
class SetSettings:
    """A data set: what `load_training` takes. teachers: folders of `osn teach` for this set, in the order of
    objective.teacher_weights."""

    path: Path
    split: str = "train"
    name: str | None = None
    format: str | None = None
    corpus: Path | None = None
    queries: Path | None = None
    negatives: Path | None = None
    limit: int | None = None
    teachers: list[Path] = field(default_factory=list)

    def load(self, folder: Path | None = None) -> TrainingData:
        """folder: where what has to be computed for it is kept, if anything has."""
        return load_training(
            self.path,
            split=self.split,
            negatives=self.negatives,
            corpus=self.corpus,
            queries=self.queries,
            format=self.format,
            limit=self.limit,
            name=self.name,
        )


@dataclass(slots=True)
class QuestionSet(SetSettings):
    """A data set, or a corpus without judgements whose `questions` are "title", "first-sentence", or what a query
    generator (directory or hub id) writes."""

    questions: str | None = None

    def load(self, folder: Path | None = None) -> TrainingData:
        if self.questions is None:
            # super() knows no class that dataclass(slots=True) has made anew.
            return SetSettings.load(self)
        name = self.name or self.path.resolve().name.partition(".")[0]
        return unlabelled(self.path, self.questions, name=name, limit=self.limit, folder=folder)


@dataclass(slots=True)
class CandidateSettings:
    """What a query is compared with beside its positive: `negatives` of its hard ones, drawn at each visit out of the
    first `depth`, filled up at random where there are fewer. mine: where they come from when the data has none."""

    negatives: int = 0
    depth: int = 200
    mine: Literal["bm25"] | None = None

    def __post_init__(self) -> None:
        if self.negatives < 0 or self.depth < 1:
            raise ValueError(f"negatives {self.negatives} and depth {self.depth}: expected at least 0 and 1")


@dataclass(slots=True)
class ObjectiveSettings:
    """The loss: a sum of terms, each with its weight, 0 leaves it out.

    info_nce: contrastive, over all documents of the batch, or with `in_batch` false over the query's own candidates.
    symmetric: the contrastive term is the mean with its counterpart from document to queries. temperature divides
    scores; None is 0.05 where vectors are normalized and 1 where they are not. margin_mse, kl: distillation over the
    query's own candidates, from teachers or from scores that stand in the data. teacher_scale: the ensemble's S.
    kl_temperature: of the distillation, beside `temperature`, which is not applied there.
    """

    info_nce: float = 1.0
    margin_mse: float = 0.0
    kl: float = 0.0
    temperature: float | None = None
    in_batch: bool = True
    symmetric: bool = False
    kl_temperature: float = 1.0
    teacher_weights: list[float] | None = None
    teacher_scale: float = 10.0
    normalize_teachers: bool = True

    def __post_init__(self) -> None:
        if max(self.info_nce, self.margin_mse, self.kl) <= 0 or min(self.info_nce, self.margin_mse, self.kl) < 0:
            raise ValueError("info_nce, margin_mse and kl are weights: none below 0, one at least above")
        if self.temperature is not None and self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, not {self.temperature}")

    @property
    def distils(self) -> bool:
        return self.margin_mse > 0 or self.kl > 0


@dataclass(slots=True)
class DevSettings:
    """Selection: hold_back is the share (or number) of each train set's examples that is measured on and not trained
    on, where `dev` names no set. queries, documents: at most so many of each are encoded at a time."""

    hold_back: float | int | None = None
    queries: int = 500
    documents: int = 2000


@dataclass(slots=True)
class DenseConfig:
    """Everything that `osn train dense` can be told. unseen: sets (their test splits, say) whose questions are left out
    of train wherever they occur in it."""

    output: Path
    train: list[SetSettings]
    start: str = "sentence-transformers/all-MiniLM-L6-v2"
    dev: list[SetSettings] = field(default_factory=list)
    unseen: list[SetSettings] = field(default_factory=list)
    encoder: EncoderSettings = field(default_factory=EncoderSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    candidates: CandidateSettings = field(default_factory=CandidateSettings)
    two_stage: TwoStageSettings | None = None
    selection: DevSettings = field(default_factory=DevSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    onnx: bool = False

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError("train names no data set")
        if self.objective.distils and self.candidates.negatives < 1:
            raise ValueError("distillation compares candidates: candidates.negatives must be at least 1")


# ------------------------------------------------ the model


class BiEncoder(CachedModel):
    """Two towers, or one for both, under a sum of contrastive and distillation terms."""

    def __init__(
        self,
        encoders: Mapping[Role, Encoder],
        tokenizers: Mapping[Role, PreTrainedTokenizerBase],
        settings: EncoderSettings,
        objective: ObjectiveSettings,
        *,
        onnx: bool = False,
    ) -> None:
        super().__init__()
        self.document, self.query = encoders["document"], encoders["query"]
        self.tokenizers, self.settings, self.objective, self.onnx = dict(tokenizers), settings, objective, onnx
        cosine = self.document.normalize
        self.temperature = objective.temperature or (COSINE_TEMPERATURE if cosine else 1.0)

    @property
    def kind(self) -> str:
        """Of the model directory that `export` writes."""
        return KIND

    def tower(self, role: str) -> Encoder:
        return self.query if role == "query" else self.document

    def encode(self, role: str, part: Part) -> Encoded:
        return Encoded(self.tower(role)(part["input_ids"], part["attention_mask"]))

    def losses(self, vectors: dict[str, Tensor], targets: dict[str, Tensor]) -> Losses:
        """vectors: "query" (queries, dimension), "document" (documents, dimension), both of this process.

        targets: "candidates" (queries, 1 + negatives), columns among the gathered documents, the positive first;
        "lengths" (documents,), in tokens; "excluded" (queries, gathered documents); "queries_excluded" (queries, gathered
        queries) and "own_query" (queries,) for the symmetric term; "teacher" and "known" (queries, 1 + negatives) for
        distillation.
        """
        queries, documents = vectors["query"], gather(vectors["document"])
        scores = self.scores(queries, documents, targets)
        candidates, objective = targets["candidates"], self.objective
        own = scores.gather(1, candidates)
        terms: dict[str, Tensor] = {}
        if objective.info_nce:
            contrastive = self._contrastive(scores, own, targets)
            if objective.symmetric:
                positives = documents[candidates[:, 0]]
                backward = losses.info_nce(
                    positives @ gather(queries).T,
                    targets["own_query"],
                    temperature=self.temperature,
                    excluded=targets["queries_excluded"],
                )
                contrastive = (contrastive + backward) / 2
            terms["info_nce"] = objective.info_nce * contrastive
        if objective.margin_mse:
            terms["margin_mse"] = objective.margin_mse * losses.margin_mse(
                own, targets["teacher"], known=targets["known"]
            )
        if objective.kl:
            terms["kl"] = objective.kl * losses.kl_distillation(
                own, targets["teacher"], temperature=objective.kl_temperature, known=targets["known"]
            )
        best = scores.masked_fill(targets["excluded"], -torch.inf).argmax(dim=1)
        return Losses(terms, {"in_batch_accuracy": (best == candidates[:, 0]).float().mean()})

    def scores(self, queries: Tensor, documents: Tensor, targets: dict[str, Tensor]) -> Tensor:
        """(queries, gathered documents) that the terms of the loss compare."""
        return queries @ documents.T

    def _contrastive(self, scores: Tensor, own: Tensor, targets: dict[str, Tensor]) -> Tensor:
        if self.objective.in_batch:
            return losses.info_nce(
                scores, targets["candidates"][:, 0], temperature=self.temperature, excluded=targets["excluded"]
            )
        first = torch.zeros(len(own), dtype=torch.long, device=own.device)
        return losses.info_nce(own, first, temperature=self.temperature)

    def export(self, folder: Path) -> None:
        towers: dict[Role, Encoder] = {"query": self.query, "document": self.document}
        write_sentence_transformer(towers, self.tokenizers, self.settings, folder)
        if self.onnx:
            from opensearch_neural.models.dense_onnx import export_onnx

            export_onnx(folder)

    def vectors(self, role: Role, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """The vectors of `texts` as the model stands: (texts, dimension)."""
        result = np.empty((len(texts), self.tower(role).dimension), dtype=np.float32)
        for rows, found, _ in self.encoded(role, texts):
            result[rows] = found
        return result

    @torch.inference_mode()
    def encoded(
        self, role: Role, texts: Sequence[str], *, tokens: int = 8192
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
        """(rows of `texts`, their vectors (rows, …), their lengths in tokens), batch by batch. tokens: of one batch,
        padding included."""
        tower = self.tower(role)
        device = next(tower.parameters()).device
        cache = TokenCache(
            self.tokenizers[role],
            texts.__getitem__,
            max_length=self.settings.length(role),
            prompt=self.settings.prompt(role),
        )
        for start in range(0, len(texts), 4096):
            block = cache.rows(range(start, min(start + 4096, len(texts))))
            longest = max(len(ids) for ids in block)
            parts = padded_parts(
                block,
                padding=padding_id(self.tokenizers[role]),
                overhead=0,
                largest=max(1, tokens // longest),
            )
            for part in parts:
                found = tower(part["input_ids"].to(device), part["attention_mask"].to(device))
                lengths = part["attention_mask"].sum(dim=1).numpy()
                yield start + part["position"].numpy(), found.float().cpu().numpy(), lengths

    def retrieve(self, queries: Mapping[str, str], documents: Mapping[str, str]) -> Run:
        """The best documents of each query by exact search over the vectors of all (see `dev.Retrieve`)."""
        from opensearch_neural.retrievers.faiss import FaissRetriever

        vectors = self.vectors("document", list(documents.values()))
        retriever = FaissRetriever(list(documents), vectors, lambda texts: self.vectors("query", texts))
        return retriever.retrieve(queries, DEPTH)


def padding_id(tokenizer: PreTrainedTokenizerBase) -> int:
    identifier = tokenizer.pad_token_id
    return int(identifier) if isinstance(identifier, int) else 0


# ------------------------------------------------ batches


class Drawn(NamedTuple):
    """What one example became at one visit: rows in the stores of its set."""

    at: int  # which set
    example: int
    query: int
    positive: int
    negatives: list[int]


class RetrievalData:
    """Examples of several sets by number; at each visit a positive and negatives are drawn.

    Sets stay apart: each batch is out of one, so nothing of another set can be a negative, and each keeps the ids and
    hashes that its teachers know.
    """

    def __init__(self, sets: Sequence[TrainingData], *, negatives: int, depth: int) -> None:
        self.parts, self.negatives, self.depth = list(sets), negatives, depth
        starts = np.cumsum([0, *(len(one) for one in sets)]).tolist()
        self.sets = tuple(
            SetRange(one.name, start, stop, 0, len(one.documents))
            for one, start, stop in zip(sets, starts, starts[1:], strict=False)
        )

    def __len__(self) -> int:
        return sum(len(one) for one in self.parts)

    def __getitem__(self, visit: Visit) -> Drawn:
        at = next(at for at, one in enumerate(self.sets) if visit.index < one.stop)
        data, index = self.parts[at], visit.index - self.sets[at].start
        positive, negatives = sample_candidates(data, index, self.negatives, rng=visit.random(), depth=self.depth)
        row = data.documents.row
        return Drawn(at, index, int(data.query_rows[index]), row(positive), [row(one) for one in negatives])

    @property
    def hash(self) -> str:
        return fingerprint([[one.name, one.hash] for one in self.parts])


class Tokenizing(Protocol):
    """What batches need to know of a model: how its texts become tokens."""

    tokenizers: dict[Role, PreTrainedTokenizerBase]
    settings: EncoderSettings


class RetrievalCollate:
    """Drawn examples to a batch. It sees the whole batch in every process, to know which of the gathered documents is
    which, and encodes its own share of it."""

    whole_batch = True

    def __init__(
        self,
        sets: Sequence[TrainingData],
        model: Tokenizing,
        objective: ObjectiveSettings,
        *,
        chunk_size: int | None,
        overhead: int,
        teachers: Sequence[Sequence[Teacher]] = (),
    ) -> None:
        self.sets, self.objective = list(sets), objective
        self.chunk_size, self.overhead = chunk_size, overhead
        self.teachers = [list(of_set) for of_set in teachers] or [[] for _ in sets]
        self.padding: dict[Role, int] = {role: padding_id(model.tokenizers[role]) for role in ROLES}
        settings = model.settings
        stores = [{"query": one.queries, "document": one.documents} for one in sets]
        self.tokens: list[dict[Role, TokenCache]] = [
            {
                role: TokenCache(
                    model.tokenizers[role],
                    store[role].text_at,
                    max_length=settings.length(role),
                    prompt=settings.prompt(role),
                )
                for role in ROLES
            }
            for store in stores
        ]
        self.relevant = [_Relevant(one) for one in sets]

    def __call__(self, items: list[Drawn], rank: int = 0, world: int = 1) -> Batch:
        at = items[0].at
        data, relevant = self.sets[at], self.relevant[at]
        share = len(items) // world
        # Each process encodes its documents once; together they are the columns that queries are scored against.
        owned = [unique_documents(items[r * share : (r + 1) * share]) for r in range(world)]
        columns = np.concatenate([np.array(rows, dtype=np.int64) for rows in owned])
        offset = sum(len(rows) for rows in owned[:rank])
        own = items[rank * share : (rank + 1) * share]
        position = {row: offset + place for place, row in enumerate(owned[rank])}
        candidates = np.array([[position[row] for row in (one.positive, *one.negatives)] for one in own])
        rows: dict[Role, list[int]] = {"query": [one.query for one in own], "document": owned[rank]}
        ids = {role: self.tokens[at][role].rows(rows[role]) for role in ROLES}
        targets = {
            "candidates": torch.from_numpy(candidates),
            "lengths": torch.tensor([len(of_document) for of_document in ids["document"]]),
            "excluded": torch.from_numpy(relevant.excluded(own, columns, candidates[:, 0])),
        }
        if self.objective.symmetric:
            own_query = np.arange(rank * share, (rank + 1) * share)
            targets["own_query"] = torch.from_numpy(own_query)
            targets["queries_excluded"] = torch.from_numpy(relevant.queries_excluded(own, items, own_query))
        if self.objective.distils:
            teacher, known = self._teacher_scores(at, own)
            targets["teacher"], targets["known"] = torch.from_numpy(teacher), torch.from_numpy(known)
        return {
            "ids": [f"{data.name}/{data.queries.ids[one.query]}" for one in own],
            "parts": {
                role: padded_parts(
                    ids[role],
                    padding=self.padding[role],
                    overhead=self.overhead,
                    largest=self.chunk_size,
                )
                for role in ROLES
            },
            "targets": targets,
        }

    def _teacher_scores(self, at: int, own: Sequence[Drawn]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """(queries, 1 + negatives) of the teachers together, and where they are known."""
        data = self.sets[at]
        documents = data.documents.ids
        ids = [[documents[row] for row in (one.positive, *one.negatives)] for one in own]
        if self.teachers[at]:
            together, all_known = self.ensemble(at, own, ids)
            return together.numpy(), all_known.numpy()
        found = [data.example(one.example).scores for one in own]
        values = np.array(
            [[of.get(one, np.nan) for one in of_query] for of, of_query in zip(found, ids, strict=True)], np.float32
        )
        known_here = np.isfinite(values)
        if not known_here[:, 1:].any():
            raise InputError(
                f"{data.name}: there is no teacher score for any negative of this batch "
                f"(query {data.queries.ids[own[0].query]!r} among others)",
                "name the folders of `osn teach` as this set's teachers, or give data with scores",
            )
        return np.nan_to_num(values), known_here

    def ensemble(self, at: int, own: Sequence[Drawn], documents: Documents) -> tuple[Tensor, Tensor]:
        """What the set's teachers say together of the queries with `documents` (see `Teacher.scores`), and where all
        of them say something: (queries, candidates), both."""
        queries = [self.sets[at].queries.ids[one.query] for one in own]
        each = [torch.from_numpy(np.asarray(teacher.scores(queries, documents))) for teacher in self.teachers[at]]
        known = torch.stack([scores.isfinite() for scores in each]).all(dim=0)
        together = losses.normalized_ensemble(
            [scores.nan_to_num() for scores in each],
            self.objective.teacher_weights,
            scale=self.objective.teacher_scale,
            normalize=self.objective.normalize_teachers,
            known=known,
        )
        return together, known


def unique_documents(items: Sequence[Drawn]) -> list[int]:
    """Positives, then negatives, each document once: encoding it twice would give the same vector."""
    drawn = [one.positive for one in items] + [row for one in items for row in one.negatives]
    return list(dict.fromkeys(drawn))


class _Relevant:
    """Which documents are known to be relevant to which queries of a set, compared by normalised text."""

    def __init__(self, data: TrainingData) -> None:
        self.document_keys = np.asarray(data.documents.canonical())
        self.query_keys = np.asarray(data.queries.canonical())
        self._data = data
        self._known: dict[int, npt.NDArray[np.int64]] = {}
        self._same_query: dict[int, list[int]] = {}
        for row, key in enumerate(self.query_keys.tolist()):
            self._same_query.setdefault(key, []).append(row)

    def known(self, query: int) -> npt.NDArray[np.int64]:
        """Keys of the documents that are relevant to the query, or to another one of the same text."""
        key = int(self.query_keys[query])
        if key not in self._known:
            judged = [self._data.judged[row] for row in self._same_query[key]]
            self._known[key] = np.unique(self.document_keys[np.concatenate(judged)])
        return self._known[key]

    def excluded(
        self, own: Sequence[Drawn], columns: npt.NDArray[np.int64], positives: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """(queries, columns): other relevant documents, and second copies, are no negatives; a positive is its own."""
        keys = self.document_keys[columns]
        first = np.zeros(len(keys), dtype=bool)
        first[np.unique(keys, return_index=True)[1]] = True
        excluded = np.stack([np.isin(keys, self.known(one.query)) for one in own]) | ~first
        # The same text as the positive is the positive, judged or not.
        excluded |= keys[None, :] == keys[positives][:, None]
        excluded[np.arange(len(own)), positives] = False
        return excluded

    def queries_excluded(
        self, own: Sequence[Drawn], everyone: Sequence[Drawn], own_query: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """(own positives, queries of the batch): queries that the positive answers too are no negatives for it."""
        keys = self.document_keys[[one.positive for one in own]]
        excluded = np.stack([np.isin(keys, self.known(one.query)) for one in everyone], axis=1)
        excluded[np.arange(len(own)), own_query] = False
        return excluded


# ------------------------------------------------ training


@dataclass(slots=True)
class Prepared:
    """The data of a run: train sets without what is held back or unseen, and dev sets; held: all questions that these are
    drawn from."""

    train: list[TrainingData]
    dev: list[DevSet]
    held: list[TrainingData]


def load_sets(
    train: Sequence[SetSettings],
    unseen: Sequence[SetSettings],
    dev: Sequence[SetSettings],
    *,
    folder: Path,
    documents: int | None = None,
) -> tuple[list[TrainingData], list[TrainingData]]:
    """(train, dev), questions of `unseen` left out of train. documents: of each corpus so many, beside those that its
    questions need; all by default. Generated questions are kept in `folder`. Raises InputError as `load_training` does."""

    def load(settings: SetSettings) -> TrainingData:
        found = settings.load(folder)
        return found if documents is None else fewer_documents(found, documents)

    sets = [load(settings) for settings in train]
    for settings in unseen:
        other = settings.load(folder)
        sets = [without_leaks(one, find_leaks(one, other)) for one in sets]
    return sets, [load(settings) for settings in dev]


def prepare(
    config: DenseConfig,
    *,
    folder: Path | None = None,
    documents: int | None = None,
    held: Sequence[TrainingData] = (),
) -> Prepared:
    """Load the data, leave out of train what `unseen` asks, hold back dev where none is named, check for leaks.

    folder: where generated questions are kept, by default in the output. documents: of each corpus so many, beside those
    that its questions need; all by default. held: questions of another stage's dev sets, which are left out of train, too.

    Raises InputError as `load_training` does, and where a dev question is also in train.
    """
    selection, seed = config.selection, config.training.seed
    folder = folder or config.output / FOLDER
    sets, dev = load_sets(config.train, config.unseen, config.dev, folder=folder, documents=documents)
    names = [one.name for one in sets]
    if len(set(names)) < len(names):
        raise InputError(f"two train sets have the same name: {', '.join(names)}", "give each its own: train[…].name")
    if selection.hold_back is not None:
        parted = [hold_back(one, selection.hold_back, seed=seed) for one in sets]
        sets = [part for part, _ in parted]
        dev += [held for _, held in parted]
    for one in (*dev, *held):
        sets = [without_leaks(train_set, find_leaks(train_set, one)) for train_set in sets]
    for one in sets:
        logger.info("train: %s, %d examples%s", one.name, len(one), "".join(f"; {note}" for note in one.notes))
    drawn = [dev_set(one, queries=selection.queries, documents=selection.documents, seed=seed) for one in dev]
    return Prepared(sets, drawn, dev)


Build = Callable[[Any], BiEncoder]
"""(configuration) → the untrained model, the same each time."""


def towers(
    config: DenseConfig,
) -> tuple[dict[Role, Encoder], dict[Role, PreTrainedTokenizerBase], EncoderSettings]:
    """What `config` starts from: encoders, tokenizers, and the settings with what the start decides filled in. Raises
    ModelError and InputError as `read_start` and `load_towers` do."""
    set_seed(config.training.seed)
    start = read_start(config.start)
    return *load_towers(start, config.encoder), resolved(config.encoder, start)


def build(config: DenseConfig) -> BiEncoder:
    """The untrained bi-encoder. Raises as `towers` does."""
    encoders, tokenizers, settings = towers(config)
    return BiEncoder(encoders, tokenizers, settings, config.objective, onnx=config.onnx)


def train_retriever(
    config: DenseConfig, sets: Sequence[TrainingData], dev: Sequence[DevSet], output: Path, build: Build = build
) -> Trained:
    """One retriever from `config.start` on `sets`, written to `output`."""
    model = build(config)
    data = RetrievalData(sets, negatives=config.candidates.negatives, depth=config.candidates.depth)
    device = "cuda" if torch.cuda.is_available() and config.training.device == "auto" else "cpu"
    computed = computed_in(config.training.precision, device)
    collate = RetrievalCollate(
        data.parts,
        model,
        config.objective,
        chunk_size=config.training.chunk_size,
        overhead=PART_OVERHEAD[device],
        teachers=_teachers(config, sets),
    )

    def measured(current: TrainingModel) -> dict[str, float]:
        assert isinstance(current, BiEncoder)
        with computing_in(computed, device):
            return dev_measures(dev, current.retrieve)

    return train(
        model,
        data,
        collate,
        settings=config.training,
        output=output,
        kind=model.kind,
        config=config,
        data_hash=fingerprint(data.hash, hash_files(locate(config.start))),
        evaluate=measured if dev else None,
    )


def _teachers(config: DenseConfig, sets: Sequence[TrainingData]) -> list[list[Teacher]]:
    if not config.objective.distils:
        return [[] for _ in sets]
    weights = config.objective.teacher_weights
    opened = [
        [open_teacher(folder, one, missing="nan") for folder in settings.teachers]
        for settings, one in zip(config.train, sets, strict=True)
    ]
    for settings, of_set in zip(config.train, opened, strict=True):
        if weights is not None and of_set and len(of_set) != len(weights):
            raise InputError(
                f"{settings.path} has {len(of_set)} teachers, objective.teacher_weights {len(weights)} weights"
            )
    return opened


def train_dense(config: DenseConfig, build: Build = build) -> Trained:
    """The whole schedule: mine if asked, train, and with `two_stage` mine with that retriever and train a second one.

    build: makes the model, also that of another method with the same schedule. Interrupted at any point, the same call
    goes on. Intermediate results lie in `config.output/.stages`.
    """
    prepared = prepare(config)
    sets = prepared.train
    if (spec := config.candidates.mine) is not None:
        depth, folder = config.candidates.depth, config.output / FOLDER
        sets = [
            one
            if len(one.negatives.values)
            else with_mined(one, spec, folder / f"{one.name}.{spec}.jsonl", depth=depth)
            for one in sets
        ]
    settings = config.two_stage
    if settings is None:
        return train_retriever(config, sets, prepared.dev, config.output, build)
    stages = {
        1: replace(config, two_stage=None, onnx=False),
        2: replace(config, training=second_stage(config.training, settings)),
    }
    return two_stage(
        sets,
        lambda stage, of_stage, output: train_retriever(stages[stage], of_stage, prepared.dev, output, build),
        config.output,
        settings,
    )


def rehearsed(hold_back: float | int | None, rows: int) -> float | int | None:
    """As much of `rows` as a dry run can hold back: of few, a small share is none."""
    if hold_back is None:
        return None
    return min(hold_back, rows // 4) if isinstance(hold_back, int) else max(hold_back, 0.1)


def rehearse(config: DenseConfig, build: Build = build) -> Trained:
    """Everything that `config` asks, on the first rows of its data, two steps a stage, nothing kept."""
    rows = max(32, 4 * config.training.batch_size) if config.training.batch_size <= 64 else config.training.batch_size
    with tempfile.TemporaryDirectory() as folder:
        small = replace(
            config,
            output=Path(folder) / config.output.name,
            train=[replace(one, limit=min(one.limit or rows, rows)) for one in config.train],
            dev=[replace(one, limit=min(one.limit or 8, 8)) for one in config.dev],
            selection=replace(
                config.selection, queries=8, documents=64, hold_back=rehearsed(config.selection.hold_back, rows)
            ),
            training=replace(config.training, steps=2, evaluate_every=1, save_every=1, log_every=1),
            two_stage=None if config.two_stage is None else replace(config.two_stage, steps=2),
        )
        return train_dense(small, build)


@click.command("dense")
@config_options(DenseConfig, shortcuts=backbone_option("start"))
def dense(config: DenseConfig, dry_run: bool) -> None:
    """Train a bi-encoder: one vector a text, from questions and the passages that answer them.

    \b
    osn train dense --set 'train=[{path: squad-mix}]' --set selection.hold_back=0.02 --output models/dense
    osn train dense --config dense.yaml --print-config

    Prints the dev measures before and after. Stopped at any point, the same command goes on.
    """
    report(config, rehearse(config) if dry_run else train_dense(config), dry_run)


def report(config: DenseConfig, trained: Trained, dry_run: bool) -> None:
    """What training came to, on stdout."""
    if not is_main_process():
        return
    place = "nothing kept (dry run)" if dry_run else str(config.output)
    click.echo(f"{place}: {trained.steps} steps" + _best(trained))
    for name, value in trained.measures.items():
        click.echo(f"{name:>24}  {value:.4f}")


def _best(trained: Trained) -> str:
    return "" if trained.best_step is None else f", the state after step {trained.best_step} kept"
