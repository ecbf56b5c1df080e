"""Action masks: an observation that says which discrete actions are allowed.

As with Gymnasium and RLlib, the mask is the part `action_mask` of a Dict observation: 0 forbids an action. It is in
recorded and played observations alike, so that losses, targets, clones, estimates, exports and servers have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final

import gymnasium as gym
import torch
from torch import Tensor

from hindcast.episodes.action_kinds import mask_sizes
from hindcast.episodes.columns import MASK_LEAF, Columns
from hindcast.episodes.spaces import flatten_space
from hindcast.errors import SpecError

_FORBIDDEN: Final = -1e30
"""Logit or value of a forbidden action. Its probability is 0; unlike -inf, it gives no NaN in products with 0."""


@dataclass(frozen=True)
class ActionMask:
    """The action mask of a space's observations.

    Attributes:
        sizes: number of values of each choice that it masks, see `mask_sizes`.
        rank: number of its dimensions.
        combines: True if it masks elements, but the network has an output for each combination of them.
    """

    sizes: tuple[int, ...]
    rank: int
    combines: bool

    def allowed_actions(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return `[..., n]` True for the network's outputs that are allowed.

        All values of a choice are allowed where the mask has none, as after an episode.
        """
        choices = (batch[MASK_LEAF] != 0).flatten(-self.rank).split(self.sizes, -1)
        choices = tuple(is_allowed | ~is_allowed.any(-1, keepdim=True) for is_allowed in choices)
        return reduce(_combine, choices) if self.combines else torch.cat(choices, -1)


def build_action_mask(
    observation_space: gym.Space, action_space: gym.Space, *, is_joint: bool = True
) -> ActionMask | None:
    """Return the action mask of observations, or None if they have none.

    Args:
        observation_space: space of the observations.
        action_space: space of the actions.
        is_joint: True if the network has an output for each combination of a MultiDiscrete action's elements.

    Raises:
        SpecError: there is a mask that does not fit the actions, or allows combinations of independent elements.
    """
    mask_space = flatten_space(observation_space, Columns.OBS).get(MASK_LEAF)
    if mask_space is None:
        return None
    shape = mask_space.shape or ()
    sizes = mask_sizes(shape, action_space)
    if sizes is None:
        raise SpecError(
            f"has action_mask, {mask_space}, but the actions are {action_space}: a mask has one number for each action "
            "of a Discrete space, or for each value of each element, or each combination, of a MultiDiscrete space; "
            "give the observation another name if it is no mask.",
            field="spec.observationSpace",
        )
    num_elements = action_space.nvec.size if isinstance(action_space, gym.spaces.MultiDiscrete) else 1
    if len(sizes) < num_elements and not is_joint:
        raise SpecError(
            f"draws the elements of {action_space} independently, but action_mask, {mask_space}, allows combinations "
            "of them: use 'JointCategorical', or a mask with one number for each value of each element.",
            field="model.distribution",
        )
    return ActionMask(sizes, len(shape), is_joint and len(sizes) > 1)


def forbid(values: Tensor, is_allowed: Tensor) -> Tensor:
    """Replace the logits or values of actions that are not allowed, so that no softmax or maximum chooses them."""
    return torch.where(is_allowed, values, _FORBIDDEN)


def _combine(first: Tensor, second: Tensor) -> Tensor:
    """Return the mask of combinations `[..., n·m]`, whose second choice changes fastest, of `[..., n]`, `[..., m]`."""
    return (first.unsqueeze(-1) & second.unsqueeze(-2)).flatten(-2)
