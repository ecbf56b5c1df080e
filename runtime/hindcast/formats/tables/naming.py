"""Which columns of a table are which: a user's schema map, RLlib's names, and their known aliases."""

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
_NUMBERED: Final = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS)
_NEEDED: Final = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
_WITHOUT_REWARDS: Final = ", or read `columns: [obs, actions]` alone, all that BC needs"
# Read in addition to the leaves, whatever `columns` names.
ROLE_COLUMNS: Final = (
    Columns.TERMINATEDS,
    Columns.TRUNCATEDS,
    Columns.EPS_ID,
    Columns.T,
    Columns.AGENT_ID,
    Columns.MODULE_ID,
)
_SINGLE: Final = (*ROLE_COLUMNS, Columns.REWARDS, Columns.INFOS)
_INDEXED: Final = re.compile(r"(?P<stem>.+)\[(?P<index>\d+(?:,\d+)*)\]")
_GLOB: Final = re.compile(r"[*?]")


class LeafSource(NamedTuple):
    """Where a leaf comes from.

    Attributes:
        columns: the data's, in order.
        shape: of one element that the columns make together; None if one column holds all of it.
    """

    columns: tuple[str, ...]
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class TablePlan:
    """What is read from a table.

    Attributes:
        sources: Hindcast's name of a leaf or of a column -> where it comes from.
        only_done: the flag that says that an episode is over, if nothing says why.
        end_infos: the infos that may then say why.
        left_out: columns of the data that are not read, although nothing excludes them.
    """

    sources: dict[str, LeafSource]
    done_column: str | None
    end_infos: str | None
    skipped_columns: tuple[str, ...]

    @property
    def columns(self) -> list[str]:
        """The data's columns that are read."""
        names = [name for source in self.sources.values() for name in source.columns]
        return list(dict.fromkeys([*names, *([self.end_infos] if self.end_infos else [])]))

    @property
    def notes(self) -> tuple[str, ...]:
        """How ambiguous columns were interpreted."""
        notes = []
        if self.done_column is not None:
            unless = "" if self.end_infos is None else f", unless its {self.end_infos!r} reports a time limit"
            notes.append(
                f"{self.done_column!r} says that an episode is over, but not why: read as terminated{unless}"
            )
        if self.skipped_columns:
            notes.append(
                f"the columns {format_names(self.skipped_columns)} are not read: other columns replace them"
            )
        return tuple(notes)


def plan_columns(names: Sequence[str], options: ReadOptions, empty_leaves: Collection[str] = ()) -> TablePlan:
    """What to read of a table with these columns.

    Args:
        names: the table's; the keys of its folders are columns as well.
        options: of the user.
        empty: leaves of the data that contain no numbers, so that they have no column.

    Raises:
        DataError: an own column that is not there, could be one of several, or is named wrongly.
    """
    names = [*names, *(key for key in options.keys if key not in names)]
    table = _Table(names)
    schema = {
        Columns.TERMINATEDS if own in DONE_NAMES else own: theirs for own, theirs in options.schema.items()
    }
    sources: dict[str, LeafSource] = {}
    for own in dict.fromkeys([*ALIASES, *map(root, schema)]):
        sources.update(_sources_of(own, schema, table))
    _check_single(sources)
    taken = {name for source in sources.values() for name in source.columns}
    left_out: list[str] = []
    for stem, source in table.stems.items():
        if taken.isdisjoint(source.columns):
            if root(stem) in NON_OUTPUT_COLUMNS or root(stem) in sources:
                left_out += source.columns
            else:
                sources[stem] = source
    only_done, end_infos = _only_done(sources, options)
    sources = _selected(sources, options.columns)
    _check_needed({*sources, *empty_leaves}, options.columns, names)
    silent = NON_OUTPUT_COLUMNS - set(DONE_NAMES) - ALIASES.keys()
    return TablePlan(sources, only_done, end_infos, tuple(name for name in left_out if name not in silent))


def suggest_name(name: str, names: Collection[str]) -> str:
    """Advice for an unknown name: the closest known one, else all of them."""
    close = difflib.get_close_matches(name, names, 1)
    return f"did you mean {close[0]!r}?" if close else f"there are {format_names(names)}"


def format_names(names: Collection[str]) -> str:
    """Names for a sentence; of many, the first 20."""
    shown = list(names)[:20]
    return f"{shown}" + (f" and {len(names) - 20} more" if len(names) > 20 else "")


class _Table:
    """The columns of a table; numbered columns are grouped."""

    def __init__(self, names: Sequence[str]) -> None:
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise DataError(f"it has two columns {twice!r}: rename one")
        self.names = names
        self.stems: dict[str, LeafSource] = {}
        indexed: dict[str, dict[tuple[int, ...], str]] = {}
        for name in names:
            match = _INDEXED.fullmatch(name)
            if match is None:
                self.stems[name] = LeafSource((name,))
            else:
                index = tuple(int(part) for part in match["index"].split(","))
                indexed.setdefault(match["stem"], {})[index] = name
        for stem, parts in indexed.items():
            if stem in self.stems:
                raise DataError(f"it has the columns {stem!r} and {next(iter(parts.values()))!r}: rename one")
            self.stems[stem] = _assembled(stem, parts)

    def find(self, name: str, own: str) -> dict[str, LeafSource]:
        """The column, its numbered parts, or its leaves, by their new names; empty if there are none."""
        if name in self.stems:
            return {own: self.stems[name]}
        below = {stem: source for stem, source in self.stems.items() if stem.startswith(name + SEPARATOR)}
        if below:
            return {own + stem.removeprefix(name): source for stem, source in below.items()}
        return self._numbered(name, own) if root(own) in _NUMBERED else {}

    def _numbered(self, name: str, own: str) -> dict[str, LeafSource]:
        pattern = re.compile(rf"{re.escape(name)}_(\d+)")
        found = {int(match[1]): column for column in self.names if (match := pattern.fullmatch(column))}
        if not found:
            return {}
        first = 1 if min(found) == 1 else 0
        return {own: _assembled(name, {(index - first,): column for index, column in found.items()})}


def _assembled(stem: str, parts: dict[tuple[int, ...], str]) -> LeafSource:
    """Numbered columns as one array; no index may be missing."""
    dimensions = {len(index) for index in parts}
    if len(dimensions) > 1:
        raise DataError(
            f"the columns of {stem!r} are numbered in several ways: {format_names(sorted(parts.values()))}"
        )
    order = sorted(parts)
    shape = tuple(max(index[axis] for index in order) + 1 for axis in range(dimensions.pop()))
    if math.prod(shape) != len(order):
        raise DataError(
            f"the columns of {stem!r} are numbered up to {list(shape)}, and there are {len(order)} of them: "
            "one is missing"
        )
    return LeafSource(tuple(parts[index] for index in order), shape)


def _check_single(sources: Mapping[str, LeafSource]) -> None:
    several = next((own for own in _SINGLE if own in sources and len(sources[own].columns) > 1), None)
    if several is not None:
        raise DataError(
            f"{several!r} is one column, and {format_names(sources[several].columns)} are several: "
            "name one under `schema`"
        )


def _sources_of(own: str, schema: Mapping[str, str | Sequence[str]], table: _Table) -> dict[str, LeafSource]:
    """Where one of Hindcast's columns, or its leaves, come from; empty if there are none."""
    mapped = {name: theirs for name, theirs in schema.items() if root(name) == own}
    if mapped:
        return {
            leaf: source for name in mapped for leaf, source in _mapped(name, mapped[name], table).items()
        }
    found = table.find(own, own)
    if found:
        return found
    others = {alias: parts for alias in ALIASES.get(own, ()) if (parts := table.find(alias, own))}
    if len(others) > 1:
        first, second, *_ = others
        raise DataError(f"{first!r} and {second!r} could both be {own!r}: say which under `schema`")
    return next(iter(others.values()), {})


def _mapped(own: str, theirs: str | Sequence[str], table: _Table) -> dict[str, LeafSource]:
    if not isinstance(theirs, str):
        missing = next((name for name in theirs if name not in table.names), None)
        if missing is not None:
            raise _no_column(missing, own, table)
        return {own: LeafSource(tuple(theirs), (len(theirs),))}
    if theirs in table.names:
        return {own: LeafSource((theirs,))}
    if _GLOB.search(theirs):
        matching = sorted(
            (name for name in table.names if fnmatch.fnmatchcase(name, theirs)), key=natural_sort_key
        )
        if not matching:
            raise DataError(
                f"no column matches {theirs!r}, which `schema` names: there are {format_names(table.names)}"
            )
        return {own: LeafSource(tuple(matching), (len(matching),))}
    found = table.find(theirs, own)
    if not found:
        raise _no_column(theirs, own, table)
    return found


def _no_column(name: str, own: str, table: _Table) -> DataError:
    return DataError(
        f"it has no column {name!r}, which `schema` names for {own!r}: {suggest_name(name, table.names)}"
    )


def _only_done(sources: dict[str, LeafSource], options: ReadOptions) -> tuple[str | None, str | None]:
    """The flag `done` if it is the only one, and the infos that may explain it."""
    over = sources.get(Columns.TERMINATEDS)
    if over is None or Columns.TRUNCATEDS in sources or Columns.TERMINATEDS in options.schema:
        return None, None
    if over.columns[0] not in DONE_NAMES and not any(name in DONE_NAMES for name in options.schema):
        return None, None
    infos = sources.get(Columns.INFOS)
    return over.columns[0], None if infos is None else infos.columns[0]


def _selected(sources: dict[str, LeafSource], columns: Sequence[str] | None) -> dict[str, LeafSource]:
    if columns is None:
        return sources
    known = {*sources, *map(root, sources)}
    for name in columns:
        if name not in known:
            own = next((own for own, source in sources.items() if name in source.columns), None)
            raise DataError(
                f"it has no column {name!r}, which `columns` names: {suggest_name(name, known)}"
                if own is None
                else f"`columns` takes Hindcast's names: write {root(own)!r} for {name!r}"
            )
    wanted = {*columns, *(next_leaf(name) for name in columns if root(name) == Columns.OBS)}
    return {
        name: source
        for name, source in sources.items()
        if name in wanted or root(name) in wanted or name in ROLE_COLUMNS
    }


def _check_needed(sources: Collection[str], columns: Sequence[str] | None, names: Sequence[str]) -> None:
    there = set(map(root, sources))
    missing = next((own for own in _NEEDED if own not in there), None)
    if missing is not None and columns is None:
        spared = _WITHOUT_REWARDS if missing == Columns.REWARDS else ""
        raise DataError(
            f"it has no column {missing!r}, nor an alias of it: name it under `schema`{spared}; there are "
            f"{format_names(names)}"
        )
