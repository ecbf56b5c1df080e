"""`Loader` turns units into blocks, in the order of delivery, and `build_window` lays blocks end to end in a window."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hindcast.datasets.dataset import Dataset
from hindcast.datasets.units import Unit
from hindcast.episodes.batched import batch_dtype
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, is_per_observation, leaves_of
from hindcast.errors import DataError
from hindcast.pipeline.executors import UnitInEpoch
from hindcast.pipeline.order import Order, Window
from hindcast.pipeline.upload import empty_pinned, upload
from hindcast.pipeline.window import Recipe, WindowData

Array = NDArray[Any]
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


def build_window(
    length: I64, blocks: Iterable[Block], recipe: Recipe, pin_memory: bool = False
) -> WindowData:
    """Lay blocks end to end in arrays that are allocated once, and filter their observations.

    Args:
        length: `[N]` steps of every episode of the blocks.
        blocks: consumed one at a time.
        recipe: columns of the window, their preprocessing and their device.
        pin_memory: allocate in page-locked memory if the recipe's device is a GPU.

    Raises:
        DataError: a column that batches need is missing or holds text, or blocks differ in columns or shapes.
    """
    # Torch caches page-locked memory and reuses it for the next window, so whole datasets must not be pinned.
    pin_memory = pin_memory and recipe.device is not None and recipe.device.type == "cuda"
    arrays: dict[str, Array] = {}
    terminated, truncated = np.zeros((2, len(length)), dtype=np.bool_)
    t_started = np.zeros_like(length)
    num_steps = num_episodes = 0
    for block in blocks:
        columns = _select_columns(block, recipe)
        # Allocated with the first block, since only blocks tell shapes and dtypes.
        if not arrays:
            arrays = {leaf: _allocate(leaf, column, length, pin_memory) for leaf, column in columns.items()}
        if columns.keys() != arrays.keys():
            raise DataError(f"Blocks have different columns: {sorted(arrays)} and {sorted(columns)}.")
        for leaf, column in columns.items():
            _copy_rows(
                leaf, column, arrays[leaf], num_steps + (num_episodes if is_per_observation(leaf) else 0)
            )
        episode_rows = slice(num_episodes, num_episodes + block.num_episodes)
        terminated[episode_rows], truncated[episode_rows], t_started[episode_rows] = (
            block.terminated,
            block.truncated,
            block.t_started,
        )
        num_steps, num_episodes = num_steps + block.num_steps, episode_rows.stop
        del block, columns  # else two blocks are in memory while the next one is read
    episode_of_step = np.repeat(np.arange(len(length)), length)
    per_episode = {
        "length": length,
        "terminated": terminated,
        "truncated": truncated,
        "t_started": t_started,
        "obs_row": np.arange(len(episode_of_step)) + episode_of_step,
    }
    return WindowData(
        columns=upload(arrays, recipe.device), recipe=recipe, **upload(per_episode, recipe.device)
    )


def _allocate(leaf: str, column: Array, length: I64, pin_memory: bool) -> Array:
    rows = int(length.sum()) + (len(length) if is_per_observation(leaf) else 0)
    shape, dtype = (rows, *column.shape[1:]), batch_dtype(column.dtype)
    return empty_pinned(shape, dtype) if pin_memory else np.empty(shape, dtype)


def _copy_rows(leaf: str, column: Array, array: Array, first_row: int) -> None:
    target = array[first_row : first_row + len(column)]
    if target.shape != column.shape:
        raise DataError(
            f"Column {leaf!r} holds elements of shape {list(column.shape[1:])} in one block and of "
            f"{list(target.shape[1:])} in an earlier one; all must be the same."
        )
    # This runs in the background: NumPy releases the GIL to copy, and starts no threads, which torch would.
    np.copyto(target, column, casting="same_kind")


def _select_columns(block: Block, recipe: Recipe) -> dict[str, Array]:
    columns: dict[str, Array] = {}
    for name in sorted(recipe.needs.window_columns):
        if name == Columns.TERMINATEDS:
            columns[name] = block.step_flags(block.terminated)
        elif name == Columns.TRUNCATEDS:
            columns[name] = block.step_flags(block.truncated)
        else:
            columns.update(_leaves_of_column(block, name))
    observations = {leaf: columns[leaf] for leaf in leaves_of(Columns.OBS, columns)}
    if recipe.preprocessing and observations:
        columns.update(recipe.preprocessing.process_episodes(observations, block.obs_start))
    reward_scale = None if recipe.preprocessing is None else recipe.preprocessing.reward_scale
    if reward_scale is not None and Columns.REWARDS in columns:
        columns[Columns.REWARDS] = reward_scale(columns[Columns.REWARDS])
    return columns


def _leaves_of_column(block: Block, name: str) -> dict[str, Array]:
    leaves = {leaf: block.columns[leaf] for leaf in leaves_of(name, block.columns)}
    if not leaves:
        raise DataError(
            f"The algorithm needs the column {name!r}, which is not in the data; "
            f"they have {', '.join(sorted(block.columns))}."
        )
    for leaf, column in leaves.items():
        if column.dtype == object:
            raise DataError(
                f"Column {leaf!r} is text, which a network cannot read; "
                "turn the text into numbers with a connector (spec.pipeline.connectors).",
                mentions=("spec.pipeline.connectors",),
            )
    return leaves
