"""Lines of JSON: a defect costs the line that has it, and is named."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from corpus_files import GOOD, RECORDS, jsonl, read, written

from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.errors import InputError

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
    "text a list with a number": (
        b'{"_id": "1", "text": ["t", 3]}',
        "text must be a string or a list of strings, and its list holds 3",
    ),
    "title a list of lists": (b'{"_id": "1", "text": "t", "title": ["t", ["u"]]}', 'its list holds ["u"]'),
    "text an empty list": (b'{"_id": "1", "text": [], "title": [null]}', "text and title are both empty"),
    "url a list": (b'{"_id": "1", "text": "t", "url": ["u"]}', 'url must be a string, found ["u"]'),
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


@pytest.mark.parametrize(
    ("first", "told", "remedy"),
    [
        (
            b'{"_index": "x", "_id": "1", "_score": 1, "_source": {"text": "rain"}}',
            "hits with a `_source`",
            "{_id} + ._source",
        ),
        (b'{"index": {"_id": "1"}}', "the lines of a bulk request", "inputs | (.index // .create)._id as $id | input"),
        (
            b'{"create": {"_index": "x", "_id": "1"}}',
            "the lines of a bulk request",
            "inputs | (.index // .create)._id as $id",
        ),
    ],
)
def test_other_formats_of_opensearchs_documents_are_told_how_to_become_a_corpus(
    tmp_path: Path, first: bytes, told: str, remedy: str
) -> None:
    with pytest.raises(InputError, match=f"c.jsonl holds {told}") as refused:
        read(written(tmp_path / "c.jsonl", first + b'\n{"text": "rain"}\n'))
    assert remedy in str(refused.value.remedy) and str(refused.value.remedy).endswith("c.jsonl")
    documents, rejected = read(written(tmp_path / "c.jsonl", b'{"_id": "1", "text": "t", "index": {"a": 1}}\n' + first))
    assert [document.fields for document in documents] == [{"index": {"a": 1}}] and len(rejected) == 1


@pytest.mark.parametrize("first", [b'{"update": {"_id": "1"}}', b'{"delete": {"_id": "1"}}'])
def test_a_bulk_request_that_begins_without_a_document_is_named_alone(tmp_path: Path, first: bytes) -> None:
    """Updates are parts of documents, and no document follows a deletion: what jq makes of them is no corpus."""
    with pytest.raises(InputError, match=r"c\.jsonl holds the lines of a bulk request") as refused:
        read(written(tmp_path / "c.jsonl", first + b'\n{"index": {"_id": "2"}}\n{"text": "rain"}\n'))
    assert "jq" not in str(refused.value.remedy)


def test_a_compressed_file_is_unpacked_for_jq(tmp_path: Path) -> None:
    place = tmp_path / "c.jsonl.gz"
    lines = b'{"index": {"_id": "1"}}\n{"text": "rain"}\n{"create": {"_id": "2"}}\n{"text": "sun"}\n'
    with pytest.raises(InputError) as refused:
        read(written(place, gzip.compress(lines)))
    assert f"gzip -dc {place} | jq -cn " in str(refused.value.remedy)
    with pytest.raises(InputError, match=rf"gzip -dc {place} \| jq -c"):
        read(written(place, gzip.compress(b"[1]")))


def test_a_json_array_and_utf_16_are_told_how_to_be_mended(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"one JSON array.*\n.*jq"):
        read(written(tmp_path / "c.json", b'[\n{"_id": 1}\n]'))
    with pytest.raises(InputError, match=r"UTF-16.*\n?.*iconv"):
        read(written(tmp_path / "c.jsonl", jsonl(RECORDS).decode().encode("utf-16")))
