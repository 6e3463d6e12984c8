"""The values of a search body as OpenSearch reads them."""

from __future__ import annotations

import json
import math
import re
import struct
from typing import Any


def as_sent(value: Any) -> Any:
    """The value as opensearch-py sends it: lists for tuples and arrays, Python's numbers for `Decimal` and numpy's, texts
    for dates. A value that it cannot send stays: another client may."""
    if isinstance(value, dict):
        return {name: as_sent(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_sent(each) for each in value]
    if value is None or isinstance(value, str | int | float):
        return value
    from opensearchpy.serializer import JSONSerializer

    try:
        return as_sent(JSONSerializer().default(value))
    except TypeError:
        return value


def as_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


# Java's Double trims control characters. It also reads hexadecimal fractions, which nobody writes here.
_BLANK = r"[\0-\x20]*"
_NUMBER = re.compile(rf"{_BLANK}([+-]?(?:NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))[fFdD]?{_BLANK}", re.ASCII)


def as_number(value: Any) -> float | None:
    """A number as OpenSearch reads it, also from a string; None for NaN and for anything else."""
    number = number_or_nan(value)
    return None if number is None or math.isnan(number) else number


def number_or_nan(value: Any) -> float | None:
    """A number as OpenSearch reads it, also from a string, where "NaN" is one too; None for anything else."""
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        return None if match is None else float(match[1])
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def as_int32(value: Any) -> int | None:
    """A whole number as OpenSearch reads it: without its fraction, and "NaN" as 0. None for anything else, also beyond 32
    bits."""
    number = number_or_nan(value)
    if number is None or not -(2**31) - 1 < number < 2**31:
        return 0 if number is not None and math.isnan(number) else None
    return math.trunc(number)


def number_or(value: Any, default: float) -> float:
    """The number, or `default` if the value is not a number."""
    number = as_number(value)
    return default if number is None else number


def whole(number: float) -> float:
    """The number without its fraction, as OpenSearch reads 1.5 for a whole number."""
    return math.trunc(number) if math.isfinite(number) else number


def float32(value: Any) -> float | None:
    """The number as Lucene stores it; infinite beyond float32's range; None if it is not a number."""
    number = as_number(value)
    if number is None:
        return None
    try:
        return struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)


# A space after minutes, and M, which would be months, are refused; other units may be in capitals. Java's Long reads the
# digits of all scripts, as \d does, and trims control characters.
_TIME = re.compile(
    rf"{_BLANK}(?:(?P<number>[+-]?\d+){_BLANK}(?:(?ai:nanos|micros|ms|s|h|d){_BLANK}|m)|-0*1{_BLANK}|0+{_BLANK})"
)


def is_time(value: Any) -> bool:
    """Whether OpenSearch reads a value as a time: a whole number with a unit ("10s"), or 0 or -1 without one."""
    match = _TIME.fullmatch(value if isinstance(value, str) else json.dumps(value))
    return match is not None and -(2**63) <= int(match["number"] or 0) < 2**63


def matches(pattern: str, name: str) -> bool:
    """Whether a field's name fits a pattern, in which * stands for any characters."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name) is not None
