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
)
from hindcast.evaluate.intervals import jackknife_interval, resample_counts, student_interval, t_quantile

NAMES = ("is", "wis", "pdis", "pdwis", "dm", "dr", "wdr")


def make_evidence(
    seed: int, num_episodes: int = 7, *, is_on_policy: bool = False, **changes: Any
) -> Evidence:
    """Make evidence of random episodes with 1 to 9 steps."""
    rng = np.random.default_rng(seed)
    length = rng.integers(1, 10, num_episodes)
    num_steps = int(length.sum())
    values = Values(rng.normal(size=num_steps), rng.normal(size=num_steps), rng.normal(size=num_episodes))
    ratio = np.zeros(num_steps) if is_on_policy else rng.normal(scale=0.5, size=num_steps)
    defaults = {"length": length, "rewards": rng.normal(size=num_steps), "gamma": 0.9}
    return Evidence(**defaults | {"log_ratio": ratio, "values": values} | changes)


def estimate_once(episodes_evidence: Evidence, clip: float | None = None) -> dict[str, float]:
    """Return the estimates of the episodes themselves, without resamples."""
    values = compute_estimates(
        replace(episodes_evidence, clip=clip), np.ones((1, len(episodes_evidence.length)))
    )
    return {name: float(value[0]) for name, value in values.items()}


def estimate_slowly(data: Evidence, episodes: list[int], clip: float = math.inf) -> dict[str, float]:
    """Compute the formulas step by step for the listed episodes, with repetitions."""
    num_episodes, max_length = len(episodes), int(data.length.max())
    assert data.log_ratio is not None
    assert data.values is not None
    padded_rows, weights, returns, per_decision_returns, initial_values, corrections = [], [], [], [], [], []
    for episode in episodes:
        first_step, length = int(data.first_step[episode]), int(data.length[episode])
        weight, step_weights, episode_return, per_decision_return, correction = (
            1.0,
            [],
            0.0,
            0.0,
            data.values.v[first_step],
        )
        terms = []
        for t in range(length):
            step = first_step + t
            weight *= min(math.exp(data.log_ratio[step]), clip)
            reward = data.gamma**t * data.rewards[step]
            is_last = t == length - 1
            next_v = data.values.final_v[episode] if is_last else data.values.v[step + 1]
            error = data.rewards[step] + data.gamma * next_v - data.values.q[step]
            step_weights.append(weight)
            episode_return += reward
            per_decision_return += weight * reward
            correction += weight * data.gamma**t * error
            terms.append((reward, data.gamma**t * error))
        padded_rows.append(
            (step_weights + [weight] * (max_length - length), terms + [(0.0, 0.0)] * (max_length - length))
        )
        weights.append(weight)
        returns.append(episode_return)
        per_decision_returns.append(per_decision_return)
        initial_values.append(data.values.v[first_step])
        corrections.append(correction)
    weighted_sums = [0.0, 0.0]
    for t in range(max_length):
        sum_of_weights = sum(row[0][t] for row in padded_rows)
        for term_index in (0, 1):
            weighted_sums[term_index] += (
                sum(row[0][t] * row[1][t][term_index] for row in padded_rows) / sum_of_weights
            )
    products = [weight * episode_return for weight, episode_return in zip(weights, returns, strict=True)]
    return {
        "behaviour": sum(returns) / num_episodes,
        "is": sum(products) / num_episodes,
        "wis": sum(products) / sum(weights),
        "pdis": sum(per_decision_returns) / num_episodes,
        "pdwis": weighted_sums[0],
        "dm": sum(initial_values) / num_episodes,
        "dr": sum(corrections) / num_episodes,
        "wdr": sum(initial_values) / num_episodes + weighted_sums[1],
    }


@pytest.mark.parametrize("seed", range(5))
def test_estimates_equal_slow_reference(seed: int) -> None:
    data = make_evidence(seed)
    assert estimate_once(data) == pytest.approx(estimate_slowly(data, list(range(7))), rel=1e-12)
    assert estimate_once(data, clip=1.1) == pytest.approx(
        estimate_slowly(data, list(range(7)), clip=1.1), rel=1e-12
    )


def test_estimates_of_resamples_equal_slow_reference() -> None:
    data = make_evidence(3)
    counts = resample_counts(7, 4, seed=1)
    values = compute_estimates(data, counts)
    for row in range(5):
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
    ratios = np.array([0.0, -np.inf, 0.0, math.log(2.0), 0.0])
    data = Evidence(np.array([3, 2]), np.array([1.0, 2.0, 4.0, 8.0, 16.0]), 1.0, ratios)
    assert data.weights.tolist() == [1.0, 0.0, 0.0, 2.0, 2.0]
    assert estimate_once(data) == pytest.approx(
        {"behaviour": 15.5, "is": 24.0, "wis": 24.0, "pdis": 24.5, "pdwis": (1 + 16) / 3 + 16 + 0}
    )


def test_estimate_without_any_weight_is_nan() -> None:
    data = Evidence(np.array([1]), np.array([1.0]), 1.0, np.array([-np.inf]))
    assert math.isnan(estimate_once(data)["wis"])
    assert effective_episodes(data.weights) == 0.0


def test_effective_episodes_of_equal_and_missing_weights() -> None:
    assert effective_episodes(np.ones(5)) == pytest.approx(5.0)
    assert effective_episodes(np.array([1e200, 1e200, 0.0])) == pytest.approx(2.0)
    # The mean weight is 0.001 instead of 1: episodes of large weight are missing.
    assert effective_episodes(np.full(100, 1e-3)) == pytest.approx(0.1)


def test_long_products_of_ratios_neither_overflow_nor_vanish() -> None:
    ratios = np.concatenate([np.full(500, 10.0), np.full(500, -10.0)])
    data = Evidence(np.array([1000]), np.ones(1000), 1.0, ratios)
    with np.errstate(over="ignore"):
        assert data.weights[-1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("probability", "degrees_of_freedom", "expected"),
    [(0.95, 1, 6.3138), (0.95, 2, 2.9200), (0.95, 3, 2.3534), (0.975, 5, 2.5706), (0.95, 30, 1.6973)],
)
def test_student_quantiles_match_tables(probability: float, degrees_of_freedom: int, expected: float) -> None:
    assert t_quantile(probability, degrees_of_freedom) == pytest.approx(expected, rel=1e-3)


def test_student_interval_without_degrees_of_freedom_is_none() -> None:
    assert student_interval(1.0, 0.0, 0.9, degrees_of_freedom=0) is None
    assert student_interval(2.0, 1.0, 0.9, degrees_of_freedom=1) == pytest.approx(
        (2 - 6.3138, 2 + 6.3138), rel=1e-3
    )


def test_contributions_equal_difference_without_the_episode() -> None:
    data = make_evidence(4)
    counts = np.concatenate([np.ones((1, 7)), 1.0 - np.eye(7)])
    resampled_values = compute_estimates(data, counts)
    contributions = jackknife_contributions(data)
    assert contributions.keys() == resampled_values.keys()
    for name, values in resampled_values.items():
        assert contributions[name] == pytest.approx(values[0] - values[1:], rel=1e-9, abs=1e-12), name


def test_missing_weights_widen_intervals() -> None:
    """The weights have the mean 0.75 instead of 1; without a model, `dr` and `wdr` have no margin."""
    data = Evidence(np.array([1, 1]), np.array([1.0, 5.0]), 1.0, np.log([0.5, 1.0]))
    assert missing_weight_margins(data) == pytest.approx({"wis": 0.25 * 2.0, "pdwis": 0.25 * 2.0})
    assert missing_weight_margins(replace(data, clip=0.5)) == pytest.approx(
        {"wis": 0.5 * 2.0, "pdwis": 0.5 * 2.0}
    )
    data_with_model = replace(data, values=Values(np.array([1.0, 2.0]), np.zeros(2), np.zeros(2)))
    assert (
        missing_weight_margins(data_with_model)["dr"]
        == missing_weight_margins(data_with_model)["wdr"]
        == pytest.approx(0.25 * 1.5)
    )
    assert jackknife_interval(1.0, np.zeros(5), 0.9, 0.25) == (0.75, 1.25)


def test_interval_of_few_heavy_episodes_is_wide() -> None:
    even = jackknife_interval(0.0, np.full(50, 1.0), 0.9)
    # The same variance, caused by a single episode.
    heavy = jackknife_interval(0.0, np.array([np.sqrt(50.0)] + [0.0] * 49), 0.9)
    assert even == pytest.approx((-12.0, 12.0), abs=0.1)
    assert heavy == pytest.approx((-44.2, 44.2), abs=0.1)
    assert jackknife_interval(1.0, np.zeros(5), 0.9) == (1.0, 1.0)
    assert jackknife_interval(1.0, np.array([np.inf, 0.0]), 0.9) is None


def test_intervals_contain_truth_as_often_as_stated() -> None:
    """Of 200 intervals with a level of 90 %, at least 88 % contain the true return, for each estimator except `dm`."""
    chain, num_recordings = Chain(2), 200
    num_covered, errors = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0.0)
    for seed in range(num_recordings):
        data = chain.record(300, seed)
        values, contributions, margins = (
            estimate_once(data),
            jackknife_contributions(data),
            missing_weight_margins(data),
        )
        for name in NAMES:
            margin = margins.get(name, 0.0)
            low, high = jackknife_interval(values[name], contributions[name], 0.9, margin) or (
                math.nan,
                math.nan,
            )
            num_covered[name] += low <= chain.target_return <= high
            errors[name] += (values[name] - chain.target_return) ** 2
    assert all(num_covered[name] >= 0.88 * num_recordings for name in NAMES if name != "dm"), num_covered
    assert num_covered["dm"] < 0.2 * num_recordings  # the jackknife does not see the bias of the model
    assert errors["wis"] < errors["is"]
    assert errors["dr"] < errors["is"]
