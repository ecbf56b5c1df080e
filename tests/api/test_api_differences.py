"""What the user reads of a spec that changed: which fields, from what to what, and nothing secret."""

from typing import Any

import pytest

from hindcast.api import OfflineRecordingSpec, OfflineTrainingSpec, Resource, validate_resource
from hindcast.api.base import OPERATIONAL, Model
from hindcast.api.cluster import ClusterSpec
from hindcast.api.differences import FREE_FORM_FIELDS, differences

RECORDING: dict[str, Any] = {
    "environment": {"id": "CartPole-v1"},
    "policy": {"random": {}},
    "duration": {"episodes": 5},
    "output": {"path": "data"},
}
TRAINING: dict[str, Any] = {"algorithm": "BC", "input": [{"path": "data"}], "stop": {"iterations": 10}}


def resource(kind: str, spec: dict[str, Any]) -> Resource:
    header = {"apiVersion": "hindcast.dev/v1alpha1", "kind": kind, "metadata": {"name": "a"}}
    return validate_resource({**header, "spec": spec})


def of_training(before: dict[str, Any], after: dict[str, Any]) -> str:
    return differences(*(resource("OfflineTraining", {**TRAINING, **each}) for each in (before, after)))


def of_recording(before: dict[str, Any], after: dict[str, Any]) -> str:
    return differences(*(resource("OfflineRecording", {**RECORDING, **each}) for each in (before, after)))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            {"model": {"fcnetHiddens": [8]}},
            {"model": {"fcnetHiddens": [10]}},
            "spec.model.fcnetHiddens: [8] → [10]",
        ),
        ({}, {"model": {"fcnetHiddens": [10]}}, "spec.model.fcnetHiddens: [256, 256] → [10]"),
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
def test_names_the_fields_and_their_values(before: dict[str, Any], after: dict[str, Any], said: str) -> None:
    assert of_training(before, after) == said


def test_names_three_fields_and_counts_the_others() -> None:
    after = {"seed": 1, "duration": {"episodes": 6}, "policy": {"random": {}, "explore": False}}
    more = {"runners": {"envsPerRunner": 1}, "output": {"path": "data", "format": "CSV"}}
    assert of_recording({}, {**after, **more}) == (
        "spec.duration.episodes: 5 → 6, spec.policy.explore: true → false, spec.runners.envsPerRunner: 8 → 1 and 2 more"
    )


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"level": 1}, {"level": 2}, "spec.environment.kwargs.level: 1 → 2"),
        ({"token": "before"}, {"token": "after"}, "spec.environment.kwargs.token"),
        ({"login": {"a": ["before"]}}, {"login": {"a": 1}}, "spec.environment.kwargs.login.a"),
    ],
)
def test_says_no_texts_of_the_users_own_arguments(
    before: dict[str, Any], after: dict[str, Any], said: str
) -> None:
    assert (
        of_recording(
            *({"environment": {"id": "CartPole-v1", "kwargs": kwargs}} for kwargs in (before, after))
        )
        == said
    )


def test_says_nothing_of_values_that_fill_a_screen() -> None:
    assert of_training({}, {"model": {"fcnetHiddens": [1000] * 20}}) == "spec.model.fcnetHiddens"


def open_fields(model: type[Model]) -> set[str]:
    """Names of the fields that take any object."""
    schema = model.model_json_schema()
    parts = [schema, *schema["$defs"].values()]
    return {
        name
        for part in parts
        for name, field in part.get("properties", {}).items()
        for option in (field, *field.get("anyOf", ()))
        if option.get("x-kubernetes-preserve-unknown-fields") and option.get("type") == "object"
    }


def test_every_open_field_is_known() -> None:
    """Those of the cluster are operational, so they never differ."""
    of_cluster = open_fields(ClusterSpec)
    assert OPERATIONAL in OfflineTrainingSpec.model_fields["cluster"].metadata
    assert OPERATIONAL in OfflineRecordingSpec.model_fields["cluster"].metadata
    assert (
        open_fields(OfflineTrainingSpec) | open_fields(OfflineRecordingSpec) == FREE_FORM_FIELDS | of_cluster
    )
