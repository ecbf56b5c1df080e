"""`EpisodeData`: the data of an episode or a fragment: columns, ids, flags and timesteps."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from hindcast.episodes.episode_access import EpisodeAccess
from hindcast.episodes.lookback_buffer import InfiniteLookbackBuffer

REWARD_SPACE = spaces.Box(float("-inf"), float("inf"), (), np.float32)

Column = Any  # a sequence of samples, a batched value, or a buffer
Infos = Sequence[dict[str, Any]] | InfiniteLookbackBuffer | Callable[[], Sequence[dict[str, Any]]] | None


class EpisodeData(EpisodeAccess):
    """The data of an episode or a fragment; `SingleAgentEpisode` adds the methods that change them.

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
            len_lookback_buffer: number of steps at the beginning that are lookback; "auto", or a number beyond them,
                means all steps. Pass 0 for a complete episode. If `rewards` is a buffer, its lookback counts instead.
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
        # without infos, `_infos` is the method `_blank_infos`, and need not be called
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

    def __len__(self) -> int:
        """Return the number of steps, without the lookback."""
        return len(self.rewards)

    def _blank_infos(self) -> list[dict[str, Any]]:
        return [{} for _ in range(self.observations.len_incl_lookback())]

    def _prepare_output_buffers(self, outputs: Mapping[str, Any], subject: str) -> None:
        """Make a buffer for each extra output of the first step; later, check that the outputs are the same.

        Args:
            outputs: name -> output of a step or a fragment.
            subject: the step or fragment, for the message.

        Raises:
            ValueError: earlier steps have other outputs.
        """
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
                f"the lookback of episode {self.id_} has {lookback} rewards, but {buffer.lookback} {name}"
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
