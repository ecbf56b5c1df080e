"""Tables whose rows are whole episodes: lists, with an item for each timestep.

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

_SINGLE: Final = (Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.T)
"""What is one value in each timestep, so that a list of them is an episode; of actions it may be a vector."""


class StepTable(NamedTuple):
    """Whole episodes as timesteps.

    Attributes:
        table: a row for each timestep.
        row: `[R]` the rows that they were in.
        is_last: `[R]` whether it is its row's last.
    """

    table: pa.Table
    row: I64
    is_last: Bool


def flatten_episodes(table: pa.Table, plan: TablePlan) -> StepTable | None:
    """A table of whole episodes as timesteps; None where its rows are timesteps.

    They are episodes where actions and all that is a single value in each timestep are lists. Columns that are no lists
    hold for all of a row's timesteps.

    Raises:
        CellError: a null list, or one that is longer or shorter than the others of its row.
    """
    single = [plan.sources[own].columns[0] for own in _SINGLE if own in plan.sources]
    actions = plan.sources.get(Columns.ACTIONS)
    listed = [*single, *(actions.columns if actions else ())]
    if not single or not all(_is_list(table.column(name).type) for name in listed):
        return None
    measure = table.column(single[0])
    refuse_null(measure, single[0], ": expected a list")
    lengths = pc.list_value_length(measure).to_numpy().astype(np.int64)
    row = np.repeat(np.arange(len(table)), lengths)
    is_last = np.append(row[1:] != row[:-1], True)[: len(row)]
    columns = {}
    for name in table.column_names:
        column = table.column(name)
        if _is_list(column.type):
            _check_lengths(column, name, lengths, single[0])
            columns[name] = pc.list_flatten(column)
        else:
            columns[name] = column.take(pa.array(row))
    return StepTable(pa.table(columns), row, is_last)


def _is_list(kind: pa.DataType) -> bool:
    """Of any length: lists of a fixed size are vectors."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _check_lengths(column: pa.ChunkedArray, name: str, lengths: I64, measure: str) -> None:
    refuse_null(column, name, f": expected a list, as {measure!r} is; {LEAVE_OUT_ADVICE}")
    own = pc.list_value_length(column).to_numpy()
    if (row := first_true(own != lengths)) is not None:
        raise CellError(
            row,
            f"{name!r} has {plural(own[row], 'item')} and {measure!r} has {lengths[row]}: where a row is a whole "
            f"episode, its lists have one for each timestep; {LEAVE_OUT_ADVICE}",
        )
