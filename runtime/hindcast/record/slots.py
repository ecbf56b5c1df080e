"""B environments in which one policy plays at the same time, with independent episodes: each has its own seed.

`Trajectories` stores their steps time-major and extracts episodes without touching single timesteps again. In shapes,
C is the capacity in steps and B the number of slots.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hindcast.api.environment import EnvironmentSpec
from hindcast.episodes.columns import Columns
from hindcast.episodes.nested import flatten
from hindcast.episodes.spaces import flatten_space
from hindcast.errors import DataError, SpecError, UserCodeError
from hindcast.formatting import plural
from hindcast.models.policy import Policy
from hindcast.record.environments import Spaces, take_environment
from hindcast.user_code import calling

_INITIAL_CAPACITY_STEPS = 512
_IDLE = np.iinfo(np.int64).max
"""Start step of a slot without an episode."""


class Slots:
    """Equal environments, each of which plays one episode at a time; the caller steps each of them.

    Args:
        environment: description of the environment.
        width: B, the number of environments.

    Attributes:
        name: name of the environment, for messages.
        observation: leaf -> `[B, *shape]`, the current observation of every slot.
        observation_space: observation space of one environment.
        action_space: action space of one environment.
        environments: one per slot.
    """

    def __init__(self, environment: EnvironmentSpec, width: int) -> None:
        self.name = environment.id
        self.environments = [take_environment(environment) for _ in range(width)]
        self.observation_space: gym.Space = self.environments[0].observation_space
        self.action_space: gym.Space = self.environments[0].action_space
        leaves = flatten_space(self.observation_space, Columns.OBS)
        self._has_single_leaf = list(leaves) == [Columns.OBS]
        self.observation = {leaf: _empty_rows(space, width) for leaf, space in leaves.items()}

    @property
    def spaces(self) -> Spaces:
        """The spaces of one environment."""
        return Spaces(self.observation_space, self.action_space)

    @property
    def width(self) -> int:
        """B."""
        return len(self.environments)

    def reset(self, slot: int, seed: int) -> dict[str, Any]:
        """Start an episode in a slot, write its first observation into `observation` and return its info."""
        with calling(f"environment {self.name!r} in reset()"):
            result = self.environments[slot].reset(seed=seed)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            raise UserCodeError(
                f"environment {self.name!r}: reset() returned {_describe_result(result)}; expected 2: "
                "observation, info (a dictionary)"
            )
        observation, info = result
        self._set_observation(slot, observation)
        return info

    def step(self, slot: int, action: Any) -> tuple[float, bool, bool, dict[str, Any]]:
        """Step one slot, write its observation into `observation` and return reward, terminated, truncated and info."""
        try:
            result = self.environments[slot].step(action)
        except Exception:
            # `calling` is entered only after an error: a context manager would slow down every step.
            with calling(f"environment {self.name!r} in step()"):
                raise
        try:
            observation, reward, terminated, truncated, info = result
        except (TypeError, ValueError) as error:
            raise UserCodeError(
                f"environment {self.name!r}: step() returned {_describe_result(result)}; expected 5: "
                "observation, reward, terminated, truncated, info"
            ) from error
        self._set_observation(slot, observation)
        return self._reward_to_float(reward), bool(terminated), bool(truncated), info

    def close(self) -> None:
        for environment in self.environments:
            environment.close()

    def _reward_to_float(self, reward: Any) -> float:
        try:
            return float(reward)
        except (TypeError, ValueError) as error:
            raise UserCodeError(
                f"environment {self.name!r} in step() returned the reward {reward!r}, which is not a number"
            ) from error

    def _set_observation(self, slot: int, observation: Any) -> None:
        try:
            if self._has_single_leaf:
                _set_row(self.observation[Columns.OBS], slot, observation)
                return
            leaves = flatten(observation, Columns.OBS)
            if leaves.keys() != self.observation.keys():
                raise ValueError(f"its leaves are {sorted(leaves)}, not {sorted(self.observation)}")
            for leaf, value in leaves.items():
                _set_row(self.observation[leaf], slot, value)
        except (ValueError, TypeError, OverflowError) as error:
            raise DataError(
                f"environment {self.name!r} returned an observation that does not fit its observation_space "
                f"{self.observation_space}: {error}"
            ) from error


def _describe_result(result: Any) -> str:
    """Describe the value that an environment's method returned, for error messages."""
    if isinstance(result, tuple):
        return plural(len(result), "value")
    return f"one value, of type {type(result).__name__}"


def _set_row(rows: NDArray[Any], slot: int, value: Any) -> None:
    """Write a value into a slot.

    Raises:
        ValueError: the value has another shape.
        TypeError: the column is text, and the value is not.
    """
    # NumPy alone would broadcast a value of another shape.
    if rows.dtype == object:
        if not isinstance(value, str):
            raise TypeError(f"{value!r} is not text")
    elif np.shape(value) != rows.shape[1:]:
        raise ValueError(f"its shape is {list(np.shape(value))}, not {list(rows.shape[1:])}")
    rows[slot] = value


def check_spaces(policy: object, spaces: Spaces, name: str) -> None:
    """Check that a `Policy` was made for an environment's spaces; other actors are not checked.

    Args:
        policy: the actor.
        spaces: spaces of the environment.
        name: name of the environment, for the message.

    Raises:
        SpecError: the policy's observation or action space differs from the environment's.
    """
    if not isinstance(policy, Policy):
        return
    for space_name, policy_space, env_space in (
        ("observation", policy.observation_space, spaces.observation),
        ("action", policy.action_space, spaces.action),
    ):
        if policy_space != env_space:
            raise SpecError(
                f"the policy was made for the {space_name} space {policy_space}; the environment {name!r} has "
                f"{env_space}."
            )


def sample_observation(space: gym.Space) -> dict[str, NDArray[Any]]:
    """Return a random observation of a space: leaf -> `[1, *shape]`; the same for the same space.

    Raises:
        SpecError: observations of the space have no fixed shape.
    """
    rows = {
        leaf: _empty_rows(leaf_space, 1) for leaf, leaf_space in flatten_space(space, Columns.OBS).items()
    }
    sampled_space = copy.deepcopy(space)  # the environment's own generator stays as it is
    sampled_space.seed(0)
    for leaf, value in flatten(sampled_space.sample(), Columns.OBS).items():
        _set_row(rows[leaf], 0, value)
    return rows


def _empty_rows(space: gym.Space, width: int) -> NDArray[Any]:
    if isinstance(space, gym.spaces.Text):
        return np.full(width, "", dtype=object)
    if space.shape is None:
        raise SpecError(f"observations of the space {space} have no fixed shape, and cannot be recorded.")
    return np.zeros((width, *space.shape), dtype=space.dtype)


class Trajectories:
    """A time-major buffer `[C, B, *shape]` per column, with the steps of B running episodes.

    It grows with the longest running episode and otherwise reuses its memory.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._capacity = _INITIAL_CAPACITY_STEPS
        self._columns: dict[str, NDArray[Any]] = {}
        self._start_steps = np.full(width, _IDLE)
        self._num_steps = 0

    def begin(self, slot: int) -> None:
        """Start an episode in a slot with the next appended row."""
        self._start_steps[slot] = self._num_steps

    def length(self, slot: int) -> int:
        """Return the number of steps of the slot's running episode."""
        return int(self._num_steps - self._start_steps[slot])

    def append(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Append one step of every slot; `rows[name]` is `[B, *shape]`."""
        if not self._columns:
            self._columns = {name: self._allocate(row) for name, row in rows.items()}
        if self._num_steps == self._capacity:
            self._make_room()
        for name, row in rows.items():
            self._columns[name][self._num_steps] = row
        self._num_steps += 1

    def set_last(self, name: str, row: NDArray[Any]) -> None:
        """Overwrite a column of the last appended step, for values that are known only after stepping.

        Args:
            name: name of the column.
            row: `[B, *shape]`, the step's values of all slots.
        """
        self._columns[name][self._num_steps - 1] = row

    def extract(self, slot: int) -> dict[str, NDArray[Any]]:
        """Return a copy of the slot's episode, `[T, *shape]` per column; the slot is idle afterwards."""
        steps = slice(int(self._start_steps[slot]), self._num_steps)
        self._start_steps[slot] = _IDLE
        return {name: column[steps, slot].copy() for name, column in self._columns.items()}

    def _allocate(self, row: NDArray[Any]) -> NDArray[Any]:
        return np.empty((self._capacity, *row.shape), dtype=row.dtype)

    def _make_room(self) -> None:
        """Move the running episodes to the beginning; double the capacity if they fill more than half of it."""
        is_running = self._start_steps != _IDLE
        first_step = int(self._start_steps[is_running].min()) if is_running.any() else self._num_steps
        num_kept = self._num_steps - first_step
        if num_kept > self._capacity // 2:
            self._capacity *= 2
        for name, column in self._columns.items():
            target = column if column.shape[0] == self._capacity else self._allocate(column[0])
            target[:num_kept] = column[first_step : self._num_steps]
            self._columns[name] = target
        self._start_steps[is_running] -= first_step
        self._num_steps = num_kept
