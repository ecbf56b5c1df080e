"""`hindcast render` and the operator make the same of a resource; uids aside."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from plan_world import World, reference
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


def as_the_api_server_stores_it(resource: dict[str, Any]) -> dict[str, Any]:
    """With the defaults of the CRD's schema in it, and what the server adds."""
    (file,) = CRDS.glob(f"*_{resource['kind'].lower()}s.yaml")
    version = YAML(typ="safe", pure=True).load(file)["spec"]["versions"][0]
    stored = json.loads(json.dumps(resource))
    _fill_in(version["schema"]["openAPIV3Schema"], stored)
    stored["metadata"] |= {"uid": "u", "generation": 1, "managedFields": [], "resourceVersion": "5"}
    return stored


def _fill_in(schema: dict[str, Any], value: Any) -> None:
    if isinstance(value, list):
        for entry in value:
            _fill_in(schema.get("items", {}), entry)
    if not isinstance(value, dict):
        return
    for field, part in schema.get("properties", {}).items():
        if field not in value and "default" in part:
            value[field] = deepcopy(part["default"])
        if field in value:
            _fill_in(part, value[field])


def created_by_the_operator(resource: dict[str, Any], *references: Any) -> list[dict[str, Any]]:
    """What comes of the plan's first CreateAttempt."""
    world = World(as_the_api_server_stores_it(resource), PLATFORM)
    world.references = references
    for _ in range(5):
        decision = world.plan()
        world.write(decision)
        create = [action for action in decision.actions if isinstance(action, CreateAttempt)]
        if create:
            return build(create[0].resource, create[0].attempt)
    raise AssertionError(f"no attempt: {decision.status.message}")


def without_uids(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    plain = deepcopy(manifests)
    for manifest in plain:
        manifest["metadata"].pop("ownerReferences", None)
    attempt = json.loads(plain[0]["data"]["attempt.json"])
    plain[0]["data"]["attempt.json"] = {key: value for key, value in attempt.items() if key != "uid"}
    return plain


def rendered(*resources: dict[str, Any]) -> list[list[dict[str, Any]]]:
    loaded: list[Resource] = [validate_resource(resource) for resource in resources]
    return [one.manifests for one in render(loaded, PLATFORM, "default")]


def test_a_recording_is_rendered_as_the_operator_creates_it() -> None:
    (manifests,) = rendered(RECORDING)
    assert without_uids(manifests) == without_uids(created_by_the_operator(RECORDING))
    assert manifests[-1]["spec"]["preRunningDeadlineSeconds"] > 77


def test_a_training_of_a_finished_recording_is_rendered_as_the_operator_creates_it() -> None:
    given = reference().input
    assert given is not None
    finished = RECORDING | {"status": {"output": given.model_dump(by_alias=True)}}
    _, manifests = rendered(finished, TRAINING)
    created = created_by_the_operator(TRAINING, reference())
    assert without_uids(manifests) == without_uids(created)
    assert manifests[-1]["metadata"]["name"] == "clone-t1-1"


def test_the_schemas_defaults_are_filled_in_by_this_test() -> None:
    stored = as_the_api_server_stores_it(TRAINING)
    assert stored["spec"]["pipeline"]["windowSteps"] == 2**20
    assert stored["spec"]["revision"] == 1
    assert "revision" not in TRAINING["spec"]


def test_references_are_resolved_among_the_resources_of_a_namespace() -> None:
    recording, training = validate_resource(RECORDING), validate_resource(TRAINING)
    _, found = render([recording, training], PLATFORM, "default")
    assert found.unknown_references == ()
    attempt = json.loads(found.manifests[0]["data"]["attempt.json"])
    path = "s3://bucket/hindcast/rl/cartpole"
    assert attempt["inputs"] == {"OfflineRecording/cartpole": {"path": path}}
    assert "uid" not in {k for k, v in attempt.items() if v}
    (alone,) = render([training], PLATFORM, "default")
    assert alone.unknown_references == ("OfflineRecording/cartpole",)
    elsewhere = validate_resource(RECORDING | {"metadata": {"name": "cartpole", "namespace": "other"}})
    assert render([elsewhere, training], PLATFORM, "default")[1].unknown_references == (
        "OfflineRecording/cartpole",
    )


def test_a_policy_comes_from_a_training_of_the_same_files() -> None:
    spec = RECORDING["spec"] | {"policy": {"trainingRef": {"name": "clone"}}}
    recording = validate_resource(RECORDING | {"spec": spec})
    found, _ = render([recording, validate_resource(TRAINING)], PLATFORM, "default")
    attempt = json.loads(found.manifests[0]["data"]["attempt.json"])
    expected = ResolvedInput(path="s3://bucket/hindcast/rl/runs/clone/r1")
    assert attempt["inputs"] == {"OfflineTraining/clone": expected.model_dump(exclude_none=True)}


@pytest.mark.parametrize(("given", "expected"), [(None, "default"), ("rl", "rl")])
def test_the_namespace_is_the_resources_own_else_the_one_given(given: str | None, expected: str) -> None:
    metadata = {"name": "cartpole"} | ({"namespace": given} if given else {})
    (manifests,) = rendered(RECORDING | {"metadata": metadata})
    assert {manifest["metadata"]["namespace"] for manifest in manifests} == {expected}
    assert all("ownerReferences" not in manifest["metadata"] for manifest in manifests)
