"""CQL: conservative Q-learning, soft actor-critic whose critics think little of actions that were not recorded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from hindcast.api.base import Positive
from hindcast.episodes.columns import Columns
from hindcast.errors import SpecError
from hindcast.learn.algorithm import (
    AboveZero,
    Algorithm,
    AlgorithmOptions,
    Fraction,
    Losses,
    ModelInputs,
    NonNegative,
    Step,
    Tensors,
)
from hindcast.learn.batches import bootstrapped
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.learn.schedules import Schedule
from hindcast.learn.target_networks import frozen_copy, polyak
from hindcast.models.bounded_actions import ActionRange
from hindcast.models.networks import Critics, at_next
from hindcast.models.rl_module import RLModule
from hindcast.pipeline.needs import Needs, transitions

_MOST_WEIGHT = 1e6


class CQLOptions(AlgorithmOptions):
    """Conservative Q-learning, CQL(H) of arXiv 2006.04779, for continuous actions with bounds.

    With twin critics Q of which Q̄ is the slow copy, d = 1 where the episode terminated, and actions a_j at s of which
    numActions each are uniform, from π(s) and from π(s'), of log-density l_j:
    gapᵢ = E[temperature·log Σ_j exp((Qᵢ(s, a_j) - l_j) / temperature) - Qᵢ(s, a)];
    L_Q = Σᵢ E[(r + gamma·(1 - d)·min Q̄(s', a') - Qᵢ(s, a))²] + minQWeight·gapᵢ with a' ~ π(s');
    L_π = E[α·log π(ã|s) - min Q(s, ã)], ã ~ π(s), where α is trained so that the entropy is targetEntropy.
    With lagrangian, gapᵢ counts α'·(minQWeight·gapᵢ - lagrangianThresh), where α' is trained to hold that at 0. For the
    first bcIters updates the policy clones instead: L_π = E[α·log π(ã|s) - log π(a|s)].

    Defaults are those of the authors' code for locomotion, but no cloning first, by which they saw little difference.
    Its networks: `model: {fcnetHiddens: [256, 256, 256], fcnetActivation: relu}`.
    """

    train_batch_size_per_learner: Positive = 256
    """Timesteps in one learner's batch; the global batch is this times the number of learners."""
    actor_lr: Schedule = 1e-4
    """Learning rate of the policy's Adam, or points [[timestep, value], …], joined by lines or as a third item says:
    line, cosine, step."""
    critic_lr: Schedule = 3e-4
    """Learning rate of the critics, and of α' with lagrangian, or points."""
    alpha_lr: Schedule = 1e-4
    """Learning rate of α, or points."""
    initial_alpha: AboveZero = 1.0
    """α at the start."""
    target_entropy: float | None = None
    """Entropy of the policy that α is trained for, in nats; null for minus one for each element of an action, were its
    range ±1."""
    gamma: Fraction = 0.99
    """Discount of future rewards."""
    tau: Annotated[float, Field(gt=0, le=1)] = 0.005
    """How far each update moves Q̄ to Q."""
    bc_iters: Annotated[int, Field(ge=0)] = 0
    """Updates at the start in which the policy clones."""
    temperature: AboveZero = 1.0
    """Of the soft maximum in the gap."""
    num_actions: Positive = 10
    """Actions from each of the three sources."""
    min_q_weight: NonNegative = 5.0
    """Weight of the gap; with lagrangian what multiplies it inside."""
    lagrangian: bool = False
    """Train the weight of the gap."""
    lagrangian_thresh: NonNegative = Field(default=5.0, json_schema_extra={"x-only-with": "lagrangian"})
    """What the weighted gap is held at."""
    deterministic_backup: bool = True
    """Leave the entropy of a' out of the values that critics are regressed on."""


class CQL(Algorithm):
    """CQL; see `CQLOptions` for the objective."""

    Options = CQLOptions
    options: CQLOptions

    def needs(self) -> Needs:
        return transitions(self.options.gamma)

    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        within = ActionRange(inputs.action_space, "CQL")
        policy = inputs.policy(value=False, auto="squashedGaussian")
        if not policy.action_head.stochastic:
            raise SpecError(
                f"model.distribution is {inputs.model.distribution!r}, and CQL samples its policy: leave it at 'auto'."
            )
        critics = inputs.critics(members=2)
        weights = {"alpha": LogWeight(self.options.initial_alpha)}
        if self.options.lagrangian:
            weights["gap_weight"] = LogWeight(1.0)
        nets = {"policy": policy, "critics": critics, "target_critics": frozen_copy(critics)}
        return nn.ModuleDict({**nets, **weights, "range": within})

    def optimisers(self, nets: nn.ModuleDict) -> dict[str, OptimiserSpec]:
        options = self.options
        rates = {
            "policy": options.actor_lr,
            "critics": options.critic_lr,
            "alpha": options.alpha_lr,
            "gap_weight": options.critic_lr,
        }
        return {
            name: OptimiserSpec(list(nets[name].parameters()), lr)
            for name, lr in rates.items()
            if name in nets
        }

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Iterator[Losses]:
        yield self._critic_losses(nets, batch, step)
        yield self._policy_losses(nets, batch, step)

    def after_update(self, nets: nn.ModuleDict, step: Step) -> None:  # noqa: ARG002
        polyak(nets["target_critics"], nets["critics"], self.options.tau)

    def _critic_losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Losses:
        options, critics = self.options, cast(Critics, nets["critics"])
        with torch.no_grad():
            actions, log_densities, wanted = self._samples(nets, batch, step)
        taken = critics(batch)
        td_loss = (taken - wanted).square().mean(-1).sum()
        others = critics(batch, actions) - log_densities
        scaled = torch.logsumexp(others / options.temperature, 1) * options.temperature
        gaps = options.min_q_weight * (scaled - taken).mean(-1)
        metrics = {"td_loss": td_loss, "mean_q": taken.mean(), "conservative_gap": (scaled - taken).mean()}
        if not options.lagrangian:
            return Losses({"critics": td_loss + gaps.sum()}, metrics)
        weight = cast(LogWeight, nets["gap_weight"])().clamp(max=_MOST_WEIGHT)
        excess = gaps - options.lagrangian_thresh
        losses = {
            "critics": td_loss + (weight.detach() * excess).sum(),
            "gap_weight": -0.5 * (weight * excess.detach()).sum(),
        }
        return Losses(losses, {**metrics, "gap_weight": weight}, joint=True)

    def _samples(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """`[3 N, B, *shape]` actions, `[3 N, B]` their log-densities; and `[B]` what the critics are regressed on."""
        count, policy = self.options.num_actions, cast(RLModule, nets["policy"])
        within, following = cast(ActionRange, nets["range"]), at_next(batch)
        own, own_logp = sampled(policy, batch, step, count)
        later, later_logp = sampled(policy, following, step, count + 1)
        uniform = within.uniform(own_logp.numel(), step.generator).view_as(own)
        actions = torch.cat([uniform, own, later[1:]])
        log_densities = torch.cat([within.log_density().expand_as(own_logp), own_logp, later_logp[1:]])
        values: Tensor = nets["target_critics"](following, later[0]).amin(0)
        if not self.options.deterministic_backup:
            values = values - cast(LogWeight, nets["alpha"])() * later_logp[0]
        return actions, log_densities, bootstrapped(batch, values)

    def _policy_losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Losses:
        policy, alpha = cast(RLModule, nets["policy"]), cast(LogWeight, nets["alpha"])
        actions, logp = sampled(policy, batch, step, 1)
        if step.updates < self.options.bc_iters:
            inputs = policy.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
            worth = policy.distribution(inputs).logp(batch[Columns.ACTIONS])
        else:
            worth = cast(Critics, nets["critics"])(batch, actions[0]).amin(0)
        policy_loss = (alpha().detach() * logp[0] - worth).mean()
        entropy = -logp.detach().mean()
        alpha_loss = alpha.log * (entropy - self._target_entropy(cast(ActionRange, nets["range"])))
        metrics = {"policy_loss": policy_loss, "alpha_loss": alpha_loss, "alpha": alpha(), "entropy": entropy}
        return Losses({"policy": policy_loss, "alpha": alpha_loss}, metrics, joint=True)

    def _target_entropy(self, within: ActionRange) -> Tensor | float:
        if self.options.target_entropy is not None:
            return self.options.target_entropy
        return (within.half_range.log() - 1.0).sum()


class LogWeight(nn.Module):
    """A positive number that is trained by its logarithm.

    Args:
        start: its value at the start.

    Attributes:
        log: the parameter.
    """

    def __init__(self, start: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(start)))

    def forward(self) -> Tensor:
        """The number, a scalar."""
        return self.log.exp()


def sampled(policy: RLModule, batch: Tensors, step: Step, count: int) -> tuple[Tensor, Tensor]:
    """`[count, B, *shape]` actions of the policy and `[count, B]` their log-densities; gradients go through both."""
    inputs = policy.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
    shape = (count, len(inputs), policy.action_head.noise_size)
    noise = torch.randn(shape, generator=step.generator, device=inputs.device)
    actions, logp = policy.distribution(inputs.expand(count, *inputs.shape)).sample_with_logp(noise)
    return cast(Tensor, actions), logp
