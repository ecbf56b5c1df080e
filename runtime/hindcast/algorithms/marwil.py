"""MARWIL: monotonic advantage re-weighted imitation learning, cloning that prefers what turned out well."""

from __future__ import annotations

import math
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
from hindcast.learn.batches import actions_of
from hindcast.learn.gae import window_gae
from hindcast.learn.optimisers import OptimiserSpec
from hindcast.learn.schedules import Schedule
from hindcast.models.rl_module import RLModule
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.window import WindowData


class MARWILOptions(AlgorithmOptions):
    """Monotonic advantage re-weighted imitation learning (Wang et al., NeurIPS 2018).

    With the λ-return R of the whole episode, the advantage A = R - V(s) and its scale c, where c² follows E[A²]:
    L = -E[min(exp(beta·A/c), weightClip)·(log π(a|s) + bcLogstdCoeff·mean(log σ))] + vfCoeff·½E[A²].
    Weights have no gradient. The scale is that of the updates before: the first update weighs all alike.
    A beta of 0 is behaviour cloning with a value function beside it.

    Defaults are RLlib's, but that the scale follows the data (RLlib's start of 100 and rate of 1e-8 are
    a constant of 10, whatever the returns are), and that weights are clipped at 20 (arXiv 1910.00177).
    """

    lr: Schedule = 1e-4
    """Learning rate of Adam, or points [[timestep, value], …], joined by lines or as a third item says: line,
    cosine, step."""
    beta: NonNegative = 1.0
    """How much more is imitated what turned out better than expected; 0 imitates everything alike."""
    gamma: Fraction = 0.99
    """Discount of future rewards."""
    lambda_: Fraction = Field(default=1.0, alias="lambda")
    """λ of the returns: 1 takes the recorded rewards to the episode's end, 0 one of them and the value after it."""
    vf_coeff: NonNegative = 1.0
    """Weight of the value loss."""
    weight_clip: AboveZero | None = 20.0
    """Bound of the weights exp(beta·A/c); null for none."""
    bc_logstd_coeff: NonNegative = 0.0
    """Weight of the mean log standard deviation beside the log-likelihood: over 0 keeps Gaussian policies wide."""
    moving_average_sqd_adv_norm_start: AboveZero | None = None
    """Where c² starts; null for the mean of the updates so far."""
    moving_average_sqd_adv_norm_update_rate: Annotated[float, Field(gt=0, le=1)] = 1e-2
    """How far each update moves c² to its batch's mean of A²."""
    targets_every: Positive | None = 1000
    """Updates after which the returns, as far as they rest on V, are computed anew; null for only when a window of the
    data is entered."""


class MARWIL(Algorithm):
    """MARWIL; see `MARWILOptions` for the objective."""

    Options = MARWILOptions
    options: MARWILOptions

    def needs(self) -> Needs:
        return Needs(
            columns=frozenset({Columns.OBS, Columns.ACTIONS, Columns.REWARDS}),
            targets=True,
            targets_every=self.options.targets_every,
        )

    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        policy, options = inputs.policy(value=True), self.options
        if not policy.action_head.stochastic:
            raise SpecError(
                "model.distribution is 'deterministic', and MARWIL weighs log-likelihoods: use 'gaussian' or "
                "'squashedGaussian'."
            )
        if options.bc_logstd_coeff and not policy.action_head.log_std_columns:
            raise SpecError(
                "config.bcLogstdCoeff is of Gaussian policies, and the actions are discrete: leave it at 0."
            )
        start, rate = (
            options.moving_average_sqd_adv_norm_start,
            options.moving_average_sqd_adv_norm_update_rate,
        )
        return nn.ModuleDict({"policy": policy, "scale": AdvantageScale(start, rate)})

    def optimisers(self, nets: nn.ModuleDict) -> dict[str, OptimiserSpec]:
        return {"policy": OptimiserSpec(list(nets["policy"].parameters()), self.options.lr)}

    def targets(self, nets: nn.ModuleDict, window: WindowData) -> Tensors:
        values_O = window.over_observations(cast(RLModule, nets["policy"]).compute_values)
        _, returns = window_gae(window, values_O, self.options.gamma, self.options.lambda_)
        return {Columns.VALUE_TARGETS: returns}

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Losses:  # noqa: ARG002
        options = self.options
        policy, scale = cast(RLModule, nets["policy"]), cast(AdvantageScale, nets["scale"])
        outputs = policy.forward_train(batch)
        inputs = outputs[Columns.ACTION_DIST_INPUTS]
        likelihood = policy.distribution(inputs).logp(actions_of(batch))
        if options.bc_logstd_coeff:
            log_stds = inputs[..., list(policy.action_head.log_std_columns)]
            likelihood = likelihood + options.bc_logstd_coeff * log_stds.mean(-1)
        advantages = batch[Columns.VALUE_TARGETS] - outputs[Columns.VF_PREDS]
        seen = advantages.detach()
        weights = torch.exp(options.beta * scale(seen)).clamp(max=options.weight_clip or math.inf)
        policy_loss = -(weights * likelihood).mean()
        vf_loss = 0.5 * advantages.square().mean()
        metrics = {
            "policy_loss": policy_loss,
            "vf_loss": vf_loss,
            "mean_weight": weights.mean(),
            "advantage_scale": scale.scale(),
        }
        scale.follow(seen)
        return Losses({"policy": policy_loss + options.vf_coeff * vf_loss}, metrics)


class AdvantageScale(nn.Module):
    """The root of a moving average of squared advantages.

    Args:
        start: of the average; None weighs what was seen alone, as Adam corrects its averages' bias.
        rate: how far an update moves it.
    """

    _mean_square: Tensor
    _weight: Tensor

    def __init__(self, start: float | None, rate: float) -> None:
        super().__init__()
        self._rate = rate
        self.register_buffer("_mean_square", torch.tensor(start or 0.0))
        self.register_buffer("_weight", torch.tensor(1.0 if start else 0.0))

    def forward(self, advantages: Tensor) -> Tensor:
        """Advantages over their scale; 0 where there is none yet."""
        return torch.where(self._weight > 0, advantages / (self.scale() + 1e-8), 0.0)

    def scale(self) -> Tensor:
        """c, a scalar."""
        return (self._mean_square / self._weight.clamp(min=1e-8)).sqrt()

    def follow(self, advantages: Tensor) -> None:
        """Take an update's advantages into the average. The mean over several learners is the learner's matter."""
        self._mean_square.lerp_(advantages.square().mean(), self._rate)
        self._weight.lerp_(torch.ones_like(self._weight), self._rate)
