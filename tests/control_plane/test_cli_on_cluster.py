"""`hindcast status` and `hindcast logs`, as processes, with the rights of real users of a real API server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from operator_process import create_token, write_kubeconfig

from api_server import ApiServer, Object
from hindcast_operator import names
from resource_examples import changed_spec, make_document

RAY_JOB_NAME = "clone-t1-1"


def run_hindcast(*arguments: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("hindcast")), *arguments]
    environment = os.environ | ({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {})
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture
def training(api: ApiServer, namespace: str) -> Object:
    """A training that waits for a GPU, with pods of the head, the learner and the submitter."""
    resource = api.create(
        make_document("OfflineTraining", changed_spec("OfflineTraining", {}), "clone"), namespace
    )
    transition_time = {"lastTransitionTime": resource["metadata"]["creationTimestamp"]}
    message = "no node can run the learner's pod"
    status = {
        "observedGeneration": 1,
        "state": "Starting",
        "message": message,
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "Unschedulable", "message": message}
            | transition_time
        ],
        "runs": [{"revision": 1, "attempt": 1, "rayJobName": RAY_JOB_NAME, "specHash": "ab"}],
        "resolved": {"pools": {"learner": {"pods": {"value": 1, "reason": "spec.learners.replicas"}}}},
    }
    for pool, conditions in (
        ("head", [{"type": "Ready", "status": "True"}]),
        ("learner", [make_unschedulable_condition()]),
        ("submitter", []),
    ):
        pod = api.create(make_pod(pool), namespace)
        phase = "Running" if pool == "head" else "Pending"
        api.merge(pod, {"status": {"phase": phase, "conditions": conditions}}, "/status")
    return api.merge(resource, {"status": status}, "/status")


def make_pod(pool: str) -> Object:
    labels = {
        names.KIND_LABEL: "OfflineTraining",
        names.NAME_LABEL: "clone",
        names.REVISION_LABEL: "1",
        names.ATTEMPT_LABEL: "1",
        "hindcast.dev/pool": pool,
    }
    # No scheduler has this name, so the pod's conditions stay as the test sets them.
    spec = {"schedulerName": "none", "containers": [{"name": "ray", "image": "none"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pool, "labels": labels}, "spec": spec}


def make_unschedulable_condition() -> Object:
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    return {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}


def test_status_explains_waiting_training(namespace: str, training: Object) -> None:
    process = run_hindcast("status", "otr/clone", "-n", namespace)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith(f"OfflineTraining/clone  in {namespace}\n")
    assert "Starting (Unschedulable)" in process.stdout
    assert "add GPU nodes or lower spec.learners.gpus" in " ".join(process.stdout.split())
    assert process.stdout.splitlines()[-1].strip() == f"kubectl describe pod learner -n {namespace}"
    status_document = json.loads(run_hindcast("status", "otr/clone", "-n", namespace, "--json").stdout)
    assert {pool["pool"]: pool["ready"] for pool in status_document["pools"]} == {
        "head": 1,
        "learner": 0,
        "submitter": 0,
    }


def test_logs_of_unstarted_driver_fail_with_reason(namespace: str, training: Object) -> None:
    process = run_hindcast("logs", "otr/clone", "-n", namespace)
    assert process.returncode == 1
    assert process.stderr == (
        "error: attempt 1 of OfflineTraining/clone has no log yet: no node can run the learner's pod\n"
    )


def test_status_of_new_object_and_unknown_name_is_explained(api: ApiServer, namespace: str) -> None:
    api.create(make_document("OfflineRecording", changed_spec("OfflineRecording", {}), "expert"), namespace)
    process = run_hindcast("status", "recording/expert", "-n", namespace)
    assert "The operator has not seen it yet." in process.stdout
    process = run_hindcast("status", "recording/expect", "-n", namespace)
    assert process.returncode == 2
    assert "did you mean 'expert'?" in process.stderr


def test_status_without_rights_fails_with_one_line(
    api: ApiServer, namespace: str, training: Object, tmp_path: Path
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "guest"}}
    api.create(account, namespace)
    token = create_token(api, namespace, "guest")
    kubeconfig = write_kubeconfig(api, token, tmp_path / "kubeconfig")
    process = run_hindcast("status", "otr/clone", "-n", namespace, kubeconfig=kubeconfig)
    assert process.returncode == 1
    assert process.stderr.startswith(
        f"error: you lack the permission to read OfflineTraining/clone in namespace {namespace}: "
    )
    assert process.stderr.count("\n") == 1
