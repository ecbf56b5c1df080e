"""`SingleAgentEpisode`: one agent's trajectory, or a fragment of it, complete or still growing."""

from __future__ import annotations

import builtins
import time
from collections.abc import Mapping
from typing import Any, SupportsFloat

import numpy as np

from hindcast.episodes import episode_parts as parts
from hindcast.episodes.columns import Columns
from hindcast.episodes.episode_data import EpisodeData
from hindcast.episodes.episode_state import episode_from_state, episode_to_state
from hindcast.episodes.lookback_buffer import InfiniteLookbackBuffer


class SingleAgentEpisode(EpisodeData):
    """Observations o_0 … o_T, and actions, rewards and model outputs of the T steps between them.

    `observations` and `infos` have one item more than there are steps; step t is (o_t, a_t, r_t, o_t+1). An
    episode that continues another episode (see `cut`) starts at `t_started`, and may keep the last steps before
    `t_started` in its lookback buffer; these are not part of its length or return.

    An episode starts in list mode (a Python object per step, cheap to append to); `to_numpy` turns it into arrays.
    Observations and actions may be nested (dicts, tuples).

    Args and attributes: see `EpisodeData`.
    """

    __slots__ = ()

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
        self._prepare_output_buffers(outputs, f"step {self.t}")
        # reading `infos` may make an empty info for each observation: the new observation must not get one
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
        # an episode made from data has no time of its reset
        self._start_time = self._start_time if self._start_time is not None else self._last_step_time

    def to_numpy(self) -> SingleAgentEpisode:
        """Convert all columns except the infos to arrays, in place; return the episode.

        Raises:
            ValueError: samples of one column differ in structure or shape.
        """
        for buffer in (self.observations, self.actions, self.rewards, *self.extra_model_outputs.values()):
            buffer.finalize()
        return self

    def concat_episode(self, other: SingleAgentEpisode) -> None:
        """Add the steps of the next fragment (see `cut`), its flags and its custom data; its lookback is ignored.

        Raises:
            ValueError: the fragment belongs to another episode, does not start with this episode's last timestep and
                observation, or has other extra outputs; or this episode is done.
        """
        parts.concat(self, other)

    def cut(self, len_lookback_buffer: int = 0) -> SingleAgentEpisode:
        """Return the next fragment, which starts with this episode's last observation and has no steps yet.

        Args:
            len_lookback_buffer: number of this episode's last steps that the fragment keeps as lookback; a number
                beyond them keeps all.

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
            ValueError: the step is not positive or leads beyond the last observation, or the lookback is negative.
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
        """Return the seconds from the reset to the last step; 0.0 if the times are not known, as in most data."""
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

    def __getitem__(self, item: builtins.slice) -> SingleAgentEpisode:
        if not isinstance(item, slice):
            raise TypeError(
                f"episode[{item!r}] is not a slice such as episode[2:5]: read single steps with the getters"
            )
        return self.slice(item)

    def __repr__(self) -> str:
        return f"SAEps(len={len(self)} done={self.is_done} R={self.get_return()} id_={self.id_})"
