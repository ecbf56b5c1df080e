"""Text files split where records end: byte ranges of plain files, blocks of compressed ones."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np

from hindcast.episodes.block import I64
from hindcast.errors import DataError
from hindcast.storage.location import Location

CHUNK_BYTES: Final = 16 << 20
_LONGEST: Final = 1 << 30
_GZIP: Final = b"\x1f\x8b"
BOM: Final = b"\xef\xbb\xbf"
_NEWLINE: Final = 0x0A
_RETURN: Final = 0x0D


class Span(NamedTuple):
    """Complete records of a text file.

    Attributes:
        start: byte at which they start.
        stop: byte after them.
        first: number of records before them.
        records: number of records, not counting empty lines.
    """

    start: int
    stop: int
    first_record: int
    num_records: int


@contextmanager
def open_text(location: Location) -> Iterator[Any]:
    """The file's text as a stream of bytes, decompressed if it is gzip.

    Raises:
        DataError: damage that decompressing finds.
        StorageError: it cannot be read.
    """
    compressed = is_gzip(location)  # before it is opened: in fsspec's memory all handles are one
    with location.open_stream() as stream:
        if not compressed:
            yield stream
            return
        try:
            yield gzip.GzipFile(fileobj=stream)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{location} is damaged ({error}): copy it again from its source") from error


def is_gzip(location: Location) -> bool:
    """Whether it is gzip, by its first bytes."""
    with location.open_stream() as stream:
        return bytes(stream.read(2)) == _GZIP


def read_head(location: Location, nbytes: int) -> bytes:
    """The first bytes of the text."""
    with open_text(location) as stream:
        return bytes(stream.read(nbytes))


def read_span(location: Location, span: Span) -> bytes:
    """The records of a plain file."""
    with location.open_stream() as stream:
        stream.seek(span.start)
        data = bytes(stream.read(span.stop - span.start))
    if len(data) != span.stop - span.start:
        raise DataError(f"{location} has become shorter while it was read: read it again")
    return data


def read_chunks(location: Location, quote: bytes | None = None) -> Iterator[tuple[Span, bytes]]:
    """The text from its first byte on in blocks of about 16 MiB that end where records end.

    Args:
        location: the file.
        quote: the quote character; line ends between two of them are text.

    Raises:
        DataError: a record without an end, or an unmatched quote.
    """
    with open_text(location) as stream:
        text, start, first = b"", 0, 0
        chunk = bytes(stream.read(CHUNK_BYTES))
        while chunk:
            text, chunk = text + chunk, bytes(stream.read(CHUNK_BYTES))
            ends = find_record_ends(text, quote)
            if not chunk and text[ends[-1] + 1 if len(ends) else 0 :].strip():
                if quote is not None and text.count(quote) % 2:
                    raise DataError(
                        f"{location} has an unmatched quote ({quote.decode()}): double those within text, "
                        "or set `quote_char: false` under `readOptions`"
                    )
                ends = np.append(ends, len(text) - 1)
            if len(ends):
                size, records = int(ends[-1]) + 1, _records(text, ends)
                yield Span(start, start + size, first, records), text[:size]
                text, start, first = text[size:], start + size, first + records
            elif len(text) > _LONGEST:
                raise DataError(
                    f"{location} has no line end within {_LONGEST >> 20} MiB: it is not text with one record per line"
                )


def find_record_ends(text: bytes, quote: bytes | None) -> I64:
    """`[records]` bytes at which the records of a text end; the text begins with a record."""
    data = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero(data == _NEWLINE)
    if quote is None or quote not in text:
        return ends
    quotes = np.flatnonzero(data == quote[0])
    return ends[np.searchsorted(quotes, ends) % 2 == 0]


def _records(text: bytes, ends: I64) -> int:
    """How many of the records that end there are not empty lines."""
    data, starts = np.frombuffer(text, dtype=np.uint8), np.append(0, ends[:-1] + 1)
    lengths = ends - starts
    is_empty = (lengths == 0) | ((lengths == 1) & (data[starts] == _RETURN))
    return int(np.count_nonzero(~(is_empty & (data[ends] == _NEWLINE))))
