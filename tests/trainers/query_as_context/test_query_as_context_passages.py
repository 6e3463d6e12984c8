"""Documents become passages, passages get queries, and nothing that is tested on trains."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")
from query_as_context_setup import settings, with_queries, write_corpus  # noqa: E402
from tiny import WORDS, tiny_beir  # noqa: E402

from trainers.data.loading import read_documents  # noqa: E402
from trainers.data.settings import SetSettings  # noqa: E402
from trainers.query_as_context.passages import read_passages, write_passages  # noqa: E402
from trainers.query_as_context.settings import CorpusSettings  # noqa: E402


def test_passages_are_whole_sentences_that_fit(tmp_path: Path, backbone: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    first, second, third = (" ".join(WORDS[at : at + 4]) for at in (0, 4, 8))
    long = " ".join(WORDS[20:33])
    corpus.write_text(json.dumps({"_id": "d", "title": "T", "text": "\n".join([first, second, third, long])}) + "\n")
    (file,) = write_passages(settings(corpus, backbone, tmp_path / "out"))
    texts = [document.contents.split() for document in read_documents(file)]
    # 12 tokens less [CLS] and [SEP]: two sentences of 4 fit, a sentence of 13 words is cut.
    assert texts == [WORDS[0:8], WORDS[8:12], WORDS[20:30], WORDS[30:33]]


def test_articles_of_fewer_passages_than_asked_for_are_not_written(tmp_path: Path, backbone: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    texts = {"d1": WORDS[:14], "d2": WORDS[:9], "d3": WORDS[9:12]}
    titles = {"d1": "A", "d2": "B", "d3": "C"}
    lines = [{"_id": one, "title": titles[one], "text": " ".join(words)} for one, words in texts.items()]
    lines.append({"_id": "d4", "title": "C", "text": "bab"})
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (file,) = write_passages(settings(corpus, backbone, tmp_path / "out", least_passages=2))
    assert [document.id for document in read_documents(file)] == ["d1#0001", "d1#0002", "d3#0001", "d4#0001"]


def test_with_titles_a_passage_begins_with_its_documents(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    (file,) = write_passages(settings(corpus, backbone, tmp_path / "out", titles=True))
    assert all(document.contents.startswith("Article ") for document in read_documents(file))


def test_articles_are_known_by_title_or_url_and_left_out_whole_where_they_are_tested_on(
    tmp_path: Path, backbone: Path
) -> None:
    beir = tiny_beir(tmp_path / "beir", documents=8)
    lines = [json.loads(line) for line in (beir / "corpus.jsonl").read_text().splitlines()]
    for at, line in enumerate(lines):
        line |= {"title": f"Part {at // 2}", "url": f"https://x.org/{at // 4}#{at}"}
    (beir / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = settings(beir, backbone, tmp_path / "out", dev_share=0.0)
    assert read_passages(config).articles.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    by_url = replace(config, corpora=[CorpusSettings(beir, article="url")])
    assert read_passages(by_url).articles.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    alone = replace(config, corpora=[CorpusSettings(beir, article="document")])
    assert read_passages(alone).articles.tolist() == list(range(8))
    # d0 and d4 are dev's: with them go d1 and d5, the rest of their articles.
    unseen = replace(config, unseen=[SetSettings(beir, split="dev", name="dev")])
    assert [one.partition("#")[0] for one in read_passages(unseen).texts.ids] == [
        "beir/d2",
        "beir/d3",
        "beir/d6",
        "beir/d7",
    ]


def test_of_a_passage_the_first_queries_that_are_not_empty_count(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    config = with_queries(settings(corpus, backbone, tmp_path / "out", dev_share=0.0), tmp_path / "q.jsonl")
    header, *lines = map(json.loads, (tmp_path / "q.jsonl").read_text().splitlines())
    for line in lines:
        line["queries"][0]["text"] = " "
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [header, *lines]))
    passages = read_passages(replace(config, candidates=1))
    assert [len(of) for of in passages.candidates] == [1] * 36


def test_a_document_that_a_corpus_has_twice_is_one(tmp_path: Path, backbone: Path) -> None:
    once, twice = (write_corpus(tmp_path / f"{name}.jsonl") for name in ("once", "twice"))
    lines = twice.read_text().splitlines()
    twice.write_text("\n".join([lines[0], *lines]) + "\n")
    first, second = (read_passages(settings(one, backbone, tmp_path / one.stem)) for one in (once, twice))
    assert first.articles.tolist() == second.articles.tolist()
    assert len(second.texts) == len(second.articles) == len(second.candidates)


def test_a_corpus_that_changed_is_cut_and_asked_about_anew(tmp_path: Path, backbone: Path, corpus: Path) -> None:
    config = settings(corpus, backbone, tmp_path / "out")
    (before,) = write_passages(config)
    (again,) = write_passages(config)
    assert again == before
    write_corpus(corpus, seed=1)
    (after,) = write_passages(config)
    assert after != before and after.exists()
