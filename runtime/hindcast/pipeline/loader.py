"""`Loader` turns units into blocks and blocks into windows, in the order of delivery."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hindcast.datasets.dataset import Dataset
from hindcast.datasets.units import Unit
from hindcast.episodes.block import Block
from hindcast.pipeline.executors import UnitInEpoch
from hindcast.pipeline.order import Order, Window
from hindcast.pipeline.upload import upload
from hindcast.pipeline.window import Recipe, WindowData
from hindcast.pipeline.window_builder import build_window

I64 = NDArray[np.int64]
Stream = Callable[[Iterable[UnitInEpoch]], Generator[Block, None, None]]


class LoadedWindow(NamedTuple):
    """A window with its data.

    Attributes:
        window: the window.
        data: contains at least the window's steps.
        rows: int64 `[window.num_items]`, indices of its items in `data` in the order of delivery.
    """

    window: Window
    data: WindowData
    rows: Tensor


class Loader:
    """Reads a dataset window by window, or as a whole.

    Args:
        dataset: the dataset to read.
        order: assigns units to windows.
        stream: turns units into blocks of the same episode lengths, see `Executor.stream`.
        recipe: which columns of a block a window keeps, and how.
        location: location of the data as the user wrote it, for messages.
    """

    def __init__(self, dataset: Dataset, order: Order, stream: Stream, recipe: Recipe, location: str) -> None:
        self.dataset = dataset
        self.order = order
        self.recipe = recipe
        self.location = location
        self._stream = stream

    def windows(self, first: Window) -> Generator[LoadedWindow, None, None]:
        """Yield all windows from `first` on, endlessly; each is loaded when it is requested."""
        units = self.dataset.units
        units_in_epochs = (
            UnitInEpoch(units[unit], window.epoch)
            for window in self._windows_from(first)
            for unit in window.units
        )
        # A consumer that stops early must also end the executor's stream, and with it the data workers.
        with closing(self._stream(units_in_epochs)) as blocks:
            for window in self._windows_from(first):
                data = self._build_window([units[unit] for unit in window.units], blocks, pin_memory=True)
                yield LoadedWindow(window, data, self.permutation(window))
                del data  # else this window stays in memory while the next one is built

    def load_all(self, epoch: int) -> WindowData:
        """Return all units as one window, in the dataset's order, as they are in `epoch`."""
        units = list(self.dataset.units)
        with closing(self._stream(UnitInEpoch(unit, epoch) for unit in units)) as blocks:
            return self._build_window(units, blocks)

    def permutation(self, window: Window) -> Tensor:
        """Return `Order.permutation` as a tensor on the device, `[window.num_items]` int64."""
        return upload({"order": self.order.permutation(window)}, self.recipe.device)["order"]

    def _windows_from(self, window: Window) -> Iterator[Window]:
        while True:
            yield window
            window = self.order.next_window(window)

    def _build_window(
        self, units: Sequence[Unit], blocks: Iterator[Block], pin_memory: bool = False
    ) -> WindowData:
        length = np.concatenate([unit.lengths for unit in units])
        return build_window(length, (next(blocks) for _ in units), self.recipe, pin_memory)
