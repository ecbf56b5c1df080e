"""Samples that replace missing samples (`fill`), and one-hot encoding of discrete values."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hindcast.episodes.nested import Nested, is_composite, map_leaves
from hindcast.episodes.spaces import num_values, space_struct


def empty_batch(space: spaces.Space) -> Nested:
    """Return a batch without samples: `[0, *shape]` for each leaf of the space."""
    return map_leaves(_empty_leaf, space_struct(space))


def fill_sample(batch: Nested, fill: Nested, widen: bool = False) -> Nested:
    """Make one sample with the structure of a batch, filled with `fill`.

    Args:
        batch: arrays with a leading time dimension.
        fill: a number or text for all leaves, or a value nested like the sample.
        widen: whether to widen a leaf's dtype so that it can hold `fill`.

    Raises:
        ValueError: `fill` does not fit the shape or the structure.
    """
    if is_composite(fill):
        return map_leaves(lambda leaf, value: _fill_leaf(leaf, value, widen), batch, fill)
    return map_leaves(lambda leaf: _fill_leaf(leaf, fill, widen), batch)


def one_hot(value: Nested, space: spaces.Space) -> Nested:
    """Encode the Discrete and MultiDiscrete leaves as one-hot vectors; other leaves are returned unchanged.

    Discrete(n) becomes float32 `[n]`, MultiDiscrete float32 `[sum of n]`; leading dimensions stay.

    Raises:
        ValueError: a value is outside its space, or is nested differently.
    """
    return map_leaves(_one_hot_leaf, space_struct(space), value)


def _one_hot_leaf(space: spaces.Space, value: Any) -> Any:
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return value
    index, sizes = np.asarray(value) - space.start, np.asarray(num_values(space))
    # [..., *shape] -> [..., number of elements]
    elements = index.reshape(*index.shape[: index.ndim - sizes.ndim], sizes.size)
    vectors = [_one_hot_numbers(elements[..., i], int(n), space) for i, n in enumerate(sizes.ravel())]
    return np.concatenate(vectors, axis=-1)


def _one_hot_numbers(index: NDArray[Any], n: int, space: spaces.Space) -> NDArray[np.float32]:
    # a negative index would silently count from the end
    if index.size and (index.min() < 0 or index.max() >= n):
        raise ValueError(f"a value is outside {space}, so it cannot be one-hot encoded")
    return np.eye(n, dtype=np.float32)[index]


def _empty_leaf(space: spaces.Space) -> NDArray[Any]:
    if isinstance(space, spaces.Text):
        return np.empty(0, object)
    if space.shape is None or space.dtype is None:
        raise ValueError(f"values of the space {space} have no fixed shape, so nothing can be filled in")
    return np.empty((0, *space.shape), space.dtype)


def _fill_leaf(leaf: NDArray[Any], fill: Any, widen: bool) -> NDArray[Any]:
    if is_composite(fill):
        raise ValueError(f"fill={fill!r} is nested differently from the data")
    shape, dtype = leaf.shape[1:], leaf.dtype
    if widen and dtype.kind != "O":
        dtype = np.result_type(dtype, fill)
    try:
        return np.full(shape, fill, dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"fill={fill!r} does not fit data of shape {shape} and dtype {dtype}") from error
