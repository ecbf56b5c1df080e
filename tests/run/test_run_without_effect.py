"""Fields that change nothing are told when a resource is run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hindcast.api.options import algorithms, options_of, schemas
from hindcast.run.ineffective_fields import notes_on_ineffective_fields
from option_effects import other_value
from support import MemoryReporter, record, recording, train, training

GIVEN = {
    "pipeline": {"prefetchBatches": 5, "dataWorkers": {"replicas": 3}},
    "learners": {"replicas": 2, "memory": "1Gi"},
    "cluster": {"image": "mine"},
    "suspend": True,
}


def test_each_field_given_is_told_once() -> None:
    resource = training("runs", "data", **GIVEN)
    assert [note.split()[0] for note in notes_on_ineffective_fields(resource, is_one_machine=True)] == [
        "spec.pipeline.prefetchBatches",
        "spec.pipeline.dataWorkers",
        "spec.learners.replicas",
        "spec.learners.memory",
        "spec.cluster",
        "spec.suspend",
    ]


def test_on_a_cluster_most_have_their_effect() -> None:
    (note,) = notes_on_ineffective_fields(training("runs", "data", **GIVEN), is_one_machine=False)
    assert note.startswith("spec.pipeline.prefetchBatches has no effect: the next window is filled while")


def test_defaults_are_not_told() -> None:
    given = training("runs", "data", learners={"replicas": 1}, pipeline={"prefetchBatches": 2}, suspend=False)
    assert notes_on_ineffective_fields(given, is_one_machine=True) == []


def test_options_of_data_need_recorded_ones() -> None:
    playing = {"algorithm": "DQN", "config": {}, "environment": {"id": "a"}, "stop": {"updates": 1}}
    idle = {"windowSteps": 5, "residency": "Resident", "validateData": False}
    given = {**playing, "pipeline": {**idle, "datasetNumItersPerLearner": 5}}
    alone = training("runs", "", input=[{"sampler": {}}], **given)
    told = [f"spec.pipeline.{field} has no effect without recorded data" for field in idle]
    assert notes_on_ineffective_fields(alone, is_one_machine=True) == told
    beside = [{"path": "data", "weight": 1}, {"sampler": {}, "weight": 1}]
    assert notes_on_ineffective_fields(training("runs", "", input=beside, **given), is_one_machine=True) == []


def test_options_of_playing_need_an_environment_and_those_of_estimates_need_these() -> None:
    offline = {"heldOut": 0.1, "clip": 2, "modelUpdates": 5, "gamma": 0.5}
    given = training("runs", "data", evaluation={"interval": 3, "duration": 5, "offline": offline})
    assert notes_on_ineffective_fields(given, is_one_machine=True) == [
        "spec.evaluation.interval has no effect without spec.environment",
        "spec.evaluation.duration has no effect without spec.environment",
        "spec.evaluation.offline.clip has no effect without estimates by importance sampling",
        "spec.evaluation.offline.modelUpdates has no effect without the estimates dm, dr or wdr",
        "spec.evaluation.offline.gamma has no effect without evaluation.offline.estimates",
    ]
    used = {"offline": offline | {"estimates": ["dr"]}}
    assert notes_on_ineffective_fields(training("runs", "data", evaluation=used), is_one_machine=True) == []


def test_options_of_a_state_need_a_recurrent_layer() -> None:
    idle = {"cellSize": 8, "maxSeqLen": 9, "burnIn": 1, "initialState": "Recorded"}
    notes = notes_on_ineffective_fields(training("runs", "data", model=idle), is_one_machine=True)
    assert notes == [f"spec.model.{option} has no effect without spec.model.recurrent" for option in idle]
    assert (
        notes_on_ineffective_fields(
            training("runs", "data", model={**idle, "recurrent": "GRU"}), is_one_machine=True
        )
        == []
    )
    expert = {"train": {"model": {"burnIn": 3}, "stop": {"iterations": 1}}}
    (note,) = notes_on_ineffective_fields(recording("data", policy=expert), is_one_machine=True)
    assert note == "spec.policy.train.model.burnIn has no effect without spec.policy.train.model.recurrent"


def test_options_of_a_module_of_ones_own_need_one() -> None:
    (note,) = notes_on_ineffective_fields(
        training("runs", "data", model={"moduleOptions": {"units": 3}}), is_one_machine=True
    )
    assert note == "spec.model.moduleOptions has no effect without spec.model.moduleClass"
    given = {"moduleClass": "module_toys:Sums", "maxSeqLen": 9, "moduleOptions": {"units": 3}}
    assert notes_on_ineffective_fields(training("runs", "data", model=given), is_one_machine=True) == []
    expert = {"train": {"stop": {"iterations": 1}}, "moduleClass": "module_toys:Net"}
    (note,) = notes_on_ineffective_fields(recording("data", policy=expert), is_one_machine=True)
    assert note.startswith("spec.policy.moduleClass has no effect with policy.train")
    (note,) = notes_on_ineffective_fields(
        recording("data", policy={"random": {}, "moduleClass": "a:B"}), is_one_machine=True
    )
    assert note == "spec.policy.moduleClass has no effect with policy.random"


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        (each, name)
        for each in schemas()
        for name, option in options_of(each).items()
        if "x-only-with" in option
    ],
)
def test_an_option_that_needs_another_is_told_without_it(algorithm: str, name: str) -> None:
    option = options_of(algorithm)[name]
    needed = options_of(algorithm)[option["x-only-with"]]
    is_switch = needed.get("type") == "boolean"
    off, on = (False, True) if is_switch else (None if "anyOf" in needed else 0.0, 1.0)
    for at, notes in notes_of(algorithm, {name: other_value(option), option["x-only-with"]: off}):
        assert notes == [f"spec.{at}.{name} has no effect without spec.{at}.{option['x-only-with']}"]
    for _, notes in notes_of(algorithm, {name: other_value(option), option["x-only-with"]: on}):
        assert notes == []
    for _, notes in notes_of(algorithm, {name: option["default"], option["x-only-with"]: off}):
        assert notes == []


def notes_of(algorithm: str, config: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """The notes on a training and on an expert with these options, each with the options' place."""
    given = {"algorithm": algorithm, "config": config}
    if algorithm in algorithms("OfflineTraining"):
        yield "config", notes_on_ineffective_fields(training("runs", "data", **given), is_one_machine=True)
    if algorithm in algorithms("OfflineRecording"):
        expert = {"train": {**given, "stop": {"iterations": 1}}}
        yield (
            "policy.train.config",
            notes_on_ineffective_fields(recording("data", policy=expert), is_one_machine=True),
        )


def test_what_is_needed_may_be_there_by_default() -> None:
    given = {"algorithm": "DecisionTransformer", "config": {"gradClipBy": "Norm"}}
    assert notes_on_ineffective_fields(training("runs", "data", **given), is_one_machine=True) == []


def test_an_own_algorithm_has_the_options_of_all() -> None:
    given = {
        "algorithm": "algorithm_toys:LambdaReturns",
        "customConfig": {"gradClipBy": "Norm", "targetsEvery": 5},
    }
    (note,) = notes_on_ineffective_fields(training("runs", "data", config={}, **given), is_one_machine=True)
    assert note == "spec.customConfig.gradClipBy has no effect without spec.customConfig.gradClip"


def test_a_training_tells_options_that_its_networks_do_not_have(
    tmp_path: Path, walks: Path, reporter: MemoryReporter
) -> None:
    model = {
        "fcnetHiddens": [],
        "convPadding": "same",
        "vfShareLayers": True,
        "logStdMin": -5,
        "dropout": 0.1,
    }
    config = {"gradClipBy": "Norm"}
    train(training(tmp_path, walks, stop={"updates": 1}, model=model, config=config), reporter=reporter)
    assert [note for note in reporter.notes if " has no effect" in note] == [
        "spec.config.gradClipBy has no effect without spec.config.gradClip",
        "spec.model.convPadding has no effect: no observation is an image",
        "spec.model.dropout has no effect: there are no fcnetHiddens or headFcnetHiddens",
        "spec.model.logStdMin has no effect: the policy has no standard deviations",
        "spec.model.vfShareLayers has no effect: the policy has no value head",
    ]


def test_a_recording_tells_those_of_its_expert(tmp_path: Path, reporter: MemoryReporter) -> None:
    config = {"klTarget": 0.1, "trainBatchSizePerLearner": 32, "minibatchSize": 32, "numEpochs": 1}
    model = {"fcnetHiddens": [4], "freeLogStd": True, "vfShareLayers": True}
    expert = {"config": config, "model": model, "stop": {"iterations": 1}, "evaluation": {"duration": 1}}
    given = {"duration": {"episodes": 1}, "policy": {"train": expert}}
    record(recording(tmp_path / "data", **given), reporter=reporter)
    assert [note for note in reporter.notes if " has no effect" in note] == [
        "spec.policy.train.config.klTarget has no effect without spec.policy.train.config.useKlLoss",
        "spec.policy.train.model.freeLogStd has no effect: the policy has no standard deviations",
    ]


def test_a_training_tells_them(tmp_path: Path, walks: Path, reporter: MemoryReporter) -> None:
    train(training(tmp_path, walks, stop={"updates": 1}, learners={"cpus": 2}), reporter=reporter)
    assert [note for note in reporter.notes if "spec.learners.cpus has no effect on one machine" in note]


def test_a_recording_tells_them(tmp_path: Path, reporter: MemoryReporter) -> None:
    runners = {"envsPerRunner": 1, "cpus": 2}
    record(recording(tmp_path / "data", duration={"episodes": 1}, runners=runners), reporter=reporter)
    assert [note for note in reporter.notes if "spec.runners.cpus has no effect on one machine" in note]
