"""The unit of recording: a fixed range of episode indices, made whole or not at all.

A range is computed from scratch wherever it runs, so any runner, at any time, makes the same data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
        total: timesteps wanted.
        width: slots of a runner.
        rows_per_file: episodes in a file, where limited.
        mean_length: steps per episode in range 0; None while range 0 is still to be made.
    """
    first = _fit(1, width, rows_per_file)
    wanted = 1 if mean_length is None else math.ceil(total / max(mean_length, 1.0) / _MOST_RANGES)
    return Ranges(first=first, size=_fit(wanted, width, rows_per_file), total=None)


def _fit(episodes: int, width: int, rows_per_file: int | None) -> int:
    """At least four waves of the slots, and whole files where files are limited."""
    size = max(episodes, _LEAST_WAVES * width)
    step = rows_per_file if rows_per_file and rows_per_file <= size else width
    return math.ceil(size / step) * step
