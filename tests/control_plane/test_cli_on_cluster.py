"""`hindcast status` and `hindcast logs`, as processes, with the rights of real users of a real API server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from admission_specs import changed, document
from ruamel.yaml import YAML

from api_server import ApiServer, Object
from hindcast_operator import names

CHILD = "clone-t1-1"


def hindcast(*arguments: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("hindcast")), *arguments]
    environment = os.environ | ({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {})
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture
def training(api: ApiServer, namespace: str) -> Object:
    """A training that waits for a GPU, with its head's and its learner's pod."""
    stored = api.create(document("OfflineTraining", changed("OfflineTraining", {}), "clone"), namespace)
    at = {"lastTransitionTime": stored["metadata"]["creationTimestamp"]}
    message = "no node can run the learner's pod"
    status = {
        "observedGeneration": 1,
        "state": "Starting",
        "message": message,
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "Unschedulable", "message": message} | at
        ],
        "runs": [{"revision": 1, "attempt": 1, "rayJobName": CHILD, "specHash": "ab"}],
        "resolved": {"pools": {"learner": {"pods": {"value": 1, "reason": "spec.learners.replicas"}}}},
    }
    for pool, conditions in (
        ("head", [{"type": "Ready", "status": "True"}]),
        ("learner", [unschedulable()]),
        ("submitter", []),
    ):
        pod = api.create(pod_of(pool), namespace)
        phase = "Running" if pool == "head" else "Pending"
        api.merge(pod, {"status": {"phase": phase, "conditions": conditions}}, "/status")
    return api.merge(stored, {"status": status}, "/status")


def pod_of(pool: str) -> Object:
    labels = {
        names.KIND_LABEL: "OfflineTraining",
        names.NAME_LABEL: "clone",
        names.REVISION_LABEL: "1",
        names.ATTEMPT_LABEL: "1",
        "hindcast.dev/pool": pool,
    }
    # A scheduler that is not there, so that nobody else looks at it.
    spec = {"schedulerName": "none", "containers": [{"name": "ray", "image": "none"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pool, "labels": labels}, "spec": spec}


def unschedulable() -> Object:
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    return {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}


def test_a_training_is_explained(namespace: str, training: Object) -> None:
    called = hindcast("status", "otr/clone", "-n", namespace)
    assert (called.returncode, called.stderr) == (0, "")
    assert called.stdout.startswith(f"OfflineTraining/clone  in {namespace}\n")
    assert "Starting (Unschedulable)" in called.stdout
    assert "add GPU nodes or lower spec.learners.gpus" in " ".join(called.stdout.split())
    assert called.stdout.splitlines()[-1].strip() == f"kubectl describe pod learner -n {namespace}"
    document = json.loads(hindcast("status", "otr/clone", "-n", namespace, "--json").stdout)
    assert {pool["pool"]: pool["ready"] for pool in document["pools"]} == {
        "head": 1,
        "learner": 0,
        "submitter": 0,
    }


def test_a_driver_that_has_not_started_has_no_log_yet(namespace: str, training: Object) -> None:
    called = hindcast("logs", "otr/clone", "-n", namespace)
    assert called.returncode == 1
    assert called.stderr == (
        "error: attempt 1 of OfflineTraining/clone has no log yet: no node can run the learner's pod\n"
    )


def test_a_fresh_object_and_a_name_that_is_not_there(api: ApiServer, namespace: str) -> None:
    api.create(document("OfflineRecording", changed("OfflineRecording", {}), "expert"), namespace)
    called = hindcast("status", "recording/expert", "-n", namespace)
    assert "The operator has not seen it yet." in called.stdout
    called = hindcast("status", "recording/expect", "-n", namespace)
    assert called.returncode == 2
    assert "did you mean 'expert'?" in called.stderr


def test_without_rights_one_sentence_says_so(
    api: ApiServer, namespace: str, training: Object, tmp_path: Path
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "guest"}}
    path = api.path_of(api.create(account, namespace)) + "/guest/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = api.request("POST", path, request)["status"]["token"]
    kubeconfig = as_user(tmp_path / "kubeconfig", token)
    called = hindcast("status", "otr/clone", "-n", namespace, kubeconfig=kubeconfig)
    assert called.returncode == 1
    assert called.stderr.startswith(
        f"error: you may not read OfflineTraining/clone in namespace {namespace}: "
    )
    assert called.stderr.count("\n") == 1


def as_user(file: Path, token: str) -> Path:
    """The tests' kubeconfig with another user."""
    config = YAML(typ="safe", pure=True).load(Path(os.environ["KUBECONFIG"]))
    config["users"] = [{"name": entry["name"], "user": {"token": token}} for entry in config["users"]]
    file.write_text(json.dumps(config))
    return file
