"""`open_inputs`: several inputs of one training."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hindcast import OfflineData, OfflinePreLearner
from hindcast.datasets.hooks import Hooks
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import DataError, SpecError
from hindcast.evaluate.offline import OfflineOptions
from hindcast.formats.format import ReadOptions
from hindcast.rllib.training_config import TrainingConfig
from hindcast.run.checkpoint_evaluation import evaluate_checkpoint_offline
from hindcast.run.execute import FileReferences, train_locally
from hindcast.run.inputs import make_sources, open_inputs, resolve_inputs
from hindcast.run.interruption import Interruption
from support import WALK, MemoryReporter, make_policy, record, recording, training


@pytest.fixture
def expert_and_random(tmp_path: Path) -> list[Path]:
    """Two recordings of one environment; only the first has the column action_dist_inputs."""
    make_policy(WALK).save(tmp_path / "policy")
    expert = {"checkpoint": {"path": str(tmp_path / "policy")}}
    record(recording(tmp_path / "expert", policy=expert))
    record(recording(tmp_path / "random"))
    return [tmp_path / "expert", tmp_path / "random"]


@pytest.mark.parametrize("top", [{}, {"top": 0.5}])
def test_columns_of_only_some_inputs_are_dropped(
    expert_and_random: list[Path], tmp_path: Path, top: dict[str, float]
) -> None:
    inputs_spec = [{"path": str(path), **top} for path in expert_and_random]
    resource = training(tmp_path / "runs", "", environment=WALK, input=inputs_spec)
    reporter = MemoryReporter()
    outcome, inputs = train_locally(
        resource, resolve_inputs(resource, FileReferences({})), reporter, Interruption()
    )
    assert outcome.state == "Succeeded"
    assert "columns action_dist_inputs are left out, because not all inputs have them" in reporter.notes
    (source,) = make_sources(inputs)
    assert source.dataset.spec.required_leaves == {"obs", "actions", "rewards", "action_logp"}


def test_top_of_one_input_uses_rewards_that_another_lacks(
    expert_and_random: list[Path], tmp_path: Path
) -> None:
    expert_path, random_path = map(str, expert_and_random)
    inputs_spec = [{"path": expert_path, "top": 0.5}, {"path": random_path, "columns": ["obs", "actions"]}]
    resource = training(tmp_path / "runs", "", environment=WALK, input=inputs_spec)
    (source,) = make_sources(open_inputs(resource, resolve_inputs(resource, FileReferences({}))))
    assert source.dataset.spec.required_leaves == {"obs", "actions"}
    assert source.dataset.num_episodes == 1.5 * open_dataset(random_path).num_episodes
    assert "rewards" not in source.dataset.read(source.dataset.units[0]).columns


@pytest.mark.parametrize("evaluation", [{}, {"offline": {"heldOut": 0.2}}])
def test_weighted_inputs_keep_their_columns(
    expert_and_random: list[Path], tmp_path: Path, evaluation: dict[str, Any]
) -> None:
    inputs_spec = [{"path": str(path), "weight": 1.0} for path in expert_and_random]
    resource = training(tmp_path / "runs", "", environment=WALK, input=inputs_spec, evaluation=evaluation)
    reporter = MemoryReporter()
    outcome, inputs = train_locally(
        resource, resolve_inputs(resource, FileReferences({})), reporter, Interruption()
    )
    assert outcome.state == "Succeeded"
    assert "action_dist_inputs" in inputs[0].dataset.spec.leaves
    assert not any("left out" in note for note in reporter.notes)


def write_visits(file: Path, first_id: int = 0) -> None:
    rows = {
        "eps_id": np.repeat(np.arange(first_id, first_id + 4), 3),
        "obs": np.arange(12.0),
        "actions": [0, 1] * 6,
    }
    table = pa.table(rows | {"rewards": np.ones(12), "terminateds": [False, False, True] * 4})
    pq.write_table(table.append_column("hour", pa.array([0, 3, 11] * 4)), file)


def test_inputs_with_and_without_times_are_refused(tmp_path: Path) -> None:
    for name in ("visits", "steps"):
        write_visits(tmp_path / f"{name}.parquet")
    inputs_spec = [
        {"path": str(tmp_path / "visits.parquet"), "time": {"column": "hour"}, "weight": 1.0},
        {"path": str(tmp_path / "steps.parquet"), "weight": 1.0},
    ]
    resource = training(tmp_path / "runs", "", environment=None, input=inputs_spec)
    inputs = resolve_inputs(resource, FileReferences({}))
    with pytest.raises(
        DataError, match=r"steps.parquet has no times, unlike .*visits.parquet, so that gamma"
    ):
        open_inputs(resource, inputs, cache=str(tmp_path / "cache"))


def test_policy_trained_on_times_is_judged_by_times(tmp_path: Path) -> None:
    write_visits(tmp_path / "visits.parquet")
    write_visits(tmp_path / "later.parquet", first_id=9)
    input_spec = [{"path": str(tmp_path / "visits.parquet"), "time": {"column": "hour", "unit": 2.0}}]
    changes = {"algorithm": "DQN", "input": input_spec, "stop": {"updates": 2}, "environment": None}

    def run(name: str, **more: Any) -> str:
        resource = training(tmp_path / name, "", **changes, **more)
        train_locally(
            resource, resolve_inputs(resource, FileReferences({})), MemoryReporter(), Interruption()
        )
        return str(tmp_path / name / "test" / "r1")

    later, fit = str(tmp_path / "later.parquet"), OfflineOptions(fit=None)
    result = evaluate_checkpoint_offline(run("runs"), [later], gamma=0.5, options=fit)
    assert result.report.is_timed
    assert result.report.behaviour.value == pytest.approx(1 + 0.5**1.5 + 0.5**5.5)
    with pytest.raises(DataError, match=r"later.parquet has no times of rows, but the run discounts time"):
        evaluate_checkpoint_offline(str(tmp_path / "runs" / "test" / "r1"), Reading((later,)), options=fit)
    with pytest.raises(
        SpecError, match=r"later.parquet, which has no times of rows, unlike .*visits.parquet"
    ):
        run("judged", evaluation={"offline": {"input": [later]}})


class CustomOfflineData(OfflineData):
    def __init__(self, config: Any) -> None:
        self.data = [config]


class RowMappingPreLearner(OfflinePreLearner):
    @staticmethod
    def _map_to_episodes(is_multi_agent: bool, batch: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def test_pre_learner_receives_format_of_each_input(tmp_path: Path) -> None:
    sources = [{"path": "rows"}, {"path": "batches", "format": "SampleBatch"}]
    pipeline = {"preLearner": f"{__name__}:{RowMappingPreLearner.__name__}"}
    resource = training(tmp_path, "rows", environment=WALK, input=sources, pipeline=pipeline)
    inputs = resolve_inputs(resource, FileReferences({}))
    configs = [TrainingConfig(input_.reading.options.mapper_training) for input_ in inputs]
    assert [config.input_read_sample_batches for config in configs] == [False, True]


def test_offline_data_class_and_pre_learner_receive_options_of_training(tmp_path: Path) -> None:
    configs = {}
    for field, component_class in (("offlineData", CustomOfflineData), ("preLearner", RowMappingPreLearner)):
        pipeline = {field: f"{__name__}:{component_class.__name__}", "datasetNumItersPerLearner": 3}
        config = {"lr": 0.5, "trainBatchSizePerLearner": 16}
        resource = training(tmp_path, "rows", environment=WALK, pipeline=pipeline, config=config, seed=7)
        configs[field] = TrainingConfig(
            resolve_inputs(resource, FileReferences({}))[0].reading.options.mapper_training
        )
    for training_config in configs.values():
        assert (training_config.seed, training_config.lr, training_config.train_batch_size_per_learner) == (
            7,
            0.5,
            16,
        )
        assert (training_config.input_, training_config.dataset_num_iters_per_learner) == ("rows", 3)
    with pytest.raises(
        AttributeError, match=r"the config has no 'lrr' here; it has .*, lr, .*, rl_module_spec"
    ):
        configs["offlineData"].lrr  # noqa: B018
    with pytest.raises(AttributeError, match="it has observation_space, action_space, rl_module_spec"):
        TrainingConfig({}).lr  # noqa: B018


@pytest.mark.parametrize(
    ("is_normalized", "reach", "is_noted"), [(False, 1.0, True), (True, 2.0, True), (False, 2.0, False)]
)
def test_judging_by_actions_in_other_units_notes_them(
    tmp_path: Path, is_normalized: bool, reach: float, is_noted: bool
) -> None:
    make_policy({"id": "Pendulum-v1"}).save(tmp_path / "policy")
    steps = {"eps_id": np.repeat(np.arange(4), 3), "obs": np.zeros((12, 3)).tolist(), "rewards": np.ones(12)}
    actions = np.linspace([-reach], [reach], 12).tolist()
    table = pa.table(steps | {"actions": actions, "truncateds": [False, False, True] * 4})
    pq.write_table(table, tmp_path / "steps.parquet")
    reading = Reading(
        (str(tmp_path / "steps.parquet"),),
        options=ReadOptions(ignore_final_observation=True),
        actions_normalized=is_normalized,
    )
    notes: list[str] = []
    hooks = Hooks(note=notes.append)
    options = OfflineOptions(fit=None, explore=True)
    evaluate_checkpoint_offline(tmp_path / "policy", reading, options=options, hooks=hooks)
    text = f"steps.parquet: 'actions' is read .* set actionsNormalized: {str(not is_normalized).lower()}"
    assert any(re.search(text, note) for note in notes) == is_noted
