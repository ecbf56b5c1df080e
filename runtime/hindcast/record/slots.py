"""B environments side by side, each reset on its own seed: no episode depends on its neighbours.

Their steps are kept time-major and cut into episodes without touching single timesteps again (`Trajectories`). Shape
suffixes: C = capacity in steps, B = slots.
"""

from __future__ import annotations

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
from hindcast.record.environments import make_environment
from hindcast.user_code import calling

_FIRST_CAPACITY = 512
_IDLE = np.iinfo(np.int64).max


class Slots:
    """Environments of one kind, one episode in each at a time.

    Attributes:
        name: of the environment, for messages.
        observation: leaf -> `[B, *shape]`, the current observation of every slot.
        observation_space: of one environment.
        action_space: of one environment.
        environments: one for each slot.
    """

    def __init__(self, environment: EnvironmentSpec, width: int) -> None:
        self.name = environment.id
        self.environments = [make_environment(environment) for _ in range(width)]
        self.observation_space: gym.Space = self.environments[0].observation_space
        self.action_space: gym.Space = self.environments[0].action_space
        leaves = flatten_space(self.observation_space, Columns.OBS)
        self._single = list(leaves) == [Columns.OBS]
        self.observation = {leaf: _empty_rows(space, width) for leaf, space in leaves.items()}

    @property
    def width(self) -> int:
        """B."""
        return len(self.environments)

    def reset(self, slot: int, seed: int) -> dict[str, Any]:
        """Start an episode in a slot; its first observation is then in `observation`. Returns its info."""
        with calling(f"environment {self.name!r} in reset()"):
            returned = self.environments[slot].reset(seed=seed)
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)):
            raise UserCodeError(
                f"environment {self.name!r}: reset() must return (observation, info), with info a dict, as Gymnasium's "
                f"does, and returned {_described(returned)}"
            )
        observation, info = returned
        self._put(slot, observation)
        return info

    def step(self, slot: int, action: Any) -> tuple[float, bool, bool, dict[str, Any]]:
        """Step one slot. Returns reward, terminated, truncated, info; the observation is in `observation`."""
        try:
            returned = self.environments[slot].step(action)
        except Exception:
            with calling(f"environment {self.name!r} in step()"):
                raise
        try:
            observation, reward, terminated, truncated, info = returned
        except (TypeError, ValueError) as error:
            raise UserCodeError(
                f"environment {self.name!r}: step() returned {_described(returned)}; Gymnasium's returns 5: "
                "observation, reward, terminated, truncated, info"
            ) from error
        self._put(slot, observation)
        return self._number(reward), bool(terminated), bool(truncated), info

    def close(self) -> None:
        for environment in self.environments:
            environment.close()

    def _number(self, reward: Any) -> float:
        try:
            return float(reward)
        except (TypeError, ValueError) as error:
            raise UserCodeError(
                f"environment {self.name!r} in step() returned the reward {reward!r}, which is not a number"
            ) from error

    def _put(self, slot: int, observation: Any) -> None:
        try:
            if self._single:
                _set(self.observation[Columns.OBS], slot, observation)
                return
            leaves = flatten(observation, Columns.OBS)
            if leaves.keys() != self.observation.keys():
                raise ValueError(f"its parts are {sorted(leaves)}, not {sorted(self.observation)}")
            for leaf, value in leaves.items():
                _set(self.observation[leaf], slot, value)
        except (ValueError, TypeError, OverflowError) as error:
            raise DataError(
                f"environment {self.name!r} returned an observation that does not fit its observation_space "
                f"{self.observation_space}: {error}"
            ) from error


def _described(returned: Any) -> str:
    """What a method of an environment returned in place of what Gymnasium's returns."""
    if isinstance(returned, tuple):
        return plural(len(returned), "value")
    return f"one value, of type {type(returned).__name__}"


def _set(rows: NDArray[Any], slot: int, value: Any) -> None:
    """Put a value in a slot; NumPy alone would also take one of another shape and repeat it."""
    if rows.dtype == object:
        if not isinstance(value, str):
            raise TypeError(f"{value!r} is not text")
    elif np.shape(value) != rows.shape[1:]:
        raise ValueError(f"its shape is {list(np.shape(value))}, not {list(rows.shape[1:])}")
    rows[slot] = value


def check_spaces(policy: object, slots: Slots) -> None:
    """Refuse a policy that was made for other spaces.

    Raises:
        SpecError: its observation or action space is not the environment's.
    """
    if not isinstance(policy, Policy):
        return
    for what, own, given in (
        ("observation", policy.observation_space, slots.observation_space),
        ("action", policy.action_space, slots.action_space),
    ):
        if own != given:
            raise SpecError(
                f"the policy was made for the {what} space {own}; the environment {slots.name!r} has {given}."
            )


def _empty_rows(space: gym.Space, width: int) -> NDArray[Any]:
    if isinstance(space, gym.spaces.Text):
        return np.full(width, "", dtype=object)
    if space.shape is None:
        raise SpecError(f"observations of the space {space} have no fixed shape, and cannot be recorded.")
    return np.zeros((width, *space.shape), dtype=space.dtype)


class Trajectories:
    """A time-major buffer `[C, B, *shape]` per column that follows B running episodes.

    It grows with the longest running episode and otherwise reuses its room.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._capacity = _FIRST_CAPACITY
        self._columns: dict[str, NDArray[Any]] = {}
        self._started = np.full(width, _IDLE)
        self._now = 0

    def begin(self, slot: int) -> None:
        """The next appended row is the slot's first."""
        self._started[slot] = self._now

    def length(self, slot: int) -> int:
        """Steps of the slot's running episode."""
        return int(self._now - self._started[slot])

    def append(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Add one step of every slot; `rows[name]` is `[B, *shape]`."""
        if not self._columns:
            self._columns = {name: self._allocate(row) for name, row in rows.items()}
        if self._now == self._capacity:
            self._make_room()
        for name, row in rows.items():
            self._columns[name][self._now] = row
        self._now += 1

    def set_last(self, name: str, row: NDArray[Any]) -> None:
        """Overwrite one column of the last appended step, known only after stepping."""
        self._columns[name][self._now - 1] = row

    def extract(self, slot: int) -> dict[str, NDArray[Any]]:
        """A copy of the slot's episode, `[T, *shape]` per column; the slot is idle afterwards."""
        steps = slice(int(self._started[slot]), self._now)
        self._started[slot] = _IDLE
        return {name: column[steps, slot].copy() for name, column in self._columns.items()}

    def _allocate(self, row: NDArray[Any]) -> NDArray[Any]:
        return np.empty((self._capacity, *row.shape), dtype=row.dtype)

    def _make_room(self) -> None:
        running = self._started != _IDLE
        oldest = int(self._started[running].min()) if running.any() else self._now
        kept = self._now - oldest
        if kept > self._capacity // 2:
            self._capacity *= 2
        for name, column in self._columns.items():
            target = column if column.shape[0] == self._capacity else self._allocate(column[0])
            target[:kept] = column[oldest : self._now]
            self._columns[name] = target
        self._started[running] -= oldest
        self._now = kept
