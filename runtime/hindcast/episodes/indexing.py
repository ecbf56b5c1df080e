"""From timesteps of an episode to positions in its data, in which the lookback comes first.

With a lookback of L and n timesteps the data have L + n items: timestep t >= 0 is at position L + t. A
negative index counts from the end (-1 is the last timestep), and reaches into the lookback when it goes
further back than the timesteps do; with `neg_index_as_lookback` -1 is the last item of the lookback.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Lengths of the two parts of the data."""

    lookback: int
    length: int

    @property
    def total(self) -> int:
        """All items."""
        return self.lookback + self.length

    def position(self, index: int, neg_index_as_lookback: bool = False) -> int:
        """The position of one index; it may be outside the data."""
        if index >= 0 or neg_index_as_lookback:
            return self.lookback + index
        return self.total + index

    def positions(self, indices: slice, neg_index_as_lookback: bool = False) -> range:
        """The positions of a slice; they may be outside the data. Without bounds it covers all timesteps.

        Raises:
            ValueError: a step of 0.
        """
        step = 1 if indices.step is None else int(indices.step)
        start, stop = (self.lookback, self.total) if step > 0 else (self.total - 1, self.lookback - 1)
        if indices.start is not None:
            start = self.position(int(indices.start), neg_index_as_lookback)
        if indices.stop is not None:
            stop = self.position(int(indices.stop), neg_index_as_lookback)
        if step == 0:
            raise ValueError("the step of a slice cannot be 0")
        return range(start, stop, step)

    def contains(self, position: int) -> bool:
        """Whether there is an item at the position."""
        return 0 <= position < self.total


def split(positions: range, total: int) -> tuple[int, range, int]:
    """How many of the positions come before the data, which are in it, and how many come after.

    "Before" and "after" are meant in the order of the positions, which may run backwards.
    """
    first, last = (0, total - 1) if positions.step > 0 else (total - 1, 0)
    towards = 1 if positions.step > 0 else -1
    before = min(len(range(positions.start, first, positions.step)), len(positions))
    until = min(len(range(positions.start, last + towards, positions.step)), len(positions))
    inside = positions[before : max(before, until)]
    return before, inside, len(positions) - before - len(inside)


def as_slice(positions: range) -> slice:
    """The slice that takes these positions (all of them in the data)."""
    if not positions:
        return slice(0, 0)
    stop = positions[-1] + (1 if positions.step > 0 else -1)
    return slice(positions[0], stop if stop >= 0 else None, positions.step)
