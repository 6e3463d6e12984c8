"""The range of each set in merged training data."""

from __future__ import annotations

from typing import NamedTuple


class SetRange(NamedTuple):
    """The half-open ranges of a set's examples and documents in merged data."""

    name: str
    start: int
    stop: int
    document_start: int
    document_stop: int
