"""Fitted Q evaluation against the exact values of a small MDP, and the randomness of all fits."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from recorded_mdp import TabularMdp, make_linear_policy, write_dataset

from hindcast.api.training import RewardsSpec
from hindcast.evaluate.behaviour_clone import Clone, CloneOptions
from hindcast.evaluate.fitted_q import FittedQ, FittedQOptions, cross_fit
from hindcast.evaluate.recorded_episodes import load_window
from hindcast.evaluate.target_policy import TargetPolicy
from hindcast.models.reward_scale import RewardScale


def test_values_equal_linear_solution(tmp_path: Path) -> None:
    """The exact values are V = (I - Γ·P)⁻¹·r of the target, for each state in each of the eight steps.

    The chain is semi-Markov: Γ has the discount of each step's duration.
    """
    mdp = TabularMdp(3, has_durations=True)
    chain, policy = mdp.chain, mdp.make_policy()
    size, steps = chain.num_states, chain.num_steps
    probs = np.stack([1 - chain.target, chain.target], -1)
    discounted_probs = probs * chain.gamma**chain.delta_t
    transition_matrix = np.kron(
        np.eye(steps, k=1), np.einsum("sa,san->sn", discounted_probs, chain.transition_probs)
    )
    rewards = np.tile((probs * chain.reward).sum(-1), steps)
    exact_values = np.linalg.solve(np.eye(size * steps) - transition_matrix, rewards)
    window = load_window(mdp.record(tmp_path, 600, 0, logp=True), policy, chain.gamma, "data")
    options = FittedQOptions(updates=350, members=2, hiddens=(64,), lr=1e-2, samples=4)
    model = cross_fit(TargetPolicy(policy, explore=True), window, options, 0, lambda _: None)
    v = model.values.v
    for name, means in model.values._asdict().items():
        members = np.stack([getattr(values, name) for values in model.members])
        np.testing.assert_allclose(members.mean(0), means, err_msg=name)
        assert members.shape == (2, *means.shape)
    assert model.has_first_model.sum() == 300
    state = window.columns["obs"][window.obs_row].argmax(-1).numpy()
    estimates = np.array([v[state == index].mean() for index in range(size * steps)])
    assert np.abs(estimates - exact_values).mean() < 0.1 * np.abs(exact_values).mean()
    assert np.corrcoef(estimates, exact_values)[0, 1] > 0.98


def test_weights_and_batches_have_separate_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a single seed, the content of a batch would correlate with the initial weights."""
    weight_seeds: list[int] = []
    seed_all = torch.manual_seed
    # `append` returns None, so the function returns what `manual_seed` returns.
    monkeypatch.setattr(torch, "manual_seed", lambda seed: weight_seeds.append(seed) or seed_all(seed))
    mdp = TabularMdp(3)
    policy = mdp.make_policy()
    window = load_window(mdp.record(tmp_path, 20, 0, logp=True), policy, mdp.chain.gamma, "data")
    all_episodes, options = torch.ones(20, dtype=torch.bool), FittedQOptions(updates=1)
    target = TargetPolicy(policy, explore=True)
    model = FittedQ(target, window, all_episodes, options, seed=0, check=lambda _: None)
    clone = Clone(policy, window, CloneOptions(updates=1), seed=0)
    batch_seeds = {model._generator.initial_seed(), clone._generator.initial_seed()}
    assert len(weight_seeds) == 3  # one for the model, two for the fits of the clone
    assert not batch_seeds & {*weight_seeds}


def test_values_stay_within_bounds_of_rewards(tmp_path: Path) -> None:
    """The example of Tsitsiklis and Van Roy (1996) does not diverge.

    Every episode is one step from state 1 to state 2, and no step starts in state 2. A linear model, whose value of
    state 2 is twice that of state 1, diverges without bounds.
    """
    spaces = (gym.spaces.Box(0, 2, (1,)), gym.spaces.Discrete(2))
    columns = {
        "obs": np.tile(np.array([[[1.0], [2.0]]], np.float32), (8, 1, 1)),
        "actions": np.zeros((8, 1), np.int64),
        "rewards": np.ones((8, 1), np.float32),
    }
    data = write_dataset(tmp_path / "data", columns, spaces, terminated=False)
    policy = make_linear_policy(spaces, np.array([[1.0], [-1.0]]))
    window = load_window(data, policy, 0.99, "data")
    options = FittedQOptions(updates=300, members=2, hiddens=(64,), lr=1e-2, tau=1.0)
    q = cross_fit(TargetPolicy(policy, explore=False), window, options, 0, lambda _: None).values.q
    assert q.max() == pytest.approx(100, rel=0.05)  # the bound: rewards of 1 without end, discounted by 0.99


def test_estimates_see_recorded_rewards_whatever_the_policy_learnt_from(tmp_path: Path) -> None:
    """Regression: `rewards` scaled the returns of all estimates, of the verdict and of the gate."""
    mdp = TabularMdp(0)
    data, policy = mdp.record(tmp_path, 5, 0, logp=True), mdp.make_policy()
    rewards = load_window(data, policy, 0.99, "data").columns["rewards"]
    policy.preprocessing.reward_scale = RewardScale(RewardsSpec(scale=10.0, shift=-1.0))
    assert torch.equal(load_window(data, policy, 0.99, "data").columns["rewards"], rewards)
