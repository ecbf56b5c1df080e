"""Joint actions: all combinations of the elements of a MultiDiscrete action, with one index each."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor


def enumerate_actions(space: gym.spaces.MultiDiscrete) -> tuple[Tensor, Tensor]:
    """Return all actions of a space in the order of their indices, and the strides of the indices.

    Returns:
        Actions `[N, *shape]` int64, of which the last element changes fastest; strides `[*shape]` int64, the
        differences of the indices of actions that differ by 1 in an element.
    """
    sizes = np.ravel(space.nvec).astype(np.int64)
    elements = np.stack(np.unravel_index(np.arange(int(sizes.prod())), sizes), -1)
    strides = np.concatenate([sizes[::-1].cumprod()[-2::-1], [1]])
    actions = elements.reshape(-1, *space.shape) + space.start
    return torch.from_numpy(actions.astype(np.int64)), torch.from_numpy(strides.reshape(space.shape))


def index_actions(actions: Tensor, joint_actions: Tensor, strides: Tensor) -> Tensor:
    """Return the indices `[...]` int64 of actions `[..., *shape]`, given what `enumerate_actions` returns."""
    offsets = (actions.long() - joint_actions[0]) * strides
    return offsets.flatten(-strides.dim()).sum(-1)
