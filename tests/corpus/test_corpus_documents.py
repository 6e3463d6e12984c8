"""A record becomes a document, or is refused with the reason."""

from __future__ import annotations

from pathlib import Path

from corpus_files import jsonl, read, written

from opensearch_neural.corpus.documents import Document


def test_contents_joins_title_and_text_and_strips_both() -> None:
    assert Document("1", " text ", " title ").contents == "title text"
    assert Document("1", "text").contents == "text"
    assert Document("1", "", "title").contents == "title"


def test_a_document_written_as_a_record_is_read_again_as_it_was(tmp_path: Path) -> None:
    document = Document("1", "text", "title", None, {"nested": {"a": [1, {"b": None}]}, "metadata": {}})
    (again,), _ = read(written(tmp_path / "c.jsonl", jsonl([document.record()])))
    assert (again.id, again.text, again.title, again.url, again.fields) == ("1", "text", "title", None, document.fields)


def test_lists_of_strings_are_one_text_and_one_title_and_stay_lists_in_the_record(tmp_path: Path) -> None:
    record = {"_id": "1", "title": ["Mug", "", "blue"], "text": ["Holds 0.3 l", None, "Dishwasher-safe"]}
    (document,), rejected = read(written(tmp_path / "c.jsonl", jsonl([record])))
    assert not rejected
    assert (document.title, document.text) == ("Mug blue", "Holds 0.3 l\nDishwasher-safe")
    assert document.contents == "Mug blue Holds 0.3 l\nDishwasher-safe"
    assert document.record() == record
    document.text = "another"
    assert document.record() == {**record, "text": "another"}, "a list that says something else is not written"
    named = written(tmp_path / "n.jsonl", jsonl([{"_id": "1", "bullets": ["a", "b"], "name": ["n"]}]))
    (other,), _ = read(named, text_field="bullets", title_field="name")
    assert (other.title, other.text, other.fields) == ("n", "a\nb", {})


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
