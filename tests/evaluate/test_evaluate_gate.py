"""The gate: errors no more often than stated under any number of looks, promotion of what is better, exact resume."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.typing import NDArray

from hindcast.evaluate.gate import GateTest
from layers import repeats

ERROR = 0.05
NUM_RUNS, NUM_EPISODES = repeats(20, soak=200), repeats(400, soak=5_000)
NUM_STEPS, RECORDED_SHARE = 4, 0.5


def play(
    seed: int, target_share: float, effect: float, num_episodes: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return weights and returns of episodes of `NUM_STEPS` choices, with a reward of 0 or 1 after each.

    The recorded policy takes the better of two actions in half of the steps, the target in `target_share`; the reward
    is 1 with a probability that is higher by `effect` after the better action.
    """
    rng = np.random.default_rng(seed)
    is_better = rng.random((num_episodes, NUM_STEPS)) < RECORDED_SHARE
    ratios = np.where(is_better, target_share, 1 - target_share) / RECORDED_SHARE
    rewards = rng.random(ratios.shape) < 0.5 + effect * is_better
    return ratios.prod(1), rewards.sum(1).astype(float)


def run_gate(test: GateTest, weights: NDArray[np.float64], returns: NDArray[np.float64]) -> GateTest:
    """Feed a test with episodes, and return it."""
    test.add(weights, returns)
    return test


def make_test(error: float = ERROR, by: float = 0.0) -> GateTest:
    return GateTest(by, error, 0.0, NUM_STEPS)


@pytest.mark.soak
@pytest.mark.parametrize("target_share", [0.5, 0.6, 0.8])
@pytest.mark.parametrize(("effect", "by"), [(0.0, 0.0), (0.3, None), (-0.1, 0.0)])
def test_policy_that_is_not_better_is_promoted_no_more_often_than_stated(
    target_share: float, effect: float, by: float | None
) -> None:
    """With `by` None, the gain is exactly what the gate demands."""
    by = NUM_STEPS * effect * (target_share - RECORDED_SHARE) if by is None else by
    runs = [play(seed, target_share, effect, NUM_EPISODES) for seed in range(NUM_RUNS)]
    num_promoted = sum(run_gate(make_test(by=by), *run).decision == "promoted" for run in runs)
    assert num_promoted <= ERROR * NUM_RUNS + 2 * np.sqrt(NUM_RUNS * ERROR * (1 - ERROR))


@pytest.mark.soak
@pytest.mark.slow
def test_candidates_share_the_error() -> None:
    """The best of 32 candidates without effect is promoted no more often than a single one may be."""
    num_candidates, num_runs = 32, repeats(2, soak=200)
    num_promoted = 0
    for run in range(num_runs):
        rng = np.random.default_rng(run)
        is_first = rng.random((NUM_EPISODES, NUM_STEPS)) < RECORDED_SHARE
        returns = (rng.random(is_first.shape) < 0.5).sum(1).astype(float)
        shares = rng.uniform(0.3, 0.7, num_candidates)
        decisions = []
        for share in shares:
            weights = (np.where(is_first, share, 1 - share) / RECORDED_SHARE).prod(1)
            decisions.append(run_gate(make_test(ERROR / num_candidates), weights, returns).decision)
        num_promoted += "promoted" in decisions
    assert num_promoted <= ERROR * num_runs + 2 * np.sqrt(num_runs * ERROR * (1 - ERROR))


@pytest.mark.slow
@pytest.mark.parametrize("target_share", [0.55, 0.6, 0.7])
def test_better_policy_is_promoted_soon(target_share: float) -> None:
    """The median is below 2.5 times the episodes of a test that knows the gain and looks once, with a power of 80 %."""
    effect, num_runs = 0.2, repeats(9, soak=100)
    weights, returns = play(0, target_share, effect, 100_000)
    gains = (weights - 1) * returns
    fixed_size = ((1.645 + 0.842) * gains.std() / gains.mean()) ** 2
    runs = [play(seed, target_share, effect, int(5 * fixed_size)) for seed in range(num_runs)]
    tests = [run_gate(make_test(), *run) for run in runs]
    assert np.median([test.episodes for test in tests]) < 2.5 * fixed_size
    assert sum(test.decision == "promoted" for test in tests) > 0.9 * num_runs


def test_worse_policy_is_kept_and_decision_is_final() -> None:
    weights, returns = play(0, 0.3, 0.6, 2_000)
    test = run_gate(make_test(), weights, returns)
    assert test.decision == "kept"
    state = test.to_json()
    test.add(np.array([1e6]), np.array([4.0]))
    assert test.to_json() == state


@pytest.mark.parametrize("cut", [0, 1, 17, 199])
def test_resume_at_any_episode_gives_the_same_state(cut: int) -> None:
    weights, returns = play(3, 0.7, 0.3, 200)
    uninterrupted_test = run_gate(make_test(), weights, returns)
    interrupted_test = run_gate(make_test(), weights[:cut], returns[:cut])
    interrupted_test = GateTest.from_json(json.loads(json.dumps(interrupted_test.to_json())))
    assert run_gate(interrupted_test, weights[cut:], returns[cut:]).to_json() == uninterrupted_test.to_json()


def test_weight_of_zero_and_infinite_evidence_are_finite() -> None:
    test = make_test(error=1e-12)
    test.add(np.array([0.0, 1e300]), np.array([4.0, 4.0]))
    assert np.isfinite(test.evidence)
    assert test.decision == "promoted"


def test_infinite_weight_leaves_capital_finite() -> None:
    for return_ in (0.0, 2.0):
        test = make_test(error=1e-300)
        test.add(np.array([np.inf]), np.array([return_]))
        assert np.isfinite(test.log_capital).all()
        assert GateTest.from_json(json.loads(json.dumps(test.to_json()))).to_json() == test.to_json()
