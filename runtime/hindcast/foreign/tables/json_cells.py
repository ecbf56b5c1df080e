"""Text cells that hold JSON arrays or objects, as columns of lists and structs."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from hindcast.foreign.tables.json_lines import parse_lines, refuse_beyond
from hindcast.store.layout import CellError


def json_cells(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray | None:
    """The values of cells that all begin like JSON arrays or objects; None where they do not.

    Raises:
        CellError: they begin so, and are not JSON of one kind.
    """
    trimmed = pc.utf8_ltrim_whitespace(column)
    begins = pc.or_(pc.starts_with(trimmed, "["), pc.starts_with(trimmed, "{"))
    if not len(column) or not pc.all(begins).as_py():
        return None
    lines = pc.replace_substring_regex(trimmed, r"[\r\n]", " ")
    joined = pc.binary_join_element_wise('{"v":', lines, "}\n", "").combine_chunks()
    try:
        text = _bytes(joined)
        table = parse_lines(text, {})
        refuse_beyond(text, table, ())
    except CellError as error:
        raise CellError(error.row, f"{name!r} begins like JSON, and cannot be read: {error}") from error
    if len(table) != len(column) or table.column_names != ["v"]:
        raise CellError(0, f"{name!r} holds text that is more than one JSON value")
    return table.column("v")


def _bytes(texts: pa.Array) -> bytes:
    """All texts of an array, one after the other."""
    _, offsets, data = texts.buffers()
    ends = memoryview(offsets).cast("q" if pa.types.is_large_string(texts.type) else "i")
    return bytes(memoryview(data)[ends[texts.offset] : ends[texts.offset + len(texts)]])
