"""TD3+BC: TD3 with a behaviour cloning term; and the base of algorithms that extend TD3."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, cast

import gymnasium as gym
import torch
from pydantic import Field
from torch import Tensor, nn

from hindcast.algorithms.actor_critic import EnsembleActorCritic, EnsembleOptions
from hindcast.api.base import Positive
from hindcast.api.model import ModelOptions
from hindcast.episodes.columns import Columns
from hindcast.learn.algorithm import Losses, ModelInputs, NonNegative, Step, Tensors
from hindcast.learn.batches import compute_td_target, num_timesteps
from hindcast.learn.optimisers import OptimiserSpec, adam_specs
from hindcast.learn.streams import run_parallel
from hindcast.learn.target_networks import no_weight_grad
from hindcast.models.action_head import ActionRange
from hindcast.models.networks import Critics, next_observations
from hindcast.models.rl_module import RLModule


class TD3Options(EnsembleOptions):
    """Options of algorithms based on TD3 (arXiv 1802.09477)."""

    policy_delay: Positive = 2
    """Critic updates per update of the policy and the target networks."""
    target_noise: NonNegative = 0.2
    """Standard deviation of the target policy noise ε, in units of half the action range."""
    target_noise_clip: NonNegative = Field(default=0.5, json_schema_extra={"x-only-with": "targetNoise"})
    """Clipping bound of |ε|."""
    exploration_noise: NonNegative = 0.1
    """Standard deviation of the normal noise of actions that a sampler plays, in units of half the action range."""


class TD3BCOptions(TD3Options):
    """TD3+BC (arXiv 2106.06860), for bounded continuous actions, in units of half their range.

    With critics Q, target critics Q̄, target policy π̄, and d = 1 where the episode terminated:
    L_Q = Σᵢ E[(r + gamma·(1 - d)·min Q̄(s', π̄(s') + ε) - Qᵢ(s, a))²], ε clipped normal noise;
    L_π = E[-alpha·Q₁(s, π(s)) / mean|Q₁| + (π(s) - a)²], every policyDelay updates, followed by the target networks.

    Defaults are the paper's, observations normalised by the data included; the filter divides by the standard
    deviation and clips to ±10, where the paper adds 1e-3 to the standard deviation.
    """

    alpha: NonNegative = 2.5
    """Weight of the critic relative to behaviour cloning; 0 is behaviour cloning alone."""


class TD3(EnsembleActorCritic):
    """Critics, a deterministic policy with delayed updates, and target networks of both."""

    can_train_online = True
    distributions = ("auto", "deterministic", "squashedDeterministic")
    actions = "continuous"
    target_networks = {"target_policy": "policy", "target_critics": "critics"}
    compiled_methods = ("_critic_loss", "_policy_loss")
    options: TD3Options

    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        name = type(self).__name__
        action_range = ActionRange(inputs.action_space, name)
        policy = inputs.policy(value=False, auto="squashedDeterministic")
        return nn.ModuleDict(
            {
                "policy": policy,
                "critics": inputs.critics(members=self.options.num_critics),
                "range": action_range,
            }
        )

    def optimisers(self, nets: nn.ModuleDict) -> dict[str, OptimiserSpec]:
        rates = {"policy": self.options.actor_lr, "critics": self.options.critic_lr}
        return adam_specs(nets, rates)

    def action_noise(self) -> float:
        return self.options.exploration_noise

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Iterator[Losses]:
        # Noise is drawn outside the losses: a compiled method must not draw from the step's generator.
        shape = (num_timesteps(batch), *cast(ActionRange, nets["range"]).low.shape)
        noise = torch.randn(shape, generator=step.generator, device=step.generator.device)
        yield self._critic_loss(nets, self.draw_subset(batch, step), noise)
        # The learner has stepped the critics: the policy follows the updated ones.
        if self.update_kind(step.updates):
            with no_weight_grad(nets["critics"]):
                loss = self._policy_loss(nets, batch)
            yield loss

    def update_kind(self, updates: int) -> bool:
        """Return True if the update after `updates` updates moves the policy and the target networks."""
        return (updates + 1) % self.options.policy_delay == 0

    def after_update(self, nets: nn.ModuleDict, step: Step) -> None:
        if self.update_kind(step.updates):
            self.update_target_networks(nets, self.options.tau)

    def _critic_loss(self, nets: nn.ModuleDict, batch: Tensors, noise: Tensor) -> Losses:
        """Return the critics' loss and metrics, given normal noise `[B, *shape]`."""
        td_target, q = run_parallel(
            lambda: self._td_target(nets, batch, noise), lambda: cast(Critics, nets["critics"])(batch)
        )
        loss = (q - td_target).square().mean(-1).sum()
        return Losses({"critics": loss}, {"critic_loss": loss, "mean_q": q.mean()})

    @torch.no_grad()
    def _td_target(self, nets: nn.ModuleDict, batch: Tensors, noise: Tensor) -> Tensor:
        """Return the critics' TD targets `[B]`, with target policy smoothing."""
        options, action_range = self.options, cast(ActionRange, nets["range"])
        next_obs = next_observations(batch)
        next_actions = policy_actions(cast(RLModule, nets["target_policy"]), next_obs)
        noise = (options.target_noise * noise).clamp(-options.target_noise_clip, options.target_noise_clip)
        next_actions = action_range.clamp(next_actions + noise * action_range.half_range)
        target_q = self.combine_targets(batch, nets["target_critics"](next_obs, next_actions))
        return compute_td_target(batch, target_q - self._penalty(batch, next_actions, action_range))

    def _penalty(self, batch: Tensors, actions: Tensor, action_range: ActionRange) -> Tensor | float:  # noqa: ARG002
        """Return the penalty `[B]` subtracted from Q̄ of `actions`, `[B, *shape]`, in the next states."""
        return 0.0

    @abstractmethod
    def _policy_loss(self, nets: nn.ModuleDict, batch: Tensors) -> Losses:
        """Return the policy's loss and metrics."""


class TD3BC(TD3):
    """TD3+BC; see `TD3BCOptions` for the objective."""

    Options = TD3BCOptions
    options: TD3BCOptions

    def model_defaults(self, action_space: gym.Space[Any] | None) -> ModelOptions:  # noqa: ARG002
        return ModelOptions(fcnet_activation="relu", observation_filter="meanStd")

    def _policy_loss(self, nets: nn.ModuleDict, batch: Tensors) -> Losses:
        critics, action_range = cast(Critics, nets["critics"]), cast(ActionRange, nets["range"])
        actions = policy_actions(cast(RLModule, nets["policy"]), batch)
        # Q₁ only, as in the paper; skipping the second critic gives 9 % more updates per second.
        q = critics.evaluate_first(batch, actions)
        cloning_loss = ((actions - batch[Columns.ACTIONS]) / action_range.half_range).square().mean()
        policy_loss = cloning_loss - self.options.alpha * q.mean() / q.detach().abs().mean()
        return Losses({"policy": policy_loss}, {"policy_loss": policy_loss, "cloning_loss": cloning_loss})


def policy_actions(policy: RLModule, batch: Tensors) -> Tensor:
    """Return the actions `[B, *shape]` of a deterministic policy; gradients flow through them."""
    actions = policy.distribution(policy.forward_train(batch)[Columns.ACTION_DIST_INPUTS]).mode()
    return cast(Tensor, actions)
