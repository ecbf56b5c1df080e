"""How much there is to record, by episodes or by timesteps, and what of it is left.

The unit of recording is a fixed range of episode indices, recorded completely or not at all. A range is computed from
scratch wherever it runs, so any runner, at any time, makes the same data.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from hindcast.api.recording import OfflineRecordingSpec
from hindcast.formats.dataset_folder.commits import Commit
from hindcast.record.recorder import RangeToRecord

Commits = Mapping[int, Commit]

_MOST_RANGES = 64
_LEAST_WAVES = 4


def _fit(episodes: int, width: int, rows_per_file: int | None) -> int:
    """At least four waves of the slots, and full files if their size is limited."""
    size = max(episodes, _LEAST_WAVES * width)
    step = rows_per_file if rows_per_file and rows_per_file <= size else width
    return math.ceil(size / step) * step


class EpisodeExtent:
    """A number of episodes, as at most about 64 ranges of one size.

    Attributes:
        total: how much is wanted, in `unit`.
        unit: "episodes" or "timesteps".
    """

    unit = "episodes"

    def __init__(self, total: int, width: int, rows_per_file: int | None) -> None:
        self.total = total
        self._size = _fit(math.ceil(total / _MOST_RANGES), width, rows_per_file)

    def next_range(self, commits: Commits, in_progress: set[int]) -> RangeToRecord | None:
        """A range that is neither committed nor given out; None if there is none (for now)."""
        number = _first_free(commits, in_progress)
        start = number * self._size
        indices = range(start, min(start + self._size, self.total))
        return RangeToRecord(number, indices) if indices else None

    def num_ranges_left(self, commits: Commits) -> int | None:
        """Ranges that are not committed; None if only recording will show."""
        return math.ceil(self.total / self._size) - len(commits)

    def num_done(self, commits: Commits) -> int:
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

    def next_range(self, commits: Commits, in_progress: set[int]) -> RangeToRecord | None:
        number = _first_free(commits, in_progress)
        first = _fit(1, self._width, self._rows_per_file)
        if number == 0:
            return RangeToRecord(0, range(first))
        if self.num_done(commits) >= self.total or 0 not in commits:
            return None
        size = self._size(commits[0])
        start = first + (number - 1) * size
        return RangeToRecord(number, range(start, start + size))

    def num_ranges_left(self, commits: Commits) -> int | None:  # noqa: ARG002
        return None

    def num_done(self, commits: Commits) -> int:
        """Timesteps of the unbroken prefix of ranges."""
        prefix = itertools.takewhile(commits.__contains__, itertools.count())
        return sum(commits[number].timesteps for number in prefix)

    def _size(self, first: Commit) -> int:
        """Episodes of each range but the first one, whose episodes are of usual length."""
        episodes = self.total / max(first.timesteps / first.episodes, 1.0)
        return _fit(math.ceil(episodes / _MOST_RANGES), self._width, self._rows_per_file)


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
    return next(number for number in itertools.count() if number not in commits and number not in given)
