"""Cheap checks of what user code in the pipeline returns: pre-learners, connectors and `OfflineData.sample`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, is_per_observation, leaves_of
from hindcast.episodes.spaces import flatten_space
from hindcast.user_code import Misuse

REPEATABILITY_RULES: Final = (
    "draw random numbers only from context.rng (stochastic = True), not from np.random, random or torch; keep no state "
    "between calls{}; and do not modify the input in place"
)
"""Rules for messages; the braces stand for an exemption from the rule about state, or nothing."""


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
        raise Misuse(f"returned a {type(result).__name__}; it must return a Block.")
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


def as_read_only(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return read-only views of the arrays, so that user code cannot change them; other values stay as they are."""
    return {
        name: _read_only_view(column) if isinstance(column, np.ndarray) else column
        for name, column in rows.items()
    }


def _read_only_view(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def check_batch(batch: Mapping[str, Tensor], num_items: int) -> None:
    """Check that user code returned a batch of `num_items` items.

    Raises:
        Misuse: `batch` is not a dictionary of tensors of that length.
    """
    if not isinstance(batch, Mapping):
        raise Misuse(f"returned a {type(batch).__name__}; it must return the batch, a dictionary of tensors.")
    for leaf, tensor in batch.items():
        if not isinstance(tensor, Tensor):
            raise Misuse(f"returned {leaf!r} as a {type(tensor).__name__}; a batch holds tensors.")
        if tensor.shape[:1] != (num_items,):
            raise Misuse(f"returned {leaf!r} of shape {[*tensor.shape]}; the batch has {num_items} items.")


def check_repeatable(first: Mapping[str, Any], second: Mapping[str, Any], exemption: str = "") -> None:
    """Check that user code which was called twice with the same data returned the same columns.

    Otherwise the results of a run would depend on which process reads a unit, and on where the run resumes.

    Args:
        first: result of the first call, by column.
        second: result of the second call.
        exemption: state that the code may keep, for the message: text that begins with a space, or none.

    Raises:
        Misuse: the columns differ.
    """
    for leaf in sorted(first.keys() | second.keys()):
        if leaf not in first or leaf not in second or not _is_close(first[leaf], second[leaf]):
            raise Misuse(
                f"returned two different columns {leaf!r} for the same data: {REPEATABILITY_RULES.format(exemption)}."
            )


def _is_close(first: Any, second: Any) -> bool:
    """Return True if two arrays have one shape and dtype and are equal: floats up to rounding, other values exactly."""
    first, second = (
        value.detach().cpu().numpy() if isinstance(value, Tensor) else value for value in (first, second)
    )
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.dtype.kind == "f":
        return bool(np.allclose(first, second, rtol=1e-4, equal_nan=True))
    return bool(np.array_equal(first, second))
