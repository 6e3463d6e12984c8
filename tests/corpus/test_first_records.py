"""What the first records tell: ids that are none, texts under a name that is not looked for. Shapes of public corpora."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from corpus_files import ids, jsonl, read, written

from opensearch_neural.corpus.first_records import FIRST_CHARACTERS, FIRST_RECORDS
from opensearch_neural.corpus.reader import read_corpus
from opensearch_neural.errors import InputError


def corpus(tmp_path: Path, records: list[dict[str, Any]]) -> Path:
    return written(tmp_path / "c.jsonl", jsonl(records))


def test_a_passage_of_ms_marco_v2_is_known_by_its_own_id(tmp_path: Path) -> None:
    records = [
        {"pid": f"passage_{n}", "passage": f"text {n}", "spans": "(0,6)", "docid": f"document_{n // 6}"}
        for n in range(12)
    ]
    documents, rejected = read(corpus(tmp_path, records))
    assert ([document.id for document in documents], rejected) == ([f"passage_{n}" for n in range(12)], [])
    assert documents[7].fields["docid"] == "document_1"


def test_the_text_of_a_segment_of_ms_marco_v2_1_is_indexed(tmp_path: Path) -> None:
    record = {
        "docid": "d#0_0",
        "url": "https://e.org",
        "title": "T",
        "headings": "H",
        "segment": "Words.",
        "end_char": 9,
    }
    (document,), _ = read(corpus(tmp_path, [record]))
    assert (document.id, document.title, document.text) == ("d#0_0", "T", "Words.")


def test_ids_that_repeat_where_another_column_does_not_are_refused_before_any_document(tmp_path: Path) -> None:
    records = [{"id": f"page{n // 6}", "chunk": f"page{n // 6}-{n % 6}", "text": "t"} for n in range(30)]
    path = corpus(tmp_path, records)
    with pytest.raises(
        InputError, match="30 documents have only 5 different ids, and as many values of 'chunk'"
    ) as raised:
        read(path)
    assert "--id-field chunk" in str(raised.value.remedy)
    assert len(ids(path, id_field="chunk")) == 30
    assert len(ids(path, id_field="id")) == 30, "the user insists"


def test_a_few_ids_that_repeat_are_left_to_the_ingest(tmp_path: Path) -> None:
    records = [{"id": f"{n if n else 7}", "row": n, "text": "t"} for n in range(30)]
    assert len(ids(corpus(tmp_path, records))) == 30


def test_ids_that_repeat_without_another_that_does_not_are_left_to_the_ingest(tmp_path: Path) -> None:
    records = [{"id": "same", "note": f"two words {n}", "text": "t"} for n in range(30)]
    assert len(ids(corpus(tmp_path, records))) == 30


def test_titles_alone_beside_a_long_column_are_refused_by_its_name(tmp_path: Path) -> None:
    records = [{"id": n, "title": f"Title {n}", "abstract": "Many words. " * 20, "lang": "en"} for n in range(20)]
    path = corpus(tmp_path, records)
    with pytest.raises(
        InputError, match=r"none of the first 20 documents has a text, only a title; 'abstract' holds"
    ) as raised:
        read(path)
    assert "--text-field abstract" in str(raised.value.remedy)
    assert read(path, text_field="abstract")[0][0].text.startswith("Many words.")
    documents, _ = read(path, text_field="title")
    assert (documents[0].contents, documents[0].title) == ("Title 0", "")
    within = corpus(
        tmp_path, [{**record, "abstract": None, "data": {"abstract": record["abstract"]}} for record in records]
    )
    with pytest.raises(InputError, match=r"'data.abstract' holds"):
        read(within)
    assert read(within, text_field="data.abstract")[0][0].text.startswith("Many words.")


def test_titles_alone_are_a_corpus(tmp_path: Path) -> None:
    assert len(ids(corpus(tmp_path, [{"id": n, "title": f"Title {n}", "lang": "en"} for n in range(20)]))) == 20


def test_a_field_without_a_name_costs_its_record(tmp_path: Path) -> None:
    lines = [{"id": 1, "text": "t", "": 0}, {"id": 2, "text": "t", "a..b": 0}, {"id": 3, "text": "t", "a.b": 0}]
    documents, rejected = read(corpus(tmp_path, lines))
    assert [document.id for document in documents] == ["3"]
    assert ["has a name that is empty" in reject.reason for reject in rejected] == [True, True]


def test_a_limit_reads_no_further_and_all_documents_are_given_out(tmp_path: Path) -> None:
    good = [{"id": n, "text": "t"} for n in range(FIRST_RECORDS + 5)]
    path = written(tmp_path / "c.jsonl", jsonl(good[:3]) + b"no JSON\n" + jsonl(good[3:]))
    assert ids(path, limit=3) == ["0", "1", "2"]
    documents, rejected = read(path)
    assert [int(document.id) for document in documents] == list(range(FIRST_RECORDS + 5)) and len(rejected) == 1


def test_rejected_records_keep_their_place_among_the_documents(tmp_path: Path) -> None:
    path = written(tmp_path / "c.jsonl", b'{"id": 1, "text": "t"}\nno JSON\n{"id": 3, "text": "t"}\n')
    met: list[str] = []
    for document in read_corpus(path, on_reject=lambda rejected: met.append(f"line {rejected.line}"), check_first=True):
        met.append(document.id)
    assert met == ["1", "line 2", "3"]
    with pytest.raises(InputError, match="line 2: not JSON"):
        list(read_corpus(path, check_first=True))


def test_of_large_records_few_are_held_in_memory(tmp_path: Path) -> None:
    """Before, texts alone counted, and a thousand records with a field of 2 MB each were held."""
    size = FIRST_CHARACTERS // 8
    path = corpus(tmp_path, [{"id": n, "text": "t", "pages": [{"raw": "x" * size}]} for n in range(40)])
    documents = read_corpus(path, check_first=True)
    assert next(documents).id == "0"
    (held,) = [documents.gi_frame.f_locals["self"]]  # type: ignore[attr-defined]
    assert len(held._first) <= 10
