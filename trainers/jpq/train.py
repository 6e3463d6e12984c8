"""JPQ: dense retrieval at M bytes a document, query encoder and centroids trained together for ranking.

    osn train jpq --set 'train=[{path: scifact}]' --set selection.hold_back=0.1 --output models/jpq
    osn train jpq --set 'train=[{path: docs.jsonl.gz, questions: first-sentence}]' --output models/jpq
    osn train jpq --config jpq --output models/jpq      the paper's settings

"Jointly Optimizing Query Encoder and Product Quantization to Improve Retrieval Performance" (`jpq`): faiss makes OPQ's
rotation, the codebooks and every document's code (section 4.3), which stay; the query encoder and the centroids that
scores are made of learn from the pairs that the quantized ranking gets wrong (3.2, 3.3), among the documents that it
ranks highest at this very step (3.4). The result is a directory of kind "quantized": see `models.quantized`.
"""

from __future__ import annotations

import copy
import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click
import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor, nn
from transformers import set_seed

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.evaluation.evaluate import measure
from opensearch_neural.models import directory
from opensearch_neural.models.dense import TorchDenseEncoder, load_dense, stages_of
from opensearch_neural.models.dense_encoder import DenseEncoder, ends_normalized
from opensearch_neural.models.pretrained import quiet_loading
from opensearch_neural.models.quantized import CENTROIDS, KIND, QUANTIZER_FILE, Codes, Quantizer
from opensearch_neural.query_encoder import encodable
from trainers import dense as bi_encoder
from trainers.common import losses
from trainers.common.config import config_options, fingerprint
from trainers.common.dev_measures import DEPTH, MEASURES
from trainers.common.grad_cache import Part
from trainers.common.loop import (
    Trained,
    TrainingSettings,
    Visit,
    check_output,
    is_main_process,
    main_process_first,
    train,
)
from trainers.common.schedules import FOLDER
from trainers.common.training_model import Batch, Losses, TrainingModel, decay_groups
from trainers.data.embedding_cache import dense_vectors
from trainers.data.examples import Apart, TrainingData, hold_back, merge, read_documents, training_pairs
from trainers.data.leaks import find_leaks, without_leaks
from trainers.data.texts import TextStore
from trainers.data.tokenized import TokenCache, padded_parts
from trainers.dense import QuestionSet, load_sets, rehearsed
from trainers.encoders import backbones

logger = logging.getLogger(__name__)

Rows = npt.NDArray[np.int64]
Documents = Literal["quantized", "uncompressed"]

NORMALIZED_SCALE = 20.0
ALIGNMENT = 100.0
"""Beside a loss of rankings, which sums over some hundred pairs."""
PART_OVERHEAD = {**bi_encoder.PART_OVERHEAD, "cpu": 128}
"""In tokens; on a CPU the gradient of all word vectors weighs more where a batch is short questions alone."""
REHEARSED = 1024
"""Documents of each corpus that a dry run encodes."""
_NUMBERS_AT_ONCE = 1 << 24
"""Scores held at a time: 64 MiB."""


# ------------------------------------------------ configuration


@dataclass(slots=True)
class JpqSet(QuestionSet):
    """A set whose documents are whole: a question made of one is not taken out of it."""

    def load(self, folder: Path | None = None) -> TrainingData:
        data = QuestionSet.load(self, folder)
        return data if self.questions is None else of_whole_documents(data, self.path)


@dataclass(slots=True)
class QuantizerSettings:
    """What a document becomes.

    subvectors: M, its bytes; M divides the dimension. rotate: OPQ, else plain PQ. rotation_iterations: of OPQ. sample:
    vectors at most that faiss learns from. train_centroids: the scoring centroids learn, too. learning_rate: theirs;
    None takes the paper's for the coordinates of a part, D/M.
    """

    subvectors: int = 48
    rotate: bool = True
    rotation_iterations: int = 50
    sample: int = 65_536
    train_centroids: bool = True
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        if self.subvectors < 1 or self.rotation_iterations < 1 or self.sample < CENTROIDS:
            raise ValueError(f"subvectors and rotation_iterations must be at least 1, sample at least {CENTROIDS}")
        if self.learning_rate is not None and self.learning_rate <= 0:
            raise ValueError(f"learning_rate must be above 0, not {self.learning_rate}")


@dataclass(slots=True)
class JpqObjective:
    """The loss: LambdaRank over the pairs of a relevant document and each negative.

    labels: what is relevant: "judged" documents, or the uncompressed model's own "ranking": of its best
    `ranking_depth` one is drawn, which is to stay above all that it ranks lower, each with the probability that its
    scores give (`losses.lambda_rank`). None: of each set, judged, without judgements ranking. documents: what the loss
    scores: "quantized" ones, or "uncompressed" ones (the ablation that trains the query encoder alone). scale: factor of
    the inner products; None is 20 where vectors have length 1, else 1. cutoff: reciprocal ranks beyond it count as 0;
    None is the negatives' depth. alignment: weight of 1 − cos(q, the start's vector of the same question), which brings a
    query encoder that has lost layers back to where the documents are; None is ALIGNMENT with query_layers, else 0.
    """

    labels: Literal["judged", "ranking"] | None = None
    ranking_depth: int = 10
    documents: Documents = "quantized"
    scale: float | None = None
    cutoff: int | None = None
    alignment: float | None = None

    def __post_init__(self) -> None:
        if self.alignment is not None and self.alignment < 0:
            raise ValueError(f"alignment must be at least 0, not {self.alignment}")
        if self.ranking_depth < 1 or (self.cutoff is not None and self.cutoff < 1):
            raise ValueError("ranking_depth and cutoff must be at least 1")
        if self.scale is not None and self.scale <= 0:
            raise ValueError(f"scale must be above 0, not {self.scale}")


@dataclass(slots=True)
class NegativeSettings:
    """The `depth` best documents that are not relevant. source: "live", searched at each step with the model as it
    stands (end to end), or "static", searched once before training. search: in which documents."""

    depth: int = 200
    source: Literal["live", "static"] = "live"
    search: Documents = "quantized"

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"depth must be at least 1, not {self.depth}")


@dataclass(slots=True)
class JpqSelection:
    """What selects the state that is kept: hold_back is the share of train examples, or the number of each set's, that is
    measured on and not trained on; `queries` of them all at most. Measured over the whole corpus, as `negatives.search`
    has it. apart: what these have that train has not: questions, as one corpus is searched by questions of tomorrow, or
    documents, too."""

    hold_back: float | int | None = None
    apart: Apart = "documents"
    queries: int = 500


@dataclass(slots=True)
class JpqConfig:
    """Everything that `osn train jpq` can be told.

    start: any dense model directory; its document encoder stays as it is. The documents of all train sets make one
    index. query_length: tokens read of a query, None as the start has it. query_layers: layers of the start's transformer
    that the query encoder keeps, evenly taken from the first to the last; None keeps all, 0 leaves the embeddings of tokens
    and positions, whose mean is the query whatever the start pools by, and no transformer is run for it. A query costs what
    its layers cost; documents are encoded by all. dropout: replaces the query encoder's own where given. cache: where
    document vectors, codebooks and rankings lie, which other configurations may share; by default in the output, hidden.
    unseen: sets whose questions are left out of train. onnx: write ONNX files, too.
    """

    output: Path
    train: list[JpqSet]
    start: str = "sentence-transformers/all-MiniLM-L6-v2"
    quantizer: QuantizerSettings = field(default_factory=QuantizerSettings)
    objective: JpqObjective = field(default_factory=JpqObjective)
    negatives: NegativeSettings = field(default_factory=NegativeSettings)
    dev: list[JpqSet] = field(default_factory=list)
    unseen: list[JpqSet] = field(default_factory=list)
    selection: JpqSelection = field(default_factory=JpqSelection)
    training: TrainingSettings = field(default_factory=lambda: TrainingSettings(learning_rate=5e-6))
    query_length: int | None = None
    query_layers: int | None = None
    dropout: float | None = None
    cache: Path | None = None
    onnx: bool = False

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError("train names no data set")
        if self.query_length is not None and self.query_length < 3:
            raise ValueError("query_length must leave room for text: at least 3")
        if self.query_layers is not None and self.query_layers < 0:
            raise ValueError(f"query_layers must be at least 0, not {self.query_layers}")

    @property
    def folder(self) -> Path:
        return self.cache or self.output / FOLDER

    def ranks(self, one: JpqSet) -> bool:
        """Whether the uncompressed model's ranking is what is relevant to a set's questions, not its judgements."""
        return one.questions is not None if self.objective.labels is None else self.objective.labels == "ranking"

    @property
    def alignment(self) -> float:
        """`objective.alignment`, decided."""
        if self.objective.alignment is not None:
            return self.objective.alignment
        return 0.0 if self.query_layers is None else ALIGNMENT

    @property
    def ranked(self) -> tuple[bool, ...]:
        """`ranks` of each train set."""
        return tuple(map(self.ranks, self.train))


# ------------------------------------------------ data


def of_whole_documents(data: TrainingData, corpus: Path) -> TrainingData:
    """`data` over the corpus's documents as they are: `unlabelled` takes the question out of the one it came from."""
    documents = TextStore((document.id, document.contents) for document in read_documents(corpus))
    pairs = [
        (query, documents.row(data.documents.ids[row]))
        for query, positives in zip(data.query_rows.tolist(), data.positives, strict=True)
        for row in positives.tolist()
    ]
    return training_pairs(data.name, data.queries, documents, pairs)


def prepare(config: JpqConfig, documents: int | None = None) -> tuple[TrainingData, list[TrainingData]]:
    """(train, dev): all train sets as one, less what `unseen` and dev ask; what is held back, and the sets of `dev`.

    documents: of each corpus so many, beside those that its questions need; all by default.
    """
    sets, dev = load_sets(config.train, config.unseen, config.dev, folder=config.folder, documents=documents)
    data = sets[0] if len(sets) == 1 else merge(sets)
    if config.selection.hold_back is not None:
        judged = [one.name for one, ranked in zip(data.sets, config.ranked, strict=True) if not ranked]
        data, held = hold_back(
            data,
            config.selection.hold_back,
            seed=config.training.seed,
            apart=config.selection.apart,
            sets=judged or None,
        )
        dev.append(held)
    for one in dev:
        data = without_leaks(data, find_leaks(data, one))
    if not len(data):
        raise InputError("nothing is left to train on: all questions are among those of dev or unseen")
    logger.info("train: %s, %d examples, %d documents", data.name, len(data), len(data.documents))
    return data, dev


def relevant_rows(data: TrainingData) -> list[Rows]:
    """For each example the rows of all documents known to be relevant to its query, or to one of the same text; copies
    of them by normalised text, too."""
    copies, queries = Copies(data.documents), data.queries.canonical().tolist()
    known: dict[int, set[int]] = {}
    for query, judged in zip(queries, data.judged, strict=True):
        known.setdefault(query, set()).update(judged.tolist())
    return [copies.of(np.array(sorted(known[queries[query]]))) for query in data.query_rows.tolist()]


class Copies:
    """Which documents have the same normalised text."""

    def __init__(self, documents: TextStore) -> None:
        self.keys = documents.canonical()
        self.order = np.argsort(self.keys, kind="stable")
        self.sorted = self.keys[self.order]

    def of(self, rows: npt.NDArray[Any]) -> Rows:
        """`rows` and all copies of them, ascending."""
        keys = np.unique(self.keys[rows])
        spans = zip(
            np.searchsorted(self.sorted, keys, "left"), np.searchsorted(self.sorted, keys, "right"), strict=True
        )
        found = np.concatenate([self.order[start:stop] for start, stop in spans])
        return np.sort(found).astype(np.int64)


class Question(NamedTuple):
    """What one example became at one visit: document rows that are relevant, and the one that the loss takes; ranked: by
    the uncompressed model's ranking."""

    example: int
    positive: int
    relevant: Rows
    ranked: bool = False


class JudgedData:
    """Each visit draws one of the judged documents."""

    def __init__(self, data: TrainingData) -> None:
        self.data, self.sets = data, data.sets
        self.relevant = relevant_rows(data)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, visit: Visit) -> Question:
        positives = self.data.positives[visit.index]
        drawn = int(positives[visit.random().randrange(len(positives))])
        return Question(visit.index, drawn, self.relevant[visit.index])


class RankedData:
    """Each visit draws one of the uncompressed model's best documents; those that it ranks higher are no negatives.

    ranking: (examples, depth), document rows, best first, -1 where there are no more documents.
    """

    def __init__(self, data: TrainingData, ranking: Rows) -> None:
        self.data, self.sets, self.ranking = data, data.sets, ranking
        self.copies = Copies(data.documents)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, visit: Visit) -> Question:
        ranked = self.ranking[visit.index]
        ranked = ranked[ranked >= 0]
        at = visit.random().randrange(len(ranked))
        return Question(visit.index, int(ranked[at]), self.copies.of(ranked[: at + 1]), ranked=True)


class Questions:
    """Sets with judgements and sets without, each as it is."""

    def __init__(self, data: TrainingData, ranked: Sequence[bool], ranking: Rows) -> None:
        """ranked: of each of the data's sets; ranking: as RankedData's."""
        self.data, self.sets = data, data.sets
        self.judged_data, self.ranked_data = JudgedData(data), RankedData(data, ranking)
        self.by_ranking = np.zeros(len(data), bool)
        for one, by_ranking in zip(data.sets, ranked, strict=True):
            self.by_ranking[one.start : one.stop] = by_ranking

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, visit: Visit) -> Question:
        return self.ranked_data[visit] if self.by_ranking[visit.index] else self.judged_data[visit]


class JpqCollate:
    """Questions to a batch: token ids, the positive, the relevant (query, document) pairs, static negatives, and the
    start's own vectors of the questions: "teacher" where its ranking is what is relevant, "aligned" where the query
    encoder is to stay near them."""

    def __init__(
        self,
        data: TrainingData,
        model: JpqModel,
        static: Rows | None,
        overhead: int,
        teacher: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """static: (examples, depth) document rows; teacher: (examples, D)."""
        self.data, self.static, self.overhead, self.teacher = data, static, overhead, teacher
        self.padding = int(model.query.tokenizer.pad_token_id or 0)
        self.aligns = model.settings.alignment > 0
        self.tokens = TokenCache(
            model.query.tokenizer, data.queries.text_at, max_length=model.query.max_length, prompt=model.query.prompt
        )

    def __call__(self, items: list[Question]) -> Batch:
        examples = [one.example for one in items]
        queries = self.data.query_rows[examples].tolist()
        pairs = [np.stack([np.full(len(one.relevant), at), one.relevant]) for at, one in enumerate(items)]
        batch: Batch = {
            "ids": [self.data.queries.ids[query] for query in queries],
            "parts": padded_parts(self.tokens.rows(queries), padding=self.padding, overhead=self.overhead),
            "positives": torch.tensor([one.positive for one in items]),
            "relevant": torch.from_numpy(np.concatenate(pairs, axis=1)),
        }
        if self.static is not None:
            batch["static"] = torch.from_numpy(self.static[examples])
        # A batch is of one set: all or none of its questions are ranked.
        if self.teacher is not None and items[0].ranked:
            batch["teacher"] = torch.from_numpy(self.teacher[examples])
        if self.teacher is not None and self.aligns:
            batch["aligned"] = torch.from_numpy(self.teacher[examples])
        return batch


# ------------------------------------------------ the quantizer


def fit_quantizer(vectors: npt.NDArray[Any], settings: QuantizerSettings, *, seed: int) -> Quantizer:
    """faiss's OPQ rotation (the identity without) and codebooks of vectors (n, D); scoring starts as assigning.

    Raises InputError where M does not divide D, or there are fewer vectors than centroids.
    """
    import faiss

    n, d = vectors.shape
    m = settings.subvectors
    check_fits(n, d, settings)
    if n > settings.sample:
        vectors = vectors[np.sort(np.random.default_rng(seed).choice(n, settings.sample, replace=False))]
    sample = np.ascontiguousarray(vectors, dtype=np.float32)
    pq = faiss.ProductQuantizer(d, m, 8)
    pq.cp.seed = seed
    pq.cp.min_points_per_centroid = 1
    pq.cp.max_points_per_centroid = settings.sample
    rotation = np.eye(d, dtype=np.float32)
    if settings.rotate:
        opq = faiss.OPQMatrix(d, m)
        opq.niter, opq.max_train_points, opq.pq = settings.rotation_iterations, settings.sample, pq
        opq.train(sample)
        rotation = faiss.vector_to_array(opq.A).reshape(d, d).copy()
        pq.cp.niter = 25
    pq.train(np.ascontiguousarray(sample @ rotation.T))
    centroids = faiss.vector_to_array(pq.centroids).reshape(m, CENTROIDS, d // m).copy()
    return Quantizer(rotation, centroids, centroids)


def check_fits(documents: int, dimension: int, settings: QuantizerSettings) -> None:
    """Raises InputError where M does not divide the dimension, or there are fewer documents than centroids."""
    m = settings.subvectors
    if dimension % m:
        divisors = ", ".join(str(one) for one in range(1, dimension + 1) if dimension % one == 0)
        raise InputError(
            f"quantizer.subvectors {m} does not divide the dimension {dimension}", f"what does: {divisors}"
        )
    if documents < CENTROIDS:
        raise InputError(f"{documents} documents are too few for {CENTROIDS} centroids", "quantize a larger corpus")


def centroid_learning_rate(settings: QuantizerSettings, dimension: int) -> float:
    """The paper's (section 4.3), by the coordinates of a part: at D = 768 M = 16 and 24, 32, and 48 and more."""
    if settings.learning_rate is not None:
        return settings.learning_rate
    width = dimension // settings.subvectors
    return 5e-6 if width >= 32 else 2e-5 if width >= 24 else 1e-4


def codes_of(quantizer: Quantizer, vectors: npt.NDArray[Any]) -> Codes:
    """The codes of vectors that need not be in memory at once."""
    blocks = [quantizer.encode(vectors[start : start + 65_536]) for start in range(0, len(vectors), 65_536)]
    return np.concatenate(blocks) if blocks else quantizer.encode(np.zeros((0, quantizer.dimension), np.float32))


# ------------------------------------------------ the model


class QueryTower(nn.Module):
    """The modules of a sentence-transformers route, trainable: token ids in, (rows, D) out."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        *,
        max_length: int | None,
        prompt: str,
        dropout: float | None,
        layers: int | None = None,
    ):
        super().__init__()
        self.stages = nn.ModuleList(copy.deepcopy(list(modules)))
        transformer: Any = self.stages[0]
        if layers is not None:
            backbones.keep_layers(transformer.auto_model, layers)
        if layers == 0:
            # Without layers the first token and the last are the same for every query.
            for at, stage in enumerate(self.stages):
                if isinstance(stage, Pooling):
                    self.stages[at] = Pooling(stage.embedding_dimension, "mean", include_prompt=stage.include_prompt)
        self.tokenizer, self.prompt = transformer.tokenizer, prompt
        own = transformer.max_seq_length
        if max_length is not None and own is not None and max_length > own:
            raise InputError(f"query_length is {max_length}, but the start reads {own} tokens at most")
        self.max_length: int = max_length or own or 512
        transformer.max_seq_length = self.max_length
        for name, parameter in self.named_parameters():
            # A pooler that nothing reads has no gradient.
            if "pooler." in name:
                parameter.requires_grad_(False)
        if dropout is not None:
            backbones.set_dropout(self, dropout)
        self.noisy = backbones.largest_dropout(self) > 0

    def forward(self, part: Part) -> Tensor:
        features: dict[str, Any] = {key: part[key] for key in ("input_ids", "attention_mask")}
        for stage in self.stages:
            features = stage(features)
        vectors: Tensor = features["sentence_embedding"]
        return vectors

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Vectors as searches have them, (texts, D)."""
        encoder = SentenceTransformer(modules=list(self.stages), device=str(next(self.parameters()).device))
        vectors = encoder.encode(
            [encodable(self.prompt + text) for text in texts], convert_to_tensor=True, show_progress_bar=False
        )
        return vectors.float()

    def in_order(self, parts: Sequence[Part]) -> Tensor:
        """The vectors of all parts, in the order of the queries."""
        vectors = torch.cat([self(part) for part in parts]).float()
        return vectors[torch.argsort(torch.cat([part["position"] for part in parts]))]


def query_tower(start: TorchDenseEncoder, config: JpqConfig) -> QueryTower:
    """The start's query encoder, as `config` has it. Raises InputError where it cannot be had so."""
    query = stages_of(start.model, "query")
    if not isinstance(query[0], Transformer):
        raise ModelError(f"the start's first module is a {type(query[0]).__name__}; expected a Transformer")
    return QueryTower(
        query,
        max_length=config.query_length,
        prompt=directory.prompt(start.info.path, "query"),
        dropout=config.dropout,
        layers=config.query_layers,
    )


class Corpus(nn.Module):
    """The documents that are searched: codes (n, M), and where something asks for them whole vectors (n, D)."""

    codes: Tensor
    vectors: Tensor

    def __init__(self, ids: Sequence[str], codes: Codes, vectors: npt.NDArray[Any] | None) -> None:
        super().__init__()
        self.ids = ids
        # No part of a checkpoint: they are made of the start model.
        self.register_buffer("codes", torch.from_numpy(codes), persistent=False)
        whole = np.zeros((0, 0), np.float32) if vectors is None else np.array(vectors, dtype=np.float32)
        self.register_buffer("vectors", torch.from_numpy(whole), persistent=False)

    def __len__(self) -> int:
        return len(self.codes)


class JpqModel(TrainingModel):
    """Query encoder and scoring centroids over a corpus of codes."""

    rotation: Tensor

    def __init__(self, start: TorchDenseEncoder, quantizer: Quantizer, corpus: Corpus, config: JpqConfig) -> None:
        super().__init__()
        # Not named `config`: the Trainer would take that for a transformer's.
        self.start, self.quantizer, self.settings = start, quantizer, config
        self.query, self.documents_stages = query_tower(start, config), stages_of(start.model, "document")
        self.corpus = corpus
        learns = config.quantizer.train_centroids and config.objective.documents == "quantized"
        self.scoring = nn.Parameter(torch.from_numpy(quantizer.scoring.copy()), learns)
        self.register_buffer("rotation", torch.from_numpy(quantizer.rotation), persistent=False)
        normalized = ends_normalized(start.info.path)
        self.scale = config.objective.scale or (NORMALIZED_SCALE if normalized else 1.0)
        self.cutoff = config.objective.cutoff or config.negatives.depth

    # ------------------------------------------------ scores

    def tables(self, queries: Tensor) -> Tensor:
        """⟨q_i, c_ij⟩ of queries (q, D): (q, M, 256) (eq. 11), with gradient for both."""
        parts = (queries @ self.rotation.T).unflatten(1, (self.scoring.shape[0], -1))
        return torch.einsum("qmd,mkd->qmk", parts, self.scoring)

    def scores(self, queries: Tensor, rows: Tensor, documents: Documents) -> Tensor:
        """⟨q, d⟩ of queries (q, D) with their own candidates `rows` (q, candidates), each query's others unseen."""
        if documents == "uncompressed":
            return torch.einsum("qd,qcd->qc", queries, self.corpus.vectors[rows])
        codes = self.corpus.codes[rows].long().transpose(1, 2)  # (q, M, candidates)
        return self.tables(queries).gather(2, codes).sum(dim=1)

    @torch.no_grad()
    def search(
        self, queries: Tensor, k: int, corpus: Corpus, documents: Documents, excluded: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(scores, rows) of the k best documents of each query, (q, k), best first, by exact search.

        excluded: (2, pairs), (query, row) that are not found. Where there are fewer than k, rows are -1, scores -inf.
        """
        width = len(queries)
        best = queries.new_full((width, k), -torch.inf)
        rows = torch.full((width, k), -1, dtype=torch.long, device=queries.device)
        table = self._summands(queries) if documents == "quantized" else None
        block = max(k, _NUMBERS_AT_ONCE // max(1, width))
        for start in range(0, len(corpus), block):
            if table is None:
                found = queries @ corpus.vectors[start : start + block].T
            else:
                found = self._sums(table, corpus.codes[start : start + block])
            if excluded is not None:
                here = (excluded[1] >= start) & (excluded[1] < start + found.shape[1])
                found[excluded[0, here], excluded[1, here] - start] = -torch.inf
            top, at = found.topk(min(k, found.shape[1]), dim=1)
            at = (at + start).masked_fill(top == -torch.inf, -1)
            best, order = torch.cat([best, top], dim=1).topk(k, dim=1)
            rows = torch.cat([rows, at], dim=1).gather(1, order)
        return best, rows

    def _summands(self, queries: Tensor) -> Tensor:
        """The look-up tables as rows of numbers, one for each query: (M · 256, q)."""
        return self.tables(queries).flatten(1).T.contiguous()

    @staticmethod
    def _sums(table: Tensor, codes: Tensor) -> Tensor:
        """Σ_i of the table at each code, (q, n) (eq. 12): codes (n, M)."""
        offsets = torch.arange(codes.shape[1], device=codes.device, dtype=torch.int32) * CENTROIDS
        return nn.functional.embedding_bag(codes.int() + offsets, table, mode="sum").T

    # ------------------------------------------------ a step

    def forward(self, batch: Batch) -> Losses:
        vectors = self.query.in_order(batch["parts"])
        with torch.autocast(vectors.device.type, enabled=False):
            positives, relevant = batch["positives"], batch["relevant"]
            settings = self.settings.negatives
            searched = self._searched(vectors, batch["parts"])
            if settings.source == "live":
                found, rows = self.search(searched, settings.depth, self.corpus, settings.search, relevant)
            else:
                found, rows = self._ranked(searched, batch["static"], relevant)
            known = rows >= 0
            own = self.scores(searched, positives[:, None], settings.search).detach()
            # Of equal scores the positive's counts as the lower one: what was not told apart was not ranked right.
            positive_ranks = 1 + (found >= own).sum(dim=1)
            negative_ranks = torch.arange(1, 1 + rows.shape[1], device=rows.device) + (own > found).long()
            candidates = torch.cat([positives[:, None], rows.clamp(min=0)], dim=1)
            scores = self.scale * self.scores(vectors, candidates, self.settings.objective.documents)
            loss = losses.lambda_rank(
                scores[:, 0],
                scores[:, 1:],
                positive_ranks,
                negative_ranks,
                cutoff=self.cutoff,
                known=known,
                preferences=self._preferences(batch["teacher"], candidates) if "teacher" in batch else None,
            )
            reciprocal = torch.where(positive_ranks <= settings.depth, 1 / positive_ranks, 0.0)
            found_losses = {"lambda_rank": loss}
            if "aligned" in batch:
                away = 1 - nn.functional.cosine_similarity(vectors, batch["aligned"], dim=1)
                found_losses["alignment"] = self.settings.alignment * away.mean()
            return Losses(found_losses, {"reciprocal_rank": reciprocal.mean()})

    @torch.no_grad()
    def _preferences(self, teacher: Tensor, candidates: Tensor) -> Tensor:
        """σ(t⁺ − t⁻) of the uncompressed model's scores t of the first of each query's candidates and of the others."""
        taught = self.scale * self.scores(teacher, candidates, "uncompressed")
        return torch.sigmoid(taught[:, :1] - taught[:, 1:])

    @torch.no_grad()
    def _searched(self, vectors: Tensor, parts: Sequence[Part]) -> Tensor:
        """The vectors that the step searches with: as the model will be used, without dropout."""
        if not (self.query.noisy and self.query.training):
            return vectors.detach()
        self.query.eval()
        try:
            return self.query.in_order(parts)
        finally:
            self.query.train()

    @torch.no_grad()
    def _ranked(self, queries: Tensor, rows: Tensor, relevant: Tensor) -> tuple[Tensor, Tensor]:
        """(scores, rows) of negatives (q, depth) as the model stands, best first; relevant ones become -1."""
        keys = relevant[0] * len(self.corpus) + relevant[1]
        own = torch.arange(len(rows), device=rows.device)[:, None] * len(self.corpus) + rows
        rows = rows.masked_fill(torch.isin(own, keys), -1)
        scores = self.scores(queries, rows.clamp(min=0), self.settings.negatives.search)
        found, order = scores.masked_fill(rows < 0, -torch.inf).sort(dim=1, descending=True)
        return found, rows.gather(1, order)

    # ------------------------------------------------ use

    def retrieve_rows(self, queries: Tensor, k: int, corpus: Corpus, documents: Documents) -> tuple[Rows, Any]:
        """(rows, scores) of the k best documents of each of the vectors (n, D), (n, k), as in `search`."""
        parts = [self.search(block, k, corpus, documents) for block in queries.split(256)]
        rows, scores = torch.cat([rows for _, rows in parts]), torch.cat([found for found, _ in parts])
        return rows.cpu().numpy(), scores.cpu().numpy()

    def parameter_groups(self, settings: TrainingSettings) -> list[dict[str, Any]]:
        groups = decay_groups(self.query.parameters())
        if self.scoring.requires_grad:
            rate = centroid_learning_rate(self.settings.quantizer, self.quantizer.dimension)
            groups.append({"params": [self.scoring], "lr": rate, "weight_decay": 0.0})
        return groups

    def export(self, folder: Path) -> None:
        query: list[Any] = copy.deepcopy(list(self.query.stages))
        router = Router.for_query_document(query, self.documents_stages)
        start = self.start.info.path
        prompts = {route: text for route in ("query", "document") if (text := directory.prompt(start, route))}
        with quiet_loading():
            model = SentenceTransformer(
                modules=[router],
                prompts=prompts or None,
                similarity_fn_name=self.start.model.similarity_fn_name,
                device="cpu",
            )
            model.save_pretrained(str(folder), create_model_card=False)
        scoring = self.scoring.detach().float().cpu().numpy()
        Quantizer(self.quantizer.rotation, self.quantizer.assigning, scoring).save(folder / QUANTIZER_FILE)
        if self.settings.onnx:
            from opensearch_neural.models.dense_onnx import export_onnx

            export_onnx(folder)


# ------------------------------------------------ training


@dataclass
class Dev:
    """Questions, what is relevant to them, and where it is searched."""

    name: str
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]
    corpus: Corpus


def document_vectors(start: DenseEncoder, documents: TextStore, folder: Path) -> npt.NDArray[np.float32]:
    """The documents' vectors, (documents, D), memory-mapped; kept in `folder`, encoded where they are missing."""
    return dense_vectors(
        start.encode_documents,
        documents,
        folder / f"documents-{documents.hash}-{start.info.hash}",
        model=start.info,
        dimension=start.dimension,
        precision="float32",
    )


def fitted(
    vectors: npt.NDArray[Any], made_of: str, settings: QuantizerSettings, *, seed: int, folder: Path
) -> Quantizer:
    """`fit_quantizer`, kept in `folder`; made_of: what the vectors are made of."""
    own = [settings.subvectors, settings.rotate, settings.rotation_iterations, settings.sample]
    file = folder / f"quantizer-{fingerprint(made_of, own, seed)}.safetensors"
    if not file.exists():
        logger.info("learning %d × %d centroids of %d vectors", settings.subvectors, CENTROIDS, len(vectors))
        folder.mkdir(parents=True, exist_ok=True)
        beside = file.with_suffix(".part")
        fit_quantizer(vectors, settings, seed=seed).save(beside)
        beside.replace(file)
    return Quantizer.load(file)


class Preparation:
    """What stands before training, each part kept in `config.folder` and made where it is missing."""

    def __init__(self, config: JpqConfig, documents: int | None = None) -> None:
        """documents: take so many of each corpus and what the questions need; all by default."""
        self.config = config
        self.start = _load_start(config)
        query_tower(self.start, config)  # What cannot be had is refused before long work.
        self.data, self.dev_data = prepare(config, documents)
        check_fits(len(self.data.documents), self.start.dimension, config.quantizer)
        with main_process_first():
            self.vectors = self.vectors_of(self.data.documents)
            self.quantizer = fitted(
                self.vectors,
                f"{self.data.documents.hash} {self.start.info.hash}",
                config.quantizer,
                seed=config.training.seed,
                folder=config.folder,
            )
        self.whole = any(config.ranked) or "uncompressed" in (
            config.objective.documents,
            config.negatives.search,
        )
        self.corpus = self._corpus(self.data.documents, self.vectors)
        set_seed(config.training.seed)
        self.model = JpqModel(self.start, self.quantizer, self.corpus, config)
        if cuda(config):  # Rankings are made before the loop has moved it.
            self.model.to(torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))))

    @cached_property
    def teacher(self) -> QueryTower:
        """The whole query encoder, which says what is relevant, whatever is left of it to train."""
        whole = query_tower(self.start, replace(self.config, query_layers=None))
        return whole.to(self.model.scoring.device)

    def vectors_of(self, documents: TextStore) -> npt.NDArray[np.float32]:
        return document_vectors(self.start, documents, self.config.folder)

    def _corpus(self, documents: TextStore, vectors: npt.NDArray[np.float32]) -> Corpus:
        return Corpus(documents.ids, codes_of(self.quantizer, vectors), vectors if self.whole else None)

    def ranking(self, data: TrainingData, k: int, search: Documents) -> Rows:
        """The k best documents of each example by the start model, (examples, k)."""
        quantized = [self.config.quantizer, self.config.training.seed]
        searched = quantized if search == "quantized" else search
        made_of = fingerprint(data.hash, self.start.info.hash, self.config.query_length, k, searched)
        file = self.config.folder / f"ranking-{made_of}.npy"
        if not file.exists():
            logger.info("ranking the %s documents for %d questions", search, len(data))
            corpus = self.corpus
            if search == "uncompressed" and not self.whole:
                corpus = Corpus(data.documents.ids, codes_of(self.quantizer, self.vectors), self.vectors)
            device = self.model.scoring.device
            queries = torch.from_numpy(self.taught(data)).to(device)
            found, _ = self.model.retrieve_rows(queries, k, corpus.to(device), search)
            beside = file.with_suffix(".part.npy")
            np.save(beside, found)
            beside.replace(file)
        rows: Rows = np.load(file, allow_pickle=False)
        return rows

    def taught(self, data: TrainingData) -> npt.NDArray[np.float32]:
        """The start model's vector of each example's question, (examples, D)."""
        made_of = fingerprint(data.queries.hash, self.start.info.hash, self.config.query_length)
        vectors = dense_vectors(
            lambda texts: self.teacher.encode(texts).cpu().numpy(),
            data.queries,
            self.config.folder / f"questions-{made_of}",
            model=self.start.info,
            dimension=self.start.dimension,
            precision="float32",
        )
        return np.asarray(vectors[data.query_rows], np.float32)

    def dev(self) -> list[Dev]:
        """What the state is selected by; where nothing is judged, the first ten of the ranking are what is relevant."""
        return [self._dev(one) for one in self.dev_data]

    def _dev(self, data: TrainingData) -> Dev:
        rng = np.random.default_rng(self.config.training.seed)
        taken = np.sort(rng.permutation(len(data))[: self.config.selection.queries])
        data = data.take(taken.tolist())
        if data.documents is self.data.documents:
            corpus = self.corpus
        else:
            corpus = self._corpus(data.documents, self.vectors_of(data.documents))
        qrels = data.qrels()
        if all(self.config.ranked) and data.documents is self.data.documents:
            ranking = self.ranking(data, 10, "uncompressed")
            ids = data.documents.ids
            qrels = {
                query: {ids[row]: 1 for row in rows.tolist() if row >= 0}
                for query, rows in zip(qrels, ranking, strict=True)
            }
        return Dev(data.name, data.query_texts(), qrels, corpus)


def cuda(config: JpqConfig) -> bool:
    return torch.cuda.is_available() and config.training.device == "auto"


def _load_start(config: JpqConfig) -> TorchDenseEncoder:
    device = "cpu" if config.training.device == "cpu" else None
    start = load_dense(config.start, device=device)
    assert isinstance(start, TorchDenseEncoder)
    return start


def train_jpq(config: JpqConfig, *, documents: int | None = None) -> Trained:
    """Vectors, codebooks, codes, then training. Interrupted at any point, the same call goes on.

    documents: to try it on so many of each corpus.
    """
    check_output(config.output, KIND)
    ready = Preparation(config, documents)
    model, data = ready.model, ready.data
    examples: JudgedData | Questions = JudgedData(data)
    with main_process_first():
        dev = ready.dev()
        static = None
        if config.negatives.source == "static":
            static = ready.ranking(data, config.negatives.depth, config.negatives.search)
        teacher = None
        if any(config.ranked) or config.alignment:
            teacher = ready.taught(data)
        if any(config.ranked):
            depth = min(config.objective.ranking_depth, len(data.documents))
            examples = Questions(data, config.ranked, ready.ranking(data, depth, "uncompressed"))

    def measured(current: TrainingModel) -> dict[str, float]:
        assert isinstance(current, JpqModel)
        return dev_measures(current, dev)

    return train(
        model,
        examples,
        JpqCollate(data, model, static, PART_OVERHEAD["cuda" if cuda(config) else "cpu"], teacher),
        settings=config.training,
        output=config.output,
        kind=KIND,
        config=config,
        data_hash=fingerprint(data.hash, ready.start.info.hash),
        evaluate=measured if dev else None,
    )


def dev_measures(model: JpqModel, sets: Sequence[Dev]) -> dict[str, float]:
    """The mean over the sets of each measure, searched as `negatives.search` has it."""
    found = []
    for one in sets:
        corpus = one.corpus.to(model.scoring.device)
        queries = model.query.encode(list(one.queries.values()))
        rows, scores = model.retrieve_rows(queries, DEPTH, corpus, model.settings.negatives.search)
        run = {
            query: {corpus.ids[row]: float(score) for row, score in zip(of_query, values, strict=True) if row >= 0}
            for query, of_query, values in zip(one.queries, rows.tolist(), scores.tolist(), strict=True)
        }
        found.append(measure(run, one.qrels, MEASURES).mean)
    return {name: sum(one[name] for one in found) / len(found) for name in MEASURES}


def rehearse(config: JpqConfig) -> Trained:
    """Everything that `config` asks, on the first rows of its data, two steps, nothing kept."""
    rows = max(32, 4 * config.training.batch_size)

    def fewer(sets: Sequence[JpqSet]) -> list[JpqSet]:
        return [replace(one, limit=min(one.limit or rows, rows)) for one in sets]

    with tempfile.TemporaryDirectory() as folder:
        return train_jpq(
            replace(
                config,
                output=Path(folder) / config.output.name,
                cache=None,
                train=fewer(config.train),
                dev=fewer(config.dev),
                selection=replace(config.selection, queries=8, hold_back=rehearsed(config.selection.hold_back, rows)),
                quantizer=replace(config.quantizer, rotation_iterations=2),
                training=replace(config.training, steps=2, evaluate_every=1, save_every=1, log_every=1),
            ),
            documents=REHEARSED,
        )


@click.command("jpq")
@config_options(JpqConfig)
def jpq_command(config: JpqConfig, dry_run: bool) -> None:
    """Train a query encoder and the centroids of a product quantization together: M bytes a document.

    \b
    osn train jpq --set 'train=[{path: scifact}]' --set selection.hold_back=0.1 --output models/jpq
    osn train jpq --config jpq --set quantizer.subvectors=24 --output models/jpq
    osn encode --corpus docs.jsonl.gz --pq models/jpq --out codes

    Prints the dev measures before (of OPQ) and after. Stopped at any point, the same command goes on.
    """
    trained = rehearse(config) if dry_run else train_jpq(config)
    if not is_main_process():
        return
    place = "nothing kept (dry run)" if dry_run else str(config.output)
    best = "" if trained.best_step is None else f", the state after step {trained.best_step} kept"
    click.echo(f"{place}: {trained.steps} steps{best}")
    for name, value in trained.measures.items():
        click.echo(f"{name:>24}  {value:.4f}")
