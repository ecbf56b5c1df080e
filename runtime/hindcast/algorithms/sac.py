"""SAC: soft actor-critic, which maximises return plus entropy."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from hindcast.algorithms.actor_critic import ActorCritic, ActorCriticOptions
from hindcast.episodes.columns import Columns
from hindcast.learn.algorithm import AboveZero, AlgorithmOptions, Losses, ModelInputs, Step, Tensors
from hindcast.learn.batches import num_timesteps, td_target
from hindcast.learn.optimisers import OptimiserSpec, adam_specs
from hindcast.learn.schedules import Schedule
from hindcast.learn.streams import run_parallel
from hindcast.learn.target_networks import no_weight_grad
from hindcast.models.action_head import ActionRange
from hindcast.models.networks import Critics, next_observations
from hindcast.models.rl_module import RLModule


class SACOptions(ActorCriticOptions):
    """Soft actor-critic (arXiv 1812.05905), for bounded continuous actions.

    With twin critics Q, target critics Q̄, and d = 1 where the episode terminated:
    L_Q = Σᵢ E[(r + gamma·(1 - d)·(min Q̄(s', a') - α·log π(a'|s')) - Qᵢ(s, a))²] with a' ~ π(s');
    L_π = E[α·log π(ã|s) - min Q(s, ã)], ã ~ π(s), where α is trained to keep the entropy at targetEntropy. The
    policy loss uses the updated critics.

    Defaults are the paper's. Its networks are `model: {fcnetHiddens: [256, 256], fcnetActivation: relu}`.
    """

    alpha_lr: Schedule = 3e-4
    """Learning rate of α: a number or a schedule."""
    initial_alpha: AboveZero = 1.0
    """Initial value of α."""
    target_entropy: float | None = None
    """Target entropy of the policy, in nats; null is minus the number of action elements, for actions scaled to
    ±1."""


class SAC(ActorCritic):
    """SAC; see `SACOptions` for the objective."""

    Options: ClassVar[type[AlgorithmOptions]] = SACOptions
    kinds = frozenset({"OfflineTraining", "OfflineRecording"})
    can_train_online = True
    distributions = ("auto", "gaussian", "squashedGaussian", "boundedGaussian")
    compiled_methods: ClassVar[tuple[str, ...]] = ("_critic_losses", "_policy_loss")
    options: SACOptions

    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        name = type(self).__name__
        within = ActionRange(inputs.action_space, name)
        policy = inputs.policy(value=False, auto="squashedGaussian")
        alpha = LogWeight(self.options.initial_alpha)
        return nn.ModuleDict(
            {"policy": policy, "critics": inputs.critics(members=2), "alpha": alpha, "range": within}
        )

    def optimisers(self, nets: nn.ModuleDict) -> dict[str, OptimiserSpec]:
        options = self.options
        rates = {"policy": options.actor_lr, "critics": options.critic_lr, "alpha": options.alpha_lr}
        return adam_specs(nets, rates)

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Iterator[Losses]:
        yield self._critic_losses(nets, batch, *self._draw_noise(nets, batch, step))
        noise = action_noise(cast(RLModule, nets["policy"]), batch, step, 1)
        alpha, kind = cast(LogWeight, nets["alpha"]), self.update_kind(step.updates)
        with no_weight_grad(nets["critics"]):
            policy_loss, entropy = self._policy_loss(nets, batch, noise, alpha().detach(), kind)
        alpha_loss = alpha.log * (entropy - self._target_entropy(cast(ActionRange, nets["range"])))
        metrics = {"policy_loss": policy_loss, "alpha_loss": alpha_loss, "alpha": alpha(), "entropy": entropy}
        yield Losses({"policy": policy_loss, "alpha": alpha_loss}, metrics, joint=True)

    def _draw_noise(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> tuple[Tensor, ...]:
        """What is random in the critics' losses."""
        return (action_noise(cast(RLModule, nets["policy"]), batch, step, 1),)

    def _critic_losses(self, nets: nn.ModuleDict, batch: Tensors, *draws: Tensor) -> Losses:
        wanted, taken = run_parallel(
            lambda: self._wanted(nets, batch, draws[0]), lambda: cast(Critics, nets["critics"])(batch)
        )
        td_loss = (taken - wanted).square().mean(-1).sum()
        return Losses({"critics": td_loss}, {"td_loss": td_loss, "mean_q": taken.mean()})

    @torch.no_grad()
    def _wanted(self, nets: nn.ModuleDict, batch: Tensors, noise: Tensor) -> Tensor:
        """`[B]` the critics' targets."""
        following = next_observations(batch)
        actions, logp = sample_actions(cast(RLModule, nets["policy"]), following, noise)
        values = nets["target_critics"](following, actions[0]).amin(0)
        return td_target(batch, values - cast(LogWeight, nets["alpha"])() * logp[0])

    def _policy_loss(
        self, nets: nn.ModuleDict, batch: Tensors, noise: Tensor, alpha: Tensor, kind: Hashable
    ) -> tuple[Tensor, Tensor]:
        """The policy's loss, and its entropy."""
        actions, logp = sample_actions(cast(RLModule, nets["policy"]), batch, noise)
        worth = self._policy_objective(nets, batch, actions[0], kind)
        return (alpha * logp[0] - worth).mean(), -logp.detach().mean()

    def _policy_objective(
        self,
        nets: nn.ModuleDict,
        batch: Tensors,
        actions: Tensor,
        update_kind: Hashable,  # noqa: ARG002
    ) -> Tensor:
        """`[B]` what the policy maximises in this `update_kind`: the values of its actions, `[B, *shape]`."""
        return cast(Critics, nets["critics"])(batch, actions).amin(0)

    def _target_entropy(self, within: ActionRange) -> Tensor | float:
        if self.options.target_entropy is not None:
            return self.options.target_entropy
        return (within.half_range.log() - 1.0).sum()


class LogWeight(nn.Module):
    """A positive number, trained through its logarithm.

    Args:
        start: its initial value.

    Attributes:
        log: the parameter.
    """

    def __init__(self, start: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(start)))

    def forward(self) -> Tensor:
        """The number, a scalar."""
        return self.log.exp()


def action_noise(policy: RLModule, batch: Tensors, step: Step, count: int) -> Tensor:
    """`[count, B, K]` normal noise of so many actions in each state."""
    shape = (count, num_timesteps(batch), policy.action_head.noise_size)
    return torch.randn(shape, generator=step.generator, device=step.generator.device)


def sample_actions(policy: RLModule, batch: Tensors, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The policy's actions with `noise`, see `action_noise`; gradients go through them and their log-densities.

    Returns:
        `[count, B, *shape]` and `[count, B]`.
    """
    inputs = policy.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
    actions, logp = policy.distribution(inputs.expand(len(noise), *inputs.shape)).sample_with_logp(noise)
    return cast(Tensor, actions), logp
