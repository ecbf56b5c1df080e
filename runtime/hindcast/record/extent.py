"""Extent of a recording, in episodes or timesteps, and its division into ranges of episode indices.

A range is recorded completely or not at all. It depends on nothing outside it, so that any runner, at any time, records
the same data.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from hindcast.api.recording import OfflineRecordingSpec
from hindcast.formats.dataset_folder.commits import Commit
from hindcast.record.recorder import RangeToRecord

Commits = Mapping[int, Commit]

_MAX_RANGES = 64
_MIN_EPISODES_PER_SLOT = 4
"""Minimum length of a range. A slot idles from the end of its last episode in a range until the range ends, so short
ranges waste more of its time."""


def _range_size(num_episodes: int, width: int, episodes_per_file: int | None) -> int:
    """Return the number of episodes of a range: at least `num_episodes`, and at least four per slot.

    It is rounded up to whole files if it fills at least one file, else to a multiple of the number of slots.
    """
    size = max(num_episodes, _MIN_EPISODES_PER_SLOT * width)
    divisor = episodes_per_file if episodes_per_file and episodes_per_file <= size else width
    return math.ceil(size / divisor) * divisor


class EpisodeExtent:
    """A number of episodes, in at most 64 ranges of equal size; the last one may be smaller.

    Args:
        total: number of episodes to record.
        width: number of slots.
        episodes_per_file: episodes per file; None for no limit.

    Attributes:
        total: number of episodes to record.
        unit: "episodes", the unit of `total`.
    """

    unit = "episodes"

    def __init__(self, total: int, width: int, episodes_per_file: int | None) -> None:
        self.total = total
        self._size = _range_size(math.ceil(total / _MAX_RANGES), width, episodes_per_file)

    def next_range(self, commits: Commits, in_progress: set[int]) -> RangeToRecord | None:
        """Return the first range that is neither committed nor in progress, or None if none can start now.

        Args:
            commits: commits so far, by number of the range.
            in_progress: numbers of the ranges that are being recorded.
        """
        number = _first_free_number(commits, in_progress)
        start = number * self._size
        indices = range(start, min(start + self._size, self.total))
        return RangeToRecord(number, indices) if indices else None

    def num_ranges_left(self, commits: Commits) -> int | None:
        """Return the number of ranges that are not committed; None if it depends on episodes not yet recorded."""
        return math.ceil(self.total / self._size) - len(commits)

    def num_done(self, commits: Commits) -> int:
        """Return the committed amount, in `unit`."""
        return sum(commit.episodes for commit in commits.values())


class TimestepExtent:
    """The fewest episodes, in order of their index, that reach a number of timesteps.

    The episode lengths in range 0 determine the size of the other ranges. Arguments, attributes and methods are those
    of `EpisodeExtent`, with `total` in timesteps.
    """

    unit = "timesteps"

    def __init__(self, total: int, width: int, episodes_per_file: int | None) -> None:
        self.total = total
        self._width = width
        self._episodes_per_file = episodes_per_file

    def next_range(self, commits: Commits, in_progress: set[int]) -> RangeToRecord | None:
        number = _first_free_number(commits, in_progress)
        first_size = _range_size(1, self._width, self._episodes_per_file)
        if number == 0:
            return RangeToRecord(0, range(first_size))
        if self.num_done(commits) >= self.total or 0 not in commits:
            return None
        size = self._compute_size(commits[0])
        start = first_size + (number - 1) * size
        return RangeToRecord(number, range(start, start + size))

    def num_ranges_left(self, commits: Commits) -> int | None:  # noqa: ARG002
        return None

    def num_done(self, commits: Commits) -> int:
        """Return the timesteps of the committed ranges before the first gap."""
        prefix = itertools.takewhile(commits.__contains__, itertools.count())
        return sum(commits[number].timesteps for number in prefix)

    def _compute_size(self, first: Commit) -> int:
        """Return the size of each range after the first one, from the mean length of the episodes in that one."""
        num_episodes = self.total / max(first.timesteps / first.episodes, 1.0)
        return _range_size(math.ceil(num_episodes / _MAX_RANGES), self._width, self._episodes_per_file)


Extent = EpisodeExtent | TimestepExtent


def make_extent(spec: OfflineRecordingSpec) -> Extent:
    """Return the extent that a resource requests."""
    width = spec.runners.envs_per_runner
    episodes_per_file = spec.output.episodes_per_file
    if spec.duration.episodes is not None:
        return EpisodeExtent(spec.duration.episodes, width, episodes_per_file)
    assert spec.duration.timesteps is not None
    return TimestepExtent(spec.duration.timesteps, width, episodes_per_file)


def _first_free_number(commits: Commits, in_progress: set[int]) -> int:
    return next(number for number in itertools.count() if number not in commits and number not in in_progress)
