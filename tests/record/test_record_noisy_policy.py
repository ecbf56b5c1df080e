"""Noise of deterministic policies that explore."""

import gymnasium as gym
import numpy as np
import pytest

from hindcast.api.model import ModelSpec
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import build_module
from hindcast.record.noisy_policy import NoisyPolicy

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = gym.spaces.Box(np.float32([-2, 0]), np.float32([6, 1]), dtype=np.float32)
NUM_ROWS = 4000


@pytest.mark.parametrize("is_normalised", [True, False])
def test_noise_has_the_standard_deviation_in_half_ranges_and_stays_inside_the_bounds(is_normalised):
    model = ModelSpec(distribution="squashedDeterministic")
    preprocessing = Preprocessing(OBS, ACTIONS, normalize_actions=is_normalised)
    module = build_module(preprocessing.observation_space, preprocessing.action_space, model, value=False)
    policy = Policy(module, preprocessing, OBS, ACTIONS)
    noisy_policy = NoisyPolicy(policy, 0.2)
    observations = {"obs": np.zeros((NUM_ROWS, 3), np.float32)}
    is_first = np.ones(NUM_ROWS, bool)
    noise = noisy_policy.draw_noise(np.random.default_rng(0), NUM_ROWS)
    greedy = noisy_policy.act(observations, None, is_first)
    noisy = noisy_policy.act(observations, noise, is_first)
    np.testing.assert_array_equal(
        greedy.actions["actions"], policy.act(observations, None, is_first).actions["actions"]
    )
    half_range = np.array([4.0, 0.5])
    gaps = (np.asarray(noisy.env_actions) - np.asarray(greedy.env_actions)) / half_range
    np.testing.assert_allclose(gaps.std(0), 0.2, rtol=0.05)
    np.testing.assert_allclose(gaps.mean(0), 0.0, atol=0.02)
    extreme = noisy_policy.act(observations, 100 * noise, is_first)
    assert all(ACTIONS.contains(action) for action in extreme.env_actions)
    assert noisy.logp is None and noisy.actions["actions"].dtype == np.float32
