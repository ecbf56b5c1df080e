"""Datasets of small MDPs, and policies with exactly known returns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from chain_mdp import Chain
from numpy.typing import NDArray

from hindcast.api import EnvironmentSpec
from hindcast.api.model import ModelSpec
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.spec import DataSpec
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import build_module
from hindcast.storage.location import resolve

Array = NDArray[Any]


def dataset_of(
    folder: Path, columns: dict[str, Array], spaces: tuple[gym.Space, gym.Space], *, terminated: bool = True
) -> Dataset:
    """Write episodes of equal length and end: columns are `[N, T, ...]`, observations `[N, T + 1, ...]`."""
    episodes, steps = columns["rewards"].shape
    block = Block(
        columns={name: column.reshape(-1, *column.shape[2:]) for name, column in columns.items()},
        length=np.full(episodes, steps),
        eps_id=np.array([f"e{index}" for index in range(episodes)], dtype=object),
        t_started=np.zeros(episodes, dtype=np.int64),
        terminated=np.full(episodes, terminated),
        truncated=np.full(episodes, not terminated),
    )
    with BlockWriter(resolve(folder), DataSpec.from_block(block, *spaces, "Chain-v0"), "s") as writer:
        writer.write(block)
    return open_dataset(folder)


def linear_policy(spaces: tuple[gym.Space, gym.Space], weights: Array) -> Policy:
    """Return a policy whose outputs are the column of `[P, states]` weights that its one-hot observation selects."""
    model = ModelSpec.model_validate({"fcnetHiddens": []})
    preprocessing = Preprocessing.from_specs(
        *spaces, model, EnvironmentSpec(id="Chain-v0", normalize_actions=False)
    )
    module = build_module(preprocessing.observation_space, preprocessing.action_space, model, value=False)
    layer = next(submodule for submodule in module.modules() if isinstance(submodule, torch.nn.Linear))
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weights))
        layer.bias.zero_()
    return Policy(module.eval(), preprocessing, *spaces)


def one_hot(indices: Array, size: int) -> Array:
    """Return one-hot observations `[N, T + 1, size]` (float32) of indices `[N, T]`; the final ones are zero."""
    observations = np.eye(size, dtype=np.float32)[indices]
    return np.concatenate([observations, np.zeros_like(observations[:, :1])], 1)


class Tabular:
    """`Chain` with one-hot states and timesteps, and its target as a policy that samples."""

    def __init__(self, seed: int) -> None:
        self.chain = Chain(seed)
        size = self.chain.states * self.chain.steps
        self.spaces = (gym.spaces.Box(0, 1, (size,)), gym.spaces.Discrete(2))

    @property
    def target_return(self) -> float:
        return self.chain.target_return

    def policy(self) -> Policy:
        chances = np.stack([1 - self.chain.target, self.chain.target])
        return linear_policy(self.spaces, np.log(np.tile(chances, self.chain.steps)))

    def record(self, folder: Path, episodes: int, seed: int, *, logp: bool) -> Dataset:
        columns = self.columns(episodes, seed)
        if not logp:
            del columns["action_logp"]
        return dataset_of(folder, columns, self.spaces)

    def columns(self, episodes: int, seed: int) -> dict[str, Array]:
        """Play the behaviour; return the recorded columns, each `[N, T, ...]`."""
        states, actions, rewards = self.chain.play(episodes, seed)
        num_indices = self.chain.states * self.chain.steps
        obs = one_hot(states + self.chain.states * np.arange(self.chain.steps), num_indices)
        chance = self.chain.behaviour[states]
        logp = np.log(np.where(actions, chance, 1 - chance)).astype(np.float32)
        return {"obs": obs, "actions": actions, "rewards": rewards, "action_logp": logp}


class Continuous:
    """An MDP of six steps with three states and a real action, whose reward grows with its closeness to a goal."""

    states, steps, gamma, deviation = 3, 6, 0.9, 0.5
    spaces = (gym.spaces.Box(0, 1, (18,)), gym.spaces.Box(-np.inf, np.inf, (1,)))

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.goal = rng.normal(size=self.states)
        self.behaviour = self.goal + rng.normal(scale=0.5, size=self.states)
        self.target = self.behaviour + rng.normal(scale=0.15, size=self.states)

    @property
    def target_return(self) -> float:
        step_reward = 3.0 - (np.square(self.target - self.goal).mean() + self.deviation**2)
        return float(sum(self.gamma**t for t in range(self.steps)) * step_reward)

    def policy(self) -> Policy:
        spread = np.full(self.states, math.log(self.deviation))
        return linear_policy(self.spaces, np.tile(np.stack([self.target, spread]), self.steps))

    def record(self, folder: Path, episodes: int, seed: int, *, logp: bool) -> Dataset:
        rng = np.random.default_rng(seed)
        states = rng.integers(0, self.states, (episodes, self.steps))
        obs = one_hot(states + self.states * np.arange(self.steps), self.states * self.steps)
        noise = rng.normal(size=(episodes, self.steps))
        actions = (self.behaviour[states] + self.deviation * noise).astype(np.float32)
        rewards = 3.0 - np.square(actions - self.goal[states])
        columns = {"obs": obs, "actions": actions[..., None], "rewards": rewards}
        if logp:
            density = -0.5 * noise**2 - math.log(self.deviation * math.sqrt(2 * math.pi))
            columns["action_logp"] = density.astype(np.float32)
        return dataset_of(folder, columns, self.spaces)
