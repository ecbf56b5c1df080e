"""From an expert to its clone, as a user would do it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hindcast.api import EnvironmentSpec
from hindcast.datasets.opening import open_dataset
from hindcast.evaluate.environment import evaluate_policy
from hindcast.models.policy import Policy
from support import CARTPOLE, record, recording, train, training

pytestmark = pytest.mark.learning

EXPERT = {
    "config": {"lr": 3e-4, "numEpochs": 6, "trainBatchSizePerLearner": 4096, "minibatchSize": 128},
    "model": {"fcnetHiddens": [64, 64]},
    "stop": {"episodeReturnMean": 450, "iterations": 30},
}


def test_clone_of_hundred_episodes_reaches_return_of_expert(tmp_path: Path) -> None:
    record(
        recording(
            tmp_path / "data",
            environment=CARTPOLE,
            policy={"train": EXPERT},
            duration={"episodes": 100},
            runners={"envsPerRunner": 8},
        )
    )
    dataset = open_dataset(str(tmp_path / "data"))
    assert dataset.num_episodes == 100
    assert dataset.num_steps / 100 >= 400

    outcome = train(
        training(
            tmp_path / "runs",
            tmp_path / "data",
            environment=CARTPOLE,
            config={"lr": 8e-4, "trainBatchSizePerLearner": 1024},
            model={"fcnetHiddens": [64, 64]},
            evaluation={"interval": 1, "duration": 20},
            stop={"episodeReturnMean": 450, "iterations": 30},
        )
    )
    assert outcome.metrics["episode_return_mean"] >= 450
    policy = Policy.load(outcome.metrics["best"]["path"])
    report = evaluate_policy(policy, EnvironmentSpec.model_validate(CARTPOLE), duration=50, seed=1)
    assert report.summary()["episode_return_mean"] >= 450
