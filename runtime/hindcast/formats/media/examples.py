"""`tf.train.Example` messages to columns, without TensorFlow. Shape suffixes: R = records, L = bytes of one.

Records of one length mostly differ only in their numbers. One of them is parsed; those that have the same bytes
outside its values are decoded with it, as columns of a `[R, L]` matrix. Then one of the rest is parsed, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.block import I64
from hindcast.formats.layout import CellError

_LENGTH_DELIMITED: Final = 2
_FIXED32: Final = 5
_VARINT: Final = 0
_KINDS: Final = {1: ("bytes", _LENGTH_DELIMITED), 2: ("float", _FIXED32), 3: ("int", _VARINT)}
"""A list's field -> what it holds, and the wire type of a value that has a field of its own."""

U8 = NDArray[np.uint8]


class _Feature(NamedTuple):
    """A feature of one message.

    Attributes:
        kind: "bytes", "float" or "int".
        spans: first byte and end of each value in the message.
    """

    kind: str
    spans: tuple[tuple[int, int], ...]


class DecodedRecords(NamedTuple):
    """Records that were decoded together.

    Attributes:
        record: `[R]` which.
        columns: feature -> `[R, values]` float32 or int64, or object array of `bytes`.
    """

    record: I64
    columns: dict[str, NDArray[Any]]


def decode(data: U8, starts: I64, lengths: I64) -> Iterator[DecodedRecords]:
    """The records, those of one form together.

    Args:
        data: bytes that contain the records.
        starts: `[R]` where each begins.
        lengths: `[R]` bytes of each.

    Raises:
        CellError: a record that is not a `tf.train.Example`.
    """
    for length in np.unique(lengths):
        left = np.flatnonzero(lengths == length)
        matrix = data[starts[left][:, None] + np.arange(length)]
        while len(left):
            try:
                features = _parsed(matrix[0].tobytes())
            except (IndexError, ValueError) as error:
                message = f"it is not a tf.train.Example: {error or 'it ends too early'}"
                raise CellError(int(left[0]), message) from error
            same = ~((matrix ^ matrix[0]) & _fixed(features, int(length))).any(axis=1)
            rows = matrix[same]
            yield DecodedRecords(
                left[same], {name: _decoded(rows, feature) for name, feature in features.items()}
            )
            left, matrix = left[~same], matrix[~same]


def _fixed(features: dict[str, _Feature], length: int) -> U8:
    """`[L]` the bits that are not of values: where a varint ends is in the high bit of each of its bytes."""
    fixed = np.full(length, 0xFF, dtype=np.uint8)
    for feature in features.values():
        for start, stop in feature.spans:
            fixed[start:stop] = 0x80 if feature.kind == "int" else 0
    return fixed


def _decoded(rows: U8, feature: _Feature) -> NDArray[Any]:
    if feature.kind == "float":
        starts = np.array([start for start, _ in feature.spans])
        return np.ascontiguousarray(rows[:, starts[:, None] + np.arange(4)]).view("<f4")[:, :, 0]
    if feature.kind == "bytes":
        out: NDArray[Any] = np.empty((len(rows), len(feature.spans)), dtype=object)
        for i, (start, stop) in enumerate(feature.spans):
            out[:, i] = [row.tobytes() for row in rows[:, start:stop]]
        return out
    integers = np.zeros((len(rows), len(feature.spans)), dtype=np.uint64)
    for i, (start, stop) in enumerate(feature.spans):
        for shift, column in enumerate(range(start, stop)):
            integers[:, i] |= (rows[:, column].astype(np.uint64) & np.uint64(0x7F)) << np.uint64(7 * shift)
    return integers.view(np.int64)


def _parsed(message: bytes) -> dict[str, _Feature]:
    found: dict[str, _Feature] = {}
    for field, start, stop in _delimited(message, 0, len(message)):
        if field != 1:
            raise ValueError(f"it has a field {field}")
        for _, entry, end in _delimited(message, start, stop):
            parts = {number: span for number, *span in _delimited(message, entry, end)}
            if 1 not in parts:
                raise ValueError("a feature has no name")
            name = message[slice(*parts[1])].decode()
            if 2 in parts and parts[2][0] < parts[2][1]:
                found[name] = _feature(message, *parts[2])
    return found


def _feature(message: bytes, start: int, stop: int) -> _Feature:
    ((field, inner, end),) = _delimited(message, start, stop)
    if field not in _KINDS:
        raise ValueError(f"a feature holds a list of the kind {field}")
    kind, wire = _KINDS[field]
    return _Feature(kind, tuple(_values(message, inner, end, kind, wire)))


def _values(message: bytes, at: int, stop: int, kind: str, own: int) -> Iterator[tuple[int, int]]:
    """The spans of a list's values, which may be packed into one field or have a field each."""
    for _, wire, start, end in _fields(message, at, stop):
        if wire == own:
            yield start, end
        elif wire == _LENGTH_DELIMITED:
            yield from _packed(message, start, end, own)
        else:
            raise ValueError(f"a list of {kind} has a value of the wire type {wire}")


def _packed(message: bytes, at: int, stop: int, wire: int) -> Iterator[tuple[int, int]]:
    while at < stop:
        end = at + 4 if wire == _FIXED32 else varint(message, at)[1]
        if end > stop:
            raise ValueError("a value is cut off")
        yield at, end
        at = end


def _delimited(message: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Field number, first byte and end of each field; all must be length-delimited."""
    for field, wire, start, end in _fields(message, at, stop):
        if wire != _LENGTH_DELIMITED:
            raise ValueError(f"it has a field of the wire type {wire}")
        yield field, start, end


def _fields(message: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, first byte and end of each field's value."""
    while at < stop:
        tag, at = varint(message, at)
        wire = tag & 7
        if wire == _LENGTH_DELIMITED:
            length, at = varint(message, at)
            end = at + length
        elif wire == _VARINT:
            end = varint(message, at)[1]
        elif wire == _FIXED32:
            end = at + 4
        else:
            raise ValueError(f"it has a field of the wire type {wire}")
        if end > stop:
            raise ValueError("a field is longer than what it is in")
        yield tag >> 3, wire, at, end
        at = end


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
