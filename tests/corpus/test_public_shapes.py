"""Files in the shapes of public collections, each written anew in a few lines: what is read of them, or what is said.

`make test-faults` counts them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from corpus_files import jsonl, parquet, read, written

from opensearch_neural.corpus.judgements import read_qrels, read_queries
from opensearch_neural.errors import InputError

Lines = list[dict[str, Any]]


def rows(cells: list[list[str]], delimiter: str = ",") -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=delimiter).writerows(cells)
    return out.getvalue().encode()


SEGMENT = {"title": "Tides", "headings": "The moon", "segment": "The moon pulls.", "start_char": 0, "end_char": 15}
LONG = "Water rises and falls twice a day. " * 4

CORPORA: dict[str, tuple[str, bytes, dict[str, Any], list[tuple[str, str, str]]]] = {
    # name: (file, content, options, [(id, title, text)])
    "BEIR": (
        "corpus.jsonl",
        jsonl([{"_id": "4983", "title": "Tides", "text": "Water rises.", "metadata": {}}]),
        {},
        [("4983", "Tides", "Water rises.")],
    ),
    "BEIR, Quora": (
        "corpus.jsonl",
        jsonl([{"_id": "1", "text": "Why are there tides?"}]),
        {},
        [("1", "", "Why are there tides?")],
    ),
    "MS MARCO passages": (
        "collection.tsv",
        b'0\tWater rises.\n1\tThe "moon" pulls.\n',
        {},
        [("0", "", "Water rises."), ("1", "", 'The "moon" pulls.')],
    ),
    "MS MARCO v2 passages": (
        "msmarco_passage_00.jsonl",
        jsonl(
            [{"pid": "msmarco_passage_00_0", "passage": "Water rises.", "spans": "(0,12)", "docid": "msmarco_doc_00_0"}]
        ),
        {},
        [("msmarco_passage_00_0", "", "Water rises.")],
    ),
    "MS MARCO v2 documents": (
        "msmarco_doc_00.jsonl",
        jsonl(
            [
                {
                    "url": "https://e.org",
                    "title": "Tides",
                    "headings": "The moon",
                    "body": "Water rises.",
                    "docid": "msmarco_doc_00_0",
                }
            ]
        ),
        {},
        [("msmarco_doc_00_0", "Tides", "Water rises.")],
    ),
    "MS MARCO v2.1 segments": (
        "msmarco_v2.1_doc_segmented_00.json",
        jsonl([{"docid": "d_00_0#0_0", "url": "https://e.org", **SEGMENT}]),
        {},
        [("d_00_0#0_0", "Tides", "The moon pulls.")],
    ),
    "Wikipedia passages of DPR": (
        "psgs_w100.tsv",
        b'id\ttext\ttitle\n1\t"The ""moon"" pulls."\tTides\n2\tWater rises.\tTides\n',
        {"format": "quoted-tsv"},
        [("1", "Tides", 'The "moon" pulls.'), ("2", "Tides", "Water rises.")],
    ),
    "KILT": (
        "kilt.jsonl",
        jsonl([{"_id": "290", "wikipedia_id": "290", "text": "Tides", "categories": "Moon,Water"}]),
        {},
        [("290", "", "Tides")],
    ),
    "MIRACL and Mr. TyDi": (
        "docs-0.jsonl",
        jsonl([{"docid": "12#0", "title": "น้ำขึ้น", "text": "ดวงจันทร์"}]),
        {},
        [("12#0", "น้ำขึ้น", "ดวงจันทร์")],
    ),
    "Anserini's lines": (
        "docs.jsonl",
        jsonl([{"id": "d1", "contents": "Tides\nWater rises."}]),
        {},
        [("d1", "", "Tides\nWater rises.")],
    ),
    "ir_datasets": (
        "docs.jsonl",
        jsonl([{"doc_id": "d1", "title": "Tides", "body": "Water rises.", "url": "https://e.org"}]),
        {},
        [("d1", "Tides", "Water rises.")],
    ),
    "CORD-19": (
        "metadata.csv",
        rows(
            [
                ["cord_uid", "sha", "title", "abstract", "publish_time", "url"],
                ["ug7v899j", "d1aafb70", "Tides", "Water, which rises.\nAnd falls.", "2001-07-04", ""],
            ]
        ),
        {"id_field": "cord_uid", "text_field": "abstract"},
        [("ug7v899j", "Tides", "Water, which rises.\nAnd falls.")],
    ),
    "arXiv's metadata": (
        "arxiv.json",
        jsonl(
            [
                {
                    "id": "0704.0001",
                    "title": "Tides",
                    "abstract": LONG,
                    "authors_parsed": [["Moon", "A.", ""]],
                    "versions": [{"version": "v1"}],
                }
            ]
        ),
        {"text_field": "abstract"},
        [("0704.0001", "Tides", LONG)],
    ),
    "product data": (
        "products.jsonl",
        jsonl([{"asin": "B001", "title": "Tide table", "description": "For sailors.", "price": 10.99}]),
        {"id_field": "asin", "text_field": "description"},
        [("B001", "Tide table", "For sailors.")],
    ),
    "The Pile and C4": (
        "c4.jsonl",
        jsonl([{"url": "https://e.org/a", "text": "Water rises.", "timestamp": "2019-04-25T12:57:54Z"}]),
        {"id_field": "url"},
        [("https://e.org/a", "", "Water rises.")],
    ),
    "chunks with metadata": (
        "chunks.jsonl",
        jsonl(
            [
                {
                    "id": "c-1",
                    "content": "Water rises.",
                    "metadata": {"source": "a.pdf", "page": 3, "loc": {"lines": {"from": 1}}},
                }
            ]
        ),
        {},
        [("c-1", "", "Water rises.")],
    ),
}

REFUSED: dict[str, tuple[str, bytes, str]] = {
    "pandas with its index": ("frame.csv", b",id,text\n0,a,Water rises.\n", "without a name|has no name|empty"),
    "arXiv's metadata without options": (
        "arxiv.json",
        jsonl([{"id": str(n), "title": "Tides", "abstract": LONG} for n in range(20)]),
        "--text-field abstract",
    ),
    "MS MARCO documents without a header": (
        "msmarco-docs.tsv",
        b"D1\thttps://e.org\tTides\tWater rises.\nD2\thttps://e.org\tMoon\tIt pulls.\n",
        "no id column; its columns are: D1",
    ),
    "SQuAD, one JSON object of many lines": (
        "train.json",
        b'{\n  "version": "1.1",\n  "data": []\n}\n',
        "not JSON|no id|expected",
    ),
}

QUERIES: dict[str, tuple[str, bytes, dict[str, str]]] = {
    "queries of BEIR": (
        "queries.jsonl",
        jsonl([{"_id": "q1", "text": "why tides", "metadata": {}}]),
        {"q1": "why tides"},
    ),
    "queries of MS MARCO": ("queries.dev.tsv", b"1048585\twhy tides\n", {"1048585": "why tides"}),
    "queries of robust04": (
        "queries.tsv",
        b"301\ttides\n302\tthe moon\tand tides\n",
        {"301": "tides", "302": "the moon\tand tides"},
    ),
}

QRELS: dict[str, tuple[bytes, dict[str, dict[str, int]]]] = {
    "judgements of BEIR": (b"query-id\tcorpus-id\tscore\nq1\td1\t1\n", {"q1": {"d1": 1}}),
    "judgements of TREC": (
        b"301 0 FBIS3-10082 1\n301 0 FBIS3-10169 0\n",
        {"301": {"FBIS3-10082": 1, "FBIS3-10169": 0}},
    ),
    "judgements of MS MARCO": (b"1048585\t0\t7187158\t1\n", {"1048585": {"7187158": 1}}),
}

Noting = Callable[[str, object], None]


@pytest.mark.parametrize("shape", CORPORA)
def test_a_corpus_of_this_shape_is_read(shape: str, tmp_path: Path, record_property: Noting) -> None:
    record_property("public_shape", shape)
    file, content, options, expected = CORPORA[shape]
    documents, rejected = read(written(tmp_path / file, content), **options)
    assert [(document.id, document.title, document.text) for document in documents] == expected and not rejected


@pytest.mark.parametrize("shape", ["Wikipedia on the hub", "a frame with an index level"])
def test_a_parquet_of_this_shape_is_read(shape: str, tmp_path: Path, record_property: Noting) -> None:
    record_property("public_shape", shape)
    lines: Lines = [{"id": "12", "url": "https://e.org", "title": "Tides", "text": "Water rises."}]
    if shape != "Wikipedia on the hub":
        lines = [{**line, "__index_level_0__": 7} for line in lines]
    (document,), rejected = read(parquet(lines, tmp_path / "train-00000-of-00041.parquet"))
    assert (document.id, document.title, document.url, rejected) == ("12", "Tides", "https://e.org", [])


@pytest.mark.parametrize("shape", REFUSED)
def test_a_file_of_this_shape_is_refused_with_what_helps(shape: str, tmp_path: Path, record_property: Noting) -> None:
    record_property("public_shape", shape)
    file, content, told = REFUSED[shape]
    with pytest.raises(InputError) as raised:
        _, rejected = read(written(tmp_path / file, content))
        assert rejected
        raise InputError(str(rejected[0]))
    assert any(part in f"{raised.value} {raised.value.remedy}" for part in told.split("|"))


@pytest.mark.parametrize("shape", QUERIES)
def test_queries_of_this_shape_are_read(shape: str, tmp_path: Path, record_property: Noting) -> None:
    record_property("public_shape", shape)
    file, content, expected = QUERIES[shape]
    assert read_queries(written(tmp_path / file, content)) == expected


@pytest.mark.parametrize("shape", QRELS)
def test_judgements_of_this_shape_are_read(shape: str, tmp_path: Path, record_property: Noting) -> None:
    record_property("public_shape", shape)
    content, expected = QRELS[shape]
    assert read_qrels(written(tmp_path / "test.tsv", content)) == expected
