"""Networks that map noise to actions: `VectorField` in several steps of a flow, `OneStepPolicy` in one.

Actions are scaled to ±1. Shape suffixes: B = rows (any leading dimensions), F = features, D = elements of an action.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, cast

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from hindcast.api.model import ModelSpec
from hindcast.episodes.columns import Columns
from hindcast.models.action_head import ActionHead, ActionRange
from hindcast.models.distributions import PushforwardDistribution
from hindcast.models.encoders import Features, fully_connected, linear
from hindcast.models.initial_weights import encoder_initialiser, head_initialiser
from hindcast.models.networks import Critics, combine_members
from hindcast.models.recurrent import as_leaves
from hindcast.models.rl_module import Batch, RLModule


class NoiseMap(nn.Module):
    """A network that maps an observation's features, an action (or noise) and further inputs to D outputs.

    Args:
        observation_space: space of the module's observations.
        size: number of outputs, D.
        model: the networks' options.
        num_extra_inputs: number of further inputs.

    Attributes:
        features: computes the features of observations.

    Raises:
        SpecError: see `Features`.
    """

    def __init__(
        self, observation_space: gym.Space, size: int, model: ModelSpec, num_extra_inputs: int = 0
    ) -> None:
        super().__init__()
        self.features = Features(observation_space, model)
        sizes = [self.features.output_size + size + num_extra_inputs, *model.fcnet_hiddens]
        head_sizes = [sizes[-1], *model.head_fcnet_hiddens]
        self.stack = nn.Sequential(
            *fully_connected(sizes, model, encoder_initialiser(model)),
            *fully_connected(head_sizes, model, head_initialiser(model)),
        )
        self.head = linear(head_sizes[-1], size, 1.0, head_initialiser(model))

    def forward(self, features_BF: Tensor, *inputs: Tensor) -> Tensor:
        """Return `[B, D]`; `inputs` are `[B, D]` and, if `num_extra_inputs` is above 0, `[B, num_extra_inputs]`."""
        values: Tensor = self.head(self.stack(torch.cat([features_BF, *inputs], -1)))
        return values


class VectorField(NoiseMap):
    """v(s, x, t) of a flow that carries noise at t = 0 to actions at t = 1 (flow matching, arXiv 2210.02747)."""

    def __init__(self, observation_space: gym.Space, size: int, model: ModelSpec) -> None:
        super().__init__(observation_space, size, model, num_extra_inputs=1)

    def flow(self, batch: Batch, noise_BD: Tensor, steps: int) -> Tensor:
        """Integrate the flow from noise at t = 0 to t = 1 by `steps` Euler steps; return `[B, D]` within ±1."""
        features, values = self.features(batch), noise_BD
        for step in range(steps):
            time = torch.full_like(values[..., :1], step / steps)
            values = values + self(features, values, time) / steps
        return values.clamp(-1.0, 1.0)


class OneStepPolicy(RLModule):
    """Maps noise to actions in one pass, for actions in one bounded float Box.

    Exploration maps a row's noise. A greedy action is chosen among the actions that `draws` map to: isolated ones are
    left out (see `_is_isolated`), and of the others the critics' best one is taken. The noise in `draws` is drawn only
    once, so that the greedy action is a function of the observation. Actions have no log-probabilities. With chunks the
    policy chooses several actions at once, plays them in sequence regardless of the observations in between, and then
    chooses again; the actions that are not yet played are its state.

    Attributes:
        range: range of a chunk's actions, `[chunk, *shape]`; without chunks, of one action, `[*shape]`.
        critics: Q(s, a) of a chunk's actions; None if samples is 0.
        draws: `[samples, K]` noise of greedy actions, saved with the weights.
    """

    draws: Tensor
    critics: Critics | None

    def setup(  # type: ignore[override]
        self,
        chunk: int = 1,
        samples: int = 0,
        members: int = 2,
        aggregation: Literal["mean", "min"] = "mean",
        critics: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Build the layers.

        Args:
            chunk: number of actions chosen at once.
            samples: number of draws of a greedy action; 0 maps zeros instead and builds no critics.
            members: number of critics.
            aggregation: how the values of the critics are combined.
            critics: the critics' layers, see `LayerOptions`.
        """
        self._chunk, self._aggregation = chunk, aggregation
        self.range = ActionRange(chunk_space(self.action_space, chunk), "FQL")
        size = math.prod(cast(tuple[int, ...], self.action_space.shape))
        self.map = NoiseMap(self.observation_space, chunk * size, self.model_config)
        self.critics = None
        if samples:
            self.critics = Critics(
                self.observation_space,
                chunk_space(self.action_space, chunk),
                self.model_config.model_copy(update=dict(critics)),
                members,
            )
            self.register_buffer("draws", torch.randn(samples, chunk * size))
        # Sizes of what `_forward` concatenates: features, the noise of a greedy action and, with chunks, a planned
        # action and a flag.
        num_noise = chunk * size if samples else 0
        self._sizes = [self.map.features.output_size, num_noise, *([size, 1] if chunk > 1 else [])]
        self.action_head = ActionHead(
            from_inputs=self._build_distribution,
            inputs_size=sum(self._sizes),
            noise_size=chunk * size,
            noise_kind="normal",
            is_stochastic=False,
        )

    def get_initial_state(self) -> dict[str, Tensor]:
        """Return `plan`, `[chunk - 1, D]` actions that follow, and `left`, how many of them are not yet played."""
        if self._chunk == 1:
            return {}
        num_planned = torch.zeros((), dtype=torch.int64)
        return {"plan": torch.zeros(self._chunk - 1, self._sizes[2]), "left": num_planned}

    def state_after(
        self,
        outputs: Mapping[str, Tensor],
        actions: Mapping[str, Tensor],  # noqa: ARG002
        noise: Tensor | None,
    ) -> dict[str, Tensor]:
        if self._chunk == 1:
            return {}
        features, greedy_noise, _, is_planned = outputs[Columns.ACTION_DIST_INPUTS].split(self._sizes, -1)
        if noise is None:
            noise = self._greedy_noise(greedy_noise)
        # Maps the noise once more: the distribution returned only the first action of a new chunk.
        plan = outputs[f"{Columns.STATE_OUT}/plan"]
        return {
            "plan": torch.where(
                is_planned.unsqueeze(-1) > 0, plan, self._chunk_actions(features, noise)[:, 1:]
            )
        }

    def unclipped_actions(self, batch: Batch, noise_BD: Tensor) -> Tensor:
        """Return `[B, D]` actions before they are clipped to ±1."""
        values: Tensor = self.map(self.map.features(batch), noise_BD)
        return values

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        features = self.map.features(batch)
        return self._join(batch, features, self._best_draws(batch, features))

    def _forward_exploration(self, batch: Batch) -> dict[str, Tensor]:
        features = self.map.features(batch)
        return self._join(batch, features, features.new_zeros(*features.shape[:-1], self._sizes[1]))

    def _best_draws(self, batch: Batch, features: Tensor) -> Tensor:
        """Return the draws `[B, K]` with the best actions; `[B, 0]` without draws."""
        if self.critics is None:
            return features.new_zeros(*features.shape[:-1], 0)
        noise = self.draws.unsqueeze(1).expand(-1, features.shape[0], -1)
        values = self.map(features.expand(len(noise), *features.shape), noise)
        q = self.critics(batch, self.range.from_unit(values))
        q = combine_members(q, self._aggregation)
        best = q.masked_fill(_is_isolated(values.clamp(-1.0, 1.0)), -torch.inf).argmax(0)
        return self.draws[best]

    def _join(self, batch: Batch, features: Tensor, greedy_noise: Tensor) -> dict[str, Tensor]:
        """Return the distribution's inputs and, with chunks, the next state."""
        features = torch.cat([features, greedy_noise], -1)
        if self._chunk == 1:
            return {Columns.ACTION_DIST_INPUTS: features}
        state = self.state_before(batch)
        plan, num_planned = state["plan"], state["left"]
        is_planned = num_planned > 0
        inputs = torch.cat([features, plan[:, 0], is_planned.to(features.dtype).unsqueeze(-1)], -1)
        next_state = {
            "plan": torch.cat([plan[:, 1:], torch.zeros_like(plan[:, :1])], 1),
            "left": torch.where(is_planned, num_planned - 1, self._chunk - 1),
        }
        return {Columns.ACTION_DIST_INPUTS: inputs, **as_leaves(Columns.STATE_OUT, next_state)}

    def _build_distribution(self, inputs: Tensor) -> PushforwardDistribution:
        greedy_noise = self._greedy_noise(inputs.split(self._sizes, -1)[1])
        return PushforwardDistribution(inputs, self._push, greedy_noise)

    def _greedy_noise(self, noise: Tensor) -> Tensor:
        """Return the noise `[B, K]` of greedy actions from that in the distribution's inputs, which may be empty."""
        return noise if self._sizes[1] else noise.new_zeros(*noise.shape[:-1], self.action_head.noise_size)

    def _push(self, inputs: Tensor, noise: Tensor) -> Tensor:
        features, _, *plan = inputs.split(self._sizes, -1)
        if not plan:
            return self.range.from_unit(self.map(features, noise))
        planned_actions, is_planned = plan
        actions = torch.where(is_planned > 0, planned_actions, self._chunk_actions(features, noise)[:, 0])
        return actions.reshape(actions.shape[0], *self.range.low.shape[1:])

    def _chunk_actions(self, features: Tensor, noise: Tensor) -> Tensor:
        """Return `[B, chunk, D]` actions of new chunks."""
        chunks = self.range.from_unit(self.map(features, noise))
        return chunks.reshape(features.shape[0], self._chunk, -1)


def _is_isolated(values_NBD: Tensor) -> Tensor:
    """Mark the half of the draws that are farthest from the others, `[N, B]`.

    A draw's isolation is the distance within which a quarter of the other draws lie.

    A policy that maps noise to actions in one pass also maps some noise to actions between the modes, where no action
    was recorded and the critics' values are not to be relied on. There are few of those, far from each other.
    """
    num_draws = len(values_NBD)
    values = values_NBD.transpose(0, 1)
    squares = values.square().sum(-1)
    distances = squares.unsqueeze(-1) + squares.unsqueeze(-2) - 2.0 * values @ values.transpose(-1, -2)
    # The smallest distance is that of a draw to itself.
    nearest = distances.topk(min(num_draws, 1 + num_draws // 4), largest=False).values
    isolation = nearest.amax(-1)
    limits = isolation.topk((num_draws + 1) // 2, largest=False).values.amax(-1, keepdim=True)
    return (isolation > limits).transpose(0, 1)


def chunk_space(action_space: gym.Space, chunk: int) -> gym.Space:
    """Return the space of `chunk` consecutive actions of a Box; for a chunk of 1 and other spaces the space itself."""
    if chunk == 1 or not isinstance(action_space, gym.spaces.Box):
        return action_space
    low, high = (np.stack([bound] * chunk) for bound in (action_space.low, action_space.high))
    return gym.spaces.Box(low, high, dtype=cast(Any, action_space.dtype))
