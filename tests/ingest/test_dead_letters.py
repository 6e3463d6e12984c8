"""Dead letters: none is lost, none is kept twice, and all can be read again."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corpora import letters, write_jsonl

from ingest.corpus import CorpusSource
from ingest.dead_letters import DeadLetters, is_dead_letter_file, letters_of, letters_path, mended, next_path
from opensearch_neural.corpus.documents import Document, Rejected
from opensearch_neural.corpus.passages import Passage
from opensearch_neural.errors import InputError

GOOD = Document("a", "some text", "a title", "https://x", {"year": 3, "tags": ["b", {"c": None}]}, "d.jsonl", 4)
BROKEN = Rejected("d.jsonl", 7, "not JSON", '{"_id": "b", "text": "torn"')


def test_without_letters_there_is_no_file(tmp_path: Path) -> None:
    dead = DeadLetters(tmp_path / "l.jsonl")
    dead.sync()
    dead.sync()
    assert not (tmp_path / "l.jsonl").exists()


def test_a_run_that_continues_keeps_nothing_twice_and_mends_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "l.jsonl"
    dead = DeadLetters(path)
    dead.add(GOOD, "refused", 400)
    dead.add(BROKEN, "not JSON")
    dead.sync()
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])  # killed while writing the second
    dead = DeadLetters(path)
    dead.add(GOOD, "refused", 400)
    dead.add(BROKEN, "not JSON")
    dead.sync()
    assert is_dead_letter_file(path)
    documents, rejected = read(path)
    assert documents == [GOOD]
    assert [(each.file, each.line, each.raw) for each in rejected] == [("d.jsonl", 7, BROKEN.raw)]


def reasons(path: Path) -> list[tuple[str, object]]:
    return [(letter["reason"], letter.get("status")) for letter in letters(path)]


def test_a_document_that_fails_again_has_its_latest_reason_alone(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    for reason, status in (("no routing", 400), ("no number", 400), ("no number", 403)):
        dead = DeadLetters(path)
        dead.add(BROKEN, "not JSON")
        dead.add(GOOD, reason, status)
        dead.close()
        assert sorted(reasons(path)) == [(reason, status), ("not JSON", None)]
        assert path.stat().st_mode & 0o777 == 0o600, "only the user may read documents"
    assert list(tmp_path.iterdir()) == [path]


def test_other_lines_and_letters_of_other_runs_stay(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    dead = DeadLetters(path)
    dead.add(GOOD, "first")
    dead.add(replace(GOOD, file="other.jsonl"), "of another corpus")
    dead.sync()
    with path.open("a") as file:
        file.write("a note\n\n")
    dead = DeadLetters(path)
    dead.add(GOOD, "second")
    other = DeadLetters(path)  # another process, which knows nothing of the second reason
    other.add(BROKEN, "not JSON")
    other.sync()
    dead.close()
    lines = path.read_text().splitlines()
    assert lines[1:3] == ["a note", ""]
    assert [json.loads(lines[at])["reason"] for at in (0, 3, 4)] == ["of another corpus", "not JSON", "second"]


def test_what_a_killed_run_left_twice_is_mended_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    for reason in ("first", "second"):
        dead = DeadLetters(path)
        dead.add(GOOD, reason)
        dead.sync()  # killed before it is closed
    assert reasons(path) == [("first", None), ("second", None)]
    dead = DeadLetters(path)
    dead.add(GOOD, "second")
    dead.close()
    assert reasons(path) == [("second", None)]


def test_a_second_reason_of_the_same_run_does_not_replace_the_first(tmp_path: Path) -> None:
    """A row of a table has no line: two equal rows are one letter, and the reason is that of the first."""
    row = replace(GOOD, line=None)
    for _ in range(2):
        dead = DeadLetters(tmp_path / "l.jsonl")
        dead.add(row, "refused", 400)
        dead.add(row, "the id 'a' occurs twice")
        dead.close()
        assert reasons(tmp_path / "l.jsonl") == [("refused", 400)]


def read(path: Path) -> tuple[list[Document], list[Rejected]]:
    rejected: list[Rejected] = []
    return list(mended(path, rejected.append)), rejected


def test_a_document_comes_back_as_it_was(tmp_path: Path) -> None:
    passage = Passage("p#0002", "half", "t", None, {"k": 1}, "d.jsonl", 9, parent="p", number=2, start=10, end=14)
    odd = Document("ü\u2028 \ud800", "line\u2028break \U0001f600", fields={"big": 2**70}, file="é.jsonl", line=1)
    dead = DeadLetters(tmp_path / "l.jsonl")
    for document in (GOOD, passage, odd):
        dead.add(document, "refused")
    dead.sync()
    documents, rejected = read(tmp_path / "l.jsonl")
    assert documents == [GOOD, passage]
    # Half a surrogate pair cannot be written as UTF-8; it is still in the file to be mended.
    assert len(rejected) == 1 and "surrogate" in rejected[0].reason and rejected[0].file == "é.jsonl"


def test_a_raw_line_once_mended_is_read(tmp_path: Path) -> None:
    dead = DeadLetters(tmp_path / "l.jsonl")
    dead.add(BROKEN, "not JSON")
    dead.add(Rejected("d.jsonl", None, "damaged", ""), "damaged")
    dead.sync()
    text = (tmp_path / "l.jsonl").read_text()
    (tmp_path / "l.jsonl").write_text(text.replace('torn\\"', 'torn\\"}'))
    documents, rejected = read(tmp_path / "l.jsonl")
    assert [(each.id, each.text, each.file, each.line) for each in documents] == [("b", "torn", "d.jsonl", 7)]
    assert [each.line for each in rejected] == [None]


@pytest.mark.parametrize(
    ("name", "text"), [("c.csv", "id,abstract,n\n,rain,\n"), ("c.tsv", "id\tabstract\tn\n\train\t\n")]
)
def test_the_row_of_a_table_is_mended_as_an_object(tmp_path: Path, name: str, text: str) -> None:
    """It was the line, and a mended line was no JSON."""
    (tmp_path / name).write_text(text)
    dead = DeadLetters(tmp_path / "l.jsonl")
    corpus = CorpusSource(str(tmp_path / name), text_field="abstract")
    list(corpus.reader(corpus.path)(lambda rejected: dead.add(rejected, rejected.reason)))
    dead.sync()
    written = (tmp_path / "l.jsonl").read_text()
    (tmp_path / "l.jsonl").write_text(written.replace('\\"id\\": \\"\\"', '\\"id\\": \\"7\\"'))
    (document,) = mended(tmp_path / "l.jsonl", print, corpus.names)
    assert (document.id, document.text, document.fields) == ("7", "rain", {})


def test_a_long_raw_line_is_kept_whole(tmp_path: Path) -> None:
    """It was cut after a million characters without a word, so that it could not be mended."""
    path, text = tmp_path / "l.jsonl", "rain " * 300_000
    dead = DeadLetters(path)
    dead.add(Rejected("d.jsonl", 1, "no id", json.dumps({"text": text})), "no id")
    dead.sync()
    (letter,) = letters(path)
    write_jsonl(path, [{**letter, "raw": {"_id": "a", **json.loads(letter["raw"])}}])
    (document,) = read(path)[0]
    assert document.text == text


def test_a_raw_line_may_be_mended_to_an_object(tmp_path: Path) -> None:
    lines = [
        {"dead_letter": 1, "file": "d.jsonl", "line": 7, "raw": raw} for raw in ({"_id": "b", "text": "sun"}, ["b"])
    ]
    write_jsonl(tmp_path / "l.jsonl", lines)
    documents, rejected = read(tmp_path / "l.jsonl")
    assert documents == [Document("b", "sun", file="d.jsonl", line=7)]
    assert [(each.reason, each.raw) for each in rejected] == [("expected a JSON object, found a list", '["b"]')]


def test_a_raw_line_once_mended_keeps_the_separators_that_json_allows(tmp_path: Path) -> None:
    dead = DeadLetters(tmp_path / "l.jsonl")
    dead.add(Rejected("d.jsonl", 7, "no id", '{"text": "one\u2028two\u0085three"}'), "no id")
    dead.sync()
    text = (tmp_path / "l.jsonl").read_text()
    (tmp_path / "l.jsonl").write_text(text.replace('{\\"text', '{\\"_id\\": \\"b\\",\\n\\"text'))
    documents, rejected = read(tmp_path / "l.jsonl")
    assert ([each.text for each in documents], rejected) == (["one\u2028two\u0085three"], [])


def test_a_passage_that_is_mended_wrongly_is_a_letter_again_and_a_passage_once_it_is_right(tmp_path: Path) -> None:
    passage = Passage("p#0002", "half", file="d.jsonl", line=9, parent="p", number=2, start=10, end=14)
    for wrong in ({"text": 5}, {"passage": {"number": None}}, {"passage": {"number": "two"}}):
        letter = {
            "dead_letter": 1,
            "reason": "x",
            "file": "d.jsonl",
            "line": 9,
            "document": {**passage.record(), **wrong},
        }
        (tmp_path / "l.jsonl").write_text(json.dumps(letter) + "\n")
        documents, (rejected,) = read(tmp_path / "l.jsonl")
        assert documents == []
        right = {"dead_letter": 1, "reason": "x", "file": "d.jsonl", "line": 9}
        (tmp_path / "l.jsonl").write_text(
            json.dumps(
                {**right, "raw": json.dumps({**json.loads(rejected.raw), "text": "half", "passage": {"number": 2}})}
            )
            + "\n"
        )
        (document,), _ = read(tmp_path / "l.jsonl")
        assert isinstance(document, Passage)
        assert (document.parent, document.number, document.file, document.line) == ("p", 2, "d.jsonl", 9)


def test_a_raw_line_is_read_by_the_names_of_its_corpus_and_no_more_than_the_limit(tmp_path: Path) -> None:
    dead = DeadLetters(tmp_path / "l.jsonl")
    for at in range(3):
        dead.add(
            Rejected("d.jsonl", at, "no id", json.dumps({"sku": f"s{at}", "description": "words", "year": at})), "no id"
        )
    dead.add(GOOD, "refused")
    dead.sync()
    with (tmp_path / "l.jsonl").open("a") as file:
        file.write('{"dead_letter": 1, "document": null}\n')
    source = CorpusSource(str(tmp_path / "l.jsonl"), id_field="sku", text_field="description")
    rejected: list[Rejected] = []
    documents = list(source.reader(source.path)(rejected.append))
    assert [(each.id, each.text, each.fields.get("year")) for each in documents] == [
        ("s0", "words", 0), ("s1", "words", 1), ("s2", "words", 2), ("a", "some text", 3),
    ]  # fmt: skip
    assert [each.reason for each in rejected] == ["not a dead letter: a line of JSON with `document` or `raw`"]
    assert len(list(replace(source, limit=2).reader(source.path)(rejected.append))) == 2


@pytest.mark.parametrize(
    ("named", "record", "name"),
    [
        ({"text_field": "text.body"}, {"_id": "1", "text": {"body": "rain", "lang": "en"}}, "text"),
        ({"title_field": "title.x"}, {"_id": "1", "text": "rain", "title": {"x": "Sky", "lang": "en"}}, "title"),
        ({"url_field": "url.x"}, {"_id": "1", "text": "rain", "url": {"x": "u", "lang": "en"}}, "url"),
        ({"text_field": "description"}, {"_id": "1", "text": "short", "description": "rain"}, "text"),
        ({"id_field": "sku"}, {"_id": "1", "text": "short", "sku": "s"}, "_id"),
    ],
)
def test_a_raw_line_with_a_field_that_is_called_as_a_named_part_is_refused_again(
    tmp_path: Path, named: dict[str, str], record: dict[str, Any], name: str
) -> None:
    """The part replaced the field, without a word."""
    write_jsonl(tmp_path / "a.jsonl", [record])
    first, again = [], []
    source = CorpusSource(str(tmp_path / "a.jsonl"), **named)
    assert not list(source.reader(source.path)(first.append))
    assert f"the field {name!r} has a name that" in first[0].reason
    dead = DeadLetters(tmp_path / "l.jsonl")
    dead.add(first[0], first[0].reason)
    dead.close()
    source = replace(source, path=str(tmp_path / "l.jsonl"))
    assert not list(source.reader(source.path)(again.append))
    assert [(each.line, each.reason) for each in again] == [(1, first[0].reason)]
    assert json.loads(again[0].raw) == record


def test_a_first_line_that_begins_as_a_list_is_one_letter_and_costs_no_other(tmp_path: Path) -> None:
    for raw in ('["a", "b"]', "[INFO] ready"):
        path = tmp_path / f"{len(raw)}.jsonl"
        dead = DeadLetters(path)
        dead.add(Rejected("docs.jsonl", 17, "no object", raw), "no object")
        dead.add(GOOD, "refused")
        dead.sync()
        documents, rejected = read(path)
        assert documents == [GOOD]
        assert [(each.file, each.line, each.raw) for each in rejected] == [("docs.jsonl", 17, raw)]


def test_a_line_that_is_nested_too_deeply_is_a_letter_again(tmp_path: Path) -> None:
    deep = '{"_id": "a", "body": ' + "[" * 100_000
    dead = DeadLetters(tmp_path / "l.jsonl")
    dead.add(Rejected("docs.jsonl", 17, "too deep", deep), "too deep")
    dead.add(GOOD, "refused")
    dead.sync()
    with (tmp_path / "l.jsonl").open("a") as file:
        file.write('{"dead_letter": 1, "document": ' + '{"a": ' * 100_000 + "\n")
    source = CorpusSource(str(tmp_path / "l.jsonl"), text_field="body")
    rejected: list[Rejected] = []
    assert list(source.reader(source.path)(rejected.append)) == [GOOD]
    assert [(each.line, each.reason) for each in rejected] == [
        (17, "nested deeper than 50 levels"),
        (3, "not a dead letter: a line of JSON with `document` or `raw`"),
    ]
    assert len(list(letters_of(tmp_path / "l.jsonl"))) == 2


def test_a_warning_of_letters_names_their_file_and_line_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dead = DeadLetters(tmp_path / "l.jsonl")
    dead.add(GOOD, "refused")
    for id in "bc":
        dead.add(Document(id, "", "a title", file="docs.jsonl", line=9), "refused")
    dead.sync()
    records = CorpusSource(str(tmp_path / "l.jsonl")).reader(str(tmp_path / "l.jsonl"))
    for _ in range(2):
        assert [document.id for document in records(print)] == ["a", "b", "c"]
    assert caplog.messages == [f"{tmp_path / 'l.jsonl'}, line 2: no text, only a title (reported once per file)"]


def test_an_empty_text_in_a_refused_document_is_not_replaced_by_a_field_of_its_own(tmp_path: Path) -> None:
    dead = DeadLetters(tmp_path / "l.jsonl")
    only_title = Document("a", "", "a title", "", {"body": "an own field"}, "d.jsonl", 4)
    dead.add(only_title, "refused", 400)
    dead.sync()
    (again,) = mended(tmp_path / "l.jsonl", pytest.fail)
    assert (again.text, again.title, again.fields) == ("", "a title", {"body": "an own field"})


def test_the_letters_of_letters_go_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert letters_path(None, "docs", "-") == Path("docs.dead-letters.jsonl")
    Path("docs.dead-letters.jsonl").touch()
    assert letters_path(None, "docs", "corpus.jsonl") == Path("docs.dead-letters.jsonl")
    assert letters_path(None, "docs", str(tmp_path / "docs.dead-letters.jsonl")).name == "docs.dead-letters.2.jsonl"
    assert letters_path(None, "docs", "docs.dead-letters.2.jsonl") == Path("docs.dead-letters.3.jsonl")
    assert letters_path(None, "docs", "of/docs.dead-letters.3.jsonl") == Path("of/docs.dead-letters.4.jsonl")
    assert letters_path(None, "docs", "other.dead-letters.2.jsonl") == Path("docs.dead-letters.jsonl")
    assert next_path(Path("docs.dead-letters.2.jsonl")) == Path("docs.dead-letters.3.jsonl")
    with pytest.raises(InputError, match="is the corpus"):
        letters_path(Path("docs.dead-letters.jsonl"), "docs", "docs.dead-letters.jsonl")


def test_a_corpus_is_not_taken_for_letters(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"_id": "dead_letter"}\n')
    assert not is_dead_letter_file(tmp_path / "c.jsonl")
    assert not is_dead_letter_file(tmp_path / "missing.jsonl")
    assert letters(tmp_path / "missing.jsonl") == []


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="pipes have no names here")
def test_nothing_of_a_pipe_is_read_to_see_whether_it_holds_letters() -> None:
    end, start = os.pipe()
    os.write(start, b'{"dead_letter": 1}')
    os.close(start)
    assert not is_dead_letter_file(Path(f"/dev/fd/{end}"))
    assert os.read(end, 100) == b'{"dead_letter": 1}'
    os.close(end)
