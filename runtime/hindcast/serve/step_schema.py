"""What the steps of a log hold: values are checked against it as they are logged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import gymnasium as gym
import numpy as np

from hindcast.datasets.validate import describe_space, values_outside_space
from hindcast.episodes.columns import SEPARATOR, Columns, leaves_of, root
from hindcast.episodes.nested import flatten, unflatten
from hindcast.episodes.spaces import flatten_space, space_from_struct
from hindcast.errors import DataError
from hindcast.formats.spec import DataSpec, Leaf
from hindcast.serve.records import Values

_TAKEN: Final = (
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
    """Checks values, and brings them to the dtypes of the log.

    Args:
        spec: with the leaves, once they are known; its spaces may be None.

    Attributes:
        spec: as given, or as `define` completed it.
    """

    def __init__(self, spec: DataSpec) -> None:
        self.spec = spec
        self._spaces: dict[str, gym.Space] = {}
        for space, column in ((spec.observation_space, Columns.OBS), (spec.action_space, Columns.ACTIONS)):
            if space is not None:
                self._spaces |= flatten_space(space, column)

    @property
    def is_defined(self) -> bool:
        """Whether the leaves are known."""
        return bool(self.spec.leaves)

    def define(self, observation: Any, action: Any, outputs: Mapping[str, Any], where: str) -> StepSchema:
        """The steps of a log whose first one this is: as the spaces say, else as the values look.

        Raises:
            DataError: values that do not fit the spaces, or that no dataset can hold.
        """
        spec, values = self.spec, dict[str, Any]()
        for given, column, space in (
            (observation, Columns.OBS, spec.observation_space),
            (action, Columns.ACTIONS, spec.action_space),
        ):
            parts = self._parts(given, column, where)
            if space is not None:
                self._checked(parts, column, where)
            values |= parts
        values |= _outputs(outputs, where)
        leaves = {name: self._leaf(name, value, where) for name, value in values.items()}
        besides = {Columns.REWARDS: Leaf(np.dtype(np.float64)), Columns.INFOS: Leaf(None, (), "json")}
        completed = replace(
            spec,
            leaves=leaves | besides,
            observation_space=spec.observation_space or self._space_of(leaves, Columns.OBS),
            action_space=spec.action_space or self._space_of(leaves, Columns.ACTIONS),
        )
        return StepSchema(completed)

    def check_observation(self, observation: Any, where: str) -> Values:
        """The leaves of an observation.

        Raises:
            DataError: it has another structure, shape or kind of number, or is outside its space.
        """
        return self._checked(self._parts(observation, Columns.OBS, where), Columns.OBS, where)

    def check_action(self, action: Any, outputs: Mapping[str, Any], where: str) -> Values:
        """The leaves of an action and of what came with it.

        Raises:
            DataError: as `observation`; or other outputs than the first step had.
        """
        checked = self._checked(self._parts(action, Columns.ACTIONS, where), Columns.ACTIONS, where)
        given = _outputs(outputs, where)
        known = [name for name in self.spec.leaves if _is_output(name)]
        if given.keys() != set(known):
            raise DataError(
                f"{where}: it has {_listed(given)}, but the log's first action had {_listed(known)}: "
                "give the same with every action"
            )
        return {**checked, **{name: self._value(name, given[name], where) for name in known}}

    def _parts(self, value: Any, column: str, where: str) -> dict[str, Any]:
        try:
            return dict(flatten(value, column))
        except ValueError as error:
            raise DataError(f"{where}: {error}") from error

    def _checked(self, parts: Mapping[str, Any], column: str, where: str) -> Values:
        known = leaves_of(column, self.spec.leaves or self._spaces)
        if parts.keys() != set(known):
            raise DataError(
                f"{where}: {_what(column)} has the parts {_listed(parts)}, expected {_listed(known)}"
            )
        return {name: self._value(name, parts[name], where) for name in known}

    def _leaf(self, name: str, value: Any, where: str) -> Leaf:
        space = self._spaces.get(name)
        if isinstance(space, gym.spaces.Text) or isinstance(value, str):
            return Leaf(None, (), "text")
        if space is not None and space.shape is not None:
            dtype = space.dtype
            return Leaf(np.dtype(np.float32) if self._is_modules(name, space) else dtype, space.shape)
        array = _array(name, value, where)
        try:
            return Leaf(array.dtype, array.shape)
        except DataError as error:
            raise DataError(f"{where}: {name}: {error}") from error

    def _space_of(self, leaves: Mapping[str, Leaf], column: str) -> gym.Space | None:
        """The space of floats, which are unbounded; how many integers there are the first one does not say."""
        own = {name: leaves[name] for name in leaves_of(column, leaves)}
        if any(leaf.dtype is None or leaf.dtype.kind != "f" for leaf in own.values()):
            return None
        boxes = {
            name: gym.spaces.Box(-np.inf, np.inf, leaf.shape, leaf.dtype.type)  # type: ignore[union-attr]
            for name, leaf in own.items()
        }
        return space_from_struct(unflatten(boxes, column))

    def _value(self, name: str, value: Any, where: str) -> Any:
        leaf, space = self.spec.leaves.get(name) or self._leaf(name, value, where), self._spaces.get(name)
        if leaf.dtype is None:
            if not isinstance(value, str):
                raise DataError(f"{where}: {name} is {value!r}, expected text")
            return value
        array = _array(name, value, where)
        if array.shape != leaf.shape:
            raise DataError(
                f"{where}: {name} has the shape {list(array.shape)}, expected {list(leaf.shape)}, as "
                + ("its space says" if space is not None else "in the log's first step")
            )
        if not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
            raise DataError(f"{where}: {name} is {array.dtype}, expected {leaf.dtype}")
        if space is not None and not self._is_modules(name, space):
            wrong = values_outside_space(array[None], space)
            if wrong is not None:
                raise DataError(
                    f"{where}: {name} is {array.tolist()}, which is outside its space: {describe_space(space)}"
                )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise DataError(f"{where}: {name} is {array.tolist()}, which is not finite")
        return array.astype(leaf.dtype, copy=True)  # which nobody else changes

    def _is_modules(self, name: str, space: gym.Space) -> bool:
        """Whether the leaf holds actions of a module, which are scaled and clipped for the environment."""
        is_action = root(name) == Columns.ACTIONS and self.spec.normalized_actions
        return is_action and isinstance(space, gym.spaces.Box) and space.dtype.kind == "f"


def _outputs(outputs: Mapping[str, Any], where: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in outputs.items():
        if name in _TAKEN or SEPARATOR in name:
            raise DataError(f"{where}: a custom column cannot be named {name!r}: rename it")
        given |= flatten(value, name)
    return given


def _array(name: str, value: Any, where: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(f"{where}: {name} is not an array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where}: {name} is {value!r}, expected numbers")
    return array


def _is_output(name: str) -> bool:
    return root(name) not in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.INFOS)


def _what(column: str) -> str:
    return "the observation" if column == Columns.OBS else "the action"


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "nothing else"
