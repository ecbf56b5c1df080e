"""Processes killed for memory are told as such, with the size to raise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from e2e_cluster import put_in
from e2e_kube import Kube
from e2e_resources import training

from support import record
from support import recording as local_recording

HUNGRY = """\
from hindcast.pipeline.prelearner import OfflinePreLearner


class Hungry(OfflinePreLearner):
    def __call__(self, unit, epoch=0):
        held = [bytearray(b"x" * (64 << 20)) for _ in range(200)]
        return super().__call__(unit, epoch), held
"""


@pytest.mark.parametrize(("pool", "workers"), [("dataWorker", 1), ("learner", 0)])
def test_out_of_memory(kube: Kube, tmp_path: Path, pool: str, workers: int) -> None:
    record(local_recording(tmp_path / "data", environment={"id": "CartPole-v1"}))
    put_in(kube, tmp_path / "data", "data")
    code: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}}
    kube.apply(
        code | {"data": {"hungry.py": HUNGRY}},
        training(
            "hungry",
            "data",
            pipeline={"dataWorkers": {"replicas": workers}, "preLearner": "hungry:Hungry"},
            cluster={"code": {"configMap": {"name": "code"}}},
            runPolicy={"backoffLimit": 0},
        ),
    )
    status = kube.wait_state("OfflineTraining", "hungry", "Failed", seconds=300)
    assert "(OutOfMemory)" in status["message"], status
    assert f"spec.cluster.resources.{pool}.memory" in status["message"]
    assert "2.0 GiB" in status["message"]
