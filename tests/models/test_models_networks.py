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


def batch_of(model_inputs):
    batch = rows(model_inputs.observation_space, "obs") | rows(model_inputs.action_space, "actions")
    return batch | {
        name.replace("obs", "new_obs", 1): value for name, value in batch.items() if "obs" in name
    }


@pytest.mark.parametrize("observations", OBSERVATIONS)
@pytest.mark.parametrize("actions", ACTIONS)
def test_critics_accept_every_space(observations, actions):
    model_inputs = inputs(observations, actions)
    batch = batch_of(model_inputs)
    critics = model_inputs.critics(members=3)
    values = critics(batch)
    assert values.shape == (3, ROWS)
    values.sum().backward()
    assert all(weight.grad is not None for weight in critics.parameters())
    action_columns = {name: value for name, value in batch.items() if name.startswith("actions")}
    assert torch.equal(critics(batch, action_columns.get("actions", action_columns)), values)


@pytest.mark.parametrize("observations", OBSERVATIONS)
def test_next_observations_are_named_like_observations(observations):
    model_inputs = inputs(observations)
    batch = batch_of(model_inputs)
    value = model_inputs.state_value()
    assert value(batch).shape == (ROWS,)
    assert torch.equal(value(next_observations(batch)), value(batch))
    assert next_observations(batch).keys() == {name for name in batch if name.startswith("obs")}


def test_batch_without_next_observations_names_the_missing_column():
    with pytest.raises(KeyError, match="no 'new_obs': add it to the columns"):
        next_observations({"obs": torch.zeros(1)})


@pytest.mark.parametrize("options", [{}, {"layer_norm": True}], ids=["plain", "norm"])
def test_critics_computed_together_equal_critics_computed_alone(options):
    """Values and gradients: each member is a critic of its own."""
    model_inputs = inputs("vector", "box")
    batch = batch_of(model_inputs)
    critics = model_inputs.critics(members=4, **options)
    together = critics(batch)
    torch.testing.assert_close(
        critics.evaluate_first(batch, batch["actions"]), together[0], rtol=0, atol=1e-6
    )
    together.square().mean(-1).sum().backward()
    for member in range(4):
        alone = model_inputs.critics(members=1, **options)
        alone.load_state_dict(
            {name: tensor[member : member + 1] for name, tensor in critics.state_dict().items()}
        )
        values = alone(batch)[0]
        torch.testing.assert_close(values, together[member], rtol=0, atol=1e-6)
        values.square().mean().backward()
        for one, all_of_them in zip(alone.parameters(), critics.parameters(), strict=True):
            torch.testing.assert_close(one.grad[0], all_of_them.grad[member], rtol=0, atol=1e-6)


def test_member_linear_equals_one_linear_per_member():
    torch.manual_seed(0)
    layer = MemberLinear(3, 5, 7, 2.0)
    features = torch.randn(3, 4, 5)
    for member in range(3):
        weight = layer.weight[member]
        torch.testing.assert_close(layer(features)[member], functional.linear(features[member], weight.T))
        torch.testing.assert_close(weight @ weight.T, 4.0 * torch.eye(5))
    assert not torch.equal(layer.weight[0], layer.weight[1])


def test_critic_dropout_applies_in_training_only():
    model_inputs = inputs()
    batch = batch_of(model_inputs)
    critics = model_inputs.critics(members=2, dropout=0.5)
    assert not torch.equal(critics(batch), critics(batch))
    critics.eval()
    assert torch.equal(critics(batch), critics(batch))


def test_gather_selects_the_values_of_the_actions():
    model_inputs = inputs("dict", "discrete")
    batch = batch_of(model_inputs)
    critics = model_inputs.action_values(members=2)
    values = critics(batch).detach()
    assert values.shape == (2, ROWS, 3)
    action_values = critics.gather(values, batch["actions"])
    expected = [
        [values[member, row, batch["actions"][row] - 2] for row in range(ROWS)] for member in range(2)
    ]
    assert action_values.tolist() == [[float(value) for value in row] for row in expected]


def test_action_values_of_continuous_actions_are_refused():
    with pytest.raises(SpecError, match="requires a Discrete action space, not Box"):
        inputs("vector", "box").action_values()


def test_auto_distribution_is_chosen_by_the_algorithm():
    batch = batch_of(inputs())
    deterministic = inputs().policy(value=False, auto="deterministic")
    assert deterministic.model_config.distribution == "deterministic"
    assert deterministic.forward_train(batch)["action_dist_inputs"].shape == (ROWS, 2)
    policy = inputs(distribution="squashedGaussian").policy(value=False, auto="deterministic")
    assert policy.model_config.distribution == "squashedGaussian"


def test_initial_weights_follow_from_the_seed():
    def build_weights(seed):
        torch.manual_seed(seed)
        return copy.deepcopy(inputs().critics(members=2).state_dict())

    assert all(
        torch.equal(first, second)
        for first, second in zip(build_weights(1).values(), build_weights(1).values(), strict=True)
    )
    assert any(
        not torch.equal(first, second)
        for first, second in zip(build_weights(1).values(), build_weights(2).values(), strict=True)
    )


def test_critics_in_chunks_equal_critics_over_all_rows():
    """On the CPU rows are computed chunk by chunk."""
    critics = inputs().critics(members=2)
    batch = {"obs": torch.randn(50, 5)}
    actions = torch.randn(40, 50, 2)
    values = critics(batch, actions)
    expected = torch.stack([critics(batch, action) for action in actions], 1)
    torch.testing.assert_close(values, expected)
    gradients = (
        torch.autograd.grad(result.square().sum(), [*critics.parameters()]) for result in (values, expected)
    )
    for gradient, expected_gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-4)
