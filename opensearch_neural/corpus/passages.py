"""Long documents as passages: windows of tokens, cut between words.

    for passage in split(document, tokenizer, tokens=256, stride=128): ...
    for passage in split(document, tokenizer, tokens=142, sentences=True): ...      whole sentences if they fit

An encoder reads only some hundred tokens of a document, so the rest is not searchable unless the document is split
(Dai and Callan, "Deeper Text Understanding for IR with Contextual Neural Language Modeling", SIGIR 2019, section 3:
overlapping passages, and the best passage's score is the document's).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from opensearch_neural.corpus.documents import MAX_ID_BYTES, Document
from opensearch_neural.corpus.sentences import sentence_ends
from opensearch_neural.errors import InputError
from opensearch_neural.models.tokenizer import unlimited

_WORD = r"\p{Han}|\w{1,16}|[^\w\s]"
"""A run of more than 16 letters is cut: in languages without blanks between words it could be a whole paragraph."""


@dataclass(slots=True)
class Passage(Document):
    """A part of a document. Its text is `document.text[start:end]`; title, URL and fields are the document's."""

    parent: str = ""
    """The document's id."""
    number: int = 1
    """Its place in the document, from 1."""
    start: int = 0
    """Its first character in the document's text, from 0."""
    end: int = 0
    """The character after its last."""

    def record(self) -> dict[str, Any]:
        """As Document.record, with the fields `parent` and `passage` of the index."""
        place = {"number": self.number, "start": self.start, "end": self.end}
        # Not super(): with slots, the dataclass is a new class, which super() without arguments does not know.
        return {**Document.record(self), "parent": self.parent, "passage": place}


def words() -> Tokenizer:
    """A tokenizer that needs no vocabulary: each word, and each punctuation mark, is a token."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD), "removed", invert=True)
    return tokenizer


def split(
    document: Document, tokenizer: Tokenizer, tokens: int, stride: int | None = None, *, sentences: bool = False
) -> list[Passage]:
    """The passages of a document, in order, with the ids `parent#0001`, `parent#0002`, …

    tokens: the most tokens of text in a passage (not counting special tokens, and the title, which every passage repeats)
    stride: tokens from the start of one passage to the start of the next, at most `tokens`; the default, `tokens`, gives
        passages without overlap
    sentences: cut between sentences, with as many sentences in a passage as fit (`query-as-context`, section 4.1); a
        sentence longer than `tokens` is cut between words

    Passages are cut between words, so most are slightly shorter than `tokens`; only a word longer than `tokens` is cut.
    Together they contain all of the text except whitespace between them. A document that fits has one passage.

    Raises ValueError for an invalid stride or size, InputError if a passage's id is too long for OpenSearch.
    """
    stride = tokens if stride is None else stride
    if not 1 <= stride <= tokens:
        raise ValueError(f"expected 1 <= stride <= tokens, found stride {stride} and {tokens} tokens")
    if tokenizer.truncation is not None or tokenizer.padding is not None:
        # A copy without both: they are state of the tokenizer, which the caller may rely on.
        tokenizer = unlimited(tokenizer)
    encoding = tokenizer.encode(document.text, add_special_tokens=False)
    starts = [start for start, _ in encoding.offsets]
    words = encoding.word_ids
    between = [index == 0 or words[index] is None or words[index] != words[index - 1] for index in range(len(words))]
    edges = [False] * len(between)
    if sentences:
        for end in sentence_ends(document.text):
            if (at := bisect_left(starts, end)) < len(edges):
                edges[at] = between[at]
    passages = []
    for number, (first, last) in enumerate(_windows(between, edges, tokens, stride), start=1):
        # Up to the next passage's first token, so that characters outside any token are kept.
        start = 0 if first == 0 else starts[first]
        end = len(document.text) if last == len(starts) else starts[last]
        passages.append(_passage(document, number, start, end))
    return passages


def joined(parts: Iterable[tuple[int, str]]) -> str:
    """The text of a document from the (start, text) of its passages, in order. Gaps are filled with blanks."""
    whole = ""
    for start, text in parts:
        whole = whole[:start].ljust(start) + text
    return whole


def _windows(between: list[bool], edges: list[bool], tokens: int, stride: int) -> list[tuple[int, int]]:
    """[first, last) of each window. between, edges: (tokens,), whether a token is the first of a word, and whether it is
    the first of a sentence, which is a better place to cut."""
    count = len(between)
    windows = []
    first = 0
    while True:
        last = count if first + tokens >= count else _cut(between, edges, first, first + tokens)
        windows.append((first, last))
        if last == count:
            return windows
        first = _cut(between, edges, first, min(first + stride, last))


def _cut(between: list[bool], edges: list[bool], first: int, at: int) -> int:
    """The last of the `edges` after `first` and not after `at`; else the last place between words there; else `at`."""
    places = (index for marks in (edges, between) for index in range(at, first, -1) if marks[index])
    return next(places, at)


def _passage(document: Document, number: int, start: int, end: int) -> Passage:
    text = document.text[start:end]
    start += len(text) - len(text.lstrip())
    text = text.strip()
    id = f"{document.id}#{number:04d}"
    if len(id.encode()) > MAX_ID_BYTES:
        where = "" if document.file is None else f"{document.file}, line {document.line}: "
        raise InputError(
            f"{where}the id of passage {number} of {document.id[:40]}… is longer than {MAX_ID_BYTES} bytes",
            "shorten the document's id by the length of the passage's number",
        )
    return Passage(
        id=id,
        text=text,
        title=document.title,
        url=document.url,
        fields=document.fields,
        file=document.file,
        line=document.line,
        lists={part: strings for part, strings in document.lists.items() if part == "title"},
        parent=document.id,
        number=number,
        start=start,
        end=start + len(text),
    )
