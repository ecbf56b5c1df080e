"""Policies that turn noise into actions: a vector field that carries it step by step, and a map that does it in one.

Actions are counted with their bounds at ±1. Shape suffixes: B = rows (any leading dimensions), F = features, D =
elements of an action.
"""

from __future__ import annotations

import math
from typing import ClassVar, cast

import gymnasium as gym
import torch
from torch import Tensor, nn

from hindcast.api.model import ModelSpec
from hindcast.episodes.columns import Columns
from hindcast.models.action_head import ActionHead
from hindcast.models.bounded_actions import ActionRange
from hindcast.models.distributions import Pushed
from hindcast.models.encoders import Features, fully_connected, linear
from hindcast.models.initial_weights import of_encoder, of_heads
from hindcast.models.rl_module import Batch, RLModule


class NoiseMap(nn.Module):
    """From an observation's features, an action (or noise) and further numbers to as many numbers as an action has.

    Args:
        observation_space: what the networks see.
        size: D.
        model: sizes and activations.
        more: further numbers.

    Attributes:
        features: gives the features of observations.

    Raises:
        SpecError: as of `Features`.
    """

    def __init__(self, observation_space: gym.Space, size: int, model: ModelSpec, more: int = 0) -> None:
        super().__init__()
        self.features = Features(observation_space, model)
        hidden = [*model.fcnet_hiddens, *model.head_fcnet_hiddens]
        sizes = [self.features.output_size + size + more, *hidden]
        self.stack = fully_connected(sizes, model, of_encoder(model))
        self.head = linear(sizes[-1], size, 1.0, of_heads(model))

    def forward(self, features_BF: Tensor, *numbers: Tensor) -> Tensor:
        """`[B, D]`; `numbers` are `[B, D]`, and then `[B, more]` where there are more."""
        values: Tensor = self.head(self.stack(torch.cat([features_BF, *numbers], -1)))
        return values


class VectorField(NoiseMap):
    """v(s, x, t) of a flow that carries noise at t = 0 to actions at t = 1 (flow matching, arXiv 2210.02747)."""

    def __init__(self, observation_space: gym.Space, size: int, model: ModelSpec) -> None:
        super().__init__(observation_space, size, model, more=1)

    def flow(self, batch: Batch, noise_BD: Tensor, steps: int) -> Tensor:
        """`[B, D]` where the flow takes the noise in so many steps of Euler's method, within ±1."""
        features, values = self.features(batch), noise_BD
        for step in range(steps):
            time = torch.full_like(values[..., :1], step / steps)
            values = values + self(features, values, time) / steps
        return values.clamp(-1.0, 1.0)


class OneStepPolicy(RLModule):
    """A map of noise to actions that needs one pass, for actions of one bounded float Box.

    Exploring it takes a row's noise, and acting greedily none. Its actions have no log-probabilities.
    """

    takes_options: ClassVar[bool] = False

    def setup(self) -> None:  # type: ignore[override]
        self.range = ActionRange(self.action_space, "FQL")
        size = math.prod(cast(tuple[int, ...], self.action_space.shape))
        self.map = NoiseMap(self.observation_space, size, self.model_config)
        self.action_head = ActionHead(
            from_inputs=self._distribution,
            inputs_size=self.map.features.output_size,
            noise_size=size,
            noise="normal",
            stochastic=False,
        )

    def unbounded(self, batch: Batch, noise_BD: Tensor) -> Tensor:
        """`[B, D]` what the noise is mapped to, before it is brought within ±1."""
        values: Tensor = self.map(self.map.features(batch), noise_BD)
        return values

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        return {Columns.ACTION_DIST_INPUTS: self.map.features(batch)}

    def _distribution(self, features: Tensor) -> Pushed:
        return Pushed(features, self._push, self.action_head.noise_size)

    def _push(self, features: Tensor, noise: Tensor) -> Tensor:
        return self.range.from_unit(self.map(features, noise))
