"""The rows of a forward index, made and read back."""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Mapping

import numpy as np

from opensearch_neural.queries import forward_index

BYTES = 6
"""Of a token."""


def packed(row: Mapping[str, float]) -> bytes:
    return forward_index.packed(forward_index.hashes_of(row), np.array(list(row.values()), np.float32))


def row_field(row: Mapping[str, float]) -> dict[str, str]:
    """What a document has beside its weights; nothing where it has none."""
    return {forward_index.FIELD: b64encode(packed(row)).decode()} if row else {}


def unpacked(row: bytes) -> dict[int, float]:
    """{hash: stored weight} of a row. Raises ValueError for bytes that are none."""
    if len(row) % BYTES:
        raise ValueError(f"a row has {BYTES} bytes a token, and these are {len(row)}")
    held = len(row) // BYTES
    numbers = struct.unpack(f">{held}i{held}H", row)
    return {
        hash: struct.unpack(">f", struct.pack(">I", bits << 15))[0]
        for hash, bits in zip(numbers[:held], numbers[held:], strict=True)
    }
