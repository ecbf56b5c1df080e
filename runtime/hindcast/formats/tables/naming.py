"""Mapping the columns of a table to Hindcast's columns, by the user's `schema`, RLlib's names and known aliases."""

from __future__ import annotations

import difflib
import fnmatch
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from hindcast.episodes.columns import SEPARATOR, Columns, next_leaf, obs_leaf, root
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
"""Hindcast's column -> other names by which it is recognised."""
_LEROBOT_COLUMNS: Final = {
    Columns.OBS: "observation.state",
    Columns.ACTIONS: "action",
    Columns.REWARDS: "next.reward",
    DONE_NAMES[0]: "next.done",
    Columns.EPS_ID: "episode_index",
    Columns.T: "frame_index",
}
"""Hindcast's column -> its name in the datasets of LeRobot, where `next.done` does not say why an episode ends."""
_VECTOR_COLUMNS: Final = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS)
_REQUIRED_COLUMNS: Final = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
_REWARD_ADVICE: Final = ", or read `columns: [obs, actions]` alone, which is enough for BC"
# Read even if `columns` does not name them, because assembling episodes requires them.
ROLE_COLUMNS: Final = (
    Columns.TERMINATEDS,
    Columns.TRUNCATEDS,
    Columns.EPS_ID,
    Columns.T,
    Columns.TIME,
    Columns.AGENT_ID,
    Columns.MODULE_ID,
)
_SINGLE_COLUMNS: Final = (*ROLE_COLUMNS, Columns.REWARDS, Columns.INFOS)
_RLDS_FLAGS: Final = frozenset({"is_last", "is_terminal"})
_COLUMN_BY_ALIAS: Final = {
    alias: column for column, aliases in ALIASES.items() for alias in aliases if alias not in DONE_NAMES
}
_KNOWN_NAMES: Final = (*ALIASES, *DONE_NAMES, Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS)
_INDEXED_NAME: Final = re.compile(r"(?P<stem>.+)\[(?P<index>\d+(?:,\d+)*)\]")
_GLOB_CHARACTERS: Final = re.compile(r"[*?]")


FieldPath = tuple[str, ...]
"""A column, and the names of fields within each other."""


class LeafSource(NamedTuple):
    """The source columns of a leaf.

    Attributes:
        columns: names of the source columns, in order.
        shape: shape of the array that the columns form together at each timestep; None if there is only one column,
            which holds the whole value.
    """

    columns: tuple[str, ...]
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class TablePlan:
    """The columns to read from a table.

    Attributes:
        sources: Hindcast's name of a leaf or column -> source columns.
        done_column: source column of a flag that ends episodes but does not say why; None if there is no such flag.
        last_column: source column of RLDS's `is_last`, which marks rows that hold only the observation after their
            episode's last timestep; None without it.
        end_infos: source column of infos that may say why an episode ends; None without `done_column` or infos.
        skipped_columns: source columns that are not read because other columns replace them.
        names: leaf of `obs` or `actions` -> the columns that the user chose for its elements.
        fields: source column that is a field of a struct -> its path.
        schema_notes: notes on the names in the user's `schema`.
    """

    sources: dict[str, LeafSource]
    done_column: str | None
    end_infos: str | None
    skipped_columns: tuple[str, ...]
    last_column: str | None = None
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fields: Mapping[str, FieldPath] = field(default_factory=dict)
    schema_notes: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """Source columns to read."""
        names = [name for source in self.sources.values() for name in source.columns]
        names += filter(None, (self.end_infos, self.last_column))
        return list(dict.fromkeys(self.fields.get(name, (name,))[0] for name in names))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the interpretation of ambiguous columns."""
        notes = [*self.schema_notes]
        if self.done_column is not None:
            exception = (
                "" if self.end_infos is None else f", unless its {self.end_infos!r} reports a time limit"
            )
            notes.append(
                f"{self.done_column!r} does not say why an episode ends: its ends are read as "
                f"terminated{exception}"
            )
        if self.last_column is not None:
            notes.append(
                f"rows with {self.last_column!r} hold the observation after an episode's last step, as in RLDS; their "
                "actions and rewards are not read"
            )
        if self.skipped_columns:
            notes.append(
                f"the columns {format_names(self.skipped_columns)} are not read: other columns replace them"
            )
        return tuple(notes)


def plan_columns(
    names: Sequence[str],
    options: ReadOptions,
    empty_leaves: Collection[str] = (),
    *,
    may_have_structs: bool = True,
) -> TablePlan:
    """Plan what to read from a table with these columns.

    Args:
        names: names of the table's columns; the options' keys are added.
        options: options of the user.
        empty_leaves: leaves with an empty shape, for which the table has no column.
        may_have_structs: whether `schema` may name fields of columns (`state.position`).

    Raises:
        DataError: a column is missing, ambiguous or misnamed.
    """
    names = [*names, *(key for key in options.keys if key not in names)]
    table = _Table(names, may_have_structs)
    if _LEROBOT_COLUMNS[Columns.OBS] in names:
        defaults = {column: name for column, name in _LEROBOT_COLUMNS.items() if name in names}
        options = replace(options, schema={**_without_columns(defaults, options.schema), **options.schema})
    _check_schema(options.schema)
    schema = {
        Columns.TERMINATEDS if column in DONE_NAMES else column: source_name
        for column, source_name in options.schema.items()
    }
    if options.time is not None:
        schema[Columns.TIME] = options.time.column
    sources: dict[str, LeafSource] = {}
    for column in dict.fromkeys([*ALIASES, *map(root, schema)]):
        sources.update(_find_sources(column, schema, table))
    _check_single_columns(sources)
    used_names = {name for source in sources.values() for name in source.columns}
    used_names |= {path[0] for path in table.fields.values()}
    skipped_names: list[str] = []
    for stem, source in table.source_by_stem.items():
        if used_names.isdisjoint(source.columns):
            if root(stem) in NON_OUTPUT_COLUMNS or root(stem) in sources:
                skipped_names += source.columns
            else:
                sources[stem] = source
    done_column, end_infos = _find_done_column(sources, options)
    last_column = _extract_last_column(sources)
    _check_compressed_columns({*map(root, sources), *names}, options.compress_columns or ())
    sources = _select_sources(sources, options.columns)
    _check_required({*sources, *empty_leaves}, options.columns, names)
    ignored_names = NON_OUTPUT_COLUMNS - set(DONE_NAMES) - ALIASES.keys()
    # A column that is the leaf by its own name, such as `obs`, says nothing about its elements.
    element_names = {
        leaf: source.columns
        for leaf, source in sources.items()
        if root(leaf) in (Columns.OBS, Columns.ACTIONS)
        and root(leaf) in map(root, options.schema)
        and source.columns[0] not in (root(leaf), *ALIASES[root(leaf)])
    }
    return TablePlan(
        sources=sources,
        done_column=done_column,
        end_infos=end_infos,
        skipped_columns=tuple(name for name in skipped_names if name not in ignored_names),
        last_column=last_column,
        names=element_names,
        fields=table.fields,
        schema_notes=tuple(
            # RLDS's flags are no additional columns if `last_column` was extracted.
            _describe_schema(
                [name for name in options.schema if last_column is None or name not in _RLDS_FLAGS]
            )
        ),
    )


def _check_schema(schema: Mapping[str, object]) -> None:
    """Refuse another tool's name of one of Hindcast's columns, whose values would be read as additional ones.

    Raises:
        DataError: the schema has such a name.
    """
    for name in schema:
        column = _COLUMN_BY_ALIAS.get(name)
        if column is not None and column not in schema:
            raise DataError(
                f"`schema` has {name!r}, which is not a name of Hindcast: write {column!r} in its place"
            )


def _describe_schema(names: Sequence[str]) -> list[str]:
    """Return a note for each of the schema's names of additional columns that may be a misspelt column."""
    notes = []
    for name in names:
        if name in _KNOWN_NAMES or root(name) in _KNOWN_NAMES:
            continue
        matches = difflib.get_close_matches(name, _KNOWN_NAMES, 1)
        if matches:
            meaning = ", the log-probability of the action" if matches[0] == Columns.ACTION_LOGP else ""
            notes.append(
                f"`schema` has {name!r}, which becomes an additional column; did you mean {matches[0]!r}{meaning}?"
            )
    return notes


def _check_compressed_columns(names: Collection[str], compressed_names: Sequence[str]) -> None:
    known_names = set(map(obs_leaf, names))
    for name in compressed_names:
        if obs_leaf(name) not in known_names:
            raise DataError(
                f"it has no column {name!r}, which `compressColumns` contains; {suggest_name(name, sorted(names))}"
            )


def _without_columns(schema: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """Return the entries of a schema, except those of columns that `names` contains."""
    return {column: name for column, name in schema.items() if column not in set(map(root, names))}


def suggest_name(name: str, names: Collection[str]) -> str:
    """Return advice for an unknown name: the closest known name, else all names."""
    matches = difflib.get_close_matches(name, names, 1)
    return f"did you mean {matches[0]!r}?" if matches else f"choose one of {format_names(names)}"


def format_names(names: Collection[str]) -> str:
    """Format names for a message: at most the first 20, and the number of the remaining names."""
    first_names = list(names)[:20]
    return f"{first_names}" + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def find_field_path(name: str, names: Collection[str]) -> FieldPath | None:
    """Return the path of a field, such as `state.position`, in the longest column that it may be in, or None."""
    if name in names:
        return None
    columns = [column for column in names if name.startswith((f"{column}.", f"{column}{SEPARATOR}"))]
    if not columns:
        return None
    column = max(columns, key=len)
    return (column, *re.split(rf"[.{SEPARATOR}]", name[len(column) + 1 :]))


class _Table:
    """The columns of a table; columns with indexed names, such as `obs[0]`, are grouped by stem.

    Attributes:
        fields: names of fields that were found -> their paths.
    """

    def __init__(self, names: Sequence[str], may_have_structs: bool) -> None:
        self.fields: dict[str, FieldPath] = {}
        self._may_have_structs = may_have_structs
        duplicate_name = next((name for name in names if names.count(name) > 1), None)
        if duplicate_name is not None:
            raise DataError(f"it has two columns {duplicate_name!r}: rename one")
        self.names = names
        self.source_by_stem: dict[str, LeafSource] = {}
        indexed_names: dict[str, dict[tuple[int, ...], str]] = {}
        for name in names:
            match = _INDEXED_NAME.fullmatch(name)
            if match is None:
                self.source_by_stem[name] = LeafSource((name,))
            else:
                index = tuple(int(part) for part in match["index"].split(","))
                indexed_names.setdefault(match["stem"], {})[index] = name
        for stem, column_by_index in indexed_names.items():
            if stem in self.source_by_stem:
                raise DataError(
                    f"it has the columns {stem!r} and {next(iter(column_by_index.values()))!r}: rename one"
                )
            self.source_by_stem[stem] = _assemble_source(stem, column_by_index)

    def find(self, name: str, target: str) -> dict[str, LeafSource]:
        """Find a column, or else its leaves (`name/…`), or else its numbered columns (`name_0`, …).

        Args:
            name: name of the column in the table.
            target: Hindcast's name.

        Returns:
            Hindcast's name of the column or leaf -> source; empty if the column is missing.
        """
        if name in self.source_by_stem:
            return {target: self.source_by_stem[name]}
        leaves = {
            stem: source for stem, source in self.source_by_stem.items() if stem.startswith(name + SEPARATOR)
        }
        if leaves:
            return {target + stem.removeprefix(name): source for stem, source in leaves.items()}
        return self._find_numbered(name, target) if root(target) in _VECTOR_COLUMNS else {}

    def try_add_field(self, name: str) -> bool:
        """Add a name to `fields` if it may be the path of a field; return whether it may.

        Only the column's type, which is not known here, shows which fields it has.
        """
        path = find_field_path(name, self.names) if self._may_have_structs else None
        if path is not None:
            self.fields[name] = path
        return path is not None

    def _find_numbered(self, name: str, target: str) -> dict[str, LeafSource]:
        pattern = re.compile(rf"{re.escape(name)}_(\d+)")
        columns_by_number = {
            int(match[1]): column for column in self.names if (match := pattern.fullmatch(column))
        }
        if not columns_by_number:
            return {}
        # columns may be numbered from 1 or from 0
        first_number = 1 if min(columns_by_number) == 1 else 0
        return {
            target: _assemble_source(
                name, {(number - first_number,): column for number, column in columns_by_number.items()}
            )
        }


def _assemble_source(stem: str, column_by_index: dict[tuple[int, ...], str]) -> LeafSource:
    """Return the source of an array from its numbered columns.

    Raises:
        DataError: an index is missing, or indices differ in their number of dimensions.
    """
    dimensions = {len(index) for index in column_by_index}
    if len(dimensions) > 1:
        raise DataError(
            f"the columns of {stem!r} are numbered in several ways: {format_names(sorted(column_by_index.values()))}"
        )
    indices = sorted(column_by_index)
    shape = tuple(max(index[axis] for index in indices) + 1 for axis in range(dimensions.pop()))
    if math.prod(shape) != len(indices):
        raise DataError(
            f"the columns of {stem!r} are numbered for an array of {list(shape)}, but there are only "
            f"{len(indices)} columns: at least one is missing"
        )
    return LeafSource(tuple(column_by_index[index] for index in indices), shape)


def _check_single_columns(sources: Mapping[str, LeafSource]) -> None:
    split_column = next(
        (column for column in _SINGLE_COLUMNS if column in sources and len(sources[column].columns) > 1), None
    )
    if split_column is not None:
        raise DataError(
            f"{split_column!r} must be one column, but {format_names(sources[split_column].columns)} are several: "
            "name one under `schema`, or join them into one column"
        )


def _find_sources(
    column: str, schema: Mapping[str, str | Sequence[str]], table: _Table
) -> dict[str, LeafSource]:
    """Find the sources of one of Hindcast's columns, or of its leaves; empty if the table does not have it."""
    mapping = {name: source_name for name, source_name in schema.items() if root(name) == column}
    if mapping:
        return {
            leaf: source
            for name in mapping
            for leaf, source in _find_mapped_sources(name, mapping[name], table).items()
        }
    sources = table.find(column, column)
    if sources:
        return sources
    sources_by_alias = {
        alias: sources for alias in ALIASES.get(column, ()) if (sources := table.find(alias, column))
    }
    if len(sources_by_alias) > 1:
        first_alias, second_alias, *_ = sources_by_alias
        raise DataError(
            f"{first_alias!r} and {second_alias!r} could both be {column!r}: choose one under `schema`"
        )
    return next(iter(sources_by_alias.values()), {})


def _find_mapped_sources(target: str, source: str | Sequence[str], table: _Table) -> dict[str, LeafSource]:
    if not isinstance(source, str):
        missing_name = next(
            (name for name in source if name not in table.names and not table.try_add_field(name)), None
        )
        if missing_name is not None:
            raise _missing_column_error(missing_name, target, table)
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
    if not sources and table.try_add_field(source):
        return {target: LeafSource((source,))}
    if not sources:
        raise _missing_column_error(source, target, table)
    return sources


def _missing_column_error(name: str, target: str, table: _Table) -> DataError:
    field = "`time` names" if target == Columns.TIME else f"`schema` names for {target!r}"
    return DataError(f"it has no column {name!r}, which {field}: {suggest_name(name, table.names)}")


def _find_done_column(sources: dict[str, LeafSource], options: ReadOptions) -> tuple[str | None, str | None]:
    """Return `done_column` and `end_infos` of the plan."""
    done_source = sources.get(Columns.TERMINATEDS)
    if done_source is None or Columns.TRUNCATEDS in sources or Columns.TERMINATEDS in options.schema:
        return None, None
    if done_source.columns[0] not in DONE_NAMES and not any(name in DONE_NAMES for name in options.schema):
        return None, None
    info_source = sources.get(Columns.INFOS)
    return done_source.columns[0], None if info_source is None else info_source.columns[0]


def _extract_last_column(sources: dict[str, LeafSource]) -> str | None:
    """Return `last_column` of the plan; its flags, and the discount that goes with them, are removed from `sources`."""
    if sources.keys() & {Columns.TERMINATEDS, Columns.TRUNCATEDS} or not sources.keys() >= _RLDS_FLAGS:
        return None
    sources[Columns.TERMINATEDS] = sources["is_terminal"]
    last_column = sources["is_last"].columns[0]
    for name in (*_RLDS_FLAGS, "is_first", "discount"):
        sources.pop(name, None)
    return last_column


def _select_sources(sources: dict[str, LeafSource], columns: Sequence[str] | None) -> dict[str, LeafSource]:
    """Return the sources of the requested columns, their next observations, and the columns of `ROLE_COLUMNS`."""
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
    """Check that observations, actions and rewards have sources; if the user chose `columns`, nothing is required."""
    present_columns = set(map(root, sources))
    missing_column = next((column for column in _REQUIRED_COLUMNS if column not in present_columns), None)
    if missing_column is not None and columns is None:
        advice = _REWARD_ADVICE if missing_column == Columns.REWARDS else ""
        raise DataError(
            f"it has no column {missing_column!r} and no alias of it: name it under `schema`{advice}; the columns "
            f"are {format_names(names)}"
        )
