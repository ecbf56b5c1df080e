"""Units, the parts of a dataset that are read at once."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hindcast.datasets.file_index import IndexedFile
from hindcast.episodes.block import I64
from hindcast.formats.entries import (
    FileEntry,
    RowGroup,
    numbers_to_numpy,
    row_group_column,
    row_group_columns,
)
from hindcast.formats.spec import DataSpec

UNIT_BYTES = 16 << 20
"""Default of the maximum size of a unit in memory."""


class FilePart(NamedTuple):
    """Row groups of one file.

    Attributes:
        path: path of the file.
        row_groups: indices of the row groups.
    """

    path: str
    row_groups: tuple[int, ...]


class EpisodeLocation(NamedTuple):
    """The location of an episode, for messages.

    Attributes:
        path: the file, or the data that the episode was prepared from.
        row: index of its row in the file; None for prepared data.
    """

    path: str
    row: int | None

    def __str__(self) -> str:
        return self.path if self.row is None else f"{self.path}, row {self.row}"


class Unit(NamedTuple):
    """A part of a dataset that is read at once: adjacent row groups, of several files if the files are small.

    Attributes:
        id: index in the dataset.
        parts: row groups of each of its files.
        lengths: `[N]` timesteps of each episode.
        nbytes: approximate size of all columns in memory.
    """

    id: int
    parts: tuple[FilePart, ...]
    lengths: I64
    nbytes: int


class UnitSizes(NamedTuple):
    """Sizes of units.

    Attributes:
        episodes: `[U]` number of episodes.
        steps: `[U]` number of timesteps.
        nbytes: `[U]` approximate size of all columns in memory.
    """

    episodes: I64
    steps: I64
    nbytes: I64


class Units(Sequence[Unit]):
    """Units as columns; a `Unit` is made when it is indexed.

    Args:
        paths: paths of the files.
        first_groups: `[F]` position, among the row groups of all files, of each file's first row group.
        groups: `[G]` positions of the row groups that have remaining rows.
        group_bounds: `[U + 1]` index in `groups` of each unit's first row group; the last one is G.
        lengths: timesteps of each episode of all units.
        episode_bounds: `[U + 1]` index in `lengths` of each unit's first episode; the last one is their number.
        nbytes: `[U]` see `UnitSizes`.
    """

    def __init__(
        self,
        *,
        paths: Sequence[str],
        first_groups: I64,
        groups: I64,
        group_bounds: I64,
        lengths: NDArray[np.integer],
        episode_bounds: I64,
        nbytes: I64,
    ) -> None:
        self._paths, self._first_groups = paths, first_groups
        self._groups, self._group_bounds = groups, group_bounds
        self.lengths, self._episode_bounds = lengths, episode_bounds
        self._nbytes = nbytes

    @property
    def num_files(self) -> int:
        """Number of files that the units are in."""
        return len(np.unique(np.searchsorted(self._first_groups, self._groups, side="right")))

    @property
    def sizes(self) -> UnitSizes:
        """Sizes of the units."""
        episodes = np.diff(self._episode_bounds)
        steps = np.zeros(len(self), dtype=np.int64)
        unit_ids = np.flatnonzero(episodes)
        steps[unit_ids] = np.add.reduceat(self.lengths, self._episode_bounds[unit_ids], dtype=np.int64)
        return UnitSizes(episodes, steps, self._nbytes)

    def __len__(self) -> int:
        return len(self._nbytes)

    @overload
    def __getitem__(self, index: int) -> Unit: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Unit, ...]: ...

    def __getitem__(self, index: int | slice) -> Unit | tuple[Unit, ...]:
        if isinstance(index, slice):
            return tuple(map(self._make, range(len(self))[index]))
        return self._make(range(len(self))[index])

    def _make(self, unit_id: int) -> Unit:
        groups = self._groups[slice(*self._group_bounds[unit_id : unit_id + 2])]
        files = np.searchsorted(self._first_groups, groups, side="right") - 1
        pairs = zip(files.tolist(), (groups - self._first_groups[files]).tolist(), strict=True)
        parts = tuple(
            FilePart(self._paths[file], tuple(group for _, group in file_groups))
            for file, file_groups in groupby(pairs, key=itemgetter(0))
        )
        lengths = self.lengths[slice(*self._episode_bounds[unit_id : unit_id + 2])]
        return Unit(unit_id, parts, lengths.astype(np.int64), int(self._nbytes[unit_id]))


def unit_sizes(units: Sequence[Unit]) -> UnitSizes:
    """Return the sizes of units."""
    if isinstance(units, Units):
        return units.sizes
    columns = ((len(unit.lengths), int(unit.lengths.sum()), unit.nbytes) for unit in units)
    return UnitSizes(*np.array(list(columns), dtype=np.int64).reshape(-1, 3).T)


def count_files(units: Sequence[Unit]) -> int:
    """Return the number of files that units are in."""
    if isinstance(units, Units):
        return units.num_files
    return len({part.path for unit in units for part in unit.parts})


def episode_lengths(units: Sequence[Unit]) -> NDArray[np.integer]:
    """Return `[N]` the timesteps of each episode of units."""
    if isinstance(units, Units):
        return units.lengths
    return np.concatenate([np.empty(0, np.int64), *(unit.lengths for unit in units)])


def build_units(files: Sequence[IndexedFile], unit_bytes: int = UNIT_BYTES) -> Units:
    """Make units of at most `unit_bytes` in memory; a larger row group or episode makes a larger unit.

    Row groups without remaining rows are left out.
    """
    columns = row_group_columns(file.entry for file in files)
    first_groups = _bounds(np.array([len(file.entry.row_groups) for file in files], dtype=np.int64))
    groups = np.flatnonzero(row_group_column(columns, "rows") != _list_sizes(columns, "dropped"))
    # Most or all files share one spec.
    runs = (list(run) for _, run in groupby(files, key=lambda file: id(file.spec)))
    specs = ((run[0].spec, sum(len(file.entry.row_groups) for file in run)) for run in runs)
    group_bytes = bytes_in_memory(columns, specs)[groups]
    if len(groups) < len(columns):
        columns = columns.take(pa.array(groups))
    # A fragment stays in the unit of the previous fragment, so that units have only complete episodes.
    group_ids, first_rows = _list_values(columns, "continued")
    is_continued = np.zeros(len(groups), dtype=np.bool_)
    is_continued[group_ids[first_rows == 0]] = True
    starts = _find_unit_starts(group_bytes, is_continued, unit_bytes)
    lengths, episode_bounds = _join_rows(columns, starts)
    return Units(
        paths=[str(file.location) for file in files],
        first_groups=first_groups[:-1],
        groups=groups,
        group_bounds=np.append(starts, len(groups)),
        lengths=lengths,
        episode_bounds=episode_bounds,
        nbytes=np.add.reduceat(group_bytes, starts),
    )


def continued_row_mask(groups: Sequence[RowGroup]) -> NDArray[np.bool_]:
    """Return `[rows]` True for rows of adjacent row groups that continue the previous row; False for the first row."""
    is_continued = _row_mask(groups, [group.continued for group in groups])
    is_continued[:1] = False
    return is_continued


def retained_row_mask(groups: Sequence[RowGroup]) -> NDArray[np.bool_]:
    """Return `[rows]` True for rows of row groups that were not dropped as repeats of other rows."""
    return ~_row_mask(groups, [group.dropped for group in groups])


def retained_episode_mask(files: Iterable[FileEntry]) -> NDArray[np.bool_]:
    """Return `[N]` True for the stored episodes of files that were not dropped; fragments count once."""
    is_first, is_retained = _row_masks(row_group_columns(files))
    return is_retained[is_first]


def _row_mask(groups: Sequence[RowGroup], row_lists: Sequence[Sequence[int]]) -> NDArray[np.bool_]:
    """Return `[rows]` a mask over the rows of all groups, from a list of row indices for each group."""
    starts = np.cumsum([0, *(group.rows for group in groups)])
    mask = np.zeros(starts[-1], dtype=np.bool_)
    for start, rows in zip(starts[:-1], row_lists, strict=True):
        mask[[start + row for row in rows]] = True
    return mask


def _find_unit_starts(group_bytes: I64, is_continued: NDArray[np.bool_], unit_bytes: int) -> I64:
    """Return `[U]` index of each unit's first row group."""
    starts = array("q")  # far smaller than lists of numbers
    size = 0
    for group, (nbytes, continues) in enumerate(zip(group_bytes.data, is_continued.data, strict=True)):
        if not starts or (not continues and size + nbytes > unit_bytes):
            starts.append(group)
            size = 0
        size += nbytes
    return np.asarray(starts, dtype=np.int64)


def bytes_in_memory(row_groups: pa.ChunkedArray, specs: Iterable[tuple[DataSpec, int]]) -> I64:
    """Return `[G]` the size of each row group's arrays, or of its stored bytes if they are more, as with text.

    Args:
        row_groups: the row groups.
        specs: specs, in order, and the number of row groups of each.
    """
    # Other tools may store arrays in fewer bytes than they take in memory, as dictionaries, bits or packed cells.
    # Hindcast does not: for its files this must stay the stored size, since the order of data depends on it.
    nbytes, steps = (row_group_column(row_groups, name) for name in ("bytes", "timesteps"))
    episodes = row_group_column(row_groups, "rows").astype(np.int64) - _list_sizes(row_groups, "continued")
    start = 0
    for spec, count in specs:
        part = slice(start, start + count)
        array_bytes = spec.array_bytes(1, 0) * steps[part] + spec.array_bytes(0, 1) * episodes[part]
        nbytes[part] = np.maximum(nbytes[part], array_bytes)
        start += count
    return nbytes


def _join_rows(columns: pa.ChunkedArray, starts: I64) -> tuple[NDArray[np.integer], I64]:
    """Join the remaining rows of each episode.

    Args:
        columns: row groups that have remaining rows.
        starts: `[U]` index of the first row group of each unit.

    Returns:
        The timesteps of each episode, and `[U + 1]` the index of each unit's first episode.
    """
    lengths = row_group_column(columns, "lengths")
    row_starts = _bounds(row_group_column(columns, "rows"))
    unit_rows = np.append(row_starts[starts], len(lengths))
    if not any(len(row_group_column(columns, name)) for name in ("continued", "dropped")):
        return lengths, unit_rows
    is_first, is_retained = _row_masks(columns)
    is_first[unit_rows[:-1]] = True
    is_first, unit_rows = is_first[is_retained], _bounds(is_retained)[unit_rows]
    is_start = is_first.copy()
    is_start[unit_rows[:-1]] = True  # no sum crosses the start of a unit
    row_indices = np.flatnonzero(is_start)
    sums = np.add.reduceat(lengths[is_retained], row_indices, dtype=np.int64)
    return sums[is_first[row_indices]], _bounds(is_first)[unit_rows]


def _row_masks(columns: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return `[2, rows]` masks of the rows of row groups: those that start an episode, and those that remain."""
    row_starts = _bounds(row_group_column(columns, "rows"))
    masks = np.ones((2, row_starts[-1]), dtype=np.bool_)
    for name, mask in zip(("continued", "dropped"), masks, strict=True):
        group_ids, rows = _list_values(columns, name)
        mask[row_starts[group_ids] + rows] = False
    return masks


def _bounds(sizes: NDArray[Any]) -> I64:
    """Return `[N + 1]` the start of each of N adjacent parts, and the end of the last one."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _list_sizes(columns: pa.ChunkedArray, name: str) -> NDArray[np.int32]:
    sizes: NDArray[np.int32] = numbers_to_numpy(pc.list_value_length(pc.struct_field(columns, name)))
    return sizes


def _list_values(columns: pa.ChunkedArray, name: str) -> tuple[I64, NDArray[np.int32]]:
    """Return all values of a column of lists, each with the index of its row group."""
    values = row_group_column(columns, name)
    return np.repeat(np.arange(len(columns)), _list_sizes(columns, name)), values
