"""Check that recorded values are in their spaces, one column at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hindcast.datasets.units import EpisodeLocation
from hindcast.episodes.action_kinds import mask_sizes
from hindcast.episodes.block import Block
from hindcast.episodes.columns import MASK_LEAF, SCALAR_COLUMNS, Columns, is_per_observation, leaves_of, root
from hindcast.episodes.spaces import flatten_space, num_values
from hindcast.errors import DataError, Problem
from hindcast.formats.spec import DataSpec

_FINITE_COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
TEXT_ADVICE = "replace each text by an integer, such as by `column.astype('category').cat.codes` of pandas"
_TOLERANCE = 1e-4
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
"""The largest number that stays finite in batches, which are float32."""

Locator = Callable[[int], EpisodeLocation]
"""Returns the stored location of an episode, given its index in a block; see `Dataset.locate`."""


class Fault(NamedTuple):
    """Invalid values of a leaf, all of one kind.

    Attributes:
        kind: the kind of fault.
        mask: `[n, *shape]` True for the invalid values, at least one.
        expected: description of valid values.
    """

    kind: Literal["not-finite", "outside-space"]
    mask: NDArray[np.bool_]
    expected: str


def check_spec(
    spec: DataSpec,
    observation_space: gym.Space | None,
    action_space: gym.Space | None,
    path: str,
    row: int | None = None,
) -> None:
    """Check that a dataset's observations and actions have the shapes and kinds of the spaces.

    Args:
        spec: spec of the dataset.
        observation_space: the module's observation space; not checked if None.
        action_space: the module's action space; not checked if None.
        path: path of the dataset or its first file, for the message.
        row: row of the first episode in that file, for the message; None without it.

    Raises:
        DataError: a leaf does not fit its space.
    """
    for column, space in ((Columns.OBS, observation_space), (Columns.ACTIONS, action_space)):
        if space is None:
            continue
        expected_leaves = flatten_space(space, column)
        leaf_names = leaves_of(column, spec.leaves)
        if sorted(leaf_names) != sorted(expected_leaves):
            raise DataError(
                f"{column!r} has the columns {leaf_names or 'none'}, but the space {space} requires "
                f"{sorted(expected_leaves)}",
                path=path,
                row=row,
            )
        for name, leaf_space in expected_leaves.items():
            leaf = spec.leaves[name]
            if not fits_space(leaf.dtype, leaf.shape, leaf_space):
                advice = f"; {TEXT_ADVICE}" if leaf.kind == "text" else ""
                if isinstance(leaf_space, spaces.Discrete) and leaf.shape == (leaf_space.n,):
                    advice = "; if it is one-hot, store the index of the 1"
                raise DataError(
                    f"{name!r} is {leaf}, but the space has {describe_space(leaf_space)}{advice}",
                    path=path,
                    row=row,
                )


def check_scalar_columns(spec: DataSpec, path: str, row: int | None = None) -> None:
    """Check that rewards and log-probabilities are one number per timestep, as every algorithm expects.

    Args:
        spec: spec of the data.
        path: path of the data or their first file, for the message.
        row: row of the first episode in that file, for the message; None without it.

    Raises:
        DataError: a leaf does not have one number per timestep.
    """
    for name in (leaf for column in SCALAR_COLUMNS for leaf in leaves_of(column, spec.leaves)):
        leaf = spec.leaves[name]
        if name not in SCALAR_COLUMNS or leaf.dtype is None or leaf.dtype.kind not in "biuf" or leaf.shape:
            raise DataError(f"{name!r} is {leaf}; expected a number for each timestep", path=path, row=row)


def check_block(
    block: Block,
    spec: DataSpec,
    observation_space: gym.Space | None,
    action_space: gym.Space | None,
    locate: Locator,
    *,
    normalized_actions: bool = False,
    fillable: Mapping[str, NDArray[np.bool_]] = MappingProxyType({}),
) -> None:
    """Check that observations, actions and rewards are finite, and discrete observations and actions in their spaces.

    Columns that the block lacks are not checked.

    Args:
        block: the episodes.
        spec: spec of their dataset.
        observation_space: space of the observations; if None, they must only be finite.
        action_space: space of the actions; if None, they must only be finite.
        locate: returns the location of an episode of the block.
        normalized_actions: whether Box actions are recorded as the module returns them, normalised and before
            clipping, so that the space's bounds do not apply.
        fillable: observation leaf -> `[*shape]` True for elements that may be missing (NaN), since the policy replaces
            them.

    Raises:
        DataError: the first invalid value, with file, row, timestep, leaf, the value and what is expected.
    """
    leaf_spaces = get_leaf_spaces(spec, observation_space, action_space)
    for name, column in block.columns.items():
        space = leaf_spaces.get(name)
        # Observations may be outside the bounds of their Box, as they are in many environments.
        is_bounded = root(name) == Columns.ACTIONS and not normalized_actions
        for fault in find_faults(
            name,
            column,
            None if isinstance(space, spaces.Box) and not is_bounded else space,
            fillable.get(name, False),
        ):
            problem = describe_fault(block, name, fault, locate)
            is_outside_box = is_bounded and isinstance(space, spaces.Box) and fault.kind == "outside-space"
            if is_outside_box:
                remedy = "widen the space (spec.actionSpace), or clip the actions in the data"
                if np.abs(column).max() <= 1:
                    remedy += "; if they are normalised to [-1, 1], set actionsNormalized: true"
                problem = replace(problem, remedy=remedy, mentions=("spec.actionSpace",))
            else:
                problem = _add_remedy(problem, name, fault, space)
            raise DataError.of([problem])
    if (is_forbidden := _find_forbidden_actions(block, action_space)) is not None:
        fault = Fault("outside-space", is_forbidden, f"an action that {MASK_LEAF} allows")
        raise DataError.of([describe_fault(block, Columns.ACTIONS, fault, locate)])


def _add_remedy(problem: Problem, name: str, fault: Fault, space: gym.Space | None) -> Problem:
    """Return the problem of a fault with a remedy, if one is known."""
    if root(name) == Columns.OBS and fault.kind == "not-finite":
        remedy = "if NaN means that a value is missing, set prepare.missing"
        return replace(problem, remedy=remedy, mentions=("prepare.missing",))
    if name == Columns.DELTA_T:
        remedy = "correct it, or rename the column if it is not the duration of a step"
        return replace(problem, remedy=remedy)
    if isinstance(space, spaces.Discrete):
        return replace(problem, remedy="if the data count from another number, set the space's n and start")
    return problem


def _find_forbidden_actions(block: Block, action_space: gym.Space | None) -> NDArray[np.bool_] | None:
    """Return `[S]` True for actions that the action mask of their observation forbids; None if there are none."""
    mask, actions = block.columns.get(MASK_LEAF), block.columns.get(Columns.ACTIONS)
    if (
        mask is None
        or actions is None
        or not isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete)
    ):
        return None
    sizes = mask_sizes(mask.shape[1:], action_space)
    if sizes is None:
        return None
    indices = (actions.astype(np.int64) - action_space.start).reshape(len(actions), -1)
    if len(sizes) < indices.shape[1] and isinstance(action_space, spaces.MultiDiscrete):
        indices = np.ravel_multi_index(tuple(indices.T), action_space.nvec.ravel())[:, None]
    columns = indices + np.cumsum((0, *sizes[:-1]))
    is_forbidden = (mask.reshape(len(mask), -1)[block.obs_row[:, None], columns] == 0).any(1)
    return is_forbidden if is_forbidden.any() else None


def get_leaf_spaces(
    spec: DataSpec, observation_space: gym.Space | None, action_space: gym.Space | None
) -> dict[str, gym.Space]:
    """Return the space of each observation and action leaf of the spec, if the spaces are known."""
    leaf_spaces: dict[str, gym.Space] = {}
    for column, space in ((Columns.OBS, observation_space), (Columns.ACTIONS, action_space)):
        if space is not None:
            leaf_spaces.update(flatten_space(space, column))
    return {name: space for name, space in leaf_spaces.items() if name in spec.leaves}


def find_faults(
    name: str,
    column: NDArray[Any],
    space: gym.Space | None,
    can_be_missing: NDArray[np.bool_] | bool = False,
) -> Iterator[Fault]:
    """Yield the faults of a column's values.

    Args:
        name: name of the leaf; observations, actions and rewards must be finite, also as the float32 of batches.
        column: values of timesteps `[S, *shape]` or of observations `[O, *shape]`.
        space: the space of the values; None for any values.
        can_be_missing: `[*shape]` True for elements that may be NaN; a single bool applies to all.
    """
    if column.dtype.kind in "fc" and root(name) in _FINITE_COLUMNS and not _is_finite_in_batches(column):
        yield from _find_not_finite(column, can_be_missing)
    if name == Columns.DELTA_T and column.dtype.kind == "f" and not (column >= 0).all():
        yield Fault("not-finite", ~(column >= 0), "a duration of 0 or more")
    is_outside = values_outside_space(column, space)
    if is_outside is not None:
        yield Fault("outside-space", is_outside, describe_space(space))


def _is_finite_in_batches(column: NDArray[Any]) -> bool:
    """Return True if all values are finite as float32; may return False if only their sum overflows."""
    # A finite sum has only finite terms, and takes one pass.
    if column.dtype != np.float64:
        return all_finite(column)
    with np.errstate(all="ignore"):
        return bool(np.isfinite(column.sum(dtype=np.float32)))


def _find_not_finite(column: NDArray[Any], can_be_missing: NDArray[np.bool_] | bool) -> Iterator[Fault]:
    """Yield a fault for values that are not finite, then a fault for values that become infinite in float32."""
    is_finite = np.isfinite(column) | (np.isnan(column) & can_be_missing)
    if not is_finite.all():
        yield Fault("not-finite", ~is_finite, "a finite number")
    is_too_large = is_finite & (np.abs(column) > LARGEST_FLOAT32)
    if is_too_large.any():
        yield Fault("not-finite", is_too_large, "a finite number within float32's range (±3.4e38)")


def values_outside_space(column: NDArray[Any], space: gym.Space | None) -> NDArray[np.bool_] | None:
    """Return `[n, *shape]` True for values outside the space; None if all are inside.

    Bounds of a float Box are widened, see `_box_limits`. NaN is ignored.
    """
    limits = _value_limits(space)
    if limits is None or not column.size or column.dtype.kind in "cO":
        return None
    low, high = limits
    # Two reductions need no array of flags, and almost always suffice.
    if (column.min(axis=0) >= low).all() and (column.max(axis=0) <= high).all():
        return None
    is_outside = (column < low) | (column > high)
    return is_outside if is_outside.any() else None


def fits_space(dtype: np.dtype | None, shape: tuple[int, ...], space: gym.Space | None) -> bool:
    """Return True if values of a dtype (None for text) and shape may be in the space; their range is not checked."""
    if isinstance(space, spaces.Text):
        return dtype is None
    if dtype is None or space is None or shape != space.shape:
        return False
    return isinstance(space, spaces.Box) or dtype.kind in "biu"


def _value_limits(space: gym.Space | None) -> tuple[Any, Any] | None:
    """Return the lowest and highest allowed value, `[*shape]` each; None if every value is allowed."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return space.start, space.start + num_values(space) - 1
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    return _box_limits(space) if isinstance(space, spaces.Box) else None


def _box_limits(space: spaces.Box) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the bounds of a Box; bounds of floats are widened by a 10,000th of their distance, at least by 0.0001."""
    if space.dtype.kind != "f":
        return space.low, space.high
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    distance = np.where(np.isfinite(low) & np.isfinite(high), high - low, 1.0)
    slack = _TOLERANCE * np.maximum(1.0, distance)
    with np.errstate(over="ignore"):
        return (low - slack).astype(space.dtype), (high + slack).astype(space.dtype)


def all_finite(column: NDArray[Any]) -> bool:
    """Return True if all values are finite."""
    # A finite sum has only finite terms; only if the sum is not finite, each value is examined.
    with np.errstate(all="ignore"):
        return bool(np.isfinite(column.sum())) or bool(np.isfinite(column).all())


def describe_space(space: gym.Space | None) -> str:
    """Describe the values of a space, for messages."""
    if isinstance(space, spaces.Discrete):
        return f"an integer in [{space.start}, {space.start + space.n - 1}] of shape []"
    if isinstance(space, spaces.MultiBinary):
        return f"0 or 1 of shape {list(space.shape)}"
    if isinstance(space, spaces.Text):
        return "a string"
    return f"{space} of shape {list(space.shape)}" if space is not None and space.shape else str(space)


def describe_fault(block: Block, name: str, fault: Fault, locate: Locator) -> Problem:
    """Return the location of a fault's first value, with the value and what is expected."""
    index = np.unravel_index(int(np.argmax(fault.mask)), fault.mask.shape)
    row = int(index[0])
    starts = block.obs_start if is_per_observation(name) else block.start
    episode = int(np.searchsorted(starts, row, side="right")) - 1
    t = int(block.t_started[episode]) + row - int(starts[episode])
    path, file_row = locate(episode)
    what = f"{name!r} has {block.columns[name][index]!s}, expected {fault.expected}"
    return Problem((), what, path=path, row=file_row, episode=str(block.eps_id[episode]), step=t)
