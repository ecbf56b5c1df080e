"""Rows and episodes as bytes, to be read in another process.

The bytes are the size of a JSON header, the header with the fields of all chunks, and the arrays that it refers to.
Nothing is unpickled, since the bytes may come from a bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np
import orjson

from hindcast.datasets.assembly.steps import Steps
from hindcast.episodes.block import Block

_HEADER_SIZE: Final = 8
"""Bytes of the header's size."""
_ALIGNMENT: Final = 16


def encode_chunks(chunks: Sequence[Steps | Block]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of chunks; none if there are no chunks."""
    if not chunks:
        return
    arrays: list[np.ndarray] = []
    num_bytes = 0

    def encode_value(value: Any) -> Any:
        """Encode an array as its dtype, its shape, and either its texts or its offset behind the header."""
        nonlocal num_bytes
        if isinstance(value, Mapping):
            return dict(value)
        if value.dtype == object:
            return value.dtype.str, value.shape, value.ravel().tolist()
        arrays.append(np.ascontiguousarray(value))
        offset, num_bytes = num_bytes, num_bytes + value.nbytes + -value.nbytes % _ALIGNMENT
        return value.dtype.str, value.shape, offset

    documents = [
        {field.name: getattr(chunk, field.name) for field in fields(chunk) if field.name != "logged_metrics"}
        for chunk in chunks
    ]
    header = orjson.dumps(documents, encode_value)
    header += b" " * (-(len(header) + _HEADER_SIZE) % _ALIGNMENT)
    yield len(header).to_bytes(_HEADER_SIZE, "little") + header
    for array in arrays:
        yield array.reshape(-1).view(np.uint8).data
        yield b"\0" * (-array.nbytes % _ALIGNMENT)


def decode_chunks(data: memoryview) -> list[Steps | Block]:
    """Return the chunks of bytes from `encode_chunks`; their arrays are views."""
    if not data:
        return []
    header_end = _HEADER_SIZE + int.from_bytes(data[:_HEADER_SIZE], "little")

    def decode_value(value: Any) -> Any:
        if not isinstance(value, list):
            return (
                {key: decode_value(item) for key, item in value.items()} if isinstance(value, dict) else value
            )
        dtype, shape, content = value
        if isinstance(content, int):
            return np.ndarray(shape, dtype, data, header_end + content)
        array = np.empty(len(content), object)
        array[:] = content
        return array.reshape(shape)

    documents = orjson.loads(data[_HEADER_SIZE:header_end])
    chunks = map(decode_value, documents)
    return [Steps(**values) if "row" in values else Block(**values) for values in chunks]
