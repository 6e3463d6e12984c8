"""The rows of a forward index, read back."""

from __future__ import annotations

import struct

BYTES = 6
"""Of a token."""


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
