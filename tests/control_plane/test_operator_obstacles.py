"""Obstacles to the creation or the start of an attempt are reported, and the run continues when they are removed."""

from __future__ import annotations

import pytest
from fake_kuberay import FakeKubeRay, PlayKubeRay, current_timestamp, never_ends
from operator_process import RunOperator
from resources import TeamNamespace, make_recording

from api_server import Object, collection, wait_for

WALKS = make_recording()
FAST_RETRIES = (
    "import hindcast_operator.control.startup as s; s._FIRST_RETRY_SECONDS = s._MAX_RETRY_SECONDS = 1.0"
)


GROUP = {"rayStartParams": {}, "template": {"spec": {"containers": [{"name": "ray", "image": "ray"}]}}}
FOREIGN_OBJECTS = [
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "walks-r1-1"}},
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "walks-recording"}},
    {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": "walks-r1-1"},
        "spec": {"entrypoint": "x", "rayClusterSpec": {"headGroupSpec": GROUP}},
    },
]


@pytest.mark.parametrize("foreign_object", FOREIGN_OBJECTS, ids=lambda document: document["kind"])
def test_foreign_object_with_needed_name_is_reported(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay, foreign_object: Object
) -> None:
    kind, name = foreign_object["kind"], foreign_object["metadata"]["name"]
    path = f"{team.api.path_of(foreign_object, team.namespace)}/{name}"
    version = team.api.create(foreign_object, team.namespace)["metadata"]["resourceVersion"]
    with run_operator(setup=FAST_RETRIES):
        team.apply(WALKS)
        team.wait_for_condition(WALKS, "Stalled", "True", "NameConflict")
        assert f"{kind}/{name}" in team.status(WALKS)["message"]
        assert team.api.request("GET", path)["metadata"]["resourceVersion"] == version
        team.api.delete(path)
        play_kuberay()
        team.wait_for_state(WALKS, "Succeeded")


def forbid_objects(team: TeamNamespace, resource: str) -> str:
    """Create a quota that allows no object of a resource. Return its path when the quota is in effect."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
    team.api.create(quota | {"spec": {"hard": {resource: "0"}}}, team.namespace)
    path = f"{collection('v1', 'resourcequotas', team.namespace)}/none"
    wait_for(lambda: "used" in team.api.request("GET", path).get("status", {}), "the quota is in effect")
    return path


def test_quota_for_ray_jobs_is_reported_and_retried(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    quota_path = forbid_objects(team, "count/rayjobs.ray.io")
    with run_operator(setup=FAST_RETRIES) as operator:
        team.apply(WALKS)
        team.wait_for_condition(WALKS, "Stalled", "True", "CreationRefused")
        assert "exceeded quota" in team.status(WALKS)["message"]
        assert operator.has_logged("state changed")
        team.api.delete(quota_path)
        play_kuberay()
        team.wait_for_state(WALKS, "Succeeded", 90)


def test_spec_edited_during_refused_creation_is_used(team: TeamNamespace, run_operator: RunOperator) -> None:
    """Regression: the driver read the old spec in the ConfigMap and waited for pods that the new RayJob lacks."""
    quota_path = forbid_objects(team, "count/rayjobs.ray.io")
    with run_operator(setup=FAST_RETRIES):
        team.apply(make_recording(runners={"replicas": 4}))
        team.wait_for_condition(WALKS, "Stalled", "True", "CreationRefused")
        assert "rayJobName" not in team.status(WALKS), "there is no RayJob"
        team.apply(make_recording(runners={"replicas": 1}))
        team.api.delete(quota_path)
        team.wait_for_ray_jobs("walks-r1-1")
        cluster_spec = team.api.get("RayJob", team.namespace, "walks-r1-1")["spec"]["rayClusterSpec"]
        resource_text = team.api.get("ConfigMap", team.namespace, "walks-r1-1")["data"]["resource.yaml"]
        assert cluster_spec["workerGroupSpecs"][0]["replicas"] == 1
        assert "replicas: 4" not in resource_text
        assert team.status(WALKS)["resolved"]["pools"]["runner"]["pods"]["value"] == 1


def test_refused_submitter_is_reported_from_events(team: TeamNamespace, run_operator: RunOperator) -> None:
    """KubeRay sets the RayJob to Running as soon as the submitter's Job exists, even if the Job never gets a pod."""
    forbid_objects(team, "pods")
    kuberay = FakeKubeRay(team.api, team.namespace, never_ends)
    with run_operator():
        team.apply(WALKS)
        team.wait_for_ray_jobs("walks-r1-1")
        template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "submitter", "image": "ray"}]}}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "walks-r1-1"}}
        team.api.create(job | {"spec": {"template": template}}, team.namespace)
        kuberay.set_status(
            "walks-r1-1", jobDeploymentStatus="Running", jobStatus="PENDING", startTime=current_timestamp()
        )
        team.wait_for_condition(WALKS, "ClusterReady", "False", "QuotaExceeded", seconds=30)
        assert "submitter" in team.status(WALKS)["message"]
        team.wait_for_event(WALKS, "QuotaExceeded")


def test_refused_spec_is_reported_and_runs_after_correction(
    team: TeamNamespace, run_operator: RunOperator, play_kuberay: PlayKubeRay
) -> None:
    play_kuberay()
    with run_operator():
        team.apply(make_recording(output={"path": "relative/walks"}))
        team.wait_for_condition(WALKS, "Stalled", "True", "RefusedByPlatform")
        assert team.ray_job_names() == set()
        team.apply(make_recording(output={"path": "s3://bucket/walks"}, revision=2))
        team.wait_for_state(WALKS, "Succeeded")
