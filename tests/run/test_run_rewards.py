"""Trainings with changed rewards: resume, results in recorded units, the same from YAML and Python."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hindcast import IQLConfig, Policy
from hindcast.errors import SpecError
from hindcast.learn.learner import Learner
from hindcast.run.training.offline_trainer import make_offline_trainer
from run_results import read_results
from support import train, training

MODEL = {"fcnetHiddens": [8]}


def train_iql(folder: Path, data: Path, updates: int = 6, **spec: Any) -> list[dict[str, Any]]:
    spec = {"pipeline": {"datasetNumItersPerLearner": 3}, "stop": {"updates": updates}, **spec}
    train(training(folder, data, algorithm="IQL", config={}, model=MODEL, **spec))
    return read_results(folder)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return Policy.load(folder / "test/r1").module.state_dict()


@pytest.mark.parametrize("normalize", ["ReturnRange", "Std"])
def test_resumed_run_keeps_the_fitted_scale(normalize: str, walks: Path, tmp_path: Path) -> None:
    rewards = {"normalize": normalize, "scale": 10.0, "shift": -1.0}
    train_iql(tmp_path / "whole", walks, 6, rewards=rewards)
    train_iql(tmp_path / "parts", walks, 3, rewards=rewards)
    train_iql(tmp_path / "parts", walks, 6, rewards=rewards)
    whole, parts = (weights(tmp_path / name) for name in ("whole", "parts"))
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())
    states = [
        Policy.load(tmp_path / name / "test/r1").preprocessing.reward_scale.state()
        for name in ("whole", "parts")
    ]
    for name, values in states[0].items():
        np.testing.assert_array_equal(values, states[1][name])


def test_values_are_reported_in_recorded_units(
    walks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Learner, "metrics", lambda *_, **__: {"mean_q": 8.0, "mean_v": 4.0, "total_loss": 3.0}
    )
    result = train_iql(tmp_path, walks, 3, rewards={"scale": 4.0})[-1]
    assert result["learners"]["default_policy"] == {"mean_q": 2.0, "mean_v": 1.0, "total_loss": 3.0}


def test_python_options_are_the_fields_of_yaml() -> None:
    config = IQLConfig().environment("CartPole-v1").offline_data(input_="data")
    config.training(reward_scale=1000.0, reward_shift=-1.0, reward_clip=2.0, reward_normalize="returnRange")
    rewards = config.to_resource().spec.rewards
    assert rewards is not None
    assert (rewards.scale, rewards.shift, rewards.clip, rewards.normalize) == (
        1000.0,
        -1.0,
        2.0,
        "returnRange",
    )


def test_scale_without_recorded_data_cannot_be_fitted(tmp_path: Path) -> None:
    resource = training(
        tmp_path,
        "",
        algorithm="DQN",
        config={},
        environment={"id": "toy_environments:Walk"},
        input=[{"sampler": {}}],
        rewards={"normalize": "Std"},
    )
    with pytest.raises(SpecError, match=r"spec\.rewards\.normalize is fitted to recorded data"):
        make_offline_trainer(resource, []).begin()
