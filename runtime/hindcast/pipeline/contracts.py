"""Cheap checks of what user code in the pipeline returns: pre-learners, connectors and `OfflineData.sample`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, is_per_observation, leaves_of
from hindcast.episodes.spaces import flatten_space
from hindcast.formatting import describe_type
from hindcast.user_code import Misuse


def check_episodes(result: Block, lengths: NDArray[np.int64]) -> None:
    """Check that user code returned a block of the episodes that were read.

    Args:
        result: the value that user code returned.
        lengths: `[N]` lengths of the episodes that were read.

    Raises:
        Misuse: `result` is not a block, has another number of episodes or other lengths, or has a column
            without exactly one row for each timestep (and each final observation).
    """
    if not isinstance(result, Block):
        raise Misuse(f"returned {describe_type(result)}; it must return a Block.")
    if not np.array_equal(result.length, lengths):
        raise Misuse(
            f"turned {len(lengths)} episodes of {lengths.sum()} timesteps into {result.num_episodes} of "
            f"{result.num_steps}; their number and lengths must stay as recorded."
        )
    for leaf, column in result.columns.items():
        num_rows = result.num_steps + (result.num_episodes if is_per_observation(leaf) else 0)
        if len(column) != num_rows:
            raise Misuse(
                f"returned {len(column)} rows in column {leaf!r}; expected {num_rows}, one for each "
                f"timestep{' and each final observation' if is_per_observation(leaf) else ''}."
            )


def check_observations(result: Any, original: Block) -> None:
    """Check that observations keep the shape that the network was built for.

    Leaves that `result` lacks are not checked.

    Args:
        result: the value that a connector returned.
        original: the block that the connector received.

    Raises:
        Misuse: the shape of a leaf changed.
    """
    if not isinstance(result, Block):
        return  # `check_episodes` reports it
    for leaf in leaves_of(Columns.OBS, original.columns):
        expected, column = original.columns[leaf], result.columns.get(leaf)
        if column is not None and column.shape[1:] != expected.shape[1:]:
            raise Misuse(
                f"returned {leaf!r} of shape {[*column.shape[1:]]}, but it had shape {[*expected.shape[1:]]}: the "
                "network expects the environment's observations; change their shape with a wrapper of the environment."
            )


def check_mapped_episodes(block: Block, observation_space: gym.Space | None) -> None:
    """Check that rewards are numbers, and that observations have the space's leaves and the shapes of its Boxes.

    Args:
        block: the episodes that a pre-learner made of rows.
        observation_space: None does not check observations.

    Raises:
        Misuse: rewards are not numbers, or a leaf of the observations is missing or has another shape.
    """
    rewards = block.columns[Columns.REWARDS]
    if rewards.dtype.kind not in "biuf":
        raise Misuse(f"returned rewards that are not numbers, such as {rewards[:1].tolist()[0]!r}.")
    for leaf, space in (flatten_space(observation_space, Columns.OBS) if observation_space else {}).items():
        column = block.columns.get(leaf)
        if column is None:
            raise Misuse(f"returned no {leaf!r}, which is in the observation space.")
        if isinstance(space, gym.spaces.Box) and column.shape[1:] != space.shape:
            raise Misuse(
                f"returned {leaf!r} of shape {[*column.shape[1:]]}; the observation space has {[*space.shape]}."
            )


def check_batch(batch: Mapping[str, Tensor], num_items: int) -> None:
    """Check that user code returned a batch of `num_items` items.

    Raises:
        Misuse: `batch` is not a dictionary of tensors of that length.
    """
    if not isinstance(batch, Mapping):
        raise Misuse(f"returned {describe_type(batch)}; it must return the batch, a dictionary of tensors.")
    for leaf, tensor in batch.items():
        if not isinstance(tensor, Tensor):
            raise Misuse(f"returned {leaf!r} as {describe_type(tensor)}; a batch holds tensors.")
        if tensor.shape[:1] != (num_items,):
            raise Misuse(f"returned {leaf!r} of shape {[*tensor.shape]}; the batch has {num_items} items.")
