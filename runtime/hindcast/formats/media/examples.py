"""Decoding `tf.train.Example` messages into columns without TensorFlow. Shape suffixes: R = records, L = bytes of one.

Most records of one length differ only in their numbers. One of them is parsed; all that have the same bytes outside
its values are decoded together with it, as columns of a `[R, L]` matrix. Then one of the rest is parsed, and so on.
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
"""Field number of a list -> the type of its values, and the wire type of an unpacked value."""

U8 = NDArray[np.uint8]


class _Feature(NamedTuple):
    """One feature of a message.

    Attributes:
        kind: "bytes", "float" or "int".
        spans: (start, stop) bytes of each value in the message.
    """

    kind: str
    spans: tuple[tuple[int, int], ...]


class DecodedRecords(NamedTuple):
    """Records that were decoded together.

    Attributes:
        record: `[R]` numbers of the records.
        columns: feature -> `[R, values]` float32 or int64, or object array of `bytes`.
    """

    record: I64
    columns: dict[str, NDArray[Any]]


def decode(data: U8, starts: I64, lengths: I64) -> Iterator[DecodedRecords]:
    """Decode records, together those that have the same structure.

    Args:
        data: bytes that contain the records.
        starts: `[R]` first byte of each record.
        lengths: `[R]` bytes of each record.

    Raises:
        CellError: a record is not a `tf.train.Example`.
    """
    for length in np.unique(lengths):
        remaining = np.flatnonzero(lengths == length)
        matrix = data[starts[remaining][:, None] + np.arange(length)]
        while len(remaining):
            try:
                features = _parse_example(matrix[0].tobytes())
            except (IndexError, ValueError) as error:
                message = f"it is not a tf.train.Example: {error or 'it ends too early'}"
                raise CellError(int(remaining[0]), message) from error
            # XOR leaves the bits that differ, the mask those that belong to no value
            matches = ~((matrix ^ matrix[0]) & _fixed_bits(features, int(length))).any(axis=1)
            rows = matrix[matches]
            yield DecodedRecords(
                remaining[matches],
                {name: _decode_feature(rows, feature) for name, feature in features.items()},
            )
            remaining, matrix = remaining[~matches], matrix[~matches]


def _fixed_bits(features: dict[str, _Feature], length: int) -> U8:
    """Return `[L]` masks of the bits that belong to no value; of a varint's bytes the high bit, which marks its end."""
    fixed = np.full(length, 0xFF, dtype=np.uint8)
    for feature in features.values():
        for start, stop in feature.spans:
            fixed[start:stop] = 0x80 if feature.kind == "int" else 0
    return fixed


def _decode_feature(rows: U8, feature: _Feature) -> NDArray[Any]:
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


def _parse_example(message: bytes) -> dict[str, _Feature]:
    features: dict[str, _Feature] = {}
    for field, start, stop in _delimited_fields(message, 0, len(message)):
        if field != 1:
            raise ValueError(f"it has a field {field}")
        for _, entry, end in _delimited_fields(message, start, stop):
            parts = {number: span for number, *span in _delimited_fields(message, entry, end)}
            if 1 not in parts:
                raise ValueError("a feature has no name")
            name = message[slice(*parts[1])].decode()
            if 2 in parts and parts[2][0] < parts[2][1]:
                features[name] = _parse_feature(message, *parts[2])
    return features


def _parse_feature(message: bytes, start: int, stop: int) -> _Feature:
    ((field, inner, end),) = _delimited_fields(message, start, stop)
    if field not in _KINDS:
        raise ValueError(f"a feature holds a list of the kind {field}")
    kind, wire = _KINDS[field]
    return _Feature(kind, tuple(_value_spans(message, inner, end, kind, wire)))


def _value_spans(
    message: bytes, position: int, stop: int, kind: str, scalar_wire: int
) -> Iterator[tuple[int, int]]:
    """Yield the spans of a list's values, which may be packed into one field or have one field each."""
    for _, wire, start, end in _fields(message, position, stop):
        if wire == scalar_wire:
            yield start, end
        elif wire == _LENGTH_DELIMITED:
            yield from _packed_spans(message, start, end, scalar_wire)
        else:
            raise ValueError(f"a list of {kind} has a value of the wire type {wire}")


def _packed_spans(message: bytes, position: int, stop: int, wire: int) -> Iterator[tuple[int, int]]:
    while position < stop:
        end = position + 4 if wire == _FIXED32 else varint(message, position)[1]
        if end > stop:
            raise ValueError("a value is cut off")
        yield position, end
        position = end


def _delimited_fields(message: bytes, position: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number, start and stop of each field; all must be length-delimited."""
    for field, wire, start, end in _fields(message, position, stop):
        if wire != _LENGTH_DELIMITED:
            raise ValueError(f"it has a field of the wire type {wire}")
        yield field, start, end


def _fields(message: bytes, position: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the number and wire type of each field, and the start and stop of its value."""
    while position < stop:
        tag, position = varint(message, position)
        wire = tag & 7
        if wire == _LENGTH_DELIMITED:
            length, position = varint(message, position)
            end = position + length
        elif wire == _VARINT:
            end = varint(message, position)[1]
        elif wire == _FIXED32:
            end = position + 4
        else:
            raise ValueError(f"it has a field of the wire type {wire}")
        if end > stop:
            raise ValueError("a field is longer than the message that contains it")
        yield tag >> 3, wire, position, end
        position = end


def varint(data: memoryview | bytes, position: int) -> tuple[int, int]:
    """Decode the varint at a position; return it and the position after it.

    Raises:
        ValueError: the number has more than 64 bits.
        IndexError: the data end within the number.
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
