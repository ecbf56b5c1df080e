"""`StepSchema`: leaves and dtypes of a log's steps. When values are logged, they are checked and cast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import gymnasium as gym
import numpy as np

from hindcast.datasets.validate import describe_space, values_outside_space
from hindcast.episodes.columns import SEPARATOR, Columns, leaves_of, root
from hindcast.episodes.nested import flatten, unflatten
from hindcast.episodes.spaces import flatten_space, read_named, space_from_struct
from hindcast.errors import DataError
from hindcast.formats.spec import DataSpec, Leaf
from hindcast.serve.records import Values

_RESERVED_COLUMNS: Final = (
    Columns.OBS,
    Columns.NEXT_OBS,
    Columns.ACTIONS,
    Columns.REWARDS,
    Columns.INFOS,
    Columns.TERMINATEDS,
    Columns.TRUNCATEDS,
    Columns.EPS_ID,
    Columns.T,
)


class StepSchema:
    """Checks values and casts them to the dtypes of the log.

    The argument `where` of all methods names the step in errors.

    Args:
        spec: the log's spec; before the first step its leaves may be empty and its spaces None.
        allow_missing: whether observations may have missing values (NaN).

    Attributes:
        spec: the log's spec.
    """

    def __init__(self, spec: DataSpec, *, allow_missing: bool = False) -> None:
        self.spec = spec
        self._allow_missing = allow_missing
        self._spaces: dict[str, gym.Space] = {}
        for space, column in ((spec.observation_space, Columns.OBS), (spec.action_space, Columns.ACTIONS)):
            if space is not None:
                self._spaces |= flatten_space(space, column)

    @property
    def is_defined(self) -> bool:
        """True if the leaves are known."""
        return bool(self.spec.leaves)

    def define(self, observation: Any, action: Any, outputs: Mapping[str, Any], where: str) -> StepSchema:
        """Return the schema of a log that begins with this step. Leaves come from the spaces, else from the values.

        Args:
            observation: observation of the step, nested like its space.
            action: action of the step, nested like its space.
            outputs: additional columns, by name.
            where: the step, for errors.

        Raises:
            DataError: values do not fit the spaces, or no dataset can store them.
        """
        spec, values = self.spec, dict[str, Any]()
        for nested_value, column, space in (
            (observation, Columns.OBS, spec.observation_space),
            (action, Columns.ACTIONS, spec.action_space),
        ):
            column_leaves = self._flatten(nested_value, column, where)
            if space is not None:
                self._cast_leaves(column_leaves, column, where)  # raises if the values do not fit
            values |= column_leaves
        values |= _flatten_outputs(outputs, where)
        leaves = {name: self._make_leaf(name, value, where) for name, value in values.items()}
        extra_leaves = {Columns.REWARDS: Leaf(np.dtype(np.float64)), Columns.INFOS: Leaf(None, (), "json")}
        new_spec = replace(
            spec,
            leaves=leaves | extra_leaves,
            observation_space=spec.observation_space or self._guess_space(leaves, Columns.OBS),
            action_space=spec.action_space or self._guess_space(leaves, Columns.ACTIONS),
        )
        return StepSchema(new_spec, allow_missing=self._allow_missing)

    def cast_observation(self, observation: Any, where: str) -> Values:
        """Check an observation and return its leaves in the dtypes of the log.

        Raises:
            DataError: the observation has another structure, shape or kind of number, or is outside its space.
        """
        return self._cast_leaves(self._flatten(observation, Columns.OBS, where), Columns.OBS, where)

    def cast_action(self, action: Any, outputs: Mapping[str, Any], where: str) -> Values:
        """Check an action and its outputs and return their leaves in the dtypes of the log.

        Raises:
            DataError: as for `cast_observation`, or the outputs have other names than in the first step.
        """
        action_leaves = self._cast_leaves(
            self._flatten(action, Columns.ACTIONS, where), Columns.ACTIONS, where
        )
        output_leaves = _flatten_outputs(outputs, where)
        output_names = [name for name in self.spec.leaves if _is_output(name)]
        if output_leaves.keys() != set(output_names):
            raise DataError(
                f"{where}: the action has {_join_names(output_leaves)}, but the log's first action had "
                f"{_join_names(output_names)}: log the same columns with every action"
            )
        return {
            **action_leaves,
            **{name: self._cast_value(name, output_leaves[name], where) for name in output_names},
        }

    def _flatten(self, value: Any, column: str, where: str) -> dict[str, Any]:
        space = self.spec.observation_space if column == Columns.OBS else self.spec.action_space
        try:
            return dict(flatten(read_named(value, space), column))
        except (ValueError, DataError) as error:
            raise DataError(f"{where}: {error}") from error

    def _cast_leaves(self, leaves: Mapping[str, Any], column: str, where: str) -> Values:
        expected_names = leaves_of(column, self.spec.leaves or self._spaces)
        if leaves.keys() != set(expected_names):
            raise DataError(
                f"{where}: {_column_title(column)} has the parts {_join_names(leaves)}, "
                f"expected {_join_names(expected_names)}"
            )
        return {name: self._cast_value(name, leaves[name], where) for name in expected_names}

    def _make_leaf(self, name: str, value: Any, where: str) -> Leaf:
        space = self._spaces.get(name)
        if isinstance(space, gym.spaces.Text) or isinstance(value, str):
            return Leaf(None, (), "text")
        if space is not None and space.shape is not None:
            dtype = np.dtype(np.float32) if self._is_module_action(name, space) else space.dtype
            return Leaf(dtype, space.shape)
        array = _to_array(name, value, where)
        try:
            return Leaf(array.dtype, array.shape)
        except DataError as error:
            raise DataError(f"{where}: {name}: {error}") from error

    def _guess_space(self, leaves: Mapping[str, Leaf], column: str) -> gym.Space | None:
        """Return an unbounded space if all leaves are floats, else None."""
        # A single integer does not reveal how many values a Discrete space has.
        column_leaves = {name: leaves[name] for name in leaves_of(column, leaves)}
        if any(leaf.dtype is None or leaf.dtype.kind != "f" for leaf in column_leaves.values()):
            return None
        boxes = {
            name: gym.spaces.Box(-np.inf, np.inf, leaf.shape, leaf.dtype.type)  # type: ignore[union-attr]
            for name, leaf in column_leaves.items()
        }
        return space_from_struct(unflatten(boxes, column))

    def _cast_value(self, name: str, value: Any, where: str) -> Any:
        leaf = self.spec.leaves.get(name) or self._make_leaf(name, value, where)
        space = self._spaces.get(name)
        if leaf.dtype is None:
            if not isinstance(value, str):
                raise DataError(f"{where}: {name} is {value!r}, expected text")
            return value
        array = _to_array(name, value, where)
        if array.shape != leaf.shape:
            raise DataError(
                f"{where}: {name} has the shape {list(array.shape)}, expected {list(leaf.shape)}, as "
                + ("its space says" if space is not None else "in the log's first step")
            )
        if not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
            raise DataError(f"{where}: {name} is {array.dtype}, expected {leaf.dtype}")
        if space is not None and not self._is_module_action(name, space):
            violation = values_outside_space(array[None], space)
            if violation is not None:
                raise DataError(
                    f"{where}: {name} is {array.tolist()}, which is outside its space: {describe_space(space)}"
                )
        is_missing = np.isnan(array) if self._allow_missing and root(name) == Columns.OBS else np.False_
        if array.dtype.kind == "f" and not (np.isfinite(array) | is_missing).all():
            raise DataError(f"{where}: {name} is {array.tolist()}, which is not finite")
        return array.astype(leaf.dtype, copy=True)  # a copy: the application may reuse its array

    def _is_module_action(self, name: str, space: gym.Space) -> bool:
        """Return True if the leaf contains a module's actions, which are scaled and clipped for the environment."""
        is_action = root(name) == Columns.ACTIONS and self.spec.normalized_actions
        return is_action and isinstance(space, gym.spaces.Box) and space.dtype.kind == "f"


def _flatten_outputs(outputs: Mapping[str, Any], where: str) -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in outputs.items():
        if name in _RESERVED_COLUMNS or SEPARATOR in name:
            raise DataError(f"{where}: a custom column cannot be named {name!r}: rename it")
        leaves |= flatten(value, name)
    return leaves


def _to_array(name: str, value: Any, where: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(f"{where}: {name} is not an array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where}: {name} is {value!r}, expected numbers")
    return array


def _is_output(name: str) -> bool:
    return root(name) not in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.INFOS)


def _column_title(column: str) -> str:
    return "the observation" if column == Columns.OBS else "the action"


def _join_names(names: Any) -> str:
    return ", ".join(sorted(names)) or "nothing else"
