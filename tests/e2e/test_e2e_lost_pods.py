"""Pods that die in the middle of the work: nothing is lost, nothing is done twice."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from e2e_cluster import copy_out, put_in
from e2e_kube import Kube
from e2e_resources import recording, training

from hindcast.pipeline.offline_data import Input
from support import Heard, episode_hashes, read_all, record
from support import recording as local_recording

SLOW = """\
import time

from gymnasium.envs.classic_control import CartPoleEnv


class Slow(CartPoleEnv):
    def reset(self, **options):
        time.sleep(0.5)
        return super().reset(**options)
"""
ITERATIONS = 250


def test_a_head_deleted_in_mid_training(kube: Kube, tmp_path: Path) -> None:
    """Each iteration ends with an evaluation that takes its time: a learner outlives its head by a minute."""
    record(local_recording(tmp_path / "data", environment={"id": "CartPole-v1"}))
    put_in(kube, tmp_path / "data", "data")
    code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"slow.py": SLOW}}
    evaluated = {
        "environment": {"id": "slow:Slow", "maxEpisodeSteps": 10},
        "evaluation": {"interval": 1, "duration": 1},
        "cluster": {"code": {"configMap": {"name": "code"}}},
        "checkpoint": {"path": "runs", "every": 3},
    }
    kube.apply(code, training("clone", "data", stop={"iterations": ITERATIONS}, **evaluated))
    iteration_reached(kube, "clone", 20)
    for pod in kube.pods("head", "clone"):
        kube.delete("pod", pod["metadata"]["name"], "--grace-period=0", "--force", "--wait=false")
    kube.wait_state("OfflineTraining", "clone", "Retrying", "Starting", seconds=90)
    status = kube.wait_state("OfflineTraining", "clone", "Succeeded", seconds=400)

    assert [(run["attempt"], run["outcome"]) for run in status["runs"]] == [(2, "Succeeded"), (1, "Lost")]
    run = copy_out(kube, "runs/clone/r1", tmp_path)
    results = [orjson.loads(line) for line in (run / "results.jsonl").read_bytes().splitlines()]
    assert [result["training_iteration"] for result in results] == list(range(1, ITERATIONS + 1))
    assert [result["num_updates_lifetime"] for result in results] == [
        200 * n for n in range(1, ITERATIONS + 1)
    ]
    first = (run / "logs" / "clone-t1-1.log").read_text()
    second = (run / "logs" / "clone-t1-2.log").read_text()
    assert "goes on at" not in first
    assert "goes on at update" in second
    alone = uninterrupted(tmp_path, {"stop": {"iterations": ITERATIONS}})
    assert losses(results) == pytest.approx(losses(alone), rel=1e-4)


def test_a_runner_deleted_in_mid_file(kube: Kube, tmp_path: Path) -> None:
    spec = {
        "duration": {"episodes": 60_000},
        "runners": {"replicas": 2, "envsPerRunner": 8},
        "seed": 3,
    }
    kube.apply(recording("walks", **spec, output={"path": "walks", "maxRowsPerFile": 2000}))
    kube.wait(
        "episodes recorded",
        lambda: kube.status("OfflineRecording", "walks").get("progress", {}).get("episodes", 0) > 500,
        240,
    )
    victim = kube.pods("runner", "walks")[0]["metadata"]["name"]
    kube.delete("pod", victim, "--grace-period=0", "--force", "--wait=false")
    status = kube.wait_state("OfflineRecording", "walks", "Succeeded", seconds=400)

    assert status["output"]["episodes"] == 60_000
    found = read_all(copy_out(kube, "walks", tmp_path))
    record(
        local_recording(
            tmp_path / "alone",
            environment={"id": "CartPole-v1"},
            policy={"random": {}},
            output={"maxRowsPerFile": 2000},
            **spec | {"runners": {"envsPerRunner": 8}},
        )
    )
    assert episode_hashes(found) == episode_hashes(read_all(tmp_path / "alone"))


def iteration_reached(kube: Kube, name: str, iteration: int) -> int:
    """Wait until the training has reported an iteration; the one it reported."""

    def check() -> int | None:
        found = kube.status("OfflineTraining", name).get("progress", {}).get("iteration", 0)
        return found if found >= iteration else None

    return int(kube.wait(f"iteration {iteration} of {name}", check, 240))


def uninterrupted(folder: Path, spec: dict) -> list[dict]:
    """Results of the same training on this machine, in one go."""
    from hindcast.api.loading import validate_resource
    from hindcast.run.interruption import Interruption
    from hindcast.run.training import TrainingRun

    resource = training("clone", str(folder / "data"), **spec, checkpoint={"path": str(folder / "local")})
    inputs = [Input(str(folder / "data"))]
    TrainingRun(validate_resource(resource), inputs, Heard(), Interruption()).carry_out()
    lines = (folder / "local" / "clone" / "r1" / "results.jsonl").read_bytes().splitlines()
    return [orjson.loads(line) for line in lines]


def losses(results: list[dict]) -> list[float]:
    """The loss of each iteration."""
    return [result["learners"]["default_policy"]["total_loss"] for result in results]
