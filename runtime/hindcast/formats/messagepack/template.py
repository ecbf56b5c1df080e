"""Items of one column that differ in nothing but their numbers: read and written a column at a time.

Most items of a column have the same bytes except for a few spans, the payloads: the four floats in
`{nd: true, type: "<f4", kind: "", shape: [4], data: <16 bytes>}`. A `Template` is such an item. T items that follow it
are a `[T, stride]` matrix whose other bytes are all equal, which is checked, and whose payloads are the column.

Spans: an item that begins with the template's bytes has the template's length, because every length in MessagePack
comes before what it measures. So a strip whose items all equal the template outside the payloads is nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from hindcast.formats.dtypes import parse_dtype
from hindcast.formats.messagepack.values import restore

Path = tuple[str, ...]

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
"""The tag of a number -> its dtype in the item, and the one that it is read as."""
_LEAST_SMALL_INT: Final = -32
_OF_ARRAYS: Final = (b"nd", b"type", b"kind", b"shape", b"data")


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

    path: Path
    start: int
    dtype: np.dtype
    shape: tuple[int, ...]
    decoded_dtype: np.dtype
    is_plain: bool = False
    is_small_int: bool = False

    @property
    def stop(self) -> int:
        """The byte after it."""
        return self.start + self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


class Template:
    """One item of a column, and where its numbers are.

    Attributes:
        item: its bytes.
        stride: how many.
        payloads: the numbers, in order.
    """

    def __init__(self, item: bytes, payloads: Iterable[Payload]) -> None:
        self.item = item
        self.stride = len(item)
        self.payloads = tuple(payloads)
        self._record, self._words = _record(item, self.payloads)

    @classmethod
    def from_item(cls, item: bytes) -> Template | None:
        """The template of an item; None if items like it may differ in length (text) or are unclear (lists).

        Raises:
            Refused: an object array, an extension type.
        """
        unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=len(item))
        unpacker.feed(item)
        try:
            payloads = list(_payloads(item, unpacker, ()))
        except (_NotFixed, msgpack.UnpackException):
            return None
        return cls(item, payloads) if unpacker.tell() == len(item) else None

    def read(self, strip: bytes) -> dict[Path, NDArray[Any]] | None:
        """The numbers of items end to end, `[T, *shape]` by their place in the item; None if one differs."""
        if len(strip) % self.stride:
            return None
        items = np.frombuffer(strip, self._record)
        if not all(bool((items[name] == expected).all()) for name, expected in self._words.items()):
            return None
        columns: dict[Path, NDArray[Any]] = {}
        for i, payload in enumerate(self.payloads):
            column = items[f"p{i}"]
            if payload.is_small_int and (column < _LEAST_SMALL_INT).any():
                return None
            columns[payload.path] = column.astype(payload.decoded_dtype)
        return columns

    def fill(self, columns: Mapping[Path, NDArray[Any]]) -> NDArray[np.uint8]:
        """`[T, stride]`: the inverse of `read`."""
        matrix = np.empty((len(next(iter(columns.values()))), self.stride), dtype=np.uint8)
        matrix[:] = np.frombuffer(self.item, np.uint8)
        items = matrix.reshape(-1).view(self._record)
        for i, payload in enumerate(self.payloads):
            items[f"p{i}"] = columns[payload.path]
        return matrix


def _record(item: bytes, payloads: tuple[Payload, ...]) -> tuple[np.dtype, dict[str, np.generic]]:
    """A structured dtype of an item: its payloads, and all else in words of 8 bytes (fewer where less is left).

    Returns:
        It, and the words that all items share, by their names in it.
    """
    words = {f"w{start}": (start, f"<u{size}") for start, size in _words(len(item), payloads)}
    numbers = {f"p{i}": (own.start, (own.dtype, own.shape)) for i, own in enumerate(payloads)}
    offsets, formats = map(list, zip(*(numbers | words).values(), strict=True))
    names = [*numbers, *words]
    record = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": len(item)})
    first = np.frombuffer(item, record)[0]
    return record, {name: first[name] for name in words}


def _words(size: int, payloads: tuple[Payload, ...]) -> Iterable[tuple[int, int]]:
    """(start, bytes) of the pieces outside the payloads."""
    at = 0
    for start, stop in [*((payload.start, payload.stop) for payload in payloads), (size, size)]:
        while at < start:
            length = next(length for length in (8, 4, 2, 1) if length <= start - at)
            yield at, length
            at += length
        at = stop


class _NotFixed(Exception):
    """Items like this one may have other lengths, or the item alone does not say what it is."""


def _payloads(item: bytes, unpacker: msgpack.Unpacker, path: Path) -> Iterator[Payload]:
    """The payloads of the value that the unpacker of an item reads next.

    Raises:
        _NotFixed: see there.
        Refused: an object array.
    """
    at = unpacker.tell()
    tag = item[at]
    if tag in _PLAIN:
        stored, result = _PLAIN[tag]
        unpacker.skip()
        yield Payload(path, at + 1, stored, (), result, is_plain=True)
    elif tag <= 0x7F or tag >= 0xE0:
        unpacker.skip()
        yield Payload(path, at, np.dtype("i1"), (), _INTEGER, is_plain=True, is_small_int=True)
    elif 0x80 <= tag <= 0x8F or tag in (0xDE, 0xDF):
        yield from _payloads_of_map(item, unpacker, path)
    elif 0x90 <= tag <= 0x9F or tag in (0xDC, 0xDD):
        for i in range(unpacker.read_array_header()):
            if not 0x80 <= item[unpacker.tell()] <= 0x9F:
                raise _NotFixed  # plain numbers in a list: a vector or a tuple, which only the space knows
            yield from _payloads(item, unpacker, (*path, str(i)))
    else:
        raise _NotFixed


def _payloads_of_map(item: bytes, unpacker: msgpack.Unpacker, path: Path) -> Iterator[Payload]:
    count = unpacker.read_map_header()
    for i in range(count):
        key = unpacker.unpack()
        if i == 0 and key == b"nd":
            yield _array(unpacker, path, count)
            return
        if not isinstance(key, str):
            raise _NotFixed
        yield from _payloads(item, unpacker, (*path, key))


def _array(unpacker: msgpack.Unpacker, path: Path, count: int) -> Payload:
    """An array or a NumPy scalar; its first key has been read."""
    fields, stop = {b"nd": unpacker.unpack()}, 0
    for _ in range(count - 1):
        key = unpacker.unpack()
        if key not in _OF_ARRAYS:
            raise _NotFixed
        fields[key] = unpacker.unpack()
        if key == b"data":
            stop = unpacker.tell()
    value, dtype = restore(fields), parse_dtype(fields[b"type"], fields.get(b"kind", b""))
    if dtype.kind == "U":
        raise _NotFixed
    return Payload(path, stop - value.nbytes, dtype, value.shape, dtype.newbyteorder("<"))
