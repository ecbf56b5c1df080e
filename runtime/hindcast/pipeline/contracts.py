"""Checks on what a user's pipeline steps return, where they cost little."""

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
    "draw random numbers from context.rng alone (stochastic = True), not from np.random, random or torch, keep nothing "
    "from call to call{}, and leave what is given as it is"
)


def check_episodes(new: Block, lengths: NDArray[np.int64]) -> None:
    """Refuse other episodes than those that were read.

    Raises:
        Misuse: it is not a block, or their number or lengths, or the rows of a column, are others.
    """
    if not isinstance(new, Block):
        raise Misuse(f"returned a {type(new).__name__}; it must return a Block.")
    if not np.array_equal(new.length, lengths):
        raise Misuse(
            f"turned {len(lengths)} episodes of {lengths.sum()} timesteps into {new.num_episodes} of "
            f"{new.num_steps}; their number and lengths must stay as recorded."
        )
    for leaf, column in new.columns.items():
        expected = new.num_steps + (new.num_episodes if is_per_observation(leaf) else 0)
        if len(column) != expected:
            raise Misuse(
                f"returned {len(column)} rows in column {leaf!r}; expected {expected}, one for each "
                f"timestep{' and each final observation' if is_per_observation(leaf) else ''}."
            )


def check_observations(new: Any, given: Block) -> None:
    """Refuse observations of another shape than the network was built for.

    Raises:
        Misuse: they have one.
    """
    if not isinstance(new, Block):
        return  # which `check_episodes` refuses
    for leaf in leaves_of(Columns.OBS, given.columns):
        old, made = given.columns[leaf], new.columns.get(leaf)
        if made is not None and made.shape[1:] != old.shape[1:]:
            raise Misuse(
                f"returned {leaf!r} of shape {[*made.shape[1:]]}, which was {[*old.shape[1:]]}: the network sees "
                "observations as the environment gives them; change that with an environment's wrapper."
            )


def check_mapped_episodes(made: Block, observations: gym.Space | None) -> None:
    """Refuse episodes whose rewards are not numbers, or whose observations are not of the space.

    Raises:
        Misuse: they are.
    """
    rewards = made.columns[Columns.REWARDS]
    if rewards.dtype.kind not in "biuf":
        raise Misuse(f"gave rewards that are not numbers, such as {rewards[:1].tolist()[0]!r}.")
    for leaf, space in (flatten_space(observations, Columns.OBS) if observations else {}).items():
        column = made.columns.get(leaf)
        if column is None:
            raise Misuse(f"gave no {leaf!r}, which the observation space has.")
        if isinstance(space, gym.spaces.Box) and column.shape[1:] != space.shape:
            raise Misuse(
                f"gave {leaf!r} of shape {[*column.shape[1:]]}; the observation space has {[*space.shape]}."
            )


def as_read_only(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows, for code that may not change them: writing into an array raises where it is done."""
    return {name: _read_only(each) if isinstance(each, np.ndarray) else each for name, each in rows.items()}


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def check_batch(batch: Mapping[str, Tensor], items: int) -> None:
    """Refuse a batch of other items than were asked for.

    Raises:
        Misuse: it is not a dictionary of tensors, or their lengths are others.
    """
    if not isinstance(batch, Mapping):
        raise Misuse(f"returned a {type(batch).__name__}; it must return the batch, a dictionary of tensors.")
    for leaf, tensor in batch.items():
        if not isinstance(tensor, Tensor):
            raise Misuse(f"returned {leaf!r} as a {type(tensor).__name__}; a batch holds tensors.")
        if tensor.shape[:1] != (items,):
            raise Misuse(f"returned {leaf!r} of shape {[*tensor.shape]}; the batch has {items} items.")


def check_repeatable(once: Mapping[str, Any], again: Mapping[str, Any], exemption: str = "") -> None:
    """Refuse a step that makes two things of one, so that a run would follow from who reads, and from where it resumed.

    Args:
        unless: what it may keep from call to call.

    Raises:
        Misuse: they differ.
    """
    for leaf in sorted(once.keys() | again.keys()):
        if leaf not in once or leaf not in again or not _matching(once[leaf], again[leaf]):
            raise Misuse(
                f"made two different columns {leaf!r} of the same data: {REPEATABILITY_RULES.format(exemption)}."
            )


def _matching(one: Any, other: Any) -> bool:
    """Whether all but the last bits are the same."""
    one, other = (each.detach().cpu().numpy() if isinstance(each, Tensor) else each for each in (one, other))
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind == "f":
        return bool(np.allclose(one, other, rtol=1e-4, equal_nan=True))
    return bool(np.array_equal(one, other))
