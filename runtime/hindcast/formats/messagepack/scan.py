"""Finds the numbers in one packed item."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from hindcast.formats.storable import Refused, storable

_FLOAT: Final[np.dtype] = np.dtype(np.float64)
_INTEGER: Final[np.dtype] = np.dtype(np.int64)
_PLAIN: Final[dict[int, tuple[np.dtype, np.dtype]]] = {
    0xCA: (np.dtype(">f4"), _FLOAT),
    0xCB: (np.dtype(">f8"), _FLOAT),
    0xCC: (np.dtype("u1"), _INTEGER),
    0xCD: (np.dtype(">u2"), _INTEGER),
    0xCE: (np.dtype(">u4"), _INTEGER),
    0xD0: (np.dtype("i1"), _INTEGER),
    0xD1: (np.dtype(">i2"), _INTEGER),
    0xD2: (np.dtype(">i4"), _INTEGER),
    0xD3: (np.dtype(">i8"), _INTEGER),
}
_LENGTH_BYTES = {
    **dict.fromkeys((0xC4, 0xD9), 1),
    **dict.fromkeys((0xC5, 0xDA, 0xDC, 0xDE), 2),
    **dict.fromkeys((0xC6, 0xDB, 0xDD, 0xDF), 4),
}


class NotFixed(Exception):
    """Items like this one may have other lengths, or the item alone does not say what it is."""


class Payload(NamedTuple):
    """A number or an array in an item.

    Attributes:
        path: keys and indices that lead to it; empty for the item itself.
        start: its first byte.
        dtype: as it is stored.
        shape: of the array.
        result: the dtype it is read as.
        is_plain: a number of MessagePack's own, as Python's numbers are written.
        is_small_int: the byte is both its kind and its value.
    """

    path: tuple[str, ...]
    start: int
    dtype: np.dtype
    shape: tuple[int, ...]
    result: np.dtype
    is_plain: bool = False
    is_small_int: bool = False

    @property
    def stop(self) -> int:
        """The byte after it."""
        return self.start + self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


def scan(item: bytes) -> list[Payload]:
    """The payloads of an item.

    Raises:
        NotFixed: see there.
        Refused: an object array.
    """
    found: list[Payload] = []
    if _scan(item, 0, (), found) != len(item):
        raise NotFixed
    return found


def _scan(item: bytes, at: int, path: tuple[str, ...], found: list[Payload]) -> int:
    """Notes the payloads of the value at a position; returns the position after it."""
    tag = item[at]
    if tag in _PLAIN:
        stored, result = _PLAIN[tag]
        found.append(Payload(path, at + 1, stored, (), result, is_plain=True))
        return found[-1].stop
    if tag <= 0x7F or tag >= 0xE0:
        found.append(Payload(path, at, np.dtype("i1"), (), _INTEGER, is_plain=True, is_small_int=True))
        return at + 1
    if 0x80 <= tag <= 0x8F or tag in (0xDE, 0xDF):
        count, at = _length(item, at, 0x80)
        if count and item[at : at + 4] == b"\xc4\x02nd":
            return _scan_array(item, at, count, path, found)
        for _ in range(count):
            key, at = _text(item, at)
            at = _scan(item, at, (*path, key), found)
        return at
    if 0x90 <= tag <= 0x9F or tag in (0xDC, 0xDD):
        count, at = _length(item, at, 0x90)
        for i in range(count):
            if not 0x80 <= item[at] <= 0x9F:
                raise NotFixed  # plain numbers in a list: a vector or a tuple, which only the space knows
            at = _scan(item, at, (*path, str(i)), found)
        return at
    raise NotFixed


def _scan_array(item: bytes, at: int, count: int, path: tuple[str, ...], found: list[Payload]) -> int:
    """The map of an array or a NumPy scalar; `at` is after its header."""
    fields: dict[bytes, object] = {}
    start = stop = -1
    for _ in range(count):
        key, at = _binary(item, at)
        if key == b"data":
            data, at = _binary(item, at)
            start, stop = at - len(data), at
        elif key == b"nd":
            fields[key], at = item[at], at + 1
        elif key == b"type":
            fields[key], at = _text(item, at)
        elif key == b"kind":
            fields[key], at = _binary(item, at)
        elif key == b"shape":
            fields[key], at = _integers(item, at)
        else:
            raise NotFixed
    dtype = storable(fields.get(b"type"), fields.get(b"kind", b""))
    shape = fields.get(b"shape", ()) if fields.get(b"nd") == 0xC3 else ()
    if dtype.kind == "U" or not isinstance(shape, tuple):
        raise NotFixed
    payload = Payload(path, start, dtype, shape, dtype.newbyteorder("<"))
    if payload.stop != stop:
        raise Refused(f"an array of {dtype} {list(shape)} with {stop - start} bytes")
    found.append(payload)
    return at


def _length(item: bytes, at: int, small: int) -> tuple[int, int]:
    """The length in a header, and the position after the header; `small` is the tag of short ones."""
    tag = item[at]
    if small <= tag < small + 16:
        return tag - small, at + 1
    size = _LENGTH_BYTES.get(tag)
    if size is None:
        raise NotFixed
    return int.from_bytes(item[at + 1 : at + 1 + size], "big"), at + 1 + size


def _text(item: bytes, at: int) -> tuple[str, int]:
    tag = item[at]
    if 0xA0 <= tag <= 0xBF:
        length, at = tag - 0xA0, at + 1
    elif tag in (0xD9, 0xDA, 0xDB):
        length, at = _length(item, at, 0)
    else:
        raise NotFixed
    return item[at : at + length].decode(), at + length


def _binary(item: bytes, at: int) -> tuple[bytes, int]:
    if item[at] not in (0xC4, 0xC5, 0xC6):
        raise NotFixed
    length, at = _length(item, at, 0)
    return item[at : at + length], at + length


def _integers(item: bytes, at: int) -> tuple[tuple[int, ...], int]:
    count, at = _length(item, at, 0x90)
    values = []
    for _ in range(count):
        tag = item[at]
        if tag <= 0x7F:
            values.append(tag)
            at += 1
        elif tag in (0xCC, 0xCD, 0xCE):
            stored = _PLAIN[tag][0]
            values.append(int(np.frombuffer(item, stored, 1, at + 1)[0]))
            at += 1 + stored.itemsize
        else:
            raise NotFixed
    return tuple(values), at
