"""`WindowBuilder`: blocks to `WindowData`.

It runs in the background, so it copies with numpy, which releases the GIL and needs no further threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.batched import batch_dtype
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, leaves_of, per_observation
from hindcast.errors import DataError
from hindcast.pipeline.uploading import empty_pinned, upload
from hindcast.pipeline.window import Recipe, WindowData

Array = NDArray[Any]
I64 = NDArray[np.int64]


class WindowBuilder:
    """Lays blocks end to end in arrays that are allocated once.

    Args:
        length: `[N]` steps of every episode that will be added.
        recipe: what to keep and how.
        pinned: whether the arrays are in page-locked memory, if the recipe's device is a GPU. Torch keeps such memory
            for the next window, so it is for windows, not for whole datasets.
    """

    def __init__(self, length: I64, recipe: Recipe, pinned: bool = False) -> None:
        self._recipe = recipe
        self._pinned = pinned and recipe.device is not None and recipe.device.type == "cuda"
        self._length = length
        self._arrays: dict[str, Array] = {}
        self._flags = np.zeros((2, len(length)), dtype=np.bool_)
        self._t_started = np.zeros_like(length)
        self._steps = 0
        self._episodes = 0

    def add(self, block: Block) -> None:
        """Append a block: filter its observations, cast it and copy it.

        Raises:
            DataError: a column that batches need is missing or is text, or blocks differ in shape.
        """
        columns = _columns_of(block, self._recipe)
        if not self._arrays:
            self._arrays = {leaf: self._empty(leaf, column) for leaf, column in columns.items()}
        if columns.keys() != self._arrays.keys():
            raise DataError(f"Blocks differ in columns: {sorted(self._arrays)} and {sorted(columns)}.")
        for leaf, column in columns.items():
            first = self._steps + (self._episodes if per_observation(leaf) else 0)
            target = self._arrays[leaf][first : first + len(column)]
            if target.shape != column.shape:
                raise DataError(
                    f"Column {leaf!r} holds elements of shape {list(column.shape[1:])} in one block and of "
                    f"{list(target.shape[1:])} in an earlier one; all must be the same."
                )
            np.copyto(target, column, casting="same_kind")
        episodes = slice(self._episodes, self._episodes + block.num_episodes)
        self._flags[:, episodes] = block.terminated, block.truncated
        self._t_started[episodes] = block.t_started
        self._steps += block.num_steps
        self._episodes += block.num_episodes

    def build(self) -> WindowData:
        """The window, on the recipe's device."""
        episode_of_step = np.repeat(np.arange(len(self._length)), self._length)
        obs_row = np.arange(len(episode_of_step)) + episode_of_step
        terminated, truncated = self._flags
        per_episode = {
            "length": self._length,
            "terminated": terminated,
            "truncated": truncated,
            "t_started": self._t_started,
        }
        device = self._recipe.device
        return WindowData(
            columns=upload(self._arrays, device),
            recipe=self._recipe,
            **upload({**per_episode, "obs_row": obs_row}, device),
        )

    def _empty(self, leaf: str, column: Array) -> Array:
        rows = int(self._length.sum()) + (len(self._length) if per_observation(leaf) else 0)
        shape, dtype = (rows, *column.shape[1:]), batch_dtype(column.dtype)
        return empty_pinned(shape, dtype) if self._pinned else np.empty(shape, dtype)


def _columns_of(block: Block, recipe: Recipe) -> dict[str, Array]:
    columns: dict[str, Array] = {}
    for name in sorted(recipe.needs.kept):
        if name == Columns.TERMINATEDS:
            columns[name] = block.step_flags(block.terminated)
        elif name == Columns.TRUNCATEDS:
            columns[name] = block.step_flags(block.truncated)
        else:
            columns.update(_leaves(block, name))
    observations = {leaf: columns[leaf] for leaf in leaves_of(Columns.OBS, columns)}
    if recipe.preprocessing and observations:
        columns.update(recipe.preprocessing.filter_obs(observations))
    return columns


def _leaves(block: Block, name: str) -> dict[str, Array]:
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
                "turn it into numbers with a connector (spec.pipeline.connectors)."
            )
    return leaves
