"""`Order`: the order of delivery, a pure function of the dataset's units, the seed and the window size.

An epoch is a permutation of all items (with `replacement`, of as many draws): units are permuted by Philox(seed,
epoch), consecutive units form windows, and the items of a window are permuted by Philox(seed, epoch, window). Windows
and epochs follow each other without a gap, so one integer, the number of items consumed, is the position of a run. An
item is a timestep or a sequence (see `needs.Needs`).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hindcast.errors import DataError
from hindcast.pipeline.rng import generator

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """Consecutive units of an epoch, which are in memory at once and shuffled together.

    Attributes:
        epoch: number of the epoch, from 0.
        index: number of the window in its epoch, from 0.
        units: indices of its units in the dataset, in the order in which they are laid end to end.
        num_steps: number of timesteps, at least 1.
        num_items: number of items, at least 1.
        first_cursor: number of items delivered between the start of epoch 0 and the window.
    """

    epoch: int
    index: int
    units: tuple[int, ...]
    num_steps: int
    num_items: int
    first_cursor: int

    @property
    def end_cursor(self) -> int:
        """Number of items delivered at the end of the window."""
        return self.first_cursor + self.num_items


class Order:
    """The order of delivery.

    Args:
        unit_steps: `[U]` timesteps of each unit; units without timesteps are left out.
        unit_nbytes: `[U]` bytes of each unit in memory.
        seed: another seed gives another order.
        window_steps: maximum number of timesteps in a window.
        window_bytes: maximum bytes in a window. A unit beyond either limit is a separate window.
        replacement: draw a window's items uniformly with replacement, as many as it has.
        unit_items: `[U]` items of each unit; its timesteps if None.

    Raises:
        DataError: the dataset has no timesteps.
    """

    def __init__(
        self,
        unit_steps: I64,
        unit_nbytes: I64,
        *,
        seed: int,
        window_steps: int,
        window_bytes: int,
        replacement: bool = False,
        unit_items: I64 | None = None,
    ) -> None:
        self.unit_steps = np.asarray(unit_steps, dtype=np.int64)
        self.unit_items = self.unit_steps if unit_items is None else np.asarray(unit_items, dtype=np.int64)
        self.unit_nbytes = np.asarray(unit_nbytes, dtype=np.int64)
        self.seed = seed
        self.window_steps = window_steps
        self.window_bytes = window_bytes
        self.replacement = replacement
        self.epoch_size = int(self.unit_items.sum())
        self.epoch_timesteps = int(self.unit_steps.sum())
        self._windows: tuple[int, list[Window]] | None = None
        self._miss_state: tuple[Window, NDArray[np.float64]] | None = None
        if self.epoch_size == 0:
            raise DataError("The dataset has no timesteps; there is nothing to train on.")

    @cached_property
    def digest(self) -> str:
        """Digest of the order: a cursor is only valid in orders with the same digest."""
        settings = [self.seed, self.window_steps, self.window_bytes, int(self.replacement)]
        digest = hashlib.blake2b(repr(settings).encode(), digest_size=8)
        digest.update(self.unit_steps.tobytes())
        digest.update(self.unit_nbytes.tobytes())
        if self.unit_items is not self.unit_steps:
            digest.update(self.unit_items.tobytes())
        return digest.hexdigest()

    def windows(self, epoch: int) -> list[Window]:
        """Return the windows of an epoch, in order."""
        cached = self._windows
        if cached is None or cached[0] != epoch:
            cached = (epoch, self._divide_into_windows(epoch))
            self._windows = cached
        return cached[1]

    def locate(self, cursor: int) -> tuple[Window, int]:
        """Return the window of the item at `cursor`, and the item's index in the window."""
        windows = self.windows(cursor // self.epoch_size)
        window = windows[bisect_right(windows, cursor, key=lambda window: window.first_cursor) - 1]
        return window, cursor - window.first_cursor

    def next_window(self, window: Window) -> Window:
        """Return the window after this one; after the last one of an epoch, the first one of the next epoch."""
        return self.locate(window.end_cursor)[0]

    def permutation(self, window: Window) -> I64:
        """Return the indices of the window's items in the order of delivery, `[window.num_items]`.

        With `replacement` they are draws, among which some items are repeated and others missing.
        """
        rng = generator(self.seed, "window", window.epoch, window.index)
        if self.replacement:
            return rng.integers(0, window.num_items, size=window.num_items, dtype=np.int64)
        return rng.permutation(window.num_items)

    def num_distinct(self, cursor: int) -> int:
        """Return the number of distinct items delivered before `cursor`; with `replacement`, the expected number."""
        if not self.replacement:
            return min(cursor, self.epoch_size)
        window, p_missed = self._miss_probabilities(cursor)
        p_missed[list(window.units)] *= _miss_probability(window.num_items, cursor - window.first_cursor)
        return round(float(self.unit_items @ (1.0 - p_missed)))

    def _miss_probabilities(self, cursor: int) -> tuple[Window, NDArray[np.float64]]:
        """Return the window at `cursor`, and for each unit the probability that no earlier window drew a given item.

        The probabilities, `[U]`, are a copy, which the caller may change.
        """
        # The state of the last call, from which the loop continues, since a cursor mostly moves forward.
        cached = self._miss_state
        if cached is None or cached[0].first_cursor > cursor:
            cached = self.locate(0)[0], np.ones(len(self.unit_steps))
        window, p_missed = cached
        while window.end_cursor <= cursor:
            p_missed[list(window.units)] *= _miss_probability(window.num_items, window.num_items)
            window = self.next_window(window)
        self._miss_state = window, p_missed
        return window, p_missed.copy()

    def _divide_into_windows(self, epoch: int) -> list[Window]:
        units = np.nonzero(self.unit_steps)[0]
        units = units[generator(self.seed, "epoch", epoch).permutation(len(units))]
        steps, items, nbytes = (
            np.append(0, sizes[units].cumsum())
            for sizes in (self.unit_steps, self.unit_items, self.unit_nbytes)
        )
        windows: list[Window] = []
        start = 0
        while start < len(units):
            # The first index whose cumulative sum, over the units before the index, exceeds a limit.
            limit = min(
                np.searchsorted(steps, int(steps[start]) + self.window_steps, side="right"),
                np.searchsorted(nbytes, int(nbytes[start]) + self.window_bytes, side="right"),
            )
            # At least one unit: a unit beyond a limit is a separate window.
            end = max(int(limit) - 1, start + 1)
            windows.append(
                Window(
                    epoch=epoch,
                    index=len(windows),
                    units=tuple(units[start:end].tolist()),
                    num_steps=int(steps[end] - steps[start]),
                    num_items=int(items[end] - items[start]),
                    first_cursor=epoch * self.epoch_size + int(items[start]),
                )
            )
            start = end
        return windows


def _miss_probability(num_items: int, num_draws: int) -> float:
    """Return the probability that an item is in none of `num_draws` draws with replacement."""
    return float((1.0 - 1.0 / num_items) ** num_draws)
