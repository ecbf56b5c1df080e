"""Each algorithm reaches its reward threshold."""

import numpy as np
import pytest
import torch

from hindcast.algorithms import build
from hindcast.api.environment import EnvironmentSpec
from hindcast.api.model import ModelSpec
from hindcast.api.recording import TrainPolicy
from hindcast.evaluate.environment import evaluate_policy
from hindcast.learn.learner import Learner
from hindcast.record.runner import EnvRunner
from hindcast.run.online import OnlineTraining, new_policy

pytestmark = pytest.mark.learning

CARTPOLE = EnvironmentSpec(id="CartPole-v1")
SMALL = {"fcnetHiddens": [64, 64]}
QUICK = {"lr": 1e-3, "minibatchSize": 256}


@pytest.fixture(scope="module")
def expert():
    spec = TrainPolicy.model_validate(
        {
            "algorithm": "PPO",
            "config": QUICK,
            "model": SMALL,
            "stop": {"episodeReturnMean": 450},
            "evaluation": {"duration": 20},
        }
    )
    training = OnlineTraining(CARTPOLE, spec, seed=0, width=8, explore_in_evaluation=True, spec_hash="")
    for _ in range(25):
        reached = training.iterate(evaluate=True)["evaluation"]["env_runners"]["episode_return_mean"]
        if reached >= 450:
            break
    training.close()
    return reached, training.policy


def test_ppo_reaches_450_on_cartpole_sampling_its_actions(expert):
    assert expert[0] >= 450


def test_bc_clones_it_from_20_episodes(expert):
    runner = EnvRunner(CARTPOLE, expert[1], width=8, seed=1, explore=True)
    episodes = list(runner.play(range(20)))
    runner.close()
    obs = torch.from_numpy(np.concatenate([episode.columns["obs"][:-1] for episode in episodes]))
    actions = torch.from_numpy(np.concatenate([episode.columns["actions"] for episode in episodes]))
    algorithm = build("BC", {"lr": 1e-3})
    policy, nets = new_policy(algorithm, CARTPOLE, ModelSpec(fcnet_hiddens=[64, 64]), seed=0)
    learner = Learner(algorithm, nets)
    source = torch.Generator().manual_seed(0)
    for _ in range(300):
        rows = torch.randint(len(obs), (256,), generator=source)
        learner.update({"obs": obs[rows], "actions": actions[rows]})
    assert evaluate_policy(policy, CARTPOLE, duration=10).summary()["episode_return_mean"] >= 450
