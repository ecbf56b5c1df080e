"""Tables with whole episodes as rows: their cells are lists with one item per timestep.

Shape suffixes: E = rows of such a table, R = timesteps.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.episodes.block import I64, Bool
from hindcast.episodes.columns import Columns
from hindcast.formats.layout import LEAVE_OUT_ADVICE, CellError, first_true, refuse_null
from hindcast.formats.tables.naming import TablePlan
from hindcast.formatting import plural

_SINGLE_VALUE_COLUMNS: Final = (Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.T)
"""Columns with a single value per timestep: a list in them is a whole episode, while other lists may be vectors."""


class StepTable(NamedTuple):
    """Timesteps of whole episodes.

    Attributes:
        table: one row for each timestep.
        row: `[R]` index of the row that holds the timestep's episode.
        is_last: `[R]` whether the timestep is the last one of its row.
    """

    table: pa.Table
    row: I64
    is_last: Bool


def flatten_episodes(table: pa.Table, plan: TablePlan) -> StepTable | None:
    """Flatten a table of whole episodes into timesteps; None if its rows are timesteps.

    Rows are episodes if the actions and all columns with a single value per timestep are lists. In a column without
    lists, a value applies to all timesteps of its row.

    Raises:
        CellError: a list is null, or differs in length from the other lists of its row.
    """
    single_value_columns = [
        plan.sources[role].columns[0] for role in _SINGLE_VALUE_COLUMNS if role in plan.sources
    ]
    actions = plan.sources.get(Columns.ACTIONS)
    list_columns = [*single_value_columns, *(actions.columns if actions else ())]
    if not single_value_columns or not all(_is_list(table.column(name).type) for name in list_columns):
        return None
    reference = table.column(single_value_columns[0])
    refuse_null(reference, single_value_columns[0], ": expected a list")
    lengths = pc.list_value_length(reference).to_numpy().astype(np.int64)
    row = np.repeat(np.arange(len(table)), lengths)
    # the slice is for tables without timesteps, which have no last one
    is_last = np.append(row[1:] != row[:-1], True)[: len(row)]
    columns = {}
    for name in table.column_names:
        column = table.column(name)
        if _is_list(column.type):
            _check_lengths(column, name, lengths, single_value_columns[0])
            columns[name] = pc.list_flatten(column)
        else:
            columns[name] = column.take(pa.array(row))
    return StepTable(pa.table(columns), row, is_last)


def _is_list(arrow_type: pa.DataType) -> bool:
    """Return True for lists of variable length; lists of a fixed size are vectors."""
    return pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type)


def _check_lengths(column: pa.ChunkedArray, name: str, lengths: I64, reference_name: str) -> None:
    refuse_null(column, name, f": expected a list, as {reference_name!r} is; {LEAVE_OUT_ADVICE}")
    column_lengths = pc.list_value_length(column).to_numpy()
    if (row := first_true(column_lengths != lengths)) is not None:
        raise CellError(
            row,
            f"{name!r} has {plural(column_lengths[row], 'item')} and {reference_name!r} has {lengths[row]}: "
            f"if a row is a whole episode, each of its lists must have one item per timestep; {LEAVE_OUT_ADVICE}",
        )
