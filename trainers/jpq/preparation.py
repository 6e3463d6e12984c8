"""What stands before training, each part kept on disk: vectors, quantizer, codes, rankings, dev sets."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import set_seed

from opensearch_neural.evaluation.measures import measure
from opensearch_neural.models.dense import TorchDenseEncoder, load_dense
from opensearch_neural.models.dense_encoder import DenseEncoder
from trainers.common.config import fingerprint
from trainers.common.dev_measures import DEPTH, MEASURES
from trainers.common.processes import main_process_first
from trainers.data.embedding_cache import dense_vectors
from trainers.data.examples import TrainingData
from trainers.data.texts import TextStore
from trainers.jpq.model import Corpus, JpqModel
from trainers.jpq.quantizer import check_fits, codes_of, fitted
from trainers.jpq.query_tower import QueryTower, query_tower
from trainers.jpq.questions import Rows, prepare
from trainers.jpq.settings import Documents, JpqConfig

logger = logging.getLogger(__name__)


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
