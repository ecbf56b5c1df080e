"""What a value that is missing looks like (`fill`), and one-hot encoding of discrete values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import DTypeLike, NDArray

from hindcast.episodes.nested import Nested, is_composite, map_leaves
from hindcast.episodes.spaces import space_struct


@dataclass(frozen=True)
class LeafType:
    """Shape and dtype of one sample's leaf."""

    shape: tuple[int, ...]
    dtype: DTypeLike


def space_types(space: spaces.Space, one_hot_discrete: bool = False) -> Nested:
    """`LeafType` of each leaf of the space's samples, as they are or one-hot encoded."""
    return map_leaves(lambda leaf: _leaf_type(leaf, one_hot_discrete), space_struct(space))


def batch_types(data: Nested, fill: Nested) -> Nested:
    """`LeafType` of each leaf of batched data, in the dtype that can hold `fill` as well."""
    if is_composite(fill):
        return map_leaves(lambda leaf, value: LeafType(leaf.shape[1:], _common(leaf, value)), data, fill)
    return map_leaves(lambda leaf: LeafType(leaf.shape[1:], _common(leaf, fill)), data)


def filled(types: Nested, fill: Nested) -> Nested:
    """One sample made of `fill`: a number or text for all leaves, or a value nested like the sample.

    Raises:
        ValueError: `fill` does not fit the shape or the structure.
    """
    if is_composite(fill):
        return map_leaves(_full, types, fill)
    return map_leaves(lambda leaf: _full(leaf, fill), types)


def one_hot(value: Nested, space: spaces.Space) -> Nested:
    """One-hot encoding of the Discrete and MultiDiscrete leaves; other leaves are returned as they are.

    Discrete(n) becomes float32 `[n]`, MultiDiscrete float32 `[sum of n]`; leading dimensions stay.

    Raises:
        ValueError: a value outside its space, or nested differently.
    """
    return map_leaves(_one_hot_leaf, space_struct(space), value)


def _one_hot_leaf(space: spaces.Space, value: Any) -> Any:
    if isinstance(space, spaces.Discrete):
        return _one_hot(np.asarray(value) - space.start, int(space.n), space)
    if isinstance(space, spaces.MultiDiscrete):
        index = np.asarray(value) - space.start
        flat = index.reshape(*index.shape[: index.ndim - space.nvec.ndim], space.nvec.size)
        parts = [_one_hot(flat[..., i], int(n), space) for i, n in enumerate(space.nvec.ravel())]
        return np.concatenate(parts, axis=-1)
    return value


def _one_hot(index: NDArray[Any], n: int, space: spaces.Space) -> NDArray[np.float32]:
    if index.size and (index.min() < 0 or index.max() >= n):
        raise ValueError(f"a value is outside {space}, so it cannot be one-hot encoded")
    return np.eye(n, dtype=np.float32)[index]


def _leaf_type(space: spaces.Space, one_hot_discrete: bool) -> LeafType:
    if one_hot_discrete and isinstance(space, spaces.Discrete):
        return LeafType((int(space.n),), np.float32)
    if one_hot_discrete and isinstance(space, spaces.MultiDiscrete):
        return LeafType((int(space.nvec.sum()),), np.float32)
    if isinstance(space, spaces.Text):
        return LeafType((), object)
    if space.shape is None or space.dtype is None:
        raise ValueError(f"values of the space {space} have no fixed shape: nothing can be filled in")
    return LeafType(space.shape, space.dtype)


def _common(leaf: NDArray[Any], fill: Any) -> np.dtype:
    if leaf.dtype == object:
        return leaf.dtype
    return np.result_type(leaf.dtype, fill)


def _full(leaf: LeafType, fill: Any) -> NDArray[Any]:
    if is_composite(fill):
        raise ValueError(f"fill={fill!r} is nested differently from the data")
    try:
        return np.full(leaf.shape, fill, dtype=leaf.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"fill={fill!r} does not fit data of shape {leaf.shape} and dtype {leaf.dtype}"
        ) from error
