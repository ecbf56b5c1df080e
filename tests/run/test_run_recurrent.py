"""Policies with a recurrent state through training, evaluation, recording and loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from hindcast.api import EnvironmentSpec
from hindcast.datasets.writer import EpisodeWriter
from hindcast.episodes.block import Block
from hindcast.errors import DataError, Interrupted, SpecError
from hindcast.evaluate.environment import evaluate_policy
from hindcast.formats.spec import DataSpec
from hindcast.models.policy import Policy
from hindcast.run.interruption import Interruption
from hindcast.storage.location import resolve
from support import After, episode_hashes, leftovers, read_all, record, recording, train, training
from toy_environments import Recall

RECALL = {"id": "toy_environments:Recall"}
KINDS = pytest.mark.parametrize("kind", ["lstm", "gru"])


@pytest.fixture(scope="module")
def recalled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of an expert who remembers the cue."""
    folder = tmp_path_factory.mktemp("recalled")
    blocks = Block.concat([expert_episode(number) for number in range(200)])
    spec = DataSpec.of_block(blocks, Recall.observation_space, Recall.action_space, RECALL["id"])
    with EpisodeWriter(resolve(folder), spec, "all") as writer:
        writer.write(blocks)
    return folder


def expert_episode(number: int) -> Block:
    env, actions, rewards = Recall(), [], []
    seen = [env.reset(seed=number)[0]]
    done = False
    while not done:
        actions.append(env.right_action())
        obs, reward, done, _, _ = env.step(actions[-1])
        seen.append(obs)
        rewards.append(reward)
    assert rewards[-1] == 1
    columns = {"obs": np.stack(seen), "actions": np.array(actions), "rewards": np.array(rewards)}
    return Block(
        columns=columns,
        length=np.array([len(actions)]),
        eps_id=np.array([f"e{number}"], dtype=object),
        t_started=np.zeros(1, dtype=np.int64),
        terminated=np.ones(1, dtype=np.bool_),
        truncated=np.zeros(1, dtype=np.bool_),
    )


def fit(
    folder: Path, data: Path, interruption: Interruption | None = None, updates: int = 150, **model: Any
) -> Policy:
    """Clones the data; the run folder is `folder/test/r1`."""
    resource = training(
        folder,
        data,
        config={"lr": 1e-2, "trainBatchSizePerLearner": 280},
        model={"fcnetHiddens": [16], "cellSize": 16, "maxSeqLen": 7, **model},
        stop={"updates": updates},
        pipeline={"datasetNumItersPerLearner": 25},
        environment=RECALL,
        evaluation={"interval": 2, "duration": 40},
    )
    train(resource, interruption)
    return Policy.load(folder / "test" / "r1")


def results(folder: Path) -> list[Any]:
    lines = [
        orjson.loads(line) for line in (folder / "test" / "r1" / "results.jsonl").read_text().splitlines()
    ]
    return [(line["learners"], line.get("evaluation")) for line in lines]


def mean_return(policy: Policy, num_envs: int = 8) -> float:
    report = evaluate_policy(
        policy, EnvironmentSpec.model_validate(RECALL), duration=60, num_envs=num_envs, seed=5
    )
    return float(np.mean(report.returns))


@KINDS
def test_a_policy_with_memory_learns_what_one_without_cannot(
    kind: str, recalled: Path, tmp_path: Path
) -> None:
    policy = fit(tmp_path, recalled, recurrent=kind)
    assert mean_return(policy) == mean_return(policy, num_envs=3) == 1
    last = results(tmp_path)[-1]
    assert last[1]["env_runners"]["episode_return_mean"] == 1
    assert last[0]["default_policy"]["action_accuracy"] > 0.99


def test_one_without_memory_stays_at_chance(recalled: Path, tmp_path: Path) -> None:
    assert 0.25 < mean_return(fit(tmp_path, recalled)) < 0.75
