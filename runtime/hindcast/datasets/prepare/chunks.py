"""Rows and complete episodes on their way between tasks: a cell each, with the partition that they go to."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from hindcast import errors
from hindcast.datasets.assembly.steps import Steps
from hindcast.episodes.block import PER_EPISODE, Block
from hindcast.errors import UserError
from hindcast.formats.arrow.array_row import from_row, to_row

PARTITION: Final = "partition"
_CHUNK: Final = "chunk"
_COLUMN: Final = "columns/"
_OF_STEPS: Final = ("episode", "names", "t", "terminated", "truncated", "piece", "row")
_OF_BLOCK: Final = ("eps_id", *PER_EPISODE, "details")
MISTAKE: Final = "mistake"
SCHEMA: Final = pa.schema([(PARTITION, pa.int64()), (_CHUNK, pa.large_binary()), (MISTAKE, pa.string())])


def to_chunk(partition: int, part: Steps | Block) -> pa.Table:
    """A table of one row."""
    arrays: dict[str, Any] = {f"{_COLUMN}{name}": column for name, column in part.columns.items()}
    for name in _OF_STEPS if isinstance(part, Steps) else _OF_BLOCK:
        array = getattr(part, name)
        if array is not None:
            arrays[name] = array
    row = to_row(arrays)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_table(row)
    buffer = sink.getvalue()
    ends = pa.py_buffer(np.array([0, buffer.size], dtype=np.int64))
    cell = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, [None, ends, buffer])
    return pa.table([pa.array([partition]), cell, pa.nulls(1, pa.string())], schema=SCHEMA)


def empty_chunks(partitions: Collection[int]) -> pa.Table:
    """Nothing for each partition: so that those to which no row goes are made too."""
    count = len(partitions)
    columns = [pa.array(sorted(partitions)), pa.nulls(count, pa.large_binary()), pa.nulls(count, pa.string())]
    return pa.table(columns, schema=SCHEMA)


def mistake_chunks(partitions: Collection[int], error: UserError) -> pa.Table:
    """A user's mistake, for each partition that cannot be made because of it."""
    count = len(partitions)
    columns = [pa.array(sorted(partitions)), pa.nulls(count, pa.large_binary()), [written(error)] * count]
    return pa.table(columns, schema=SCHEMA)


def written(error: UserError) -> str:
    """A user's mistake as text, to be raised in another process."""
    return orjson.dumps([type(error).__name__, str(error)]).decode()


def raise_first(mistakes: pa.ChunkedArray) -> None:
    """Raise the first of some mistakes, as it was raised where it was made; none is fine."""
    for text in mistakes.drop_null():
        name, sentence = orjson.loads(text.as_py())
        raise getattr(errors, name, errors.DataError)(sentence)


def from_chunks(table: pa.Table) -> Iterator[Steps | Block]:
    """What the rows of a table are, as views into it."""
    for cell in table.column(_CHUNK).drop_null():
        arrays = from_row(pa.ipc.open_stream(cell.as_buffer()).read_all())
        columns = {
            name.removeprefix(_COLUMN): array for name, array in arrays.items() if name.startswith(_COLUMN)
        }
        rest: dict[str, Any] = {name: array for name, array in arrays.items() if not name.startswith(_COLUMN)}
        if "piece" in rest:
            yield Steps(columns, **{"t": None, **rest})
        else:
            yield Block(columns, **rest)
