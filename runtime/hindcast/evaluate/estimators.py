"""What a policy is worth, by episodes that another one played.

The policy that played is the behaviour μ, the one to judge the target π. W_t is the product of the ratios
π(a_k|s_k) / μ(a_k|s_k) of an episode's steps k = 0 to t, Q and V are a model's values of π. A survey with experiments
is Voloshin et al. 2019 (arXiv 1911.06854).

| name | estimate | source |
|---|---|---|
| `is` | mean of W_T·Σ gamma^t·r_t | Precup, Sutton, Singh 2000 |
| `wis` | the same over the mean of the W_T | Precup, Sutton, Singh 2000 |
| `pdis` | mean of Σ gamma^t·W_t·r_t | Precup, Sutton, Singh 2000 |
| `pdwis` | sum of gamma^t·w_t·r_t, w_t = W_t over the sum of all episodes' W_t | Thomas 2015, §3.8 |
| `dm` | mean of V(s_0) | Le, Voloshin, Yue 2019 (arXiv 1903.08738) |
| `dr` | mean of V(s_0) + Σ gamma^t·W_t·(r_t + gamma·V(s_{t+1}) - Q(s_t, a_t)) | Jiang, Li 2016 (arXiv 1511.03722) |
| `wdr` | the same with w_t in the sum | Thomas, Brunskill 2016 (arXiv 1604.00923) |

An ended episode keeps its last W_t in later sums, with rewards of 0. V is 0 behind a termination. Where an episode was
cut off, `is` to `pdwis` count what was recorded; `dm`, `dr` and `wdr` also what the model thinks would have followed.

Shape suffixes: N = episodes, S = their steps end to end, R = resamples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

RATIO_ESTIMATES: Final = ("is", "wis", "pdis", "pdwis")
DOUBLY_ROBUST_ESTIMATES: Final = ("dr", "wdr")


class Values(NamedTuple):
    """What a model says of the target policy.

    Attributes:
        taken: `[S]` Q of the recorded actions.
        states: `[S]` V of the states in which they were taken.
        last: `[N]` V of each episode's final observation, 0 where it terminated.
    """

    q: F64
    v: F64
    final_v: F64


@dataclass(frozen=True)
class Evidence:
    """What recorded episodes say of a target policy.

    Attributes:
        length: `[N]` steps of each episode, at least 1.
        rewards: `[S]`.
        gamma: discount, 0 to 1.
        log_ratio: `[S]` log π(a|s) - log μ(a|s), -inf for what π never does; None where there is none.
        values: a model's; None where there is none.
        clip: no ratio counts as more than this; None for as it is.
    """

    length: I64
    rewards: F64
    gamma: float
    log_ratio: F64 | None = None
    values: Values | None = None
    clip: float | None = None

    @cached_property
    def first_step(self) -> I64:
        """`[N]` first step of each episode."""
        return np.cumsum(self.length) - self.length

    @cached_property
    def last_step(self) -> I64:
        """`[N]` last step of each episode."""
        return np.cumsum(self.length) - 1

    @cached_property
    def t(self) -> I64:
        """`[S]` number of each step in its episode."""
        return np.arange(len(self.rewards)) - np.repeat(self.first_step, self.length)

    @cached_property
    def episodes_by_length(self) -> I64:
        """`[N]` the episodes, the longest first."""
        return np.argsort(-self.length, kind="stable")

    @cached_property
    def steps_by_t(self) -> list[I64]:
        """The steps of each t, in the order of `by_length`."""
        rank = np.empty_like(self.episodes_by_length)
        rank[self.episodes_by_length] = np.arange(len(self.length))
        order = np.lexsort((np.repeat(rank, self.length), self.t))
        return np.split(order, np.cumsum(np.bincount(self.t))[:-1])

    @cached_property
    def discounts(self) -> F64:
        """`[S]` gamma^t."""
        return np.asarray(self.gamma ** self.t.astype(np.float64))

    @cached_property
    def weights(self) -> F64:
        """`[S]` W_t: products of ratios from the episode's first step on, multiplied as sums of logarithms."""
        assert self.log_ratio is not None
        logs = self.log_ratio if self.clip is None else np.minimum(self.log_ratio, np.log(self.clip))
        total = np.empty_like(logs)
        before = np.zeros(len(self.length))
        for steps in self.steps_by_t:
            before = before[: len(steps)] + logs[steps]
            total[steps] = before
        return np.asarray(np.exp(total))

    @cached_property
    def td_error(self) -> F64:
        """`[S]` r_t + gamma·V(s_{t+1}) - Q(s_t, a_t): what the model did not expect, its temporal-difference error."""
        assert self.values is not None
        following = np.append(self.values.v[1:], 0.0)
        following[self.last_step] = self.values.final_v
        return np.asarray(self.rewards + self.gamma * following - self.values.q)

    def sum_by_episode(self, of_steps: F64) -> F64:
        """`[N]` of `[S]`."""
        return np.asarray(np.add.reduceat(of_steps, self.first_step))


def effective_episodes(weights: F64) -> float:
    """(ΣW)² / ΣW²: as many equally weighted episodes say as much (Kish 1965).

    W has the mean 1. Where that of `weights` is less, the episodes with the greatest were never played: so much less do
    those say that were, and they count by that much less.

    Args:
        weights: `[N]`, W_T of each episode.
    """
    most = float(weights.max())
    if most == 0.0:
        return 0.0
    scaled = weights / most
    return float(scaled.sum() ** 2 / np.square(scaled).sum() * min(1.0, most * scaled.mean()))


def estimates(evidence: Evidence, counts: F64) -> dict[str, F64]:
    """All estimates that the evidence allows, for each resample of the episodes.

    Args:
        evidence: see there.
        counts: `[R, N]` how often each episode is in each resample; a row of ones is the episodes as they are.

    Returns:
        name -> `[R]`, `behaviour` among them: the mean discounted return as recorded. NaN where the weights of a
        resample are all 0.
    """
    drawn = counts.sum(1)
    return _each(
        evidence,
        mean=lambda values: counts @ values / drawn,
        weighted_mean=lambda weights, values: counts @ (weights * values) / (counts @ weights),
        weighted_sum=lambda terms: _weighted(evidence, terms, counts),
    )


def jackknife_contributions(evidence: Evidence) -> dict[str, F64]:
    """What each episode contributes: all estimates, less the same without the episode.

    Args:
        evidence: of at least two episodes.

    Returns:
        name -> `[N]`, for the names of `estimates`. Not finite where no other episode has a weight.
    """
    return _each(
        evidence,
        mean=mean_contributions,
        weighted_mean=lambda weights, values: _left_out_of_shares(weights / weights.sum(), values),
        weighted_sum=lambda terms: _left_out_of_weighted(evidence, terms),
    )


def missing_weight_margins(evidence: Evidence) -> dict[str, float]:
    """How far estimates may be off because of the weights that no recorded episode has.

    Over all episodes that could be played, the weights of right ratios have the mean 1. Where those that were played
    have another, some of large weight are missing, or the probabilities of a clone are wrong: what is missing counts as
    one standard deviation between episodes. `is` and `pdis` are left out: they vary as that mean does.

    Returns:
        name -> |mean of the W_T - 1| times the standard deviation of what the weights are of; nothing without ratios.
    """
    if evidence.log_ratio is None:
        return {}
    missing = abs(float(evidence.weights[evidence.last_step].mean()) - 1.0)
    found = dict.fromkeys(("wis", "pdwis"), evidence.sum_by_episode(evidence.discounts * evidence.rewards))
    if evidence.values is not None:
        found |= dict.fromkeys(
            DOUBLY_ROBUST_ESTIMATES, evidence.sum_by_episode(evidence.discounts * evidence.td_error)
        )
    return {name: missing * float(of_episodes.std()) for name, of_episodes in found.items()}


def _each(
    evidence: Evidence,
    *,
    mean: Callable[[F64], F64],
    weighted_mean: Callable[[F64, F64], F64],
    weighted_sum: Callable[[F64], F64],
) -> dict[str, F64]:
    """All estimates, made of three kinds of means, which say what is computed of each: resamples, or contributions.

    Args:
        evidence: what they are computed from.
        mean: of `[N]` values.
        weighted_mean: of `[N]` values, by `[N]` weights.
        weighted_sum: over time, of the means of `[S]` terms, see `_weighted`.
    """
    rewards = evidence.discounts * evidence.rewards
    returns = evidence.sum_by_episode(rewards)
    found = {"behaviour": mean(returns)}
    if evidence.values is not None:
        found["dm"] = mean(evidence.values.v[evidence.first_step])
    if evidence.log_ratio is None:
        return found
    weights, last = evidence.weights, evidence.weights[evidence.last_step]
    with np.errstate(invalid="ignore", divide="ignore"):
        found |= {
            "is": mean(last * returns),
            "wis": weighted_mean(last, returns),
            "pdis": mean(evidence.sum_by_episode(weights * rewards)),
            "pdwis": weighted_sum(rewards),
        }
        if evidence.values is not None:
            surprises = evidence.discounts * evidence.td_error
            found["dr"] = found["dm"] + mean(evidence.sum_by_episode(weights * surprises))
            found["wdr"] = found["dm"] + weighted_sum(surprises)
    return found


def mean_contributions(values: F64) -> F64:
    """`[N]` the mean of `[N]` values, less the same without each."""
    return np.asarray((values - values.mean()) / (len(values) - 1))


def continuation_values(evidence: Evidence) -> F64:
    """`[N]` gamma^T·V of each episode's final observation: what the model counts beyond the recorded rewards."""
    if evidence.values is None:
        return np.zeros(len(evidence.length))
    return np.asarray(evidence.gamma ** evidence.length.astype(np.float64) * evidence.values.final_v)


def _weighted(evidence: Evidence, terms: F64, counts: F64) -> F64:
    """`[R]` Σ_t Σ_i c_i·W_t·x_t / Σ_i c_i·W_t, where ended episodes keep their weights and have no terms."""
    counts = np.ascontiguousarray(counts[:, evidence.episodes_by_length])
    ended, total = np.zeros(len(counts)), np.zeros(len(counts))
    held = np.zeros(0)
    for steps in evidence.steps_by_t:
        n = len(steps)
        ended += counts[:, n : max(n, len(held))] @ held[n:]
        held = evidence.weights[steps]
        both = counts[:, :n] @ np.stack([held * terms[steps], held], 1)
        total += both[:, 0] / (both[:, 1] + ended)
    return total


def _left_out_of_shares(shares: F64, values: F64) -> F64:
    """Of Σ s_i·x_i, where the shares s sum to 1."""
    return np.asarray(shares / (1.0 - shares) * (values - shares @ values))


def _left_out_of_weighted(evidence: Evidence, terms: F64) -> F64:
    """Of `_weighted`."""
    held, values, found = (np.zeros(len(evidence.length)) for _ in range(3))
    for steps in evidence.steps_by_t:
        held[: len(steps)], values[: len(steps)] = evidence.weights[steps], terms[steps]
        values[len(steps) :] = 0.0
        found[evidence.episodes_by_length] += _left_out_of_shares(held / held.sum(), values)
    return found
