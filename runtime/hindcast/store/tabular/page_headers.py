"""What stands around the numbers of a Parquet data page: its header (Thrift's compact protocol) and its levels.

Parquet: https://parquet.apache.org/docs/file-format/data-pages/
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from hindcast.store.varint import varint

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _BINARY, _STRUCT = 1, 2, 3, 4, 5, 6, 8, 12
_DATA_PAGE: Final = 0
_RUN_LENGTHS: Final = 3  # the encoding of levels
_DEEPEST: Final = 8
_LONGEST_PACKED: Final = 512  # what fits a run whose head is one byte


class Unlike(Exception):
    """A page is not of the kind that is known here, or damaged."""


class PageHeader(NamedTuple):
    """The header of a data page (version 1).

    Attributes:
        values: how many values and levels it has.
        encoding: of the values, by Parquet's number.
        compressed_bytes: of the page, after the header.
        uncompressed_bytes: the same before compression.
        crc: CRC-32 of the compressed page; None where there is none.
    """

    values: int
    encoding: int
    compressed_bytes: int
    uncompressed_bytes: int
    crc: int | None


def page_header(data: memoryview, position: int) -> tuple[PageHeader, int]:
    """The header at a position, and the position after it.

    Raises:
        Unlike: another kind of page.
        ValueError: it holds a number of more than 64 bits.
        IndexError: the data end in it.
    """
    fields, position = _struct(data, position, 0)
    page = fields.get(5)
    if fields.get(1) != _DATA_PAGE or not isinstance(page, dict):
        raise Unlike
    if page.get(3) != _RUN_LENGTHS or page.get(4) != _RUN_LENGTHS:
        raise Unlike
    crc = fields.get(4)
    header = PageHeader(page[1], page[2], fields[3], fields[2], None if crc is None else crc & 0xFFFFFFFF)
    if min(header[:4]) < 0:
        raise Unlike
    return header, position


def levels_are_all(levels: memoryview, level: int, count: int) -> bool:
    """Whether the first `count` levels are the same one."""
    return all(not packed and run == level for run, packed, _ in _runs(levels, level.bit_length(), count))


@lru_cache(maxsize=64)  # the pages of a file are alike
def starts_of_rows(levels: bytes, count: int) -> list[int]:
    """Where among the first `count` levels of repetition (of one bit) a row begins: where they are 0."""
    starts: list[int] = []
    position = 0
    for run, packed, length in _runs(levels, 1, count):
        if packed:
            zeros = ~run & ((1 << length) - 1)
            while zeros:
                lowest = zeros & -zeros
                starts.append(position + lowest.bit_length() - 1)
                zeros ^= lowest
        elif run == 0:
            starts.extend(range(position, min(position + length, count)))
        position += length
    return [start for start in starts if start < count]


def _runs(data: memoryview | bytes, bits: int, count: int) -> Iterator[tuple[int, bool, int]]:
    """Runs of levels, of `count` in all or a few more.

    Yields:
        The level, or the bits of all levels, packed; whether they are packed; how many levels.
    """
    position, width, seen = 0, (bits + 7) // 8, 0
    while seen < count:
        head, position = varint(data, position)
        packed = bool(head & 1)
        length = (head >> 1) * 8 if packed else head >> 1
        nbytes = (head >> 1) * bits if packed else width
        if not length or position + nbytes > len(data) or (packed and length > _LONGEST_PACKED):
            raise Unlike
        yield int.from_bytes(data[position : position + nbytes], "little"), packed, length
        position, seen = position + nbytes, seen + length


def _struct(data: memoryview, position: int, depth: int) -> tuple[dict[int, Any], int]:
    """Field number -> value of those that are there."""
    if depth > _DEEPEST:
        raise Unlike
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head, position = data[position], position + 1
        if head == 0:
            return fields, position
        if head >> 4:
            number += head >> 4
        else:
            number, position = _integer(data, position)
        kind = head & 15
        if kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        elif kind in (_I16, _I32, _I64):
            fields[number], position = _integer(data, position)
        elif kind == _BYTE:
            fields[number], position = data[position], position + 1
        elif kind == _BINARY:
            length, position = varint(data, position)
            fields[number], position = bytes(data[position : position + length]), position + length
        elif kind == _STRUCT:
            fields[number], position = _struct(data, position, depth + 1)
        else:
            raise Unlike


def _integer(data: memoryview, position: int) -> tuple[int, int]:
    value, position = varint(data, position)
    return (value >> 1) ^ -(value & 1), position
