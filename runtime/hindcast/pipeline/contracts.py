"""Cheap checks of what a user's pipeline steps return."""

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


def check_episodes(result: Block, lengths: NDArray[np.int64]) -> None:
    """Check that a step returns the episodes that were read.

    Args:
        result: the value that the step returned.
        lengths: `[N]` lengths of the episodes that were read.

    Raises:
        Misuse: it is not a block, or the number of episodes, their lengths or the rows of a column changed.
    """
    if not isinstance(result, Block):
        raise Misuse(f"returned a {type(result).__name__}; it must return a Block.")
    if not np.array_equal(result.length, lengths):
        raise Misuse(
            f"turned {len(lengths)} episodes of {lengths.sum()} timesteps into {result.num_episodes} of "
            f"{result.num_steps}; their number and lengths must stay as recorded."
        )
    for leaf, column in result.columns.items():
        expected = result.num_steps + (result.num_episodes if is_per_observation(leaf) else 0)
        if len(column) != expected:
            raise Misuse(
                f"returned {len(column)} rows in column {leaf!r}; expected {expected}, one for each "
                f"timestep{' and each final observation' if is_per_observation(leaf) else ''}."
            )


def check_observations(result: Any, original: Block) -> None:
    """Check that observations keep the shape that the network was built for.

    Args:
        result: the value that a step returned.
        original: the block that it received.

    Raises:
        Misuse: the shape changed.
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
    """Check that rewards are numbers and that observations have the space's leaves and shapes.

    Raises:
        Misuse: they do not.
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
    """Return views of the rows, in which writes by user code raise an error."""
    return {
        name: _read_only_view(column) if isinstance(column, np.ndarray) else column
        for name, column in rows.items()
    }


def _read_only_view(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def check_batch(batch: Mapping[str, Tensor], num_items: int) -> None:
    """Check that a step returns a batch of as many items as it received.

    Raises:
        Misuse: it is not a dictionary of tensors of that length.
    """
    if not isinstance(batch, Mapping):
        raise Misuse(f"returned a {type(batch).__name__}; it must return the batch, a dictionary of tensors.")
    for leaf, tensor in batch.items():
        if not isinstance(tensor, Tensor):
            raise Misuse(f"returned {leaf!r} as a {type(tensor).__name__}; a batch holds tensors.")
        if tensor.shape[:1] != (num_items,):
            raise Misuse(f"returned {leaf!r} of shape {[*tensor.shape]}; the batch has {num_items} items.")


def check_repeatable(first: Mapping[str, Any], second: Mapping[str, Any], exemption: str = "") -> None:
    """Check that a step called twice with the same data returns the same columns.

    Otherwise a run would depend on which process reads, and on where it resumes.

    Args:
        exemption: text in the message about state that is allowed.

    Raises:
        Misuse: the columns differ.
    """
    for leaf in sorted(first.keys() | second.keys()):
        if leaf not in first or leaf not in second or not _is_close(first[leaf], second[leaf]):
            raise Misuse(
                f"returned two different columns {leaf!r} for the same data: {REPEATABILITY_RULES.format(exemption)}."
            )


def _is_close(first: Any, second: Any) -> bool:
    """Return True if two arrays are equal up to rounding."""
    first, second = (
        value.detach().cpu().numpy() if isinstance(value, Tensor) else value for value in (first, second)
    )
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.dtype.kind == "f":
        return bool(np.allclose(first, second, rtol=1e-4, equal_nan=True))
    return bool(np.array_equal(first, second))
