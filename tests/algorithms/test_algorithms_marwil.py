"""The losses and targets of MARWIL equal their formulas."""

import math

import numpy as np
import pytest
import torch
from algorithm_kit import BOX, LENGTHS, build_algorithm, compute_loss_stages, make_transitions, make_window

from hindcast.learn.algorithm import window_targets
from hindcast.learn.learner import Learner

# RLlib's defaults, with which the scale stays at 10.
CONSTANT_SCALE = {"movingAverageSqdAdvNormStart": 100.0, "movingAverageSqdAdvNormUpdateRate": 1e-8}


def make_batch(action_space=BOX, seed=0):
    batch = make_transitions(action_space, seed=seed)
    return batch | {"value_targets": 5 * batch["rewards"]}


def compute_logp_and_advantages(nets, batch):
    """Return log-likelihoods and advantages in float64."""
    policy = nets["policy"]
    outputs = policy.forward_train(batch)
    logp = policy.distribution(outputs["action_dist_inputs"]).logp(batch["actions"])
    return logp.detach().double(), (batch["value_targets"] - outputs["vf_preds"]).detach().double()


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 1.0])
@torch.no_grad()
def test_value_targets_are_lambda_returns(lambda_):
    """The return after the last step is the value of the final observation, or 0 if the episode terminated."""
    algorithm, nets = build_algorithm("MARWIL", {"gamma": 0.9, "lambda": lambda_})
    rewards = np.random.default_rng(1).normal(size=LENGTHS.sum()).astype(np.float32)
    window = make_window(algorithm, rewards)
    values = nets["policy"].compute_values({"obs": window.columns["obs"]}).double().numpy()
    episodes = zip(
        np.split(rewards, LENGTHS.cumsum()[:-1]),
        np.split(values, (LENGTHS + 1).cumsum()[:-1]),
        window.terminated,
        strict=True,
    )
    expected = []
    for r, v, is_terminated in episodes:
        v[-1] *= not is_terminated
        next_return, returns = v[-1], []
        for t in reversed(range(len(r))):
            next_return = r[t] + 0.9 * ((1 - lambda_) * v[t + 1] + lambda_ * next_return)
            returns.insert(0, next_return)
        expected += returns
    value_targets = window_targets(algorithm, nets, window)["value_targets"]
    np.testing.assert_allclose(value_targets, expected, rtol=1e-5, atol=1e-6)


def test_loss_with_constant_scale_equals_the_formula():
    algorithm, nets = build_algorithm("MARWIL", {"beta": 2.0, "vfCoeff": 0.5, **CONSTANT_SCALE})
    batch = make_batch()
    logp, advantages = compute_logp_and_advantages(nets, batch)
    weights = [math.exp(2.0 * advantage / 10.0) for advantage in advantages.tolist()]
    expected = -np.mean(weights * logp.numpy()) + 0.5 * 0.5 * np.mean(advantages.numpy() ** 2)
    losses = compute_loss_stages(algorithm, nets, batch)[0]
    assert float(losses.losses["policy"].detach()) == pytest.approx(expected, rel=1e-5)


def test_advantage_scale_follows_without_bias():
    algorithm, nets = build_algorithm("MARWIL", {"movingAverageSqdAdvNormUpdateRate": 0.5})
    squares = []
    for seed in range(3):
        batch = make_batch(seed=seed)
        squares.append(float(compute_logp_and_advantages(nets, batch)[1].square().mean()))
        compute_loss_stages(algorithm, nets, batch)
    weights = [0.125, 0.25, 0.5]
    mean = sum(weight * square for weight, square in zip(weights, squares, strict=True)) / sum(weights)
    assert float(nets["scale"].scale()) == pytest.approx(math.sqrt(mean), rel=1e-5)


def test_weights_are_equal_at_first_and_never_exceed_the_clip():
    algorithm, nets = build_algorithm("MARWIL", {"beta": 50.0, "weightClip": 3.0})
    first_weight, second_weight = (
        compute_loss_stages(algorithm, nets, make_batch())[0].metrics["mean_weight"] for _ in range(2)
    )
    assert float(first_weight) == 1.0
    assert 1.0 < float(second_weight) < 3.0


def test_beta_0_is_behaviour_cloning():
    algorithm, nets = build_algorithm("MARWIL", {"beta": 0.0, **CONSTANT_SCALE})
    batch = make_batch()
    policy_loss = compute_loss_stages(algorithm, nets, batch)[0].metrics["policy_loss"]
    logp, _ = compute_logp_and_advantages(nets, batch)
    assert float(policy_loss.detach()) == pytest.approx(-float(logp.mean()), rel=1e-6)


def test_log_std_term_is_a_weighted_mean():
    algorithm, nets = build_algorithm("MARWIL", {"bcLogstdCoeff": 0.5, **CONSTANT_SCALE}, free_log_std=True)
    with torch.no_grad():
        nets["policy"].log_std.log_std.copy_(torch.tensor([-1.0, 0.5]))
    batch = make_batch()
    logp, advantages = compute_logp_and_advantages(nets, batch)
    expected = -((advantages / 10.0).exp() * (logp + 0.5 * -0.25)).mean()
    policy_loss = compute_loss_stages(algorithm, nets, batch)[0].metrics["policy_loss"]
    assert float(policy_loss.detach()) == pytest.approx(float(expected), rel=1e-5)


def test_log_std_term_keeps_the_policy_wide():
    def train_log_std(coefficient):
        algorithm, nets = build_algorithm("MARWIL", {"lr": 1e-2, "bcLogstdCoeff": coefficient})
        learner = Learner(algorithm, nets)
        for seed in range(30):
            learner.update(make_batch(seed=seed))
        inputs = nets["policy"].forward_train(make_batch())["action_dist_inputs"]
        return float(inputs[:, 2:].detach().mean())

    assert train_log_std(0.5) > train_log_std(0.0) + 0.05


def test_log_std_term_uses_clipped_log_stds():
    algorithm, nets = build_algorithm("MARWIL", {"bcLogstdCoeff": 0.5}, log_std_max=-3, free_log_std=True)
    compute_loss_stages(algorithm, nets, make_batch())[0].losses["policy"].backward()
    assert not nets["policy"].log_std.log_std.grad.any()


def test_two_learners_share_one_advantage_scale():
    """The mean of the averages over two halves of a batch equals the average over the batch."""
    expected_scale, averaged_scale = (build_algorithm("MARWIL")[1]["scale"] for _ in range(2))
    advantages = make_batch()["value_targets"]
    expected_scale.update(advantages.square().mean())
    states = []
    for half in advantages.chunk(2):
        other_scale = build_algorithm("MARWIL")[1]["scale"]
        other_scale.update(half.square().mean())
        states.append(other_scale.state_dict())
    averaged_scale.load_state_dict({name: (states[0][name] + states[1][name]) / 2 for name in states[0]})
    torch.testing.assert_close(averaged_scale.scale(), expected_scale.scale())


def test_advantage_scale_is_part_of_the_checkpoint():
    algorithm, nets = build_algorithm("MARWIL")
    learner = Learner(algorithm, nets)
    learner.update(make_batch())
    restored_learner = Learner(algorithm, build_algorithm("MARWIL", seed=1)[1])
    restored_learner.load(learner.state())
    assert float(restored_learner.nets["scale"].scale()) == float(nets["scale"].scale()) > 0
