"""Evaluations leave out the episodes that trained the policy."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from hindcast.datasets.dataset import Dataset
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.episodes.block import Block
from hindcast.errors import SpecError
from hindcast.formats.spec import DataSpec
from hindcast.run.evaluation.trained_episodes import (
    TRAINED_EPISODES_FILE,
    exclude_trained_episodes,
    record_trained_episodes,
)
from hindcast.storage.location import resolve


def make_dataset(folder: Path, ids: str, *, seed: int = 0, length: int = 3, obs: float = 0.0) -> Dataset:
    """Write one episode per letter of `ids`, in which all observations are `obs`."""
    num_episodes = len(ids)
    rewards = np.random.default_rng(seed).normal(size=num_episodes * length)
    block = Block(
        columns={"obs": np.full((num_episodes * (length + 1), 1), obs, np.float32), "rewards": rewards},
        length=np.full(num_episodes, length),
        eps_id=np.array(list(ids), dtype=object),
        t_started=np.zeros(num_episodes, dtype=np.int64),
        terminated=np.ones(num_episodes, dtype=bool),
        truncated=np.zeros(num_episodes, dtype=bool),
    )
    spec = DataSpec.from_block(block, gym.spaces.Box(-1, 1, (1,)), None, "Test-v0")
    with BlockWriter(resolve(folder), spec, "s") as writer:
        writer.write(block)
    return open_dataset(folder)


def test_trained_episodes_are_left_out_wherever_they_are_stored(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "data", "abcdef")
    run = resolve(tmp_path / "run")
    record_trained_episodes(run, [dataset.select([0, 2]), dataset.select([2, 5])])
    rest = exclude_trained_episodes(run.child(TRAINED_EPISODES_FILE), dataset.select([5, 4, 3, 2, 1, 0]), "d")
    assert rest.num_trained == 3
    assert set(rest.dataset.episode_table().eps_id) == {"b", "d", "e"}


@pytest.mark.parametrize("change", [{"seed": 1}, {"length": 4}, {"obs": 0.5}, {"ids": "uvw"}])
def test_other_episodes_with_equal_ids_are_kept(tmp_path: Path, change: dict[str, object]) -> None:
    run = resolve(tmp_path / "run")
    record_trained_episodes(run, [make_dataset(tmp_path / "data", "abc")])
    other = make_dataset(tmp_path / "other", **{"ids": "abc"} | change)  # type: ignore[arg-type]
    assert exclude_trained_episodes(run.child(TRAINED_EPISODES_FILE), other, "d").num_trained == 0


def test_trained_episodes_with_missing_values_that_the_training_filled_are_left_out(tmp_path: Path) -> None:
    run = resolve(tmp_path / "run")
    record_trained_episodes(run, [make_dataset(tmp_path / "filled", "abc", obs=0.5).select([0])])
    raw = make_dataset(tmp_path / "raw", "abc", obs=np.nan)
    assert exclude_trained_episodes(run.child(TRAINED_EPISODES_FILE), raw, "d").num_trained == 1


def test_data_that_only_trained_the_policy_are_refused(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "data", "abc")
    run = resolve(tmp_path / "run")
    record_trained_episodes(run, [dataset])
    with pytest.raises(
        SpecError, match=r"^d: 3 of 3 episodes trained the policy, so estimates on them are too"
    ):
        exclude_trained_episodes(run.child(TRAINED_EPISODES_FILE), dataset, "d")
