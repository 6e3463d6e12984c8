"""The corpus as TOME's stages see it, and the queries that lead to its documents."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")
from tome_setup import SMALL, config_for  # noqa: E402

from opensearch_neural.corpus.documents import Document  # noqa: E402
from opensearch_neural.errors import InputError  # noqa: E402
from trainers.data.loading import load_training  # noqa: E402
from trainers.data.settings import SetSettings  # noqa: E402
from trainers.data.texts import TextStore  # noqa: E402
from trainers.doc2query.settings import GenerationSettings, Sampling  # noqa: E402
from trainers.encoders import backbones  # noqa: E402
from trainers.tome import data as tome_data  # noqa: E402
from trainers.tome import train as tome  # noqa: E402
from trainers.tome.data import gather, split, tome_corpus  # noqa: E402
from trainers.tome.settings import TomeConfig  # noqa: E402
from trainers.tome.train import train_tome  # noqa: E402


def test_what_the_configuration_says_of_sampling_counts_also_where_it_is_the_default(
    zoo: Path, t5: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = tmp_path / "generator"
    generator.mkdir()
    trained = {"training": {"query_length": 9, "prefix": "ask: "}, "measures": {"copying": 8.0}}
    (generator / "osn.json").write_text(json.dumps({"format": 1, "kind": "doc2query", **trained}))
    drawn: list[Sampling] = []

    def write(generation: GenerationSettings, documents: TextStore, *, output: Path) -> None:
        drawn.append(generation.sampling())
        raise KeyboardInterrupt

    monkeypatch.setattr(tome, "load_generator", lambda generation: None)
    monkeypatch.setattr(tome_data, "generate_queries", write)
    untold = GenerationSettings(str(generator), candidates=3)
    for generation in (untold, replace(untold, copying=0.0, prefix="")):
        config = config_for(tmp_path / "tome", zoo, t5, queries=[], generation=generation)
        with pytest.raises(KeyboardInterrupt):
            train_tome(config)
    assert [(sampling.candidates, sampling.query_length, sampling.copying, sampling.prefix) for sampling in drawn] == [
        (3, 9, 8.0, "ask: "),
        (3, 9, 0.0, ""),
    ]


def test_documents_that_share_a_url_are_refused(zoo: Path, t5: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    lines = (zoo / "corpus.jsonl").read_text().splitlines()
    corpus.write_text("\n".join([*lines, lines[2].replace('"d2"', '"again"')]) + "\n")
    with pytest.raises(InputError, match=r"'d2' and 'again' have the same URL 'https://zoo\.org/bird'"):
        train_tome(config_for(tmp_path / "tome", zoo, t5, corpus=corpus, queries=[]))


def test_queries_of_other_documents_are_refused(zoo: Path) -> None:
    data = load_training(zoo)
    with pytest.raises(InputError, match="the document 'd0' of query 'q0-0' is not in the corpus"):
        gather([data], TextStore([("d9", "another")]))


def test_questions_of_the_test_split_are_left_out_where_asked(zoo: Path, t5: Path, tmp_path: Path) -> None:
    config = config_for(tmp_path, zoo, t5, unseen=[SetSettings(zoo, name="same")])
    assert [len(one) for one in tome_data.read_sets(config)] == [0]


def test_questions_of_the_test_split_are_left_out_of_what_a_generator_writes(
    zoo: Path, t5: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(generation: GenerationSettings, documents: TextStore, *, output: Path) -> None:
        output.parent.mkdir(parents=True)
        header = {"osn": "generated-queries", "format": 1, "documents": documents.hash}
        lines = [header, {"_id": "d0", "queries": [{"text": "Cat food"}, {"text": "cats at home"}]}]
        output.write_text("".join(json.dumps(line) + "\n" for line in lines))

    trained: list[list[str]] = []

    def stage(config: TomeConfig, stage: str, *others: Any) -> Any:
        trained.append([text for _, text in others[2].queries.texts.items()])
        raise KeyboardInterrupt

    monkeypatch.setattr(tome, "load_generator", lambda generation: None)
    monkeypatch.setattr(tome_data, "generate_queries", write)
    monkeypatch.setattr(tome, "_train_stage", stage)
    test = SetSettings(zoo, split="test")
    config = config_for(tmp_path / "tome", zoo, t5, queries=[], generation=GenerationSettings("some"), unseen=[test])
    with pytest.raises(KeyboardInterrupt):
        train_tome(config)
    assert trained == [["cats at home"]], "'cat food' is a question of the test split"


def test_so_many_generated_queries_of_a_document_and_no_more(zoo: Path, t5: Path, tmp_path: Path) -> None:
    path, labelled = tmp_path / "queries.jsonl", tmp_path / "labelled"
    queries = [{"text": f"question {number}"} for number in range(5)]
    path.write_text("".join(json.dumps({"_id": f"d{at}", "queries": queries}) + "\n" for at in range(3)))
    # A person's questions may be numbered as generated ones are.
    (labelled / "qrels").mkdir(parents=True)
    shutil.copy(zoo / "corpus.jsonl", labelled)
    asked = {f"d0#{number}": f"what is it, {number}" for number in range(3)}
    lines = [json.dumps({"_id": query, "text": text}) for query, text in asked.items()]
    (labelled / "queries.jsonl").write_text("\n".join(lines) + "\n")
    judged = ["query-id\tcorpus-id\tscore", *(f"{query}\td0\t1" for query in asked)]
    (labelled / "qrels" / "train.tsv").write_text("\n".join(judged) + "\n")

    sets = [SetSettings(labelled), SetSettings(path, corpus=zoo)]
    config = config_for(tmp_path, zoo, t5, queries=sets)
    assert [len(one) for one in tome_data.read_sets(config)] == [3, 15]
    data = tome_data.read_sets(replace(config, candidates=2))
    assert [len(one) for one in data] == [3, 6]
    kept = gather(data, data[0].documents)
    assert len(kept.pairs) == 9 and kept.texts.ids[-1] == "queries/d2#1"


def test_questions_of_dpr_name_documents_of_the_corpus(zoo: Path, t5: Path, tmp_path: Path) -> None:
    entry = {"question": "who purrs", "positive_ctxs": [{"passage_id": "d0", "text": "cats purr"}]}
    (tmp_path / "dpr.json").write_text(json.dumps([entry]))
    (data,) = tome_data.read_sets(config_for(tmp_path, zoo, t5, queries=[SetSettings(tmp_path / "dpr.json")]))
    assert data.examples[0].positives == ("d0",)


def test_dev_queries_do_not_train_and_their_documents_do(zoo: Path) -> None:
    data = load_training(zoo)
    queries = gather([data], data.documents)
    train, dev = split(queries, 0.25, seed=1)
    assert len(dev.pairs) == 4 and len(train.pairs) == 12
    assert not set(dev.pairs[:, 0]) & set(train.pairs[:, 0])
    assert np.array_equal(split(queries, 0.25, seed=1)[1].pairs, dev.pairs)
    assert len(split(queries, 0.0, seed=1)[1].pairs) == 0


def test_a_question_that_is_asked_twice_is_in_train_or_in_dev(zoo: Path) -> None:
    """By its text: a query generator writes questions of its training set again, and the same for two documents."""
    data = load_training(zoo)
    queries = gather([data, replace(data, name="generated")], data.documents)
    train, dev = split(queries, 0.25, seed=1)
    assert len(train.pairs) + len(dev.pairs) == 32
    texts = [{queries.texts.text_at(row) for row in part.pairs[:, 0].tolist()} for part in (train, dev)]
    assert len(texts[1]) == 4 and not texts[0] & texts[1]


def test_urls_that_a_tokenizer_changes_are_told_apart_from_those_that_are_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lower = backbones.train_tokenizer(["https zoo org cat dog : / ."] * 3, "wordpiece", 60)
    lower.eos_token, lower.pad_token = "[SEP]", "[PAD]"
    with caplog.at_level(logging.WARNING):
        tome_corpus([Document("a", "x", "", "zoo/Cat"), Document("b", "y", "", "zoo/dog")], lower, SMALL)
    assert "2 of 2 URLs cannot be restored from their tokens" in caplog.text
    with pytest.raises(InputError, match=r"'a' and 'b' have URLs that the tokenizer of .* cannot tell apart"):
        tome_corpus([Document("a", "x", "", "zoo/Cat"), Document("b", "y", "", "zoo/cat")], lower, SMALL)
