"""Preparation before training: vectors, quantizer, codes, rankings, dev sets. Results are kept on disk."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import set_seed

from opensearch_neural.evaluation.measures import measure
from opensearch_neural.files import replaced
from opensearch_neural.models.dense.dense_encoder import DenseEncoder
from opensearch_neural.models.dense.torch_encoder import TorchDenseEncoder, load_dense
from trainers.common.config import fingerprint
from trainers.common.processes import main_process_first
from trainers.data.dev_sets import DEPTH, MEASURES, own_ids, without_own
from trainers.data.embedding_cache import dense_vectors
from trainers.data.examples import TrainingData
from trainers.data.texts import TextStore
from trainers.jpq.jpq_model import CodedDocuments, JpqModel
from trainers.jpq.quantizer import check_fits, codes_of, kept_quantizer
from trainers.jpq.query_tower import QueryTower, TokenTable, query_tower
from trainers.jpq.questions import Rows, load_data
from trainers.jpq.settings import JpqConfig

logger = logging.getLogger(__name__)


def document_vectors(start: DenseEncoder, documents: TextStore, folder: Path) -> npt.NDArray[np.float32]:
    """The documents' vectors, (documents, D), memory-mapped; kept in `folder`, encoded if missing."""
    return dense_vectors(
        start.encode_documents,
        documents,
        folder / f"documents-{documents.hash}-{start.info.hash}",
        model=start.info,
        dimension=start.dimension,
        precision="float32",
    )


@dataclass
class CodedDevSet:
    """Questions, their relevant documents, and the documents to search."""

    queries: dict[str, str]
    """{query id: text}"""
    qrels: dict[str, dict[str, int]]
    """{query id: {document id: grade}}"""
    documents: CodedDocuments
    """the corpus with its codes"""
    own: dict[str, str]
    """{query id: document id} of queries that are documents themselves, which are no hits of theirs"""


class Preparation:
    """All inputs of the training; each part is kept in `config.folder`, and made if missing."""

    def __init__(self, config: JpqConfig, documents: int | None = None) -> None:
        """documents: how many to read of each corpus, besides those of the questions; None reads all."""
        self.config = config
        start = load_dense(config.start, device="cpu" if config.training.device == "cpu" else None)
        assert isinstance(start, TorchDenseEncoder)
        self.start = start
        # Refuses impossible settings before long work. A table of tokens is made from the whole encoder.
        query_tower(self.start, config, config.query_layers or None)
        self.data, self.dev_data = load_data(config, documents)
        check_fits(len(self.data.documents), self.start.dimension, config.quantizer)
        with main_process_first():
            self.vectors = document_vectors(self.start, self.data.documents, config.folder)
            self.quantizer = kept_quantizer(
                self.vectors,
                f"{self.data.documents.hash} {self.start.info.hash}",
                config.quantizer,
                seed=config.training.seed,
                folder=config.folder,
            )
        self.documents = self._coded(self.data.documents, self.vectors)
        set_seed(config.training.seed)
        self.model = JpqModel(self.start, self.quantizer, self.documents, config)
        if isinstance(self.model.query, TokenTable):
            self.model.query.weigh(self.data.queries.text_at(row) for row in np.unique(self.data.query_rows).tolist())
        if config.training.device_type == "cuda":  # Rankings are made before the loop moves the model.
            self.model.to(torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))))

    def _coded(self, documents: TextStore, vectors: npt.NDArray[np.float32]) -> CodedDocuments:
        config = self.config
        whole = any(config.ranked) or "uncompressed" in (config.objective.documents, config.negatives.search)
        return CodedDocuments(documents.ids, codes_of(self.quantizer, vectors), vectors if whole else None)

    @cached_property
    def teacher(self) -> QueryTower:
        """The whole query encoder of the start, the teacher; the trained encoder may have fewer layers."""
        whole = query_tower(self.start, self.config, None)
        return whole.to(self.model.scoring.device)

    def question_vectors(self, data: TrainingData) -> npt.NDArray[np.float32]:
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

    def ranking(self, data: TrainingData, k: int) -> Rows:
        """The k best documents of each example by the start model, uncompressed, but for those that the data withholds:
        (examples, k)."""
        made_of = fingerprint(data.hash, self.start.info.hash, self.config.query_length, k, "uncompressed")
        file = self.config.folder / f"ranking-{made_of}.npy"
        if not file.exists():
            logger.info("ranking the documents for %d questions", len(data))
            device = self.model.scoring.device
            queries = torch.from_numpy(self.question_vectors(data)).to(device)
            withheld = self.model.mask(data.withheld)
            best, _ = self.model.search_all(queries, k, self.documents.to(device), "uncompressed", withheld)
            with replaced(file) as beside:
                np.save(beside, best)
        rows: Rows = np.load(file, allow_pickle=False)
        return rows

    def dev_sets(self) -> list[CodedDevSet]:
        """The sets that select the state. Without judgements, the first ten documents of the ranking are relevant."""
        return [self._dev_set(data) for data in self.dev_data]

    def _dev_set(self, data: TrainingData) -> CodedDevSet:
        rng = np.random.default_rng(self.config.training.seed)
        examples = np.sort(rng.permutation(len(data))[: self.config.selection.queries])
        data = data.take(examples.tolist())
        of_train = data.documents is self.data.documents
        if of_train:
            documents = self.documents
        else:
            vectors = document_vectors(self.start, data.documents, self.config.folder)
            documents = self._coded(data.documents, vectors)
        qrels = data.qrels()
        if of_train and all(self.config.ranked):
            ids = data.documents.ids
            qrels = {
                query: {ids[row]: 1 for row in rows.tolist() if row >= 0}
                for query, rows in zip(qrels, self.ranking(data, 10), strict=True)
            }
        own = {query: document for query, document in own_ids(data).items() if document not in qrels[query]}
        return CodedDevSet(data.query_texts(), qrels, documents, own)


def dev_measures(model: JpqModel, sets: Sequence[CodedDevSet]) -> dict[str, float]:
    """The mean of each measure over the sets; searches the document vectors of `negatives.search`."""
    means: list[Mapping[str, float]] = []
    for dev in sets:
        documents = dev.documents.to(model.scoring.device)
        queries = model.query.encode(list(dev.queries.values()))
        rows, scores = model.search_all(queries, DEPTH, documents, model.settings.negatives.search)
        run = {
            query: {documents.ids[row]: float(score) for row, score in zip(best, values, strict=True) if row >= 0}
            for query, best, values in zip(dev.queries, rows.tolist(), scores.tolist(), strict=True)
        }
        means.append(measure(without_own(run, dev.own), dev.qrels, MEASURES).mean)
    return {name: sum(of_set[name] for of_set in means) / len(means) for name in MEASURES}
