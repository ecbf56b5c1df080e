"""Small environments that tests name as `toy_environments:Class`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np


class Walk(gym.Env):
    """Episodes of a seeded length; the reward is the action.

    Observations are [random number of the episode, timestep, length of the episode, last action, at first -1].

    Args:
        shortest: minimum number of steps of an episode.
        longest: maximum number of steps.
        truncates: True if episodes end by truncation, False if by termination.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, shortest: int = 3, longest: int = 12, truncates: bool = False) -> None:
        self._limits = (shortest, longest)
        self._truncates = truncates

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._t = 0
        self._length = int(self.np_random.integers(self._limits[0], self._limits[1] + 1))
        self._episode_id = self.np_random.random(dtype=np.float32)
        self._last = -1
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        self._last = int(action)
        return self._advance(float(action))

    def _advance(self, reward: float) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._t += 1
        is_over = self._t == self._length
        return self._observe(), reward, is_over and not self._truncates, is_over and self._truncates, {}

    def _observe(self) -> np.ndarray:
        return np.array([self._episode_id, self._t, self._length, self._last], dtype=np.float32)


class CountedWalk(Walk):
    """A `Walk` that appends the id of its process to the file `CREATIONS` when it is created."""

    def __init__(self) -> None:
        super().__init__()
        with Path(os.environ["CREATIONS"]).open("a") as file:
            file.write(f"{os.getpid()}\n")


class SteeredWalk(Walk):
    """A Walk with continuous actions; the reward is the first entry of the action."""

    action_space = gym.spaces.Box(np.float32([-2, 0]), np.float32([1, 3]))

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        return self._advance(float(action[0]))


class Homing(gym.Env):
    """Twenty steps in a square; the reward of a step is minus the distance from the centre."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-2, 2, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._t, self._position = 0, self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self._position, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._t += 1
        self._position = np.clip(self._position + 0.15 * np.asarray(action, np.float32), -1, 1)
        return self._position, -float(np.linalg.norm(self._position)), False, self._t == 20, {}


class Composite(gym.Env):
    """Composite spaces, and infos; actions are checked."""

    observation_space = gym.spaces.Dict(
        place=gym.spaces.Box(-np.inf, np.inf, (2,), np.float32),
        kind=gym.spaces.Tuple((gym.spaces.Discrete(3), gym.spaces.MultiBinary(2))),
    )
    action_space = gym.spaces.Dict(
        move=gym.spaces.Box(-2.0, 4.0, (2,), np.float32), jump=gym.spaces.Discrete(2, start=1)
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self._t = 0
        self._length = int(self.np_random.integers(2, 6))
        return self._observe(), {"t": 0, "names": ["a", "b"]}

    def step(self, action: Any) -> tuple[dict, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        self._t += 1
        info = {"t": self._t, "moved": action["move"]} if self._t % 2 else {}
        return self._observe(), float(action["move"].sum()), self._t == self._length, False, info

    def _observe(self) -> dict:
        place = np.array([self._t, self._length], dtype=np.float32)
        return {"place": place, "kind": (self._t % 3, np.array([self._t % 2, 1], dtype=np.int8))}


class TextWalk(Walk):
    """A Walk with strings as observations."""

    observation_space = gym.spaces.Text(8)

    def _observe(self) -> str:
        return "go" * (self._t % 4) + "!"


class Frames(Walk):
    """A Walk with images as observations."""

    observation_space = gym.spaces.Box(0, 255, (40, 40, 3), np.uint8)

    def _observe(self) -> np.ndarray:
        return np.full((40, 40, 3), self._t, dtype=np.uint8)


class FaultyEnv(Walk):
    """An environment with a defect.

    Args:
        what: the defect. "constructor", "reset" and "step" raise an exception there; "shape", "short", "missing" and
            "not a number" return such observations; "reward" and "info" return an invalid reward or info; "old reset"
            and "old step" return as in Gym, before Gymnasium; "infinite" is the reward of the second step, and
            "infinite obs" an observation after it.
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what
        if what == "constructor":
            raise ValueError("no such level")
        if what == "missing":
            self.observation_space = gym.spaces.Dict(
                here=gym.spaces.Box(-1, 1, (1,)), there=gym.spaces.Box(-1, 1, (1,))
            )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        if self._what == "reset":
            raise RuntimeError("the simulator is not there")
        observation, info = super().reset(seed=seed, options=options)
        return observation if self._what == "old reset" else (observation, info)  # type: ignore[return-value]

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        observation, reward, terminated, truncated, info = super().step(action)
        if self._what == "old step":
            return observation, reward, terminated, info  # type: ignore[return-value]
        if self._what == "infinite" and self._t == 2:
            return observation, np.inf, terminated, truncated, info
        if self._what == "infinite obs" and self._t == 2:
            return np.full_like(observation, np.nan), reward, terminated, truncated, info
        if self._what == "step" and self._t == 2:
            raise RuntimeError("the simulator fell over")
        if self._what == "reward":
            return observation, None, terminated, truncated, info
        if self._what == "info":
            return observation, reward, terminated, truncated, {"big": 1 << 80}
        return observation, reward, terminated, truncated, info

    def _observe(self) -> Any:
        if self._t == 0:
            complete_observation = {"here": np.zeros(1), "there": np.zeros(1)}
            return complete_observation if self._what == "missing" else super()._observe()
        faulty_observations = {
            "shape": np.zeros((2, 4), np.float32),
            "short": np.zeros(1, np.float32),
            "missing": {"here": np.zeros(1)},
            "not a number": "left",
        }
        return faulty_observations.get(self._what, super()._observe())


class KillsProcess(Walk):
    """Kills its process in the first step after the file that TOY_KILL_ONCE names was created, and deletes the file."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        file = Path(os.environ["TOY_KILL_ONCE"])
        if file.exists():
            file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Continuous(gym.Env):
    """A Box action within [-2, 6]; the reward is the first entry of the action that the environment gets."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Box(-2.0, 6.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._t = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        self._t += 1
        return self._observe(), float(action[0]), False, self._t == 5, {}

    def _observe(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


class Recall(gym.Env):
    """Only the first observation shows a cue, +1 or -1; the reward is 1 if the last action matches it.

    Observations are [cue or 0, 1 if the next action is the last, else 0]. Action 2 matches the cue +1, and action 1
    the cue -1; or the sign of the action matches that of the cue.

    Args:
        shortest: minimum number of steps of an episode.
        longest: maximum number of steps.
        is_continuous: True if an action is a number from -1 to 1.
    """

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space: gym.Space = gym.spaces.Discrete(2, start=1)

    def __init__(self, shortest: int = 4, longest: int = 7, is_continuous: bool = False) -> None:
        self._limits = (shortest, longest)
        if is_continuous:
            self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._t = 0
        self._length = int(self.np_random.integers(self._limits[0], self._limits[1] + 1))
        self._cue = int(self.np_random.integers(2))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        self._t += 1
        done = self._t == self._length
        matches = action == 1 + self._cue if np.ndim(action) == 0 else (action[0] > 0) == (self._cue == 1)
        return self._observe(), float(done and matches), done, False, {}

    def right_action(self) -> int:
        """Return the action of an expert that remembers the cue."""
        return 1 + self._cue if self._t == self._length - 1 else 1

    def _observe(self) -> np.ndarray:
        cue = 2 * self._cue - 1 if self._t == 0 else 0
        return np.array([cue, self._t == self._length - 1], dtype=np.float32)
