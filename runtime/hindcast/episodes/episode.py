"""`SingleAgentEpisode`: one agent's trajectory, or a fragment of it, complete or still growing."""

from __future__ import annotations

import builtins
import time
import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, SupportsFloat

import numpy as np
from gymnasium import spaces

from hindcast.episodes import episode_parts as parts
from hindcast.episodes.columns import Columns
from hindcast.episodes.episode_access import EpisodeAccess
from hindcast.episodes.episode_state import episode_from_state, episode_to_state
from hindcast.episodes.lookback_buffer import InfiniteLookbackBuffer

REWARD_SPACE = spaces.Box(float("-inf"), float("inf"), (), np.float32)

Column = Any  # a sequence of samples, a batched value, or a buffer
Infos = Sequence[dict[str, Any]] | InfiniteLookbackBuffer | Callable[[], Sequence[dict[str, Any]]] | None


class SingleAgentEpisode(EpisodeAccess):
    """Observations o_0 … o_T, and actions, rewards and model outputs of the T steps between them.

    `observations` and `infos` have one item more than there are steps; step t is (o_t, a_t, r_t, o_t+1). An
    episode that continues another episode (see `cut`) starts at `t_started`, and may keep the last steps before
    `t_started` in its lookback buffer; these are not part of its length or return.

    An episode starts in list mode (a Python object per step, cheap to append to); `to_numpy` turns it into arrays.
    Observations and actions may be nested (dicts, tuples).

    Attributes:
        id_: the episode's id; fragments of one episode share it.
        agent_id, module_id, multi_agent_episode_id: ids of the agent, of its module, and of the multi-agent episode
            that this episode is a part of.
        observations, infos, actions, rewards: the columns, as `InfiniteLookbackBuffer`.
        extra_model_outputs: name -> buffer of another output of the model (`action_logp`, …).
        is_terminated: whether the environment ended the episode.
        is_truncated: whether the episode was cut off, for example by a time limit.
        t_started: timestep of the first observation (after the lookback).
        t: timestep of the last observation; there are `t - t_started` steps.
    """

    __slots__ = (
        "_action_space",
        "_custom_data",
        "_infos",
        "_last_step_time",
        "_observation_space",
        "_start_time",
        "actions",
        "agent_id",
        "extra_model_outputs",
        "id_",
        "is_terminated",
        "is_truncated",
        "module_id",
        "multi_agent_episode_id",
        "observations",
        "rewards",
        "t",
        "t_started",
    )

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Column = None,
        observation_space: spaces.Space | None = None,
        infos: Infos = None,
        actions: Column = None,
        action_space: spaces.Space | None = None,
        rewards: Column = None,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Column] | None = None,
        t_started: int | None = None,
        len_lookback_buffer: int | Literal["auto"] = "auto",
        agent_id: Hashable | None = None,
        module_id: str | None = None,
        multi_agent_episode_id: Hashable | None = None,
    ) -> None:
        """Make an episode, empty or from data.

        Each column is a list of samples, an array (nested: dicts and tuples of arrays) with a leading time
        dimension, or a buffer, which is used directly. Arrays are not copied.

        Args:
            id_: the episode's id; a new random id by default.
            observations: T + 1 observations, including the lookback.
            observation_space: space of the observations; required for one-hot encoding, and gives `fill` its shape.
            infos: T + 1 dicts, or a function that makes them on first use; empty dicts by default.
            actions: T actions.
            action_space: space of the actions; required for one-hot encoding, and gives `fill` its shape.
            rewards: T rewards.
            terminated: whether the environment ended the episode.
            truncated: whether the episode was cut off, for example by a time limit.
            extra_model_outputs: name -> T outputs.
            t_started: timestep of the first observation that is not lookback; 0 by default.
            len_lookback_buffer: number of steps at the beginning that are lookback, at most all steps; "auto" means
                all steps. Pass 0 for a complete episode.
            agent_id: id of the agent.
            module_id: id of the agent's module.
            multi_agent_episode_id: id of the multi-agent episode that this episode is a part of.

        Raises:
            ValueError: the columns' lengths are inconsistent, or the lookback is negative.
        """
        self.id_ = id_ or uuid.uuid4().hex
        self.agent_id, self.module_id = agent_id, module_id
        self.multi_agent_episode_id = multi_agent_episode_id
        self._observation_space, self._action_space = observation_space, action_space

        lookback = _resolve_lookback(rewards, len_lookback_buffer)
        self.observations = _make_buffer(observations, lookback, observation_space)
        self.actions = _make_buffer(actions, lookback, action_space)
        self.rewards = _make_buffer(rewards, lookback, REWARD_SPACE)
        self.extra_model_outputs = {
            key: _make_buffer(values, lookback, None) for key, values in (extra_model_outputs or {}).items()
        }
        self._infos: InfiniteLookbackBuffer | Callable[[], Sequence[dict[str, Any]]]
        if infos is None:
            self._infos = self._blank_infos
        else:
            self._infos = infos if callable(infos) else _make_buffer(infos, lookback, None)

        self.is_terminated, self.is_truncated = bool(terminated), bool(truncated)
        self.t_started = int(t_started or 0)
        self.t = self.t_started + len(self.rewards)
        self._start_time: float | None = None
        self._last_step_time: float | None = None
        self._custom_data: dict[str, Any] = {}
        self.validate()

    @property
    def infos(self) -> InfiniteLookbackBuffer:
        """The info dicts, always in list mode; if there were none, empty dicts are made on first use."""
        if not isinstance(self._infos, InfiniteLookbackBuffer):
            self._infos = InfiniteLookbackBuffer(self._infos(), self.observations.lookback)
        return self._infos

    @infos.setter
    def infos(self, buffer: InfiniteLookbackBuffer) -> None:
        self._infos = buffer

    @property
    def has_infos(self) -> bool:
        """Return whether any info dict is not empty."""
        # avoids making blank infos only to look at them
        return self._infos != self._blank_infos and any(self.infos.get())

    @property
    def custom_data(self) -> dict[str, Any]:
        """Custom data of the episode; stored in its state and in a block's `details`, not in its columns."""
        return self._custom_data

    @property
    def observation_space(self) -> spaces.Space | None:
        """The observations' space."""
        return self._observation_space

    @observation_space.setter
    def observation_space(self, space: spaces.Space | None) -> None:
        self._observation_space = self.observations.space = space

    @property
    def action_space(self) -> spaces.Space | None:
        """The actions' space."""
        return self._action_space

    @action_space.setter
    def action_space(self, space: spaces.Space | None) -> None:
        self._action_space = self.actions.space = space

    @property
    def is_reset(self) -> bool:
        """Return whether the episode has its first observation."""
        return self.observations.len_incl_lookback() > 0

    @property
    def is_done(self) -> bool:
        """Return whether the episode is terminated or truncated."""
        return self.is_terminated or self.is_truncated

    @property
    def is_numpy(self) -> bool:
        """Return whether observations, actions and rewards are arrays."""
        return all(buffer.finalized for buffer in (self.observations, self.actions, self.rewards))

    def add_env_reset(self, observation: Any, infos: dict[str, Any] | None = None) -> None:
        """Add the first observation, from `env.reset()`.

        Raises:
            ValueError: the episode already has observations, or is done.
        """
        if self.is_reset or self.is_done:
            raise ValueError(f"episode {self.id_} has already been reset: start a new SingleAgentEpisode")
        self.observations.append(observation)
        self.infos = InfiniteLookbackBuffer([infos or {}])
        self._start_time = time.perf_counter()

    def add_env_step(
        self,
        observation: Any,
        action: Any,
        reward: SupportsFloat,
        infos: dict[str, Any] | None = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Any] | None = None,
    ) -> None:
        """Add one step, from `env.step(action)`.

        Args:
            observation: next observation, o_t+1.
            action: the action, a_t.
            reward: the reward, r_t.
            infos: the info dict that belongs to the observation; empty by default.
            terminated: whether the environment ended the episode with this step.
            truncated: whether the episode was cut off after this step.
            extra_model_outputs: other outputs of the model at this step; every step must have the same keys.

        Raises:
            ValueError: the episode has no first observation, is done, or has other extra outputs.
        """
        outputs = extra_model_outputs or {}
        if self.is_done:
            raise ValueError(f"episode {self.id_} is done: no step can be added to it")
        if not self.is_reset:
            raise ValueError(
                f"episode {self.id_} has no first observation: call add_env_reset before add_env_step"
            )
        self._require_same_outputs(outputs, f"step {self.t}")
        # read before the observation is added, since this may make an info for each observation
        info_buffer = self.infos
        self.observations.append(observation)
        self.actions.append(action)
        self.rewards.append(reward)
        info_buffer.append(infos or {})
        for key, value in outputs.items():
            self.extra_model_outputs[key].append(value)
        self.t += 1
        self.is_terminated, self.is_truncated = bool(terminated), bool(truncated)
        self._last_step_time = time.perf_counter()
        # an episode made of data had no reset
        self._start_time = self._start_time if self._start_time is not None else self._last_step_time

    def validate(self) -> None:
        """Check that the columns' lengths and lookbacks are consistent.

        Raises:
            ValueError: a length or a lookback is inconsistent.
        """
        num_steps, lookback = self.rewards.len_incl_lookback(), self.rewards.lookback
        columns = {"actions": self.actions, **self.extra_model_outputs}
        for name, buffer in columns.items():
            self._check_length(name, buffer, num_steps, lookback)
        if num_steps or self.is_reset:
            self._check_length("observations", self.observations, num_steps + 1, lookback)
            if isinstance(self._infos, InfiniteLookbackBuffer):
                self._check_length("infos", self._infos, num_steps + 1, lookback)
        if self.t - self.t_started != len(self):
            raise ValueError(
                f"episode {self.id_} runs from timestep {self.t_started} to {self.t}, "
                f"but has {len(self)} steps"
            )

    def to_numpy(self) -> SingleAgentEpisode:
        """Convert all columns except the infos to arrays, in place; return the episode.

        Raises:
            ValueError: samples of one column differ in structure or shape.
        """
        for buffer in (self.observations, self.actions, self.rewards, *self.extra_model_outputs.values()):
            buffer.finalize()
        return self

    def concat_episode(self, other: SingleAgentEpisode) -> None:
        """Add the steps of the next fragment (see `cut`); the fragment's lookback is ignored.

        Raises:
            ValueError: the fragment belongs to another episode, does not start with this episode's last timestep and
                observation, or has other extra outputs; or this episode is done.
        """
        parts.concat(self, other)

    def cut(self, len_lookback_buffer: int = 0) -> SingleAgentEpisode:
        """Return the next fragment, which starts with this episode's last observation and has no steps yet.

        Args:
            len_lookback_buffer: number of this episode's last steps that the fragment keeps as lookback, at most all.

        Raises:
            ValueError: the episode is done, or the lookback is negative.
        """
        return parts.cut(self, len_lookback_buffer)

    def slice(self, slice_: builtins.slice, *, len_lookback_buffer: int | None = None) -> SingleAgentEpisode:
        """Return a range of steps as a separate episode: `episode[2:5]` has three steps and four observations.

        Negative bounds count from the end and may reach into the lookback buffer; bounds beyond the data are
        clipped. The slice is terminated or truncated if the episode is, and the slice contains its last step. In
        NumPy mode the slice's columns are views.

        Args:
            slice_: the steps; a step of k > 1 selects every k-th observation, action and reward (and no
                lookback).
            len_lookback_buffer: number of preceding steps that the slice keeps as lookback, if available; by default
                as many as this episode has.

        Raises:
            ValueError: the step or the lookback is negative, or the step leads beyond the last observation.
        """
        return parts.slice_steps(self, slice_, len_lookback_buffer)

    def get_data_dict(self) -> dict[str, Any]:
        """Return the steps as columns of equal length, with `t`, `eps_id`, and flags on the last step only."""
        num_steps = len(self)
        flags = {Columns.TERMINATEDS: self.is_terminated, Columns.TRUNCATEDS: self.is_truncated}
        data: dict[str, Any] = {
            name: [False] * (num_steps - 1) + [flag] * (num_steps > 0) for name, flag in flags.items()
        }
        data[Columns.T] = list(range(self.t_started, self.t))
        data[Columns.EPS_ID] = [self.id_] * num_steps
        if self.is_numpy:
            data = {name: np.array(values) for name, values in data.items()}
        data[Columns.OBS] = self.get_observations(slice(0, num_steps))
        data[Columns.INFOS] = self.get_infos(slice(0, num_steps))
        data[Columns.ACTIONS] = self.get_actions()
        data[Columns.REWARDS] = self.get_rewards()
        return {**data, **{key: buffer.get() for key, buffer in self.extra_model_outputs.items()}}

    def get_return(self) -> float:
        """Return the undiscounted sum of the rewards, without the lookback."""
        return float(np.sum(np.asarray(self.get_rewards(), dtype=np.float64)))

    def get_duration_s(self) -> float:
        """Return the seconds from the reset to the last step; 0.0 if the steps were not added one by one."""
        if self._start_time is None or self._last_step_time is None:
            return 0.0
        return self._last_step_time - self._start_time

    def env_steps(self) -> int:
        """Return the number of steps, without the lookback."""
        return len(self)

    def agent_steps(self) -> int:
        """Return the number of the agent's steps, which equals `env_steps`."""
        return len(self)

    def get_state(self) -> dict[str, Any]:
        """Return the episode as a map of plain values and arrays, ready for MessagePack; see `from_state`."""
        return episode_to_state(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> SingleAgentEpisode:
        """Make an episode from its state: the inverse of `get_state`; also reads episodes that RLlib wrote.

        Raises:
            ValueError: a field is missing or invalid.
        """
        return episode_from_state(cls, state)

    def __len__(self) -> int:
        """Return the number of steps, without the lookback."""
        return len(self.rewards)

    def __getitem__(self, item: builtins.slice) -> SingleAgentEpisode:
        if not isinstance(item, slice):
            raise TypeError(
                f"episode[{item!r}] is not a slice such as episode[2:5]: read single steps with the getters"
            )
        return self.slice(item)

    def __repr__(self) -> str:
        return f"SAEps(len={len(self)} done={self.is_done} R={self.get_return()} id_={self.id_})"

    def _blank_infos(self) -> list[dict[str, Any]]:
        return [{} for _ in range(self.observations.len_incl_lookback())]

    def _require_same_outputs(self, outputs: Mapping[str, Any], subject: str) -> None:
        """Check that a step or fragment has the extra outputs of the earlier steps; the first step defines them."""
        if self.rewards.len_incl_lookback() == 0:
            for key in outputs:
                empty = np.zeros(0) if self.is_numpy else None
                self.extra_model_outputs.setdefault(key, InfiniteLookbackBuffer(empty))
        if outputs.keys() != self.extra_model_outputs.keys():
            raise ValueError(
                f"{subject} of episode {self.id_} has the extra model outputs {sorted(outputs)}, "
                f"earlier steps have {sorted(self.extra_model_outputs)}: all steps must have the same"
            )

    def _check_length(
        self, name: str, buffer: InfiniteLookbackBuffer, expected_length: int, lookback: int
    ) -> None:
        if buffer.len_incl_lookback() != expected_length:
            raise ValueError(
                f"episode {self.id_} has {self.rewards.len_incl_lookback()} rewards, so it must have "
                f"{expected_length} {name} (lookback included), but it has {buffer.len_incl_lookback()}"
            )
        if buffer.lookback != lookback:
            raise ValueError(
                f"episode {self.id_} has a lookback of {lookback} rewards, but of {buffer.lookback} {name}"
            )


def _make_buffer(values: Column, lookback: int, space: spaces.Space | None) -> InfiniteLookbackBuffer:
    if isinstance(values, InfiniteLookbackBuffer):
        return values
    return InfiniteLookbackBuffer(values, lookback, space)


def _resolve_lookback(rewards: Column, len_lookback_buffer: int | Literal["auto"]) -> int:
    if isinstance(rewards, InfiniteLookbackBuffer):
        return rewards.lookback
    num_steps = 0 if rewards is None else len(rewards)
    if len_lookback_buffer == "auto":
        return num_steps
    if not isinstance(len_lookback_buffer, int | np.integer) or len_lookback_buffer < 0:
        raise ValueError(
            f"len_lookback_buffer is {len_lookback_buffer!r}: it must be 'auto', or 0 or more steps"
        )
    return min(int(len_lookback_buffer), num_steps)
