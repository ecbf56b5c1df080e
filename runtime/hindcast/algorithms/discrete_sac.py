"""Discrete SAC: soft actor-critic for one discrete action, with exact sums over the actions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, cast

import gymnasium as gym
import torch
from torch import Tensor, nn

from hindcast.algorithms.actor_critic import EnsembleActorCritic, EnsembleOptions
from hindcast.algorithms.sac import LogWeight
from hindcast.api.model import ModelOptions
from hindcast.episodes.action_kinds import action_problem
from hindcast.episodes.columns import Columns
from hindcast.errors import SpecError
from hindcast.learn.algorithm import (
    AboveZero,
    AlgorithmOptions,
    Critic,
    Losses,
    ModelInputs,
    Step,
    Tensors,
)
from hindcast.learn.batches import compute_td_target
from hindcast.learn.optimisers import OptimiserSpec, adam_specs
from hindcast.learn.schedules import Schedule
from hindcast.learn.streams import run_parallel
from hindcast.models.networks import ActionValues, next_observations
from hindcast.models.rl_module import RLModule


class DiscreteSACOptions(EnsembleOptions):
    """Soft actor-critic (arXiv 1910.07207), for one discrete action or several at once.

    With critics Q, target critics Q̄, and d = 1 where the episode terminated (min: see qAggregation):
    L_Q = Σᵢ E[(r + gamma·(1 - d)·Σₐ π(a|s')·(min Q̄(s', a) - α·log π(a|s')) - Qᵢ(s, a))²];
    L_π = E[Σₐ π(a|s)·(α·log π(a|s) - min Q(s, a))], where α is trained to keep the entropy at targetEntropy. The policy
    loss uses the updated critics. Nothing keeps the policy close to recorded data: it is for data that cover nearly
    everything, and for learning online.

    Defaults are the paper's, with the soft updates of SAC instead of a copy of the networks every 8,000 steps.
    """

    alpha_lr: Schedule = 3e-4
    """Learning rate of α: a number or a schedule."""
    initial_alpha: AboveZero = 1.0
    """Initial value of α."""
    target_entropy: float | None = None
    """Target entropy of the policy, in nats; null is 0.98 times log n, that of uniform actions, for n allowed ones."""


class DiscreteSAC(EnsembleActorCritic):
    """Discrete SAC; see `DiscreteSACOptions` for the objective."""

    Options: ClassVar[type[AlgorithmOptions]] = DiscreteSACOptions
    can_train_online = True
    actions = "discrete"
    distributions = ("auto", "categorical", "jointCategorical")
    compiled_methods: ClassVar[tuple[str, ...]] = ("_critic_losses", "_policy_loss")
    options: DiscreteSACOptions

    def model_defaults(self, action_space: gym.Space[Any] | None) -> ModelOptions:  # noqa: ARG002
        return ModelOptions(fcnet_activation="relu")

    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        if problem := action_problem(type(self).__name__, "discrete", inputs.action_space):
            raise SpecError(f"{problem}.", field="spec.algorithm")
        if isinstance(inputs.action_space, gym.spaces.MultiDiscrete):
            model = inputs.model.model_copy(update={"distribution": "jointCategorical"})
            inputs = replace(inputs, model=model)
        policy = inputs.policy(value=False)
        critics = inputs.action_values(members=self.options.num_critics)
        return nn.ModuleDict(
            {"policy": policy, "critics": critics, "alpha": LogWeight(self.options.initial_alpha)}
        )

    def optimisers(self, nets: nn.ModuleDict) -> dict[str, OptimiserSpec]:
        options = self.options
        rates = {"policy": options.actor_lr, "critics": options.critic_lr, "alpha": options.alpha_lr}
        return adam_specs(nets, rates)

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Iterator[Losses]:
        yield self._critic_losses(nets, self.draw_subset(batch, step))
        # From here on the critics are the updated ones.
        alpha = cast(LogWeight, nets["alpha"])
        policy_loss, entropy = self._policy_loss(nets, batch, alpha().detach())
        target_entropy = self._target_entropy(cast(RLModule, nets["policy"]), batch)
        # The factor is log α: with the factor α, the gradient of log α would be multiplied by α.
        alpha_loss = alpha.log * (entropy - target_entropy)
        metrics = {"policy_loss": policy_loss, "alpha_loss": alpha_loss, "alpha": alpha(), "entropy": entropy}
        yield Losses({"policy": policy_loss, "alpha": alpha_loss}, metrics, joint=True)

    def critic(self, nets: nn.ModuleDict) -> Critic:
        return cast(ActionValues, nets["critics"]).min_values

    def _critic_losses(self, nets: nn.ModuleDict, batch: Tensors) -> Losses:
        critics = cast(ActionValues, nets["critics"])
        td_target, q = run_parallel(
            lambda: self._td_target(nets, batch),
            lambda: critics.gather(critics(batch), batch[Columns.ACTIONS]),
        )
        td_loss = (q - td_target).square().mean(-1).sum()
        return Losses({"critics": td_loss}, {"td_loss": td_loss, "mean_q": q.mean()})

    @torch.no_grad()
    def _td_target(self, nets: nn.ModuleDict, batch: Tensors) -> Tensor:
        """Return the critics' TD targets `[B]`."""
        next_obs, alpha = next_observations(batch), cast(LogWeight, nets["alpha"])()
        log_probs = action_log_probs(cast(RLModule, nets["policy"]), next_obs)
        target_q = self.combine_targets(batch, nets["target_critics"](next_obs))
        return compute_td_target(batch, (log_probs.exp() * (target_q - alpha * log_probs)).sum(-1))

    def _policy_loss(self, nets: nn.ModuleDict, batch: Tensors, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Return the policy's loss and its entropy, which is detached."""
        log_probs = action_log_probs(cast(RLModule, nets["policy"]), batch)
        with torch.no_grad():
            q = self.combine(nets["critics"](batch))
        probs = log_probs.exp()
        entropy = -(probs * log_probs).detach().sum(-1).mean()
        return (probs * (alpha * log_probs - q)).sum(-1).mean(), entropy

    def _target_entropy(self, policy: RLModule, batch: Tensors) -> Tensor | float:
        if self.options.target_entropy is not None:
            return self.options.target_entropy
        if (is_allowed := policy.allowed_actions(batch)) is not None:
            return 0.98 * is_allowed.sum(-1).log().mean()
        return 0.98 * math.log(policy.action_head.inputs_size)


def action_log_probs(policy: RLModule, batch: Tensors) -> Tensor:
    """Return the log-probabilities of all actions `[B, n]`; of impossible ones a finite number."""
    logits = policy.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
    return torch.log_softmax(logits, -1).clamp_min(torch.finfo(logits.dtype).min)
