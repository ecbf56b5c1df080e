"""The spec hash: equal for equal experiments, however they are written, and different for different ones."""

from pathlib import Path
from typing import Any

import pytest

from hindcast.api import Resource, load_resources, spec_hash, validate_resource
from resource_examples import make_document

RECORDING: dict[str, Any] = {
    "environment": {"id": "CartPole-v1", "kwargs": {"a": 1}},
    "policy": {"train": {"config": {"lr": 1e-3}, "stop": {"episodeReturnMean": 450}}},
    "duration": {"episodes": 500},
    "output": {"path": "data"},
}
TRAINING: dict[str, Any] = {
    "algorithm": "BC",
    "config": {"lr": 8e-4},
    "environment": {"id": "CartPole-v1"},
    "input": [{"recordingRef": {"name": "a"}}],
    "evaluation": {"interval": 3},
    "stop": {"iterations": 10},
}


def make_resource(kind: str, spec: dict[str, Any]) -> Resource:
    return validate_resource(make_document(kind, spec))


def merge_specs(spec: Any, change: Any) -> Any:
    if not (isinstance(spec, dict) and isinstance(change, dict)):
        return change
    return spec | {key: merge_specs(spec.get(key, {}), value) for key, value in change.items()}


def recording_hash(change: dict[str, Any] | None = None) -> str:
    return spec_hash(make_resource("OfflineRecording", merge_specs(RECORDING, change or {})))


def training_hash(change: dict[str, Any] | None = None) -> str:
    return spec_hash(make_resource("OfflineTraining", merge_specs(TRAINING, change or {})))


def test_spec_hash_is_16_hex_digits() -> None:
    assert len(recording_hash()) == 16
    assert int(recording_hash(), 16) >= 0
    assert recording_hash() != training_hash()


def test_spec_hash_ignores_formatting_and_key_order(tmp_path: Path) -> None:
    text = """\
kind: OfflineTraining
spec:
  stop: {iterations: 1e1}
  evaluation:
    interval: 3
  input: [recordingRef: {name: "a"}]   # the same
  environment:
    id: CartPole-v1
  config: {"lr": 0.0008}
  algorithm: BC
metadata: {name: another-name, labels: {team: red}}
apiVersion: hindcast.dev/v1alpha1
"""
    (tmp_path / "a.yaml").write_text(text)
    (loaded_resource,) = load_resources(tmp_path / "a.yaml")
    assert spec_hash(loaded_resource.resource) == training_hash()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 0},
        {"config": {"trainBatchSizePerLearner": 1024}},
        {"config": {"gradClip": None}},
        {"model": {"frameStack": 1, "critics": {}}},
        {"model": {}},
        {"pipeline": {"windowSteps": 2**20, "sampling": "Epochs"}},
        {"evaluation": {"duration": 10}},
    ],
)
def test_spec_hash_ignores_defaults_written_out(change: dict[str, Any]) -> None:
    assert training_hash(change) == training_hash()


@pytest.mark.parametrize(
    "change",
    [
        {"revision": 2},
        {"suspend": True},
        {"learners": {"replicas": 4, "gpus": 1, "device": "cuda"}},
        {"pipeline": {"dataWorkers": {"replicas": 9}, "prefetchBatches": 5, "residency": "Streaming"}},
        {"evaluation": {"runners": 2}},
        {"checkpoint": {"every": 1, "keep": 9, "path": "s3://elsewhere"}},
        {"cluster": {"image": "x"}},
        {"runPolicy": {"backoffLimit": 9}},
    ],
)
def test_spec_hash_ignores_operational_fields_of_training(change: dict[str, Any]) -> None:
    assert training_hash(change) == training_hash()


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"lr": 1e-3}},
        {"seed": 1},
        {"stop": {"iterations": 11}},
        {"input": [{"path": "a"}]},
        {"model": {"fcnetHiddens": [256]}},
        {"environment": {"kwargs": {"a": 1}}},
        {"pipeline": {"windowBytes": "2Gi"}},
        {"evaluation": {"interval": 4}},
        {"evaluation": None},
        {"initialCheckpoint": "x"},
    ],
)
def test_spec_hash_changes_with_defining_field_of_training(change: dict[str, Any]) -> None:
    assert training_hash(change) != training_hash()


@pytest.mark.parametrize(
    "change",
    [
        {"runners": {"replicas": 5, "cpus": 2.0}},
        {"output": {"onExisting": "Replace", "path": "s3://elsewhere"}},
        {"policy": {"train": {"algorithm": "PPO", "checkpointEvery": 1, "config": {"lr": 1.0e-3}}}},
        {"policy": {"explore": True}},
        {"seed": 0},
    ],
)
def test_spec_hash_ignores_operational_fields_of_recording(change: dict[str, Any]) -> None:
    assert recording_hash(change) == recording_hash()


@pytest.mark.parametrize(
    "change",
    [
        {"runners": {"envsPerRunner": 4}},
        {"output": {"maxRowsPerFile": 25}},
        {"policy": {"train": {"config": {"lr": 2e-3}}}},
        {"policy": {"explore": False}},
        {"duration": {"episodes": 501}},
        {"environment": {"kwargs": {"a": 2}}},
        {"seed": 7},
    ],
)
def test_spec_hash_changes_with_defining_field_of_recording(change: dict[str, Any]) -> None:
    assert recording_hash(change) != recording_hash()


def test_spec_hash_includes_an_empty_choice() -> None:
    random_hash = spec_hash(make_resource("OfflineRecording", {**RECORDING, "policy": {"random": {}}}))
    checkpoint_hash = spec_hash(
        make_resource("OfflineRecording", {**RECORDING, "policy": {"checkpoint": {"path": "x"}}})
    )
    assert random_hash != checkpoint_hash


def test_spec_hash_equals_that_of_earlier_versions() -> None:
    """Datasets and runs store the hash. If it changes, they can no longer be resumed."""
    assert recording_hash() == "445ca057f1b0342a"
    assert training_hash() == "eb3094d41b489421"
