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
NUM_ROWS = 6


def make_inputs(observations="vector", actions="box", **model):
    spec = ModelSpec(fcnet_hiddens=[16, 8], conv_filters=[[4, 4, 2]], **model)
    return ModelInputs(OBSERVATIONS[observations], ACTIONS[actions], spec)


def sample_rows(space, column):
    rows = {}
    for seed, (name, leaf) in enumerate(flatten_space(space, column).items()):
        leaf.seed(seed)
        rows[name] = torch.as_tensor(np.stack([leaf.sample() for _ in range(NUM_ROWS)]))
    return rows


def make_batch(model_inputs):
    obs = sample_rows(model_inputs.observation_space, "obs")
    new_obs = {name.replace("obs", "new_obs", 1): rows for name, rows in obs.items()}
    return obs | sample_rows(model_inputs.action_space, "actions") | new_obs


@pytest.mark.parametrize("observations", OBSERVATIONS)
@pytest.mark.parametrize("actions", ACTIONS)
def test_critics_accept_every_space(observations, actions):
    model_inputs = make_inputs(observations, actions)
    batch = make_batch(model_inputs)
    critics = model_inputs.critics(members=3)
    values = critics(batch)
    assert values.shape == (3, NUM_ROWS)
    values.sum().backward()
    assert all(weight.grad is not None for weight in critics.parameters())
    action_columns = {name: value for name, value in batch.items() if name.startswith("actions")}
    assert torch.equal(critics(batch, action_columns.get("actions", action_columns)), values)


@pytest.mark.parametrize("observations", OBSERVATIONS)
def test_next_observations_are_named_like_observations(observations):
    model_inputs = make_inputs(observations)
    batch = make_batch(model_inputs)
    state_value = model_inputs.state_value()
    assert state_value(batch).shape == (NUM_ROWS,)
    assert torch.equal(state_value(next_observations(batch)), state_value(batch))
    assert next_observations(batch).keys() == {name for name in batch if name.startswith("obs")}


def test_batch_without_next_observations_names_the_missing_column():
    with pytest.raises(KeyError, match="no 'new_obs': add it to the columns"):
        next_observations({"obs": torch.zeros(1)})


@pytest.mark.parametrize("options", [{}, {"layer_norm": True}], ids=["default", "layer_norm"])
def test_critics_computed_together_equal_critics_computed_alone(options):
    """Values and gradients of each member equal those of a single critic."""
    model_inputs = make_inputs("vector", "box")
    batch = make_batch(model_inputs)
    critics = model_inputs.critics(members=4, **options)
    values = critics(batch)
    torch.testing.assert_close(critics.evaluate_first(batch, batch["actions"]), values[0], rtol=0, atol=1e-6)
    values.square().mean(-1).sum().backward()
    for member in range(4):
        single_critic = model_inputs.critics(members=1, **options)
        weights = {name: tensor[member : member + 1] for name, tensor in critics.state_dict().items()}
        single_critic.load_state_dict(weights)
        single_values = single_critic(batch)[0]
        torch.testing.assert_close(single_values, values[member], rtol=0, atol=1e-6)
        single_values.square().mean().backward()
        for single_weight, weight in zip(single_critic.parameters(), critics.parameters(), strict=True):
            torch.testing.assert_close(single_weight.grad[0], weight.grad[member], rtol=0, atol=1e-6)


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
    model_inputs = make_inputs()
    batch = make_batch(model_inputs)
    critics = model_inputs.critics(members=2, dropout=0.5)
    assert not torch.equal(critics(batch), critics(batch))
    critics.eval()
    assert torch.equal(critics(batch), critics(batch))


def test_gather_selects_the_values_of_the_actions():
    model_inputs = make_inputs("dict", "discrete")
    batch = make_batch(model_inputs)
    critics = model_inputs.action_values(members=2)
    values = critics(batch).detach()
    assert values.shape == (2, NUM_ROWS, 3)
    expected = values[:, torch.arange(NUM_ROWS), batch["actions"] - 2]
    assert torch.equal(critics.gather(values, batch["actions"]), expected)


def test_action_values_of_continuous_actions_are_refused():
    with pytest.raises(SpecError, match="requires a Discrete or MultiDiscrete action space, not Box"):
        make_inputs("vector", "box").action_values()


def test_auto_distribution_is_chosen_by_the_algorithm_and_other_distributions_stay():
    batch = make_batch(make_inputs())
    deterministic_policy = make_inputs().policy(value=False, auto="deterministic")
    assert deterministic_policy.model_config.distribution == "deterministic"
    assert deterministic_policy.forward_train(batch)["action_dist_inputs"].shape == (NUM_ROWS, 2)
    policy = make_inputs(distribution="squashedGaussian").policy(value=False, auto="deterministic")
    assert policy.model_config.distribution == "squashedGaussian"


def test_initial_weights_follow_from_the_seed():
    def build_weights(seed):
        torch.manual_seed(seed)
        return torch.cat([weights.flatten() for weights in make_inputs().critics(members=2).parameters()])

    assert torch.equal(build_weights(1), build_weights(1))
    assert not torch.equal(build_weights(1), build_weights(2))


def test_critics_in_chunks_equal_critics_over_all_rows():
    """On the CPU, values are computed for chunks of rows."""
    critics = make_inputs().critics(members=2)
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
