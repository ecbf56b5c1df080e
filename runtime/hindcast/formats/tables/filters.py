"""A source's `filter` as an expression of Arrow's."""

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
from hindcast.formats.tables.naming import nearest

_ROW: Final = "__hindcast_row"
_COMPARE: Final[dict[str, Callable[[Any, Any], pc.Expression]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def expression_of(terms: Sequence[FilterTerm], schema: pa.Schema) -> pc.Expression | None:
    """All comparisons together; None without any.

    Raises:
        DataError: a column that is not there, or a value of another kind than the column's.
    """
    if not terms:
        return None
    return reduce(operator.and_, [_expression(term, schema) for term in terms])


def passing(
    table: pa.Table, keep: pc.Expression | None, terms: Sequence[FilterTerm], first: int
) -> tuple[pa.Table, I64]:
    """The rows that pass, and `[R]` their numbers in the file.

    Args:
        table: adjacent rows of a file.
        keep: `expression_of(terms)`.
        terms: the filter.
        first: number of the table's first row.
    """
    if keep is None:
        return table, np.arange(first, first + len(table))
    names = list(dict.fromkeys(term.column for term in terms))
    numbered = table.select(names).append_column(_ROW, pa.array(np.arange(len(table))))
    row = numbered.filter(keep).column(_ROW)
    return table.take(row), row.to_numpy() + first


def _expression(term: FilterTerm, schema: pa.Schema) -> pc.Expression:
    if term.column not in schema.names:
        raise DataError(
            f"it has no column {term.column!r}, which `filter` names: {nearest(term.column, schema.names)}"
        )
    kind = schema.field(term.column).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_null(kind):
        return pc.field(term.column).is_valid()  # a null passes nothing
    values = list(term.value) if term.op == "in" and isinstance(term.value, list) else [term.value]
    for value in values:
        _check_kind(value, term, kind)
    column = pc.field(term.column)
    return column.isin(values) if term.op == "in" else _COMPARE[term.op](column, pc.scalar(term.value))


def _check_kind(value: Any, term: FilterTerm, kind: pa.DataType) -> None:
    if isinstance(value, bool):
        fits = pa.types.is_boolean(kind)
    elif isinstance(value, int | float):
        fits = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    else:
        fits = isinstance(value, str) and (pa.types.is_string(kind) or pa.types.is_large_string(kind))
    if not fits:
        raise DataError(f"`filter` compares {term.column!r}, a column of {kind}, with {value!r}")
