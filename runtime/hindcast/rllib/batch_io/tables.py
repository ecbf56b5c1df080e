"""Tables in memory as input of a config: data frames, Arrow tables, rows, and dictionaries of columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from hindcast.episodes.columns import Columns
from hindcast.errors import SpecError
from hindcast.formats.tables.naming import ALIASES
from hindcast.formatting import describe_type
from hindcast.rllib.batch_io.arrow_columns import columns_to_table, frame_to_table, to_array
from hindcast.rllib.batch_io.table_input import TableInput

_REMEDY_BY_METHOD: Final = {
    "collect": ".collect()",  # a lazy frame of Polars
    "to_arrow_table": ".to_arrow_table()",  # a relation of DuckDB
    "to_table": ".to_table()",  # a dataset of PyArrow or Lance
    "to_pandas": ".to_pandas()",  # a dataset of Ray Data or Hugging Face
    "toPandas": ".toPandas()",  # a data frame of Spark
    "compute": ".compute()",  # a data frame of Dask
}
"""Method of an object that holds a table elsewhere -> the call that loads the table."""
_SCALAR_ROLES: Final = (Columns.REWARDS, Columns.T, Columns.TERMINATEDS, Columns.TRUNCATEDS)
_SCALAR_NAMES: Final = frozenset(name for role in _SCALAR_ROLES for name in (role, *ALIASES[role]))
"""Names of columns with one number per timestep: an array of them is a column, not a vector in one row."""
_STACK_EXAMPLE: Final = (
    "{'obs': np.stack([row['obs'] for row in rows]), 'actions': np.stack([row['actions'] for row in rows])}"
)
_ROW_EXAMPLE: Final = "{'obs': [0.1, 0.2], 'actions': 1, 'rewards': 1.0}"


def wrap_tables(inputs: Any) -> Any:
    """Return `input_` with a `TableInput` for each table in memory.

    Args:
        inputs: a table or another entry of `input_`, or a list of them. A table is a pandas or Polars data frame, a
            PyArrow table, a structured array, a dictionary of column name -> values `[n, ...]`, or a list of rows, each
            a dictionary. A row may be a whole episode, with n + 1 observations.

    Raises:
        SpecError: a table's columns cannot be stored, or an object holds a table in a form that is not read.
    """
    if isinstance(inputs, list | tuple):
        return _wrap_list(inputs)
    if hasattr(inputs, "__arrow_c_stream__") or hasattr(inputs, "__dataframe__"):
        return TableInput(frame_to_table(inputs), _describe_kind(inputs))
    if isinstance(inputs, np.ndarray) and inputs.dtype.names:
        return TableInput(columns_to_table({name: inputs[name] for name in inputs.dtype.names}), "array")
    if isinstance(inputs, Mapping):
        return _wrap_mapping(inputs)
    _refuse_other_forms(inputs)
    return inputs


def _wrap_mapping(columns: Mapping[Any, Any]) -> Any:
    """Wrap a dictionary of columns; a dictionary of input -> weight is returned unchanged."""
    if _is_table(columns):
        return TableInput(columns_to_table(columns), "dictionary of columns")
    if any(map(_has_length, columns.values())):
        name, value = next(
            (name, value)
            for name, value in columns.items()
            if not isinstance(name, str) or not _has_length(value)
        )
        problem = (
            f"in which {name!r} is {describe_type(value)}: expected an array or a list for each column"
            if isinstance(name, str)
            else f"with the key {name!r}: expected the name of each column"
        )
        raise SpecError(f"input_ is a dictionary, {problem}, or a list of rows, such as [{_ROW_EXAMPLE}].")
    return columns


def _wrap_list(entries: Sequence[Any]) -> Any:
    """Wrap a list of rows as one table; in any other list, wrap each table."""
    if not entries or not all(isinstance(entry, Mapping) for entry in entries):
        for entry in entries:
            if _is_row(entry):
                raise SpecError(
                    f"input_ is a list of rows, but contains {describe_type(_first_other(entries))}: a row is a "
                    f"dictionary, such as {_ROW_EXAMPLE}."
                )
        return [wrap_tables(entry) for entry in entries]
    if any(_is_row(entry) for entry in entries):
        names = dict.fromkeys(name for entry in entries for name in entry)
        columns = {name: [entry.get(name) for entry in entries] for name in names}
        for name in names:
            if not isinstance(name, str):
                raise SpecError(
                    f"input_ is a list of rows with the key {name!r}: expected the name of each column, such as "
                    f"{_ROW_EXAMPLE}."
                )
        has_episodes = _has_episodes(columns)
        if has_episodes:
            columns |= _make_step_column(columns)
        kind = "list of episodes" if has_episodes else "list of rows"
        return TableInput(columns_to_table(columns, has_episodes=has_episodes), kind)
    if len(entries) > 1 and all(map(_may_be_row, entries)) and len(set.union(*map(_lengths, entries))) == 1:
        raise SpecError(
            "input_ is a list of dictionaries that may be rows or tables: pass one dictionary of columns, such as "
            f"{_STACK_EXAMPLE}."
        )
    return [wrap_tables(entry) for entry in entries]


def _has_episodes(columns: Mapping[str, list[Any]]) -> bool:
    """Return whether rows are whole episodes: a scalar is a list, or obs has one item more than the actions.

    Raises:
        SpecError: obs and actions may also be arrays of one timestep.
    """
    if any(map(_has_lists, (columns[name] for name in _SCALAR_NAMES & columns.keys()))):
        return True
    obs, actions = (_find_cells(columns, role) for role in (Columns.OBS, Columns.ACTIONS))
    has_row_scalars = any(_find_cells(columns, role) for role in (Columns.REWARDS, Columns.T))
    if has_row_scalars or not obs or not actions or not all(map(_has_length, (*obs, *actions))):
        return False
    lengths = [_lengths(cell) for cell in actions]
    if any(len(n) > 1 or _lengths(cell) != {max(n) + 1} for cell, n in zip(obs, lengths, strict=True)):
        return False
    leaves = _list_leaves(actions[0])
    if len(set.union(*lengths)) > 1 or any(_num_axes(leaf) > 1 for leaf in leaves):
        return True
    is_discrete = all(to_array(leaf).dtype.kind != "f" for leaf in leaves)
    if is_discrete and all(_num_axes(leaf) == 2 for leaf in _list_leaves(obs[0])):
        return True
    names = columns.keys() - _SCALAR_NAMES - {Columns.EPS_ID, *ALIASES[Columns.EPS_ID]}
    if not all(any(map(_has_length, columns[name])) for name in names):
        return False  # such as rewards with another name
    raise SpecError(
        "input_ is a list of dictionaries that may be rows or episodes, since obs has one item more than actions: if "
        "they are episodes, add the timesteps to each, such as 't': np.arange(len(actions)); if they are rows, pass "
        f"one dictionary of columns, such as {_STACK_EXAMPLE}."
    )


def _make_step_column(columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Make a column by which episodes are recognised whose only scalars are rewards, which need not be read.

    Returns:
        Flags that are all False. Timesteps, if flags would be read as those of a vector environment's single steps;
        else they would keep rows apart that continue one episode.
    """
    cells_by_role = {role: _find_cells(columns, role) for role in _SCALAR_ROLES}
    rewards = cells_by_role.pop(Columns.REWARDS)
    cells = rewards if _has_lists(rewards) else _find_cells(columns, Columns.ACTIONS)
    if any(map(_has_lists, cells_by_role.values())) or not cells or not all(map(_has_length, cells)):
        return {}
    num_steps = [max(_lengths(cell)) for cell in cells]
    roles = [role for role, role_cells in cells_by_role.items() if not role_cells]
    if roles[-1:] == [Columns.T] or (max(num_steps) == 1 and not _find_cells(columns, Columns.EPS_ID)):
        return {role: [np.arange(n) for n in num_steps] for role in roles if role == Columns.T}
    return {role: [np.zeros(n, np.bool_) for n in num_steps] for role in roles[-1:]}


def _find_cells(columns: Mapping[str, list[Any]], role: str) -> list[Any]:
    """Return the cells of the column with a role; none if there is no such column."""
    return next((columns[name] for name in (role, *ALIASES[role]) if name in columns), [])


def _has_lists(cells: Sequence[Any]) -> bool:
    return any(_num_axes(cell) > 0 for cell in cells)


def _list_leaves(values: Any) -> list[Any]:
    """Return an array, or the arrays of a dictionary."""
    if isinstance(values, Mapping):
        return [leaf for value in values.values() for leaf in _list_leaves(value)]
    return [values]


def _first_other(entries: Sequence[Any]) -> Any:
    return next(entry for entry in entries if not isinstance(entry, Mapping))


def _is_row(entry: Any) -> bool:
    """Return whether a dictionary is one row: a value is a number, or the lengths differ, as those of vectors do."""
    return isinstance(entry, Mapping) and bool(entry) and (not _is_table(entry) or len(_lengths(entry)) > 1)


def _may_be_row(table: Mapping[str, Any]) -> bool:
    """Return whether each column of a dictionary could also be a vector in one row."""
    return _SCALAR_NAMES.isdisjoint(table) and all(
        isinstance(values, Mapping) or _num_axes(values) == 1 for values in table.values()
    )


def _num_axes(values: Any) -> int:
    if isinstance(values, list | tuple):
        return 1 + (_num_axes(values[0]) if values else 0)
    return int(np.ndim(values)) if hasattr(values, "dtype") else 0


def _is_table(entry: Mapping[Any, Any]) -> bool:
    """Return whether a dictionary holds columns; others hold the weights of inputs, or one row."""
    return (
        bool(entry) and all(isinstance(name, str) for name in entry) and all(map(_has_length, entry.values()))
    )


def _has_length(values: Any) -> bool:
    if isinstance(values, Mapping):
        return _is_table(values)
    return _num_axes(values) > 0


def _lengths(values: Any) -> set[int]:
    """Return the lengths of an array, or of the arrays of a dictionary."""
    return {len(leaf) for leaf in _list_leaves(values)}


def _describe_kind(table: Any) -> str:
    """Return the name of the library and the class of a table: "pandas DataFrame"."""
    return f"{type(table).__module__.partition('.')[0]} {type(table).__name__}"


def _refuse_other_forms(entry: Any) -> None:
    """Refuse objects that hold a table but are not read, with what to write instead.

    Raises:
        SpecError: the entry is such an object.
    """
    if isinstance(entry, str) or callable(entry) or hasattr(entry, "__fspath__"):
        return
    name = describe_type(entry)
    if isinstance(entry, np.ndarray) or (hasattr(entry, "dtype") and hasattr(entry, "shape")):
        raise SpecError(
            f"input_ is {name} of shape {list(entry.shape)}: name its columns in a dictionary, such as "
            "{'obs': array[:, :-2], 'actions': array[:, -2], 'rewards': array[:, -1]}."
        )
    if isinstance(entry, Iterator):
        raise SpecError(
            f"input_ is {name}, which can be read only once: pass a list, input_=list(...), of rows such as "
            f"{_ROW_EXAMPLE}."
        )
    remedy = next((call for method, call in _REMEDY_BY_METHOD.items() if hasattr(entry, method)), None)
    if remedy is not None:
        raise SpecError(f"input_ is {name}, which does not hold its rows in memory: pass its {remedy}.")
