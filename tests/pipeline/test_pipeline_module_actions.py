"""Recorded actions in the environment's units are scaled to the module's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from episode_kit import build_block
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.writer import BlockWriter
from hindcast.errors import DataError
from hindcast.formats.spec import DataSpec
from hindcast.models.preprocessing import Preprocessing
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.offline_data import OfflineData, Source
from hindcast.storage.location import resolve
from user_errors import raises_user_error

OBSERVATIONS = gym.spaces.Box(-1, 1, (1,), np.float32)
ACTIONS = gym.spaces.Box(np.array([0, -2], np.float32), np.array([10, 2], np.float32))
ENVIRONMENT_ACTIONS = np.array([[0, -2], [5, 0], [7.5, 1], [10, 2]], dtype=np.float32)
MODULE_ACTIONS = [[-1.0, -1.0], [0.0, 0.0], [0.5, 0.5], [1.0, 1.0]]
MakeDataset = Callable[..., Dataset]


@pytest.fixture
def make_action_dataset(tmp_path: Path) -> MakeDataset:
    """`make_action_dataset(actions, is_normalized)` writes and opens one episode with these actions."""

    def make(actions: np.ndarray, is_normalized: bool) -> Dataset:
        observations = np.zeros((len(actions) + 1, 1), dtype=np.float32)
        block = build_block({"obs": observations, "actions": actions}, [len(actions)])
        leaves = DataSpec.from_block(block).leaves
        spec = DataSpec(leaves, OBSERVATIONS, ACTIONS, normalized_actions=is_normalized)
        with BlockWriter(resolve(tmp_path / "data"), spec, "part") as writer:
            writer.write(block)
        return open_dataset(tmp_path / "data")

    return make


def epoch_actions(dataset: Dataset, normalize: bool = True) -> list[list[float]]:
    """Return all actions of an epoch as the module gets them, sorted."""
    preprocessing = Preprocessing(OBSERVATIONS, ACTIONS, normalize_actions=normalize)
    needs, sources = Needs(frozenset({"obs", "actions"})), [Source("d", dataset)]
    data = OfflineData(sources, needs, batch_size=dataset.num_steps, preprocessing=preprocessing)
    try:
        return sorted(data.next()["actions"].tolist())
    finally:
        data.close()


def test_environment_actions_are_scaled_to_module_bounds(make_action_dataset: MakeDataset) -> None:
    assert epoch_actions(make_action_dataset(ENVIRONMENT_ACTIONS, is_normalized=False)) == MODULE_ACTIONS


def test_integer_actions_are_scaled(make_action_dataset: MakeDataset) -> None:
    integers = np.array([[0, -2], [5, 0], [10, 2]])
    expected = [[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0]]
    assert epoch_actions(make_action_dataset(integers, is_normalized=False)) == expected


@pytest.mark.parametrize(("is_normalized", "normalize"), [(True, True), (False, False)])
def test_actions_are_unchanged_if_normalized_or_if_module_does_not_scale(
    make_action_dataset: MakeDataset, is_normalized: bool, normalize: bool
) -> None:
    dataset = make_action_dataset(ENVIRONMENT_ACTIONS, is_normalized)
    assert epoch_actions(dataset, normalize) == ENVIRONMENT_ACTIONS.tolist()


def test_environment_actions_out_of_bounds_raise(make_action_dataset: MakeDataset) -> None:
    actions = np.array([[1, 1], [11, 0]], dtype=np.float32)
    with raises_user_error(DataError, r"'actions' has 11\.0, expected Box", step=1):
        epoch_actions(make_action_dataset(actions, is_normalized=False))
