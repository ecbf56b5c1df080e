"""`suspend`: the nodes are freed, the work goes on where it was."""

from __future__ import annotations

from pathlib import Path

from e2e_cluster import put_in
from e2e_kube import Kube, condition
from e2e_resources import training
from test_e2e_lost_pods import iteration_reached

from support import record
from support import recording as local_recording


def test_suspended_in_mid_training_and_resumed(kube: Kube, tmp_path: Path) -> None:
    record(local_recording(tmp_path / "data", environment={"id": "CartPole-v1"}))
    put_in(kube, tmp_path / "data", "data")
    kube.apply(training("clone", "data", stop={"iterations": 100_000}))
    iteration_reached(kube, "clone", 10)

    kube.patch("OfflineTraining", "clone", suspend=True)
    status = kube.wait_state("OfflineTraining", "clone", "Suspended", seconds=150)
    assert condition(status, "Ready")["status"] == "True"
    assert condition(status, "Ready")["reason"] == "Suspended"
    assert condition(status, "Suspended")["status"] == "True"
    at = status["checkpoint"]["iteration"]
    assert at >= 10
    assert kube.list("rayjobs") == []
    kube.wait("no pods", lambda: not kube.list("pods", "hindcast.dev/name=clone"), 20)

    kube.patch("OfflineTraining", "clone", suspend=False)
    kube.wait_state("OfflineTraining", "clone", "Running", seconds=240)
    goes_on = iteration_reached(kube, "clone", at + 1)
    status = kube.status("OfflineTraining", "clone")
    assert [(run["revision"], run["attempt"]) for run in status["runs"]] == [(1, 2), (1, 1)]
    assert status["runs"][1]["outcome"] == "Suspended"
    log = kube.kubectl("exec", "reader", "--", "cat", f"/data/{kube.namespace}/runs/clone/r1/results.jsonl")
    assert log.count('"training_iteration"') >= goes_on - 1


def test_suspended_at_birth(kube: Kube) -> None:
    kube.apply(training("asleep", "nowhere", suspend=True))
    kube.wait_state("OfflineTraining", "asleep", "Suspended", seconds=30)
    made = kube.kubectl(
        "get",
        "rayjobs,pods,configmaps,serviceaccounts",
        "--selector",
        "hindcast.dev/name",
        "--output",
        "name",
    )
    assert made.strip() == ""
