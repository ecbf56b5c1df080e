"""Columns stored in the names of a table's folders, see `ReadOptions.keys`."""

from __future__ import annotations

from functools import reduce
from operator import and_

import pyarrow as pa
import pyarrow.compute as pc

from hindcast.formats.format import ReadOptions


def keyed_schema(schema: pa.Schema, options: ReadOptions) -> pa.Schema:
    """The schema with the keys that the file has no column for."""
    return pa.schema(
        [*schema, *(pa.field(name, value.type) for name, value in _absent(schema, options).items())]
    )


def keyed(table: pa.Table, options: ReadOptions, schema: pa.Schema | None = None) -> pa.Table:
    """The table with the keys that the file has no column for.

    Args:
        table: rows of the file.
        options: whose keys.
        schema: of the file, where the table does not have all of its columns.
    """
    for name, value in _absent(schema or table.schema, options).items():
        table = table.append_column(name, pa.repeat(value, len(table)))
    return table


def guarantee(schema: pa.Schema, options: ReadOptions) -> pc.Expression | None:
    """What holds for all rows of the file."""
    terms = [pc.field(name) == value for name, value in _absent(schema, options).items() if value.is_valid]
    return reduce(and_, terms) if terms else None


def _absent(schema: pa.Schema, options: ReadOptions) -> dict[str, pa.Scalar]:
    return {name: value for name, value in options.keys.items() if name not in schema.names}
