"""CQL: conservative Q-learning, soft actor-critic with a penalty on the values of actions outside the data."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated, Any, cast

import gymnasium as gym
import torch
from pydantic import Field
from torch import Tensor, nn

from hindcast.algorithms.sac import SAC, LogWeight, SACOptions, draw_action_noise, sample_actions
from hindcast.api.base import Positive
from hindcast.api.model import ModelOptions
from hindcast.episodes.columns import Columns
from hindcast.errors import SpecError
from hindcast.learn.algorithm import AboveZero, Losses, ModelInputs, NonNegative, Step, Tensors
from hindcast.learn.batches import batch_mean, compute_td_target
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.learn.schedules import Schedule
from hindcast.learn.streams import run_parallel
from hindcast.models.action_head import ActionRange
from hindcast.models.networks import Critics, next_observations
from hindcast.models.rl_module import RLModule
from hindcast.pipeline.needs import Needs

_MAX_GAP_WEIGHT = 1e6
"""Upper bound on α', as in the authors' code."""


class CQLOptions(SACOptions):
    """Conservative Q-learning, CQL(H) of arXiv 2006.04779, for bounded continuous actions.

    With critics Q, target critics Q̄, d = 1 where the episode terminated, and actions a_j at s with log-densities
    l_j, numActions of them uniform, numActions from π(s) and numActions from π(s'):
    gapᵢ = E[temperature·log Σ_j exp((Qᵢ(s, a_j) - l_j) / temperature) - Qᵢ(s, a)];
    L_Q = Σᵢ E[(r + gamma·(1 - d)·min Q̄(s', a') - Qᵢ(s, a))²] + minQWeight·gapᵢ with a' ~ π(s');
    L_π = E[α·log π(ã|s) - min Q(s, ã)], ã ~ π(s), where α is trained to keep the entropy at targetEntropy.
    With lagrangian, the penalty is α'·(minQWeight·gapᵢ - lagrangianThresh), with α' trained to keep the penalty at 0.
    With calibrated (Cal-QL, arXiv 2303.05479), max(Qᵢ(s, a_j), G) replaces Qᵢ(s, a_j) in the gap for actions from π,
    where G is the recorded discounted return from s on: values are not lowered below those of the recorded policy, so
    that a training that continues online need not raise them first. Where an episode was truncated, G counts the
    recorded rewards.
    For the first bcIters updates the policy uses behaviour cloning: L_π = E[α·log π(ã|s) - log π(a|s)].

    Defaults are those of the authors' code for locomotion, except that there is no initial behaviour cloning, which
    they found to make little difference.
    """

    actor_lr: Schedule = 1e-4
    """Learning rate of the policy (Adam): a number, or a schedule [[timestep, value], …]. A third item of a point says
    how the value changes up to the next point: Line (the default), Cosine or Step."""
    critic_lr: Schedule = 3e-4
    """Learning rate of the critics, and of α' with lagrangian: a number or a schedule."""
    alpha_lr: Schedule = 1e-4
    """Learning rate of α: a number or a schedule."""
    bc_iters: Annotated[int, Field(ge=0)] = 0
    """Initial updates in which the policy is trained by behaviour cloning."""
    temperature: AboveZero = 1.0
    """Temperature of the log-sum-exp in the gap."""
    num_actions: Positive = 10
    """Sampled actions from each of the three distributions."""
    min_q_weight: NonNegative = 5.0
    """Weight of the gap; with lagrangian, its factor inside the penalty."""
    next_state_gap: bool = False
    """Take the values of the actions from π(s') at s', as RLlib does, instead of at s, as the authors' code does: the
    penalty then also lowers values where the policy goes next."""
    calibrated: bool = False
    """Keep the values of the policy's actions at or above the recorded returns (Cal-QL), for going on online. Does not
    combine with nextStateGap."""
    lagrangian: bool = False
    """Learn the weight α' of the gap."""
    lagrangian_thresh: NonNegative = Field(default=5.0, json_schema_extra={"x-only-with": "lagrangian"})
    """Target value of the weighted gap."""
    deterministic_backup: bool = True
    """Exclude the entropy of a' from the critics' targets."""


class CQL(SAC):
    """CQL; see `CQLOptions` for the objective."""

    Options = CQLOptions
    kinds = frozenset({"OfflineTraining"})
    compiled_methods = ("_critic_loss", "_policy_loss")
    options: CQLOptions

    def model_defaults(self, action_space: gym.Space[Any] | None) -> ModelOptions:  # noqa: ARG002
        return ModelOptions(fcnet_hiddens=[256, 256, 256], fcnet_activation="relu", log_std_max=2.0)

    def needs(self) -> Needs:
        needs = super().needs()
        return needs.with_columns(frozenset({Columns.MC_RETURNS})) if self.options.calibrated else needs

    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        if self.options.calibrated and self.options.next_state_gap:
            raise SpecError(
                "is true, but calibrated compares values with the returns from s on, not from s': leave one of the "
                "two out.",
                field="spec.config.nextStateGap",
                mentions=("calibrated",),
            )
        nets = super().networks(inputs)
        if self.options.lagrangian:
            nets["gap_weight"] = LogWeight(1.0)
        return nets

    def optimisers(self, nets: nn.ModuleDict) -> dict[str, OptimiserSpec]:
        optimisers = super().optimisers(nets)
        if self.options.lagrangian:
            optimisers["gap_weight"] = OptimiserSpec(
                list(nets["gap_weight"].parameters()), self.options.critic_lr
            )
        return optimisers

    def update_kind(self, updates: int) -> bool:
        """Return True if the critics train the policy, False in the first `bcIters` updates, which clone."""
        return updates >= self.options.bc_iters

    def _draw_noise(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """Draw the noise of the actions from π(s) and of those from π(s'), and the uniform actions."""
        num_actions, policy = self.options.num_actions, cast(RLModule, nets["policy"])
        # One action more from π(s'): the first is a' of the TD target, the others are sampled actions of the gap.
        noise, next_noise = (
            draw_action_noise(policy, batch, step, count) for count in (num_actions, num_actions + 1)
        )
        action_range = cast(ActionRange, nets["range"])
        uniform = action_range.draw_uniform(noise.shape[:-1].numel(), step.generator)
        return noise, next_noise, uniform.unflatten(0, noise.shape[:-1])

    def _critic_losses(self, nets: nn.ModuleDict, batch: Tensors, *draws: Tensor) -> Losses:
        if not self.options.lagrangian:
            loss, _, metrics = self._critic_loss(nets, batch, 1.0, *draws)
            return Losses({"critics": loss}, metrics)
        gap_weight = cast(LogWeight, nets["gap_weight"])().clamp(max=_MAX_GAP_WEIGHT)
        loss, penalties, metrics = self._critic_loss(nets, batch, gap_weight.detach(), *draws)
        # Half the sum over both critics, as in the authors' code.
        losses = {"critics": loss, "gap_weight": -0.5 * (gap_weight * penalties).sum()}
        return Losses(losses, {**metrics, "gap_weight": gap_weight}, joint=True)

    def _critic_loss(
        self, nets: nn.ModuleDict, batch: Tensors, weight: Tensor | float, *draws: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the critics' loss, the penalties `[E]` before weighting, detached, and metrics.

        `weight` multiplies the penalties in the loss. With `lagrangian` a penalty is the excess of a critic's weighted
        gap over its target.
        """
        options = self.options
        with torch.no_grad():
            actions, log_densities, td_target = self._sample_actions_and_targets(nets, batch, *draws)
        sampled_q, q = self._q_values(cast(Critics, nets["critics"]), batch, actions)
        if options.calibrated:
            uniform_q, policy_q = sampled_q.split([options.num_actions, 2 * options.num_actions], 1)
            sampled_q = torch.cat([uniform_q, torch.maximum(policy_q, batch[Columns.MC_RETURNS])], 1)
        td_loss = batch_mean((q - td_target).square(), batch).sum()
        # log Σ exp with importance weights: the actions are samples with different log-densities.
        soft_maximum = (
            torch.logsumexp((sampled_q - log_densities) / options.temperature, 1) * options.temperature
        )
        gaps = batch_mean(soft_maximum - q, batch)
        penalties = options.min_q_weight * gaps - (options.lagrangian_thresh if options.lagrangian else 0.0)
        metrics = {"td_loss": td_loss, "mean_q": batch_mean(q, batch).mean(), "conservative_gap": gaps.mean()}
        return td_loss + (weight * penalties).sum(), penalties.detach(), metrics

    def _q_values(self, critics: Critics, batch: Tensors, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return Q of the sampled actions `[E, 3 N, B]`, the last N from π(s'), and of recorded actions `[E, B]`.

        E is the number of critics and N is `numActions`.
        """
        recorded_actions = batch[Columns.ACTIONS].unsqueeze(0)
        if not self.options.next_state_gap:
            values = critics(batch, torch.cat([actions, recorded_actions]))
            return values[:, :-1], values[:, -1]
        current_actions, next_actions = actions.split(
            [2 * self.options.num_actions, self.options.num_actions]
        )
        values = critics(batch, torch.cat([current_actions, recorded_actions]))
        return torch.cat([values[:, :-1], critics(next_observations(batch), next_actions)], 1), values[:, -1]

    def _sample_actions_and_targets(
        self, nets: nn.ModuleDict, batch: Tensors, noise: Tensor, next_noise: Tensor, uniform: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return sampled actions `[3 N, B, *shape]`, their log-densities `[3 N, B]`, and the critics' targets `[B]`."""
        policy, next_obs = cast(RLModule, nets["policy"]), next_observations(batch)
        (policy_actions, logp), (next_actions, next_logp) = run_parallel(
            lambda: sample_actions(policy, batch, noise),
            lambda: sample_actions(policy, next_obs, next_noise),
        )
        action_range = cast(ActionRange, nets["range"])
        actions = torch.cat([uniform, policy_actions, next_actions[1:]])
        log_densities = torch.cat([action_range.log_density().expand_as(logp), logp, next_logp[1:]])
        target_q = self.combine_targets(batch, nets["target_critics"](next_obs, next_actions[0]))
        if not self.options.deterministic_backup:
            target_q = target_q - cast(LogWeight, nets["alpha"])() * next_logp[0]
        return actions, log_densities, compute_td_target(batch, target_q)

    def _policy_objective(
        self, nets: nn.ModuleDict, batch: Tensors, actions: Tensor, update_kind: Hashable
    ) -> Tensor:
        if update_kind:
            return super()._policy_objective(nets, batch, actions, update_kind)
        policy = cast(RLModule, nets["policy"])
        dist_inputs = policy.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
        return policy.distribution(dist_inputs).logp(batch[Columns.ACTIONS])
