"""Data shared by tests of runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve
from toy_environments import Recall

RECALL = "toy_environments:Recall"


@pytest.fixture(scope="session")
def recall_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of an expert that remembers the cue."""
    folder = tmp_path_factory.mktemp("recall_data")
    block = Block.concat([expert_episode(seed) for seed in range(200)])
    spec = DataSpec.from_block(block, Recall.observation_space, Recall.action_space, RECALL)
    with BlockWriter(resolve(folder), spec, "all") as writer:
        writer.write(block)
    return folder


def expert_episode(seed: int) -> Block:
    """Play one episode, with a return of 1, and return it as a block."""
    env, actions, rewards = Recall(), [], []
    observations = [env.reset(seed=seed)[0]]
    is_done = False
    while not is_done:
        actions.append(env.right_action())
        obs, reward, is_done, _, _ = env.step(actions[-1])
        observations.append(obs)
        rewards.append(reward)
    assert rewards[-1] == 1
    columns = {"obs": np.stack(observations), "actions": np.array(actions), "rewards": np.array(rewards)}
    return Block(
        columns=columns,
        length=np.array([len(actions)]),
        eps_id=np.array([f"e{seed}"], dtype=object),
        t_started=np.zeros(1, dtype=np.int64),
        terminated=np.ones(1, dtype=np.bool_),
        truncated=np.zeros(1, dtype=np.bool_),
    )
