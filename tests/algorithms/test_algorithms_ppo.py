import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from algorithm_kit import BOX, build_algorithm

from episode_kit import build_block
from hindcast.learn.algorithm import Step
from hindcast.learn.learner import Learner

ACTIONS = gym.spaces.Discrete(2)


def build_ppo(action_space=ACTIONS, **options):
    config = {"trainBatchSizePerLearner": 128, "minibatchSize": 32, "numEpochs": 2} | options
    return build_algorithm("PPO", config, action_space, fcnet_hiddens=[16])


@torch.no_grad()
def make_rollout(nets, lengths=(40, 30, 58), seed=0, reward=lambda obs, action: obs[:, 0]):
    """Return a block of the policy's actions on random observations.

    The first episode terminated, the second one was truncated, and the others are unfinished.
    """
    generator = torch.Generator().manual_seed(seed)
    num_steps, num_episodes = sum(lengths), len(lengths)
    obs = torch.rand((num_steps + num_episodes, 3), generator=generator) * 2 - 1
    ends = {"terminated": np.arange(num_episodes) == 0, "truncated": np.arange(num_episodes) == 1}
    block = build_block({"obs": obs.numpy()}, lengths, **ends)
    step_obs = obs[block.obs_row]
    inputs = nets["policy"].forward_exploration({"obs": step_obs})["action_dist_inputs"]
    distribution = nets["policy"].distribution(inputs)
    head = nets["policy"].action_head
    draw_noise = torch.rand if head.noise_kind == "uniform" else torch.randn
    actions = distribution.sample(draw_noise((num_steps, head.noise_size), generator=generator))
    return block.with_columns(
        {
            **block.columns,
            "actions": actions.numpy(),
            "rewards": reward(step_obs, actions).double().numpy(),
            "action_logp": distribution.logp(actions).numpy(),
            "action_dist_inputs": inputs.numpy(),
        }
    )


def run_iteration(learner, block, seed, iteration):
    """Run an iteration as `Trainer` does, and return its metrics."""
    algorithm, batch = learner.algorithm, learner.algorithm.prepare(learner.nets, block)
    for rows in algorithm.minibatches(block.num_steps, seed, iteration):
        learner.update({leaf: values[rows] for leaf, values in batch.items()})
    metrics = learner.metrics()
    return metrics | algorithm.after_iteration(learner.nets, batch, metrics)


def make_step(timesteps=0):
    clock = torch.tensor(timesteps, dtype=torch.float64)
    return Step(updates=0, timesteps=timesteps, generator=torch.Generator(), clock=clock)


def test_prepare_returns_a_row_per_step_and_standardised_advantages():
    algorithm, nets = build_ppo()
    block = make_rollout(nets)
    batch = algorithm.prepare(nets, block)
    assert {len(column) for column in batch.values()} == {128}
    assert batch["advantages"].mean().item() == pytest.approx(0.0, abs=1e-5)
    assert batch["advantages"].std(correction=0).item() == pytest.approx(1.0, abs=1e-4)
    np.testing.assert_array_equal(batch["obs"], block.columns["obs"][block.obs_row])
    assert not any(column.requires_grad for column in batch.values())


def test_value_targets_bootstrap_at_truncation_and_fragment_ends_but_not_at_termination():
    algorithm, nets = build_ppo(**{"lambda": 1.0})
    block = make_rollout(nets)
    values = nets["policy"].compute_values({"obs": torch.from_numpy(block.columns["obs"])}).detach()
    targets = algorithm.prepare(nets, block)["value_targets"]
    last_rows = block.start + block.length - 1
    rewards = block.columns["rewards"][last_rows]
    final_values = values[block.obs_start + block.length].numpy()
    np.testing.assert_allclose(targets[last_rows], rewards + 0.99 * final_values * [0, 1, 1], rtol=1e-5)


def test_lambda_changes_the_targets():
    _, nets = build_ppo()
    block = make_rollout(nets)
    targets = [
        build_ppo(**{"lambda": value})[0].prepare(nets, block)["value_targets"] for value in (0.0, 0.95, 1.0)
    ]
    assert not torch.allclose(targets[0], targets[1]) and not torch.allclose(targets[1], targets[2])


def test_minibatches_contain_every_step_once_per_epoch():
    algorithm, _ = build_ppo(numEpochs=3, minibatchSize=48)
    rows = algorithm.minibatches(128, seed=0, iteration=0).flatten()
    assert len(rows) == 3 * 128
    for epoch in range(3):
        assert sorted(rows[epoch * 128 : (epoch + 1) * 128].tolist()) == list(range(128))


def test_minibatches_are_never_short():
    algorithm, _ = build_ppo(numEpochs=2, minibatchSize=50)
    assert algorithm.minibatches(128, seed=0, iteration=0).shape == (5, 50)


def test_rollout_smaller_than_a_minibatch_is_one_minibatch():
    algorithm, _ = build_ppo(numEpochs=2)
    assert algorithm.minibatches(7, seed=0, iteration=0).shape == (2, 7)


def test_order_of_minibatches_follows_from_seed_and_iteration():
    algorithm, _ = build_ppo()

    def list_minibatches(seed, iteration):
        return algorithm.minibatches(128, seed, iteration).tolist()

    assert list_minibatches(1, 2) == list_minibatches(1, 2)
    assert list_minibatches(1, 2) not in (list_minibatches(2, 2), list_minibatches(1, 3))


def test_first_policy_loss_is_minus_the_mean_advantage():
    """Before any update the ratio is 1: the surrogate is the mean of standardised advantages, 0."""
    algorithm, nets = build_ppo()
    losses = algorithm.losses(nets, algorithm.prepare(nets, make_rollout(nets)), make_step())
    assert losses.metrics["policy_loss"].item() == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "surrogate"),
    [(1.5, 1.0, 1.2), (0.5, 1.0, 0.5), (1.5, -1.0, -1.5), (0.5, -1.0, -0.8), (1.1, 1.0, 1.1)],
)
def test_surrogate_is_clipped_only_if_that_lowers_it(ratio, advantage, surrogate):
    algorithm, nets = build_ppo(clipParam=0.2)
    batch = algorithm.prepare(nets, make_rollout(nets))
    batch["action_logp"] = batch["action_logp"] - float(np.log(ratio))
    batch["advantages"] = torch.full((128,), advantage)
    policy_loss = algorithm.losses(nets, batch, make_step()).metrics["policy_loss"]
    assert policy_loss.item() == pytest.approx(-surrogate, rel=1e-4)


def test_value_loss_is_squared_and_clipped_by_vf_clip_param():
    losses = {}
    for bound in (None, 4.0):
        algorithm, nets = build_ppo(vfClipParam=bound)
        batch = algorithm.prepare(nets, make_rollout(nets))
        offsets = torch.where(torch.arange(128) % 2 == 0, 1.0, 10.0)
        batch["value_targets"] = batch["vf_preds"] + offsets
        losses[bound] = algorithm.losses(nets, batch, make_step()).metrics["vf_loss"].item()
    assert losses[None] == pytest.approx((1 + 100) / 2, rel=1e-4)
    assert losses[4.0] == pytest.approx((1 + 4) / 2, rel=1e-4)


def test_total_loss_weights_its_terms():
    algorithm, nets = build_ppo(vfLossCoeff=0.5, entropyCoeff=0.1, useKlLoss=True, klCoeff=0.3)
    batch = algorithm.prepare(nets, make_rollout(nets))
    batch["action_dist_inputs"] = batch["action_dist_inputs"] + torch.tensor([1.0, 0.0])
    losses = algorithm.losses(nets, batch, make_step())
    terms = losses.metrics
    expected = (
        terms["policy_loss"] + 0.5 * terms["vf_loss"] - 0.1 * terms["entropy"] + 0.3 * terms["mean_kl_loss"]
    )
    torch.testing.assert_close(losses.losses["policy"], expected)
    assert terms["mean_kl_loss"] > 0.01


def test_entropy_coefficient_follows_its_schedule():
    algorithm, nets = build_ppo(entropyCoeff=[[0, 1.0], [100, 0.0]])
    batch = algorithm.prepare(nets, make_rollout(nets))
    first_losses, last_losses = (
        algorithm.losses(nets, batch, make_step(timesteps)) for timesteps in (0, 100)
    )
    difference = last_losses.losses["policy"] - first_losses.losses["policy"]
    torch.testing.assert_close(difference, first_losses.metrics["entropy"])


@pytest.mark.parametrize(("kl", "coefficient"), [(0.03, 0.3), (0.01, 0.2), (0.001, 0.1)])
def test_kl_coefficient_adapts_towards_the_target(kl, coefficient):
    _, nets = build_ppo(useKlLoss=True)
    nets["kl_penalty"].adapt(kl, target=0.01)
    assert nets["kl_penalty"].coefficient.item() == pytest.approx(coefficient)


def test_kl_coefficient_is_in_the_learner_state():
    algorithm, nets = build_ppo(useKlLoss=True)
    learner = Learner(algorithm, nets)
    learner.nets["kl_penalty"].coefficient.fill_(0.7)
    restored_learner = Learner(algorithm, build_ppo(useKlLoss=True)[1])
    restored_learner.load(learner.state())
    assert restored_learner.nets["kl_penalty"].coefficient.item() == pytest.approx(0.7)


def test_iteration_runs_all_epochs_and_returns_metrics():
    algorithm, nets = build_ppo(useKlLoss=True)
    learner = Learner(algorithm, nets)
    metrics = run_iteration(learner, make_rollout(nets), seed=0, iteration=0)
    assert learner.updates == 2 * 4
    losses = {"total_loss", "policy_loss", "vf_loss", "entropy", "mean_kl_loss"}
    other_metrics = {"curr_kl_coeff", "vf_explained_var", "gradient_norm", "learning_rate"}
    assert metrics.keys() == losses | other_metrics


def test_iteration_is_a_function_of_weights_rollout_seed_and_number():
    algorithm, nets = build_ppo()
    block = make_rollout(nets)

    def train(seed, iteration):
        learner = Learner(algorithm, copy.deepcopy(nets))
        run_iteration(learner, block, seed, iteration)
        return torch.cat([tensor.flatten() for tensor in learner.nets["policy"].parameters()])

    weights = train(3, 4)
    assert torch.equal(weights, train(3, 4))
    assert not torch.equal(weights, train(3, 5)) and not torch.equal(weights, train(4, 4))


def test_rewarded_actions_become_more_likely():
    algorithm, nets = build_ppo(lr=1e-2)
    learner = Learner(algorithm, nets)
    for iteration in range(10):
        reward = lambda obs, action: (action == 1).float()  # noqa: E731
        block = make_rollout(nets, [1] * 128, seed=iteration, reward=reward)
        run_iteration(learner, block, seed=0, iteration=iteration)
    assert (make_rollout(nets, seed=99).columns["actions"] == 1).mean() > 0.9


def test_ppo_trains_continuous_actions():
    algorithm, nets = build_ppo(BOX)
    metrics = run_iteration(Learner(algorithm, nets), make_rollout(nets), seed=0, iteration=0)
    assert np.isfinite(metrics["total_loss"])
