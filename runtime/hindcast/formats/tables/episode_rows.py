"""Tables with whole episodes as rows: their cells are lists with one item per timestep.

Shape suffixes: E = rows of such a table, R = timesteps.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.episodes.block import I64, Bool
from hindcast.episodes.columns import Columns, root
from hindcast.formats.columns.arrays import decode_dictionary
from hindcast.formats.layout import LEAVE_OUT_ADVICE, CellError, first_true, refuse_null
from hindcast.formats.tables.naming import LeafSource, TablePlan
from hindcast.formats.tables.roles import match_flags
from hindcast.formatting import plural

_SINGLE_VALUE_COLUMNS: Final = (Columns.REWARDS, Columns.T, Columns.TERMINATEDS, Columns.TRUNCATEDS)
"""Columns with a single value per timestep: a list in them is a whole episode, while other lists may be vectors."""
_MAX_COMPARED_ROWS: Final = 16
_MAX_COMPARED_ITEMS: Final = 16
_FLAGS: Final = (Columns.TERMINATEDS, Columns.TRUNCATEDS)


class StepTable(NamedTuple):
    """Timesteps of whole episodes.

    Attributes:
        table: one row for each timestep.
        row: `[R]` index of the row that holds the timestep's episode.
        is_last: `[R]` whether the timestep is the last one of its row.
        is_obs_only: `[R]` whether the timestep is only the observation after the episode's last step; None if the
            episodes have as many observations as steps.
        has_end_flags: whether a row has a single flag, which holds for the end of its episode.
    """

    table: pa.Table
    row: I64
    is_last: Bool
    is_obs_only: Bool | None
    has_end_flags: bool


def flatten_episodes(table: pa.Table, plan: TablePlan) -> StepTable | None:
    """Flatten a table of whole episodes into timesteps; None if its rows are timesteps.

    In a column without lists, a value applies to all timesteps of its row. There may be one observation more than there
    are steps.

    Raises:
        CellError: a list is null, or differs in length from the other lists of its row.
    """
    episode_lists = _find_episode_lists(table, plan)
    if episode_lists is None:
        return None
    lengths, reference_name, has_end_flags = episode_lists
    obs_columns = [
        name for leaf, source in plan.sources.items() if root(leaf) == Columns.OBS for name in source.columns
    ]
    has_final_obs = bool(obs_columns) and all(
        _has_one_more(table.column(name), lengths) for name in obs_columns
    )
    if not has_final_obs:
        _refuse_ends_within_rows(table, plan, lengths)
    num_rows = lengths + 1 if has_final_obs else lengths
    row = np.repeat(np.arange(len(table)), num_rows)
    step = np.arange(len(row)) - np.repeat(np.cumsum(num_rows) - num_rows, num_rows)
    # An episode without steps has no last step to which its observation could belong.
    is_row_kept = np.repeat(lengths > 0, num_rows)
    row, step = row[is_row_kept], step[is_row_kept]
    columns = {}
    for name in table.column_names:
        column = table.column(name)
        if not _is_list(column.type):
            columns[name] = column.take(pa.array(row))
            continue
        expected_lengths = lengths
        if has_final_obs and _has_one_more(column, lengths):
            expected_lengths = num_rows
        else:
            _check_lengths(column, name, lengths, reference_name)
        starts = np.cumsum(expected_lengths) - expected_lengths
        index = starts[row] + np.minimum(step, expected_lengths[row] - 1)
        values = pc.list_flatten(column)
        columns[name] = values if len(values) == len(index) else values.take(pa.array(index))
    return StepTable(
        pa.table(columns),
        row,
        step == num_rows[row] - 1,
        step == lengths[row] if has_final_obs else None,
        has_end_flags,
    )


class _EpisodeLists(NamedTuple):
    """The lists of a table of whole episodes.

    Attributes:
        lengths: `[E]` number of steps of each episode.
        reference_name: name of the column that determines the lengths, for messages.
        has_end_flags: see `StepTable`.
    """

    lengths: I64
    reference_name: str
    has_end_flags: bool


def _find_episode_lists(table: pa.Table, plan: TablePlan) -> _EpisodeLists | None:
    """Find the lists of a table of whole episodes; None if its rows are timesteps.

    Rows are episodes if the actions, and all columns with a single value per timestep, are lists. Flags may instead be
    one value for the end of the episode. If all lists have one item, rows are timesteps where a flag is one value, and
    also where flags are lists and there are neither ids nor timesteps.

    Raises:
        CellError: a list is null, or a row is one step of several environments.
    """
    single_value_columns = [name for name in _SINGLE_VALUE_COLUMNS if name in plan.sources]
    list_columns = [
        name for name in single_value_columns if _is_list(table.column(plan.sources[name].columns[0]).type)
    ]
    actions = plan.sources.get(Columns.ACTIONS, LeafSource(()))
    if not list_columns or not all(_is_list(table.column(name).type) for name in actions.columns):
        return None
    has_end_flags = list_columns != single_value_columns
    if not set(single_value_columns) - set(list_columns) <= set(_FLAGS):
        return None
    reference_name = plan.sources[list_columns[0]].columns[0]
    reference = table.column(reference_name)
    refuse_null(reference, reference_name, ": expected a list")
    lengths = pc.list_value_length(reference).to_numpy().astype(np.int64)
    if (lengths == 1).all() and (has_end_flags or _are_steps_of_one_environment(list_columns, plan)):
        return None
    if _are_steps_of_environments(table, plan, lengths):
        raise CellError(
            0,
            f"its lists hold one step of {lengths[0]} environments, not an episode, because the next row continues "
            "each of their items: write a row for each step of an environment, with pandas "
            f"{_explode_environments(table, lengths[0])}",
        )
    return _EpisodeLists(lengths, reference_name, has_end_flags)


def _are_steps_of_one_environment(list_columns: Collection[str], plan: TablePlan) -> bool:
    """Return whether rows with lists of one item are steps, as a vector environment of one environment logs them.

    Only flags tell such steps from episodes of one step. With ids or timesteps, both are read in the same way.
    """
    return not {Columns.EPS_ID, Columns.T} & plan.sources.keys() and not {*_FLAGS}.isdisjoint(list_columns)


def _are_steps_of_environments(table: pa.Table, plan: TablePlan, lengths: I64) -> bool:
    """Return whether observations go on from row to row instead of within a row, as a vector environment logs them."""
    if len(lengths) < 2 or lengths[0] < 2 or (lengths != lengths[0]).any():
        return False
    sources = [plan.sources.get(name) for name in (Columns.OBS, Columns.NEXT_OBS)]
    columns = [table.column(source.columns[0]) for source in sources if source is not None]
    if len(columns) < 2 or not all(_is_list(column.type) for column in columns):
        return False
    obs, new_obs = ([row.values for row in column.slice(0, _MAX_COMPARED_ROWS)] for column in columns)
    if any(row is None or len(row) != lengths[0] for row in (*obs, *new_obs)):
        return False
    num_items = min(int(lengths[0]) - 1, _MAX_COMPARED_ITEMS)
    pairs = [(row, item) for row in range(len(obs) - 1) for item in range(num_items)]
    num_across = sum(new_obs[row].slice(item, 1).equals(obs[row + 1].slice(item, 1)) for row, item in pairs)
    num_within = sum(new_obs[row].slice(item, 1).equals(obs[row].slice(item + 1, 1)) for row, item in pairs)
    return num_across > len(pairs) / 2 > num_within


def _refuse_ends_within_rows(table: pa.Table, plan: TablePlan, lengths: I64) -> None:
    """Refuse lists of one length in which flags end episodes before the last item, if nothing says what they are.

    Raises:
        CellError: a row is a step of several environments, or a rollout with several episodes.
    """
    if len(lengths) < 2 or lengths[0] < 2 or (lengths != lengths[0]).any():
        return
    if not plan.sources.keys().isdisjoint((Columns.EPS_ID, Columns.T, Columns.NEXT_OBS)):
        return
    for flag in _FLAGS:
        name = plan.sources[flag].columns[0] if flag in plan.sources else None
        if name is None or not _is_list(table.column(name).type):
            continue
        flags = match_flags(decode_dictionary(pc.list_flatten(table.column(name))))
        if flags is None or len(flags[0]) != lengths.sum():
            continue
        is_end = np.asarray(pc.fill_null(flags[0], False)).reshape(len(lengths), -1)[:, :-1]
        if (row := first_true(np.asarray(is_end.any(1)))) is not None:
            raise CellError(
                row,
                f"{name!r} ends an episode at item {int(is_end[row].argmax())} of {lengths[row]}, so the row is no "
                f"episode: if each row is one step of {lengths[row]} environments, write a row for each step of an "
                f"environment, with pandas {_explode_environments(table, lengths[row])}; if it holds {lengths[row]} "
                f"steps of one environment, {_explode(table)}",
            )


def _explode_environments(table: pa.Table, num_environments: int) -> str:
    """Return Python that turns a frame with steps of environments into the steps of one environment after another."""
    numbers = f"frame.assign(eps_id=[range({num_environments})] * len(frame))"
    return f"{_explode(table, 'eps_id').replace('frame', numbers, 1)}.sort_values('eps_id', kind='stable')"


def _explode(table: pa.Table, *other_columns: str) -> str:
    """Return Python that makes a row of each item of a frame's lists."""
    list_columns = [field.name for field in table.schema if _is_list(field.type)]
    return f"frame.explode({[*list_columns, *other_columns]})"


def _has_one_more(column: pa.ChunkedArray, lengths: I64) -> bool:
    """Return whether each row of a column is a list with one item more than there are steps."""
    if not _is_list(column.type) or column.null_count:
        return False
    return bool((pc.list_value_length(column).to_numpy() == lengths + 1).all()) and bool(len(lengths))


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
