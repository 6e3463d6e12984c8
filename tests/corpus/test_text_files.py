"""Compressed and plain files as lines: damage of unknown extent ends the reading."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from corpus_files import GOOD, RECORDS, ids, jsonl, numbered, read, separated, written, zstd

from opensearch_neural.corpus import text_files
from opensearch_neural.corpus.documents import Document, Rejected
from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.errors import InputError


def test_a_line_too_long_is_passed_over_and_its_beginning_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MAX_LINE_BYTES", 300_000)
    long = b'{"_id": "long", "text": "' + b"x" * 1_000_000 + b'"}'
    path = written(tmp_path / "c.jsonl", b"\n".join([GOOD, long, GOOD, long]))
    documents, rejected = read(path)
    assert [document.line for document in documents] == [1, 3]
    assert [reject.line for reject in rejected] == [2, 4]
    assert "1,000,027 bytes long; at most 300,000" in rejected[0].reason
    assert rejected[0].raw == long[: text_files.RAW_BYTES].decode()


COMPRESSIONS = pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".zst", zstd)])


def read_until_damage(path: Path) -> tuple[list[int], str]:
    """(ids that come before the damage, what is said of it)."""
    read: list[int] = []
    with pytest.raises(InputError) as raised:
        # What deflate makes of damaged bytes may be rubbish for a while, before it notices.
        for document in read_corpus(path, on_reject=lambda rejected: None):
            read.append(int(document.id))
    assert str(path) in raised.value.message and raised.value.remedy
    return read, raised.value.message


def test_zstd_with_the_longest_window_is_read(tmp_path: Path) -> None:
    """As `zstd --long=31` writes it: it was called damaged."""
    zstandard = pytest.importorskip("zstandard", reason=".zst needs the extra [corpora]")
    # 2^31 bytes: exponent 21 above the least of 2^10. The only block is the last one, and raw (RFC 8878, section 3.1.1).
    frame = b"\x28\xb5\x2f\xfd" + bytes([0, 21 << 3]) + (len(GOOD) << 3 | 1).to_bytes(3, "little") + GOOD
    assert zstandard.get_frame_parameters(frame).window_size == 2**31
    assert ids(written(tmp_path / "c.jsonl.zst", frame)) == ["good"]


@COMPRESSIONS
def test_damage_inside_a_member_ends_the_reading(
    suffix: str, compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    # Larger than what is decompressed at once, so that there is something readable before the damage.
    first = bytearray(compress(numbered(0, 6000)))
    first[len(first) // 2 : len(first) // 2 + 40] = bytes(range(60, 100))
    read, message = read_until_damage(
        written(tmp_path / f"c.jsonl{suffix}", bytes(first) + compress(numbered(6000, 7000)))
    )
    assert len(read) < 6000 and read[:1000] == list(range(1000))
    assert "damaged" in message and "near byte" in message


@COMPRESSIONS
def test_a_member_cut_short_before_another_ends_the_reading(
    suffix: str, compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    first = compress(numbered(0, 6000))
    path = written(tmp_path / f"c.jsonl{suffix}", first[: len(first) * 2 // 3] + compress(numbered(6000, 6100)))
    read, message = read_until_damage(path)
    assert 1000 < len(read) < 6000 and "near byte" in message


@COMPRESSIONS
def test_half_a_file_ends_the_reading(suffix: str, compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    data = compress(numbered(0, 6000))
    read, message = read_until_damage(written(tmp_path / f"c.jsonl{suffix}", data[: len(data) * 2 // 3]))
    assert 2000 < len(read) < 6000
    assert "the file ends inside the" in message and "begins at byte 0" in message


@COMPRESSIONS
def test_rubbish_behind_a_member_ends_the_reading(
    suffix: str, compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    member = compress(numbered(0, 10))
    read, message = read_until_damage(written(tmp_path / f"c.jsonl{suffix}", member + b"rubbish" + member))
    assert read == list(range(10))
    assert f"data at byte {len(member)}" in message


@COMPRESSIONS
def test_a_file_that_is_no_archive_is_refused(suffix: str, compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    read, message = read_until_damage(written(tmp_path / f"c.jsonl{suffix}", jsonl(RECORDS)))
    assert read == [] and "data at byte 0" in message


def test_a_wrong_checksum_ends_the_reading(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(numbered(0, 10), mtime=0))
    data[-8] ^= 1
    read, message = read_until_damage(written(tmp_path / "c.jsonl.gz", bytes(data)))
    assert "incorrect data check" in message and len(read) <= 10


def test_zstd_frames_that_decoders_are_to_skip_are_skipped(tmp_path: Path) -> None:
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"12345"
    data = zstd(numbered(0, 5)) + skippable + zstd(numbered(5, 10))
    assert ids(written(tmp_path / "c.jsonl.zst", data)) == [str(number) for number in range(10)]


def test_zero_padding_behind_a_gzip_member_is_no_defect(tmp_path: Path) -> None:
    path = written(
        tmp_path / "c.jsonl.gz", gzip.compress(GOOD, mtime=0) + b"\0" * 600_001 + gzip.compress(b"\n" + GOOD)
    )
    documents, rejected = read(path)
    assert (len(documents), rejected) == (2, [])


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("c.jsonl", b'{"_id": "a", "text": "t"}\n{"_id": "b", "te'),
        ("c.csv", b"_id,text,lang\na,t,en\nb,t"),
        ("c.csv", b'_id,text\na,t\nb,"t\n'),
        ("c.tsv", b"_id\ttext\tlang\na\tt\ten\nb\tt"),
        ("c.tsv", b"1\ttext\n2\ttext\n3"),
    ],
)
def test_a_file_that_ends_within_a_record_is_damaged(name: str, data: bytes, tmp_path: Path) -> None:
    """A download that broke off. Before, its last record alone was set aside, and what was missing was not noticed."""
    with pytest.raises(InputError, match="the file ends within this record"):
        read(written(tmp_path / name, data))
    _, rejected = read(written(tmp_path / "whole.jsonl", b'{"_id": "a", "text": "t"}\n{"_id": "b", "te\n'))
    assert len(rejected) == 1, "a line that ends is a line"
    assert len(read(written(tmp_path / "c.jsonl", b'{"_id": "a", "text": "t"}'))[0]) == 1
    assert len(read(written(tmp_path / "c.jsonl", b'{"_id": "a", "text": "t"}\n{"_id": "b"}'))[1]) == 1


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"PK\x03\x04\x14\0\0\0", "a zip archive"),
        (bz2.compress(b'{"_id": "a", "text": "t"}'), "a file of bzip2"),
        (lzma.compress(b'{"_id": "a", "text": "t"}'), "a file of xz"),
        (b"PAR1\x15\x04", "a parquet file"),
        (b"\x89PNG\r\n\x1a\n\0", "an image"),
        (b"%PDF-1.7\n", "a PDF"),
        (b"SQLite format 3\0", "a database"),
    ],
)
@pytest.mark.parametrize("name", ["c.jsonl", "c.csv", "c.tsv"])
def test_a_file_of_another_kind_that_is_named_like_text_is_refused_by_its_kind(
    name: str, data: bytes, kind: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=rf"{name} is {kind}, not text"):
        read(written(tmp_path / name, data))
    words = b"_id\ttext\nPAR1\tBZh and PK are words too\n"
    assert [document.id for document in read(written(tmp_path / "words.tsv", words))[0]] == ["PAR1"]


CUT = [*RECORDS, {"_id": "last", "title": "Ä", "text": 'of "them" all', "url": "", "lang": 'said "so" αβ'}]
FILES = {
    "c.jsonl": jsonl(CUT),
    "nested.jsonl": b'{"_id": "a", "text": "t", "x": {"y": {"z": 1}, "of": [{"a": 1}, {"b": 2}]}}\n' * 2,
    "c.csv": separated(CUT, ","),
    "quoted.tsv": separated(CUT, "\t", quoted=True),
    "c.tsv": separated([record for record in CUT if "\n" not in record["text"]], "\t"),
    "two-columns.tsv": "1\tlight and rain\n2\tdrops of\train αβ\n".encode(),
}


@pytest.mark.parametrize("name", FILES)
def test_of_a_file_cut_anywhere_no_document_is_read_that_it_did_not_hold(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    whole, _ = read(written(path, FILES[name]))
    for end in range(len(FILES[name])):
        cut = FILES[name][:end]
        written(path, cut)
        documents: list[Document] = []
        rejected: list[Rejected] = []
        try:
            documents.extend(read_corpus(path, on_reject=rejected.append))
        except InputError as error:
            assert str(path) in error.message
        else:  # nothing shows a cut between two lines
            assert name.endswith("jsonl") or cut.endswith(b"\n") or b"\n" not in cut, f"cut at byte {end}"
        assert documents == whole[: len(documents)], f"cut at byte {end}"
        assert not rejected, f"cut at byte {end}"


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz", "c.csv", "c.tsv.zst"])
def test_a_part_of_a_file_that_was_never_written_ends_the_reading(name: str, tmp_path: Path) -> None:
    data = numbered(0, 500) if "jsonl" in name else separated(CUT * 100, "\t" if "tsv" in name else ",")
    data = data[:9000] + bytes(4096) + data[9000 + 4096 :]
    compress = {"gz": gzip.compress, "zst": zstd}.get(name.rpartition(".")[2], bytes)
    with pytest.raises(InputError, match="a part of the file is zeros"):
        list(read_corpus(written(tmp_path / name, compress(data)), on_reject=lambda rejected: None))
