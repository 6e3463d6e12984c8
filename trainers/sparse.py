"""Inference-free learned sparse retrieval: documents become weighted word pieces, a query is its word pieces alone.

    osn train sparse --set 'train=[{path: scifact}]' --set selection.hold_back=0.1 --output models/sparse
    osn train sparse --config inference-free-sparse --output models/sparse      the paper's recipe, both stages
    osn train sparse --set 'train=[{path: docs.jsonl.gz, questions: first-sentence}]' --output models/sparse

"Towards Competitive Search Relevance For Inference-Free Learned Sparse Retrievers" (`inference-free-sparse`): a SPLADE-doc
student (section 3), IDF inside the matching function (4.1), an ensemble of heterogeneous teachers (4.2), pre-training
and fine-tuning (5.1). The result loads in `SparseEncoder(path)` and in `models.sparse.load_sparse`.

What stands in the way of training from a backbone without a masked-LM head: a cold head under FLOPS regularization
silences every term that is not in the document, and a silenced ReLU gets no gradient. So a fresh head starts as the
identity (a position then lies nearest to its own token and to its kin), may be warmed up, and its bias is set so that a
given number of expansions are active; the regularizer's weight is small and ramped up late; expansions are logged. As
an extension, `student.revive` lets a share of the gradient through to silenced terms that it would raise.

The residual student goes beyond the paper: a document's weight of t is its BM25 impact, known at ingest, plus what is
learned. It starts as BM25 over word pieces and adds.
"""

from __future__ import annotations

import copy
import logging
import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_matrix
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, set_seed

from opensearch_neural.errors import InputError
from opensearch_neural.files import write_json
from opensearch_neural.idf import load_idf, save_idf
from opensearch_neural.models import sparse as sparse_models
from opensearch_neural.models import sparse_head
from opensearch_neural.models.dense import quiet_loading
from opensearch_neural.models.directory import hash_files, locate, routes
from opensearch_neural.models.lexical import K1, B, LexicalEncoder, build_lexical
from opensearch_neural.models.vectors import SparseVectors
from opensearch_neural.retrievers import Run
from opensearch_neural.retrievers.exact_sparse import ExactSparseRetriever
from opensearch_neural.tokens import QueryEncoder, special_tokens, vocabulary_of
from trainers import backbones, losses, masked_lm
from trainers.bi_encoder import (
    PART_OVERHEAD,
    DenseConfig,
    DevSettings,
    Drawn,
    ObjectiveSettings,
    Prepared,
    QuestionSet,
    RetrievalCollate,
    RetrievalData,
    padding_id,
    prepare,
    rehearsed,
    unique_documents,
)
from trainers.config import BACKBONE, config_options, fingerprint
from trainers.data import TrainingData
from trainers.dev import DEPTH, DevSet, dev_measures
from trainers.encoder import ROLES, EncoderSettings, Role
from trainers.grad_cache import CachedModel, Encoded, Part, gather
from trainers.loop import (
    Trained,
    TrainingSettings,
    Visit,
    check_output,
    is_main_process,
    main_process_first,
    train,
)
from trainers.model import Batch, Losses, TrainingModel
from trainers.negatives import check_spec
from trainers.schedules import FOLDER, quadratic_ramp, with_mined
from trainers.sparse_head import activation, largest_logits, sample_columns
from trainers.teachers import LEXICAL, PairTeacher, Teacher, cache_name, open_teacher, teach
from trainers.texts import TextStore
from trainers.tokenized import TokenCache, padded_parts

logger = logging.getLogger(__name__)

KIND = "sparse"
SILENT = -1e4
"""The output bias of special tokens: no logit reaches 0, in training and in every library that loads the model."""
CALIBRATION = 64
"""Documents by which a head's bias is set."""
DRY_RUN_DOCUMENTS = 200
"""Of each corpus in a dry run, beside those that its questions need."""
BASELINES = ("presence × idf", "word-piece BM25")
"""What dev measures of the student stand beside."""
LEAST_KNOWN = 0.5
"""Of the hard negatives that are drawn, the share that a cross-encoder must have scored."""
STUDENT = "student"
"""As a miner: the student of the fine-tuning stage, trained without pre-training (section 4.2)."""


# ------------------------------------------------ configuration


@dataclass(slots=True)
class SparseSet(QuestionSet):
    """osn teach's folders may stand as `teachers`; without them the stage's own are asked, and kept."""


@dataclass(slots=True)
class StudentSettings:
    """What documents become.

    activation: log(1 + ReLU(x)), or log(1 + log(1 + ReLU(x))). residual: the learned weights are added to BM25 impacts
    of the whole text, with k1 and b. idf: what weighs a query's tokens, in training and in the model: "train", from the
    documents of all train sets; "own", in training each set's from its own documents (for models whose table is made
    anew for each corpus they are used on); "none", every token 1; or an idf.json. revive: the share of the gradient that
    reaches a silenced term where that would raise it, beyond the paper; at 0 what is silenced stays silent. head: "full",
    or "sampled", which computes the queries' columns and `columns` others. document_length: tokens read of a document
    when the model is used; query_length: of a query in training (in use the tokenizer's own limit holds). dropout:
    replaces the backbone's own where given. frozen_layers: so many of the backbone's first layers, and the word embeddings
    with the output layer's weights, stay as they are: cheaper steps; 0 trains everything.
    """

    activation: Literal["log", "double-log"] = "log"
    residual: bool = False
    k1: float = K1
    b: float = B
    idf: str = "train"
    revive: float = 0.0
    head: Literal["full", "sampled"] = "sampled"
    columns: int = 1024
    document_length: int = 256
    query_length: int = 64
    dropout: float | None = None
    frozen_layers: int = 0

    def __post_init__(self) -> None:
        if self.columns < 1 or min(self.document_length, self.query_length) < 3:
            raise ValueError("columns must be at least 1, document_length and query_length at least 3")
        if not 0 <= self.k1 < math.inf or not 0 <= self.b <= 1:
            raise ValueError(f"k1 {self.k1} and b {self.b}: expected k1 of 0 or more, b from 0 to 1")
        if not 0 <= self.revive <= 1:
            raise ValueError(f"revive must be from 0 to 1, not {self.revive}")

    @property
    def double_log(self) -> bool:
        return self.activation == "double-log"


@dataclass(slots=True)
class WarmUpSettings:
    """How a backbone without a masked-LM head becomes a student.

    masked_lm_steps: of masked language modelling on `corpus` (the train sets' folders where it names none).
    impact_steps: of regression to the BM25 impacts of the tokens that a document holds. expansions: how many terms
    that are not in a document are active before training, on average; None leaves the bias as it is. weight: the
    largest expansion's mean weight at the start; None leaves the head's scale as it is.
    """

    masked_lm_steps: int = 0
    masked_lm_learning_rate: float = 1e-4
    impact_steps: int = 0
    impact_learning_rate: float = 1e-4
    batch_size: int = 32
    length: int = 128
    corpus: list[Path] = field(default_factory=list)
    expansions: float | None = 50
    weight: float | None = None

    def __post_init__(self) -> None:
        if min(self.masked_lm_steps, self.impact_steps) < 0 or min(self.batch_size, self.length) < 1:
            raise ValueError("steps must not be below 0, batch_size and length at least 1")


@dataclass(slots=True)
class SparseObjective(ObjectiveSettings):
    """The terms of `osn train dense`. teachers: models that `osn teach` takes ("lexical" too), each set's scores by them
    computed and kept; for the terms that distil, kl or margin_mse. all_pairs: kl compares all documents of the batch,
    which siamese teachers can score, and not the query's own candidates alone."""

    temperature: float | None = 1.0
    teachers: list[str] = field(default_factory=list)
    all_pairs: bool = False

    def __post_init__(self) -> None:
        ObjectiveSettings.__post_init__(self)
        if self.teachers and not self.distils:
            raise ValueError("teachers are named, but kl and margin_mse are 0: give one of them a weight")
        if self.all_pairs and self.margin_mse:
            raise ValueError("margin_mse compares the query's own candidates: all_pairs is for kl")


@dataclass(slots=True)
class RegularizationSettings:
    """λ · FLOPS of the learned weights. flops: "batch", the mean over all documents at once, as in
    sentence-transformers; "slot", of each candidate slot over the queries, summed, as in the paper's code: λ does not
    carry over. λ is 0 for the share `delay` of the steps, then grows quadratically over the share `ramp`."""

    weight: float = 1e-3
    flops: Literal["batch", "slot"] = "batch"
    delay: float = 0.0
    ramp: float = 1 / 3

    def __post_init__(self) -> None:
        if self.weight < 0 or not 0 <= self.delay <= 1 or not 0 <= self.ramp <= 1:
            raise ValueError(
                f"weight {self.weight}, delay {self.delay}, ramp {self.ramp}: none below 0, shares up to 1"
            )

    def at(self, step: int, steps: int) -> float:
        """λ at a step."""
        late = step - self.delay * steps
        return 0.0 if late < 0 else self.weight * quadratic_ramp(round(late), steps=round(self.ramp * steps))


@dataclass(slots=True)
class SparseCandidates:
    """`negatives` hard ones beside the positive, drawn out of the first `depth`. mine: what finds more where a query of
    the data has fewer: "bm25", "student" (trained without pre-training, for a run that has it), another name that `osn
    mine` knows, or null, which fills up at random. consistency: queries without a positive in the miner's top so many are
    left out."""

    negatives: int = 1
    depth: int = 100
    mine: str | None = "bm25"
    consistency: int | None = None

    def __post_init__(self) -> None:
        if self.negatives < 0 or self.depth < 1:
            raise ValueError(f"negatives {self.negatives} and depth {self.depth}: expected at least 0 and 1")


@dataclass(slots=True)
class StageSettings:
    """A stage of training: its data, loss, and length of documents in tokens."""

    train: list[SparseSet]
    objective: SparseObjective = field(default_factory=SparseObjective)
    candidates: SparseCandidates = field(default_factory=SparseCandidates)
    regularization: RegularizationSettings = field(default_factory=RegularizationSettings)
    document_length: int = 128
    training: TrainingSettings = field(default_factory=lambda: TrainingSettings(learning_rate=5e-5))

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError("train names no data set")
        if self.document_length < 3:
            raise ValueError("document_length must be at least 3")
        if self.objective.distils and self.candidates.negatives < 1 and not self.objective.all_pairs:
            raise ValueError("distillation compares candidates: candidates.negatives must be at least 1")


@dataclass(slots=True)
class SparseConfig(StageSettings):
    """Everything that `osn train sparse` can be told. What StageSettings has is the last stage, fine-tuning;
    pretraining: an earlier one. cache: where generated questions, teachers' scores, mined negatives and warm-ups lie, which
    other configurations may share; by default in the output, hidden. unseen: sets whose questions are left out of train."""

    output: Path = Path("models/sparse")
    start: str = "sentence-transformers/all-MiniLM-L6-v2"
    student: StudentSettings = field(default_factory=StudentSettings)
    warm_up: WarmUpSettings = field(default_factory=WarmUpSettings)
    pretraining: StageSettings | None = None
    dev: list[SparseSet] = field(default_factory=list)
    unseen: list[SparseSet] = field(default_factory=list)
    selection: DevSettings = field(default_factory=DevSettings)
    cache: Path | None = None

    @property
    def folder(self) -> Path:
        return self.cache or self.output / FOLDER

    def stage(self, stage: StageSettings, output: Path, start: str) -> SparseConfig:
        """This configuration with another stage's data and loss, and no other stage."""
        taken = {name: getattr(stage, name) for name in StageSettings.__dataclass_fields__}
        return replace(self, **taken, output=output, start=start, pretraining=None, cache=self.folder)


# ------------------------------------------------ statistics of a corpus


class Lexicon:
    """What word pieces say without a model: the IDF of a corpus, and the BM25 impacts of texts.

    idf: (vocabulary,), 0 for special tokens and ids that no token has. Raises InputError for a corpus without text.
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
    ) -> Lexicon:
        """The statistics of some texts by id; the weights of queries are what `settings.idf` says of them."""
        texts = (text for store in stores for text in store.values())
        # A copy: truncation, which batches set, is a tokenizer's state, and statistics are of whole texts.
        whole = copy.deepcopy(tokenizer.backend_tokenizer)
        whole.no_truncation()
        whole.no_padding()
        encoder = build_lexical(texts, tokenizer=whole, k1=settings.k1, b=settings.b)
        if settings.idf in ("train", "own"):
            return cls(encoder, size)
        words = encoder.query.tokenizer
        special = special_tokens(words)
        listed = dict.fromkeys(vocabulary_of(words), 1.0) if settings.idf == "none" else load_idf(settings.idf)
        table = {**listed, **dict.fromkeys(special, 0.0)}
        return cls(replace(encoder, query=QueryEncoder(words, table, name=encoder.name)), size)

    def impacts(self, texts: Sequence[str]) -> csr_matrix:
        """(texts, vocabulary)."""
        vectors = self.encoder.encode_documents(texts)
        shape = (len(texts), len(self.idf))
        return csr_matrix((vectors.weights, vectors.token_ids, vectors.indptr), shape=shape)


class _ImpactRows:
    """The impacts of a store's documents by row, each weighed when it is first asked for."""

    def __init__(self, lexicon: Lexicon, documents: TextStore) -> None:
        self.lexicon, self.documents = lexicon, documents
        self._rows: dict[int, tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]] = {}

    def dense(self, rows: Sequence[int], columns: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """(rows, columns); columns ascend."""
        missing = [row for row in dict.fromkeys(rows) if row not in self._rows]
        if missing:
            found = self.lexicon.impacts([self.documents.text_at(row) for row in missing])
            for at, row in enumerate(missing):
                span = slice(found.indptr[at], found.indptr[at + 1])
                self._rows[row] = (found.indices[span], found.data[span])
        result = np.zeros((len(rows), len(columns)), dtype=np.float32)
        for at, row in enumerate(rows):
            ids, weights = self._rows[row]
            place, there = _places(columns, ids)
            result[at, place[there]] = weights[there]
        return result


def _places(
    columns: npt.NDArray[np.int64], ids: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Where each of `ids` stands among ascending `columns`, and whether it does."""
    place = np.minimum(np.searchsorted(columns, ids), len(columns) - 1)
    return place, columns[place] == ids


# ------------------------------------------------ the model


class SparseStudent(CachedModel):
    """Documents under a sum of distillation and contrastive terms and the FLOPS regularizer; queries are not encoded.

    model: a masked language model, whose last layer becomes `head`. to_impacts: the loss is the regression of a warm-up.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        settings: StudentSettings,
        objective: SparseObjective,
        regularization: RegularizationSettings,
        *,
        document_length: int,
        lexicon: Lexicon,
        name: Path,
        to_impacts: bool = False,
    ) -> None:
        super().__init__()
        self.head, self._names = sparse_models.take_out_last_layer(model.eval(), name)
        self.model = model
        if self.head.bias is None:
            self.head.bias = nn.Parameter(torch.zeros(len(self.head.weight)))
        self.student, self.objective, self.regularization = settings, objective, regularization
        self.settings = EncoderSettings(query_length=settings.query_length, document_length=document_length)
        self.tokenizers: dict[Role, PreTrainedTokenizerBase] = dict.fromkeys(ROLES, tokenizer)
        self.lexicon, self.to_impacts = lexicon, to_impacts
        self.vocabulary = vocabulary_of(tokenizer.backend_tokenizer)
        real = np.zeros(len(self.head.weight), dtype=bool)
        special = special_tokens(tokenizer.backend_tokenizer)
        real[: len(self.vocabulary)] = [token not in special for token in self.vocabulary]
        self.columns: npt.NDArray[np.int64] = np.flatnonzero(real)
        self._silent = torch.from_numpy(np.flatnonzero(~real))
        self.silence()
        for parameter_name, parameter in model.named_parameters():
            if ".pooler." in parameter_name:
                parameter.requires_grad_(False)
        for module in _frozen(model, settings.frozen_layers):
            module.requires_grad_(False)

    def silence(self) -> None:
        """Special tokens, and ids that no token has, get no weight."""
        with torch.no_grad():
            self.head.bias[self._silent.to(self.head.bias.device)] = SILENT

    def weights(self, input_ids: Tensor, attention_mask: Tensor, columns: Tensor | None = None) -> Tensor:
        """The learned weights of documents: (documents, columns)."""
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        logits = largest_logits(
            hidden, attention_mask, self.head.weight, self.head.bias, columns, revive=self.student.revive
        )
        return activation(logits, double_log=self.student.double_log)

    def encode(self, role: str, part: Part) -> Encoded:
        return Encoded(self.weights(part["input_ids"], part["attention_mask"], part.get("columns")))

    def losses(self, vectors: dict[str, Tensor], targets: dict[str, Tensor]) -> Losses:
        """vectors: "document" (documents, columns), the learned weights of this process's documents.

        targets: "query" (queries, columns), each token's IDF; "candidates" (queries, 1 + negatives), columns among the
        gathered documents, the positive first; "excluded" (queries, gathered documents); "teacher" and "known", like
        candidates or like excluded; "shares" (columns,); "impacts", "present" (gathered documents, columns): BM25's, and
        whether the document holds the token.
        """
        learned = gather(vectors["document"])
        present, shares = targets["present"], targets["shares"]
        if self.to_impacts:
            error = torch.where(present, learned - targets["impacts"], 0.0).square().sum() / present.sum()
            return Losses({"impacts": error}, self._sparsity(learned, present, shares))
        documents = learned + targets["impacts"] if self.student.residual else learned
        scores, candidates, objective = targets["query"] @ documents.T, targets["candidates"], self.objective
        own = scores.gather(1, candidates)
        compared = scores if objective.all_pairs else own
        terms: dict[str, Tensor] = {}
        if objective.info_nce:
            temperature = objective.temperature or 1.0
            first = torch.zeros(len(own), dtype=torch.long, device=own.device)
            terms["info_nce"] = objective.info_nce * (
                losses.info_nce(scores, candidates[:, 0], temperature=temperature, excluded=targets["excluded"])
                if objective.in_batch
                else losses.info_nce(own, first, temperature=temperature)
            )
        if objective.kl:
            terms["kl"] = objective.kl * losses.kl_distillation(
                compared, targets["teacher"], temperature=objective.kl_temperature, known=targets["known"]
            )
        if objective.margin_mse:
            terms["margin_mse"] = objective.margin_mse * losses.margin_mse(
                own, targets["teacher"], known=targets["known"]
            )
        factor = self.regularization.at(self.progress.step, self.progress.steps)
        flops = self._flops(learned, candidates, shares)
        # With a factor of 0, too: every parameter then has a gradient in every step, as several processes need.
        terms["flops"] = factor * flops
        best = scores.masked_fill(targets["excluded"], -torch.inf).argmax(dim=1)
        measures = {
            "in_batch_accuracy": (best == candidates[:, 0]).float().mean(),
            "flops_unweighted": flops.detach(),
            "lambda": torch.tensor(factor, device=flops.device),
        }
        return Losses(terms, measures | self._sparsity(learned, present, shares))

    def _flops(self, learned: Tensor, candidates: Tensor, shares: Tensor) -> Tensor:
        if self.regularization.flops == "batch":
            return losses.flops(learned, shares)
        return losses.flops_per_slot(learned[gather(candidates)], shares)

    def _sparsity(self, learned: Tensor, present: Tensor, shares: Tensor) -> dict[str, Tensor]:
        """Active terms a document, and of them those that what was read of it does not hold; estimates where columns were
        sampled."""
        with torch.no_grad():
            active = learned > 0
            expansions = ((active & ~present).float() * shares).sum(dim=1).mean()
            return {"active": (active.float() * shares).sum(dim=1).mean(), "expansions": expansions}

    @torch.inference_mode()
    def vectors(self, texts: Sequence[str], *, tokens: int = 4096) -> SparseVectors:
        """The learned weights of `texts` as the model stands; tokens: of one batch, padding included."""
        device = self.head.weight.device
        tokenizer, length = self.tokenizers["document"], self.student.document_length
        rows = TokenCache(tokenizer, texts.__getitem__, max_length=length).rows(range(len(texts)))
        longest = max((len(ids) for ids in rows), default=1)
        overhead = PART_OVERHEAD[device.type if device.type in PART_OVERHEAD else "cpu"]
        parts = padded_parts(rows, padding=padding_id(tokenizer), overhead=overhead, largest=max(1, tokens // longest))
        found: list[SparseVectors] = []
        weight, bias = self.head.weight, self.head.bias
        screen = sparse_head.best_screen(weight)
        for part in parts:
            mask = part["attention_mask"].to(device)
            hidden = self.model(input_ids=part["input_ids"].to(device), attention_mask=mask).logits.float()
            logits = sparse_head.largest_logits(hidden, mask, weight, bias, screen)
            weights = sparse_head.activated(logits, double_log=self.student.double_log)
            weights[:, len(self.vocabulary) :] = 0
            at, ids = weights.nonzero(as_tuple=True)
            counts = torch.bincount(at, minlength=len(weights)).cumsum(0).cpu().numpy()
            indptr = np.concatenate([[0], counts]).astype(np.int64)
            ids32 = ids.cpu().numpy().astype(np.int32)
            found.append(SparseVectors(indptr, ids32, weights[at, ids].cpu().numpy(), self.vocabulary))
        order = np.concatenate([part["position"].numpy() for part in parts])
        return SparseVectors.concat(found, self.vocabulary).take(np.argsort(order))

    def export(self, folder: Path) -> None:
        self.silence()
        write_model(self, folder)


def _frozen(model: Any, layers: int) -> list[nn.Module]:
    """The embeddings and first layers of a model. Raises InputError where it has fewer."""
    if not layers:
        return []
    body = model.base_model
    stacks = [one for one in body.modules() if isinstance(one, nn.ModuleList)]
    stack = max(stacks, key=len, default=nn.ModuleList())
    if layers > len(stack):
        raise InputError(f"student.frozen_layers is {layers}, the backbone has {len(stack)} layers")
    embeddings = getattr(body, "embeddings", model.get_input_embeddings())
    return [embeddings, *stack[:layers]]


def write_model(student: SparseStudent, folder: Path) -> None:
    """Write what `load_sparse` reads: a Router that `SparseEncoder(folder)` loads too, or, of a residual student, whose
    impacts sentence-transformers does not know, `residual.json` beside `document/`."""
    query, tokenizer = student.lexicon.encoder.query, student.tokenizers["document"]
    settings = student.student
    sparse_models.put_last_layer(student.model, student._names, student.head)
    temporary = folder / ".document"
    try:
        target = folder / "document" if settings.residual else temporary
        backbones.save(student.model, tokenizer, target)
    finally:
        sparse_models.put_last_layer(student.model, student._names, nn.Identity())
    activation: Literal["relu", "log1p_relu"] = "log1p_relu" if settings.double_log else "relu"
    if settings.residual:
        write_json(target / "sentence_bert_config.json", {"max_seq_length": settings.document_length})
        tokenizer.save_pretrained(folder)
        statistics = student.lexicon.encoder.statistics
        write_json(folder / sparse_models.RESIDUAL, {**statistics, "activation_function": activation})
    else:
        from sentence_transformers import SparseEncoder
        from sentence_transformers.base.modules import Router, Transformer
        from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

        with quiet_loading():
            document = Transformer(
                str(temporary), transformer_task="fill-mask", max_seq_length=settings.document_length
            )
            weight = torch.from_numpy(student.lexicon.idf[: len(tokenizer)])
            router = Router.for_query_document(
                [SparseStaticEmbedding(tokenizer=tokenizer, weight=weight, frozen=True)],  # type: ignore[arg-type]
                [document, SpladePooling("max", activation_function=activation)],
            )
            model = SparseEncoder(modules=[router], similarity_fn_name="dot", device="cpu")
            model.save_pretrained(str(folder), create_model_card=False)
        shutil.rmtree(temporary)
    save_idf(folder / "idf.json", query.weights)


# ------------------------------------------------ batches


class SparseCollate(RetrievalCollate):
    """A bi-encoder's batches with queries as weighted columns: those of the batch's query tokens and a sample, or all."""

    def __init__(
        self,
        sets: Sequence[TrainingData],
        model: SparseStudent,
        *,
        lexicons: Sequence[Lexicon],
        teachers: Sequence[Sequence[Teacher]],
        chunk_size: int | None,
        overhead: int,
        seed: int,
    ) -> None:
        super().__init__(sets, model, model.objective, chunk_size=chunk_size, overhead=overhead, teachers=teachers)
        self.lexicons, self.seed = list(lexicons), seed
        self.all_columns, self.size = model.columns, len(model.head.weight)
        self.student, self.to_impacts = model.student, model.to_impacts
        self.all_pairs = model.objective.all_pairs and model.objective.distils and not model.to_impacts
        self.impacts = [_ImpactRows(lexicon, one.documents) for lexicon, one in zip(lexicons, sets, strict=True)]

    def __call__(self, items: list[Drawn], rank: int = 0, world: int = 1) -> Batch:
        batch = super().__call__(items, rank, world)
        at, share = items[0].at, len(items) // world
        queries = [np.unique(ids) for ids in self.tokens[at]["query"].rows([one.query for one in items])]
        idf = self.lexicons[at].idf
        documents = [row for r in range(world) for row in unique_documents(items[r * share : (r + 1) * share])]
        pieces = [np.unique(ids) for ids in self.tokens[at]["document"].rows(documents)]
        columns, shares = self._columns(items, [ids[idf[ids] > 0] for ids in queries], pieces)
        query = np.zeros((share, len(columns)), dtype=np.float32)
        for row, ids in enumerate(queries[rank * share : (rank + 1) * share]):
            place, there = _places(columns, ids)
            query[row, place[there]] = idf[ids[there]]
        present = np.zeros((len(documents), len(columns)), dtype=bool)
        for row, ids in enumerate(pieces):
            place, there = _places(columns, ids)
            present[row, place[there]] = True
        targets = batch["targets"]
        targets |= {
            "query": torch.from_numpy(query),
            "present": torch.from_numpy(present),
            "shares": torch.from_numpy(shares),
        }
        if self.student.residual or self.to_impacts:
            targets["impacts"] = torch.from_numpy(self.impacts[at].dense(documents, columns))
        if self.all_pairs:
            names = self.sets[at].documents.ids
            own = items[rank * share : (rank + 1) * share]
            teacher, known = self.ensemble(at, own, [names[row] for row in documents])
            # Other known positives, and second copies, are no candidates.
            targets |= {"teacher": teacher, "known": known & ~targets["excluded"]}
        batch["parts"].pop("query")
        if len(columns) < self.size:
            for part in batch["parts"]["document"]:
                part["columns"] = torch.from_numpy(columns)
        return batch

    def _columns(
        self, items: Sequence[Drawn], queries: Sequence[npt.NDArray[Any]], pieces: Sequence[npt.NDArray[Any]]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        if self.student.head == "full":
            return np.arange(self.size), np.ones(self.size, dtype=np.float32)
        wanted = np.concatenate([*queries, *pieces]) if self.to_impacts else np.concatenate(queries)
        wanted = np.intersect1d(wanted, self.all_columns)
        # The same in every process, and in a run that goes on: the batch is the seed.
        rng = np.random.default_rng([self.seed, items[0].at, *(one.query for one in items)])
        return sample_columns(wanted, self.all_columns, self.student.columns, rng)

    def _teacher_scores(self, at: int, own: Sequence[Drawn]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        if self.all_pairs or self.to_impacts:
            return np.zeros((len(own), 1), np.float32), np.ones((len(own), 1), bool)
        return super()._teacher_scores(at, own)


# ------------------------------------------------ dev


class DevRetrieval:
    """Retrieval over dev sets with the student as it stands, and how sparse it is.

    With IDF "own" each dev set has the statistics of its own documents, else those of the student's lexicon.
    """

    def __init__(self, student: SparseStudent, sets: Sequence[DevSet]) -> None:
        settings, tokenizer = student.student, student.tokenizers["document"]
        self.lexicons: dict[int, Lexicon] = {}
        for one in sets:
            self.lexicons[id(one.documents)] = (
                Lexicon.of([one.documents], tokenizer, len(student.head.weight), settings)
                if settings.idf == "own"
                else student.lexicon
            )
        self.sets = list(sets)
        self.sparsity: list[dict[str, float]] = []
        self.baselines: dict[str, float] = {}

    def measures(self, student: SparseStudent) -> dict[str, float]:
        """nDCG@10 and so on of the student, its sparsity, and nDCG@10 of what needs no training."""
        if not self.baselines:
            for name in BASELINES:
                found = dev_measures(self.sets, partial(self._lexical, name))
                self.baselines |= {f"{name} {key}": value for key, value in found.items() if "nDCG@10" in key}
            shown = ", ".join(f"{name} {value:.4f}" for name, value in self.baselines.items())
            logger.info("dev, without training: %s", shown)
        self.sparsity = []
        found = dev_measures(self.sets, lambda queries, texts: self._retrieve(student, queries, texts))
        means = {name: float(np.mean([one[name] for one in self.sparsity])) for name in self.sparsity[0]}
        return found | means | self.baselines

    def _retrieve(self, student: SparseStudent, queries: Mapping[str, str], texts: Mapping[str, str]) -> Run:
        lexicon = self.lexicons[id(texts)]
        impacts = lexicon.impacts(list(texts.values()))
        vectors = student.vectors(list(texts.values()))
        learned = csr_matrix((vectors.weights, vectors.token_ids, vectors.indptr), shape=impacts.shape)
        documents = learned + impacts if student.student.residual else learned
        encoded = [lexicon.encoder.query.encode(text) for text in queries.values()]
        outside = (learned > 0).astype(np.int32) - (learned > 0).multiply(impacts > 0).astype(np.int32)
        self.sparsity.append(
            {
                "active terms": (documents > 0).sum() / len(texts),
                "expansion terms": outside.sum() / len(texts),
                "FLOPS": measured_flops(encoded, documents, student.vocabulary),
            }
        )
        return self._rank(lexicon, documents, student.vocabulary, queries, texts)

    def _lexical(self, name: str, queries: Mapping[str, str], texts: Mapping[str, str]) -> Run:
        lexicon = self.lexicons[id(texts)]
        impacts = lexicon.impacts(list(texts.values()))
        documents = impacts if name == "word-piece BM25" else (impacts > 0).astype(np.float32)
        return self._rank(lexicon, documents, lexicon.encoder.vocabulary, queries, texts)

    @staticmethod
    def _rank(
        lexicon: Lexicon,
        documents: csr_matrix,
        vocabulary: list[str],
        queries: Mapping[str, str],
        texts: Mapping[str, str],
    ) -> Run:
        rows = csr_matrix(documents[:, : len(vocabulary)])
        vectors = SparseVectors(rows.indptr, rows.indices, rows.data, vocabulary)
        return ExactSparseRetriever(list(texts), vectors, lexicon.encoder.query.encode).retrieve(queries, DEPTH)


def measured_flops(queries: Sequence[Mapping[str, float]], documents: csr_matrix, vocabulary: Sequence[str]) -> float:
    """Σ_t P(t in a query) · P(t in a document): multiplications for a query and a document (SPLADE v2, section 4)."""
    ids = {token: at for at, token in enumerate(vocabulary)}
    asked = np.zeros(documents.shape[1])
    for query in queries:
        asked[[ids[token] for token in query if token in ids]] += 1
    held = np.asarray((documents > 0).sum(axis=0)).ravel()
    return float(asked @ held / (max(1, len(queries)) * max(1, documents.shape[0])))


# ------------------------------------------------ training


def load_start(name_or_path: str | Path, student: StudentSettings) -> tuple[Any, PreTrainedTokenizerBase, bool]:
    """(masked language model, tokenizer, whether its head is fresh): also of a sparse model, whose document side it is."""
    folder = locate(name_or_path)
    if (folder / sparse_models.RESIDUAL).exists():
        folder = folder / "document"
    elif modules := routes(folder).get("document"):
        folder = modules[0].path
    model, tokenizer, fresh = backbones.masked_language_model(folder)
    if fresh:
        backbones.identity_head(model)
    if student.dropout is not None:
        backbones.set_dropout(model, student.dropout)
    check_length(model, "student.document_length", student.document_length)
    return model, tokenizer, fresh


def check_length(model: Any, name: str, length: int) -> None:
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is not None and length > longest:
        raise InputError(f"{name} is {length}, the backbone has {longest} positions")


def build(config: SparseConfig, stores: Sequence[Mapping[str, str]], *, to_impacts: bool = False) -> SparseStudent:
    """The untrained student; its table and impacts are of the texts in `stores`.

    Raises InputError for documents longer than the backbone's positions."""
    set_seed(config.training.seed)
    model, tokenizer, _ = load_start(config.start, config.student)
    check_length(model, "document_length", config.document_length)
    size = len(model.get_output_embeddings().weight)
    return SparseStudent(
        model,
        tokenizer,
        config.student,
        config.objective,
        config.regularization,
        document_length=config.document_length,
        lexicon=Lexicon.of(stores, tokenizer, size, config.student),
        name=locate(config.start),
        to_impacts=to_impacts,
    )


@torch.no_grad()
def calibrate(student: SparseStudent, texts: Sequence[str], *, expansions: float, weight: float | None) -> None:
    """Set the head's bias so that documents have so many active terms that they do not hold, on average; and its scale
    so that the largest of them weighs `weight`, on average. Both are written into the head's own parameters."""
    tokenizer, device = student.tokenizers["document"], student.head.weight.device
    rows = TokenCache(tokenizer, texts.__getitem__, max_length=student.settings.document_length).rows(range(len(texts)))
    high = 1e3  # Above every logit's size, so that none is cut off at 0.
    outside: list[Tensor] = []
    for part in padded_parts(rows, padding=padding_id(tokenizer), overhead=0, largest=8):
        hidden = student.model(
            input_ids=part["input_ids"].to(device), attention_mask=part["attention_mask"].to(device)
        ).logits
        mask = part["attention_mask"].to(device)
        logits = largest_logits(hidden, mask, student.head.weight, student.head.bias.clamp(min=-high / 2) + high) - high
        logits.scatter_(1, part["input_ids"].to(device), -torch.inf)
        outside.append(logits[:, torch.from_numpy(student.columns).to(device)].cpu())
    logits = torch.cat(outside)
    if logits.isnan().any():
        raise InputError("the start gives outputs that are not numbers", "its weights are damaged: start from another")
    held = torch.isfinite(logits).sum(dim=1).float().mean()
    kept = logits[torch.isfinite(logits)]
    threshold = float(np.quantile(kept.numpy(), 1 - min(0.5, expansions / float(held))))
    columns = torch.from_numpy(student.columns).to(device)
    student.head.bias[columns] -= threshold
    factor = 1.0
    if weight is not None:
        largest = (logits.amax(dim=1) - threshold).clamp(min=1e-6)
        # log(1 + factor · logit) = weight, for the mean document.
        factor = math.expm1(math.expm1(weight) if student.student.double_log else weight) / float(largest.mean())
        student.head.bias[columns] *= factor
        scaled = backbones.last_normalization(student.model)
        for parameter in (scaled.weight, scaled.bias):
            parameter.mul_(factor)
    logger.info("head: logits lowered by %.3g, scaled by %.3g: %g expansions a document", threshold, factor, expansions)


def train_stage(
    config: SparseConfig,
    prepared: Prepared,
    *,
    output: Path,
    lexicon: Sequence[Mapping[str, str]] | None = None,
    miner: Path | None = None,
    whole: SparseConfig | None = None,
) -> Trained:
    """One stage of `config` on prepared data, written to `output`.

    lexicon: the texts whose statistics weigh queries' tokens, by default those of the stage. miner: the model that
    candidates.mine "student" means. whole: the configuration that the stage ends.
    """
    sets = mined(config, prepared.train, miner)
    student = build(config, [one.documents for one in sets] if lexicon is None else lexicon)
    dev = DevRetrieval(student, prepared.dev) if prepared.dev else None

    def measured(current: TrainingModel) -> dict[str, float]:
        assert isinstance(current, SparseStudent)
        assert dev is not None
        return dev.measures(current)

    data = RetrievalData(sets, negatives=config.candidates.negatives, depth=config.candidates.depth)
    return train(
        student,
        data,
        collate(config, sets, student, teachers=teachers(config, sets)),
        settings=config.training,
        output=output,
        kind=KIND,
        # What lies in the run's own folders is told by its content: a run may be moved, and go on.
        config=whole or replace(config, start=_within(config.start, config.folder, output)),
        data_hash=fingerprint(data.hash, student.lexicon.encoder.info.hash, hash_files(locate(config.start))),
        evaluate=None if dev is None else measured,
    )


def _within(start: str, *folders: Path) -> str:
    """A path without the one of `folders` that it lies in."""
    for folder in folders:
        if Path(start).is_relative_to(folder):
            return str(Path(start).relative_to(folder))
    return start


def collate(
    config: SparseConfig,
    sets: Sequence[TrainingData],
    student: SparseStudent,
    *,
    teachers: Sequence[Sequence[Teacher]],
) -> SparseCollate:
    """Batches for `student`, whose IDF is the student's, or each set's own."""
    size, tokenizer = len(student.head.weight), student.tokenizers["document"]
    own = config.student.idf == "own"
    cuda = torch.cuda.is_available() and config.training.device == "auto"
    return SparseCollate(
        sets,
        student,
        lexicons=[
            Lexicon.of([one.documents], tokenizer, size, config.student) if own else student.lexicon for one in sets
        ],
        teachers=teachers,
        chunk_size=config.training.chunk_size,
        overhead=PART_OVERHEAD["cuda" if cuda else "cpu"],
        seed=config.training.seed,
    )


def teachers(config: SparseConfig, sets: Sequence[TrainingData]) -> list[list[Teacher]]:
    """Each set's teachers: the folders it names, or the stage's models, whose scores are computed where they are not."""
    objective = config.objective
    if not objective.distils:
        return [[] for _ in sets]
    settings_of = {(one.name or one.path.resolve().name.partition(".")[0]): one for one in config.train}
    found: list[list[Teacher]] = []
    for one in sets:
        folders = list(settings_of[one.name].teachers) if one.name in settings_of else []
        if not folders:
            for name in objective.teachers:
                depth = config.candidates.depth
                folder = config.folder / "teachers" / one.name / cache_name(name, one, depth=depth)
                with main_process_first():
                    teach(name, one, output=folder, depth=depth)
                folders.append(folder)
        if objective.teacher_weights is not None and folders and len(folders) != len(objective.teacher_weights):
            raise InputError(
                f"{one.name} has {len(folders)} teachers, "
                f"objective.teacher_weights {len(objective.teacher_weights)} weights"
            )
        if not folders and objective.all_pairs:
            raise InputError(
                f"{one.name} has no teacher that could score all pairs of a batch",
                "name objective.teachers, or set objective.all_pairs to false",
            )
        if not folders and not len(one.score_values):
            raise InputError(
                f"{one.name} has no teacher and no scores to distil",
                "name objective.teachers, or train on the labels alone: objective.kl 0 and objective.info_nce 1",
            )
        found.append([open_teacher(folder, one, missing="nan") for folder in folders])
        for teacher in found[-1]:
            check_known(teacher, one, config.candidates)
    return found


def check_known(teacher: Teacher, data: TrainingData, candidates: SparseCandidates) -> None:
    """Raises InputError where a cross-encoder scored hardly any of the negatives that are drawn."""
    if not isinstance(teacher, PairTeacher):
        return
    known = drawn = 0
    for example in data.examples[:: max(1, len(data) // 1000)]:
        negatives = example.negatives[: candidates.depth]
        known += int(np.isfinite(teacher.scores([example.query_id], [list(negatives)])).sum()) if negatives else 0
        drawn += len(negatives)
    logger.info("%s scored %d of %d hard negatives looked at of %s", teacher.name, known, drawn, data.name)
    if known < LEAST_KNOWN * drawn:
        raise InputError(
            f"{teacher.name} scored {known} of the {drawn} hard negatives that {data.name} draws from: its cache is of "
            "other negatives",
            "osn teach with the same --negatives and --depth, or name it in objective.teachers to have it done",
        )


def mined(config: SparseConfig, sets: Sequence[TrainingData], miner: Path | None = None) -> list[TrainingData]:
    """The sets with hard negatives, mined where queries have too few; left out is what the consistency filter says.

    miner: the model that "student" means.
    """
    candidates, spec = config.candidates, config.candidates.mine
    if spec is None:
        return list(sets)
    name, made_by = spec, spec
    if spec == STUDENT:
        assert miner is not None
        name, made_by = f"sparse:{miner}", hash_files(miner)
    slug = f"{spec.partition(':')[0]}-{fingerprint(made_by, candidates.depth, candidates.consistency)[:6]}"
    found: list[TrainingData] = []
    for one in sets:
        fewest = int(np.diff(one.negatives.offsets).min(initial=candidates.negatives))
        if fewest >= candidates.negatives and candidates.consistency is None:
            found.append(one)
            continue
        vectors = config.folder / "negatives" / f"{one.name}.{slug}-{one.documents.hash}.vectors"
        more = with_mined(
            one,
            name,
            config.folder / "negatives" / f"{one.name}.{slug}-{one.hash}.jsonl",
            depth=candidates.depth,
            cache=None if spec == "bm25" else vectors,
            add=len(one.negatives.values) > 0,
            consistency=candidates.consistency,
        )
        for note in more.notes[len(one.notes) :]:
            logger.info("%s: %s", one.name, note)
        found.append(more)
    if not any(len(one) for one in found):
        raise InputError(
            f"the consistency filter leaves no query: {spec} finds no positive in its top {candidates.consistency}",
            "raise candidates.consistency, or mine with a better retriever",
        )
    return found


def train_sparse(config: SparseConfig, *, documents: int | None = None) -> Trained:
    """The whole schedule: warm-up, the miner where one is asked for, pre-training, fine-tuning.

    IDF is frozen over the stages: that of the last one's documents. Interrupted at any point, the same call goes on:
    stages that are done are not repeated. documents: of each corpus so many, beside those that its questions need.
    """
    check_output(config.output, KIND)
    stage, folder = config.pretraining, config.folder
    mines = [one.candidates.mine for one in (stage, config) if one is not None]
    if stage is None and STUDENT in mines:
        raise InputError(
            "candidates.mine is student: that is the student trained without pre-training, and there is no pretraining",
            "name another miner, or a pretraining",
        )
    for one in (stage, config):
        if one is not None:
            check_names(one)
    if config.student.idf not in ("train", "own", "none"):
        load_idf(config.student.idf)
    prepared = prepare(_as_dense(config), folder=folder, documents=documents)
    warm = config.stage(config, config.output, warmed_up(config, prepared))
    if stage is None:
        return train_stage(warm, prepared, output=config.output, whole=config)
    before = prepare(_as_dense(config.stage(stage, config.output, warm.start)), folder=folder, documents=documents)
    miner, first = (config.output / FOLDER / name for name in ("miner", "pretrained"))
    if STUDENT in mines:
        mine = "bm25" if config.candidates.mine == STUDENT else config.candidates.mine
        train_stage(replace(warm, candidates=replace(config.candidates, mine=mine)), prepared, output=miner)
    lexicon = [one.documents for one in prepared.train]
    train_stage(config.stage(stage, first, warm.start), before, output=first, lexicon=lexicon, miner=miner)
    last = config.stage(config, config.output, str(first))
    return train_stage(last, prepared, output=config.output, miner=miner, whole=config)


def check_names(stage: StageSettings) -> None:
    """Raises InputError and ModelError for a miner or teacher that cannot be had, before anything is computed."""
    mine = stage.candidates.mine
    if mine is not None and mine != STUDENT:
        check_spec(mine)
    for name in stage.objective.teachers:
        if name != LEXICAL:
            locate(name)


def _as_dense(config: SparseConfig) -> DenseConfig:
    """What `bi_encoder.prepare` reads of a configuration: data sets and how dev is drawn."""
    return DenseConfig(
        output=config.output,
        train=list(config.train),
        dev=list(config.dev),
        unseen=list(config.unseen),
        selection=config.selection,
        training=config.training,
    )


# ------------------------------------------------ warm-up


class _Documents:
    """Documents of several sets as examples of a warm-up: a document is its own candidate."""

    def __init__(self, sets: Sequence[TrainingData]) -> None:
        self.data = RetrievalData(sets, negatives=0, depth=1)
        self.sets = tuple(
            one._replace(start=start, stop=start + len(of.documents))
            for one, of, start in zip(
                self.data.sets,
                sets,
                np.cumsum([0, *(len(of.documents) for of in sets)])[:-1].tolist(),
                strict=True,
            )
        )

    def __len__(self) -> int:
        return self.sets[-1].stop

    def __getitem__(self, visit: Visit) -> Drawn:
        at = next(at for at, one in enumerate(self.sets) if visit.index < one.stop)
        return Drawn(at, 0, 0, visit.index - self.sets[at].start, [])


WARM_UP_STEPS = ("identity", "masked-lm", "calibrated", "impacts")


def warmed_up(config: SparseConfig, prepared: Prepared) -> str:
    """The model that the first stage starts from: `config.start`, or what the warm-up makes of it."""
    settings, folder = config.warm_up, config.folder / "warm-up"
    model, tokenizer, fresh = load_start(config.start, config.student)
    if not fresh and not settings.masked_lm_steps and not settings.impact_steps:
        return config.start
    training = config.training
    made_by = fingerprint(
        settings,
        config.student,
        hash_files(locate(config.start)),
        (training.seed, training.precision),
        [one.hash for one in prepared.train],
    )
    folder = folder.with_name(f"warm-up-{made_by[:8]}")
    ready = folder / "ready"
    if (ready / "config.json").exists():
        return str(ready)
    with main_process_first():
        if not (ready / "config.json").exists():
            set_seed(config.training.seed)
            start, masked, calibrated, impacts = (folder / name for name in WARM_UP_STEPS)
            backbones.save(model, tokenizer, start)
            if settings.masked_lm_steps:
                start = _masked_lm(config, start, masked)
            _calibrated(replace(config, start=str(start)), prepared, calibrated)
            if settings.impact_steps:
                calibrated = _to_impacts(replace(config, start=str(calibrated)), prepared, impacts)
            final, tokenizer, _ = load_start(calibrated, config.student)
            with tempfile.TemporaryDirectory(dir=folder) as beside:
                backbones.save(final, tokenizer, Path(beside) / "model")
                (Path(beside) / "model").replace(ready)
            for name in WARM_UP_STEPS:
                shutil.rmtree(folder / name, ignore_errors=True)
    return str(ready)


def _masked_lm(config: SparseConfig, start: Path, output: Path) -> Path:
    settings = config.warm_up
    corpora = settings.corpus or [one.path for one in config.train if one.path.is_dir()]
    if not corpora:
        raise InputError("no corpus to warm up on", "name warm_up.corpus, or set warm_up.masked_lm_steps to 0")
    return masked_lm.run(
        masked_lm.MaskedLmConfig(
            output=output,
            corpus=corpora,
            backbone=str(start),
            max_length=settings.length,
            dev_share=0.0,
            training=_warming(config, settings.masked_lm_steps, settings.masked_lm_learning_rate, bucket=16),
        )
    )


def _calibrated(config: SparseConfig, prepared: Prepared, output: Path) -> None:
    settings = config.warm_up
    student = build(config, [one.documents for one in prepared.train]).eval()
    if settings.expansions is not None:
        rng = np.random.default_rng([config.training.seed, 64])
        stores = [one.documents for one in prepared.train]
        chosen = [stores[at % len(stores)] for at in range(CALIBRATION)]
        texts = [store.text_at(int(rng.integers(len(store)))) for store in chosen]
        calibrate(student, texts, expansions=settings.expansions, weight=settings.weight)
    sparse_models.put_last_layer(student.model, student._names, student.head)
    backbones.save(student.model, student.tokenizers["document"], output)


def _to_impacts(config: SparseConfig, prepared: Prepared, output: Path) -> Path:
    settings = config.warm_up
    student = build(
        replace(config, document_length=settings.length), [one.documents for one in prepared.train], to_impacts=True
    )
    train(
        student,
        _Documents(prepared.train),
        collate(config, prepared.train, student, teachers=[[] for _ in prepared.train]),
        settings=_warming(config, settings.impact_steps, settings.impact_learning_rate),
        output=output,
        kind=KIND,
        config=settings,
        data_hash=fingerprint([one.hash for one in prepared.train]),
    )
    return output


def _warming(config: SparseConfig, steps: int, learning_rate: float, **settings: Any) -> TrainingSettings:
    """Of a warm-up: on the device, and with the numbers, of the training that follows."""
    training = config.training
    return TrainingSettings(
        steps=steps,
        batch_size=config.warm_up.batch_size,
        learning_rate=learning_rate,
        precision=training.precision,
        seed=training.seed,
        device=training.device,
        **settings,
    )


# ------------------------------------------------ the command


def rehearse(config: SparseConfig) -> Trained:
    """Everything that `config` asks, on the first rows of its data, two steps a stage, nothing kept."""

    def rows_of(stage: StageSettings) -> int:
        return max(32, 2 * stage.training.batch_size)

    def small(stage: StageSettings) -> dict[str, Any]:
        rows = rows_of(stage)
        return {
            "train": [replace(one, limit=min(one.limit or rows, rows)) for one in stage.train],
            # A miner of two steps finds hardly anything: its filter would leave nothing to train on.
            "candidates": replace(stage.candidates, consistency=None),
            "training": replace(stage.training, steps=2, evaluate_every=1, save_every=1, log_every=1),
        }

    with tempfile.TemporaryDirectory() as folder:
        before = config.pretraining
        warm_up = config.warm_up
        return train_sparse(
            replace(
                config,
                **small(config),
                output=Path(folder) / config.output.name,
                cache=None,
                pretraining=None if before is None else replace(before, **small(before)),
                dev=[replace(one, limit=min(one.limit or 8, 8)) for one in config.dev],
                selection=replace(
                    config.selection,
                    queries=8,
                    documents=64,
                    hold_back=rehearsed(config.selection.hold_back, rows_of(config)),
                ),
                warm_up=replace(
                    warm_up,
                    masked_lm_steps=min(2, warm_up.masked_lm_steps),
                    impact_steps=min(2, warm_up.impact_steps),
                ),
            ),
            documents=DRY_RUN_DOCUMENTS,
        )


@click.command("sparse")
@config_options(SparseConfig, shortcuts=BACKBONE)
def sparse_command(config: SparseConfig, dry_run: bool) -> None:
    """Train an inference-free sparse model: documents are encoded, queries only tokenized.

    \b
    osn train sparse --config inference-free-sparse --print-config
    osn train sparse --set 'train=[{path: scifact}]' --set selection.hold_back=0.1 --output models/sparse
    osn train sparse --set 'train=[{path: docs.jsonl.gz, questions: title}]' --set student.residual=true

    Prints dev measures, sparsity, and what presence and BM25 over word pieces give without training. Stopped at any
    point, the same command goes on.
    """
    trained = rehearse(config) if dry_run else train_sparse(config)
    if not is_main_process():
        return
    kept = "" if trained.best_step is None else f", the state after step {trained.best_step} kept"
    place = "nothing kept (dry run)" if dry_run else str(config.output)
    click.echo(f"{place}: {trained.steps} steps{kept}")
    for name, value in trained.measures.items():
        if not name.startswith(tuple(f"start {one}" for one in BASELINES)):  # They are the same at the end.
            click.echo(f"{name:>40}  {value:.4f}")
