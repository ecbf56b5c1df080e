"""`Order`: which item is delivered when; a pure function of the dataset's units, the seed and the window.

An epoch is a permutation of all items: units are permuted by Philox(seed, epoch), consecutive units form
windows, and the items of a window are permuted by Philox(seed, epoch, window). Windows and epochs concatenate
without a gap, so one integer, the number of items consumed, says how far a run has come. An item is a timestep or a
sequence (`needs.Needs`).
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
    """Consecutive units of an epoch whose items are shuffled together.

    Attributes:
        epoch: number of the epoch, from 0.
        index: number of the window in its epoch, from 0.
        units: positions of its units in the dataset, in the order in which they are laid end to end.
        steps: timesteps in it, at least 1.
        items: items in it, at least 1.
        first_cursor: items delivered before it since the start of epoch 0.
    """

    epoch: int
    index: int
    units: tuple[int, ...]
    num_steps: int
    num_items: int
    first_cursor: int

    @property
    def end_cursor(self) -> int:
        """Items delivered when it is used up."""
        return self.first_cursor + self.num_items


class Order:
    """The order of delivery.

    Args:
        steps: `[U]` timesteps of each unit; units without any are left out.
        nbytes: `[U]` bytes of each unit in memory.
        seed: another seed gives another order.
        window_steps: most timesteps in a window.
        window_bytes: most bytes in a window. A unit beyond either limit is a separate window.
        replacement: draw a window's items uniformly with replacement, as many as it has.
        items: `[U]` items of each unit; its timesteps if None.

    Raises:
        DataError: no timesteps at all.
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
        self._missed: tuple[Window, NDArray[np.float64]] | None = None
        if self.epoch_size == 0:
            raise DataError("The dataset has no timesteps; there is nothing to train on.")

    @cached_property
    def digest(self) -> str:
        """Identifies the order: cursors of orders with different digests do not mix."""
        limits = [self.seed, self.window_steps, self.window_bytes, int(self.replacement)]
        digest = hashlib.blake2b(repr(limits).encode(), digest_size=8)
        digest.update(self.unit_steps.tobytes())
        digest.update(self.unit_nbytes.tobytes())
        if self.unit_items is not self.unit_steps:
            digest.update(self.unit_items.tobytes())
        return digest.hexdigest()

    def windows(self, epoch: int) -> list[Window]:
        last = self._windows
        if last is None or last[0] != epoch:
            last = (epoch, self._divide(epoch))
            self._windows = last
        return last[1]

    def locate(self, cursor: int) -> tuple[Window, int]:
        """The window of the item after `cursor` delivered ones, and how many of its items came before."""
        windows = self.windows(cursor // self.epoch_size)
        window = windows[bisect_right(windows, cursor, key=lambda window: window.first_cursor) - 1]
        return window, cursor - window.first_cursor

    def next_window(self, window: Window) -> Window:
        """The window after this one, in the next epoch after an epoch's last."""
        return self.locate(window.end_cursor)[0]

    def permutation(self, window: Window) -> I64:
        """`[window.items]` positions in the window, units laid end to end, in the order of delivery."""
        random = generator(self.seed, "window", window.epoch, window.index)
        if self.replacement:
            return random.integers(0, window.num_items, size=window.num_items, dtype=np.int64)
        return random.permutation(window.num_items)

    def num_distinct(self, cursor: int) -> int:
        """Distinct items among the first `cursor` delivered; with replacement, their expected number."""
        if not self.replacement:
            return min(cursor, self.epoch_size)
        window, missed = self._missed_until(cursor)
        missed[list(window.units)] *= _chance_to_miss(window.num_items, cursor - window.first_cursor)
        return round(float(self.unit_items @ (1.0 - missed)))

    def _missed_until(self, cursor: int) -> tuple[Window, NDArray[np.float64]]:
        """The window at `cursor`, and for each unit how likely one of its items was in no draw of those before it.

        Continues from the last position, since a cursor mostly moves forward.
        """
        last = self._missed
        if last is None or last[0].first_cursor > cursor:
            last = self.locate(0)[0], np.ones(len(self.unit_steps))
        window, missed = last
        while window.end_cursor <= cursor:
            missed[list(window.units)] *= _chance_to_miss(window.num_items, window.num_items)
            window = self.next_window(window)
        self._missed = window, missed
        return window, missed.copy()

    def _divide(self, epoch: int) -> list[Window]:
        units = np.nonzero(self.unit_steps)[0]
        units = units[generator(self.seed, "epoch", epoch).permutation(len(units))]
        steps, items, nbytes = (
            np.append(0, each[units].cumsum())
            for each in (self.unit_steps, self.unit_items, self.unit_nbytes)
        )
        windows: list[Window] = []
        start = 0
        while start < len(units):
            fitting = min(
                np.searchsorted(steps, int(steps[start]) + self.window_steps, side="right"),
                np.searchsorted(nbytes, int(nbytes[start]) + self.window_bytes, side="right"),
            )
            end = max(int(fitting) - 1, start + 1)
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


def _chance_to_miss(items: int, draws: int) -> float:
    """How likely one of so many items is in none of so many draws with replacement."""
    return float((1.0 - 1.0 / items) ** draws)
