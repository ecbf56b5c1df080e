"""`build_window` copies blocks into a `WindowData`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.batched import batch_dtype
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, is_per_observation, leaves_of
from hindcast.errors import DataError
from hindcast.pipeline.upload import empty_pinned, upload
from hindcast.pipeline.window import Recipe, WindowData

Array = NDArray[Any]
I64 = NDArray[np.int64]


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
        columns.update(recipe.preprocessing.filter_obs(observations))
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
