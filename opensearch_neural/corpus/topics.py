"""TREC topics: their numbers and titles, as queries.

    <top>
    <num> Number: 301
    <title> International Organized Crime
    <desc> Description: …
    </top>

Tags may be closed (`<num>301</num>`) or not, a line may have several tags, and a title may span several lines. Other fields
(`desc`, `narr`, …) are skipped.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from opensearch_neural.corpus.documents import Defect, identifier
from opensearch_neural.corpus.text_files import BadLine, Unterminated, cut_off, decoded, open_binary, read_lines
from opensearch_neural.errors import InputError

# Only fields of TREC topics: a title may contain other tags, such as H<sub>2</sub>O.
_TAG = re.compile(r"<(?P<end>/?)(?P<name>top|num|title|desc|narr|head|dom|smry|con|fac|def)\s*>", re.IGNORECASE)
_LABEL = {"num": re.compile(r"^Number\s*:", re.IGNORECASE), "title": re.compile(r"^Topic\s*:", re.IGNORECASE)}


@dataclass
class _Topic:
    line: int
    """The line where the topic begins, from 1."""
    fields: dict[str, list[str]] = field(default_factory=dict)
    """{tag: its text, line by line}"""

    def text(self, name: str) -> str:
        """A field without its label, on one line. Raises Defect if it is missing or empty."""
        if name not in self.fields:
            raise Defect(f"the topic has no <{name}>")
        text = _LABEL[name].sub("", " ".join(" ".join(self.fields[name]).split())).strip()
        if not text:
            raise Defect(f"the <{name}> of the topic is empty")
        return html.unescape(text)


def is_topics(place: Path) -> bool:
    """Whether a file begins like topics. False for a pipe, which can be read only once."""
    if not place.is_file():
        return False
    stream, file = open_binary(str(place))
    with stream:
        _, line = next(read_lines(stream, file), (0, b""))
    return isinstance(line, bytes) and line.lstrip().lower().startswith(b"<top>")


def read_topics(place: Path) -> Iterator[tuple[int, str, str]]:
    """(line where the topic begins, number, title) of each topic.

    Raises InputError with file and line for text outside topics, and for a topic without end, number or title.
    """
    stream, file = open_binary(str(place))
    topic: _Topic | None = None
    name = ""  # the field that gets the text; empty: no field
    with stream:
        for number, line in read_lines(stream, file):
            try:
                for tag, text in _parts(line):
                    if tag == "top":
                        if topic is not None:
                            raise Defect(f"a topic begins, and that of line {topic.line} has no </top>")
                        topic, name = _Topic(number), ""
                    elif topic is None:
                        if tag or text:
                            raise Defect(f"expected <top>, found {(tag and f'<{tag}>') or text[:80]!r}")
                        continue
                    elif tag == "/top":
                        try:
                            yield topic.line, identifier(topic.text("num"), "num"), topic.text("title")
                        except Defect as defect:
                            raise InputError(f"{file}, line {topic.line}: {defect}") from None
                        topic = None
                        continue
                    elif tag:
                        name = "" if tag.startswith("/") else tag
                        if name in _LABEL and name in topic.fields:
                            raise Defect(f"the topic that begins on line {topic.line} has a second <{name}>")
                    if name in _LABEL:
                        topic.fields.setdefault(name, []).append(text)
            except Defect as defect:
                raise InputError(f"{file}, line {number}: {defect}") from None
            if topic is not None and isinstance(line, Unterminated):
                raise cut_off(file, number)
    if topic is not None:
        raise InputError(
            f"{file} ends within the topic that begins on line {topic.line}",
            "close it with </top>, or fetch the file again",
        )


def _parts(line: bytes | BadLine) -> Iterator[tuple[str, str]]:
    """(tag, text after it) for each tag of a line, after ("", text before the first tag). A closing tag is "/title". Raises
    Defect."""
    text = decoded(line)
    tag, at = "", 0
    for match in _TAG.finditer(text):
        yield tag, text[at : match.start()].strip()
        tag, at = match["end"] + match["name"].lower(), match.end()
    yield tag, text[at:].strip()
