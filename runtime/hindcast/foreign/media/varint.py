"""Whole numbers of variable length, as Thrift and Protocol Buffers write them: 7 bits a byte, the lowest first."""

from __future__ import annotations


def varint(data: memoryview | bytes, position: int) -> tuple[int, int]:
    """The number that begins at a byte, and the position of the byte after it.

    Raises:
        ValueError: it has more than 64 bits.
        IndexError: the data end in it.
    """
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
