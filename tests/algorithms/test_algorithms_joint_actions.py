"""Algorithms of action values treat the combinations of a MultiDiscrete action as the actions of a Discrete one."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from algorithm_kit import OBS, build_algorithm, compute_loss_stages, make_transitions

from hindcast.api.model import ModelSpec
from hindcast.errors import SpecError
from hindcast.evaluate.target_policy import TargetPolicy
from hindcast.models.action_head import build_action_head
from hindcast.models.exported_policy import ExportedPolicy
from hindcast.models.joint_actions import enumerate_actions, index_actions
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing

COMBINATIONS = gym.spaces.Discrete(24)
SPACES = [
    gym.spaces.MultiDiscrete([2, 3, 4], start=[5, 0, -1]),
    gym.spaces.MultiDiscrete([[2, 1], [3, 4]]),
    gym.spaces.MultiDiscrete([24]),
]
ALGORITHMS = [
    ("DQN", {"numQuantiles": 3}),
    ("DQN", {"dueling": False, "doubleQ": False, "prioritizedReplay": True}),
    ("DiscreteCQL", {}),
    ("DiscreteSAC", {}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_indices_count_all_combinations_with_the_last_element_fastest(space):
    joint_actions, strides = enumerate_actions(space)
    assert all(space.contains(action) for action in joint_actions.numpy().astype(space.dtype))
    torch.testing.assert_close(index_actions(joint_actions, joint_actions, strides), torch.arange(24))
    elements = (joint_actions.numpy() - space.start).reshape(24, -1)
    assert np.array_equal(np.ravel_multi_index(elements.T, space.nvec.ravel()), np.arange(24))


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize(("name", "config"), ALGORITHMS)
def test_losses_of_combinations_are_bit_for_bit_those_of_a_discrete_space(name, config, space):
    batch = make_transitions(space) | {"weights": torch.rand(32)}
    joint_actions, strides = enumerate_actions(space)
    discrete_batch = batch | {"actions": index_actions(batch["actions"], joint_actions, strides)}
    stages, discrete_stages = (
        compute_loss_stages(*build_algorithm(name, config, action_space), data)
        for action_space, data in ((space, batch), (COMBINATIONS, discrete_batch))
    )
    for stage, discrete_stage in zip(stages, discrete_stages, strict=True):
        assert stage.losses.keys() == discrete_stage.losses.keys()
        assert all(torch.equal(loss, discrete_stage.losses[key]) for key, loss in stage.losses.items())


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("name", ["DQN", "DiscreteSAC"])
def test_policy_estimates_critic_and_export_take_the_combinations(name, explore):
    space = SPACES[0]
    algorithm, nets = build_algorithm(name, {"epsilon": 0.5} if name == "DQN" else {}, space)
    policy = Policy(nets["policy"], Preprocessing(OBS, space), OBS, space)
    observations = np.random.default_rng(0).uniform(-1, 1, (16, 3)).astype(np.float32)
    exported = ExportedPolicy(policy, explore)
    noise = [torch.rand(16, 1, generator=torch.Generator().manual_seed(0))] if explore else []
    (exported_actions,) = exported(torch.from_numpy(observations), *noise)
    assert all(space.contains(action) for action in exported_actions.numpy().astype(space.dtype))
    if not explore:
        assert np.array_equal([policy(row) for row in observations], exported_actions.numpy())
    batch = make_transitions(space)
    target = TargetPolicy(policy, explore)
    joint_actions, _ = enumerate_actions(space)
    probs = sum(target.logp(batch | {"actions": action.expand(32, -1)}).exp() for action in joint_actions)
    torch.testing.assert_close(probs, torch.ones(32, dtype=torch.float64))
    candidates, weights = target.weighted_actions(batch, 8, torch.Generator().manual_seed(0))
    assert algorithm.critic(nets)(batch, candidates).shape == weights.shape


def test_joint_distribution_needs_multi_discrete_actions_of_at_most_4096_combinations():
    model = ModelSpec(distribution="jointCategorical")
    assert build_action_head(gym.spaces.MultiDiscrete([16, 256]), model).inputs_size == 4096
    for space, sentence in [
        (
            gym.spaces.MultiDiscrete([17, 241]),
            "'actions' has 4,097 combinations, more than 4,096; use 'Auto', which",
        ),
        (gym.spaces.Box(-1, 1, (2,)), "'JointCategorical' is for discrete actions"),
        (
            gym.spaces.Box(0, 3, (2,), np.int64),
            "'JointCategorical' is for MultiDiscrete actions, but 'actions' is another",
        ),
        (
            gym.spaces.MultiBinary(3),
            "'JointCategorical' is for MultiDiscrete actions, but 'actions' is another",
        ),
    ]:
        with pytest.raises(SpecError, match=f"model.distribution: {sentence}"):
            build_action_head(space, model)
