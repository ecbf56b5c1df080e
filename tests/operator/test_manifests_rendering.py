"""`hindcast render` and the operator build the same manifests for a resource, except for uids."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from plan_world import World, make_reference
from ruamel.yaml import YAML

from hindcast.api import Resource, validate_resource
from hindcast.api.attempt import ResolvedInput
from hindcast_operator.decision import CreateAttempt
from hindcast_operator.defaults import Defaults
from hindcast_operator.manifests import build
from hindcast_operator.manifests.build import render

CRDS = Path(__file__).parents[2] / "crds"
PLATFORM = Defaults.model_validate(
    {
        "storageRoot": "s3://bucket/hindcast",
        "image": "platform:1",
        "runPolicy": {"startDeadlineSeconds": 77},
        "cluster": {
            "env": [{"name": "AWS_REGION", "value": "eu"}],
            "tolerations": [{"key": "shared", "operator": "Exists"}],
            "resources": {"learner": {"memory": "4Gi"}},
        },
    },
    by_alias=True,
)
RECORDING: dict[str, Any] = {
    "apiVersion": "hindcast.dev/v1alpha1",
    "kind": "OfflineRecording",
    "metadata": {"name": "cartpole", "namespace": "rl", "labels": {"team": "control"}},
    "spec": {
        "environment": {"id": "CartPole-v1"},
        "policy": {"train": {"stop": {"episodeReturnMean": 450}}},
        "duration": {"episodes": 10},
        "output": {"path": "cartpole"},
        "revision": 3,
    },
}
TRAINING: dict[str, Any] = {
    "apiVersion": "hindcast.dev/v1alpha1",
    "kind": "OfflineTraining",
    "metadata": {"name": "clone", "namespace": "rl"},
    "spec": {
        "algorithm": "BC",
        "config": {"lr": 8e-4},
        "environment": {"id": "CartPole-v1"},
        "input": [{"recordingRef": {"name": "cartpole"}}],
        "evaluation": {"interval": 1, "parallelToTraining": True},
        "learners": {"replicas": 2, "gpus": 1},
        "stop": {"iterations": 3},
        "runPolicy": {"stallTimeoutSeconds": 99},
    },
}


def make_stored_form(resource: dict[str, Any]) -> dict[str, Any]:
    """Return a resource as the API server stores it: with the defaults of the CRD's schema, uid and version."""
    (file,) = CRDS.glob(f"*_{resource['kind'].lower()}s.yaml")
    version = YAML(typ="safe", pure=True).load(file)["spec"]["versions"][0]
    document = json.loads(json.dumps(resource))
    _fill_in_defaults(version["schema"]["openAPIV3Schema"], document)
    document["metadata"] |= {"uid": "u", "generation": 1, "managedFields": [], "resourceVersion": "5"}
    return document


def _fill_in_defaults(schema: dict[str, Any], value: Any) -> None:
    if isinstance(value, list):
        for entry in value:
            _fill_in_defaults(schema.get("items", {}), entry)
    if not isinstance(value, dict):
        return
    for field, field_schema in schema.get("properties", {}).items():
        if field not in value and "default" in field_schema:
            value[field] = deepcopy(field_schema["default"])
        if field in value:
            _fill_in_defaults(field_schema, value[field])


def build_by_plan(resource: dict[str, Any], *references: Any) -> list[dict[str, Any]]:
    """Build the manifests of the plan's first CreateAttempt."""
    world = World(make_stored_form(resource), PLATFORM)
    world.references = references
    for _ in range(5):
        decision = world.plan()
        world.write_status(decision)
        create = [action for action in decision.actions if isinstance(action, CreateAttempt)]
        if create:
            return build(create[0].resource, create[0].attempt)
    raise AssertionError(f"the plan creates no attempt: {decision.status.message}")


def remove_uids(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    copies = deepcopy(manifests)
    for manifest in copies:
        manifest["metadata"].pop("ownerReferences", None)
    attempt = json.loads(copies[0]["data"]["attempt.json"])
    copies[0]["data"]["attempt.json"] = {key: value for key, value in attempt.items() if key != "uid"}
    return copies


def render_manifests(*resources: dict[str, Any]) -> list[list[dict[str, Any]]]:
    parsed_resources: list[Resource] = [validate_resource(resource) for resource in resources]
    return [attempt.manifests for attempt in render(parsed_resources, PLATFORM, "default")]


def test_rendered_recording_equals_manifests_of_plan() -> None:
    (manifests,) = render_manifests(RECORDING)
    assert remove_uids(manifests) == remove_uids(build_by_plan(RECORDING))


def test_rendered_training_of_finished_recording_equals_manifests_of_plan() -> None:
    resolved_input = make_reference().input
    assert resolved_input is not None
    finished_recording = RECORDING | {"status": {"output": resolved_input.model_dump(by_alias=True)}}
    _, manifests = render_manifests(finished_recording, TRAINING)
    expected = build_by_plan(TRAINING, make_reference())
    assert remove_uids(manifests) == remove_uids(expected)
    assert manifests[-1]["metadata"]["name"] == "clone-t1-1"


def test_stored_form_has_schema_defaults() -> None:
    document = make_stored_form(TRAINING)
    assert document["spec"]["pipeline"]["windowSteps"] == 2**20
    assert document["spec"]["revision"] == 1
    assert "revision" not in TRAINING["spec"]


def test_references_are_resolved_within_namespace() -> None:
    recording, training = validate_resource(RECORDING), validate_resource(TRAINING)
    _, rendered_training = render([recording, training], PLATFORM, "default")
    assert rendered_training.unknown_references == ()
    attempt = json.loads(rendered_training.manifests[0]["data"]["attempt.json"])
    path = "s3://bucket/hindcast/rl/cartpole"
    assert attempt["inputs"] == {"OfflineRecording/cartpole": {"path": path}}
    assert "uid" not in {k for k, v in attempt.items() if v}
    (unresolved_training,) = render([training], PLATFORM, "default")
    assert unresolved_training.unknown_references == ("OfflineRecording/cartpole",)
    foreign_recording = validate_resource(
        RECORDING | {"metadata": {"name": "cartpole", "namespace": "other"}}
    )
    assert render([foreign_recording, training], PLATFORM, "default")[1].unknown_references == (
        "OfflineRecording/cartpole",
    )


def test_training_ref_resolves_to_run_folder_of_rendered_training() -> None:
    spec = RECORDING["spec"] | {"policy": {"trainingRef": {"name": "clone"}}}
    recording = validate_resource(RECORDING | {"spec": spec})
    rendered_recording, _ = render([recording, validate_resource(TRAINING)], PLATFORM, "default")
    attempt = json.loads(rendered_recording.manifests[0]["data"]["attempt.json"])
    expected = ResolvedInput(path="s3://bucket/hindcast/rl/runs/clone/r1")
    assert attempt["inputs"] == {"OfflineTraining/clone": expected.model_dump(exclude_none=True)}


@pytest.mark.parametrize(("own_namespace", "expected"), [(None, "default"), ("rl", "rl")])
def test_namespace_of_resource_overrides_default(own_namespace: str | None, expected: str) -> None:
    metadata = {"name": "cartpole"} | ({"namespace": own_namespace} if own_namespace else {})
    (manifests,) = render_manifests(RECORDING | {"metadata": metadata})
    assert {manifest["metadata"]["namespace"] for manifest in manifests} == {expected}
    assert all("ownerReferences" not in manifest["metadata"] for manifest in manifests)
