"""The settings of engines, as command lines take them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opensearch_neural.queries import Rare


@dataclass(frozen=True)
class Option:
    """A setting of an engine, as the command line takes it."""

    name: str
    """The setting's name; on the command line with hyphens: --dense-window."""
    parse: Callable[[str], Any]
    """From text. Raises ValueError, which says what is wrong with it."""
    help: str
    default: str = ""
    """In words, for the help."""
    is_flag: bool = False
    """Whether the command line takes it without a value; then `parse` is not called, and the setting is True."""


def whole_number(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(f"{text} is not a whole number from 1")
    return number


def positive(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise ValueError(f"{text} is not above 0")
    if number == math.inf:
        raise ValueError(f"{text} is infinite")
    return number


RARE = Option("rare", Rare.parse, "which tokens are rare: ratio:R, share:S or count:N.", "as tuned, else ratio:0.5")
TOKENS = Option(
    "tokens",
    Rare.parse,
    "which tokens of a query are searched at all: ratio:R, share:S or count:N; share:1 is all.",
    "as tuned, else all",
)
CLAUSES = Option("clauses", bool, "rescore by clauses where the index has a forward index too.", is_flag=True)
