"""`LaneFeed` delivers a dataset in the order of `Order`: each learner reads and holds only its own lanes.

Resident data stay on the device; otherwise each lane holds the window in use, and the next one is read meanwhile. Both
deliver the same batches. Lanes end their windows at different times, so no batch waits for all of them. Targets of a
window are computed with the current weights when its first item is about to be delivered. They are used until the
window ends or, if they have a schedule, until they are due to be recomputed.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from hindcast.episodes.columns import Columns
from hindcast.errors import SpecError
from hindcast.pipeline.feeds import Feed, GatherValues, State, check_same_position, refuse_priorities
from hindcast.pipeline.loader import LoadedWindow, Loader, PendingWindow, ResidentWindows, cancel
from hindcast.pipeline.order import Window
from hindcast.pipeline.shard import WHOLE_BATCH, Shard
from hindcast.pipeline.targets import Targets, WindowTargets
from hindcast.pipeline.window import Batch, concat_batches, mask

_CHUNK_BYTES: Final = {"cpu": 16 << 20, "cuda": 256 << 20}
"""Bytes of the batches that are gathered at once: on a GPU each lane costs kernel launches, however few its items."""
_ALIGNMENT: Final = 256
_MIN_SPREAD, _MAX_SPREAD = 0.01, 0.75
_STEP: Final = "__step__"
"""Column of a chunk with targets: the step of each item, or of each element of a sequence, in its window."""


class LaneFeed(Feed):
    """A feed over the lanes of a learner.

    Args:
        loader: reads the data.
        batch_size: see `Feed`.
        targets: computes the targets of windows; None if the algorithm has no targets.
        shard: this learner's lanes.
        is_resident: keep all data of the lanes on the device.
    """

    def __init__(
        self,
        loader: Loader,
        batch_size: int,
        targets: Targets | None = None,
        shard: Shard = WHOLE_BATCH,
        is_resident: bool = False,
    ) -> None:
        self.batch_size = batch_size
        self.epoch_size = loader.order.epoch_size
        self.epoch_timesteps = loader.order.epoch_timesteps
        self._loader = loader
        self._order = loader.order
        self._targets = targets
        self._shard = shard
        self._is_resident = is_resident
        self._cursor = 0
        places = self._order.places(shard)
        self._num_lanes = len(places)
        # Index v: number of this learner's lanes among the first v visits of a round over all lanes.
        self._num_lanes_before = np.searchsorted(places, np.arange(self._order.num_lanes + 1)).tolist()
        self._own_lanes = self._order.lanes(shard)
        self._items_per_epoch = sum(map(self._order.lane_size, self._own_lanes))
        self._resident: ResidentWindows | None = None
        self._lanes: list[_Lane] = []
        self._chunk: _Chunk | None = None
        self._item_bytes = 0
        # By lane. After `seek` or `synchronise` also of other learners' lanes, on the CPU, for checkpoints.
        self._window_targets: dict[int, WindowTargets] = {}
        self._wait_seconds = 0.0
        # Fraction of a window over which the lanes, one after the other, start to load their next windows. If all lanes
        # started at once, many reading threads would compete with this one for the processors: on two busy cores,
        # 0.03 s of work took 0.3 s. After a wait for data the fraction is small, so that all lanes start early.
        self.spread = _MAX_SPREAD

    @property
    def cursor(self) -> int:
        return self._cursor

    def take(self, count: int) -> Batch:
        """See `Feed.take`. A batch may span several windows and epochs."""
        parts: list[Batch] = []
        cursor, end = self._cursor, self._cursor + count
        try:
            while cursor < end:
                chunk = self._chunk_at(cursor, end)
                stop = min(end, chunk.stop)
                if self._targets is not None:
                    self._update_targets(chunk, cursor, stop, self._targets)
                first_row, stop_row = (self._num_before(at) - chunk.num_before for at in (cursor, stop))
                if first_row < stop_row:
                    parts.append(chunk.slice(first_row, stop_row))
                cursor = stop
        except BaseException:
            self.close()  # the next call reads the windows again
            raise
        self._cursor = end
        for lane in self._lanes:
            if lane.due <= end:
                lane.prefetch()
        return concat_batches(parts)

    def prefetch(self) -> None:
        """Start to read the windows of the next batch, unless that has been done."""
        if not self._lanes and not self._is_resident:
            self._open_lanes(self._cursor)

    def state(self) -> State:
        state = {
            "cursor": self._cursor,
            "order": self._order.digest,
            "lanes": self._order.num_lanes,
            "data": self._loader.dataset.digest,
        }
        current = self._current_targets()
        if current:
            state["targets"] = [[lane, *targets[:2]] for lane, targets in current.items()]
        return state

    def tensors(self) -> Batch:
        current = [targets.columns for targets in self._current_targets().values()]
        names = current[0] if current else ()
        return {name: torch.cat([columns[name].cpu() for columns in current]) for name in names}

    def synchronise(self, gather: GatherValues) -> None:
        if self._targets is None or self._shard.size == 1:
            return
        local_targets = {
            lane: targets._replace(columns={name: column.cpu() for name, column in targets.columns.items()})
            for lane, targets in self._current_targets().items()
            if lane in self._own_lanes
        }
        for peer_targets in gather(local_targets):
            new_lanes = peer_targets.keys() - local_targets.keys()
            self._window_targets |= {lane: peer_targets[lane] for lane in new_lanes}

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        """See `Feed.seek`."""
        order_subject = (
            "the seed, the window size, the sampling, or the division of episodes into items (the length, burn-in or "
            "stride of sequences)"
        )
        if "lanes" not in state:  # of a version of Hindcast that had no lanes
            order_subject = "the order in which Hindcast delivers data"
        check_same_position(state, self.state(), self._loader.location, order_subject)
        # The loaded observations are filtered, and the filter may just have been restored from the same checkpoint.
        self.close()
        self._cursor = int(state["cursor"])
        self._window_targets = {}
        # The weights may have changed since the targets were computed: computing them again would give other values.
        # Even with the same weights they would differ in the last bits on another kind of machine.
        if "targets" in state and tensors:
            first = 0
            for lane, first_cursor, updates in state["targets"]:
                stop = first + self._num_steps(self._order.locate(lane, self._cursor)[0])
                device = self._loader.recipe.device if lane in self._own_lanes else None
                columns = {name: tensor[first:stop].to(device) for name, tensor in tensors.items()}
                self._window_targets[lane] = WindowTargets(first_cursor, updates, columns)
                first = stop

    def prioritise(self, priorities: Tensor) -> None:  # noqa: ARG002
        refuse_priorities()

    def metrics(self) -> dict[str, float]:
        num_distinct = self._order.num_distinct(self._cursor)
        # Each item counts as the average number of timesteps per item, since sequences overlap and differ in length.
        coverage = num_distinct / self.epoch_size
        metrics = {
            "epoch": self._cursor / self.epoch_size,
            "timesteps_seen": float(round(coverage * self.epoch_timesteps)),
            "coverage": coverage,
            "data_wait_seconds": self._wait_seconds,
        }
        if self._targets is not None and (current := self._current_targets()):
            oldest = min(targets.updates for targets in current.values())
            metrics["targets_age"] = float(self._targets.updates() - oldest)
        return metrics

    def close(self) -> None:
        cancel([future for lane in self._lanes for future in lane.futures()])
        self._lanes = []
        self._chunk = self._resident = None

    def _num_before(self, cursor: int) -> int:
        """Return the number of items of this learner's lanes, in all epochs, that are delivered before `cursor`."""
        epoch, offset = divmod(cursor, self.epoch_size)
        num_rounds, num_visits = divmod(offset, self._order.num_lanes)
        items_in_epoch = num_rounds * self._num_lanes + self._num_lanes_before[num_visits]
        return epoch * self._items_per_epoch + items_in_epoch

    def _num_steps(self, window: Window) -> int:
        return sum(int(piece.length.sum()) for piece in self._loader.locate(window.pieces))

    def _open_lanes(self, cursor: int) -> None:
        # In the order of their visits, and only the first window of each lane: the first batch needs all of these, and
        # reading further windows would delay it.
        lanes = sorted(self._own_lanes, key=self._order.place)
        self._lanes = [_Lane(self, lane, cursor) for lane in lanes]

    def start_window(self, window: Window) -> PendingWindow:
        """Start to load a window."""
        if not self._is_resident:
            return self._loader.start(window)
        if self._resident is None:
            start_time = time.perf_counter()
            self._resident = ResidentWindows(self._loader, self._shard, window.epoch)
            self._wait_seconds += time.perf_counter() - start_time
        return self._resident.start(window)

    def wait_for(self, pending: PendingWindow) -> LoadedWindow:
        """Wait for a window, and count the time."""
        if not pending.is_ready():
            self._loader.executor.note_wait()
            self.spread = _MIN_SPREAD
        start_time = time.perf_counter()
        try:
            return pending.load()
        finally:
            seconds = time.perf_counter() - start_time
            self._wait_seconds += seconds
            if (timeline := self._loader.executor.timeline) is not None:
                timeline.add({"wait": seconds})

    def _chunk_at(self, cursor: int, end: int) -> _Chunk:
        """Return the chunk with the item at `cursor`, which is gathered if necessary; see `_chunk_stop` for its end."""
        if self._chunk is None or not self._chunk.first <= cursor < self._chunk.stop:
            self._chunk = None  # its memory is freed before the next one is gathered
            if not self._lanes:
                self._open_lanes(cursor)
            self._chunk = self._gather(cursor, self._chunk_stop(cursor, end))
        return self._chunk

    def _chunk_stop(self, cursor: int, end: int) -> int:
        """Return the cursor at which a chunk ends: the end of the batch that ends at `end`, or of a later batch.

        Later batches are included as far as their windows are loaded and `_CHUNK_BYTES` allows. No chunk spans epochs.
        """
        order, epoch_end = self._order, (cursor // self.epoch_size + 1) * self.epoch_size
        stop = end
        if self._item_bytes:
            device = self._loader.recipe.device
            num_items = _CHUNK_BYTES["cpu" if device is None else device.type] // self._item_bytes
            # A batch has `end - cursor` items, of which this learner gathers those of its lanes.
            batches = num_items * order.num_lanes // (self._num_lanes * (end - cursor))
            ready = min(
                order.cursor_of(lane.lane, order.num_items(lane.lane, cursor) + lane.num_ready())
                for lane in self._lanes
            )
            batches = min(batches, (ready - cursor) // (end - cursor))
            stop = cursor + max(1, batches) * (end - cursor)
        return min(stop, epoch_end)

    def _gather(self, first: int, stop: int) -> _Chunk:
        """Gather this learner's items from cursor `first` to `stop`, in order."""
        order, num_before = self._order, self._num_before(first)
        count = self._num_before(stop) - num_before
        chunk = _Chunk(first, stop, num_before)
        shared_rows: Tensor | None = None
        for lane in self._lanes:
            item = order.num_items(lane.lane, first)
            num_items = order.num_items(lane.lane, stop) - item
            position = self._num_before(order.cursor_of(lane.lane, item)) - num_before
            for loaded, rows in lane.take(num_items):
                # Lanes are visited in turns, so each lane's items are evenly spaced.
                places = range(position, position + len(rows) * self._num_lanes, self._num_lanes)
                position = places.stop
                if self._resident is not None and loaded.data is self._resident.data:
                    if shared_rows is None:
                        shared_rows = torch.empty(count, dtype=torch.int64, device=rows.device)
                    shared_rows[_as_slice(places)] = rows
                else:
                    chunk.add(loaded, rows, places, count, has_targets=self._targets is not None)
        if shared_rows is not None and self._resident is not None:
            chunk.columns = self._resident.data.gather(shared_rows)
        if count:
            nbytes = sum(column.nbytes for column in chunk.columns.values())
            self._item_bytes = max(1, nbytes // count)
        return chunk

    def _update_targets(self, chunk: _Chunk, first: int, stop: int, targets: Targets) -> None:
        """Compute the targets of windows that deliver an item from `first` to `stop` and have none, or old ones."""
        num_updates, first_row = targets.updates(), self._num_before(first) - chunk.num_before
        for index, (loaded, _) in enumerate(chunk.windows):
            window = loaded.window
            lane = window.lane
            if (
                window.end_cursor <= first
                or window.first_cursor >= stop
                or self._order.num_items(lane, first) == self._order.num_items(lane, stop)
            ):
                continue
            current = self._window_targets.get(lane)
            is_due = (
                current is not None
                and targets.every is not None
                and num_updates - current.updates >= targets.every
            )
            if current is None or current.first_cursor != window.first_cursor or is_due:
                columns = targets.compute(loaded.data)
                if replaced_columns := columns.keys() & loaded.data.columns.keys():
                    names = ", ".join(sorted(replaced_columns))
                    raise SpecError(
                        f"contains a connector that adds {names}, but the algorithm computes them itself after all "
                        "connectors, with its current weights: other targets require a custom algorithm.",
                        field="spec.pipeline.connectors",
                    )
                current = self._window_targets[lane] = WindowTargets(
                    window.first_cursor, num_updates, columns
                )
            chunk.set_targets(index, current.columns, first_row)

    def _current_targets(self) -> dict[int, WindowTargets]:
        """Return the targets of the windows in use by lane, without those of windows that have ended."""
        return {
            lane: targets
            for lane, targets in sorted(self._window_targets.items())
            if self._order.locate(lane, self._cursor)[0].first_cursor == targets.first_cursor
        }


class _Lane:
    """A lane's items in order: the window in use, and the next one, which is loaded meanwhile.

    Args:
        feed: loads windows.
        lane: number of the lane.
        cursor: position at which the lane begins.

    Attributes:
        due: the feed's position from which the next window should be loaded; infinite if that has begun.
    """

    def __init__(self, feed: LaneFeed, lane: int, cursor: int) -> None:
        self.lane = lane
        self._feed = feed
        window, self._index = feed._order.locate(lane, cursor)
        self._pending = deque([feed.start_window(window)])
        self._current: LoadedWindow | None = None
        self._schedule(cursor)

    def prefetch(self) -> None:
        """Start to load the window after the one in use, unless that has been done."""
        if len(self._pending) == 1:
            window = self._feed._order.next_window(self._pending[0].window)
            self._pending.append(self._feed.start_window(window))
            self.due = math.inf

    def _schedule(self, cursor: int) -> None:
        """Set `due` for the window that comes into use at `cursor`."""
        window, order = self._pending[0].window, self._feed._order
        num_cursors = window.end_cursor - max(window.first_cursor, cursor)
        # After a wait, the spread grows back window by window.
        self._feed.spread = min(_MAX_SPREAD, 1.5 * self._feed.spread)
        self.due = cursor + self._feed.spread * order.place(self.lane) / order.num_lanes * num_cursors

    def num_ready(self) -> int:
        """Return the number of the next items that can be taken without waiting."""
        count = -self._index
        for pending in self._pending:
            if not pending.is_ready():
                break
            count += pending.window.num_items
        return max(0, count)

    def take(self, count: int) -> Iterator[tuple[LoadedWindow, Tensor]]:
        """Advance by `count` items, and yield their windows with their rows in each."""
        while count:
            if self._current is None:
                self._current = self._feed.wait_for(self._pending[0])
            rows = self._current.rows[self._index : self._index + count]
            count -= len(rows)
            self._index += len(rows)
            yield self._current, rows
            if self._index == len(self._current.rows):
                self._current, self._index = None, 0
                self.prefetch()
                self._pending.popleft()
                self._schedule(self._feed.cursor)

    def futures(self) -> Iterator[Future[Any]]:
        """Return the reads that may not be complete."""
        return (future for pending in self._pending for future in pending.futures)


class _Chunk:
    """Adjacent items of this learner, gathered at once.

    Args:
        first: cursor of the first item, of any learner.
        stop: cursor after the last one.
        num_before: number of this learner's items before the chunk.
    """

    def __init__(self, first: int, stop: int, num_before: int) -> None:
        self.first = first
        self.stop = stop
        self.num_before = num_before
        self.columns: Batch = {}
        self.windows: list[tuple[LoadedWindow, range]] = []
        self._targets: dict[int, Mapping[str, Tensor]] = {}

    def add(
        self, loaded: LoadedWindow, rows: Tensor, places: range, count: int, *, has_targets: bool
    ) -> None:
        """Gather rows of a window, and put them at the places of a chunk of `count` items."""
        data = loaded.data
        if has_targets:
            data = data.with_columns({_STEP: torch.arange(data.num_steps, device=rows.device)})
            self.windows.append((loaded, places))
        for leaf, column in data.gather(rows).items():
            self._put(leaf, places, column, count)

    def set_targets(self, index: int, columns: Mapping[str, Tensor], first: int) -> None:
        """Add targets to the items of window number `index`, without those before item `first` of the chunk."""
        if self._targets.get(index) is columns:
            return
        self._targets[index] = columns
        # Batches that have been delivered keep their targets.
        places = self.windows[index][1]
        places = places[bisect_left(places, first) :]
        steps = self.columns[_STEP]
        count, steps = len(steps), steps[_as_slice(places)]
        for name, column in columns.items():
            values = column.index_select(0, steps.flatten()).unflatten(0, steps.shape)
            if steps.dim() > 1:
                length = self.columns[Columns.SEQ_LENS][_as_slice(places)]
                is_recorded = torch.arange(steps.shape[1], device=steps.device) < length.unsqueeze(1)
                values = mask(is_recorded, values)
            self._put(name, places, values, count)

    def slice(self, first: int, stop: int) -> Batch:
        """Return the items from `first` to `stop`; the tensors do not depend on where the chunk begins."""
        return {leaf: _align(column[first:stop]) for leaf, column in self.columns.items() if leaf != _STEP}

    def _put(self, leaf: str, places: range, values: Tensor, count: int) -> None:
        if leaf not in self.columns:
            self.columns[leaf] = values.new_empty(count, *values.shape[1:])
        self.columns[leaf][_as_slice(places)] = values


def _as_slice(places: range) -> slice:
    return slice(places.start, places.stop, places.step)


def _align(column: Tensor) -> Tensor:
    """Return the tensor at an aligned address: kernels may round differently elsewhere, such as after a resume."""
    return column if column.data_ptr() % _ALIGNMENT == 0 else column.clone()
