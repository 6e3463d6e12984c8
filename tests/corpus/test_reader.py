"""Every format gives the same documents; what is no corpus is named before anything is read."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from corpus_files import GOOD, RECORDS, ids, jsonl, numbered, parquet, read, separated, written, zstd

from opensearch_neural.corpus import reader
from opensearch_neural.corpus.documents import MAX_ID_BYTES, Rejected
from opensearch_neural.corpus.judgements import read_qrels, read_queries
from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.errors import InputError
from opensearch_neural.evaluation.run_files import read_run

DOCUMENTS = [
    ("a", "Rainbow", "Light is refracted in drops.", "https://e.org/a", {"lang": "en"}),
    ("b", "", 'Straße, "quotes",\ttabs\nand lines\n\nαβγ 😀', "https://e.org/b", {"lang": "de"}),
    ("3", "Only a title", "", "https://e.org/c", {"lang": "fr"}),
]


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
    "tsv with a header in quotation marks": lambda f: written(f / "c.tsv", separated(RECORDS, "\t", quoted=True)),
    "parquet": lambda f: parquet(RECORDS, f / "c.parquet"),
    "parquet in two files": lambda f: (
        parquet(RECORDS[2:], parquet(RECORDS[:2], f / "1.parquet").with_name("2.parquet")).parent
    ),
    "parquet in three row groups": lambda f: parquet(RECORDS, f / "c.parquet", row_group_size=1),
    "saved data set": lambda f: saved_data_set(f / "saved"),
    "hf: with a saved data set": lambda f: f"hf:{saved_data_set(f / 'saved')}",
    "hf: with a folder of files": lambda f: f"hf:{with_data_sets(written(f / 'c.jsonl', jsonl(RECORDS))).parent}",
}


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_gives_the_same_documents(form: str, tmp_path: Path) -> None:
    documents, rejected = read(FORMATS[form](tmp_path))
    assert rejected == []
    assert [(d.id, d.title, d.text, d.url, d.fields) for d in documents] == DOCUMENTS


def test_every_format_of_files_is_tried_above_and_named_on_the_page_of_files() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "files.md").read_text(encoding="utf-8")
    tried = {re.split(r"\W", form)[0] for form in FORMATS}
    for name, each in reader.FORMATS.items():
        assert name in tried or not each.suffixes, f"give FORMATS of this test a corpus of the format {name}"
        for suffix in each.suffixes:
            assert f"`{suffix}`" in page, f"docs/reference/files.md names no {suffix}: add it to the row of corpora"


def test_limit_ends_the_stream(tmp_path: Path) -> None:
    assert ids(written(tmp_path / "c.jsonl", jsonl(RECORDS)), limit=2) == ["a", "b"]


@pytest.mark.parametrize(
    ("place", "told", "remedy"),
    [
        ("https://example.org/docs.jsonl.gz", "https://example.org/docs.jsonl.gz is an address", "download it first"),
        ("s3://bucket/docs.jsonl", "s3://bucket/docs.jsonl is an address", "download it first"),
        ("abfs://a@b/c.unknown", "abfs://a@b/c.unknown is an address", "download it first"),
        ("file:///data/docs.jsonl", "file:///data/docs.jsonl is an address", "/data/docs.jsonl"),
        ("ir:beir/scifact", "ir:beir/scifact does not exist", "osn data fetch ir:beir/scifact --output"),
        ("opensearch:shop", "opensearch:shop is an index, and only files are read", "to a .jsonl file first"),
        ("a: /b.jsonl", "a: /b.jsonl does not exist", "check the path"),
    ],
)
def test_an_address_is_no_path_and_said_to_be_none(place: str, told: str, remedy: str) -> None:
    for reads in (read_corpus, read_queries, read_qrels, read_run):
        with pytest.raises(InputError) as refused:
            reads(Path(place))
        assert told in refused.value.message and remedy in (refused.value.remedy or "")


def test_a_missing_path_and_a_folder_without_a_corpus_are_named_before_the_first_document(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.* does not exist"):
        read_corpus(tmp_path / "nowhere.jsonl")
    with pytest.raises(InputError, match=r"holds no corpus\n.*corpus\.jsonl"):
        read_corpus(tmp_path)
    with pytest.raises(InputError, match=r"does not say what kind of corpus"):
        read_corpus(written(tmp_path / "c.txt", b""))
    with pytest.raises(InputError, match=r"unknown corpus format 'no such'"):
        read_corpus(tmp_path, format="no such")
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


READ_STDIN = (
    "import sys\n"
    "from opensearch_neural.corpus.reader import read_corpus\n"
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
        "import sys, opensearch_neural.corpus.reader\n"
        "print([m for m in ('torch', 'numpy', 'pyarrow', 'datasets', 'zstandard') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


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
        "c.tsv": separated(FUZZ_RECORDS, "\t", quoted=True),
        "c.parquet": parquet(FUZZ_RECORDS, tmp_path / "o.parquet", row_group_size=10).read_bytes(),
    }
    known = {f"d{n}" for n in range(40)}
    taken = refused = of_lines = 0
    for number in range(files):
        chance = random.Random(number)
        name = chance.choice(list(originals))
        path = written(tmp_path / name, mutated(originals[name], chance))
        of_lines_now = name in ("c.jsonl", "c.csv", "c.tsv")
        of_lines += of_lines_now
        rejected: list[Rejected] = []
        try:
            for document in read_corpus(path, on_reject=rejected.append):
                json.dumps(document.record(), allow_nan=False).encode()
                document.contents.encode()
                assert 0 < len(document.id.encode()) <= MAX_ID_BYTES
                assert document.contents
                taken += of_lines_now and document.id in known
        except InputError as error:
            assert str(path) in str(error), f"file {number}"
            cut = "the file ends within this record" in str(error)  # then it is right to end
            refused += of_lines_now and not cut
        for reject in rejected:
            assert reject.file == str(path) and reject.reason
            json.dumps(reject.raw, ensure_ascii=False).encode()
    # Most accidents are small: in plain text most documents survive them. A csv of quoted lines is refused sooner.
    assert taken > of_lines * 40 * 0.4
    assert refused < of_lines * 0.5


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
        documents, _ = read(written(tmp_path / "c.jsonl", b"\n".join([GOOD, *data, b""])))
        assert {f"d{index}" for index in range(40) if index not in broken} <= {document.id for document in documents}
