"""Custom algorithms with critics, target networks and one or several optimisers."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from learn_dqn import DQN
from learn_iql import IQL

from hindcast.api.model import ModelSpec
from hindcast.learn.algorithm import ModelInputs, new_networks
from hindcast.learn.learner import Learner

INPUTS = ModelInputs(
    gym.spaces.Dict(place=gym.spaces.Box(-1, 1, (2,), np.float32), colour=gym.spaces.Discrete(3)),
    gym.spaces.Discrete(3),
    ModelSpec(fcnet_hiddens=[32, 32], fcnet_activation="relu"),
)
ALGORITHMS = pytest.mark.parametrize("algorithm_class", [IQL, DQN])


def make_learner(algorithm_class, seed=0, **options):
    algorithm = algorithm_class(algorithm_class.Options(**options))
    return Learner(algorithm, new_networks(algorithm, INPUTS, seed), seed=seed)


def make_batch(seed, size=64):
    """Return transitions: an action that equals the colour has reward 1; half of the steps are terminal."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(2, size, 2, generator=generator) * 2 - 1
    colour, next_colour, actions = torch.randint(3, (3, size), generator=generator)
    terminateds = torch.rand(size, generator=generator) < 0.5
    return {
        "obs/place": places[0],
        "obs/colour": colour,
        "new_obs/place": places[1],
        "new_obs/colour": next_colour,
        "actions": actions,
        "rewards": (colour == actions).float(),
        "terminateds": terminateds,
        "discounts": 0.9 * ~terminateds,
        "weights": torch.ones(size),
    }


def train(algorithm_class, num_updates, **options):
    learner = make_learner(algorithm_class, **options)
    for index in range(num_updates):
        learner.update(make_batch(index))
    return learner


@ALGORITHMS
def test_custom_algorithm_learns_the_rewarded_action(algorithm_class):
    learner = train(algorithm_class, 300)
    learner.metrics()  # raises if a loss was not finite or a network was not used
    test_batch = make_batch(1000)
    policy = learner.nets["policy"]
    actions = policy.distribution(policy.forward_inference(test_batch)["action_dist_inputs"]).mode()
    assert (actions == test_batch["obs/colour"]).float().mean() > 0.95


@ALGORITHMS
def test_target_networks_follow_by_tau_and_stay_in_evaluation_mode(algorithm_class):
    learner = make_learner(algorithm_class)
    name = "targets" if algorithm_class is IQL else "target"
    old_weights = {key: tensor.clone() for key, tensor in learner.nets[name].state_dict().items()}
    learner.update(make_batch(0))
    learner.nets.train()  # must not change the mode of target networks
    weights = learner.nets[name].state_dict()
    source = learner.nets["critics"] if algorithm_class is IQL else learner.nets["policy"].values
    source_weights = source.state_dict()
    for key, tensor in old_weights.items():
        torch.testing.assert_close(weights[key], tensor + 0.05 * (source_weights[key] - tensor))
    assert not any(module.training for module in learner.nets[name].modules())
