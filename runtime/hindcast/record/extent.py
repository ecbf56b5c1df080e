"""How much there is to record, and what of it is left: by episodes or by timesteps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from hindcast.api.recording import OfflineRecordingSpec
from hindcast.formats.dataset_folder.commits import Commit
from hindcast.record.ranges import Ranges, by_episodes, by_timesteps
from hindcast.record.recorder import Work

Commits = Mapping[int, Commit]


class Extent(ABC):
    """The duration of a recording, as ranges.

    Attributes:
        total: how much is wanted, in `unit`.
        unit: "episodes" or "timesteps".
    """

    total: int
    unit: str

    @abstractmethod
    def next_work(self, commits: Commits, given: set[int]) -> Work | None:
        """A range that is neither committed nor given out; None where there is none (for now)."""

    @abstractmethod
    def ranges_left(self, commits: Commits) -> int | None:
        """Ranges that are not committed; None where only recording can tell."""

    @abstractmethod
    def done(self, commits: Commits) -> int:
        """How much is committed, in `unit`."""


class EpisodeExtent(Extent):
    """A number of episodes."""

    unit = "episodes"

    def __init__(self, total: int, width: int, rows_per_file: int | None) -> None:
        self.total = total
        self._ranges = by_episodes(total, width, rows_per_file)

    def next_work(self, commits: Commits, given: set[int]) -> Work | None:
        number = _first_free(commits, given)
        indices = self._ranges.indices(number)
        return Work(number, indices) if indices else None

    def ranges_left(self, commits: Commits) -> int | None:
        return self._ranges.count - len(commits)

    def done(self, commits: Commits) -> int:
        return sum(commit.episodes for commit in commits.values())


class TimestepExtent(Extent):
    """The fewest episodes, in order of their index, that reach a number of timesteps.

    Range 0 tells how long episodes are, and with it the size of the others.
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
