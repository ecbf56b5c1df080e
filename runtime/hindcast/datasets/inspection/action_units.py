"""Find float actions with values that contradict the units in which they are read: normalised or the environment's."""

from __future__ import annotations

from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hindcast import formatting
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.inspection.sample import sample_units
from hindcast.datasets.validate import get_leaf_spaces
from hindcast.formats.spec import DataSpec

_SAMPLE_STEPS: Final = 50_000
_TOLERANCE: Final = 0.01
"""Fraction of the distance of two bounds within which a value reaches one of them."""


def find_wrong_units(dataset: Dataset, action_space: gym.Space) -> list[str]:
    """Describe each action leaf with values that contradict its units, in a sample of some 50,000 timesteps.

    Raises:
        DataError: a file is damaged.
        StorageError: the storage fails or denies access.
    """
    spec = dataset.spec
    boxes = {
        name: space
        for name, space in get_leaf_spaces(spec, None, action_space).items()
        if _has_units(space) and spec.leaves[name].shape == space.shape
    }
    blocks = [dataset.read(unit, list(boxes)) for unit in sample_units(dataset.units, _SAMPLE_STEPS) if boxes]
    problems = []
    for name, box in boxes.items():
        columns = [column for block in blocks if len(column := block.columns[name])]
        if columns:
            low = np.min([column.min(axis=0) for column in columns], axis=0)
            high = np.max([column.max(axis=0) for column in columns], axis=0)
            problems.append(describe_wrong_units(name, low, high, box, spec))
    return [problem for problem in problems if problem is not None]


def describe_wrong_units(
    name: str, low: NDArray[Any], high: NDArray[Any], space: gym.Space | None, spec: DataSpec
) -> str | None:
    """Describe the contradiction if actions fill the range that the other units would have; otherwise None.

    The range is [-1, 1] for actions that are read in the environment's units, and the space's bounds for normalised
    ones.

    Args:
        name: name of the leaf.
        low: smallest values, `[D]` or the shape of the space.
        high: largest values.
        space: space of the leaf.
        spec: spec of the data, which says in which units the actions are read.
    """
    if not _has_units(space):
        return None
    assert isinstance(space, spaces.Box)
    bounds = np.stack([space.low.ravel(), space.high.ravel()]).astype(np.float64)
    unit_bounds = np.broadcast_to([[-1.0], [1.0]], bounds.shape)
    range_bounds = bounds if spec.normalized_actions else unit_bounds
    slack = _TOLERANCE * (range_bounds[1] - range_bounds[0])
    distance_below = np.ravel(low) - range_bounds[0]
    distance_above = range_bounds[1] - np.ravel(high)
    is_inside = (distance_below >= -1e-3 * slack) & (distance_above >= -1e-3 * slack)
    is_filled = (
        (distance_below <= slack) & (distance_above <= slack) & ~np.isclose(bounds, unit_bounds).all(axis=0)
    )
    if not is_inside.all() or not is_filled.any():
        return None
    index = int(np.argmax(is_filled))
    first, last = (formatting.significant(float(np.ravel(bound)[index])) for bound in (low, high))
    if spec.normalized_actions:
        return (
            f"{name!r} is read as normalised to [-1, 1], but fills the bounds of the action space, [{first}, {last}]: "
            "if it is in the environment's units, set actionsNormalized: false"
        )
    space_low, space_high = (formatting.significant(float(bound)) for bound in bounds[:, index])
    return (
        f"{name!r} is read in the environment's units, but fills [{first}, {last}] and not the bounds of the action "
        f"space, [{space_low}, {space_high}]: if it is normalised to [-1, 1], set actionsNormalized: true"
    )


def _has_units(space: gym.Space | None) -> bool:
    """Return True if normalised values of a space differ from values in the environment's units."""
    return (
        isinstance(space, spaces.Box)
        and space.dtype.kind == "f"
        and space.is_bounded()
        and not (np.allclose(space.low, -1) and np.allclose(space.high, 1))
    )
