"""Estimate a policy's return from episodes that another policy played.

The policy that played is the behaviour μ; the policy to evaluate is the target π. W_t is the product of the ratios
π(a_k|s_k) / μ(a_k|s_k) of an episode's steps k = 0 to t; Q and V are a model's values of π. Voloshin et al. 2019
(arXiv 1911.06854) compare these estimators.

| name | estimate | source |
|---|---|---|
| `is` | mean of W_T·Σ gamma^t·r_t | Precup, Sutton, Singh 2000 |
| `wis` | `is`, divided by the mean of the W_T | Precup, Sutton, Singh 2000 |
| `pdis` | mean of Σ gamma^t·W_t·r_t | Precup, Sutton, Singh 2000 |
| `pdwis` | sum of gamma^t·w_t·r_t, w_t = W_t over the sum of all episodes' W_t | Thomas 2015, §3.8 |
| `dm` | mean of V(s_0) | Le, Voloshin, Yue 2019 (arXiv 1903.08738) |
| `dr` | mean of V(s_0) + Σ gamma^t·W_t·(r_t + gamma·V(s_{t+1}) - Q(s_t, a_t)) | Jiang, Li 2016 (arXiv 1511.03722) |
| `wdr` | `dr`, with w_t (see `pdwis`) instead of W_t | Thomas, Brunskill 2016 (arXiv 1604.00923) |

In sums over timesteps after an episode's end, the episode keeps its last W_t and has rewards of 0. V is 0 after a
termination. Of an episode that was cut off, `is` to `pdwis` count only the recorded rewards; `dm`, `dr` and `wdr` add
the model's value of the final observation.

If steps have durations (`delta_t`), gamma discounts per unit of time: gamma^t is gamma to the power of the time since
the episode's start, and gamma·V(s_{t+1}) is gamma to the power of the step's duration, times V.

Shapes: N = episodes, S = their steps end to end, R = resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hindcast.api.evaluation import DOUBLY_ROBUST_ESTIMATES
from hindcast.episodes.columns import Columns
from hindcast.evaluate.intervals import F64, Variance
from hindcast.pipeline.window import WindowData

I64 = NDArray[np.int64]


class Values(NamedTuple):
    """A model's values of the target policy.

    Attributes:
        q: `[S]` Q(s_t, a_t) of the recorded actions.
        v: `[S]` V(s_t).
        final_v: `[N]` V of each episode's final observation, 0 where it terminated.
    """

    q: F64
    v: F64
    final_v: F64


@dataclass(frozen=True)
class Evidence:
    """Recorded episodes, with the ratios and values that estimates of a target policy are computed from.

    Attributes:
        length: `[N]` steps of each episode, at least 1.
        rewards: `[S]`.
        gamma: discount, 0 to 1.
        delta_t: `[S]` durations of the steps; None if each takes one unit of time.
        log_ratio: `[S]` log π(a|s) - log μ(a|s), -inf for actions that π never takes; None without ratios.
        values: a model's values; None without a model.
        clip: upper bound of each ratio; None for no bound.
    """

    length: I64
    rewards: F64
    gamma: float
    log_ratio: F64 | None = None
    values: Values | None = None
    clip: float | None = None
    delta_t: F64 | None = None

    @classmethod
    def from_window(cls, window: WindowData, gamma: float, **fields: Any) -> Evidence:
        """Make the evidence from the episodes of a window; `fields` are further attributes."""
        return cls(
            length=np.asarray(window.length.numpy()),
            rewards=np.asarray(window.columns[Columns.REWARDS].numpy(), dtype=np.float64),
            gamma=gamma,
            delta_t=None if window.delta_t is None else window.delta_t.double().numpy(),
            **fields,
        )

    @cached_property
    def first_step(self) -> I64:
        """Index in `[S]` of the first step of each episode, `[N]`."""
        return np.cumsum(self.length) - self.length

    @cached_property
    def last_step(self) -> I64:
        """Index in `[S]` of the last step of each episode, `[N]`."""
        return np.cumsum(self.length) - 1

    @cached_property
    def t(self) -> I64:
        """Timestep `[S]` of each step within its episode."""
        return np.arange(len(self.rewards)) - np.repeat(self.first_step, self.length)

    @cached_property
    def episodes_by_length(self) -> I64:
        """Indices `[N]` of the episodes, longest first."""
        return np.argsort(-self.length, kind="stable")

    @cached_property
    def steps_by_t(self) -> list[I64]:
        """For each t, the indices in `[S]` of the steps at timestep t, in the order of `episodes_by_length`."""
        # In this order, the episodes that still run at t are a prefix of those at t - 1, so a sum over time is a loop
        # over shrinking arrays.
        rank = np.empty_like(self.episodes_by_length)
        rank[self.episodes_by_length] = np.arange(len(self.length))
        order = np.lexsort((np.repeat(rank, self.length), self.t))
        return np.split(order, np.cumsum(np.bincount(self.t))[:-1])

    @cached_property
    def time_in_episode(self) -> F64:
        """Time `[S]` since the start of each step's episode."""
        if self.delta_t is None:
            return self.t.astype(np.float64)
        ends = np.cumsum(self.delta_t)
        starts = ends - self.delta_t
        return starts - np.repeat(starts[self.first_step], self.length)

    @cached_property
    def discounts(self) -> F64:
        """Discount factors gamma^t `[S]`."""
        return np.asarray(self.gamma**self.time_in_episode)

    @property
    def step_discounts(self) -> F64 | float:
        """Discount factors of single steps: `[S]`, or gamma for all."""
        return self.gamma if self.delta_t is None else np.asarray(self.gamma**self.delta_t)

    @property
    def final_discounts(self) -> F64:
        """Discount factors `[N]` of the observations after the episodes' last steps."""
        last_delta_t = 1.0 if self.delta_t is None else self.delta_t[self.last_step]
        return np.asarray(self.gamma ** (self.time_in_episode[self.last_step] + last_delta_t))

    @cached_property
    def weights(self) -> F64:
        """Weights W_t `[S]`: products of the ratios since the episode's first step."""
        assert self.log_ratio is not None
        logs = self.log_ratio if self.clip is None else np.minimum(self.log_ratio, np.log(self.clip))
        log_weights = np.empty_like(logs)
        running_logs = np.zeros(len(self.length))
        for steps in self.steps_by_t:
            running_logs = running_logs[: len(steps)] + logs[steps]
            log_weights[steps] = running_logs
        # Logarithms were summed, because a product of many ratios may overflow or underflow on the way.
        return np.asarray(np.exp(log_weights))

    @cached_property
    def weight_shares(self) -> F64:
        """Shares `[S]` of the weights W_t in the sum of all episodes' weights at t; NaN if all of them are 0."""
        shares, weights, ended_weight = np.empty_like(self.rewards), np.zeros(0), 0.0
        for steps in self.steps_by_t:
            ended_weight += float(weights[len(steps) :].sum())
            weights = self.weights[steps]
            with np.errstate(invalid="ignore"):
                shares[steps] = weights / (weights.sum() + ended_weight)
        return shares

    @cached_property
    def td_error(self) -> F64:
        """Temporal-difference errors of the model `[S]`: r_t + gamma·V(s_{t+1}) - Q(s_t, a_t)."""
        assert self.values is not None
        # The next step's V; after an episode's last step, the V of its final observation.
        next_v = np.append(self.values.v[1:], 0.0)
        next_v[self.last_step] = self.values.final_v
        return np.asarray(self.rewards + self.step_discounts * next_v - self.values.q)

    def sum_by_episode(self, step_values: F64) -> F64:
        """Sum `[S]` values over the steps of each episode: `[N]`."""
        return np.asarray(np.add.reduceat(step_values, self.first_step))


def effective_episodes(weights: F64) -> float:
    """Return the equivalent number of equally weighted episodes, (ΣW)² / ΣW² (Kish 1965).

    If the mean weight is below its expectation of 1, the number is multiplied by the mean weight.

    Args:
        weights: `[N]`, W_T of each episode.
    """
    max_weight = float(weights.max())
    if max_weight == 0.0:
        return 0.0
    scaled_weights = weights / max_weight
    # A mean weight below 1, its expectation, shows that episodes of large weight were not recorded.
    return float(
        scaled_weights.sum() ** 2
        / np.square(scaled_weights).sum()
        * min(1.0, max_weight * scaled_weights.mean())
    )


def mean_ratio(evidence: Evidence) -> tuple[float, float]:
    """Return the mean of all steps' unclipped ratios, and its standard error over episodes.

    The expectation is 1 if the recorded log-probabilities belong to the recorded actions and have the policy's units.
    It is less if the policy acts where nothing was recorded.
    """
    assert evidence.log_ratio is not None
    with np.errstate(over="ignore"):
        ratios = np.exp(evidence.log_ratio)
    num_steps = len(ratios)
    mean = float(ratios.mean())
    return mean, float(np.sqrt(np.square(evidence.sum_by_episode(ratios - mean)).sum()) / num_steps)


def compute_estimates(evidence: Evidence, counts: F64) -> dict[str, F64]:
    """Compute every estimate for which the evidence has ratios and values, for each resample of the episodes.

    Args:
        evidence: the recorded episodes.
        counts: `[R, N]` number of times that each episode occurs in each resample; a row of ones is the original.

    Returns:
        name -> `[R]`, including `behaviour`, the mean discounted return as recorded. NaN if all weights of a resample
        are 0.
    """
    num_episodes = counts.sum(1)
    return _combine_means(
        evidence,
        mean=lambda values: counts @ values / num_episodes,
        weighted_mean=lambda weights, values: counts @ (weights * values) / (counts @ weights),
        weighted_sum=lambda terms: _weighted_sum(evidence, terms, counts),
    )


def jackknife_contributions(evidence: Evidence) -> dict[str, F64]:
    """Compute each episode's contribution: every estimate minus the same estimate without the episode.

    Args:
        evidence: at least two episodes.

    Returns:
        name -> `[N]`, with the names of `compute_estimates`. Not finite if no other episode has a weight.
    """
    return _combine_means(
        evidence,
        mean=mean_contributions,
        weighted_mean=lambda weights, values: _weighted_contributions(weights / weights.sum(), values),
        weighted_sum=lambda terms: _weighted_sum_contributions(evidence, terms),
    )


def missing_weight_margins(evidence: Evidence) -> dict[str, float]:
    """Compute the possible error of estimates because episodes of large weight were not recorded.

    Correct weights have the expectation 1. If the mean of the recorded weights differs from 1, episodes of large weight
    are missing or a clone's probabilities are wrong. The values of the missing episodes are assumed to be one standard
    deviation away from the recorded ones.

    Returns:
        name -> |mean of the W_T - 1| times the standard deviation over the recorded episodes of their discounted
        returns (`wis`, `pdwis`) or of their discounted sums of TD errors (`dr`, `wdr`); empty without ratios.
    """
    if evidence.log_ratio is None:
        return {}
    weight_gap = abs(float(evidence.weights[evidence.last_step].mean()) - 1.0)
    # `is` and `pdis` need no margin: they are not normalised by the weights, so they already vary with the mean of
    # the weights.
    weighted_values = dict.fromkeys(
        ("wis", "pdwis"), evidence.sum_by_episode(evidence.discounts * evidence.rewards)
    )
    if evidence.values is not None:
        weighted_values |= dict.fromkeys(
            DOUBLY_ROBUST_ESTIMATES, evidence.sum_by_episode(evidence.discounts * evidence.td_error)
        )
    return {
        name: weight_gap * float(episode_values.std()) for name, episode_values in weighted_values.items()
    }


def model_variances(
    evidence: Evidence,
    name: str,
    members: Sequence[Values],
    has_first_model: NDArray[np.bool_],
    *,
    is_continued: bool,
) -> list[Variance]:
    """Compute the variances that a doubly robust estimate has because its models are fitted to chance samples.

    The jackknife takes the models as given, so by the law of total variance these are added to its variance. Each
    half's models are fitted to resamples of the same episodes, whose estimates vary as those of new samples do (Hao et
    al. 2021, arXiv 2102.03607). Errors of models that were fitted to other episodes have an effect of second order
    only (Chernozhukov et al. 2018, arXiv 1608.00060), but it is 15 and 29 % of the variance for the two policies of
    tests/run/test_run_clinic.py, with 600 episodes.

    Args:
        evidence: the recorded episodes, with ratios.
        name: "dr" or "wdr".
        members: values by each member of the models.
        has_first_model: `[N]` True for the episodes whose values come from the first of the two models.
        is_continued: True for the difference to the recorded policy's return, for which the same values continue
            cut-off episodes.

    Returns:
        The variance over the members of each half's model; none for a single member.
    """
    if len(members) < 2:
        return []
    num_episodes = len(evidence.length)
    step_weights = evidence.discounts * (
        evidence.weights / num_episodes if name == "dr" else evidence.weight_shares
    )
    estimates = []
    for values in members:
        member_evidence = replace(evidence, values=values)
        start_values = values.v[evidence.first_step]
        if is_continued:
            start_values = start_values - continuation_values(member_evidence)
        terms = start_values / num_episodes + evidence.sum_by_episode(step_weights * member_evidence.td_error)
        estimates.append([terms[has_first_model].sum(), terms[~has_first_model].sum()])
    return [Variance(float(value), len(members) - 1) for value in np.var(estimates, axis=0, ddof=1)]


def _combine_means(
    evidence: Evidence,
    *,
    mean: Callable[[F64], F64],
    weighted_mean: Callable[[F64, F64], F64],
    weighted_sum: Callable[[F64], F64],
) -> dict[str, F64]:
    """Compute all estimates from three kinds of means, which the caller defines for resamples or for contributions.

    Args:
        evidence: the recorded episodes.
        mean: mean of `[N]` values.
        weighted_mean: given weights `[N]` and values `[N]`, the weighted mean of the values.
        weighted_sum: given terms `[S]`, the sum over time of their weighted means; see `_weighted_sum`.

    Returns:
        name -> result of the caller's functions, including `behaviour`.
    """
    rewards = evidence.discounts * evidence.rewards
    returns = evidence.sum_by_episode(rewards)
    values = {"behaviour": mean(returns)}
    if evidence.values is not None:
        values["dm"] = mean(evidence.values.v[evidence.first_step])
    if evidence.log_ratio is None:
        return values
    weights, final_weights = evidence.weights, evidence.weights[evidence.last_step]
    # If a resample contains only episodes of weight 0, its estimates are NaN, which callers handle.
    with np.errstate(invalid="ignore", divide="ignore"):
        values |= {
            "is": mean(final_weights * returns),
            "wis": weighted_mean(final_weights, returns),
            "pdis": mean(evidence.sum_by_episode(weights * rewards)),
            "pdwis": weighted_sum(rewards),
        }
        if evidence.values is not None:
            td_errors = evidence.discounts * evidence.td_error
            values["dr"] = values["dm"] + mean(evidence.sum_by_episode(weights * td_errors))
            values["wdr"] = values["dm"] + weighted_sum(td_errors)
    return values


def mean_contributions(values: F64) -> F64:
    """Return, for each of `[N]` values, the mean of all values minus the mean of all other values: `[N]`."""
    return np.asarray((values - values.mean()) / (len(values) - 1))


def continuation_values(evidence: Evidence) -> F64:
    """Return gamma^T·V `[N]` of each episode's final observation, which the model adds to the recorded return."""
    if evidence.values is None:
        return np.zeros(len(evidence.length))
    return np.asarray(evidence.final_discounts * evidence.values.final_v)


def _weighted_sum(evidence: Evidence, terms: F64, counts: F64) -> F64:
    """Return Σ_t (Σ_i c_i·W_it·x_it / Σ_i c_i·W_it) `[R]`, with count c_i, weights W_it and terms x_it of episode i.

    Ended episodes keep their last weights and have terms of 0.
    """
    counts = np.ascontiguousarray(counts[:, evidence.episodes_by_length])
    ended_weight, total = np.zeros(len(counts)), np.zeros(len(counts))
    weights = np.zeros(0)
    for steps in evidence.steps_by_t:
        num_running = len(steps)
        # Adds the last weights of the episodes whose last step was at t - 1.
        ended_weight += counts[:, num_running : max(num_running, len(weights))] @ weights[num_running:]
        weights = evidence.weights[steps]
        sums = counts[:, :num_running] @ np.stack([weights * terms[steps], weights], 1)
        total += sums[:, 0] / (sums[:, 1] + ended_weight)
    return total


def _weighted_contributions(shares: F64, values: F64) -> F64:
    """Return each episode's contribution `[N]` to the weighted mean m = Σ s_i·x_i, where the shares s sum to 1."""
    # Without episode i, the weighted mean is (m - s_i·x_i) / (1 - s_i).
    return np.asarray(shares / (1.0 - shares) * (values - shares @ values))


def _weighted_sum_contributions(evidence: Evidence, terms: F64) -> F64:
    """Return each episode's contribution `[N]` to `_weighted_sum`."""
    weights, values, contributions = (np.zeros(len(evidence.length)) for _ in range(3))
    for steps in evidence.steps_by_t:
        weights[: len(steps)], values[: len(steps)] = evidence.weights[steps], terms[steps]
        values[len(steps) :] = 0.0
        contributions[evidence.episodes_by_length] += _weighted_contributions(weights / weights.sum(), values)
    return contributions
