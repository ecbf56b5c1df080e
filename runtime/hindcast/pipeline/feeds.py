"""Feeds: endless batches in the order of `Order`, from data resident on the device or streamed through it.

Both kinds deliver the same batches. Targets are computed when the first item of a window is about to be delivered,
never earlier, with the weights of that moment, and hold until they are due again or the window is used up. A position
in the middle of a window comes with its targets: weights have moved since, so recomputing them would give others,
and the saved weights would still give other bits on another kind of machine.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hindcast.episodes.block import concat_ranges
from hindcast.errors import DataError, UserCodeError
from hindcast.pipeline.loader import LoadedWindow, Loader
from hindcast.pipeline.order import Window
from hindcast.pipeline.prefetcher import Prefetcher
from hindcast.pipeline.shard import WHOLE_BATCH, Shard
from hindcast.pipeline.targets import Targets, WindowTargets
from hindcast.pipeline.window import Batch, WindowData, concat_batches

I64 = NDArray[np.int64]
State = dict[str, Any]


class Feed(Protocol):
    """Endless batches with a position that can be saved and found again.

    Attributes:
        batch_size: items in a batch.
        epoch_size: items in an epoch; 0 if nothing is recorded.
        epoch_timesteps: timesteps of the recorded data.
    """

    batch_size: int
    epoch_size: int
    epoch_timesteps: int

    @property
    def cursor(self) -> int:
        """Items delivered since the start of epoch 0."""

    def next(self) -> Batch:
        """The next batch of the size that the feed was made with."""
        return self.take(self.batch_size)

    def take(self, count: int, shard: Shard = WHOLE_BATCH) -> Batch:
        """The next `count` items, at least one; of them those that are `share`'s."""

    def state(self) -> State:
        """The position, as JSON."""

    def tensors(self) -> Batch:
        """What belongs to the position in addition to `state`, on the CPU: the targets of the window in use."""

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Go to a saved position.

        Args:
            state: see `state`.
            tensors: see `tensors`.

        Raises:
            DataError: the position belongs to other data or to another order.
        """

    def prioritise(self, priorities: Tensor) -> None:
        """The priorities of the items that were taken last, `[count]`, those of all learners; signs do not count.

        Raises:
            UserCodeError: the items are not drawn by priority.
        """

    def metrics(self) -> dict[str, float]:
        """Numbers since the start of epoch 0.

        `epoch` (with its fraction), `timesteps_seen` (distinct), `coverage` (their share of the dataset); and
        `data_wait_seconds`, what this process has waited for windows so far. With targets also `targets_age`: the
        updates made since those in use were computed.
        """

    def close(self) -> None:
        """Release the data and stop any thread. The feed can resume from its cursor afterwards."""


class WindowFeed(Feed, ABC):
    """What both kinds of feed share: walking over windows.

    Args:
        loader: reads the data.
        batch_size: items in a batch.
        targets: how windows get theirs; None if there are none.
    """

    def __init__(self, loader: Loader, batch_size: int, targets: Targets | None = None) -> None:
        self.batch_size = batch_size
        self.epoch_size = loader.order.epoch_size
        self.epoch_timesteps = loader.order.epoch_timesteps
        self._loader = loader
        self._order = loader.order
        self._targets = targets
        self._cursor = 0
        self._current: LoadedWindow | None = None
        self._complete: LoadedWindow | None = None
        self._held: WindowTargets | None = None
        self._waited = 0.0

    @property
    def cursor(self) -> int:
        return self._cursor

    def take(self, count: int, shard: Shard = WHOLE_BATCH) -> Batch:
        """See `Feed`. Spans as many windows and epochs as it needs.

        Windows that hold nothing of the share are entered too: all learners enter each with the same weights.
        """
        parts: list[Batch] = []
        own = shard.slice_of(count)
        cursor, end = self._cursor, self._cursor + count
        first, last = cursor + own.start, cursor + own.stop
        while cursor < end:
            window, data, rows = self._window_at(cursor)
            until = min(end, window.end_cursor)
            begin, stop = max(cursor, first), min(until, last)
            if begin < stop:
                parts.append(data.gather(rows[begin - window.first_cursor : stop - window.first_cursor]))
            cursor = until
        self._cursor = end
        return concat_batches(parts)

    def state(self) -> State:
        state = {"cursor": self._cursor, "order": self._order.digest, "data": self._loader.dataset.digest}
        held = self._held_here()
        return state if held is None else state | {"targets": [held.first_cursor, held.updates]}

    def tensors(self) -> Batch:
        held = self._held_here()
        columns = {} if held is None else held.columns
        return {name: column.to("cpu", copy=True).contiguous() for name, column in columns.items()}

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        """See `Feed`. What is held is released, since the observation filter may have been restored too."""
        check_same_position(
            state, self.state(), self._loader.location, "the seed, the window size or the sampling has"
        )
        self.close()
        self._cursor = int(state["cursor"])
        self._held = None
        if "targets" in state and tensors:
            device = self._loader.recipe.device
            first_cursor, updates = state["targets"]
            columns = {name: tensor.to(device) for name, tensor in tensors.items()}
            self._held = WindowTargets(int(first_cursor), int(updates), columns)

    def prioritise(self, priorities: Tensor) -> None:  # noqa: ARG002
        refuse_priorities()

    def metrics(self) -> dict[str, float]:
        seen = self._order.num_distinct(self._cursor)
        coverage = seen / self.epoch_size
        found = {
            "epoch": self._cursor / self.epoch_size,
            "timesteps_seen": float(round(coverage * self.epoch_timesteps)),
            "coverage": coverage,
            "data_wait_seconds": self._waited,
        }
        if self._targets is not None and self._held is not None:
            found["targets_age"] = float(self._targets.updates() - self._held.updates)
        return found

    def close(self) -> None:
        self._current = self._complete = None

    @abstractmethod
    def _load(self, window: Window) -> LoadedWindow:
        """The data of a window; no other is in use."""

    def _window_at(self, cursor: int) -> LoadedWindow:
        current = self._current
        if current is None or not current.window.first_cursor <= cursor < current.window.end_cursor:
            current = self._current = self._complete = None
            started = time.perf_counter()
            current = self._current = self._load(self._order.locate(cursor)[0])
            self._waited += time.perf_counter() - started
        return current if self._targets is None else self._with_targets(current, self._targets)

    def _with_targets(self, current: LoadedWindow, targets: Targets) -> LoadedWindow:
        now, held, first = targets.updates(), self._held, current.window.first_cursor
        is_due = held is not None and targets.every is not None and now - held.updates >= targets.every
        if held is None or held.first_cursor != first or is_due:
            held = self._held = WindowTargets(first, now, targets.compute(current.data))
            self._complete = None
        if self._complete is None:
            self._complete = current._replace(data=current.data.with_columns(held.columns))
        return self._complete

    def _held_here(self) -> WindowTargets | None:
        """The targets in use, unless the next item is of another window."""
        held = self._held
        if held is None or self._order.locate(self._cursor)[0].first_cursor != held.first_cursor:
            return None
        return held


class StreamingFeed(WindowFeed):
    """Holds the current window and loads the next in the background: memory for two windows."""

    _filler: Prefetcher | None = None

    def _load(self, window: Window) -> LoadedWindow:
        """See `WindowFeed`: windows are taken in their order, so the filler's next one is this."""
        if self._filler is None:
            self._filler = Prefetcher(self._loader.windows(window))
        try:
            return self._filler.take()
        except Exception:
            self.close()  # who asks again has it read again
            raise

    def close(self) -> None:
        super().close()
        if self._filler is not None:
            self._filler.close()
            self._filler = None


class ResidentFeed(WindowFeed):
    """Keeps all columns on the device and gathers by index. For targets, copies a window at a time."""

    _data: WindowData | None = None

    def _load(self, window: Window) -> LoadedWindow:
        if self._data is None:
            self._data = self._loader.load_all(window.epoch)
        order = self._loader.permutation(window)
        if self._targets is not None:
            episodes = np.array([len(unit.lengths) for unit in self._loader.dataset.units])
            return LoadedWindow(window, self._data.take(_places(episodes, window, order.device)), order)
        rows = _places(self._order.unit_items, window, order.device)
        return LoadedWindow(window, self._data, rows.index_select(0, order))

    def close(self) -> None:
        super().close()
        self._data = None


def _places(counts: I64, window: Window, device: torch.device) -> Tensor:
    """The places of a window's items, or episodes, among those of all data, of which unit u has `counts[u]`."""
    units = np.array(window.units)
    return torch.from_numpy(concat_ranges(counts.cumsum()[units] - counts[units], counts[units])).to(device)


def check_same_position(saved: State, here: State, place: str, order: str) -> None:
    """Refuse a position of other data, or of another order.

    Args:
        saved: the position.
        here: one of the feed.
        place: where the user has the data.
        order: what the order follows from, with its verb.

    Raises:
        DataError: it is.
    """
    data = f"the data in {place}, or how Hindcast prepares them, have"
    for key, what in {"data": data, "order": order}.items():
        if saved[key] != here[key]:
            raise DataError(
                f"The position in the data cannot be resumed: {what} changed since the checkpoint was "
                "written; restore that, or start a new run with a higher spec.revision."
            )


def refuse_priorities() -> NoReturn:
    """Raise what `Feed.prioritise` says of items that are not drawn by priority."""
    raise UserCodeError(
        "The algorithm's losses give priorities, but it does not draw by priority: its needs must say "
        "sampling='prioritized'."
    )
