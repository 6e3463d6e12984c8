"""Run files: written, read, refused."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
from corpus_files import written, zstd
from hypothesis import given
from hypothesis import strategies as st

from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.measures import rank
from opensearch_neural.evaluation.run_files import read_run, write_run

IDS = st.text(st.one_of(st.characters(exclude_categories=("C",)), st.sampled_from("% \t\n25")), min_size=1, max_size=8)
HITS = st.dictionaries(IDS, st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=6)
RUNS = st.dictionaries(IDS, HITS, min_size=1, max_size=4)


def test_a_run_file_is_ranked_by_score_and_then_by_id(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "bm25.trec"
    write_run(path, {"q2": {"b": 1.0, "a": 1.0, "c": 2.5}, "q1": {"x": 0.1}, "nothing": {}}, "bm25")
    assert path.read_text() == ("q2 Q0 c 1 2.5 bm25\nq2 Q0 a 2 1.0 bm25\nq2 Q0 b 3 1.0 bm25\nq1 Q0 x 1 0.1 bm25\n")


@given(RUNS)
def test_a_run_survives_its_file_with_every_digit(
    tmp_path_factory: pytest.TempPathFactory, run: dict[str, dict[str, float]]
) -> None:
    path = tmp_path_factory.mktemp("run") / "run.trec"
    write_run(path, run, "tag")
    again = read_run(path)
    assert again == run
    assert all(list(again[query]) == [document for document, _ in rank(run[query])] for query in run)


@pytest.mark.parametrize("name", ["run.trec.gz", "run.trec"])
def test_a_compressed_run_is_read_whatever_its_name(tmp_path: Path, name: str) -> None:
    for compress in (gzip.compress, zstd):
        path = written(tmp_path / name, compress(b"q Q0 d 1 2.0 tag\r\n"))
        assert read_run(path) == {"q": {"d": 2.0}}


def test_a_byte_order_mark_is_no_part_of_the_first_query(tmp_path: Path) -> None:
    path = tmp_path / "run.trec"
    path.write_bytes(b"\xef\xbb\xbfq Q0 d 1 2.0 tag\n")
    assert read_run(path) == {"q": {"d": 2.0}}


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.trec.gz"
    whole = bytearray(gzip.compress(b"".join(b"q%d Q0 d%d 1 2.0 tag\n" % (at, at * 7919) for at in range(500))))
    whole[len(whole) // 2] ^= 0xFF
    whole[20] ^= 0xFF
    path.write_bytes(bytes(whole))
    with pytest.raises(InputError, match=r"run\.trec\.gz: damaged gzip data near byte"):
        read_run(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q Q0 d 1 2.0", "line 2: 5 fields"),
        ("q Q0 d 1 high tag", "line 2: the score 'high'"),
        ("q Q0 d 1 2.0 tag more", "line 2: 7 fields"),
        ("q Q0 d 1 nan tag", "line 2: the score 'nan'"),
        ("q Q0 d 1 -inf tag", "line 2: the score '-inf' is not a finite number"),
        ("q Q0 d 1 1e999 tag", "line 2: the score '1e999' is not a finite number"),
        ("q Q0 d 1 1_000 tag", "line 2: the score '1_000'"),
        ("q Q0 d\udcff 1 2.0 tag", "line 2: invalid UTF-8 at byte 7 of the line"),
        ("q Q0 d0 2 1.0 tag", "line 2: query q has the document d0 twice"),
    ],
)
def test_a_broken_run_file_is_refused_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "run.trec"
    path.write_bytes(f"q Q0 d0 1 3.0 tag\n{line}\n".encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=rf"run\.trec, {message}"):
        read_run(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no hit"),
        (b"\n \n", "holds no hit"),
        ("q Q0 d 1 2.0 tag\n".encode("utf-16"), "is UTF-16 text"),
        (b"PK\x03\x04\x14\0", "is a zip archive, not text"),
        (b"\x89PNG\r\n\x1a\n", "is an image, not text"),
    ],
)
def test_a_file_that_is_no_run_is_refused_by_its_name(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=rf"run\.trec {message}"):
        read_run(written(tmp_path / "run.trec", content))
    with pytest.raises(InputError, match="Is a directory"):
        read_run(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        read_run(tmp_path / "absent.trec")


def test_ids_with_white_space_are_percent_encoded_and_only_those_of_such_a_run_are_decoded(tmp_path: Path) -> None:
    path = tmp_path / "run.trec"
    run = {"q 1": {"50%\u00a0off": 2.0, "a%20b": 1.0}}
    assert write_run(path, run, "my engine")
    assert path.read_text() == (
        "q%201 Q0 50%25%C2%A0off 1 2.0 my%20engine:percent-encoded\nq%201 Q0 a%2520b 2 1.0 my%20engine:percent-encoded\n"
    )
    assert read_run(path) == run
    assert not write_run(path, {"q": {"a%20b": 1.0}}, "my engine")
    assert path.read_text() == "q Q0 a%20b 1 1.0 my%20engine\n"
    assert read_run(path) == {"q": {"a%20b": 1.0}}


def test_ids_that_a_run_file_cannot_hold_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "run.trec"
    for run in (
        {"q": {"": 1.0}},
        {"q": {"d": math.nan}},
        {"q": {"d": math.inf}},
    ):
        with pytest.raises(InputError):
            write_run(path, run, "tag")
    with pytest.raises(InputError, match="tag"):
        write_run(path, {"q": {"d": 1.0}}, "")
    assert list(tmp_path.iterdir()) == []
