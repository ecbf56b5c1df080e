"""From `kubectl apply` to a trained policy, although one of two learners is deleted during the training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from e2e_cluster import copy_from_claim
from e2e_kube import Kube, Object, find_condition
from e2e_resources import EXPERT_POLICY, make_recording, make_training


def test_recording_and_training_in_one_file_succeed(kube: Kube, tmp_path: Path) -> None:
    expert = make_recording(
        "expert", policy=EXPERT_POLICY, duration={"episodes": 40}, runners={"replicas": 2, "envsPerRunner": 4}
    )
    clone = make_training(
        "clone",
        algorithm="MARWIL",
        environment={"id": "CartPole-v1"},
        input=[{"recordingRef": {"name": "expert"}}],
        config={"lr": 8.0e-4, "trainBatchSizePerLearner": 512},
        model={"fcnetHiddens": [64, 64]},
        pipeline={"dataWorkers": {"replicas": 1}, "datasetNumItersPerLearner": 20},
        learners={"replicas": 2, "gpus": 1, "device": "cpu"},
        evaluation={"interval": 1, "duration": 10, "runners": 1, "parallelToTraining": True},
        stop={"iterations": 75},  # 15 s: the learner dies before the end
    )
    kube.apply(expert, clone)

    kube.wait_for_state("OfflineTraining", "clone", "Waiting", seconds=30)
    kube.wait_for_state("OfflineRecording", "expert", "Running")
    waiting_status = kube.get_status("OfflineTraining", "clone")
    assert find_condition(waiting_status, "DataReady")["status"] == "False"
    assert "expert" in waiting_status["message"]
    recorders = kube.list_pods("runner", "expert")
    assert len(recorders) == 2
    assert kube.list("pods", "hindcast.dev/name=clone") == []
    recording_status = kube.wait_for_state("OfflineRecording", "expert", "Succeeded")
    assert recording_status["output"]["episodes"] == 40

    kube.wait_for_state("OfflineTraining", "clone", "Running")
    pools = {pool: kube.list_pods(pool, "clone") for pool in ("head", "data", "learner")}
    assert {pool: bool(pods) for pool, pods in pools.items()} == {"head": True, "data": True, "learner": True}
    assert count_gpus(pools["learner"]) == 2
    assert count_gpus(pools["head"]) == count_gpus(pools["data"]) == 0
    kube.wait_for_iteration("clone", 2)
    kube.delete("pod", pools["learner"][0]["metadata"]["name"], "--grace-period=0", "--force", "--wait=false")
    training_status = kube.wait_for_state("OfflineTraining", "clone", "Succeeded")

    for type_ in ("Complete", "Finished", "Ready"):
        assert find_condition(training_status, type_)["status"] == "True"
    assert find_condition(training_status, "Failed").get("status") != "True"
    assert float(training_status["progress"]["episodeReturn"]) >= 150
    assert training_status["runs"][0]["outcome"] == "Succeeded"
    assert training_status["runs"][0]["attempt"] == 1
    assert len(kube.list("rayjobs")) == 2
    kube.kubectl("wait", "--for=condition=Finished", "offlinetraining/clone", "--timeout=5s")
    kube.wait("the event", lambda: {reason for reason, _ in kube.list_events("clone")} >= {"Succeeded"}, 60)

    run = copy_from_claim(kube, "runs/clone/r1", tmp_path)
    assert "resuming at update" in (run / "logs" / "clone-t1-1.log").read_text()
    assert evaluate_checkpoint(run)["episode_return_mean"] >= 100


def count_gpus(pods: list[Object]) -> int:
    """Return the number of GPUs that the pods request."""
    return sum(
        int(container["resources"].get("limits", {}).get("nvidia.com/gpu", 0))
        for pod in pods
        for container in pod["spec"]["containers"]
    )


def evaluate_checkpoint(run: Path) -> Object:
    """Evaluate the policy with `hindcast evaluate` on this machine."""
    command = [sys.executable, "-m", "hindcast.cli.main", "--json", "evaluate", str(run / "module")]
    process = subprocess.run(
        [*command, "--env", "CartPole-v1", "--episodes", "10"], capture_output=True, text=True, check=True
    )
    return dict(json.loads(process.stdout))
