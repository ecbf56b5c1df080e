"""`Loader`: units → blocks → windows, in the order of delivery."""

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
    """A window that is ready.

    Attributes:
        window: which one.
        data: holds at least its steps.
        rows: int64 `[window.items]`, its items in `data` in the order of delivery.
    """

    window: Window
    data: WindowData
    rows: Tensor


class Loader:
    """Reads a dataset window by window, or as a whole.

    Args:
        dataset: its units are read.
        order: which units make a window.
        stream: turns units into blocks of the same episodes' lengths, see `Executor.stream`.
        recipe: what is kept of a block.
        place: where the user has the data, for messages.
    """

    def __init__(self, dataset: Dataset, order: Order, stream: Stream, recipe: Recipe, location: str) -> None:
        self.dataset = dataset
        self.order = order
        self.recipe = recipe
        self.location = location
        self._stream = stream

    def windows(self, first: Window) -> Generator[LoadedWindow, None, None]:
        """All windows from `first` on, without end, each read when it is asked for."""
        units = self.dataset.units
        work = (
            UnitInEpoch(units[unit], window.epoch) for window in self._from(first) for unit in window.units
        )
        with closing(self._stream(work)) as blocks:
            for window in self._from(first):
                data = self._build([units[unit] for unit in window.units], blocks, pinned=True)
                yield LoadedWindow(window, data, self.permutation(window))
                del data

    def load_all(self, epoch: int) -> WindowData:
        """All units in the dataset's own order, as they are in `epoch`."""
        units = list(self.dataset.units)
        with closing(self._stream(UnitInEpoch(unit, epoch) for unit in units)) as blocks:
            return self._build(units, blocks)

    def permutation(self, window: Window) -> Tensor:
        """`[window.items]` positions in the window, in the order of delivery."""
        return upload({"order": self.order.permutation(window)}, self.recipe.device)["order"]

    def _from(self, window: Window) -> Iterator[Window]:
        while True:
            yield window
            window = self.order.next_window(window)

    def _build(self, units: Sequence[Unit], blocks: Iterator[Block], pinned: bool = False) -> WindowData:
        length = np.concatenate([unit.lengths for unit in units])
        return build_window(length, (next(blocks) for _ in units), self.recipe, pinned)
