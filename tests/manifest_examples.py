"""Resources for tests of the manifests, and the manifests built from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hindcast.api import Resource, spec_hash, validate_resource
from hindcast.api.attempt import Attempt, ResolvedInput
from hindcast.errors import Problem
from hindcast_operator.defaults import Defaults
from hindcast_operator.manifests import build, effective_resource, find_refusals
from hindcast_operator.names import child_name

UID = "0a1b2c3d-0000-4000-8000-000000000001"
DEFAULTS = Defaults(storage_root="s3://bucket/hindcast")
SMALL_INPUTS = {
    "OfflineRecording/cartpole": ResolvedInput(
        path="s3://bucket/cartpole", bytes=9_000_000, timesteps=225_000
    )
}


def recording(name: str = "cartpole", **spec: Any) -> Resource:
    base = {
        "environment": {"id": "CartPole-v1"},
        "policy": {"random": {}},
        "duration": {"episodes": 10},
        "output": {"path": "s3://bucket/cartpole"},
    }
    return _resource("OfflineRecording", name, base | spec)


def training(name: str = "clone", **spec: Any) -> Resource:
    base = {
        "algorithm": "BC",
        "environment": {"id": "CartPole-v1"},
        "input": [{"recordingRef": {"name": "cartpole"}}],
        "stop": {"iterations": 3},
    }
    return _resource("OfflineTraining", name, base | spec)


def _resource(kind: str, name: str, spec: dict[str, Any]) -> Resource:
    metadata = {"name": name, "namespace": "rl", "labels": {"team": "control"}}
    return validate_resource(
        {"apiVersion": "hindcast.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
    )


def defaults(**values: Any) -> Defaults:
    """Make platform defaults from the chart's values."""
    return Defaults.model_validate(
        {"storageRoot": "s3://bucket/hindcast"} | values, by_alias=True, by_name=False
    )


def attempt_of(resource: Resource, number: int = 1, uid: str = UID, **inputs: ResolvedInput) -> Attempt:
    """Make an attempt of a resource, with small inputs by default."""
    return Attempt(
        revision=resource.spec.revision,
        number=number,
        ray_job_name=child_name(resource.kind, resource.metadata.name, resource.spec.revision, number),
        namespace="rl",
        uid=uid,
        spec_hash=spec_hash(resource),
        inputs=inputs or SMALL_INPUTS,
    )


def build_manifests(
    resource: Resource, platform: Defaults = DEFAULTS, **attempt: Any
) -> list[dict[str, Any]]:
    return build(effective_resource(resource, platform), attempt_of(resource, **attempt))


def ray_job(resource: Resource, platform: Defaults = DEFAULTS, **attempt: Any) -> dict[str, Any]:
    job = build_manifests(resource, platform, **attempt)[-1]
    assert job["kind"] == "RayJob"
    return job


def templates(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the pod templates by pool, including the submitter's."""
    cluster = job["spec"]["rayClusterSpec"]
    pod_templates = {
        "submitter": job["spec"]["submitterPodTemplate"],
        "head": cluster["headGroupSpec"]["template"],
    }
    return pod_templates | {group["groupName"]: group["template"] for group in cluster["workerGroupSpecs"]}


def groups(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the Ray groups by pool."""
    cluster = job["spec"]["rayClusterSpec"]
    return {"head": cluster["headGroupSpec"]} | {
        group["groupName"]: group for group in cluster["workerGroupSpecs"]
    }


def containers(template: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the containers of a pod template, then its init containers."""
    yield from template["spec"]["containers"]
    yield from template["spec"].get("initContainers", [])


def env(template: dict[str, Any]) -> dict[str, Any]:
    """Return the variables of the first container: name -> value or source."""
    variables = template["spec"]["containers"][0]["env"]
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in variables}


def list_refusals(resource: Resource, platform: Defaults = DEFAULTS) -> list[Problem]:
    return find_refusals(effective_resource(resource, platform), platform)
