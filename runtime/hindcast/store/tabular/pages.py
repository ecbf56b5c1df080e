"""Columns of frames, read from their pages as the bytes that they are.

Parquet stores two levels beside each number of a list, and a small integer in four bytes. Taking frames apart number by
number costs more than all the rest of reading them, so pages whose levels say "lists of one length, and no nulls" are
decoded whole. Pages that are anything else, or damaged, are left to Arrow's reader, which says what is wrong.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hindcast.store.parquet import Source
from hindcast.store.tabular.page_headers import (
    PageHeader,
    Unlike,
    levels_are_all,
    page_header,
    starts_of_rows,
)

Rows = Sequence[tuple[int, int]]  # ranges of rows, in order

_TYPES: Final = {
    ("INT32", "UINT_8"): "<u1",
    ("INT32", "INT_8"): "<i1",
    ("INT32", "UINT_16"): "<u2",
    ("INT32", "INT_16"): "<i2",
    ("INT32", "NONE"): "<i4",
    ("FLOAT", "NONE"): "<f4",
    ("DOUBLE", "NONE"): "<f8",
}
_STORED_BYTES: Final = {"INT32": 4, "FLOAT": 4, "DOUBLE": 8}
_CODECS: Final = {"LZ4": "lz4_raw", "ZSTD": "zstd", "UNCOMPRESSED": None}
_PLAIN, _BYTE_STREAM_SPLIT = 0, 9


class Lists(NamedTuple):
    """A column of lists of one length.

    Attributes:
        path: of the list in the file's schema, `obs` or `obs.camera`.
        dtype: of its numbers.
        width: how many each list has.
    """

    path: str
    dtype: np.dtype
    width: int


def read_lists(source: Source, row_groups: Sequence[int], lists: Lists, rows: Rows) -> NDArray[Any] | None:
    """Rows of a column, without the pages that have none of them.

    Args:
        source: the file.
        row_groups: which of its row groups.
        lists: the column.
        rows: which of the row groups' rows, counted from the first row group's first.

    Returns:
        `[number of rows, width]`; None where the column's pages are not as this module knows them.
    """
    index = _index_of(source.file.schema, lists)
    if index is None:
        return None
    out = np.empty((sum(stop - start for start, stop in rows), lists.width), dtype=lists.dtype)
    try:
        level = source.file.schema.column(index).max_definition_level
        filled = _fill(out.reshape(-1), _pages(source, row_groups, index, lists.width), level, lists, rows)
    except (Unlike, pa.ArrowException, OSError, ValueError, LookupError, TypeError):
        return None
    return out if filled == out.size else None


def _index_of(schema: pq.ParquetSchema, lists: Lists) -> int | None:
    """The number of the Parquet column, where it has the numbers that are expected."""
    for index in range(len(schema)):
        column = schema.column(index)
        if column.path.rsplit(".", 2)[0] != lists.path or column.max_repetition_level != 1:
            continue
        stored = _TYPES.get((column.physical_type, column.converted_type))
        return index if stored is not None and np.dtype(stored) == lists.dtype else None
    return None


def _fill(out: NDArray[Any], pages: Iterator[tuple[int, _Page]], level: int, lists: Lists, rows: Rows) -> int:
    """Copy the wanted numbers; how many there were."""
    wanted = [(start * lists.width, stop * lists.width) for start, stop in rows]
    filled = 0
    for start, page in pages:
        stop = start + page.header.values
        here = [(max(start, low), min(stop, high)) for low, high in wanted if low < stop and high > start]
        if not here:
            continue
        numbers = page.numbers(start, level, lists)
        for low, high in here:
            out[filled : filled + high - low] = numbers[low - start : high - start]
            filled += high - low
    return filled


class _Page(NamedTuple):
    header: PageHeader
    body: memoryview
    codec: pa.Codec | None
    stored_bytes: int

    def numbers(self, start: int, level: int, lists: Lists) -> NDArray[Any]:
        """All of its numbers, once its levels are found to say nothing else.

        Args:
            start: how many numbers are before it.
            level: of definition, which a number has that is there.
            lists: the column.
        """
        if self.header.crc is not None and zlib.crc32(self.body) != self.header.crc:
            raise Unlike
        count = self.header.values
        if self.header.uncompressed_bytes > 2 * self.stored_bytes * count + 1024:
            raise Unlike
        data = self.body
        if self.codec is not None:
            data = memoryview(self.codec.decompress(self.body, self.header.uncompressed_bytes)).cast("B")
        repetition, data = _levels(data)
        definition, data = _levels(data)
        if not levels_are_all(definition, level, count):
            raise Unlike
        if starts_of_rows(bytes(repetition), count) != list(range(-start % lists.width, count, lists.width)):
            raise Unlike
        return self._decoded(np.frombuffer(data, np.uint8), lists.dtype)

    def _decoded(self, stored: NDArray[np.uint8], dtype: np.dtype) -> NDArray[Any]:
        """Little-endian numbers, which may be stored in more bytes than they have."""
        count = self.header.values
        if len(stored) != count * self.stored_bytes:
            raise Unlike
        if self.header.encoding == _PLAIN:
            return stored.view(dtype)[:: self.stored_bytes // dtype.itemsize]
        if self.header.encoding != _BYTE_STREAM_SPLIT:
            raise Unlike
        streams = stored.reshape(self.stored_bytes, count)[: dtype.itemsize]
        return np.ascontiguousarray(streams.T).reshape(-1).view(dtype)


def _pages(source: Source, row_groups: Sequence[int], index: int, width: int) -> Iterator[tuple[int, _Page]]:
    """A column's pages, each with how many numbers are before it."""
    position = 0
    for group in row_groups:
        metadata = source.file.metadata.row_group(group)
        chunk = metadata.column(index)
        if chunk.num_values != metadata.num_rows * width:
            raise Unlike
        for page in _pages_of(source, chunk):
            yield position, page
            position += page.header.values


def _pages_of(source: Source, chunk: pq.ColumnChunkMetaData) -> Iterator[_Page]:
    if chunk.has_dictionary_page or chunk.compression not in _CODECS:
        raise Unlike
    name = _CODECS[chunk.compression]
    codec = None if name is None else pa.Codec(name)
    data = memoryview(source.stream.read_at(chunk.total_compressed_size, chunk.data_page_offset))
    position = values = 0
    while position < len(data):
        header, position = page_header(data, position)
        end, values = position + header.compressed_bytes, values + header.values
        if end > len(data) or values > chunk.num_values:
            raise Unlike
        yield _Page(header, data[position:end], codec, _STORED_BYTES[chunk.physical_type])
        position = end
    if values != chunk.num_values:
        raise Unlike


def _levels(data: memoryview) -> tuple[memoryview, memoryview]:
    """A page's next levels, and what follows them."""
    end = 4 + int.from_bytes(data[:4], "little")
    return data[4:end], data[end:]
