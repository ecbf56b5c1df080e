"""Verdicts on data before a training: reinforcement learning can improve, clone only, not usable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from hindcast.datasets.dataset import Dataset
from hindcast.datasets.inspection.data_verdict import judge_data
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.formats.spec import DataSpec
from hindcast.storage.location import resolve

Array = np.ndarray[Any, Any]


def record(
    folder: Path,
    kind: str,
    seed: int,
    *,
    num_episodes: int = 100,
    continuous: bool = False,
    logp: bool = False,
) -> Dataset:
    """Write episodes of 8 steps with the observations (x, y), of which only x matters.

    Args:
        folder: folder of the dataset.
        kind: "effect" (an action of the sign of x is rewarded), "noise" (rewards are noise), "state" (rewards depend on
            x), "deterministic" (the action is the sign of x), "constant" (one action), "no rewards".
        seed: seed of the episodes.
        num_episodes: number of episodes.
        continuous: True for continuous actions, False for two discrete ones.
        logp: True to record log-probabilities.
    """
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(num_episodes, 9, 2))
    x = obs[:, :8, 0]
    noise = rng.normal(size=x.shape)
    action: Array = rng.normal(size=x.shape) if continuous else (rng.random(x.shape) < 0.5).astype(np.int64)
    if kind == "deterministic":
        action = np.tanh(x) if continuous else (x > 0).astype(np.int64)
    if kind == "constant":
        action = np.zeros_like(action)
    rewards = {
        "effect": noise + (action if continuous else 2 * action - 1) * np.sign(x),
        "deterministic": noise + np.abs(x),
        "state": 0.2 * noise + 2 * x,
        "no rewards": np.zeros_like(noise),
    }.get(kind, noise)
    columns = {
        "obs": obs.reshape(-1, 2),
        "actions": action.reshape(-1, 1).astype(np.float32) if continuous else action.ravel(),
        "rewards": rewards.ravel(),
        **({"action_logp": np.full(num_episodes * 8, np.log(0.5))} if logp else {}),
    }
    block = Block(
        columns=columns,
        length=np.full(num_episodes, 8),
        eps_id=np.array([f"e{index}" for index in range(num_episodes)], dtype=object),
        t_started=np.zeros(num_episodes, dtype=np.int64),
        terminated=np.ones(num_episodes, dtype=bool),
        truncated=np.zeros(num_episodes, dtype=bool),
    )
    space = gym.spaces.Box(-9, 9, (1,)) if continuous else gym.spaces.Discrete(2)
    spec = DataSpec.from_block(block, gym.spaces.Box(-9, 9, (2,), np.float64), space, "Test-v0")
    with BlockWriter(resolve(folder), spec, "s") as writer:
        writer.write(block)
    return open_dataset(folder)


@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
@pytest.mark.parametrize(
    ("kind", "answer", "reason"),
    [
        ("effect", "improve", "different actions explain"),
        ("noise", "clone", "no effect of the actions on the rewards is visible"),
        ("state", "clone", "no effect of the actions on the rewards is visible"),
        ("deterministic", "clone", "similar states were recorded with the same action"),
        ("no rewards", "clone", "all rewards are equal or missing"),
        ("constant", "unusable", "every recorded action is the same"),
    ],
)
def test_data_are_judged_by_what_their_actions_show(
    tmp_path: Path, kind: str, answer: str, reason: str, continuous: bool
) -> None:
    verdict = judge_data(record(tmp_path, kind, 0, continuous=continuous, num_episodes=300))
    assert (verdict.answer, reason in verdict.sentence) == (answer, True), verdict.sentence


def test_noise_is_rarely_taken_for_an_effect(tmp_path: Path) -> None:
    seeds = range(20)
    verdicts = [judge_data(record(tmp_path / str(seed), "state", seed)) for seed in seeds]
    assert sum(verdict.answer == "improve" for verdict in verdicts) <= 1


def test_few_episodes_allow_a_clone_only(tmp_path: Path) -> None:
    verdict = judge_data(record(tmp_path, "effect", 0, num_episodes=12))
    assert verdict.answer == "clone"
    assert "12 episodes, of which no part can be held out" in verdict.sentence


def test_single_episode_is_not_usable(tmp_path: Path) -> None:
    assert judge_data(record(tmp_path, "effect", 0, num_episodes=1)).answer == "unusable"


def test_log_probabilities_tell_effective_episodes(tmp_path: Path) -> None:
    verdict = judge_data(record(tmp_path, "effect", 0, logp=True))
    # Of two actions with probability 1/2 each, a random one changes no probability.
    assert verdict.effective_episodes == pytest.approx(100)
    assert "100 effective episodes" in verdict.sentence


def test_effective_episodes_count_many_discrete_actions(tmp_path: Path) -> None:
    dataset = record(tmp_path, "effect", 0, logp=True)
    rng = np.random.default_rng(0)
    block = dataset.read(dataset.units[0])
    columns = {
        **block.columns,
        "actions": rng.integers(0, 30, block.num_steps),
        "action_logp": np.full(block.num_steps, np.log(1 / 30)),
    }
    spec = DataSpec.from_block(
        block.with_columns(columns), dataset.spec.observation_space, gym.spaces.Discrete(30)
    )
    with BlockWriter(resolve(tmp_path / "many"), spec, "s") as writer:
        writer.write(block.with_columns(columns))
    assert judge_data(open_dataset(tmp_path / "many")).effective_episodes == pytest.approx(100)
