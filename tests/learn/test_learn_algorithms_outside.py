"""Algorithms that a user writes, over critics, target networks and several optimisers."""

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
KINDS = pytest.mark.parametrize("kind", [IQL, DQN])


def learner(kind, seed=0, **options):
    algorithm = kind(kind.Options(**options))
    return Learner(algorithm, new_networks(algorithm, INPUTS, seed), seed=seed)


def batch(number, size=64):
    """An action is rewarded with 1 where it is the colour; half of the steps end their episode."""
    source = torch.Generator().manual_seed(number)
    place = torch.rand(2, size, 2, generator=source) * 2 - 1
    colour, following, actions = torch.randint(3, (3, size), generator=source)
    terminateds = torch.rand(size, generator=source) < 0.5
    return {
        "obs/place": place[0],
        "obs/colour": colour,
        "new_obs/place": place[1],
        "new_obs/colour": following,
        "actions": actions,
        "rewards": (colour == actions).float(),
        "terminateds": terminateds,
        "discounts": 0.9 * ~terminateds,
        "weights": torch.ones(size),
    }


def trained(kind, updates, **options):
    ours = learner(kind, **options)
    for number in range(updates):
        ours.update(batch(number))
    return ours


@KINDS
def test_they_learn_which_action_is_rewarded(kind):
    ours = trained(kind, 300)
    ours.metrics()
    seen = batch(1000)
    policy = ours.nets["policy"]
    chosen = policy.distribution(policy.forward_inference(seen)["action_dist_inputs"]).mode()
    assert (chosen == seen["obs/colour"]).float().mean() > 0.95


def test_one_backward_pass_gives_what_three_give():
    assert same(trained(IQL, 10, joint=True), trained(IQL, 10, joint=False))


@KINDS
def test_targets_follow_slowly_and_are_never_trained(kind):
    ours = learner(kind)
    name = "targets" if kind is IQL else "target"
    before = {key: tensor.clone() for key, tensor in ours.nets[name].state_dict().items()}
    ours.update(batch(0))
    ours.nets.train()
    moved = ours.nets[name].state_dict()
    critics = (ours.nets["critics"] if kind is IQL else ours.nets["policy"].values).state_dict()
    for key, tensor in before.items():
        torch.testing.assert_close(moved[key], tensor + 0.05 * (critics[key] - tensor))
    assert not any(module.training for module in ours.nets[name].modules())


def same(first, second):
    one, other = first.state(), second.state()
    assert one.tensors.keys() == other.tensors.keys()
    return one.meta == other.meta and all(
        torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors
    )
