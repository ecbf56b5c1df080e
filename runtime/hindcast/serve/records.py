"""Records of a journal, encoded as length, checksum and MessagePack; an array as its dtype, shape and bytes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgpack
import numpy as np
from numpy.typing import NDArray

from hindcast.errors import DataError

Values = dict[str, Any]
"""Leaf name -> one value: an array `[*shape]`, or text."""
_HEADER: Final = struct.Struct("<II")
_ARRAY_EXT_TYPE: Final = 1


@dataclass(frozen=True)
class Record:
    """A logged change of an episode.

    Attributes:
        kind: the kind of change.
        episode: the episode's id.
        values: leaves of observation, action and outputs of an action; of the last observation of an end.
        reward: reward of returns.
        info: info of returns, JSON text.
        terminated, truncated: the kind of an end.
    """

    kind: Literal["start", "action", "returns", "end"]
    episode: str
    values: Values = field(default_factory=dict)
    reward: float = 0.0
    info: str = ""
    terminated: bool = False
    truncated: bool = False


def encode_record(record: Record) -> bytes:
    """Encode a record: its attributes, in order."""
    body = msgpack.packb([*vars(record).values()], default=_array_to_ext)
    return _HEADER.pack(len(body), zlib.crc32(body)) + body


def decode_records(data: bytes, where: str) -> Iterator[Record]:
    """Decode the records of a journal. A record that a killed process left half-written at the end is skipped.

    Raises:
        DataError: the bytes are damaged elsewhere.
    """
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, checksum = _HEADER.unpack_from(data, offset)
        body = data[offset + _HEADER.size : offset + _HEADER.size + length]
        # Half-written, or allocated but never written.
        if len(body) < length or (not length and not any(data[offset:])):
            return
        if not length or zlib.crc32(body) != checksum:
            raise DataError(
                f"{where} is damaged at byte {offset}: restore it, or delete it. Episodes that only this file contains "
                "are then lost"
            )
        yield Record(*msgpack.unpackb(body, ext_hook=_ext_to_array))
        offset += _HEADER.size + length


def _array_to_ext(array: Any) -> Any:
    head = msgpack.packb([array.dtype.str, array.shape])
    return msgpack.ExtType(_ARRAY_EXT_TYPE, head + array.tobytes())


def _ext_to_array(_: int, data: bytes) -> NDArray[Any]:
    unpacker = msgpack.Unpacker()
    unpacker.feed(data)
    dtype, shape = unpacker.unpack()
    return np.frombuffer(data, np.dtype(dtype), offset=unpacker.tell()).reshape(shape)
