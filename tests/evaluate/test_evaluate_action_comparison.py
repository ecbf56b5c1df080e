"""Comparison of a policy's actions with the recorded ones: frequencies, agreement, states of the largest difference."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from recorded_mdp import make_linear_policy, write_dataset

from hindcast.evaluate.action_comparison import ActionComparison
from hindcast.evaluate.offline import OfflineEvaluator, OfflineOptions

NUM_EPISODES, NUM_STEPS = 60, 10
STATES = gym.spaces.Box(-3, 3, (2,), np.float64)


def compare(folder: Path, actions: gym.Space, weights: list[list[float]], explore: bool) -> ActionComparison:
    """Compare a linear policy with uniform recorded actions; actions are scaled if they are continuous."""
    rng = np.random.default_rng(0)
    shape = NUM_EPISODES, NUM_STEPS
    columns = {
        "obs": rng.uniform(-1, 1, (NUM_EPISODES, NUM_STEPS + 1, 2)),
        "actions": rng.integers(0, 2, shape)
        if isinstance(actions, gym.spaces.Discrete)
        else rng.uniform(-1, 1, (*shape, 1)).astype(np.float32),
        "rewards": rng.normal(size=shape),
    }
    data = write_dataset(folder, columns, (STATES, actions))
    policy = make_linear_policy((STATES, actions), np.array(weights, np.float32), normalize_actions=True)
    return OfflineEvaluator(policy, data, "data", OfflineOptions(explore=explore)).compare_actions(policy)


@pytest.mark.parametrize("explore", [True, False])
def test_states_name_the_feature_that_the_policy_follows(tmp_path: Path, explore: bool) -> None:
    # Action 1 where obs[1] is high: the policy differs from uniform actions at both ends of obs[1] only.
    comparison = compare(tmp_path, gym.spaces.Discrete(2), [[0, -20], [0, 20]], explore)
    (element,) = comparison.elements
    assert (element.name, element.values, element.is_discrete) == ("action", ("0", "1"), True)
    assert sum(element.recorded) == pytest.approx(1)
    assert element.policy[1] == pytest.approx(0.5, abs=0.08)
    (state,) = comparison.states
    assert state.state.startswith(("obs[1] below -0.3", "obs[1] above 0.3"))
    assert {state.policy, state.recorded} != {1.0}
    assert state.difference == pytest.approx(0.5, abs=0.08)
    assert comparison.agreement is not None
    assert comparison.agreement.share == pytest.approx(0.5, abs=0.06)
    assert comparison.agreement.by_chance == pytest.approx(0.5, abs=0.02)


def test_policy_that_differs_alike_everywhere_names_no_states(tmp_path: Path) -> None:
    comparison = compare(tmp_path, gym.spaces.Discrete(2), [[0, 0], [0, 0]], explore=True)
    assert comparison.states == ()


def test_continuous_actions_are_compared_in_units_of_the_environment(tmp_path: Path) -> None:
    actions = gym.spaces.Box(0, 10, (1,))
    # The mean is tanh-free: obs[0] / 2 within ±1, which is a dose of 2.5 to 7.5.
    comparison = compare(tmp_path, actions, [[0.5, 0], [0, 0]], explore=False)
    (element,) = comparison.elements
    assert (comparison.agreement, element.is_discrete) == (None, False)
    assert element.policy_mean == pytest.approx(5, abs=0.3)
    assert element.recorded_mean == pytest.approx(5, abs=0.3)
    assert len(element.values) == 10
    assert comparison.states[0].state.startswith("obs[0]")
    assert comparison.states[0].value is None
