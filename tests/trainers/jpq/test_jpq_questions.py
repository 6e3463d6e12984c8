"""Which documents are relevant to a question, and which are no negatives."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")
pytest.importorskip("faiss")
from jpq_setup import DOCUMENTS  # noqa: E402
from tiny import WORDS, tiny_beir  # noqa: E402
from training_files import write_lines  # noqa: E402

from trainers.common.sampling import Visit  # noqa: E402
from trainers.jpq.jpq_model import JpqModel  # noqa: E402
from trainers.jpq.preparation import Preparation  # noqa: E402
from trainers.jpq.questions import JpqBatch, JpqCollate, TrainingQuestions, load_data  # noqa: E402
from trainers.jpq.settings import JpqConfig, JpqObjective, JpqSelection, JpqSet, NegativeSettings  # noqa: E402
from trainers.jpq.train import train_jpq  # noqa: E402


def test_no_relevant_document_is_a_negative_nor_a_copy_of_one(config: JpqConfig, tmp_path: Path, beir: Path) -> None:
    import json
    import shutil

    folder = shutil.copytree(beir, tmp_path / "beir")
    lines = (folder / "corpus.jsonl").read_text().splitlines()
    copy = json.loads(lines[1]) | {"_id": "copy"}  # d1 again, with other punctuation
    copy["text"] = copy["text"].upper() + "!"
    (folder / "corpus.jsonl").write_text("\n".join([*lines, json.dumps(copy)]) + "\n")
    ready = Preparation(replace(config, train=[JpqSet(folder)], cache=tmp_path / "cache"))
    data = TrainingQuestions(ready.data, (False,))
    index = ready.data.query_rows.tolist().index(ready.data.queries.row("q1"))
    found = {ready.data.documents.ids[row] for row in data.judged[index].tolist()}
    assert found == {"d1", "copy"}


@pytest.mark.parametrize("sets", [1, 2])
def test_a_query_that_is_a_document_is_no_negative_of_itself(
    config: JpqConfig, tmp_path: Path, beir: Path, sets: int
) -> None:
    """As in ArguAna and Quora; an id that a query and another document share by chance says nothing."""
    folder = shutil.copytree(beir, tmp_path / "beir")
    documents = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    queries = [json.loads(line) for line in (folder / "queries.jsonl").read_text().splitlines()]
    own = {"_id": "q1", "title": "On words", "text": queries[1]["text"].upper()}
    write_lines(folder / "corpus.jsonl", [*documents, own, own | {"_id": "q2"}])
    train = [JpqSet(folder, name=name) for name in ("one", "two")[:sets]]
    data, _ = load_data(replace(config, train=train, dev=[]))
    # Two sets of one corpus share it, under the first one's name.
    of_query, of_document = ("two/", "one/") if sets == 2 else ("", "")
    some_ranking = np.tile(np.arange(10), (len(data), 1))
    for ranked in (False, True):
        questions = TrainingQuestions(data, (ranked,) * sets, some_ranking)

        def no_negatives(query: str, questions: TrainingQuestions = questions) -> set[str]:
            index = data.query_rows.tolist().index(data.queries.row(of_query + query))
            relevant = questions[Visit(index, 0, 0, 7)].relevant
            return {data.documents.ids[row].removeprefix(of_document) for row in relevant.tolist()}

        assert "q1" in no_negatives("q1") and "q2" not in no_negatives("q2")
        if not ranked:
            assert (no_negatives("q1"), no_negatives("q2")) == ({"d1", "q1"}, {"d2"})


def test_held_back_documents_are_neither_negatives_nor_drawn_from_the_ranking(config: JpqConfig) -> None:
    for labels, apart in (("judged", "documents"), ("judged", "questions"), ("ranking", "documents")):
        selection = JpqSelection(hold_back=40, apart=apart)  # type: ignore[arg-type]
        objective = JpqObjective(labels=labels)  # type: ignore[arg-type]
        ready = Preparation(replace(config, dev=[], selection=selection, objective=objective))
        (held,) = ready.dev_data
        answers = set(held.positives.values.tolist())
        ranking = ready.ranking(ready.data, 10) if labels == "ranking" else None
        data = TrainingQuestions(ready.data, (labels == "ranking",), ranking)
        withheld = set(data.no_negatives(asked_only=False).tolist())
        assert withheld == (answers if apart == "documents" else set())
        if ranking is not None:
            assert not answers & set(ranking.ravel().tolist())
        assert answers <= set(data.no_negatives(asked_only=True).tolist())


def test_what_is_left_out_is_found_on_dev_and_in_no_step(config: JpqConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held-back documents, and with asked_only all that no question of train is about."""
    found: dict[bool, set[int]] = {}
    search = JpqModel.search

    def noted(self: JpqModel, *arguments: Any, **named: Any) -> Any:
        scores, rows = search(self, *arguments, **named)
        found.setdefault(self.training, set()).update(rows.ravel().tolist())
        return scores, rows

    monkeypatch.setattr(JpqModel, "search", noted)
    training = replace(config.training, steps=4, evaluate_every=4)
    plain = replace(config, dev=[], selection=JpqSelection(hold_back=40), training=training)
    asked = replace(plain, output=config.output / "asked", negatives=NegativeSettings(depth=DOCUMENTS, asked_only=True))
    whole = replace(plain, output=config.output / "whole", negatives=NegativeSettings(depth=DOCUMENTS))
    for each in (asked, whole):
        found.clear()
        train_jpq(each)
        data, (held,) = load_data(each)
        answers, of_train = set(held.positives.values.tolist()), set(data.positives.values.tolist())
        everything = set(range(DOCUMENTS))
        assert answers & found[False]
        assert found[True] - {-1} == (of_train if each is asked else everything - answers)


def test_of_the_uncompressed_ranking_one_is_drawn_and_what_ranks_higher_is_no_negative(config: JpqConfig) -> None:
    ready = Preparation(replace(config, objective=JpqObjective(labels="ranking")))
    ranking = ready.ranking(ready.data, 10)
    data = TrainingQuestions(ready.data, (True,), ranking)
    drawn = {}
    for epoch in range(40):
        question = data[Visit(3, epoch, 0, 7)]
        at = ranking[3].tolist().index(question.positive)
        assert question.relevant.tolist() == sorted(ranking[3][: at + 1].tolist())
        drawn[at] = True
    assert len(drawn) > 5


def test_judged_questions_and_questions_made_of_all_documents_train_together(config: JpqConfig, tmp_path: Path) -> None:
    beir = tiny_beir(tmp_path / "whole", documents=DOCUMENTS, seed=3)
    drawn = random.Random(1)
    lines = [json.loads(line) for line in (beir / "corpus.jsonl").read_text().splitlines()]
    with (beir / "corpus.jsonl").open("w") as file:
        for line in lines:
            text = f"{' '.join(drawn.sample(WORDS, 6))}. {line['text']} {' '.join(drawn.sample(WORDS, 20))}."
            file.write(json.dumps({**line, "text": text}) + "\n")
    both = replace(
        config,
        train=[JpqSet(beir), JpqSet(beir, questions="first-sentence", name="made")],
        dev=[],
        selection=JpqSelection(hold_back=20, apart="questions"),
        training=replace(config.training, steps=8, set_weights=0.0, evaluate_every=4),
    )
    ready = Preparation(both)
    assert both.ranked == (False, True)
    # One corpus, whose documents the made questions share; only judged ones are held back.
    assert len(ready.data.documents) == len(ready.documents) == DOCUMENTS
    judged, made = ready.data.sets
    assert (judged.document_start, judged.document_stop) == (made.document_start, made.document_stop)
    (dev,) = ready.dev_sets()
    assert len(dev.qrels) == 20
    assert all(query.startswith(f"{judged.name}/") for query in dev.qrels)
    data = TrainingQuestions(ready.data, both.ranked, ready.ranking(ready.data, 10))
    collate = JpqCollate(ready.data, ready.model.query, 16, teacher=ready.question_vectors(ready.data))
    for one, taught in ((judged, False), (made, True)):
        batch = collate([data[Visit(one.start + at, 0, 0, 7)] for at in range(4)])
        assert (batch.teacher is not None) == taught
    of_judged = data[Visit(judged.start, 0, 0, 7)]
    assert of_judged.positive in ready.data.positives[judged.start]
    seen: list[bool] = []
    forward = JpqModel.forward

    def noted(self: JpqModel, batch: JpqBatch) -> Any:
        seen.append(batch.teacher is not None)
        return forward(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JpqModel, "forward", noted)
        assert train_jpq(both).steps == 8
    assert set(seen) == {True, False}
