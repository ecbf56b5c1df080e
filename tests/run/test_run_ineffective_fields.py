"""Notes on fields without effect when a resource runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hindcast.api.options import algorithms, options_of, schemas
from hindcast.run.ineffective_fields import notes_on_ineffective_fields
from option_effects import other_value
from support import MemoryReporter, record, recording, train, training

SET_FIELDS = {
    "pipeline": {"prefetchBatches": 5, "dataWorkers": {"replicas": 3}},
    "learners": {"replicas": 2, "memory": "1Gi"},
    "cluster": {"image": "mine"},
    "suspend": True,
}


def training_notes(*, is_one_machine: bool = True, **spec: Any) -> list[str]:
    """Return the notes on a training with these fields."""
    return notes_on_ineffective_fields(training("runs", "data", **spec), is_one_machine=is_one_machine)


def recording_notes(**spec: Any) -> list[str]:
    """Return the notes on a recording on one machine with these fields."""
    return notes_on_ineffective_fields(recording("data", **spec), is_one_machine=True)


def test_each_set_field_is_noted_once() -> None:
    assert [note.split()[0] for note in training_notes(**SET_FIELDS)] == [
        "spec.pipeline.prefetchBatches",
        "spec.pipeline.dataWorkers",
        "spec.learners.memory",
        "spec.cluster",
        "spec.suspend",
    ]


def test_most_fields_have_effect_on_cluster() -> None:
    (note,) = training_notes(**SET_FIELDS, is_one_machine=False)
    assert note.startswith("spec.pipeline.prefetchBatches has no effect: the next windows are filled while")


def test_defaults_are_not_noted() -> None:
    assert training_notes(learners={"replicas": 1}, pipeline={"prefetchBatches": 2}, suspend=False) == []


def test_data_options_require_recorded_data() -> None:
    playing = {"algorithm": "DQN", "config": {}, "environment": {"id": "a"}, "stop": {"updates": 1}}
    data_options = {"windowSteps": 5, "residency": "Resident", "validateData": False}
    fields = {**playing, "pipeline": {**data_options, "datasetNumItersPerLearner": 5}}
    assert training_notes(input=[{"sampler": {}}], **fields) == [
        f"spec.pipeline.{field} has no effect without recorded data" for field in data_options
    ]
    assert training_notes(input=[{"path": "data", "weight": 1}, {"sampler": {}, "weight": 1}], **fields) == []


def test_evaluation_options_require_environment_or_estimates() -> None:
    offline = {"heldOut": 0.1, "clip": 2, "modelUpdates": 5, "gamma": 0.5}
    assert training_notes(evaluation={"interval": 3, "duration": 5, "offline": offline}) == [
        "spec.evaluation.interval has no effect without spec.environment",
        "spec.evaluation.duration has no effect without spec.environment",
        "spec.evaluation.offline.gamma has no effect without spec.evaluation.offline.estimates",
        "spec.evaluation.offline.clip has no effect without estimates by importance sampling",
        "spec.evaluation.offline.modelUpdates has no effect without the estimates dm, dr or wdr",
    ]
    assert training_notes(evaluation={"offline": offline | {"estimates": ["dr"]}}) == []


def test_times_require_a_discount() -> None:
    inputs: list[dict[str, Any]] = [{"path": path, "time": {"column": "day"}, "weight": 1} for path in "ab"]
    notes = training_notes(algorithm="BC", config={}, input=inputs)
    assert len(notes) == 2
    for index, note in enumerate(notes):
        assert note.startswith(
            f"spec.input[{index}].time has no effect on this training: the loss of BC has no discount"
        )
    observed = [{"path": "a", "time": {"column": "day", "observe": True}}]
    estimated = {"offline": {"heldOut": 0.1, "estimates": ["dm"]}}
    assert training_notes(algorithm="BC", config={}, input=observed) == []
    assert training_notes(algorithm="BC", config={}, input=inputs, evaluation=estimated) == []
    assert training_notes(algorithm="MARWIL", config={}, input=inputs) == []


def test_recurrent_options_require_recurrent_layer() -> None:
    recurrent_options = {"cellSize": 8, "maxSeqLen": 9, "burnIn": 1, "initialState": "Recorded"}
    assert training_notes(model=recurrent_options) == [
        f"spec.model.{option} has no effect without spec.model.recurrent" for option in recurrent_options
    ]
    assert training_notes(model={**recurrent_options, "recurrent": "GRU"}) == []
    (note,) = recording_notes(policy={"train": {"model": {"burnIn": 3}, "stop": {"iterations": 1}}})
    assert note == "spec.policy.train.model.burnIn has no effect without spec.policy.train.model.recurrent"


def test_module_options_require_module_class() -> None:
    (note,) = training_notes(model={"moduleOptions": {"units": 3}})
    assert note == "spec.model.moduleOptions has no effect without spec.model.moduleClass"
    model = {"moduleClass": "module_toys:SumOfObservations", "maxSeqLen": 9, "moduleOptions": {"units": 3}}
    assert training_notes(model=model) == []
    expert = {"train": {"stop": {"iterations": 1}}, "moduleClass": "module_toys:Net"}
    (note,) = recording_notes(policy=expert)
    assert note.startswith("spec.policy.moduleClass has no effect with policy.train")
    (note,) = recording_notes(policy={"random": {}, "moduleClass": "a:B"})
    assert note == "spec.policy.moduleClass has no effect with policy.random"


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        (algorithm, name)
        for algorithm in schemas()
        for name, option in options_of(algorithm).items()
        if "x-only-with" in option
    ],
)
def test_option_that_lacks_required_option_is_noted(algorithm: str, name: str) -> None:
    option = options_of(algorithm)[name]
    required_name = option["x-only-with"]
    required_option = options_of(algorithm)[required_name]
    is_switch = required_option.get("type") == "boolean"
    off_value, on_value = (False, True) if is_switch else (None if "anyOf" in required_option else 0.0, 1.0)
    value, default = other_value(option), option["default"]
    for path, notes in collect_notes(algorithm, {name: value, required_name: off_value}):
        assert notes == [f"spec.{path}.{name} has no effect without spec.{path}.{required_name}"]
    for config in ({name: value, required_name: on_value}, {name: default, required_name: off_value}):
        assert [notes for _, notes in collect_notes(algorithm, config) if notes] == []


def collect_notes(algorithm: str, config: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield (path of the options, notes) for a training and for an expert with these options."""
    fields = {"algorithm": algorithm, "config": config}
    if algorithm in algorithms("OfflineTraining"):
        yield "config", training_notes(**fields)
    if algorithm in algorithms("OfflineRecording"):
        policy = {"train": {**fields, "stop": {"iterations": 1}}}
        yield "policy.train.config", recording_notes(policy=policy)


def test_required_option_may_be_set_by_default() -> None:
    assert training_notes(algorithm="DecisionTransformer", config={"gradClipBy": "Norm"}) == []


def test_custom_algorithm_has_common_options() -> None:
    options = {"gradClipBy": "Norm", "nStep": 5}
    (note,) = training_notes(algorithm="algorithm_toys:NStepQ", config={}, customConfig=options)
    assert note == "spec.customConfig.gradClipBy has no effect without spec.customConfig.gradClip"


def test_training_notes_ineffective_fields_and_options_that_its_networks_lack(
    tmp_path: Path, walks: Path, reporter: MemoryReporter
) -> None:
    model = {
        "fcnetHiddens": [],
        "convPadding": "same",
        "vfShareLayers": True,
        "logStdMin": -5,
        "dropout": 0.1,
    }
    spec = {"model": model, "config": {"gradClipBy": "Norm"}, "learners": {"cpus": 2}}
    train(training(tmp_path, walks, stop={"updates": 1}, **spec), reporter=reporter)
    assert [note for note in reporter.notes if " has no effect" in note] == [
        "spec.learners.cpus has no effect on one machine, where processes use what they need",
        "spec.config.gradClipBy has no effect without spec.config.gradClip",
        "spec.model.convPadding has no effect: no observation is an image",
        "spec.model.dropout has no effect: there are no fcnetHiddens or headFcnetHiddens",
        "spec.model.logStdMin has no effect: the policy has no standard deviations",
        "spec.model.vfShareLayers has no effect: the policy has no value head",
    ]


def test_recording_notes_ineffective_fields_and_options_of_expert(
    tmp_path: Path, reporter: MemoryReporter
) -> None:
    config = {
        "klTarget": 0.1,
        "useKlLoss": False,
        "trainBatchSizePerLearner": 32,
        "minibatchSize": 32,
        "numEpochs": 1,
    }
    model = {"fcnetHiddens": [4], "freeLogStd": True, "vfShareLayers": True}
    expert = {"config": config, "model": model, "stop": {"iterations": 1}, "evaluation": {"duration": 1}}
    fields = {"duration": {"episodes": 1}, "policy": {"train": expert}, "runners": {"cpus": 2}}
    record(recording(tmp_path / "data", **fields), reporter=reporter)
    assert [note for note in reporter.notes if " has no effect" in note] == [
        "spec.runners.cpus has no effect on one machine, where processes use what they need",
        "spec.policy.train.config.klTarget has no effect without spec.policy.train.config.useKlLoss",
        "spec.policy.train.model.freeLogStd has no effect: the policy has no standard deviations",
    ]


def test_gate_has_effect_without_environment() -> None:
    assert training_notes(evaluation={"gate": {"returns": {"low": 0, "high": 1}}}) == []
