"""Fitted Q evaluation: a model of a policy's value in each state (Le, Voloshin, Yue 2019, arXiv 1903.08738).

Shapes: B = batch, E = members of the ensemble, K = actions in a state, N = episodes, S = steps of a
window.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hindcast.api.model import ModelSpec
from hindcast.evaluate.estimators import Values
from hindcast.evaluate.fitting import FitOptions, fit
from hindcast.evaluate.recorded_episodes import map_steps, steps_of_episodes
from hindcast.evaluate.target_policy import Batch, TargetPolicy
from hindcast.learn.batches import compute_td_target
from hindcast.learn.target_networks import frozen_copy, polyak_update
from hindcast.models.networks import Critics, next_observations
from hindcast.pipeline.rng import derive_seed
from hindcast.pipeline.window import WindowData


@dataclass(frozen=True, kw_only=True)
class FittedQOptions(FitOptions):
    """Options of fitted Q evaluation.

    Attributes:
        updates, hiddens: see `FitOptions`.
        members: number of models fitted in parallel, each to a resample of the episodes. Their spread shows how much
            the fit depends on the sample of episodes.
        tau: update rate of the target networks.
        samples: number of actions to sample from the policy in each state, if its actions cannot be enumerated.
    """

    updates: int = 10_000
    members: int = 5
    tau: float = 0.05  # 10,000 updates forget the initial values if the discount is at most 0.99
    samples: int = 8
    hiddens: tuple[int, ...] = (128, 128)


class FittedQ:
    """Q of a target policy, fitted to recorded transitions: Q(s, a) ~ r + gamma·E[Q̄(s', π(s'))].

    Args:
        target: the policy to evaluate.
        window: the transitions; holds `new_obs` and `discounts`.
        episodes: `[N]` bool, the episodes of the window to fit to.
        options: options of the fit.
        seed: seed of weights, batches and resamples.
        check: called before each update with the number of updates so far; an exception from it ends the fit.
    """

    def __init__(
        self,
        target: TargetPolicy,
        window: WindowData,
        episodes: Tensor,
        options: FittedQOptions,
        *,
        seed: int,
        check: Callable[[int], None],
    ) -> None:
        module = target.module
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "weights"))
            model = ModelSpec(fcnet_hiddens=list(options.hiddens), fcnet_activation="relu")
            self._critics = Critics(module.observation_space, module.action_space, model, options.members)
        self._target_policy, self._options = target, options
        self._generator = torch.Generator().manual_seed(derive_seed(seed, "batches"))
        rewards = window.columns["rewards"].float()
        self._reward_scale = float(rewards.abs().mean()) or 1.0  # 1 if all rewards are 0
        self._min_value, self._max_value = _value_bounds(
            rewards / self._reward_scale, _largest_discount(window)
        )
        self._learn(window, steps_of_episodes(window, episodes), check)

    @torch.no_grad()
    def q(self, batch: Batch) -> Tensor:
        """Return Q `[B, E]` (float64) of the batch's actions."""
        return self._critics(batch).T.double() * self._reward_scale

    @torch.no_grad()
    def v(self, batch: Batch) -> Tensor:
        """Return V(s) = E[Q(s, π(s))] `[B, E]` (float64)."""
        return self._expected_q(self._critics, batch).T.double() * self._reward_scale

    @torch.no_grad()
    def half_way_v(self, batch: Batch) -> Tensor:
        """Return V(s) `[B, E]` (float64) as it was after half of the updates."""
        return self._expected_q(self._half_way_critics, batch).T.double() * self._reward_scale

    def _learn(self, window: WindowData, steps: Tensor, check: Callable[[int], None]) -> None:
        target_critics = cast(Critics, frozen_copy(self._critics))
        self._half_way_critics = self._critics  # replaced half way
        weights = self._draw_weights(window)

        def compute_loss(batch_steps: Tensor) -> Tensor:
            batch = window.gather(batch_steps)
            batch["rewards"] = batch["rewards"].float() / self._reward_scale
            targets = compute_td_target(batch, self._expected_q(target_critics, next_observations(batch)))
            errors = (self._critics(batch) - targets.clamp(self._min_value, self._max_value)).square()
            return (weights[:, batch_steps] * errors).mean(1).sum()

        for update in fit(
            self._critics, steps, self._options, compute_loss, generator=self._generator, check=check
        ):
            if update == self._options.updates // 2:
                self._half_way_critics = cast(Critics, frozen_copy(self._critics))
            polyak_update(target_critics, self._critics, self._options.tau)

    @torch.no_grad()
    def _expected_q(self, critics: Critics, batch: Batch) -> Tensor:
        """Return E[Q(s, π(s))] `[E, B]`, divided by the scale of the rewards."""
        actions, weights = self._target_policy.weighted_actions(batch, self._options.samples, self._generator)
        values: Tensor = critics(batch, actions)  # [E, K, B]
        return (values * weights).sum(1)

    def _draw_weights(self, window: WindowData) -> Tensor:
        """Draw the weights `[E, S]` of the steps for each member.

        All steps of an episode have one weight, which is drawn from Poisson(1) (Oza, Russell 2001).
        """
        ones = torch.ones(self._options.members, len(window.length))
        # A single member is fitted to the original episodes. Its counts are still drawn, because the batches come from
        # the same generator.
        counts = torch.poisson(ones, generator=self._generator)
        if self._options.members == 1:
            counts = ones
        return counts.repeat_interleave(window.length, dim=1)


def _largest_discount(window: WindowData) -> float | None:
    """Return the largest discount of a step: gamma, if all steps take one unit of time; None without a discount."""
    gamma = window.recipe.needs.gamma
    return gamma if gamma is None or window.delta_t is None else gamma ** float(window.delta_t.min())


def _value_bounds(rewards: Tensor, gamma: float | None) -> tuple[float, float]:
    """Return bounds of the return of any policy, if its rewards are in the range of the recorded ones.

    Rewards are 0 after a termination. The bounds are infinite if gamma is 1 or None (no discount).
    """
    # Without bounds, a model fitted to few data diverged to values of millions.
    if gamma is None or gamma >= 1:
        return -math.inf, math.inf
    horizon = 1 / (1 - gamma)
    return min(0.0, float(rewards.min())) * horizon, max(0.0, float(rewards.max())) * horizon


class CrossFitResult(NamedTuple):
    """Values of episodes by models that were not fitted to them.

    Attributes:
        values: values for the estimators.
        members: values by each member of the models, whose mean `values` are.
        has_first_model: `[N]` True for the episodes whose values come from the first model.
        spread: standard error of the mean initial value, from its variance over members of the models and over initial
            states. NaN if the models have a single member.
        drift: absolute change of the mean initial value in the second half of the updates.
    """

    values: Values
    members: list[Values]
    has_first_model: NDArray[np.bool_]
    spread: float
    drift: float


def cross_fit(
    target: TargetPolicy, window: WindowData, options: FittedQOptions, seed: int, check: Callable[[int], None]
) -> CrossFitResult:
    """Fit two models, each to half of the episodes, and apply each to the other half.

    Kallus, Uehara 2020 (arXiv 1908.08526).

    Args:
        target: the policy to evaluate.
        window: at least two episodes.
        options: options of the fits.
        seed: seed of the halves and the fits.
        check: see `FittedQ`; called with the number of updates of both fits so far.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "halves"))
    permutation = torch.randperm(len(window.length), generator=generator)
    first_half = torch.zeros(len(window.length), dtype=torch.bool)
    first_half[permutation[: len(permutation) // 2]] = True
    q = torch.zeros(window.num_steps, options.members, dtype=torch.float64)
    v = torch.zeros(window.num_steps + len(first_half), options.members, dtype=torch.float64)
    variance = torch.zeros((), dtype=torch.float64)
    drift = 0.0
    first_steps = window.length.cumsum(0) - window.length
    for half_index, (fit_half, evaluation_half) in enumerate(
        ((first_half, ~first_half), (~first_half, first_half))
    ):
        model = FittedQ(
            target,
            window,
            fit_half,
            options,
            seed=derive_seed(seed, "half", half_index),
            check=partial(_check_with_offset, check, half_index * options.updates),
        )
        # [S + N, E], as each episode has a final observation
        member_values = window.map_observations(model.v)
        v = torch.where(evaluation_half.repeat_interleave(window.length + 1).unsqueeze(1), member_values, v)
        is_evaluated = evaluation_half.repeat_interleave(window.length).unsqueeze(1)
        q = torch.where(is_evaluated, map_steps(window, model.q), q)
        start_values = member_values[window.obs_start][evaluation_half].mean(0)
        # The mean over all episodes weights the mean over a half with the half's share of the episodes.
        share = evaluation_half.double().mean()
        variance += start_values.var() * share**2
        half_way_values = map_steps(window, model.half_way_v, first_steps[evaluation_half])
        drift += float((start_values.mean() - half_way_values.mean()) * share)
    start_v = v[window.obs_start].mean(1)
    spread = (variance + start_v.var() / len(start_v)).sqrt()
    values = _make_values(window, q.mean(1), v.mean(1))
    members = [_make_values(window, q[:, member], v[:, member]) for member in range(options.members)]
    return CrossFitResult(values, members, (~first_half).numpy(), float(spread), abs(drift))


def _make_values(window: WindowData, q: Tensor, v: Tensor) -> Values:
    """Return the values of steps and final observations from Q `[S]` and V `[S + N]`."""
    final_v = v[window.obs_start + window.length].masked_fill(window.terminated, 0.0)
    return Values(q.numpy(), v[window.obs_row].numpy(), final_v.numpy())


def _check_with_offset(check: Callable[[int], None], offset: int, update: int) -> None:
    check(offset + update)
