"""An expert's training in pieces is the training in one, bit for bit; a spec that failed can be mended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hindcast.evaluate.environment import EnvEvaluator
from hindcast.learn.checkpoint import CheckpointStore
from hindcast.run.expert import iterate_and_evaluate
from hindcast.run.online_trainer import make_online_trainer
from hindcast.run.trainer import Trainer
from hindcast.storage.location import resolve
from support import add_position_dependence, recording, train, training


def test_an_experts_training_in_pieces_is_the_training_in_one(tmp_path: Path) -> None:
    """Where kernels round by position, too: an iteration is always made whole, in one process."""
    expert = {
        "config": {"trainBatchSizePerLearner": 64, "minibatchSize": 32, "numEpochs": 1},
        "model": {"fcnetHiddens": [8]},
        "stop": {"iterations": 4},
    }
    resource = recording(tmp_path / "data", policy={"train": expert})
    assert resource.spec.policy.train is not None
    spec, evaluator = resource.spec.policy.train, EnvEvaluator(resource.spec.environment, 2, explore=True)

    def fresh() -> Trainer:
        made = make_online_trainer(resource, spec, width=4)
        add_position_dependence(made.policy)
        return made

    def evaluations(trainer: Trainer, iterations: int) -> list[Any]:
        return [iterate_and_evaluate(trainer, evaluator, seed=0)["evaluation"] for _ in range(iterations)]

    whole, begun, resumed = fresh(), fresh(), fresh()
    returns = evaluations(whole, 4)
    evaluations(begun, 2)
    checkpoint = begun.save(CheckpointStore(resolve(tmp_path / "checkpoints"), keep=1))
    del checkpoint.training.counters["seconds"]  # as in those of earlier versions
    resumed.load(checkpoint)
    assert evaluations(resumed, 2) == returns[2:]
    assert resumed.policy.digest == whole.policy.digest
    assert resumed.experience and whole.experience
    assert resumed.experience.counters == whole.experience.counters == {"sampled": 4 * 64}


def test_a_spec_that_failed_at_once_can_be_mended(walks: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no Gymnasium environment"):
        train(training(tmp_path, walks, environment={"id": "Nowhere-v0"}))
    assert train(training(tmp_path, walks)).state == "Succeeded"
