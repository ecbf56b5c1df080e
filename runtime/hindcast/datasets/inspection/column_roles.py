"""The columns of a table: how many values are missing, which never change, and what each of them may be."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.datasets.inspection.summary import ColumnProfile
from hindcast.datasets.prepare.non_data_files import find_data_files
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.prepare.source_files import RecognisedFile
from hindcast.episodes.columns import Columns, root
from hindcast.errors import DataError
from hindcast.formats.columns.arrays import as_plain_table, is_text
from hindcast.formats.format import HEAD_ROWS, Format, ReadOptions
from hindcast.formats.layout import CellError
from hindcast.formats.lossless import parse_numbers
from hindcast.formats.tables.naming import ALIASES, format_names, plan_columns
from hindcast.formats.tables.roles import FALSE_TEXTS, TRUE_TEXTS
from hindcast.formats.tables.struct_fields import add_fields, list_schema_fields
from hindcast.formatting import natural_sort_key
from hindcast.storage.location import Location

_WORDS: Final[dict[str, str]] = {
    Columns.EPS_ID: (
        "episode trajectory traj patient subject person user customer client session encounter "
        "admission stay trial case run device vehicle machine game id"
    ),
    Columns.T: "timestep step t time timestamp datetime date day hour visit index",
    Columns.REWARDS: "reward outcome return score utility payoff gain profit revenue click conversion r",
    Columns.ACTIONS: (
        "action act dose dosage treatment decision intervention choice control command setpoint arm a u"
    ),
    Columns.TERMINATEDS: (
        "terminated terminal done discharged discharge died dead death healed recovered success "
        "finished completed complete ended end"
    ),
    Columns.TRUNCATEDS: "truncated timeout left dropout dropped censored withdrawn lost aborted interrupted cut",
}
"""Hindcast's column -> words in the names of columns that are likely to be it, likeliest first."""
_NEXT_PREFIXES: Final = ("next_", "new_", "next.")
_PART: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_CODE: Final = r"^\s*[+-]?0\d"
_NEVER_CHANGES: Final = "it never changes"
Schema = dict[str, str | list[str]]


@dataclass(frozen=True)
class TableProfile:
    """The columns of a table, and the `schema` that says what they are.

    Attributes:
        columns: the columns, in order.
        schema: Hindcast's column -> column or columns of the table; only those that Hindcast does not know by name.
        left_out: name of a column that is not read -> the reason.
        missing_roles: Hindcast's columns that no column of the table seems to be.
        num_rows: number of rows that were read.
        has_next_obs: whether the table has next observations.
        nested_steps: what to do if each row holds a list of steps; None for other tables.
    """

    columns: tuple[ColumnProfile, ...]
    schema: Schema
    left_out: dict[str, str]
    missing_roles: tuple[str, ...]
    num_rows: int
    has_next_obs: bool
    nested_steps: str | None

    def require_roles(self) -> None:
        """Check that every required column was found.

        Raises:
            DataError: a column is missing; the error says how to name it.
        """
        if self.missing_roles:
            if self.nested_steps is not None:
                raise DataError(self.nested_steps)
            role = self.missing_roles[0]
            names = format_names([column.name for column in self.columns])
            raise DataError(
                f"no column looks like {role!r}: name it with --schema {role}=COLUMN; the columns are {names}"
            )


def read_profile(reading: Reading) -> TableProfile | None:
    """Read the first rows of the first table of a reading; None if the data are no table.

    Args:
        reading: what to read; its `schema` says what some columns are.

    Raises:
        DataError: a path does not exist, or a file is damaged.
    """
    return profile_files(find_data_files(reading), reading.options.schema)


def profile_files(
    recognised_files: Sequence[RecognisedFile], schema: Mapping[str, str | Sequence[str]]
) -> TableProfile | None:
    """Read the first rows of the first table among files; None if no file is a table.

    Columns that do not change in these rows are read in all rows, until each has changed.

    Args:
        recognised_files: the files, in order.
        schema: what some columns are.

    Raises:
        DataError: a file is damaged.
    """
    for file_format, location, options in recognised_files:
        table = file_format.read_head(location, options)
        if table is None:
            continue
        try:
            table = as_plain_table(add_fields(table, list_schema_fields(schema, table.column_names)))
            profile = profile_table(table, schema)
            constants = [name for name, reason in profile.left_out.items() if reason == _NEVER_CHANGES]
            if not constants or (len(recognised_files) == 1 and len(table) < HEAD_ROWS):
                return profile
            return profile_table(table, schema, _find_varying_columns(recognised_files, constants))
        except CellError as error:
            raise DataError(str(error), path=str(location), row=error.row) from error
    return None


def _find_varying_columns(files: Sequence[RecognisedFile], names: Sequence[str]) -> set[str]:
    """Return the columns of numbers that have more than one value in some files; missing values do not count."""
    first_values, varying_columns = dict[str, Any](), set[str]()
    for file_format, location, file_options in files:
        # a leaf for each column: in one array, all would have the widest dtype
        schema = {
            f"{Columns.OBS}/{i}": name
            for i, name in enumerate(names)
            if name not in varying_columns and _has_column(file_format, location, file_options, name)
        }
        options = _observation_options(file_options, schema)
        try:
            pieces = file_format.list_pieces(location, options) if schema else []
        except DataError:
            continue  # the file has no rows or is no table
        for rows in (rows for piece in pieces for rows in file_format.read(piece, options)):
            for leaf, name in schema.items():
                values = rows.columns.get(leaf, np.empty(0))  # a column of nulls has no values
                values = values[~np.isnan(values)] if values.dtype.kind == "f" else values
                if len(values) and (values != first_values.setdefault(name, values[0])).any():
                    varying_columns.add(name)
            if varying_columns.issuperset(schema.values()):
                break
    return varying_columns


def _has_column(file_format: Format, location: Location, options: ReadOptions, name: str) -> bool:
    try:
        file_format.list_notes(location, _observation_options(options, {Columns.OBS: name}))
    except DataError:
        return False
    return True


def _observation_options(options: ReadOptions, schema: Mapping[str, str]) -> ReadOptions:
    return replace(options, schema={**schema}, columns=(Columns.OBS,), ignore_final_observation=True)


def profile_table(
    table: pa.Table, schema: Mapping[str, str | Sequence[str]], varying_columns: Collection[str] = ()
) -> TableProfile:
    """Describe a table's columns; `schema` says what some of them are, and the others are judged by name and values.

    Args:
        table: the first rows.
        schema: Hindcast's column -> column or columns of the table.
        varying_columns: columns with values that change after the first rows.
    """
    table = _decode_dictionaries(table.combine_chunks())
    roles = _find_roles(table, schema)
    left_out: dict[str, str] = {}
    if Columns.OBS not in roles:
        roles |= _find_observations(table, roles, left_out, varying_columns)
    role_by_column = {name: role for role, names in roles.items() for name in names}
    profiles = tuple(
        _profile_column(table.column(name), name, role_by_column.get(name), name in varying_columns)
        for name in table.column_names
    )
    known_columns = _known_columns(table, {})
    known_names = {role: {role, *ALIASES.get(role, ())} for role in roles}
    suggested_schema: Schema = {
        role: names[0] if len(names) == 1 else names
        for role, names in roles.items()
        if role not in map(root, schema)
        and names
        and names[0] not in known_names[role]
        and known_columns.get(role) != names
    }
    missing_roles = [role for role in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS) if not roles.get(role)]
    user_schema = {role: names if isinstance(names, str) else list(names) for role, names in schema.items()}
    return TableProfile(
        columns=profiles,
        schema={**user_schema, **suggested_schema},
        left_out=left_out,
        missing_roles=tuple(missing_roles),
        num_rows=len(table),
        has_next_obs=bool(roles.get(Columns.NEXT_OBS)),
        nested_steps=_describe_nested_steps(table),
    )


def _decode_dictionaries(table: pa.Table) -> pa.Table:
    """Replace dictionaries by their values: Arrow cannot count the distinct values of a dictionary."""
    for position, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            column = table.column(position).cast(field.type.value_type)
            table = table.set_column(position, field.name, column)
    return table


def _describe_nested_steps(table: pa.Table) -> str | None:
    for field in table.schema:
        if isinstance(field.type, pa.ListType | pa.LargeListType) and pa.types.is_struct(
            field.type.value_type
        ):
            other_columns = [name for name in table.column_names if name != field.name]
            return (
                f"each row of {field.name!r} is a list of steps: write a row for each step, such as by "
                f"`pandas.json_normalize(rows, {field.name!r}, {other_columns})`, where `rows` is a list of dicts"
            )
    return None


def _known_columns(table: pa.Table, schema: Mapping[str, str | Sequence[str]]) -> dict[str, list[str]]:
    """Return Hindcast's column -> columns of the table, for the columns that names or the schema identify."""
    known_columns: dict[str, list[str]] = {}
    # A plan of all columns is refused if a required one is missing; a plan of none still has ids, timesteps and flags.
    for columns in ((), None):
        try:
            plan = plan_columns(table.column_names, ReadOptions(schema=dict(schema), columns=columns))
        except DataError:
            continue
        for leaf, source in plan.sources.items():
            if root(leaf) in (*_WORDS, Columns.OBS, Columns.NEXT_OBS):
                names = known_columns.setdefault(root(leaf), [])
                names += [name for name in source.columns if name not in names]
    return known_columns


def _find_roles(table: pa.Table, schema: Mapping[str, str | Sequence[str]]) -> dict[str, list[str]]:
    """Return Hindcast's column -> columns of the table, without observations that no name shows."""
    roles = _known_columns(table, schema)
    for target, source in schema.items():
        patterns = [source] if isinstance(source, str) else source
        roles.setdefault(
            root(target),
            [
                column
                for pattern in patterns
                for column in (
                    [pattern]
                    if pattern in table.column_names
                    else fnmatch.filter(table.column_names, pattern)
                )
            ],
        )
    for name in (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.REWARDS):
        if name in roles:
            continue
        # If another required column has no known name, there is no plan that would contain this one.
        matches = [column for column in (name, *ALIASES[name]) if column in table.column_names]
        roles |= {name: matches[:1]} if matches else {}
    used_columns = {column for names in roles.values() for column in names}
    for role in _WORDS:
        if role in roles:
            continue
        candidates = [
            column
            for column in table.column_names
            if column not in used_columns and _values_allow(role, column, table)
        ]
        columns = _best_matches(role, candidates)
        if role != Columns.ACTIONS:
            columns = columns[:1]
        if columns:
            roles[role] = columns
            used_columns.update(columns)
    episode_columns = roles.get(Columns.EPS_ID)
    time_columns = roles.get(Columns.T)
    # A column that only looks like timesteps must have another value in each row of an episode.
    if time_columns and time_columns[0] not in ALIASES[Columns.T] and time_columns[0] != Columns.T:
        keys = [*(episode_columns or ()), *time_columns]
        if len(table.group_by(keys).aggregate([])) < len(table):
            del roles[Columns.T]
    return roles


def _find_observations(
    table: pa.Table,
    roles: Mapping[str, Sequence[str]],
    left_out: dict[str, str],
    varying_columns: Collection[str],
) -> dict[str, list[str]]:
    """Return `obs`, and `new_obs` if each of its columns has one, of the remaining columns of numbers."""
    used_columns = {column for names in roles.values() for column in names}
    remaining = [column for column in table.column_names if column not in used_columns]
    next_columns = {
        column: column.removeprefix(prefix)
        for column in remaining
        for prefix in _NEXT_PREFIXES
        if column.startswith(prefix) and column.removeprefix(prefix) in remaining
    }
    observations: list[str] = []
    for column in remaining:
        if column in next_columns:
            continue
        reason = _left_out_reason(table.column(column), column, column in varying_columns)
        if reason is None:
            observations.append(column)
        else:
            left_out[column] = reason
    observation_roles = {
        Columns.OBS: sorted(observations, key=natural_sort_key)
        if _are_numbered(observations)
        else observations
    }
    by_observation = {observation: column for column, observation in next_columns.items()}
    if observations and all(name in by_observation for name in observations):
        observation_roles[Columns.NEXT_OBS] = [
            by_observation[name] for name in observation_roles[Columns.OBS]
        ]
    return {role: names for role, names in observation_roles.items() if names}


def _are_numbered(names: Collection[str]) -> bool:
    return all(re.search(r"\d+\]?$", name) for name in names)


def _left_out_reason(column: pa.ChunkedArray, name: str, is_varying: bool) -> str | None:
    """Return why a column is no observation; None if it can be one."""
    if not (_is_number(column.type) or pa.types.is_boolean(column.type) or _are_numbers_as_text(column)):
        if pa.types.is_temporal(column.type):
            reason = "it holds times; if they order the rows, name it as t under schema"
        else:
            reason = f"it holds {'text' if is_text(column.type) else column.type}, not numbers"
        return reason
    if column.null_count == len(column):
        return "it has no values"
    if len(column) > 1 and not is_varying and _is_constant(column):
        return _NEVER_CHANGES
    if pa.types.is_boolean(column.type) and column.null_count:
        return "it is true, false or missing: write 1, 0 and null"
    if name.lower() in ("id", "index", "row", "unnamed: 0", "__index_level_0__"):
        return "it numbers the rows"
    return None


def _are_numbers_as_text(column: pa.ChunkedArray) -> bool:
    """Return whether a column holds text that is read as numbers; codes such as 007 are no numbers."""
    if (
        not is_text(column.type)
        or column.null_count
        or pc.any(pc.match_substring_regex(column, _CODE)).as_py()
    ):
        return False
    _, is_wrong = parse_numbers(column.to_numpy())
    return not is_wrong.any()


def _best_matches(role: str, columns: Iterable[str]) -> list[str]:
    """Return the columns with the likeliest word of a role: the one that is the word, else all that contain it."""
    columns = list(columns)
    for word in _WORDS[role].split():
        exact_matches = [column for column in columns if column.lower() in (word, f"{word}s")]
        matches = [column for column in columns if {word, f"{word}s"} & set(_parts_of(column))]
        if exact_matches or (matches and len(word) > 1):  # a single letter is often part of another name
            return exact_matches[:1] or matches
    return []


def _parts_of(name: str) -> list[str]:
    return [part.lower() for part in _PART.findall(name)]


def _values_allow(role: str, name: str, table: pa.Table) -> bool:
    """Return whether the values of a column allow a role."""
    column = table.column(name)
    arrow_type = column.type
    if column.null_count and role not in (Columns.ACTIONS, Columns.REWARDS):
        return False
    if role == Columns.EPS_ID:
        is_id = is_text(arrow_type) or pa.types.is_integer(arrow_type)
        return is_id and 1 <= pc.count_distinct(column).as_py() < max(2, len(column))
    if role == Columns.T:
        is_time = pa.types.is_temporal(arrow_type) or (is_text(arrow_type) and _are_times(column))
        return is_time or pa.types.is_integer(arrow_type)
    if role in (Columns.TERMINATEDS, Columns.TRUNCATEDS):
        return _are_flags(column)
    return _is_number(arrow_type) or (role == Columns.ACTIONS and pa.types.is_boolean(arrow_type))


def _are_flags(column: pa.ChunkedArray) -> bool:
    if not (_is_number(column.type) or is_text(column.type)):
        return bool(pa.types.is_boolean(column.type))
    values = pc.unique(column).to_pylist()
    return len(values) <= 2 and {str(value).lower() for value in values} <= {*TRUE_TEXTS, *FALSE_TEXTS}


def _are_times(column: pa.ChunkedArray) -> bool:
    try:
        for text in column.slice(0, 100).to_pylist():
            datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return False
    return True


def _is_number(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type))


def _is_constant(column: pa.ChunkedArray) -> bool:
    if pa.types.is_nested(column.type) or not len(column):
        return False
    values = column.drop_null()
    if pa.types.is_floating(values.type):
        values = values.filter(pc.invert(pc.is_nan(values)))
    try:
        return bool(len(values)) and pc.count_distinct(values).as_py() == 1
    except pa.ArrowNotImplementedError:
        return False


def _profile_column(column: pa.ChunkedArray, name: str, role: str | None, is_varying: bool) -> ColumnProfile:
    num_missing = column.null_count
    if pa.types.is_floating(column.type):
        num_missing = pc.sum(pc.is_null(column, nan_is_null=True)).as_py() or 0
    example: Any = next((value for value in column.slice(0, 100).to_pylist() if value is not None), "")
    text = f"{example:g}" if isinstance(example, float) else str(example)
    return ColumnProfile(
        name=name,
        type=str(column.type),
        missing=num_missing / max(1, len(column)),
        constant=len(column) > 1 and not is_varying and _is_constant(column),
        example=text if len(text) <= 24 else f"{text[:23]}…",
        role=role,
    )
