"""What a hit shows of its text: the sentence that contributes most to its score, by the text's own words, in an excerpt.

    heaviest_sentence(text, words, shares, encoder.tokens_in)      # (start, end)

A sentence contributes what its words add to the score: BM25's terms, and the sparse tokens that occur in it. Tokens that
the model added, and the codes, belong to no sentence.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from opensearch_neural.corpus.sentences import Span, sentences

if TYPE_CHECKING:
    from opensearch_neural.search.explanation import Share

_TRIMMED = "".join(map(chr, range(0x21)))
"""Characters that the highlighter strips at both ends."""
EXCERPT = 300
"""Most characters of an excerpt, unless a single sentence is longer."""


def marked_words(highlighted: Iterable[str], text: str) -> list[Span] | None:
    """The words of a text that OpenSearch's highlighter marked.

    highlighted: the text with <em> and </em>, as `number_of_fragments: 0` returns it; the highlighter splits it at NUL
        characters, and leaves out parts without marks
    None if it does not match the text.
    """
    words: list[Span] = []
    parts = re.finditer("[^\0]+", text)
    for fragment in highlighted:
        marks = (_marks(fragment, part[0], part.start()) for part in parts)
        if (inside := next((each for each in marks if each is not None), None)) is None:
            return None
        words += inside
    return words


def _marks(fragment: str, part: str, offset: int) -> list[Span] | None:
    """The words marked in a part of a text that begins at `offset`; None if the fragment is not the whole part."""
    words = []
    at = start = len(part) - len(part.lstrip(_TRIMMED))
    for piece in re.split("(</?em>)", fragment):
        if part.startswith(piece, at):  # this may be a tag: the text may contain tags itself
            at += len(piece)
        elif piece == "<em>":
            start = at
        elif piece == "</em>":
            words.append((offset + start, offset + at))
        else:
            return None
    return None if part[at:].strip(_TRIMMED) else words


def with_marks(text: str, words: Iterable[Span], span: Span) -> str:
    """The text of the span on one line, its marked words between <em> and </em>."""
    pieces = []
    at, end = span
    for first, last in words:
        if at <= first and last <= end:
            pieces += [text[at:first], "<em>", text[first:last], "</em>"]
            at = last
    return " ".join("".join([*pieces, text[at:end]]).split())


def heaviest_sentence(
    text: str,
    words: Sequence[Span],
    shares: Iterable[Share],
    tokens_in: Callable[[str], Collection[str]] = lambda text: (),
) -> Span | None:
    """The sentence that contributes most to the score, of equals the first; None if no word of the text contributes.

    words: the words of the text that BM25 found
    shares: the shares of the score, with `literal` set
    tokens_in: the sparse model's tokens in a text
    """
    terms, tokens = {}, {}
    for share in shares:
        if share.source == "bm25":
            terms[share.token] = share.score
        elif share.literal:
            tokens[share.token] = share.score
    meant = {word: term_of(word, terms) for word in {text[first:last] for first, last in words}}
    term_at = [(first, meant[text[first:last]]) for first, last in words]
    best, most = None, 0.0
    for start, end in sentences(text) if terms or tokens else ():
        inside = term_at[bisect_left(term_at, start, key=itemgetter(0)) : bisect_left(term_at, end, key=itemgetter(0))]
        total = sum(terms[term] for term in {term for _, term in inside} if term is not None)
        if tokens:
            total += sum(tokens[token] for token in tokens.keys() & set(tokens_in(text[start:end])))
        if total > most * (1 + 1e-9):
            best, most = (start, end), total
    return best


def term_of(word: str, terms: Iterable[str]) -> str | None:
    """The BM25 term of a marked word: the term with which it shares the longest beginning, since analyzers cut endings.

    None if it shares less than half of every term. A term may be several words that count as one ("rain / shower").
    """
    best, most = None, (False, 0)
    for term in terms:
        for each in re.findall(r"""[^\s:"]+(?=[\s"]|$)""", term):
            common = _in_common(_plain(word), _plain(each))
            like = common == len(_plain(each)), common
            if 2 * common >= len(_plain(each)) and like > most:
                best, most = term, like
    return best


def _in_common(first: str, second: str) -> int:
    """The length of the beginning that both share."""
    return next(
        (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def _plain(word: str) -> str:
    """The word in lower case, without accents."""
    return "".join(char for char in unicodedata.normalize("NFKD", word.casefold()) if not unicodedata.combining(char))


def around(text: str, shown: Span) -> Span:
    """Whole sentences for an excerpt: the text's beginning if it holds the sentence of `shown`, else those around it."""
    spans = sentences(text)
    if not spans:
        return 0, 0
    at = min(bisect_left(spans, shown[0] + 1, key=itemgetter(1)), len(spans) - 1)
    first = 0 if spans[at][1] <= EXCERPT else at
    if first == at > 0 and spans[at][1] - spans[at - 1][0] <= EXCERPT:
        first = at - 1
    last = at
    while last + 1 < len(spans) and spans[last + 1][1] - spans[first][0] <= EXCERPT:
        last += 1
    return spans[first][0], spans[last][1]
