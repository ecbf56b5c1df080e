"""Estimators: exact if target and behaviour are equal, equal to a slow reference, with intervals of stated coverage."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from chain_mdp import Chain

from hindcast.evaluate.estimators import (
    Evidence,
    Values,
    compute_estimates,
    effective_episodes,
    jackknife_contributions,
    missing_weight_margins,
    model_variances,
)
from hindcast.evaluate.intervals import (
    Variance,
    jackknife_interval,
    resample_counts,
    student_interval,
    t_quantile,
    total_variance,
)
from hindcast.evaluate.verdict import Difference, difference_to_recorded

NAMES = ("is", "wis", "pdis", "pdwis", "dm", "dr", "wdr")


def make_evidence(
    seed: int, num_episodes: int = 7, *, is_on_policy: bool = False, **changes: Any
) -> Evidence:
    """Make evidence of random episodes with 1 to 9 steps."""
    rng = np.random.default_rng(seed)
    length = rng.integers(1, 10, num_episodes)
    num_steps = int(length.sum())
    values = Values(rng.normal(size=num_steps), rng.normal(size=num_steps), rng.normal(size=num_episodes))
    log_ratio = np.zeros(num_steps) if is_on_policy else rng.normal(scale=0.5, size=num_steps)
    defaults = {"length": length, "rewards": rng.normal(size=num_steps), "gamma": 0.9}
    return Evidence(**defaults | {"log_ratio": log_ratio, "values": values} | changes)


def estimate_once(episodes_evidence: Evidence, clip: float | None = None) -> dict[str, float]:
    """Return the estimates of the episodes themselves, without resamples."""
    counts = np.ones((1, len(episodes_evidence.length)))
    values = compute_estimates(replace(episodes_evidence, clip=clip), counts)
    return {name: float(value[0]) for name, value in values.items()}


def estimate_slowly(data: Evidence, episodes: list[int], clip: float = math.inf) -> dict[str, float]:
    """Compute the formulas step by step for the listed episodes, with repetitions."""
    num_episodes, max_length = len(episodes), int(data.length.max())
    assert data.log_ratio is not None
    assert data.values is not None
    final_weights, returns, per_decision_returns, initial_values, doubly_robust_returns = [], [], [], [], []
    # A list for each episode, continued after the episode's end up to `max_length`.
    padded_weights, padded_rewards, padded_errors = [], [], []
    for episode in episodes:
        first_step, length = int(data.first_step[episode]), int(data.length[episode])
        weight, episode_return, per_decision_return = 1.0, 0.0, 0.0
        doubly_robust_return = data.values.v[first_step]
        weights, rewards, errors = [], [], []
        for t in range(length):
            step = first_step + t
            delta_t = (
                np.ones(length) if data.delta_t is None else data.delta_t[first_step : first_step + length]
            )
            weight *= min(math.exp(data.log_ratio[step]), clip)
            discount = data.gamma ** delta_t[:t].sum()
            reward = discount * data.rewards[step]
            is_last = t == length - 1
            next_v = data.values.final_v[episode] if is_last else data.values.v[step + 1]
            error = data.rewards[step] + data.gamma ** delta_t[t] * next_v - data.values.q[step]
            weights.append(weight)
            episode_return += reward
            per_decision_return += weight * reward
            doubly_robust_return += weight * discount * error
            rewards.append(reward)
            errors.append(discount * error)
        num_missing = max_length - length
        padded_weights.append(weights + [weight] * num_missing)
        padded_rewards.append(rewards + [0.0] * num_missing)
        padded_errors.append(errors + [0.0] * num_missing)
        final_weights.append(weight)
        returns.append(episode_return)
        per_decision_returns.append(per_decision_return)
        initial_values.append(data.values.v[first_step])
        doubly_robust_returns.append(doubly_robust_return)
    pdwis = weighted_errors = 0.0
    for t in range(max_length):
        sum_of_weights = sum(weights[t] for weights in padded_weights)
        rewards_at_t = zip(padded_weights, padded_rewards, strict=True)
        pdwis += sum(weights[t] * rewards[t] for weights, rewards in rewards_at_t) / sum_of_weights
        errors_at_t = zip(padded_weights, padded_errors, strict=True)
        weighted_errors += sum(weights[t] * errors[t] for weights, errors in errors_at_t) / sum_of_weights
    products = np.multiply(final_weights, returns).tolist()
    return {
        "behaviour": sum(returns) / num_episodes,
        "is": sum(products) / num_episodes,
        "wis": sum(products) / sum(final_weights),
        "pdis": sum(per_decision_returns) / num_episodes,
        "pdwis": pdwis,
        "dm": sum(initial_values) / num_episodes,
        "dr": sum(doubly_robust_returns) / num_episodes,
        "wdr": sum(initial_values) / num_episodes + weighted_errors,
    }


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("has_durations", [False, True])
def test_estimates_equal_slow_reference(seed: int, has_durations: bool) -> None:
    data = make_evidence(seed)
    if has_durations:
        data = replace(data, delta_t=np.random.default_rng(seed).exponential(size=len(data.rewards)))
    for clip in (math.inf, 1.1):
        expected = estimate_slowly(data, list(range(7)), clip)
        assert estimate_once(data, clip) == pytest.approx(expected, rel=1e-12)


def test_estimates_of_resamples_equal_slow_reference() -> None:
    data = make_evidence(3)
    counts = resample_counts(7, 4, seed=1)
    values = compute_estimates(data, counts)
    for row in range(len(counts)):  # the original, then 4 resamples
        episodes = [episode for episode in range(7) for _ in range(int(counts[row, episode]))]
        expected = estimate_slowly(data, episodes)
        assert {name: value[row] for name, value in values.items()} == pytest.approx(expected, rel=1e-10)


def test_weights_are_one_when_target_is_behaviour() -> None:
    data = make_evidence(0, is_on_policy=True)
    assert (data.weights == 1.0).all()
    values = estimate_once(data)
    for name in ("is", "wis", "pdis", "pdwis"):
        assert values[name] == pytest.approx(values["behaviour"], rel=1e-12)


def test_action_that_target_never_takes_sets_later_weights_to_zero() -> None:
    log_ratio = np.array([0.0, -np.inf, 0.0, math.log(2.0), 0.0])
    data = Evidence(np.array([3, 2]), np.array([1.0, 2.0, 4.0, 8.0, 16.0]), 1.0, log_ratio=log_ratio)
    assert data.weights.tolist() == [1.0, 0.0, 0.0, 2.0, 2.0]
    # `pdwis`: the weights of the two episodes are 1 and 2 at t = 0, and 0 and 2 later.
    expected = {"behaviour": 15.5, "is": 24.0, "wis": 24.0, "pdis": 24.5, "pdwis": (1 + 16) / 3 + 16 + 0}
    assert estimate_once(data) == pytest.approx(expected)


def test_without_any_weight_estimate_is_nan_and_effective_episodes_are_zero() -> None:
    data = Evidence(np.array([1]), np.array([1.0]), 1.0, log_ratio=np.array([-np.inf]))
    assert math.isnan(estimate_once(data)["wis"])
    assert effective_episodes(data.weights) == 0.0
    members = [Values(np.zeros(1), np.zeros(1), np.zeros(1))] * 2
    variances = model_variances(data, "wdr", members, np.array([True]), is_continued=False)
    assert math.isnan(variances[0].value)


def test_effective_episodes_of_equal_and_missing_weights() -> None:
    assert effective_episodes(np.ones(5)) == pytest.approx(5.0)
    assert effective_episodes(np.array([1e200, 1e200, 0.0])) == pytest.approx(2.0)
    # The mean weight is 0.001 instead of 1: episodes of large weight are missing.
    assert effective_episodes(np.full(100, 1e-3)) == pytest.approx(0.1)


def test_long_products_of_ratios_neither_overflow_nor_vanish() -> None:
    log_ratio = np.concatenate([np.full(500, 10.0), np.full(500, -10.0)])
    data = Evidence(np.array([1000]), np.ones(1000), 1.0, log_ratio=log_ratio)
    with np.errstate(over="ignore"):  # the weights in the middle are infinite, the last one is not
        assert data.weights[-1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("probability", "degrees_of_freedom", "expected"),
    [(0.95, 1, 6.31375), (0.95, 2, 2.91999), (0.95, 3, 2.35336), (0.975, 5, 2.57058), (0.95, 30, 1.69726)],
)
def test_student_quantiles_match_tables(probability: float, degrees_of_freedom: int, expected: float) -> None:
    assert t_quantile(probability, degrees_of_freedom) == pytest.approx(expected, abs=1e-5)


def test_student_interval_matches_table_and_is_none_without_degrees_of_freedom() -> None:
    assert student_interval(1.0, 0.0, 0.9, degrees_of_freedom=0) is None
    interval = student_interval(2.0, 1.0, 0.9, degrees_of_freedom=1)
    assert interval == pytest.approx((2 - 6.3138, 2 + 6.3138), rel=1e-3)


def test_contributions_equal_difference_without_the_episode() -> None:
    data = make_evidence(4)
    counts = np.concatenate([np.ones((1, 7)), 1.0 - np.eye(7)])
    resampled_values = compute_estimates(data, counts)
    contributions = jackknife_contributions(data)
    assert contributions.keys() == resampled_values.keys()
    for name, values in resampled_values.items():
        assert contributions[name] == pytest.approx(values[0] - values[1:], rel=1e-9, abs=1e-12), name


def test_missing_weights_widen_intervals() -> None:
    """A margin is |mean weight - 1| times the standard deviation of the episodes' returns (2.0) or TD errors (1.5).

    The weights have the mean 0.75, clipped 0.5. Without a model, `dr` and `wdr` have no margin.
    """
    data = Evidence(np.array([1, 1]), np.array([1.0, 5.0]), 1.0, log_ratio=np.log([0.5, 1.0]))
    assert missing_weight_margins(data) == pytest.approx({"wis": 0.25 * 2.0, "pdwis": 0.25 * 2.0})
    clipped_margins = missing_weight_margins(replace(data, clip=0.5))
    assert clipped_margins == pytest.approx({"wis": 0.5 * 2.0, "pdwis": 0.5 * 2.0})
    data_with_model = replace(data, values=Values(np.array([1.0, 2.0]), np.zeros(2), np.zeros(2)))
    margins = missing_weight_margins(data_with_model)
    assert margins["dr"] == margins["wdr"] == pytest.approx(0.25 * 1.5)
    assert jackknife_interval(1.0, np.zeros(5), 0.9, 0.25) == (0.75, 1.25)


def test_interval_of_few_heavy_episodes_is_wide_or_none_if_one_has_all_weight() -> None:
    even = jackknife_interval(0.0, np.full(50, 1.0), 0.9)
    # The same variance, caused by a single episode.
    heavy = jackknife_interval(0.0, np.array([np.sqrt(50.0)] + [0.0] * 49), 0.9)
    assert even == pytest.approx((-12.0, 12.0), abs=0.1)
    assert heavy == pytest.approx((-44.2, 44.2), abs=0.1)
    assert jackknife_interval(1.0, np.zeros(5), 0.9) == (1.0, 1.0)
    assert jackknife_interval(1.0, np.array([np.inf, 0.0]), 0.9) is None


@pytest.mark.parametrize("has_durations", [False, True])
@pytest.mark.parametrize("name", ["dr", "wdr"])
def test_model_variances_are_those_of_estimates_by_single_members(name: str, has_durations: bool) -> None:
    """The other half of the episodes has the values of the first member, which adds no variance."""
    num_episodes, num_members = 7, 3
    data = make_evidence(4)
    if has_durations:
        data = replace(data, delta_t=np.random.default_rng(0).uniform(0.5, 2.0, len(data.rewards)))
    assert data.values is not None
    rng = np.random.default_rng(1)
    members = [
        Values(*(values + rng.normal(size=len(values)) for values in data.values)) for _ in range(num_members)
    ]
    has_first_model = np.arange(num_episodes) < 3
    expected_variances: dict[bool, list[float]] = {True: [], False: []}
    for half in (has_first_model, ~has_first_model):
        steps = np.repeat(half, data.length)
        estimates: dict[bool, list[float]] = {True: [], False: []}
        for member in members:
            masks = (steps, steps, half)
            values = Values(*(np.where(*args) for args in zip(masks, member, members[0], strict=True)))
            evidence = replace(data, values=values)
            all_estimates = compute_estimates(evidence, np.ones((1, num_episodes)))
            contributions = jackknife_contributions(evidence)
            estimates[False].append(float(all_estimates[name][0]))
            estimates[True].append(difference_to_recorded(evidence, name, all_estimates, contributions)[0])
        for is_continued, values_by_member in estimates.items():
            expected_variances[is_continued].append(float(np.var(values_by_member, ddof=1)))
    for is_continued in (False, True):
        variances = model_variances(data, name, members, has_first_model, is_continued=is_continued)
        assert variances == [
            (pytest.approx(value), num_members - 1) for value in expected_variances[is_continued]
        ]
    assert model_variances(data, name, members[:1], has_first_model, is_continued=True) == []


def test_spread_of_models_widens_intervals_of_estimates_and_differences() -> None:
    data, model = make_evidence(4), Variance(0.5, 2)
    values = compute_estimates(data, np.ones((1, 7)))
    contributions = jackknife_contributions(data)
    arguments = (data, "wdr", values, contributions)
    jackknife_difference = Difference.by_ratios(*arguments)
    difference = Difference.by_ratios(*arguments, [model])
    assert jackknife_difference is not None
    assert difference is not None
    assert difference.error**2 == pytest.approx(jackknife_difference.error**2 + 0.5)
    assert 2 < difference.degrees_of_freedom < 2 + jackknife_difference.degrees_of_freedom
    # Two variances of 4 and 2 degrees of freedom: 9² / (6² / 4 + 3² / 2).
    assert total_variance([Variance(6.0, 4), Variance(3.0, 2)]) == (9.0, pytest.approx(6.0))
    # Equal episodes leave the variance of the models alone.
    interval = jackknife_interval(1.0, np.zeros(5), 0.9, 0.25, [model])
    assert interval == pytest.approx(student_interval(1.0, math.sqrt(0.5), 0.9, 2, 0.25))


@pytest.mark.parametrize("has_durations", [False, True])
def test_intervals_contain_truth_as_often_as_stated(has_durations: bool) -> None:
    """At least 88 % of 200 intervals with a level of 90 % contain the true return, for each estimator except `dm`."""
    chain, num_recordings = Chain(2, has_durations=has_durations), 200
    num_covered, errors = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0.0)
    for seed in range(num_recordings):
        data = chain.record(300, seed)
        values, contributions = estimate_once(data), jackknife_contributions(data)
        margins = missing_weight_margins(data)
        for name in NAMES:
            interval = jackknife_interval(values[name], contributions[name], 0.9, margins.get(name, 0.0))
            low, high = interval or (math.nan, math.nan)
            num_covered[name] += low <= chain.target_return <= high
            errors[name] += (values[name] - chain.target_return) ** 2
    assert all(num_covered[name] >= 0.88 * num_recordings for name in NAMES if name != "dm"), num_covered
    assert num_covered["dm"] < 0.2 * num_recordings  # the jackknife does not see the bias of the model
    assert errors["wis"] < errors["is"]
    assert errors["dr"] < errors["is"]
