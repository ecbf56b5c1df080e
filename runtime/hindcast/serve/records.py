"""Records of a journal as bytes: length, checksum, MessagePack; an array is its dtype, shape and bytes."""

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
_HEAD: Final = struct.Struct("<II")
_ARRAY: Final = 1


@dataclass(frozen=True)
class Record:
    """One thing that was logged.

    Attributes:
        kind: what happened to the episode.
        episode: its id.
        values: of an action the observation, the action and what came with it; of an end the last observation.
        reward: of returns.
        info: of returns, JSON text.
        terminated, truncated: of an end.
    """

    kind: Literal["start", "action", "returns", "end"]
    episode: str
    values: Values = field(default_factory=dict)
    reward: float = 0.0
    info: str = ""
    terminated: bool = False
    truncated: bool = False


def encode_record(record: Record) -> bytes:
    """The record's bytes: its attributes, in order."""
    body = msgpack.packb([*vars(record).values()], default=_array_to_ext)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def decode_records(data: bytes, where: str) -> Iterator[Record]:
    """The records of a journal, without one that a killed process left half-written at the end.

    Raises:
        DataError: the bytes are not a record.
    """
    at = 0
    while at + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + length]
        if len(body) < length or (not length and not any(data[at:])):  # half-written, or room never filled
            return
        if not length or zlib.crc32(body) != checksum:
            raise DataError(
                f"{where} is damaged at byte {at}: restore it, or delete it with the episodes that are only there"
            )
        yield Record(*msgpack.unpackb(body, ext_hook=_array_of_ext))
        at += _HEAD.size + length


def _array_to_ext(array: Any) -> Any:
    head = msgpack.packb([array.dtype.str, array.shape])
    return msgpack.ExtType(_ARRAY, head + array.tobytes())


def _array_of_ext(_: int, data: bytes) -> NDArray[Any]:
    unpacker = msgpack.Unpacker()
    unpacker.feed(data)
    dtype, shape = unpacker.unpack()
    return np.frombuffer(data, np.dtype(dtype), offset=unpacker.tell()).reshape(shape)
