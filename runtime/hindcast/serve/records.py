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
        kind: the episode starts, gets an action, gets a reward ("returns"), or ends.
        episode: the episode's id.
        values: for "action", leaves of observation, action and outputs; for "end", leaves of the last observation.
        reward: for "returns", the reward.
        info: for "returns", the info as JSON; empty without one.
        terminated, truncated: for "end", the flags of the episode's last step.
    """

    kind: Literal["start", "action", "returns", "end"]
    episode: str
    values: Values = field(default_factory=dict)
    reward: float = 0.0
    info: str = ""
    terminated: bool = False
    truncated: bool = False


def encode_record(record: Record) -> bytes:
    """Encode a record: a header with length and checksum, then the record's attributes in order."""
    body = msgpack.packb([*vars(record).values()], default=_array_to_ext)
    return _HEADER.pack(len(body), zlib.crc32(body)) + body


def decode_records(data: bytes, file_name: str) -> Iterator[Record]:
    """Decode the records of a journal's file. If a killed process left the last record incomplete, it is skipped.

    Args:
        data: content of the file.
        file_name: name of the file, for errors.

    Raises:
        DataError: any other record is damaged.
    """
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, checksum = _HEADER.unpack_from(data, offset)
        body = data[offset + _HEADER.size : offset + _HEADER.size + length]
        # The last record is incomplete, or the file system has allocated its bytes but not written them.
        if len(body) < length or (not length and not any(data[offset:])):
            return
        if not length or zlib.crc32(body) != checksum:
            raise DataError(
                f"{file_name} is damaged at byte {offset}: restore it, or delete it. Episodes that only this file "
                "contains are then lost"
            )
        yield Record(*msgpack.unpackb(body, ext_hook=_ext_to_array))
        offset += _HEADER.size + length


def _array_to_ext(array: Any) -> Any:
    header = msgpack.packb([array.dtype.str, array.shape])
    return msgpack.ExtType(_ARRAY_EXT_TYPE, header + array.tobytes())


def _ext_to_array(_: int, data: bytes) -> NDArray[Any]:
    unpacker = msgpack.Unpacker()
    unpacker.feed(data)
    dtype, shape = unpacker.unpack()
    return np.frombuffer(data, np.dtype(dtype), offset=unpacker.tell()).reshape(shape)
