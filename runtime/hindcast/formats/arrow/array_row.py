"""Arrays as one row of a table: a cell for the bytes of each, and a header that says what they are.

One row cannot be split, and a cell is viewed without a copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

Array = NDArray[Any]

_HEADER = "header"
_ARRAYS = "arrays"
_TEXT = "text"


def to_row(arrays: Mapping[str, Array], header: Mapping[str, Any] | None = None) -> pa.Table:
    """The arrays as a table of one row; they are not copied, text is.

    Args:
        arrays: by name; object arrays hold `str`.
        header: what else travels with them, as JSON.
    """
    kinds = {
        name: [_TEXT if array.dtype == object else array.dtype.str, array.shape]
        for name, array in arrays.items()
    }
    cells = {name: _bytes(array) for name, array in arrays.items()}
    described = orjson.dumps({**(header or {}), _ARRAYS: kinds})
    return pa.table({name: _cell(data) for name, data in {_HEADER: described, **cells}.items()})


def header_of(table: pa.Table) -> dict[str, Any]:
    """What travels with the arrays of a table of one row."""
    header: dict[str, Any] = orjson.loads(memoryview(_only_cell(table, _HEADER)))
    return header


def from_row(table: pa.Table) -> dict[str, Array]:
    """The arrays of a table of one row; they are read-only views into it."""
    kinds = header_of(table)[_ARRAYS]
    return {name: _array(_only_cell(table, name), kind, shape) for name, (kind, shape) in kinds.items()}


def _cell(data: Any) -> pa.Array:
    buffer = pa.py_buffer(data)
    ends = pa.py_buffer(np.array([0, buffer.size], dtype=np.int64))
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, [None, ends, buffer])


def _only_cell(table: pa.Table, name: str) -> pa.Buffer:
    column = table[name].chunk(0)
    _, ends, data = column.buffers()
    start, end = np.frombuffer(ends, dtype=np.int64)[column.offset : column.offset + 2].tolist()
    return data.slice(start, end - start)


def _bytes(array: Array) -> Any:
    return orjson.dumps(array.tolist()) if array.dtype == object else np.ascontiguousarray(array)


def _array(data: Any, kind: str, shape: list[int]) -> Array:
    if kind == _TEXT:
        text = np.empty(shape, dtype=object)
        text[:] = orjson.loads(memoryview(data))
        return text
    if 0 in shape:
        return np.empty(shape, dtype=kind)
    return np.frombuffer(data, dtype=kind).reshape(shape)
