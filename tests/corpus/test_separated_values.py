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
    assert [reject.raw for reject in rejected] == [
        "2,t,too,many,columns",
        '{"id": "3", "title": "t", "text": "Stra\\udcdfe", "year": "2000"}',
        '4,t,"unbalanced" quotes,',
        '{"id": "", "title": "t", "text": "no id"}',
    ]


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


def test_a_csv_with_semicolons_is_refused_by_that_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="separated by semicolons: id;text"):
        read(written(tmp_path / "c.csv", b"id;text\n1;a\n"))


def test_a_tsv_of_two_columns_without_a_header_is_id_and_text_as_in_ms_marco(tmp_path: Path) -> None:
    documents, rejected = read(written(tmp_path / "c.tsv", b"0\tthe \"presence\n1\tof 'communication\n2\n3\ta\n"))
    assert [(d.id, d.text, d.line) for d in documents] == [
        ("0", 'the "presence', 1),
        ("1", "of 'communication", 2),
        ("3", "a", 4),
    ]
    assert [(reject.line, reject.reason) for reject in rejected] == [
        (3, "expected an id and a text, and a tab between them")
    ]


@pytest.mark.parametrize("part", ["id_field", "text_field", "title_field"])
def test_a_tsv_has_a_header_if_a_column_of_it_is_named(part: str, tmp_path: Path) -> None:
    """The header became the document `key`, and --text-field was ignored."""
    path = written(tmp_path / "c.tsv", b"key\tabstract\n1\train\n")
    with pytest.raises(InputError, match=r"no (id|text) column; its columns are: key, abstract"):
        read(path, **{part: "key" if part == "id_field" else "abstract"})
    (document,), _ = read(path, id_field="key", text_field="abstract")
    assert (document.id, document.text) == ("1", "rain")


@pytest.mark.parametrize("rows", [b"0\tone\ttwo\n1\tthree\n", b"1\tthree\n0\tone\ttwo\n"])
def test_a_tab_in_the_text_of_two_columns_without_a_header_is_part_of_it(rows: bytes, tmp_path: Path) -> None:
    """As in queries of BEIR's robust04, wherever the first such line stands."""
    documents, rejected = read(written(tmp_path / "c.tsv", rows))
    assert ({d.id: d.text for d in documents}, rejected) == ({"0": "one\ttwo", "1": "three"}, [])


def test_more_columns_without_a_header_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"c\.tsv, line 1: no id column; its columns are: D1, https://e\.org, Title, Text"
    ):
        read(written(tmp_path / "c.tsv", b"D1\thttps://e.org\tTitle\tText\nD2\thttps://e.org\tTitle\tText\n"))


def test_a_quotation_mark_in_a_tsv_is_a_letter_and_swallows_no_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = b'id\ttext\n1\t"Heroes" is a song\n2\t"never closed\n3\tplain\n4\t"whole"\n'
    documents, rejected = read(written(tmp_path / "c.tsv", data))
    assert rejected == []
    assert [(d.id, d.text) for d in documents] == [
        ("1", '"Heroes" is a song'),
        ("2", '"never closed'),
        ("3", "plain"),
        ("4", '"whole"'),
    ]
    assert "line 5: a cell in quotation marks" in caplog.text and "--format quoted-tsv" in caplog.text


def test_a_quoted_tsv_is_read_as_a_csv_where_that_is_said(tmp_path: Path) -> None:
    path = written(tmp_path / "c.tsv", b'id\ttext\n1\t"a\tb\nc ""d"""\n2\te\n')
    documents, rejected = read(path, format="quoted-tsv")
    assert ([(d.id, d.text) for d in documents], rejected) == ([("1", 'a\tb\nc "d"'), ("2", "e")], [])


@pytest.mark.parametrize("name", ["c.csv", "c.tsv"])
def test_a_column_without_a_name_is_refused_at_once(name: str, tmp_path: Path) -> None:
    """As pandas writes its index."""
    data = b",id,text\n0,1,a\n".replace(b",", b"\t" if name == "c.tsv" else b",")
    with pytest.raises(InputError, match="line 1: column 1 of 3 has no name") as raised:
        read(written(tmp_path / name, data))
    assert "index=False" in str(raised.value.remedy)


def test_texts_beyond_the_csv_modules_own_limit_are_read(tmp_path: Path) -> None:
    (document,), rejected = read(written(tmp_path / "c.csv", b"id,text\n1," + b"x" * 500_000 + b"\n"))
    assert (len(document.text), rejected) == (500_000, [])
