import copy

import gymnasium as gym
import numpy as np
import pytest
import torch

from hindcast.algorithms import build
from hindcast.api.model import ModelSpec
from hindcast.episodes.block import Block
from hindcast.errors import SpecError
from hindcast.learn.algorithm import ModelInputs, Step, new_networks
from hindcast.learn.learner import Learner

OBS, ACTIONS = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)


def make_ppo(seed=0, action_space=ACTIONS, **options):
    algorithm = build("PPO", {"trainBatchSizePerLearner": 128, "minibatchSize": 32, "numEpochs": 2} | options)
    return algorithm, new_networks(
        algorithm, ModelInputs(OBS, action_space, ModelSpec(fcnet_hiddens=[16])), seed
    )


@torch.no_grad()
def make_rollout(nets, lengths=(40, 30, 58), seed=0, reward=lambda obs, action: obs[:, 0]):
    """Return a block of the policy's actions on random observations.

    The first episode terminated, the second one was truncated, and the others are unfinished.
    """
    generator = torch.Generator().manual_seed(seed)
    num_steps, num_episodes = sum(lengths), len(lengths)
    obs = torch.rand((num_steps + num_episodes, 3), generator=generator) * 2 - 1
    block = Block(
        columns={"obs": obs.numpy()},
        length=np.array(lengths, dtype=np.int64),
        eps_id=np.array([str(index) for index in range(num_episodes)], dtype=object),
        t_started=np.zeros(num_episodes, dtype=np.int64),
        terminated=np.arange(num_episodes) == 0,
        truncated=np.arange(num_episodes) == 1,
    )
    step_obs = obs[block.obs_row]
    inputs = nets["policy"].forward_exploration({"obs": step_obs})["action_dist_inputs"]
    distribution = nets["policy"].distribution(inputs)
    actions = distribution.sample(torch.rand((num_steps, 1), generator=generator))
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
    algorithm, nets = make_ppo()
    block = make_rollout(nets)
    batch = algorithm.prepare(nets, block)
    assert {len(column) for column in batch.values()} == {128}
    assert batch["advantages"].mean().item() == pytest.approx(0.0, abs=1e-5)
    assert batch["advantages"].std(correction=0).item() == pytest.approx(1.0, abs=1e-4)
    np.testing.assert_array_equal(batch["obs"], block.columns["obs"][block.obs_row])
    assert not any(column.requires_grad for column in batch.values())


def test_value_targets_bootstrap_at_truncation_and_fragment_ends_but_not_at_termination():
    algorithm, nets = make_ppo(**{"lambda": 1.0})
    block = make_rollout(nets)
    values = nets["policy"].compute_values({"obs": torch.from_numpy(block.columns["obs"])}).detach()
    targets = algorithm.prepare(nets, block)["value_targets"]
    last_rows = block.start + block.length - 1
    rewards, final_values = (
        block.columns["rewards"][last_rows],
        values[block.obs_start + block.length].numpy(),
    )
    np.testing.assert_allclose(targets[last_rows], rewards + 0.99 * final_values * [0, 1, 1], rtol=1e-5)


def test_lambda_changes_the_targets():
    _, nets = make_ppo()
    block = make_rollout(nets)
    targets = [
        make_ppo(**{"lambda": value})[0].prepare(nets, block)["value_targets"] for value in (0.0, 0.95, 1.0)
    ]
    assert not torch.allclose(targets[0], targets[1]) and not torch.allclose(targets[1], targets[2])


def test_minibatches_contain_every_step_once_per_epoch():
    algorithm, _ = make_ppo(numEpochs=3, minibatchSize=48)
    rows = algorithm.minibatches(128, seed=0, iteration=0).flatten()
    assert len(rows) == 3 * 128
    for epoch in range(3):
        assert sorted(rows[epoch * 128 : (epoch + 1) * 128].tolist()) == list(range(128))


def test_minibatches_are_never_short():
    algorithm, _ = make_ppo(numEpochs=2, minibatchSize=50)
    assert algorithm.minibatches(128, seed=0, iteration=0).shape == (5, 50)


def test_rollout_smaller_than_a_minibatch_is_one_minibatch():
    algorithm, _ = make_ppo(numEpochs=2)
    assert algorithm.minibatches(7, seed=0, iteration=0).shape == (2, 7)


def test_order_of_minibatches_follows_from_seed_and_iteration():
    algorithm, _ = make_ppo()

    def list_minibatches(seed, iteration):
        return algorithm.minibatches(128, seed, iteration).tolist()

    assert list_minibatches(1, 2) == list_minibatches(1, 2)
    assert list_minibatches(1, 2) != list_minibatches(2, 2) and list_minibatches(1, 2) != list_minibatches(
        1, 3
    )


def test_first_policy_loss_is_minus_the_mean_advantage():
    """Before any update the ratio is 1: the surrogate is the mean of standardised advantages, 0."""
    algorithm, nets = make_ppo()
    losses = algorithm.losses(nets, algorithm.prepare(nets, make_rollout(nets)), make_step())
    assert losses.metrics["policy_loss"].item() == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "surrogate"),
    [(1.5, 1.0, 1.2), (0.5, 1.0, 0.5), (1.5, -1.0, -1.5), (0.5, -1.0, -0.8), (1.1, 1.0, 1.1)],
)
def test_surrogate_is_clipped_only_if_that_lowers_it(ratio, advantage, surrogate):
    algorithm, nets = make_ppo(clipParam=0.2)
    batch = algorithm.prepare(nets, make_rollout(nets))
    batch["action_logp"] = batch["action_logp"] - float(np.log(ratio))
    batch["advantages"] = torch.full((128,), advantage)
    assert algorithm.losses(nets, batch, make_step()).metrics["policy_loss"].item() == pytest.approx(
        -surrogate, rel=1e-4
    )


def test_value_loss_is_squared_and_clipped_by_vf_clip_param():
    losses = {}
    for bound in (None, 4.0):
        algorithm, nets = make_ppo(vfClipParam=bound)
        batch = algorithm.prepare(nets, make_rollout(nets))
        offsets = torch.where(torch.arange(128) % 2 == 0, 1.0, 10.0)
        batch["value_targets"] = batch["vf_preds"] + offsets
        losses[bound] = algorithm.losses(nets, batch, make_step()).metrics["vf_loss"].item()
    assert losses[None] == pytest.approx((1 + 100) / 2, rel=1e-4)
    assert losses[4.0] == pytest.approx((1 + 4) / 2, rel=1e-4)


def test_total_loss_weights_its_terms():
    algorithm, nets = make_ppo(vfLossCoeff=0.5, entropyCoeff=0.1, useKlLoss=True, klCoeff=0.3)
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
    algorithm, nets = make_ppo(entropyCoeff=[[0, 1.0], [100, 0.0]])
    batch = algorithm.prepare(nets, make_rollout(nets))
    first_losses, last_losses = (
        algorithm.losses(nets, batch, make_step(timesteps)) for timesteps in (0, 100)
    )
    difference = last_losses.losses["policy"] - first_losses.losses["policy"]
    torch.testing.assert_close(difference, first_losses.metrics["entropy"])


@pytest.mark.parametrize(("kl", "coefficient"), [(0.03, 0.3), (0.01, 0.2), (0.001, 0.1)])
def test_kl_coefficient_adapts_towards_the_target(kl, coefficient):
    _, nets = make_ppo(useKlLoss=True)
    nets["kl_penalty"].adapt(kl, target=0.01)
    assert nets["kl_penalty"].coefficient.item() == pytest.approx(coefficient)


def test_kl_coefficient_is_in_the_learner_state():
    algorithm, nets = make_ppo(useKlLoss=True)
    learner = Learner(algorithm, nets)
    learner.nets["kl_penalty"].coefficient.fill_(0.7)
    restored_learner = Learner(algorithm, make_ppo(useKlLoss=True)[1])
    restored_learner.load(learner.state())
    assert restored_learner.nets["kl_penalty"].coefficient.item() == pytest.approx(0.7)


def test_iteration_runs_all_epochs_and_returns_metrics():
    algorithm, nets = make_ppo(useKlLoss=True)
    learner = Learner(algorithm, nets)
    metrics = run_iteration(learner, make_rollout(nets), seed=0, iteration=0)
    assert learner.updates == 2 * 4
    losses = {"total_loss", "policy_loss", "vf_loss", "entropy", "mean_kl_loss"}
    assert metrics.keys() == losses | {
        "curr_kl_coeff",
        "vf_explained_var",
        "gradient_norm",
        "learning_rate",
    }


def test_iteration_is_a_function_of_weights_rollout_seed_and_number():
    algorithm, nets = make_ppo()
    block = make_rollout(nets)

    def train(seed, iteration):
        learner = Learner(algorithm, copy.deepcopy(nets))
        run_iteration(learner, block, seed, iteration)
        return torch.cat([tensor.flatten() for tensor in learner.nets["policy"].parameters()])

    weights = train(3, 4)
    assert torch.equal(weights, train(3, 4))
    assert not torch.equal(weights, train(3, 5)) and not torch.equal(weights, train(4, 4))


def test_rewarded_actions_become_more_likely():
    algorithm, nets = make_ppo(lr=1e-2)
    learner = Learner(algorithm, nets)
    for iteration in range(10):
        block = make_rollout(
            nets, [1] * 128, seed=iteration, reward=lambda obs, action: (action == 1).float()
        )
        run_iteration(learner, block, seed=0, iteration=iteration)
    assert (make_rollout(nets, seed=99).columns["actions"] == 1).mean() > 0.9


def test_ppo_trains_continuous_actions():
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    algorithm, nets = make_ppo(action_space=action_space)
    with torch.no_grad():
        block = make_continuous_rollout(nets)
    metrics = run_iteration(Learner(algorithm, nets), block, seed=0, iteration=0)
    assert np.isfinite(metrics["total_loss"])


def make_continuous_rollout(nets):
    obs = torch.rand((21, 3), generator=torch.Generator().manual_seed(0))
    inputs = nets["policy"].forward_exploration({"obs": obs[:20]})["action_dist_inputs"]
    distribution = nets["policy"].distribution(inputs)
    actions = distribution.sample(torch.randn((20, 2), generator=torch.Generator().manual_seed(1)))
    return Block(
        columns={
            "obs": obs.numpy(),
            "actions": actions.numpy(),
            "rewards": np.ones(20, np.float32),
            "action_logp": distribution.logp(actions).numpy(),
            "action_dist_inputs": inputs.numpy(),
        },
        length=np.array([20]),
        eps_id=np.array(["0"], dtype=object),
        t_started=np.zeros(1, np.int64),
        terminated=np.array([False]),
        truncated=np.array([False]),
    )


def test_deterministic_policy_is_refused():
    algorithm = build("PPO", {})
    model = ModelSpec(distribution="deterministic")
    with pytest.raises(SpecError, match="Deterministic, which PPO cannot train: use Auto, "):
        new_networks(algorithm, ModelInputs(OBS, gym.spaces.Box(-1, 1, (2,), np.float32), model), seed=0)
