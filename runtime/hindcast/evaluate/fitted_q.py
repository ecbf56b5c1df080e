"""Fitted Q evaluation: a model of what a policy is worth in each state (Le, Voloshin, Yue 2019, arXiv 1903.08738)."""

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
from hindcast.learn.batches import td_target
from hindcast.learn.target_networks import frozen_copy, polyak_update
from hindcast.models.networks import Critics, next_observations
from hindcast.pipeline.rng import derive_seed
from hindcast.pipeline.window import WindowData


@dataclass(frozen=True, kw_only=True)
class Fit(FitOptions):
    """How a model is fitted.

    Attributes:
        members: models fitted in parallel, each to a resample of the episodes: how far they differ says how much
            the fit depends on which episodes there are.
        tau: target network update rate. With 0.05 and 10,000 updates nothing of the initial values is left up to a
            discount of 0.99.
        samples: of the policy's actions in a state, where they cannot be listed.
    """

    updates: int = 10_000
    members: int = 5
    tau: float = 0.05
    samples: int = 8
    hiddens: tuple[int, ...] = (128, 128)


class FittedQ:
    """Q of a target policy, fitted to recorded transitions: Q(s, a) ~ r + gamma·E[Q̄(s', π(s'))].

    Args:
        target: whose Q.
        window: the transitions; holds `new_obs` and `discounts`.
        episodes: `[N]` bool, those of the window that it is fitted to.
        options: of the fit.
        seed: of weights, batches and resamples.
        check: called now and then; what it raises ends the fit.
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
        self._least, self._most = _bounds(rewards / self._scale, window.recipe.needs.gamma)
        self._learn(window, steps_of_episodes(window, episodes), check)

    @torch.no_grad()
    def q(self, batch: Batch) -> Tensor:
        """`[B, E]` float64 Q of the batch's own actions."""
        return self._critics(batch).T.double() * self._scale

    @torch.no_grad()
    def v(self, batch: Batch) -> Tensor:
        """`[B, E]` float64 V(s) = E[Q(s, π(s))]."""
        return self._expected(self._critics, batch).T.double() * self._scale

    def _learn(self, window: WindowData, steps: Tensor, check: Callable[[int], None]) -> None:
        target = cast(Critics, frozen_copy(self._critics))
        weights = self._resampled(window)

        def loss(chosen: Tensor) -> Tensor:
            batch = window.gather(chosen)
            batch["rewards"] = batch["rewards"].float() / self._scale
            wanted = td_target(batch, self._expected(target, next_observations(batch)))
            errors = (self._critics(batch) - wanted.clamp(self._least, self._most)).square()
            return (weights[:, chosen] * errors).mean(1).sum()

        for _ in fit(self._critics, steps, self._fit, loss, generator=self._generator, check=check):
            polyak_update(target, self._critics, self._fit.tau)

    @torch.no_grad()
    def _expected(self, critics: Critics, batch: Batch) -> Tensor:
        """`[E, B]`."""
        actions, weights = self._target.weighted_actions(batch, self._fit.samples, self._generator)
        values: Tensor = critics(batch, actions)
        return (values * weights).sum(1)

    def _resampled(self, window: WindowData) -> Tensor:
        """`[E, S]` how often the episode of each step counts in each member: Poisson(1) (Oza, Russell 2001)."""
        rates = torch.ones(self._fit.members, len(window.length))
        counts = torch.poisson(rates, generator=self._generator)
        if self._fit.members == 1:
            counts = rates
        return counts.repeat_interleave(window.length, dim=1)


def _bounds(rewards: Tensor, gamma: float | None) -> tuple[float, float]:
    """Least and greatest value that rewards as those seen can add up to: a model of few data diverges without them."""
    if gamma is None or gamma >= 1:
        return -math.inf, math.inf
    horizon = 1 / (1 - gamma)
    return min(0.0, float(rewards.min())) * horizon, max(0.0, float(rewards.max())) * horizon


class CrossFitResult(NamedTuple):
    """What models say of episodes that they were not fitted to.

    Attributes:
        values: for the estimators.
        spread: standard deviation of the mean first value: over the models' members and over first states. NaN of a
            single member.
    """

    values: Values
    spread: float


def cross_fit(
    target: TargetPolicy, window: WindowData, options: Fit, seed: int, check: Callable[[int], None]
) -> CrossFitResult:
    """Two models, each fitted to half of the episodes and used on the others (Kallus, Uehara 2020, arXiv 1908.08526).

    Args:
        target: whose values.
        window: at least two episodes.
        options: of the fits.
        seed: of the halves and the fits.
        check: see `FittedQ`; counts the updates of both.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "halves"))
    order = torch.randperm(len(window.length), generator=generator)
    first = torch.zeros(len(window.length), dtype=torch.bool)
    first[order[: len(order) // 2]] = True
    taken = torch.zeros(window.num_steps, dtype=torch.float64)
    states = torch.zeros(window.num_steps + len(first), dtype=torch.float64)
    variance = torch.zeros((), dtype=torch.float64)
    for number, (fitted, used) in enumerate(((first, ~first), (~first, first))):
        model = FittedQ(
            target,
            window,
            fitted,
            options,
            seed=derive_seed(seed, "half", number),
            check=partial(_later, check, number * options.updates),
        )
        by_member = window.map_observations(model.v)
        states = torch.where(used.repeat_interleave(window.length + 1), by_member.mean(1), states)
        by_action = map_steps(window, model.q).mean(1)
        taken = torch.where(used.repeat_interleave(window.length), by_action, taken)
        of_starts = by_member[window.obs_start][used].mean(0)
        variance += of_starts.var() * used.double().mean() ** 2
    last = states[window.obs_start + window.length].masked_fill(window.terminated, 0.0)
    starts = states[window.obs_start]
    spread = (variance + starts.var() / len(starts)).sqrt()
    values = Values(taken.numpy(), states[window.obs_row].numpy(), last.numpy())
    return CrossFitResult(values, float(spread))


def _later(check: Callable[[int], None], done: int, update: int) -> None:
    check(done + update)
