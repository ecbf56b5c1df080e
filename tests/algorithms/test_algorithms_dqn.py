"""DQN and discrete CQL against their formulas, written out."""

import gymnasium as gym
import pytest
import torch
from algorithm_kit import BOX, made, stages, transitions

from hindcast.algorithms import build
from hindcast.algorithms.dqn import quantile_huber
from hindcast.errors import SpecError
from hindcast.learn.learner import Learner

CHOICES = gym.spaces.Discrete(3, start=5)


def by_hand(nets, batch, double, quantiles=1):
    """The loss of each row: the quantile Huber loss, of one quantile the Huber loss."""
    values, target = nets["policy"].values, nets["target"]
    following = {"obs": batch["new_obs"]}
    losses = []
    for row, action in enumerate((batch["actions"] - 5).tolist()):
        taken = values.quantiles(batch)[0, row, action].tolist()
        chooser = values(following)[0, row] if double else target(following)[0, row]
        after = target.quantiles(following)[0, row, int(chooser.argmax())].tolist()
        wanted = [float(batch["rewards"][row] + batch["discounts"][row] * each) for each in after]
        loss = 0.0
        for number, quantile in enumerate(taken):
            level = (number + 0.5) / quantiles
            for each in wanted:
                gap = each - quantile
                huber = 0.5 * gap * gap if abs(gap) <= 1 else abs(gap) - 0.5
                weight = 1.0 if quantiles == 1 else abs(level - (gap < 0))
                loss += weight * huber / len(wanted)
        losses.append(loss)
    return losses


@pytest.mark.parametrize("quantiles", [1, 4])
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("dueling", [True, False])
def test_the_loss(double, dueling, quantiles):
    algorithm, nets = made("DQN", {"doubleQ": double, "dueling": dueling, "numQuantiles": quantiles}, CHOICES)
    batch = transitions(CHOICES, size=12)
    expected = by_hand(nets, batch, double, quantiles)
    found = stages(algorithm, nets, batch)[0].losses["policy"]
    assert float(found.detach()) == pytest.approx(sum(expected) / 12, rel=1e-4)


def test_weights_and_priorities_where_draws_are_by_priority():
    algorithm, nets = made("DQN", {"prioritizedReplay": True}, CHOICES)
    batch = transitions(CHOICES, size=12) | {"weights": torch.linspace(0.1, 1, 12)}
    found = stages(algorithm, nets, batch)[0]
    expected = torch.tensor(by_hand(nets, batch, double=True)) * batch["weights"]
    assert float(found.losses["policy"].detach()) == pytest.approx(float(expected.mean()), rel=1e-4)
    assert found.priorities.shape == (12,) and not found.priorities.requires_grad
    assert build("DQN", {"prioritizedReplay": True, "prioritizedReplayBeta": 0.7}).needs().beta == 0.7


def test_the_penalty_of_discrete_cql():
    batch = transitions(CHOICES)
    plain, nets = made("DQN", {}, CHOICES)
    conservative, _ = made("DiscreteCQL", {"minQWeight": 3.0}, CHOICES)
    values = nets["policy"].values(batch)[0]
    chosen = values[torch.arange(32), batch["actions"] - 5]
    gap = torch.log(values.exp().sum(-1)) - chosen
    losses = [stages(each, nets, batch)[0].losses["policy"] for each in (plain, conservative)]
    torch.testing.assert_close(losses[1] - losses[0], 3.0 * gap.mean())


def test_the_copy_moves_every_so_many_updates():
    algorithm, nets = made("DQN", {"tau": 1.0, "targetNetworkUpdateFreq": 3}, CHOICES)
    learner = Learner(algorithm, nets)
    equal = []
    for _ in range(3):
        learner.update(transitions(CHOICES))
        own, copy = (
            torch.cat([each.flatten() for each in net.parameters()])
            for net in (nets["policy"].values, nets["target"])
        )
        equal.append(torch.equal(own, copy))
    assert equal == [False, False, True]


def test_it_explores_with_epsilon_and_says_how_likely_it_was():
    _, nets = made("DQN", {"epsilon": 0.3}, CHOICES)
    policy, batch = nets["policy"], transitions(CHOICES)
    best = policy.distribution(policy.forward_inference(batch)["action_dist_inputs"]).mode()
    exploring = policy.distribution(policy.forward_exploration(batch)["action_dist_inputs"])
    torch.testing.assert_close(exploring.logp(best).exp(), torch.full((32,), 0.8))
    others = torch.where(best == 5, 6, 5)
    torch.testing.assert_close(exploring.logp(others).exp(), torch.full((32,), 0.1))


def test_dueling_advantages_have_no_mean():
    _, nets = made("DQN", {}, CHOICES)
    values, batch = nets["policy"].values, transitions(CHOICES)
    state_value = values.stack(values.observations(batch))[..., 0]
    torch.testing.assert_close(values(batch).mean(-1), state_value)


def test_a_loss_of_one_quantile_is_hubers():
    taken, wanted = torch.tensor([[0.0], [0.0]]), torch.tensor([[0.5], [3.0]])
    assert quantile_huber(taken, wanted).tolist() == [0.125, 2.5]


@pytest.mark.parametrize("name", ["DQN", "DiscreteCQL"])
@pytest.mark.parametrize("space", [BOX, gym.spaces.MultiDiscrete([2, 3])])
def test_other_actions_are_refused_with_what_takes_them(name, space):
    with pytest.raises(SpecError) as error:
        made(name, {}, space)
    assert str(error.value) == (
        f"spec.algorithm: {name} needs one discrete action, a Discrete space, not {space}; for continuous actions take "
        "SAC, CQL or TD3BC, for others IQL, MARWIL or BC."
    )


@pytest.mark.parametrize("model", [{"recurrent": "lstm"}, {"module_class": "a:B"}])
def test_a_policy_of_another_kind_is_one_sentence(model):
    with pytest.raises(SpecError, match="DQN builds its policy from action values: leave recurrent"):
        made("DQN", {}, CHOICES, **model)
