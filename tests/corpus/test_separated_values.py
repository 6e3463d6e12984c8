"""Rows of csv and tsv."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpus_files import read, written

from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.errors import InputError


def test_rows_of_csv_name_the_line_on_which_they_begin(tmp_path: Path) -> None:
    rows = [
        b"id,title,text,year",
        b'1,t,"two\n\nlines",',
        b"",
        b"2,t,too,many,columns",
        b"3,t,Stra\xdfe,2000",
        b'4,t,"unbalanced" quotes,',
        b",t,no id,",
        b"6,t,good,1999",
        b"",
    ]
    documents, rejected = read(written(tmp_path / "c.csv", b"\r\n".join(rows)))
    assert [(d.id, d.text, d.fields, d.line) for d in documents] == [
        ("1", "two\n\nlines", {}, 2),
        ("6", "good", {"year": "1999"}, 10),
    ]
    assert [(reject.line, reject.reason[:30]) for reject in rejected] == [
        (6, "expected 4 columns as in the h"),
        (7, "invalid UTF-8"),
        (8, "not a row of csv: ',' expected"),
        (9, "the id (id) is empty"),
    ]
    assert [reject.raw for reject in rejected][1:3] == ["3,t,Stra\\xdfe,2000", '4,t,"unbalanced" quotes,']


@pytest.mark.parametrize(
    "rows",
    [
        b'3,"never closed\n4,c\n5,d\n',
        b'3,"closed by another cell\n4,c\n5,"d"\n6,e\n',
        b'3,"closed by another row\n4,c\n5,",d\n6,e\n',
    ],
)
def test_a_quotation_mark_that_takes_other_rows_with_it_ends_the_reading(rows: bytes, tmp_path: Path) -> None:
    read: list[str] = []
    with pytest.raises(
        InputError, match=r"c\.csv, line 4: a quotation mark makes one row of the lines 4 to 6"
    ) as raised:
        for document in read_corpus(written(tmp_path / "c.csv", b"id,text\n1,a\n2,b\n" + rows), on_reject=print):
            read.append(document.id)
    assert read == ["1", "2"] and raised.value.remedy


def test_a_csv_whose_columns_are_not_known_is_refused_with_their_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"c\.csv, line 1: no text column; its columns are: id, words"):
        read(written(tmp_path / "c.csv", b"id,words\n1,a\n"))
    with pytest.raises(InputError, match="the column 'id' occurs twice"):
        read(written(tmp_path / "c.csv", b"id,text,id\n1,a,2\n"))


def test_a_tsv_of_two_columns_without_a_header_is_id_and_text_as_in_ms_marco(tmp_path: Path) -> None:
    documents, rejected = read(written(tmp_path / "c.tsv", b"0\tthe \"presence\n1\tof 'communication\n2\n"))
    assert [(d.id, d.text, d.line) for d in documents] == [("0", 'the "presence', 1), ("1", "of 'communication", 2)]
    assert [(reject.line, reject.reason) for reject in rejected] == [
        (3, "expected 2 columns as in the header, found 1")
    ]


def test_texts_beyond_the_csv_modules_own_limit_are_read(tmp_path: Path) -> None:
    (document,), rejected = read(written(tmp_path / "c.csv", b"id,text\n1," + b"x" * 500_000))
    assert (len(document.text), rejected) == (500_000, [])
