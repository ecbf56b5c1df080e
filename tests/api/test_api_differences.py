"""Differences of a changed spec: the fields, the old and new values, and nothing secret."""

from typing import Any

import pytest

from hindcast.api import OfflineRecordingSpec, OfflineTrainingSpec, validate_resource
from hindcast.api.base import OPERATIONAL, Model
from hindcast.api.cluster import ClusterSpec
from hindcast.api.differences import FREE_FORM_FIELDS, differences
from resource_examples import make_document

RECORDING: dict[str, Any] = {
    "environment": {"id": "CartPole-v1"},
    "policy": {"random": {}},
    "duration": {"episodes": 5},
    "output": {"path": "data"},
}
TRAINING: dict[str, Any] = {"algorithm": "BC", "input": [{"path": "data"}], "stop": {"iterations": 10}}


def find_differences(kind: str, spec: dict[str, Any], *changes: dict[str, Any]) -> str:
    return differences(*(validate_resource(make_document(kind, {**spec, **change})) for change in changes))


def training_differences(before: dict[str, Any], after: dict[str, Any]) -> str:
    return find_differences("OfflineTraining", TRAINING, before, after)


def recording_differences(before: dict[str, Any], after: dict[str, Any]) -> str:
    return find_differences("OfflineRecording", RECORDING, before, after)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            {"model": {"fcnetHiddens": [8]}},
            {"model": {"fcnetHiddens": [10]}},
            "spec.model.fcnetHiddens: [8] → [10]",
        ),
        ({}, {"model": {"fcnetHiddens": [10]}}, "spec.model.fcnetHiddens: none → [10]"),
        ({}, {"seed": 3}, "spec.seed: 0 → 3"),
        ({}, {"config": {"lr": 0.5}}, "spec.config.lr: default → 0.5"),
        ({"algorithm": "BC"}, {"algorithm": "MARWIL"}, "spec.algorithm: BC → MARWIL"),
        (
            {},
            {"input": [{"path": "data", "top": 0.5}, {"path": "more"}]},
            "spec.input[0].top: none → 0.5, spec.input[1].path: none → more",
        ),
        (
            {"environment": {"id": "CartPole-v1"}},
            {"environment": {"id": "CartPole-v1"}, "evaluation": {"offline": {"heldOut": 0.2}}},
            "spec.evaluation.offline.heldOut: none → 0.2",
        ),
        ({}, {"stop": {"iterations": 20}, "checkpoint": {"every": 2}}, ""),
    ],
)
def test_differences_name_fields_and_values(
    before: dict[str, Any], after: dict[str, Any], expected: str
) -> None:
    assert training_differences(before, after) == expected


def test_differences_name_three_fields_and_count_the_others() -> None:
    after = {"seed": 1, "duration": {"episodes": 6}, "policy": {"random": {}, "explore": False}}
    further_changes = {"runners": {"envsPerRunner": 1}, "output": {"path": "data", "format": "CSV"}}
    assert recording_differences({}, {**after, **further_changes}) == (
        "spec.duration.episodes: 5 → 6, spec.policy.explore: true → false, spec.runners.envsPerRunner: 8 → 1 and 2 more"
    )


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"level": 1}, {"level": 2}, "spec.environment.kwargs.level: 1 → 2"),
        ({"token": "before"}, {"token": "after"}, "spec.environment.kwargs.token"),
        ({"login": {"a": ["before"]}}, {"login": {"a": 1}}, "spec.environment.kwargs.login.a"),
    ],
)
def test_differences_hide_text_in_user_arguments(
    before: dict[str, Any], after: dict[str, Any], expected: str
) -> None:
    changes = ({"environment": {"id": "CartPole-v1", "kwargs": kwargs}} for kwargs in (before, after))
    assert recording_differences(*changes) == expected


def test_differences_hide_long_values() -> None:
    assert training_differences({}, {"model": {"fcnetHiddens": [1000] * 20}}) == "spec.model.fcnetHiddens"


def find_free_form_fields(model: type[Model]) -> set[str]:
    """Return the names of the fields that accept any mapping."""
    schema = model.model_json_schema()
    object_schemas = [schema, *schema["$defs"].values()]
    return {
        name
        for object_schema in object_schemas
        for name, field in object_schema.get("properties", {}).items()
        for option in (field, *field.get("anyOf", ()))
        if option.get("x-kubernetes-preserve-unknown-fields") and option.get("type") == "object"
    }


def test_free_form_fields_are_complete() -> None:
    """Except the fields of `cluster`, which are operational, so they are never compared."""
    cluster_fields = find_free_form_fields(ClusterSpec)
    assert OPERATIONAL in OfflineTrainingSpec.model_fields["cluster"].metadata
    assert OPERATIONAL in OfflineRecordingSpec.model_fields["cluster"].metadata
    assert (
        find_free_form_fields(OfflineTrainingSpec) | find_free_form_fields(OfflineRecordingSpec)
        == FREE_FORM_FIELDS | cluster_fields
    )
