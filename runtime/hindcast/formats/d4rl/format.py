"""The format "D4RL": flat arrays of steps, one episode after another. Shape suffix: R = rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from hindcast.episodes.block import I64, Bool
from hindcast.errors import DataError
from hindcast.formats import hdf5
from hindcast.formats.d4rl.columns import D4RLFile, find_columns, read_flags
from hindcast.formats.format import PIECE_BYTES, Format, Piece, ReadOptions, has_suffix
from hindcast.formats.minari.format import Minari
from hindcast.formats.rows import Rows
from hindcast.formats.spec import DataSpec
from hindcast.formats.tables.filters import apply_filter
from hindcast.formats.tables.read_options import check_options
from hindcast.storage.location import Location

_MAX_STEPS_OPTION: Final = "max_episode_steps"
_D3RLPY_ENDS_COLUMN: Final = "episode_terminals"


class _EpisodeRange(NamedTuple):
    """Adjacent episodes: their rows `start` to `stop` (exclusive), and the index of the first episode in the file."""

    start: int
    stop: int
    first_episode: int


class EpisodeEnds(NamedTuple):
    """The ends of episodes among rows in stored order.

    Attributes:
        terminated: `[R]` whether the environment ended the episode with this row.
        truncated: `[R]` whether the episode was cut off after this row.
    """

    terminated: Bool
    truncated: Bool

    def find_starts(self) -> I64:
        """Return the index of each episode's first row, `[N]`; the last episode may be unfinished."""
        is_end = self.terminated | self.truncated
        next_rows = np.flatnonzero(is_end) + 1
        return np.concatenate([[0], next_rows[next_rows < len(is_end)]]).astype(np.int64)


class D4RL(Format):
    """Files of D4RL, and all other HDF5 files that are not Minari's."""

    name = "D4RL"
    title = "D4RL"
    read_option_names = (_MAX_STEPS_OPTION,)

    def recognises(self, location: Location) -> bool:
        """See `Format.recognises`: by the suffix, unless the file is Minari's; `list_pieces` reports invalid files."""
        return has_suffix(location.name, hdf5.SUFFIXES) and not Minari().recognises(location)

    def list_pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """See `Format.list_pieces`: adjacent episodes of about 16 MiB.

        Raises:
            DataError: the file is damaged or lacks a required column; an option is unknown.
        """
        limit = _read_step_limit(options)
        with hdf5.open_file(location) as h5_file:
            file = find_columns(location, h5_file, options)
            ends = _read_ends(location, file, limit, 0, file.num_rows)
            total_bytes = sum(dataset.dtype.itemsize * dataset.size for dataset in file.columns.values())
        starts = ends.find_starts()
        row_bytes = max(1, total_bytes // file.num_rows)
        piece_numbers = starts * row_bytes // PIECE_BYTES
        first_episodes = np.flatnonzero(np.diff(piece_numbers, prepend=-1))
        bounds = pairwise([*starts[first_episodes].tolist(), file.num_rows])
        return [
            Piece(location, (stop - start) * row_bytes, _EpisodeRange(start, stop, episode))
            for (start, stop), episode in zip(bounds, first_episodes.tolist(), strict=True)
        ]

    def describe(self, location: Location) -> DataSpec:  # noqa: ARG002
        """See `Format.describe`: the files name neither spaces nor environment."""
        return DataSpec(normalized_actions=False)

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Rows]:
        """See `Format.read`. Episode ids and timesteps follow from the ends of the episodes.

        Raises:
            DataError: the file is damaged.
        """
        location, extent, limit = piece.location, piece.extent, _read_step_limit(options)
        with hdf5.open_file(location) as h5_file:
            file = find_columns(location, h5_file, options)
            ends = _read_ends(location, file, limit, extent.start, extent.stop)
            columns = {
                name: hdf5.read_values(location, dataset, extent.start, extent.stop)
                for name, dataset in file.columns.items()
            }
            passes = _passes_filter(location, file, options, extent)
        rows = _make_rows(location, columns, ends, extent)
        yield rows if passes.all() else rows.take(passes)


def _read_step_limit(options: ReadOptions) -> int | None:
    """Return the option `max_episode_steps`, for files without timeouts: 0 means no limit; None if it was left out."""
    steps = check_options("D4RL", options.options, D4RL.read_option_names).get(_MAX_STEPS_OPTION)
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 0):
        raise DataError(
            f"readOptions.{_MAX_STEPS_OPTION} is {steps!r}: expected a number of steps, 0 for no limit"
        )
    return steps


def _read_ends(location: Location, file: D4RLFile, limit: int | None, start: int, stop: int) -> EpisodeEnds:
    if file.timeouts is None and limit is None:
        if _D3RLPY_ENDS_COLUMN in file.columns:
            raise DataError(
                f"has no 'timeouts', but {_D3RLPY_ENDS_COLUMN!r}, as d3rlpy writes: set "
                f"`schema: {{truncateds: {_D3RLPY_ENDS_COLUMN}}}` (--schema truncateds={_D3RLPY_ENDS_COLUMN})",
                path=str(location),
            )
        raise DataError(
            f"has no 'timeouts', which mark where episodes were cut off: set "
            f"readOptions.{_MAX_STEPS_OPTION} (--read-option {_MAX_STEPS_OPTION}=N) to the environment's limit, or to "
            "0 if all episodes end by 'terminals'",
            path=str(location),
        )
    if file.timeouts is not None and limit is not None:
        raise DataError(
            f"has its own 'timeouts': leave readOptions.{_MAX_STEPS_OPTION} out", path=str(location)
        )
    terminated = read_flags(location, file.terminals, start, stop)
    if file.timeouts is not None:
        return EpisodeEnds(terminated, read_flags(location, file.timeouts, start, stop))
    return EpisodeEnds(terminated, _find_time_limits(terminated, limit or 0))


def _passes_filter(location: Location, file: D4RLFile, options: ReadOptions, extent: _EpisodeRange) -> Bool:
    """Return whether each row passes the filter, `[R]`."""
    num_rows = extent.stop - extent.start
    if not options.filter:
        return np.ones(num_rows, dtype=np.bool_)
    table = pa.table(
        {
            name: pa.array(hdf5.read_values(location, dataset, extent.start, extent.stop))
            for name, dataset in file.filter_columns.items()
        }
    )
    _, row = apply_filter(table, options.filter, 0)
    return np.isin(np.arange(num_rows), row)


def _make_rows(location: Location, columns: dict[str, Any], ends: EpisodeEnds, extent: _EpisodeRange) -> Rows:
    starts = ends.find_starts()
    length = np.diff(np.append(starts, extent.stop - extent.start))
    stem = f"{location.parent().name}/{location.name.rpartition('.')[0]}"
    ids = np.array([f"{stem}/{extent.first_episode + i}" for i in range(len(starts))], dtype=object)
    row = np.arange(extent.start, extent.stop)
    return Rows(
        columns=columns,
        terminated=ends.terminated,
        truncated=ends.truncated,
        next_missing=np.zeros(len(row), dtype=np.bool_),
        path=str(location),
        row=row,
        eps_id=np.repeat(ids, length),
        t=row - extent.start - np.repeat(starts, length),
    )


def _find_time_limits(terminated: Bool, max_episode_steps: int) -> Bool:
    """Return whether an episode reaches `max_episode_steps` with each row, `[R]`; 0 means no limit."""
    if not max_episode_steps:
        return np.zeros_like(terminated)
    row = np.arange(len(terminated))
    episode_start = np.zeros(len(terminated), dtype=np.int64)
    episode_start[1:] = np.where(terminated[:-1], row[1:], 0)
    steps_since_termination = row - np.maximum.accumulate(episode_start) + 1
    # a row after one that the limit cuts off starts the next episode, so every multiple of the limit is an end
    return (steps_since_termination % max_episode_steps == 0) & ~terminated
