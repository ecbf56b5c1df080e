import math

import gymnasium as gym
import pytest
import torch
from algorithm_kit import BOX, build_algorithm, make_step

from hindcast.algorithms import build
from hindcast.learn.learner import Learner


def build_bc(action_space, **model):
    return build_algorithm("BC", {"lr": 1e-2}, action_space, fcnet_hiddens=[32], **model)


def make_observations(size=64, seed=0):
    return torch.rand((size, 3), generator=torch.Generator().manual_seed(seed)) * 2 - 1


def train(algorithm, nets, make_batch, num_updates=300):
    """Return the mean metrics of the last 50 updates."""
    learner = Learner(algorithm, nets)
    for seed in range(num_updates):
        learner.update(make_batch(make_observations(seed=seed)))
        if seed == num_updates - 51:
            learner.metrics()  # resets the means
    return learner.metrics()


def test_loss_of_categorical_policy_is_the_cross_entropy():
    algorithm, nets = build_bc(gym.spaces.Discrete(4))
    batch = {"obs": make_observations(), "actions": torch.arange(64) % 4}
    losses = algorithm.losses(nets, batch, make_step())
    logits = nets["policy"].forward_train(batch)["action_dist_inputs"]
    expected = torch.nn.functional.cross_entropy(logits, batch["actions"])
    torch.testing.assert_close(losses.losses["policy"], expected)
    torch.testing.assert_close(losses.metrics["policy_loss"], expected)


def test_loss_of_gaussian_policy_is_the_negative_log_density():
    algorithm, nets = build_bc(BOX)
    batch = {"obs": make_observations(), "actions": make_observations(seed=1)[:, :2]}
    mean, log_std = nets["policy"].forward_train(batch)["action_dist_inputs"].chunk(2, -1)
    log_density = torch.distributions.Normal(mean, log_std.exp()).log_prob(batch["actions"]).sum(-1)
    torch.testing.assert_close(
        algorithm.losses(nets, batch, make_step()).losses["policy"], -log_density.mean()
    )


def test_loss_of_deterministic_policy_is_the_squared_error():
    algorithm, nets = build_bc(BOX, distribution="deterministic")
    batch = {"obs": make_observations(), "actions": make_observations(seed=1)[:, :2]}
    outputs = nets["policy"].forward_train(batch)["action_dist_inputs"]
    losses = algorithm.losses(nets, batch, make_step())
    expected = (outputs - batch["actions"]).square().mean()
    torch.testing.assert_close(losses.losses["policy"], expected)
    assert "entropy" not in losses.metrics


def test_bc_clones_a_rule():
    algorithm, nets = build_bc(gym.spaces.Discrete(2, start=3))
    metrics = train(algorithm, nets, lambda obs: {"obs": obs, "actions": (obs[:, 0] > obs[:, 1]).long() + 3})
    assert metrics["action_accuracy"] > 0.95
    assert metrics["total_loss"] < 0.15


@pytest.mark.parametrize("distribution", ["gaussian", "squashedGaussian", "deterministic"])
def test_bc_clones_continuous_actions(distribution):
    algorithm, nets = build_bc(BOX, distribution=distribution)
    rule = lambda obs: torch.stack([0.5 * obs[:, 0], -0.8 * obs[:, 1]], -1)  # noqa: E731
    train(algorithm, nets, lambda obs: {"obs": obs, "actions": rule(obs)})
    policy, obs = nets["policy"], make_observations(seed=10_000)
    with torch.no_grad():
        mode = policy.distribution(policy.forward_inference({"obs": obs})["action_dist_inputs"]).mode()
    assert (mode - rule(obs)).abs().mean() < 0.05


def test_squashed_policy_learns_from_actions_on_the_bounds():
    algorithm, nets = build_bc(BOX, distribution="squashedGaussian")
    metrics = train(algorithm, nets, lambda obs: {"obs": obs, "actions": obs[:, :2].sign()}, num_updates=100)
    assert math.isfinite(metrics["total_loss"]) and math.isfinite(metrics["gradient_norm"])


def test_composite_actions_are_cloned_leaf_by_leaf():
    space = gym.spaces.Dict({"go": gym.spaces.Discrete(2), "turn": gym.spaces.Discrete(3)})
    algorithm, nets = build_bc(space)

    def make_batch(obs):
        is_positive = (obs > 0).long()
        return {"obs": obs, "actions/go": is_positive[:, 0], "actions/turn": 2 * is_positive[:, 1]}

    assert train(algorithm, nets, make_batch)["action_accuracy"] > 0.95


def test_action_accuracy_counts_elements_of_actions():
    algorithm, nets = build_bc(gym.spaces.MultiDiscrete([2, 2]))
    batch = {"obs": make_observations(), "actions": torch.zeros(64, 2, dtype=torch.long)}
    policy = nets["policy"]
    mode = policy.distribution(policy.forward_train(batch)["action_dist_inputs"]).mode()
    batch["actions"] = torch.stack([mode[:, 0], 1 - mode[:, 1]], -1)
    assert algorithm.losses(nets, batch, make_step()).metrics["action_accuracy"] == 0.5


def test_bc_has_no_value_network():
    _, nets = build_bc(gym.spaces.Discrete(2))
    assert list(nets) == ["policy"] and not nets["policy"].value


def test_bc_needs_observations_and_actions_only():
    assert build("BC", {}).needs().columns == {"obs", "actions"}
