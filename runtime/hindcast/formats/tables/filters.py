"""A source's `filter` as an Arrow expression, and keys: columns that are stored in the names of folders."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
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

_BEYOND_INTEGERS: Final = 10**20
"""More than any integer of 64 bits."""
_ROW_COLUMN: Final = "__hindcast_row"
OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""Operator of a filter, except `in` -> function for Arrow expressions and NumPy arrays."""


def build_expression(terms: Sequence[FilterTerm], schema: pa.Schema) -> pc.Expression | None:
    """Build the expression that combines all comparisons with "and"; None without comparisons.

    Raises:
        DataError: a column is missing, or a value does not have the column's type.
    """
    if not terms:
        return None
    return reduce(operator.and_, [_build_term(term, schema) for term in terms])


def apply_filter(table: pa.Table, terms: Sequence[FilterTerm], first_row: int) -> tuple[pa.Table, I64]:
    """Return the rows that pass the filter, and `[R]` their indices in the file.

    Args:
        table: adjacent rows of a file.
        terms: comparisons of the filter.
        first_row: index of the table's first row in the file.

    Raises:
        DataError: see `build_expression`.
    """
    expression = build_expression(terms, table.schema)
    if expression is None:
        return table, np.arange(first_row, first_row + len(table))
    names = list(dict.fromkeys(term.column for term in terms))
    numbered_rows = table.select(names).append_column(_ROW_COLUMN, pa.array(np.arange(len(table))))
    row = numbered_rows.filter(expression).column(_ROW_COLUMN)
    return table.take(row), row.to_numpy() + first_row


def _build_term(term: FilterTerm, schema: pa.Schema) -> pc.Expression:
    if term.column not in schema.names:
        raise DataError(
            f"it has no column {term.column!r}, which `filter` names: {suggest_name(term.column, schema.names)}"
        )
    column_type = schema.field(term.column).type
    if pa.types.is_dictionary(column_type):
        column_type = column_type.value_type
    if pa.types.is_null(column_type):
        return pc.field(term.column).is_valid()  # comparisons with null never pass
    values = list(term.value) if term.op == "in" and isinstance(term.value, list) else [term.value]
    for value in values:
        _check_value_type(value, term, column_type)
    column, scalars = pc.field(term.column), [_to_scalar(value, column_type) for value in values]
    if term.op == "in":
        return reduce(operator.or_, [column == scalar for scalar in scalars], pc.scalar(False))
    return OPERATORS[term.op](column, scalars[0])


def _to_scalar(value: Any, column_type: pa.DataType) -> pc.Expression:
    """Return a value in a type in which Arrow compares it exactly, without converting large integers to floats."""
    if isinstance(value, bool | str):
        return pc.scalar(value)
    if pa.types.is_decimal(column_type):
        with suppress(pa.ArrowException):  # the value is beyond the column's type, or has more digits
            return pc.scalar(pa.scalar(Decimal(repr(value)), column_type))
    if not pa.types.is_integer(column_type):
        return pc.scalar(value)
    value = min(max(value, -_BEYOND_INTEGERS), _BEYOND_INTEGERS)
    floor = math.floor(value)
    with suppress(pa.ArrowException, OverflowError):  # the value is beyond the column's type
        if floor == value:
            return pc.scalar(pa.scalar(floor, column_type))
    # All fractions between two integers compare with integers as the half between the two does.
    return pc.scalar(pa.scalar(Decimal(floor) + (Decimal("0.5") if floor != value else 0)))


def _check_value_type(value: Any, term: FilterTerm, column_type: pa.DataType) -> None:
    if isinstance(value, bool):
        fits = pa.types.is_boolean(column_type)
    elif isinstance(value, int | float):
        fits = (
            pa.types.is_integer(column_type)
            or pa.types.is_floating(column_type)
            or pa.types.is_decimal(column_type)
        )
    else:
        fits = isinstance(value, str) and is_text(column_type)
    if not fits:
        raise DataError(
            f"`filter` compares {term.column!r}, a column of {column_type}, with {value!r}: write a value of the "
            "column's type"
        )


def add_keys_to_schema(schema: pa.Schema, options: ReadOptions) -> pa.Schema:
    """Add the keys that are not columns of the file to its schema."""
    return pa.schema(
        [*schema, *(pa.field(name, value.type) for name, value in _missing_keys(schema, options).items())]
    )


def add_keys(table: pa.Table, options: ReadOptions, schema: pa.Schema | None = None) -> pa.Table:
    """Add the keys that are not columns of the file to a table, as columns.

    Args:
        table: rows of the file.
        options: options with the keys.
        schema: schema of the file, if the table does not have all of its columns.
    """
    for name, value in _missing_keys(schema or table.schema, options).items():
        table = table.append_column(name, pa.repeat(value, len(table)))
    return table


def build_key_expression(schema: pa.Schema, options: ReadOptions) -> pc.Expression | None:
    """Return an expression that is true for all rows of the file because of its keys; None without keys."""
    terms = [
        pc.field(name) == value for name, value in _missing_keys(schema, options).items() if value.is_valid
    ]
    return reduce(operator.and_, terms) if terms else None


def _missing_keys(schema: pa.Schema, options: ReadOptions) -> dict[str, pa.Scalar]:
    return {name: value for name, value in options.keys.items() if name not in schema.names}
