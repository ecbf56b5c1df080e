"""The losses of DQN and discrete CQL equal their formulas."""

import gymnasium as gym
import pytest
import torch
from algorithm_kit import build_algorithm, compute_loss_stages, make_step, make_transitions

from hindcast.algorithms import build
from hindcast.algorithms.dqn import quantile_huber
from hindcast.learn.learner import Learner

CHOICES = gym.spaces.Discrete(3, start=5)


def losses_by_formula(nets, batch, is_double, num_quantiles=1):
    """Compute the loss of each timestep: the quantile Huber loss, or the Huber loss for one quantile."""
    # The results of both networks begin with an axis of one member.
    q_network, target_network = nets["policy"].values, nets["target"]
    next_obs = {"obs": batch["new_obs"]}
    losses = []
    for row, action in enumerate((batch["actions"] - 5).tolist()):
        quantiles = q_network.quantiles(batch)[0, row, action].tolist()
        selection_q = q_network(next_obs)[0, row] if is_double else target_network(next_obs)[0, row]
        next_quantiles = target_network.quantiles(next_obs)[0, row, int(selection_q.argmax())].tolist()
        td_targets = [
            float(batch["rewards"][row] + batch["discounts"][row] * next_quantile)
            for next_quantile in next_quantiles
        ]
        loss = 0.0
        for index, quantile in enumerate(quantiles):
            level = (index + 0.5) / num_quantiles
            for td_target in td_targets:
                td_error = td_target - quantile
                huber = 0.5 * td_error * td_error if abs(td_error) <= 1 else abs(td_error) - 0.5
                weight = 1.0 if num_quantiles == 1 else abs(level - (td_error < 0))
                loss += weight * huber / len(td_targets)
        losses.append(loss)
    return losses


@pytest.mark.parametrize("num_quantiles", [1, 4])
@pytest.mark.parametrize("is_double", [True, False])
@pytest.mark.parametrize("is_dueling", [True, False])
def test_dqn_loss_equals_the_formula(is_double, is_dueling, num_quantiles):
    algorithm, nets = build_algorithm(
        "DQN", {"doubleQ": is_double, "dueling": is_dueling, "numQuantiles": num_quantiles}, CHOICES
    )
    batch = make_transitions(CHOICES, size=12)
    expected = losses_by_formula(nets, batch, is_double, num_quantiles)
    loss = compute_loss_stages(algorithm, nets, batch)[0].losses["policy"]
    assert float(loss.detach()) == pytest.approx(sum(expected) / 12, rel=1e-4)


def test_prioritised_loss_has_weights_and_priorities():
    algorithm, nets = build_algorithm("DQN", {"prioritizedReplay": True}, CHOICES)
    batch = make_transitions(CHOICES, size=12) | {"weights": torch.linspace(0.1, 1, 12)}
    losses = compute_loss_stages(algorithm, nets, batch)[0]
    expected = torch.tensor(losses_by_formula(nets, batch, is_double=True)) * batch["weights"]
    assert float(losses.losses["policy"].detach()) == pytest.approx(float(expected.mean()), rel=1e-4)
    assert losses.priorities.shape == (12,) and not losses.priorities.requires_grad
    assert build("DQN", {"prioritizedReplay": True, "prioritizedReplayBeta": 0.7}).needs().beta == 0.7


@torch.no_grad()
def test_scheduled_exponent_of_the_weights_follows_the_timesteps():
    """The weights of the pipeline then have the exponent 1."""
    config = {"prioritizedReplay": True, "prioritizedReplayBeta": [[0, 0.4], [1000, 1.0]]}
    algorithm, nets = build_algorithm("DQN", config, CHOICES)
    assert algorithm.needs().beta == 1.0
    batch = make_transitions(CHOICES, size=12) | {"weights": torch.linspace(0.1, 1, 12)}
    errors = torch.tensor(losses_by_formula(nets, batch, is_double=True))
    for timesteps, beta in ((0, 0.4), (500, 0.7), (5000, 1.0)):
        step = make_step()._replace(clock=torch.tensor(timesteps, dtype=torch.float64))
        loss = compute_loss_stages(algorithm, nets, batch, step)[0].losses["policy"]
        torch.testing.assert_close(loss, (errors * batch["weights"] ** beta).mean(), rtol=1e-4, atol=0)


def test_discrete_cql_penalty_equals_the_formula():
    batch = make_transitions(CHOICES)
    dqn, nets = build_algorithm("DQN", {}, CHOICES)
    discrete_cql, _ = build_algorithm("DiscreteCQL", {"minQWeight": 3.0}, CHOICES)
    values = nets["policy"].values(batch)[0]
    q = values[torch.arange(32), batch["actions"] - 5]
    gap = torch.log(values.exp().sum(-1)) - q
    dqn_loss, cql_loss = (
        compute_loss_stages(algorithm, nets, batch)[0].losses["policy"] for algorithm in (dqn, discrete_cql)
    )
    torch.testing.assert_close(cql_loss - dqn_loss, 3.0 * gap.mean())


def test_target_network_moves_every_target_network_update_freq_updates():
    algorithm, nets = build_algorithm("DQN", {"tau": 1.0, "targetNetworkUpdateFreq": 3}, CHOICES)
    learner = Learner(algorithm, nets)
    are_equal = []
    for _ in range(3):
        learner.update(make_transitions(CHOICES))
        online_weights, target_weights = (
            torch.cat([parameter.flatten() for parameter in net.parameters()])
            for net in (nets["policy"].values, nets["target"])
        )
        are_equal.append(torch.equal(online_weights, target_weights))
    assert are_equal == [False, False, True]


def test_exploration_is_epsilon_greedy_with_its_log_probabilities():
    _, nets = build_algorithm("DQN", {"epsilon": 0.3}, CHOICES)
    policy, batch = nets["policy"], make_transitions(CHOICES)
    greedy_actions = policy.distribution(policy.forward_inference(batch)["action_dist_inputs"]).mode()
    exploration = policy.distribution(policy.forward_exploration(batch)["action_dist_inputs"])
    torch.testing.assert_close(exploration.logp(greedy_actions).exp(), torch.full((32,), 0.8))
    other_actions = torch.where(greedy_actions == 5, 6, 5)
    torch.testing.assert_close(exploration.logp(other_actions).exp(), torch.full((32,), 0.1))


def test_dueling_advantages_have_zero_mean():
    _, nets = build_algorithm("DQN", {}, CHOICES)
    values, batch = nets["policy"].values, make_transitions(CHOICES)
    state_value = values.stack(values.observations(batch))[..., 0]
    torch.testing.assert_close(values(batch).mean(-1), state_value)


def test_quantile_huber_loss_of_one_quantile_is_the_huber_loss():
    quantiles, targets = torch.tensor([[0.0], [0.0]]), torch.tensor([[0.5], [3.0]])
    assert quantile_huber(quantiles, targets).tolist() == [0.125, 2.5]
