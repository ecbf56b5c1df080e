"""Tests that mostly wait: for pods that never start, and for the kubelet to restart a container.

tools/e2e.sh runs these tests before and without the other end-to-end tests, because KubeRay is stopped for a while. In
CI other layers run at the same time, so the timeouts are 120 seconds instead of 60.
"""

from __future__ import annotations

import pytest
from e2e_kube import Kube, KubeError, run
from e2e_resources import (
    CODE_CLUSTER,
    make_code_config_map,
    make_recording,
    make_training,
    slow_environment_code,
)

KILL_RAYS_AGENT = """\
for process in /proc/[0-9]*; do
  if grep -qs '^ray::DashboardA' $process/comm; then kill -KILL ${process#/proc/}; fi
done"""


def test_invalid_config_is_refused_at_admission(kube: Kube) -> None:
    with pytest.raises(KubeError, match=r"spec\.config\.beta|config\.beta does not apply to BC"):
        kube.apply(make_training("wrong", "data", config={"beta": 1.0}))
    assert kube.get("OfflineTraining", "wrong") is None


def test_resource_created_suspended_has_no_pods(kube: Kube) -> None:
    kube.apply(make_training("asleep", "nowhere", suspend=True))
    kube.wait_for_state("OfflineTraining", "asleep", "Suspended", seconds=30)
    for kinds in ("rayjobs", "pods", "configmaps", "serviceaccounts"):
        assert kube.list(kinds, "hindcast.dev/name") == []


def test_privileged_pod_overrides_are_refused(kube: Kube) -> None:
    overrides = {"all": {"spec": {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}}}
    kube.apply(make_training("sneaky", "data", cluster={"podOverrides": overrides}))
    status = kube.wait_for_state("OfflineTraining", "sneaky", "Stalled", seconds=30)
    assert "hostPath" in status["message"]
    assert kube.list("rayjobs") == []


def test_silent_kuberay_and_missing_image_are_reported(kube: Kube) -> None:
    kuberay_deployment = ("--namespace", "kuberay-system", "deployment/kuberay-operator")
    run("kubectl", "scale", "--replicas=0", *kuberay_deployment)
    try:
        kube.apply(make_training("ignored", "data", cluster={"image": "hindcast-nowhere:1"}))
        kube.wait_for_message("ignored", "KubeRay", seconds=120)
    finally:
        run("kubectl", "scale", "--replicas=1", *kuberay_deployment)
        run("kubectl", "rollout", "status", *kuberay_deployment, "--timeout=60s")
    kube.wait("KubeRay creates the cluster", lambda: kube.list("rayclusters"), 120)
    kube.wait_for_message("ignored", "hindcast-nowhere:1", seconds=120)
    status = kube.get_status("OfflineTraining", "ignored")
    assert status["state"] == "Starting"
    assert [run["attempt"] for run in status["runs"]] == [1]


def test_pod_without_raylet_is_restarted(kube: Kube) -> None:
    """If the kernel kills Ray's agent, the raylet exits as after a stop, and only the probe restarts the container."""
    kube.apply(
        make_code_config_map(slow=slow_environment_code(0.2)),
        make_recording(
            "walks", environment={"id": "slow:Slow"}, duration={"episodes": 400}, cluster=CODE_CLUSTER
        ),
    )

    kube.wait("episodes recorded", lambda: kube.get_num_episodes("walks"))
    (pod,) = kube.list_pods("runner", "walks")
    kube.kubectl("exec", pod["metadata"]["name"], "--container", "ray", "--", "sh", "-c", KILL_RAYS_AGENT)
    assert kube.get_num_episodes("walks") < 380, "the recording was complete before Ray's agent was killed"

    def get_num_restarts() -> int:
        (pod,) = kube.list_pods("runner", "walks")
        return int(pod["status"]["containerStatuses"][0]["restartCount"])

    kube.wait("the runner's container is restarted", get_num_restarts, 300)
    status = kube.wait_for_state("OfflineRecording", "walks", "Succeeded")
    assert status["output"]["episodes"] == 400
    assert [run["attempt"] for run in status["runs"]] == [1]
