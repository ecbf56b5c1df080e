"""An expert's training in pieces is the training in one, bit for bit; a spec that failed can be mended."""

from __future__ import annotations

from pathlib import Path

import pytest

from hindcast.api import EnvironmentSpec
from hindcast.api.recording import TrainPolicy
from hindcast.learn.checkpoint import CheckpointStore
from hindcast.run.online import OnlineTraining
from hindcast.storage.location import resolve
from support import WALK, by_position, train, training


def test_an_experts_training_in_pieces_is_the_training_in_one(tmp_path: Path) -> None:
    """Where kernels round by position, too: an iteration is always made whole, in one process."""
    spec = TrainPolicy.model_validate(
        {
            "config": {"trainBatchSizePerLearner": 64, "minibatchSize": 32, "numEpochs": 1},
            "model": {"fcnetHiddens": [8]},
            "stop": {"iterations": 4},
            "evaluation": {"duration": 2},
        }
    )

    def fresh() -> OnlineTraining:
        made = OnlineTraining(
            EnvironmentSpec(**WALK), spec, seed=0, width=4, explore_in_evaluation=True, spec_hash=""
        )
        by_position(made.policy)
        return made

    whole, begun, resumed = fresh(), fresh(), fresh()
    returns = [whole.iterate(evaluate=True)["evaluation"] for _ in range(4)]
    for _ in range(2):
        begun.iterate(evaluate=True)
    resumed.load(begun.save(CheckpointStore(resolve(tmp_path), keep=1)))
    assert [resumed.iterate(evaluate=True)["evaluation"] for _ in range(2)] == returns[2:]
    assert resumed.policy.digest == whole.policy.digest


def test_a_spec_that_failed_at_once_can_be_mended(walks: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no Gymnasium environment"):
        train(training(tmp_path, walks, environment={"id": "Nowhere-v0"}))
    assert train(training(tmp_path, walks)).state == "Succeeded"
