"""Decoding `tf.train.Example` messages into columns without TensorFlow.

Shape suffixes: R = records, L = bytes of a record.

Most records of the same length differ only in their values. So one record is parsed, and all records that have the same
bytes outside these values are decoded with it, as the rows of an `[R, L]` matrix. This step is repeated for the
remaining records.
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
_VALUE_TYPES: Final = {1: ("bytes", _LENGTH_DELIMITED), 2: ("float", _FIXED32), 3: ("int", _VARINT)}
"""Field number of a list of values -> type of the values, and wire type of a value that is not packed."""

U8 = NDArray[np.uint8]


class _Feature(NamedTuple):
    """A feature of a message.

    Attributes:
        value_type: "bytes", "float" or "int".
        spans: position (start, stop) of each value in the message.
    """

    value_type: str
    spans: tuple[tuple[int, int], ...]


class DecodedRecords(NamedTuple):
    """Records that were decoded together.

    Attributes:
        record: `[R]` indices of the records.
        columns: feature -> `[R, values]`: float32, int64, or an object array of `bytes`.
    """

    record: I64
    columns: dict[str, NDArray[Any]]


def decode_examples(data: U8, starts: I64, lengths: I64) -> Iterator[DecodedRecords]:
    """Decode records; those that have the same structure are decoded together.

    Args:
        data: bytes that contain the records.
        starts: `[R]` position of each record in `data`.
        lengths: `[R]` size of each record in bytes.

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
                reason = "it ends too early" if isinstance(error, IndexError) else error
                message = f"it is not a tf.train.Example: {reason}"
                raise CellError(int(remaining[0]), message) from error
            # XOR finds the bits that differ; the mask selects those outside the values
            matches = ~((matrix ^ matrix[0]) & _fixed_bits(features, int(length))).any(axis=1)
            rows = matrix[matches]
            yield DecodedRecords(
                remaining[matches],
                {name: _decode_feature(rows, feature) for name, feature in features.items()},
            )
            remaining, matrix = remaining[~matches], matrix[~matches]


def _fixed_bits(features: dict[str, _Feature], length: int) -> U8:
    """Return a mask `[L]` of the bits outside the values, including the high bits of varints, which mark their ends."""
    mask = np.full(length, 0xFF, dtype=np.uint8)
    for feature in features.values():
        for start, stop in feature.spans:
            mask[start:stop] = 0x80 if feature.value_type == "int" else 0
    return mask


def _decode_feature(rows: U8, feature: _Feature) -> NDArray[Any]:
    if feature.value_type == "float":
        starts = np.array([start for start, _ in feature.spans])
        return np.ascontiguousarray(rows[:, starts[:, None] + np.arange(4)]).view("<f4")[:, :, 0]
    if feature.value_type == "bytes":
        values: NDArray[Any] = np.empty((len(rows), len(feature.spans)), dtype=object)
        for i, (start, stop) in enumerate(feature.spans):
            values[:, i] = [row.tobytes() for row in rows[:, start:stop]]
        return values
    integers = np.zeros((len(rows), len(feature.spans)), dtype=np.uint64)
    for i, (start, stop) in enumerate(feature.spans):
        for shift, column in enumerate(range(start, stop)):
            integers[:, i] |= (rows[:, column].astype(np.uint64) & np.uint64(0x7F)) << np.uint64(7 * shift)
    return integers.view(np.int64)


def _parse_example(message: bytes) -> dict[str, _Feature]:
    features: dict[str, _Feature] = {}
    for field, start, stop in _iter_delimited_fields(message, 0, len(message)):
        if field != 1:
            raise ValueError(f"it has a field {field}")
        for _, entry, end in _iter_delimited_fields(message, start, stop):
            span_by_field = {number: span for number, *span in _iter_delimited_fields(message, entry, end)}
            if 1 not in span_by_field:
                raise ValueError("a feature has no name")
            name = message[slice(*span_by_field[1])].decode()
            if 2 in span_by_field and span_by_field[2][0] < span_by_field[2][1]:
                features[name] = _parse_feature(message, *span_by_field[2])
    return features


def _parse_feature(message: bytes, start: int, stop: int) -> _Feature:
    ((field, list_start, list_stop),) = _iter_delimited_fields(message, start, stop)
    if field not in _VALUE_TYPES:
        raise ValueError(f"a feature holds a list of the kind {field}")
    value_type, wire = _VALUE_TYPES[field]
    return _Feature(value_type, tuple(_iter_value_spans(message, list_start, list_stop, value_type, wire)))


def _iter_value_spans(
    message: bytes, position: int, stop: int, value_type: str, scalar_wire: int
) -> Iterator[tuple[int, int]]:
    """Yield the spans of a list's values; the values may be packed into one field, or have a field each."""
    for _, wire, start, end in _iter_fields(message, position, stop):
        if wire == scalar_wire:
            yield start, end
        elif wire == _LENGTH_DELIMITED:
            yield from _iter_packed_spans(message, start, end, scalar_wire)
        else:
            raise ValueError(f"a list of {value_type} has a value of the wire type {wire}")


def _iter_packed_spans(message: bytes, position: int, stop: int, wire: int) -> Iterator[tuple[int, int]]:
    while position < stop:
        end = position + 4 if wire == _FIXED32 else read_varint(message, position)[1]
        if end > stop:
            raise ValueError("a value is cut off")
        yield position, end
        position = end


def _iter_delimited_fields(message: bytes, position: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and stop of each field; all fields must be length-delimited."""
    for field, wire, start, end in _iter_fields(message, position, stop):
        if wire != _LENGTH_DELIMITED:
            raise ValueError(f"it has a field of the wire type {wire}")
        yield field, start, end


def _iter_fields(message: bytes, position: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number and wire type of each field, and start and stop of its value."""
    while position < stop:
        tag, position = read_varint(message, position)
        wire = tag & 7
        if wire == _LENGTH_DELIMITED:
            length, position = read_varint(message, position)
            end = position + length
        elif wire == _VARINT:
            end = read_varint(message, position)[1]
        elif wire == _FIXED32:
            end = position + 4
        else:
            raise ValueError(f"it has a field of the wire type {wire}")
        if end > stop:
            raise ValueError("a field is longer than the message that contains it")
        yield tag >> 3, wire, position, end
        position = end


def read_varint(data: memoryview | bytes, position: int) -> tuple[int, int]:
    """Read the varint at a position; return its value and the position after it.

    Raises:
        ValueError: the value has more than 64 bits.
        IndexError: the data end within the varint.
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
