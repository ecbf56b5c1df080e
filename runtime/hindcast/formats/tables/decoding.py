"""Decoding Arrow tables into `Rows`. Shape suffix: R = rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hindcast.episodes.block import I64, Bool
from hindcast.episodes.columns import Columns, obs_leaf, root
from hindcast.errors import DataError
from hindcast.formats.columns import infos
from hindcast.formats.columns.arrays import Arrays, as_plain_table, decode_leaves, is_text, nulls_to_nan
from hindcast.formats.format import ReadOptions
from hindcast.formats.layout import CellError, RowError, first_true
from hindcast.formats.lossless import (
    describe_rounded,
    find_rounded_row,
    fit_shape,
    parse_numbers,
)
from hindcast.formats.rows import AGENT_COLUMNS, Rows, Timesteps
from hindcast.formats.spec import DataSpec, Leaf, describe_array, describe_lost_digits, loses_digits
from hindcast.formats.tables.episode_rows import StepTable, flatten_episodes
from hindcast.formats.tables.filters import apply_filter
from hindcast.formats.tables.json_lines import parse_json_cells
from hindcast.formats.tables.naming import ROLE_COLUMNS, LeafSource, TablePlan
from hindcast.formats.tables.read_options import separator_advice
from hindcast.formats.tables.roles import (
    decode_agents,
    decode_ends,
    decode_episode_ids,
    decode_times,
    decode_timesteps,
    restore_nulls,
    times_have_zone,
)
from hindcast.formats.tables.struct_fields import add_fields

_MAX_SHOWN_CHARACTERS: Final = 40
_TEXT_ADVICE: Final = (
    "replace each text by a number, such as by `get_dummies` or `astype('category').cat.codes` of pandas, or leave "
    "the column out"
)
_REQUIRED_CELL_ADVICE: Final = "fix it, or remove its episode from the data"
_OBSERVATION_COLUMNS: Final = (Columns.OBS, Columns.NEXT_OBS)
# Columns that are never left out. Without durations, gamma would discount per step instead of per unit of time.
_REQUIRED_COLUMNS: Final = (
    *(Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.REWARDS),
    Columns.DELTA_T,
)


class TableContext(NamedTuple):
    """Description of the file that decoded tables belong to.

    Attributes:
        path: the file, for messages.
        plan: the columns to read.
        spec: spec that Hindcast recorded in the file, without leaves if another tool wrote it; decoded leaves are cast
            to its dtypes and shapes.
        options: options of the user.
    """

    path: str
    plan: TablePlan
    spec: DataSpec
    options: ReadOptions


def decode_rows(table: pa.Table, first_row: int, context: TableContext) -> Rows | None:
    """Decode the timesteps of a table that pass the filter; None if no timestep passes.

    Args:
        table: adjacent rows of the file, with the columns of the plan and of the filter.
        first_row: index of the table's first row in the file.
        context: description of the file.

    Returns:
        The timesteps. If a row of the file holds a whole episode, all its timesteps have the row's index in `row`, and
        without episode ids the episode ends with the row.

    Raises:
        DataError: a cell cannot be read; the error names the file and the row.
    """
    path, plan, spec = context.path, context.plan, context.spec
    with locate_errors(path, range(first_row, first_row + len(table))):
        table = as_plain_table(_add_plan_fields(table, context), _list_id_columns(plan))
        step_table = flatten_episodes(table, plan)
    with locate_errors(path):
        table, row = apply_filter(
            step_table.table if step_table else table, context.options.filter, 0 if step_table else first_row
        )
    if not len(table):
        return None
    table = restore_nulls(table, plan)
    # `step` are indices in `step_table`; `row` are indices in the file, where a row may hold a whole episode.
    step = row
    if step_table is not None:
        row = first_row + step_table.row[step]
    with locate_errors(path, row):
        terminated, truncated, is_obs_only = decode_ends(table, plan)
        if step_table is not None:
            terminated, truncated = _clear_inner_ends(terminated, truncated, step_table, step)
            if Columns.EPS_ID not in plan.sources:
                truncated |= step_table.is_last[step] & ~terminated
            if step_table.is_obs_only is not None:
                is_obs_only = step_table.is_obs_only[step]
        table, next_missing = _fill_next_observations(table, plan)
        columns, left_out = _decode_columns(table, context, row)
        columns = _parse_rewards(columns, context.options)
        _check_durations(columns)
        is_from_hindcast = bool(spec.leaves)  # then the details in the infos name agent and module
        columns |= {} if is_from_hindcast else decode_agents(table, plan)
        if (time := context.options.time) is not None:
            columns[Columns.TIME] = decode_times(table, plan, time)
        texts = _decode_infos(table, context)
        columns |= {} if texts is None else {Columns.INFOS: texts}
        return Rows(
            columns=columns,
            terminated=terminated,
            truncated=truncated,
            next_missing=next_missing,
            path=path,
            row=row,
            eps_id=decode_episode_ids(table, plan, is_from_hindcast=is_from_hindcast),
            t=_decode_distinct_timesteps(table, plan, is_obs_only),
            is_obs_only=is_obs_only,
            left_out=left_out,
            names=plan.names,
            has_zone=times_have_zone(table, plan),
        )


def _add_plan_fields(table: pa.Table, context: TableContext) -> pa.Table:
    """Add the fields of structs that the plan reads, without the structs, unless a filter needs them."""
    plan = context.plan
    if not plan.fields:
        return table
    names = {name for source in plan.sources.values() for name in source.columns}
    names |= {term.column for term in context.options.filter}
    structs = {path[0] for path in plan.fields.values()} - names
    return add_fields(table, plan.fields).drop_columns(list(structs))


def _list_id_columns(plan: TablePlan) -> list[str]:
    """Return the source columns of ids and times, in which whole numbers of any size are exact."""
    sources = [
        plan.sources[role] for role in (Columns.EPS_ID, Columns.T, *AGENT_COLUMNS) if role in plan.sources
    ]
    return [name for source in sources for name in source.columns]


def _clear_inner_ends(
    terminated: Bool, truncated: Bool, step_table: StepTable, step: I64
) -> tuple[Bool, Bool]:
    """Clear the end flags of timesteps that do not end their episode, for rows that hold whole episodes.

    Args:
        terminated: `[R]` flags as decoded: a single flag of a row is repeated at all its timesteps, and the last flag
            of a list is repeated at an observation after the last step.
        truncated: `[R]` as `terminated`.
        step_table: all timesteps.
        step: `[R]` indices of the timesteps.
    """
    is_allowed = np.ones(len(step), dtype=np.bool_)
    if step_table.has_end_flags:
        is_allowed &= step_table.is_last[step]
    if step_table.is_obs_only is not None:
        is_allowed &= ~np.append(step_table.is_obs_only[1:], False)[step]
    return terminated & is_allowed, truncated & is_allowed


def _decode_columns(table: pa.Table, context: TableContext, row: I64) -> tuple[Arrays, dict[str, str]]:
    """Decode all columns except roles and infos.

    Args:
        table: the rows.
        context: description of the file.
        row: `[R]` indices of the rows in the file, for messages.

    Returns:
        The columns, and those that are left out with the reason of each (see `Rows.left_out`).
    """
    columns: Arrays = {}
    left_out: dict[str, str] = {}
    for name, source in context.plan.sources.items():
        is_empty = all(pa.types.is_null(table.schema.field(column).type) for column in source.columns)
        if name in (*ROLE_COLUMNS, Columns.INFOS) or is_empty:
            continue
        try:
            columns.update(cast_to_spec(_decode_source(table, name, source, context), context.spec))
        except (CellError, DataError) as error:
            if not _can_leave_out(name, context):
                raise
            row_text = f", row {row[error.row]}" if isinstance(error, CellError) else ""
            left_out[name] = f"{context.path}{row_text}: {error}"
    return fit_next_observations(columns), left_out


def _decode_distinct_timesteps(
    table: pa.Table, plan: TablePlan, is_obs_only: Bool | None
) -> Timesteps | None:
    """Decode the timesteps. A row with only an observation may repeat the last step's timestep, so 1 is added there."""
    t = decode_timesteps(table, plan)
    if t is None or is_obs_only is None or plan.last_column is not None:
        return t
    return t + is_obs_only.astype(np.int64)


@contextmanager
def locate_errors(path: str, row: Sequence[int] | I64 = ()) -> Iterator[None]:
    """Add the path of the file to errors in a `with` block, and the row to a `CellError`.

    Args:
        path: path of the file.
        row: `[R]` indices of the decoded rows in the file; without them a `CellError`'s row is taken as the index.
    """
    try:
        yield
    except CellError as error:
        row_index = int(row[error.row]) if error.row < len(row) else error.row
        raise RowError(str(error), path=path, row=row_index) from error
    except DataError as error:
        error.locate(path=path)
        raise


def _decode_source(table: pa.Table, name: str, source: LeafSource, context: TableContext) -> Arrays:
    if source.shape is not None:
        return {name: _assemble_vector(table, name, source, context)}
    source_name = source.columns[0]
    column, field = table.column(source_name), table.schema.field(source_name)
    if is_text(column.type) and column.null_count == 0:
        known_leaf, packed_columns = context.spec.leaves.get(obs_leaf(name)), context.options.compress_columns
        is_never_packed = packed_columns is not None and obs_leaf(root(name)) not in map(
            obs_leaf, packed_columns
        )
        if is_never_packed or (known_leaf is not None and known_leaf.kind == "text"):
            return {name: np.array(column.to_pylist(), dtype=object)}
        json_column = parse_json_cells(column, source_name)
        if json_column is not None:
            column, field = json_column, pa.field(source_name, json_column.type)
    if _can_miss_values(name, context):
        column = nulls_to_nan(column)
        field = field.with_type(column.type)
    try:
        return decode_leaves(column, field, name)
    except CellError as error:
        if _can_leave_out(name, context):
            raise
        raise CellError(error.row, f"{error}; {_REQUIRED_CELL_ADVICE}") from error


def _can_leave_out(name: str, context: TableContext) -> bool:
    """Return True if a column that cannot be read may be left out: neither training, user nor spec requires it."""
    requested_names = {*(context.options.columns or ()), *context.options.schema}
    return not ({name, root(name)} & {*_REQUIRED_COLUMNS, *requested_names} or context.spec.leaves)


def _can_miss_values(name: str, context: TableContext) -> bool:
    """Return whether nulls are missing values, NaN. Hindcast writes no nulls: in its own files they are damage."""
    return root(name) in _OBSERVATION_COLUMNS and not context.spec.leaves


def _assemble_vector(table: pa.Table, name: str, source: LeafSource, context: TableContext) -> NDArray[Any]:
    arrays = []
    for source_name in source.columns:
        column, field = table.column(source_name), table.schema.field(source_name)
        if _can_miss_values(name, context):
            column = nulls_to_nan(column)
            field = field.with_type(column.type)
        (array,) = decode_leaves(column, field, source_name).values()
        if array.dtype == object:
            reason = f", because it is a part of {name!r}"
            array = _parse_numbers(array, source_name, reason, _TEXT_ADVICE, context.options)
        if array.ndim != 1:
            raise CellError(0, f"{source_name!r} is a part of {name!r}, so it must be a column of numbers")
        arrays.append(array)
    dtype = np.result_type(*arrays)
    for source_name, array in zip(source.columns, arrays, strict=True):
        _refuse_rounding(array, dtype, source_name)
    return np.stack(arrays, axis=1).reshape(len(table), *(source.shape or ()))


def _refuse_rounding(array: NDArray[Any], dtype: np.dtype, name: str) -> None:
    row = find_rounded_row(array, dtype)
    if row is not None:
        raise CellError(row, describe_rounded(name, array[row], dtype))


def _parse_numbers(
    texts: NDArray[np.object_], source_name: str, reason: str, advice: str, options: ReadOptions
) -> NDArray[Any]:
    """Convert texts to float64; some tools write decimals and integers of 64 bits as text in JSON.

    Raises:
        CellError: a text is not a number, or float64 would round it.
    """
    numbers, is_wrong = parse_numbers(texts)
    row = first_true(is_wrong)
    if row is None:
        return numbers
    text = str(texts[row])[:_MAX_SHOWN_CHARACTERS]
    advice = separator_advice(text, options) or f"; {advice}"
    expected = "a number that float64 does not round" if text.strip(" +-").isdigit() else "a number"
    raise CellError(row, f"{source_name!r} is {text!r}: expected {expected}{reason}{advice}")


def _parse_rewards(columns: Arrays, options: ReadOptions) -> Arrays:
    """Return the columns with numbers for rewards that are texts of numbers."""
    return {
        name: _parse_numbers(column, name, "", "replace each text by a number", options)
        if root(name) == Columns.REWARDS and column.dtype == object
        else column
        for name, column in columns.items()
    }


def _check_durations(columns: Arrays) -> None:
    durations = columns.get(Columns.DELTA_T)
    if durations is None or durations.dtype.kind not in "iuf" or durations.ndim > 1:
        return
    if (row := first_true(durations < 0)) is not None:
        raise CellError(
            row,
            f"{Columns.DELTA_T!r} is {durations[row]}: expected a duration of 0 or more; correct it, or rename the "
            "column if it is not the duration of a step",
        )


def _decode_infos(table: pa.Table, context: TableContext) -> NDArray[np.object_] | None:
    """Decode the infos into `[R]` JSON texts.

    Returns:
        The texts. In files of Hindcast a missing column means that all infos are empty; in other files the result is
        None if the column is missing or all infos are empty. None also if the infos are not to be read.
    """
    source, columns = context.plan.sources.get(Columns.INFOS), context.options.columns
    is_from_hindcast = Columns.INFOS in context.spec.leaves
    if source is None:
        is_requested = is_from_hindcast and (columns is None or Columns.INFOS in columns)
        return np.full(len(table), "", dtype=object) if is_requested else None
    column = table.column(source.columns[0])
    if not is_text(column.type):
        texts = infos.encode_infos(column)
    else:
        texts = np.array(column.fill_null("").to_pylist(), dtype=object)
        if not is_from_hindcast:  # Hindcast's own infos are known to be JSON
            infos.check_infos(texts)
    return texts if is_from_hindcast or texts.any() else None


def fit_next_observations(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Give next observations the shapes and dtypes of the observations; if their dtypes differ, both get the wider one.

    Raises:
        DataError: the leaves differ, or their shapes or kinds (numbers or text).
    """
    next_leaves = {name: column for name, column in columns.items() if root(name) == Columns.NEXT_OBS}
    if not next_leaves:
        return columns
    current_leaves = {name: column for name, column in columns.items() if root(name) == Columns.OBS}
    if {obs_leaf(name) for name in next_leaves} != current_leaves.keys():
        raise DataError(
            f"the leaves {sorted(next_leaves)} do not match {sorted(current_leaves)}: new_obs requires the same "
            "leaves as obs"
        )
    fitted_leaves: dict[str, NDArray[Any]] = {}
    for name, column in next_leaves.items():
        current = current_leaves[obs_leaf(name)]
        fitted_column = fit_shape(column, current.shape[1:])
        if fitted_column is None or (fitted_column.dtype == object) != (current.dtype == object):
            raise DataError(
                f"{name!r} is {describe_array(column)} and {obs_leaf(name)!r} is "
                f"{describe_array(current)}: both must be the same"
            )
        if fitted_column.dtype != current.dtype:
            if loses_digits(fitted_column.dtype, current.dtype):
                raise DataError(describe_lost_digits(obs_leaf(name), current.dtype, fitted_column.dtype))
            dtype = np.result_type(fitted_column, current)
            for array in (current, fitted_column):
                _refuse_rounding(array, dtype, obs_leaf(name))
            fitted_column, fitted_leaves[obs_leaf(name)] = fitted_column.astype(dtype), current.astype(dtype)
        fitted_leaves[name] = fitted_column
    return columns | fitted_leaves


def cast_to_spec(leaves: Arrays, spec: DataSpec) -> Arrays:
    """Cast leaves to the dtypes and shapes of the file's spec; leaves that the spec lacks stay as they are.

    Raises:
        CellError: a leaf has text instead of numbers, or another number of elements.
    """
    return {
        name: _cast_to_leaf(name, array, spec.leaves.get(obs_leaf(name))) for name, array in leaves.items()
    }


def _cast_to_leaf(name: str, array: NDArray[Any], leaf: Leaf | None) -> NDArray[Any]:
    if leaf is None or leaf.dtype is None:
        return array
    if array.dtype == object:
        raise CellError(0, f"{name!r} is text: expected {leaf}")
    if leaf.dtype.kind == "c" and array.dtype.kind != "c" and array.shape[-1:] == (2,):
        real_dtype = np.dtype(f"<f{leaf.dtype.itemsize // 2}")
        array = np.ascontiguousarray(array, dtype=real_dtype).view(leaf.dtype)
    expected_shape = (len(array), *leaf.shape)
    if array.size != np.prod(expected_shape, dtype=np.int64):
        raise CellError(0, f"{name!r} is {describe_array(array)}: expected {leaf}")
    return array.astype(leaf.dtype, copy=False).reshape(expected_shape)


def _fill_next_observations(table: pa.Table, plan: TablePlan) -> tuple[pa.Table, Bool]:
    """Replace next observations that are null by the observations of the same rows, so that they can be decoded.

    If only some columns of a next observation are null, these values are missing, and stay null.

    Returns:
        The table, and `[R]` whether a next observation was null.

    Raises:
        CellError: two columns that belong together have different types.
    """
    column_pairs = [
        pair
        for name, source in plan.sources.items()
        if root(name) == Columns.NEXT_OBS
        and (current_source := plan.sources.get(obs_leaf(name))) is not None
        and len(current_source.columns) == len(source.columns)
        for pair in zip(source.columns, current_source.columns, strict=True)
        if not pa.types.is_null(table.schema.field(pair[0]).type)
    ]
    if not column_pairs or not all(table.column(next_name).null_count for next_name, _ in column_pairs):
        return table, np.zeros(len(table), dtype=np.bool_)
    is_missing = np.logical_and.reduce(
        [table.column(next_name).is_null().to_numpy() for next_name, _ in column_pairs]
    )
    for next_name, current_name in column_pairs:
        column, current = table.column(next_name), table.column(current_name)
        if current.type != column.type:
            column, current = _cast_to_common_type(column, current, next_name, current_name)
        # take() chooses from the next observations followed by the current ones
        candidates = pa.chunked_array([*column.chunks, *current.chunks], column.type)
        rows = np.arange(len(table)) + np.where(is_missing, len(table), 0)
        position = table.column_names.index(next_name)
        field = table.schema.field(next_name).with_type(column.type)
        table = table.set_column(position, field, candidates.take(pa.array(rows)))
    return table, is_missing


def _cast_to_common_type(
    column: pa.ChunkedArray, current: pa.ChunkedArray, name: str, current_name: str
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Cast one of two columns to the other's type, without changing a value."""
    for cast in (
        lambda: (column, current.cast(column.type)),
        lambda: (column.cast(current.type), current),
    ):
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return cast()
    raise CellError(
        0, f"{name!r} has type {column.type} and {current_name!r} has {current.type}: expected one type"
    )
