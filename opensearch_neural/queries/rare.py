"""Which tokens and words of a query are rare: those with a high weight."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

_WORD = re.compile(r"[^ \t-\r]+")


@dataclass(frozen=True)
class Rare:
    """Which tokens of a query count as rare, that is, are searched in phase one.

    by="ratio"   tokens whose weight is at least `value` × the query's highest weight
    by="share"   the heaviest tokens that together hold at least `value` of the query's total weight
    by="count"   the `value` heaviest tokens

    The default, half of the highest weight, with 30 hits rescored, kept nDCG@10 within half a point of all tokens, at the
    least cost, on training queries of three kinds (scientific claims, web-search questions, questions about paragraphs).

    At least one token is always rare. Raises ValueError for an unknown rule, a ratio or share outside 0 to 1, and a count
    that is not a whole number from 1.
    """

    by: Literal["ratio", "share", "count"] = "ratio"
    """The rule, as above."""
    value: float = 0.5
    """Its number: a ratio or share from 0 to 1, or a whole number of tokens."""

    def __post_init__(self) -> None:
        if self.by not in ("ratio", "share", "count"):
            raise ValueError(f"by must be ratio, share or count, not {self.by!r}")
        if self.by == "count":
            if not (1 <= self.value < math.inf and int(self.value) == self.value):
                raise ValueError(f"a count of rare tokens must be a whole number from 1, not {self.value!r}")
        elif not 0 <= self.value <= 1:
            raise ValueError(f"a {self.by} must lie between 0 and 1, not {self.value!r}")

    def __str__(self) -> str:
        return f"{self.by}:{self.value:g}"

    @classmethod
    def parse(cls, text: str) -> Rare:
        """`Rare` from "ratio:0.6", "share:0.8" or "count:3", as the command line writes it."""
        by, _, value = text.partition(":")
        try:
            return cls(by, float(value))  # type: ignore[arg-type]
        except ValueError as error:
            raise ValueError(f"{text!r} is not a threshold like ratio:0.6, share:0.8 or count:3 ({error})") from None


def rare_tokens(tokens: Mapping[str, float], rare: Rare = Rare()) -> dict[str, float]:
    """The tokens of phase one of high-IDF-first, in the order of `tokens`; empty for an empty query."""
    if not tokens:
        return {}
    if rare.by == "ratio":
        least = rare.value * max(tokens.values())
        return {token: weight for token, weight in tokens.items() if weight >= least}
    heaviest_first = sorted(sorted(tokens), key=tokens.__getitem__, reverse=True)  # equal weights in the order of names
    if rare.by == "count":
        chosen = set(heaviest_first[: int(rare.value)])
    else:
        # Accept slightly less than `value`, so that the rounding of the sum never adds a token.
        needed, total, chosen = rare.value * sum(tokens.values()) * (1 - 1e-9), 0.0, set()
        for token in heaviest_first:
            if chosen and total >= needed:
                break
            chosen.add(token)
            total += tokens[token]
    return {token: weight for token, weight in tokens.items() if token in chosen}


def rare_words(text: str, heaviest: Callable[[str], float], rare: Rare = Rare()) -> tuple[str, str]:
    """(the rare words of a text, its other words), each joined by blanks in the text's order, repeats included.

    Words are separated by ASCII white space: some analyzers do not split at a no-break space. A word that the model does not
    know is rare. If no word is left out, the second text is empty.

    heaviest: the query encoder's `heaviest`, from a word to its weight; 0 for a word that the model does not know
    """
    words = _WORD.findall(text)
    weights = {word: heaviest(word) for word in dict.fromkeys(words)}
    chosen = {*rare_tokens(weights, rare), *(word for word, weight in weights.items() if weight == 0)}
    return " ".join(word for word in words if word in chosen), " ".join(word for word in words if word not in chosen)
