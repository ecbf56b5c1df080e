"""The format "HDF5Episodes": HDF5 files that store each episode separately, as robomimic, LIBERO and d3rlpy 2 do."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.columns import Columns, next_leaf
from hindcast.errors import DataError
from hindcast.formats import hdf5
from hindcast.formats.format import Format, NoRowsError, Piece, ReadOptions, check_no_schema, has_suffix
from hindcast.formats.hdf5 import Group
from hindcast.formats.lossless import fit_shape
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec
from hindcast.formats.tables.read_options import check_options
from hindcast.formatting import natural_sort_key
from hindcast.storage.location import Location

_DEMO: Final = re.compile(r"demo_\d+")
_OBSERVATIONS: Final = "observations"
_BUFFER_COLUMNS: Final = ("actions", "rewards", "terminated")
_PIECE_EPISODES: Final = 64


class HDF5Episodes(Format):
    """HDF5 files with a group for each episode (`data/demo_0`), or with d3rlpy's datasets `observations_0`, …."""

    name = "HDF5Episodes"
    title = "HDF5 (robomimic, LIBERO, d3rlpy 2)"

    def recognises(self, location: Location) -> bool:
        """See `Format.recognises`: by the names in the file."""
        if not has_suffix(location.name, hdf5.SUFFIXES):
            return False
        try:
            with hdf5.open_file(location) as file:
                return bool(_list_demos(location, file) or _is_buffer(location, file))
        except DataError:
            return False

    def list_pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """See `Format.list_pieces`: some adjacent episodes each."""
        check_options(self.name, options.options, ())
        check_no_schema(options, self.name)
        if options.filter:
            raise DataError(f"a filter cannot be applied to {self.title}: leave it out", path=str(location))
        with hdf5.open_file(location) as file:
            count = len(_list_demos(location, file)) or _count_buffer_episodes(location, file)
        if not count:
            raise NoRowsError(location)
        nbytes = (location.info().size or 0) * _PIECE_EPISODES // count
        return [
            Piece(location, nbytes, range(first, min(first + _PIECE_EPISODES, count)))
            for first in range(0, count, _PIECE_EPISODES)
        ]

    def describe(self, location: Location) -> DataSpec:  # noqa: ARG002
        """See `Format.describe`: the files state no spaces."""
        return DataSpec(normalized_actions=False)

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Rows]:
        """See `Format.read`: the rows of one episode at a time.

        Raises:
            DataError: the file is damaged, or an episode lacks a dataset.
        """
        location = piece.location
        with hdf5.open_file(location) as file:
            demos = _list_demos(location, file)
            for episode in piece.extent:
                rows = (
                    _read_demo(location, file, demos[episode], episode)
                    if demos
                    else _read_buffer_episode(location, file, episode)
                )
                yield _select_columns(rows, options)


def _list_demos(location: Location, file: Group) -> list[str]:
    """Return the names of robomimic's episodes, in natural order; empty for other files."""
    if "data" not in hdf5.list_child_names(location, file):
        return []
    data = hdf5.open_child(location, file, "data")
    if not hasattr(data, "keys"):  # a dataset
        return []
    names = [name for name in hdf5.list_child_names(location, data) if _DEMO.fullmatch(name)]
    return sorted(names, key=natural_sort_key)


def _is_buffer(location: Location, file: Group) -> bool:
    """Return True for the file of a replay buffer of d3rlpy 2; tuples of observations are stored one by one."""
    names = set(hdf5.list_child_names(location, file))
    has_observations = not names.isdisjoint((f"{_OBSERVATIONS}_0", f"{_OBSERVATIONS}_0_0"))
    return has_observations and {"columns", "version", "terminated_0"} <= names


def _count_buffer_episodes(location: Location, file: Group) -> int:
    return sum(name.startswith("terminated_") for name in hdf5.list_child_names(location, file))


def _read_demo(location: Location, file: Group, name: str, episode: int) -> Rows:
    group = hdf5.open_child(location, hdf5.open_child(location, file, "data"), name)
    names = hdf5.list_child_names(location, group)
    columns = {
        Columns.ACTIONS: _read_all(location, group, "actions"),
        **_read_group(location, group, "obs", Columns.OBS),
    }
    if "next_obs" in names:
        columns |= _read_group(location, group, "next_obs", next_leaf(Columns.OBS))
    if "rewards" in names:
        columns[Columns.REWARDS] = _read_all(location, group, "rewards")
    is_done = _read_all(location, group, "dones") != 0 if "dones" in names else None
    return _make_rows(location, columns, is_done, f"{location}:{name}", episode)


def _read_buffer_episode(location: Location, file: Group, episode: int) -> Rows:
    actions, rewards, terminated = (
        _read_all(location, file, f"{column}_{episode}") for column in _BUFFER_COLUMNS
    )
    columns = {
        **_read_buffer_observations(location, file, f"{_OBSERVATIONS}_{episode}"),
        Columns.ACTIONS: actions,
        Columns.REWARDS: rewards,
    }
    is_done = np.zeros(len(actions), np.bool_)
    is_done[-1:] = bool(terminated)
    return _make_rows(location, columns, is_done, f"{location}:{episode}", episode)


def _read_buffer_observations(location: Location, file: Group, name: str) -> dict[str, NDArray[Any]]:
    """Read the observations of an episode: one array, or `<name>_0`, `<name>_1`, … for the items of a tuple."""
    if name in file or f"{name}_0" not in file:  # an episode without observations is refused
        return {Columns.OBS: _read_all(location, file, name)}
    items = itertools.takewhile(lambda item: f"{name}_{item}" in file, itertools.count())
    return {f"{Columns.OBS}/{item}": _read_all(location, file, f"{name}_{item}") for item in items}


def _make_rows(
    location: Location,
    columns: dict[str, NDArray[Any]],
    is_done: NDArray[np.bool_] | None,
    eps_id: str,
    episode: int,
) -> Rows:
    """Return the rows of one episode, which is truncated if its last row is not done, or if no flags are stored (None).

    Raises:
        DataError: columns differ in length.
    """
    length = len(columns[Columns.ACTIONS])
    if Columns.REWARDS in columns and (rewards := fit_shape(columns[Columns.REWARDS], ())) is not None:
        columns[Columns.REWARDS] = rewards
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"the columns of {eps_id} differ in length: {lengths}", path=str(location))
    terminated = np.zeros(length, np.bool_) if is_done is None else is_done.reshape(length).astype(np.bool_)
    terminated[:-1] = False
    is_last = np.arange(length) == length - 1
    return Rows(
        columns=columns,
        terminated=terminated,
        truncated=is_last & ~terminated,
        next_missing=np.zeros(length, np.bool_),
        path=str(location),
        row=np.full(length, episode),  # rows begin at 0 in each episode, so messages name the episode
        eps_id=np.full(length, eps_id, dtype=object),
        t=np.arange(length),
    )


def _read_group(location: Location, group: Group, name: str, column: str) -> dict[str, NDArray[Any]]:
    """Read all datasets of a group as leaves of a column."""
    child = hdf5.open_child(location, group, name)
    return {
        f"{column}/{key}": _read_all(location, child, key) for key in hdf5.list_child_names(location, child)
    }


def _read_all(location: Location, group: Group, name: str) -> NDArray[Any]:
    dataset = hdf5.open_child(location, group, name)
    if not dataset.shape:
        return np.asarray(dataset[()])
    return hdf5.read_values(location, dataset, 0, dataset.shape[0])


def _select_columns(rows: Rows, options: ReadOptions) -> Rows:
    """Return the rows with the requested columns, and the observations."""
    if options.columns is None:
        return rows
    names = {Columns.OBS, Columns.NEXT_OBS, *options.columns}
    columns = {name: array for name, array in rows.columns.items() if {name, name.split("/")[0]} & names}
    return Rows(**{**vars(rows), "columns": columns})
