"""Blocks on their way from a data worker: tables of one row, whose cells are the arrays' bytes.

One row cannot be split, and a cell is viewed where it lies: in the object store's shared memory. A user's mistake
travels the same way, as its sentence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from hindcast import errors
from hindcast.episodes.block import Block

Array = NDArray[Any]

_HEADER = "header"
_COLUMN = "columns/"
_PER_EPISODE = ("length", "eps_id", "t_started", "terminated", "truncated")
_TEXT = "text"


def to_table(block: Block) -> pa.Table:
    """The block as one row; its arrays are not copied, text is."""
    arrays = {f"{_COLUMN}{leaf}": column for leaf, column in block.columns.items()}
    arrays |= {name: getattr(block, name) for name in _PER_EPISODE}
    cells = {name: _bytes(array) for name, array in arrays.items()}
    kinds = {
        name: [_TEXT if array.dtype == object else array.dtype.str, array.shape]
        for name, array in arrays.items()
    }
    return _table({"arrays": kinds}, cells)


def error_table(error: errors.UserError) -> pa.Table:
    """A user's mistake as one row."""
    return _table({"error": [type(error).__name__, str(error)]}, {})


def from_table(table: pa.Table) -> Block:
    """The block; its arrays are read-only views into the table.

    Raises:
        UserError: the row is a mistake: the one that was made there, of the same class.
    """
    header = orjson.loads(memoryview(_only_cell(table, _HEADER)))
    if "error" in header:
        name, sentence = header["error"]
        raise getattr(errors, name, errors.UserCodeError)(sentence)
    arrays = {
        name: _array(_only_cell(table, name), kind, shape) for name, (kind, shape) in header["arrays"].items()
    }
    per_episode = {name: arrays.pop(name) for name in _PER_EPISODE}
    return Block({name.removeprefix(_COLUMN): array for name, array in arrays.items()}, **per_episode)


def _table(header: dict[str, Any], cells: dict[str, Any]) -> pa.Table:
    return pa.table({name: _cell(data) for name, data in {_HEADER: orjson.dumps(header), **cells}.items()})


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
