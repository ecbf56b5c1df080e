"""The random policy (`policy: {random: {}}`): uniform actions with their log-probabilities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from hindcast.episodes.columns import MASK_LEAF, Columns
from hindcast.episodes.spaces import flatten_space, num_values
from hindcast.errors import SpecError
from hindcast.models.action_masks import ActionMask, build_action_mask
from hindcast.models.policy import Actions
from hindcast.models.preprocessing import Preprocessing

_SUPPORTED_SPACES: Final = (
    gym.spaces.Box,
    gym.spaces.Discrete,
    gym.spaces.MultiDiscrete,
    gym.spaces.MultiBinary,
)


class RandomActor:
    """A policy that is uniform over the actions that a module can output.

    Bounded Boxes are drawn from ±1 and scaled for the environment, as for trained policies, so that recordings of both
    contain actions on the same scale.

    Args:
        preprocessing: its `action_space` is the module's, with bounded Boxes of ±1; scales actions for the environment.

    Raises:
        SpecError: the action space has no uniform distribution (an unbounded Box, Text).
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing
        self._leaves = flatten_space(preprocessing.action_space, Columns.ACTIONS)
        self._sizes = {leaf: _noise_size(leaf, space) for leaf, space in self._leaves.items()}
        mask = build_action_mask(preprocessing.observation_space, preprocessing.action_space)
        # Elements are drawn independently, so the mask of each is needed instead of one over all their combinations.
        self._action_mask = None if mask is None else replace(mask, combines=False)
        self._noise_size = sum(self._sizes.values())
        self._logp = np.float32(-sum(_log_volume(space) for space in self._leaves.values()))

    def draw_noise(self, generator: np.random.Generator, count: int) -> NDArray[np.float32]:
        """Return `[count, K]` noise, uniform on [0, 1)."""
        return generator.random((count, self._noise_size), dtype=np.float32)

    def act(
        self,
        obs: dict[str, NDArray[Any]],
        noise: NDArray[np.float32] | None = None,
        is_first: NDArray[np.bool_] | None = None,
        rewards: NDArray[np.float64] | None = None,
    ) -> Actions:
        """Map noise `[B, K]` to uniform actions; of the other arguments, only an action mask has an effect.

        Raises:
            SpecError: `noise` is None, which asks for the most likely actions.
        """
        del is_first, rewards
        if noise is None:
            raise SpecError(
                "a random policy has no most likely action; set explore to true.", field="spec.policy.explore"
            )
        if self._action_mask is not None:
            return self._draw_allowed(self._action_mask, obs, noise)
        actions: dict[str, NDArray[Any]] = {}
        offset = 0
        for leaf, space in self._leaves.items():
            actions[leaf] = _draw_actions(space, noise[:, offset : offset + self._sizes[leaf]])
            offset += self._sizes[leaf]
        logp = np.full(len(noise), self._logp, dtype=np.float32)
        return Actions(self.preprocessing.to_env(actions), actions, logp, dist_inputs=None)

    def _draw_allowed(
        self, mask: ActionMask, obs: dict[str, NDArray[Any]], noise: NDArray[np.float32]
    ) -> Actions:
        """Draw uniformly from the actions that the mask allows."""
        (space,) = self._leaves.values()
        is_allowed = mask.allowed_actions({MASK_LEAF: torch.from_numpy(obs[MASK_LEAF])}).numpy()
        indices, logp = [], np.zeros(len(noise))
        for choice, uniform in zip(
            np.split(is_allowed, np.cumsum(mask.sizes)[:-1], 1), noise.T, strict=False
        ):
            counts = choice.sum(1)
            ranks = np.minimum(uniform * counts, counts - 1).astype(np.int64)
            indices.append((choice.cumsum(1) > ranks[:, None]).argmax(1))
            logp -= np.log(counts)
        if isinstance(space, gym.spaces.MultiDiscrete) and len(indices) == 1:
            # The mask is over combinations of the elements, and the index is that of one combination.
            indices = list(np.unravel_index(indices[0], space.nvec.ravel()))
        offsets = np.stack(indices, -1).reshape(-1, *(space.shape or ()))
        actions = {Columns.ACTIONS: (space.start + offsets).astype(space.dtype)}
        return Actions(self.preprocessing.to_env(actions), actions, logp.astype(np.float32), None)


def _noise_size(leaf: str, space: gym.Space) -> int:
    """Return the number of uniform numbers from which an action of this leaf is made."""
    if isinstance(space, gym.spaces.Box) and not space.is_bounded():
        raise SpecError(
            f"{leaf} is an unbounded Box ({space}), which has no uniform distribution.",
            field="spec.policy.random",
        )
    if isinstance(space, _SUPPORTED_SPACES):
        return int(np.prod(space.shape))
    raise SpecError(
        f"{leaf} has the space {space}, from which a random policy cannot draw.", field="spec.policy.random"
    )


def _draw_actions(space: gym.Space, noise: NDArray[np.float32]) -> NDArray[Any]:
    uniform = noise.reshape(len(noise), *(space.shape or ()))
    if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        count = num_values(space)
        # Rounding to float32 may raise the product to `count`, which is out of range.
        return (space.start + np.minimum(uniform * count, count - 1).astype(np.int64)).astype(space.dtype)
    if isinstance(space, gym.spaces.MultiBinary):
        return (uniform < 0.5).astype(space.dtype)
    assert isinstance(space, gym.spaces.Box)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    if np.issubdtype(space.dtype, np.integer):
        return np.minimum(low + np.floor(uniform * (high - low + 1)), high).astype(space.dtype)
    return (low + uniform * (high - low)).astype(space.dtype)


def _log_volume(space: gym.Space) -> float:
    """Return the logarithm of the number of actions, or of the volume of a Box of floats."""
    if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        return float(np.log(num_values(space)).sum())
    if isinstance(space, gym.spaces.MultiBinary):
        return float(np.prod(space.shape) * np.log(2.0))
    assert isinstance(space, gym.spaces.Box)
    width = space.high.astype(np.float64) - space.low
    if np.issubdtype(space.dtype, np.integer):
        width = width + 1
    return float(np.log(width).sum())
