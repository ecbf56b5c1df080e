"""Fitted Q evaluation: a model of a policy's value in each state (Le, Voloshin, Yue 2019, arXiv 1903.08738)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

import torch
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
class Fit(FitOptions):
    """Options of the fit of a model.

    Attributes:
        members: number of models fitted in parallel, each to a resample of the episodes. Their spread shows how much
            the fit depends on the sample of episodes.
        tau: update rate of the target networks.
        samples: number of the policy's actions per state, if they cannot be listed.
    """

    updates: int = 10_000
    members: int = 5
    tau: float = 0.05  # after 10,000 updates nothing of the initial values is left, up to a discount of 0.99
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
        check: called before each update with its number; an exception from it ends the fit.
    """

    def __init__(
        self,
        target: TargetPolicy,
        window: WindowData,
        episodes: Tensor,
        options: Fit,
        *,
        seed: int,
        check: Callable[[int], None],
    ) -> None:
        module = target.module
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "weights"))
            model = ModelSpec(fcnet_hiddens=list(options.hiddens), fcnet_activation="relu")
            self._critics = Critics(module.observation_space, module.action_space, model, options.members)
        self._target, self._fit = target, options
        self._generator = torch.Generator().manual_seed(derive_seed(seed, "batches"))
        rewards = window.columns["rewards"].float()
        self._scale = float(rewards.abs().mean()) or 1.0
        self._min_value, self._max_value = _value_bounds(rewards / self._scale, window.recipe.needs.gamma)
        self._learn(window, steps_of_episodes(window, episodes), check)

    @torch.no_grad()
    def q(self, batch: Batch) -> Tensor:
        """Return Q `[B, E]` (float64) of the batch's actions."""
        return self._critics(batch).T.double() * self._scale

    @torch.no_grad()
    def v(self, batch: Batch) -> Tensor:
        """Return V(s) = E[Q(s, π(s))] `[B, E]` (float64)."""
        return self._expected_q(self._critics, batch).T.double() * self._scale

    def _learn(self, window: WindowData, steps: Tensor, check: Callable[[int], None]) -> None:
        target = cast(Critics, frozen_copy(self._critics))
        weights = self._draw_weights(window)

        def loss(batch_steps: Tensor) -> Tensor:
            batch = window.gather(batch_steps)
            batch["rewards"] = batch["rewards"].float() / self._scale
            targets = compute_td_target(batch, self._expected_q(target, next_observations(batch)))
            errors = (self._critics(batch) - targets.clamp(self._min_value, self._max_value)).square()
            return (weights[:, batch_steps] * errors).mean(1).sum()

        for _ in fit(self._critics, steps, self._fit, loss, generator=self._generator, check=check):
            polyak_update(target, self._critics, self._fit.tau)

    @torch.no_grad()
    def _expected_q(self, critics: Critics, batch: Batch) -> Tensor:
        """Return E[Q(s, π(s))] `[E, B]` in units of the scale."""
        actions, weights = self._target.weighted_actions(batch, self._fit.samples, self._generator)
        values: Tensor = critics(batch, actions)
        return (values * weights).sum(1)

    def _draw_weights(self, window: WindowData) -> Tensor:
        """Draw the weight `[E, S]` of each step's episode in each member: Poisson(1) (Oza, Russell 2001)."""
        rates = torch.ones(self._fit.members, len(window.length))
        # Drawn for a single member too: the batches continue with the same generator.
        counts = torch.poisson(rates, generator=self._generator)
        if self._fit.members == 1:
            counts = rates
        return counts.repeat_interleave(window.length, dim=1)


def _value_bounds(rewards: Tensor, gamma: float | None) -> tuple[float, float]:
    """Return the least and greatest discounted sum of rewards within the recorded range."""
    # Without bounds, a model of few data diverged to values of millions.
    if gamma is None or gamma >= 1:
        return -math.inf, math.inf
    horizon = 1 / (1 - gamma)
    return min(0.0, float(rewards.min())) * horizon, max(0.0, float(rewards.max())) * horizon


class CrossFitResult(NamedTuple):
    """Values of episodes by models that were not fitted to them.

    Attributes:
        values: values for the estimators.
        spread: standard deviation of the mean initial value, over members of the models and over initial states. NaN
            if the models have a single member.
    """

    values: Values
    spread: float


def cross_fit(
    target: TargetPolicy, window: WindowData, options: Fit, seed: int, check: Callable[[int], None]
) -> CrossFitResult:
    """Fit two models, each to half of the episodes, and apply each to the other half.

    Kallus, Uehara 2020 (arXiv 1908.08526).

    Args:
        target: the policy to evaluate.
        window: at least two episodes.
        options: options of the fits.
        seed: seed of the halves and the fits.
        check: see `FittedQ`; called with the number of updates of both fits.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "halves"))
    order = torch.randperm(len(window.length), generator=generator)
    first_half = torch.zeros(len(window.length), dtype=torch.bool)
    first_half[order[: len(order) // 2]] = True
    q = torch.zeros(window.num_steps, dtype=torch.float64)
    v = torch.zeros(window.num_steps + len(first_half), dtype=torch.float64)
    variance = torch.zeros((), dtype=torch.float64)
    for number, (fit_half, evaluation_half) in enumerate(
        ((first_half, ~first_half), (~first_half, first_half))
    ):
        model = FittedQ(
            target,
            window,
            fit_half,
            options,
            seed=derive_seed(seed, "half", number),
            check=partial(_check_with_offset, check, number * options.updates),
        )
        member_values = window.map_observations(model.v)
        v = torch.where(evaluation_half.repeat_interleave(window.length + 1), member_values.mean(1), v)
        mean_q = map_steps(window, model.q).mean(1)
        q = torch.where(evaluation_half.repeat_interleave(window.length), mean_q, q)
        start_values = member_values[window.obs_start][evaluation_half].mean(0)
        variance += start_values.var() * evaluation_half.double().mean() ** 2
    final_v = v[window.obs_start + window.length].masked_fill(window.terminated, 0.0)
    starts = v[window.obs_start]
    spread = (variance + starts.var() / len(starts)).sqrt()
    values = Values(q.numpy(), v[window.obs_row].numpy(), final_v.numpy())
    return CrossFitResult(values, float(spread))


def _check_with_offset(check: Callable[[int], None], offset: int, update: int) -> None:
    check(offset + update)
