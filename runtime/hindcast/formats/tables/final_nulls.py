"""Next observations that are null where an episode ends: the final observation is missing there."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from hindcast.episodes.block import Bool
from hindcast.episodes.columns import Columns, root
from hindcast.formats.columns.arrays import Arrays
from hindcast.formats.layout import CellError
from hindcast.formats.tables.naming import Plan

_WAY_OUT = (
    "is null where its episode ends: set ignoreFinalObservation: true (--ignore-final-observation), with which the "
    "final observation is zeros, or fill it"
)


def filled(table: pa.Table, plan: Plan, ended: Bool, zero_final: bool) -> tuple[pa.Table, Bool]:
    """The table with the rows' own observations in place of final ones that are null, and which rows these are.

    Raises:
        CellError: a null elsewhere, or where nothing allows zeros.
    """
    missing = np.zeros(len(table), dtype=np.bool_)
    for name, source in plan.sources.items():
        now = plan.sources.get(Columns.OBS + name.removeprefix(Columns.NEXT_OBS))
        if root(name) != Columns.NEXT_OBS or now is None or len(now.columns) != len(source.columns):
            continue
        for then, own in zip(source.columns, now.columns, strict=True):
            column = table.column(then)
            if not column.null_count or pa.types.is_null(column.type):
                continue
            null = column.is_null().to_numpy()
            if (null & ~ended).any():
                row = int(np.flatnonzero(null & ~ended)[0])
                raise CellError(
                    row, f"{then!r} is null in a row that ends no episode: fill it, or flag the end"
                )
            if not zero_final:
                raise CellError(int(np.flatnonzero(null)[0]), f"{then!r} {_WAY_OUT}")
            if table.column(own).type != column.type:
                raise CellError(
                    0,
                    f"{then!r} is of {column.type} and {own!r} of {table.column(own).type}: expected one type",
                )
            both = pa.chunked_array([*column.chunks, *table.column(own).chunks], column.type)
            rows = np.arange(len(table)) + np.where(null, len(table), 0)
            place = table.column_names.index(then)
            table = table.set_column(place, table.schema.field(then), both.take(pa.array(rows)))
            missing |= null
    return table, missing


def with_zeros(columns: Arrays, missing: Bool) -> Arrays:
    """The columns, zero where the final observation is missing."""
    if not missing.any():
        return columns
    return {
        name: _zeroed(column, missing) if root(name) == Columns.NEXT_OBS else column
        for name, column in columns.items()
    }


def _zeroed(column: np.ndarray, missing: Bool) -> np.ndarray:
    column = column.copy()
    column[missing] = "" if column.dtype == object else 0
    return column
