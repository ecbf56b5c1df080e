"""Splitting text files at the ends of records: plain files by position, compressed files into chunks."""

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
_MAX_RECORD_BYTES: Final = 1 << 30
_GZIP_MAGIC: Final = b"\x1f\x8b"
BOM: Final = b"\xef\xbb\xbf"
_NEWLINE: Final = 0x0A
_CARRIAGE_RETURN: Final = 0x0D


class Span(NamedTuple):
    """Complete records of a text file.

    Attributes:
        start: position of the first byte.
        stop: position after the last byte.
        first_record: number of records before the span.
        num_records: number of records, without empty lines.
    """

    start: int
    stop: int
    first_record: int
    num_records: int


@contextmanager
def open_text(location: Location) -> Iterator[Any]:
    """Open a file as a stream of bytes; gzip is decompressed.

    Raises:
        DataError: the compressed data are damaged.
        StorageError: the file cannot be read.
    """
    # before opening, because all handles of a file in fsspec's memory share one position
    is_compressed = is_gzip(location)
    with location.open_stream() as stream:
        if not is_compressed:
            yield stream
            return
        try:
            yield gzip.GzipFile(fileobj=stream)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(
                f"is damaged ({error}): copy it again from its source", path=str(location)
            ) from error


def is_gzip(location: Location) -> bool:
    """Return whether the file is gzip, by its first bytes."""
    with location.open_stream() as stream:
        return bytes(stream.read(2)) == _GZIP_MAGIC


def read_head(location: Location, nbytes: int) -> bytes:
    """Read the first `nbytes` of the text; gzip is decompressed."""
    with open_text(location) as stream:
        return bytes(stream.read(nbytes))


def read_span(location: Location, span: Span) -> bytes:
    """Read the records of a span of a plain file.

    Raises:
        DataError: the file has become shorter.
    """
    with location.open_stream() as stream:
        stream.seek(span.start)
        data = bytes(stream.read(span.stop - span.start))
    if len(data) != span.stop - span.start:
        raise DataError(f"{location} became shorter while it was read: read it again")
    return data


def read_chunks(location: Location, quote: bytes | None = None) -> Iterator[tuple[Span, bytes]]:
    """Read the text in chunks of about 16 MiB that end where records end.

    Args:
        location: the file.
        quote: the quote character; line ends between two quotes are text.

    Raises:
        DataError: a record is longer than 1 GiB, or a quote is unmatched.
    """
    with open_text(location) as stream:
        text, start, first_record = b"", 0, 0
        chunk = bytes(stream.read(CHUNK_BYTES))
        while chunk:
            # reads one chunk ahead, to know which chunk is the last one
            text, chunk = text + chunk, bytes(stream.read(CHUNK_BYTES))
            ends = find_record_ends(text, quote)
            if not chunk and text[ends[-1] + 1 if len(ends) else 0 :].strip():
                if quote is not None and text.count(quote) % 2:
                    raise DataError(
                        f"has an unmatched quote ({quote.decode()}): double the quotes within "
                        "text, or set `quote_char: false` under `readOptions`",
                        path=str(location),
                    )
                ends = np.append(ends, len(text) - 1)
            if len(ends):
                num_bytes, num_records = int(ends[-1]) + 1, _count_records(text, ends)
                yield Span(start, start + num_bytes, first_record, num_records), text[:num_bytes]
                text, start, first_record = text[num_bytes:], start + num_bytes, first_record + num_records
            elif len(text) > _MAX_RECORD_BYTES:
                raise DataError(
                    f"has no line end within {_MAX_RECORD_BYTES >> 20} MiB: "
                    "it is not text with one record per line",
                    path=str(location),
                )


def find_record_ends(text: bytes, quote: bytes | None) -> I64:
    """Return the position of the line end of each record, `[records]`; the text begins with a record."""
    data = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero(data == _NEWLINE)
    if quote is None or quote not in text:
        return ends
    quotes = np.flatnonzero(data == quote[0])
    # an even number of quotes before a line end closes all of them
    return ends[np.searchsorted(quotes, ends) % 2 == 0]


def _count_records(text: bytes, ends: I64) -> int:
    """Count the records; empty lines do not count.

    The last record of a file may lack a line end; then its "end" is its last byte, so that it is not empty.
    """
    data, starts = np.frombuffer(text, dtype=np.uint8), np.append(0, ends[:-1] + 1)
    lengths = ends - starts
    is_empty = (lengths == 0) | ((lengths == 1) & (data[starts] == _CARRIAGE_RETURN))
    return int(np.count_nonzero(~(is_empty & (data[ends] == _NEWLINE))))
