"""Rows of parquet files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from corpus_files import RECORDS, numbered, parquet, read, written

from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.errors import InputError


def test_an_empty_file_is_no_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="parquet needs the extra [corpora]")
    with pytest.raises(InputError, match=r"c\.parquet: cannot be read as parquet"):
        read(written(tmp_path / "c.parquet", b""))


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    data = parquet(RECORDS, tmp_path / "c.parquet").read_bytes()
    with pytest.raises(InputError, match=r"c\.parquet: .*truncated or damaged"):
        read(written(tmp_path / "c.parquet", data[:-20]))


def test_a_damaged_row_group_ends_the_reading(tmp_path: Path) -> None:
    records = [json.loads(line) for line in numbered(0, 3000).splitlines()]
    path = parquet(records, tmp_path / "c.parquet", row_group_size=1000, use_dictionary=False)
    from pyarrow import parquet as pq

    with pq.ParquetFile(path) as file:
        column = file.metadata.row_group(1).column(1)
        start, length = column.data_page_offset, column.total_compressed_size
    data = bytearray(path.read_bytes())
    data[start : start + length] = b"\xff" * length
    path.write_bytes(data)
    documents: list[int] = []
    with pytest.raises(InputError) as raised:
        for document in read_corpus(path, on_reject=print):
            documents.append(int(document.id))
    assert documents == list(range(1000))
    assert "c.parquet, row 1001: row group 2 is damaged, 1,000 of its rows cannot be read" in raised.value.message


def test_rows_of_parquet_are_refused_alone_and_types_that_json_lacks_are_written_as_text(tmp_path: Path) -> None:
    from datetime import date, datetime
    from decimal import Decimal

    base = {"id": 1, "text": "t", "day": date(2020, 1, 2), "at": datetime(2020, 1, 2, 3), "price": Decimal("1.50")}
    extra = {"x": 1.5, "raw": b"bytes", "deep": {"a": [1, None]}}
    rows = [
        {**base, **extra},
        {**base, **extra, "x": float("nan")},
        {**base, **extra, "raw": b"\xff"},
        {**base, "text": None},
        {**base, "id": 5},
    ]
    documents, rejected = read(parquet(rows, tmp_path / "c.parquet"))
    assert [(document.id, document.line) for document in documents] == [("1", 1), ("5", 5)]
    assert documents[0].fields == {
        "day": "2020-01-02",
        "at": "2020-01-02T03:00:00",
        "price": 1.5,
        "x": 1.5,
        "raw": "bytes",
        "deep": {"a": [1, None]},
    }
    assert [(reject.line, reject.reason[:11]) for reject in rejected] == [
        (2, "nan in a fi"),
        (3, "binary data"),
        (4, "no text: ex"),
    ]
    raws = [json.loads(reject.raw) for reject in rejected]
    assert raws[0] | {"x": 1.5} == {"id": 1, "text": "t", **documents[0].fields}, "the values of its document"
    assert raws[1]["raw"] == "\udcff" and raws[2]["id"] == 1


def test_the_letter_of_a_row_that_cannot_be_converted_holds_the_row_and_is_refused_until_it_is_mended(
    tmp_path: Path,
) -> None:
    """It held an empty text."""
    pa = pytest.importorskip("pyarrow", reason="parquet needs the extra [corpora]")
    from pyarrow import parquet as pq

    texts = pa.array([b"rain", b"snow \xff"], pa.binary()).cast(pa.string(), safe=False)
    tags = pa.array([[("a", "b")]] * 2, pa.map_(pa.string(), pa.string()))
    pq.write_table(pa.table({"id": ["1", "2"], "text": texts, "tags": tags}), tmp_path / "c.parquet")
    documents, (rejected,) = read(tmp_path / "c.parquet")
    assert [document.id for document in documents] == ["1"] and rejected.reason == "invalid UTF-8"
    assert json.loads(rejected.raw) == {"id": "2", "text": "snow \udcff", "tags": {"a": "b"}}
    (_, (again,)) = read(written(tmp_path / "letters.jsonl", rejected.raw.encode()))
    assert "half a surrogate pair" in again.reason


def test_decimals_without_a_fraction_are_whole_numbers_with_all_their_digits(tmp_path: Path) -> None:
    """As databases export ids: they were rounded to doubles, and refused as ids."""
    from decimal import Decimal

    large = 2**53 + 1
    row = {"id": Decimal(large), "text": "t", "account": Decimal(-large), "price": Decimal("10.00")}
    (document,), rejected = read(parquet([row], tmp_path / "c.parquet"))
    assert (document.id, document.fields, rejected) == (str(large), {"account": -large, "price": 10.0}, [])
    assert isinstance(document.fields["price"], float)


def test_a_map_is_an_object_that_is_found_by_its_keys(tmp_path: Path) -> None:
    """pyarrow gives lists of pairs, of which a search finds neither."""
    pa = pytest.importorskip("pyarrow", reason="parquet needs the extra [corpora]")
    from pyarrow import parquet as pq

    maps = pa.array([[("colour", "red"), ("size", "M")], [], None], pa.map_(pa.string(), pa.string()))
    texts = ["rain", "sun", b"snow \xff"]
    table = pa.table({"_id": ["1", "2", "3"], "text": pa.array(texts, pa.binary()), "of": maps})
    pq.write_table(table.set_column(1, "text", table["text"].cast(pa.string(), safe=False)), tmp_path / "c.parquet")
    documents, rejected = read(tmp_path / "c.parquet")
    assert [document.fields.get("of") for document in documents] == [{"colour": "red", "size": "M"}, {}]
    assert len(rejected) == 1


def test_what_writers_keep_beside_their_data_is_not_read(tmp_path: Path) -> None:
    for name in ("part-0.parquet", "day=1/part-1.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        parquet(RECORDS[:1], tmp_path / name)
    for name in ("_temporary/0/part-0.parquet", ".part-0.parquet", "_metadata.parquet", "day=1/.hidden/x.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"half written")
    assert [document.id for document in read_corpus(tmp_path)] == [RECORDS[0]["_id"]] * 2


def test_every_parquet_file_below_a_folder_is_read_also_by_links_and_other_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of these, the reader took one without a word, and refused the folder without it."""
    folder, elsewhere = tmp_path / "c", tmp_path / "elsewhere"
    names = ["a.parquet", "b.pq", "c.PARQUET", "deep/d.parquet"]
    for number, place in enumerate([*(folder / name for name in names), elsewhere / "e.parquet"]):
        place.parent.mkdir(parents=True, exist_ok=True)
        parquet([{"id": str(number), "text": "rain"}], place)
    (folder / "link").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(folder)
    (folder / "twice").symlink_to(folder / "deep")
    (folder / "more.jsonl.gz").write_bytes(b"")
    (folder / "README.md").write_bytes(b"")
    assert [document.id for document in read_corpus(folder)] == ["0", "1", "2", "3", "4"]
    (told,) = caplog.messages
    assert "its parquet files are read, and not 1 others, such as" in told and told.endswith("more.jsonl.gz")
    for name in ("a.parquet", "b.pq", "c.PARQUET"):
        (folder / name).unlink()
    assert [document.id for document in read_corpus(folder)] == ["3", "4"]


def test_columns_that_only_the_names_of_folders_hold_are_fields(tmp_path: Path) -> None:
    """As Hive and Spark write them: they were lost."""
    for number, name in enumerate(["day=2025-03-14/lang=de%2FCH", "day=__HIVE_DEFAULT_PARTITION__", "own=7"]):
        (tmp_path / name).mkdir(parents=True)
        parquet([{"id": str(number), "text": "rain", "own": "1"}], tmp_path / name / "p.parquet")
    fields = {document.id: document.fields for document in read_corpus(tmp_path)}
    assert fields == {"0": {"own": "1", "day": "2025-03-14", "lang": "de/CH"}, "1": {"own": "1"}, "2": {"own": "1"}}


def test_a_text_in_a_struct_a_map_or_a_list_of_structs_is_found(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="parquet needs the extra [corpora]")
    kinds = [
        (pa.struct([("body", pa.string()), ("lang", pa.string())]), {"body": "rain", "lang": "en"}, {"lang": "en"}),
        (pa.map_(pa.string(), pa.string()), [("body", "rain"), ("lang", "en")], {"lang": "en"}),
        (
            pa.list_(pa.struct([("body", pa.string()), ("page", pa.int64())])),
            [{"body": "rain", "page": 1}],
            [{"page": 1}],
        ),
    ]
    from pyarrow import parquet as pq

    for kind, value, rest in kinds:
        table = pa.table({"id": pa.array([1]), "content": pa.array([value], kind)})
        pq.write_table(table, tmp_path / "c.parquet")
        (document,), rejected = read(tmp_path / "c.parquet", text_field="content.body")
        assert (document.text, document.fields, rejected) == ("rain", {"content": rest}, [])
        with pytest.raises(InputError, match=r"no text column; its columns are: id, content"):
            read(tmp_path / "c.parquet", text_field="id.body")
