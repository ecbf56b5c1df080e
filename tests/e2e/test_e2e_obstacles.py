"""What a cluster can put in the way: each is named in condition and event within 60 seconds."""

from __future__ import annotations

from typing import Any

import pytest
from e2e_kube import Kube, KubeError, run
from e2e_resources import recording, training

WITHIN = 60


def test_a_quota_that_blocks_only_the_submitter(kube: Kube) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "quota"},
        "spec": {"hard": {"pods": "3"}},  # the reader, the head, one runner
    }
    kube.apply(quota, recording("squeezed"))
    says(kube, "OfflineRecording", "squeezed", "exceeded quota", seconds=WITHIN + 60)


@pytest.mark.parametrize(
    ("name", "spec", "words"),
    [
        ("gpu", {"learners": {"gpus": 64}}, ["nvidia.com/gpu", "spec.learners.gpus"]),
        ("image", {"cluster": {"image": "hindcast-nowhere:1"}}, ["hindcast-nowhere:1"]),
        ("secret", {"cluster": {"envFrom": [{"secretRef": {"name": "storage-key"}}]}}, ["storage-key"]),
    ],
)
def test_what_pods_wait_for(kube: Kube, name: str, spec: dict[str, Any], words: list[str]) -> None:
    kube.apply(training(name, "data", **spec))
    for word in words:
        says(kube, "OfflineTraining", name, word)
    status = kube.status("OfflineTraining", name)
    assert status["state"] == "Starting"
    assert [run["attempt"] for run in status["runs"]] == [1]


def test_pod_overrides_with_privilege(kube: Kube) -> None:
    overrides = {"all": {"spec": {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}}}
    kube.apply(training("sneaky", "data", cluster={"podOverrides": overrides}))
    status = kube.wait_state("OfflineTraining", "sneaky", "Stalled", seconds=30)
    assert "hostPath" in status["message"]
    assert kube.list("rayjobs") == []


def test_kuberay_that_does_not_answer(kube: Kube) -> None:
    asleep = ("--namespace", "kuberay-system", "deployment/kuberay-operator")
    run("kubectl", "scale", "--replicas=0", *asleep)
    try:
        kube.apply(training("ignored", "data"))
        says(kube, "OfflineTraining", "ignored", "KubeRay")
    finally:
        run("kubectl", "scale", "--replicas=1", *asleep)
        run("kubectl", "rollout", "status", *asleep, "--timeout=60s")
    kube.wait("KubeRay takes it up", lambda: kube.list("rayclusters"), 60)


def says(kube: Kube, kind: str, name: str, word: str, seconds: float = WITHIN) -> None:
    """The word is in a condition's message and in an event."""

    def check() -> bool:
        conditions = kube.status(kind, name).get("conditions", [])
        return any(word in found["message"] for found in conditions) and any(
            word in message for _, message in kube.events(name)
        )

    try:
        kube.wait(f"{word!r} in a condition and an event", check, seconds)
    except KubeError as error:
        raise KubeError(f"{kube.status(kind, name)}\n{error}") from None
