"""What rows are in their episodes: which episode and timestep, who acted, and whether the episode ends there."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hindcast.episodes.block import I64, Bool
from hindcast.episodes.columns import Columns
from hindcast.formats.columns.arrays import is_text, unwrap_extension
from hindcast.formats.layout import CellError, first_true, refuse_null
from hindcast.formats.rows import ACTOR_COLUMNS, Timesteps
from hindcast.formats.tables.naming import TablePlan

_TIME_LIMIT: Final = "TimeLimit.truncated"
_UUID_BYTES: Final = 16
_TRUE: Final = ("true", "1", "1.0", "t", "yes")
_FALSE: Final = ("false", "0", "0.0", "f", "no")
_NESTED: Final = "where a row is a whole episode, actions, rewards, flags and timesteps are all lists"
_EXPECTED: Final = "expected true or false; fix it, or name another column by `schema`"


def decode_ends(table: pa.Table, plan: TablePlan) -> tuple[Bool, Bool]:
    """`[R]` each: where the environment ended an episode, and where it was cut off.

    In logs of Gym's older interface one flag says that an episode is over, and its infos whether by a time limit.

    Raises:
        CellError: nulls, values other than true and false, or an info that is not JSON.
    """
    over, cut = _flags(table, plan, Columns.TERMINATEDS), _flags(table, plan, Columns.TRUNCATEDS)
    if plan.end_infos is None:
        return over, cut
    infos = table.column(plan.end_infos)
    for row in np.flatnonzero(over).tolist():
        cut[row] = _says_cut(infos[row].as_py(), row)
    return over & ~cut, cut


def _flags(table: pa.Table, plan: TablePlan, own: str) -> Bool:
    source = plan.sources.get(own)
    if source is None:
        return np.zeros(len(table), dtype=np.bool_)
    name = source.columns[0]
    column = table.column(name)
    refuse_null(column, name, f": {_EXPECTED}")
    if pa.types.is_boolean(column.type):
        return column.to_numpy()
    if is_text(column.type):
        lower = pc.utf8_lower(column)
        true, false = pc.is_in(lower, pa.array(_TRUE)), pc.is_in(lower, pa.array(_FALSE))
    elif pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        true, false = pc.equal(column, 1), pc.equal(column, 0)
    else:
        hint = f"; {_NESTED}" if pa.types.is_nested(column.type) else ""
        raise CellError(0, f"{name!r} is a column of {column.type}: expected true or false{hint}")
    if (row := first_true(~pc.or_(true, false).to_numpy())) is not None:
        raise CellError(row, f"{name!r} is {column[row].as_py()!r}: {_EXPECTED}")
    return true.to_numpy()


def _says_cut(info: Any, row: int) -> bool:
    if isinstance(info, str):
        if _TIME_LIMIT not in info:
            return False
        try:
            info = json.loads(info)
        except ValueError as error:
            raise CellError(row, f"its info is not JSON: {error}") from error
    return isinstance(info, dict) and bool(info.get(_TIME_LIMIT))


def decode_episode_ids(table: pa.Table, plan: TablePlan, *, is_ours: bool) -> NDArray[np.object_] | None:
    """`[R]` the episodes' ids as text; in files of others followed by a slash and the agent's, if rows name one.

    Raises:
        CellError: nulls, or a column of neither text nor whole numbers.
    """
    source = plan.sources.get(Columns.EPS_ID)
    if source is None:
        return None
    name = source.columns[0]
    column = table.column(name)
    refuse_null(column, name, ": every row needs the id of its episode")
    episodes = _texts(column, name)
    agents = None if is_ours else _named(table, plan, Columns.AGENT_ID)
    return episodes if agents is None else episodes + np.where(agents == "", "", "/" + agents)


def decode_actors(table: pa.Table, plan: TablePlan) -> dict[str, NDArray[np.object_]]:
    """`[R]` texts: the agent and the module of each row, if rows name them."""
    found = {name: _named(table, plan, name) for name in ACTOR_COLUMNS}
    return {name: texts for name, texts in found.items() if texts is not None}


def _named(table: pa.Table, plan: TablePlan, own: str) -> NDArray[np.object_] | None:
    """`[R]` whom rows name, empty where they name nobody; None if none does."""
    source = plan.sources.get(own)
    if source is None or table.column(source.columns[0]).null_count == len(table):
        return None
    column = table.column(source.columns[0])
    out = np.full(len(column), "", dtype=object)
    out[column.is_valid().to_numpy()] = _texts(column.drop_null(), source.columns[0])
    return out


def decode_timesteps(table: pa.Table, plan: TablePlan) -> Timesteps | None:
    """`[R]` the timesteps, or the dates or times that order them; None without such a column.

    Raises:
        CellError: nulls, or values that are neither whole numbers nor times; text is read as ISO 8601.
    """
    source = plan.sources.get(Columns.T)
    if source is None:
        return None
    name = source.columns[0]
    column = table.column(name)
    refuse_null(column, name, ": expected a whole number or a time")
    if is_text(column.type):
        column = _parsed_times(column, name)
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        return column.to_numpy()
    return _whole(column, name)


def _parsed_times(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Text as times; those with a zone as UTC's."""
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    parts = column.to_pylist()
    row = next((row for row, text in enumerate(parts) if not _is_time(text)), 0)
    raise CellError(
        row,
        f"{name!r} is {parts[row]!r}: expected a whole number or a time, all with or all without a zone, such as "
        "2026-01-31T08:30:00",
    )


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _texts(column: pa.ChunkedArray, name: str) -> NDArray[np.object_]:
    """`[R]` texts and whole numbers as text. UUIDs, Arrow's own or as 16 bytes, are their hexadecimal digits."""
    if getattr(column.type, "extension_name", None) == "arrow.uuid":
        column = unwrap_extension(column)
    if pa.types.is_floating(column.type):
        column = pa.chunked_array([pa.array(_whole(column, name))])
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_uuid = pa.types.is_fixed_size_binary(kind) and kind.byte_width == _UUID_BYTES
    if not (is_uuid or is_text(kind) or pa.types.is_integer(kind)):
        raise CellError(0, f"{name!r} is a column of {kind}: expected text or whole numbers")
    return texts_by_value(column, bytes.hex if is_uuid else str)


def texts_by_value(column: pa.ChunkedArray, text_of: Callable[[Any], str]) -> NDArray[np.object_]:
    """`[R]` the text of each value; one `str` for each distinct one, so that rows cost no more than their episodes."""
    is_encoded = pa.types.is_dictionary(column.type)
    encoded = (column if is_encoded else pc.dictionary_encode(column)).combine_chunks()
    known = np.array([text_of(value) for value in encoded.dictionary.to_pylist()], dtype=object)
    return known[encoded.indices.to_numpy()]


def _whole(column: pa.ChunkedArray, name: str) -> I64:
    refuse_null(column, name, ": expected a whole number")
    if pa.types.is_integer(column.type):
        return column.to_numpy().astype(np.int64, copy=False)
    if not pa.types.is_floating(column.type):
        raise CellError(0, f"{name!r} is a column of {column.type}: expected whole numbers")
    values = column.to_numpy()
    if (row := first_true(values != np.floor(values))) is not None:
        raise CellError(row, f"{name!r} is {values[row]}: expected a whole number")
    return values.astype(np.int64)
