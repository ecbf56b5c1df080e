"""`hindcast export training/NAME`: the policy of a cluster's run, where its storage can be reached from here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from calling import Hindcast
from cluster_objects import running, training
from fake_cluster import FakeCluster, serving

from hindcast import Policy
from support import WALK, make_policy


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    fake = FakeCluster()
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with serving(fake, tmp_path / "kubeconfig"):
        yield fake


def test_the_best_checkpoint_is_exported(hindcast: Hindcast, cluster: FakeCluster, tmp_path: Path) -> None:
    policy = make_policy(WALK)
    policy.save(tmp_path / "best")
    cluster.add(training(running(checkpoint={"path": "/gone", "bestPath": str(tmp_path / "best")})))
    called = hindcast("export", "training/clone", str(tmp_path / "out"), "--format", "safetensors")
    assert called.code == 0, called.err
    assert Policy.load(tmp_path / "out").digest == policy.digest


def test_a_volume_of_the_cluster_says_how_to_get_it(hindcast: Hindcast, cluster: FakeCluster) -> None:
    claim = {"name": "data", "mountPath": "/data", "persistentVolumeClaim": {"claimName": "runs"}}
    held = training(
        running(checkpoint={"path": "/data/rl/clone/r1/checkpoints/c"}), cluster={"volumes": [claim]}
    )
    cluster.add(held)
    called = hindcast("export", "otr/clone", "out")
    assert called.code != 0
    assert (
        "the policy of OfflineTraining/clone is at /data/rl/clone/r1/checkpoints/c on the claim runs"
        in called.err
    )
    assert "read it from a pod that mounts that claim, then export the copy" in called.err


def test_without_a_checkpoint_it_says_so(hindcast: Hindcast, cluster: FakeCluster) -> None:
    cluster.add(training(running(checkpoint={})))
    called = hindcast("export", "training/clone", "out")
    assert called.code != 0
    assert "OfflineTraining/clone has no policy yet, it is Running: `hindcast status" in called.err


def test_options_of_a_cluster_are_not_of_a_path(hindcast: Hindcast, tmp_path: Path) -> None:
    called = hindcast("export", str(tmp_path), "out", "-n", "rl")
    assert called.code != 0
    assert "--namespace and --context apply only to training/NAME on a cluster" in called.err
