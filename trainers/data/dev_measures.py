"""Dev measures during training, on a part of the corpus that is encoded anew each time; test measures afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.measures import Measured, measure
from opensearch_neural.retrievers import Run
from trainers.common.config import fingerprint
from trainers.data.examples import TrainingData
from trainers.data.negatives import open_retriever

MEASURES = ("nDCG@10", "RR@10", "R@100")
DEPTH = 100

Retrieve = Callable[[Mapping[str, str], Mapping[str, str]], Run]
"""({query id: text}, {document id: text}) → run of `DEPTH` documents per query, by the model in its present state."""


@dataclass(frozen=True, slots=True)
class DevSet:
    """Questions with their judgements, and the documents to search."""

    name: str
    queries: dict[str, str]
    """{query id: text}"""
    documents: dict[str, str]
    """{document id: text}"""
    qrels: dict[str, dict[str, int]]
    """{query id: {document id: grade}}"""

    @property
    def hash(self) -> str:
        """16 hex digits that change with what the set measures."""
        return fingerprint(self.queries, self.documents, self.qrels)


def dev_set(data: TrainingData, *, queries: int, documents: int, seed: int) -> DevSet:
    """A dev set of at most `queries` questions, with all their positives and random documents, `documents` in all.

    A smaller corpus is easier, so dev measures can only compare states of one training.
    """
    texts, qrels = data.query_texts(), data.qrels()
    drawn = random.Random(f"{seed} dev {data.name}")
    chosen = sorted(drawn.sample(sorted(texts), min(queries, len(texts))))
    judged = {query: dict.fromkeys(data.known_positives(query), 1) | qrels[query] for query in chosen}
    kept = sorted({document for of_query in judged.values() for document in of_query})
    known = set(kept)
    others = [document for document in data.documents.ids if document not in known]
    kept += drawn.sample(others, min(len(others), max(0, documents - len(kept))))
    return DevSet(
        data.name,
        {query: texts[query] for query in chosen},
        {document: data.documents[document] for document in kept},
        judged,
    )


def dev_measures(sets: Sequence[DevSet], retrieve: Retrieve) -> dict[str, float]:
    """The mean of each measure over the sets; with several sets, also the first measure of each set."""
    if not sets:
        raise InputError("there is no dev set to measure on")
    each = {dev.name: measure(retrieve(dev.queries, dev.documents), dev.qrels, MEASURES).mean for dev in sets}
    means = {name: sum(measures[name] for measures in each.values()) / len(each) for name in MEASURES}
    if len(each) == 1:
        return means
    return means | {
        f"{name_of_set} {name}": measures[name] for name_of_set, measures in each.items() for name in MEASURES[:1]
    }


def corpus_measures(retriever: str, test: TrainingData, *, cache: Path | None = None) -> Measured:
    """Measures of a retriever (see `open_retriever`) on a test split: the whole corpus, all judgements."""
    run = open_retriever(retriever, test.documents, cache=cache).retrieve(test.query_texts(), DEPTH)
    return measure(run, test.qrels(), MEASURES)
