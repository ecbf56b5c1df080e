"""Episodes of the environment `Recall`: of an expert, or of random actions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve
from toy_environments import Recall

RECALL = "toy_environments:Recall"


def write_recall(folder: Path, env: Recall, is_expert: bool) -> Path:
    """Write 200 episodes of an expert that remembers the cue, or of random actions, and return the folder."""
    block = Block.concat([play_recall(env, seed, is_expert) for seed in range(200)])
    spec = DataSpec.from_block(block, Recall.observation_space, env.action_space, RECALL)
    with BlockWriter(resolve(folder), spec, "all") as writer:
        writer.write(block)
    return folder


def play_recall(env: Recall, seed: int, is_expert: bool) -> Block:
    """Play one episode, an expert's with a return of 1, and return it as a block."""
    actions, rewards = [], []
    observations = [env.reset(seed=seed)[0]]
    env.action_space.seed(seed)
    is_done = False
    while not is_done:
        actions.append(env.right_action() if is_expert else env.action_space.sample())
        obs, reward, is_done, _, _ = env.step(actions[-1])
        observations.append(obs)
        rewards.append(reward)
    assert rewards[-1] == 1 or not is_expert
    columns = {"obs": np.stack(observations), "actions": np.array(actions), "rewards": np.array(rewards)}
    return Block(
        columns=columns,
        length=np.array([len(actions)]),
        eps_id=np.array([f"e{seed}"], dtype=object),
        t_started=np.zeros(1, dtype=np.int64),
        terminated=np.ones(1, dtype=np.bool_),
        truncated=np.zeros(1, dtype=np.bool_),
    )
