"""The settings of engines as command-line options."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opensearch_neural.queries import Rare


@dataclass(frozen=True)
class Option:
    """A setting of an engine as a command-line option."""

    name: str
    """The setting's name; on the command line with hyphens: --dense-window."""
    parse: Callable[[str], Any]
    """Parses the text of the option. Raises ValueError with a message that says what is wrong."""
    help: str
    default: str = ""
    """The default in words, for the help text."""
    is_flag: bool = False
    """Whether the option takes no value; then `parse` is not called, and the setting is True."""


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
    "which tokens of a query are searched: ratio:R, share:S or count:N; share:1 is all.",
    "as tuned, else all",
)
CLAUSES = Option("clauses", bool, "rescore by clauses even if the index has a forward index.", is_flag=True)
