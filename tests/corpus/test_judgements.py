"""Queries and judgements, of BEIR and of TREC."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from corpus_files import RECORDS, ids, jsonl, written

from opensearch_neural.corpus.judgements import BeirData, JudgedQueries, read_qrels, read_queries
from opensearch_neural.errors import InputError


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("q.jsonl", b'{"_id": 1, "text": "what is it"}\n{"_id": "b", "text": "why", "metadata": {}}\n'),
        (
            "q.jsonl.gz",
            gzip.compress(b'{"qid": "1", "query": "what is it"}\n{"id": "b", "question": "why"}\n', mtime=0),
        ),
        ("q.tsv", b"1\twhat is it\nb\twhy\n"),
        ("q.tsv", b"query-id\ttext\n1\twhat is it\nb\twhy\n"),
        ("q.csv", b"id,query,title,_source\n1,what is it,a title,x\nb,why,,\n"),
        ("q.tsv", b"query-id\ttext\n1\twhat is it\nempty\t\nb\twhy\n"),
        ("q.jsonl", b'{"_id": 1, "text": "what is it"}\n{"_id": "e", "text": " "}\n{"_id": "b", "text": "why"}\n'),
    ],
)
def test_queries(name: str, data: bytes, tmp_path: Path) -> None:
    assert read_queries(written(tmp_path / name, data)) == {"1": "what is it", "b": "why"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b'{"_id": "1", "text": "a"}\n{"_id": "1", "text": "b"}',
            "line 2: the query id '1' occurs twice with different",
        ),
        (b'{"_id": "1"}', "line 1: expected a query with _id and text; the record has: _id"),
        (b"\n\n[]", "line 3: expected a JSON object"),
        (b"", "q.jsonl holds no query"),
        (b'{"_id": "1", "text": " "}', "q.jsonl holds no query"),
        (b"PAR1\x15\x04", "q.jsonl is a parquet file, not text"),
    ],
)
def test_queries_that_are_none_are_named_with_their_line(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        read_queries(written(tmp_path / "q.jsonl", data))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "data",
    [
        b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td 2\t0\nq2\td1\t-2\n",
        b"corpus_id\tscore\tquery_id\r\nd1\t1\tq1\r\nd 2\t0\tq1\r\nd1\t-2\tq2\r\n",
        b"q1\td1\t1\nq1\td 2\t0.0\nq2\td1\t-2",
        b"q1\tQ0\td1\t1\nq1\t0\td 2\t0\nq2\t0\td1\t-2",
    ],
)
def test_judgements(data: bytes, tmp_path: Path) -> None:
    assert read_qrels(written(tmp_path / "q.tsv", data)) == {"q1": {"d1": 1, "d 2": 0}, "q2": {"d1": -2}}


def test_judgements_of_trec_are_separated_by_any_blanks(tmp_path: Path) -> None:
    assert read_qrels(written(tmp_path / "q", b"101 0 doc-1   2\n101 0 doc-2 0\n")) == {"101": {"doc-1": 2, "doc-2": 0}}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"query-id\tcorpus-id\tscore\nq1\td1\n", "line 2: not a judgement: 'q1\\td1'"),
        (b"query-id\tdocument\nq1\td1\n", "line 1: expected the header query-id, corpus-id, score"),
        (b"q1\td1\tgood\n", "line 1: the grade must be a number, found 'good'"),
        (b"q1 0 d1 1e99\n", "line 1: the grade must be a number, found '1e99'"),
        (b"q1 0 d1 nan\n", "line 1: the grade must be a number, found 'nan'"),
        (b"q1\td1\t1\nq1\td1\t1\nq1\td1\t2\n", "line 3: 'q1' and 'd1' were judged otherwise before"),
        (b"q1\t\xff\t1\n", "line 1: invalid UTF-8"),
        (b"q1 0 d1 1\nq1 0 d2 1 2.5 tag\n", "grade (TREC); found 6 columns"),
        (b"q1 0 d1 \xd9\xa3\n", "line 1: the grade must be a number, found '\u0663'"),
        (b"", "q.tsv holds no judgement"),
        (b"query-id\tcorpus-id\tscore\n", "q.tsv holds no judgement"),
        (b"PK\x03\x04\x14\0", "q.tsv is a zip archive, not text"),
    ],
)
def test_judgements_that_are_none_are_named_with_their_line(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        read_qrels(written(tmp_path / "q.tsv", data))
    assert message in str(raised.value)


def beir_folder(folder: Path) -> Path:
    written(folder / "corpus.jsonl", jsonl(RECORDS))
    written(folder / "queries.jsonl", b'{"_id": "1", "text": "one"}\n{"_id": "2", "text": "two"}\n')
    written(folder / "qrels" / "train.tsv", b"query-id\tcorpus-id\tscore\n1\ta\t1\n")
    written(folder / "qrels" / "test.tsv", b"query-id\tcorpus-id\tscore\n2\tb\t1\n")
    return folder


def test_a_split_holds_its_own_queries_alone(tmp_path: Path) -> None:
    data = BeirData.load(beir_folder(tmp_path / "set"), "test")
    assert (data.name, data.queries, data.qrels) == ("set", {"2": "two"}, {"2": {"b": 1}})
    assert ids(data.corpus_path) == ["a", "b", "3"]


def test_the_plain_file_of_a_split_is_read_before_a_compressed_one(tmp_path: Path) -> None:
    """As for queries: what was unpacked and mended, or written anew, counts."""
    (tmp_path / "qrels").mkdir()
    written(tmp_path / "queries.jsonl", b'{"_id": "1", "text": "new"}\n')
    written(tmp_path / "queries.jsonl.gz", gzip.compress(b'{"_id": "1", "text": "old"}\n', mtime=0))
    written(tmp_path / "qrels" / "test.tsv", b"1\tnew\t1\n")
    written(tmp_path / "qrels" / "test.tsv.gz", gzip.compress(b"1\told\t1\n", mtime=0))
    judged = JudgedQueries.of_folder(tmp_path)
    assert (judged.queries, judged.qrels) == ({"1": "new"}, {"1": {"new": 1}})


def test_a_split_that_is_missing_names_those_that_are_there(tmp_path: Path) -> None:
    folder = beir_folder(tmp_path / "set")
    with pytest.raises(InputError, match=r"no judgements for the split 'dev' .*\n  available: test, train"):
        BeirData.load(folder, "dev")


def test_judged_queries_without_a_text_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = beir_folder(tmp_path / "set")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n2\tb\t1\n3\ta\t1\n4\ta\t1\n")
    (folder / "queries.jsonl").write_text('{"_id": "2", "text": "two"}\n{"_id": "3", "text": " "}\n')
    data = BeirData.load(folder, "test")
    assert (data.queries, data.qrels) == ({"2": "two"}, {"2": {"b": 1}})
    assert "2 judged queries are left out, '3' first: queries.jsonl has no text of them" in caplog.text
    assert "1 queries are empty" in caplog.text
    with pytest.raises(
        InputError, match=r"judges 1 queries, and .*queries\.jsonl has the text of none of them, for instance '1'"
    ):
        BeirData.load(folder, "train")


def test_fractions_of_grades_are_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = b"# judged in May\n#\nq1 0 d1 1.0  \nq1\t0\td2\t0.9\t\t\n\nq2 Q0 d1 -1.5\nq2 0 d2 5e-2\n#3 0 d1 2\n"
    qrels = read_qrels(written(tmp_path / "q", data))
    assert qrels == {"q1": {"d1": 1, "d2": 0.9}, "q2": {"d1": -1.5, "d2": 0.05}, "#3": {"d1": 2}}
    assert isinstance(qrels["q1"]["d1"], int)
    assert "2 comments are left out" in caplog.text


@pytest.mark.parametrize("comment", [b"# graded by 3", b"# version 2", b"#\tq1\t3", b"# 1.0"])
def test_a_hash_and_a_blank_begin_a_comment(comment: bytes, tmp_path: Path) -> None:
    for data in (comment + b"\nq1 0 d1 1\n", b"q1 0 d1 1\n" + comment + b"\n"):
        assert read_qrels(written(tmp_path / "q", data)) == {"q1": {"d1": 1}}


def test_a_grade_is_any_number_as_programs_write_it(tmp_path: Path) -> None:
    data = b"q 0 a 1.000000e+00\nq 0 b .5\nq 0 c 2E0\nq 0 d 5.e-1\n"
    assert read_qrels(written(tmp_path / "q", data)) == {"q": {"a": 1, "b": 0.5, "c": 2, "d": 0.5}}
    for grade in (b".", b"1e", b"1e99", b"e1", b"nan", b"inf"):
        with pytest.raises(InputError, match="grade must be a number"):
            read_qrels(written(tmp_path / "q", b"q 0 a " + grade + b"\n"))


@pytest.mark.parametrize("grade", ["1700000000", "1000001", "9e9", "1000000.5"])
def test_a_grade_that_is_a_time_or_an_id_is_refused(grade: str, tmp_path: Path) -> None:
    """trec_eval takes 8 bytes for each grade up to the highest; where it gets no memory, nDCG and AP were 0."""
    assert read_qrels(written(tmp_path / "q", b"q 0 a 1000000\n")) == {"q": {"a": 1_000_000}}
    with pytest.raises(
        InputError, match=r"line 2: the grade .* is above 1,000,000\n.*number of clicks, a time or an id"
    ):
        read_qrels(written(tmp_path / "q", f"q 0 a 1\nq 0 b {grade}\n".encode()))


def test_judgements_need_no_corpus(tmp_path: Path) -> None:
    queries, qrels = tmp_path / "queries.tsv", tmp_path / "judged.qrels"
    written(queries, b"q1\twhat causes a rainbow\nq2\tunjudged\n")
    written(qrels, b"q1 0 d1 0.5\n")
    judged = JudgedQueries.of_files(queries, qrels)
    assert (judged.name, judged.queries, judged.qrels) == (
        "judged",
        {"q1": "what causes a rainbow"},
        {"q1": {"d1": 0.5}},
    )
    folder = beir_folder(tmp_path / "set")
    (folder / "corpus.jsonl").unlink()
    assert JudgedQueries.of_folder(folder, "test").qrels == {"2": {"b": 1}}


def test_blanks_behind_a_judgement_of_beir_say_nothing(tmp_path: Path) -> None:
    data = b"query-id\tcorpus-id\tscore\t\nq1\td1\t1\t\nq1\td2\t2 \n"
    assert read_qrels(written(tmp_path / "q.tsv", data)) == {"q1": {"d1": 1, "d2": 2}}
