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
