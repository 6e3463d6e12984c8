"""The range of each set in merged training data."""

from __future__ import annotations

from typing import NamedTuple


class SetRange(NamedTuple):
    """The half-open ranges of a set's examples and documents in merged data."""

    name: str
    """the name of the set"""
    start: int
    """its first example"""
    stop: int
    """the example after its last"""
    document_start: int
    """the row of its first document"""
    document_stop: int
    """the row after that of its last document"""
