"""What `osn train sparse` measures while it trains."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

torch = pytest.importorskip("torch")

from tiny_sparse import SMALL, configuration, student  # noqa: E402

from opensearch_neural.retrievers.bm25 import BM25Retriever  # noqa: E402
from trainers.data.dev_sets import dev_set  # noqa: E402
from trainers.sparse.settings import BM25Settings, SparseObjective  # noqa: E402
from trainers.sparse.student_measures import DevRetrieval  # noqa: E402


def test_the_sum_ranks_by_bm25_plus_the_weighted_student(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(backbone, beir, tmp_path)
    dev = dev_set(config.train[0].load(), queries=5, documents=20, seed=0)
    objective = SparseObjective(info_nce=1.0, kl=0.0, base="bm25", sparse_weight=0.7)
    model = student(replace(config, objective=objective))
    retrieval, encode = DevRetrieval(model, [dev], config.bm25), model.lexicon.encoder.query.encode
    retrieval.measures()
    run = retrieval.trained_sum(dev.queries, dev.documents)
    bm25 = BM25Retriever(list(dev.documents), dev.documents.values(), analyzer="english").retrieve(dev.queries, 100)
    vectors = dict(zip(dev.documents, model.vectors(list(dev.documents.values())).rows(), strict=True))
    for query, text in dev.queries.items():
        expected = {
            document: bm25[query].get(document, 0.0)
            + 0.7 * sum(weight * vectors[document].get(token, 0.0) for token, weight in encode(text).items())
            for document in dev.documents
        }
        assert run[query] == pytest.approx({hit: score for hit, score in expected.items() if score > 0}, rel=1e-5)
        assert list(run[query].values()) == sorted(run[query].values(), reverse=True)


def test_a_silent_student_adds_nothing_to_bm25(tmp_path: Path, backbone: Path, beir: Path) -> None:
    config = configuration(backbone, beir, tmp_path, objective=SparseObjective(info_nce=1.0, kl=0.0, base="bm25"))
    dev = [dev_set(config.train[0].load(), queries=20, documents=40, seed=0)]
    model = student(config)
    with torch.no_grad():
        model.head.bias.fill_(-1e4)
    silent = DevRetrieval(model, dev, config.bm25).measures()
    assert silent["sparse alone nDCG@10"] == 0 < silent["nDCG@10"] == silent["BM25 nDCG@10"]


def test_the_baseline_and_the_sum_on_dev_have_the_bm25_that_is_configured(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    config = configuration(backbone, beir, tmp_path)
    dev = dev_set(config.train[0].load(), queries=20, documents=40, seed=0)
    model, ids, texts = student(config), list(dev.documents), dev.documents.values()
    with torch.no_grad():
        model.head.bias.fill_(-1e4)
    for settings in (BM25Settings(), BM25Settings("standard"), BM25Settings(k1=0.3, b=0.0)):
        retrieval = DevRetrieval(model, [dev], settings)
        retrieval.measures()
        retriever = BM25Retriever(ids, texts, analyzer=settings.analyzer, k1=settings.k1, b=settings.b)
        expected = retriever.retrieve(dev.queries, 100)
        assert retrieval.searched_sum(dev.queries, dev.documents) == expected


def test_what_needs_no_training_is_measured_with_the_table_before_training(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    """A run that is continued measures it after its table was trained."""
    config = configuration(backbone, beir, tmp_path, student=replace(SMALL, idf_rate=20.0))
    dev = [dev_set(config.train[0].load(), queries=20, documents=40, seed=0)]
    model = student(config)

    def baselines() -> dict[str, float]:
        measured = DevRetrieval(model, dev, config.bm25).measures()
        return {name: value for name, value in measured.items() if name.startswith(("presence", "word-piece"))}

    before = baselines()
    with torch.no_grad():
        model.log_idf_factors.fill_(-200)  # so that no word counts
    assert before and baselines() == before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"analyzer": "french"}, "'french' of an index cannot be followed"),
        ({"k1": -1.0}, "k1 must be at least 0"),
        ({"k1": float("nan")}, "k1 must be at least 0"),
        ({"b": 1.1}, "b from 0 to 1"),
    ],
)
def test_a_bm25_that_no_index_has_or_that_cannot_be_followed_is_refused(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        BM25Settings(**settings)


def test_without_a_base_the_students_own_measures_come_first_and_the_sum_that_is_served_beside_them(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    config = configuration(backbone, beir, tmp_path)
    model = student(config)
    dev = [dev_set(config.train[0].load(), queries=20, documents=40, seed=0)]
    measures = DevRetrieval(model, dev, config.bm25).measures()
    assert "sparse alone nDCG@10" not in measures
    assert measures["BM25 + sparse nDCG@10"] > measures["nDCG@10"]


def test_the_noted_questions_of_each_state_have_the_means_that_were_measured(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    config = configuration(backbone, beir, tmp_path)
    model = student(config)
    dev = dev_set(config.train[0].load(), queries=20, documents=40, seed=0)
    retrieval, file = DevRetrieval(model, [dev], config.bm25), tmp_path / "questions.jsonl"
    told = []
    for bias in (0.0, -1e4):
        with torch.no_grad():
            model.head.bias += bias
        told.append(retrieval.measures())
        retrieval.note_questions(file)
    states = [json.loads(line)[dev.name] for line in file.read_text().splitlines()]
    for measures, state in zip(told, states, strict=True):
        assert state.keys() == {"BM25", "BM25 + sparse"}
        for name, of_question in state.items():
            assert of_question.keys() == dev.queries.keys()
            assert fmean(of_question.values()) == pytest.approx(measures[f"{name} nDCG@10"], abs=1e-12)
    assert states[0]["BM25 + sparse"] != states[1]["BM25 + sparse"] == states[1]["BM25"]


def test_with_a_base_the_sum_that_is_served_is_measured_too_with_the_weight_of_a_search(
    tmp_path: Path, backbone: Path, beir: Path
) -> None:
    config = configuration(backbone, beir, tmp_path)
    dev = [dev_set(config.train[0].load(), queries=20, documents=40, seed=0)]
    base = SparseObjective(info_nce=1.0, kl=0.0, base="bm25", sparse_weight=1e-6)
    plain, based = (
        DevRetrieval(student(replace(config, objective=each)), dev, config.bm25).measures()
        for each in (config.objective, base)
    )
    assert based["BM25 + sparse nDCG@10"] == plain["BM25 + sparse nDCG@10"] != based["nDCG@10"]
    assert based["sparse alone nDCG@10"] == plain["nDCG@10"]
