"""`Template`, which reads or writes all items of a column at once if they differ only in their numbers.

Most items of a column have the same bytes except for a few spans, the payloads, such as the four floats in
`{nd: true, type: "<f4", kind: "", shape: [4], data: <16 bytes>}`. A `Template` is such an item. T items that match it
form a `[T, stride]` matrix: the bytes outside the payloads are checked for equality, and the payloads are the column.

This check is sufficient: every length in MessagePack comes before the bytes that it counts, so an item that equals the
template outside the payloads also has its length and structure.
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
_NUMBER_TAGS: Final[dict[int, tuple[np.dtype, np.dtype]]] = {
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
"""Tag of a number -> dtype of the number in the item, and dtype that it is decoded to."""
_MIN_SMALL_INT: Final = -32
_ARRAY_KEYS: Final = (b"nd", b"type", b"kind", b"shape", b"data")


class Payload(NamedTuple):
    """A number or an array in an item.

    Attributes:
        path: keys and indices that lead to the value; empty for the item itself.
        start: position of the first byte in the item.
        dtype: stored dtype.
        shape: shape of the array; empty for a number.
        decoded_dtype: dtype that the value is decoded to.
        is_plain: whether the value is a number of MessagePack itself, as Python's numbers are written.
        is_small_int: whether one byte is both the number's tag and its value.
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
        """Position after the last byte."""
        return self.start + self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


class Template:
    """An item of a column, and the positions of its numbers.

    Attributes:
        item: bytes of the item.
        stride: size of the item in bytes.
        payloads: the numbers and arrays in the item, in order.
    """

    def __init__(self, item: bytes, payloads: Iterable[Payload]) -> None:
        self.item = item
        self.stride = len(item)
        self.payloads = tuple(payloads)
        self._item_dtype, self._fixed_words = _make_item_dtype(item, self.payloads)

    @classmethod
    def from_item(cls, item: bytes) -> Template | None:
        """Make a template from an item.

        Returns:
            The template; None if the item contains anything but numbers, arrays of numbers, and maps and lists of
            these; if it contains a list of numbers, which may be a vector or a tuple; or if it is cut short.

        Raises:
            RefusedValueError: an array in the item has objects, or is inconsistent.
            ValueError, IndexError: the item is empty, or damaged in another way.
        """
        unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=len(item))
        unpacker.feed(item)
        try:
            payloads = list(_iter_payloads(item, unpacker, ()))
        except (_VariableLengthError, msgpack.UnpackException):
            return None
        return cls(item, payloads) if unpacker.tell() == len(item) else None

    def read(self, packed_items: bytes) -> dict[Path, NDArray[Any]] | None:
        """Read the numbers of items stored end to end: path -> `[T, *shape]`; None if an item does not match."""
        if len(packed_items) % self.stride:
            return None
        items = np.frombuffer(packed_items, self._item_dtype)
        if not all(bool((items[name] == expected).all()) for name, expected in self._fixed_words.items()):
            return None
        columns: dict[Path, NDArray[Any]] = {}
        for i, payload in enumerate(self.payloads):
            column = items[f"p{i}"]
            # as int8, the tags of all other types are between -128 and -33
            if payload.is_small_int and (column < _MIN_SMALL_INT).any():
                return None
            columns[payload.path] = column.astype(payload.decoded_dtype)
        return columns

    def fill(self, columns: Mapping[Path, NDArray[Any]]) -> NDArray[np.uint8]:
        """Make items `[T, stride]` with these numbers: the inverse of `read`."""
        matrix = np.empty((len(next(iter(columns.values()))), self.stride), dtype=np.uint8)
        matrix[:] = np.frombuffer(self.item, np.uint8)
        items = matrix.reshape(-1).view(self._item_dtype)
        for i, payload in enumerate(self.payloads):
            items[f"p{i}"] = columns[payload.path]
        return matrix


def _make_item_dtype(item: bytes, payloads: tuple[Payload, ...]) -> tuple[np.dtype, dict[str, np.generic]]:
    """Make the structured dtype of an item: fields for its payloads, and words of at most 8 bytes for the other bytes.

    Returns:
        The dtype, and field name -> value for the words, which all items share.
    """
    words = {f"w{start}": (start, f"<u{size}") for start, size in _iter_fixed_words(len(item), payloads)}
    numbers = {f"p{i}": (payload.start, (payload.dtype, payload.shape)) for i, payload in enumerate(payloads)}
    offsets, formats = map(list, zip(*(numbers | words).values(), strict=True))
    names = [*numbers, *words]
    item_dtype = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": len(item)})
    template_fields = np.frombuffer(item, item_dtype)[0]
    return item_dtype, {name: template_fields[name] for name in words}


def _iter_fixed_words(size: int, payloads: tuple[Payload, ...]) -> Iterable[tuple[int, int]]:
    """Yield start and size of the words outside the payloads."""
    position = 0
    for start, stop in [*((payload.start, payload.stop) for payload in payloads), (size, size)]:
        while position < start:
            length = next(length for length in (8, 4, 2, 1) if length <= start - position)
            yield position, length
            position += length
        position = stop


class _VariableLengthError(Exception):
    """Items like this one may differ in length, or the item alone does not determine its structure."""


def _iter_payloads(item: bytes, unpacker: msgpack.Unpacker, path: Path) -> Iterator[Payload]:
    """Yield the payloads of the value that the unpacker reads next.

    Raises:
        _VariableLengthError: the item has no template.
        RefusedValueError: an object array.
    """
    position = unpacker.tell()
    tag = item[position]
    if tag in _NUMBER_TAGS:
        stored_dtype, decoded_dtype = _NUMBER_TAGS[tag]
        unpacker.skip()
        yield Payload(path, position + 1, stored_dtype, (), decoded_dtype, is_plain=True)
    elif tag <= 0x7F or tag >= 0xE0:  # a small integer
        unpacker.skip()
        yield Payload(path, position, np.dtype("i1"), (), _INTEGER, is_plain=True, is_small_int=True)
    elif 0x80 <= tag <= 0x8F or tag in (0xDE, 0xDF):  # a map
        yield from _iter_map_payloads(item, unpacker, path)
    elif 0x90 <= tag <= 0x9F or tag in (0xDC, 0xDD):  # an array
        for i in range(unpacker.read_array_header()):
            if not 0x80 <= item[unpacker.tell()] <= 0x9F:
                raise _VariableLengthError  # only the space tells whether a list of numbers is a vector or a tuple
            yield from _iter_payloads(item, unpacker, (*path, str(i)))
    else:
        raise _VariableLengthError


def _iter_map_payloads(item: bytes, unpacker: msgpack.Unpacker, path: Path) -> Iterator[Payload]:
    num_keys = unpacker.read_map_header()
    for i in range(num_keys):
        key = unpacker.unpack()
        if i == 0 and key == b"nd":
            yield _read_array_payload(unpacker, path, num_keys)
            return
        if not isinstance(key, str):
            raise _VariableLengthError
        yield from _iter_payloads(item, unpacker, (*path, key))


def _read_array_payload(unpacker: msgpack.Unpacker, path: Path, num_keys: int) -> Payload:
    """Read the rest of an array or a NumPy scalar, after its first key; return its payload."""
    fields, stop = {b"nd": unpacker.unpack()}, 0
    for _ in range(num_keys - 1):
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
