"""Bytes to lines: what every text format is read through.

Compression is recognised by its magic number. What is damaged costs the lines that are damaged: behind a broken or cut
gzip or zstd member reading goes on at the next member that can be decoded (gzip: RFC 1952, section 2.2, a file is a
series of members; zstd: RFC 8878, section 3, of frames), and a line too long to be a document is passed over without
holding it in memory.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

from opensearch_neural.errors import InputError, MissingExtra

MAX_LINE_BYTES = 100 * 1024 * 1024  # OpenSearch takes no request above 100 MB (http.max_content_length)
RAW_BYTES = 10_000  # what is kept of a line that is too long

_READ = 256 * 1024
_LOOK_BACK = 256 * 1024
_PROBE = 256 * 1024  # more than a zstd block, so that a good member shows some output


def reason_of(error: Exception) -> str:
    """An operating system's error without its number and path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def open_binary(place: str) -> tuple[BufferedReader, str]:
    """A binary stream and the name by which errors call it."""
    if place == "-":
        return cast(BufferedReader, sys.stdin.buffer), "standard input"
    try:
        return Path(place).open("rb"), place
    except FileNotFoundError:
        raise InputError(f"{place} does not exist", "check the path") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{place}: {reason_of(error)}") from None


@dataclass(slots=True, frozen=True)
class Break:
    """A place in a stream where bytes were lost; what follows begins on a new line."""

    reason: str


@dataclass(slots=True, frozen=True)
class BadLine:
    """A line that cannot be read as one; `raw` is what is left of it."""

    reason: str
    raw: bytes


@dataclass(slots=True, frozen=True)
class Codec:
    name: str
    magics: tuple[bytes, ...]
    new: Callable[[], Any]
    errors: tuple[type[Exception], ...]
    step: int  # compressed bytes handed over at once


def _gzip() -> Codec:
    return Codec("gzip", (b"\x1f\x8b\x08",), lambda: zlib.decompressobj(wbits=31), (zlib.error,), 32 * 1024)


def _zstd() -> Codec:
    try:
        import zstandard
    except ImportError:
        raise MissingExtra("reading .zst files", "corpora") from None
    decompressor = zstandard.ZstdDecompressor()
    # Small steps: an error loses what was decompressed in the same step, and there is no copy to go back to.
    skippable = tuple(bytes([0x50 + i, 0x2A, 0x4D, 0x18]) for i in range(16))
    magics = (b"\x28\xb5\x2f\xfd", *skippable)
    return Codec("zstd", magics, decompressor.decompressobj, (zstandard.ZstdError,), 1024)


class Members:
    """The members of a compressed stream, with recovery at the next member after a broken one.

    A damaged or cut member is noticed some bytes late, possibly beyond the first bytes of the next: so the last
    _LOOK_BACK bytes that were handed to the decoder are kept to look for the next member's magic number in.
    """

    def __init__(self, stream: BufferedReader, start: bytes, codec: Codec) -> None:
        self.stream = stream
        self.codec = codec
        self.buffer = bytearray(start)
        self.base = 0  # offset in the stream of buffer[0]
        self.at = 0  # index in the buffer of the next byte to decode

    def _fill(self) -> bool:
        """Read more behind the buffer; False at the end."""
        drop = max(0, self.at - _LOOK_BACK)
        if drop:
            del self.buffer[:drop]
            self.base += drop
            self.at -= drop
        more = self.stream.read1(_READ)
        self.buffer += more
        return bool(more)

    def pieces(self) -> Iterator[bytes | Break]:
        """Decompressed bytes, and a Break wherever some were lost."""
        while self._at_member():
            start = self.base + self.at
            if self.buffer.startswith(self.codec.magics, self.at):
                broken = yield from self._member(start)
            else:
                broken = Break(f"no {self.codec.name} data at byte {start}")
            if broken is not None:
                yield broken
                if not self._find_next(start):
                    return

    def _at_member(self) -> bool:
        """Whether bytes are left, once four of them are there to tell what they are."""
        while True:
            if self.codec.name == "gzip" and self.buffer.startswith(b"\0", self.at):  # padding behind a member
                rest = bytes(self.buffer[self.at :])
                self.at += len(rest) - len(rest.lstrip(b"\0"))
            if len(self.buffer) - self.at >= 4 or not self._fill():
                return self.at < len(self.buffer)

    def _member(self, start: int) -> Generator[bytes, None, Break | None]:
        """Decode one member; returns the Break at which it ended early, or None."""
        decoder = self.codec.new()
        while not decoder.eof:
            if self.at == len(self.buffer) and not self._fill():
                return Break(f"the file ends inside the {self.codec.name} member that begins at byte {start}")
            data = bytes(self.buffer[self.at : self.at + self.codec.step])
            before = decoder.copy() if hasattr(decoder, "copy") else None
            try:
                piece = decoder.decompress(data)
            except self.codec.errors as error:
                good = 0
                if before is not None:
                    good = yield from self._salvage(before, data)
                where = self.base + self.at + good
                return Break(f"damaged {self.codec.name} data near byte {where} ({str(error).strip()})")
            if piece:
                yield piece
            self.at += len(data) - (len(decoder.unused_data) if decoder.eof else 0)
        return None

    def _salvage(self, decoder: Any, data: bytes) -> Generator[bytes, None, int]:
        """What a step holds before its damage, byte by byte; returns the number of good bytes."""
        for index in range(len(data)):
            try:
                piece = decoder.decompress(data[index : index + 1])
            except self.codec.errors:
                return index
            if piece:
                yield piece
        return len(data)

    def _find_next(self, start: int) -> bool:
        """Move to the next member that begins behind byte `start` of the stream; False if there is none."""
        self.at = max(0, start + 1 - self.base)
        while True:
            found = [self.buffer.find(magic, self.at) for magic in self.codec.magics]
            found = [index for index in found if index >= 0]
            if not found:
                # A magic number may lie across the border of two reads.
                self.at = max(self.at, len(self.buffer) - 3)
                if not self._fill():
                    return False
                continue
            self.at = min(found)
            while len(self.buffer) - self.at < _PROBE and self._fill():
                pass
            if self._decodes(bytes(self.buffer[self.at : self.at + _PROBE])):
                return True
            self.at += 1

    def _decodes(self, data: bytes) -> bool:
        """Whether `data` begins a member, and not a magic number by chance."""
        try:
            decoder = self.codec.new()
            return bool(decoder.decompress(data)) or decoder.eof
        except self.codec.errors:
            return False


def decompressed(stream: BufferedReader, name: str) -> Iterator[bytes | Break]:
    """The decompressed bytes of a stream; compression is known by its magic number, or else by the file's name."""
    try:
        start = stream.read1(_READ)  # not `read`, which waits for all of it: a pipe may be slow
        while 0 < len(start) < 4 and (more := stream.read1(_READ)):
            start += more
        if start.startswith(b"\x1f\x8b") or (start and name.endswith(".gz")):
            yield from Members(stream, start, _gzip()).pieces()
        elif start.startswith(b"\x28\xb5\x2f\xfd") or (start and name.endswith(".zst")):
            yield from Members(stream, start, _zstd()).pieces()
        else:
            while start:
                yield start
                start = stream.read1(_READ)
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: cannot be read: {reason_of(error)}") from None
    finally:
        if stream is not sys.stdin.buffer:
            stream.close()


def read_lines(stream: BufferedReader, name: str, *, blanks: bool = False) -> Iterator[tuple[int, bytes | BadLine]]:
    """(number from 1, line without its end) of a stream; blank lines are counted, and left out unless `blanks`."""
    number = 0
    pending: list[bytes] = []
    size = 0
    first = True
    for piece in decompressed(stream, name):
        if isinstance(piece, Break):
            line = b"".join(pending)
            pending, size = [], 0
            yield number + 1, BadLine(piece.reason, line[:RAW_BYTES])
            number += bool(line)
            continue
        if first and piece.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise InputError(f"{name} is UTF-16 text", "write it as UTF-8 (iconv -f utf-16 -t utf-8)")
        if first and piece.startswith(b"\xef\xbb\xbf"):
            piece = piece[3:]
        first = False
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
            # Of a line that is too long only the beginning is kept, however long it gets.
            if size <= MAX_LINE_BYTES or sum(map(len, pending)) <= RAW_BYTES:
                pending.append(last)
            elif len(pending) > 1:
                pending = [b"".join(pending)[: RAW_BYTES + 1]]
    line = b"".join(pending)
    if size > MAX_LINE_BYTES:
        yield number + 1, _too_long(line, size)
    elif line.strip():
        yield number + 1, line[:-1] if line.endswith(b"\r") else line


def _too_long(line: bytes, size: int) -> BadLine:
    reason = f"the line is {size:,} bytes long; at most {MAX_LINE_BYTES:,} are taken (raw holds its beginning)"
    return BadLine(reason, line[:RAW_BYTES])


def printable(line: bytes) -> str:
    return line.decode("utf-8", "backslashreplace")
