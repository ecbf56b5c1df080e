import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from episode_kit import build_block
from hindcast.learn.gae import block_gae, discounted_sums, window_gae
from hindcast.pipeline.loader import build_window
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.window import Recipe
from layers import examples

GAMMA = 0.9


def make_block(lengths, terminated, truncated, seed=0):
    rng = np.random.default_rng(seed)
    columns = {
        "rewards": rng.normal(size=sum(lengths)),
        "obs": rng.normal(size=(sum(lengths) + len(lengths), 1)),
    }
    return build_block(columns, lengths, terminated=np.array(terminated), truncated=np.array(truncated))


def make_values(block, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=len(block.columns["obs"]))).float()


def gae_by_definition(block, values, gamma, lambda_):
    """Compute advantages by the definition of GAE, one timestep at a time, in float64.

    If steps have durations, gamma discounts per unit of time.
    """
    discounts = gamma ** block.columns.get("delta_t", np.ones(block.num_steps))
    advantages = []
    for episode in range(block.num_episodes):
        rewards = block.columns["rewards"][block.rows_of("rewards", episode)]
        v = values.double().numpy()[block.rows_of("obs", episode)].copy()
        if block.terminated[episode]:
            v[-1] = 0.0
        step_discounts = discounts[block.rows_of("rewards", episode)]
        advantage, episode_advantages = 0.0, []
        for t in reversed(range(len(rewards))):
            advantage = rewards[t] + step_discounts[t] * (v[t + 1] + lambda_ * advantage) - v[t]
            episode_advantages.append(advantage)
        advantages += episode_advantages[::-1]
    return np.array(advantages)


@examples(60)
@given(
    episodes=st.lists(
        st.tuples(st.integers(1, 40), st.sampled_from(["terminated", "truncated", "fragment"])),
        min_size=1,
        max_size=12,
    ),
    lambda_=st.floats(0, 1),
    gamma=st.floats(0, 1),
)
def test_block_gae_equals_the_definition(episodes, lambda_, gamma):
    lengths, ends = zip(*episodes, strict=True)
    block = make_block(lengths, [end == "terminated" for end in ends], [end == "truncated" for end in ends])
    values = make_values(block)
    advantages, targets = block_gae(block, values, gamma, lambda_)
    expected = gae_by_definition(block, values, gamma, lambda_)
    np.testing.assert_allclose(advantages, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(targets, advantages + values[block.obs_row], rtol=1e-5, atol=1e-5)


@examples(30)
@given(seed=st.integers(0, 1000), lambda_=st.floats(0, 1), gamma=st.floats(0, 1))
def test_window_gae_discounts_time(seed, lambda_, gamma):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 20, 6)
    block = make_block(lengths, rng.random(6) < 0.5, np.zeros(6, bool), seed)
    values, recipe = make_values(block, seed), Recipe(Needs(frozenset({"obs", "rewards", "delta_t"})))

    def compute_gae(delta_t):
        timed_block = block.with_columns({**block.columns, "delta_t": delta_t})
        window = build_window([timed_block], recipe)
        return timed_block, window_gae(window, values, gamma, lambda_)

    timed_block, (advantages, _) = compute_gae(rng.exponential(size=block.num_steps))
    expected = gae_by_definition(timed_block, values, gamma, lambda_)
    np.testing.assert_allclose(advantages, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        block_gae(timed_block, values, gamma, lambda_)[0], expected, rtol=1e-4, atol=1e-4
    )
    _, equal_spacing = compute_gae(np.ones(block.num_steps))
    assert all(map(torch.equal, equal_spacing, block_gae(block, values, gamma, lambda_)))


def test_block_gae_with_lambda_1_is_the_discounted_return_minus_v():
    block = make_block([5], [True], [False])
    rewards, values = block.columns["rewards"], make_values(block)
    returns = [sum(GAMMA**k * reward for k, reward in enumerate(rewards[t:])) for t in range(5)]
    advantages, targets = block_gae(block, values, GAMMA, 1.0)
    np.testing.assert_allclose(advantages, returns - values.numpy()[:5], rtol=1e-5)
    np.testing.assert_allclose(targets, returns, rtol=1e-5)


def test_block_gae_with_lambda_0_is_the_td_error():
    block = make_block([4], [True], [False])
    rewards, v = block.columns["rewards"], make_values(block).double().numpy()
    v[-1] = 0.0
    advantages, _ = block_gae(block, make_values(block), GAMMA, 0.0)
    np.testing.assert_allclose(advantages, rewards + GAMMA * v[1:] - v[:-1], rtol=1e-5)


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 1.0])
def test_block_gae_bootstraps_except_at_termination(lambda_):
    def compute_advantages(terminated, truncated):
        block = make_block([3], [terminated], [truncated])
        return block_gae(block, make_values(block), GAMMA, lambda_)[0]

    terminated, truncated = compute_advantages(True, False), compute_advantages(False, True)
    assert torch.equal(truncated, compute_advantages(False, False))
    final_value = make_values(make_block([3], [True], [False]))[-1]
    np.testing.assert_allclose(truncated[-1] - terminated[-1], GAMMA * final_value, rtol=1e-5)


def test_terminated_and_truncated_episode_does_not_bootstrap():
    block, terminated_block = (make_block([3], [True], [truncated]) for truncated in (True, False))
    values = make_values(block)
    expected, _ = block_gae(terminated_block, values, GAMMA, 0.9)
    assert torch.equal(block_gae(block, values, GAMMA, 0.9)[0], expected)


def test_empty_fragment_between_episodes_changes_nothing():
    block = make_block([3, 2], [True, False], [False, True])
    block_with_gap = make_block([3, 0, 2], [True, False, False], [False, False, True])
    block_with_gap.columns["rewards"][:] = block.columns["rewards"]
    values = make_values(block)
    values_with_gap = torch.cat([values[:4], torch.tensor([99.0]), values[4:]])
    expected, _ = block_gae(block, values, GAMMA, 0.9)
    assert torch.equal(block_gae(block_with_gap, values_with_gap, GAMMA, 0.9)[0], expected)


def test_discounted_sums_cover_a_long_episode():
    assert discounted_sums(torch.ones(10_000), torch.ones(10_000))[0] == 10_000


def test_discounted_sums_do_not_modify_their_inputs():
    values, decay = torch.ones(5), torch.full((5,), 0.5)
    discounted_sums(values, decay)
    assert torch.equal(values, torch.ones(5)) and torch.equal(decay, torch.full((5,), 0.5))
