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
"""Names of ir-measures, each with a cut-off; the first selects the state to keep, and is shown for each of several sets."""
DEPTH = 1 + max(int(name.rpartition("@")[2]) for name in MEASURES)
"""Documents to find: as many as the measures look at, and a query's own document, which is no hit."""

Retrieve = Callable[[Mapping[str, str], Mapping[str, str]], Run]
"""({query id: text}, {document id: text}) → run of `DEPTH` documents per query, by the model in its present state."""


@dataclass(frozen=True, slots=True)
class DevSet:
    """Questions with their judgements, and the documents to search."""

    name: str
    """of the set; with several dev sets also in the names of measures"""
    queries: dict[str, str]
    """{query id: text}"""
    documents: dict[str, str]
    """{document id: text}"""
    qrels: dict[str, dict[str, int]]
    """{query id: {document id: grade}}"""
    own: dict[str, str]
    """{query id: document id} of queries that are documents themselves (`TrainingData.own_documents`)"""

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
    own = own_ids(data)
    # A query's own document is no hit, so it is not relevant either, even if it reads as a relevant one does.
    relevant = {
        query: [document for document in data.known_positives(query) if document != own.get(query)] for query in chosen
    }
    judged = {query: dict.fromkeys(relevant[query], 1) | qrels[query] for query in chosen}
    corpus = sorted({document for of_query in judged.values() for document in of_query})
    known = set(corpus)
    others = [document for document in data.documents.ids if document not in known]
    corpus += drawn.sample(others, min(len(others), max(0, documents - len(corpus))))
    return DevSet(
        data.name,
        {query: texts[query] for query in chosen},
        {document: data.documents[document] for document in corpus},
        judged,
        own,
    )


def own_ids(data: TrainingData) -> dict[str, str]:
    """`TrainingData.own_documents` by ids."""
    return {data.queries.ids[query]: data.documents.ids[row] for query, row in data.own_documents.items()}


def without_own(run: Run, own: Mapping[str, str]) -> Run:
    """The run without each query's own document, as `osn eval` measures it."""
    return {
        query: {document: score for document, score in hits.items() if document != own.get(query)}
        for query, hits in run.items()
    }


def dev_measures(sets: Sequence[DevSet], retrieve: Retrieve) -> dict[str, float]:
    """The mean of each measure over the sets; with several sets, also the first measure of each set."""
    return means_of(dev_measured(sets, retrieve))


def dev_measured(sets: Sequence[DevSet], retrieve: Retrieve) -> dict[str, Measured]:
    """{set: its measures, also of each question}"""
    if not sets:
        raise InputError("there is no dev set to measure on")
    runs = ((dev, without_own(retrieve(dev.queries, dev.documents), dev.own)) for dev in sets)
    return {dev.name: measure(run, dev.qrels, MEASURES) for dev, run in runs}


def means_of(each: Mapping[str, Measured]) -> dict[str, float]:
    """The measures that `dev_measures` returns, of {set: its measures}."""
    means = {name: sum(measured.mean[name] for measured in each.values()) / len(each) for name in MEASURES}
    if len(each) == 1:
        return means
    return means | {f"{of} {name}": measured.mean[name] for of, measured in each.items() for name in MEASURES[:1]}


def corpus_measures(retriever: str, test: TrainingData, *, cache: Path | None = None) -> Measured:
    """Measures of a retriever (see `open_retriever`) on a test split: the whole corpus, all judgements."""
    run = open_retriever(retriever, test.documents, cache=cache).retrieve(test.query_texts(), DEPTH)
    return measure(without_own(run, own_ids(test)), test.qrels(), MEASURES)
