"""How much there is to record, by episodes or by timesteps, and what of it is left.

The unit of recording is a fixed range of episode indices, recorded completely or not at all. A range is computed from
scratch wherever it runs, so any runner, at any time, makes the same data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hindcast.api.recording import OfflineRecordingSpec
from hindcast.formats.dataset_folder.commits import Commit
from hindcast.record.recorder import Work

Commits = Mapping[int, Commit]

_MOST_RANGES = 64
_LEAST_WAVES = 4


@dataclass(frozen=True)
class Ranges:
    """How episode indices are cut into ranges.

    Attributes:
        first: episodes of range 0.
        size: episodes of every later range.
        total: episodes in all; None when a number of timesteps ends the recording.
    """

    first: int
    size: int
    total: int | None

    @property
    def count(self) -> int:
        """Ranges in all; only of a recording with a total."""
        assert self.total is not None
        return 1 + math.ceil(max(0, self.total - self.first) / self.size)

    def indices(self, number: int) -> range:
        """The episode indices of a range; empty past the end."""
        start = 0 if number == 0 else self.first + (number - 1) * self.size
        stop = start + (self.first if number == 0 else self.size)
        if self.total is not None:
            start, stop = min(start, self.total), min(stop, self.total)
        return range(start, stop)


def by_episodes(total: int, width: int, rows_per_file: int | None) -> Ranges:
    """Ranges of a recording of `total` episodes: at most about 64, each keeping `width` slots busy."""
    size = _fit(math.ceil(total / _MOST_RANGES), width, rows_per_file)
    return Ranges(first=size, size=size, total=total)


def by_timesteps(total: int, width: int, rows_per_file: int | None, mean_length: float | None) -> Ranges:
    """Ranges of a recording of `total` timesteps.

    Args:
        rows_per_file: episodes in a file, where limited.
        mean_length: steps per episode in range 0; None while range 0 is still to be made.
    """
    first = _fit(1, width, rows_per_file)
    wanted = 1 if mean_length is None else math.ceil(total / max(mean_length, 1.0) / _MOST_RANGES)
    return Ranges(first=first, size=_fit(wanted, width, rows_per_file), total=None)


def _fit(episodes: int, width: int, rows_per_file: int | None) -> int:
    """At least four waves of the slots, and full files if their size is limited."""
    size = max(episodes, _LEAST_WAVES * width)
    step = rows_per_file if rows_per_file and rows_per_file <= size else width
    return math.ceil(size / step) * step


class EpisodeExtent:
    """A number of episodes, as ranges.

    Attributes:
        total: how much is wanted, in `unit`.
        unit: "episodes" or "timesteps".
    """

    unit = "episodes"

    def __init__(self, total: int, width: int, rows_per_file: int | None) -> None:
        self.total = total
        self._ranges = by_episodes(total, width, rows_per_file)

    def next_work(self, commits: Commits, given: set[int]) -> Work | None:
        """A range that is neither committed nor given out; None if there is none (for now)."""
        number = _first_free(commits, given)
        indices = self._ranges.indices(number)
        return Work(number, indices) if indices else None

    def ranges_left(self, commits: Commits) -> int | None:
        """Ranges that are not committed; None if only recording will show."""
        return self._ranges.count - len(commits)

    def done(self, commits: Commits) -> int:
        """How much is committed, in `unit`."""
        return sum(commit.episodes for commit in commits.values())


class TimestepExtent:
    """The fewest episodes, in order of their index, that reach a number of timesteps.

    Range 0 shows how long episodes are, which determines the size of the others.
    """

    unit = "timesteps"

    def __init__(self, total: int, width: int, rows_per_file: int | None) -> None:
        self.total = total
        self._width = width
        self._rows_per_file = rows_per_file

    def next_work(self, commits: Commits, given: set[int]) -> Work | None:
        number = _first_free(commits, given)
        if self.done(commits) >= self.total or (number > 0 and 0 not in commits):
            return None
        return Work(number, self._ranges(commits).indices(number))

    def ranges_left(self, commits: Commits) -> int | None:  # noqa: ARG002
        return None

    def done(self, commits: Commits) -> int:
        """Timesteps of the unbroken prefix of ranges."""
        steps, number = 0, 0
        while number in commits:
            steps += commits[number].timesteps
            number += 1
        return steps

    def _ranges(self, commits: Commits) -> Ranges:
        first = commits.get(0)
        mean_length = first.timesteps / first.episodes if first else None
        return by_timesteps(self.total, self._width, self._rows_per_file, mean_length)


Extent = EpisodeExtent | TimestepExtent


def extent_of(spec: OfflineRecordingSpec) -> Extent:
    """The extent that a resource asks for."""
    width = spec.runners.envs_per_runner
    rows = spec.output.episodes_per_file
    if spec.duration.episodes is not None:
        return EpisodeExtent(spec.duration.episodes, width, rows)
    assert spec.duration.timesteps is not None
    return TimestepExtent(spec.duration.timesteps, width, rows)


def _first_free(commits: Commits, given: set[int]) -> int:
    number = 0
    while number in commits or number in given:
        number += 1
    return number
