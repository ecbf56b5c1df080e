"""Changed rewards: the formula, what is fitted to data, and that only learning sees them."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hindcast.api.training import RewardsSpec
from hindcast.episodes.block import Block
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.reward_scale import RewardScale
from hindcast.pipeline.loader import build_window
from hindcast.pipeline.needs import transitions
from hindcast.pipeline.window import Recipe

SPACE = gym.spaces.Box(-1, 1, (2,), np.float32)
NUMBERS = st.floats(-100, 100, allow_nan=False, width=32)
OPTIONS = st.builds(
    RewardsSpec,
    scale=st.floats(0.01, 100),
    shift=NUMBERS,
    clip=st.none() | st.floats(0.1, 10),
    normalize=st.sampled_from(["none", "returnRange", "std"]),
)


def make_block(rewards, lengths):
    """Return episodes of these lengths with the rewards."""
    num_steps = int(lengths.sum())
    zeros = np.zeros(len(lengths), dtype=np.int64)
    return Block(
        columns={
            "obs": np.zeros((num_steps + len(lengths), 2), np.float32),
            "actions": np.zeros((num_steps, 2), np.float32),
            "rewards": rewards,
        },
        length=lengths,
        eps_id=np.array([str(index) for index in range(len(lengths))], dtype=object),
        t_started=zeros,
        terminated=zeros == 0,
        truncated=zeros > 0,
    )


@given(spec=OPTIONS, rewards=st.lists(NUMBERS, min_size=6, max_size=6))
@settings(max_examples=50, deadline=None)
def test_window_has_the_rewards_of_the_formula(spec, rewards):
    rewards, lengths = np.array(rewards, np.float32), np.array([1, 3, 2])
    block = make_block(rewards, lengths)
    preprocessing = Preprocessing(SPACE, SPACE, rewards=spec)
    # In two steps, as the windows of two sources are.
    preprocessing.reward_scale.update(rewards[:1], np.array([0]))
    preprocessing.reward_scale.update(rewards[1:], np.array([0, 3]))
    returns = [rewards[:1].sum(dtype=float), rewards[1:4].sum(dtype=float), rewards[4:].sum(dtype=float)]
    divisor = {
        "none": 1.0,
        "returnRange": max(returns) - min(returns),
        "std": rewards.std(ddof=1, dtype=float),
    }
    n = divisor[spec.normalize]
    factor = spec.scale / (n if n > 1e-6 else 1.0)
    clip = np.inf if spec.clip is None else spec.clip
    expected = np.clip(factor * (rewards.astype(float) + spec.shift), -clip, clip)
    window = build_window([block], Recipe(transitions(0.9), preprocessing))
    np.testing.assert_allclose(window.gather(torch.arange(6))["rewards"], expected, rtol=1e-4, atol=1e-4)
    assert block.columns["rewards"] is rewards, "the recorded rewards do not change"


@pytest.mark.parametrize("normalize", ["none", "returnRange", "std"])
def test_saved_scale_changes_rewards_the_same(normalize):
    spec = RewardsSpec(scale=3.0, shift=1.0, normalize=normalize)
    preprocessing = Preprocessing(SPACE, SPACE, rewards=spec)
    rewards = np.random.default_rng(0).normal(size=20).astype(np.float32)
    preprocessing.reward_scale.update(rewards, np.array([0, 7]))
    restored = Preprocessing.from_json(SPACE, SPACE, preprocessing.to_json())
    restored.load(preprocessing.state())
    assert np.array_equal(restored.reward_scale(rewards), preprocessing.reward_scale(rewards))
    assert restored.fork().reward_scale is restored.reward_scale


def test_policies_without_changed_rewards_keep_their_files():
    preprocessing = Preprocessing(SPACE, SPACE)
    assert preprocessing.state() == {}
    assert set(preprocessing.to_json()) == {
        "observationFilter",
        "frameStack",
        "normalizeActions",
        "clipActions",
    }


@pytest.mark.parametrize("normalize", ["returnRange", "std"])
def test_equal_rewards_are_not_divided(normalize):
    scale = RewardScale(RewardsSpec(normalize=normalize))
    scale.update(np.ones(4, np.float32), np.array([0, 2]))
    assert scale.factor == 1.0
