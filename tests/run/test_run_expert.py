"""An interrupted expert equals an uninterrupted one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hindcast.evaluate.environment import EnvEvaluator
from hindcast.learn.checkpoint import CheckpointStore
from hindcast.run.training.expert import iterate_and_evaluate
from hindcast.run.training.online_trainer import make_online_trainer
from hindcast.run.training.trainer import Trainer
from hindcast.storage.location import resolve
from support import add_position_dependence, recording


def test_resumed_expert_equals_uninterrupted_expert(tmp_path: Path) -> None:
    """This holds even if kernels round by position, because one process completes each iteration."""
    expert = {
        "config": {"trainBatchSizePerLearner": 64, "minibatchSize": 32, "numEpochs": 1},
        "model": {"fcnetHiddens": [8]},
        "stop": {"iterations": 4},
    }
    resource = recording(tmp_path / "data", policy={"train": expert})
    assert resource.spec.policy.train is not None
    spec, evaluator = resource.spec.policy.train, EnvEvaluator(resource.spec.environment, 2, explore=True)

    def make_trainer() -> Trainer:
        online_trainer = make_online_trainer(resource, spec, width=4)
        add_position_dependence(online_trainer.policy)
        return online_trainer

    def evaluate_iterations(trainer: Trainer, iterations: int) -> list[Any]:
        return [iterate_and_evaluate(trainer, evaluator, seed=0)["evaluation"] for _ in range(iterations)]

    reference_trainer, first_trainer, resumed_trainer = make_trainer(), make_trainer(), make_trainer()
    evaluations = evaluate_iterations(reference_trainer, 4)
    evaluate_iterations(first_trainer, 2)
    checkpoint = first_trainer.save(CheckpointStore(resolve(tmp_path / "checkpoints"), keep=1))
    resumed_trainer.load(checkpoint)
    assert evaluate_iterations(resumed_trainer, 2) == evaluations[2:]
    assert resumed_trainer.policy.digest == reference_trainer.policy.digest
    assert resumed_trainer.experience and reference_trainer.experience
    assert resumed_trainer.experience.counters == reference_trainer.experience.counters == {"sampled": 4 * 64}
