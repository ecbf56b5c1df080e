"""`Template`: reading and writing a column at once if its items differ only in their numbers.

Most items of a column have the same bytes except for a few spans, the payloads: the four floats in
`{nd: true, type: "<f4", kind: "", shape: [4], data: <16 bytes>}`. A `Template` is such an item. T items that match it
form a `[T, stride]` matrix: the bytes outside the payloads are checked for equality, and the payloads are the column.

The check is sufficient: every length in MessagePack comes before the bytes that it counts, so an item with the
template's bytes outside the payloads has the template's length and structure.
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
_PLAIN_NUMBERS: Final[dict[int, tuple[np.dtype, np.dtype]]] = {
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
"""Tag of a number -> its dtype in the item, and the dtype that it is decoded to."""
_MIN_SMALL_INT: Final = -32
_ARRAY_KEYS: Final = (b"nd", b"type", b"kind", b"shape", b"data")


class Payload(NamedTuple):
    """A number or an array in an item.

    Attributes:
        path: keys and indices that lead to the value; empty for the item itself.
        start: first byte.
        dtype: stored dtype.
        shape: shape of the array.
        decoded_dtype: dtype that it is decoded to.
        is_plain: whether it is a plain number of MessagePack, as Python numbers are written.
        is_small_int: whether one byte is both its tag and its value.
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
    """One item of a column, and the positions of its numbers.

    Attributes:
        item: bytes of the item.
        stride: number of bytes.
        payloads: the numbers, in order.
    """

    def __init__(self, item: bytes, payloads: Iterable[Payload]) -> None:
        self.item = item
        self.stride = len(item)
        self.payloads = tuple(payloads)
        self._record, self._words = _record_dtype(item, self.payloads)

    @classmethod
    def from_item(cls, item: bytes) -> Template | None:
        """Make the template of an item; None if similar items may differ in length (text) or are ambiguous (lists).

        Raises:
            RefusedValueError: an object array or an extension type.
        """
        unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=len(item))
        unpacker.feed(item)
        try:
            payloads = list(_payloads(item, unpacker, ()))
        except (_VariableLengthError, msgpack.UnpackException):
            return None
        return cls(item, payloads) if unpacker.tell() == len(item) else None

    def read(self, strip: bytes) -> dict[Path, NDArray[Any]] | None:
        """Read the numbers of a strip of items: path -> `[T, *shape]`; None if an item does not match."""
        if len(strip) % self.stride:
            return None
        items = np.frombuffer(strip, self._record)
        if not all(bool((items[name] == expected).all()) for name, expected in self._words.items()):
            return None
        columns: dict[Path, NDArray[Any]] = {}
        for i, payload in enumerate(self.payloads):
            column = items[f"p{i}"]
            if payload.is_small_int and (column < _MIN_SMALL_INT).any():
                return None
            columns[payload.path] = column.astype(payload.decoded_dtype)
        return columns

    def fill(self, columns: Mapping[Path, NDArray[Any]]) -> NDArray[np.uint8]:
        """Fill the numbers into items, `[T, stride]`: the inverse of `read`."""
        matrix = np.empty((len(next(iter(columns.values()))), self.stride), dtype=np.uint8)
        matrix[:] = np.frombuffer(self.item, np.uint8)
        items = matrix.reshape(-1).view(self._record)
        for i, payload in enumerate(self.payloads):
            items[f"p{i}"] = columns[payload.path]
        return matrix


def _record_dtype(item: bytes, payloads: tuple[Payload, ...]) -> tuple[np.dtype, dict[str, np.generic]]:
    """Make the structured dtype of an item: its payloads, and the other bytes in words of at most 8 bytes.

    Returns:
        The dtype, and the words that all items share, by field name.
    """
    words = {f"w{start}": (start, f"<u{size}") for start, size in _words(len(item), payloads)}
    numbers = {f"p{i}": (payload.start, (payload.dtype, payload.shape)) for i, payload in enumerate(payloads)}
    offsets, formats = map(list, zip(*(numbers | words).values(), strict=True))
    names = [*numbers, *words]
    record = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": len(item)})
    first = np.frombuffer(item, record)[0]
    return record, {name: first[name] for name in words}


def _words(size: int, payloads: tuple[Payload, ...]) -> Iterable[tuple[int, int]]:
    """Yield (start, size) of the words outside the payloads."""
    position = 0
    for start, stop in [*((payload.start, payload.stop) for payload in payloads), (size, size)]:
        while position < start:
            length = next(length for length in (8, 4, 2, 1) if length <= start - position)
            yield position, length
            position += length
        position = stop


class _VariableLengthError(Exception):
    """Similar items may have other lengths, or the item alone does not determine its structure."""


def _payloads(item: bytes, unpacker: msgpack.Unpacker, path: Path) -> Iterator[Payload]:
    """Yield the payloads of the value that the item's unpacker reads next.

    Raises:
        _VariableLengthError: the item has no template.
        RefusedValueError: an object array.
    """
    position = unpacker.tell()
    tag = item[position]
    if tag in _PLAIN_NUMBERS:
        stored_dtype, decoded_dtype = _PLAIN_NUMBERS[tag]
        unpacker.skip()
        yield Payload(path, position + 1, stored_dtype, (), decoded_dtype, is_plain=True)
    elif tag <= 0x7F or tag >= 0xE0:
        unpacker.skip()
        yield Payload(path, position, np.dtype("i1"), (), _INTEGER, is_plain=True, is_small_int=True)
    elif 0x80 <= tag <= 0x8F or tag in (0xDE, 0xDF):
        yield from _payloads_of_map(item, unpacker, path)
    elif 0x90 <= tag <= 0x9F or tag in (0xDC, 0xDD):
        for i in range(unpacker.read_array_header()):
            if not 0x80 <= item[unpacker.tell()] <= 0x9F:
                raise _VariableLengthError  # numbers in a list: vector or tuple, as only the space tells
            yield from _payloads(item, unpacker, (*path, str(i)))
    else:
        raise _VariableLengthError


def _payloads_of_map(item: bytes, unpacker: msgpack.Unpacker, path: Path) -> Iterator[Payload]:
    count = unpacker.read_map_header()
    for i in range(count):
        key = unpacker.unpack()
        if i == 0 and key == b"nd":
            yield _array_payload(unpacker, path, count)
            return
        if not isinstance(key, str):
            raise _VariableLengthError
        yield from _payloads(item, unpacker, (*path, key))


def _array_payload(unpacker: msgpack.Unpacker, path: Path, count: int) -> Payload:
    """Return the payload of an array or a NumPy scalar whose first key has been read."""
    fields, stop = {b"nd": unpacker.unpack()}, 0
    for _ in range(count - 1):
        key = unpacker.unpack()
        if key not in _ARRAY_KEYS:
            raise _VariableLengthError
        fields[key] = unpacker.unpack()
        if key == b"data":
            stop = unpacker.tell()
    value, dtype = restore(fields), parse_dtype(fields[b"type"], fields.get(b"kind", b""))
    if dtype.kind == "U":
        raise _VariableLengthError
    return Payload(path, stop - value.nbytes, dtype, value.shape, dtype.newbyteorder("<"))
