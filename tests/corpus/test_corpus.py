"""Readers: every format gives the same documents, every defect costs the record that has it and is named."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opensearch_neural.corpus import readers as corpus
from opensearch_neural.corpus import text_lines as lines
from opensearch_neural.corpus.readers import BeirData, Document, Rejected, read_corpus, read_qrels, read_queries
from opensearch_neural.errors import InputError

RECORDS: list[dict[str, Any]] = [
    {"_id": "a", "title": "Rainbow", "text": "Light is refracted in drops.", "url": "https://e.org/a", "lang": "en"},
    {
        "_id": "b",
        "title": "",
        "text": 'Straße, "quotes",\ttabs\nand lines\n\nαβγ 😀',
        "url": "https://e.org/b",
        "lang": "de",
    },
    {"_id": "3", "title": "Only a title", "text": "", "url": "https://e.org/c", "lang": "fr"},
]
DOCUMENTS = [
    ("a", "Rainbow", "Light is refracted in drops.", "https://e.org/a", {"lang": "en"}),
    ("b", "", 'Straße, "quotes",\ttabs\nand lines\n\nαβγ 😀', "https://e.org/b", {"lang": "de"}),
    ("3", "Only a title", "", "https://e.org/c", {"lang": "fr"}),
]


def jsonl(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)


def separated(records: list[dict[str, Any]], delimiter: str) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(records[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue().encode()


def parquet(records: list[dict[str, Any]], path: Path, **options: Any) -> Path:
    pa = pytest.importorskip("pyarrow", reason="parquet needs the extra [corpora]")
    from pyarrow import parquet as pq

    pq.write_table(pa.Table.from_pylist(records), path, **options)
    return path


def zstd(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard", reason=".zst needs the extra [corpora]")
    return zstandard.ZstdCompressor().compress(data)


def written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def read(path: str | Path, **options: Any) -> tuple[list[Document], list[Rejected]]:
    rejected: list[Rejected] = []
    return list(read_corpus(path, on_reject=rejected.append, **options)), rejected


def ids(path: str | Path, **options: Any) -> list[str]:
    return [document.id for document in read(path, **options)[0]]


def saved_data_set(folder: Path) -> Path:
    datasets = pytest.importorskip("datasets", reason="data sets need the extra [corpora]")
    datasets.Dataset.from_list(RECORDS).save_to_disk(str(folder))
    return folder


def with_data_sets(path: Path) -> Path:
    pytest.importorskip("datasets", reason="data sets need the extra [corpora]")
    return path


FORMATS: dict[str, Callable[[Path], str | Path]] = {
    "BEIR folder": lambda f: written(f / "set" / "corpus.jsonl", jsonl(RECORDS)).parent,
    "BEIR folder, gzip": lambda f: (
        written(f / "set" / "corpus.jsonl.gz", gzip.compress(jsonl(RECORDS), mtime=0)).parent
    ),
    "BEIR folder, zstd": lambda f: written(f / "set" / "corpus.jsonl.zst", zstd(jsonl(RECORDS))).parent,
    "jsonl": lambda f: written(f / "c.jsonl", jsonl(RECORDS)),
    "jsonl with CRLF, BOM and blank lines": lambda f: written(
        f / "c.jsonl", b"\xef\xbb\xbf" + jsonl(RECORDS).replace(b"\n", b"\r\n\r\n")
    ),
    "jsonl without the last line end": lambda f: written(f / "c.ndjson", jsonl(RECORDS).rstrip()),
    "jsonl, gzip in three members": lambda f: written(
        f / "c.jsonl.gz", b"".join(gzip.compress(jsonl([record]), mtime=0) for record in RECORDS)
    ),
    "jsonl, zstd in three frames": lambda f: written(
        f / "c.jsonl.zst", b"".join(zstd(jsonl([record])) for record in RECORDS)
    ),
    "jsonl, gzip without the suffix": lambda f: written(f / "c.jsonl", gzip.compress(jsonl(RECORDS), mtime=0)),
    "csv": lambda f: written(f / "c.csv", separated(RECORDS, ",")),
    "csv, gzip": lambda f: written(f / "c.csv.gz", gzip.compress(separated(RECORDS, ","), mtime=0)),
    "tsv": lambda f: written(f / "c.tsv", separated(RECORDS, "\t")),
    "parquet": lambda f: parquet(RECORDS, f / "c.parquet"),
    "parquet in two files": lambda f: (
        parquet(RECORDS[2:], parquet(RECORDS[:2], f / "1.parquet").with_name("2.parquet")).parent
    ),
    "parquet in three row groups": lambda f: parquet(RECORDS, f / "c.parquet", row_group_size=1),
    "saved data set": lambda f: saved_data_set(f / "saved"),
    "hf: with a saved data set": lambda f: f"hf:{saved_data_set(f / 'saved')}",
    "hf: with a file": lambda f: f"hf:{with_data_sets(written(f / 'c.jsonl', jsonl(RECORDS)))}",
}


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_gives_the_same_documents(form: str, tmp_path: Path) -> None:
    documents, rejected = read(FORMATS[form](tmp_path))
    assert rejected == []
    assert [(d.id, d.title, d.text, d.url, d.fields) for d in documents] == DOCUMENTS


def test_contents_joins_title_and_text_and_strips_both() -> None:
    assert Document("1", " text ", " title ").contents == "title text"
    assert Document("1", "text").contents == "text"
    assert Document("1", "", "title").contents == "title"


def test_a_document_written_as_a_record_is_read_again_as_it_was(tmp_path: Path) -> None:
    document = Document("1", "text", "title", None, {"nested": {"a": [1, {"b": None}]}, "metadata": {}})
    (again,), _ = read(written(tmp_path / "c.jsonl", jsonl([document.record()])))
    assert (again.id, again.text, again.title, again.url, again.fields) == ("1", "text", "title", None, document.fields)


def test_other_names_of_the_parts_are_understood_and_can_be_given(tmp_path: Path) -> None:
    path = written(
        tmp_path / "c.jsonl", b'{"docid": 7, "contents": "seven"}\n{"key": "k", "abstract": "a", "h": "t"}\n'
    )
    documents, rejected = read(path)
    assert [(d.id, d.text) for d in documents] == [("7", "seven")]
    assert "expected a field _id or id" in rejected[0].reason
    assert "key, abstract, h" in rejected[0].reason
    documents, rejected = read(path, id_field="key", text_field="abstract", title_field="h")
    assert [(d.id, d.title, d.text, d.line) for d in documents] == [("k", "t", "a", 2)]
    assert "expected a field key" in rejected[0].reason


def test_limit_ends_the_stream(tmp_path: Path) -> None:
    assert ids(written(tmp_path / "c.jsonl", jsonl(RECORDS)), limit=2) == ["a", "b"]


GOOD = b'{"_id": "good", "text": "t"}'
DEFECTS: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"{'_id': 1}", "not JSON: Expecting property name"),
    "cut short": (b'{"_id": "1", "te', "not JSON"),
    "two objects": (GOOD + GOOD, "not JSON: Extra data at column 29"),
    "a list": (b'["a"]', "expected a JSON object, found a list"),
    "a number": (b"12", "expected a JSON object, found a number"),
    "null": (b"null", "expected a JSON object, found null"),
    "no id": (b'{"text": "t"}', "no id: expected a field _id or id"),
    "id null": (b'{"_id": null, "text": "t"}', "must be a string or an integer, found null"),
    "id a float": (b'{"_id": 1.5, "text": "t"}', "found 1.5"),
    "id true": (b'{"_id": true, "text": "t"}', "found true"),
    "id a list": (b'{"_id": ["1"], "text": "t"}', 'found ["1"]'),
    "id empty": (b'{"_id": "", "text": "t"}', "the id (_id) is empty"),
    "id too long": ('{"_id": "' + "ä" * 257 + '", "text": "t"}', "514 bytes long in UTF-8; OpenSearch takes at most 512"),
    "no text": (b'{"_id": "1", "abstract": "t"}', "no text: expected a field text or contents"),
    "text empty": (b'{"_id": "1", "text": " ", "title": null}', "text and title are both empty"),
    "text a list": (b'{"_id": "1", "text": ["t"]}', 'text must be a string, found ["t"]'),
    "title a number": (b'{"_id": "1", "text": "t", "title": 3}', "title must be a string, found 3"),
    "url an object": (b'{"_id": "1", "text": "t", "url": {}}', "url must be a string, found {}"),
    "latin-1": (b'{"_id": "1", "text": "Stra\xdfe"}', "invalid UTF-8 at byte 27 of the line"),
    "a surrogate in UTF-8": (b'{"_id": "1", "text": "\xed\xa0\x80"}', "invalid UTF-8"),
    "half a surrogate pair": (b'{"_id": "1", "text": "\\ud83d"}', "half a surrogate pair (U+D83D)"),
    "half a pair in a nested key": (b'{"_id": "1", "text": "t", "x": [{"\\uDC00": 1}]}', "half a surrogate pair (U+DC00)"),
    "a null byte": (b'{"_id": "1", "text": "a\x00b"}', "not JSON: Invalid control character"),
    "an escaped null": (b'{"_id": "1", "text": "a\\u0000b"}', "null character (U+0000)"),
    "NaN": (b'{"_id": "1", "text": "t", "x": NaN}', "NaN is not JSON"),
    "infinity": (b'{"_id": "1", "text": "t", "x": [-Infinity]}', "-Infinity is not JSON"),
    "too large a number": (b'{"_id": "1", "text": "t", "x": 1e999}', "the number 1e999 is too large"),
    "too many digits": (b'{"_id": "1", "text": "t", "x": ' + b"9" * 5000 + b"}", "too many digits"),
    "too deep": (b'{"_id": "1", "text": "t", "x": ' + b"[" * 60 + b"]" * 60 + b"}", "nested deeper than 50 levels"),
    "far too deep": (b"[" * 100_000, "nested deeper than 50 levels"),
    "a field of the index": (b'{"_id": "1", "text": "t", "sparse": {"a": 1}}', "'sparse' has a name that the index uses"),
    "a field inside one": (b'{"_id": "1", "text": "t", "dense.x": 1}', "rename it"),
    "a metadata field": (b'{"_id": "1", "text": "t", "_source": {}}', "a name that OpenSearch uses itself: rename it"),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_named_with_file_and_line_and_costs_its_line_alone(defect: str, tmp_path: Path) -> None:
    line, reason = DEFECTS[defect]
    line = line.encode() if isinstance(line, str) else line
    path = written(tmp_path / "c.jsonl", b"\n".join([GOOD, b"", line, GOOD.replace(b"good", b"last")]))
    documents, (rejected,) = read(path)
    assert [(document.id, document.line) for document in documents] == [("good", 1), ("last", 4)]
    assert (rejected.file, rejected.line) == (str(path), 3)
    assert reason in rejected.reason
    assert rejected.raw == line.decode("utf-8", "backslashreplace")
    rejected.raw.encode()
    with pytest.raises(InputError, match=r"c\.jsonl, line 3: "):
        list(read_corpus(path))


def test_what_looks_like_a_defect_and_is_none_is_taken(tmp_path: Path) -> None:
    records = [
        b'{"_id": "1", "text": "\\ud83d\\ude00 \\\\u0000 \\\\ud800"}',
        b'{"_id": -5, "text": "t"}',
        b'{"_id": "' + b"x" * 512 + b'", "text": "t", "id": "another"}',
        b'{"_id": "4", "text": null, "title": "t", "x": [[[[[[[[[[[]]]]]]]]]]]}',
        b'{"_id": "5", "text": "' + b"[" * 100 + b'"}',
    ]
    documents, rejected = read(written(tmp_path / "c.jsonl", b"\n".join(records)))
    assert rejected == []
    assert documents[0].text == "😀 \\u0000 \\ud800"
    assert documents[1].id == "-5"
    assert documents[2].fields == {"id": "another"}


# ---------------------------------------------------------------- files that are not what they should be


def test_a_missing_path_and_a_folder_without_a_corpus_are_named_before_the_first_document(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.* does not exist"):
        read_corpus(tmp_path / "nowhere.jsonl")
    with pytest.raises(InputError, match=r"holds no corpus\n.*corpus\.jsonl"):
        read_corpus(tmp_path)
    with pytest.raises(InputError, match=r"does not say what kind of corpus"):
        read_corpus(written(tmp_path / "c.txt", b""))
    with pytest.raises(InputError, match=r"unknown corpus format 'xml'"):
        read_corpus(tmp_path, format="xml")
    with pytest.raises(InputError, match="null"):
        read_corpus("a\0b")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read every file")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "c.jsonl", GOOD)
    path.chmod(0)
    with pytest.raises(InputError, match=r"c\.jsonl: Permission denied"):
        read_corpus(path)


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz", "c.jsonl.zst", "c.csv", "c.tsv"])
def test_an_empty_file_gives_no_document_and_no_error(name: str, tmp_path: Path) -> None:
    assert read(written(tmp_path / name, b"")) == ([], [])


def test_an_empty_parquet_file_is_rejected_as_a_whole(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="parquet needs the extra [corpora]")
    documents, (rejected,) = read(written(tmp_path / "c.parquet", b""))
    assert documents == []
    assert "cannot be read as parquet" in rejected.reason


def test_a_json_array_and_utf_16_are_told_how_to_be_mended(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"one JSON array.*\n.*jq"):
        read(written(tmp_path / "c.json", b'[\n{"_id": 1}\n]'))
    with pytest.raises(InputError, match=r"UTF-16.*\n?.*iconv"):
        read(written(tmp_path / "c.jsonl", jsonl(RECORDS).decode().encode("utf-16")))


def test_a_line_too_long_is_passed_over_and_its_beginning_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 300_000)
    long = b'{"_id": "long", "text": "' + b"x" * 1_000_000 + b'"}'
    path = written(tmp_path / "c.jsonl", b"\n".join([GOOD, long, GOOD, long]))
    documents, rejected = read(path)
    assert [document.line for document in documents] == [1, 3]
    assert [reject.line for reject in rejected] == [2, 4]
    assert "1,000,027 bytes long; at most 300,000" in rejected[0].reason
    assert rejected[0].raw == long[: lines.RAW_BYTES].decode()


def numbered(first: int, last: int, seed: int = 0) -> bytes:
    """Records whose texts do not compress well, so that damage falls where it is put."""
    words = random.Random(seed)
    return jsonl([{"_id": str(n), "text": f"{words.getrandbits(400):x}"} for n in range(first, last)])


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".zst", zstd)])
class TestBrokenMembers:
    """A break costs what is damaged: what was readable before is read, and the members behind it are."""

    def test_damage_inside_a_member(self, suffix: str, compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
        # Larger than what is decompressed at once, so that there is something readable before the damage.
        first = bytearray(compress(numbered(0, 6000)))
        first[len(first) // 2 : len(first) // 2 + 40] = bytes(range(60, 100))
        path = written(tmp_path / f"c.jsonl{suffix}", bytes(first) + compress(numbered(6000, 7000)))
        documents, rejected = read(path)
        found = {int(document.id) for document in documents}
        assert set(range(1000)) | set(range(6000, 7000)) <= found
        assert any("damaged" in reject.reason and "near byte" in reject.reason for reject in rejected)
        assert all(int(document.id) < 7000 for document in documents)

    def test_a_member_cut_short_before_another(
        self, suffix: str, compress: Callable[[bytes], bytes], tmp_path: Path
    ) -> None:
        first = compress(numbered(0, 6000))
        path = written(tmp_path / f"c.jsonl{suffix}", first[: len(first) * 2 // 3] + compress(numbered(6000, 6100)))
        documents, rejected = read(path)
        assert set(range(1000)) | set(range(6000, 6100)) <= {int(document.id) for document in documents}
        assert rejected

    def test_a_file_cut_short(self, suffix: str, compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
        data = compress(numbered(0, 6000))
        path = written(tmp_path / f"c.jsonl{suffix}", data[: len(data) * 2 // 3])
        documents, (rejected,) = read(path)
        assert len(documents) > 2000
        assert [int(document.id) for document in documents] == list(range(len(documents)))
        assert "the file ends inside the" in rejected.reason
        assert rejected.line == len(documents) + 1

    def test_rubbish_between_and_behind_members(
        self, suffix: str, compress: Callable[[bytes], bytes], tmp_path: Path
    ) -> None:
        one, two = compress(numbered(0, 10)), compress(numbered(10, 20))
        path = written(tmp_path / f"c.jsonl{suffix}", one + b"rubbish \x1f\x8b\x08 \x28\xb5\x2f\xfd" + two + b"end")
        documents, rejected = read(path)
        assert [int(document.id) for document in documents] == list(range(20))
        assert f"data at byte {len(one)}" in rejected[0].reason

    def test_a_file_that_is_no_archive(self, suffix: str, compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
        documents, (rejected,) = read(written(tmp_path / f"c.jsonl{suffix}", jsonl(RECORDS)))
        assert documents == []
        assert "data at byte 0" in rejected.reason


def test_a_wrong_checksum_is_reported_and_what_was_read_before_it_is_kept(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(numbered(0, 10), mtime=0))
    data[-8] ^= 1
    documents, (rejected,) = read(written(tmp_path / "c.jsonl.gz", bytes(data)))
    assert len(documents) == 10
    assert "incorrect data check" in rejected.reason


def test_zero_padding_behind_a_gzip_member_is_no_defect(tmp_path: Path) -> None:
    path = written(
        tmp_path / "c.jsonl.gz", gzip.compress(GOOD, mtime=0) + b"\0" * 600_001 + gzip.compress(b"\n" + GOOD)
    )
    documents, rejected = read(path)
    assert (len(documents), rejected) == (2, [])


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
        b'7,t,"never closed,',
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
        (11, "not a row of csv: unexpected e"),
    ]
    assert [reject.raw for reject in rejected][1:3] == ["3,t,Stra\\xdfe,2000", '4,t,"unbalanced" quotes,']


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


def test_a_truncated_parquet_file_is_rejected(tmp_path: Path) -> None:
    data = parquet(RECORDS, tmp_path / "c.parquet").read_bytes()
    documents, (rejected,) = read(written(tmp_path / "c.parquet", data[:-20]))
    assert documents == []
    assert "truncated or damaged" in rejected.reason


def test_a_damaged_row_group_costs_itself(tmp_path: Path) -> None:
    records = [json.loads(line) for line in numbered(0, 3000).splitlines()]
    path = parquet(records, tmp_path / "c.parquet", row_group_size=1000, use_dictionary=False)
    from pyarrow import parquet as pq

    with pq.ParquetFile(path) as file:
        column = file.metadata.row_group(1).column(1)
        start, length = column.data_page_offset, column.total_compressed_size
    data = bytearray(path.read_bytes())
    data[start : start + length] = b"\xff" * length
    path.write_bytes(data)
    documents, rejected = read(path)
    assert [int(document.id) for document in documents] == [*range(1000), *range(2000, 3000)]
    assert (rejected[0].line, len(rejected)) == (1001, 1)
    assert "row group 2 is damaged from row 1001 on, 1,000 rows lost" in rejected[0].reason


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
    assert json.loads(rejected[2].raw)["id"] == 1


def test_a_data_set_names_its_splits_where_the_one_asked_for_is_missing(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="data sets need the extra [corpora]")
    folder = tmp_path / "saved"
    rows = datasets.Dataset.from_list(RECORDS)
    datasets.DatasetDict({"corpus": rows, "extra": rows.select([0])}).save_to_disk(str(folder))
    assert ids(f"hf:{folder}:extra") == ["a"]
    assert len(ids(f"hf:{folder}:corpus")) == 3
    with pytest.raises(InputError, match="has no split 'train': corpus, extra"):
        read(f"hf:{folder}:train")
    with pytest.raises(InputError, match="has several splits: corpus, extra"):
        read(folder)


def test_a_data_set_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="data sets need the extra [corpora]")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"hf:nobody/nothing: cannot be loaded"):
        read("hf:nobody/nothing")
    with pytest.raises(InputError, match="names no data set"):
        read("hf:")


READ_STDIN = (
    "import sys\n"
    "from opensearch_neural.corpus.readers import read_corpus\n"
    "for d in read_corpus('-', on_reject=lambda r: print(r, flush=True)): print(d.id, d.file, d.line, flush=True)\n"
)


def test_standard_input_is_streamed_line_by_line() -> None:
    with subprocess.Popen([sys.executable, "-c", READ_STDIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b'{"_id": "first", "text": "t"}\n{"_id"')
        process.stdin.flush()
        # The pipe is still open: what is answered now was not waiting for its end.
        assert process.stdout.readline() == b"first standard input 1\n"
        process.stdin.write(b': "second", "text": "t"}\nrubbish\n')
        process.stdin.close()
        assert process.stdout.readline() == b"second standard input 2\n"
        assert process.stdout.readline().startswith(b"standard input, line 3: not JSON")


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "c.jsonl.gz", gzip.compress(numbered(0, 40_000), 1, mtime=0))
    read(path, limit=100)
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_corpus(path)) == 40_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 2_000_000
    assert peak < 2_500_000  # some buffers of 256 KiB, twice while they are cut


def test_reading_needs_no_torch_and_no_extra() -> None:
    code = (
        "import sys, opensearch_neural.corpus.readers\n"
        "print([m for m in ('torch', 'numpy', 'pyarrow', 'datasets', 'zstandard') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


# ---------------------------------------------------------------- queries and judgements


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
        (b'{"_id": "1", "text": " "}', "line 1: the query is empty"),
        (b'{"_id": "1"}', "line 1: expected a query with _id and text; the record has: _id"),
        (b"\n\n[]", "line 3: expected a JSON object"),
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
        (b"q1\td1\tgood\n", "line 1: the grade must be an integer, found 'good'"),
        (b"q1 0 d1 0.5\n", "line 1: the grade must be an integer, found '0.5'"),
        (b"q1\td1\t1\nq1\td1\t1\nq1\td1\t2\n", "line 3: 'q1' and 'd1' were judged otherwise before"),
        (b"q1\t\xff\t1\n", "line 1: invalid UTF-8"),
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


def test_a_split_that_is_missing_names_those_that_are_there(tmp_path: Path) -> None:
    folder = beir_folder(tmp_path / "set")
    with pytest.raises(InputError, match=r"no judgements for the split 'dev' .*\n  available: test, train"):
        BeirData.load(folder, "dev")
    (folder / "queries.jsonl").write_text('{"_id": "1", "text": "one"}')
    with pytest.raises(InputError, match=r"judges 1 queries that queries\.jsonl does not hold, '2' first"):
        BeirData.load(folder, "test")


# ---------------------------------------------------------------- files that anything may have happened to


def mutated(data: bytes, chance: random.Random) -> bytes:
    """`data` after one to four accidents."""
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        length = chance.choice((1, 2, 16, 300))
        data = chance.choice(
            (
                lambda d, at, length: d[:at],
                lambda d, at, length: d[:at] + d[at + length :],
                lambda d, at, length: d[:at] + chance.randbytes(length) + d[at + length :],
                lambda d, at, length: d[:at] + chance.randbytes(length) + d[at:],
                lambda d, at, length: d[:at] + d[at : at + length] * 3 + d[at + length :],
                lambda d, at, length: d[:at] + bytes([chance.choice(b'\0\n\r\t"\\{}[],:\xff\xfe')]) + d[at + 1 :],
                lambda d, at, length: d[:at] + bytes([d[at] ^ 1 << chance.randrange(8)]) + d[at + 1 :] if d[at:] else d,
                lambda d, at, length: d[at:] + d[:at],
            )
        )(data, at, length)
    return data


FUZZ_RECORDS = [
    {
        "_id": f"d{n}",
        "title": f"Title {n} ü",
        "text": f'Text, {n} \n\t"q" 😀 ' * (n % 5 + 1),
        "n": "1.5",
        "tags": str(n),
    }
    for n in range(40)
]


def test_files_that_anything_happened_to_end_as_documents_and_rejections(tmp_path: Path) -> None:
    """OSN_FUZZ_FILES of them (300); every document that comes out can be sent, nothing else than InputError is raised."""
    files = int(os.environ.get("OSN_FUZZ_FILES", "300"))
    originals = {
        "c.jsonl": jsonl(FUZZ_RECORDS),
        "c.jsonl.gz": gzip.compress(jsonl(FUZZ_RECORDS[:20]), mtime=0) + gzip.compress(jsonl(FUZZ_RECORDS[20:])),
        "c.jsonl.zst": zstd(jsonl(FUZZ_RECORDS[:20])) + zstd(jsonl(FUZZ_RECORDS[20:])),
        "c.csv": separated(FUZZ_RECORDS, ","),
        "c.tsv": separated(FUZZ_RECORDS, "\t"),
        "c.parquet": parquet(FUZZ_RECORDS, tmp_path / "o.parquet", row_group_size=10).read_bytes(),
    }
    known = {f"d{n}" for n in range(40)}
    taken = refused = 0
    for number in range(files):
        chance = random.Random(number)
        name = chance.choice(list(originals))
        path = written(tmp_path / name, mutated(originals[name], chance))
        rejected: list[Rejected] = []
        try:
            for document in read_corpus(path, on_reject=rejected.append):
                json.dumps(document.record(), allow_nan=False).encode()
                document.contents.encode()
                assert 0 < len(document.id.encode()) <= corpus.MAX_ID_BYTES
                assert document.contents
                taken += document.id in known
        except InputError as error:
            assert str(path) in str(error), f"file {number}"
            refused += 1
        for reject in rejected:
            assert reject.file == str(path) and reject.reason
            json.dumps(reject.raw, ensure_ascii=False).encode()
    # Most accidents are small: most documents survive them, and few files are refused as a whole.
    assert taken > files * 40 * 0.4
    assert refused < files * 0.2


def test_accidents_to_lines_never_reach_the_other_lines(tmp_path: Path) -> None:
    originals = jsonl(FUZZ_RECORDS).splitlines()
    for number in range(50):
        chance = random.Random(number)
        broken = set(chance.sample(range(40), 5))
        data = [
            mutated(line, chance).replace(b"\n", b"") if index in broken else line
            for index, line in enumerate(originals)
        ]
        # A byte order mark or a magic number at the very beginning would say what the whole file is.
        found, _ = read(written(tmp_path / "c.jsonl", b"\n".join([GOOD, *data])))
        assert {f"d{index}" for index in range(40) if index not in broken} <= {document.id for document in found}
