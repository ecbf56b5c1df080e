"""Text cells that hold JSON arrays or objects, as columns of lists and structs."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from hindcast.store.layout import CellError

_BLOCK = 1 << 20


def json_cells(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray | None:
    """The values of cells that all begin like JSON arrays or objects; None where they do not.

    Raises:
        CellError: they begin so, and are not JSON of one kind.
    """
    trimmed = pc.utf8_ltrim_whitespace(column)
    begins = pc.or_(pc.starts_with(trimmed, "["), pc.starts_with(trimmed, "{"))
    if not len(column) or not pc.all(begins).as_py():
        return None
    lines = pc.replace_substring(trimmed, "\n", " ")
    joined = pc.binary_join_element_wise('{"v":', lines, "}\n", "").combine_chunks()
    data = _bytes(joined)
    try:
        table = pj.read_json(
            pa.py_buffer(data), read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + _BLOCK)
        )
    except pa.ArrowException as error:
        raise CellError(0, f"{name!r} holds text that is not JSON of one kind: {error}") from error
    if len(table) != len(column) or table.column_names != ["v"]:
        raise CellError(0, f"{name!r} holds text that is not JSON of one kind")
    return table.column("v")


def _bytes(texts: pa.Array) -> bytes:
    """All texts of an array, one after the other."""
    _, offsets, data = texts.buffers()
    ends = memoryview(offsets).cast("q" if pa.types.is_large_string(texts.type) else "i")
    return bytes(memoryview(data)[ends[texts.offset] : ends[texts.offset + len(texts)]])
