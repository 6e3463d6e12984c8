"""A record becomes a document, or is refused with the reason."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from corpus_files import jsonl, read, written
from hypothesis import given
from hypothesis import strategies as st

from opensearch_neural.corpus.documents import Document, FieldNames, document_of, taken
from opensearch_neural.errors import InputError


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


@pytest.mark.parametrize("empty", [None, "", " ", [], [None]])
def test_an_empty_field_is_passed_over_if_another_of_its_part_has_a_value(empty: Any) -> None:
    """The first name decided, whatever it held: the text was lost beside a title, and without one the record."""
    document = document_of({"_id": empty, "id": 7, "title": "t", "text": empty, "body": "rain", "year": 1})
    assert (document.id, document.text, document.fields) == ("7", "rain", {"year": 1})
    names = FieldNames.of_index({"text": "content.body"})
    document = document_of({"_id": "1", "text": empty, "content": {"body": "rain", "lang": "en"}}, names=names)
    assert (document.text, document.fields) == ("rain", {"content": {"lang": "en"}})


def test_an_empty_text_stays_the_text_if_no_other_field_of_its_part_is_one() -> None:
    content = {"content": {"html": "rain"}, "body": None}
    document = document_of({"_id": "1", "title": "t", "text": "", **content})
    assert (document.text, document.fields) == ("", content)
    nothing = {"text": "", "content": {"body": "", "lang": "en"}}
    names = FieldNames.of_index({"text": "content.body"})
    assert document_of({"_id": "1", "title": "t", **nothing}, names=names).fields == {"content": nothing["content"]}


def one(record: dict[str, Any], **names: str) -> Document:
    """The document of a record with these field names."""
    return document_of(record, names=FieldNames.of(**names))


def test_a_text_in_an_object_is_taken_out_of_it_and_the_rest_of_the_object_stays() -> None:
    """It was rejected: no field had this name."""
    record = {"meta": {"key": 7}, "content": {"body": "rain", "lang": "en", "head": {"line": "Sky"}}, "year": 1}
    names = {"id": "meta.key", "text": "content.body", "title": "content.head.line", "url": "content.url"}
    assert one(record, **names) == Document(
        "7", "rain", "Sky", None, {"content": {"lang": "en"}, "year": 1}, line=0, file="the record"
    )
    assert "key" in record["meta"], "the record stays as it is"  # type: ignore[operator]


def test_a_name_with_a_dot_is_that_of_a_field_first_and_a_path_at_any_of_its_dots() -> None:
    both = {"_id": "1", "content.body": "the field", "content": {"body": "the path"}}
    assert (one(both, text="content.body").text, one(both, text="content.body").fields) == (
        "the field",
        {"content": {"body": "the path"}},
    )
    for record in ({"a": {"b.c": "x"}}, {"a.b": {"c": "x"}}, {"a": {"b": {"c": "x"}}}, {"a": 1, "a.b": {"c": "x"}}):
        document = one({"_id": "1", **record}, text="a.b.c")
        assert (document.text, document.fields) == ("x", {"a": 1} if record.get("a") == 1 else {})


def test_texts_in_a_list_of_objects_are_a_list_of_strings() -> None:
    parts = [{"body": "one", "page": 1}, {"page": 2}, {"body": ["two", "three"]}, "odd"]
    document = one({"_id": "1", "parts": parts}, text="parts.body")
    assert document.text == "one\ntwo\nthree"
    assert document.stored("text") == ["one", None, "two", "three", None]
    assert document.fields == {"parts": [{"page": 1}, {"page": 2}, {}, "odd"]}
    assert one({"_id": "1", "parts": [{"body": "one"}, {"body": "two"}]}, text="parts.body").fields == {}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"content": {"lang": "en"}}, "no text: expected a field content.body; the record has: _id, content"),
        ({"content": "body"}, "no text: expected a field content.body"),
        ({"content": [{"body": {"p": "rain"}}]}, "list of strings, and its list holds {\"p\": \"rain\"}"),
        ({"content": {"body": {"p": "rain"}}}, "found {\"p\": \"rain\"}: a field in it is called content.body.p"),
        ({"content": {"body": "rain"}, "meta": [{"url": "u"}]}, "meta.url must be a string, found [\"u\"]"),
        ({"content": {"body": None}}, "text and title are both empty"),
    ],
)  # fmt: skip
def test_what_is_no_text_in_an_object_is_said_with_its_path(record: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=re.escape(reason)):
        one({"_id": "1", **record}, text="content.body", url="meta.url")


def test_an_index_whose_text_lies_in_an_object_called_text_knows_both() -> None:
    names = FieldNames.of_index({"text": "text.body", "title": "content.head"})
    record = {"_id": "1", "content": {"head": "Sky", "lang": "en"}}
    for text in ({"body": "rain"}, "rain"):
        document = document_of({**record, "text": text}, names=names)
        assert (document.text, document.title, document.fields) == ("rain", "Sky", {"content": {"lang": "en"}})


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=2),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "a.b", "b.a"]), inner, max_size=3)
        ),
    ),
    st.sampled_from(["a", "a.b", "a.b.a", "b.a.b"]),
)
def test_what_is_taken_out_of_a_tree_is_all_that_it_loses(tree: Any, path: str) -> None:
    def leaves(tree: Any) -> Counter[str]:
        if isinstance(tree, dict):
            return sum(map(leaves, tree.values()), Counter())
        return sum(map(leaves, tree), Counter()) if isinstance(tree, list) else Counter([repr(tree)])

    def paths(tree: Any) -> set[str]:
        if isinstance(tree, dict):
            below = {f"{name}.{path}" for name, inner in tree.items() for path in paths(inner)}
            return below | tree.keys()
        return set().union(*map(paths, tree)) if isinstance(tree, list) else set()

    pair = taken(tree, path)
    assert (pair is not None) == (path in paths(tree))
    if pair is not None:
        kept = leaves(pair[0]) + leaves(pair[1])
        assert all(kept[leaf] == count for leaf, count in leaves(tree).items() if leaf != "None")
