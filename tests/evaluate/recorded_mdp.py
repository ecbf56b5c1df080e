"""Datasets of small MDPs, and policies with exactly known returns."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from chain_mdp import Chain
from numpy.typing import NDArray

from episode_kit import build_block
from hindcast.api import EnvironmentSpec
from hindcast.api.model import ModelSpec
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.formats.spec import DataSpec
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import build_module
from hindcast.storage.location import resolve

Array = NDArray[Any]


def write_dataset(
    folder: Path,
    columns: dict[str, Array],
    spaces: tuple[gym.Space, gym.Space],
    *,
    terminated: bool = True,
    normalized_actions: bool = True,
) -> Dataset:
    """Write episodes of equal length, and open them as a dataset.

    Args:
        folder: folder of the dataset.
        columns: columns `[N, T, ...]`; observations are `[N, T + 1, ...]`.
        spaces: observation space and action space.
        terminated: True if all episodes terminate, False if all are truncated.
        normalized_actions: see `DataSpec`.
    """
    num_episodes, num_steps = columns["rewards"].shape
    flat_columns = {name: column.reshape(-1, *column.shape[2:]) for name, column in columns.items()}
    flags = {
        "terminated": np.full(num_episodes, terminated),
        "truncated": np.full(num_episodes, not terminated),
    }
    block = build_block(flat_columns, np.full(num_episodes, num_steps), **flags)
    spec = replace(DataSpec.from_block(block, *spaces, "Chain-v0"), normalized_actions=normalized_actions)
    with BlockWriter(resolve(folder), spec, "s") as writer:
        writer.write(block)
    return open_dataset(folder)


def make_linear_policy(
    spaces: tuple[gym.Space, gym.Space], weights: Array, *, normalize_actions: bool = False
) -> Policy:
    """Return a policy with one linear layer and the weights `[P, observation size]`.

    A one-hot observation selects the column of weights that is the P parameters of its action distribution.
    """
    model = ModelSpec.model_validate({"fcnetHiddens": []})
    preprocessing = Preprocessing.from_specs(
        *spaces, model, EnvironmentSpec(id="Chain-v0", normalize_actions=normalize_actions)
    )
    module = build_module(preprocessing.observation_space, preprocessing.action_space, model, value=False)
    layer = next(submodule for submodule in module.modules() if isinstance(submodule, torch.nn.Linear))
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weights))
        layer.bias.zero_()
    return Policy(module.eval(), preprocessing, *spaces)


def one_hot(indices: Array, size: int) -> Array:
    """Return one-hot observations `[N, T + 1, size]` (float32) of indices `[N, T]`; final observations are zero."""
    observations = np.eye(size, dtype=np.float32)[indices]
    return np.concatenate([observations, np.zeros_like(observations[:, :1])], 1)


class RecordedMdp:
    """An MDP that `record` plays; subclasses have its spaces and `play_columns`."""

    spaces: tuple[gym.Space, gym.Space]

    def record(self, folder: Path, num_episodes: int, seed: int, *, logp: bool) -> Dataset:
        """Play the behaviour and write a dataset, with log-probabilities if `logp`."""
        columns = self.play_columns(num_episodes, seed)
        if not logp:
            del columns["action_logp"]
        return write_dataset(folder, columns, self.spaces)

    def play_columns(self, num_episodes: int, seed: int) -> dict[str, Array]:
        """Play the behaviour; return the recorded columns, each `[N, T, ...]`."""
        raise NotImplementedError


class TabularMdp(RecordedMdp):
    """A `Chain` with one-hot observations of (timestep, state); `make_policy` returns its target policy."""

    def __init__(self, seed: int, *, has_durations: bool = False) -> None:
        self.chain, self.has_durations = Chain(seed, has_durations=has_durations), has_durations
        size = self.chain.num_states * self.chain.num_steps
        self.spaces = (gym.spaces.Box(0, 1, (size,)), gym.spaces.Discrete(2))

    @property
    def target_return(self) -> float:
        """Expected discounted return of the target."""
        return self.chain.target_return

    def make_policy(self) -> Policy:
        """Return the target as a policy."""
        action_probs = np.stack([1 - self.chain.target, self.chain.target])
        return make_linear_policy(self.spaces, np.log(np.tile(action_probs, self.chain.num_steps)))

    def play_columns(self, num_episodes: int, seed: int) -> dict[str, Array]:
        states, actions, rewards = self.chain.play(num_episodes, seed)
        num_indices = self.chain.num_states * self.chain.num_steps
        obs = one_hot(states + self.chain.num_states * np.arange(self.chain.num_steps), num_indices)
        action_1_prob = self.chain.behaviour[states]
        logp = np.log(np.where(actions, action_1_prob, 1 - action_1_prob)).astype(np.float32)
        columns = {"obs": obs, "actions": actions, "rewards": rewards, "action_logp": logp}
        return columns | ({"delta_t": self.chain.delta_t[states, actions]} if self.has_durations else {})


class ContinuousMdp(RecordedMdp):
    """An MDP of six steps with three states and a real-valued action.

    The reward is 3 minus the squared distance of the action from the goal of the state. Both policies are normal
    distributions with the same deviation; `behaviour` and `target` are their means `[state]`.
    """

    num_states, num_steps, gamma, deviation = 3, 6, 0.9, 0.5
    spaces = (gym.spaces.Box(0, 1, (18,)), gym.spaces.Box(-np.inf, np.inf, (1,)))

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.goal = rng.normal(size=self.num_states)
        self.behaviour = self.goal + rng.normal(scale=0.5, size=self.num_states)
        self.target = self.behaviour + rng.normal(scale=0.15, size=self.num_states)

    @property
    def target_return(self) -> float:
        """Expected discounted return of the target."""
        step_reward = 3.0 - (np.square(self.target - self.goal).mean() + self.deviation**2)
        return float(sum(self.gamma**t for t in range(self.num_steps)) * step_reward)

    def make_policy(self) -> Policy:
        """Return the target as a policy."""
        log_deviation = np.full(self.num_states, math.log(self.deviation))
        parameters = np.stack([self.target, log_deviation])
        return make_linear_policy(self.spaces, np.tile(parameters, self.num_steps))

    def record_scaled(
        self, folder: Path, num_episodes: int, logp_factor: float = 1.0, seed: int = 0
    ) -> tuple[Policy, Dataset]:
        """Return the target for actions within ±16 that it scales to ±1, and a dataset in the environment's units.

        Args:
            folder: folder of the dataset.
            num_episodes: number of episodes.
            logp_factor: factor of the recorded densities by which they are too small.
            seed: seed of the episodes.
        """
        scale = 16.0
        spaces = (self.spaces[0], gym.spaces.Box(-scale, scale, (1,)))
        columns = self.play_columns(num_episodes, seed)
        columns["action_logp"] -= np.float32(math.log(logp_factor))
        log_deviation = np.full(self.num_states, math.log(self.deviation / scale))
        parameters = np.stack([self.target / scale, log_deviation])
        policy = make_linear_policy(spaces, np.tile(parameters, self.num_steps), normalize_actions=True)
        return policy, write_dataset(folder, columns, spaces, normalized_actions=False)

    def play_columns(self, num_episodes: int, seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        states = rng.integers(0, self.num_states, (num_episodes, self.num_steps))
        obs = one_hot(states + self.num_states * np.arange(self.num_steps), self.num_states * self.num_steps)
        noise = rng.normal(size=(num_episodes, self.num_steps))
        actions = (self.behaviour[states] + self.deviation * noise).astype(np.float32)
        rewards = 3.0 - np.square(actions - self.goal[states])
        logp = -0.5 * noise**2 - math.log(self.deviation * math.sqrt(2 * math.pi))
        logp = logp.astype(np.float32)
        return {"obs": obs, "actions": actions[..., None], "rewards": rewards, "action_logp": logp}
