"""`Loader` reads the windows of lanes, and `build_window` lays blocks end to end in a window."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hindcast.datasets.dataset import Dataset
from hindcast.datasets.units import Unit
from hindcast.episodes.batched import batch_dtype
from hindcast.episodes.block import Block, concat_ranges
from hindcast.episodes.columns import Columns, is_per_observation, leaves_of
from hindcast.errors import DataError
from hindcast.pipeline.executors import Executor, PreLearn
from hindcast.pipeline.items import count_items, monte_carlo_returns
from hindcast.pipeline.order import Order, Window
from hindcast.pipeline.shard import Shard
from hindcast.pipeline.upload import empty_pinned, upload
from hindcast.pipeline.window import Recipe, WindowData

Array = NDArray[Any]
I64 = NDArray[np.int64]


class LoadedWindow(NamedTuple):
    """A window with its data.

    Attributes:
        window: the window.
        data: contains at least the steps of the window's items.
        rows: int64 `[window.num_items]`, indices of the items in `data` in the order of delivery.
    """

    window: Window
    data: WindowData
    rows: Tensor


@dataclass(frozen=True)
class Loader:
    """Reads the windows of a dataset, or all data of a learner.

    Attributes:
        dataset: the dataset to read.
        order: divides the dataset into windows.
        executor: reads units.
        prelearn: returns the block of a unit, with episodes of the same lengths.
        recipe: which columns of a block a window keeps, and how.
        location: location of the data as the user wrote it, for messages.
        log_metrics: called with the metrics that user code logged about each block.
    """

    dataset: Dataset
    order: Order
    executor: Executor
    prelearn: PreLearn
    recipe: Recipe
    location: str
    log_metrics: Callable[[Sequence[Any]], None] = lambda _: None

    def locate(self, pieces: I64) -> list[PieceSteps]:
        """Return the steps of pieces, see `Window.pieces`."""
        units = self.dataset.units
        return [locate_piece(units[unit], first, stop, self.recipe) for unit, first, stop in pieces.tolist()]

    def start(self, window: Window) -> PendingWindow:
        """Start to read a window."""
        pieces = self.locate(window.pieces)
        finished: list[LoadedWindow] = []

        def finish(data: WindowData) -> None:
            finished.append(LoadedWindow(window, data, self.rows(window, _first_rows(pieces))))

        futures = self._read(pieces, window.epoch, finish, pin_memory=True)
        return PendingWindow(window, futures, lambda: finished[0], self.log_metrics)

    def load_all(self, epoch: int) -> WindowData:
        """Return the whole dataset, including units without items, as one window, as it is in `epoch`."""
        counts = self.order.unit_items
        pieces = np.stack([np.arange(len(counts)), np.zeros_like(counts), counts], axis=1)
        return self.load(self.locate(pieces), epoch)

    def load(self, pieces: Sequence[PieceSteps], epoch: int) -> WindowData:
        """Return pieces laid end to end as one window, as they are in `epoch`."""
        finished: list[WindowData] = []
        _await(self._read(pieces, epoch, finished.append), self.log_metrics)
        return finished[0]

    def _read(
        self,
        pieces: Sequence[PieceSteps],
        epoch: int,
        finish: Callable[[WindowData], None],
        pin_memory: bool = False,
    ) -> list[Future[Sequence[Any]]]:
        """Start to read pieces of units, and call `finish` in a thread with their data.

        Returns:
            A future of the metrics that user code logged for each piece. When all are done, `finish` has returned.
        """
        builder = WindowBuilder([piece.length for piece in pieces], self.recipe, pin_memory)

        def deliver(index: int, block: Block) -> Sequence[Any]:
            # Preprocessed before it is cut: values may be carried forward from earlier steps of an episode.
            selected = block.with_columns(_select_columns(block, self.recipe))
            if builder.put(index, pieces[index].take(selected)):
                finish(builder.finish())
            return block.logged_metrics

        return [
            self.executor.submit(self.prelearn, piece.unit, epoch, partial(deliver, index))
            for index, piece in enumerate(pieces)
        ]

    def rows(self, window: Window, first_rows: I64) -> Tensor:
        """Return the rows of a window's items in the order of delivery, on the device.

        Args:
            window: the window.
            first_rows: `[P]` row of the first item of each of its pieces.
        """
        rows = concat_ranges(first_rows, window.pieces[:, 2] - window.pieces[:, 1])
        return upload({"rows": rows[self.order.permutation(window)]}, self.recipe.device)["rows"]


class PieceSteps(NamedTuple):
    """The adjacent steps of a unit that a window holds for the items of a piece.

    Attributes:
        unit: the unit.
        episodes: `[N]` indices of the unit's episodes that the steps belong to, which are adjacent.
        first_step: first step in the unit.
        t: `[N]` steps of each episode before the piece; only the first one may have some.
        length: `[N]` number of steps of each episode; the first and the last one may be cut.
        num_items: number of items of these steps.
        first_item: index of the piece's first item among them.
    """

    unit: Unit
    episodes: I64
    first_step: int
    t: I64
    length: I64
    num_items: int
    first_item: int

    def take(self, block: Block) -> Block:
        """Return the steps of the unit's block as views, with the observation after each episode's last step."""
        # Each earlier episode has one observation more than steps.
        first_row, num_steps = self.first_step + self.episodes[0], self.length.sum()
        steps = slice(self.first_step, self.first_step + num_steps)
        observations = slice(first_row, first_row + num_steps + len(self.episodes))
        columns = {
            leaf: column[observations if is_per_observation(leaf) else steps]
            for leaf, column in block.columns.items()
        }
        return block.cut(self.episodes, self.t, self.length, columns)


def locate_piece(unit: Unit, first: int, stop: int, recipe: Recipe) -> PieceSteps:
    """Return the steps that a window holds for the items `first` to `stop` of a unit.

    These are whole episodes if items are sequences or if the algorithm computes targets. Otherwise the steps of the
    items, and those before and after that frame stacks and n-step items reach.
    """
    needs, stack = recipe.needs, recipe.preprocessing.frame_stack if recipe.preprocessing else 1
    item_counts = count_items(unit.lengths, needs)
    item_ends, step_ends = item_counts.cumsum(), unit.lengths.cumsum()
    # Episodes without items, at either end of a unit, belong to the unit's first and last piece.
    first_episode = int(np.searchsorted(item_ends, first, side="right")) if first else 0
    stop_episode = (
        int(np.searchsorted(item_ends, stop, side="left")) + 1 if stop < item_ends[-1] else len(item_ends)
    )
    episodes = np.arange(first_episode, stop_episode)
    first_step = int(step_ends[first_episode] - unit.lengths[first_episode])
    first_item = int(first - (item_ends[first_episode] - item_counts[first_episode]))
    num_items = int(item_counts[episodes].sum())
    t, length = np.zeros_like(episodes), unit.lengths[episodes]
    if needs.seq_len is None and not needs.targets:
        # Leave out the steps of the first and of the last episode that no item of the piece reaches.
        t[0] = num_steps_before = max(0, first_item - (stack - 1))
        num_steps_after = max(0, int(step_ends[stop_episode - 1]) - (stop + needs.n_step))
        length[0] -= num_steps_before
        length[-1] -= num_steps_after
        first_step += num_steps_before
        first_item -= num_steps_before
        num_items -= num_steps_before + num_steps_after
    return PieceSteps(unit, episodes, first_step, t, length, num_items, first_item)


def _first_rows(pieces: Sequence[PieceSteps]) -> I64:
    """Return the row of each piece's first item if the pieces are laid end to end, `[P]`."""
    counts = np.array([piece.num_items for piece in pieces])
    return counts.cumsum() - counts + np.array([piece.first_item for piece in pieces])


def _await(futures: Sequence[Future[Sequence[Any]]], log_metrics: Callable[[Sequence[Any]], None]) -> None:
    """Wait for reads and log their metrics in order; after an error, cancel the others."""
    try:
        for future in futures:
            log_metrics(future.result())
    finally:
        cancel(futures)


def cancel(futures: Iterable[Future[Any]]) -> None:
    """Cancel reads that have not begun, and wait for the others."""
    wait([future for future in futures if not future.cancel() and not future.cancelled()])


@dataclass
class PendingWindow:
    """A window that is being read.

    Attributes:
        window: the window.
        futures: see `Loader.start`; none for resident data.
    """

    window: Window
    futures: Sequence[Future[Sequence[Any]]]
    _finish: Callable[[], LoadedWindow]
    _log_metrics: Callable[[Sequence[Any]], None] = lambda _: None

    def is_ready(self) -> bool:
        """Return True if `load` does not wait."""
        return all(future.done() for future in self.futures)

    def load(self) -> LoadedWindow:
        """Wait for the window and return it; called once.

        Raises:
            Exception: any error of reading; the first one in the order of the pieces.
        """
        _await(self.futures, self._log_metrics)
        return self._finish()


class ResidentWindows:
    """The windows of a learner's lanes, whose data stay on the device.

    Args:
        loader: reads the data, once.
        shard: the learner.
        epoch: number of the epoch in which the data are read, and checked if it is the first one.
    """

    def __init__(self, loader: Loader, shard: Shard, epoch: int = 0) -> None:
        self._loader = loader
        self._unit_pieces = loader.order.pieces(loader.order.lanes(shard))
        pieces = loader.locate(self._unit_pieces)
        self.data = loader.load(pieces, epoch)
        num_episodes = np.array([len(piece.episodes) for piece in pieces])
        first_episode = np.array([piece.episodes[0] for piece in pieces])
        # Added to a unit's item or episode, they give its row or its episode in the data.
        self._row_offset = _first_rows(pieces) - self._unit_pieces[:, 1]
        self._episode_offset = num_episodes.cumsum() - num_episodes - first_episode

    def start(self, window: Window) -> PendingWindow:
        """Return a window, which is ready."""
        return PendingWindow(window, (), partial(self._load, window))

    def _load(self, window: Window) -> LoadedWindow:
        """Return a window; with targets, which are columns of the window alone, on copies of its episodes."""
        piece_indices = np.searchsorted(self._unit_pieces[:, 0], window.pieces[:, 0])
        if not self._loader.recipe.needs.targets:
            rows = self._loader.rows(window, self._row_offset[piece_indices] + window.pieces[:, 1])
            return LoadedWindow(window, self.data, rows)
        pieces = self._loader.locate(window.pieces)
        episodes = concat_ranges(
            self._episode_offset[piece_indices] + [piece.episodes[0] for piece in pieces],
            np.array([len(piece.episodes) for piece in pieces]),
        )
        rows = self._loader.rows(window, _first_rows(pieces))
        return LoadedWindow(window, self.data.take(torch.from_numpy(episodes).to(rows.device)), rows)


class WindowBuilder:
    """Lays blocks end to end in arrays that are allocated once.

    Args:
        lengths: for each block, the `[N]` steps of its episodes.
        recipe: device and contents of the window.
        pin_memory: allocate in page-locked memory if the recipe's device is a GPU.
    """

    def __init__(self, lengths: Sequence[I64], recipe: Recipe, pin_memory: bool = False) -> None:
        self._recipe = recipe
        # Torch caches page-locked memory and reuses it for the next window, so whole datasets must not be pinned.
        self._pin_memory = pin_memory and recipe.device is not None and recipe.device.type == "cuda"
        self._length = np.concatenate(lengths)
        self._first_episodes = np.cumsum([0, *map(len, lengths)])
        self._first_steps = np.append(0, self._length.cumsum())[self._first_episodes]
        self._terminated, self._truncated = np.zeros((2, len(self._length)), dtype=np.bool_)
        self._t_started = np.zeros_like(self._length)
        self._arrays: dict[str, Array] = {}
        self._lock = threading.Lock()
        self._num_missing = len(lengths)

    def put(self, index: int, block: Block) -> bool:
        """Copy block number `index`, see `_select_columns`; return True if it was the last one missing.

        It may be called by several threads.

        Raises:
            DataError: blocks differ in columns or shapes.
        """
        columns = block.columns
        with self._lock:
            # Allocated with the first block, since only blocks tell shapes and dtypes.
            if not self._arrays:
                self._arrays = {
                    leaf: _allocate(leaf, column, self._length, self._pin_memory)
                    for leaf, column in columns.items()
                }
        if columns.keys() != self._arrays.keys():
            raise DataError(
                f"Blocks have different columns: {sorted(self._arrays)} and {sorted(columns)}; connectors and the "
                "pre-learner must return the same columns for all units."
            )
        first_step, first_episode = int(self._first_steps[index]), int(self._first_episodes[index])
        for leaf, column in columns.items():
            first_row = first_step + (first_episode if is_per_observation(leaf) else 0)
            _copy_rows(leaf, column, self._arrays[leaf], first_row)
        episodes = slice(first_episode, first_episode + block.num_episodes)
        self._terminated[episodes], self._truncated[episodes], self._t_started[episodes] = (
            block.terminated,
            block.truncated,
            block.t_started,
        )
        with self._lock:
            self._num_missing -= 1
            return not self._num_missing

    def finish(self) -> WindowData:
        """Return the window after all blocks were put."""
        episode_of_step = np.repeat(np.arange(len(self._length)), self._length)
        per_episode = {
            "length": self._length,
            "terminated": self._terminated,
            "truncated": self._truncated,
            "t_started": self._t_started,
            "obs_row": np.arange(len(episode_of_step)) + episode_of_step,
        }
        device = self._recipe.device
        return WindowData(upload(self._arrays, device), recipe=self._recipe, **upload(per_episode, device))


def build_window(blocks: Sequence[Block], recipe: Recipe) -> WindowData:
    """Lay blocks end to end, with the columns that batches need, and filter their observations.

    Raises:
        DataError: a column is missing or holds text, or blocks differ in columns or shapes.
    """
    builder = WindowBuilder([block.length for block in blocks], recipe)
    for index, block in enumerate(blocks):
        builder.put(index, block.with_columns(_select_columns(block, recipe)))
    return builder.finish()


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
    # This runs in a thread: NumPy releases the GIL to copy, and starts no threads, which torch would.
    np.copyto(target, column, casting="same_kind")


def _select_columns(block: Block, recipe: Recipe) -> dict[str, Array]:
    columns: dict[str, Array] = {}
    for name in sorted(recipe.needs.window_columns):
        if name == Columns.TERMINATEDS:
            columns[name] = block.step_flags(block.terminated)
        elif name == Columns.TRUNCATEDS:
            columns[name] = block.step_flags(block.truncated)
        elif name != Columns.MC_RETURNS:
            columns.update(_leaves_of_column(block, name))
    if not (columns.get(Columns.DELTA_T, np.zeros(0)) >= 0).all():
        raise DataError(
            f"Column {Columns.DELTA_T!r} has negative or missing durations of steps; expected 0 or more."
        )
    observations = {leaf: columns[leaf] for leaf in leaves_of(Columns.OBS, columns)}
    if recipe.preprocessing and observations:
        columns.update(recipe.preprocessing.process_episodes(observations, block.obs_start))
    reward_scale = None if recipe.preprocessing is None else recipe.preprocessing.reward_scale
    if reward_scale is not None and Columns.REWARDS in columns:
        columns[Columns.REWARDS] = reward_scale(columns[Columns.REWARDS])
    if Columns.MC_RETURNS in recipe.needs.columns and recipe.needs.gamma is not None:
        columns[Columns.MC_RETURNS] = monte_carlo_returns(
            columns[Columns.REWARDS], block.length, recipe.needs.gamma, columns.get(Columns.DELTA_T)
        )
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
