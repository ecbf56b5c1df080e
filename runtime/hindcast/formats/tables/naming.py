"""Mapping a table's columns to Hindcast's, by the user's schema map, RLlib's names, and known aliases."""

from __future__ import annotations

import difflib
import fnmatch
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from hindcast.episodes.columns import SEPARATOR, Columns, next_leaf, root
from hindcast.errors import DataError
from hindcast.formats.columns.steps import DONE_NAMES, NON_OUTPUT_COLUMNS
from hindcast.formats.format import ReadOptions
from hindcast.formatting import natural_sort_key

ALIASES: Final[dict[str, tuple[str, ...]]] = {
    Columns.OBS: ("observations", "observation", "state", "states"),
    Columns.NEXT_OBS: (
        "next_observations",
        "next_observation",
        "next_obs",
        "new_observations",
        "obs_tp1",
        "next_state",
        "next_states",
    ),
    Columns.ACTIONS: ("action",),
    Columns.REWARDS: ("reward",),
    Columns.TERMINATEDS: (*DONE_NAMES, "terminal", "terminals", "terminated"),
    Columns.TRUNCATEDS: ("timeout", "timeouts", "truncated"),
    Columns.INFOS: ("info",),
    Columns.EPS_ID: ("episode_id", "episode"),
    Columns.T: ("timestep", "step"),
    Columns.AGENT_ID: (),
    Columns.MODULE_ID: (),
}
_VECTOR_COLUMNS: Final = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS)
_REQUIRED_COLUMNS: Final = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
_REWARD_ADVICE: Final = ", or read `columns: [obs, actions]` alone, which is enough for BC"
# Always read, whatever `columns` names: assembling episodes needs them.
ROLE_COLUMNS: Final = (
    Columns.TERMINATEDS,
    Columns.TRUNCATEDS,
    Columns.EPS_ID,
    Columns.T,
    Columns.AGENT_ID,
    Columns.MODULE_ID,
)
_SINGLE_COLUMNS: Final = (*ROLE_COLUMNS, Columns.REWARDS, Columns.INFOS)
_INDEXED_NAME: Final = re.compile(r"(?P<stem>.+)\[(?P<index>\d+(?:,\d+)*)\]")
_GLOB_CHARACTERS: Final = re.compile(r"[*?]")


class LeafSource(NamedTuple):
    """The source columns of a leaf.

    Attributes:
        columns: names in the data, in order.
        shape: shape of the element that the columns form together; None if one column holds all of it.
    """

    columns: tuple[str, ...]
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class TablePlan:
    """The columns to read from a table.

    Attributes:
        sources: Hindcast's name of a leaf or column -> source columns.
        done_column: the single flag that ends episodes without a reason; None if there are two flags.
        end_infos: infos that may give the reason; None if there are no infos.
        skipped_columns: columns of the data that are not read because other columns replace them.
    """

    sources: dict[str, LeafSource]
    done_column: str | None
    end_infos: str | None
    skipped_columns: tuple[str, ...]

    @property
    def columns(self) -> list[str]:
        """Source columns to read."""
        names = [name for source in self.sources.values() for name in source.columns]
        return list(dict.fromkeys([*names, *([self.end_infos] if self.end_infos else [])]))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the interpretation of ambiguous columns."""
        notes = []
        if self.done_column is not None:
            unless = "" if self.end_infos is None else f", unless its {self.end_infos!r} reports a time limit"
            notes.append(
                f"{self.done_column!r} does not say why an episode ends: its ends are read as "
                f"terminated{unless}"
            )
        if self.skipped_columns:
            notes.append(
                f"the columns {format_names(self.skipped_columns)} are not read: other columns replace them"
            )
        return tuple(notes)


def plan_columns(names: Sequence[str], options: ReadOptions, empty_leaves: Collection[str] = ()) -> TablePlan:
    """Plan what to read from a table with these columns.

    Args:
        names: names of the table's columns; the keys of its folders are columns as well.
        options: options of the user.
        empty_leaves: leaves without numbers, which have no column.

    Raises:
        DataError: a column is missing, ambiguous or misnamed.
    """
    names = [*names, *(key for key in options.keys if key not in names)]
    table = _Table(names)
    schema = {
        Columns.TERMINATEDS if column in DONE_NAMES else column: source_name
        for column, source_name in options.schema.items()
    }
    sources: dict[str, LeafSource] = {}
    for column in dict.fromkeys([*ALIASES, *map(root, schema)]):
        sources.update(_find_sources(column, schema, table))
    _check_single(sources)
    used_names = {name for source in sources.values() for name in source.columns}
    skipped_names: list[str] = []
    for stem, source in table.stems.items():
        if used_names.isdisjoint(source.columns):
            if root(stem) in NON_OUTPUT_COLUMNS or root(stem) in sources:
                skipped_names += source.columns
            else:
                sources[stem] = source
    done_column, end_infos = _find_done_column(sources, options)
    sources = _select_sources(sources, options.columns)
    _check_required({*sources, *empty_leaves}, options.columns, names)
    ignored_names = NON_OUTPUT_COLUMNS - set(DONE_NAMES) - ALIASES.keys()
    return TablePlan(
        sources, done_column, end_infos, tuple(name for name in skipped_names if name not in ignored_names)
    )


def suggest_name(name: str, names: Collection[str]) -> str:
    """Return advice for an unknown name: the closest known name, else all names."""
    matches = difflib.get_close_matches(name, names, 1)
    return f"did you mean {matches[0]!r}?" if matches else f"choose one of {format_names(names)}"


def format_names(names: Collection[str]) -> str:
    """Format names for a message; of many only the first 20."""
    first_names = list(names)[:20]
    return f"{first_names}" + (f" and {len(names) - 20} more" if len(names) > 20 else "")


class _Table:
    """The columns of a table, with numbered columns grouped."""

    def __init__(self, names: Sequence[str]) -> None:
        duplicate = next((name for name in names if names.count(name) > 1), None)
        if duplicate is not None:
            raise DataError(f"it has two columns {duplicate!r}: rename one")
        self.names = names
        self.stems: dict[str, LeafSource] = {}
        indexed_names: dict[str, dict[tuple[int, ...], str]] = {}
        for name in names:
            match = _INDEXED_NAME.fullmatch(name)
            if match is None:
                self.stems[name] = LeafSource((name,))
            else:
                index = tuple(int(part) for part in match["index"].split(","))
                indexed_names.setdefault(match["stem"], {})[index] = name
        for stem, parts in indexed_names.items():
            if stem in self.stems:
                raise DataError(f"it has the columns {stem!r} and {next(iter(parts.values()))!r}: rename one")
            self.stems[stem] = _assemble_source(stem, parts)

    def find(self, name: str, target: str) -> dict[str, LeafSource]:
        """Find a column, its numbered parts, or its leaves, by their new names; empty if missing."""
        if name in self.stems:
            return {target: self.stems[name]}
        leaves = {stem: source for stem, source in self.stems.items() if stem.startswith(name + SEPARATOR)}
        if leaves:
            return {target + stem.removeprefix(name): source for stem, source in leaves.items()}
        return self._find_numbered(name, target) if root(target) in _VECTOR_COLUMNS else {}

    def _find_numbered(self, name: str, target: str) -> dict[str, LeafSource]:
        pattern = re.compile(rf"{re.escape(name)}_(\d+)")
        columns_by_number = {
            int(match[1]): column for column in self.names if (match := pattern.fullmatch(column))
        }
        if not columns_by_number:
            return {}
        # numbered from 1 or from 0
        first = 1 if min(columns_by_number) == 1 else 0
        return {
            target: _assemble_source(
                name, {(index - first,): column for index, column in columns_by_number.items()}
            )
        }


def _assemble_source(stem: str, parts: dict[tuple[int, ...], str]) -> LeafSource:
    """Combine numbered columns into one array; no index may be missing."""
    dimensions = {len(index) for index in parts}
    if len(dimensions) > 1:
        raise DataError(
            f"the columns of {stem!r} are numbered in several ways: {format_names(sorted(parts.values()))}"
        )
    order = sorted(parts)
    shape = tuple(max(index[axis] for index in order) + 1 for axis in range(dimensions.pop()))
    if math.prod(shape) != len(order):
        raise DataError(
            f"the columns of {stem!r} are numbered up to {list(shape)}, but there are only {len(order)}: "
            "one is missing"
        )
    return LeafSource(tuple(parts[index] for index in order), shape)


def _check_single(sources: Mapping[str, LeafSource]) -> None:
    conflict = next(
        (column for column in _SINGLE_COLUMNS if column in sources and len(sources[column].columns) > 1), None
    )
    if conflict is not None:
        raise DataError(
            f"{conflict!r} must be one column, but {format_names(sources[conflict].columns)} are several: "
            "name one under `schema`"
        )


def _find_sources(
    column: str, schema: Mapping[str, str | Sequence[str]], table: _Table
) -> dict[str, LeafSource]:
    """Find the sources of one of Hindcast's columns, or of its leaves; empty if missing."""
    mapping = {name: source_name for name, source_name in schema.items() if root(name) == column}
    if mapping:
        return {
            leaf: source
            for name in mapping
            for leaf, source in _mapped_sources(name, mapping[name], table).items()
        }
    sources = table.find(column, column)
    if sources:
        return sources
    aliases = {alias: parts for alias in ALIASES.get(column, ()) if (parts := table.find(alias, column))}
    if len(aliases) > 1:
        first, second, *_ = aliases
        raise DataError(f"{first!r} and {second!r} could both be {column!r}: choose one under `schema`")
    return next(iter(aliases.values()), {})


def _mapped_sources(target: str, source: str | Sequence[str], table: _Table) -> dict[str, LeafSource]:
    if not isinstance(source, str):
        missing = next((name for name in source if name not in table.names), None)
        if missing is not None:
            raise _missing_column_error(missing, target, table)
        return {target: LeafSource(tuple(source), (len(source),))}
    if source in table.names:
        return {target: LeafSource((source,))}
    if _GLOB_CHARACTERS.search(source):
        matches = sorted(
            (name for name in table.names if fnmatch.fnmatchcase(name, source)), key=natural_sort_key
        )
        if not matches:
            raise DataError(
                f"no column matches {source!r}, which `schema` names: the columns are "
                f"{format_names(table.names)}"
            )
        return {target: LeafSource(tuple(matches), (len(matches),))}
    sources = table.find(source, target)
    if not sources:
        raise _missing_column_error(source, target, table)
    return sources


def _missing_column_error(name: str, target: str, table: _Table) -> DataError:
    return DataError(
        f"it has no column {name!r}, which `schema` names for {target!r}: {suggest_name(name, table.names)}"
    )


def _find_done_column(sources: dict[str, LeafSource], options: ReadOptions) -> tuple[str | None, str | None]:
    """Return the flag `done` if it is the only one, and the infos that may give a reason."""
    done_source = sources.get(Columns.TERMINATEDS)
    if done_source is None or Columns.TRUNCATEDS in sources or Columns.TERMINATEDS in options.schema:
        return None, None
    if done_source.columns[0] not in DONE_NAMES and not any(name in DONE_NAMES for name in options.schema):
        return None, None
    infos = sources.get(Columns.INFOS)
    return done_source.columns[0], None if infos is None else infos.columns[0]


def _select_sources(sources: dict[str, LeafSource], columns: Sequence[str] | None) -> dict[str, LeafSource]:
    if columns is None:
        return sources
    known_names = {*sources, *map(root, sources)}
    for name in columns:
        if name not in known_names:
            target = next((target for target, source in sources.items() if name in source.columns), None)
            raise DataError(
                f"it has no column {name!r}, which `columns` names: {suggest_name(name, known_names)}"
                if target is None
                else f"`columns` requires Hindcast's names: write {root(target)!r} for {name!r}"
            )
    selected_names = {*columns, *(next_leaf(name) for name in columns if root(name) == Columns.OBS)}
    return {
        name: source
        for name, source in sources.items()
        if name in selected_names or root(name) in selected_names or name in ROLE_COLUMNS
    }


def _check_required(sources: Collection[str], columns: Sequence[str] | None, names: Sequence[str]) -> None:
    present_columns = set(map(root, sources))
    missing = next((column for column in _REQUIRED_COLUMNS if column not in present_columns), None)
    if missing is not None and columns is None:
        advice = _REWARD_ADVICE if missing == Columns.REWARDS else ""
        raise DataError(
            f"it has no column {missing!r} and no alias of it: name it under `schema`{advice}; the columns "
            f"are {format_names(names)}"
        )
