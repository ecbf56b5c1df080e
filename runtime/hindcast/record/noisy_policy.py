"""`NoisyPolicy`: a deterministic policy that explores by noise on its actions."""

from __future__ import annotations

from typing import Any, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.columns import Columns
from hindcast.models.policy import Actions, Policy


class NoisyPolicy(Policy):
    """A policy of deterministic actions, to which exploration adds normal noise (TD3, arXiv 1802.09477).

    It shares module and preprocessing with the policy. Greedy actions have no noise.

    Args:
        policy: its actions are one bounded float Box.
        noise: standard deviation of the noise, in units of half the range of each element of an action.
    """

    def __init__(self, policy: Policy, noise: float) -> None:
        super().__init__(policy.module, policy.preprocessing, policy.observation_space, policy.action_space)
        space = cast(gym.spaces.Box, policy.module.action_space)
        self._low, self._high = space.low, space.high
        self._std = noise * 0.5 * (space.high - space.low)

    def draw_noise(self, generator: np.random.Generator, count: int) -> NDArray[np.float32]:
        return generator.standard_normal((count, self._std.size), dtype=np.float32)

    def act(
        self,
        obs: Any,
        noise: NDArray[np.float32] | None = None,
        is_first: NDArray[np.bool_] | None = None,
        rewards: NDArray[np.float64] | None = None,
    ) -> Actions:
        if noise is None:
            return super().act(obs, None, is_first, rewards)
        actions = super().act(obs, noise[:, :0], is_first, rewards)
        values = actions.actions[Columns.ACTIONS]
        noisy_values = np.clip(values + self._std * noise.reshape(values.shape), self._low, self._high)
        leaves = {Columns.ACTIONS: noisy_values.astype(values.dtype, copy=False)}
        return actions._replace(actions=leaves, env_actions=self.preprocessing.to_env(leaves))
