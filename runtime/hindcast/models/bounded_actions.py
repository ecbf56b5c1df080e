"""The range of continuous actions: their bounds as tensors, uniform samples, and the density of those."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from hindcast.errors import SpecError


class ActionRange(nn.Module):
    """Bounds of a float Box. Among an algorithm's networks it moves to their device; checkpoints do not hold it.

    Args:
        action_space: the module's.
        algorithm: whose actions they are, for the message.

    Attributes:
        low, high: `[*shape]` float32.
        half_range: `[*shape]` float32.

    Raises:
        SpecError: the space is not a float Box, or has no bounds.
    """

    low: Tensor
    high: Tensor
    half_range: Tensor

    def __init__(self, action_space: gym.Space, algorithm: str) -> None:
        super().__init__()
        if not (isinstance(action_space, gym.spaces.Box) and np.issubdtype(action_space.dtype, np.floating)):
            raise SpecError(
                f"spec.algorithm: {algorithm} needs continuous actions, in one float Box, not {action_space}; "
                "for others take IQL, MARWIL or BC."
            )
        if not action_space.is_bounded():
            raise SpecError(
                f"spec.algorithm: {algorithm} needs actions with bounds, and {action_space} has none on some side; "
                "take IQL, MARWIL or BC, or give bounds (gymnasium's RescaleAction, ClipAction)."
            )
        low, high = (
            torch.from_numpy(bound.astype(np.float32)) for bound in (action_space.low, action_space.high)
        )
        for name, values in {"low": low, "high": high, "half_range": (high - low) / 2}.items():
            self.register_buffer(name, values, persistent=False)

    def clamp(self, actions: Tensor) -> Tensor:
        """The actions, those beyond a bound on it."""
        return actions.clamp(self.low, self.high)

    def to_unit(self, actions: Tensor) -> Tensor:
        """`[..., *shape]` actions with their bounds at ±1, as `[..., D]`."""
        values = (actions - self.low) / self.half_range - 1.0
        return values.reshape(*values.shape[: values.dim() - self.low.dim()], -1)

    def from_unit(self, values: Tensor) -> Tensor:
        """The inverse, within the bounds: those beyond one are on it."""
        shaped = values.clamp(-1.0, 1.0).reshape(*values.shape[:-1], *self.low.shape)
        return self.clamp(self.low + (shaped + 1.0) * self.half_range)

    def uniform(self, count: int, generator: torch.Generator) -> Tensor:
        """`[count, *shape]` actions, uniform over the range."""
        shares = torch.rand((count, *self.low.shape), generator=generator, device=self.low.device)
        return self.low + 2.0 * self.half_range * shares

    def log_density(self) -> Tensor:
        """Log-density of `uniform`, a scalar: -Σ log(high - low)."""
        return -(2.0 * self.half_range).log().sum()
