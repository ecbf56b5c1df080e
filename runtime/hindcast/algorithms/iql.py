"""IQL: implicit Q-learning, which evaluates recorded actions only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, cast

import gymnasium as gym
import torch
from pydantic import Field
from torch import Tensor, nn

from hindcast.algorithms.actor_critic import ActorCritic, ActorCriticOptions
from hindcast.api.model import STOCHASTIC_DISTRIBUTIONS, ModelOptions
from hindcast.episodes.columns import Columns
from hindcast.learn.algorithm import Losses, ModelInputs, NonNegative, Step, Tensors
from hindcast.learn.batches import actions_of, batch_mean, compute_td_target, prepare_sequences
from hindcast.learn.model_defaults import regression_policy
from hindcast.learn.optimisers import OptimiserSpec, adam_specs
from hindcast.learn.schedules import Schedule
from hindcast.learn.streams import run_parallel
from hindcast.models.networks import next_observations
from hindcast.models.rl_module import RLModule


class IQLOptions(ActorCriticOptions):
    """Implicit Q-learning (arXiv 2110.06169), for actions of any kind.

    With u = min Q̄(s, a) - V(s), critics Q, target critics Q̄, and d = 1 where the episode terminated:
    L_V = E[|expectile - 1(u < 0)|·u²], L_Q = Σᵢ E[(r + gamma·(1 - d)·V(s') - Qᵢ(s, a))²],
    L_π = -E[min(exp(beta·u), weightClip)·log π(a|s)]. Each update steps V first; policy and critics use the new V
    and the old Q̄, which is updated last.

    Defaults are the paper's for locomotion. Its other tasks use expectile 0.9 and beta 10 (AntMaze), or beta 0.5
    (Adroit, Kitchen, with `model: {policy: {dropout: 0.1}}`). beta multiplies unscaled advantages: scale rewards so
    that returns are around 1,000.
    """

    actor_lr: Schedule = [[0.0, 3e-4, "cosine"], [256_000_000.0, 0.0]]
    """Learning rate of the policy (Adam): a number, or a schedule [[timestep, value], …]. A third item of a point says
    how the value changes up to the next point: Line (the default), Cosine or Step. The default decays to 0 over
    the paper's million updates of 256 timesteps."""
    value_lr: Schedule = 3e-4
    """Learning rate of V: a number or a schedule."""
    beta: NonNegative = 3.0
    """Inverse temperature: 0 is behaviour cloning, larger values are greedier."""
    expectile: Annotated[float, Field(gt=0, lt=1)] = 0.7
    """Expectile of Q over the recorded actions that V estimates: 0.5 is the mean, towards 1 the maximum."""
    twin_q: bool = True
    """Use the minimum of two critics (arXiv 1802.09477) instead of one critic."""
    weight_clip: Annotated[float, Field(gt=0)] = 100.0
    """Upper bound on the weights exp(beta·u)."""


class IQL(ActorCritic):
    """IQL; see `IQLOptions` for the objective."""

    Options = IQLOptions
    can_train_online = True
    can_train_recurrent = True
    distributions = STOCHASTIC_DISTRIBUTIONS
    compiled_methods = (
        "_target_q",
        "_v",
        "_dist_inputs",
        "_q",
        "_value_loss",
        "_policy_loss",
        "_critic_loss",
    )
    options: IQLOptions

    def model_defaults(self, action_space: gym.Space[Any] | None) -> ModelOptions:
        return regression_policy(action_space)

    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        policy = inputs.policy(value=False)
        critics = inputs.critics(members=2 if self.options.twin_q else 1)
        return nn.ModuleDict({"policy": policy, "value": inputs.state_value(), "critics": critics})

    def optimisers(self, nets: nn.ModuleDict) -> dict[str, OptimiserSpec]:
        options = self.options
        rates = {"policy": options.actor_lr, "value": options.value_lr, "critics": options.critic_lr}
        return adam_specs(nets, rates)

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Iterator[Losses]:  # noqa: ARG002
        batch = prepare_sequences(batch, self.options.n_step)
        target_q, v, dist_inputs, q = run_parallel(
            lambda: self._target_q(nets, batch),
            lambda: self._v(nets, batch),
            lambda: self._dist_inputs(nets, batch),
            lambda: self._q(nets, batch),
        )
        vf_loss, mean_v = self._value_loss(batch, target_q, v)
        yield Losses({"value": vf_loss}, {"vf_loss": vf_loss, "mean_v": mean_v})
        # V has been stepped: policy and critics use the new V, but Q̄ from before.
        with torch.no_grad():
            v, next_v = run_parallel(
                lambda: self._v(nets, batch), lambda: self._v(nets, next_observations(batch))
            )
        (policy_loss, policy_metrics), (critic_loss, critic_metrics) = run_parallel(
            lambda: self._policy_loss(nets, batch, dist_inputs, target_q - v),
            lambda: self._critic_loss(batch, q, next_v),
        )
        metrics = {"policy_loss": policy_loss, "critic_loss": critic_loss, **policy_metrics, **critic_metrics}
        yield Losses({"policy": policy_loss, "critics": critic_loss}, metrics, joint=True)

    @torch.no_grad()
    def _target_q(self, nets: nn.ModuleDict, batch: Tensors) -> Tensor:
        """Return min Q̄(s, a) `[B]` of the recorded actions."""
        return cast(Tensor, nets["target_critics"](batch).amin(0))

    def _v(self, nets: nn.ModuleDict, batch: Tensors) -> Tensor:
        return cast(Tensor, nets["value"](batch))

    def _dist_inputs(self, nets: nn.ModuleDict, batch: Tensors) -> Tensor:
        """Return the inputs of the policy's action distribution."""
        return cast(RLModule, nets["policy"]).forward_train(batch)[Columns.ACTION_DIST_INPUTS]

    def _q(self, nets: nn.ModuleDict, batch: Tensors) -> Tensor:
        """Return Q(s, a) `[E, B]` of the recorded actions."""
        return cast(Tensor, nets["critics"](batch))

    def _value_loss(self, batch: Tensors, target_q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss, and the mean of V."""
        losses = expectile_losses(target_q - v, self.options.expectile)
        return batch_mean(losses, batch), batch_mean(v, batch)

    def _policy_loss(
        self, nets: nn.ModuleDict, batch: Tensors, dist_inputs: Tensor, advantages: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        weights = (self.options.beta * advantages).exp().clamp(max=self.options.weight_clip)
        logp = cast(RLModule, nets["policy"]).distribution(dist_inputs).logp(actions_of(batch))
        metrics = {
            "mean_advantage": batch_mean(advantages, batch),
            "mean_weight": batch_mean(weights, batch),
        }
        return -batch_mean(weights * logp, batch), metrics

    def _critic_loss(self, batch: Tensors, q: Tensor, next_v: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        td_target = compute_td_target(batch, next_v)
        return batch_mean((q - td_target).square(), batch).sum(), {"mean_q": batch_mean(q, batch).mean()}


def expectile_losses(u: Tensor, expectile: float) -> Tensor:
    """Return |expectile - 1(u < 0)|·u², elementwise."""
    weights = torch.where(u < 0, 1.0 - expectile, expectile)
    return weights * u.square()
