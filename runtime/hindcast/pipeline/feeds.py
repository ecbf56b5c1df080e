"""Feeds: endless batches in the order of `Order`, from data resident on the device or streamed through it.

Both kinds deliver the same batches. Targets (`on_window`) are computed when the first item of a window is
about to be delivered, never earlier, with the weights of that moment, and hold until the window is used up.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hindcast.errors import DataError
from hindcast.pipeline.filler import Filler
from hindcast.pipeline.loader import Loaded, Loader
from hindcast.pipeline.order import Window
from hindcast.pipeline.share import WHOLE, Share
from hindcast.pipeline.window import Batch, Part, WindowData, concat_batches, consecutive_parts

OnWindow = Callable[[WindowData], Mapping[str, Tensor]]
State = dict[str, Any]


class Feed(Protocol):
    """Endless batches with a position that can be saved and found again."""

    epoch_size: int

    @property
    def cursor(self) -> int:
        """Items delivered since the start of epoch 0."""
        ...

    def next(self) -> Batch:
        """The next batch of the size that the feed was made with."""
        ...

    def take(self, count: int, share: Share = WHOLE) -> Batch:
        """The next `count` items, at least one; of them those that are `share`'s."""
        ...

    def state(self) -> State:
        """The position, as JSON."""
        ...

    def seek(self, state: State) -> None:
        """Go to a saved position.

        Raises:
            DataError: the position belongs to other data or to another order.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Figures since the start of epoch 0.

        `epoch` (with its fraction), `timesteps_seen` (distinct), `coverage` (their share of the dataset); and
        `data_wait_seconds`, what this process has waited for windows so far.
        """
        ...

    def close(self) -> None:
        """Let go of the data and stop any thread. The feed can go on from its cursor afterwards."""
        ...


class WindowFeed(ABC):
    """What both kinds of feed share: walking over windows.

    Args:
        loader: reads the data.
        batch_size: items in a batch.
        on_window: computes further columns of a window, `[S, ...]` each in the window's own order, from
            its whole episodes.
    """

    def __init__(self, loader: Loader, batch_size: int, on_window: OnWindow | None = None) -> None:
        self.batch_size = batch_size
        self.epoch_size = loader.order.epoch_size
        self._loader = loader
        self._order = loader.order
        self._on_window = on_window
        self._cursor = 0
        self._current: Loaded | None = None
        self._waited = 0.0

    @property
    def cursor(self) -> int:
        """See `Feed`."""
        return self._cursor

    def next(self) -> Batch:
        """See `Feed`."""
        return self.take(self.batch_size)

    def take(self, count: int, share: Share = WHOLE) -> Batch:
        """See `Feed`. Spans as many windows and epochs as it needs.

        Windows that hold nothing of the share are entered too: all learners enter each with the same weights.
        """
        parts: list[Batch] = []
        own = share.of(count)
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
        """See `Feed`."""
        return {"cursor": self._cursor, "order": self._order.digest, "data": self._loader.dataset.digest}

    def seek(self, state: State) -> None:
        """See `Feed`. What is held is let go of, since the observation filter may have been restored too."""
        changeable = {"data": "the data have", "order": "the seed, the window size or the sampling has"}
        here = self.state()
        for key, what in changeable.items():
            if state[key] != here[key]:
                raise DataError(
                    f"The position in the data cannot be resumed: {what} changed since the checkpoint was "
                    "written; restore that, or start a new run with a higher spec.revision."
                )
        self.close()
        self._cursor = int(state["cursor"])

    def metrics(self) -> dict[str, float]:
        """See `Feed`."""
        seen = self._order.distinct(self._cursor)
        timesteps_per_item = int(self._order.steps.sum()) / self.epoch_size
        return {
            "epoch": self._cursor / self.epoch_size,
            "timesteps_seen": float(round(seen * timesteps_per_item)),
            "coverage": seen / self.epoch_size,
            "data_wait_seconds": self._waited,
        }

    def close(self) -> None:
        """See `Feed`."""
        self._current = None

    @abstractmethod
    def _load(self, window: Window) -> Loaded:
        """The data of a window; no other is in use."""

    def _window_at(self, cursor: int) -> Loaded:
        current = self._current
        if current is not None and current.window.first_cursor <= cursor < current.window.end_cursor:
            return current
        current = self._current = None
        started = time.perf_counter()
        loaded = self._load(self._order.locate(cursor)[0])
        self._waited += time.perf_counter() - started
        if self._on_window is not None:
            targets = self._on_window(loaded.data)
            loaded = loaded._replace(data=loaded.data.with_columns(targets))
        self._current = loaded
        return loaded


class StreamingFeed(WindowFeed):
    """Holds the current window and loads the next in the background: memory for two windows."""

    _filler: Filler | None = None
    _expected: Window | None = None

    def _load(self, window: Window) -> Loaded:
        if self._filler is None or window != self._expected:
            self._stop()
            self._filler = Filler(lambda: self._loader.windows(window))
        loaded = self._filler.take()
        self._expected = self._order.following(window)
        return loaded

    def close(self) -> None:
        """See `Feed`."""
        super().close()
        self._stop()

    def _stop(self) -> None:
        if self._filler is not None:
            self._filler.close()
            self._filler = None


class ResidentFeed(WindowFeed):
    """Keeps all columns on the device and gathers by index. For `on_window`, copies a window at a time."""

    _data: WindowData | None = None
    _parts: list[Part]

    def _load(self, window: Window) -> Loaded:
        if self._data is None:
            self._data = self._loader.everything(window.epoch)
            self._parts = consecutive_parts([unit.lengths for unit in self._loader.dataset.units])
        order = self._loader.permutation(window)
        if self._on_window is not None:
            return Loaded(window, self._data.copy_of([self._parts[unit] for unit in window.units]), order)
        ends = np.cumsum(self._order.items)
        rows = np.concatenate([np.arange(ends[u] - self._order.items[u], ends[u]) for u in window.units])
        return Loaded(window, self._data, torch.from_numpy(rows).to(order.device).index_select(0, order))

    def close(self) -> None:
        """See `Feed`."""
        super().close()
        self._data = None
