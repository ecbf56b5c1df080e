"""Checks on what a user's pipeline steps return, where they cost little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hindcast.episodes.block import Block
from hindcast.episodes.columns import per_observation
from hindcast.user_code import Misuse

_REPEATABLE: Final = (
    "draw random numbers from context.rng alone (stochastic = True), not from np.random, random or torch, keep nothing "
    "from call to call{}, and leave what is given as it is"
)


def check_episodes(new: Block, lengths: NDArray[np.int64]) -> None:
    """Refuse other episodes than those that were read.

    Args:
        new: what came of a unit.
        lengths: of its episodes.

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
        expected = new.num_steps + (new.num_episodes if per_observation(leaf) else 0)
        if len(column) != expected:
            raise Misuse(
                f"returned {len(column)} rows in column {leaf!r}; expected {expected}, one for each "
                f"timestep{' and each final observation' if per_observation(leaf) else ''}."
            )


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


def check_again(once: Mapping[str, Any], again: Mapping[str, Any], unless: str = "") -> None:
    """Refuse a step that makes two things of one, so that a run would follow from who reads, and from where it resumed.

    Args:
        once: columns that it made.
        again: columns that it made of the same.
        unless: what it may keep from call to call.

    Raises:
        Misuse: they differ.
    """
    for leaf in sorted(once.keys() | again.keys()):
        if leaf not in once or leaf not in again or not _matching(once[leaf], again[leaf]):
            raise Misuse(
                f"made two different columns {leaf!r} of the same data: {_REPEATABLE.format(unless)}."
            )


def _matching(one: Any, other: Any) -> bool:
    """Whether all but the last bits are the same."""
    if isinstance(one, Tensor):
        one, other = one.detach(), other.detach()
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return torch.equal(one, other) or (
            one.is_floating_point() and torch.allclose(one, other, rtol=1e-4, equal_nan=True)
        )
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind == "f":
        return bool(np.allclose(one, other, rtol=1e-4, equal_nan=True))
    return bool(np.array_equal(one, other))
