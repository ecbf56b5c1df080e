"""Steps of B slots as they happen, time-major, cut into episodes without touching single timesteps again.

Shape suffixes: C = capacity in steps, B = slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FIRST_CAPACITY = 512
_IDLE = np.iinfo(np.int64).max


class Trajectories:
    """A time-major buffer `[C, B, *shape]` per column that follows B running episodes.

    It grows with the longest running episode and otherwise reuses its room.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._capacity = _FIRST_CAPACITY
        self._columns: dict[str, NDArray[Any]] = {}
        self._started = np.full(width, _IDLE)
        self._now = 0

    def begin(self, slot: int) -> None:
        """The next appended row is the slot's first."""
        self._started[slot] = self._now

    def length(self, slot: int) -> int:
        """Steps of the slot's running episode."""
        return int(self._now - self._started[slot])

    def append(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Add one step of every slot; `rows[name]` is `[B, *shape]`."""
        if not self._columns:
            self._columns = {name: self._allocate(row) for name, row in rows.items()}
        if self._now == self._capacity:
            self._make_room()
        for name, row in rows.items():
            self._columns[name][self._now] = row
        self._now += 1

    def set_last(self, name: str, row: NDArray[Any]) -> None:
        """Overwrite one column of the last appended step, known only after stepping."""
        self._columns[name][self._now - 1] = row

    def cut(self, slot: int) -> dict[str, NDArray[Any]]:
        """A copy of the slot's episode, `[T, *shape]` per column; the slot is idle afterwards."""
        steps = slice(int(self._started[slot]), self._now)
        self._started[slot] = _IDLE
        return {name: column[steps, slot].copy() for name, column in self._columns.items()}

    def _allocate(self, row: NDArray[Any]) -> NDArray[Any]:
        return np.empty((self._capacity, *row.shape), dtype=row.dtype)

    def _make_room(self) -> None:
        running = self._started != _IDLE
        oldest = int(self._started[running].min()) if running.any() else self._now
        kept = self._now - oldest
        if kept > self._capacity // 2:
            self._capacity *= 2
        for name, column in self._columns.items():
            target = column if column.shape[0] == self._capacity else self._allocate(column[0])
            target[:kept] = column[oldest : self._now]
            self._columns[name] = target
        self._started[running] -= oldest
        self._now = kept
