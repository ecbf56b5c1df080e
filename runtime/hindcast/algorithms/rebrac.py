"""ReBRAC: TD3+BC with a penalty in the critics' targets too, and critics that are normalised."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from hindcast.algorithms.td3_bc import TD3, TD3Options, chosen
from hindcast.api.base import Positive
from hindcast.episodes.columns import Columns
from hindcast.learn.algorithm import Losses, ModelInputs, NonNegative, Tensors
from hindcast.learn.schedules import Schedule
from hindcast.models.bounded_actions import ActionRange
from hindcast.models.networks import Critics
from hindcast.models.rl_module import RLModule
from hindcast.pipeline.needs import Needs


class ReBRACOptions(TD3Options):
    """ReBRAC (arXiv 2305.09836), for continuous actions with bounds. Actions are counted in half their range.

    With twin critics Q of which Q̄ is the slow copy, π̄ that of the policy, d = 1 where the episode terminated, a' the
    recorded action in s', and ã = π̄(s') + ε, ε normal, clipped:
    L_Q = Σᵢ E[(r + gamma·(1 - d)·(min Q̄(s', ã) - criticBeta·|ã - a'|²) - Qᵢ(s, a))²];
    L_π = E[actorBeta·|π(s) - a|² - w·min Q(s, π(s))], w = 1 / mean|min Q| with normalizeQ and else 1, every policyDelay
    updates, after which both copies follow. Where an episode was truncated, or its recording stops, no a' is known, and
    there is no penalty.

    Defaults are the paper's for locomotion. It chooses both betas for each dataset, from 0.001 to 0.1 and from 0 to
    0.5; the defaults are those of its code for Hopper-medium. Its networks: `model: {fcnetHiddens: [256, 256, 256],
    fcnetActivation: relu}`.
    """

    train_batch_size_per_learner: Positive = 1024
    """Timesteps in one learner's batch; the global batch is this times the number of learners."""
    actor_lr: Schedule = 1e-3
    """Learning rate of the policy's Adam, or points [[timestep, value], …], joined by lines or as a third item says:
    line, cosine, step."""
    critic_lr: Schedule = 1e-3
    """Learning rate of the critics, or points."""
    actor_beta: NonNegative = 0.01
    """Weight of imitation beside the critics: more clones."""
    critic_beta: NonNegative = 0.01
    """Weight of the penalty on values of actions that are far from those recorded next."""
    normalize_q: bool = True
    """Divide the critics' part of the policy's loss by their mean absolute value, so that betas do not depend on the
    scale of rewards."""
    critic_layer_norm: bool = True
    """Normalise each layer of the critics (arXiv 1607.06450), which keeps their values from diverging."""


class ReBRAC(TD3):
    """ReBRAC; see `ReBRACOptions` for the objective."""

    Options = ReBRACOptions
    options: ReBRACOptions

    def needs(self) -> Needs:
        return super().needs().with_columns(frozenset({Columns.NEXT_ACTIONS}))

    def _critics(self, inputs: ModelInputs) -> Critics:
        return inputs.critics(members=2, layer_norm=self.options.critic_layer_norm)

    def _penalty(self, batch: Tensors, actions: Tensor, within: ActionRange) -> Tensor:
        far = _distance(actions, batch[Columns.NEXT_ACTIONS], within)
        return self.options.critic_beta * torch.where(batch[Columns.FOLLOWED], far, 0.0)

    def _policy_loss(self, nets: nn.ModuleDict, batch: Tensors) -> Losses:
        critics, within = cast(Critics, nets["critics"]), cast(ActionRange, nets["range"])
        actions = chosen(cast(RLModule, nets["policy"]), batch)
        values = critics(batch, actions).amin(0)
        scale = values.detach().abs().mean() if self.options.normalize_q else 1.0
        cloning = _distance(actions, batch[Columns.ACTIONS], within).mean()
        policy_loss = self.options.actor_beta * cloning - values.mean() / scale
        return Losses({"policy": policy_loss}, {"policy_loss": policy_loss, "cloning_loss": cloning})


def _distance(actions: Tensor, recorded: Tensor, within: ActionRange) -> Tensor:
    """`[B]` the squared distance of actions `[B, *shape]`, in half their range."""
    return ((actions - recorded) / within.half_range).square().flatten(1).sum(-1)
