"""A source's `filter` as an Arrow expression, and columns stored in the names of folders (keys)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.api.input import FilterTerm
from hindcast.episodes.block import I64
from hindcast.errors import DataError
from hindcast.formats.columns.arrays import is_text
from hindcast.formats.format import ReadOptions
from hindcast.formats.tables.naming import suggest_name

_ROW_COLUMN: Final = "__hindcast_row"
OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""A filter's operators, for Arrow expressions and NumPy arrays."""


def build_expression(terms: Sequence[FilterTerm], schema: pa.Schema) -> pc.Expression | None:
    """Combine all comparisons with "and"; None without comparisons.

    Raises:
        DataError: a column is missing, or a value does not have the column's type.
    """
    if not terms:
        return None
    return reduce(operator.and_, [_term_expression(term, schema) for term in terms])


def apply_filter(table: pa.Table, terms: Sequence[FilterTerm], first: int) -> tuple[pa.Table, I64]:
    """Return the rows that pass, and `[R]` their numbers in the file.

    Args:
        table: adjacent rows of a file.
        terms: the filter.
        first: number of the table's first row.

    Raises:
        DataError: see `build_expression`.
    """
    expression = build_expression(terms, table.schema)
    if expression is None:
        return table, np.arange(first, first + len(table))
    names = list(dict.fromkeys(term.column for term in terms))
    numbered_rows = table.select(names).append_column(_ROW_COLUMN, pa.array(np.arange(len(table))))
    row = numbered_rows.filter(expression).column(_ROW_COLUMN)
    return table.take(row), row.to_numpy() + first


def _term_expression(term: FilterTerm, schema: pa.Schema) -> pc.Expression:
    if term.column not in schema.names:
        raise DataError(
            f"it has no column {term.column!r}, which `filter` names: {suggest_name(term.column, schema.names)}"
        )
    kind = schema.field(term.column).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_null(kind):
        return pc.field(term.column).is_valid()  # comparisons with null never pass
    values = list(term.value) if term.op == "in" and isinstance(term.value, list) else [term.value]
    for value in values:
        _check_kind(value, term, kind)
    column = pc.field(term.column)
    return column.isin(values) if term.op == "in" else OPERATORS[term.op](column, pc.scalar(term.value))


def _check_kind(value: Any, term: FilterTerm, kind: pa.DataType) -> None:
    if isinstance(value, bool):
        fits = pa.types.is_boolean(kind)
    elif isinstance(value, int | float):
        fits = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    else:
        fits = isinstance(value, str) and is_text(kind)
    if not fits:
        raise DataError(f"`filter` compares {term.column!r}, a column of {kind}, with {value!r}")


def add_keys_to_schema(schema: pa.Schema, options: ReadOptions) -> pa.Schema:
    """Add the keys that are not columns of the file to its schema."""
    return pa.schema(
        [*schema, *(pa.field(name, value.type) for name, value in _missing_keys(schema, options).items())]
    )


def add_keys(table: pa.Table, options: ReadOptions, schema: pa.Schema | None = None) -> pa.Table:
    """Add the keys that are not columns of the file to a table of its rows.

    Args:
        table: rows of the file.
        options: have the keys.
        schema: schema of the file, if the table does not have all of its columns.
    """
    for name, value in _missing_keys(schema or table.schema, options).items():
        table = table.append_column(name, pa.repeat(value, len(table)))
    return table


def key_expression(schema: pa.Schema, options: ReadOptions) -> pc.Expression | None:
    """Return what the keys guarantee for all rows of the file."""
    terms = [
        pc.field(name) == value for name, value in _missing_keys(schema, options).items() if value.is_valid
    ]
    return reduce(operator.and_, terms) if terms else None


def _missing_keys(schema: pa.Schema, options: ReadOptions) -> dict[str, pa.Scalar]:
    return {name: value for name, value in options.keys.items() if name not in schema.names}
