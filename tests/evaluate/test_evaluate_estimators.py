"""Estimators: exact where the target is the behaviour, equal to slow ones, and near the truth as often as they say."""

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
    effective_episodes,
    estimates,
    jackknife_contributions,
    missing_weight_margins,
)
from hindcast.evaluate.intervals import jackknife_interval, resamples, student_interval, t_quantile

BY_NAME = ("is", "wis", "pdis", "pdwis", "dm", "dr", "wdr")


def evidence(seed: int, episodes: int = 7, *, same: bool = False, **changes: Any) -> Evidence:
    """Random episodes of 1 to 9 steps."""
    rng = np.random.default_rng(seed)
    length = rng.integers(1, 10, episodes)
    steps = int(length.sum())
    values = Values(rng.normal(size=steps), rng.normal(size=steps), rng.normal(size=episodes))
    ratio = np.zeros(steps) if same else rng.normal(scale=0.5, size=steps)
    known = {"length": length, "rewards": rng.normal(size=steps), "gamma": 0.9}
    return Evidence(**known | {"log_ratio": ratio, "values": values} | changes)


def once(given: Evidence, clip: float | None = None) -> dict[str, float]:
    found = estimates(replace(given, clip=clip), np.ones((1, len(given.length))))
    return {name: float(value[0]) for name, value in found.items()}


def slowly(given: Evidence, episodes: list[int], clip: float = math.inf) -> dict[str, float]:
    """The formulas step by step, of these episodes, repeated as they are named."""
    n, longest = len(episodes), int(given.length.max())
    assert given.log_ratio is not None
    assert given.values is not None
    rows, weights, returns, decided, model, repaired = [], [], [], [], [], []
    for episode in episodes:
        first, length = int(given.first_step[episode]), int(given.length[episode])
        weight, so_far, total, per_decision, corrected = 1.0, [], 0.0, 0.0, given.values.v[first]
        terms = []
        for t in range(length):
            step = first + t
            weight *= min(math.exp(given.log_ratio[step]), clip)
            reward = given.gamma**t * given.rewards[step]
            is_last = t == length - 1
            following = given.values.final_v[episode] if is_last else given.values.v[step + 1]
            error = given.rewards[step] + given.gamma * following - given.values.q[step]
            so_far.append(weight)
            total += reward
            per_decision += weight * reward
            corrected += weight * given.gamma**t * error
            terms.append((reward, given.gamma**t * error))
        rows.append((so_far + [weight] * (longest - length), terms + [(0.0, 0.0)] * (longest - length)))
        weights.append(weight)
        returns.append(total)
        decided.append(per_decision)
        model.append(given.values.v[first])
        repaired.append(corrected)
    weighted = [0.0, 0.0]
    for t in range(longest):
        sum_of_weights = sum(row[0][t] for row in rows)
        for kind in (0, 1):
            weighted[kind] += sum(row[0][t] * row[1][t][kind] for row in rows) / sum_of_weights
    products = [weight * total for weight, total in zip(weights, returns, strict=True)]
    return {
        "behaviour": sum(returns) / n,
        "is": sum(products) / n,
        "wis": sum(products) / sum(weights),
        "pdis": sum(decided) / n,
        "pdwis": weighted[0],
        "dm": sum(model) / n,
        "dr": sum(repaired) / n,
        "wdr": sum(model) / n + weighted[1],
    }


@pytest.mark.parametrize("seed", range(5))
def test_equal_a_slow_reference(seed: int) -> None:
    given = evidence(seed)
    assert once(given) == pytest.approx(slowly(given, list(range(7))), rel=1e-12)
    assert once(given, clip=1.1) == pytest.approx(slowly(given, list(range(7)), clip=1.1), rel=1e-12)


def test_resamples_count_episodes_as_often_as_they_are_drawn() -> None:
    given = evidence(3)
    counts = resamples(7, 4, seed=1)
    found = estimates(given, counts)
    for row in range(5):
        drawn = [episode for episode in range(7) for _ in range(int(counts[row, episode]))]
        expected = slowly(given, drawn)
        assert {name: value[row] for name, value in found.items()} == pytest.approx(expected, rel=1e-10)


def test_weights_are_exactly_one_where_the_target_is_the_behaviour() -> None:
    given = evidence(0, same=True)
    assert (given.weights == 1.0).all()
    found = once(given)
    for name in ("is", "wis", "pdis", "pdwis"):
        assert found[name] == pytest.approx(found["behaviour"], rel=1e-12)


def test_an_action_that_the_target_never_takes_ends_what_its_episode_says() -> None:
    ratios = np.array([0.0, -np.inf, 0.0, math.log(2.0), 0.0])
    given = Evidence(np.array([3, 2]), np.array([1.0, 2.0, 4.0, 8.0, 16.0]), 1.0, ratios)
    assert given.weights.tolist() == [1.0, 0.0, 0.0, 2.0, 2.0]
    assert once(given) == pytest.approx(
        {"behaviour": 15.5, "is": 24.0, "wis": 24.0, "pdis": 24.5, "pdwis": (1 + 16) / 3 + 16 + 0}
    )


def test_nothing_is_said_where_no_episode_has_a_weight() -> None:
    given = Evidence(np.array([1]), np.array([1.0]), 1.0, np.array([-np.inf]))
    assert math.isnan(once(given)["wis"])
    assert effective_episodes(given.weights) == 0.0


def test_effective_episodes() -> None:
    assert effective_episodes(np.ones(5)) == pytest.approx(5.0)
    assert effective_episodes(np.array([1e200, 1e200, 0.0])) == pytest.approx(2.0)
    assert effective_episodes(np.full(100, 1e-3)) == pytest.approx(0.1)  # the others were never played


def test_long_products_neither_overflow_nor_vanish_before_they_are_multiplied() -> None:
    ratios = np.concatenate([np.full(500, 10.0), np.full(500, -10.0)])
    given = Evidence(np.array([1000]), np.ones(1000), 1.0, ratios)
    with np.errstate(over="ignore"):
        assert given.weights[-1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [(0.95, 1, 6.3138), (0.95, 2, 2.9200), (0.95, 3, 2.3534), (0.975, 5, 2.5706), (0.95, 30, 1.6973)],
)
def test_students_quantiles(probability: float, freedom: int, expected: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-3)


def test_one_episode_has_no_interval_of_students() -> None:
    assert student_interval(1.0, 0.0, 0.9, degrees_of_freedom=0) is None
    assert student_interval(2.0, 1.0, 0.9, degrees_of_freedom=1) == pytest.approx(
        (2 - 6.3138, 2 + 6.3138), rel=1e-3
    )


def test_contributions_are_what_an_estimate_loses_without_the_episode() -> None:
    given = evidence(4)
    all_but_one = np.concatenate([np.ones((1, 7)), 1.0 - np.eye(7)])
    found = estimates(given, all_but_one)
    contributions = jackknife_contributions(given)
    assert contributions.keys() == found.keys()
    for name, values in found.items():
        assert contributions[name] == pytest.approx(values[0] - values[1:], rel=1e-9, abs=1e-12), name


def test_weights_that_were_not_played_widen_intervals() -> None:
    """Of the mean 0.75 instead of 1; without a model there is nothing for `dr` and `wdr`."""
    given = Evidence(np.array([1, 1]), np.array([1.0, 5.0]), 1.0, np.log([0.5, 1.0]))
    assert missing_weight_margins(given) == pytest.approx({"wis": 0.25 * 2.0, "pdwis": 0.25 * 2.0})
    assert missing_weight_margins(replace(given, clip=0.5)) == pytest.approx(
        {"wis": 0.5 * 2.0, "pdwis": 0.5 * 2.0}
    )
    modelled = replace(given, values=Values(np.array([1.0, 2.0]), np.zeros(2), np.zeros(2)))
    assert (
        missing_weight_margins(modelled)["dr"]
        == missing_weight_margins(modelled)["wdr"]
        == pytest.approx(0.25 * 1.5)
    )
    assert jackknife_interval(1.0, np.zeros(5), 0.9, 0.25) == (0.75, 1.25)


def test_the_interval_of_few_heavy_episodes_is_wide() -> None:
    even = jackknife_interval(0.0, np.full(50, 1.0), 0.9)
    heavy = jackknife_interval(
        0.0, np.array([np.sqrt(50.0)] + [0.0] * 49), 0.9
    )  # the same variance, of one episode
    assert even == pytest.approx((-12.0, 12.0), abs=0.1)
    assert heavy == pytest.approx((-44.2, 44.2), abs=0.1)
    assert jackknife_interval(1.0, np.zeros(5), 0.9) == (1.0, 1.0)
    assert jackknife_interval(1.0, np.array([np.inf, 0.0]), 0.9) is None


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """90 % intervals of 200 recordings: 88 % or more of each estimator's."""
    chain, count = Chain(2), 200
    held, errors = dict.fromkeys(BY_NAME, 0), dict.fromkeys(BY_NAME, 0.0)
    for seed in range(count):
        recorded = chain.recorded(300, seed)
        found, contributions, beyond = (
            once(recorded),
            jackknife_contributions(recorded),
            missing_weight_margins(recorded),
        )
        for name in BY_NAME:
            wider = beyond.get(name, 0.0)
            low, high = jackknife_interval(found[name], contributions[name], 0.9, wider) or (
                math.nan,
                math.nan,
            )
            held[name] += low <= chain.truth <= high
            errors[name] += (found[name] - chain.truth) ** 2
    assert all(held[name] >= 0.88 * count for name in BY_NAME if name != "dm"), held
    assert held["dm"] < 0.2 * count  # its model is off, which leaving out episodes cannot show
    assert errors["wis"] < errors["is"]
    assert errors["dr"] < errors["is"]
