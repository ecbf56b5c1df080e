"""Obstacles that keep pods from starting: each is named in a condition and an event within 60 seconds."""

from __future__ import annotations

from typing import Any

from e2e_kube import Kube
from e2e_resources import make_recording, make_training

BLOCKED_SPECS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "gpu": ({"learners": {"gpus": 64}}, ["nvidia.com/gpu", "spec.learners.gpus"]),
    "secret": ({"cluster": {"envFrom": [{"secretRef": {"name": "storage-key"}}]}}, ["storage-key"]),
}


def test_cause_of_waiting_pods_is_reported(kube: Kube) -> None:
    kube.apply(*(make_training(name, "data", **spec) for name, (spec, _) in BLOCKED_SPECS.items()))
    for name, (_, words) in BLOCKED_SPECS.items():
        for word in words:
            kube.wait_for_message(name, word)
        status = kube.get_status("OfflineTraining", name)
        assert status["state"] == "Starting"
        assert [run["attempt"] for run in status["runs"]] == [1]


def test_quota_that_blocks_submitter_is_reported(kube: Kube) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "quota"},
        "spec": {"hard": {"pods": "2"}},  # the head and one runner, but no submitter
    }
    kube.apply(quota, make_recording("squeezed"))
    kube.wait("KubeRay has created the submitter's Job", lambda: kube.list("jobs"))
    kube.wait_for_message("squeezed", "exceeded quota", "OfflineRecording")
