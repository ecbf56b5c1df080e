"""n-step targets of all algorithms that bootstrap: the needs, and a reward that lies far ahead."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from hindcast.algorithms import build
from hindcast.api.model import ModelOptions
from hindcast.episodes.block import Block
from hindcast.learn.algorithm import ModelInputs, new_networks
from hindcast.learn.learner import Learner
from hindcast.learn.model_defaults import complete_model
from hindcast.pipeline.loader import build_window
from hindcast.pipeline.window import Recipe

STEPS = 60
OBS = gym.spaces.Box(0, 1, (2 * STEPS,), np.float32)
BOX = gym.spaces.Box(-1, 1, (1,), np.float32)
BOOTSTRAPPING = ("CQL", "FQL", "IQL", "ReBRAC", "SAC", "TD3BC")


@pytest.mark.parametrize("name", [*BOOTSTRAPPING, "DQN", "DiscreteCQL", "DiscreteSAC"])
def test_needs_have_the_steps_of_the_target(name: str) -> None:
    assert build(name, {}).needs().n_step == 1
    needs = build(name, {"nStep": 7, "gamma": 0.9}).needs()
    assert (needs.n_step, needs.gamma) == (7, 0.9)


def test_chunk_needs_no_fewer_steps_than_it_plays() -> None:
    needs = [build("FQL", {"actionChunk": 5, "nStep": n}).needs() for n in (1, 20)]
    assert [(need.n_step, need.seq_len) for need in needs] == [(5, 5), (20, 5)]


def make_fork(num_episodes: int, seed: int) -> Block:
    """Return episodes of random actions, of which the first one decides whether the last step is rewarded."""
    rng = np.random.default_rng(seed)
    actions = rng.uniform(-1, 1, (num_episodes, STEPS, 1)).astype(np.float32)
    is_good = actions[:, 0, 0] > 0
    positions = np.arange(STEPS + 1) + STEPS * is_good[:, None]
    positions[:, 0], positions[:, -1] = 0, 0
    rewards = np.zeros((num_episodes, STEPS), np.float32)
    rewards[:, -1] = is_good
    return Block(
        columns={
            "obs": np.eye(2 * STEPS, dtype=np.float32)[positions.ravel() % (2 * STEPS)],
            "actions": actions.reshape(-1, 1),
            "rewards": rewards.ravel(),
        },
        length=np.full(num_episodes, STEPS, dtype=np.int64),
        eps_id=np.array([f"{index}" for index in range(num_episodes)], dtype=object),
        t_started=np.zeros(num_episodes, dtype=np.int64),
        terminated=np.ones(num_episodes, dtype=np.bool_),
        truncated=np.zeros(num_episodes, dtype=np.bool_),
    )


def first_action(name: str, n_step: int, updates: int) -> float:
    """Train on the fork and return the greedy first action."""
    config = {"nStep": n_step, "actorLr": 3e-3, "criticLr": 3e-3, "tau": 0.05}
    config |= {"IQL": {"valueLr": 3e-3, "beta": 30.0}, "CQL": {"minQWeight": 0.5, "numActions": 2}}.get(
        name, {}
    )
    algorithm = build(name, config)
    model = complete_model(algorithm, ModelOptions(fcnet_hiddens=[32]), BOX)
    nets = new_networks(algorithm, ModelInputs(OBS, BOX, model), seed=0)
    block, learner = make_fork(100, seed=0), Learner(algorithm, nets)
    window = build_window([block], Recipe(algorithm.needs()))
    generator = torch.Generator().manual_seed(0)
    for _ in range(updates):
        # Half of each batch is first steps, so that the policy learns them in few updates.
        index = torch.randint(window.num_steps, (256,), generator=generator)
        index[::2] -= index[::2] % STEPS
        learner.update(window.gather(index))
    policy = nets["policy"].eval()
    with torch.no_grad():
        outputs = policy.forward_inference({"obs": torch.eye(2 * STEPS)[:1]})
        return float(policy.distribution(outputs["action_dist_inputs"]).mode())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TD3BC", "IQL", "CQL"])
def test_reward_sixty_steps_ahead_is_found_by_n_step_alone(name: str) -> None:
    one_step, n_step = (first_action(name, n, updates=300) for n in (1, 20))
    assert n_step > max(0.15, 3 * abs(one_step))
