"""Decoding columns that place a row in its episode: episode id, timestep, agent, module and ends of episodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hindcast.api.input import TimeSpec
from hindcast.episodes.block import I64, Bool
from hindcast.episodes.columns import Columns
from hindcast.formats.columns.arrays import decode_dictionary, is_list, is_text, unwrap_extension
from hindcast.formats.columns.decimals import decimals_to_numbers
from hindcast.formats.layout import CellError, first_true, refuse_null
from hindcast.formats.lossless import MAX_EXACT_FLOAT
from hindcast.formats.rows import AGENT_COLUMNS, Timesteps
from hindcast.formats.tables.naming import TablePlan

_TIME_LIMIT_KEY: Final = "TimeLimit.truncated"
_NULLABLE_ROLES: Final = (Columns.EPS_ID, *AGENT_COLUMNS, Columns.INFOS)
_UUID_BYTES: Final = 16
_DIGITS: Final = r"^\s*[+-]?\d+\s*$"
_INT64: Final = np.iinfo(np.int64)
_LATEST_TIME: Final = 4_300_000_000_000_000_000
"""The largest number that is read as a time: as nanoseconds since 1970, a moment in 2106. `_to_order` would overflow
for larger ones.
"""
TRUE_TEXTS: Final = ("true", "1", "1.0", "t", "yes")
FALSE_TEXTS: Final = ("false", "0", "0.0", "f", "no")
_NESTED_ADVICE: Final = "if a row is a whole episode, actions, rewards, flags and timesteps must all be lists"
_FLAG_ADVICE: Final = "expected true or false; fix it, or name another column under `schema`"
_WORDS_ADVICE: Final = (
    "; if a spreadsheet wrote its words for true and false in another language, replace them by true and false, or by "
    "1 and 0"
)


def restore_nulls(table: pa.Table, plan: TablePlan) -> pa.Table:
    """Return the table with nulls for NaN in the columns of ids and infos: pandas and Ray Data turn nulls into NaN."""
    for role in _NULLABLE_ROLES:
        source = plan.sources.get(role)
        if source is None or not pa.types.is_floating(table.schema.field(source.columns[0]).type):
            continue
        index = table.schema.get_field_index(source.columns[0])
        column = table.column(index)
        values = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        table = table.set_column(index, source.columns[0], values)
    return table


def decode_ends(table: pa.Table, plan: TablePlan) -> tuple[Bool, Bool, Bool | None]:
    """Decode where episodes end: `terminated`, `truncated` and `is_obs_only` of `Rows`.

    In logs of Gym's older interface one flag marks both kinds of ends, and the info says whether a time limit was
    reached.

    Raises:
        CellError: a flag is null, or neither true nor false; an info is not JSON.
    """
    is_done = _decode_flags(table, plan, Columns.TERMINATEDS)
    is_truncated = _decode_flags(table, plan, Columns.TRUNCATEDS)
    if plan.last_column is not None:
        is_last = _decode_flag_column(table, plan.last_column)
        return is_done & is_last, is_last & ~is_done, is_last
    if plan.end_infos is None:
        return is_done, is_truncated, None
    infos = table.column(plan.end_infos)
    for row in np.flatnonzero(is_done).tolist():
        is_truncated[row] = _is_time_limit(infos[row].as_py(), row)
    return is_done & ~is_truncated, is_truncated, None


def _decode_flags(table: pa.Table, plan: TablePlan, role: str) -> Bool:
    source = plan.sources.get(role)
    if source is None:
        return np.zeros(len(table), dtype=np.bool_)
    return _decode_flag_column(table, source.columns[0])


def _decode_flag_column(table: pa.Table, name: str) -> Bool:
    column = table.column(name)
    column = decode_dictionary(column)
    refuse_null(column, name, f": {_FLAG_ADVICE}")
    if is_list(column.type) and pc.all(pc.equal(pc.list_value_length(column), 1)).as_py():
        column = pc.list_flatten(column)  # a vector environment of one
        refuse_null(column, name, f": {_FLAG_ADVICE}")
    if pa.types.is_boolean(column.type):
        return column.to_numpy()
    flags = match_flags(column)
    if flags is None:
        hint = f"; {_NESTED_ADVICE}" if pa.types.is_nested(column.type) else ""
        raise CellError(0, f"{name!r} is a column of {column.type}: expected true or false{hint}")
    is_true, is_false = flags
    if (row := first_true(~pc.or_(is_true, is_false).to_numpy())) is not None:
        hint = _WORDS_ADVICE if is_text(column.type) and _holds_two_words(column) else ""
        raise CellError(row, f"{name!r} is {column[row].as_py()!r}: {_FLAG_ADVICE}{hint}")
    return is_true.to_numpy()


def match_flags(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray] | None:
    """Return where a column says true, and where it says false; None if its type cannot hold flags."""
    if pa.types.is_boolean(column.type):
        return column, pc.invert(column)
    if is_text(column.type):
        lower_texts = pc.utf8_lower(pc.utf8_trim_whitespace(column))
        return pc.is_in(lower_texts, pa.array(TRUE_TEXTS)), pc.is_in(lower_texts, pa.array(FALSE_TEXTS))
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return pc.equal(column, 1), pc.equal(column, 0)
    return None


def _holds_two_words(column: pa.ChunkedArray) -> bool:
    """Return whether a column of text has no cells but one or two words, such as WAHR and FALSCH."""
    texts = pc.unique(column).to_pylist()
    return len(texts) <= 2 and all(text.strip().isalpha() for text in texts)


def _is_time_limit(info: Any, row: int) -> bool:
    if isinstance(info, str):
        if _TIME_LIMIT_KEY not in info:
            return False
        try:
            info = json.loads(info)
        except ValueError as error:
            raise CellError(row, f"its info is not JSON: {error}") from error
    return isinstance(info, dict) and bool(info.get(_TIME_LIMIT_KEY))


def decode_episode_ids(
    table: pa.Table, plan: TablePlan, *, is_from_hindcast: bool
) -> NDArray[np.object_] | None:
    """Decode the episodes' ids as text, `[R]`; None if there are no ids.

    Unless Hindcast wrote the file, the agent's id is appended after a slash if a row has one.

    Raises:
        CellError: an id is null, or neither text nor an integer.
    """
    source = plan.sources.get(Columns.EPS_ID)
    if source is None:
        return None
    name = source.columns[0]
    column = table.column(name)
    refuse_null(
        column,
        name,
        ": every row requires the id of its episode; write one, or leave such rows out with a `filter` on this column",
    )
    episodes = _decode_texts(column, name)
    agents = None if is_from_hindcast else _decode_ids(table, plan, Columns.AGENT_ID)
    return episodes if agents is None else episodes + np.where(agents == "", "", "/" + agents)


def decode_agents(table: pa.Table, plan: TablePlan) -> dict[str, NDArray[np.object_]]:
    """Decode the ids of the rows' agents and modules as text: `agent_id`, `module_id` -> `[R]`, if rows have them."""
    texts_by_column = {name: _decode_ids(table, plan, name) for name in AGENT_COLUMNS}
    return {name: texts for name, texts in texts_by_column.items() if texts is not None}


def _decode_ids(table: pa.Table, plan: TablePlan, role: str) -> NDArray[np.object_] | None:
    """Decode the ids in the column of agents or modules, `[R]`, "" for rows without an id; None if no row has one."""
    source = plan.sources.get(role)
    if source is None or table.column(source.columns[0]).null_count == len(table):
        return None
    column = table.column(source.columns[0])
    texts = np.full(len(column), "", dtype=object)
    texts[column.is_valid().to_numpy()] = _decode_texts(column.drop_null(), source.columns[0])
    return texts


def decode_timesteps(table: pa.Table, plan: TablePlan) -> Timesteps | None:
    """Decode the timesteps, `[R]`, or the dates or times that order the rows; None without such a column.

    A column of numbers that `input.time` names too orders the rows only.

    Raises:
        CellError: a value is null, or neither an integer nor a time; text must be a time in ISO 8601.
    """
    source = plan.sources.get(Columns.T)
    if source is None:
        return None
    name = source.columns[0]
    column = _as_timestamps(table.column(name), name)
    if _is_date(column.type):
        return column.to_numpy()
    if source == plan.sources.get(Columns.TIME):
        return _to_order(_to_times(column, name)).view("datetime64[ns]")
    return _to_integers(column, name)


def decode_times(table: pa.Table, plan: TablePlan, time: TimeSpec) -> NDArray[Any]:
    """Decode the times of rows, `[R]`: numbers as int64 or float64, dates as datetime64 of micro- or nanoseconds.

    Raises:
        CellError: a value is null or not a finite number, or the unit does not fit the column.
    """
    name = plan.sources[Columns.TIME].columns[0]
    column, unit = _as_timestamps(table.column(name), name), time.unit
    if _is_date(column.type):
        if not isinstance(unit, str):
            units = "Second, Minute, Hour, Day or Week"
            raise CellError(0, f"{name!r} holds dates or times: set time.unit to {units}")
        dates = column.to_numpy()
        # Nanoseconds reach only from 1677 to 2262.
        microseconds = dates.astype("datetime64[us]")
        return microseconds if (microseconds == dates).all() else dates
    if isinstance(unit, str):
        raise CellError(
            0,
            f"{name!r} holds numbers, but time.unit is {unit}: set it to the number that is one unit, such as 24 for "
            "days if the column counts hours",
        )
    return _to_times(column, name)


def times_have_zone(table: pa.Table, plan: TablePlan) -> bool | None:
    """Return whether the times of rows have a zone; None if the rows have no dates or times."""
    for role in (Columns.T, Columns.TIME):
        source = plan.sources.get(role)
        if source is None:
            continue
        # A column has times of one kind, so that its first row shows which.
        first_type = _as_timestamps(table.column(source.columns[0]).slice(0, 1), source.columns[0]).type
        if _is_date(first_type):
            return getattr(first_type, "tz", None) is not None
    return None


def _as_timestamps(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Convert text, durations and times of day to timestamps, and digits to int64; other columns stay as they are."""
    refuse_null(column, name, ": expected a whole number or a time")
    column = decode_dictionary(column)
    if is_text(column.type):
        if pc.all(pc.match_substring_regex(column, _DIGITS)).as_py():
            return pa.chunked_array([_to_integers(column, name)])
        column = _parse_times(column, name)
    if pa.types.is_duration(column.type) or pa.types.is_time(column.type):
        count = column.cast(pa.int32()) if pa.types.is_time32(column.type) else column
        column = count.cast(pa.int64()).cast(pa.timestamp(column.type.unit))
    return column


def _is_date(arrow_type: pa.DataType) -> bool:
    return pa.types.is_timestamp(arrow_type) or pa.types.is_date(arrow_type)


def _to_times(column: pa.ChunkedArray, name: str) -> NDArray[Any]:
    """Convert numbers to int64 or float64, so that their differences are exact."""
    column = decimals_to_numbers(column)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise CellError(0, f"{name!r} is a column of {column.type}: expected numbers, dates or times")
    values = column.to_numpy()
    if (row := first_true(~((values >= -_LATEST_TIME) & (values <= _LATEST_TIME)))) is not None:
        limit = f"between -{_LATEST_TIME:.1e} and {_LATEST_TIME:.1e}"
        raise CellError(
            row, f"{name!r} is {values[row]}: expected a time {limit}; subtract a start from all times"
        )
    return values.astype(np.int64 if values.dtype.kind in "iu" else np.float64)


def _to_order(times: NDArray[Any]) -> I64:
    """Return integers in the order of times; a number has the same integer whether it is stored as integer or float."""
    # As integers, the bits of floats are in the order of the floats, if the lower bits of negative ones are flipped.
    floats = times.astype(np.float64) + 0.0  # -0.0 becomes 0.0
    bits = floats.view(np.int64)
    order = bits ^ ((bits >> 63) & np.iinfo(np.int64).max)
    # Larger numbers are integers, and float64 would round different ones to the same number.
    is_large = np.abs(floats) >= MAX_EXACT_FLOAT
    if is_large.any():
        shift = int(np.float64(MAX_EXACT_FLOAT).view(np.int64)) - int(MAX_EXACT_FLOAT)
        integers = times[is_large].astype(np.int64)
        order[is_large] = np.where(integers > 0, integers + shift, integers - shift - 1)
    return order


def _parse_times(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Parse text as times; times with a zone are converted to UTC."""
    for time_type in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            return column.cast(time_type)
        except pa.ArrowInvalid:
            continue
    texts = column.to_pylist()
    row = next((row for row, text in enumerate(texts) if not _is_time(text)), 0)
    raise CellError(
        row,
        f"{name!r} is {texts[row]!r}: expected a whole number or a time, all with or all without a zone, such as "
        "2026-01-31T08:30:00",
    )


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _decode_texts(column: pa.ChunkedArray, name: str) -> NDArray[np.object_]:
    """Decode ids as text, `[R]`: texts, integers, dates and times, bytes.

    UUIDs (of Arrow's type, or 16 bytes) become hexadecimal digits.
    """
    if getattr(column.type, "extension_name", None) == "arrow.uuid":
        column = unwrap_extension(column)
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        _refuse_inexact_ids(column, name)
        return to_shared_texts(column, lambda value: str(int(value)))
    value_type = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_uuid = pa.types.is_fixed_size_binary(value_type) and value_type.byte_width == _UUID_BYTES
    if is_uuid or is_text(value_type) or pa.types.is_integer(value_type):
        return to_shared_texts(column, bytes.hex if is_uuid else str)
    if pa.types.is_date(value_type) or pa.types.is_timestamp(value_type):
        return to_shared_texts(column, lambda value: value.isoformat())
    if pa.types.is_binary(value_type) or pa.types.is_large_binary(value_type):
        return to_shared_texts(column, lambda value: value.decode(errors="backslashreplace"))
    raise CellError(
        0,
        f"{name!r} is a column of {value_type}: expected text, whole numbers or dates; name another column under "
        "`schema`",
    )


def to_shared_texts(column: pa.ChunkedArray, to_text: Callable[[Any], str]) -> NDArray[np.object_]:
    """Convert each value of a column to text, `[R]`; equal values share one `str` object, which saves memory."""
    is_encoded = pa.types.is_dictionary(column.type)
    dictionary_column = (column if is_encoded else pc.dictionary_encode(column)).combine_chunks()
    texts = np.array([to_text(value) for value in dictionary_column.dictionary.to_pylist()], dtype=object)
    return texts[dictionary_column.indices.to_numpy()]


def _refuse_inexact_ids(column: pa.ChunkedArray, name: str) -> None:
    """Refuse floats and decimals that are not whole, and floats so large that they stand for several whole numbers."""
    _refuse_fractions(column, name)
    if not pa.types.is_floating(column.type):
        return
    values = column.to_numpy()
    limit = 2 ** (np.finfo(values.dtype).nmant + 1)
    if (row := first_true(np.abs(values) >= limit)) is not None:
        raise CellError(
            row,
            f"{name!r} is {int(values[row])}, stored as {values.dtype}, which merges neighbouring ids from {limit} on: "
            "write ids as integers or text",
        )


def _refuse_fractions(column: pa.ChunkedArray, name: str) -> None:
    is_whole = pc.equal(column, pc.floor(column))
    if pa.types.is_floating(column.type):
        is_whole = pc.and_(is_whole, pc.is_finite(column))
    if (row := first_true(~is_whole.to_numpy())) is not None:
        raise CellError(row, f"{name!r} is {column[row].as_py()}: expected a whole number")


def _to_integers(column: pa.ChunkedArray, name: str) -> I64:
    """Convert whole numbers, or texts of digits, to int64.

    Raises:
        CellError: a number is not whole, or beyond int64.
    """
    refuse_null(column, name, ": expected a whole number")
    if is_text(column.type):
        column = pc.replace_substring(pc.utf8_trim_whitespace(column), "+", "")
    elif pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        _refuse_fractions(column, name)
        # Arrow casts float32 to int64 only up to 2²⁴
        column = column.cast(pa.float64()) if pa.types.is_floating(column.type) else column
    elif not pa.types.is_integer(column.type):
        raise CellError(0, f"{name!r} is a column of {column.type}: expected whole numbers")
    try:
        return column.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        numbers = map(int, column.to_pylist())
        row, number = next(item for item in enumerate(numbers) if not _INT64.min <= item[1] <= _INT64.max)
        raise CellError(
            row, f"{name!r} is {number}, which does not fit into int64: subtract a constant from it"
        ) from error
