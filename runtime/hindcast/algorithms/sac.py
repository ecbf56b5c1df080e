"""SAC: soft actor-critic, which maximises return plus entropy."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, Final, cast

import gymnasium as gym
import torch
from torch import Tensor, nn

from hindcast.algorithms.actor_critic import EnsembleActorCritic, EnsembleOptions
from hindcast.api.model import ModelOptions
from hindcast.episodes.columns import Columns
from hindcast.learn.algorithm import (
    AboveZero,
    AlgorithmOptions,
    Losses,
    ModelInputs,
    NonNegative,
    Step,
    Tensors,
)
from hindcast.learn.batches import batch_mean, batch_shape, compute_td_target, prepare_sequences
from hindcast.learn.optimisers import OptimiserSpec, adam_specs
from hindcast.learn.schedules import Schedule
from hindcast.learn.streams import run_parallel
from hindcast.learn.target_networks import no_weight_grad
from hindcast.models.action_head import ActionRange
from hindcast.models.networks import Critics, next_observations
from hindcast.models.rl_module import RLModule

_RECORDED_Q: Final = "_recorded_q"
"""Column of Q of the recorded actions `[E, B]`, where it has been computed together with its gradients."""


class SACOptions(EnsembleOptions):
    """Soft actor-critic (arXiv 1812.05905), for bounded continuous actions.

    With critics Q, target critics Q̄, and d = 1 where the episode terminated (min: see qAggregation):
    L_Q = Σᵢ E[(r + gamma·(1 - d)·(min Q̄(s', a') - α·log π(a'|s')) - Qᵢ(s, a))²] with a' ~ π(s');
    L_π = E[α·log π(ã|s) - min Q(s, ã)], ã ~ π(s), where α is trained to keep the entropy at targetEntropy. The
    policy loss uses the updated critics. With diversity = η, L_Q has the term η·E[Σᵢ Σⱼ≠ᵢ cos(∇ₐQᵢ, ∇ₐQⱼ)] / (N - 1) of
    EDAC (arXiv 2110.01548), the cosine similarity of the N critics' gradients at recorded actions.

    Defaults are the paper's.
    """

    alpha_lr: Schedule = 3e-4
    """Learning rate of α: a number or a schedule."""
    initial_alpha: AboveZero = 1.0
    """Initial value of α."""
    diversity: NonNegative = 0.0
    """Weight η of the similarity of the critics' gradients (EDAC): 1 with numCritics 10 for most of its tasks."""
    target_entropy: float | None = None
    """Target entropy of the policy, in nats; null is minus the number of action elements, for actions scaled to
    ±1."""


class SAC(EnsembleActorCritic):
    """SAC; see `SACOptions` for the objective."""

    Options: ClassVar[type[AlgorithmOptions]] = SACOptions
    kinds = frozenset({"OfflineTraining", "OfflineRecording"})
    can_train_online = True
    can_train_recurrent = True
    actions = "continuous"
    distributions = ("auto", "gaussian", "squashedGaussian", "boundedGaussian")
    compiled_methods: ClassVar[tuple[str, ...]] = ("_critic_losses", "_policy_loss")
    options: SACOptions

    def model_defaults(self, action_space: gym.Space[Any] | None) -> ModelOptions:  # noqa: ARG002
        return ModelOptions(fcnet_activation="relu", log_std_max=2.0)

    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        name = type(self).__name__
        action_range = ActionRange(inputs.action_space, name, is_recurrent=inputs.model.recurrent != "none")
        policy = inputs.policy(value=False, auto="squashedGaussian")
        alpha = LogWeight(self.options.initial_alpha)
        return nn.ModuleDict(
            {
                "policy": policy,
                "critics": inputs.critics(members=self.options.num_critics),
                "alpha": alpha,
                "range": action_range,
            }
        )

    def optimisers(self, nets: nn.ModuleDict) -> dict[str, OptimiserSpec]:
        options = self.options
        rates = {"policy": options.actor_lr, "critics": options.critic_lr, "alpha": options.alpha_lr}
        return adam_specs(nets, rates)

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Iterator[Losses]:
        # Noise is drawn outside the losses: a compiled method must not draw from the step's generator.
        batch = self.draw_subset(prepare_sequences(batch, self.options.n_step), step)
        noise = self._draw_noise(nets, batch, step)
        yield (
            self._diverse_critic_losses(nets, batch, *noise)
            if self.options.diversity
            else self._critic_losses(nets, batch, *noise)
        )
        # From here on the critics are the updated ones.
        policy_noise = draw_action_noise(cast(RLModule, nets["policy"]), batch, step, 1)
        alpha, update_kind = cast(LogWeight, nets["alpha"]), self.update_kind(step.updates)
        with no_weight_grad(nets["critics"]):
            policy_loss, entropy = self._policy_loss(nets, batch, policy_noise, alpha().detach(), update_kind)
        # The factor is log α: with the factor α, the gradient of log α would be multiplied by α.
        alpha_loss = alpha.log * (entropy - self._target_entropy(cast(ActionRange, nets["range"])))
        metrics = {"policy_loss": policy_loss, "alpha_loss": alpha_loss, "alpha": alpha(), "entropy": entropy}
        yield Losses({"policy": policy_loss, "alpha": alpha_loss}, metrics, joint=True)

    def _draw_noise(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> tuple[Tensor, ...]:
        """Return the random numbers of the critics' losses, drawn from `step.generator`."""
        return (draw_action_noise(cast(RLModule, nets["policy"]), batch, step, 1),)

    def _critic_losses(self, nets: nn.ModuleDict, batch: Tensors, *noise: Tensor) -> Losses:
        td_target, q = run_parallel(
            lambda: self._td_target(nets, batch, noise[0]),
            lambda: batch[_RECORDED_Q] if _RECORDED_Q in batch else cast(Critics, nets["critics"])(batch),
        )
        td_loss = batch_mean((q - td_target).square(), batch).sum()
        return Losses({"critics": td_loss}, {"td_loss": td_loss, "mean_q": batch_mean(q, batch).mean()})

    def _diverse_critic_losses(self, nets: nn.ModuleDict, batch: Tensors, *noise: Tensor) -> Losses:
        """Return the critics' losses with the similarity of their gradients."""
        q, gradients = cast(Critics, nets["critics"]).values_and_gradients(batch)
        losses = self._critic_losses(nets, {**batch, _RECORDED_Q: q}, *noise)
        directions = torch.nn.functional.normalize(gradients, dim=-1).movedim(0, -2)
        # Cosines `[B, E, E]` without those of a critic with itself, which are constant.
        cosines = directions @ directions.transpose(-1, -2)
        num_critics = cosines.shape[-1]
        others = ~torch.eye(num_critics, dtype=torch.bool, device=cosines.device)
        similarity = batch_mean((cosines * others).sum((-2, -1)), batch) / max(num_critics - 1, 1)
        critic_loss = losses.losses["critics"] + self.options.diversity * similarity
        return replace(
            losses,
            losses={**losses.losses, "critics": critic_loss},
            metrics={**losses.metrics, "critic_similarity": similarity},
        )

    @torch.no_grad()
    def _td_target(self, nets: nn.ModuleDict, batch: Tensors, noise: Tensor) -> Tensor:
        """Return the critics' TD targets `[B]`."""
        next_obs = next_observations(batch)
        # One action per state: the first axis of noise, actions and log-densities has size 1.
        next_actions, next_logp = sample_actions(cast(RLModule, nets["policy"]), next_obs, noise)
        target_q = self.combine_targets(batch, nets["target_critics"](next_obs, next_actions[0]))
        return compute_td_target(batch, target_q - cast(LogWeight, nets["alpha"])() * next_logp[0])

    def _policy_loss(
        self, nets: nn.ModuleDict, batch: Tensors, noise: Tensor, alpha: Tensor, update_kind: Hashable
    ) -> tuple[Tensor, Tensor]:
        """Return the policy's loss, and an estimate of its entropy."""
        actions, logp = sample_actions(cast(RLModule, nets["policy"]), batch, noise)
        objective = self._policy_objective(nets, batch, actions[0], update_kind)
        return batch_mean(alpha * logp[0] - objective, batch), -batch_mean(logp[0].detach(), batch)

    def _policy_objective(
        self,
        nets: nn.ModuleDict,
        batch: Tensors,
        actions: Tensor,
        update_kind: Hashable,  # noqa: ARG002
    ) -> Tensor:
        """Return what the policy maximises in updates of this kind, `[B]`: min Q of its actions, `[B, *shape]`."""
        return self.combine(cast(Critics, nets["critics"])(batch, actions))

    def _target_entropy(self, action_range: ActionRange) -> Tensor | float:
        if self.options.target_entropy is not None:
            return self.options.target_entropy
        # Minus the number of elements, for actions scaled to ±1; the logarithms convert it to the action's own units.
        return (action_range.half_range.log() - 1.0).sum()


class LogWeight(nn.Module):
    """A positive number, trained through its logarithm.

    Args:
        initial_value: the initial value.

    Attributes:
        log: the parameter.
    """

    def __init__(self, initial_value: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial_value)))

    def forward(self) -> Tensor:
        """Return the number, a scalar."""
        return self.log.exp()


def draw_action_noise(policy: RLModule, batch: Tensors, step: Step, count: int) -> Tensor:
    """Draw the noise of `count` actions in each state: `[count, B, K]`, standard normal."""
    shape = (count, *batch_shape(batch), policy.action_head.noise_size)
    return torch.randn(shape, generator=step.generator, device=step.generator.device)


def sample_actions(policy: RLModule, batch: Tensors, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Sample the policy's actions from `noise`, see `draw_action_noise`; gradients flow through them.

    Returns:
        Actions `[count, B, *shape]` and their log-densities `[count, B]`.
    """
    dist_inputs = policy.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
    actions, logp = policy.distribution(dist_inputs.expand(len(noise), *dist_inputs.shape)).sample_with_logp(
        noise
    )
    return cast(Tensor, actions), logp
