"""Where episodes end, by the flags of a table and, in logs of Gym's older interface, by their infos."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.episodes.block import Bool
from hindcast.episodes.columns import Columns
from hindcast.formats.layout import CellError, refuse_null
from hindcast.formats.tables.naming import Plan

_TIME_LIMIT: Final = "TimeLimit.truncated"

_TRUE: Final = ("true", "1", "1.0", "t", "yes")
_FALSE: Final = ("false", "0", "0.0", "f", "no")
_EXPECTED: Final = "expected true or false; fix it, or name another column by `schema`"


def ends_of(table: pa.Table, plan: Plan) -> tuple[Bool, Bool]:
    """`[R]` each: where the environment ended an episode, and where it was cut off.

    Raises:
        CellError: nulls, or values other than true and false.
    """
    over, cut = _flags(table, plan, Columns.TERMINATEDS), _flags(table, plan, Columns.TRUNCATEDS)
    if plan.end_infos is not None:
        return ends_by_infos(over, table.column(plan.end_infos))
    return over, cut


def _flags(table: pa.Table, plan: Plan, own: str) -> Bool:
    source = plan.sources.get(own)
    if source is None:
        return np.zeros(len(table), dtype=np.bool_)
    column = table.column(source.columns[0])
    refuse_null(column, source.columns[0], f": {_EXPECTED}")
    kind = column.type
    if pa.types.is_boolean(kind):
        return column.to_numpy()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = _of_text(column, source.columns[0])
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise CellError(0, f"{source.columns[0]!r} is a column of {kind}: expected true or false")
    values = column.to_numpy()
    wrong = np.flatnonzero((values != 0) & (values != 1))
    if len(wrong):
        row = int(wrong[0])
        raise CellError(row, f"{source.columns[0]!r} is {values[row]}: {_EXPECTED}")
    return values.astype(np.bool_)


def _of_text(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    lower = pc.utf8_lower(column)
    true = pc.is_in(lower, pa.array(_TRUE))
    known = pc.or_(true, pc.is_in(lower, pa.array(_FALSE)))
    if not pc.all(known, min_count=0).as_py():
        row = int(np.flatnonzero(~known.to_numpy())[0])
        raise CellError(row, f"{name!r} is {column[row].as_py()!r}: {_EXPECTED}")
    return true


def ends_by_infos(over: Bool, infos: pa.ChunkedArray) -> tuple[Bool, Bool]:
    """`[R]` each: where the environment ended an episode, and where a time limit did.

    Args:
        over: `[R]` where an episode is over; only there the infos are looked at.
        infos: dicts, or their JSON text.

    Raises:
        CellError: an info that is not JSON.
    """
    cut = np.zeros(len(over), dtype=np.bool_)
    for row in np.flatnonzero(over).tolist():
        cut[row] = _says_cut(infos[row].as_py(), row)
    return over & ~cut, cut


def _says_cut(info: Any, row: int) -> bool:
    if isinstance(info, str):
        if _TIME_LIMIT not in info:
            return False
        try:
            info = json.loads(info)
        except ValueError as error:
            raise CellError(row, f"its info is not JSON: {error}") from error
    return isinstance(info, dict) and bool(info.get(_TIME_LIMIT))
