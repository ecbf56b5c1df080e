"""Text files cut where records end: byte ranges of plain files, blocks of compressed ones."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np

from hindcast.episodes.block import I64
from hindcast.errors import DataError
from hindcast.store.filesystem import Location
from hindcast.store.storage_errors import storage_errors

PIECE: Final = 16 << 20
_CHUNK: Final = 4 << 20
_LONGEST: Final = 1 << 30
_GZIP: Final = b"\x1f\x8b"
BOM: Final = b"\xef\xbb\xbf"
_NEWLINE: Final = 0x0A
_RETURN: Final = 0x0D


class Span(NamedTuple):
    """Whole records of a text file.

    Attributes:
        start: byte at which they start.
        stop: byte after them.
        first: how many records are before them.
        records: how many they are, lines without anything not counted.
    """

    start: int
    stop: int
    first: int
    records: int


@contextmanager
def opened(location: Location) -> Iterator[Any]:
    """The file's text as a stream of bytes, decompressed where it is gzip.

    Raises:
        DataError: damage that decompressing finds.
        StorageError: it cannot be read.
    """
    with (
        storage_errors("read", location.uri, location.fs),
        location.fs.open_input_file(location.path) as stream,
    ):
        if not is_compressed(location):
            yield stream
            return
        try:
            yield gzip.GzipFile(fileobj=stream)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{location} is damaged ({error}): copy it again from its source") from error


def is_compressed(location: Location) -> bool:
    """Whether it is gzip, by its first bytes."""
    with (
        storage_errors("read", location.uri, location.fs),
        location.fs.open_input_file(location.path) as stream,
    ):
        return bytes(stream.read(2)) == _GZIP


def head_of(location: Location, nbytes: int) -> bytes:
    """The first bytes of the text."""
    with opened(location) as stream:
        return bytes(stream.read(nbytes))


def text_of(location: Location, start: int, stop: int) -> bytes:
    """The bytes of a plain file from `start` to `stop`."""
    with opened(location) as stream:
        stream.seek(start)
        data = bytes(stream.read(stop - start))
    if len(data) != stop - start:
        raise DataError(f"{location} has become shorter while it was read: read it again")
    return data


def blocks_of(location: Location, quote: bytes | None = None) -> Iterator[tuple[Span, bytes]]:
    """The text from its first byte on in blocks of about 16 MiB that end where records end.

    Args:
        location: the file.
        quote: the character between two of which a line end is none.

    Raises:
        DataError: a record without an end, or a quote without its partner.
    """
    with opened(location) as stream:
        cutter = _Cutter(str(location), quote)
        while chunk := bytes(stream.read(_CHUNK)):
            yield from cutter.take(chunk)
        yield from cutter.rest()


def spans_of(location: Location, quote: bytes | None = None) -> list[Span]:
    """Where blocks of the text start and stop."""
    return [span for span, _ in blocks_of(location, quote)]


class _Cutter:
    """Finds the ends of records in a stream of bytes."""

    def __init__(self, path: str, quote: bytes | None) -> None:
        self._path = path
        self._quote = quote
        self._is_quoted = False
        self._parts: list[bytes] = []  # what is not given away yet; ends in the last chunk
        self._nbytes = 0
        self._start = 0
        self._first = 0
        self._count = 0  # records that end in `_parts`
        self._last = -1  # byte of the last line end of the file that was met
        self._at = 0
        self._before = b""  # the last byte of the chunk before

    def take(self, chunk: bytes) -> Iterator[tuple[Span, bytes]]:
        """Look at the next bytes; blocks that are full come out."""
        ends = self._ends(chunk)
        if len(ends):
            self._count += self._records(ends, chunk)
            self._last = int(ends[-1])
        self._parts.append(chunk)
        self._nbytes += len(chunk)
        self._at += len(chunk)
        self._before = chunk[-1:]
        if self._nbytes > _LONGEST:
            raise DataError(
                f"{self._path} has no line end within {_LONGEST >> 20} MiB: it is no text of one record a line"
            )
        if self._nbytes >= PIECE and self._last >= self._start:
            yield self._block(self._last + 1)

    def rest(self) -> Iterator[tuple[Span, bytes]]:
        """What is left at the end of the file, whether it ends with a line end or not."""
        if self._is_quoted:
            quote = (self._quote or b"").decode()
            raise DataError(
                f"{self._path} has a quote ({quote}) without its partner: double those within text, "
                "or say `quote_char: false` under `readOptions`"
            )
        if (
            self._at > max(self._last + 1, self._start)
            and b"".join(self._parts)[self._last + 1 - self._start :].strip()
        ):
            self._count += 1
        if self._count:
            yield self._block(self._at)

    def _block(self, stop: int) -> tuple[Span, bytes]:
        text = b"".join(self._parts)
        size = stop - self._start
        span = Span(self._start, stop, self._first, self._count)
        self._parts, self._nbytes = [text[size:]], len(text) - size
        self._start, self._first, self._count = stop, self._first + self._count, 0
        return span, text[:size]

    def _ends(self, chunk: bytes) -> I64:
        """Bytes of the file at which records end in the chunk."""
        data = np.frombuffer(chunk, dtype=np.uint8)
        ends = np.flatnonzero(data == _NEWLINE)
        if self._quote is not None and (self._is_quoted or self._quote in chunk):
            quotes = np.flatnonzero(data == self._quote[0])
            before = np.searchsorted(quotes, ends) + self._is_quoted
            ends = ends[before % 2 == 0]
            self._is_quoted = bool((len(quotes) + self._is_quoted) % 2)
        return ends + self._at

    def _records(self, ends: I64, chunk: bytes) -> int:
        """How many of the lines that end there hold something."""
        length = np.diff(ends, prepend=self._last)
        text, base = self._before + chunk, self._at - len(self._before)
        short = np.flatnonzero(length <= 2).tolist()
        empty = [i for i in short if length[i] == 1 or text[int(ends[i]) - base - 1] == _RETURN]
        return len(ends) - len(empty)
