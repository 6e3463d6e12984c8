"""Data sets whose questions are made if they have none: from titles or first sentences, or by a query generator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opensearch_neural.errors import InputError, ModelError
from opensearch_neural.models.directory import hash_files, locate
from trainers.common.config import fingerprint
from trainers.data.examples import TrainingData
from trainers.data.loading import TRAIN, load_training, text_store
from trainers.data.settings import SetSettings
from trainers.data.unlabelled_questions import QUESTIONS, unlabelled
from trainers.doc2query.settings import GenerationSettings


@dataclass(slots=True)
class QuestionSet(SetSettings):
    """A data set, or a corpus without judgements, whose `questions` are made."""

    questions: str | None = None
    """makes questions: "title", "first-sentence" or a query generator (directory or hub id); null uses the data's own"""

    def __post_init__(self) -> None:
        SetSettings.__post_init__(self)
        own = {name: getattr(self, name) is not None for name in ("format", "corpus", "queries", "negatives")}
        without_effect = [name for name, is_set in {"split": self.split != TRAIN, **own}.items() if is_set]
        if self.questions is not None and without_effect:
            raise ValueError(
                f"{self.set_name}: with `questions` the path is a corpus, and every document of it gets a question, so "
                f"{' and '.join(without_effect)} would have no effect"
            )

    def load(self, folder: Path | None = None) -> TrainingData:
        if self.questions is None:
            # super() fails here: dataclass(slots=True) replaces the class.
            return SetSettings.load(self)
        if self.questions in QUESTIONS:
            return unlabelled(self.path, self.questions, name=self.set_name, limit=self.limit)
        return _generated(self.path, self.questions, name=self.set_name, limit=self.limit, folder=folder)


def _generated(corpus: Path, questions: str, *, name: str, limit: int | None, folder: Path | None) -> TrainingData:
    """Queries of a sequence-to-sequence model, kept in `folder` in a file named by generator and documents."""
    from trainers.common.processes import main_process_first
    from trainers.doc2query.generate import generate_queries

    if folder is None:
        raise ValueError("generated queries need a folder")
    try:
        generator = locate(questions)
    except ModelError as error:
        raise InputError(
            f"questions: {questions!r} is not title, first-sentence or a query generator: {error.message}",
            "expected title, first-sentence, or a model directory of osn train doc2query",
        ) from None
    documents = text_store(corpus, limit=limit)
    if not len(documents):
        raise InputError(f"{corpus} holds no document with text")
    generation = GenerationSettings(questions)
    made_by = fingerprint(hash_files(generator), generation.sampling(), documents.hash)
    file = folder / f"{name}.{made_by}.queries.jsonl"
    with main_process_first():
        generate_queries(generation, documents, output=file)
    return load_training(file, corpus=corpus, format="generated", name=name)
