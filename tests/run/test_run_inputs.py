"""`ready_inputs`: what several inputs of a training are together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hindcast.datasets.opening import open_dataset
from hindcast.pipeline.offline_data import OfflineData
from hindcast.pipeline.prelearner import OfflinePreLearner
from hindcast.pipeline.training_config import TrainingConfig
from hindcast.run.execute import FileReferences, train_locally
from hindcast.run.inputs import inputs_of, open_inputs, sources_of
from hindcast.run.interruption import Interruption
from support import WALK, MemoryReporter, make_policy, record, recording, training


@pytest.fixture
def expert_and_random(tmp_path: Path) -> list[Path]:
    """Recordings of one environment, of which only the first has the inputs of the policy's distribution."""
    make_policy(WALK).save(tmp_path / "policy")
    expert = {"checkpoint": {"path": str(tmp_path / "policy")}}
    record(recording(tmp_path / "expert", policy=expert))
    record(recording(tmp_path / "random"))
    return [tmp_path / "expert", tmp_path / "random"]


@pytest.mark.parametrize("share", [{}, {"top": 0.5}])
def test_columns_that_only_some_have_are_left_out(
    expert_and_random: list[Path], tmp_path: Path, share: dict[str, float]
) -> None:
    both = [{"path": str(path), **share} for path in expert_and_random]
    resource = training(tmp_path / "runs", "", environment=WALK, input=both)
    reporter = MemoryReporter()
    outcome, inputs = train_locally(
        resource, inputs_of(resource, FileReferences({})), reporter, Interruption()
    )
    assert outcome.state == "Succeeded"
    assert "not all inputs have the columns action_dist_inputs, so they are left out" in reporter.notes
    (source,) = sources_of(inputs)
    assert source.dataset.spec.required_leaves == {"obs", "actions", "rewards", "action_logp"}


def test_the_best_of_one_beside_another_without_rewards(
    expert_and_random: list[Path], tmp_path: Path
) -> None:
    expert, random = map(str, expert_and_random)
    both = [{"path": expert, "top": 0.5}, {"path": random, "columns": ["obs", "actions"]}]
    resource = training(tmp_path / "runs", "", environment=WALK, input=both)
    (source,) = sources_of(open_inputs(resource, inputs_of(resource, FileReferences({}))))
    assert source.dataset.spec.required_leaves == {"obs", "actions"}
    assert source.dataset.num_episodes == 1.5 * open_dataset(random).num_episodes
    assert "rewards" not in source.dataset.read(source.dataset.units[0]).columns


@pytest.mark.parametrize("judged", [{}, {"offline": {"heldOut": 0.2}}])
def test_with_weights_each_keeps_its_columns(
    expert_and_random: list[Path], tmp_path: Path, judged: dict[str, Any]
) -> None:
    both = [{"path": str(path), "weight": 1.0} for path in expert_and_random]
    resource = training(tmp_path / "runs", "", environment=WALK, input=both, evaluation=judged)
    reporter = MemoryReporter()
    outcome, inputs = train_locally(
        resource, inputs_of(resource, FileReferences({})), reporter, Interruption()
    )
    assert outcome.state == "Succeeded"
    assert "action_dist_inputs" in inputs[0].dataset.spec.leaves
    assert not any("left out" in note for note in reporter.notes)


class ReadsByItself(OfflineData):
    def __init__(self, config: Any) -> None:
        self.data = [config]


class MapsRows(OfflinePreLearner):
    @staticmethod
    def _map_to_episodes(is_multi_agent: bool, batch: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def test_a_class_that_reads_has_the_options_that_a_pre_learner_has(tmp_path: Path) -> None:
    asked = {}
    for field, kind in (("offlineData", ReadsByItself), ("preLearner", MapsRows)):
        pipeline = {field: f"{__name__}:{kind.__name__}", "datasetNumItersPerLearner": 3}
        config = {"lr": 0.5, "trainBatchSizePerLearner": 16}
        resource = training(tmp_path, "rows", environment=WALK, pipeline=pipeline, config=config, seed=7)
        asked[field] = TrainingConfig(
            inputs_of(resource, FileReferences({}))[0].reading.options.mapper_training
        )
    for found in asked.values():
        assert (found.seed, found.lr, found.train_batch_size_per_learner) == (7, 0.5, 16)
        assert (found.input_, found.dataset_num_iters_per_learner) == ("rows", 3)
    with pytest.raises(
        AttributeError, match=r"the config has no 'lrr' here; it has .*, lr, .*, rl_module_spec"
    ):
        asked["offlineData"].lrr  # noqa: B018
    with pytest.raises(AttributeError, match="it has observation_space, action_space, rl_module_spec"):
        TrainingConfig({}).lr  # noqa: B018
