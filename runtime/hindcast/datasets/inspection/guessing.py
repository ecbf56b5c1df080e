"""Guess the spaces of data that do not state them, from dtypes, shapes and values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hindcast.datasets.dataset import Dataset
from hindcast.episodes.columns import Columns, leaves_of, root
from hindcast.episodes.nested import unflatten
from hindcast.episodes.spaces import flatten_space, space_from_struct, space_struct
from hindcast.errors import DataError
from hindcast.formats.spec import DataSpec

Bounds = tuple[Any, Any]
MAX_CHOICES: Final = 64
"""Number of different whole numbers up to which float actions count as a choice among them."""
_INT64: Final = np.iinfo(np.int64)
_MAX_WHOLE: Final[dict[type[np.floating], int]] = {np.float32: 2**24, np.float64: 2**53}
"""Type -> largest number up to which it has all whole numbers."""


def guess_spaces(dataset: Dataset) -> tuple[gym.Space | None, gym.Space | None]:
    """Guess the observation and the action space of a dataset; None for a space that cannot be guessed.

    Reads all actions, and the observations that are integers. Float actions are Discrete if all are small whole
    numbers, as pandas writes integers with a null among them; otherwise their bounds are the range of the data, or
    [-1, 1] if they are normalised.

    Raises:
        DataError: a file is damaged, or an action is missing or not finite.
    """
    spec = dataset.spec
    dtypes = {
        name: leaf.dtype
        for name, leaf in spec.leaves.items()
        if leaf.dtype is not None and root(name) in (Columns.OBS, Columns.ACTIONS)
    }
    names = [
        name
        for name, dtype in dtypes.items()
        if dtype.kind in "biu" or (dtype.kind == "f" and root(name) == Columns.ACTIONS)
    ]
    candidates = {
        name for name in names if dtypes[name].kind == "f" and spec.leaves[name].shape in ((), (1,))
    }
    low, high, choices = _find_ranges(dataset, names, candidates)
    for name, lowest in low.items():
        if not (np.isfinite(lowest).all() and np.isfinite(high[name]).all()):
            raise DataError(
                f"{name} has values that are missing or not finite, so its space cannot be guessed: leave out the rows "
                "(filter), or fill them"
            )
    choices = {
        name for name in choices if name in low and low[name].min() >= 0 and high[name].max() < MAX_CHOICES
    }
    # The values of floats do not matter for observations.
    bounds: dict[str, Bounds] = dict.fromkeys(leaves_of(Columns.OBS, spec.leaves), (0, 0))
    bounds |= {name: (low[name].min(), high[name].max()) for name in low if low[name].size}
    observation = guess_space(spec, Columns.OBS, bounds)
    action = guess_space(spec, Columns.ACTIONS, bounds, choices)
    if action is None:
        return observation, None
    action_boxes = {
        name: spaces.Box(
            *((-1.0, 1.0) if spec.normalized_actions else (low[name], high[name])),
            spec.leaves[name].shape,
            dtypes[name].type,
        )
        for name in low
        if root(name) == Columns.ACTIONS and dtypes[name].kind == "f" and name not in choices
    }
    if action_boxes:
        leaf_spaces = {**flatten_space(action, Columns.ACTIONS), **action_boxes}
        action = space_from_struct(unflatten(leaf_spaces, Columns.ACTIONS, space_struct(action)))
    return observation, action


def _find_ranges(
    dataset: Dataset, names: Collection[str], float_leaves: Collection[str]
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]], set[str]]:
    """Read all values of leaves.

    Args:
        dataset: the dataset.
        names: names of the leaves.
        float_leaves: those that are searched for fractions.

    Returns:
        The minimum and the maximum of each leaf that has values, `[*shape]`; and the float leaves without fractions.
    """
    low: dict[str, NDArray[Any]] = {}
    high: dict[str, NDArray[Any]] = {}
    whole_leaves = set(float_leaves)
    for unit in dataset.units if names else ():
        block = dataset.read(unit, names)
        for name in names:
            column = block.columns[name]
            if not len(column):
                continue
            unit_low, unit_high = column.min(axis=0), column.max(axis=0)
            low[name] = np.minimum(low.get(name, unit_low), unit_low)
            high[name] = np.maximum(high.get(name, unit_high), unit_high)
            if name in whole_leaves and not (column == np.floor(column)).all():
                whole_leaves.discard(name)
    return low, high, whole_leaves


def guess_space(
    spec: DataSpec, column: str, bounds: Mapping[str, Bounds], choices: Collection[str] = ()
) -> gym.Space | None:
    """Guess the space of `obs` or `actions` from dtypes, shapes and extreme values.

    A non-negative integer is Discrete up to the maximum, if the number of values fits int64; a boolean is Discrete, and
    an array of booleans MultiBinary. Arrays of uint8 are in [0, 255]; other vectors of integers are floats if they are
    observations and floats have all of them, so that a filter can normalise them, and other integers are between their
    extremes. Floats are unbounded. Leaves named 0, 1, … form a Tuple, other leaves a Dict.

    Args:
        spec: spec of the data.
        column: `obs` or `actions`.
        bounds: leaf name -> minimum and maximum over all dimensions; leaves without values are left out.
        choices: leaves of floats that are Discrete, since all their values are whole.

    Returns:
        The space, or None if the column has no leaves, or a leaf is text, complex or without values.
    """
    spaces_by_leaf: dict[str, gym.Space] = {}
    for name in leaves_of(column, spec.leaves):
        leaf = spec.leaves[name]
        if name in choices:
            spaces_by_leaf[name] = spaces.Discrete(int(bounds[name][1]) + 1)
            continue
        leaf_space = _guess_leaf_space(leaf.dtype, leaf.shape, bounds.get(name), column == Columns.OBS)
        if leaf_space is None:
            return None
        spaces_by_leaf[name] = leaf_space
    return space_from_struct(unflatten(spaces_by_leaf, column)) if spaces_by_leaf else None


def _find_float_type(bounds: Bounds) -> type[np.floating] | None:
    """Return the smallest type of floats that has all whole numbers in these bounds."""
    max_magnitude = max(abs(int(bound)) for bound in bounds)
    return next(
        (float_type for float_type, max_whole in _MAX_WHOLE.items() if max_magnitude <= max_whole), None
    )


def _guess_leaf_space(
    dtype: np.dtype | None, shape: tuple[int, ...], bounds: Bounds | None, is_observation: bool
) -> gym.Space | None:
    if dtype is None or dtype.kind == "c" or bounds is None:
        return None
    low, high = bounds
    if dtype.kind == "b":
        return spaces.MultiBinary(list(shape)) if shape else spaces.Discrete(2)
    is_vector = is_observation and len(shape) == 1 and dtype != np.uint8
    float_type: type[Any] | None = None
    if dtype.kind == "f":
        float_type = dtype.type
    elif is_vector:
        float_type = _find_float_type(bounds)
    if float_type is not None:
        return spaces.Box(-np.inf, np.inf, shape, float_type)
    if dtype == np.uint8 and shape:
        return spaces.Box(0, 255, shape, np.uint8)
    if not shape and low >= 0 and high < _INT64.max:
        # A uint64 value is never in a space of int64, however small it is.
        fits_int64 = np.can_cast(dtype, np.int64)
        return (
            spaces.Discrete(int(high) + 1) if fits_int64 else spaces.Discrete(int(high) + 1, dtype=dtype.type)
        )
    return spaces.Box(np.broadcast_to(low, shape), np.broadcast_to(high, shape), dtype=dtype.type)
