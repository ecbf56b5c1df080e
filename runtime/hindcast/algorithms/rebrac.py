"""ReBRAC: TD3+BC with a behaviour penalty in the critics' targets too, and layer-normalised critics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

import gymnasium as gym
import torch
from torch import Tensor, nn

from hindcast.algorithms.td3_bc import TD3, TD3Options, policy_actions
from hindcast.api.base import Positive
from hindcast.api.model import LayerOptions, ModelOptions
from hindcast.episodes.columns import Columns
from hindcast.learn.algorithm import Losses, ModelInputs, Step, Tensors
from hindcast.learn.schedules import Schedule, ScheduledValue, is_constant
from hindcast.models.action_head import ActionRange
from hindcast.models.networks import Critics
from hindcast.models.rl_module import RLModule
from hindcast.pipeline.needs import Needs

_ACTOR_BETA: Final = "actor_beta"
_CRITIC_BETA: Final = "critic_beta"


class ReBRACOptions(TD3Options):
    """ReBRAC (arXiv 2305.09836), for bounded continuous actions, in units of half their range.

    With critics Q, target critics Q̄, target policy π̄, d = 1 where the episode terminated, a' the recorded action
    in s', and ã = π̄(s') + ε, ε clipped normal noise:
    L_Q = Σᵢ E[(r + gamma·(1 - d)·(min Q̄(s', ã) - criticBeta·|ã - a'|²) - Qᵢ(s, a))²];
    L_π = E[actorBeta·|π(s) - a|² - w·min Q(s, π(s))], w = 1 / mean|min Q| with normalizeQ, otherwise 1, every
    policyDelay updates, followed by the target networks. Where an episode was truncated or its recording ends, a' is
    unknown, and there is no penalty.

    Defaults are the paper's for locomotion. It tunes both betas per dataset, actorBeta from 0.001 to 0.1 and criticBeta
    from 0 to 0.5; the defaults are those of CORL for Hopper-medium. The critics' layer normalisation precedes the
    activation, in the authors' code it follows it.
    """

    train_batch_size_per_learner: Positive = 1024
    """Timesteps in one learner's batch; the global batch is this times the number of learners."""
    actor_lr: Schedule = 1e-3
    """Learning rate of the policy (Adam): a number, or a schedule [[timestep, value], …]. A third item of a point says
    how the value changes up to the next point: Line (the default), Cosine or Step."""
    critic_lr: Schedule = 1e-3
    """Learning rate of the critics: a number or a schedule."""
    actor_beta: Schedule = 0.01
    """Weight of behaviour cloning relative to the critics: larger values stay closer to the data. A number or a
    schedule; the paper halves both betas while it learns on online."""
    critic_beta: Schedule = 0.01
    """Weight of the penalty on next actions that differ from the recorded ones: a number or a schedule."""
    normalize_q: bool = True
    """Divide the Q term of the policy loss by the mean absolute Q, so that the betas do not depend on the reward
    scale."""


class ReBRAC(TD3):
    """ReBRAC; see `ReBRACOptions` for the objective."""

    Options = ReBRACOptions
    options: ReBRACOptions

    def model_defaults(self, action_space: gym.Space[Any] | None) -> ModelOptions:  # noqa: ARG002
        # Layer normalisation keeps the critics' values from diverging.
        return ModelOptions(
            fcnet_hiddens=[256, 256, 256], fcnet_activation="relu", critics=LayerOptions(layer_norm=True)
        )

    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        nets = super().networks(inputs)
        for name, beta in self._betas.items():
            if not is_constant(beta):
                nets[name] = ScheduledValue(beta)
        return nets

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Iterator[Losses]:
        scheduled_betas = {name: nets[name](step.clock) for name in self._betas if name in nets}
        yield from super().losses(nets, {**batch, **scheduled_betas}, step)

    @property
    def _betas(self) -> dict[str, Schedule]:
        return {_ACTOR_BETA: self.options.actor_beta, _CRITIC_BETA: self.options.critic_beta}

    def _beta(self, name: str, batch: Tensors) -> Tensor | float:
        """Return the value of a beta in this update; `losses` adds scheduled ones to the batch."""
        return batch[name] if name in batch else cast(float, self._betas[name])

    def needs(self) -> Needs:
        return super().needs().with_columns(frozenset({Columns.NEXT_ACTIONS}))

    def _penalty(self, batch: Tensors, actions: Tensor, action_range: ActionRange) -> Tensor:
        squared_distance = _squared_distance(actions, batch[Columns.NEXT_ACTIONS], action_range)
        # The last step of a truncated episode or a recording has no recorded next action.
        return self._beta(_CRITIC_BETA, batch) * torch.where(batch[Columns.FOLLOWED], squared_distance, 0.0)

    def _policy_loss(self, nets: nn.ModuleDict, batch: Tensors) -> Losses:
        critics, action_range = cast(Critics, nets["critics"]), cast(ActionRange, nets["range"])
        actions = policy_actions(cast(RLModule, nets["policy"]), batch)
        q = self.combine(critics(batch, actions))
        scale = q.detach().abs().mean() if self.options.normalize_q else 1.0
        cloning_loss = _squared_distance(actions, batch[Columns.ACTIONS], action_range).mean()
        policy_loss = self._beta(_ACTOR_BETA, batch) * cloning_loss - q.mean() / scale
        return Losses({"policy": policy_loss}, {"policy_loss": policy_loss, "cloning_loss": cloning_loss})


def _squared_distance(actions: Tensor, other_actions: Tensor, action_range: ActionRange) -> Tensor:
    """Return the squared distance `[B]` between actions `[B, *shape]`, in units of half their range."""
    return ((actions - other_actions) / action_range.half_range).square().flatten(1).sum(-1)
