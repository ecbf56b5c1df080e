"""Tests that mostly wait: for pods that never start, and for the kubelet to restart a container.

tools/e2e.sh runs these before the others, and alone: KubeRay is removed for a while. In CI other layers run beside
them, so that 60 seconds may become 120.
"""

from __future__ import annotations

import pytest
from e2e_kube import Kube, KubeError, run
from e2e_resources import CODE_CLUSTER, code_config_map, recording, slow_environment, training

KILL_RAYS_AGENT = """\
for process in /proc/[0-9]*; do
  if grep -qs '^ray::DashboardA' $process/comm; then kill -KILL ${process#/proc/}; fi
done"""


def test_invalid_config_is_refused_at_admission(kube: Kube) -> None:
    with pytest.raises(KubeError, match=r"spec\.config\.beta|config\.beta does not apply to BC"):
        kube.apply(training("wrong", "data", config={"beta": 1.0}))
    assert kube.get("OfflineTraining", "wrong") is None


def test_resource_created_suspended_has_no_pods(kube: Kube) -> None:
    kube.apply(training("asleep", "nowhere", suspend=True))
    kube.wait_for_state("OfflineTraining", "asleep", "Suspended", seconds=30)
    for kinds in ("rayjobs", "pods", "configmaps", "serviceaccounts"):
        assert kube.list(kinds, "hindcast.dev/name") == []


def test_privileged_pod_overrides_are_refused(kube: Kube) -> None:
    overrides = {"all": {"spec": {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}}}
    kube.apply(training("sneaky", "data", cluster={"podOverrides": overrides}))
    status = kube.wait_for_state("OfflineTraining", "sneaky", "Stalled", seconds=30)
    assert "hostPath" in status["message"]
    assert kube.list("rayjobs") == []


def test_silent_kuberay_and_missing_image_are_reported(kube: Kube) -> None:
    asleep = ("--namespace", "kuberay-system", "deployment/kuberay-operator")
    run("kubectl", "scale", "--replicas=0", *asleep)
    try:
        kube.apply(training("ignored", "data", cluster={"image": "hindcast-nowhere:1"}))
        kube.wait_for_message("ignored", "KubeRay", seconds=120)
    finally:
        run("kubectl", "scale", "--replicas=1", *asleep)
        run("kubectl", "rollout", "status", *asleep, "--timeout=60s")
    kube.wait("KubeRay takes it up", lambda: kube.list("rayclusters"), 120)
    kube.wait_for_message("ignored", "hindcast-nowhere:1", seconds=120)
    status = kube.status("OfflineTraining", "ignored")
    assert status["state"] == "Starting"
    assert [run["attempt"] for run in status["runs"]] == [1]


def test_pod_without_raylet_is_restarted(kube: Kube) -> None:
    """Ray mistakes the end of its agent, which the kernel may kill for memory, for a stop: its pod continues."""
    kube.apply(
        code_config_map(slow=slow_environment(0.2)),
        recording("walks", environment={"id": "slow:Slow"}, duration={"episodes": 400}, cluster=CODE_CLUSTER),
    )

    kube.wait("episodes recorded", lambda: kube.episodes("walks"))
    (pod,) = kube.pods("runner", "walks")
    kube.kubectl("exec", pod["metadata"]["name"], "--container", "ray", "--", "sh", "-c", KILL_RAYS_AGENT)
    assert kube.episodes("walks") < 380, "it was over before Ray's agent died"

    def restarts() -> int:
        (pod,) = kube.pods("runner", "walks")
        return int(pod["status"]["containerStatuses"][0]["restartCount"])

    kube.wait("its container is restarted", restarts, 300)
    status = kube.wait_for_state("OfflineRecording", "walks", "Succeeded")
    assert status["output"]["episodes"] == 400
    assert [run["attempt"] for run in status["runs"]] == [1]
