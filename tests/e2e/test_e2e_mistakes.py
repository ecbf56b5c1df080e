"""Mistakes of users in their code and sizes, and their clear reports."""

from __future__ import annotations

from pathlib import Path

from e2e_cluster import put_in
from e2e_kube import Kube, find_condition
from e2e_resources import CODE_CLUSTER, code_config_map, recording, training

from support import record
from support import recording as local_recording

BROKEN = """\
import gymnasium as gym


class Broken(gym.Env):
    observation_space = gym.spaces.Box(0.0, 1.0, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        raise RuntimeError("the simulator lost its licence")
"""
HUNGRY = """\
import time

from hindcast import OfflinePreLearner


class Hungry(OfflinePreLearner):
    def __call__(self, unit, epoch=0):
        held = []
        while True:
            held.append(bytearray(b"x" * (64 << 20)))
            time.sleep({pause})
"""


def test_out_of_memory_names_pool_of_data_worker_and_learner(kube: Kube, tmp_path: Path) -> None:
    """The data worker's memory fills slowly enough for Ray to kill it, before the kernel does."""
    record(local_recording(tmp_path / "data", environment={"id": "CartPole-v1"}))
    put_in(kube, tmp_path / "data", "data")
    pools = {"data-worker": ("dataWorker", "slowly_hungry"), "learner": ("learner", "hungry")}
    kube.apply(
        code_config_map(hungry=HUNGRY.format(pause=0), slowly_hungry=HUNGRY.format(pause=0.1)),
        *(
            training(
                name,
                "data",
                pipeline={
                    "dataWorkers": {"replicas": int(pool == "dataWorker")},
                    "preLearner": f"{module}:Hungry",
                },
                runPolicy={"backoffLimit": 0},
                cluster=CODE_CLUSTER,
            )
            for name, (pool, module) in pools.items()
        ),
    )
    for name, (pool, _) in pools.items():
        status = kube.wait_for_state("OfflineTraining", name, "Failed")
        assert "(OutOfMemory)" in status["message"], status["message"]
        assert f"spec.cluster.resources.{pool}.memory" in status["message"]
        assert "2.0 GiB" in status["message"]


def test_exception_in_user_environment_fails_run(kube: Kube) -> None:
    kube.apply(
        code_config_map(broken=BROKEN),
        recording("broken", environment={"id": "broken:Broken"}, cluster=CODE_CLUSTER),
    )
    status = kube.wait_for_state("OfflineRecording", "broken", "Failed")

    assert "the simulator lost its licence" in status["message"]
    assert "broken.py:13" in status["message"]
    assert "Traceback" not in status["message"]
    assert find_condition(status, "Failed")["reason"] == "UserCodeFailed"
    assert [run["attempt"] for run in status["runs"]] == [1]
    assert len(kube.list("rayjobs")) == 1
