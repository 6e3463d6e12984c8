"""Finds leaks: test questions and test documents that are in the training data.

    osn data leaks squad-mix:train squad-mix:test

A test question in training makes a measure meaningless. In many public collections (scifact, all one-corpus sets), test
documents are also positives of training questions; these are reported separately, because they favour models that memorize.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click
import numpy as np

from opensearch_neural.errors import InputError
from trainers.data.examples import TrainingData
from trainers.data.loading import load_training
from trainers.data.texts import TextStore, normalised

SHOWN = 10


@dataclass(frozen=True, slots=True)
class Leak:
    """A test question or document that is also in the training data."""

    kind: Literal["query", "document"]
    """what is shared: the question, or a document that answers it"""
    match: Literal["exact", "normalised"]
    """how the two texts are equal"""
    role: Literal["query", "positive", "negative"]
    """the role of the text in training"""
    train_id: str
    """the id in the training data"""
    test_id: str
    """the id in the test part"""
    text: str
    """the text in the test part"""

    def __str__(self) -> str:
        same = "is" if self.match == "exact" else "reads like"
        of = "" if self.kind == "query" else f" ({self.role})"
        return f"test {self.kind} {self.test_id!r} {same} train's {self.train_id!r}{of}: {self.text[:80]!r}"


@dataclass(frozen=True, slots=True)
class Leaks:
    """The leaks between two data sets."""

    train: str
    """name of the training data"""
    test: str
    """name of the test data"""
    leaks: list[Leak]
    """the leaks: shared questions, then shared documents"""
    queries: int
    """number of test questions"""
    documents: int
    """number of documents that answer test questions"""

    def of(self, kind: str) -> list[Leak]:
        return [leak for leak in self.leaks if leak.kind == kind]

    def report(self) -> str:
        """For each kind, the number of leaks and the first few of them."""
        lines = []
        for kind, total, plural in (("query", self.queries, "questions"), ("document", self.documents, "documents")):
            leaks = self.of(kind)
            exact = sum(leak.match == "exact" for leak in leaks)
            detail = f" ({exact} exactly, {len(leaks) - exact} by normalised text)" if leaks else ""
            lines.append(f"{len(leaks)} of {total} test {plural} of {self.test} are in {self.train}{detail}")
            lines += [f"  {leak}" for leak in leaks[:SHOWN]]
            if len(leaks) > SHOWN:
                lines.append(f"  … and {len(leaks) - SHOWN} more")
        return "\n".join(lines)


def find_leaks(train: TrainingData, test: TrainingData) -> Leaks:
    """Test questions, and documents that answer them, that are in train's examples, by exact or normalised text.

    A document counts if it is a positive or hard negative in train, not if it is only in the same corpus.
    """
    queries = train.query_rows.tolist(), sorted(set(test.query_rows.tolist()))
    positives = sorted(set(train.positives.values.tolist()))
    negatives = sorted(set(train.negatives.values.tolist()) - set(positives))
    answers = sorted(set(test.positives.values.tolist()))
    shared = list(_compare("query", "query", train.queries, queries[0], test.queries, queries[1]))
    for_positives = list(_compare("document", "positive", train.documents, positives, test.documents, answers))
    known = {leak.test_id for leak in for_positives}
    for_negatives = _compare("document", "negative", train.documents, negatives, test.documents, answers)
    shared += for_positives + [leak for leak in for_negatives if leak.test_id not in known]
    return Leaks(train.name, test.name, shared, len(queries[1]), len(answers))


def without_questions_of(train: TrainingData, others: Iterable[TrainingData]) -> TrainingData:
    """`train` without the examples whose question is also in `others`, by normalised text."""
    for other in others:
        questions = {normalised(other.queries.text_at(row)) for row in set(other.query_rows.tolist())}
        rows = enumerate(train.query_rows.tolist())
        clean = [index for index, row in rows if normalised(train.queries.text_at(row)) not in questions]
        lost, train = len(train) - len(clean), train.take(clean)
        if lost:
            train.notes.append(f"{train.name}: {lost} examples left out because {other.name} has them")
    return train


def without_documents_of(train: TrainingData, others: Iterable[TrainingData]) -> TrainingData:
    """`train` without the examples that have a relevant document of `others`, and without such hard negatives, by
    normalised text."""
    texts = {
        normalised(other.documents.text_at(row)): other.name
        for other in others
        for row in set(other.positives.values.tolist())
    }
    if not texts:
        return train
    document_rows = np.unique(np.concatenate([train.positives.values, train.negatives.values]))
    owners = ((row, texts.get(normalised(train.documents.text_at(row)))) for row in document_rows.tolist())
    shared = {row: owner for row, owner in owners if owner is not None}
    if not shared:
        return train
    clean = [index for index, rows in enumerate(train.positives) if shared.keys().isdisjoint(rows.tolist())]
    negatives = [[row for row in train.negatives[index].tolist() if row not in shared] for index in clean]
    lost, before, train = len(train) - len(clean), train, train.take(clean, negatives=negatives)
    names = " and ".join(sorted(set(shared.values())))
    if lost:
        train.notes.append(f"{train.name}: {lost} examples left out, whose documents are in {names}")
    if fewer := sum(len(before.negatives[index]) for index in clean) - len(train.negatives.values):
        train.notes.append(f"{train.name}: {fewer} hard negatives left out, which are in {names}")
    return train


def _compare(
    kind: Literal["query", "document"],
    role: Literal["query", "positive", "negative"],
    train: TextStore,
    train_rows: list[int],
    test: TextStore,
    test_rows: list[int],
) -> Iterator[Leak]:
    # hash() instead of the text keeps the table small; each match is confirmed by comparing texts.
    seen: dict[int, list[int]] = {}
    for row in train_rows:
        seen.setdefault(hash(normalised(train.text_at(row))), []).append(row)
    for row in test_rows:
        text = test.text_at(row)
        key = normalised(text)
        same = [row for row in seen.get(hash(key), []) if normalised(train.text_at(row)) == key]
        if not same:
            continue
        exact = [row for row in same if train.text_at(row) == text]
        yield Leak(kind, "exact" if exact else "normalised", role, train.ids[(exact or same)[0]], test.ids[row], text)


def load_named(spec: str) -> TrainingData:
    """The data named PATH or PATH:SPLIT."""
    path, colon, split = spec.rpartition(":")
    if not colon or Path(spec).exists():
        return load_training(spec)
    return load_training(path, split=split, name=f"{Path(path).resolve().name}:{split}")


@click.command("leaks")
@click.argument("train", metavar="TRAIN[:SPLIT]")
@click.argument("test", metavar="TEST[:SPLIT]")
@click.option("--documents", is_flag=True, help="Documents in common are a failure, too.")
@click.option("--json", "as_json", is_flag=True, help="Print every leak as a line of JSON.")
def leaks_command(train: str, test: str, documents: bool, as_json: bool) -> None:
    """List the test questions and documents that are in the training data.

    The exit status is 1 if there is a test question among them.

    \b
    osn data leaks squad-mix:train squad-mix:test
    """
    leaks = find_leaks(load_named(train), load_named(test))
    if as_json:
        for leak in leaks.leaks:
            click.echo(json.dumps(asdict(leak), ensure_ascii=False))
    else:
        click.echo(leaks.report())
    count = len(leaks.of("query")) + (len(leaks.of("document")) if documents else 0)
    if count:
        raise InputError(f"{count} test {'questions and documents' if documents else 'questions'} are in {leaks.train}")
