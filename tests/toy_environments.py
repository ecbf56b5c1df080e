"""Small environments that tests name as `toy_environments:Class`."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np


class Walk(gym.Env):
    """Episodes of a seeded length. Every observation says which episode it is from, and at which timestep.

    Args:
        shortest: least steps of an episode.
        longest: most steps.
        truncates: episodes end by truncation.
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
        self._mark = self.np_random.random(dtype=np.float32)
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
        return np.array([self._mark, self._t, self._length, self._last], dtype=np.float32)


class SteeredWalk(Walk):
    """The same with continuous actions, of which the first one is the reward."""

    action_space = gym.spaces.Box(np.float32([-2, 0]), np.float32([1, 3]))

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        return self._advance(float(action[0]))


class Homing(gym.Env):
    """Twenty steps in a square, each of which costs the distance from its centre."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-2, 2, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._t, self._place = 0, self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self._place, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._t += 1
        self._place = np.clip(self._place + 0.15 * np.asarray(action, np.float32), -1, 1)
        return self._place, -float(np.linalg.norm(self._place)), False, self._t == 20, {}


class Composite(gym.Env):
    """Composite spaces and infos; actions are checked."""

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


class Speaking(Walk):
    """Observations are words."""

    observation_space = gym.spaces.Text(8)

    def _observe(self) -> str:
        return "go" * (self._t % 4) + "!"


class Frames(Walk):
    """Observations are pictures."""

    observation_space = gym.spaces.Box(0, 255, (40, 40, 3), np.uint8)

    def _observe(self) -> np.ndarray:
        return np.full((40, 40, 3), self._t, dtype=np.uint8)


class Wrong(Walk):
    """An environment with a defect.

    Args:
        what: "reset" or "step" raise; "shape", "short", "missing", "not a number" give wrong observations;
            "reward" and "info" such things; "constructor" raises there; "old reset" and "old step" return what Gym's
            did; "infinite" is the reward of each episode's second step.
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
        if self._what == "step" and self._t == 2:
            raise RuntimeError("the simulator fell over")
        if self._what == "reward":
            return observation, None, terminated, truncated, info
        if self._what == "info":
            return observation, reward, terminated, truncated, {"big": 1 << 80}
        return observation, reward, terminated, truncated, info

    def _observe(self) -> Any:
        if self._t == 0:
            whole = {"here": np.zeros(1), "there": np.zeros(1)}
            return whole if self._what == "missing" else super()._observe()
        wrong = {
            "shape": np.zeros((2, 4), np.float32),
            "short": np.zeros(1, np.float32),
            "missing": {"here": np.zeros(1)},
            "not a number": "left",
        }
        return wrong.get(self._what, super()._observe())


class Deadly(Walk):
    """Kills its process in the first step after a file TOY_KILL_ONCE was made, and removes the file."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        file = Path(os.environ["TOY_KILL_ONCE"])
        if file.exists():
            file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Continuous(gym.Env):
    """A Box action within [-2, 6]; the reward is the action that arrived."""

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
    """A cue, +1 or -1, is shown with the first observation alone; the last action is right if it names the cue.

    Observations are [cue, whether the next action is the last]. Actions are 1 and 2, of which 2 names a cue of +1.

    Args:
        shortest: least steps of an episode.
        longest: most steps.
    """

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2, start=1)

    def __init__(self, shortest: int = 4, longest: int = 7) -> None:
        self._limits = (shortest, longest)

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
        return self._observe(), float(done and action == 1 + self._cue), done, False, {}

    def right_action(self) -> int:
        """Return the action of an expert that remembers the cue."""
        return 1 + self._cue if self._t == self._length - 1 else 1

    def _observe(self) -> np.ndarray:
        cue = 2 * self._cue - 1 if self._t == 0 else 0
        return np.array([cue, self._t == self._length - 1], dtype=np.float32)
