"""`Feed`, the interface of sources of endless batches, and the feeds that iterate over windows in the order of `Order`.

`ResidentFeed` keeps all data on the device, `StreamingFeed` one window at a time; both deliver the same batches.
Targets are computed with the current weights when the first item of a window is about to be delivered. They are used
until the window ends or, if they have a schedule, until they are due to be recomputed.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hindcast.episodes.block import concat_ranges
from hindcast.errors import DataError, SpecError, UserCodeError
from hindcast.pipeline.loader import LoadedWindow, Loader
from hindcast.pipeline.order import Window
from hindcast.pipeline.shard import WHOLE_BATCH, Shard
from hindcast.pipeline.targets import Targets, WindowTargets
from hindcast.pipeline.window import Batch, WindowData, concat_batches

I64 = NDArray[np.int64]
State = dict[str, Any]


class Feed(Protocol):
    """A source of endless batches with a position that can be saved and restored.

    Attributes:
        batch_size: items in a batch.
        epoch_size: number of items in an epoch; 0 without recorded data.
        epoch_timesteps: number of timesteps of the recorded data; 0 without recorded data.
    """

    batch_size: int
    epoch_size: int
    epoch_timesteps: int

    @property
    def cursor(self) -> int:
        """Number of items delivered since the start of epoch 0."""

    def next(self) -> Batch:
        """Return the next batch, of `batch_size` items."""
        return self.take(self.batch_size)

    def take(self, count: int, shard: Shard = WHOLE_BATCH) -> Batch:
        """Advance by `count` items, and return those of the shard; `count` is at least the number of learners."""

    def state(self) -> State:
        """Return the position, as a JSON value."""

    def tensors(self) -> Batch:
        """Return copies of the tensors of the position, on the CPU: targets of the current window, or priorities."""

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Go to a saved position.

        Args:
            state: the result of the method `state`.
            tensors: the result of the method `tensors`. Without it, targets are computed again.

        Raises:
            DataError: the position belongs to other data or to another order.
        """

    def prioritise(self, priorities: Tensor) -> None:
        """Set the priorities of all items of the last `take`, `[count]`, not only of this learner's; signs are ignored.

        Raises:
            UserCodeError: the items are not drawn by priority, or there is not exactly one priority per item.
        """

    def metrics(self) -> dict[str, float]:
        """Return metrics since the start of epoch 0.

        `epoch` (with its fraction), `timesteps_seen` (distinct), `coverage` (their fraction of the dataset), and
        `data_wait_seconds`, the time that this process has waited for windows. With targets also `targets_age`: the
        updates since the current ones were computed.
        """

    def close(self) -> None:
        """Release the data and stop the threads. The feed can resume from its cursor afterwards."""


class WindowFeed(Feed, ABC):
    """Base class of feeds that iterate over windows.

    Args:
        loader: reads the data.
        batch_size: items in a batch.
        targets: computes the targets of a window; None if the algorithm has no targets.
    """

    def __init__(self, loader: Loader, batch_size: int, targets: Targets | None = None) -> None:
        self.batch_size = batch_size
        self.epoch_size = loader.order.epoch_size
        self.epoch_timesteps = loader.order.epoch_timesteps
        self._loader = loader
        self._order = loader.order
        self._targets = targets
        self._cursor = 0
        self._current_window: LoadedWindow | None = None
        self._window_with_targets: LoadedWindow | None = None
        self._window_targets: WindowTargets | None = None
        self._wait_seconds = 0.0

    @property
    def cursor(self) -> int:
        return self._cursor

    def take(self, count: int, shard: Shard = WHOLE_BATCH) -> Batch:
        """See `Feed.take`. A batch may span several windows and epochs."""
        parts: list[Batch] = []
        rows_of_shard = shard.slice_of(count)
        cursor, end = self._cursor, self._cursor + count
        shard_start, shard_stop = cursor + rows_of_shard.start, cursor + rows_of_shard.stop
        while cursor < end:
            # Windows without an item of this shard are entered too: all learners compute a window's targets with the
            # same weights.
            window, data, rows = self._window_at(cursor)
            window_stop = min(end, window.end_cursor)
            start, stop = max(cursor, shard_start), min(window_stop, shard_stop)
            if start < stop:
                parts.append(data.gather(rows[start - window.first_cursor : stop - window.first_cursor]))
            cursor = window_stop
        self._cursor = end
        return concat_batches(parts)

    def state(self) -> State:
        state = {"cursor": self._cursor, "order": self._order.digest, "data": self._loader.dataset.digest}
        window_targets = self._targets_at_cursor()
        return (
            state
            if window_targets is None
            else state | {"targets": [window_targets.first_cursor, window_targets.updates]}
        )

    def tensors(self) -> Batch:
        window_targets = self._targets_at_cursor()
        columns = {} if window_targets is None else window_targets.columns
        return {name: column.to("cpu", copy=True).contiguous() for name, column in columns.items()}

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        """See `Feed.seek`."""
        check_same_position(
            state,
            self.state(),
            self._loader.location,
            "the seed, the window size, the sampling, or the division of episodes into items (the length, burn-in or "
            "stride of sequences) has",
        )
        # The loaded observations are filtered, and the filter may just have been restored from the same checkpoint.
        self.close()
        self._cursor = int(state["cursor"])
        self._window_targets = None
        # The weights may have changed since the targets were computed: computing them again would give other values.
        # Even with the same weights they would differ in the last bits on another kind of machine.
        if "targets" in state and tensors:
            device = self._loader.recipe.device
            first_cursor, updates = state["targets"]
            columns = {name: tensor.to(device) for name, tensor in tensors.items()}
            self._window_targets = WindowTargets(int(first_cursor), int(updates), columns)

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
        if self._targets is not None and self._window_targets is not None:
            metrics["targets_age"] = float(self._targets.updates() - self._window_targets.updates)
        return metrics

    def close(self) -> None:
        self._current_window = self._window_with_targets = None

    @abstractmethod
    def _load(self, window: Window) -> LoadedWindow:
        """Load a window. The caller has already released the previous one."""

    def _window_at(self, cursor: int) -> LoadedWindow:
        """Return the window of the item at `cursor`, with its targets if there are any; load it if necessary."""
        current = self._current_window
        if current is None or not current.window.first_cursor <= cursor < current.window.end_cursor:
            # Released first, so that its memory is free while the next window is loaded.
            current = self._current_window = self._window_with_targets = None
            start_time = time.perf_counter()
            current = self._current_window = self._load(self._order.locate(cursor)[0])
            self._wait_seconds += time.perf_counter() - start_time
        return current if self._targets is None else self._with_targets(current, self._targets)

    def _with_targets(self, current: LoadedWindow, targets: Targets) -> LoadedWindow:
        """Return the window with its targets, which are computed first if it has none or they are due."""
        num_updates, window_targets, first_cursor = (
            targets.updates(),
            self._window_targets,
            current.window.first_cursor,
        )
        is_due = (
            window_targets is not None
            and targets.every is not None
            and num_updates - window_targets.updates >= targets.every
        )
        if window_targets is None or window_targets.first_cursor != first_cursor or is_due:
            columns = targets.compute(current.data)
            if replaced_columns := columns.keys() & current.data.columns.keys():
                names = ", ".join(sorted(replaced_columns))
                raise SpecError(
                    f"contains a connector that adds {names}, but the algorithm computes them itself after all "
                    "connectors, with its current weights: other targets require a custom algorithm.",
                    field="spec.pipeline.connectors",
                )
            window_targets = self._window_targets = WindowTargets(first_cursor, num_updates, columns)
            self._window_with_targets = None
        if self._window_with_targets is None:
            self._window_with_targets = current._replace(
                data=current.data.with_columns(window_targets.columns)
            )
        return self._window_with_targets

    def _targets_at_cursor(self) -> WindowTargets | None:
        """Return the current targets; None if there are none, or if the next item is in another window."""
        window_targets = self._window_targets
        if (
            window_targets is None
            or self._order.locate(self._cursor)[0].first_cursor != window_targets.first_cursor
        ):
            return None
        return window_targets


class Prefetcher:
    """Loads one window ahead of the one in use.

    Args:
        windows: yields the windows; each is loaded in a daemon thread, which does not keep the process alive.
    """

    def __init__(self, windows: Generator[LoadedWindow, None, None]) -> None:
        self._windows = windows
        self._start_thread()

    def take(self) -> LoadedWindow:
        """Wait for the next window and return it; start to load the one after it.

        The caller must not use the previous window any more.

        Raises:
            Exception: any error of loading the window. No further windows can be taken after an error.
        """
        self._thread.join()
        window = self._next_window
        if isinstance(window, BaseException):
            raise window
        del self._next_window  # so that the window is freed as soon as the caller drops it
        self._start_thread()
        return window

    def close(self) -> None:
        """Wait for the window that is being loaded, then stop."""
        self._thread.join()
        self._windows.close()

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._load, name="hindcast-window-filler", daemon=True)
        self._thread.start()

    def _load(self) -> None:
        self._next_window: LoadedWindow | BaseException
        try:
            self._next_window = next(self._windows)
        except BaseException as error:  # `take` raises it in the consumer's thread
            self._next_window = error


class StreamingFeed(WindowFeed):
    """A feed that holds the current window and loads the next one in the background."""

    _prefetcher: Prefetcher | None = None

    def _load(self, window: Window) -> LoadedWindow:
        """See `WindowFeed._load`: windows are loaded in order, so this is the prefetcher's next one."""
        if self._prefetcher is None:
            self._prefetcher = Prefetcher(self._loader.windows(window))
        try:
            return self._prefetcher.take()
        except Exception:
            self.close()  # the next call reads the window again
            raise

    def close(self) -> None:
        super().close()
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None


class ResidentFeed(WindowFeed):
    """A feed that keeps all columns on the device and gathers by index; with targets it copies each window."""

    _data: WindowData | None = None

    def _load(self, window: Window) -> LoadedWindow:
        if self._data is None:
            self._data = self._loader.load_all(window.epoch)
        permutation = self._loader.permutation(window)
        if self._targets is not None:
            unit_episodes = np.array([len(unit.lengths) for unit in self._loader.dataset.units])
            episodes = _positions(unit_episodes, window, permutation.device)
            return LoadedWindow(window, self._data.take(episodes), permutation)
        rows = _positions(self._order.unit_items, window, permutation.device)
        return LoadedWindow(window, self._data, rows.index_select(0, permutation))

    def close(self) -> None:
        super().close()
        self._data = None


def _positions(counts: I64, window: Window, device: torch.device) -> Tensor:
    """Return the indices of a window's items (or episodes) among those of all units; unit u has `counts[u]`."""
    units = np.array(window.units)
    return torch.from_numpy(concat_ranges(counts.cumsum()[units] - counts[units], counts[units])).to(device)


def check_same_position(saved: State, current: State, location: str, order_subject: str) -> None:
    """Check that a saved position belongs to the same data and the same order.

    Args:
        saved: the saved position.
        current: any position of this feed.
        location: location of the data as the user wrote it, for the message.
        order_subject: subject of the message about the order: what it depends on, followed by "has".

    Raises:
        DataError: the data or the order changed.
    """
    data_subject = f"the data in {location}, or how Hindcast prepares them, have"
    for key, subject in {"data": data_subject, "order": order_subject}.items():
        if saved[key] != current[key]:
            raise DataError(
                f"The position in the data cannot be resumed: {subject} changed since the checkpoint was "
                "written. Undo the change, or start a new run with a higher spec.revision.",
                mentions=("spec.revision",),
            )


def refuse_priorities() -> NoReturn:
    """Raise the error of `Feed.prioritise` for items that are not drawn by priority."""
    raise UserCodeError(
        "The algorithm's losses return priorities, but it does not draw by priority: set "
        "sampling='prioritized' in its needs."
    )
