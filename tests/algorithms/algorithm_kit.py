"""Helpers for tests of algorithms: networks for a space, batches and windows of data, losses by stage."""

import gymnasium as gym
import numpy as np
import torch

from episode_kit import build_block
from hindcast.algorithms import build
from hindcast.api.model import ModelSpec
from hindcast.learn.algorithm import Losses, ModelInputs, Step, new_networks
from hindcast.pipeline.loader import build_window
from hindcast.pipeline.window import Recipe

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
WIDE = gym.spaces.Box(np.float32([-2, 0]), np.float32([2, 1]), dtype=np.float32)
"""A Box whose elements have different ranges, neither of them ±1."""
LENGTHS = np.array([5, 1, 9], dtype=np.int64)
"""Timesteps of the episodes of `make_window`."""


def build_algorithm(name, config=None, action_space=BOX, seed=0, **model):
    """Build an algorithm and its networks. Target networks differ from their sources, unlike in a new training."""
    algorithm = build(name, config or {})
    inputs = ModelInputs(OBS, action_space, ModelSpec(**{"fcnet_hiddens": [16, 16], **model}))
    nets = new_networks(algorithm, inputs, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    for parameter in nets.parameters():
        if not parameter.requires_grad:
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return algorithm, nets


def make_transitions(action_space=BOX, size=32, seed=0, gamma=0.99):
    """Return a batch like the pipeline's; about a fourth of the transitions are terminal and have no next action."""
    rng = np.random.default_rng(seed)
    action_space.seed(seed)
    is_terminal = rng.random(size) < 0.25
    columns = {
        "obs": rng.uniform(-1, 1, (size, 3)).astype(np.float32),
        "new_obs": rng.uniform(-1, 1, (size, 3)).astype(np.float32),
        "actions": np.stack([action_space.sample() for _ in range(size)]),
        "rewards": rng.normal(size=size).astype(np.float32),
        "discounts": np.where(is_terminal, 0, gamma).astype(np.float32),
        "new_actions": np.stack([action_space.sample() for _ in range(size)]),
        "followed": ~is_terminal,
        "mc_returns": rng.normal(size=size).astype(np.float32),
    }
    return {name: torch.from_numpy(column) for name, column in columns.items()}


def make_window(algorithm, rewards):
    """Return a window with a terminated episode, a truncated one and a fragment, of `LENGTHS` timesteps."""
    num_steps = int(LENGTHS.sum())
    rng = np.random.default_rng(0)
    columns = {
        "obs": rng.normal(size=(num_steps + 3, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (num_steps, 2)).astype(np.float32),
        "rewards": rewards,
    }
    t_started = np.array([0, 0, 3])
    block = build_block(columns, LENGTHS, t_started=t_started, terminated=np.array([True, False, False]))
    return build_window([block], Recipe(algorithm.needs()))


def make_step(updates=0, seed=0):
    return Step(updates=updates, timesteps=32 * updates, generator=torch.Generator().manual_seed(seed))


def compute_loss_stages(algorithm, nets, batch, step=None):
    """Return the losses of an update by stage; no weights change between stages."""
    losses = algorithm.losses(nets, batch, step or make_step())
    return [losses] if isinstance(losses, Losses) else list(losses)
