"""Where each of several sets lies in what is trained on."""

from __future__ import annotations

from typing import NamedTuple


class SetRange(NamedTuple):
    """Where a set lies in merged data: its examples and its documents, as half-open ranges."""

    name: str
    start: int
    stop: int
    document_start: int
    document_stop: int
