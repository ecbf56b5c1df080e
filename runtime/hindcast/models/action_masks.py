"""Action masks: an observation that says which of n discrete actions are allowed.

As with Gymnasium and RLlib, the mask is the part `action_mask` of a Dict observation, `[n]`: 0 forbids an action. It is
in recorded and played observations alike, so that losses, targets, clones, estimates, exports and servers have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import gymnasium as gym
import torch
from torch import Tensor

from hindcast.episodes.columns import MASK_LEAF, Columns
from hindcast.episodes.spaces import flatten_space
from hindcast.errors import SpecError

_FORBIDDEN: Final = -1e30
"""Logit or value of a forbidden action. Its probability is 0; unlike -inf, it gives no NaN in products with 0."""


def has_action_mask(observation_space: gym.Space, action_space: gym.Space) -> bool:
    """Return True if observations have an action mask.

    Raises:
        SpecError: there is a mask, but not for one Discrete action of as many values.
    """
    mask_space = flatten_space(observation_space, Columns.OBS).get(MASK_LEAF)
    if mask_space is None:
        return False
    if not isinstance(action_space, gym.spaces.Discrete) or mask_space.shape != (int(action_space.n),):
        raise SpecError(
            f"has action_mask, {mask_space}, but the actions are {action_space}: a mask has one number for each action "
            "of a Discrete space; give the observation another name if it is no mask.",
            field="spec.observationSpace",
        )
    return True


def allowed_actions(batch: Mapping[str, Tensor]) -> Tensor:
    """Return the mask `[..., n]` of allowed actions; all are allowed where the mask has none, as after an episode."""
    is_allowed = batch[MASK_LEAF] != 0
    return is_allowed | ~is_allowed.any(-1, keepdim=True)


def forbid(values: Tensor, is_allowed: Tensor) -> Tensor:
    """Replace the logits or values of actions that are not allowed, so that no softmax or maximum chooses them."""
    return torch.where(is_allowed, values, _FORBIDDEN)
