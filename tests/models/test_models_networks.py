import copy

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from torch.nn import functional

from hindcast.api.model import ModelSpec
from hindcast.episodes.spaces import flatten_space
from hindcast.errors import SpecError
from hindcast.learn.algorithm import ModelInputs
from hindcast.models.networks import MemberLinear, next_observations

VECTOR = Box(-1, 1, (5,), np.float32)
IMAGE = Box(0, 255, (12, 12, 1), np.uint8)
OBSERVATIONS = {
    "vector": VECTOR,
    "dict": Dict(camera=IMAGE, speed=VECTOR, gear=Discrete(3)),
    "tuple": Tuple((VECTOR, Discrete(4))),
}
ACTIONS = {
    "box": Box(-1, 1, (2,), np.float32),
    "discrete": Discrete(3, start=2),
    "multi": MultiDiscrete([2, 3]),
    "dict": Dict(steer=Box(-1, 1, (2, 4, 4), np.float32), gear=Discrete(3)),
}
ROWS = 6


def inputs(observations="vector", actions="box", **model):
    spec = ModelSpec(fcnet_hiddens=[16, 8], conv_filters=[[4, 4, 2]], **model)
    return ModelInputs(OBSERVATIONS[observations], ACTIONS[actions], spec)


def rows(space, column):
    leaves = flatten_space(space, column)
    for number, leaf in enumerate(leaves.values()):
        leaf.seed(number)
    return {
        name: torch.as_tensor(np.stack([leaf.sample() for _ in range(ROWS)])) for name, leaf in leaves.items()
    }


def batch_of(given):
    found = rows(given.observation_space, "obs") | rows(given.action_space, "actions")
    return found | {
        name.replace("obs", "new_obs", 1): value for name, value in found.items() if "obs" in name
    }


@pytest.mark.parametrize("observations", OBSERVATIONS)
@pytest.mark.parametrize("actions", ACTIONS)
def test_critics_take_every_space(observations, actions):
    given = inputs(observations, actions)
    batch = batch_of(given)
    critics = given.critics(members=3)
    values = critics(batch)
    assert values.shape == (3, ROWS)
    values.sum().backward()
    assert all(weight.grad is not None for weight in critics.parameters())
    own = {name: value for name, value in batch.items() if name.startswith("actions")}
    assert torch.equal(critics(batch, own.get("actions", own)), values)


@pytest.mark.parametrize("observations", OBSERVATIONS)
def test_the_next_observations_are_given_as_observations(observations):
    given = inputs(observations)
    batch = batch_of(given)
    value = given.state_value()
    assert value(batch).shape == (ROWS,)
    assert torch.equal(value(next_observations(batch)), value(batch))
    assert next_observations(batch).keys() == {name for name in batch if name.startswith("obs")}


def test_a_batch_without_next_observations_says_what_is_needed():
    with pytest.raises(KeyError, match="no 'new_obs': name it among the columns"):
        next_observations({"obs": torch.zeros(1)})


@pytest.mark.parametrize("options", [{}, {"layer_norm": True}], ids=["plain", "norm"])
def test_members_at_once_are_members_one_by_one(options):
    """Values and gradients: each member is a critic of its own."""
    given = inputs("vector", "box")
    batch = batch_of(given)
    critics = given.critics(members=4, **options)
    together = critics(batch)
    torch.testing.assert_close(critics.first(batch, batch["actions"]), together[0], rtol=0, atol=1e-6)
    together.square().mean(-1).sum().backward()
    for member in range(4):
        alone = given.critics(members=1, **options)
        alone.load_state_dict(
            {name: tensor[member : member + 1] for name, tensor in critics.state_dict().items()}
        )
        values = alone(batch)[0]
        torch.testing.assert_close(values, together[member], rtol=0, atol=1e-6)
        values.square().mean().backward()
        for one, all_of_them in zip(alone.parameters(), critics.parameters(), strict=True):
            torch.testing.assert_close(one.grad[0], all_of_them.grad[member], rtol=0, atol=1e-6)


def test_a_layer_of_members_is_a_linear_layer_of_each():
    torch.manual_seed(0)
    layer = MemberLinear(3, 5, 7, 2.0)
    features = torch.randn(3, 4, 5)
    for member in range(3):
        weight = layer.weight[member]
        torch.testing.assert_close(layer(features)[member], functional.linear(features[member], weight.T))
        torch.testing.assert_close(weight @ weight.T, 4.0 * torch.eye(5))
    assert not torch.equal(layer.weight[0], layer.weight[1])


def test_dropout_is_in_training_only():
    given = inputs()
    batch = batch_of(given)
    critics = given.critics(members=2, dropout=0.5)
    assert not torch.equal(critics(batch), critics(batch))
    critics.eval()
    assert torch.equal(critics(batch), critics(batch))


def test_values_of_all_actions_and_of_those_taken():
    given = inputs("dict", "discrete")
    batch = batch_of(given)
    critics = given.action_values(members=2)
    values = critics(batch).detach()
    assert values.shape == (2, ROWS, 3)
    taken = critics.gather(values, batch["actions"])
    expected = [
        [values[member, row, batch["actions"][row] - 2] for row in range(ROWS)] for member in range(2)
    ]
    assert taken.tolist() == [[float(value) for value in row] for row in expected]


def test_values_of_all_actions_need_discrete_actions():
    with pytest.raises(SpecError, match="needs a Discrete action space, not Box"):
        inputs("vector", "box").action_values()


def test_an_algorithm_chooses_the_distribution_where_the_user_does_not():
    batch = batch_of(inputs())
    deterministic = inputs().policy(value=False, auto="deterministic")
    assert deterministic.model_config.distribution == "deterministic"
    assert deterministic.forward_train(batch)["action_dist_inputs"].shape == (ROWS, 2)
    chosen = inputs(distribution="squashedGaussian").policy(value=False, auto="deterministic")
    assert chosen.model_config.distribution == "squashedGaussian"


def test_weights_follow_from_the_seed():
    def drawn(seed):
        torch.manual_seed(seed)
        return copy.deepcopy(inputs().critics(members=2).state_dict())

    assert all(
        torch.equal(one, other) for one, other in zip(drawn(1).values(), drawn(1).values(), strict=True)
    )
    assert any(
        not torch.equal(one, other) for one, other in zip(drawn(1).values(), drawn(2).values(), strict=True)
    )


def test_many_rows_have_the_values_and_gradients_that_few_have():
    """On the CPU they are computed some at a time."""
    critics = inputs().critics(members=2)
    batch = {"obs": torch.randn(50, 5)}
    actions = torch.randn(40, 50, 2)
    several = critics(batch, actions)
    singly = torch.stack([critics(batch, each) for each in actions], 1)
    torch.testing.assert_close(several, singly)
    gradients = (
        torch.autograd.grad(found.square().sum(), [*critics.parameters()]) for found in (several, singly)
    )
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
