"""`hindcast export training/NAME`: the policy of a run on a cluster, if its storage can be read from here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_objects import make_training, running_status
from command_result import Hindcast
from fake_cluster import FakeCluster, serve_cluster

from hindcast import Policy
from support import WALK, make_policy


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """Serve an empty cluster and select it in KUBECONFIG."""
    fake = FakeCluster()
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with serve_cluster(fake, tmp_path / "kubeconfig"):
        yield fake


def test_export_of_cluster_training_uses_best_checkpoint(
    hindcast: Hindcast, cluster: FakeCluster, tmp_path: Path
) -> None:
    policy = make_policy(WALK)
    policy.save(tmp_path / "best")
    cluster.add(
        make_training(running_status(checkpoint={"path": "/gone", "bestPath": str(tmp_path / "best")}))
    )
    result = hindcast("export", "training/clone", str(tmp_path / "out"), "--format", "safetensors")
    assert result.code == 0, result.err
    assert Policy.load(tmp_path / "out").digest == policy.digest


def test_export_from_cluster_volume_says_how_to_copy_files(hindcast: Hindcast, cluster: FakeCluster) -> None:
    claim = {"name": "data", "mountPath": "/data", "persistentVolumeClaim": {"claimName": "runs"}}
    resource = make_training(
        running_status(checkpoint={"path": "/data/rl/clone/r1/checkpoints/c"}), cluster={"volumes": [claim]}
    )
    cluster.add(resource)
    result = hindcast("export", "otr/clone", "out")
    assert result.code != 0
    assert (
        "the policy of OfflineTraining/clone is at /data/rl/clone/r1/checkpoints/c on the claim runs"
        in result.err
    )
    assert "copy the files from a pod that mounts this claim, then export the copy" in result.err


def test_export_without_checkpoint_is_refused(hindcast: Hindcast, cluster: FakeCluster) -> None:
    cluster.add(make_training(running_status(checkpoint={})))
    result = hindcast("export", "training/clone", "out")
    assert result.code != 0
    assert "OfflineTraining/clone has no policy yet: its state is Running. Run `hindcast status" in result.err


def test_export_of_path_refuses_cluster_options(hindcast: Hindcast, tmp_path: Path) -> None:
    result = hindcast("export", str(tmp_path), "out", "-n", "rl")
    assert result.code != 0
    assert "--namespace and --context apply only to training/NAME on a cluster" in result.err
