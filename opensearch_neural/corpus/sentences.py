"""The sentences of a text: where each begins and ends."""

from __future__ import annotations

import re
from collections.abc import Iterator

LONGEST = 400
"""Most characters of a sentence; a longer sentence is cut between words."""

Span = tuple[int, int]
"""[start, end) in characters of a text."""

# A full stop or similar mark, closing quotes and brackets, white space; or a new line. An abbreviation ends a sentence
# too, which does little harm and avoids a model for splitting sentences.
_END = re.compile(r"""[.!?…؟।]["'”’)\]]*\s+(?=["'“‘(\[¿¡]?(?P<next>\S))|[。！？]["'”’」』）]*\s*|\n\s*""")


def sentence_ends(text: str) -> Iterator[int]:
    """Where each sentence but the first begins. A lower-case letter after a full stop begins no sentence."""
    for match in _END.finditer(text):
        following = match["next"]
        if following is None or "\n" in match[0] or (following.isalnum() and not following.islower()):
            yield match.end()


def sentences(text: str) -> list[Span]:
    """All sentences of a text, without the white space around them."""
    spans = []
    start = 0
    for end in (*sentence_ends(text), len(text)):
        while start < end:
            cut = end
            if end - start > LONGEST:
                cut = text.rfind(" ", start + 1, start + LONGEST) + 1 or start + LONGEST
            piece = text[start:cut]
            left = start + len(piece) - len(piece.lstrip())
            if piece.strip():
                spans.append((left, left + len(piece.strip())))
            start = cut
    return spans
