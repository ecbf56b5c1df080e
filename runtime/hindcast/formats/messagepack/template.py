"""Items of one column that differ in nothing but their numbers: read and written a column at a time.

Most items of a column have the same bytes except for a few spans, the payloads: the four floats in
`{nd: true, type: "<f4", kind: "", shape: [4], data: <16 bytes>}`. A `Template` is such an item. T items that follow it
are a `[T, stride]` matrix whose other bytes are all equal, which is checked, and whose payloads are the column.

Spans: an item that begins with the template's bytes has the template's length, because every length in MessagePack
comes before what it measures. So a strip whose items all equal the template outside the payloads is nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from hindcast.formats.storable import Refused, storable

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
    result: np.dtype
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
    def of(cls, item: bytes) -> Template | None:
        """The template of an item; None if items like it may differ in length (text) or are unclear (lists).

        Raises:
            Refused: an object array, an extension type.
        """
        try:
            return cls(item, _Scan(item).payloads)
        except (_NotFixed, msgpack.UnpackException):
            return None

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
            columns[payload.path] = column.astype(payload.result)
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
    names, formats, offsets = [], [], []
    for i, payload in enumerate(payloads):
        names.append(f"p{i}")
        formats.append((payload.dtype, payload.shape))
        offsets.append(payload.start)
    for start, size in _words(len(item), payloads):
        names.append(f"w{start}")
        formats.append((np.dtype(f"<u{size}"), ()))
        offsets.append(start)
    record = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": len(item)})
    first = np.frombuffer(item, record)[0]
    return record, {name: first[name] for name in names[len(payloads) :]}


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


class _Scan:
    """Finds the payloads of one item.

    Raises:
        _NotFixed: see there.
        Refused: an object array.
    """

    def __init__(self, item: bytes) -> None:
        self.payloads: list[Payload] = []
        self._item = item
        self._unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=len(item))
        self._unpacker.feed(item)
        self._value(())
        if self._unpacker.tell() != len(item):
            raise _NotFixed

    def _value(self, path: Path) -> None:
        at = self._unpacker.tell()
        tag = self._item[at]
        if tag in _PLAIN:
            stored, result = _PLAIN[tag]
            self._unpacker.skip()
            self.payloads.append(Payload(path, at + 1, stored, (), result, is_plain=True))
        elif tag <= 0x7F or tag >= 0xE0:
            self._unpacker.skip()
            number = Payload(path, at, np.dtype("i1"), (), _INTEGER, is_plain=True, is_small_int=True)
            self.payloads.append(number)
        elif 0x80 <= tag <= 0x8F or tag in (0xDE, 0xDF):
            self._map(path)
        elif 0x90 <= tag <= 0x9F or tag in (0xDC, 0xDD):
            for i in range(self._unpacker.read_array_header()):
                if not 0x80 <= self._item[self._unpacker.tell()] <= 0x9F:
                    raise _NotFixed  # plain numbers in a list: a vector or a tuple, which only the space knows
                self._value((*path, str(i)))
        else:
            raise _NotFixed

    def _map(self, path: Path) -> None:
        count = self._unpacker.read_map_header()
        for i in range(count):
            key = self._unpacker.unpack()
            if i == 0 and key == b"nd":
                self._array(path, count)
                return
            if not isinstance(key, str):
                raise _NotFixed
            self._value((*path, key))

    def _array(self, path: Path, count: int) -> None:
        """An array or a NumPy scalar; its first key has been read."""
        fields, stop = {b"nd": self._unpacker.unpack()}, 0
        for _ in range(count - 1):
            key = self._unpacker.unpack()
            if key not in _OF_ARRAYS:
                raise _NotFixed
            fields[key] = self._unpacker.unpack()
            if key == b"data":
                stop = self._unpacker.tell()
        data, dtype = fields.get(b"data"), storable(fields.get(b"type"), fields.get(b"kind", b""))
        shape = fields.get(b"shape", []) if fields[b"nd"] is True else []
        is_shape = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
        if dtype.kind == "U" or not is_shape or not isinstance(data, bytes):
            raise _NotFixed
        payload = Payload(path, stop - len(data), dtype, tuple(shape), dtype.newbyteorder("<"))
        if payload.stop != stop:
            raise Refused(f"an array of {dtype} {shape} with {len(data)} bytes")
        self.payloads.append(payload)
