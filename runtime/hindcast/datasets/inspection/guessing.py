"""The space that data look like, where nothing says what it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from hindcast.episodes.columns import leaves_of
from hindcast.episodes.nested import unflatten
from hindcast.episodes.spaces import space_of
from hindcast.formats.spec import DataSpec, Leaf

Bounds = tuple[Any, Any]
_INT64: Final = np.iinfo(np.int64)


def guess_space(spec: DataSpec, column: str, bounds: Mapping[str, Bounds]) -> gym.Space | None:
    """The space of `obs` or `actions`, from dtypes, shapes and the least and greatest values.

    A non-negative integer is Discrete, with as many values as the greatest says if int64 counts them; bytes of an array
    are in [0, 255]; other integers lie within what was found; floats are unbounded. Parts named 0, 1, … make a Tuple,
    others a Dict.

    Returns:
        None where a leaf is text, or there is none.
    """
    parts: dict[str, gym.Space] = {}
    for name in leaves_of(column, list(spec.leaves)):
        guessed = _guess_leaf(spec.leaves[name], bounds.get(name))
        if guessed is None:
            return None
        parts[name] = guessed
    return space_of(unflatten(parts, column)) if parts else None


def _guess_leaf(leaf: Leaf, bounds: Bounds | None) -> gym.Space | None:
    dtype = leaf.dtype
    if dtype is None or dtype.kind == "c" or bounds is None:
        return None
    low, high = bounds
    if dtype.kind == "b":
        return spaces.MultiBinary(list(leaf.shape)) if leaf.shape else spaces.Discrete(2)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, leaf.shape, dtype.type)
    if dtype == np.uint8 and leaf.shape:
        return spaces.Box(0, 255, leaf.shape, np.uint8)
    if not leaf.shape and low >= 0 and high < _INT64.max:
        fits = np.can_cast(dtype, np.int64)  # of a space of int64 uint64 is no member, however small
        return spaces.Discrete(int(high) + 1) if fits else spaces.Discrete(int(high) + 1, dtype=dtype.type)
    return spaces.Box(np.broadcast_to(low, leaf.shape), np.broadcast_to(high, leaf.shape), dtype=dtype.type)
