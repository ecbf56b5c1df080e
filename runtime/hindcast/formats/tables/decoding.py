"""Tables of Arrow as `Rows`. Shape suffix: R = rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hindcast.episodes.block import I64, Bool
from hindcast.episodes.columns import Columns, obs_leaf, root
from hindcast.errors import DataError
from hindcast.formats.columns import infos
from hindcast.formats.columns.arrays import Arrays, decode_leaves, is_text
from hindcast.formats.format import ReadOptions
from hindcast.formats.layout import LEAVE_OUT_ADVICE, CellError, RowError
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec, Leaf, describe_array
from hindcast.formats.tables.episode_rows import flatten_episodes
from hindcast.formats.tables.filters import apply_filter
from hindcast.formats.tables.json_lines import parse_json_cells
from hindcast.formats.tables.naming import ROLE_COLUMNS, LeafSource, TablePlan
from hindcast.formats.tables.roles import decode_actors, decode_ends, decode_episode_ids, decode_timesteps

_NUMBER: Final = re.compile(
    r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*|\s*[+-]?(nan|inf|infinity)\s*", re.I
)
_FILL: Final = "fix it, or remove its episode from the data"
_OWN: Final = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.REWARDS)


class TableReader(NamedTuple):
    """How the tables of one file become `Rows`.

    Attributes:
        path: the file, for sentences.
        plan: which columns are which.
        spec: of leaves that the file describes, which are converted to its dtypes and shapes.
        options: of the user.
    """

    path: str
    plan: TablePlan
    spec: DataSpec
    options: ReadOptions


def decode_rows(table: pa.Table, first: int, reader: TableReader) -> Rows | None:
    """A table's timesteps that pass the filter; None if none does.

    Args:
        table: adjacent rows of the file, with the columns of the plan and of the filter.
        first: number of the table's first row.
        reader: of the file.

    Returns:
        The timesteps. Where a row of the file is a whole episode, they all have its number; without episode ids, they
        end with it.

    Raises:
        DataError: cells that cannot be read, with file and row.
    """
    path, plan, spec = reader.path, reader.plan, reader.spec
    with locate_errors(path, range(first, first + len(table))):
        steps = flatten_episodes(table, plan)
    with locate_errors(path):
        table, row = apply_filter(
            steps.table if steps else table, reader.options.filter, 0 if steps else first
        )
    if not len(table):
        return None
    is_last = None
    if steps is not None:
        is_last, row = steps.is_last[row], first + steps.row[row]
    with locate_errors(path, row):
        terminated, truncated = decode_ends(table, plan)
        if is_last is not None and Columns.EPS_ID not in plan.sources:
            truncated |= is_last & ~terminated
        table, next_missing = _filled(table, plan)
        columns: dict[str, NDArray[Any]] = {}
        for name, source in plan.sources.items():
            is_empty = pa.types.is_null(table.schema.field(source.columns[0]).type)
            if name not in (*ROLE_COLUMNS, Columns.INFOS) and not is_empty:
                columns.update(cast_to_spec(_leaves(table, name, source, reader), spec))
        check_next_observations(columns)
        if next_missing.any():
            _set_to_zero(columns, next_missing)
        _check_rewards(columns)
        is_ours = bool(spec.leaves)  # whose infos say who acted
        columns |= {} if is_ours else decode_actors(table, plan)
        texts = _infos(table, reader)
        columns |= {} if texts is None else {Columns.INFOS: texts}
        return Rows(
            columns=columns,
            terminated=terminated,
            truncated=truncated,
            next_missing=next_missing,
            path=path,
            row=row,
            eps_id=decode_episode_ids(table, plan, is_ours=is_ours),
            t=decode_timesteps(table, plan),
        )


@contextmanager
def locate_errors(path: str, row: Sequence[int] | I64 = ()) -> Iterator[None]:
    """Name the file in errors, and the row in those about a cell.

    Args:
        path: the file.
        row: `[R]` the numbers in the file of the rows that are read; not needed where errors name no cell.
    """
    try:
        yield
    except CellError as error:
        number = int(row[error.row]) if error.row < len(row) else error.row
        raise RowError(f"{path}, row {number}: {error}", number) from error
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _leaves(table: pa.Table, name: str, source: LeafSource, reader: TableReader) -> Arrays:
    if source.shape is not None:
        return {name: _assembled(table, name, source, source.shape)}
    own = source.columns[0]
    column, field = table.column(own), table.schema.field(own)
    if is_text(column.type) and column.null_count == 0:
        known, packed = reader.spec.leaves.get(obs_leaf(name)), reader.options.compress_columns
        is_plain = packed is not None and obs_leaf(root(name)) not in map(obs_leaf, packed)
        if is_plain or (known is not None and known.kind == "text"):
            return {name: np.array(column.to_pylist(), dtype=object)}
        parsed = parse_json_cells(column, own)
        if parsed is not None:
            column, field = parsed, pa.field(own, parsed.type)
    try:
        return decode_leaves(column, field, name)
    except CellError as error:
        way_out = _FILL if root(name) in _OWN else LEAVE_OUT_ADVICE
        raise CellError(error.row, f"{error}; {way_out}") from error
    except DataError as error:
        if root(name) in _OWN:
            raise
        raise DataError(f"{error}; {LEAVE_OUT_ADVICE}") from error


def _assembled(table: pa.Table, name: str, source: LeafSource, shape: tuple[int, ...]) -> NDArray[Any]:
    parts = []
    for own in source.columns:
        (part,) = decode_leaves(table.column(own), table.schema.field(own), own).values()
        if part.dtype == object:
            raise _no_number(part, own, name)
        if part.ndim != 1:
            raise CellError(0, f"{own!r} is not a column of numbers, as a part of {name!r} must be")
        parts.append(part)
    return np.stack(parts, axis=1).reshape(len(table), *shape)


def _no_number(texts: NDArray[np.object_], own: str, name: str) -> CellError:
    """The error for text that should be numbers, at the first cell that is not one."""
    row = next((row for row, text in enumerate(texts) if not _NUMBER.fullmatch(text)), 0)
    return CellError(row, f"{own!r} is {texts[row]!r}: expected a number, as a part of {name!r} must be")


def _check_rewards(columns: Arrays) -> None:
    for name, column in columns.items():
        if root(name) == Columns.REWARDS and column.dtype == object:
            raise CellError(
                0, f"{name!r} is text, such as {str(column[0])[:40]!r}: make it a column of numbers"
            )


def _infos(table: pa.Table, reader: TableReader) -> NDArray[np.object_] | None:
    """`[R]` JSON texts; None if there is no such column, or if it is empty and not from Hindcast."""
    source, wanted = reader.plan.sources.get(Columns.INFOS), reader.options.columns
    is_ours = Columns.INFOS in reader.spec.leaves
    if source is None:
        is_silent = is_ours and (wanted is None or Columns.INFOS in wanted)
        return np.full(len(table), "", dtype=object) if is_silent else None
    column = table.column(source.columns[0])
    if not is_text(column.type):
        texts = infos.encode_infos(column)
    else:
        texts = np.array(column.fill_null("").to_pylist(), dtype=object)
        if not is_ours:
            infos.check_infos(texts)
    return texts if is_ours or texts.any() else None


def check_next_observations(columns: dict[str, NDArray[Any]]) -> None:
    """Make sure that observations after a step have the dtype and shape of those before it."""
    following = {name: column for name, column in columns.items() if root(name) == Columns.NEXT_OBS}
    if not following:
        return
    now = {name: column for name, column in columns.items() if root(name) == Columns.OBS}
    if {obs_leaf(name) for name in following} != now.keys():
        raise DataError(f"the leaves {sorted(following)} are not those of {sorted(now)}")
    for name, column in following.items():
        other = now[obs_leaf(name)]
        if (column.dtype, column.shape) != (other.dtype, other.shape):
            raise DataError(
                f"{name!r} is {describe_array(column)} and {obs_leaf(name)!r} is "
                f"{describe_array(other)}: both must be the same"
            )


def cast_to_spec(leaves: Arrays, spec: DataSpec) -> Arrays:
    """The leaves in the dtype and shape of the file's own description."""
    return {name: _as_leaf(name, array, spec.leaves.get(obs_leaf(name))) for name, array in leaves.items()}


def _as_leaf(name: str, array: NDArray[Any], leaf: Leaf | None) -> NDArray[Any]:
    if leaf is None or leaf.dtype is None:
        return array
    if array.dtype == object:
        raise CellError(0, f"{name!r} is text: expected {leaf}")
    if leaf.dtype.kind == "c" and array.dtype.kind != "c" and array.shape[-1:] == (2,):
        half = np.dtype(f"<f{leaf.dtype.itemsize // 2}")
        array = np.ascontiguousarray(array, dtype=half).view(leaf.dtype)
    wanted = (len(array), *leaf.shape)
    if array.size != np.prod(wanted, dtype=np.int64):
        raise CellError(0, f"{name!r} is {describe_array(array)}: expected {leaf}")
    return array.astype(leaf.dtype, copy=False).reshape(wanted)


def _filled(table: pa.Table, plan: TablePlan) -> tuple[pa.Table, Bool]:
    """The table with the rows' own observations in place of next ones that are null, and which rows those are.

    Raises:
        CellError: both are of different types.
    """
    missing = np.zeros(len(table), dtype=np.bool_)
    for name, source in plan.sources.items():
        now = plan.sources.get(obs_leaf(name))
        if root(name) != Columns.NEXT_OBS or now is None or len(now.columns) != len(source.columns):
            continue
        for then, own in zip(source.columns, now.columns, strict=True):
            column = table.column(then)
            if not column.null_count or pa.types.is_null(column.type):
                continue
            null = column.is_null().to_numpy()
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


def _set_to_zero(columns: Arrays, missing: Bool) -> None:
    """Zeros for next observations that are missing, in place of the observations that stand for them."""
    for name, column in columns.items():
        if root(name) == Columns.NEXT_OBS:
            columns[name] = np.array(column)
            columns[name][missing] = "" if column.dtype == object else 0
