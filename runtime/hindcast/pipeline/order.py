"""`Order`: the order of delivery, a pure function of the dataset's units, the seed and the window size.

The dataset's items are divided into fixed lanes: equal runs, cut anywhere. Item i of an epoch is the next one of the
lane that is visited at i modulo the number of lanes. Within a lane, pieces of units are permuted by Philox(seed, epoch,
lane), consecutive pieces form windows, and the items of a window are permuted. An epoch is thus a permutation of all
items (with `replacement`, of as many draws), and one integer, the number of items consumed, is the position of a run.
A learner reads only its lanes, and the global batches are the same for any number of learners. An item is a timestep or
a sequence (see `needs.Needs`).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hindcast.errors import DataError
from hindcast.pipeline.rng import generator
from hindcast.pipeline.shard import Shard

I64 = NDArray[np.int64]

_MAX_LANES: Final = 64
_MIN_LANES: Final = 16
"""Lanes of small data. With so few a batch still mixes distant items, and 16 learners each have a lane."""
_UNITS_PER_LANE: Final = 7
"""Minimum number of units in each lane beyond `_MIN_LANES`: a unit on a border is read twice, here one in seven."""


@dataclass(frozen=True, eq=False)
class Window:
    """Pieces of units of a lane, which are in memory at once and shuffled together.

    Attributes:
        epoch: number of the epoch, from 0.
        lane: number of the lane.
        index: number of the window in the lane's epoch, from 0.
        pieces: `[P, 3]`, for each piece the unit's index in the dataset, and its first and stop item in the unit.
        first_item: number of the lane's items in the epoch before the window.
        num_items: number of items, at least 1.
        first_cursor: cursor of the first item.
        end_cursor: cursor after the last item.
    """

    epoch: int
    lane: int
    index: int
    pieces: I64
    first_item: int
    num_items: int
    first_cursor: int
    end_cursor: int


class Order:
    """The order of delivery.

    Args:
        unit_steps: `[U]` timesteps of each unit; units without timesteps are left out.
        unit_nbytes: `[U]` bytes of each unit in memory.
        seed: another seed gives another order.
        window_steps: maximum number of timesteps in the windows of all lanes together. A piece beyond its lane's part
            of it is a separate window.
        window_bytes: maximum bytes in the windows of all lanes together; units are cut into pieces for it.
        replacement: draw a window's items uniformly with replacement, as many as it has.
        unit_items: `[U]` items of each unit; its timesteps if None.

    Attributes:
        num_lanes: 64; fewer if there are few units or if a window has few.

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
        if self.epoch_size == 0:
            raise DataError("The dataset has no timesteps; there is nothing to train on.")
        self.num_lanes = self._choose_num_lanes()
        visits = _reverse_bits(self.num_lanes)
        self._place = np.argsort(visits)
        """`[num_lanes]` index of each lane's visit in a round."""
        self._item_bounds = np.append(0, self.unit_items.cumsum())
        sizes = np.full(self.num_lanes, self.epoch_size // self.num_lanes)
        sizes[visits[: self.epoch_size % self.num_lanes]] += 1
        self._lane_bounds = np.append(0, sizes.cumsum())
        self._lane_pieces: dict[int, I64] = {}
        self._windows: dict[int, dict[int, list[Window]]] = {}

    @cached_property
    def digest(self) -> str:
        """Digest of the order: a cursor is only valid in orders with the same digest."""
        settings = [self.seed, self.window_steps, self.window_bytes, int(self.replacement), self.num_lanes]
        digest = hashlib.blake2b(repr(settings).encode(), digest_size=8)
        digest.update(self.unit_steps.tobytes())
        digest.update(self.unit_nbytes.tobytes())
        if self.unit_items is not self.unit_steps:
            digest.update(self.unit_items.tobytes())
        return digest.hexdigest()

    def lanes(self, shard: Shard) -> range:
        """Return the lanes of a learner, which are adjacent."""
        lanes = shard.slice_of(self.num_lanes)
        return range(lanes.start, lanes.stop)

    def place(self, lane: int) -> int:
        """Return the index of a lane's visit in each round over all lanes."""
        return int(self._place[lane])

    def places(self, shard: Shard) -> I64:
        """Return the indices of the visits of a learner's lanes in each round, increasing."""
        return np.sort(self._place[shard.slice_of(self.num_lanes)])

    def lane_size(self, lane: int) -> int:
        """Return the number of items of a lane, at least 1."""
        return int(self._lane_bounds[lane + 1] - self._lane_bounds[lane])

    def num_items(self, lane: int, cursor: int) -> int:
        """Return the number of items of a lane, in all epochs, that are delivered before `cursor`."""
        epoch, offset = divmod(cursor, self.epoch_size)
        num_rounds, num_visits = divmod(offset, self.num_lanes)
        return epoch * self.lane_size(lane) + num_rounds + int(self._place[lane] < num_visits)

    def cursor_of(self, lane: int, item: int) -> int:
        """Return the cursor of a lane's item, counted over all epochs."""
        epoch, index = divmod(item, self.lane_size(lane))
        return epoch * self.epoch_size + index * self.num_lanes + self.place(lane)

    def max_gap(self, shard: Shard) -> int:
        """Return the maximum number of consecutive items of other learners, within an epoch or across its end."""
        places, num_visits = self.places(shard), self.epoch_size % self.num_lanes
        # A round, the shorter one at the end of an epoch, and the first one of the next epoch.
        last_round = places[places < num_visits] + self.num_lanes
        next_epoch = places + self.num_lanes + num_visits
        return int(np.diff(np.concatenate([places, last_round, next_epoch])).max()) - 1

    def pieces(self, lanes: range) -> I64:
        """Return the pieces of adjacent lanes in the dataset's order, `[P, 3]` as in `Window`, cut only at the ends."""
        first, stop = self._lane_bounds[lanes.start], self._lane_bounds[lanes.stop]
        units = np.arange(
            np.searchsorted(self._item_bounds, first, side="right") - 1,
            np.searchsorted(self._item_bounds, stop, side="left"),
        )
        units = units[self.unit_items[units] > 0]
        starts = self._item_bounds[units]
        return np.stack(
            [units, np.maximum(first - starts, 0), np.minimum(stop - starts, self.unit_items[units])], axis=1
        )

    def windows(self, lane: int, epoch: int) -> list[Window]:
        """Return the windows of a lane's epoch, in order."""
        cached = self._windows.setdefault(lane, {})
        if epoch not in cached:
            # Two epochs are kept, because windows of both are in use at an epoch's end.
            self._windows[lane] = cached = {at: cached[at] for at in cached if at == epoch - 1}
            cached[epoch] = self._divide_into_windows(lane, epoch)
        return cached[epoch]

    def locate(self, lane: int, cursor: int) -> tuple[Window, int]:
        """Return the window of a lane's next item at or after `cursor`, and the item's index in the window."""
        epoch, index = divmod(self.num_items(lane, cursor), self.lane_size(lane))
        windows = self.windows(lane, epoch)
        window = windows[bisect_right(windows, index, key=lambda window: window.first_item) - 1]
        return window, index - window.first_item

    def next_window(self, window: Window) -> Window:
        """Return the lane's window after this one; after the last one of an epoch, the first one of the next epoch."""
        windows = self.windows(window.lane, window.epoch)
        if window.index + 1 < len(windows):
            return windows[window.index + 1]
        return self.windows(window.lane, window.epoch + 1)[0]

    def permutation(self, window: Window) -> I64:
        """Return the indices of the window's items in the order of delivery, `[window.num_items]`.

        With `replacement` they are draws, among which some items are repeated and others missing.
        """
        rng = generator(self.seed, "window", window.epoch, window.lane, window.index)
        if self.replacement:
            return rng.integers(0, window.num_items, size=window.num_items, dtype=np.int64)
        return rng.permutation(window.num_items)

    def num_distinct(self, cursor: int) -> int:
        """Return the number of distinct items delivered before `cursor`; with `replacement`, an estimate."""
        if not self.replacement:
            return min(cursor, self.epoch_size)
        # An estimate: as if all lanes had windows of the same size, and the same number of them had ended.
        num_windows = self._windows_per_epoch
        size = max(1.0, self.epoch_size / (self.num_lanes * num_windows))
        p_missed = (1.0 - 1.0 / size) ** size  # probability that the draws of one pass miss an item
        epoch, position = divmod(cursor / self.epoch_size, 1.0)
        num_ended, fraction = divmod(position * num_windows, 1.0)
        windows_missed = num_ended * p_missed + p_missed**fraction + num_windows - num_ended - 1
        return round(self.epoch_size * (1.0 - p_missed**epoch * windows_missed / num_windows))

    @cached_property
    def _windows_per_epoch(self) -> int:
        """Number of windows of the first lane in an epoch."""
        return len(self._divide_into_windows(0, 0))

    def _choose_num_lanes(self) -> int:
        num_units = int(np.count_nonzero(self.unit_steps))
        steps, nbytes = max(1, int(self.unit_steps.sum())), max(1, int(self.unit_nbytes.sum()))
        # A lane's window should have room for a unit: otherwise units are cut, and read once for each of their pieces.
        units_per_window = min(
            self.window_steps * num_units // steps, self.window_bytes * num_units // nbytes
        )
        num_lanes = min(_MAX_LANES, max(_MIN_LANES, min(num_units // _UNITS_PER_LANE, units_per_window)))
        return min(num_lanes, self.epoch_size)

    def _divide_into_windows(self, lane: int, epoch: int) -> list[Window]:
        if lane not in self._lane_pieces:
            self._lane_pieces[lane] = self._cut(self.pieces(range(lane, lane + 1)))
        pieces = self._lane_pieces[lane]
        pieces = pieces[generator(self.seed, "lane", epoch, lane).permutation(len(pieces))]
        counts = pieces[:, 2] - pieces[:, 1]
        items, steps, nbytes = (
            np.append(0, sizes.cumsum())
            for sizes in (counts, self._scale(self.unit_steps, pieces), self._scale(self.unit_nbytes, pieces))
        )
        max_steps, max_bytes = self.window_steps // self.num_lanes, self.window_bytes // self.num_lanes
        first_item = epoch * self.lane_size(lane)
        windows: list[Window] = []
        start = 0
        while start < len(pieces):
            # The first index whose cumulative sum, over the pieces before the index, exceeds a limit.
            limit = min(
                np.searchsorted(steps, int(steps[start]) + max_steps, side="right"),
                np.searchsorted(nbytes, int(nbytes[start]) + max_bytes, side="right"),
            )
            end = max(int(limit) - 1, start + 1)
            windows.append(
                Window(
                    epoch=epoch,
                    lane=lane,
                    index=len(windows),
                    pieces=pieces[start:end],
                    first_item=int(items[start]),
                    num_items=int(items[end] - items[start]),
                    first_cursor=self.cursor_of(lane, first_item + int(items[start])),
                    end_cursor=self.cursor_of(lane, first_item + int(items[end]) - 1) + 1,
                )
            )
            start = end
        return windows

    def _cut(self, pieces: I64) -> I64:
        """Cut pieces with more bytes than a lane's window may have into equal parts."""
        max_bytes = max(1, self.window_bytes // self.num_lanes)
        counts = pieces[:, 2] - pieces[:, 1]
        num_parts = np.clip(-(-self._scale(self.unit_nbytes, pieces) // max_bytes), 1, counts)
        rows = np.repeat(np.arange(len(pieces)), num_parts)
        part = np.arange(len(rows)) - np.repeat(num_parts.cumsum() - num_parts, num_parts)
        units, firsts = pieces[rows, 0], pieces[rows, 1]
        bounds = [firsts + counts[rows] * (part + offset) // num_parts[rows] for offset in (0, 1)]
        return np.stack([units, *bounds], axis=1)

    def _scale(self, unit_sizes: I64, pieces: I64) -> I64:
        """Return the size of each piece, in proportion to its items."""
        units = pieces[:, 0]
        return unit_sizes[units] * (pieces[:, 2] - pieces[:, 1]) // self.unit_items[units]


def _reverse_bits(num_lanes: int) -> I64:
    """Return the lanes in the order of their visits: by reversed bits, so that any few visits spread over all lanes."""
    num_bits = max(1, (num_lanes - 1).bit_length())
    lanes = np.array([int(f"{index:0{num_bits}b}"[::-1], 2) for index in range(1 << num_bits)])
    return lanes[lanes < num_lanes]
