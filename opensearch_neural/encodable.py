"""Texts without half surrogate pairs, which JSON allows, and neither UTF-8 nor tokenizers do."""

from __future__ import annotations


def encodable(text: str) -> str:
    """`text` with each lone surrogate replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return text
