"""Fields of structs, and of JSON objects in text, that a user's `schema` names as columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.errors import DataError
from hindcast.formats.columns.arrays import decode_dictionary, is_text, unwrap_extension, with_elements
from hindcast.formats.layout import CellError
from hindcast.formats.tables.json_lines import parse_json_cells
from hindcast.formats.tables.naming import FieldPath, find_field_path, suggest_name


def list_schema_fields(
    schema: Mapping[str, str | Sequence[str]], names: Collection[str]
) -> dict[str, FieldPath]:
    """Return the fields that a schema names for a table with these columns: name -> path."""
    sources = [
        name for source in schema.values() for name in ([source] if isinstance(source, str) else source)
    ]
    paths = {name: find_field_path(name, names) for name in sources}
    return {name: path for name, path in paths.items() if path is not None}


def add_fields(table: pa.Table, fields: Mapping[str, FieldPath]) -> pa.Table:
    """Add fields to a table, as columns.

    Args:
        table: the table.
        fields: name of the new column -> path: a column of the table, and the names of fields within each other.

    Raises:
        DataError: a field does not exist.
        CellError: a text is not JSON.
    """
    for name, (source, *path) in fields.items():
        column = decode_dictionary(unwrap_extension(table.column(source)))
        if is_text(column.type):
            column = _parse_cells(column, source)
        if column.null_count == len(column):  # the fields of texts without a value are unknown
            table = table.append_column(name, pa.nulls(len(column)))
            continue
        field_type = _find_field_type(column.type, name, source, path)
        chunks = [_take_field(chunk, path) for chunk in column.chunks]
        table = table.append_column(name, pa.chunked_array(chunks, field_type))
    return table


def _parse_cells(column: pa.ChunkedArray, source: str) -> pa.ChunkedArray:
    """Parse text if all cells but nulls are JSON; other text stays."""
    is_valid = column.is_valid()
    try:
        values = parse_json_cells(column.drop_null(), source)
    except CellError as error:
        raise error.with_row(int(np.flatnonzero(is_valid)[error.row])) from error
    return column if values is None else _restore_nulls(values, is_valid)


def _find_field_type(arrow_type: pa.DataType, name: str, source: str, path: Sequence[str]) -> pa.DataType:
    """Return the type of a field; if the structs are in lists, lists of the field's type."""
    if not path:
        return arrow_type
    if pa.types.is_struct(arrow_type):
        field_names = [field.name for field in arrow_type]
        if path[0] not in field_names:
            raise DataError(
                f"{source!r} has no field {path[0]!r}, which `schema` names ({name!r}): "
                f"{suggest_name(path[0], field_names)}"
            )
        return _find_field_type(arrow_type.field(path[0]).type, name, f"{source}.{path[0]}", path[1:])
    if pa.types.is_fixed_size_list(arrow_type):
        return pa.list_(_find_field_type(arrow_type.value_type, name, source, path))
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        make_list = pa.large_list if pa.types.is_large_list(arrow_type) else pa.list_
        return make_list(_find_field_type(arrow_type.value_type, name, source, path))
    raise DataError(f"{source!r} is a column of {arrow_type}, so it has no field {path[0]!r} ({name!r})")


def _take_field(values: pa.Array, path: Sequence[str]) -> pa.Array:
    if not path:
        return values
    if pa.types.is_struct(values.type):
        return _take_field(pc.struct_field(values, path[0]), path[1:])
    if not pa.types.is_fixed_size_list(values.type):
        return with_elements(values, _take_field(values.flatten(), path))
    lists = values.drop_null()
    fields = with_elements(lists, _take_field(lists.flatten(), path))
    return _restore_nulls(fields.cast(pa.list_(fields.type.value_type)), values.is_valid())


def _restore_nulls(values: Any, is_valid: Any) -> Any:
    """Insert nulls into an array, or chunked array, where `is_valid` is False."""
    mask = np.asarray(is_valid)
    return values if mask.all() else values.take(pa.array(np.cumsum(mask) - 1, mask=~mask))
