"""Text files as bytes and as lines, for all text formats.

Compression is recognised by its magic number. A gzip file is a series of members (RFC 1952, section 2.2), a zstd file a
series of frames (RFC 8878, section 3). How much is lost after a damaged place cannot be known, so reading stops there.
A line that is too long for a document is skipped without keeping it in memory.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

from opensearch_neural.corpus.documents import Defect
from opensearch_neural.errors import InputError, MissingExtra

MAX_LINE_BYTES = 100 * 1024 * 1024  # OpenSearch refuses requests above 100 MB (http.max_content_length)
RAW_BYTES = 10_000  # how much of a too long line is kept

OTHERS = {
    rb"PK\x03\x04": "a zip archive",
    rb"BZh[1-9]1AY&SY": "a file of bzip2",
    rb"\xfd7zXZ\x00": "a file of xz",
    rb"PAR1[\x00-\x08\x0e-\x1f]": "a parquet file",
    rb"\x89PNG\r": "an image",
    rb"%PDF-\d\.\d": "a PDF",
    rb"SQLite format 3\x00": "a database",
}
"""{first bytes of a file: what it is}, of kinds that are named like text by mistake."""

HOLE = bytes(16)
"""Zeros that no text contains: a part of a file that was never written."""

_READ = 256 * 1024
_STEP = 32 * 1024  # compressed bytes decompressed at once, because the result is held in memory
_ZSTD_WINDOW = 2**31  # the longest that zstd writes (--long=31); by default 2^27 is the longest that it reads


def reason_of(error: Exception) -> str:
    """An operating system's error without its number and path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


STANDARD_INPUT = "standard input"
"""The name of standard input in error messages."""


def open_binary(place: str) -> tuple[BufferedReader, str]:
    """(binary stream, its name in error messages)."""
    if place == "-":
        return cast(BufferedReader, sys.stdin.buffer), STANDARD_INPUT
    try:
        return Path(place).open("rb"), place
    except FileNotFoundError:
        raise not_there(place, "check the path") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{place}: {reason_of(error)}") from None


def not_there(place: str | Path, remedy: str) -> InputError:
    """The error for a path where nothing is.

    remedy: what to do, unless it is an address, an index or a data set of ir_datasets
    """
    if str(place).startswith("opensearch:"):
        return InputError(f"{place} is an index, and only files are read", "write its documents to a .jsonl file first")
    if str(place).startswith("ir:"):
        remedy = f"osn data fetch {place} --output FOLDER, then name the folder"
    address = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", str(place))  # a Path has one slash left
    if address is None:
        return InputError(f"{place} does not exist", remedy)
    scheme, rest = address.groups()
    if scheme.lower() == "file":
        return InputError(f"file:///{rest} is an address, and files are named by their path", f"/{rest}")
    return InputError(
        f"{scheme}://{rest} is an address, and only files are read",
        "download it first, and name the file; `osn data fetch` downloads public data sets",
    )


@dataclass(slots=True, frozen=True)
class BadLine:
    """A line that cannot be read."""

    reason: str
    """Why."""
    raw: bytes
    """The part of the line that was kept."""


class Unterminated(bytes):
    """The last line of a file that does not end with a line end: it may have been cut."""


AGAIN = "fetch or write the file again: how much is missing after this place cannot be known"


def cut_off(file: str, number: int) -> InputError:
    return InputError(f"{file}, line {number}: the file ends within this record", AGAIN)


def perhaps_cut_off(file: str, number: int) -> InputError:
    """The error for a last row without a line end: half a text looks like a whole one."""
    return InputError(
        f"{file}, line {number}: the last row has no line end, as if the file were cut within it",
        f"{AGAIN}; if it is whole, end it with a line end (echo >> FILE)",
    )


@dataclass(slots=True, frozen=True)
class _Codec:
    name: str
    """For messages: gzip or zstd."""
    magics: tuple[bytes, ...]
    """The first bytes of a member."""
    decoder: Callable[[], Any]
    """Makes a decompressor for one member."""
    errors: tuple[type[Exception], ...]
    """The decompressor's errors."""


def _gzip() -> _Codec:
    return _Codec("gzip", (b"\x1f\x8b\x08",), lambda: zlib.decompressobj(wbits=31), (zlib.error,))


def _zstd() -> _Codec:
    try:
        import zstandard
    except ImportError:
        raise MissingExtra("reading .zst files", "corpora") from None
    skippable = tuple(bytes([0x50 + i, 0x2A, 0x4D, 0x18]) for i in range(16))
    decoder = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj
    return _Codec("zstd", (b"\x28\xb5\x2f\xfd", *skippable), decoder, (zstandard.ZstdError,))


def decompressed(stream: BufferedReader, name: str) -> Iterator[bytes]:
    """The decompressed bytes of a stream. Compression is recognised by the magic number, else by the file's name.

    Raises InputError, naming file and byte, if the stream is damaged or ends early.
    """
    try:
        start = stream.read1(_READ)  # not `read`, which waits until all bytes are there: a pipe may be slow
        while 0 < len(start) < 4 and (more := stream.read1(_READ)):
            start += more
        is_zstd = start.startswith(b"\x28\xb5\x2f\xfd")
        if start.startswith(b"\x1f\x8b") or (start and name.endswith(".gz") and not is_zstd):
            yield from _members(stream, start, _gzip(), name)
        elif is_zstd or (start and name.endswith(".zst")):
            yield from _members(stream, start, _zstd(), name)
        else:
            while start:
                yield start
                start = stream.read1(_READ)
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: cannot be read: {reason_of(error)}") from None
    finally:
        if stream is not sys.stdin.buffer:
            stream.close()


def _members(stream: BufferedReader, data: bytes, codec: _Codec, name: str) -> Iterator[bytes]:
    """The content of the members of a compressed stream. data: its first bytes."""
    at = 0  # offset in the stream of data[0]

    def damaged(what: str) -> InputError:
        return InputError(f"{name}: {what}", AGAIN)

    while True:
        while len(data) < 4 and (more := stream.read1(_READ)):
            data += more
        if codec.name == "gzip" and data.startswith(b"\0"):  # padding after a member
            rest = data.lstrip(b"\0")
            at += len(data) - len(rest)
            data = rest
            continue
        if not data:
            return
        if not data.startswith(codec.magics):
            raise damaged(f"no {codec.name} data at byte {at}")
        start, decoder = at, codec.decoder()
        while not decoder.eof:
            if not data and not (data := stream.read1(_READ)):
                raise damaged(f"the file ends inside the {codec.name} member that begins at byte {start}")
            step, rest = data[:_STEP], data[_STEP:]
            try:
                piece = decoder.decompress(step)
            except codec.errors as error:
                raise damaged(f"damaged {codec.name} data near byte {at} ({str(error).strip()})") from None
            if piece:
                yield piece
            unused = decoder.unused_data if decoder.eof else b""
            at += len(step) - len(unused)
            data = unused + rest


def read_lines(stream: BufferedReader, name: str, *, blanks: bool = False) -> Iterator[tuple[int, bytes | BadLine]]:
    """(number from 1, line without its end) for each line of a stream; blank lines are counted, but skipped unless `blanks`.

    A last line without an end is `Unterminated`.

    Raises InputError if the stream is damaged (see `decompressed`), has a hole, is UTF-16 or is no text.
    """
    number = 0
    pending: list[bytes] = []
    size = 0
    first = True
    for piece in decompressed(stream, name):
        if first and piece.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise InputError(f"{name} is UTF-16 text", "write it as UTF-8 (iconv -f utf-16 -t utf-8)")
        if first and (kind := next((OTHERS[magic] for magic in OTHERS if re.match(magic, piece)), None)):
            raise InputError(
                f"{name} is {kind}, not text", "gzip and zstd are unpacked while reading: unpack other archives first"
            )
        if first and piece.startswith(b"\xef\xbb\xbf"):
            piece = piece[3:]
        first = False
        if (hole := piece.find(HOLE)) >= 0:
            at = number + 1 + piece.count(b"\n", 0, hole)
            raise InputError(f"{name}, line {at}: a part of the file is zeros, as if it was never written", AGAIN)
        *complete, last = piece.split(b"\n")
        for line in complete:
            number += 1
            if pending:
                size += len(line)
                pending.append(line)
                line = b"".join(pending)
                pending = []
            else:
                size = len(line)
            if size > MAX_LINE_BYTES:
                yield number, _too_long(line, size)
            elif blanks or line.strip():
                yield number, line[:-1] if line.endswith(b"\r") else line
            size = 0
        if last:
            size += len(last)
            # Only the beginning of a too long line is kept.
            if size <= MAX_LINE_BYTES or sum(map(len, pending)) <= RAW_BYTES:
                pending.append(last)
            elif len(pending) > 1:
                pending = [b"".join(pending)[: RAW_BYTES + 1]]
    line = b"".join(pending)
    if size > MAX_LINE_BYTES:
        yield number + 1, _too_long(line, size)
    elif line.strip():
        yield number + 1, Unterminated(line[:-1] if line.endswith(b"\r") else line)


def decoded(line: bytes | BadLine) -> str:
    """The text of a line of `read_lines`. Raises Defect if it cannot be read, or is not UTF-8."""
    if isinstance(line, BadLine):
        raise Defect(line.reason)
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Defect(f"invalid UTF-8 at byte {error.start + 1} of the line") from None


def read_texts(path: str | Path) -> Iterator[tuple[str, str]]:
    """(file and line number for messages, text) of each line of a file, compressed or not, that is not blank.

    Raises InputError for the first line that cannot be read, or is not UTF-8.
    """
    stream, file = open_binary(str(path))
    for number, line in read_lines(stream, file):
        where = f"{file}, line {number}"
        try:
            yield where, decoded(line)
        except Defect as defect:
            raise InputError(f"{where}: {defect}") from None


def _too_long(line: bytes, size: int) -> BadLine:
    reason = f"the line is {size:,} bytes long; at most {MAX_LINE_BYTES:,} are allowed (raw holds its beginning)"
    return BadLine(reason, line[:RAW_BYTES])


def printable(line: bytes) -> str:
    return line.decode("utf-8", "backslashreplace")
