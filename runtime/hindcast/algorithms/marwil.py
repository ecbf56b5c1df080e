"""MARWIL: monotonic advantage re-weighted imitation learning, behaviour cloning weighted by advantages."""

from __future__ import annotations

import math
from typing import Any, cast

import gymnasium as gym
import torch
from pydantic import Field
from torch import Tensor, nn

from hindcast.api.base import Positive
from hindcast.api.model import STOCHASTIC_DISTRIBUTIONS, ModelOptions
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
from hindcast.learn.batches import actions_of, batch_mean, fill_padding
from hindcast.learn.gae import window_gae
from hindcast.learn.model_defaults import has_bounded_actions, regression_policy
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.learn.schedules import Schedule
from hindcast.models.rl_module import RLModule
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.window import WindowData


class MARWILOptions(AlgorithmOptions):
    """Monotonic advantage re-weighted imitation learning (Wang et al., NeurIPS 2018).

    With the λ-return R of the whole episode, the advantage A = R - V(s) and its scale c, where c² follows E[A²]:
    L = -E[min(exp(beta·A/c), weightClip)·(log π(a|s) + bcLogstdCoeff·mean(log σ))] + vfCoeff·½E[A²].
    No gradient flows through the weights. The scale comes from previous updates, so without an initial value of c² the
    first update weights all samples equally. With beta = 0 this is behaviour cloning plus a value function.

    Defaults are RLlib's, with four exceptions: the networks for bounded continuous actions are those of IQL's paper
    (on a log of Pendulum controllers, the policy's return is -166 instead of -376), the scale follows the data (RLlib's
    start of 100 and rate of 1e-8 amount to a constant 10, whatever the returns are), weights are clipped at 20
    (arXiv 1910.00177), and a batch has 1024 timesteps instead of 2000, for more updates per pass over the data.
    """

    lr: Schedule = 1e-4
    """Learning rate of Adam: a number, or a schedule [[timestep, value], …]. A third item of a point says how the
    value changes up to the next point: Line (the default), Cosine or Step."""
    beta: NonNegative = 1.0
    """Exponential weight of the advantages: larger values favour actions that did better than expected; 0 is behaviour
    cloning."""
    gamma: Fraction = 0.99
    """Discount factor."""
    lambda_: Fraction = Field(default=1.0, alias="lambda")
    """λ of the returns: 1 uses all recorded rewards to the end of the episode, 0 one reward and the value after it."""
    vf_coeff: NonNegative = 1.0
    """Weight of the value loss."""
    weight_clip: AboveZero | None = 20.0
    """Upper bound on the weights exp(beta·A/c); null for no bound."""
    bc_logstd_coeff: NonNegative = 0.0
    """Weight of the mean log standard deviation, added to the log-likelihood: above 0 keeps Gaussian policies wide."""
    moving_average_sqd_adv_norm_start: AboveZero | None = Field(
        default=None, json_schema_extra={"x-only-with": "beta"}
    )
    """Initial value of c²; with null there is none: c² is the bias-corrected average of the updates so far, as in
    Adam."""
    moving_average_sqd_adv_norm_update_rate: float = Field(
        default=1e-2, gt=0, le=1, json_schema_extra={"x-only-with": "beta"}
    )
    """Moving-average rate: c² ← (1 - rate)·c² + rate·mean(A²) with each batch."""
    targets_every: Positive | None = 1000
    """Updates between two recomputations of the returns, which depend on V; null recomputes them only when a new window
    of the data is entered."""


class MARWIL(Algorithm):
    """MARWIL; see `MARWILOptions` for the objective."""

    Options = MARWILOptions
    is_capturable = True
    can_train_recurrent = True
    distributions = STOCHASTIC_DISTRIBUTIONS
    options: MARWILOptions

    def needs(self) -> Needs:
        return Needs(
            columns=frozenset({Columns.OBS, Columns.ACTIONS, Columns.REWARDS}),
            targets=True,
            targets_every=self.options.targets_every,
        )

    def model_defaults(self, action_space: gym.Space[Any] | None) -> ModelOptions:
        return regression_policy(action_space) if has_bounded_actions(action_space) else ModelOptions()

    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        policy, options = inputs.policy(value=True), self.options
        if options.bc_logstd_coeff and not policy.action_head.log_std_columns:
            raise SpecError(
                "config.bcLogstdCoeff applies to Gaussian policies only, but the actions are discrete: leave it at 0."
            )
        start = options.moving_average_sqd_adv_norm_start
        rate = options.moving_average_sqd_adv_norm_update_rate
        return nn.ModuleDict({"policy": policy, "scale": AdvantageScale(start, rate)})

    def optimisers(self, nets: nn.ModuleDict) -> dict[str, OptimiserSpec]:
        return {"policy": OptimiserSpec(list(nets["policy"].parameters()), self.options.lr)}

    def targets(self, nets: nn.ModuleDict, window: WindowData) -> Tensors:
        policy = cast(RLModule, nets["policy"])
        map_values = window.map_episodes if policy.is_stateful() else window.map_observations
        values_O = map_values(policy.compute_values)
        _, returns = window_gae(window, values_O, self.options.gamma, self.options.lambda_)
        return {Columns.VALUE_TARGETS: returns}

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Losses:  # noqa: ARG002
        options = self.options
        policy, scale = cast(RLModule, nets["policy"]), cast(AdvantageScale, nets["scale"])
        batch = fill_padding(batch)
        outputs = policy.forward_train(batch)
        dist_inputs = outputs[Columns.ACTION_DIST_INPUTS]
        logp = policy.distribution(dist_inputs).logp(actions_of(batch))
        if options.bc_logstd_coeff:
            log_stds = dist_inputs[..., list(policy.action_head.log_std_columns)]
            log_stds = log_stds.clamp(*policy.model_config.log_std_range)
            logp = logp + options.bc_logstd_coeff * log_stds.mean(-1)
        advantages = batch[Columns.VALUE_TARGETS] - outputs[Columns.VF_PREDS]
        detached_advantages = advantages.detach()
        # The scale is that of the previous updates; `scale.update` adds this update's advantages below.
        weights = torch.exp(options.beta * scale(detached_advantages)).clamp(
            max=options.weight_clip or math.inf
        )
        policy_loss = -batch_mean(weights * logp, batch)
        mean_square = batch_mean(advantages.square(), batch)
        vf_loss = 0.5 * mean_square
        metrics = {
            "policy_loss": policy_loss,
            "vf_loss": vf_loss,
            "mean_weight": batch_mean(weights, batch),
            "advantage_scale": scale.scale(),
        }
        scale.update(mean_square.detach())
        return Losses({"policy": policy_loss + options.vf_coeff * vf_loss}, metrics)


class AdvantageScale(nn.Module):
    """The scale c of advantages: the square root of a moving average of their squares.

    Args:
        initial_mean_square: initial value of the average, above 0; None starts without one and corrects the bias of the
            first updates, as Adam does.
        rate: weight of each new value in the average.
    """

    _mean_square: Tensor
    _weight: Tensor

    def __init__(self, initial_mean_square: float | None, rate: float) -> None:
        super().__init__()
        self._rate = rate
        self.register_buffer("_mean_square", torch.tensor(initial_mean_square or 0.0))
        self.register_buffer("_weight", torch.tensor(1.0 if initial_mean_square else 0.0))

    def forward(self, advantages: Tensor) -> Tensor:
        """Return advantages divided by their scale; 0 while there is no average yet."""
        return torch.where(self._weight > 0, advantages / (self.scale() + 1e-8), 0.0)

    def scale(self) -> Tensor:
        """Return c, a scalar; 0 while there is no average yet."""
        return (self._mean_square / self._weight.clamp(min=1e-8)).sqrt()

    def update(self, mean_square: Tensor) -> None:
        """Add an update's mean squared advantage to the average.

        The learner averages the buffers over the learners of a group.
        """
        self._mean_square.lerp_(mean_square, self._rate)
        self._weight.lerp_(torch.ones_like(self._weight), self._rate)
